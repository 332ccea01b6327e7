//! Sessions (sections 3.1.2.4, 3.1.2.11.2 and 4.1).

use crate::broker::Broker;
use crate::build::{Connect, Level, Props, V5, V31, V311, first, id, with_reason};
use crate::conn::{Conn, unique};
use crate::fixture::let_pass;

/// Whether a session waits under this client identifier.
#[track_caller]
fn has_session(level: Level, name: &str) -> bool {
    Conn::connect(&Connect::new(level, name).resume())
        .1
        .session_present
}

/// [MQTT-3.1.2-5] [MQTT-3.1.2-6] [MQTT-3.1.2-23] [MQTT-4.5.0-1] [MQTT-3.1.4-4]
/// [3.1.1 MQTT-3.1.2-4] [3.1.1 MQTT-3.1.2-5] [3.1.1 MQTT-3.1.4-3]
/// [3.1.1 MQTT-4.1.0-1] [3.1.1 MQTT-4.5.0-1] A session outlives its
/// connection: its subscriptions stay, and QoS 1 and 2 messages wait in order.
#[test]
fn a_session_keeps_subscriptions_and_messages() {
    for level in [V31, V311, V5] {
        let topic = unique("t");
        let connect = Connect::new(level, unique("c")).lasting(300);
        let (mut conn, connack) = Conn::connect(&connect);
        assert!(!connack.session_present);
        conn.subscribe(&topic, 2);
        conn.disconnect();
        let mut publisher = Conn::client(level);
        for count in 0..20 {
            publisher.publish(&topic, count.to_string(), 1 + count % 2);
        }
        let (mut conn, connack) = Conn::connect(&connect);
        assert_eq!(connack.session_present, level != V31);
        for count in 0..20u8 {
            let message = conn.expect(&topic, count.to_string());
            assert_eq!((message.qos, message.dup), (1 + count % 2, false));
            conn.acknowledge(&message);
        }
        publisher.publish(&topic, "live", 0);
        conn.expect(&topic, "live");
    }
}

/// [MQTT-3.2.2-3] [3.1.1 MQTT-3.2.2-2] A session that has no subscriptions outlives the broker's process,
/// too: whatever its client does next, it may rely on what Session Present says.
#[test]
fn a_session_without_subscriptions_survives_a_restart() {
    let data = tempfile::tempdir().expect("a directory");
    let config = format!("[server]\ndata = {:?}\n", data.path());
    for level in [V311, V5] {
        let connect = Connect::new(level, unique("c")).lasting(300);
        for restart in 0..3 {
            let Some(broker) = Broker::with_config(&config) else {
                return;
            };
            let (_conn, connack) = Conn::connect_to(&broker, &connect);
            assert_eq!(connack.session_present, restart > 0, "{level:?} {restart}");
        }
    }
}

/// [MQTT-3.1.2-4] [3.1.1 MQTT-3.1.2-6] Clean start discards subscriptions and
/// waiting messages.
#[test]
fn clean_start_discards_the_session() {
    for level in [V31, V311, V5] {
        let (topic, name) = (unique("t"), unique("c"));
        let (mut conn, _) = Conn::connect(&Connect::new(level, &name).lasting(300));
        conn.subscribe(&topic, 1);
        conn.disconnect();
        let mut publisher = Conn::client(level);
        publisher.publish(&topic, "waits", 1);
        let (mut conn, connack) = Conn::connect(&Connect::new(level, &name));
        assert!(!connack.session_present);
        publisher.publish(&topic, "unsubscribed", 1);
        let marker = unique("m");
        conn.subscribe(&marker, 1);
        publisher.publish(&marker, "marker", 1);
        conn.expect(&marker, "marker");
    }
}

/// [3.1.1 MQTT-3.1.2-6] [MQTT-4.1.0-2] A clean session of 3.1.1, and one
/// without an expiry interval in 5.0, ends with its connection.
#[test]
fn a_session_without_expiry_ends_with_its_connection() {
    for level in [V311, V5] {
        let name = unique("c");
        Conn::connect(&Connect::new(level, &name)).0.disconnect();
        assert!(!has_session(level, &name));
    }
    for expiry in [Props::new(), Props::new().four(id::SESSION_EXPIRY, 0)] {
        let name = unique("c");
        let connect = Connect::new(V5, &name).resume().props(expiry);
        Conn::connect(&connect).0.disconnect();
        assert!(!has_session(V5, &name));
    }
}

/// [MQTT-4.1.0-2] [MQTT-3.1.2-23] A session ends when its expiry interval has
/// passed, and not before.
#[test]
fn a_session_ends_after_its_expiry_interval() {
    let (short, long) = (unique("c"), unique("c"));
    Conn::connect(&Connect::new(V5, &short).lasting(1))
        .0
        .disconnect();
    Conn::connect(&Connect::new(V5, &long).lasting(300))
        .0
        .disconnect();
    let_pass(3);
    assert!(!has_session(V5, &short));
    assert!(has_session(V5, &long));
}

