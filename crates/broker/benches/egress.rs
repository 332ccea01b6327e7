//! What ordering by urgency costs: `cargo bench -p punctual-broker [FILTER]`.
//!
//! Lanes hold a number of entries, and each step adds one and removes the most
//! urgent, so the number stays. Then both enqueueing methods of the PrioMQTT
//! paper, as the broker has them: messages on their way through a shard, from
//! the publisher's bytes to those of the receivers. Each line is the fastest of
//! several batches; run on an otherwise idle machine.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a program for developers"
)]

use std::collections::BTreeMap;
use std::hint::black_box;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Instant;

use punctual_broker::{
    Bound, Config, ConnId, ConnMeta, Directory, Discipline, Enqueue, Lane, Nanos, Policy, Scope,
    Shard, Urgency,
};
use punctual_codec::{
    Connect, Properties, PropertyBuf, Publish, QoS, Subscribe, SubscribeOptions, Unsubscribe,
    Version,
};
use punctual_model::Rng;

const BATCHES: u32 = 30;
const STEPS: u32 = 20_000;

/// Prints what one of `per` messages of a step takes.
fn measure(name: &str, per: u32, mut step: impl FnMut()) {
    if let Some(filter) = std::env::args().skip(1).find(|arg| !arg.starts_with('-'))
        && !name.contains(&filter)
    {
        return;
    }
    let steps = (STEPS / per).max(10);
    let best = (0..BATCHES)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..steps {
                step();
            }
            start.elapsed()
        })
        .min()
        .unwrap();
    let nanos = best.as_secs_f64() * 1e9 / f64::from(steps * per);
    println!("{name:56} {nanos:8.1} ns");
}

/// A message as the broker keeps it waiting: a reference and some words.
type Waiting = (Arc<[u8; 100]>, u64, u64);

fn lanes() {
    let message = Arc::new([0; 100]);
    for (keys, below) in [("8 keys", 8), ("distinct keys", u64::MAX)] {
        for queued in [10, 1_000, 1_000_000] {
            let mut random = Rng::new(1);
            let mut lane: Lane<Waiting> = Lane::default();
            for _ in 0..queued {
                let key = random.below(below);
                let _ = lane.push(key, true, (message.clone(), 0, 0));
            }
            measure(&format!("lane, {queued} queued, {keys}"), 1, || {
                let key = random.below(below);
                let _ = lane.push(key, true, (message.clone(), 0, 0));
                black_box(lane.pop());
            });
            measure(
                &format!("lane that overflows, {queued} queued, {keys}"),
                1,
                || {
                    let key = random.below(below);
                    let _ = lane.push(key, true, (message.clone(), 0, 0));
                    black_box(lane.give_up());
                },
            );
            // Nothing but what comes last may go.
            let mut lane: Lane<Waiting> = Lane::default();
            for _ in 0..queued {
                let _ = lane.push(random.below(below), false, (message.clone(), 0, 0));
            }
            measure(
                &format!("lane of QoS 1 that overflows, {queued} queued, {keys}"),
                1,
                || {
                    let key = random.below(below);
                    let _ = lane.push(key, true, (message.clone(), 0, 0));
                    black_box(lane.give_up());
                },
            );
        }
    }
    // A sorted map as yardstick.
    for queued in [10, 1_000, 1_000_000] {
        let mut random = Rng::new(1);
        let mut map: BTreeMap<(u64, u64), Waiting> = BTreeMap::new();
        let mut arrivals = 0;
        for _ in 0..queued {
            arrivals += 1;
            map.insert((random.below(8), arrivals), (message.clone(), 0, 0));
        }
        measure(&format!("sorted map, {queued} queued, 8 keys"), 1, || {
            arrivals += 1;
            map.insert((random.below(8), arrivals), (message.clone(), 0, 0));
            black_box(map.pop_first());
        });
    }
}

/// A shard with a publisher and subscribers to everything.
struct Broker {
    shard: Shard,
    publisher: ConnId,
    receivers: Vec<ConnId>,
    ready: Vec<ConnId>,
}

