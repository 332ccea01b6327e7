//! `punctual top` beside a running broker.

use std::net::SocketAddr;
use std::process::{Command, Output};

use crate::broker::support::{Broker, Mqtt};

fn top(address: SocketAddr, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_punctual"))
        .args(["top", &address.to_string()])
        .args(arguments)
        .output()
        .unwrap()
}

#[test]
fn one_look_shows_clients_and_messages() {
    let broker = Broker::start();
    let mut publisher = Mqtt::connect(broker.tcp, "a", 0);
    let mut subscriber = Mqtt::connect(broker.tcp, "b", 0);
    subscriber.subscribe("x");
    publisher.retain("x", b"y");
    subscriber.receive();
    let output = top(broker.http, &["--once"]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let mut lines = text.lines();
    let first = lines.next().unwrap();
    let begin = format!(
        "punctual {}  http://{}  up ",
        env!("CARGO_PKG_VERSION"),
        broker.http
    );
    assert!(first.starts_with(&begin), "{text}");
    assert!(first.ends_with("shards 2/2"), "{text}");
    assert_eq!(
        lines.next(),
        Some("clients 2  sessions 2  subscriptions 1  retained 1  connections 2")
    );
    let messages = text.lines().find(|line| line.starts_with("messages"));
    let numbers: Vec<&str> = messages.unwrap().split_whitespace().collect();
    assert_eq!(
        numbers,
        ["messages", "1", "1", "1", "B", "1", "B"],
        "{text}"
    );
}

#[test]
fn what_is_no_broker_is_said() {
    let broker = Broker::start();
    let output = top(broker.tcp, &["--once"]);
    assert!(!output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains(&format!("http://{}/metrics", broker.tcp)),
        "{said}"
    );
    assert!(said.contains("server.http, or after --http"), "{said}");
}

#[test]
fn where_nobody_answers_it_is_said_what_address_to_give() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let output = top(address, &["--once"]);
    assert!(!output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("refused"), "{said}");
    assert!(said.contains("server.http, or after --http"), "{said}");
}
