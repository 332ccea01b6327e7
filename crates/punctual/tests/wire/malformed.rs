//! Packets that cannot be parsed, in every way that the fixed header and the
//! common fields allow (sections 1.5, 2.1, 2.2 and 4.13). The chapters have
//! the rest. After each the broker lives and a bystander is served.

use crate::build::{
    Bytes, Connect, Level, Props, Publish, V5, V311, ack, ack_with, disconnect, first, id, pingreq,
    subscribe, unsubscribe, with_reason,
};
use crate::conn::{Conn, unique};
use crate::fixture::{Bystander, EITHER, MALFORMED, PROTOCOL, each_is_an_error};
use crate::parse::Packet;

/// Packets that are right as they stand, by their name.
fn good(level: Level) -> Vec<(&'static str, Vec<u8>)> {
    let none = Props::new();
    vec![
        ("PUBLISH", Publish::new(level, "t", "p").qos(1, 7).encode()),
        ("PUBACK", ack(first::PUBACK, 7)),
        ("PUBREC", ack(first::PUBREC, 7)),
        ("PUBREL", ack(first::PUBREL, 7)),
        ("PUBCOMP", ack(first::PUBCOMP, 7)),
        ("SUBSCRIBE", subscribe(level, 7, &none, &[("t", 0)])),
        ("UNSUBSCRIBE", unsubscribe(level, 7, &none, &["t"])),
        ("PINGREQ", pingreq()),
        ("DISCONNECT", disconnect()),
    ]
}

/// [MQTT-2.1.3-1] [3.1.1 MQTT-2.2.2-1] [3.1.1 MQTT-2.2.2-2] [MQTT-3.6.1-1]
/// [3.1.1 MQTT-3.6.1-1] [MQTT-3.8.1-1] [3.1.1 MQTT-3.8.1-1] [MQTT-3.10.1-1]
/// [3.1.1 MQTT-3.10.1-1] [MQTT-3.14.1-1] [3.1.1 MQTT-3.14.1-1]
/// [MQTT-3.15.1-1] [MQTT-4.13.1-1] Any other value of the reserved flags of
/// the fixed header closes the connection.
#[test]
fn wrong_fixed_header_flags_close() {
    for level in [V311, V5] {
        let mut packets = good(level);
        packets.retain(|(name, _)| *name != "PUBLISH");
        if level == V5 {
            packets.push(("AUTH", Bytes::new().packet(first::AUTH)));
        }
        let mut cases = Vec::new();
        for (name, bytes) in packets {
            for flags in (0..16).filter(|flags| *flags != bytes[0] & 0x0F) {
                let mut bytes = bytes.clone();
                bytes[0] = bytes[0] & 0xF0 | flags;
                cases.push((name, bytes));
            }
        }
        each_is_an_error(level, MALFORMED, &cases);
    }
}

/// [MQTT-2.1.3-1] [MQTT-4.13.1-1] [3.1.1 MQTT-4.8.0-1] Packet types that a
/// client never sends, and those that are reserved, close the connection.
#[test]
fn packets_that_clients_do_not_send_close() {
    for level in [V311, V5] {
        let mut cases = vec![
            ("type 0", Bytes::new().packet(0x00)),
            ("CONNACK", Bytes::new().u16(0).packet(first::CONNACK)),
            ("SUBACK", Bytes::new().u16(7).u8(0).packet(first::SUBACK)),
            ("UNSUBACK", Bytes::new().u16(7).packet(first::UNSUBACK)),
            ("PINGRESP", Bytes::new().packet(first::PINGRESP)),
        ];
        if level == V311 {
            cases.push(("type 15", Bytes::new().packet(0xF0)));
        }
        each_is_an_error(level, EITHER, &cases);
    }
}

/// [MQTT-1.5.5-1] [MQTT-4.13.1-1] [3.1.1 MQTT-4.8.0-1] A remaining length of
/// five bytes closes the connection before anything behind it is awaited.
#[test]
fn a_remaining_length_of_five_bytes_closes() {
    for level in [V311, V5] {
        let cases = [
            (
                "five bytes",
                vec![first::PUBLISH, 0x80, 0x80, 0x80, 0x80, 0x01],
            ),
            (
                "all ones",
                vec![first::PUBLISH, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF],
            ),
        ];
        each_is_an_error(level, &[0x81, 0x95], &cases);
    }
}

