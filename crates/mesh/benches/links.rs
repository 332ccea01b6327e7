//! What a message with QoS 1 costs each broker, from PUBLISH to PUBACK of the subscriber, with
//! one broker between clients and with two of them and a link:
//! `cargo bench -p punctual-mesh --bench links [-- BATCHES [one|first|second]]`.
//!
//! A publisher sends windows of messages, the subscriber acknowledges what it gets; neither
//! sockets nor threads take part, nor the other of two brokers: what a link carries is made once
//! and given to the one that is looked at. Each line is the fastest of several batches; run on an
//! otherwise idle machine. Under `valgrind --tool=callgrind` with few batches it counts
//! instructions, which do not depend on what else the machine does.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a program for developers"
)]

use std::hint::black_box;
use std::io::IoSlice;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use punctual_broker::{
    Config, ConnId, ConnMeta, Directory, Federation, Interest, LinkLimits, LinkNews, MessageName,
    MessageNames, Nanos, Newcomer, Scope, SessionTransfers, Shard, Unwelcome,
};
use punctual_codec::{
    Connect, Properties, PropertyBuf, PropertyId, Publish, QoS, Split, Subscribe, SubscribeOptions,
    Version, split,
};
use punctual_mesh::seen::{Name, SeenMessages, Verdict};
use punctual_mesh::transfer::{Extent, Stamp};

const BATCHES: u32 = 60;
const ROUNDS: u32 = 1000;
/// Messages in a round.
const WINDOW: u16 = 100;
const TOPIC: &str = "line/3/press/7/position";
const PAYLOAD: [u8; 100] = [7; 100];
const NOW: Nanos = Nanos::from_secs(1);

/// A federation that remembers names, and nothing else.
#[derive(Debug)]
struct Names {
    origin: NonZeroU32,
    seen: Mutex<SeenMessages>,
    look_ups: Mutex<Vec<(String, Stamp)>>,
}

fn called(name: MessageName) -> Name {
    Name {
        origin: name.origin.get(),
        number: name.number,
    }
}

impl Interest for Names {
    fn subscribed(&self, _: &str, _: bool) {}
    fn unsubscribed(&self, _: &str, _: bool) {}
}

impl MessageNames for Names {
    fn origin(&self) -> NonZeroU32 {
        self.origin
    }
    fn is_new(&self, name: MessageName, _: bool) -> bool {
        let seen = self.seen.lock().unwrap();
        name.origin != self.origin && seen.judge(called(name), name.again) == Verdict::New
    }
    fn clock(&self) -> u64 {
        0
    }
    fn note(&self, name: MessageName) {
        self.seen.lock().unwrap().note(called(name));
    }
    fn note_new(&self, name: MessageName) -> bool {
        name.origin != self.origin && self.seen.lock().unwrap().note(called(name))
    }
    fn was_origin(&self, _: NonZeroU32) {}
}

impl SessionTransfers for Names {
    fn next_stamp(&self) -> u64 {
        1
    }
    fn look_up(&self, client: &str, _: Option<&str>, at: &Stamp, _: bool) {
        let look_up = (client.to_owned(), at.clone());
        self.look_ups.lock().unwrap().push(look_up);
    }
}

impl Federation for Names {
    fn admit(&self, _: Newcomer<'_>) -> Result<(), Unwelcome> {
        Ok(())
    }
    fn link(&self, _: ConnId, _: &str, _: LinkNews<'_>) {}
    fn name(&self) -> &str {
        "own"
    }
}

struct Broker(Shard, Arc<Names>);

impl Broker {
    fn new(origin: u32) -> Self {
        let directory = Directory::new(1);
        let names = Arc::new(Names {
            origin: NonZeroU32::new(origin).unwrap(),
            seen: Mutex::new(SeenMessages::new(1 << 17)),
            look_ups: Mutex::default(),
        });
        directory.set_federation(names.clone());
        let mut config = Config {
            sys_interval: None,
            ..Config::default()
        };
        config.limits.max_inflight = 1000;
        Self(Shard::new(directory, 0, Arc::new(config), NOW), names)
    }

    fn client(&mut self, id: &str) -> ConnId {
        let mut properties = PropertyBuf::new();
        properties.push_number(PropertyId::ReceiveMaximum, 1000);
        properties.push_number(PropertyId::TopicAliasMaximum, 10);
        let connect = Connect {
            version: Version::V5,
            clean_start: true,
            keep_alive: 0,
            properties: properties.as_properties(),
            client_id: id,
            will: None,
            username: None,
            password: None,
        };
        let conn = self.0.open(meta(), NOW);
        let mut bytes = Vec::new();
        connect.encode(&mut bytes).unwrap();
        self.give(conn, &bytes);
        // No other broker knows of its session.
        for (client, at) in std::mem::take(&mut *self.1.look_ups.lock().unwrap()) {
            let (none, all) = (Vec::new(), Extent::All);
            self.0.located(&client, &at, none, all, NOW);
        }
        self.0.go_on(conn);
        self.take(conn, &mut Vec::new());
        conn
    }

    fn subscriber(&mut self) -> ConnId {
        let conn = self.client("subscriber");
        let options = SubscribeOptions {
            qos: QoS::AtLeastOnce,
            ..SubscribeOptions::default()
        };
        let mut bytes = Vec::new();
        let filters = [(TOPIC, options)];
        Subscribe::put(1, Properties::EMPTY, &filters, Version::V5, &mut bytes).unwrap();
        self.give(conn, &bytes);
        self.take(conn, &mut Vec::new());
        conn
    }

