//! What a PUBLISH costs by who receives it: `cargo bench -p punctual-broker --bench receivers`.
//!
//! One publisher's messages of 5 bytes with QoS 0 go through a shard in pieces of 64 KiB, to
//! receivers that take them as they come or not; then single messages on many topics, to one
//! receiver and to a shared subscription. Each line is the fastest of several batches; run on an
//! otherwise idle machine. An argument shows only the lines that contain it.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a program for developers"
)]

use std::io::IoSlice;
use std::sync::Arc;
use std::time::Instant;

use punctual_broker::{Config, ConnId, ConnMeta, Directory, Nanos, Output, Scope, Shard};
use punctual_codec::{
    Connect, Properties, PropertyBuf, PropertyId, Publish, QoS, Subscribe, SubscribeOptions,
    Version,
};

/// Bytes that are handed over at once.
const PIECE: usize = 64 << 10;
const BATCHES: u32 = 12;
const TOPICS: usize = 1_000_000;
const MEMBERS: usize = 1_000;

struct Broker {
    shard: Shard,
    publisher: Option<ConnId>,
    now: Nanos,
    dirty: Vec<ConnId>,
    outputs: Vec<Output>,
}

impl Broker {
    fn new() -> Self {
        let now = Nanos::from_secs(1);
        let config = Config {
            sys_interval: None,
            ..Config::default()
        };
        Self {
            shard: Shard::new(Directory::new(1), 0, Arc::new(config), now),
            publisher: None,
            now,
            dirty: Vec::new(),
            outputs: Vec::new(),
        }
    }

    fn connect(
        &mut self,
        client_id: &str,
        version: Version,
        properties: Properties<'_>,
        filter: Option<&str>,
    ) -> ConnId {
        let meta = ConnMeta {
            allow_anonymous: true,
            ..ConnMeta::default()
        };
        let connect = Connect {
            version,
            clean_start: true,
            keep_alive: 0,
            client_id,
            will: None,
            username: None,
            password: None,
            properties,
        };
        let id = self.shard.open(meta, self.now);
        let mut bytes = Vec::new();
        connect.encode(&mut bytes).unwrap();
        if let Some(filter) = filter {
            let filters = [(filter, SubscribeOptions::default())];
            Subscribe::put(1, Properties::EMPTY, &filters, version, &mut bytes).unwrap();
        }
        self.shard.receive(id, &bytes, self.now);
        self.write();
        id
    }

    /// Everything is written, to nowhere.
    fn write(&mut self) {
        self.shard.take_dirty(&mut self.dirty);
        for id in self.dirty.drain(..) {
            let mut slices = [IoSlice::new(&[]); 8];
            let filled = self.shard.pending(id, Scope::All, self.now, &mut slices);
            let len = slices[..filled].iter().map(|slice| slice.len()).sum();
            self.shard.sent(id, len, self.now);
        }
        self.shard.take_outputs(&mut self.outputs);
        self.outputs.clear();
    }

    fn publish(&mut self, bytes: &[u8]) {
        self.now = self.now + Nanos(100_000);
        let publisher = self.publisher.unwrap();
        let mut rest = bytes;
        while !rest.is_empty() {
            let received = self.shard.receive(publisher, rest, self.now);
            rest = &rest[received.consumed..];
            self.write();
        }
    }
}

fn put(topic: &str, version: Version, bytes: &mut Vec<u8>) {
    let publish = Publish {
        dup: false,
        qos: QoS::AtMostOnce,
        retain: false,
        topic,
        packet_id: 0,
        properties: Properties::EMPTY,
        payload: &[],
    };
    publish.encode(version, bytes).unwrap();
}

/// The fastest time of a message, ns.
fn measure(mut work: impl FnMut(), messages: usize, batches: u32) -> f64 {
    work();
    let times = (0..batches).map(|_| {
        let start = Instant::now();
        work();
        start.elapsed()
    });
    times.min().unwrap().as_secs_f64() * 1e9 / messages as f64
}

/// Messages of one topic, which clients of these versions get; the first two as members of a
/// shared subscription.
fn one_topic(version: Version, receivers: &[(&str, Version, u32)]) -> f64 {
    let mut broker = Broker::new();
    for (at, (filter, version, aliases)) in receivers.iter().enumerate() {
        let mut properties = PropertyBuf::new();
        if *aliases > 0 {
            properties.push_number(PropertyId::TopicAliasMaximum, *aliases);
        }
        let name = format!("receiver-{at}");
        broker.connect(&name, *version, properties.as_properties(), Some(filter));
    }
    broker.publisher = Some(broker.connect("publisher", version, Properties::EMPTY, None));
    let (mut bytes, mut messages) = (Vec::new(), 0);
    while bytes.len() < PIECE {
        put("t", version, &mut bytes);
        messages += 1;
    }
    measure(|| broker.publish(&bytes), messages, BATCHES)
}

/// A message on each of many topics, to `members` clients of one filter.
fn many_topics(filter: &str, members: usize) -> f64 {
    let mut broker = Broker::new();
    let version = Version::V311;
    for at in 0..members {
        let name = format!("receiver-{at}");
        broker.connect(&name, version, Properties::EMPTY, Some(filter));
    }
    broker.publisher = Some(broker.connect("publisher", version, Properties::EMPTY, None));
    let mut pieces: Vec<Vec<u8>> = vec![Vec::new()];
    for at in 0..TOPICS {
        if pieces.last().is_some_and(|piece| piece.len() > PIECE) {
            pieces.push(Vec::new());
        }
        let topic = format!("site/{}/machine/{at}", at % 100);
        put(&topic, version, pieces.last_mut().unwrap());
    }
    let work = || pieces.iter().for_each(|piece| broker.publish(piece));
    measure(work, TOPICS, 3)
}

fn main() {
    let wanted = std::env::args().skip(1).find(|it| !it.starts_with('-'));
    let show = |name: &str, work: &dyn Fn() -> f64| {
        if wanted.as_ref().is_none_or(|wanted| name.contains(wanted)) {
            println!("{name:60} {:9.1} ns", work());
        }
    };
    let (v3, v5) = (Version::V311, Version::V5);
    show("3.1.1 to 3.1.1", &|| one_topic(v3, &[("t", v3, 0)]));
    show("3.1.1 to 5", &|| one_topic(v3, &[("t", v5, 0)]));
    show("5 to 3.1.1", &|| one_topic(v5, &[("t", v3, 0)]));
    show("3.1.1 to 3.1.1 and 5", &|| {
        one_topic(v3, &[("t", v3, 0), ("t", v5, 0)])
    });
    show("3.1.1 to 5 with topic aliases", &|| {
        one_topic(v3, &[("t", v5, 10)])
    });
    let share = "$share/group/t";
    show("3.1.1 to a shared subscription with two members", &|| {
        one_topic(v3, &[(share, v3, 0), (share, v3, 0)])
    });
    show("10^6 topics to one receiver", &|| many_topics("#", 1));
    show("10^6 topics to a shared subscription, 1 member", &|| {
        many_topics("$share/group/#", 1)
    });
    show(
        "10^6 topics to a shared subscription, 1000 members",
        &|| many_topics("$share/group/#", MEMBERS),
    );
}
