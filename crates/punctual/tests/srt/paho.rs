//! The same with a client that knows nothing of us: paho-mqtt for Python, which
//! states requirements in user properties.
//!
//! `PUNCTUAL_PAHO` names the Python that has paho-mqtt 2; without it the test looks
//! for one in `python3`, and skips loudly if there is none.

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use punctual_testbed::netns::Namespace;
use serde_json::{Value, json};

use crate::network::{BROKER, Network, PORT, RATE};
use crate::programs::{Flood, Programs};
use crate::{PORTS, median, until};

const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/srt/ordinary.py");

/// The Python to run clients with; `None`, with the reason printed, if there is
/// none and none was promised.
fn python() -> Option<String> {
    let promised = std::env::var("PUNCTUAL_PAHO").ok();
    let python = promised.clone().unwrap_or_else(|| "python3".into());
    let has_paho = Command::new(&python)
        .args(["-c", "import paho.mqtt.enums"])
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    assert!(
        has_paho || promised.is_none(),
        "PUNCTUAL_PAHO: {python} has no paho-mqtt 2"
    );
    if !has_paho {
        eprintln!(
            "skipped: {python} has no paho-mqtt 2 (PUNCTUAL_PAHO names one; scripts/test makes it)"
        );
    }
    has_paho.then_some(python)
}

/// A process with clients of a host.
struct Paho {
    process: Child,
    orders: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Paho {
    fn start(python: &str, host: &Namespace) -> Self {
        let mut command = Command::new(python);
        command
            .arg(PROGRAM)
            .args([BROKER.to_string(), PORT.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        host.place(&mut command);
        let mut process = command.spawn().unwrap();
        Self {
            orders: process.stdin.take().unwrap(),
            lines: BufReader::new(process.stdout.take().unwrap()).lines(),
            process,
        }
    }

    fn tell(&mut self, order: &Value) {
        writeln!(self.orders, "{order}").unwrap();
    }

    /// What is said next.
    fn hear(&mut self) -> Value {
        let line = self.lines.next().expect("the clients ended").unwrap();
        serde_json::from_str(&line).unwrap()
    }

    fn publish(&mut self, client: &str, topic: &str, properties: &[(&str, &str)]) -> Value {
        self.tell(&json!({
            "client": client, "publish": topic, "payload": "17", "properties": properties,
        }));
        let answer = self.hear();
        assert!(answer["reason"].as_u64().unwrap() < 0x80, "{answer}");
        answer
    }
}

impl Drop for Paho {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The value of a user property of an acknowledgement.
fn property<'a>(answer: &'a Value, name: &str) -> Option<&'a str> {
    let mut pairs = answer["properties"].as_array()?.iter();
    pairs.find(|pair| pair[0] == name)?[1].as_str()
}

/// A client that only sends user properties is answered; its packets are found in
/// its queue at every port, and wait for no flood; and what cannot be met is
/// answered with the reason.
#[test]
fn any_client_is_answered_and_kept_from_a_flood() {
    let Some(python) = python() else {
        return;
    };
    let Some(network) = Network::build(3, 2) else {
        return;
    };
    let Some(programs) = Programs::start(&network, &["--decision-timeout", "20000"]) else {
        return;
    };
    let mut subscriber = Paho::start(&python, &network.subscriber);
    subscriber.tell(&json!({"client": "s", "subscribe": "axis/#"}));
    assert_eq!(subscriber.hear(), json!({"granted": [1]}));
    let mut publisher = Paho::start(&python, &network.publisher);
    let wants = [("rt-deadline", "50ms"), ("rt-period", "1s")];
    let answer = publisher.publish("p", "axis/1", &wants);
    assert_eq!(property(&answer, "rt-status"), Some("admitted"), "{answer}");
    assert!(property(&answer, "rt-bound").is_some(), "{answer}");
    assert_eq!(subscriber.hear()["topic"], "axis/1");

    let channel = programs.channel("axis/1@p").unwrap();
    let queue = u8::try_from(channel["queue"].as_u64().unwrap()).unwrap();
    assert!(queue > 0, "{channel}");
    let before = PORTS.map(|(_, port)| network.sent(port, queue));
    let messages = 20;
    for _ in 0..messages {
        publisher.publish("p", "axis/1", &wants);
        assert_eq!(subscriber.hear()["payload"], "17");
    }
    for ((switch, port), before) in PORTS.iter().zip(before) {
        let passed = network.sent(port, queue) - before;
        assert!(
            passed >= messages,
            "{passed} packets in queue {queue} of {port} at {switch}"
        );
    }

    let hopeless = [("rt-deadline", "200us"), ("rt-period", "1s")];
    let answer = publisher.publish("p", "axis/2", &hopeless);
    assert_eq!(property(&answer, "rt-status"), Some("best-effort"));
    let reason = property(&answer, "rt-reason").unwrap_or_default();
    assert!(reason.contains("deadline"), "{reason}");

    let flood = Flood::start(&network, 2 * RATE);
    until("the flood to fill the queue", || {
        (network.backlog("s1-s2", 0) > 0).then_some(())
    });
    let (mut urgent, mut usual) = (Vec::new(), Vec::new());
    let seconds = |answer: &Value| Duration::from_secs_f64(answer["seconds"].as_f64().unwrap());
    for _ in 0..messages {
        urgent.push(seconds(&publisher.publish("p", "axis/1", &wants)));
        usual.push(seconds(&publisher.publish("o", "other/1", &[])));
    }
    drop(flood);
    let (urgent, usual) = (median(urgent), median(usual));
    println!(
        "paho, PUBLISH to PUBACK under a flood: {urgent:?} admitted, {usual:?} other (medians)"
    );
    assert!(urgent * 2 < usual, "{urgent:?} admitted, {usual:?} other");
}
