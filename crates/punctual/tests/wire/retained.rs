//! Retained messages (section 3.3.1.3).

use crate::build::{Connect, Level, Props, Publish, V5, V311, id};
use crate::conn::{Conn, unique};
use crate::fixture::{let_pass, subscribe_with, until};
use crate::parse::Message;

/// Retain handling 1 and 2 in the options byte of a subscription.
const IF_NEW: u8 = 0x10;
const NEVER: u8 = 0x20;

/// What a new subscriber gets from `filter` before a marker does.
#[track_caller]
fn retained(level: Level, filter: &str) -> Vec<Message> {
    let mut subscriber = Conn::client(level);
    let marker = unique("m");
    subscriber.subscribe(&marker, 0);
    subscriber.subscribe(filter, 2);
    Conn::client(level).publish(&marker, "marker", 0);
    until(&mut subscriber, "marker")
}

/// [MQTT-3.3.1-5] [MQTT-3.3.1-9] [3.1.1 MQTT-3.3.1-5] [3.1.1 MQTT-3.3.1-6]
/// [3.1.1 MQTT-3.3.1-7] [3.1.1 MQTT-3.3.1-8] The last retained message of a
/// topic, at its QoS and marked as retained, goes to each new subscriber.
#[test]
fn a_new_subscriber_gets_the_last_retained_message() {
    for level in [V311, V5] {
        let (topic, mut publisher) = (unique("t"), Conn::client(level));
        for (payload, qos) in [("a", 2), ("b", 0), ("c", 1)] {
            publisher.retain(&topic, payload, qos);
            let got = retained(level, &topic);
            let got: Vec<_> = got
                .iter()
                .map(|m| (m.text(), m.qos, m.retain, m.dup))
                .collect();
            assert_eq!(got, [(payload.to_owned(), qos, true, false)]);
        }
        publisher.retain(&topic, "", 0);
    }
}

/// [MQTT-3.3.1-9] [3.1.1 MQTT-3.3.1-6] A subscription with wildcards gets the
/// retained message of each topic that matches.
#[test]
fn wildcards_get_all_matching_retained_messages() {
    for level in [V311, V5] {
        let (name, mut publisher) = (unique("t"), Conn::client(level));
        let topics = ["", "/a", "/b", "/a/c", "//"].map(|tail| format!("{name}{tail}"));
        for topic in &topics {
            publisher.retain(topic, topic, 1);
        }
        for (filter, expected) in [("#", 5), ("+", 2), ("a/#", 2), ("+/+", 2), ("a", 1)] {
            let mut got = retained(level, &format!("{name}/{filter}"));
            assert_eq!(got.len(), expected, "{filter}");
            got.sort_by(|one, two| one.topic.cmp(&two.topic));
            got.dedup_by(|one, two| one.topic == two.topic);
            assert_eq!(got.len(), expected, "{filter}: each topic once");
            assert!(
                got.iter()
                    .all(|message| message.topic.as_bytes() == message.payload)
            );
        }
        for topic in &topics {
            publisher.retain(topic, "", 1);
        }
    }
}

/// [MQTT-3.3.1-6] [MQTT-3.3.1-7] [3.1.1 MQTT-3.3.1-10] [3.1.1 MQTT-3.3.1-11] An
/// empty retained message reaches present subscribers, removes what was
/// retained, and is not stored itself.
#[test]
fn an_empty_message_removes_the_retained_one() {
    for level in [V311, V5] {
        for qos in [0, 1, 2] {
            let (topic, mut publisher) = (unique("t"), Conn::client(level));
            publisher.retain(&topic, "p", 1);
            let mut subscriber = Conn::client(level);
            subscriber.subscribe(&topic, 0);
            subscriber.expect(&topic, "p");
            publisher.retain(&topic, "", qos);
            assert!(!subscriber.expect(&topic, "").retain);
            assert!(retained(level, &topic).is_empty());
            publisher.retain(&topic, "", qos);
            subscriber.expect(&topic, "");
            assert!(retained(level, &topic).is_empty());
        }
    }
}

/// [MQTT-3.3.1-8] [3.1.1 MQTT-3.3.1-12] A message without the flag is not
/// stored, and neither replaces nor removes what is retained.
#[test]
fn messages_without_the_flag_are_not_retained() {
    for level in [V311, V5] {
        let (topic, mut publisher) = (unique("t"), Conn::client(level));
        publisher.publish(&topic, "not kept", 1);
        assert!(retained(level, &topic).is_empty());
        publisher.retain(&topic, "kept", 1);
        publisher.publish(&topic, "not kept", 1);
        publisher.publish(&topic, "", 1);
        let got = retained(level, &topic);
        assert_eq!(got.len(), 1);
        assert_eq!(got[0].text(), "kept");
        publisher.retain(&topic, "", 0);
    }
}

/// [MQTT-3.3.1-9] [MQTT-3.3.1-10] [MQTT-3.3.1-11] [MQTT-3.8.4-4]
/// [3.1.1 MQTT-3.8.4-3] Retain handling 0 sends with each SUBSCRIBE, 1 only
/// with a new subscription, 2 never. Before 5.0 each SUBSCRIBE sends.
#[test]
fn retain_handling_decides_when_to_send() {
    let topic = unique("t");
    Conn::client(V5).retain(&topic, "p", 1);
    let steps = [
        (IF_NEW, true),
        (IF_NEW, false),
        (NEVER, false),
        (0, true),
        (0, true),
        (IF_NEW, false),
    ];
    let mut subscriber = Conn::client(V5);
    for (options, sent) in steps {
        subscriber.subscribe(&topic, options);
        if sent {
            assert!(subscriber.expect(&topic, "p").retain);
        }
        subscriber.ping();
    }
    let mut late = Conn::client(V5);
    late.subscribe(&topic, NEVER);
    late.ping();
    let mut old = Conn::client(V311);
    for _ in 0..2 {
        old.subscribe(&topic, 0);
        assert!(old.expect(&topic, "p").retain);
    }
    old.publish(&topic, "", 0);
    Conn::client(V5).retain(&topic, "", 0);
}

