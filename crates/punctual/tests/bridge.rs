//! Bridges to a Mosquitto at the edge of a mesh: topics go over with their prefixes, once, and
//! circles end. Skipped, with the reason printed, where no mosquitto is installed, unless
//! PUNCTUAL_REQUIRE_MOSQUITTO is set.

#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

#[path = "http/broker.rs"]
#[allow(dead_code, reason = "the tests of the HTTP interface need more of it")]
mod broker;
#[path = "support/secret.rs"]
#[allow(dead_code, reason = "not every test speaks as a neighbour")]
mod secret;
#[path = "support/talk.rs"]
#[allow(dead_code, reason = "other tests need more of it")]
mod talk;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use broker::{Broker, PATIENCE};
use punctual_client::{Client, Config, Event, QoS};
use tempfile::TempDir;

/// What is published only to find out whether a bridge is up.
const PROBE: &str = "probe";

/// A Mosquitto on a port of its own; it ends when this is dropped.
struct Mosquitto {
    process: Child,
    address: SocketAddr,
    _directory: TempDir,
}

impl Mosquitto {
    fn start() -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let file = directory.path().join("mosquitto.conf");
        let port = address.port();
        let text = format!("listener {port} 127.0.0.1\nallow_anonymous true\n");
        std::fs::write(&file, text).unwrap();
        let process = Command::new("mosquitto")
            .arg("-c")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let Ok(process) = process else {
            punctual_testbed::skip("PUNCTUAL_REQUIRE_MOSQUITTO", "mosquitto is not installed");
            return None;
        };
        let start = Instant::now();
        while TcpStream::connect(address).is_err() {
            assert!(start.elapsed() < PATIENCE, "mosquitto does not listen");
            std::thread::yield_now();
        }
        Some(Self {
            process,
            address,
            _directory: directory,
        })
    }
}

