//! Full queues: who is dropped, who is held, and who has to make room.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

#[allow(dead_code, reason = "other tests need more of it")]
mod support;

use punctual_broker::{Config, ConnId, Nanos, QueueFull, QueuePolicies, TopicPolicy};
use punctual_codec::{Ack, PacketType, PropertyBuf, Publish, QoS, ReasonCode, Version};
use support::{NOW, Rig};

/// With queues of ten messages.
fn config(full: QueueFull) -> Config {
    let mut config = Config {
        queue_full: full,
        max_publisher_hold: Nanos::from_secs(5),
        ..Config::default()
    };
    config.limits.max_queued_messages = 10;
    config.limits.urgent_reserve = 0;
    config
}

/// A session that is away, subscribed to that.
fn away(rig: &mut Rig, id: &str, filter: &str) {
    let client = rig.client_that_stays(id);
    rig.subscribe_with(client, &[filter.to_owned()], QoS::AtLeastOnce);
    rig.read(client);
    rig.shard.closed(client, "lost", NOW);
}

/// A client publishes with QoS 1 and these user properties; what it is answered, unless it has to wait.
fn publish(
    rig: &mut Rig,
    client: ConnId,
    (topic, payload): (&str, &[u8]),
    stated: &[(&str, &str)],
    now: Nanos,
) -> Option<ReasonCode> {
    let mut properties = PropertyBuf::new();
    for (key, value) in stated {
        properties.push_user(key, value).unwrap();
    }
    let publish = Publish {
        dup: false,
        qos: QoS::AtLeastOnce,
        retain: false,
        topic,
        packet_id: 1,
        properties: properties.as_properties(),
        payload,
    };
    let mut bytes = Vec::new();
    publish.encode(Version::V5, &mut bytes).unwrap();
    if rig.shard.receive(client, &bytes, now).consumed == 0 {
        return None;
    }
    let answers = rig.read(client);
    let [(PacketType::PubAck, body)] = &answers[..] else {
        panic!("{answers:?}");
    };
    let ack = Ack::decode(PacketType::PubAck, body, Version::V5).unwrap();
    Some(ack.reason)
}

/// The payloads of what waits for a session, in the order in which it comes.
fn waiting(rig: &mut Rig, id: &str) -> Vec<Vec<u8>> {
    let client = rig.client_that_stays(id);
    let packets = rig.read(client).into_iter();
    let packets = packets.filter(|(kind, _)| *kind == PacketType::Publish);
    let payload = |body: Vec<u8>| {
        let topic = usize::from(u16::from_be_bytes([body[0], body[1]]));
        // Topic, identifier, and properties of less than 128 bytes.
        let rest = &body[2 + topic + 2..];
        rest[1 + usize::from(rest[0])..].to_vec()
    };
    packets.map(|(_, body)| payload(body)).collect()
}

/// Publishers of a client that is connected and does not acknowledge wait when its queue is half full,
/// until it has caught up or they have waited for long enough; then they are refused.
#[test]
fn hold_makes_publishers_wait_before_they_are_refused() {
    for catches_up in [false, true] {
        let mut config = config(QueueFull::Hold);
        config.limits.max_inflight = 1;
        let mut rig = Rig::with(config);
        let slow = rig.client("slow");
        rig.subscribe_with(slow, &["t".to_owned()], QoS::AtLeastOnce);
        rig.read(slow);
        let publisher = rig.client("publisher");
        let mut now = NOW;
        let one = |rig: &mut Rig, now| publish(rig, publisher, ("t", b"x"), &[], now);
        // One is in flight, and half of ten wait.
        for n in 0..6 {
            assert_eq!(one(&mut rig, now), Some(ReasonCode::Success), "{n}");
        }
        assert_eq!(one(&mut rig, now), None);
        // Longer than others are held for.
        now = now + Nanos::from_secs(4);
        rig.shard.tick(now);
        assert_eq!(one(&mut rig, now), None);
        if catches_up {
            for _ in 0..6 {
                let sent = rig.read(slow);
                let mut bytes = Vec::new();
                for (_, body) in sent {
                    let id = u16::from_be_bytes([body[3], body[4]]);
                    let ack = Ack::new(id, ReasonCode::Success);
                    ack.encode(PacketType::PubAck, Version::V5, &mut bytes)
                        .unwrap();
                }
                rig.send(slow, &bytes);
            }
            assert_eq!(one(&mut rig, now), Some(ReasonCode::Success));
            continue;
        }
        now = now + Nanos::from_secs(1);
        rig.shard.tick(now);
        for n in 6..11 {
            assert_eq!(one(&mut rig, now), Some(ReasonCode::Success), "{n}");
        }
        assert_eq!(one(&mut rig, now), Some(ReasonCode::QuotaExceeded));
        assert_eq!(rig.shard.stats().dropped(), 0);
    }
}

