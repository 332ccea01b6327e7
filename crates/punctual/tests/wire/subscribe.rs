//! SUBSCRIBE and SUBACK (sections 3.8 and 3.9). Retain handling is with the
//! retained messages, `$share` with the shared subscriptions.

use crate::build::{Bytes, Connect, Props, Publish, V5, V31, V311, first, id, subscribe};
use crate::conn::{Conn, unique};
use crate::fixture::{EITHER, MALFORMED, PROTOCOL, each_is_an_error, pair, subscribe_with, until};
use crate::parse::Packet;
use crate::utf8::ILL_FORMED;

/// [MQTT-3.8.4-1] [3.1.1 MQTT-3.8.4-1] [MQTT-3.8.4-2] [3.1.1 MQTT-3.8.4-2]
/// [MQTT-2.2.1-6] [3.1.1 MQTT-2.3.1-7] [MQTT-3.8.4-5] [3.1.1 MQTT-3.8.4-4]
/// [MQTT-3.8.4-6] [MQTT-3.8.4-7] [3.1.1 MQTT-3.8.4-5] [MQTT-3.9.3-1]
/// [3.1.1 MQTT-3.9.3-1] [MQTT-3.9.3-2] [3.1.1 MQTT-3.9.3-2] [MQTT-3.2.2-10] One
/// SUBACK answers one SUBSCRIBE, under its identifier, with the QoS granted for
/// each filter in order.
#[test]
fn suback_answers_each_filter_in_order() {
    for level in [V31, V311, V5] {
        let mut conn = Conn::client(level);
        for packet_id in [1, 0x0102, 0xFFFF] {
            let name = unique("t");
            let filters = [
                (format!("{name}/a"), 2),
                (format!("{name}/+"), 0),
                (name, 1),
            ];
            conn.send(subscribe(level, packet_id, &Props::new(), &filters));
            assert_eq!(conn.suback(packet_id).codes, [2, 0, 1]);
        }
        conn.ping();
    }
}

/// [MQTT-3.8.4-5] [3.1.1 MQTT-3.8.4-4] [3.1.1 MQTT-3.8.3-2] All filters of one
/// packet take effect, wildcards included.
#[test]
fn all_filters_of_a_packet_take_effect() {
    for level in [V311, V5] {
        let (name, mut publisher) = (unique("t"), Conn::client(level));
        let mut conn = Conn::client(level);
        let filters = [
            (format!("{name}/a"), 0),
            (format!("{name}/b/#"), 0),
            (format!("{name}/+/c"), 0),
        ];
        conn.send(subscribe(level, 1, &Props::new(), &filters));
        conn.suback(1);
        for topic in ["a", "b", "b/x/y", "z/c"] {
            let topic = format!("{name}/{topic}");
            publisher.publish(&topic, "p", 0);
            conn.expect(&topic, "p");
        }
    }
}

/// [MQTT-3.8.4-8] [3.1.1 MQTT-3.8.4-6] A message arrives at the lower of the
/// QoS it was published with and the QoS granted.
#[test]
fn delivery_has_the_lower_qos() {
    for level in [V311, V5] {
        let mut publisher = Conn::client(level);
        for granted in [0, 1, 2] {
            let (topic, mut subscriber) = (unique("t"), Conn::client(level));
            assert_eq!(subscriber.subscribe(&topic, granted), granted);
            for qos in [0, 1, 2] {
                publisher.publish(&topic, "p", qos);
                let message = subscriber.expect(&topic, "p");
                assert_eq!(
                    message.qos,
                    qos.min(granted),
                    "{qos} published, {granted} granted"
                );
                subscriber.acknowledge(&message);
            }
        }
    }
}

/// [MQTT-3.8.4-3] [3.1.1 MQTT-3.8.4-3] The same filter again replaces the
/// subscription: new QoS, one copy.
#[test]
fn the_same_filter_replaces_the_subscription() {
    for level in [V311, V5] {
        let (mut subscriber, mut publisher, topic) = pair(level);
        for granted in [0, 2, 1] {
            assert_eq!(subscriber.subscribe(&topic, granted), granted);
            publisher.publish(&topic, "p", 2);
            let message = subscriber.expect(&topic, "p");
            assert_eq!(message.qos, granted);
            subscriber.acknowledge(&message);
            subscriber.ping();
        }
    }
}

