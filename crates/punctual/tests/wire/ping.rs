//! PINGREQ, PINGRESP and keep-alive (sections 3.1.2.10, 3.12 and 3.13).

use crate::build::{Connect, Publish, V5, V31, V311, Will, pingreq};
use crate::conn::{Conn, unique};
use crate::fixture::{let_pass, until_pingresp};
use crate::parse::Packet;

/// [MQTT-3.12.4-1] [3.1.1 MQTT-3.12.4-1] Each PINGREQ gets one PINGRESP.
#[test]
fn each_pingreq_gets_a_pingresp() {
    for level in [V31, V311, V5] {
        let mut conn = Conn::client(level);
        conn.send([pingreq(), pingreq(), pingreq()].concat());
        for _ in 0..3 {
            assert!(matches!(conn.next(), Packet::PingResp));
        }
        conn.ping();
    }
}

/// [MQTT-3.1.2-22] [3.1.1 MQTT-3.1.2-24] [MQTT-3.2.2-22] A client that is
/// silent for one and a half times its keep-alive is closed as if the network
/// had failed: its will is published.
#[test]
fn a_silent_client_is_closed() {
    let topic = unique("w");
    let mut watcher = Conn::client(V5).patient(15);
    watcher.subscribe(&topic, 0);
    let silent = [V31, V311, V5].map(|level| {
        let connect = Connect::new(level, unique("c")).keep_alive(1);
        Conn::connect(&connect.will(Will::new(&topic, "timed out"))).0
    });
    for conn in silent {
        conn.patient(15).error(&[0x8D]);
        watcher.expect(&topic, "timed out");
    }
}

/// [MQTT-3.1.2-22] [3.1.1 MQTT-3.1.2-24] Half a packet is no packet: it does
/// not prolong the keep-alive.
#[test]
fn half_a_packet_does_not_keep_a_client_alive() {
    let waiting = [V311, V5].map(|level| {
        let connect = Connect::new(level, unique("c")).keep_alive(1);
        let (mut conn, _) = Conn::connect(&connect);
        let publish = Publish::new(level, "t", "payload").encode();
        conn.send(&publish[..publish.len() - 1]);
        conn
    });
    for conn in waiting {
        conn.patient(15).error(&[0x8D]);
    }
}

/// [MQTT-3.1.2-22] [3.1.1 MQTT-3.1.2-24] Any packet keeps a client alive
/// beyond the interval, and keep-alive zero never ends.
#[test]
fn a_client_that_speaks_stays() {
    let client =
        |level, seconds| Conn::connect(&Connect::new(level, unique("c")).keep_alive(seconds)).0;
    let mut pinging = [V311, V5].map(|level| client(level, 2));
    let mut publishing = [V311, V5].map(|level| client(level, 2));
    let silent = [V311, V5].map(|level| client(level, 0));
    for _ in 0..5 {
        let_pass(1);
        for conn in &mut pinging {
            conn.ping();
        }
        for conn in &mut publishing {
            conn.publish("nobody/listens", "p", 0);
        }
    }
    for mut conn in publishing.into_iter().chain(silent) {
        conn.ping();
    }
}

/// [MQTT-3.1.2-22] What the server sends does not count: a subscriber that
/// receives but stays silent is closed.
#[test]
fn receiving_does_not_keep_a_client_alive() {
    let topic = unique("t");
    let subscribers = [V311, V5].map(|level| {
        let connect = Connect::new(level, unique("c")).keep_alive(1);
        let (mut subscriber, _) = Conn::connect(&connect);
        subscriber.subscribe(&topic, 0);
        subscriber
    });
    let mut publisher = Conn::client(V5);
    for _ in 0..3 {
        publisher.publish(&topic, "p", 0);
        let_pass(1);
    }
    for subscriber in subscribers {
        let mut subscriber = subscriber.patient(15);
        loop {
            match subscriber.next_or_end() {
                Some(Packet::Publish(_)) => {}
                Some(Packet::Disconnect(reason)) if reason.code == 0x8D => {}
                None => break,
                Some(other) => subscriber.fail("DISCONNECT 0x8D and the end", &other),
            }
        }
    }
}

/// [MQTT-3.12.4-1] PINGREQ is answered in the midst of a stream of messages.
#[test]
fn pings_are_answered_under_load() {
    let topic = unique("t");
    let mut conn = Conn::client(V5);
    conn.subscribe(&topic, 0);
    let mut publisher = Conn::client(V5);
    for round in 0..20 {
        for count in 0..50 {
            publisher.publish(&topic, format!("{round} {count}"), 0);
        }
        conn.send(pingreq());
        until_pingresp(&mut conn);
    }
}