impl Broker {
    fn new(enqueue: Enqueue, receivers: u32) -> Self {
        let mut config = Config {
            sys_interval: None,
            ..Config::default()
        };
        config.lanes.enqueue = enqueue;
        (config.lanes.urgent, config.lanes.priority) = (Bound::NONE, Bound::NONE);
        let mut shard = Shard::new(Directory::new(1), 0, Arc::new(config), Nanos(1));
        let mut connect = |name: &str| {
            let meta = ConnMeta {
                allow_anonymous: true,
                ..ConnMeta::default()
            };
            let id = shard.open(meta, Nanos(1));
            let mut bytes = Vec::new();
            let connect = Connect {
                version: Version::V5,
                clean_start: true,
                keep_alive: 0,
                client_id: name,
                will: None,
                username: None,
                password: None,
                properties: Properties::default(),
            };
            connect.encode(&mut bytes).unwrap();
            let filters = [("#", SubscribeOptions::default())];
            if name != "publisher" {
                let none = Properties::default();
                Subscribe::put(1, none, &filters, Version::V5, &mut bytes).unwrap();
            }
            shard.receive(id, &bytes, Nanos(1));
            id
        };
        let publisher = connect("publisher");
        let receivers = (0..receivers).map(|n| connect(&n.to_string())).collect();
        let mut broker = Self {
            shard,
            publisher,
            receivers,
            ready: Vec::new(),
        };
        broker.drain(0);
        broker
    }

    fn publish(&mut self, bytes: &[u8]) {
        self.shard.receive(self.publisher, bytes, Nanos(2));
    }

    /// Lets all receivers but the first `idle` read everything.
    fn drain(&mut self, idle: usize) {
        self.shard.take_urgent(&mut self.ready);
        self.shard.take_dirty(&mut self.ready);
        self.ready.clear();
        for id in &self.receivers[idle..] {
            loop {
                let mut slices = [IoSlice::new(&[]); 64];
                let filled = self.shard.pending(*id, Scope::All, Nanos(3), &mut slices);
                let bytes: usize = slices[..filled].iter().map(|slice| slice.len()).sum();
                if bytes == 0 {
                    break;
                }
                self.shard.sent(*id, bytes, Nanos(3));
            }
        }
    }
}

/// PUBLISH packets with a priority, one of 8 in turn.
fn urgent(messages: u64) -> Vec<u8> {
    let mut random = Rng::new(1);
    let mut bytes = Vec::new();
    for _ in 0..messages {
        let mut properties = PropertyBuf::new();
        let priority = random.below(8).to_string();
        properties.push_user("priority", &priority).unwrap();
        let publish = Publish {
            dup: false,
            qos: QoS::AtMostOnce,
            retain: false,
            topic: "axis/1/set",
            packet_id: 0,
            properties: properties.as_properties(),
            payload: &[0; 100],
        };
        publish.encode(Version::V5, &mut bytes).unwrap();
    }
    bytes
}

/// Both methods: messages are published, and then all receivers read. With an
/// idle one, that many messages wait for it all the time.
fn enqueueing() {
    let methods = [
        ("an entry for each", Enqueue::PerReceiver),
        ("an entry for all", Enqueue::Shared),
    ];
    for receivers in [1u32, 2, 5, 50] {
        for waiting in [10u32, 1_000] {
            let bytes = urgent(waiting.into());
            for (method, enqueue) in methods {
                let mut broker = Broker::new(enqueue, receivers);
                let name = format!("{method}, {receivers} receivers, {waiting} waiting");
                measure(&name, receivers * waiting, || {
                    broker.publish(&bytes);
                    broker.drain(0);
                });
            }
        }
    }
    for waiting in [0, 1_000, 10_000] {
        let bytes = urgent(1);
        for (method, enqueue) in methods {
            let mut broker = Broker::new(enqueue, 6);
            let mut left = Vec::new();
            broker.publish(&urgent(waiting));
            broker.drain(1);
            // What comes now is not for the idle one.
            Unsubscribe::put(2, Properties::default(), &["#"], Version::V5, &mut left).unwrap();
            let idle = broker.receivers[0];
            broker.shard.receive(idle, &left, Nanos(2));
            let name = format!("{method}, 5 receivers, {waiting} for an idle one");
            measure(&name, 5, || {
                broker.publish(&bytes);
                broker.drain(1);
            });
        }
    }
}

fn policies() {
    let urgency = Urgency {
        rt_priority: Some(5),
        deadline: Some(Nanos::from_millis(5)),
        ..Urgency::default()
    };
    for discipline in [Discipline::FixedPriority, Discipline::Edf] {
        measure(&format!("rank, {discipline:?}"), 1, || {
            black_box(discipline.rank(black_box(&urgency), black_box(Nanos(7))));
        });
    }
}

fn main() {
    lanes();
    enqueueing();
    policies();
}
