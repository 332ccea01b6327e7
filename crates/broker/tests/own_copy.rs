//! A publisher that receives its own urgent messages does not hold the others up.

#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

use std::sync::Arc;

use punctual_broker::{Config, ConnId, ConnMeta, Directory, Nanos, Shard};
use punctual_codec::{
    Connect, Properties, PropertyBuf, Publish, QoS, Subscribe, SubscribeOptions, Version,
};

const NOW: Nanos = Nanos::from_secs(1);

fn send(shard: &mut Shard, client: ConnId, bytes: &[u8]) {
    assert_eq!(shard.receive(client, bytes, NOW).consumed, bytes.len());
}

fn read(shard: &mut Shard, client: ConnId) {
    while shard
        .next_packets(client, 1000, &mut Vec::new(), NOW)
        .is_some()
    {}
}

fn subscriber(shard: &mut Shard, id: &str) -> ConnId {
    let meta = ConnMeta {
        allow_anonymous: true,
        ..ConnMeta::default()
    };
    let client = shard.open(meta, NOW);
    let connect = Connect {
        version: Version::V5,
        clean_start: true,
        keep_alive: 0,
        properties: Properties::EMPTY,
        client_id: id,
        will: None,
        username: None,
        password: None,
    };
    let mut bytes = Vec::new();
    connect.encode(&mut bytes).unwrap();
    let filters = [("t", SubscribeOptions::default())];
    Subscribe::put(1, Properties::EMPTY, &filters, Version::V5, &mut bytes).unwrap();
    send(shard, client, &bytes);
    read(shard, client);
    client
}

#[test]
fn the_publisher_gets_its_own_urgent_message_last() {
    let config = Config {
        sys_interval: None,
        ..Config::default()
    };
    let mut shard = Shard::new(Directory::new(1), 0, Arc::new(config), NOW);
    let clients = ["a", "b", "c"].map(|id| subscriber(&mut shard, id));
    let mut urgent = Vec::new();
    let mut priority = PropertyBuf::new();
    priority.push_user("priority", "0").unwrap();
    for (publisher, order) in [(0, [1, 2, 0]), (1, [0, 2, 1]), (2, [0, 1, 2])] {
        let publish = Publish {
            dup: false,
            qos: QoS::AtMostOnce,
            retain: false,
            topic: "t",
            packet_id: 0,
            properties: priority.as_properties(),
            payload: b"x",
        };
        let mut bytes = Vec::new();
        publish.encode(Version::V5, &mut bytes).unwrap();
        send(&mut shard, clients[publisher], &bytes);
        urgent.clear();
        shard.take_urgent(&mut urgent);
        assert_eq!(urgent, order.map(|n: usize| clients[n]), "by {publisher}");
        for client in clients {
            read(&mut shard, client);
        }
    }
}