impl Drop for Mosquitto {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A broker of a mesh with a bridge, once the bridge is up at both ends.
fn bridged(id: &str, there: SocketAddr, topics: &str, neighbours: &[SocketAddr]) -> Broker {
    let directory = tempfile::tempdir().unwrap();
    let [bridges, config] = ["bridges.conf", "punctual.toml"].map(|f| directory.path().join(f));
    let section = format!("connection {id}\naddress {there}\n{topics}\n");
    std::fs::write(&bridges, section).unwrap();
    let neighbours: Vec<String> = neighbours.iter().map(|n| format!("\"{n}\"")).collect();
    let text = format!(
        "[mesh]\nenabled = true\njoin_wait = \"0s\"\nid = \"{id}\"\nhello = \"200ms\"\nbridges = \"{}\"\n\
         secret_file = {:?}\nneighbours = [{}]\n",
        bridges.display(),
        secret::FILE,
        neighbours.join(", ")
    );
    std::fs::write(&config, text).unwrap();
    Broker::with_sys(&["--config", config.to_str().unwrap()], "1s")
}

fn client(address: SocketAddr, id: &str) -> Client {
    let config = Config {
        client_id: id.into(),
        ..Config::default()
    };
    talk::connect(address, config)
}

fn subscriber(address: SocketAddr, filter: &str) -> Client {
    // An identifier of its own at each broker: in a mesh, another client that has the same is
    // the same client.
    let name = format!("subscriber-{}", address.port());
    talk::subscribed(client(address, &name), filter)
}

#[track_caller]
fn publish(address: SocketAddr, topic: &str, payload: &str) {
    let mut client = client(address, &format!("publisher-{}", address.port()));
    talk::publish(&mut client, topic, payload, QoS::AtLeastOnce);
}

/// Waits until all that tells of a bridge says so, and why where it is not connected.
#[track_caller]
fn until_told(broker: &Broker, state: &mut Client, name: &str, connected: bool) -> String {
    let start = Instant::now();
    let mut said = String::new();
    let wanted = if connected { "1" } else { "0" };
    let metric = format!("\npunctual_bridge_connected{{name=\"{name}\"}} {wanted}\n");
    loop {
        if let Some(Event::Message(delivery)) = state.next(Some(Duration::from_millis(50))).unwrap()
        {
            said = String::from_utf8(delivery.message.payload).unwrap();
        }
        let bridge = broker.get("/api/v1/mesh").ok()["bridges"][0].clone();
        assert_eq!(bridge["name"], *name);
        let metrics = broker.get("/metrics").body;
        if said == wanted && bridge["connected"] == connected && metrics.contains(&metric) {
            return bridge["why"].as_str().unwrap_or_default().to_owned();
        }
        assert!(start.elapsed() < PATIENCE, "{said:?} {bridge} {metrics}");
    }
}

/// Topics and payloads until nothing more comes, late probes left out.
fn received(client: &mut Client, at_least: usize) -> Vec<(String, String)> {
    let mut messages = Vec::new();
    while messages.len() < at_least {
        let more = talk::received(client, at_least - messages.len());
        assert!(!more.is_empty(), "only {messages:?}");
        let more = more.into_iter();
        let more = more.map(|it| (it.topic, String::from_utf8(it.payload).unwrap()));
        messages.extend(more.filter(|(_, payload)| payload != PROBE));
    }
    messages
}

/// Publishes at one end until it is heard at the other: then the bridge is up.
#[track_caller]
fn until_heard(from: SocketAddr, topic: &str, to: &mut Client) {
    let start = Instant::now();
    loop {
        publish(from, topic, PROBE);
        let came = to.next(Some(Duration::from_millis(200))).unwrap();
        if let Some(Event::Message(delivery)) = came
            && delivery.message.topic == topic
        {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "{topic} is never heard");
    }
}

#[test]
fn topics_go_over_once_with_their_prefixes() {
    let Some(mosquitto) = Mosquitto::start() else {
        return;
    };
    let topics = "topic t/# both 1\ntopic # out 1 here/ there/\ntopic x in 1 from/ \"\"";
    let broker = bridged("a", mosquitto.address, topics, &[]);
    let mut here = subscriber(broker.tcp, "#");
    let mut there = subscriber(mosquitto.address, "#");
    until_heard(broker.tcp, "t/up", &mut there);
    until_heard(mosquitto.address, "t/down", &mut here);

    let message = |topic: &str, payload: &str| (topic.to_owned(), payload.to_owned());
    publish(broker.tcp, "t/1", "out");
    assert_eq!(received(&mut there, 1), [message("t/1", "out")]);
    assert_eq!(received(&mut here, 1), [message("t/1", "out")]);
    publish(mosquitto.address, "t/2", "in");
    assert_eq!(received(&mut here, 1), [message("t/2", "in")]);
    assert_eq!(received(&mut there, 1), [message("t/2", "in")]);
    publish(broker.tcp, "here/y", "out");
    assert_eq!(received(&mut there, 1), [message("there/y", "out")]);
    publish(mosquitto.address, "x", "in");
    assert_eq!(
        received(&mut here, 2),
        [message("here/y", "out"), message("from/x", "in")]
    );
    // What is not named stays.
    publish(broker.tcp, "z", "here");
    assert_eq!(received(&mut here, 1), [message("z", "here")]);
    assert_eq!(received(&mut there, 1), [message("x", "in")]);
}

#[test]
fn a_circle_of_bridges_ends() {
    let Some(mosquitto) = Mosquitto::start() else {
        return;
    };
    // Both brokers of a mesh have a bridge to the same other one.
    let topics = |name: &str| format!("topic t/# both 1\ntopic only-{name} out 1");
    let a = bridged("a", mosquitto.address, &topics("a"), &[]);
    let b = bridged("b", mosquitto.address, &topics("b"), &[a.tcp]);
    let mut at_a = subscriber(a.tcp, "t/#");
    let mut at_b = subscriber(b.tcp, "t/#");
    let mut there = subscriber(mosquitto.address, "#");
    until_heard(a.tcp, "t/mesh", &mut at_b);
    until_heard(a.tcp, "only-a", &mut there);
    until_heard(b.tcp, "only-b", &mut there);
    publish(a.tcp, "t/1", "x");
    let copies = |number| vec![("t/1".to_owned(), "x".to_owned()); number];
    assert_eq!(received(&mut at_a, 1), copies(1));
    assert_eq!(received(&mut at_b, 1), copies(1));
    // Over either bridge, and no more.
    assert_eq!(received(&mut there, 2), copies(2));
}

#[test]
fn how_a_bridge_stands_is_told() {
    let Some(mosquitto) = Mosquitto::start() else {
        return;
    };
    let there = mosquitto.address;
    // As Mosquitto, by the identifier at the other broker.
    let topics = "topic t/# both 1\nremote_clientid gate";
    let a = bridged("a", there, topics, &[]);
    let mut state = subscriber(a.tcp, "$SYS/broker/connection/gate/state");
    assert_eq!(until_told(&a, &mut state, "a", true), "");
    drop(mosquitto);
    let why = until_told(&a, &mut state, "a", false);
    assert!(!why.is_empty());
    let status = Command::new(env!("CARGO_BIN_EXE_punctual"))
        .args(["mesh", "status", "--broker", &a.http.to_string()])
        .output()
        .unwrap();
    let status = String::from_utf8(status.stdout).unwrap();
    let line = format!("bridge a to {there} is not connected: ");
    assert!(status.contains(&line), "{status}");
    // By its own name where none is given; or not at all.
    let b = bridged("b", there, "topic t/# both 1", &[]);
    let mut state = subscriber(b.tcp, "$SYS/broker/connection/b/state");
    until_told(&b, &mut state, "b", false);
    let other = format!("notifications false\nconnection d\naddress {there}\ntopic u");
    let c = bridged("c", there, &format!("topic t/# both 1\n{other}"), &[]);
    let mut all = subscriber(c.tcp, "$SYS/broker/connection/#");
    let told = received(&mut all, 1);
    let of_d = ("$SYS/broker/connection/d/state".to_owned(), "0".to_owned());
    assert_eq!(told, [of_d]);
}
