//! CONNECT: protocol, flags, payload and properties (sections 3.1 and 3.1.4).

use crate::build::{
    Bytes, Connect, Level, Props, Publish, V5, V31, V311, Will, ack, disconnect, first, id,
    pingreq, subscribe, unsubscribe,
};
use crate::conn::{Conn, unique};
use crate::fixture::{EITHER, MALFORMED, PROTOCOL, each_connect_is_refused, pair};
use crate::utf8::ILL_FORMED;

fn connect(level: Level) -> Connect {
    Connect::new(level, unique("c"))
}

/// [MQTT-3.1.0-1] [3.1.1 MQTT-3.1.0-1] [MQTT-3.14.0-1] [MQTT-3.2.0-1]
/// [3.1.1 MQTT-3.2.0-1] A packet other than CONNECT as the first one closes the
/// connection, and the server says nothing: not even DISCONNECT, which needs a
/// CONNACK before it.
#[test]
fn a_first_packet_other_than_connect_closes() {
    for level in [V311, V5] {
        let none = Props::new();
        let first_packets = [
            ("PUBLISH", Publish::new(level, "t", "p").encode()),
            ("CONNACK", Bytes::new().u16(0).packet(first::CONNACK)),
            ("PUBACK", ack(first::PUBACK, 1)),
            ("PUBREC", ack(first::PUBREC, 1)),
            ("PUBREL", ack(first::PUBREL, 1)),
            ("PUBCOMP", ack(first::PUBCOMP, 1)),
            ("SUBSCRIBE", subscribe(level, 1, &none, &[("t", 0)])),
            ("UNSUBSCRIBE", unsubscribe(level, 1, &none, &["t"])),
            ("PINGREQ", pingreq()),
            ("DISCONNECT", disconnect()),
            ("AUTH", Bytes::new().packet(first::AUTH)),
        ];
        for (name, bytes) in first_packets {
            let mut conn = Conn::open(level).named(name);
            conn.send(bytes);
            conn.closed();
        }
    }
}

/// [MQTT-3.1.0-2] [3.1.1 MQTT-3.1.0-2] [MQTT-3.2.0-2] A second CONNECT is a
/// protocol error and closes the connection; it gets no second CONNACK.
#[test]
fn a_second_connect_closes() {
    for level in [V311, V5] {
        let connect = connect(level);
        let (mut conn, _) = Conn::connect(&connect);
        conn.send(connect.encode());
        conn.error(PROTOCOL);
    }
}

/// [MQTT-3.1.2-1] [3.1.1 MQTT-3.1.2-1] A protocol name that is not MQTT's ends
/// the connection.
#[test]
fn a_wrong_protocol_name_is_rejected() {
    for level in [V311, V5] {
        for name in ["", "MQTX", "mqtt", "MQTTT", "MQT", "HTTP", "MQIsdp"] {
            let mut conn = Conn::open(level).named(name);
            conn.send(connect(level).protocol(name, level as u8).encode());
            conn.rejected();
        }
    }
}

/// [MQTT-3.1.2-2] [3.1.1 MQTT-3.1.2-2] [3.1.1 MQTT-3.2.2-5] [MQTT-3.2.2-7] A
/// level that the server does not speak is answered with Unsupported Protocol
/// Version, as 5.0 (0x84) or 3.1.1 (0x01) write it, and the end.
#[test]
fn an_unsupported_level_is_refused_by_name() {
    for level_byte in [0, 1, 2, 3, 6, 7, 127, 0x83, 0x85, 255] {
        let mut conn = Conn::open(V5).named(&format!("level {level_byte}"));
        conn.send(connect(V311).protocol("MQTT", level_byte).encode());
        let answer = conn.rest();
        let refusal = matches!(
            answer[..],
            [first::CONNACK, 2, 0, 0x01] | [first::CONNACK, _, 0, 0x84, ..]
        );
        if !refusal {
            conn.fail("CONNACK with 0x01 (3.1.1) or 0x84 (5.0)", &answer);
        }
    }
}

