//! Topic aliases in both directions (section 3.3.2.3.4).

use std::collections::HashMap;

use crate::build::{Connect, Props, Publish, V5, id};
use crate::conn::{Conn, unique};
use crate::fixture::pair;

/// A publisher and how many aliases the server takes from it.
#[track_caller]
fn publisher() -> (Conn, u16) {
    let (conn, connack) = Conn::connect(&Connect::new(V5, unique("c")));
    let maximum = connack.props.number(id::TOPIC_ALIAS_MAXIMUM).unwrap_or(0);
    (conn, maximum as u16)
}

fn aliased(topic: &str, alias: u16, payload: &str) -> Vec<u8> {
    let props = Props::new().two(id::TOPIC_ALIAS, alias);
    Publish::new(V5, topic, payload).props(props).encode()
}

/// [MQTT-3.3.2-12] All aliases up to the maximum are taken, stand for their
/// topic, and can be given to another.
#[test]
fn aliases_stand_for_their_topics() {
    let (mut subscriber, _, topic) = pair(V5);
    let other = unique("t");
    subscriber.subscribe(&other, 0);
    let (mut publisher, maximum) = publisher();
    for alias in (1..=maximum)
        .step_by(usize::from(maximum / 8).max(1))
        .chain([maximum])
    {
        if alias == 0 {
            continue;
        }
        publisher.send(aliased(&topic, alias, "set"));
        publisher.send(aliased("", alias, "used"));
        publisher.send(aliased(&other, alias, "moved"));
        publisher.send(aliased("", alias, "used again"));
        subscriber.expect(&topic, "set");
        subscriber.expect(&topic, "used");
        subscriber.expect(&other, "moved");
        let message = subscriber.expect(&other, "used again");
        assert!(
            !message.props.has(id::TOPIC_ALIAS),
            "the alias does not travel"
        );
    }
}

/// [MQTT-3.3.2-12] Each alias keeps its own topic, at every QoS.
#[test]
fn aliases_do_not_mix() {
    let (mut publisher, maximum) = publisher();
    let count = maximum.min(10);
    let name = unique("t");
    let mut subscriber = Conn::client(V5);
    subscriber.subscribe(&format!("{name}/#"), 2);
    for alias in 1..=count {
        publisher.send(aliased(&format!("{name}/{alias}"), alias, "set"));
        subscriber.expect(&format!("{name}/{alias}"), "set");
    }
    for alias in (1..=count).rev() {
        for qos in [0, 1, 2] {
            let props = Props::new().two(id::TOPIC_ALIAS, alias);
            publisher.send_publish(Publish::new(V5, "", "used").props(props), qos);
            let message = subscriber.expect(&format!("{name}/{alias}"), "used");
            subscriber.acknowledge(&message);
        }
    }
}

/// [MQTT-3.3.2-8] [MQTT-3.3.2-9] [MQTT-3.2.2-17] [MQTT-3.2.2-18]
/// [MQTT-4.13.1-1] Alias zero, and one above the server's maximum, end the
/// connection with 0x94.
#[test]
fn aliases_out_of_range_close() {
    let (_, maximum) = publisher();
    let mut aliases = vec![0];
    if maximum < u16::MAX {
        aliases.extend([maximum + 1, u16::MAX]);
    }
    for alias in aliases {
        let (mut conn, _) = publisher();
        conn.send(aliased("t", alias, "p"));
        conn.error(&[0x94]);
    }
}

/// [MQTT-4.13.1-1] [MQTT-4.7.3-1] An empty topic name needs an alias that was
/// set before; otherwise it is a protocol error.
#[test]
fn an_empty_topic_needs_a_known_alias() {
    let (mut conn, _) = publisher();
    conn.send(Publish::new(V5, "", "p").encode());
    conn.error(&[0x81, 0x82, 0x90]);
    let (mut conn, maximum) = publisher();
    conn.send(aliased("", maximum.max(1), "p"));
    conn.error(&[0x82, 0x94]);
}

