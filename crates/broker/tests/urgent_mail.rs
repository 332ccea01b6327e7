//! What is urgent does not wait for plain messages on its way to another shard either.

#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

#[allow(dead_code, reason = "other tests need more of it")]
mod support;

use punctual_broker::{Config, Directory};
use punctual_codec::{PropertyBuf, Publish, QoS, Version};

use support::{NOW, Rig};

/// PUBLISH with QoS 1 to `t/N`, and its rt-priority.
fn publish(n: u16, priority: Option<&str>) -> Vec<u8> {
    let mut properties = PropertyBuf::new();
    if let Some(priority) = priority {
        properties.push_user("rt-priority", priority).unwrap();
    }
    let publish = Publish {
        dup: false,
        qos: QoS::AtLeastOnce,
        retain: false,
        topic: &format!("t/{n}"),
        packet_id: n,
        properties: properties.as_properties(),
        payload: b"x",
    };
    let mut bytes = Vec::new();
    publish.encode(Version::V5, &mut bytes).unwrap();
    bytes
}

#[test]
fn urgent_messages_for_another_shard_are_apart_and_in_the_order_of_their_rank() {
    let directory = Directory::new(2);
    let config = || Config {
        sys_interval: None,
        ..Config::default()
    };
    let mut near = Rig::of(&directory, 0, config());
    let mut far = Rig::of(&directory, 1, config());
    let publisher = near.client("publisher");
    // So that the next session is placed on the other shard.
    directory.set_load(0, 1000);
    let receiver = far.client("receiver");
    far.subscribe(receiver, &["t/+".into()]);
    far.read(receiver);
    for (n, priority) in [(1, None), (2, Some("3")), (3, None), (4, Some("6"))] {
        near.send(publisher, &publish(n, priority));
    }
    assert!(near.shard.posts_urgent() && !near.shard.posts_urgent());
    let mut urgent = Vec::new();
    near.shard.take_urgent_outbox(1, &mut urgent);
    assert_eq!(urgent.len(), 2);
    urgent.sort_by_key(punctual_broker::RemoteMessage::rank);
    far.shard.remote(urgent.into_iter(), NOW);
    let topics = |far: &mut Rig| -> Vec<String> {
        let packets = far.read(receiver).into_iter();
        // Two bytes of length, and `t/N`.
        let topics = packets.map(|(_, body)| String::from_utf8(body[2..5].to_vec()).unwrap());
        topics.collect()
    };
    assert_eq!(topics(&mut far), ["t/4", "t/2"]);
    let mut others = Vec::new();
    near.shard.take_outbox(1, &mut others);
    far.shard.remote(others.into_iter(), NOW);
    assert_eq!(topics(&mut far), ["t/1", "t/3"]);
}
