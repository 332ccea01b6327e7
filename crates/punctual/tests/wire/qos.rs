//! The QoS 1 and QoS 2 protocols in both roles, and retry (sections 2.2.1,
//! 3.4 to 3.7, 4.3 and 4.4).

use crate::build::{
    Connect, Level, Props, Publish, V5, V31, V311, ack, ack_with, first, pingreq, subscribe,
    unsubscribe,
};
use crate::conn::{Conn, unique};
use crate::fixture::{PROTOCOL, let_pass, pair};

/// A lasting subscriber that can be cut off and come back.
struct Returning {
    connect: Connect,
    conn: Conn,
}

impl Returning {
    #[track_caller]
    fn new(level: Level, topic: &str) -> Self {
        let connect = Connect::new(level, unique("c")).lasting(300);
        let mut conn = Conn::connect(&connect).0;
        conn.subscribe(topic, 2);
        Self { connect, conn }
    }

    /// The network fails, and the client returns to its session.
    #[track_caller]
    fn returns(&mut self) {
        let (conn, connack) = Conn::connect(&self.connect);
        assert!(connack.session_present);
        self.conn = conn;
    }
}

/// [MQTT-2.2.1-4] [3.1.1 MQTT-2.3.1-4] [MQTT-4.3.2-1] [MQTT-4.3.3-1]
/// [3.1.1 MQTT-4.3.2-1] [3.1.1 MQTT-4.3.3-1] The server gives each
/// unacknowledged PUBLISH its own identifier.
#[test]
fn unacknowledged_messages_have_distinct_identifiers() {
    for level in [V311, V5] {
        let (mut subscriber, mut publisher, topic) = pair(level);
        let mut ids = Vec::new();
        for count in 0..10 {
            publisher.publish(&topic, count.to_string(), 1 + count % 2);
            let message = subscriber.expect(&topic, count.to_string());
            assert!(!ids.contains(&message.id), "{} is in use", message.id);
            ids.push(message.id);
        }
    }
}

/// [MQTT-4.3.2-5] [3.1.1 MQTT-4.3.2-2] [MQTT-4.3.3-12] [3.1.1 MQTT-4.3.3-2]
/// [MQTT-2.2.1-3] Once acknowledged, an identifier brings a new message, DUP or not.
#[test]
fn an_acknowledged_identifier_is_free_again() {
    for level in [V311, V5] {
        let (mut subscriber, mut publisher, topic) = pair(level);
        for payload in ["first", "second"] {
            let again = Publish::new(level, &topic, payload).dup();
            publisher.send(again.clone().qos(1, 9).encode());
            publisher.ack(first::PUBACK, 9);
            publisher.send(again.qos(2, 9).encode());
            publisher.ack(first::PUBREC, 9);
            publisher.send(ack(first::PUBREL, 9));
            publisher.ack(first::PUBCOMP, 9);
            for _ in 0..2 {
                let message = subscriber.expect(&topic, payload);
                subscriber.acknowledge(&message);
            }
        }
    }
}

/// [MQTT-4.3.3-10] [3.1.1 MQTT-4.3.3-2] [MQTT-4.3.3-8] Until PUBREL a QoS 2
/// PUBLISH that comes again gets PUBREC again and is delivered once.
#[test]
fn qos_2_is_delivered_once() {
    for level in [V311, V5] {
        let (mut subscriber, mut publisher, topic) = pair(level);
        let publish = Publish::new(level, &topic, "once").qos(2, 5);
        publisher.send(publish.encode());
        publisher.ack(first::PUBREC, 5);
        for _ in 0..3 {
            publisher.send(publish.clone().dup().encode());
            publisher.ack(first::PUBREC, 5);
        }
        publisher.send(ack(first::PUBREL, 5));
        publisher.ack(first::PUBCOMP, 5);
        publisher.publish(&topic, "marker", 2);
        let message = subscriber.expect(&topic, "once");
        subscriber.acknowledge(&message);
        subscriber.expect(&topic, "marker");
    }
}

/// [MQTT-4.3.3-10] [MQTT-3.1.2-23] [3.1.1 MQTT-4.3.3-2] [3.1.1 MQTT-4.1.0-1]
/// That a QoS 2 message was received survives the connection: sent again after
/// reconnecting it is still delivered once.
#[test]
fn qos_2_is_delivered_once_across_connections() {
    for level in [V311, V5] {
        let (mut subscriber, mut other, topic) = pair(level);
        let connect = Connect::new(level, unique("c")).lasting(300);
        let publish = Publish::new(level, &topic, "once").qos(2, 5);
        let (mut publisher, _) = Conn::connect(&connect);
        publisher.send(publish.encode());
        publisher.ack(first::PUBREC, 5);
        drop(publisher);
        let (mut publisher, connack) = Conn::connect(&connect);
        assert!(connack.session_present);
        publisher.send(publish.dup().encode());
        publisher.ack(first::PUBREC, 5);
        publisher.send(ack(first::PUBREL, 5));
        publisher.ack(first::PUBCOMP, 5);
        let message = subscriber.expect(&topic, "once");
        subscriber.acknowledge(&message);
        other.publish(&topic, "marker", 2);
        subscriber.expect(&topic, "marker");
    }
}

