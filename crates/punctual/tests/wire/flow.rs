//! Flow control by Receive Maximum (sections 3.3.4 and 4.9), and the maximum
//! packet size of a client.

use crate::broker::Broker;
use crate::build::{Connect, Props, Publish, V5, V311, ack, ack_with, first, id};
use crate::conn::{Conn, unique};
use crate::fixture::pair;

/// A subscriber at QoS 2 that takes `maximum` unacknowledged messages.
#[track_caller]
fn narrow(maximum: u16) -> (Conn, Conn, String) {
    let topic = unique("t");
    let props = Props::new().two(id::RECEIVE_MAXIMUM, maximum);
    let (mut subscriber, _) = Conn::connect(&Connect::new(V5, unique("c")).props(props));
    subscriber.subscribe(&topic, 2);
    (subscriber, Conn::client(V5), topic)
}

/// [MQTT-3.3.4-9] [MQTT-4.9.0-1] [MQTT-4.9.0-2] [MQTT-3.3.4-10] [MQTT-4.9.0-3]
/// No more than Receive Maximum messages are sent unacknowledged, other packets
/// are, and each acknowledgement lets one more through.
#[test]
fn the_clients_receive_maximum_is_kept() {
    for maximum in [1, 2, 5] {
        let (mut subscriber, mut publisher, topic) = narrow(maximum);
        for number in 0..10u16 {
            publisher.publish(&topic, number.to_string(), 1 + (number % 2) as u8);
        }
        let mut unacknowledged = Vec::new();
        for number in 0..maximum {
            unacknowledged.push(subscriber.expect(&topic, number.to_string()));
        }
        // The quota is used up: requests are still served.
        subscriber.ping();
        subscriber.subscribe(&unique("t"), 0);
        for number in maximum..10 {
            let message = unacknowledged.remove(0);
            if message.qos == 1 {
                subscriber.send(ack(first::PUBACK, message.id));
            } else {
                subscriber.send(ack(first::PUBREC, message.id));
                subscriber.ack(first::PUBREL, message.id);
                // PUBREC with success frees nothing yet.
                subscriber.ping();
                subscriber.send(ack(first::PUBCOMP, message.id));
            }
            unacknowledged.push(subscriber.expect(&topic, number.to_string()));
            subscriber.ping();
        }
    }
}

/// [MQTT-3.3.4-9] [MQTT-4.4.0-2] A PUBREC with an error frees its place, too.
#[test]
fn a_refusal_frees_its_place() {
    let (mut subscriber, mut publisher, topic) = narrow(1);
    for number in 0..4 {
        publisher.publish(&topic, number.to_string(), 2);
    }
    for number in 0..3 {
        let message = subscriber.expect(&topic, number.to_string());
        subscriber.ping();
        subscriber.send(ack_with(first::PUBREC, message.id, 0x83));
    }
    subscriber.expect(&topic, "3");
}

/// [MQTT-4.9.0-2] Messages of QoS 0 are not counted, and not lost to the
/// window.
#[test]
fn qos_0_is_not_counted() {
    let (mut subscriber, mut publisher, topic) = narrow(1);
    publisher.publish(&topic, "one", 1);
    let one = subscriber.expect(&topic, "one");
    for number in 0..5 {
        publisher.publish(&topic, number.to_string(), 0);
    }
    subscriber.acknowledge(&one);
    for number in 0..5 {
        subscriber.expect(&topic, number.to_string());
    }
}

/// [MQTT-3.3.4-9] [MQTT-4.9.0-1] After reconnecting, the window is the new
/// connection's, and what is sent again fits it.
#[test]
fn each_connection_has_its_own_window() {
    let topic = unique("t");
    let name = unique("c");
    let with = |maximum| {
        let props = Props::new().two(id::RECEIVE_MAXIMUM, maximum);
        let props = props.four(id::SESSION_EXPIRY, 300);
        Connect::new(V5, &name).resume().props(props)
    };
    let (mut subscriber, _) = Conn::connect(&with(5));
    subscriber.subscribe(&topic, 1);
    let mut publisher = Conn::client(V5);
    for number in 0..8 {
        publisher.publish(&topic, number.to_string(), 1);
    }
    for number in 0..5 {
        subscriber.expect(&topic, number.to_string());
    }
    subscriber.ping();
    drop(subscriber);
    let (mut subscriber, _) = Conn::connect(&with(2));
    for number in 0..8 {
        let message = subscriber.expect(&topic, number.to_string());
        assert_eq!(message.dup, number < 5);
        subscriber.acknowledge(&message);
    }
}