/// [MQTT-1.5.5-1] A variable byte integer in more bytes than it needs is
/// malformed: as remaining length, property length and subscription
/// identifier.
#[test]
fn variable_byte_integers_are_in_the_fewest_bytes() {
    let publish = Publish::new(V5, "t", "p").encode();
    let long_length = Bytes::new()
        .raw([first::PUBLISH, publish[1] | 0x80, 0x00])
        .raw(&publish[2..]);
    let long_props = Bytes::new().field("t").raw([0x80, 0x00]).raw("p");
    let long_id = Props::new().raw([id::SUBSCRIPTION_IDENTIFIER, 0x81, 0x00]);
    let cases = [
        ("remaining length", long_length.done()),
        ("property length", long_props.packet(first::PUBLISH)),
        (
            "subscription identifier",
            subscribe(V5, 1, &long_id, &[("t", 0)]),
        ),
    ];
    each_is_an_error(V5, MALFORMED, &cases);
}

/// [MQTT-4.13.1-1] [3.1.1 MQTT-4.8.0-1] Every packet cut short inside, and
/// every packet with a byte too many, closes the connection.
#[test]
fn truncated_and_padded_packets_close() {
    for level in [V311, V5] {
        let mut cases = Vec::new();
        for (name, bytes) in good(level) {
            let body = &bytes[2..];
            // A PUBLISH is whole at any length behind its header.
            let header = if name == "PUBLISH" {
                body.len() - 1
            } else {
                body.len()
            };
            for cut in 0..header {
                cases.push((name, Bytes::new().raw(&body[..cut]).packet(bytes[0])));
            }
            if level == V311 && name != "PUBLISH" {
                cases.push((name, Bytes::new().raw(body).u8(0).packet(bytes[0])));
            }
        }
        if level == V5 {
            cases.push(("PINGREQ", Bytes::new().u8(0).packet(first::PINGREQ)));
            let none = Props::new();
            let options_left = Bytes::new().raw(&subscribe(V5, 7, &none, &[("t", 0)])[2..]);
            cases.push(("SUBSCRIBE", options_left.u8(0).packet(first::SUBSCRIBE)));
            let beyond = Bytes::new().u16(7).u8(0).u8(9).packet(first::PUBACK);
            cases.push(("PUBACK", beyond));
            let behind = Bytes::new().u8(0).u8(0).u8(0).packet(first::DISCONNECT);
            cases.push(("DISCONNECT", behind));
        }
        // A SUBSCRIBE or UNSUBSCRIBE cut behind its header is empty: 0x82.
        each_is_an_error(level, EITHER, &cases);
    }
}

/// [MQTT-2.2.1-3] [3.1.1 MQTT-2.3.1-1] [3.1.1 MQTT-4.8.0-1] Packet identifier
/// zero closes the connection.
#[test]
fn packet_identifier_zero_closes() {
    for level in [V311, V5] {
        let none = Props::new();
        let cases = [
            (
                "PUBLISH QoS 1",
                Publish::new(level, "t", "p").qos(1, 0).encode(),
            ),
            (
                "PUBLISH QoS 2",
                Publish::new(level, "t", "p").qos(2, 0).encode(),
            ),
            ("SUBSCRIBE", subscribe(level, 0, &none, &[("t", 0)])),
            ("UNSUBSCRIBE", unsubscribe(level, 0, &none, &["t"])),
            ("PUBACK", ack(first::PUBACK, 0)),
            ("PUBREC", ack(first::PUBREC, 0)),
            ("PUBREL", ack(first::PUBREL, 0)),
            ("PUBCOMP", ack(first::PUBCOMP, 0)),
        ];
        each_is_an_error(level, EITHER, &cases);
    }
}

/// [MQTT-4.13.1-1] A reason code that its packet does not define is an error.
#[test]
fn undefined_reason_codes_close() {
    let mut cases = Vec::new();
    for first in [first::PUBACK, first::PUBREC, first::PUBREL, first::PUBCOMP] {
        cases.push(("ack with 0x01", ack_with(first, 7, 0x01)));
        cases.push(("ack with 0xFF", ack_with(first, 7, 0xFF)));
    }
    for code in [0x01, 0x03, 0x05, 0x7F, 0x92, 0xFF] {
        cases.push((
            "DISCONNECT",
            Bytes::new().u8(code).packet(first::DISCONNECT),
        ));
    }
    each_is_an_error(V5, EITHER, &cases);
}