/// [MQTT-4.3.3-11] [MQTT-3.7.2-1] [3.1.1 MQTT-4.3.3-2] PUBREL is answered with
/// PUBCOMP also when its identifier is unknown; 5.0 says so with 0x92.
#[test]
fn pubrel_is_always_answered() {
    for level in [V311, V5] {
        let mut conn = Conn::client(level);
        conn.send(ack(first::PUBREL, 77));
        let answer = conn.ack(first::PUBCOMP, 77);
        if level == V5 {
            assert!([0x00, 0x92].contains(&answer.code), "{answer:?}");
        }
        conn.ping();
    }
}

/// [MQTT-4.3.3-4] [MQTT-3.6.2-1] A PUBREC for an identifier that the server
/// does not know is answered with PUBREL (0x92), and stray PUBACK and PUBCOMP
/// do no harm.
#[test]
fn stray_acknowledgements_do_no_harm() {
    for level in [V311, V5] {
        let mut conn = Conn::client(level);
        conn.send(ack(first::PUBACK, 77));
        conn.send(ack(first::PUBCOMP, 77));
        conn.ping();
        if level == V5 {
            conn.send(ack(first::PUBREC, 77));
            let answer = conn.ack(first::PUBREL, 77);
            assert!([0x00, 0x92].contains(&answer.code), "{answer:?}");
            conn.ping();
        }
    }
}

/// [MQTT-4.3.3-4] [3.1.1 MQTT-4.3.3-1] [MQTT-3.6.1-1] [3.1.1 MQTT-3.6.1-1]
/// [MQTT-3.6.2-1] [MQTT-2.2.1-5] The server answers PUBREC with PUBREL under
/// the identifier of the PUBLISH.
#[test]
fn pubrec_is_answered_with_pubrel() {
    for level in [V311, V5] {
        let (mut subscriber, mut publisher, topic) = pair(level);
        publisher.publish(&topic, "p", 2);
        let message = subscriber.expect(&topic, "p");
        subscriber.send(ack(first::PUBREC, message.id));
        let pubrel = subscriber.ack(first::PUBREL, message.id);
        assert_eq!(pubrel.code, 0);
        subscriber.send(ack(first::PUBCOMP, message.id));
        subscriber.ping();
    }
}

/// [MQTT-4.4.0-1] [3.1.1 MQTT-4.4.0-1] [MQTT-3.3.1-1] [3.1.1 MQTT-3.3.1-1]
/// [MQTT-4.3.2-3] [MQTT-4.3.3-3] [3.1.1 MQTT-2.3.1-3] [3.1.1 MQTT-2.3.1-4]
/// [3.1.1 MQTT-4.3.2-1] [3.1.1 MQTT-4.3.3-1] [MQTT-4.1.0-1]
/// [3.1.1 MQTT-4.6.0-1] An unacknowledged PUBLISH is sent again after
/// reconnecting, in the original order, with DUP, under its old identifier.
#[test]
fn unacknowledged_publishes_are_sent_again() {
    for level in [V311, V5] {
        let topic = unique("t");
        let mut subscriber = Returning::new(level, &topic);
        let mut publisher = Conn::client(level);
        let mut sent = Vec::new();
        for (payload, qos) in [("a", 1), ("b", 2), ("c", 1), ("d", 2)] {
            publisher.publish(&topic, payload, qos);
            sent.push(subscriber.conn.expect(&topic, payload));
        }
        // Twice: the second failure finds everything still unacknowledged.
        for _ in 0..2 {
            subscriber.returns();
            for before in &sent {
                let again = subscriber.conn.expect(&topic, &before.payload);
                assert!(again.dup, "DUP is set");
                assert_eq!((again.id, again.qos), (before.id, before.qos));
            }
        }
        for message in &sent {
            subscriber.conn.acknowledge(message);
        }
        subscriber.conn.ping();
        subscriber.returns();
        subscriber.conn.ping();
    }
}

/// [MQTT-4.4.0-1] [3.1.1 MQTT-4.4.0-1] [MQTT-4.3.3-5] [MQTT-4.3.3-6]
/// [3.1.1 MQTT-4.3.3-1] After PUBREC it is PUBREL that is sent again, and never
/// the PUBLISH.
#[test]
fn an_unacknowledged_pubrel_is_sent_again() {
    for level in [V311, V5] {
        let topic = unique("t");
        let mut subscriber = Returning::new(level, &topic);
        Conn::client(level).publish(&topic, "p", 2);
        let message = subscriber.conn.expect(&topic, "p");
        subscriber.conn.send(ack(first::PUBREC, message.id));
        subscriber.conn.ack(first::PUBREL, message.id);
        for _ in 0..2 {
            subscriber.returns();
            subscriber.conn.ack(first::PUBREL, message.id);
        }
        subscriber.conn.send(ack(first::PUBCOMP, message.id));
        subscriber.conn.ping();
        subscriber.returns();
        subscriber.conn.ping();
    }
}

