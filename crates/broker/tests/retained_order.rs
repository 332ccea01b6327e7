//! Retained and live messages of a topic come to a new subscriber in their order, whichever shards it
//! and the publisher are on.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

#[allow(dead_code, reason = "other tests need more of it")]
mod support;

use std::collections::HashMap;

use punctual_broker::{Config, ConnId, Directory};
use punctual_codec::{Ack, PacketType, Properties, Publish, QoS, ReasonCode, Version};
use support::{NOW, Rig};

/// So many that not all retained messages go at once.
const TOPICS: usize = 1000;
const PAYLOAD: usize = 200;
/// Values that each topic has after the first.
const VALUES: u32 = 3;

struct World {
    rigs: Vec<Rig>,
    qos: QoS,
    publisher: ConnId,
    subscriber: ConnId,
    /// The last value that the subscriber was sent, by topic.
    seen: HashMap<String, u32>,
}

impl World {
    /// Each topic has the value 0. The publisher is on the first shard, the subscriber on the last.
    fn new(shards: u16, qos: QoS) -> Self {
        let directory = Directory::new(shards);
        let config = Config {
            sys_interval: None,
            ..Config::default()
        };
        let rigs = (0..shards).map(|n| Rig::of(&directory, n, config.clone()));
        let mut rigs: Vec<Rig> = rigs.collect();
        let publisher = rigs[0].client("publisher");
        // So that the next session is placed on the last shard.
        (1..shards).for_each(|n| directory.set_load(n - 1, 1000));
        let subscriber = rigs[usize::from(shards) - 1].client("subscriber");
        let mut world = Self {
            rigs,
            qos,
            publisher,
            subscriber,
            seen: HashMap::new(),
        };
        world.publish(0);
        world.mail();
        world
    }

    /// All topics get a value.
    fn publish(&mut self, value: u32) {
        let mut payload = vec![b'.'; PAYLOAD];
        payload[..4].copy_from_slice(&value.to_be_bytes());
        for n in 0..TOPICS {
            let mut bytes = Vec::new();
            let publish = Publish {
                dup: false,
                qos: self.qos,
                retain: true,
                topic: &format!("s/{n}"),
                packet_id: u16::from(self.qos != QoS::AtMostOnce),
                properties: Properties::EMPTY,
                payload: &payload,
            };
            publish.encode(Version::V5, &mut bytes).unwrap();
            self.rigs[0].send(self.publisher, &bytes);
            self.rigs[0].read(self.publisher);
        }
    }

    fn subscribe(&mut self, filter: &str) {
        let rig = self.rigs.last_mut().unwrap();
        rig.subscribe_with(self.subscriber, &[filter.to_owned()], self.qos);
    }

    /// What shards have for each other goes there.
    fn mail(&mut self) {
        for from in 0..self.rigs.len() {
            for to in (0..self.rigs.len()).filter(|to| *to != from) {
                let mut mail = Vec::new();
                self.rigs[from].shard.take_outbox(to as u16, &mut mail);
                self.rigs[to].shard.remote(mail.into_iter(), NOW);
            }
        }
    }

    /// The subscriber reads and acknowledges what there is; whether that was anything.
    fn read(&mut self) -> bool {
        let rig = self.rigs.last_mut().unwrap();
        rig.shard.tick(NOW);
        let (mut acks, mut some) = (Vec::new(), false);
        for (kind, body) in rig.read(self.subscriber) {
            some = true;
            if kind != PacketType::Publish {
                continue;
            }
            let (length, rest) = body.split_first_chunk().unwrap();
            let (topic, rest) = rest.split_at(usize::from(u16::from_be_bytes(*length)));
            let topic = String::from_utf8(topic.to_vec()).unwrap();
            let rest = match self.qos {
                QoS::AtMostOnce => rest,
                _ => {
                    let (id, rest) = rest.split_first_chunk().unwrap();
                    let ack = Ack::new(u16::from_be_bytes(*id), ReasonCode::Success);
                    ack.encode(PacketType::PubAck, Version::V5, &mut acks)
                        .unwrap();
                    rest
                }
            };
            let (value, _) = rest[1..].split_first_chunk().unwrap();
            let value = u32::from_be_bytes(*value);
            let before = self.seen.insert(topic.clone(), value);
            assert!(before <= Some(value), "{topic}: {value} after {before:?}");
        }
        rig.send(self.subscriber, &acks);
        some
    }

    /// All is sent and read; each topic has that value then.
    fn end(&mut self, value: u32) {
        let mut idle = 0;
        // A piece may take two rounds in which nothing is sent.
        while idle < 20 {
            let some = self.read();
            self.mail();
            idle = if some { 0 } else { idle + 1 };
        }
        let (shards, qos) = (self.rigs.len(), self.qos);
        assert_eq!(self.seen.len(), TOPICS, "{shards} shards, {qos:?}");
        assert!(self.seen.values().all(|last| *last == value));
    }
}

#[test]
fn retained_and_live_messages_come_in_order() {
    for shards in [1, 2, 3] {
        for qos in [QoS::AtMostOnce, QoS::AtLeastOnce] {
            let mut world = World::new(shards, qos);
            world.subscribe("s/#");
            for value in 1..=VALUES {
                world.publish(value);
                // Part of them comes before it reads, and all stays between the shards.
                world.read();
            }
            world.end(VALUES);
        }
    }
}

/// Also where another subscription of the session matches the same, whose messages are on their way.
#[test]
fn another_subscription_changes_nothing_about_the_order() {
    for shards in [2, 3] {
        let mut world = World::new(shards, QoS::AtMostOnce);
        world.subscribe("s/+");
        world.end(0);
        world.publish(1);
        world.publish(2);
        world.subscribe("s/#");
        world.read();
        world.end(2);
    }
}

/// What nobody changes is sent at once, without waiting for other shards.
#[test]
fn what_does_not_change_waits_for_nobody() {
    let mut world = World::new(2, QoS::AtMostOnce);
    world.subscribe("s/#");
    while world.read() {}
    assert_eq!(world.seen.len(), TOPICS);
}
