//! `punctual sidecar` between unchanged clients and a broker: Mosquitto's tools
//! and ours through it, what arrives at the broker, and what happens when
//! either side goes.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may panic; clippy knows only the tests themselves"
)]

#[path = "../../client/tests/support/broker.rs"]
#[expect(dead_code, reason = "the tests of the client need more of it")]
mod broker;
#[path = "support/process.rs"]
mod process;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

use broker::Broker;
use process::{PUNCTUAL, Process};

fn start_sidecar(broker: &str, more: &[&str]) -> Process {
    let mut arguments = vec![
        "sidecar",
        "--listen",
        "tcp://127.0.0.1:0",
        "--broker",
        broker,
    ];
    arguments.extend(more);
    Process::start("tcp", &arguments)
}

fn command(program: &str, port: u16, words: &str, more: &[&str]) -> Command {
    let mut command = match program {
        "pub" | "sub" => {
            let mut command = Command::new(PUNCTUAL);
            command.arg(program);
            command
        }
        other => Command::new(other),
    };
    command
        .args(["-p", &port.to_string(), "-h", "127.0.0.1"])
        .args(words.split_whitespace())
        .args(more)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// What a tool printed; it must succeed.
#[track_caller]
fn run(program: &str, port: u16, words: &str, more: &[&str]) -> String {
    let output = command(program, port, words, more).output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {words}: {err}");
    String::from_utf8(output.stdout).unwrap()
}

/// A `punctual sub` that has subscribed.
struct Sub {
    child: Child,
    err: BufReader<ChildStderr>,
}

impl Sub {
    fn start(port: u16, words: &str, more: &[&str]) -> Self {
        let mut child = command("sub", port, words, more).arg("-d").spawn().unwrap();
        let err = BufReader::new(child.stderr.take().unwrap());
        let mut sub = Self { child, err };
        sub.until("subscribed:");
        sub
    }

    #[track_caller]
    fn until(&mut self, start: &str) {
        let mut seen = String::new();
        loop {
            let before = seen.len();
            self.err.read_line(&mut seen).unwrap();
            let line = &seen[before..];
            assert!(!line.is_empty(), "ended without {start:?}: {seen}");
            if line.starts_with(start) {
                return;
            }
        }
    }

    fn end(mut self) -> String {
        let reader = std::thread::spawn(move || {
            let mut err = String::new();
            let _ = self.err.read_to_string(&mut err);
        });
        let output = self.child.wait_with_output().unwrap();
        reader.join().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Programs at both ends: ours, and Mosquitto's if they are installed.
fn pairs() -> Vec<(&'static str, &'static str)> {
    let found = Command::new("mosquitto_sub").arg("--help").output().is_ok();
    if !found {
        let what = "mosquitto_sub is not installed (apt install mosquitto-clients)";
        assert!(
            std::env::var_os("PUNCTUAL_REQUIRE_MOSQUITTO").is_none(),
            "{what}"
        );
        eprintln!("SKIPPED: {what}");
        return vec![("pub", "sub")];
    }
    vec![
        ("pub", "sub"),
        ("mosquitto_pub", "sub"),
        ("pub", "mosquitto_sub"),
        ("mosquitto_pub", "mosquitto_sub"),
    ]
}

/// Runs a test with each way to each broker.
fn with_ways(test: impl Fn(&str)) {
    for scheme in ["tcp", "udp"] {
        let serve = Process::serve(scheme);
        test(&format!("{scheme}://127.0.0.1:{}", serve.port));
    }
    if let Some(mosquitto) = Broker::start("") {
        test(&format!("mqtt://127.0.0.1:{}", mosquitto.tcp));
    }
}

/// Every version and QoS, retained, in both directions.
#[test]
fn unchanged_clients_notice_nothing() {
    with_ways(|broker| {
        let sidecar = start_sidecar(broker, &["--rule", "x/#: priority=1"]).quiet();
        for version in ["31", "311", "5"] {
            for qos in 0..=2 {
                for (publisher, subscriber) in pairs() {
                    let topic = format!("x/{version}/{qos}/{publisher}{subscriber}");
                    let common = format!("-V {version} -q {qos} -t {topic}");
                    let words = format!("{common} -r -m");
                    run(publisher, sidecar.port, &words, &["one two"]);
                    let words = format!("{common} -C 1 -v");
                    let out = run(subscriber, sidecar.port, &words, &[]);
                    assert_eq!(out, format!("{topic} one two\n"), "{broker}");
                }
            }
        }
    });
}

/// Rules put requirements on what passes; who asks for something keeps it.
#[test]
fn rules_add_requirements() {
    with_ways(|broker| {
        let rules = [
            "-r",
            "alarm/#: priority=0, deadline=5ms",
            "-r",
            "#: priority=9",
        ];
        let sidecar = start_sidecar(broker, &rules).quiet();
        let mut sub = Sub::start(sidecar.port, "-t # -C 4 -F", &["%t %P"]);
        run("pub", sidecar.port, "-V 311 -t alarm/1 -m x", &[]);
        sub.until("received PUBLISH");
        run("pub", sidecar.port, "-t alarm/2 -m x --priority 7", &[]);
        sub.until("received PUBLISH");
        let own = "-D publish user-property colour red -D publish message-expiry-interval 60";
        run("pub", sidecar.port, &format!("-t log -m x -q 2 {own}"), &[]);
        sub.until("received PUBLISH");
        run("pub", sidecar.port, "-V 311 -t log -m x -q 1", &[]);
        assert_eq!(
            sub.end(),
            "alarm/1 priority:0 rt-deadline:5ms\n\
             alarm/2 priority:7 rt-deadline:5ms\n\
             log colour:red priority:9\n\
             log priority:9\n"
        );
    });
}

#[test]
fn wills_pass_and_have_requirements() {
    with_ways(|broker| {
        let sidecar = start_sidecar(broker, &["-r", "bye: priority=2"]).quiet();
        let sub = Sub::start(sidecar.port, "-t bye -C 1 -F", &["%p %P"]);
        let will = "-V 311 -t none --will-topic bye --will-payload gone --will-qos 1";
        Sub::start(sidecar.port, will, &[]).kill();
        assert_eq!(sub.end(), "gone priority:2\n");
    });
}

/// Sessions are the broker's: they outlive the client, and the sidecar too.
#[test]
fn sessions_are_kept() {
    with_ways(|broker| {
        for version in ["311", "5"] {
            let sidecar = start_sidecar(broker, &[]).quiet();
            let keeper = format!("-V {version} -t kept/{version} -q 1 -c -i keeper{version}");
            run("sub", sidecar.port, &format!("{keeper} -E"), &[]);
            drop(sidecar);
            let sidecar = start_sidecar(broker, &[]).quiet();
            let words = format!("-t kept/{version} -q 1 -m waited");
            run("pub", sidecar.port, &words, &[]);
            let out = run("sub", sidecar.port, &format!("{keeper} -C 1"), &[]);
            assert_eq!(out, "waited\n");
        }
    });
}

/// Many messages with QoS 1 and 2, from clients that know the Receive Maximum
/// and from some that do not. Datagrams may overtake each other, the bytes of a
/// stream not.
#[test]
fn streams_arrive_complete_and_in_order() {
    const LINES: usize = 2000;
    with_ways(|broker| {
        let sidecar = start_sidecar(broker, &["-r", "lines: priority=1"]).quiet();
        for version in ["311", "5"] {
            for qos in 1..=2 {
                let words = format!("-V {version} -t lines -q {qos} -C {LINES}");
                let sub = Sub::start(sidecar.port, &words, &[]);
                let input: Vec<String> = (0..LINES).map(|i| format!("line {i}")).collect();
                let words = format!("-V {version} -t lines -l -q {qos}");
                let mut publisher = command("pub", sidecar.port, &words, &[])
                    .stdin(Stdio::piped())
                    .spawn()
                    .unwrap();
                let mut stdin = publisher.stdin.take().unwrap();
                stdin.write_all(input.join("\n").as_bytes()).unwrap();
                drop(stdin);
                assert!(publisher.wait().unwrap().success());
                let out = sub.end();
                let mut lines: Vec<&str> = out.lines().collect();
                let mut input: Vec<&str> = input.iter().map(String::as_str).collect();
                if broker.starts_with("udp") {
                    lines.sort_unstable();
                    input.sort_unstable();
                }
                assert!(lines == input, "QoS {qos}, {broker}");
            }
        }
    });
}

/// A broker that is not there: the client hears so in its own words, and gets
/// through when it is.
#[test]
fn a_broker_that_comes_later_is_found() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let mut sidecar = start_sidecar(&format!("mqtt://127.0.0.1:{port}"), &[]);
    for (version, code) in [("311", 3), ("5", 0x88)] {
        let words = format!("-V {version} -t a -m x");
        let output = command("pub", sidecar.port, &words, &[]).output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{err}");
    }
    sidecar.until("clients are turned away for");
    let listen = format!("tcp://127.0.0.1:{port}");
    let serve = Process::start("tcp", &["serve", "--listen", &listen, "--http", "off"]).quiet();
    // Each failure before makes the pause longer, and these are few.
    let subscribed = (0..10_000).any(|_| {
        let sub = command("sub", sidecar.port, "-t a -E", &[]).output();
        sub.unwrap().status.success()
    });
    assert!(subscribed);
    // And when it goes, its clients hear it.
    let mut sub = Sub::start(sidecar.port, "-t a", &[]);
    drop(serve);
    sub.until("Warning: ");
    sub.kill();
}

/// A port that is taken is not one that cannot be reached.
#[test]
fn a_port_that_is_taken_is_said() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("tcp://{}", taken.local_addr().unwrap());
    let mut command = Command::new(PUNCTUAL);
    command.args(["sidecar", "-b", "udp://127.0.0.1", "-l", &url]);
    let output = command.output().unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains(&format!("cannot listen on {url}: ")),
        "{said}"
    );
    assert!(said.contains("choose another port"), "{said}");
}

/// What is no MQTT is turned away, and others are not disturbed.
#[test]
fn nonsense_is_turned_away() {
    with_ways(|broker| {
        let mut sidecar = start_sidecar(broker, &[]);
        let mut stream = TcpStream::connect(("127.0.0.1", sidecar.port)).unwrap();
        stream
            .write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            .unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty());
        let line = sidecar.until("has left");
        assert!(line.contains("the client broke the protocol"), "{line}");
        run("pub", sidecar.port, "-t a -m x -q 1", &[]);
    });
}