/// [MQTT-4.4.0-1] While the connection lasts nothing is sent again: a PINGRESP
/// comes before any copy.
#[test]
fn nothing_is_sent_again_on_the_same_connection() {
    let subscribers = [V311, V5].map(|level| {
        let (mut subscriber, mut publisher, topic) = pair(level);
        for qos in [1, 2] {
            publisher.publish(&topic, "p", qos);
            subscriber.expect(&topic, "p");
        }
        subscriber
    });
    let_pass(2);
    for mut subscriber in subscribers {
        subscriber.ping();
    }
}

/// [MQTT-4.4.0-2] [MQTT-4.3.3-4] A PUBACK or PUBREC with an error ends the
/// exchange: no PUBREL, and nothing to send again.
#[test]
fn a_refused_message_is_not_sent_again() {
    let topic = unique("t");
    let mut subscriber = Returning::new(V5, &topic);
    let mut publisher = Conn::client(V5);
    for (kind, qos) in [(first::PUBACK, 1), (first::PUBREC, 2)] {
        publisher.publish(&topic, "p", qos);
        let message = subscriber.conn.expect(&topic, "p");
        subscriber.conn.send(ack_with(kind, message.id, 0x83));
        subscriber.conn.ping();
    }
    subscriber.returns();
    subscriber.conn.ping();
}

/// [MQTT-4.13.1-1] An acknowledgement that the message does not wait for is a protocol error.
#[test]
fn an_acknowledgement_of_the_wrong_type_closes() {
    let (rec, comp) = (first::PUBREC, first::PUBCOMP);
    let cases: [(u8, &[u8], u8); 5] = [
        (1, &[], rec),
        (1, &[], comp),
        (2, &[], first::PUBACK),
        (2, &[], comp),
        (2, &[rec], first::PUBACK),
    ];
    for level in [V311, V5] {
        for (qos, before, wrong) in cases {
            let (mut subscriber, mut publisher, topic) = pair(level);
            publisher.publish(&topic, "p", qos);
            let id = subscriber.expect(&topic, "p").id;
            for kind in before {
                subscriber.send(ack(*kind, id));
                subscriber.ack(first::PUBREL, id);
            }
            let mut subscriber = subscriber.named(&format!("{wrong:#x} for QoS {qos}"));
            subscriber.send(ack(wrong, id));
            subscriber.error(PROTOCOL);
        }
    }
}

/// PUBREC may come again before PUBREL has arrived, and acknowledgements of what is complete are
/// late copies.
#[test]
fn acknowledgements_may_come_twice() {
    for level in [V311, V5] {
        for qos in [1, 2] {
            let (mut subscriber, mut publisher, topic) = pair(level);
            publisher.publish(&topic, "p", qos);
            let id = subscriber.expect(&topic, "p").id;
            if qos == 1 {
                subscriber.send([ack(first::PUBACK, id), ack(first::PUBACK, id)].concat());
            } else {
                for _ in 0..2 {
                    subscriber.send(ack(first::PUBREC, id));
                    subscriber.ack(first::PUBREL, id);
                }
                subscriber.send([ack(first::PUBCOMP, id), ack(first::PUBCOMP, id)].concat());
            }
            subscriber.ping();
        }
    }
}

/// MQTT 3.1 (sections 3.6, 3.8 and 3.10): what is sent again has DUP. No other flag is another.
#[test]
fn packets_of_mqtt_3_1_may_have_dup() {
    let none = Props::new();
    let again = |mut packet: Vec<u8>| {
        packet[0] |= 0x08;
        packet
    };
    let topic = unique("t");
    let mut conn = Conn::client(V31);
    conn.send(again(subscribe(V31, 1, &none, &[(&topic, 2)])));
    assert_eq!(conn.suback(1).codes, [2]);
    conn.send(Publish::new(V31, &topic, "p").qos(2, 7).encode());
    conn.ack(first::PUBREC, 7);
    conn.expect(&topic, "p");
    conn.send(again(ack(first::PUBREL, 7)));
    conn.ack(first::PUBCOMP, 7);
    conn.send(again(unsubscribe(V31, 2, &none, &[&topic])));
    conn.unsuback(2);
    for packet in [ack(first::PUBACK, 9), ack(first::PUBCOMP, 9), pingreq()] {
        let mut conn = Conn::client(V31);
        conn.send(again(packet));
        conn.closed();
    }
}

/// [MQTT-4.3.3-9] A message that the server refuses with an error leaves its
/// identifier free; one that it accepts is complete when PUBCOMP says so, and
/// PUBREL before that is answered once each time.
#[test]
fn pubrel_twice_is_answered_twice() {
    for level in [V311, V5] {
        let (mut subscriber, mut publisher, topic) = pair(level);
        publisher.send(Publish::new(level, &topic, "p").qos(2, 6).encode());
        publisher.ack(first::PUBREC, 6);
        for _ in 0..2 {
            publisher.send(ack(first::PUBREL, 6));
            publisher.ack(first::PUBCOMP, 6);
        }
        let message = subscriber.expect(&topic, "p");
        subscriber.acknowledge(&message);
        subscriber.ping();
    }
}