/// [MQTT-3.3.4-7] [MQTT-4.13.1-1] A client that exceeds the server's Receive
/// Maximum is disconnected with 0x93; up to it all is well.
#[test]
fn exceeding_the_servers_receive_maximum_closes() {
    let Some(broker) = Broker::with_config("[limits]\nreceive_maximum = 10\n") else {
        return;
    };
    let (mut conn, connack) = Conn::connect_to(&broker, &Connect::new(V5, "c"));
    assert_eq!(connack.props.number(id::RECEIVE_MAXIMUM), Some(10));
    for number in 1..=10 {
        conn.send(Publish::new(V5, "t", "p").qos(2, number).encode());
        conn.ack(first::PUBREC, number);
    }
    conn.send(ack(first::PUBREL, 1));
    conn.ack(first::PUBCOMP, 1);
    conn.send(Publish::new(V5, "t", "p").qos(2, 11).encode());
    conn.ack(first::PUBREC, 11);
    conn.send(Publish::new(V5, "t", "p").qos(2, 12).encode());
    conn.error(&[0x93]);
}

/// [MQTT-3.1.2-24] [MQTT-3.1.2-25] A message that is too large for a client is
/// not sent to it, and counts as sent: those behind it follow, and the others
/// get it whole.
#[test]
fn messages_too_large_for_a_client_are_skipped() {
    let topic = unique("t");
    let connect = Connect::new(V5, unique("c")).max_packet(100);
    let props = Props::new().two(id::RECEIVE_MAXIMUM, 1);
    let (mut small, _) = Conn::connect(&connect.props(props));
    let mut large = Conn::client(V5);
    small.subscribe(&topic, 2);
    large.subscribe(&topic, 2);
    let mut publisher = Conn::client(V5);
    for qos in [0, 1, 2] {
        for payload in ["a", &"x".repeat(100), &"y".repeat(70_000), "b"] {
            publisher.publish(&topic, payload, qos);
            let message = large.expect(&topic, payload);
            large.acknowledge(&message);
        }
        for payload in ["a", "b"] {
            let message = small.expect(&topic, payload);
            small.acknowledge(&message);
        }
    }
    small.ping();
}

/// [MQTT-3.1.2-24] The largest message that fits is sent, one byte more is not.
#[test]
fn the_maximum_packet_size_is_exact() {
    let topic = unique("t");
    let (mut small, _) = Conn::connect(&Connect::new(V5, unique("c")).max_packet(64));
    small.subscribe(&topic, 0);
    // Two bytes of header, topic with its length, and the property length.
    let fits = 64 - 2 - 2 - topic.len() - 1;
    let mut publisher = Conn::client(V5);
    for size in [fits, fits + 1, fits, fits + 1] {
        publisher.publish(&topic, "x".repeat(size), 0);
    }
    publisher.publish(&topic, "marker", 0);
    for _ in 0..2 {
        assert_eq!(small.expect(&topic, "x".repeat(fits)).size, 64);
    }
    small.expect(&topic, "marker");
}

