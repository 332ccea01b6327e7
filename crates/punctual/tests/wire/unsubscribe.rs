//! UNSUBSCRIBE and UNSUBACK (sections 3.10 and 3.11).

use crate::build::{Connect, Props, V5, V31, V311, ack, first, unsubscribe};
use crate::conn::{Conn, unique};
use crate::fixture::{EITHER, each_is_an_error, pair};
use crate::utf8::ILL_FORMED;

/// [MQTT-3.10.4-4] [MQTT-3.10.4-5] [MQTT-3.10.4-6] [MQTT-2.2.1-6]
/// [MQTT-3.11.3-1] [MQTT-3.11.3-2] [3.1.1 MQTT-3.10.4-4]
/// [3.1.1 MQTT-3.10.4-5] [3.1.1 MQTT-3.10.4-6] [3.1.1 MQTT-2.3.1-7] One
/// UNSUBACK answers under the same identifier, with a code for each filter in
/// order (5.0), also when nothing was subscribed.
#[test]
fn unsuback_answers_each_filter_in_order() {
    for level in [V31, V311, V5] {
        let (mut conn, topic) = (Conn::client(level), unique("t"));
        conn.subscribe(&topic, 0);
        for (packet_id, filters, codes) in [
            (1, vec!["never", &topic, "never"], [0x11, 0x00, 0x11]),
            (0xFFFF, vec![&topic, &topic, "#"], [0x11, 0x11, 0x11]),
        ] {
            conn.send(unsubscribe(level, packet_id, &Props::new(), &filters));
            let answer = conn.unsuback(packet_id);
            if level == V5 {
                assert_eq!(answer.codes, codes);
            }
        }
        conn.ping();
    }
}

/// [MQTT-3.10.4-1] [MQTT-3.10.4-2] [3.1.1 MQTT-3.10.4-1]
/// [3.1.1 MQTT-3.10.4-2] Only the very same filter is deleted, and then nothing
/// more is delivered for it.
#[test]
fn only_the_same_filter_is_unsubscribed() {
    for level in [V311, V5] {
        let (name, mut publisher) = (unique("t"), Conn::client(level));
        let mut conn = Conn::client(level);
        let topic = format!("{name}/a");
        let (plus, hash) = (format!("{name}/+"), format!("{name}/#"));
        conn.subscribe(&plus, 0);
        let near = [
            &hash,
            &topic,
            &name,
            &plus.to_uppercase(),
            &format!("{plus}/"),
        ];
        conn.send(unsubscribe(level, 1, &Props::new(), &near));
        conn.unsuback(1);
        publisher.publish(&topic, "still", 0);
        conn.expect(&topic, "still");
        conn.subscribe(&hash, 0);
        conn.send(unsubscribe(level, 2, &Props::new(), &[&plus]));
        conn.unsuback(2);
        publisher.publish(&topic, "by the other", 0);
        conn.expect(&topic, "by the other");
        conn.send(unsubscribe(level, 3, &Props::new(), &[&hash]));
        conn.unsuback(3);
        publisher.publish(&topic, "gone", 0);
        let marker = unique("m");
        conn.subscribe(&marker, 0);
        publisher.publish(&marker, "marker", 0);
        conn.expect(&marker, "marker");
    }
}

/// [MQTT-3.10.4-3] [3.1.1 MQTT-3.10.4-3] What was begun is finished: messages
/// in flight keep their exchange after UNSUBSCRIBE, across a reconnect.
#[test]
fn messages_in_flight_are_completed() {
    for level in [V311, V5] {
        let topic = unique("t");
        let connect = Connect::new(level, unique("c")).lasting(300);
        let (mut conn, _) = Conn::connect(&connect);
        conn.subscribe(&topic, 2);
        let mut publisher = Conn::client(level);
        publisher.publish(&topic, "one", 1);
        publisher.publish(&topic, "two", 2);
        let one = conn.expect(&topic, "one");
        let two = conn.expect(&topic, "two");
        conn.send(unsubscribe(level, 1, &Props::new(), &[&topic]));
        conn.unsuback(1);
        drop(conn);
        let (mut conn, _) = Conn::connect(&connect);
        assert_eq!(conn.expect(&topic, "one").id, one.id);
        assert_eq!(conn.expect(&topic, "two").id, two.id);
        conn.send(ack(first::PUBACK, one.id));
        conn.send(ack(first::PUBREC, two.id));
        conn.ack(first::PUBREL, two.id);
        conn.send(ack(first::PUBCOMP, two.id));
        conn.ping();
    }
}

/// [MQTT-3.10.3-1] [3.1.1 MQTT-3.10.3-1] Filters have to be well-formed UTF-8.
#[test]
fn ill_formed_filters_close() {
    for level in [V311, V5] {
        let cases: Vec<_> = ILL_FORMED
            .iter()
            .map(|bad| ("filter", unsubscribe(level, 1, &Props::new(), &[bad])))
            .collect();
        each_is_an_error(level, &[0x81, 0x8F], &cases);
    }
}

/// [MQTT-3.10.3-2] [3.1.1 MQTT-3.10.3-2] An UNSUBSCRIBE without a filter is a
/// protocol error.
#[test]
fn an_empty_unsubscribe_closes() {
    for level in [V311, V5] {
        let empty: [&str; 0] = [];
        let cases = [("empty", unsubscribe(level, 1, &Props::new(), &empty))];
        each_is_an_error(level, EITHER, &cases);
    }
}

/// [MQTT-3.11.2-1] [MQTT-3.11.2-2] UNSUBACK fits the client's maximum packet
/// size.
#[test]
fn unsuback_fits_the_maximum_packet_size() {
    let (mut conn, _) = Conn::connect(&Connect::new(V5, unique("c")).max_packet(20));
    conn.send(unsubscribe(V5, 1, &Props::new(), &["never subscribed"]));
    conn.unsuback(1);
}

/// [MQTT-3.10.4-2] [3.1.1 MQTT-3.10.4-2] Unsubscribing one client leaves the
/// others alone.
#[test]
fn others_keep_their_subscription() {
    for level in [V311, V5] {
        let (mut stays, mut publisher, topic) = pair(level);
        let mut goes = Conn::client(level);
        goes.subscribe(&topic, 0);
        goes.send(unsubscribe(level, 1, &Props::new(), &[&topic]));
        goes.unsuback(1);
        publisher.publish(&topic, "p", 0);
        stays.expect(&topic, "p");
        goes.ping();
    }
}