/// In the queue of a client that is away, an urgent message takes the place of plain ones first, then of
/// an urgent one whose deadline has passed, and never of one that is more urgent.
#[test]
fn what_is_urgent_pushes_out_what_is_late_or_less_urgent() {
    let mut rig = Rig::with(config(QueueFull::DropOldest));
    away(&mut rig, "away", "#");
    let publisher = rig.client("publisher");
    let send = |rig: &mut Rig, payload: u8, stated: &[(&str, &str)], now| {
        let answer = publish(rig, publisher, ("t", &[payload]), stated, now);
        assert!(!answer.unwrap().is_error());
    };
    send(&mut rig, 0, &[], NOW);
    let urgent = [("rt-priority", "5"), ("rt-deadline", "1s")];
    for payload in 1..10 {
        send(&mut rig, payload, &urgent, NOW);
    }
    // The plain one goes, then nothing that is in time and as urgent.
    send(&mut rig, 10, &urgent, NOW);
    send(&mut rig, 11, &[], NOW);
    send(
        &mut rig,
        12,
        &[("rt-priority", "1"), ("rt-deadline", "1s")],
        NOW,
    );
    // Those that are late make room for newer values.
    let later = NOW + Nanos::from_secs(2);
    for payload in 20..23 {
        send(&mut rig, payload, &urgent, later);
    }
    let stats = rig.shard.stats();
    assert_eq!((stats.dropped_queue_full, stats.queued_messages), (6, 10));
    let kept = waiting(&mut rig, "away").concat();
    assert_eq!(kept, [4, 5, 6, 7, 8, 9, 10, 20, 21, 22]);
}

/// What is acknowledged is not pushed out by what nobody acknowledges, nor what has to be kept
/// because of its topic by what need not be.
#[test]
fn what_stays_is_not_pushed_out() {
    let mut config = config(QueueFull::DropOldest);
    config.queue_qos0_offline = true;
    config.queue_policies = QueuePolicies {
        topics: vec![TopicPolicy {
            filter: "keep".into(),
            full: QueueFull::Refuse,
        }],
        ..QueuePolicies::default()
    };
    let mut rig = Rig::with(config);
    away(&mut rig, "away", "#");
    let publisher = rig.client("publisher");
    for n in 0..10 {
        assert_eq!(
            publish(&mut rig, publisher, ("t", &[n]), &[], NOW),
            Some(ReasonCode::Success)
        );
    }
    rig.publish(publisher, "t", false);
    for _ in 0..10 {
        let refused = publish(&mut rig, publisher, ("keep", b"k"), &[], NOW);
        assert_eq!(refused, Some(ReasonCode::QuotaExceeded));
    }
    assert_eq!(waiting(&mut rig, "away").len(), 10);
    assert_eq!(rig.shard.stats().dropped_queue_full, 1);
}

/// One large message drops a bounded number of small ones, and nothing if it could never have room.
#[test]
fn a_large_message_pushes_out_a_bounded_number() {
    let mut config = config(QueueFull::DropOldest);
    config.limits.max_queued_messages = 100_000;
    config.limits.max_queued_bytes = 10_000;
    let mut rig = Rig::with(config);
    away(&mut rig, "away", "#");
    let publisher = rig.client("publisher");
    let send = |rig: &mut Rig, bytes: usize| {
        let answer = publish(rig, publisher, ("t", &vec![0; bytes]), &[], NOW);
        assert_eq!(answer, Some(ReasonCode::Success));
        rig.shard.stats().dropped_queue_full
    };
    for _ in 0..1000 {
        assert_eq!(send(&mut rig, 9), 0);
    }
    assert_eq!(send(&mut rig, 20_000), 1, "nothing makes room for that");
    assert_eq!(send(&mut rig, 999), 101);
    assert_eq!(send(&mut rig, 9_999), 101 + 256 + 1);
}

/// Where all sessions together have too much, the one with the most makes room, and one that has little
/// keeps what it has.
#[test]
fn who_has_the_most_makes_room_for_others() {
    let mut config = config(QueueFull::DropOldest);
    config.limits.max_queued_messages = 1000;
    config.limits.max_total_queued_bytes = 10_000;
    let mut rig = Rig::with(config);
    away(&mut rig, "hog", "much");
    away(&mut rig, "modest", "little");
    let publisher = rig.client("publisher");
    let send = |rig: &mut Rig, topic: &str, n: u8| {
        let payload = [n; 90];
        let answer = publish(rig, publisher, (topic, &payload), &[], NOW);
        assert_eq!(answer, Some(ReasonCode::Success));
    };
    for n in 0..200 {
        send(&mut rig, "much", n);
    }
    for n in 0..20 {
        send(&mut rig, "little", n);
        send(&mut rig, "much", n);
    }
    let modest = waiting(&mut rig, "modest");
    let modest: Vec<u8> = modest.iter().map(|payload| payload[0]).collect();
    assert_eq!(modest, (0..20).collect::<Vec<u8>>());
    let hog = waiting(&mut rig, "hog");
    assert_eq!(hog.last().unwrap()[0], 19);
    let dropped = rig.shard.stats().dropped_queue_full as usize;
    assert_eq!(modest.len() + hog.len() + dropped, 240);
}
