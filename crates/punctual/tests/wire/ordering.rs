//! Order of messages (section 4.6). That messages are sent again in order is
//! tested with retry.

use crate::build::{Connect, Props, Publish, V5, V311, ack, first, id};
use crate::conn::{Conn, unique};
use crate::fixture::pair;

/// [MQTT-4.6.0-5] [MQTT-4.6.0-6] [3.1.1 MQTT-4.6.0-5] [3.1.1 MQTT-4.6.0-6]
/// Messages of one publisher on one topic arrive in their order, at each QoS,
/// however fast they come.
#[test]
fn one_publishers_messages_arrive_in_order() {
    for level in [V311, V5] {
        for qos in [0, 1, 2] {
            let (mut subscriber, mut publisher, topic) = pair(level);
            for burst in 0..10u16 {
                let numbers = burst * 20 + 1..=burst * 20 + 20;
                let mut bytes = Vec::new();
                for number in numbers.clone() {
                    let publish = Publish::new(level, &topic, number.to_string());
                    bytes.extend(publish.qos(qos, number).encode());
                }
                publisher.send(bytes);
                for number in numbers.clone().filter(|_| qos > 0) {
                    let kind = if qos == 1 {
                        first::PUBACK
                    } else {
                        first::PUBREC
                    };
                    publisher.ack(kind, number);
                }
                for number in numbers.filter(|_| qos == 2) {
                    publisher.send(ack(first::PUBREL, number));
                    publisher.ack(first::PUBCOMP, number);
                }
            }
            for number in 1..=200u16 {
                let message = subscriber.expect(&topic, number.to_string());
                subscriber.acknowledge(&message);
            }
        }
    }
}

/// [3.1.1 MQTT-4.6.0-2] [3.1.1 MQTT-4.6.0-3] [3.1.1 MQTT-4.6.0-4]
/// [MQTT-4.6.0-5] The server, too, acknowledges in the order in which it
/// received.
#[test]
fn acknowledgements_come_in_order() {
    for level in [V311, V5] {
        let mut conn = Conn::client(level);
        let mut bytes = Vec::new();
        for number in [5, 3, 9, 1] {
            bytes.extend(Publish::new(level, "t", "p").qos(1, number).encode());
            bytes.extend(Publish::new(level, "t", "p").qos(2, number + 100).encode());
        }
        conn.send(bytes);
        for number in [5, 3, 9, 1] {
            conn.ack(first::PUBACK, number);
            conn.ack(first::PUBREC, number + 100);
        }
        for number in [109, 101, 105, 103] {
            conn.send(ack(first::PUBREL, number));
        }
        for number in [109, 101, 105, 103] {
            conn.ack(first::PUBCOMP, number);
        }
    }
}

/// [MQTT-4.6.0-5] [3.1.1 MQTT-4.6.0-6] The order holds while the subscriber's
/// window is one message wide, and for what waited while it was away.
#[test]
fn order_holds_through_a_narrow_window_and_a_pause() {
    let topic = unique("t");
    let props = Props::new()
        .two(id::RECEIVE_MAXIMUM, 1)
        .four(id::SESSION_EXPIRY, 300);
    let connect = Connect::new(V5, unique("c")).resume().props(props);
    let (mut subscriber, _) = Conn::connect(&connect);
    subscriber.subscribe(&topic, 1);
    let mut publisher = Conn::client(V5);
    for number in 0..10 {
        publisher.publish(&topic, number.to_string(), 1);
    }
    for number in 0..3 {
        let message = subscriber.expect(&topic, number.to_string());
        subscriber.acknowledge(&message);
    }
    subscriber.expect(&topic, "3");
    drop(subscriber);
    for number in 10..20 {
        publisher.publish(&topic, number.to_string(), 1);
    }
    let (mut subscriber, _) = Conn::connect(&connect);
    for number in 3..20 {
        let message = subscriber.expect(&topic, number.to_string());
        assert_eq!(message.dup, number == 3);
        subscriber.acknowledge(&message);
    }
}
