//! PUBLISH (section 3.3): flags, topic name, properties, and what the server
//! forwards. Retained messages, aliases and expiry have chapters of their own.

use crate::build::{Props, Publish, V5, V311, ack, first, id, pingreq};
use crate::conn::Conn;
use crate::fixture::{EITHER, MALFORMED, PROTOCOL, each_is_an_error, pair, publish_with};
use crate::parse::Packet;
use crate::utf8::ILL_FORMED;

/// [MQTT-3.3.1-4] [3.1.1 MQTT-3.3.1-4] Both QoS bits set is malformed.
#[test]
fn qos_3_closes() {
    for level in [V311, V5] {
        let cases = [
            ("QoS 3", Publish::new(level, "t", "p").qos(3, 7).encode()),
            (
                "QoS 3, DUP",
                Publish::new(level, "t", "p").qos(3, 7).dup().encode(),
            ),
        ];
        each_is_an_error(level, MALFORMED, &cases);
    }
}

/// [MQTT-3.3.1-2] [3.1.1 MQTT-3.3.1-2] DUP belongs to QoS above 0: with QoS 0
/// it is a protocol violation.
#[test]
fn dup_at_qos_0_closes() {
    for level in [V311, V5] {
        let cases = [("DUP", Publish::new(level, "t", "p").dup().encode())];
        each_is_an_error(level, EITHER, &cases);
    }
}

/// [MQTT-3.3.1-3] [3.1.1 MQTT-3.3.1-3] [MQTT-3.3.1-2] [3.1.1 MQTT-3.3.1-2]
/// [MQTT-4.3.2-2] [MQTT-4.3.3-2] [MQTT-4.3.1-1] [3.1.1 MQTT-4.3.1-1]
/// [3.1.1 MQTT-4.3.2-1] [3.1.1 MQTT-4.3.3-1] The publisher's DUP does not travel: what
/// the subscriber gets for the first time has DUP zero.
#[test]
fn dup_is_not_forwarded() {
    for level in [V311, V5] {
        let (mut subscriber, mut publisher, topic) = pair(level);
        for qos in [0, 1, 2] {
            let publish = Publish::new(level, &topic, "p");
            let publish = if qos > 0 { publish.dup() } else { publish };
            publisher.send_publish(publish, qos);
            let message = subscriber.expect(&topic, "p");
            assert_eq!((message.qos, message.dup), (qos, false));
            subscriber.acknowledge(&message);
        }
    }
}

/// [MQTT-3.3.2-1] [3.1.1 MQTT-3.3.2-1] [MQTT-1.5.4-1] [MQTT-1.5.4-2]
/// [MQTT-4.7.3-2] [3.1.1 MQTT-4.7.3-2] [3.1.1 MQTT-1.5.3-1]
/// [3.1.1 MQTT-1.5.3-2] A topic name that is not well-formed UTF-8, or has
/// U+0000, closes the connection.
#[test]
fn an_ill_formed_topic_name_closes() {
    for level in [V311, V5] {
        let cases: Vec<_> = ILL_FORMED
            .iter()
            .map(|bad| ("topic", Publish::new(level, bad, "p").encode()))
            .collect();
        each_is_an_error(level, &[0x81, 0x90], &cases);
    }
}

/// [MQTT-3.3.2-2] [MQTT-4.7.0-1] [MQTT-4.7.3-1] [3.1.1 MQTT-3.3.2-2]
/// [3.1.1 MQTT-4.7.1-1] [3.1.1 MQTT-4.7.3-1] A topic name with a wildcard, or
/// an empty one, closes the connection.
#[test]
fn a_topic_name_with_wildcards_or_empty_closes() {
    for level in [V311, V5] {
        let names = ["a/+", "+", "a/#", "#", "a+b", "a#b", "+/a", ""];
        let cases: Vec<_> = names
            .iter()
            .map(|name| (*name, Publish::new(level, name, "p").encode()))
            .collect();
        each_is_an_error(level, &[0x81, 0x82, 0x90], &cases);
    }
}

/// [MQTT-3.3.2-3] [3.1.1 MQTT-3.3.2-3] [MQTT-4.5.0-1] [3.1.1 MQTT-4.5.0-1] Each
/// subscriber gets the message under the topic name it was published with.
#[test]
fn subscribers_see_the_topic_name_that_matches() {
    for level in [V311, V5] {
        let (mut subscriber, mut publisher, topic) = pair(level);
        subscriber.subscribe(&format!("{topic}/+/x"), 0);
        for name in [format!("{topic}/a/x"), topic.clone(), format!("{topic}//x")] {
            publisher.publish(&name, "p", 0);
            subscriber.expect(&name, "p");
        }
    }
}