    /// A link that this broker has opened, and the filters of what goes over it.
    fn link(&mut self, wants: &[Box<str>]) -> ConnId {
        let limits = LinkLimits {
            receive_maximum: 1000,
            max_packet: 1 << 20,
            topic_aliases: 10,
        };
        let conn = self.0.open_link(meta(), "peer", limits, NOW);
        self.0.link_carry("peer", true, NOW);
        self.0.link_interest("peer", wants, &[]);
        self.take(conn, &mut Vec::new());
        conn
    }

    fn give(&mut self, conn: ConnId, bytes: &[u8]) {
        let received = self.0.receive(conn, bytes, NOW);
        assert_eq!(received.consumed, bytes.len());
    }

    /// Has sent what a connection is to get.
    fn take(&mut self, conn: ConnId, all: &mut Vec<u8>) {
        loop {
            let mut slices = [IoSlice::new(&[]); 32];
            let n = self.0.pending(conn, Scope::All, NOW, &mut slices);
            let before = all.len();
            for slice in &slices[..n] {
                all.extend_from_slice(slice);
            }
            let n = all.len() - before;
            if n == 0 {
                return;
            }
            self.0.sent(conn, n, NOW);
        }
    }
}

fn meta() -> ConnMeta {
    ConnMeta {
        allow_anonymous: true,
        ..ConnMeta::default()
    }
}

/// What a publisher sends in a round.
fn window() -> Vec<u8> {
    let mut bytes = Vec::new();
    for packet_id in 1..=WINDOW {
        let publish = Publish {
            dup: false,
            qos: QoS::AtLeastOnce,
            retain: false,
            topic: TOPIC,
            packet_id,
            properties: Properties::EMPTY,
            payload: &PAYLOAD,
        };
        publish.encode(Version::V5, &mut bytes).unwrap();
    }
    bytes
}

/// PUBACKs of all PUBLISH packets in a stream.
fn acknowledge(mut bytes: &[u8], acks: &mut Vec<u8>) {
    acks.clear();
    while let Ok(Split::Frame(frame)) = split(bytes, u32::MAX) {
        let topic = usize::from(u16::from_be_bytes([frame.body[0], frame.body[1]]));
        acks.extend([0x40, 2, frame.body[2 + topic], frame.body[3 + topic]]);
        bytes = &bytes[frame.bytes.len()..];
    }
}

/// A broker that takes `rounds` of messages from one connection and gives them to another one.
struct Forwarder {
    broker: Broker,
    from: ConnId,
    to: ConnId,
    rounds: Vec<Vec<u8>>,
}

impl Forwarder {
    /// The time of all rounds; `sent` gets what was sent.
    fn run(&mut self, mut sent: impl FnMut(&[u8])) -> f64 {
        let (mut out, mut acks) = (Vec::new(), Vec::new());
        let start = Instant::now();
        for round in &self.rounds {
            self.broker.give(self.from, round);
            out.clear();
            self.broker.take(self.to, &mut out);
            sent(&out);
            acknowledge(&out, &mut acks);
            assert_eq!(acks.len(), 4 * usize::from(WINDOW));
            self.broker.give(self.to, &acks);
            out.clear();
            self.broker.take(self.from, &mut out);
            assert_eq!(out.len(), 4 * usize::from(WINDOW));
        }
        start.elapsed().as_secs_f64()
    }
}

fn rounds() -> Vec<Vec<u8>> {
    vec![window(); ROUNDS as usize]
}

fn one() -> Forwarder {
    let mut broker = Broker::new(1);
    let (to, from) = (broker.subscriber(), broker.client("publisher"));
    let rounds = rounds();
    Forwarder {
        broker,
        from,
        to,
        rounds,
    }
}

fn first() -> Forwarder {
    let mut broker = Broker::new(1);
    let (to, from) = (broker.link(&[TOPIC.into()]), broker.client("publisher"));
    let rounds = rounds();
    Forwarder {
        broker,
        from,
        to,
        rounds,
    }
}

/// Behind the first, of which a new life begins with each call.
fn second(origin: u32) -> Vec<Vec<u8>> {
    let mut before = first();
    before.broker = Broker::new(origin);
    (before.to, before.from) = (
        before.broker.link(&[TOPIC.into()]),
        before.broker.client("publisher"),
    );
    let mut rounds = Vec::new();
    before.run(|bytes| rounds.push(bytes.to_vec()));
    rounds
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let batches = arguments.iter().find_map(|it| it.parse::<u32>().ok());
    let batches = batches.unwrap_or(BATCHES);
    let all = ["one", "first", "second"];
    let named = |name: &str| arguments.iter().any(|it| it == name);
    for name in all {
        if all.into_iter().any(named) && !named(name) {
            continue;
        }
        let mut way = match name {
            "one" => one(),
            "first" => first(),
            _ => {
                let mut broker = Broker::new(1);
                let (to, from) = (broker.subscriber(), broker.link(&[]));
                Forwarder {
                    broker,
                    from,
                    to,
                    rounds: Vec::new(),
                }
            }
        };
        let times = (0..batches).map(|batch| {
            if name == "second" {
                way.rounds = second(2 + batch);
            }
            way.run(|bytes| _ = black_box(bytes))
        });
        let best = times.fold(f64::INFINITY, f64::min);
        let messages = f64::from(ROUNDS) * f64::from(WINDOW);
        println!("{name:6}: {:6.1} ns a message", best * 1e9 / messages);
    }
}