/// [MQTT-3.8.4-3] Identifier and options are replaced with the rest.
#[test]
fn replacing_a_subscription_replaces_its_identifier() {
    let (topic, mut publisher) = (unique("t"), Conn::client(V5));
    let mut subscriber = Conn::client(V5);
    for (props, expected) in [
        (Props::new().var(id::SUBSCRIPTION_IDENTIFIER, 5), vec![5]),
        (
            Props::new().var(id::SUBSCRIPTION_IDENTIFIER, 268_435_455),
            vec![268_435_455],
        ),
        (Props::new(), vec![]),
    ] {
        subscribe_with(&mut subscriber, &props, &[(&topic, 0)]);
        publisher.publish(&topic, "p", 0);
        let message = subscriber.expect(&topic, "p");
        assert_eq!(message.props.numbers(id::SUBSCRIPTION_IDENTIFIER), expected);
    }
}

/// [MQTT-3.8.4-4] [3.1.1 MQTT-3.8.4-3] No message is lost while a subscription
/// is replaced again and again.
#[test]
fn replacing_a_subscription_loses_nothing() {
    for level in [V311, V5] {
        let (mut subscriber, mut publisher, topic) = pair(level);
        for count in 0..50u16 {
            publisher.publish(&topic, count.to_string(), 1);
            subscriber.send(subscribe(level, count + 1, &Props::new(), &[(&topic, 1)]));
        }
        let (mut messages, mut subacks) = (0u16, 0u16);
        while messages < 50 || subacks < 50 {
            match subscriber.next() {
                Packet::Publish(message) => {
                    assert_eq!(message.text(), messages.to_string());
                    subscriber.acknowledge(&message);
                    messages += 1;
                }
                Packet::SubAck(_) => subacks += 1,
                other => subscriber.fail("PUBLISH or SUBACK", &other),
            }
        }
    }
}

/// [MQTT-3.3.4-2] [3.1.1 MQTT-3.3.5-1] [MQTT-3.3.4-3] [MQTT-3.3.4-4]
/// [MQTT-3.3.4-5] Where subscriptions overlap, the message arrives at their
/// highest QoS, with the identifiers of all that match (in one copy, or each
/// copy with its own).
#[test]
fn overlapping_subscriptions_deliver_at_the_highest_qos() {
    for level in [V311, V5] {
        let (name, mut publisher) = (unique("t"), Conn::client(level));
        let mut subscriber = Conn::client(level);
        let filters = [
            format!("{name}/#"),
            format!("{name}/+"),
            format!("{name}/a"),
        ];
        for (number, (filter, qos)) in filters.iter().zip([0, 2, 1]).enumerate() {
            // The middle one has no identifier.
            let props = match number {
                1 => Props::new(),
                _ => Props::new().var(id::SUBSCRIPTION_IDENTIFIER, number as u32 + 1),
            };
            subscribe_with(&mut subscriber, &props, &[(filter, qos)]);
        }
        let topic = format!("{name}/a");
        publisher.publish(&topic, "p", 2);
        publisher.publish(&topic, "marker", 2);
        let (mut highest, mut ids) = (0, Vec::new());
        loop {
            let message = subscriber.message();
            subscriber.acknowledge(&message);
            if message.text() == "marker" {
                break;
            }
            highest = highest.max(message.qos);
            ids.extend(message.props.numbers(id::SUBSCRIPTION_IDENTIFIER));
        }
        assert_eq!(highest, 2);
        ids.sort_unstable();
        assert_eq!(ids, if level == V5 { vec![1, 3] } else { vec![] });
    }
}