/// A bridge before MQTT 5 says so in the protocol level (0x83, 0x84). What it publishes does not
/// come back to it, and it sees whether a message was published as retained.
#[test]
fn the_bridge_bit_of_the_level_is_understood() {
    for (level, name) in [(V31, "MQIsdp"), (V311, "MQTT")] {
        let topic = unique("t");
        let asks = connect(level).protocol(name, level as u8 | 0x80);
        let (mut bridge, _) = Conn::connect(&asks);
        let (mut plain, mut publisher) = (Conn::client(level), Conn::client(V5));
        for conn in [&mut bridge, &mut plain] {
            assert_eq!(conn.subscribe(&topic, 1), 1);
        }
        bridge.publish(&topic, "own", 1);
        let own = plain.expect(&topic, "own");
        plain.acknowledge(&own);
        publisher.retain(&topic, "kept", 1);
        assert!(bridge.expect(&topic, "kept").retain);
        assert!(!plain.expect(&topic, "kept").retain);
        publisher.retain(&topic, "", 1);
    }
}

/// [MQTT-3.1.2-3] [3.1.1 MQTT-3.1.2-3] [3.1.1 MQTT-3.1.4-1] The reserved
/// connect flag has to be zero.
#[test]
fn the_reserved_flag_is_refused() {
    for level in [V311, V5] {
        let cases = [("reserved", connect(level).flags(0x03).encode())];
        each_connect_is_refused(level, MALFORMED, &cases);
    }
}

/// [MQTT-3.1.2-11] [MQTT-3.1.2-12] [MQTT-3.1.2-13] [3.1.1 MQTT-3.1.2-11]
/// [3.1.1 MQTT-3.1.2-13] [3.1.1 MQTT-3.1.2-14] [3.1.1 MQTT-3.1.2-15] Will QoS
/// and Will Retain without a will, and Will QoS 3, are refused.
#[test]
fn contradictory_will_flags_are_refused() {
    for level in [V311, V5] {
        let will = Will::new("w", "p").qos(3);
        let cases = [
            ("will QoS 1, no will", connect(level).flags(0x0A).encode()),
            ("will QoS 2, no will", connect(level).flags(0x12).encode()),
            ("will QoS 3, no will", connect(level).flags(0x1A).encode()),
            ("will retain, no will", connect(level).flags(0x22).encode()),
            ("will QoS 3", connect(level).will(will).encode()),
        ];
        each_connect_is_refused(level, MALFORMED, &cases);
    }
}

/// [MQTT-3.1.2-9] [3.1.1 MQTT-3.1.2-9] [3.1.1 MQTT-3.1.2-11] The will's fields
/// are in the payload exactly when the flag says so.
#[test]
fn will_fields_have_to_agree_with_the_flag() {
    for level in [V311, V5] {
        let fields = Bytes::new().field("w").field("p");
        let no_payload = Bytes::new().raw(if level == V5 { &[0][..] } else { &[] });
        let cases = [
            ("flag without fields", connect(level).flags(0x06).encode()),
            (
                "flag without payload",
                connect(level)
                    .flags(0x06)
                    .tail(no_payload.field("w"))
                    .encode(),
            ),
            ("fields without flag", connect(level).tail(fields).encode()),
        ];
        each_connect_is_refused(level, MALFORMED, &cases);
    }
}

/// [MQTT-3.1.2-16] [MQTT-3.1.2-17] [MQTT-3.1.2-18] [MQTT-3.1.2-19]
/// [3.1.1 MQTT-3.1.2-18] [3.1.1 MQTT-3.1.2-19] [3.1.1 MQTT-3.1.2-20]
/// [3.1.1 MQTT-3.1.2-21] User name and password are in the payload exactly
/// when their flags say so.
#[test]
fn credentials_have_to_agree_with_the_flags() {
    for level in [V311, V5] {
        let name = Bytes::new().field("name");
        let both = Bytes::new().field("name").field("secret");
        let cases = [
            ("name flag, no name", connect(level).flags(0x82).encode()),
            ("name, no flag", connect(level).tail(&name).encode()),
            (
                "both flags, no password",
                connect(level).flags(0xC2).tail(&name).encode(),
            ),
            (
                "password, no flag",
                connect(level).flags(0x82).tail(&both).encode(),
            ),
            ("both, no flags", connect(level).tail(&both).encode()),
        ];
        each_connect_is_refused(level, MALFORMED, &cases);
    }
}

