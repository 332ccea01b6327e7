//! What a message with QoS 1 costs from PUBLISH to the subscriber's PUBACK:
//! `cargo bench -p punctual-broker --bench acknowledged [-- BATCHES [PUBLISHERS [none|batched]]]`.
//!
//! Publishers send, one subscriber acknowledges what it gets, with the shard between
//! them and neither sockets nor threads. With one publisher everything is sent at once;
//! with fifty most messages wait in the subscriber's queue for room in its window.
//! The subscriber's session survives the broker; with `none` what is sent does not, with
//! `batched` it is kept until it is acknowledged, which is before it would be written.
//! Each line is the fastest of several batches; run on an otherwise idle machine. Under
//! `valgrind --tool=callgrind` with few batches it counts instructions, which do not
//! depend on what else the machine does.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a program for developers"
)]

use std::io::IoSlice;
use std::sync::Arc;
use std::time::Instant;

use punctual_broker::{Config, ConnId, ConnMeta, Directory, Durability, Flow, Nanos, Scope, Shard};
use punctual_codec::{Connect, Properties, Publish, QoS, Subscribe, SubscribeOptions, Version};

const BATCHES: u32 = 60;
const ROUNDS: u32 = 20;
/// Messages of one publisher in a round.
const WINDOW: u16 = 100;
const TOPIC: &str = "line/3/press/7/position";
/// Bytes before the packet identifier of a PUBLISH, and of all of it.
const BEFORE: usize = 2 + 2 + TOPIC.len();
const LEN: usize = BEFORE + 2 + PAYLOAD.len();
const PAYLOAD: [u8; 64] = [7; 64];

struct Broker {
    shard: Shard,
    subscriber: ConnId,
    publishers: Vec<ConnId>,
    now: Nanos,
    sent: Vec<u8>,
    acks: Vec<u8>,
}

impl Broker {
    fn new(publishers: usize, durability: Durability) -> Self {
        let mut config = Config {
            sys_interval: None,
            ..Config::default()
        };
        config.durability.default = durability;
        config.durability.max_uncommitted = 1 << 24;
        config.limits.max_queued_messages = 1_000_000;
        config.limits.max_inflight = 1_000;
        let now = Nanos(1_000_000_000);
        let mut shard = Shard::new(Directory::new(1), 0, Arc::new(config), now);
        shard.attach_store(1_700_000_000_000_000_000);
        let mut broker = Self {
            shard,
            subscriber: ConnId::from_number(0),
            publishers: Vec::new(),
            now,
            sent: Vec::new(),
            acks: Vec::new(),
        };
        broker.subscriber = broker.connect("subscriber", false);
        let mut bytes = Vec::new();
        let options = SubscribeOptions {
            qos: QoS::AtLeastOnce,
            ..SubscribeOptions::default()
        };
        let filters = [(TOPIC, options)];
        Subscribe::put(1, Properties::EMPTY, &filters, Version::V311, &mut bytes).unwrap();
        broker.receive(broker.subscriber, &bytes);
        broker.turn();
        broker.take(broker.subscriber);
        broker.publishers = (0..publishers)
            .map(|n| broker.connect(&format!("publisher-{n}"), true))
            .collect();
        broker
    }

    fn connect(&mut self, client_id: &str, clean_start: bool) -> ConnId {
        let meta = ConnMeta {
            allow_anonymous: true,
            nonce: [1; 16],
            ..ConnMeta::default()
        };
        let conn = self.shard.open(meta, self.now);
        let connect = Connect {
            version: Version::V311,
            clean_start,
            keep_alive: 0,
            client_id,
            will: None,
            username: None,
            password: None,
            properties: Properties::EMPTY,
        };
        let mut bytes = Vec::new();
        connect.encode(&mut bytes).unwrap();
        self.receive(conn, &bytes);
        self.shard.go_on(conn);
        self.turn();
        self.take(conn);
        conn
    }

    /// The end of a turn; what is to be stored is safe at once.
    fn turn(&mut self) {
        if let Some(operations) = self.shard.take_operations(self.now) {
            self.shard.committed(operations.ticket, self.now);
        }
    }

    fn receive(&mut self, conn: ConnId, bytes: &[u8]) {
        let received = self.shard.receive(conn, bytes, self.now);
        assert_eq!(
            (received.consumed, received.flow),
            (bytes.len(), Flow::Read)
        );
    }

    /// Has everything sent that one client is to get, into `sent`.
    fn take(&mut self, conn: ConnId) {
        self.sent.clear();
        loop {
            let mut slices = [IoSlice::new(&[]); 32];
            let filled = self.shard.pending(conn, Scope::All, self.now, &mut slices);
            let before = self.sent.len();
            for slice in &slices[..filled] {
                self.sent.extend_from_slice(slice);
            }
            let n = self.sent.len() - before;
            if n == 0 {
                return;
            }
            self.shard.sent(conn, n, self.now);
        }
    }

    /// All publishers send a window, and the subscriber acknowledges all of it.
    fn round(&mut self, bytes: &[u8]) {
        self.now = self.now + Nanos(1_000_000);
        let mut due = 0;
        for n in 0..self.publishers.len() {
            let conn = self.publishers[n];
            self.receive(conn, bytes);
            due += usize::from(WINDOW);
        }
        self.turn();
        while due > 0 {
            self.take(self.subscriber);
            self.acks.clear();
            let (messages, rest) = self.sent.as_chunks::<LEN>();
            assert!(rest.is_empty() && !messages.is_empty());
            for message in messages {
                let id = [message[BEFORE], message[BEFORE + 1]];
                self.acks.extend([0x40, 2, id[0], id[1]]);
            }
            due -= messages.len();
            let acks = std::mem::take(&mut self.acks);
            self.receive(self.subscriber, &acks);
            self.acks = acks;
            self.turn();
        }
        for n in 0..self.publishers.len() {
            self.take(self.publishers[n]);
            assert_eq!(self.sent.len(), 4 * usize::from(WINDOW));
        }
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
        publish.encode(Version::V311, &mut bytes).unwrap();
    }
    bytes
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut numbers = arguments.iter().filter_map(|it| it.parse::<u32>().ok());
    let batches = numbers.next().unwrap_or(BATCHES);
    let only = numbers.next();
    let bytes = window();
    let levels = [("none", Durability::None), ("batched", Durability::Batched)];
    let named = |name: &str| arguments.iter().any(|it| it == name);
    let all = !levels.iter().any(|(name, _)| named(name));
    for publishers in [1, 50] {
        if only.is_some_and(|only| only != publishers) {
            continue;
        }
        for (name, durability) in levels.iter().filter(|(name, _)| all || named(name)) {
            let mut broker = Broker::new(publishers as usize, *durability);
            broker.round(&bytes);
            let rounds = ROUNDS * 50 / publishers;
            let times = (0..batches).map(|_| {
                let start = Instant::now();
                (0..rounds).for_each(|_| broker.round(&bytes));
                start.elapsed()
            });
            let best = times.min().unwrap().as_secs_f64();
            let messages = f64::from(rounds) * f64::from(WINDOW) * f64::from(publishers);
            println!(
                "{publishers:3} to one, {name:7}: {:7.1} ns a message",
                best * 1e9 / messages
            );
        }
    }
}
