//! What several chapters need: pairs of clients, an innocent bystander, a
//! clock, and tables of broken packets.

use crate::build::{Connect, Level, Props, Publish, V5, Will, subscribe};
use crate::conn::{Conn, unique};
use crate::parse::Packet;

/// Malformed packet.
pub(crate) const MALFORMED: &[u8] = &[0x81];
/// Protocol error.
pub(crate) const PROTOCOL: &[u8] = &[0x82];
/// Where the specification forbids a thing but names no reason code.
pub(crate) const EITHER: &[u8] = &[0x81, 0x82];

/// A subscriber to a topic of its own at QoS 2, a publisher, and the topic.
#[track_caller]
pub(crate) fn pair(level: Level) -> (Conn, Conn, String) {
    let topic = unique("t");
    let mut subscriber = Conn::client(level);
    subscriber.subscribe(&topic, 2);
    (subscriber, Conn::client(level), topic)
}

/// A client that does nothing wrong beside others that do.
pub(crate) struct Bystander {
    subscriber: Conn,
    publisher: Conn,
    topic: String,
    checks: u32,
}

impl Bystander {
    #[track_caller]
    pub(crate) fn new() -> Self {
        let (subscriber, publisher, topic) = pair(V5);
        Self {
            subscriber,
            publisher,
            topic,
            checks: 0,
        }
    }

    /// The broker lives, takes new clients, and serves this one as before.
    #[track_caller]
    pub(crate) fn check(&mut self) {
        self.checks += 1;
        let payload = self.checks.to_string();
        self.publisher.publish(&self.topic, &payload, 1);
        let message = self.subscriber.expect(&self.topic, &payload);
        self.subscriber.acknowledge(&message);
        self.subscriber.ping();
        Conn::client(V5).ping();
    }
}

/// Sends each of `cases` (a name and bytes) on a connection of its own that
/// is established already, and expects the reaction to an error.
#[track_caller]
pub(crate) fn each_is_an_error(level: Level, codes: &[u8], cases: &[(&str, Vec<u8>)]) {
    let mut bystander = Bystander::new();
    for (name, bytes) in cases {
        let mut conn = Conn::client(level).named(name);
        conn.send(bytes);
        conn.error(codes);
        bystander.check();
    }
}

/// Sends each of `cases` as the first bytes of a connection: refused in 5.0
/// with a CONNACK that has one of `codes`, before 5.0 without an answer.
#[track_caller]
pub(crate) fn each_connect_is_refused(level: Level, codes: &[u8], cases: &[(&str, Vec<u8>)]) {
    let mut bystander = Bystander::new();
    for (name, bytes) in cases {
        let mut conn = Conn::open(level).named(name);
        conn.send(bytes);
        conn.refused(if level == V5 { codes } else { &[] });
        bystander.check();
    }
}

/// Lets `seconds` pass on the broker's own clock: a will with that delay is
/// left behind and awaited.
#[track_caller]
pub(crate) fn let_pass(seconds: u32) {
    let topic = unique("clock");
    let mut watcher = Conn::client(V5).patient(u64::from(seconds) + 10);
    watcher.subscribe(&topic, 0);
    let will = Will::new(&topic, "now").delay(seconds);
    let connect = Connect::new(V5, unique("c")).lasting(3600).will(will);
    drop(Conn::connect(&connect));
    watcher.expect(&topic, "now");
}

/// All messages that arrive on `conn` before `marker` comes as payload, each
/// acknowledged.
#[track_caller]
pub(crate) fn until(conn: &mut Conn, marker: &str) -> Vec<crate::parse::Message> {
    let mut messages = Vec::new();
    loop {
        let message = conn.message();
        if message.payload == marker.as_bytes() {
            return messages;
        }
        conn.acknowledge(&message);
        messages.push(message);
    }
}

/// Subscribes with properties and returns the codes granted.
#[track_caller]
pub(crate) fn subscribe_with(conn: &mut Conn, props: &Props, filters: &[(&str, u8)]) -> Vec<u8> {
    let id = conn.fresh_id();
    let level = conn.level();
    conn.send(subscribe(level, id, props, filters));
    conn.suback(id).codes
}

/// Publishes at QoS 0 with properties.
pub(crate) fn publish_with(conn: &mut Conn, topic: &str, payload: &str, props: Props) {
    let level = conn.level();
    conn.send(Publish::new(level, topic, payload).props(props).encode());
}

/// Reads packets until PINGRESP and returns how many there were.
#[track_caller]
pub(crate) fn until_pingresp(conn: &mut Conn) -> Vec<Packet> {
    let mut packets = Vec::new();
    loop {
        match conn.next() {
            Packet::PingResp => return packets,
            other => packets.push(other),
        }
    }
}
