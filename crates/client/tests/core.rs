//! The protocol core, packet by packet: what it sends, what it refuses, and
//! when it loses patience. Tests are named after what they prove, with the
//! statement of MQTT 5.0 where there is one.

#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

use std::time::Duration;

use punctual_client::{
    Config, Core, Error, Event, Message, PropertyBuf, PropertyId, QoS, ReasonCode,
    SubscribeOptions, Version,
};

const START: Duration = Duration::from_secs(100);

fn at(seconds: u64) -> Duration {
    START + Duration::from_secs(seconds)
}

/// What is in the output, taken out.
fn sent(core: &mut Core, now: Duration) -> Vec<u8> {
    let output = core.output().to_vec();
    core.sent(output.len(), now);
    output
}

/// A core of MQTT 5 whose CONNACK had these properties.
fn connected(config: Config, properties: &[u8]) -> Core {
    let version = config.version;
    let mut core = Core::new(config).unwrap();
    core.connect(START).unwrap();
    assert_eq!(sent(&mut core, START)[0], 0x10);
    let mut connack = match version.is_v5() {
        true => vec![
            0x20,
            3 + properties.len() as u8,
            0,
            0,
            properties.len() as u8,
        ],
        false => vec![0x20, 2, 0, 0],
    };
    connack.extend_from_slice(properties);
    core.receive(&connack, START);
    let event = core.poll(START).unwrap();
    assert!(matches!(event, Some(Event::Connected(_))), "{event:?}");
    core
}

fn v5() -> Config {
    Config::default()
}

fn v311() -> Config {
    Config {
        version: Version::V311,
        ..Config::default()
    }
}

/// Feeds bytes and expects them to end the connection with that reason.
#[track_caller]
fn misbehaves(core: &mut Core, bytes: &[u8], reason: ReasonCode) {
    core.receive(bytes, START);
    match core.poll(START) {
        Err(Error::PeerMisbehaved { reason: said, .. }) => assert_eq!(said, reason),
        other => panic!("{other:?}"),
    }
    assert_eq!(sent(core, START), [0xE0, 1, reason.byte()], "DISCONNECT");
    core.receive(&[0xD0, 0], START);
    assert_eq!(core.poll(START).unwrap(), None, "nothing more is heard");
}

#[test]
fn mqtt_3_1_2_20_a_ping_is_sent_after_the_keep_alive_and_must_be_answered() {
    let mut core = connected(v5(), &[]);
    assert_eq!(core.timeout(), Some(at(60)));
    core.tick(at(59)).unwrap();
    assert!(core.output().is_empty());
    core.tick(at(60)).unwrap();
    assert_eq!(sent(&mut core, at(60)), [0xC0, 0]);
    core.receive(&[0xD0, 0], at(61));
    assert_eq!(core.poll(at(61)).unwrap(), None);
    assert_eq!(core.timeout(), Some(at(120)));
    core.tick(at(120)).unwrap();
    assert_eq!(sent(&mut core, at(120)), [0xC0, 0]);
    core.tick(at(179)).unwrap();
    assert!(matches!(core.tick(at(180)), Err(Error::TimedOut(_))));
}

#[test]
fn a_server_that_sends_anything_is_alive() {
    let mut core = connected(v5(), &[]);
    core.tick(at(60)).unwrap();
    core.receive(&[0x30, 4, 0, 1, b'a', 0], at(100));
    core.tick(at(130)).unwrap();
    assert!(matches!(core.poll(at(130)), Ok(Some(Event::Message(_)))));
    assert!(matches!(core.tick(at(160)), Err(Error::TimedOut(_))));
}

#[test]
fn mqtt_3_2_2_21_the_servers_keep_alive_counts() {
    let core = connected(v5(), &[0x13, 0, 5]);
    assert_eq!(core.timeout(), Some(at(5)));
    let core = connected(v5(), &[0x13, 0, 0]);
    assert_eq!(core.timeout(), None);
}