/// [3.1.1 MQTT-3.1.2-22] In 3.1.1 there is no password without a user name.
#[test]
fn v311_refuses_a_password_without_a_user_name() {
    let cases = [("password alone", connect(V311).password("secret").encode())];
    each_connect_is_refused(V311, &[], &cases);
}

/// In 5.0 a password without a user name is well-formed (section 3.1.2.9).
#[test]
fn v5_parses_a_password_without_a_user_name() {
    let mut conn = Conn::open(V5);
    conn.send(connect(V5).password("secret").encode());
    let connack = conn.connack();
    assert!(![0x81, 0x82].contains(&connack.code), "{connack:?}");
}

/// [MQTT-3.1.3-1] [3.1.1 MQTT-3.1.3-1] [MQTT-3.1.3-3] [3.1.1 MQTT-3.1.3-3]
/// [MQTT-3.1.2-7] [3.1.1 MQTT-3.1.2-8] The payload is read in its order: with
/// all fields present, the will arrives with its own topic and payload.
#[test]
fn all_payload_fields_are_read_in_order() {
    for level in [V31, V311, V5] {
        let (mut subscriber, _, topic) = pair(level);
        let connect = connect(level)
            .will(Will::new(&topic, "last words"))
            .user("name")
            .password("secret");
        let mut conn = Conn::open(level);
        conn.send(connect.encode());
        conn.connack();
        drop(conn);
        subscriber.expect(&topic, "last words");
    }
}

/// [MQTT-3.1.3-4] [MQTT-3.1.3-11] [MQTT-3.1.3-12] [3.1.1 MQTT-3.1.3-4]
/// [3.1.1 MQTT-3.1.3-10] [3.1.1 MQTT-3.1.3-11] [MQTT-1.5.4-1] [MQTT-1.5.4-2]
/// [3.1.1 MQTT-1.5.3-1] [3.1.1 MQTT-1.5.3-2] Client identifier, will topic and
/// user name have to be well-formed UTF-8 without U+0000.
#[test]
fn ill_formed_text_is_refused() {
    for level in [V311, V5] {
        for bad in ILL_FORMED {
            let cases = [
                ("client identifier", Connect::new(level, bad).encode()),
                (
                    "will topic",
                    connect(level).will(Will::new(bad, "p")).encode(),
                ),
                ("user name", connect(level).user(bad).encode()),
            ];
            each_connect_is_refused(level, MALFORMED, &cases);
        }
    }
}

/// [MQTT-4.7.0-1] [MQTT-4.7.3-1] [3.1.1 MQTT-4.7.1-1] [3.1.1 MQTT-4.7.3-1] A
/// will topic is a topic name: no wildcards, and not empty.
#[test]
fn a_will_topic_that_is_no_topic_name_is_refused() {
    for level in [V311, V5] {
        for topic in ["a/#", "+/b", "#", ""] {
            let will = Will::new(topic, "p");
            let cases = [(topic, connect(level).will(will).encode())];
            each_connect_is_refused(level, &[0x81, 0x82, 0x90], &cases);
        }
    }
}

/// [MQTT-3.1.4-1] [3.1.1 MQTT-3.1.4-1] [3.1.1 MQTT-3.2.2-6] [MQTT-4.13.1-1] A
/// CONNECT that is cut short or too long inside is refused, before 5.0 without a
/// CONNACK.
#[test]
fn a_truncated_or_padded_connect_is_refused() {
    for level in [V311, V5] {
        let whole = connect(level).user("name").encode();
        let mut cases = Vec::new();
        for cut in [10, 12, 14, whole.len() - 3, whole.len() - 1] {
            let body = Bytes::new().raw(&whole[2..cut]);
            cases.push(("cut short", body.packet(first::CONNECT)));
        }
        cases.push(("padded", connect(level).tail([0]).encode()));
        each_connect_is_refused(level, MALFORMED, &cases);
    }
}