/// [MQTT-3.8.3-3] With No Local a client does not get its own messages, but
/// those of others, and another client with the same filter gets its own.
#[test]
fn no_local_withholds_only_the_clients_own() {
    let topic = unique("t");
    let mut silent = Conn::client(V5);
    let mut echo = Conn::client(V5);
    silent.subscribe(&topic, 0x04 | 1);
    echo.subscribe(&topic, 0);
    silent.publish(&topic, "own", 1);
    silent.ping();
    echo.expect(&topic, "own");
    echo.publish(&topic, "from the other", 0);
    silent.expect(&topic, "from the other");
    echo.expect(&topic, "from the other");
}

/// [MQTT-3.8.3-3] Without No Local a client gets what it publishes itself.
#[test]
fn without_no_local_a_client_hears_itself() {
    for level in [V311, V5] {
        let (topic, mut conn) = (unique("t"), Conn::client(level));
        conn.subscribe(&topic, 0);
        conn.publish(&topic, "own", 0);
        conn.expect(&topic, "own");
    }
}

/// [MQTT-3.3.1-12] [MQTT-3.3.1-13] [3.1.1 MQTT-3.3.1-9] Retain As Published
/// decides whether the RETAIN flag of a forwarded message is kept or cleared.
#[test]
fn retain_as_published_decides_the_flag() {
    let topic = unique("t");
    let mut keeps = Conn::client(V5);
    let mut clears = Conn::client(V5);
    let mut old = Conn::client(V311);
    keeps.subscribe(&topic, 0x08);
    clears.subscribe(&topic, 0);
    old.subscribe(&topic, 0);
    let mut publisher = Conn::client(V5);
    for retain in [true, false] {
        let publish = Publish::new(V5, &topic, "p");
        publisher.send_publish(if retain { publish.retain() } else { publish }, 1);
        assert_eq!(keeps.expect(&topic, "p").retain, retain);
        assert!(!clears.expect(&topic, "p").retain);
        assert!(!old.expect(&topic, "p").retain);
    }
    publisher.retain(&topic, "", 1);
}

/// [MQTT-3.8.3-2] [3.1.1 MQTT-3.8.3-3] [MQTT-3.8.3-5] [3.1.1 MQTT-3.8.3-4] A
/// SUBSCRIBE without filters, with QoS 3, or with reserved option bits closes
/// the connection.
#[test]
fn bad_subscription_options_close() {
    let none = Props::new();
    for level in [V311, V5] {
        let empty: [(&str, u8); 0] = [];
        let cases = [("empty", subscribe(level, 1, &none, &empty))];
        each_is_an_error(level, EITHER, &cases);
        let options: &[u8] = match level {
            V5 => &[0x03, 0x40, 0x80, 0xC0, 0x30, 0x31],
            _ => &[0x03, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80],
        };
        let cases: Vec<_> = options
            .iter()
            .map(|options| ("options", subscribe(level, 1, &none, &[("t", *options)])))
            .collect();
        each_is_an_error(level, EITHER, &cases);
    }
}

/// [MQTT-3.8.3-1] [3.1.1 MQTT-3.8.3-1] [MQTT-1.5.4-1] [MQTT-4.7.3-2]
/// [3.1.1 MQTT-4.7.3-2] Filters have to be well-formed UTF-8 without U+0000.
#[test]
fn ill_formed_filters_close() {
    for level in [V311, V5] {
        let cases: Vec<_> = ILL_FORMED
            .iter()
            .map(|bad| ("filter", subscribe(level, 1, &Props::new(), &[(bad, 0)])))
            .collect();
        each_is_an_error(level, &[0x81, 0x8F], &cases);
    }
}

/// [MQTT-4.7.1-1] [MQTT-4.7.1-2] [MQTT-4.7.3-1] [3.1.1 MQTT-4.7.1-2]
/// [3.1.1 MQTT-4.7.1-3] [3.1.1 MQTT-4.7.3-1] A wildcard within a level, `#`
/// before the end, or an empty filter is refused: by closing the connection,
/// or (5.0) by that filter's code in SUBACK.
#[test]
fn misplaced_wildcards_are_refused() {
    let filters = [
        "a#", "#a", "a/#/b", "##", "#/a", "a+", "+a", "a/+b/c", "a/b+", "++", "a/b#", "",
    ];
    for level in [V311, V5] {
        for filter in filters {
            let mut conn = Conn::client(level).named(filter);
            conn.send(subscribe(level, 1, &Props::new(), &[(filter, 0)]));
            refused_filter(&mut conn);
        }
    }
}