#[test]
fn what_is_sent_puts_off_the_ping() {
    let mut core = connected(v5(), &[]);
    core.publish(&Message::new("a", "b"), at(30)).unwrap();
    assert_eq!(core.timeout(), Some(at(90)));
}

#[test]
fn a_server_that_does_not_answer_connect_is_given_up() {
    let mut core = Core::new(v5()).unwrap();
    core.connect(START).unwrap();
    assert_eq!(core.timeout(), Some(at(30)));
    assert!(matches!(core.tick(at(30)), Err(Error::TimedOut(_))));
}

#[test]
fn a_server_of_mqtt_3_refuses_in_its_own_words() {
    let mut core = Core::new(v5()).unwrap();
    core.connect(START).unwrap();
    core.receive(&[0x20, 2, 0, 1], START);
    match core.poll(START) {
        Err(Error::Refused(farewell)) => {
            assert_eq!(farewell.reason, ReasonCode::UnsupportedProtocolVersion);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn refusals_carry_what_the_server_said() {
    let mut core = Core::new(v5()).unwrap();
    core.connect(START).unwrap();
    core.receive(
        &[
            0x20, 13, 0, 0x9C, 10, 0x1F, 0, 2, b'n', b'o', 0x1C, 0, 2, b'x', b'y',
        ],
        START,
    );
    match core.poll(START) {
        Err(error @ Error::Refused(_)) => {
            let said = error.to_string();
            assert!(
                said.contains("Use another server (no); it refers to server xy"),
                "{said}"
            );
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn mqtt_3_2_2_4_a_session_after_a_clean_start_is_a_protocol_error() {
    let mut core = Core::new(v5()).unwrap();
    core.connect(START).unwrap();
    core.receive(&[0x20, 3, 1, 0, 0], START);
    let error = core.poll(START).unwrap_err();
    assert!(matches!(error, Error::PeerMisbehaved { .. }), "{error}");
}

#[test]
fn mqtt_3_2_0_1_nothing_comes_before_connack() {
    for packet in [&[0xD0, 0][..], &[0x30, 4, 0, 1, b'a', 0], &[0xE0, 0]] {
        let mut core = Core::new(v5()).unwrap();
        core.connect(START).unwrap();
        core.receive(packet, START);
        let error = core.poll(START).unwrap_err();
        assert!(matches!(error, Error::PeerMisbehaved { .. }), "{error}");
    }
}

#[test]
fn mqtt_3_2_0_2_a_second_connack_is_a_protocol_error() {
    let mut core = connected(v5(), &[]);
    misbehaves(&mut core, &[0x20, 3, 0, 0, 0], ReasonCode::ProtocolError);
}

#[test]
fn packets_only_clients_send_are_protocol_errors() {
    for packet in [
        &[0xC0, 0][..],
        &[0x82, 7, 0, 1, 0, 0, 1, b'a', 0],
        &[0xA2, 6, 0, 1, 0, 0, 1, b'a'],
    ] {
        let mut core = connected(v5(), &[]);
        misbehaves(&mut core, packet, ReasonCode::ProtocolError);
    }
}

#[test]
fn malformed_packets_end_the_connection() {
    for packet in [
        &[0x00, 0][..],
        &[0x30, 0xFF, 0xFF, 0xFF, 0xFF],
        &[0x36, 6, 0, 1, b'a', 0, 1, 0],
        &[0x40, 1, 0],
    ] {
        let mut core = connected(v5(), &[]);
        misbehaves(&mut core, packet, ReasonCode::MalformedPacket);
    }
}

#[test]
fn mqtt_3_1_2_24_a_packet_above_our_maximum_is_refused_at_its_header() {
    let mut config = v5();
    config
        .properties
        .push_number(PropertyId::MaximumPacketSize, 20);
    let mut core = connected(config, &[]);
    misbehaves(&mut core, &[0x30, 19], ReasonCode::PacketTooLarge);
}

#[test]
fn mqtt_3_3_4_7_more_than_our_receive_maximum_is_refused() {
    let mut config = v5();
    config.properties.push_number(PropertyId::ReceiveMaximum, 2);
    let mut core = connected(config, &[]);
    for id in [1, 2] {
        core.receive(&[0x34, 6, 0, 1, b'a', 0, id, 0], START);
        assert!(matches!(core.poll(START), Ok(Some(Event::Message(_)))));
        assert_eq!(sent(&mut core, START), [0x50, 2, 0, id]);
    }
    let third = [0x34, 6, 0, 1, b'a', 0, 3, 0];
    misbehaves(&mut core, &third, ReasonCode::ReceiveMaximumExceeded);
}

#[test]
fn mqtt_4_3_3_10_a_repeated_message_with_qos_2_is_acknowledged_and_not_delivered() {
    let mut core = connected(v5(), &[]);
    core.receive(&[0x34, 6, 0, 1, b'a', 0, 7, 0], START);
    assert!(matches!(core.poll(START), Ok(Some(Event::Message(_)))));
    core.receive(&[0x3C, 6, 0, 1, b'a', 0, 7, 0], START);
    assert_eq!(core.poll(START).unwrap(), None);
    assert_eq!(sent(&mut core, START), [0x50, 2, 0, 7, 0x50, 2, 0, 7]);
    core.receive(&[0x62, 2, 0, 7, 0x62, 2, 0, 7], START);
    assert_eq!(core.poll(START).unwrap(), None);
    let expected = [0x70, 2, 0, 7, 0x70, 3, 0, 7, 0x92];
    assert_eq!(sent(&mut core, START), expected, "the second is not found");
    core.receive(&[0x34, 6, 0, 1, b'a', 0, 7, 0], START);
    assert!(
        matches!(core.poll(START), Ok(Some(Event::Message(_)))),
        "free again"
    );
}

#[test]
fn mqtt_3_3_4_9_the_servers_receive_maximum_is_kept() {
    let mut core = connected(v5(), &[0x21, 0, 2]);
    let message = Message::new("a", "").qos(QoS::AtLeastOnce);
    let tokens: Vec<_> = (0..4)
        .map(|_| core.publish(&message, START).unwrap())
        .collect();
    let publish = |id| [0x32, 6, 0, 1, b'a', 0, id, 0];
    assert_eq!(sent(&mut core, START), [publish(1), publish(2)].concat());
    core.receive(&[0x40, 2, 0, 2], START);
    match core.poll(START).unwrap() {
        Some(Event::Published { token, reason, .. }) => {
            assert_eq!((token, reason), (tokens[1], ReasonCode::Success));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(sent(&mut core, START), publish(3));
    assert_eq!(core.unfinished(), 3);
}

#[test]
fn a_publication_that_is_refused_ends_with_the_reason() {
    let mut core = connected(v5(), &[0x21, 0, 1]);
    for (qos, refusal) in [
        (QoS::AtLeastOnce, [0x40, 3, 0, 1, 0x97]),
        (QoS::ExactlyOnce, [0x50, 3, 0, 2, 0x97]),
    ] {
        let token = core
            .publish(&Message::new("a", "").qos(qos), START)
            .unwrap();
        sent(&mut core, START);
        core.receive(&refusal, START);
        match core.poll(START).unwrap() {
            Some(Event::Published {
                token: ended,
                reason,
                ..
            }) => assert_eq!((ended, reason), (token, ReasonCode::QuotaExceeded)),
            other => panic!("{other:?}"),
        }
        assert_eq!(core.unfinished(), 0);
        assert!(core.output().is_empty(), "no PUBREL for a refused PUBLISH");
    }
}

#[test]
fn acknowledgements_must_fit_the_qos() {
    let mut core = connected(v5(), &[]);
    core.publish(&Message::new("a", "").qos(QoS::AtLeastOnce), START)
        .unwrap();
    sent(&mut core, START);
    misbehaves(&mut core, &[0x50, 2, 0, 1], ReasonCode::ProtocolError);

    for early in [[0x40, 2, 0, 1], [0x70, 2, 0, 1]] {
        let mut core = connected(v5(), &[]);
        core.publish(&Message::new("a", "").qos(QoS::ExactlyOnce), START)
            .unwrap();
        sent(&mut core, START);
        misbehaves(&mut core, &early, ReasonCode::ProtocolError);
    }
}

#[test]
fn unknown_acknowledgements_do_no_harm() {
    let mut core = connected(v5(), &[]);
    core.receive(&[0x40, 2, 0, 9, 0x70, 2, 0, 9, 0x50, 2, 0, 9], START);
    assert_eq!(core.poll(START).unwrap(), None);
    assert_eq!(sent(&mut core, START), [0x62, 3, 0, 9, 0x92]);
}

#[test]
fn mqtt_3_2_2_11_12_13_14_15_the_servers_limits_are_kept() {
    let refused = |core: &mut Core, message: &Message| match core.publish(message, START) {
        Err(Error::Unsupported(reason)) => {
            assert!(core.output().is_empty());
            assert_eq!(core.unfinished(), 0);
            reason
        }
        other => panic!("{other:?}"),
    };
    // Maximum QoS 1, Retain Available 0, Maximum Packet Size 20.
    let mut core = connected(v5(), &[0x24, 1, 0x25, 0, 0x27, 0, 0, 0, 20]);
    let message = Message::new("a", "b");
    let exactly = message.clone().qos(QoS::ExactlyOnce);
    assert_eq!(refused(&mut core, &exactly), ReasonCode::QosNotSupported);
    let retained = message.clone().retained();
    assert_eq!(
        refused(&mut core, &retained),
        ReasonCode::RetainNotSupported
    );
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce] {
        let large = Message::new("a", vec![0; 20]).qos(qos);
        assert_eq!(refused(&mut core, &large), ReasonCode::PacketTooLarge);
    }
    core.publish(&message, START).unwrap();
}

#[test]
fn what_waited_for_a_connection_ends_if_the_server_does_not_take_it() {
    let mut core = Core::new(v5()).unwrap();
    let token = core
        .publish(&Message::new("a", "b").retained(), START)
        .unwrap();
    core.connect(START).unwrap();
    sent(&mut core, START);
    core.receive(&[0x20, 5, 0, 0, 2, 0x25, 0], START);
    assert!(matches!(core.poll(START), Ok(Some(Event::Connected(_)))));
    match core.poll(START).unwrap() {
        Some(Event::Published {
            token: ended,
            reason,
            ..
        }) => assert_eq!((ended, reason), (token, ReasonCode::RetainNotSupported)),
        other => panic!("{other:?}"),
    }
    assert!(core.output().is_empty());
}

#[test]
fn subscriptions_the_server_does_not_have_are_not_asked_for() {
    let mut id = PropertyBuf::new();
    id.push_number(PropertyId::SubscriptionIdentifier, 1);
    let none = PropertyBuf::new();
    // Wildcards, subscription identifiers and shared subscriptions: 0.
    let mut core = connected(v5(), &[0x28, 0, 0x29, 0, 0x2A, 0]);
    for (filter, properties, reason) in [
        ("a/#", &none, ReasonCode::WildcardSubscriptionsNotSupported),
        ("a", &id, ReasonCode::SubscriptionIdentifiersNotSupported),
        (
            "$share/g/a",
            &none,
            ReasonCode::SharedSubscriptionsNotSupported,
        ),
    ] {
        let filters = [(filter, SubscribeOptions::default())];
        match core.subscribe(&filters, properties, START) {
            Err(Error::Unsupported(said)) => assert_eq!(said, reason),
            other => panic!("{other:?}"),
        }
        assert!(core.output().is_empty());
    }
}

#[test]
fn answers_must_fit_their_requests() {
    let subscribe = |core: &mut Core| {
        let filters = [("a", SubscribeOptions::default())];
        core.subscribe(&filters, &PropertyBuf::new(), START)
            .unwrap();
        sent(core, START);
    };
    for answer in [
        &[0x90, 5, 0, 1, 0, 0, 0][..],
        &[0xB0, 4, 0, 1, 0, 0],
        &[0x90, 4, 0, 2, 0, 0],
    ] {
        let mut core = connected(v5(), &[]);
        subscribe(&mut core);
        misbehaves(&mut core, answer, ReasonCode::ProtocolError);
    }
    let mut core = connected(v5(), &[]);
    subscribe(&mut core);
    core.receive(&[0x90, 4, 0, 1, 0, 0x87], START);
    match core.poll(START).unwrap() {
        Some(Event::Subscribed { reasons, .. }) => assert_eq!(reasons, [ReasonCode::NotAuthorized]),
        other => panic!("{other:?}"),
    }
}

#[test]
fn identifiers_of_requests_and_messages_differ() {
    let mut core = connected(v5(), &[]);
    core.publish(&Message::new("a", "").qos(QoS::AtLeastOnce), START)
        .unwrap();
    core.unsubscribe(&["a"], &PropertyBuf::new(), START)
        .unwrap();
    core.publish(&Message::new("a", "").qos(QoS::AtLeastOnce), START)
        .unwrap();
    let expected = [
        &[0x32, 6, 0, 1, b'a', 0, 1, 0][..],
        &[0xA2, 6, 0, 2, 0, 0, 1, b'a'],
        &[0x32, 6, 0, 1, b'a', 0, 3, 0],
    ];
    assert_eq!(sent(&mut core, START), expected.concat());
}

#[test]
fn aliases_are_used_as_far_as_the_server_allows() {
    let mut config = v5();
    config.topic_aliases = 10;
    let mut core = connected(config, &[0x22, 0, 1]);
    for topic in ["a", "a", "b"] {
        core.publish(&Message::new(topic, ""), START).unwrap();
    }
    let expected = [
        &[0x30, 7, 0, 1, b'a', 3, 0x23, 0, 1][..],
        &[0x30, 6, 0, 0, 3, 0x23, 0, 1],
        &[0x30, 4, 0, 1, b'b', 0],
    ];
    assert_eq!(sent(&mut core, START), expected.concat());
    let mut asked = Message::new("a", "");
    asked.properties.push_number(PropertyId::TopicAlias, 2);
    let said = core.publish(&asked, START).unwrap_err().to_string();
    assert_eq!(
        said,
        "topic alias \"2\": the server takes 1 to 1: give one of these, or leave it out"
    );
    let mut core = connected(v5(), &[]);
    let said = core.publish(&asked, START).unwrap_err().to_string();
    assert_eq!(
        said,
        "topic alias \"2\": the server takes none on this connection: leave it out"
    );
}

#[test]
fn mqtt_3_3_2_7_aliases_do_not_outlive_the_connection() {
    let mut config = v5();
    config.topic_aliases = 10;
    config
        .properties
        .push_number(PropertyId::SessionExpiryInterval, 60);
    config.client_id = "x".into();
    let mut core = connected(config, &[0x22, 0, 5]);
    let message = Message::new("a", "").qos(QoS::AtLeastOnce);
    core.publish(&message, START).unwrap();
    core.publish(&message, START).unwrap();
    let aliased = [
        &[0x32, 9, 0, 1, b'a', 0, 1, 3, 0x23, 0, 1][..],
        &[0x32, 8, 0, 0, 0, 2, 3, 0x23, 0, 1],
    ];
    assert_eq!(sent(&mut core, START), aliased.concat());
    core.connection_lost();
    core.connect(START).unwrap();
    let connect = sent(&mut core, START);
    assert_eq!(
        connect[9] & 2,
        0,
        "the session is resumed, not started clean"
    );
    core.receive(&[0x20, 3, 1, 0, 0], START);
    assert!(matches!(core.poll(START), Ok(Some(Event::Connected(_)))));
    let named = [
        [0x3A, 6, 0, 1, b'a', 0, 1, 0],
        [0x3A, 6, 0, 1, b'a', 0, 2, 0],
    ];
    assert_eq!(
        sent(&mut core, START),
        named.concat(),
        "by name, as duplicates"
    );
}

#[test]
fn mqtt_3_3_2_8_the_servers_aliases_are_resolved() {
    let mut config = v5();
    config
        .properties
        .push_number(PropertyId::TopicAliasMaximum, 1);
    let mut core = connected(config, &[]);
    core.receive(
        &[
            0x30, 7, 0, 1, b'a', 3, 0x23, 0, 1, 0x30, 6, 0, 0, 3, 0x23, 0, 1,
        ],
        START,
    );
    for _ in 0..2 {
        match core.poll(START).unwrap() {
            Some(Event::Message(delivery)) => assert_eq!(delivery.message.topic, "a"),
            other => panic!("{other:?}"),
        }
    }
    let above = [0x30, 7, 0, 1, b'a', 3, 0x23, 0, 2];
    misbehaves(&mut core, &above, ReasonCode::TopicAliasInvalid);
}

#[test]
fn a_disconnect_of_the_server_says_why() {
    let mut core = connected(v5(), &[]);
    core.receive(&[0xE0, 1, 0x8B], START);
    match core.poll(START) {
        Err(error @ Error::Disconnected(_)) => {
            assert!(
                error.to_string().contains("Server shutting down"),
                "{error}"
            );
            assert!(error.is_transient());
        }
        other => panic!("{other:?}"),
    }
    assert!(core.output().is_empty(), "nothing answers a DISCONNECT");
}

#[test]
fn mqtt_3_14_4_1_nothing_follows_disconnect() {
    let mut core = connected(v5(), &[]);
    core.disconnect(ReasonCode::Success, &PropertyBuf::new())
        .unwrap();
    assert_eq!(sent(&mut core, START), [0xE0, 0]);
    core.publish(&Message::new("a", ""), START).unwrap();
    core.receive(&[0x32, 6, 0, 1, b'a', 0, 1, 0], START);
    assert_eq!(core.poll(START).unwrap(), None);
    assert!(core.output().is_empty());
    let filters = [("a", SubscribeOptions::default())];
    let result = core.subscribe(&filters, &PropertyBuf::new(), START);
    assert!(matches!(result, Err(Error::NotConnected)));
}

#[test]
fn queues_are_bounded() {
    let mut config = v5();
    config.max_queued = 3;
    config.max_inflight = 2;
    let mut core = connected(config, &[]);
    let message = Message::new("a", "").qos(QoS::AtLeastOnce);
    for _ in 0..5 {
        assert!(core.has_room());
        core.publish(&message, START).unwrap();
    }
    assert!(!core.has_room());
    assert!(matches!(core.publish(&message, START), Err(Error::Full)));

    // QoS 0: the output has a limit, after which the queue is used.
    let mut config = v5();
    config.max_queued = 3;
    let mut core = connected(config, &[]);
    let large = Message::new("a", vec![0; punctual_client::proto::OUTPUT_LIMIT]);
    for _ in 0..4 {
        core.publish(&large, START).unwrap();
    }
    assert!(matches!(core.publish(&large, START), Err(Error::Full)));
    assert!(core.output().len() < 2 * large.payload.len());
    let mut messages = 0;
    while !core.output().is_empty() {
        messages += 1;
        sent(&mut core, START);
    }
    assert_eq!(messages, 4, "the rest follows");
}

#[test]
fn messages_are_checked_before_they_are_sent() {
    let mut core = connected(v5(), &[]);
    let mut with_id = Message::new("a", "");
    with_id
        .properties
        .push_number(PropertyId::SubscriptionIdentifier, 1);
    let mut twice = Message::new("a", "");
    twice
        .properties
        .push_number(PropertyId::MessageExpiryInterval, 1);
    twice
        .properties
        .push_number(PropertyId::MessageExpiryInterval, 1);
    for message in [
        Message::new("", ""),
        Message::new("a/+", ""),
        Message::new("a\0", ""),
        Message::new("a".repeat(65_536), ""),
        with_id,
        twice,
    ] {
        let result = core.publish(&message, START);
        assert!(
            matches!(result, Err(Error::ApiMisuse { .. })),
            "{:?}",
            message.topic
        );
    }
    assert!(core.output().is_empty());
    let mut core = connected(v311(), &[]);
    let mut message = Message::new("a", "");
    message.properties.push_user("k", "v").unwrap();
    let error = core.publish(&message, START).unwrap_err().to_string();
    assert!(error.contains("only MQTT 5"), "{error}");
}

#[test]
fn filters_are_checked_before_they_are_sent() {
    let mut core = connected(v5(), &[]);
    for filter in ["", "a/#/b", "a+", "$share/g", "a\0"] {
        let filters = [(filter, SubscribeOptions::default())];
        let result = core.subscribe(&filters, &PropertyBuf::new(), START);
        assert!(matches!(result, Err(Error::ApiMisuse { .. })), "{filter:?}");
    }
    let result = core.subscribe(&[], &PropertyBuf::new(), START);
    assert!(matches!(result, Err(Error::ApiMisuse { .. })));
    let mut core = connected(v311(), &[]);
    let options = SubscribeOptions {
        no_local: true,
        ..SubscribeOptions::default()
    };
    let result = core.subscribe(&[("a", options)], &PropertyBuf::new(), START);
    assert!(matches!(result, Err(Error::ApiMisuse { .. })));
    assert!(core.output().is_empty());
}

#[test]
fn options_are_checked() {
    let mut properties = PropertyBuf::new();
    properties.push_number(PropertyId::ReceiveMaximum, 1);
    let mut twice = properties.clone();
    twice.push_number(PropertyId::ReceiveMaximum, 1);
    for config in [
        Config {
            password: Some(vec![1]),
            ..v311()
        },
        Config {
            clean_start: false,
            ..v311()
        },
        Config {
            version: Version::V31,
            ..v311()
        },
        Config {
            properties,
            ..v311()
        },
        Config {
            properties: twice,
            ..v5()
        },
        Config {
            will: Some(Message::new("a/#", "")),
            ..v5()
        },
        Config {
            client_id: "a\0".into(),
            ..v5()
        },
    ] {
        assert!(matches!(Core::new(config), Err(Error::ApiMisuse { .. })));
    }
}

#[test]
fn authentication_exchanges_are_passed_on() {
    let mut config = v5();
    config
        .properties
        .push_data(PropertyId::AuthenticationMethod, b"m")
        .unwrap();
    let mut core = Core::new(config).unwrap();
    core.connect(START).unwrap();
    sent(&mut core, START);
    core.receive(&[0xF0, 6, 0x18, 4, 0x15, 0, 1, b'm'], START);
    match core.poll(START).unwrap() {
        Some(Event::Auth { reason, properties }) => {
            assert_eq!(reason, ReasonCode::ContinueAuthentication);
            core.auth(reason, &properties, START).unwrap();
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(sent(&mut core, START), [0xF0, 6, 0x18, 4, 0x15, 0, 1, b'm']);
    core.receive(&[0x20, 3, 0, 0, 0], START);
    assert!(matches!(core.poll(START), Ok(Some(Event::Connected(_)))));
}