/// [MQTT-3.1.4-1] A property that occurs twice or has a value out of its range
/// is a protocol error (section 3.1.2.11).
#[test]
fn connect_properties_with_forbidden_values_are_refused() {
    let twice = |props: Props, again: Props| connect(V5).props(props.raw(again.raw_bytes()));
    let p = Props::new;
    let cases = [
        (
            "session expiry twice",
            p().four(id::SESSION_EXPIRY, 1),
            p().four(id::SESSION_EXPIRY, 2),
        ),
        (
            "receive maximum twice",
            p().two(id::RECEIVE_MAXIMUM, 1),
            p().two(id::RECEIVE_MAXIMUM, 1),
        ),
        (
            "packet size twice",
            p().four(id::MAXIMUM_PACKET_SIZE, 999),
            p().four(id::MAXIMUM_PACKET_SIZE, 999),
        ),
        (
            "alias maximum twice",
            p().two(id::TOPIC_ALIAS_MAXIMUM, 1),
            p().two(id::TOPIC_ALIAS_MAXIMUM, 1),
        ),
        (
            "response info twice",
            p().byte(id::REQUEST_RESPONSE_INFO, 0),
            p().byte(id::REQUEST_RESPONSE_INFO, 0),
        ),
        (
            "problem info twice",
            p().byte(id::REQUEST_PROBLEM_INFO, 0),
            p().byte(id::REQUEST_PROBLEM_INFO, 0),
        ),
        (
            "method twice",
            p().field(id::AUTH_METHOD, "m"),
            p().field(id::AUTH_METHOD, "m"),
        ),
        ("receive maximum 0", p().two(id::RECEIVE_MAXIMUM, 0), p()),
        ("packet size 0", p().four(id::MAXIMUM_PACKET_SIZE, 0), p()),
        (
            "response info 2",
            p().byte(id::REQUEST_RESPONSE_INFO, 2),
            p(),
        ),
        ("problem info 2", p().byte(id::REQUEST_PROBLEM_INFO, 2), p()),
        ("data without method", p().field(id::AUTH_DATA, "d"), p()),
    ]
    .map(|(name, props, again)| (name, twice(props, again).encode()));
    each_connect_is_refused(V5, PROTOCOL, &cases);
}

/// [MQTT-3.1.4-1] Properties that do not belong to CONNECT, or do not parse,
/// make it malformed (section 2.2.2.2).
#[test]
fn foreign_or_broken_connect_properties_are_refused() {
    let p = Props::new;
    let cases = [
        ("topic alias", p().two(id::TOPIC_ALIAS, 1)),
        ("server keep alive", p().two(id::SERVER_KEEP_ALIVE, 1)),
        ("will delay outside the will", p().four(id::WILL_DELAY, 1)),
        ("reason string", p().field(id::REASON_STRING, "r")),
        ("unknown identifier", p().byte(0x7F, 0)),
        ("identifier zero", p().byte(0, 0)),
        ("identifier in two bytes, unknown", p().raw([0x80, 0x01])),
        ("value cut short", p().raw([id::SESSION_EXPIRY, 0, 0])),
        (
            "text beyond the list",
            p().raw([id::AUTH_METHOD, 0, 9, b'm']),
        ),
        (
            "user property without value",
            p().raw([id::USER_PROPERTY, 0, 1, b'n']),
        ),
        ("user name ill-formed", p().user([0xFF], "v")),
        ("user value ill-formed", p().user("n", [0xED, 0xA0, 0x80])),
        ("user value with U+0000", p().user("n", "a\0b")),
    ]
    .map(|(name, props)| (name, connect(V5).props(props).encode()));
    each_connect_is_refused(V5, MALFORMED, &cases);
}

