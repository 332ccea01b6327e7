//! Marks on what clients send: `punctual pub`, and unchanged clients through
//! `punctual sidecar`.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::IpAddr;
use std::process::{Child, Command, Stdio};

use punctual_testbed::netns::Namespace;

use crate::broker::{Broker, PORT};
use crate::capture::Capture;
use crate::network::{BROKER, Network};

/// Flags of `pub`, the class in words, and its DSCP.
const CLASSES: [(&[&str], &str, u8); 3] = [
    (&[], "normal", 0),
    (&["--priority", "0"], "priority", 40),
    (&["--deadline", "5ms"], "realtime", 46),
];

/// Scheme of a URL, and a listener for it beside the one for TCP.
const WAYS: [(&str, &str); 2] = [
    ("mqtt", ""),
    (
        "udp",
        "[[listener]]\naddress = \"udp://*:1883\"\nallow_anonymous = true\n",
    ),
];

pub(crate) fn url(scheme: &str, address: IpAddr) -> String {
    match address {
        IpAddr::V4(_) => format!("{scheme}://{address}:{PORT}"),
        IpAddr::V6(_) => format!("{scheme}://[{address}]:{PORT}"),
    }
}

fn punctual(host: &Namespace, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_punctual"));
    command.args(arguments).stdin(Stdio::null());
    host.place(&mut command);
    command
}

#[track_caller]
fn publish(host: &Namespace, arguments: &[&str]) {
    let output = punctual(host, &["pub", "-q", "1"])
        .args(arguments)
        .output()
        .unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {err}");
}

/// `punctual sub` for one message; it ends when this is dropped.
pub(crate) struct Subscriber(Child);

impl Subscriber {
    /// Returns when it has subscribed.
    pub(crate) fn start(host: &Namespace, url: &str, more: &[String]) -> Self {
        let mut child = punctual(host, &["sub", "-d", "-C", "1", "-W", "60", "-L", url])
            .args(more)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stderr.take().unwrap());
        let subscriber = Self(child);
        let mut lines = said.lines().map_while(Result::ok);
        let mut said = Vec::new();
        let subscribed = lines.any(|line| {
            said.push(line);
            said.last()
                .is_some_and(|line| line.starts_with("subscribed:"))
        });
        assert!(subscribed, "{said:?}");
        // Whoever writes to a pipe that nobody reads is stopped.
        std::thread::spawn(move || lines.for_each(drop));
        subscriber
    }

    /// Waits for its message.
    pub(crate) fn message(mut self) -> String {
        let mut message = String::new();
        let mut out = self.0.stdout.take().unwrap();
        out.read_to_string(&mut message).unwrap();
        assert!(self.0.wait().unwrap().success());
        message
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn what_is_published_is_marked_by_its_class() {
    let Some(network) = Network::build() else {
        return;
    };
    for (scheme, listener) in WAYS {
        let _broker = Broker::start(&network.broker, listener);
        for address in BROKER {
            for (flags, class, dscp) in CLASSES {
                let mut capture = Capture::start(&network.broker);
                let payload = format!("a {class} message over {scheme} to {address}");
                let url = format!("{}/t", url(scheme, address));
                let arguments = [&["-L", &url, "-m", &payload], flags].concat();
                publish(&network.clients, &arguments);
                let packet = capture.find(|p| p.to == PORT && p.contains(&payload));
                assert_eq!(packet.dscp, dscp, "{packet:?}");
            }
        }
    }
}

/// A running sidecar; it ends when this is dropped.
struct Sidecar(Child);

impl Sidecar {
    fn start(host: &Namespace, arguments: &[&str]) -> Self {
        let mut process = punctual(host, &["sidecar"])
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = process.stderr.take().unwrap();
        let sidecar = Self(process);
        let mut lines = BufReader::new(log).lines().map_while(Result::ok);
        let listening = lines.any(|line| line.contains("listening on tcp://"));
        assert!(listening, "the sidecar ended before it listened");
        // Whoever writes to a pipe that nobody reads is stopped.
        std::thread::spawn(move || lines.for_each(drop));
        sidecar
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn what_passes_the_sidecar_is_marked_by_rule() {
    let Some(network) = Network::build() else {
        return;
    };
    for (scheme, listener) in WAYS {
        let _broker = Broker::start(&network.broker, listener);
        for address in BROKER {
            let broker = url(scheme, address);
            let rules = ["-r", "priority: priority=0", "-r", "realtime: deadline=5ms"];
            let arguments = [&["-b", &broker][..], &rules].concat();
            let _sidecar = Sidecar::start(&network.clients, &arguments);
            for (_, class, dscp) in CLASSES {
                let mut capture = Capture::start(&network.broker);
                let payload = format!("a {class} message over {scheme} to {address}");
                let arguments = ["-V", "311", "-p", "1884", "-t", class, "-m", &payload];
                publish(&network.clients, &arguments);
                let packet = capture.find(|p| p.to == PORT && p.contains(&payload));
                assert_eq!(packet.dscp, dscp, "{packet:?}");
            }
        }
    }
}
