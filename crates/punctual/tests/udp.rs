//! MQTT over UDP with the real binary: `serve`, `pub` and `sub` on loopback.
//! What a UDP listener does with single datagrams is tested in `punctual-net`.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may panic; clippy knows only the tests themselves"
)]

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

const PUNCTUAL: &str = env!("CARGO_BIN_EXE_punctual");

/// A `punctual serve` on free ports, for as long as the value lives.
struct Serve {
    child: Child,
    /// Ports by UDP and by TCP.
    ports: [String; 2],
}

impl Serve {
    fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(PUNCTUAL)
            .args(["serve", "--http", "off"])
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let ports = ["udp", "tcp"].map(|scheme| {
            let words = format!("listening on {scheme}://127.0.0.1:");
            let said = lines.by_ref().map_while(Result::ok);
            let mut ports = said.filter_map(|line| Some(line.split(&words).nth(1)?.to_owned()));
            ports.next().expect("punctual serve does not listen")
        });
        // Keeps the pipe empty; ends with the process.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        Self { child, ports }
    }

    /// `pub` or `sub` by UDP or TCP.
    fn client(&self, tool: &str, udp: bool, more: &[&str]) -> Command {
        let mut command = Command::new(PUNCTUAL);
        command.arg(tool).args(["-t", "topic", "-q", "2"]);
        if udp {
            command.arg("--udp");
        }
        let port = &self.ports[usize::from(!udp)];
        command.args(["-p", port]).args(more);
        command
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A message by each transport reaches subscribers by each, retained ones
/// included.
#[test]
fn messages_go_from_transport_to_transport() {
    let serve = Serve::start(&[
        "--listen",
        "udp://127.0.0.1:0",
        "--listen",
        "tcp://127.0.0.1:0",
    ]);
    for publish_by_udp in [true, false] {
        let message = format!("by udp: {publish_by_udp}");
        let published = serve
            .client("pub", publish_by_udp, &["-r", "-m", &message])
            .status()
            .unwrap();
        assert!(published.success());
        for subscribe_by_udp in [true, false] {
            let got = serve
                .client("sub", subscribe_by_udp, &["-C", "1", "-W", "20"])
                .output()
                .unwrap();
            let text = String::from_utf8(got.stdout).unwrap();
            assert_eq!(text.trim_end(), message);
        }
    }
}

/// Keys of UDP are taken from the file, and wrong ones are named.
#[test]
fn the_configuration_of_a_udp_listener() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("punctual.toml");
    let check = |listener: &str| {
        std::fs::write(&file, format!("[[listener]]\n{listener}\n")).unwrap();
        let output = Command::new(PUNCTUAL)
            .args(["config", "check"])
            .arg(&file)
            .output()
            .unwrap();
        (
            output.status.success(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let (good, said) = check(
        "address = \"udp://127.0.0.1:0\"\ncookie = \"off\"\nseal = \"required\"\n\
         max_datagram = \"1200B\"\nrate = \"100Mbit\"\nsend_buffer = \"64KiB\"\n\
         idle_timeout = \"1m\"",
    );
    assert!(good, "{said}");
    for (listener, word) in [
        (
            "address = \"tcp://127.0.0.1:0\"\ncookie = \"off\"",
            "cookie",
        ),
        ("address = \"tcp://127.0.0.1:0\"\nrate = \"1Mbit\"", "rate"),
        (
            "address = \"udp://127.0.0.1:0\"\nproxy_protocol = true",
            "proxy_protocol",
        ),
        (
            "address = \"udp://127.0.0.1:0\"\nrate = \"fast\"",
            "100Mbit",
        ),
        (
            "address = \"udp://127.0.0.1:0\"\nmax_datagram = \"70000B\"",
            "max_datagram",
        ),
    ] {
        let (good, said) = check(listener);
        assert!(!good && said.contains(word), "{listener}: {said}");
    }
}
