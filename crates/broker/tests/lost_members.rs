//! What was on its way to a member of a shared subscription whose session ends goes to another one,
//! also on another shard.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

#[allow(dead_code, reason = "other tests need more of it")]
mod support;

use punctual_broker::{Config, ConnId, Directory};
use punctual_codec::{PacketType, Properties, Publish, QoS, Version};
use support::{NOW, Rig};

fn subscribe(rig: &mut Rig, client: ConnId, filter: &str) {
    rig.subscribe_with(client, &[filter.to_owned()], QoS::ExactlyOnce);
    rig.read(client);
}

fn publish(rig: &mut Rig, client: ConnId, qos: QoS, payload: u8) {
    let publish = Publish {
        dup: false,
        qos,
        retain: false,
        topic: "t",
        packet_id: 1 + u16::from(payload),
        properties: Properties::EMPTY,
        payload: &[payload],
    };
    let mut bytes = Vec::new();
    publish.encode(Version::V5, &mut bytes).unwrap();
    rig.send(client, &bytes);
    rig.read(client);
}

/// The payloads that a client is sent.
fn payloads(rig: &mut Rig, client: ConnId) -> Vec<u8> {
    let packets = rig.read(client).into_iter();
    let packets = packets.filter(|(kind, _)| *kind == PacketType::Publish);
    packets
        .filter_map(|(_, body)| body.last().copied())
        .collect()
}

#[test]
fn what_a_lost_member_had_goes_to_a_member_of_another_shard() {
    let directory = Directory::new(2);
    let mut config = Config {
        sys_interval: None,
        ..Config::default()
    };
    // Three are in flight, and the others wait.
    config.limits.max_inflight = 3;
    let mut near = Rig::of(&directory, 0, config.clone());
    let mut far = Rig::of(&directory, 1, config);
    let publisher = near.client("publisher");
    let member = near.client("member");
    // So that the next session is placed on the other shard.
    directory.set_load(0, 1000);
    subscribe(&mut near, member, "$share/g/t");
    for payload in 0..3 {
        publish(
            &mut near,
            publisher,
            [QoS::AtLeastOnce, QoS::ExactlyOnce][usize::from(payload) % 2],
            payload,
        );
    }
    for payload in 3..10 {
        publish(&mut near, publisher, QoS::AtLeastOnce, payload);
    }
    assert_eq!(payloads(&mut near, member), [0, 1, 2]);
    let other = far.client("other");
    subscribe(&mut far, other, "$share/g/t");

    near.shard.closed(member, "it crashed", NOW);
    near.shard.tick(NOW);
    let mut mail = Vec::new();
    near.shard.take_outbox(1, &mut mail);
    far.shard.remote(mail.into_iter(), NOW);
    // What was begun with QoS 2 goes to nobody else; its own window has three.
    assert_eq!(payloads(&mut far, other), [0, 2, 3]);
    assert_eq!(far.shard.stats().queued_messages, 6);
    assert_eq!(near.shard.stats().dropped(), 0);
    // Nobody is left then.
    far.shard.closed(other, "it crashed", NOW);
    far.shard.tick(NOW);
    assert_eq!(far.shard.stats().dropped_session_ended, 6);
    assert_eq!(far.shard.stats().queued_messages, 0);
}