/// [MQTT-3.4.2-2] [MQTT-3.4.2-3] [MQTT-3.5.2-2] [MQTT-3.5.2-3] [MQTT-3.6.2-2]
/// [MQTT-3.6.2-3] [MQTT-3.7.2-2] [MQTT-3.7.2-3] Acknowledgements fit the
/// smallest packet size that can carry them, with whatever they explain.
#[test]
fn acknowledgements_fit_the_maximum_packet_size() {
    // CONNACK itself needs the most room.
    let (mut conn, _) = Conn::connect(&Connect::new(V5, unique("c")).max_packet(20));
    conn.send(Publish::new(V5, "nobody/listens", "p").qos(1, 1).encode());
    conn.ack(first::PUBACK, 1);
    conn.send(Publish::new(V5, "nobody/listens", "p").qos(2, 1).encode());
    conn.ack(first::PUBREC, 1);
    conn.send(ack(first::PUBREL, 1));
    conn.ack(first::PUBCOMP, 1);
    conn.send(ack(first::PUBREL, 99));
    conn.ack(first::PUBCOMP, 99);
    conn.send(ack(first::PUBREC, 99));
    conn.ack(first::PUBREL, 99);
}

/// [3.1.1 MQTT-4.3.2-1] Before 5.0 there is no Receive Maximum: a subscriber
/// that does not acknowledge gets more than a handful of messages.
#[test]
fn v311_subscribers_get_messages_ahead_of_their_acknowledgements() {
    let (mut subscriber, mut publisher, topic) = pair(V311);
    for number in 0..15 {
        publisher.publish(&topic, number.to_string(), 1);
    }
    for number in 0..15 {
        subscriber.expect(&topic, number.to_string());
    }
}

/// After kill -9, too, no more than the Receive Maximum of the new connection are sent: what was
/// under way in its order, with the identifiers that it had, and then what waited.
#[test]
fn what_was_under_way_at_a_kill_fills_the_window_first() {
    for maximum in [3, 2] {
        let data = tempfile::tempdir().unwrap();
        let config = format!("[server]\ndata = {:?}\n", data.path());
        let Some(broker) = Broker::with_config(&config) else {
            return;
        };
        let connect = |maximum| {
            let maximum = Props::new().two(id::RECEIVE_MAXIMUM, maximum);
            let connect = Connect::new(V5, "lasting").props(maximum);
            connect.lasting(300).resume()
        };
        let (mut conn, _) = Conn::connect_to(&broker, &connect(3));
        conn.subscribe("t", 2);
        let (mut publisher, _) = Conn::connect_to(&broker, &Connect::new(V5, "publisher"));
        for (count, qos) in [1, 2, 1, 2, 1, 1].into_iter().enumerate() {
            publisher.publish("t", count.to_string(), qos);
        }
        let before = [0, 1, 2].map(|count| conn.expect("t", count.to_string()));
        conn.send(ack(first::PUBREC, before[1].id));
        conn.ack(first::PUBREL, before[1].id);
        // It counts until PUBCOMP.
        conn.ping();
        // SIGKILL.
        drop(broker);
        let broker = Broker::with_config(&config).unwrap();
        let (mut conn, connack) = Conn::connect_to(&broker, &connect(maximum));
        assert!(connack.session_present);
        let again = |conn: &mut Conn, count: usize| {
            let message = conn.expect("t", count.to_string());
            let (id, dup) = (message.id, message.dup);
            assert_eq!((id, dup), (before[count].id, true), "{count}");
        };
        // Acknowledgements do not wait behind messages.
        conn.ack(first::PUBREL, before[1].id);
        again(&mut conn, 0);
        if maximum == 2 {
            conn.ping();
            conn.send(ack(first::PUBACK, before[0].id));
        }
        again(&mut conn, 2);
        conn.ping();
        let done = match maximum {
            2 => first::PUBCOMP,
            _ => first::PUBACK,
        };
        let place = usize::from(maximum == 2);
        conn.send(ack(done, before[place].id));
        let next = conn.expect("t", "3");
        assert!(!next.dup && before.iter().all(|before| before.id != next.id));
        conn.ping();
        conn.send(ack(first::PUBREC, next.id));
        conn.ack(first::PUBREL, next.id);
        conn.ping();
        conn.send(ack(first::PUBCOMP, next.id));
        let next = conn.expect("t", "4");
        conn.ping();
        conn.acknowledge(&next);
        conn.expect("t", "5");
        conn.ping();
    }
}