/// A SUBACK with 0x8F (5.0) or 0x80, or the reaction to an error.
#[track_caller]
pub(crate) fn refused_filter(conn: &mut Conn) {
    match conn.next_or_end() {
        None if conn.level() != V5 => {}
        Some(Packet::SubAck(suback)) => {
            let refused = suback.codes.iter().all(|code| [0x80, 0x8F].contains(code));
            if !refused {
                conn.fail("the filter refused", &suback);
            }
            conn.ping();
        }
        Some(Packet::Disconnect(reason)) if [0x81, 0x82, 0x8F].contains(&reason.code) => {
            conn.closed();
        }
        other => conn.fail("SUBACK or DISCONNECT that refuses the filter", &other),
    }
}

/// [MQTT-3.8.3-1] Subscription identifier zero, and one too large to encode,
/// are errors (section 3.8.2.1.2).
#[test]
fn impossible_subscription_identifiers_close() {
    let zero = Props::new().var(id::SUBSCRIPTION_IDENTIFIER, 0);
    let cases = [("zero", subscribe(V5, 1, &zero, &[("t", 0)]))];
    each_is_an_error(V5, PROTOCOL, &cases);
    let large = Props::new().raw([id::SUBSCRIPTION_IDENTIFIER, 0xFF, 0xFF, 0xFF, 0xFF, 0x01]);
    let cases = [("five bytes", subscribe(V5, 1, &large, &[("t", 0)]))];
    each_is_an_error(V5, MALFORMED, &cases);
}

/// [MQTT-3.9.2-1] [MQTT-3.9.2-2] [MQTT-3.1.2-24] SUBACK fits the client's
/// maximum packet size: with a reason string or without.
#[test]
fn suback_fits_the_maximum_packet_size() {
    let (mut conn, _) = Conn::connect(&Connect::new(V5, unique("c")).max_packet(20));
    conn.send(subscribe(
        V5,
        1,
        &Props::new(),
        &[("$share/g/a/b", 0), ("a", 1)],
    ));
    assert_eq!(conn.suback(1).codes.len(), 2);
}

/// [MQTT-3.8.4-1] A filter of the greatest length, and a hundred filters in one
/// packet, are answered.
#[test]
fn large_subscribes_are_answered() {
    for level in [V311, V5] {
        let mut conn = Conn::client(level);
        let filters: Vec<(String, u8)> = (0..100)
            .map(|number| (format!("many/{number}"), 0))
            .collect();
        conn.send(subscribe(level, 1, &Props::new(), &filters));
        assert_eq!(conn.suback(1).codes.len(), 100);
        let long = "x".repeat(65_535);
        conn.send(subscribe(level, 2, &Props::new(), &[(&long, 0)]));
        assert_eq!(conn.suback(2).codes.len(), 1);
        conn.ping();
    }
}

/// A SUBSCRIBE whose last filter lacks its options is no SUBSCRIBE: the filters
/// before it do not take effect.
#[test]
fn a_half_subscribe_has_no_effect() {
    for level in [V311, V5] {
        let (mut watcher, mut publisher, topic) = pair(level);
        let connect = Connect::new(level, unique("c")).lasting(300);
        let (mut conn, _) = Conn::connect(&connect);
        let whole = subscribe(level, 1, &Props::new(), &[(&topic, 0)]);
        let body = Bytes::new().raw(&whole[2..]).field("b");
        conn.send(body.packet(first::SUBSCRIBE));
        conn.error(MALFORMED);
        let (mut conn, _) = Conn::connect(&connect);
        publisher.publish(&topic, "marker", 0);
        watcher.expect(&topic, "marker");
        let own = unique("t");
        conn.subscribe(&own, 0);
        publisher.publish(&own, "end", 0);
        assert!(until(&mut conn, "end").is_empty());
    }
}