/// [MQTT-3.3.2-7] Aliases end with their connection, even where the session
/// goes on.
#[test]
fn aliases_do_not_outlive_their_connection() {
    let connect = Connect::new(V5, unique("c")).lasting(300);
    let (mut conn, connack) = Conn::connect(&connect);
    if connack.props.number(id::TOPIC_ALIAS_MAXIMUM).unwrap_or(0) == 0 {
        return;
    }
    conn.send(aliased("t", 1, "p"));
    conn.ping();
    drop(conn);
    let (mut conn, connack) = Conn::connect(&connect);
    assert!(connack.session_present);
    conn.send(aliased("", 1, "p"));
    conn.error(&[0x82, 0x94]);
}

/// [MQTT-3.3.2-9] An alias belongs to its connection alone: another client's
/// is unknown.
#[test]
fn aliases_are_not_shared_between_clients() {
    let (mut one, maximum) = publisher();
    if maximum == 0 {
        return;
    }
    one.send(aliased("t", 1, "p"));
    one.ping();
    let (mut two, _) = publisher();
    two.send(aliased("", 1, "p"));
    two.error(&[0x82, 0x94]);
}

/// [MQTT-3.1.2-27] Without Topic Alias Maximum, or with zero, the server uses
/// no aliases.
#[test]
fn no_aliases_are_sent_unasked() {
    for props in [Props::new(), Props::new().two(id::TOPIC_ALIAS_MAXIMUM, 0)] {
        let topic = unique("t");
        let (mut subscriber, _) = Conn::connect(&Connect::new(V5, unique("c")).props(props));
        subscriber.subscribe(&topic, 1);
        let mut publisher = Conn::client(V5);
        for number in 0..10 {
            publisher.publish(&topic, number.to_string(), number % 2);
            let message = subscriber.expect(&topic, number.to_string());
            assert!(!message.props.has(id::TOPIC_ALIAS));
            subscriber.acknowledge(&message);
        }
    }
}

/// [MQTT-3.1.2-26] [MQTT-3.3.2-8] [MQTT-3.3.2-11] [MQTT-3.3.2-3] The server's
/// aliases stay within the client's maximum, and resolve to the right topic.
#[test]
fn the_servers_aliases_fit_and_resolve() {
    for maximum in [1, 3, 100] {
        let name = unique("t");
        let props = Props::new().two(id::TOPIC_ALIAS_MAXIMUM, maximum);
        let (mut subscriber, _) = Conn::connect(&Connect::new(V5, unique("c")).props(props));
        subscriber.subscribe(&format!("{name}/#"), 0);
        let mut publisher = Conn::client(V5);
        let mut known = HashMap::new();
        for round in 0..3 {
            for number in 0..6 {
                let topic = format!("{name}/{number}");
                publisher.publish(&topic, &topic, 0);
                let message = subscriber.message();
                let mut name = message.topic.clone();
                if let Some(alias) = message.props.number(id::TOPIC_ALIAS) {
                    assert!((1..=u32::from(maximum)).contains(&alias), "alias {alias}");
                    if name.is_empty() {
                        name = known.get(&alias).cloned().unwrap_or_default();
                    } else {
                        known.insert(alias, name.clone());
                    }
                }
                assert_eq!(
                    (name, message.text()),
                    (topic.clone(), topic),
                    "round {round}"
                );
            }
        }
    }
}

/// [MQTT-3.3.2-7] The server does not count on aliases of an earlier
/// connection either: after reconnecting, topics are spelled out first.
#[test]
fn the_servers_aliases_end_with_the_connection() {
    let topic = unique("t");
    let props = Props::new()
        .two(id::TOPIC_ALIAS_MAXIMUM, 10)
        .four(id::SESSION_EXPIRY, 300);
    let connect = Connect::new(V5, unique("c")).resume().props(props);
    let mut publisher = Conn::client(V5);
    let (mut subscriber, _) = Conn::connect(&connect);
    subscriber.subscribe(&topic, 1);
    for _ in 0..3 {
        publisher.publish(&topic, "p", 1);
        let message = subscriber.message();
        subscriber.acknowledge(&message);
    }
    // Left unacknowledged, perhaps sent by alias, and sent again.
    publisher.publish(&topic, "again", 1);
    subscriber.message();
    drop(subscriber);
    let (mut subscriber, _) = Conn::connect(&connect);
    assert!(subscriber.expect(&topic, "again").dup);
}