/// [MQTT-3.3.1-10] A subscription that a resumed session holds already is not
/// new: retain handling 1 sends nothing.
#[test]
fn a_resumed_subscription_is_not_new() {
    let topic = unique("t");
    let mut publisher = Conn::client(V5);
    publisher.retain(&topic, "p", 1);
    let connect = Connect::new(V5, unique("c")).lasting(300);
    let (mut subscriber, _) = Conn::connect(&connect);
    subscriber.subscribe(&topic, IF_NEW);
    subscriber.expect(&topic, "p");
    subscriber.disconnect();
    let (mut subscriber, _) = Conn::connect(&connect);
    subscriber.ping();
    subscriber.subscribe(&topic, IF_NEW);
    subscriber.ping();
    publisher.retain(&topic, "", 0);
}

/// [3.1.1 MQTT-3.1.2-7] [MQTT-4.1.0-2] Retained messages belong to no session:
/// they outlive that of their publisher.
#[test]
fn retained_messages_outlive_their_publisher() {
    for level in [V311, V5] {
        let topic = unique("t");
        let mut publisher = Conn::client(level);
        publisher.retain(&topic, "p", 1);
        publisher.disconnect();
        assert_eq!(retained(level, &topic).len(), 1);
        Conn::client(level).retain(&topic, "", 0);
    }
}

/// [MQTT-3.3.2-4] [MQTT-3.3.2-17] [MQTT-3.3.2-20] A retained message keeps its
/// properties.
#[test]
fn retained_messages_keep_their_properties() {
    let (topic, mut publisher) = (unique("t"), Conn::client(V5));
    let props = Props::new()
        .byte(id::PAYLOAD_FORMAT, 1)
        .field(id::CONTENT_TYPE, "text/plain")
        .field(id::RESPONSE_TOPIC, "reply")
        .field(id::CORRELATION_DATA, [1, 2])
        .user("b", "1")
        .user("a", "2");
    publisher.send_publish(Publish::new(V5, &topic, "p").retain().props(props), 1);
    let got = &retained(V5, &topic)[0].props;
    assert_eq!(got.number(id::PAYLOAD_FORMAT), Some(1));
    assert_eq!(got.text(id::CONTENT_TYPE), Some("text/plain"));
    assert_eq!(got.text(id::RESPONSE_TOPIC), Some("reply"));
    assert_eq!(got.data(id::CORRELATION_DATA), Some(&[1, 2][..]));
    assert_eq!(got.user(), [("b", "1"), ("a", "2")]);
    publisher.retain(&topic, "", 0);
}

/// [MQTT-3.8.4-8] [3.1.1 MQTT-3.8.4-6] Retained messages too arrive at the lower
/// QoS, and with the identifier of the subscription [MQTT-3.3.4-3].
#[test]
fn retained_messages_arrive_at_the_lower_qos() {
    let (topic, mut publisher) = (unique("t"), Conn::client(V5));
    for qos in [0, 1, 2] {
        publisher.retain(&topic, "p", qos);
        for granted in [0, 1, 2] {
            let mut subscriber = Conn::client(V5);
            let props = Props::new().var(id::SUBSCRIPTION_IDENTIFIER, 9);
            subscribe_with(&mut subscriber, &props, &[(&topic, granted)]);
            let message = subscriber.expect(&topic, "p");
            assert_eq!(message.qos, qos.min(granted));
            assert_eq!(message.props.numbers(id::SUBSCRIPTION_IDENTIFIER), [9]);
            subscriber.acknowledge(&message);
        }
    }
    publisher.retain(&topic, "", 0);
}

/// [MQTT-3.3.2-5] A retained message that has expired is not sent any more;
/// one that has not says how long it still lives.
#[test]
fn expired_retained_messages_are_gone() {
    let (short, long) = (unique("t"), unique("t"));
    let mut publisher = Conn::client(V5);
    for (topic, seconds) in [(&short, 1), (&long, 600)] {
        let props = Props::new().four(id::MESSAGE_EXPIRY, seconds);
        publisher.send_publish(Publish::new(V5, topic, "p").retain().props(props), 1);
    }
    let_pass(3);
    assert!(retained(V5, &short).is_empty());
    let left = retained(V5, &long)[0].props.number(id::MESSAGE_EXPIRY);
    assert!(
        left.is_some_and(|left| (1..600).contains(&left)),
        "{left:?}"
    );
    publisher.retain(&long, "", 0);
}

/// [MQTT-4.7.2-1] [3.1.1 MQTT-4.7.2-1] Retained messages under `$` stay hidden
/// from filters that begin with a wildcard.
#[test]
fn dollar_topics_are_not_retained_for_wildcards() {
    let mut subscriber = Conn::client(V5);
    let marker = unique("m");
    subscriber.subscribe(&marker, 0);
    for (number, filter) in [(1, "+/broker/version"), (2, "$SYS/broker/version")] {
        let props = Props::new().var(id::SUBSCRIPTION_IDENTIFIER, number);
        subscribe_with(&mut subscriber, &props, &[(filter, 0)]);
    }
    Conn::client(V5).publish(&marker, "marker", 0);
    for message in until(&mut subscriber, "marker") {
        assert_eq!(message.props.numbers(id::SUBSCRIPTION_IDENTIFIER), [2]);
    }
}
