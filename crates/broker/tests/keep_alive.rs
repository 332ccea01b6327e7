//! Who says nothing is gone; what counts is whole packets.

use std::sync::Arc;

use punctual_broker::{Config, ConnId, ConnMeta, Directory, Flow, Nanos, Output, Shard};
use punctual_codec::{Connect, Properties, Publish, QoS, Version};

const NOW: Nanos = Nanos::from_secs(1);
/// Seconds; a client is gone after one and a half times as many.
const KEEP_ALIVE: u16 = 2;
const PATIENCE: Nanos = Nanos::from_secs(3);
/// A packet of so many bytes takes longer than a client may be silent, at a byte a step.
const STEP: Nanos = Nanos::from_millis(500);

struct World {
    shard: Shard,
    client: ConnId,
    now: Nanos,
}

impl World {
    fn new(version: Version) -> Self {
        let config = Config {
            sys_interval: None,
            ..Config::default()
        };
        let shard = Shard::new(Directory::new(1), 0, Arc::new(config), NOW);
        let (now, client) = (NOW, ConnId::from_number(0));
        let mut world = Self { shard, client, now };
        world.client = world.shard.open(
            ConnMeta {
                allow_anonymous: true,
                ..ConnMeta::default()
            },
            now,
        );
        let connect = Connect {
            version,
            clean_start: true,
            keep_alive: KEEP_ALIVE,
            properties: Properties::EMPTY,
            client_id: "c",
            will: None,
            username: None,
            password: None,
        };
        let mut bytes = Vec::new();
        connect.encode(&mut bytes).expect("a whole packet");
        assert_eq!(world.receive(&bytes), bytes.len());
        world
    }

    /// Bytes taken.
    fn receive(&mut self, bytes: &[u8]) -> usize {
        let received = self.shard.receive(self.client, bytes, self.now);
        assert_ne!(received.flow, Flow::Closed);
        received.consumed
    }

    /// Whether the client is still connected when so much time has gone by.
    fn survives(&mut self, time: Nanos) -> bool {
        self.now = self.now + time;
        self.shard.tick(self.now);
        let mut outputs = Vec::new();
        self.shard.take_outputs(&mut outputs);
        !outputs.iter().any(|it| matches!(it, Output::Close { .. }))
    }
}

fn publish(version: Version) -> Vec<u8> {
    let publish = Publish {
        dup: false,
        qos: QoS::AtMostOnce,
        retain: false,
        topic: "t",
        packet_id: 0,
        properties: Properties::EMPTY,
        payload: &[7; 100],
    };
    let mut bytes = Vec::new();
    publish.encode(version, &mut bytes).expect("a whole packet");
    bytes
}

#[test]
fn bytes_of_a_packet_do_not_keep_a_client_alive() {
    for version in [Version::V31, Version::V311, Version::V5] {
        let mut world = World::new(version);
        let packet = publish(version);
        let mut end = 0;
        while world.survives(STEP) {
            end += 1;
            assert_eq!(world.receive(&packet[..end]), 0);
        }
        assert_eq!(world.now, NOW + PATIENCE, "{version:?}");
    }
}

#[test]
fn a_packet_that_is_complete_in_time_does() {
    let mut world = World::new(Version::V311);
    let packet = publish(Version::V311);
    for _ in 0..10 {
        let (half, late) = (packet.len() / 2, Nanos::from_millis(2900));
        assert_eq!(world.receive(&packet[..half]), 0);
        assert!(world.survives(late));
        assert_eq!(world.receive(&packet), packet.len());
    }
    assert!(world.survives(Nanos::from_millis(2999)));
    assert!(!world.survives(Nanos::from_millis(1)));
}

#[test]
fn an_empty_read_is_no_sign_of_life() {
    let mut world = World::new(Version::V5);
    while world.survives(STEP) {
        assert_eq!(world.receive(&[]), 0);
    }
    assert_eq!(world.now, NOW + PATIENCE);
}
