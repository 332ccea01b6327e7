//! `punctual pub` and `punctual sub`, beside Mosquitto's tools, against
//! Mosquitto and against `punctual serve`.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may panic; clippy knows only the tests themselves"
)]

#[path = "../../client/tests/support/broker.rs"]
mod broker;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, ChildStderr, Command, Output, Stdio};

use broker::Broker;

const PUNCTUAL: &str = env!("CARGO_BIN_EXE_punctual");

/// A `punctual serve` on a free port, for as long as the value lives.
struct Serve {
    child: Child,
    port: u16,
}

impl Serve {
    fn start() -> Self {
        let mut child = Command::new(PUNCTUAL)
            .args(["serve", "--listen", "tcp://127.0.0.1:0", "--http", "off"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let port = lines
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| {
                line.split("listening on tcp://127.0.0.1:")
                    .nth(1)?
                    .parse()
                    .ok()
            })
            .expect("punctual serve does not listen");
        // Keeps the pipe empty; ends with the process.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        Self { child, port }
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a test against every broker there is. `extra` is configuration for
/// Mosquitto.
fn with_brokers(extra: &str, test: impl Fn(u16)) {
    let serve = Serve::start();
    test(serve.port);
    if let Some(broker) = Broker::start(extra) {
        test(broker.tcp);
    }
}

/// Whether Mosquitto's tools are installed; says so loudly if not.
fn has_mosquitto_tools() -> bool {
    let found = Command::new("mosquitto_sub").arg("--help").output().is_ok();
    if !found {
        eprintln!("SKIPPED: mosquitto_sub is not installed (apt install mosquitto-clients)");
    }
    found
}

/// A run that has ended.
struct Run {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Run {
    fn new(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Fails the test unless it succeeded in silence on standard error.
    #[track_caller]
    fn ok(self) -> String {
        assert_eq!((self.code, &*self.err), (Some(0), ""), "{}", self.out);
        self.out
    }

    /// Fails the test unless it ended with `code` and said all `words`.
    #[track_caller]
    fn fails(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{}{}", self.out, self.err);
        for word in words {
            assert!(self.err.contains(word), "{word:?} is not in: {}", self.err);
        }
    }
}

/// A command line of one of the tools; words are separated by blanks, except
/// in `more`.
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

fn run(program: &str, port: u16, words: &str, more: &[&str]) -> Run {
    Run::new(command(program, port, words, more).output().unwrap())
}

fn run_with_input(program: &str, port: u16, words: &str, input: &[u8]) -> Run {
    let mut child = command(program, port, words, &[])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let run = Run::new(child.wait_with_output().unwrap());
    writer.join().unwrap().unwrap();
    run
}

/// A tool that runs with `-d`.
struct Running {
    child: Child,
    err: BufReader<ChildStderr>,
}

impl Running {
    fn start(command: &mut Command) -> Self {
        let mut child = command.arg("-d").spawn().unwrap();
        let err = BufReader::new(child.stderr.take().unwrap());
        Self { child, err }
    }

    /// A `punctual sub` that has subscribed.
    fn sub(port: u16, words: &str, more: &[&str]) -> Self {
        let mut sub = Self::start(&mut command("sub", port, words, more));
        sub.until("subscribed:");
        sub
    }

    /// Waits for a line of `-d` that begins so.
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

    fn signal(&self, signal: i32) {
        // SAFETY: the child has not been waited for, so its id is its own.
        let sent = unsafe { libc::kill(self.child.id() as i32, signal) };
        assert_eq!(sent, 0);
    }

    fn end(mut self) -> (Option<i32>, String) {
        let mut err = String::new();
        let reader = std::thread::spawn(move || self.err.read_to_string(&mut err).map(|_| err));
        let output = self.child.wait_with_output().unwrap();
        reader.join().unwrap().unwrap();
        let out = String::from_utf8(output.stdout).unwrap();
        (output.status.code(), out)
    }
}

/// Every version and QoS, in both directions, with our tool at one end and
/// Mosquitto's at the other. A kept session holds the message meanwhile.
#[test]
fn both_tools_understand_each_other() {
    let mut pairs = vec![("pub", "sub")];
    if has_mosquitto_tools() {
        pairs.extend([("pub", "mosquitto_sub"), ("mosquitto_pub", "sub")]);
    }
    with_brokers("", |port| {
        for version in ["31", "311", "5", "mqttv5"] {
            for qos in 0..=2 {
                for &(publisher, subscriber) in &pairs {
                    let topic = format!("x/{version}/{qos}/{publisher}{subscriber}");
                    let common = format!("-V {version} -q {qos} -t {topic}");
                    run(publisher, port, &format!("{common} -r -m"), &["-one two"]).ok();
                    let words = format!("{common} -C 1 -v");
                    let out = run(subscriber, port, &words, &[]).ok();
                    assert_eq!(out, format!("{topic} -one two\n"));
                }
            }
        }
    });
}

#[test]
fn formats_print_what_mosquitto_prints() {
    if !has_mosquitto_tools() {
        return;
    }
    with_brokers("", |port| {
        const FORMATS: [&str; 6] = [
            "A=%A C=%C D=%D E=%F l=%l P=%P p=%p q=%q R=%R r=%r S=%S t=%t x=%x X=%X",
            "[%10t][%-10t][%10.2t][%.2t][%010l][%-5l|][%20p][%-20p][%020l]",
            "[%20C][%-20C][%.4C][%5S][%05S][%5F][%20R][%5A]",
            "%% @@ \\\\ \\t|\\e|\\a|\\v|\\r|\\0|",
            "@Y-@m-@d",
            "%m %q",
        ];
        let properties = "-D publish user-property k v -D publish user-property k2 v2 \
                      -D publish content-type text/plain -D publish correlation-data xyz \
                      -D publish response-topic re/sp -D publish payload-format-indicator 1";
        run(
            "pub",
            port,
            &format!("-t f/1 -r -q 1 {properties} -m hello"),
            &[],
        )
        .ok();
        for format in FORMATS {
            let words = "-V 5 -t f/1 -q 1 -C 1 -D subscribe subscription-identifier 3 -F";
            let ours = run("sub", port, words, &[format]).ok();
            let theirs = run("mosquitto_sub", port, words, &[format]).ok();
            assert_eq!(ours, theirs, "{format}");
        }
        let words = "-V 5 -t f/1 -q 1 -C 1 -F %j";
        let ours = run("sub", port, words, &[]).ok();
        let theirs = run("mosquitto_sub", port, words, &[]).ok();
        let without_time = |text: &str| {
            let mut value: serde_json::Value = serde_json::from_str(text).unwrap();
            value.as_object_mut().unwrap().remove("tst").unwrap();
            value
        };
        assert_eq!(without_time(&ours), without_time(&theirs));

        // %J: not JSON is a warning, and the next message is printed.
        run("pub", port, "-t f/2 -r -m {\"a\":1.50}", &[]).ok();
        let ours = run("sub", port, "-t f/# -C 2 -F %J", &[]);
        assert!(
            ours.out.contains("\"payload\":{\"a\":1.50}"),
            "{}",
            ours.out
        );
        assert!(ours.err.contains("\"f/1\" is not JSON"), "{}", ours.err);
    });
}

#[test]
fn lines_stream_in_order_under_flow_control() {
    with_brokers("max_inflight_messages 5", |port| {
        const LINES: usize = 3000;
        for qos in 0..=2 {
            let words = format!("-t lines -q {qos} -C {LINES}");
            let sub = Running::sub(port, &words, &[]);
            // The last line has no end.
            let input: Vec<String> = (0..LINES).map(|i| format!("line {i}")).collect();
            let words = format!("-t lines -l -q {qos}");
            run_with_input("pub", port, &words, input.join("\n").as_bytes()).ok();
            let (code, out) = sub.end();
            assert_eq!(code, Some(0));
            assert!(
                out.lines().eq(input.iter().map(String::as_str)),
                "QoS {qos}"
            );
        }
    });
}

#[test]
fn payloads_come_from_everywhere() {
    with_brokers("", |port| {
        let kept = "-t p -q 1 -c -i keeper";
        run("sub", port, &format!("{kept} -E"), &[]).ok();
        run("pub", port, "-t p -q 1 -m argument", &[]).ok();
        run("pub", port, "-t p -q 1 -n", &[]).ok();
        run_with_input("pub", port, "-t p -q 1 -s", b"all\nof it").ok();
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("payload");
        std::fs::write(&file, "from a file").unwrap();
        run("pub", port, "-t p -q 1 -f", &[file.to_str().unwrap()]).ok();
        run(
            "pub",
            port,
            "-t p -q 1 -m again --repeat 2 --repeat-delay 0.01",
            &[],
        )
        .ok();
        run_with_input("pub", port, "-t p -q 1 -l", b"one\n\ntwo\n").ok();
        let words = format!("{kept} -C 9 -N -F");
        let out = run("sub", port, &words, &["%p|"]).ok();
        assert_eq!(
            out,
            "argument||all\nof it|from a file|again|again|one||two|"
        );
    });
}

#[test]
fn retained_messages_are_told_apart() {
    with_brokers("", |port| {
        for topic in ["r/a", "r/b", "r/c"] {
            run("pub", port, "-r -m old -t", &[topic]).ok();
        }
        let out = run("sub", port, "-t r/# -T r/b -v -C 2", &[]).ok();
        assert_eq!(out, "r/a old\nr/c old\n");

        let sub = Running::sub(port, "-t r/# -R -C 1", &[]);
        run("pub", port, "-t r/a -m new", &[]).ok();
        assert_eq!(sub.end(), (Some(0), "new\n".into()));

        let mut sub = Running::sub(port, "-t r/# --retained-only --remove-retained -T r/c", &[]);
        for _ in 0..3 {
            sub.until("received PUBLISH");
        }
        run("pub", port, "-t r/a -m new", &[]).ok();
        assert_eq!(sub.end(), (Some(0), "old\nold\n".into()));
        let out = run("sub", port, "-t r/# -v -C 1", &[]).ok();
        assert_eq!(out, "r/c old\n", "the others are cleared");

        let sub = Running::sub(port, "-t r/x --retain-as-published -C 1 -F %r", &[]);
        run("pub", port, "-t r/x -m new -r", &[]).ok();
        assert_eq!(sub.end(), (Some(0), "1\n".into()));
    });
}

#[test]
fn sessions_are_kept_and_left() {
    with_brokers("", |port| {
        for version in ["311", "5"] {
            let common = format!("-V {version} -i s{version} -c -q 2");
            run("sub", port, &format!("{common} -t s/# -E"), &[]).ok();
            run("pub", port, "-q 2 -t s/1 -m waits", &[]).ok();
            let out = run("sub", port, &format!("{common} -t s/# -C 1"), &[]).ok();
            assert_eq!(out, "waits\n");
            run("sub", port, &format!("{common} -U s/# -E"), &[]).ok();
            run("pub", port, "-q 2 -t s/1 -m unheard", &[]).ok();
            let run = run("sub", port, &format!("{common} -t other -W 1"), &[]);
            run.fails(27, &["timed out"]);
            assert_eq!(run.out, "");
        }
    });
}

/// -C takes no more than it prints: with QoS 1 and a kept session the rest is
/// there for the next run.
#[test]
fn a_count_leaves_the_rest_in_the_session() {
    with_brokers("", |port| {
        let common = "-i counter -c -q 1 -t c";
        run("sub", port, &format!("{common} -E"), &[]).ok();
        run_with_input("pub", port, "-q 1 -t c -l", b"1\n2\n3\n4\n").ok();
        for i in 1..=4 {
            let out = run("sub", port, &format!("{common} -C 1"), &[]).ok();
            assert_eq!(out, format!("{i}\n"));
        }
    });
}

#[test]
fn wills_are_for_those_who_vanish() {
    with_brokers("", |port| {
        const SIGINT: i32 = 2;
        const SIGKILL: i32 = 9;
        let will = "--will-topic w --will-payload gone --will-qos 1 -D will content-type text/x";
        let watcher = Running::sub(port, "-t w -C 2 -F %C:%p", &[]);
        let polite = Running::sub(port, &format!("-t x {will}"), &[]);
        polite.signal(SIGINT);
        assert_eq!(polite.end(), (Some(0), String::new()));
        run("pub", port, "-t w -m first", &[]).ok();
        let killed = Running::sub(port, &format!("-t x {will}"), &[]);
        killed.signal(SIGKILL);
        killed.end();
        assert_eq!(watcher.end(), (Some(0), ":first\ntext/x:gone\n".into()));
    });
}

#[test]
fn every_transport_has_its_flags() {
    let Some(broker) = Broker::start("") else {
        return;
    };
    let file = |name| broker.file(name).to_str().unwrap().to_owned();
    let (ca, cert, key) = (file("ca.pem"), file("client.pem"), file("client.key"));
    let tls = ["--cafile", &ca, "--cert", &cert, "--key", &key];
    let named = [&tls[..], &["--sni", "localhost"]].concat();
    let loose = [&tls[..], &["--insecure", "--tls-version", "tlsv1.2"]].concat();
    let ws_named = [&named[..], &["--ws"]].concat();
    let mqtts = format!("mqtts://localhost:{}/t", broker.tls);
    let by_url = [&tls[..], &["-L", &mqtts]].concat();
    for (port, flags) in [
        (broker.ws, &["--ws", "--path", "/mqtt"][..]),
        (broker.tls, &named),
        (broker.tls, &loose),
        (broker.wss, &ws_named),
        (0, &by_url),
    ] {
        let with = |command: &str, words: &str| {
            let mut tool = Command::new(PUNCTUAL);
            tool.arg(command).args(words.split_whitespace()).args(flags);
            if port != 0 {
                let port = port.to_string();
                tool.args(["-h", "127.0.0.1", "-p", &port, "-t", "t"]);
            }
            Run::new(tool.output().unwrap())
        };
        with("pub", "-r -m secret").ok();
        assert_eq!(with("sub", "-C 1").ok(), "secret\n", "{flags:?}");
    }
    let run = run("sub", broker.tls, "-t t", &["--cafile", &ca]);
    run.fails(8, &["not valid for name"]);
}

#[test]
fn failures_have_mosquittos_exit_codes_and_say_what_helps() {
    let Some(broker) = Broker::start("password_file /dev/null") else {
        return;
    };
    let port = broker.tcp;
    for (version, code) in [("5", 135), ("311", 5), ("31", 5)] {
        for (tool, rest) in [("pub", "-m x"), ("sub", "")] {
            let words = format!("-V {version} -t a -u nobody -P wrong {rest}");
            run(tool, port, &words, &[]).fails(code, &["Not authorized", "-u"]);
        }
    }
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let place = format!("127.0.0.1:{port}");
    let words = [
        "cannot connect",
        &place,
        "check -h and -p",
        "punctual serve",
    ];
    run("sub", port, "-t a", &[]).fails(1, &words);
    run("pub", port, "-t a -m b", &[]).fails(1, &words);
    let quiet = run("pub", port, "-t a -m b --quiet", &[]);
    assert_eq!((quiet.code, &*quiet.err), (Some(1), ""));
    run("sub", port, "-t a -h no.such.invalid", &[]).fails(2, &["--host"]);
}

#[test]
fn refused_topics_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let acl = dir.path().join("acl");
    std::fs::write(&acl, "topic readwrite ok/#\n").unwrap();
    let Some(broker) = Broker::start(&format!("acl_file {}", acl.display())) else {
        return;
    };
    run("pub", broker.tcp, "-t no -m x -q 1", &[]).fails(135, &["message 1 was refused"]);
    run("pub", broker.tcp, "-t ok/1 -m x -q 1", &[]).ok();
}

#[test]
fn mistakes_on_the_command_line_are_explained() {
    for (tool, words, said) in [
        ("pub", "-m x", "no topic"),
        ("pub", "-t a/# -m x", "+ or #"),
        ("pub", "-t a", "required"),
        ("pub", "-t a -m x -n", "cannot be used with"),
        ("pub", "-t a -m x -q 3", "say 0, 1 or 2"),
        ("pub", "-t a -m x -V 4", "say 5, 311 or 31"),
        (
            "pub",
            "-t a -m x -V 311 -D publish content-type x",
            "needs MQTT 5",
        ),
        (
            "pub",
            "-t a -m x -D publish content-typ x",
            "no property \"content-typ\"",
        ),
        (
            "pub",
            "-t a -m x -x 5 -D connect session-expiry-interval 6",
            "leave one out",
        ),
        ("pub", "-t a -m x -c", "--id"),
        ("pub", "-t a -m x --will-payload x", "--will-topic"),
        ("pub", "-t a -m x --cert /c --key /k", "--cert needs TLS"),
        ("pub", "-t a -f /no/such/file", "/no/such/file"),
        ("pub", "-L http://x/y -m x", "mqtt://"),
        ("sub", "", "no topic"),
        ("sub", "-t a/#/b", "\"a/#/b\" is no topic filter"),
        ("sub", "-t a -F %Q", "%Q"),
        ("sub", "-t a -V 311 -x 5", "-x needs MQTT 5"),
        ("sub", "-t a --cafile /no/such.pem", "/no/such.pem"),
        ("sub", "-t a -P secret -V 311", "user name"),
    ] {
        let mut command = Command::new(PUNCTUAL);
        command
            .arg(tool)
            .args(words.split_whitespace())
            .stdin(Stdio::null());
        let run = Run::new(command.output().unwrap());
        assert!(matches!(run.code, Some(1..=3)), "{words}: {:?}", run.code);
        assert!(
            run.err.contains(said),
            "{words}: {said:?} is not in {}",
            run.err
        );
        assert!(!run.err.contains("panicked"), "{}", run.err);
    }
}

#[test]
fn latencies_are_measured() {
    with_brokers("", |port| {
        let sub = Running::sub(port, "-t l --latency -C 50", &[]);
        run("pub", port, "-t l --latency -m x --repeat 50", &[]).ok();
        let (code, out) = sub.end();
        assert_eq!(code, Some(0));
        let last = out.lines().last().unwrap();
        assert!(last.starts_with("50 messages  p50 "), "{out}");
        assert!(last.contains("  p99 ") && last.contains("  max "), "{out}");
        assert!(!last.contains("without"), "{out}");
    });
}

#[test]
fn a_subscriber_learns_what_is_missing() {
    let broker = Serve::start();
    let mut sub = Running::sub(broker.port, "-t n/# --sequence -C 5", &[]);
    run("pub", broker.port, "-t n/1 -m x --repeat 3", &[]).ok();
    run("pub", broker.port, "-t n/2 -q 1 -m y --repeat 2", &[]).ok();
    sub.until("5 received, 0 lost, 0 reordered, 0 doubled");
    assert_eq!(sub.end(), (Some(0), "x\nx\nx\ny\ny\n".into()));
    let mut sub = Running::sub(broker.port, "-t n --sequence -W 1", &[]);
    sub.until("no message had a number");
    assert_eq!(sub.end().0, Some(27));
}

#[test]
fn a_subscriber_outlives_its_broker() {
    let Some(mut broker) = Broker::start("") else {
        return;
    };
    let mut sub = Running::sub(broker.tcp, "-t again -C 1", &[]);
    broker.restart();
    sub.until("Warning: the connection was lost");
    sub.until("connected as");
    // The client renews the subscription of itself, before it reads on; so a
    // message that was retained before or comes later arrives.
    run("pub", broker.tcp, "-t again -m back -r", &[]).ok();
    assert_eq!(sub.end(), (Some(0), "back\n".into()));

    let sub = Running::sub(broker.tcp, "-t again -R --no-reconnect", &[]);
    broker.restart();
    assert_eq!(sub.end().0, Some(7));
}

#[test]
fn lines_go_on_after_the_broker_was_away() {
    let Some(mut broker) = Broker::start("") else {
        return;
    };
    let mut command = command("pub", broker.tcp, "-t l -l -q 1 -r", &[]);
    let mut publisher = Running::start(command.stdin(Stdio::piped()));
    let mut stdin = publisher.child.stdin.take().unwrap();
    stdin.write_all(b"one\n").unwrap();
    publisher.until("published");
    broker.restart();
    publisher.until("Warning: the connection was lost");
    stdin.write_all(b"two\n").unwrap();
    publisher.until("connected as");
    publisher.until("published");
    drop(stdin);
    assert_eq!(publisher.end().0, Some(0));
    let out = run("sub", broker.tcp, "-t l -C 1", &[]).ok();
    assert_eq!(out, "two\n");
}

/// A server that answers each packet in turn with these bytes, then closes.
fn scripted(answers: &'static [&'static [u8]]) -> (u16, std::thread::JoinHandle<()>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        for answer in answers {
            let mut header = [0; 2];
            stream.read_exact(&mut header).unwrap();
            let mut body = vec![0; usize::from(header[1])];
            stream.read_exact(&mut body).unwrap();
            stream.write_all(answer).unwrap();
        }
    });
    (port, thread)
}

#[test]
fn what_servers_say_becomes_the_exit_code() {
    const CONNACK: &[u8] = &[0x20, 3, 0, 0, 0];
    for (answers, tool, words, code, said) in [
        (
            &[CONNACK, &[0x90, 4, 0, 1, 0, 0x87]][..],
            "sub",
            "-t a",
            135,
            &["\"a\" was refused", "all subscriptions were refused"][..],
        ),
        (
            &[CONNACK],
            "pub",
            "-t a -m x -q 1",
            7,
            &["connection was lost"],
        ),
        (
            &[CONNACK, &[0xE0, 1, 0x8B]],
            "pub",
            "-t a -m x -q 1",
            139,
            &["Server shutting down"],
        ),
        (
            &[&[0x20, 2, 0, 1]],
            "pub",
            "-t a -m x",
            132,
            &["try -V 311"],
        ),
        (
            &[&[0x20, 3, 0, 0x88, 0]],
            "sub",
            "-t a",
            136,
            &["Server unavailable"],
        ),
        (
            &[&[0x20, 2, 0, 3]],
            "sub",
            "-t a -V 311",
            3,
            &["Server unavailable"],
        ),
        (&[&[0x30, 0]], "sub", "-t a", 2, &["broke the protocol"]),
        (&[&[]], "sub", "-t a", 7, &["before", "answered CONNECT"]),
        (
            &[&[0x20, 6, 0, 0, 3, 0x21, 0, 0]],
            "pub",
            "-t a -m x",
            2,
            &["Receive Maximum"],
        ),
        (
            &[&[0x20, 5, 0, 0, 2, 0x24, 0]],
            "pub",
            "-t a -m x -q 1",
            24,
            &["QoS"],
        ),
        (
            &[&[0x20, 5, 0, 0, 2, 0x25, 0]],
            "pub",
            "-t a -m x -r",
            28,
            &["Retain"],
        ),
    ] {
        let (port, server) = scripted(answers);
        run(tool, port, words, &[]).fails(code, said);
        server.join().unwrap();
    }
}