/// [MQTT-4.1.0-1] [3.1.1 MQTT-4.1.0-2] The interval counts from the end of the
/// connection: while it lasts the session stays.
#[test]
fn a_session_stays_while_connected() {
    let (topic, name) = (unique("t"), unique("c"));
    let (mut conn, _) = Conn::connect(&Connect::new(V5, &name).lasting(1));
    conn.subscribe(&topic, 1);
    let_pass(3);
    Conn::client(V5).publish(&topic, "p", 1);
    let message = conn.expect(&topic, "p");
    conn.acknowledge(&message);
    conn.ping();
}

/// [MQTT-4.1.0-2] DISCONNECT may shorten the interval or lengthen it.
#[test]
fn disconnect_may_change_the_interval() {
    for (at_connect, at_disconnect, kept) in [(300, 0, false), (1, 300, true)] {
        let name = unique("c");
        let (mut conn, _) = Conn::connect(&Connect::new(V5, &name).lasting(at_connect));
        let props = Props::new().four(id::SESSION_EXPIRY, at_disconnect);
        conn.send(with_reason(first::DISCONNECT, 0, &props));
        conn.closed();
        if kept {
            let_pass(2);
        }
        assert_eq!(has_session(V5, &name), kept);
    }
}

/// [MQTT-4.13.1-1] A session that was to end with its connection cannot be
/// prolonged by DISCONNECT: a protocol error (section 3.14.2.2.2).
#[test]
fn disconnect_cannot_prolong_a_session_without_expiry() {
    let (mut conn, _) = Conn::connect(&Connect::new(V5, unique("c")));
    let props = Props::new().four(id::SESSION_EXPIRY, 60);
    conn.send(with_reason(first::DISCONNECT, 0, &props));
    conn.error(&[0x82]);
}

/// [MQTT-3.1.2-23] The longest interval, which never ends, is taken.
#[test]
fn the_interval_without_end_is_taken() {
    let name = unique("c");
    let connect = Connect::new(V5, &name).lasting(u32::MAX);
    Conn::connect(&connect).0.disconnect();
    assert!(has_session(V5, &name));
    Conn::connect(&Connect::new(V5, &name)).0.disconnect();
}

/// [MQTT-3.1.4-3] [MQTT-3.1.2-5] [3.1.1 MQTT-3.1.4-2] [3.1.1 MQTT-3.1.2-4] A
/// client that takes over a live connection finds the session, with what the
/// old connection left unacknowledged.
#[test]
fn a_takeover_keeps_the_session() {
    for level in [V311, V5] {
        let topic = unique("t");
        let connect = Connect::new(level, unique("c")).lasting(300);
        let (mut old, _) = Conn::connect(&connect);
        old.subscribe(&topic, 1);
        let mut publisher = Conn::client(level);
        publisher.publish(&topic, "p", 1);
        let before = old.expect(&topic, "p");
        let (mut new, connack) = Conn::connect(&connect);
        assert!(connack.session_present);
        old.error(&[0x8E]);
        let again = new.expect(&topic, "p");
        assert_eq!((again.id, again.dup), (before.id, true));
        new.acknowledge(&again);
        publisher.publish(&topic, "q", 0);
        new.expect(&topic, "q");
    }
}

/// [MQTT-3.1.4-3] [MQTT-3.1.2-4] [3.1.1 MQTT-3.1.2-6] A clean start takes over
/// as well, and the old session is gone.
#[test]
fn a_clean_takeover_starts_afresh() {
    for level in [V311, V5] {
        let (topic, name) = (unique("t"), unique("c"));
        let (mut old, _) = Conn::connect(&Connect::new(level, &name).lasting(300));
        old.subscribe(&topic, 1);
        let (mut new, connack) = Conn::connect(&Connect::new(level, &name));
        assert!(!connack.session_present);
        old.error(&[0x8E]);
        Conn::client(level).publish(&topic, "p", 1);
        new.ping();
    }
}

/// [3.1.1 MQTT-4.4.0-1] [MQTT-3.1.2-23] Subscriptions survive an abrupt end of
/// the connection as well as a polite one.
#[test]
fn a_session_survives_a_network_failure() {
    for level in [V311, V5] {
        let topic = unique("t");
        let connect = Connect::new(level, unique("c")).lasting(300);
        let (mut conn, _) = Conn::connect(&connect);
        conn.subscribe(&topic, 1);
        drop(conn);
        Conn::client(level).publish(&topic, "p", 1);
        let (mut conn, _) = Conn::connect(&connect);
        let message = conn.expect(&topic, "p");
        conn.acknowledge(&message);
    }
}