/// [MQTT-3.1.4-1] The will's own properties obey the same rules.
#[test]
fn broken_will_properties_are_refused() {
    let p = Props::new;
    let with = |props| connect(V5).will(Will::new("w", "p").props(props)).encode();
    let malformed = [
        ("session expiry", with(p().four(id::SESSION_EXPIRY, 1))),
        ("topic alias", with(p().two(id::TOPIC_ALIAS, 1))),
        (
            "subscription identifier",
            with(p().var(id::SUBSCRIPTION_IDENTIFIER, 1)),
        ),
        (
            "response topic ill-formed",
            with(p().field(id::RESPONSE_TOPIC, [0xC0, 0x80])),
        ),
        ("cut short", with(p().raw([id::WILL_DELAY, 0]))),
    ];
    each_connect_is_refused(V5, MALFORMED, &malformed);
    let twice = |props: Props| with(props.clone().raw(props.raw_bytes()));
    let protocol = [
        ("delay twice", twice(p().four(id::WILL_DELAY, 1))),
        ("expiry twice", twice(p().four(id::MESSAGE_EXPIRY, 1))),
        ("format twice", twice(p().byte(id::PAYLOAD_FORMAT, 1))),
        (
            "content type twice",
            twice(p().field(id::CONTENT_TYPE, "t")),
        ),
        (
            "response topic twice",
            twice(p().field(id::RESPONSE_TOPIC, "t")),
        ),
        (
            "correlation twice",
            twice(p().field(id::CORRELATION_DATA, "d")),
        ),
        ("format 2", with(p().byte(id::PAYLOAD_FORMAT, 2))),
    ];
    each_connect_is_refused(V5, EITHER, &protocol);
}

/// [MQTT-2.2.2-1] The property length is part of the packet even when there
/// are no properties, and may not reach beyond its end.
#[test]
fn a_property_length_beyond_the_packet_is_refused() {
    let header = || Bytes::new().field("MQTT").u8(5).u8(2).u16(60);
    let cases = [
        ("no length", header().packet(first::CONNECT)),
        (
            "length beyond",
            header().var(200).field("c").packet(first::CONNECT),
        ),
        (
            "long form of zero",
            header().raw([0x80, 0x00]).field("c").packet(first::CONNECT),
        ),
        (
            "five bytes",
            header()
                .raw([0x80, 0x80, 0x80, 0x80, 0x01])
                .field("c")
                .packet(first::CONNECT),
        ),
    ];
    each_connect_is_refused(V5, MALFORMED, &cases);
}

/// [MQTT-3.1.4-6] [3.1.1 MQTT-3.1.4-5] What a client sends behind a CONNECT
/// that is refused has no effect.
#[test]
fn nothing_behind_a_refused_connect_is_processed() {
    for level in [V311, V5] {
        let (mut subscriber, mut publisher, topic) = pair(level);
        let (refused, codes) = match level {
            V5 => {
                let props = Props::new().field(id::AUTH_METHOD, "no such method");
                (connect(V5).props(props), &[0x8C, 0x87][..])
            }
            _ => (Connect::new(level, "").resume(), &[0x02][..]),
        };
        let mut bytes = refused.encode();
        bytes.extend(Publish::new(level, &topic, "smuggled").encode());
        let mut conn = Conn::open(level);
        conn.send(bytes);
        conn.refused(codes);
        publisher.publish(&topic, "marker", 0);
        subscriber.expect(&topic, "marker");
    }
}

/// [MQTT-3.1.4-3] [3.1.1 MQTT-3.1.4-2] [MQTT-3.1.4-5] [3.1.1 MQTT-3.1.4-4] A
/// second client with the same identifier takes over; the first is told so
/// (0x8E, in 5.0) and closed.
#[test]
fn a_second_client_with_the_same_identifier_takes_over() {
    for level in [V311, V5] {
        let connect = connect(level);
        let (mut old, _) = Conn::connect(&connect);
        let (mut new, _) = Conn::connect(&connect);
        old.error(&[0x8E]);
        new.ping();
    }
}