/// [MQTT-3.3.2-4] [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-17]
/// [MQTT-3.3.2-18] [MQTT-3.3.2-20] The properties of the application message
/// arrive unaltered, user properties in their order with repeated names kept.
#[test]
fn message_properties_arrive_unaltered() {
    let (mut subscriber, mut publisher, topic) = pair(V5);
    let user = [
        ("b", "1"),
        ("a", "2"),
        ("b", "1"),
        ("", ""),
        ("é\u{FEFF}", "日本"),
    ];
    let props = Props::new()
        .user(user[0].0, user[0].1)
        .byte(id::PAYLOAD_FORMAT, 1)
        .field(id::RESPONSE_TOPIC, "reply/to é")
        .user(user[1].0, user[1].1)
        .field(id::CORRELATION_DATA, [0, 255, 1, b'x'])
        .user(user[2].0, user[2].1)
        .field(id::CONTENT_TYPE, "text/plain; x=é")
        .user(user[3].0, user[3].1)
        .user(user[4].0, user[4].1);
    for qos in [0, 1, 2] {
        let publish = Publish::new(V5, &topic, "p").props(props.clone());
        publisher.send_publish(publish, qos);
        let message = subscriber.expect(&topic, "p");
        let got = &message.props;
        assert_eq!(got.number(id::PAYLOAD_FORMAT), Some(1));
        assert_eq!(got.text(id::RESPONSE_TOPIC), Some("reply/to é"));
        assert_eq!(got.data(id::CORRELATION_DATA), Some(&[0, 255, 1, b'x'][..]));
        assert_eq!(got.text(id::CONTENT_TYPE), Some("text/plain; x=é"));
        assert_eq!(got.user(), user);
        subscriber.acknowledge(&message);
    }
}

/// [MQTT-3.3.2-4] [MQTT-3.3.2-17] What the publisher did not send is not
/// added, and payload format 0 and empty values stay what they are.
#[test]
fn no_message_property_is_invented() {
    let (mut subscriber, mut publisher, topic) = pair(V5);
    publisher.publish(&topic, "bare", 0);
    let bare = subscriber.expect(&topic, "bare").props;
    for key in [
        id::PAYLOAD_FORMAT,
        id::MESSAGE_EXPIRY,
        id::CONTENT_TYPE,
        id::RESPONSE_TOPIC,
        id::CORRELATION_DATA,
        id::SUBSCRIPTION_IDENTIFIER,
        id::TOPIC_ALIAS,
    ] {
        assert!(!bare.has(key), "property {key:#04x} was added");
    }
    assert!(bare.user().is_empty());
    let props = Props::new()
        .byte(id::PAYLOAD_FORMAT, 0)
        .field(id::CONTENT_TYPE, "")
        .field(id::CORRELATION_DATA, "");
    publish_with(&mut publisher, &topic, "empty", props);
    let empty = subscriber.expect(&topic, "empty").props;
    assert_ne!(empty.number(id::PAYLOAD_FORMAT), Some(1));
    assert_eq!(empty.text(id::CONTENT_TYPE), Some(""));
    assert_eq!(empty.data(id::CORRELATION_DATA), Some(&[][..]));
}

/// [MQTT-3.3.2-17] A message with properties reaches a 3.1.1 subscriber, and
/// one from a 3.1.1 publisher reaches a 5.0 subscriber.
#[test]
fn messages_cross_between_levels() {
    for (from, to) in [(V5, V311), (V311, V5)] {
        let (mut subscriber, _, topic) = pair(to);
        let mut publisher = Conn::client(from);
        let props = Props::new().user("a", "b").field(id::CONTENT_TYPE, "t");
        for qos in [0, 1, 2] {
            let publish = Publish::new(from, &topic, "p").props(props.clone());
            publisher.send_publish(publish, qos);
            let message = subscriber.expect(&topic, "p");
            assert_eq!(message.qos, qos);
            subscriber.acknowledge(&message);
        }
    }
}

/// [MQTT-3.3.2-13] [MQTT-3.3.2-14] [MQTT-3.3.2-19] [MQTT-1.5.7-1] Response
/// topic, content type and user properties have to be well-formed text, and
/// the response topic has no wildcards.
#[test]
fn ill_formed_message_properties_close() {
    let with = |props| Publish::new(V5, "t", "p").props(props).encode();
    let p = Props::new;
    let mut cases = Vec::new();
    for bad in ILL_FORMED {
        cases.push(("response topic", with(p().field(id::RESPONSE_TOPIC, bad))));
        cases.push(("content type", with(p().field(id::CONTENT_TYPE, bad))));
        cases.push(("user property name", with(p().user(bad, "v"))));
        cases.push(("user property value", with(p().user("n", bad))));
    }
    each_is_an_error(V5, MALFORMED, &cases);
    let topics = ["a/+", "#", "+"];
    let cases = topics.map(|topic| (topic, with(p().field(id::RESPONSE_TOPIC, topic))));
    each_is_an_error(V5, &[0x81, 0x82, 0x90], &cases);
}