/// [MQTT-4.13.1-1] A property in a packet that it does not belong to is
/// malformed; one that occurs twice where it may occur once is a protocol
/// error (section 2.2.2.2).
#[test]
fn foreign_and_repeated_properties_close() {
    let reason = |first, props: &Props| {
        let rest = with_reason(first, 0, props);
        Bytes::new().u16(7).raw(&rest[2..]).packet(first)
    };
    let foreign = Props::new().two(id::TOPIC_ALIAS, 1);
    let mut cases = vec![
        (
            "PUBLISH",
            Publish::new(V5, "t", "p")
                .props(Props::new().byte(id::MAXIMUM_QOS, 1))
                .encode(),
        ),
        ("SUBSCRIBE", subscribe(V5, 7, &foreign, &[("t", 0)])),
        ("UNSUBSCRIBE", unsubscribe(V5, 7, &foreign, &["t"])),
        ("DISCONNECT", with_reason(first::DISCONNECT, 0, &foreign)),
    ];
    let acks = [first::PUBACK, first::PUBREC, first::PUBREL, first::PUBCOMP];
    cases.extend(acks.map(|first| ("acknowledgement", reason(first, &foreign))));
    each_is_an_error(V5, MALFORMED, &cases);

    let twice = Props::new()
        .field(id::REASON_STRING, "a")
        .field(id::REASON_STRING, "b");
    let mut cases = vec![
        ("SUBSCRIBE", {
            let props = Props::new().var(id::SUBSCRIPTION_IDENTIFIER, 1);
            let props = props.var(id::SUBSCRIPTION_IDENTIFIER, 2);
            subscribe(V5, 7, &props, &[("t", 0)])
        }),
        ("DISCONNECT", with_reason(first::DISCONNECT, 0, &twice)),
    ];
    cases.extend(acks.map(|first| ("acknowledgement", reason(first, &twice))));
    each_is_an_error(V5, PROTOCOL, &cases);
}

/// [MQTT-2.2.2-1] A property length beyond the end of its packet is malformed.
#[test]
fn a_property_length_beyond_the_packet_closes() {
    let cases = [
        (
            "PUBLISH",
            Bytes::new()
                .field("t")
                .var(50)
                .raw("p")
                .packet(first::PUBLISH),
        ),
        (
            "SUBSCRIBE",
            Bytes::new()
                .u16(7)
                .var(50)
                .field("t")
                .u8(0)
                .packet(first::SUBSCRIBE),
        ),
        (
            "UNSUBSCRIBE",
            Bytes::new()
                .u16(7)
                .var(50)
                .field("t")
                .packet(first::UNSUBSCRIBE),
        ),
        (
            "PUBACK",
            Bytes::new().u16(7).u8(0).var(50).packet(first::PUBACK),
        ),
        (
            "DISCONNECT",
            Bytes::new().u8(0).var(50).packet(first::DISCONNECT),
        ),
    ];
    each_is_an_error(V5, MALFORMED, &cases);
}

/// [MQTT-4.13.1-1] [3.1.1 MQTT-4.8.0-1] A connection that ends in the middle
/// of a packet, at any byte, does not disturb others.
#[test]
fn a_connection_that_ends_within_a_packet_disturbs_nobody() {
    let mut bystander = Bystander::new();
    for level in [V311, V5] {
        let connect = Connect::new(level, unique("c")).user("name").encode();
        for cut in 0..connect.len() {
            Conn::open(level).send(&connect[..cut]);
        }
        for (_, bytes) in good(level) {
            for cut in 1..bytes.len() {
                Conn::client(level).send(&bytes[..cut]);
            }
        }
        bystander.check();
    }
}

/// [MQTT-4.2.0-1] [3.1.1 MQTT-7.1.1-1] The transport is a stream of bytes: it
/// makes no difference where it is split.
#[test]
fn packets_may_arrive_a_byte_at_a_time_or_many_at_once() {
    for level in [V311, V5] {
        let topic = unique("t");
        let mut bytes = Connect::new(level, unique("c")).encode();
        bytes.extend(subscribe(level, 1, &Props::new(), &[(&topic, 1)]));
        bytes.extend(Publish::new(level, &topic, "payload").qos(1, 2).encode());
        for size in [1, 2, 3, 7, bytes.len()] {
            let mut conn = Conn::open(level);
            for chunk in bytes.chunks(size) {
                conn.send(chunk);
            }
            assert_eq!(conn.connack().code, 0);
            conn.suback(1);
            let two = [conn.next(), conn.next()];
            let mut message = None;
            for packet in two {
                match packet {
                    Packet::Publish(publish) => message = Some(publish),
                    Packet::Ack(ack) => assert_eq!(ack.id, 2),
                    other => conn.fail("PUBLISH and PUBACK", &other),
                }
            }
            let message = message.expect("the message");
            assert_eq!(message.text(), "payload");
            conn.acknowledge(&message);
            conn.ping();
        }
    }
}