/// [MQTT-4.13.1-1] A message property that occurs twice, or a payload format
/// other than 0 and 1, is a protocol error.
#[test]
fn repeated_message_properties_close() {
    let p = Props::new;
    let cases = [
        ("format", p().byte(id::PAYLOAD_FORMAT, 1)),
        ("expiry", p().four(id::MESSAGE_EXPIRY, 1)),
        ("content type", p().field(id::CONTENT_TYPE, "t")),
        ("response topic", p().field(id::RESPONSE_TOPIC, "t")),
        ("correlation data", p().field(id::CORRELATION_DATA, "d")),
        ("topic alias", p().two(id::TOPIC_ALIAS, 1)),
    ]
    .map(|(name, props)| {
        let twice = props.clone().raw(props.raw_bytes());
        (name, Publish::new(V5, "t", "p").props(twice).encode())
    });
    each_is_an_error(V5, PROTOCOL, &cases);
    let format = p().byte(id::PAYLOAD_FORMAT, 2);
    let cases = [(
        "format 2",
        Publish::new(V5, "t", "p").props(format).encode(),
    )];
    each_is_an_error(V5, EITHER, &cases);
}

/// [MQTT-3.3.4-6] A client does not send subscription identifiers in PUBLISH.
#[test]
fn a_subscription_identifier_from_a_client_closes() {
    let props = Props::new().var(id::SUBSCRIPTION_IDENTIFIER, 1);
    let cases = [(
        "identifier",
        Publish::new(V5, "t", "p").props(props).encode(),
    )];
    each_is_an_error(V5, EITHER, &cases);
}

/// [MQTT-3.3.4-1] [3.1.1 MQTT-3.3.4-1] [MQTT-2.2.1-5] [3.1.1 MQTT-2.3.1-6]
/// [MQTT-4.3.2-4] [MQTT-4.3.3-8] [MQTT-4.3.3-11] [3.1.1 MQTT-4.3.2-2]
/// [3.1.1 MQTT-4.3.3-2] [MQTT-3.4.2-1] [MQTT-3.5.2-1] [MQTT-3.7.2-1] A PUBLISH
/// is answered as its QoS asks, under its own identifier, whether anyone
/// subscribes or not.
#[test]
fn each_qos_gets_its_answer() {
    for level in [V311, V5] {
        let (mut subscriber, mut publisher, topic) = pair(level);
        for name in [&topic, "nobody/subscribes/to/this"] {
            let mut delivered = |payload: &str| {
                if name == topic {
                    let message = subscriber.expect(&topic, payload);
                    subscriber.acknowledge(&message);
                }
            };
            publisher.send(Publish::new(level, name, "0").encode());
            publisher.send(pingreq());
            assert!(
                matches!(publisher.next(), Packet::PingResp),
                "QoS 0 has no answer"
            );
            delivered("0");
            for packet_id in [1, 0x1234, 0xFFFF] {
                publisher.send(Publish::new(level, name, "1").qos(1, packet_id).encode());
                publisher.ack(first::PUBACK, packet_id);
                delivered("1");
                publisher.send(Publish::new(level, name, "2").qos(2, packet_id).encode());
                publisher.ack(first::PUBREC, packet_id);
                publisher.send(ack(first::PUBREL, packet_id));
                publisher.ack(first::PUBCOMP, packet_id);
                delivered("2");
            }
        }
        subscriber.ping();
    }
}

/// [MQTT-2.2.1-2] [3.1.1 MQTT-2.3.1-5] At QoS 0 there is no packet identifier:
/// what follows the topic is payload, in both directions.
#[test]
fn qos_0_has_no_packet_identifier() {
    let (mut subscriber, mut publisher, topic) = pair(V311);
    publisher.publish(&topic, [0, 7, b'x'], 0);
    subscriber.expect(&topic, [0, 7, b'x']);
}

/// [MQTT-4.2.0-1] Payloads of any size and content arrive as they are, up to
/// beyond what one read takes.
#[test]
fn payloads_of_every_size_arrive() {
    for level in [V311, V5] {
        let (mut subscriber, mut publisher, topic) = pair(level);
        for size in [0, 1, 100, 127, 128, 16_383, 16_384, 200_000] {
            let payload: Vec<u8> = (0..size).map(|at| at as u8).collect();
            for qos in [0, 1] {
                publisher.publish(&topic, &payload, qos);
                let message = subscriber.message();
                assert_eq!(message.payload.len(), payload.len());
                assert!(message.payload == payload, "{size} bytes arrived altered");
                subscriber.acknowledge(&message);
            }
        }
    }
}
