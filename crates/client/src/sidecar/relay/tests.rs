//! A relay between a client and a broker that are these tests.

use super::*;
use crate::{Message, QoS, RealTimeProperties as _, SubscribeOptions};
use punctual_codec::{
    Ack, Connect, PacketType, PropertyId, Publish, SubAck, Subscribe, UnsubAck, Unsubscribe, Will,
    split,
};

const NOW: Duration = Duration::from_secs(1);

fn common(rules: &[&str], datagrams: bool) -> Arc<RelayContext> {
    let rules: Vec<_> = rules.iter().map(|rule| rule.parse().unwrap()).collect();
    Arc::new(RelayContext {
        rules: rules.into(),
        max_packet: 100_000,
        datagrams,
    })
}

fn bytes(packet: Packet<'_>, version: Version) -> Vec<u8> {
    let mut out = Vec::new();
    packet.encode(version, &mut out).unwrap();
    out
}

fn connect(version: Version) -> Connect<'static> {
    Connect {
        version,
        clean_start: true,
        keep_alive: 0,
        client_id: "c",
        will: None,
        username: Some("u"),
        password: Some(b"p"),
        properties: Properties::EMPTY,
    }
}

fn connack(properties: &PropertyBuf) -> Vec<u8> {
    let connack = ConnAck {
        session_present: false,
        reason: ReasonCode::Success,
        properties: properties.as_properties(),
    };
    bytes(Packet::ConnAck(connack), Version::V5)
}

fn publish(topic: &str, qos: QoS, id: u16, properties: &PropertyBuf, version: Version) -> Vec<u8> {
    let publish = Publish {
        dup: false,
        qos,
        retain: false,
        topic,
        packet_id: id,
        properties: properties.as_properties(),
        payload: b"payload",
    };
    bytes(Packet::Publish(publish), version)
}

/// All that waits for the broker, and the class of each piece.
fn to_broker(relay: &mut Relay) -> Vec<(Class, Vec<u8>)> {
    let mut all = Vec::new();
    while let Some((class, bytes)) = relay.to_broker() {
        let bytes = bytes.to_vec();
        relay.broker_took(bytes.len());
        all.push((class, bytes));
    }
    assert_eq!(relay.to_broker_bytes, 0);
    all
}

/// The only packet that waits for the broker.
fn one(relay: &mut Relay) -> (Class, Vec<u8>) {
    let mut all = to_broker(relay);
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

fn to_client(relay: &mut Relay) -> Vec<u8> {
    let bytes = relay.to_client().to_vec();
    relay.client_took(bytes.len());
    bytes
}

fn decode(bytes: &[u8], version: Version) -> Packet<'_> {
    match split(bytes, u32::MAX) {
        Ok(Split::Frame(frame)) if frame.bytes.len() == bytes.len() => {
            Packet::decode(frame, version).unwrap()
        }
        other => panic!("{other:?}"),
    }
}

/// A relay whose client and broker have greeted each other.
fn up(rules: &[&str], version: Version, says: &PropertyBuf) -> Relay {
    let mut relay = Relay::new(common(rules, false));
    let connect = bytes(Packet::Connect(connect(version)), version);
    relay.receive_client(&connect, NOW).unwrap();
    assert!(relay.wants_transport());
    to_broker(&mut relay);
    relay.receive_broker(&connack(says), NOW).unwrap();
    to_client(&mut relay);
    relay
}

fn none() -> PropertyBuf {
    PropertyBuf::new()
}

#[test]
fn an_earlier_connect_becomes_one_of_mqtt_5() {
    let mut relay = Relay::new(common(&["bye: priority=1"], false));
    let connect = Connect {
        clean_start: false,
        keep_alive: 30,
        will: Some(Will {
            topic: "bye",
            payload: b"x",
            qos: QoS::AtLeastOnce,
            retain: true,
            properties: Properties::EMPTY,
        }),
        ..connect(Version::V311)
    };
    let connect_bytes = bytes(Packet::Connect(connect), Version::V311);
    // In two pieces.
    relay.receive_client(&connect_bytes[..5], NOW).unwrap();
    assert!(relay.is_new());
    relay.receive_client(&connect_bytes[5..], NOW).unwrap();
    assert_eq!(relay.client_id(), "c");
    let (_, sent) = one(&mut relay);
    let Packet::Connect(translated) = decode(&sent, Version::V5) else {
        panic!("{sent:?}");
    };
    let expiry = translated
        .properties
        .number(PropertyId::SessionExpiryInterval);
    assert_eq!(expiry, Some(u32::MAX));
    let will = translated.will.unwrap();
    assert_eq!(will.properties.user_value("priority"), Some("1"));
    let expected = Connect {
        version: Version::V5,
        properties: translated.properties,
        will: Some(Will {
            properties: will.properties,
            ..connect.will.unwrap()
        }),
        ..connect
    };
    assert_eq!(translated, expected);

    let mut properties = none();
    properties.push_number(PropertyId::ReceiveMaximum, 10);
    relay.receive_broker(&connack(&properties), NOW).unwrap();
    assert_eq!(to_client(&mut relay), [0x20, 2, 0, 0]);
}

#[test]
fn refusals_have_the_words_of_each_version() {
    for (version, reason, expected) in [
        (
            Version::V311,
            ReasonCode::BadUserNameOrPassword,
            &[0x20, 2, 0, 4][..],
        ),
        (Version::V311, ReasonCode::PacketTooLarge, &[]),
        (
            Version::V5,
            ReasonCode::PacketTooLarge,
            &[0x20, 3, 0, 0x95, 0],
        ),
    ] {
        let mut relay = Relay::new(common(&[], false));
        let connect = bytes(Packet::Connect(connect(version)), version);
        relay.receive_client(&connect, NOW).unwrap();
        let refusal = ConnAck {
            session_present: false,
            reason,
            properties: Properties::EMPTY,
        };
        let refusal = bytes(Packet::ConnAck(refusal), Version::V5);
        let ended = relay.receive_broker(&refusal, NOW);
        assert_eq!(ended, Err(RelayFailure::Refused(reason)));
        assert!(relay.is_over());
        assert_eq!(to_client(&mut relay), expected);
    }
}

#[test]
fn rules_fill_what_a_message_does_not_say() {
    let rules = ["alarm/#: priority=0, deadline=5ms", "log: priority=9"];
    let mut relay = up(&rules, Version::V5, &none());
    let mut own = none();
    own.push_user("colour", "red").unwrap();
    own.push_user("priority", "7").unwrap();
    let sent = publish("alarm/1", QoS::AtMostOnce, 0, &own, Version::V5);
    relay.receive_client(&sent, NOW).unwrap();
    let (class, got) = one(&mut relay);
    assert_eq!(class, Class::RealTime);
    let Packet::Publish(got) = decode(&got, Version::V5) else {
        panic!("{got:?}");
    };
    let user: Vec<_> = got.properties.user().collect();
    let expected = [("colour", "red"), ("priority", "7"), ("rt-deadline", "5ms")];
    assert_eq!(user, expected);
    assert_eq!((got.topic, got.payload), ("alarm/1", &b"payload"[..]));

    let sent = publish("log", QoS::AtMostOnce, 0, &none(), Version::V5);
    relay.receive_client(&sent, NOW).unwrap();
    assert_eq!(one(&mut relay).0, Class::Priority);
    assert_eq!(relay.ruled, 2);
}

#[test]
fn what_no_rule_is_for_passes_byte_for_byte() {
    let mut relay = up(&["a: priority=0"], Version::V5, &none());
    let mut own = none();
    own.push_user("rt-deadline", "1ms").unwrap();
    own.push_number(PropertyId::MessageExpiryInterval, 9);
    let sent = publish("b", QoS::ExactlyOnce, 7, &own, Version::V5);
    relay.receive_client(&sent, NOW).unwrap();
    assert_eq!(one(&mut relay), (Class::RealTime, sent));
    // And so do other packets, in both directions.
    let mut subscribe = Vec::new();
    let filters = [("x/#", SubscribeOptions::default())];
    Subscribe::put(
        9,
        own.as_properties(),
        &filters,
        Version::V5,
        &mut subscribe,
    )
    .unwrap();
    relay.receive_client(&subscribe, NOW).unwrap();
    assert_eq!(one(&mut relay), (Class::Normal, subscribe));
    let message = publish("x/1", QoS::AtLeastOnce, 3, &own, Version::V5);
    relay.receive_broker(&message, NOW).unwrap();
    assert_eq!(to_client(&mut relay), message);
}

#[test]
fn the_default_of_connect_makes_the_class() {
    let mut relay = Relay::new(common(&[], false));
    let mut properties = none();
    properties.require(&"priority=4".parse().unwrap());
    let connect = Connect {
        properties: properties.as_properties(),
        ..connect(Version::V5)
    };
    let connect = bytes(Packet::Connect(connect), Version::V5);
    relay.receive_client(&connect, NOW).unwrap();
    assert_eq!(one(&mut relay).1, connect, "nothing was changed");
    relay.receive_broker(&connack(&none()), NOW).unwrap();
    let sent = publish("t", QoS::AtMostOnce, 0, &none(), Version::V5);
    relay.receive_client(&sent, NOW).unwrap();
    assert_eq!(one(&mut relay), (Class::Priority, sent));
}

#[test]
fn aliases_have_the_rules_of_their_topics() {
    let mut relay = up(&["alarm: priority=0"], Version::V5, &none());
    let mut alias = none();
    alias.push_number(PropertyId::TopicAlias, 1);
    for topic in ["alarm", ""] {
        let sent = publish(topic, QoS::AtMostOnce, 0, &alias, Version::V5);
        relay.receive_client(&sent, NOW).unwrap();
        let (class, got) = one(&mut relay);
        assert_eq!(class, Class::Priority);
        let Packet::Publish(got) = decode(&got, Version::V5) else {
            panic!("{got:?}");
        };
        assert_eq!(got.topic, topic);
        assert_eq!(got.properties.user_value("priority"), Some("0"));
    }
    let mut unknown = none();
    unknown.push_number(PropertyId::TopicAlias, 2);
    let sent = publish("", QoS::AtMostOnce, 0, &unknown, Version::V5);
    let ended = relay.receive_client(&sent, NOW);
    assert!(matches!(ended, Err(RelayFailure::Client(_))), "{ended:?}");
}

#[test]
fn there_are_no_aliases_in_datagrams() {
    let mut relay = Relay::new(common(&[], true));
    let mut properties = none();
    properties
        .push_number(PropertyId::TopicAliasMaximum, 10)
        .push_number(PropertyId::ReceiveMaximum, 5);
    let connect = Connect {
        properties: properties.as_properties(),
        ..connect(Version::V5)
    };
    let connect = bytes(Packet::Connect(connect), Version::V5);
    relay.receive_client(&connect, NOW).unwrap();
    relay.receive_broker(&connack(&properties), NOW).unwrap();
    let (_, sent) = one(&mut relay);
    let answer = to_client(&mut relay);
    let (Packet::Connect(sent), Packet::ConnAck(answer)) =
        (decode(&sent, Version::V5), decode(&answer, Version::V5))
    else {
        panic!("{sent:?} {answer:?}");
    };
    for properties in [sent.properties, answer.properties] {
        assert_eq!(properties.number(PropertyId::TopicAliasMaximum), None);
        assert_eq!(properties.number(PropertyId::ReceiveMaximum), Some(5));
    }
}

#[test]
fn a_bridge_subscribes_as_one() {
    let mut relay = Relay::new(common(&[], false));
    let mut connect = bytes(Packet::Connect(connect(Version::V311)), Version::V311);
    let level = connect.windows(4).position(|it| it == b"MQTT").unwrap() + 4;
    connect[level] |= 0x80;
    relay.receive_client(&connect, NOW).unwrap();
    relay.receive_broker(&connack(&none()), NOW).unwrap();
    let _ = to_broker(&mut relay);
    let options = SubscribeOptions::default();
    let mut request = Vec::new();
    let filters = [("a", options)];
    Subscribe::put(1, Properties::EMPTY, &filters, Version::V311, &mut request).unwrap();
    relay.receive_client(&request, NOW).unwrap();
    let mut expected = Vec::new();
    let filters = [("a", options.of_bridge("a"))];
    Subscribe::put(1, Properties::EMPTY, &filters, Version::V5, &mut expected).unwrap();
    assert_eq!(one(&mut relay).1, expected);
}

#[test]
fn every_packet_of_3_1_1_is_translated() {
    use PacketType as P;
    let (old, new) = (Version::V311, Version::V5);
    let mut relay = up(&[], old, &none());
    let mut request = Vec::new();
    let filters = [("a", SubscribeOptions::default())];
    Subscribe::put(1, Properties::EMPTY, &filters, old, &mut request).unwrap();
    Unsubscribe::put(2, Properties::EMPTY, &["a"], old, &mut request).unwrap();
    for kind in [P::PubAck, P::PubRec, P::PubRel, P::PubComp] {
        let ack = Ack::new(3, ReasonCode::Success);
        ack.encode(kind, old, &mut request).unwrap();
    }
    request.extend(bytes(Packet::PingReq, old));
    request.extend(publish("t", QoS::ExactlyOnce, 4, &none(), old));
    relay.receive_client(&request, NOW).unwrap();
    let all: Vec<u8> = to_broker(&mut relay).concat_bytes();
    let mut expected = Vec::new();
    Subscribe::put(1, Properties::EMPTY, &filters, new, &mut expected).unwrap();
    Unsubscribe::put(2, Properties::EMPTY, &["a"], new, &mut expected).unwrap();
    for kind in [P::PubAck, P::PubRec, P::PubRel, P::PubComp] {
        let ack = Ack::new(3, ReasonCode::Success);
        ack.encode(kind, new, &mut expected).unwrap();
    }
    expected.extend(bytes(Packet::PingReq, new));
    expected.extend(publish("t", QoS::ExactlyOnce, 4, &none(), new));
    assert_eq!(all, expected);

    let mut properties = none();
    properties.push_user("rt-status", "admitted").unwrap();
    let given = properties.as_properties();
    let mut answer = Vec::new();
    let suback = |properties, reasons: &'static [u8]| SubAck {
        packet_id: 1,
        properties,
        reasons,
    };
    let unsuback = |properties, reasons: &'static [u8]| UnsubAck {
        packet_id: 2,
        properties,
        reasons,
    };
    suback(given, &[1, 0x87]).encode(new, &mut answer).unwrap();
    unsuback(given, &[0]).encode(new, &mut answer).unwrap();
    answer.extend(bytes(Packet::PingResp, new));
    answer.extend(publish("a", QoS::AtLeastOnce, 5, &properties, new));
    for (kind, reason) in [
        (P::PubAck, ReasonCode::NoMatchingSubscribers),
        (P::PubRec, ReasonCode::NotAuthorized),
        (P::PubRel, ReasonCode::PacketIdentifierNotFound),
        (P::PubComp, ReasonCode::PacketIdentifierNotFound),
    ] {
        Ack::new(3, reason).encode(kind, new, &mut answer).unwrap();
    }
    relay.receive_broker(&answer, NOW).unwrap();
    let mut expected = Vec::new();
    suback(Properties::EMPTY, &[1, 0x80])
        .encode(old, &mut expected)
        .unwrap();
    unsuback(Properties::EMPTY, &[])
        .encode(old, &mut expected)
        .unwrap();
    expected.extend(bytes(Packet::PingResp, old));
    expected.extend(publish("a", QoS::AtLeastOnce, 5, &none(), old));
    for kind in [P::PubAck, P::PubRec, P::PubRel, P::PubComp] {
        let ack = Ack::new(3, ReasonCode::Success);
        ack.encode(kind, old, &mut expected).unwrap();
    }
    assert_eq!(to_client(&mut relay), expected);
}

trait ConcatBytes {
    fn concat_bytes(self) -> Vec<u8>;
}

impl ConcatBytes for Vec<(Class, Vec<u8>)> {
    fn concat_bytes(self) -> Vec<u8> {
        self.into_iter().flat_map(|(_, bytes)| bytes).collect()
    }
}

#[test]
fn a_refusal_that_may_pass_closes_an_earlier_client() {
    let mut relay = up(&[], Version::V311, &none());
    let sent = publish("t", QoS::AtLeastOnce, 1, &none(), Version::V311);
    relay.receive_client(&sent, NOW).unwrap();
    to_broker(&mut relay);
    let mut refusal = Vec::new();
    Ack::new(1, ReasonCode::QuotaExceeded)
        .encode(PacketType::PubAck, Version::V5, &mut refusal)
        .unwrap();
    let ended = relay.receive_broker(&refusal, NOW);
    assert_eq!(ended, Err(RelayFailure::Refused(ReasonCode::QuotaExceeded)));
    assert!(to_client(&mut relay).is_empty());
    assert_eq!(one(&mut relay).1, [0xE0, 1, 0x04], "its Will is published");
}

#[test]
fn the_receive_maximum_is_kept_for_who_does_not_know_it() {
    let mut properties = none();
    properties.push_number(PropertyId::ReceiveMaximum, 2);
    let mut relay = up(&[], Version::V311, &properties);
    for id in 1..=5 {
        let sent = publish("t", QoS::ExactlyOnce, id, &none(), Version::V311);
        relay.receive_client(&sent, NOW).unwrap();
    }
    let qos0 = publish("t", QoS::AtMostOnce, 0, &none(), Version::V311);
    relay.receive_client(&qos0, NOW).unwrap();
    let ids = |relay: &mut Relay| -> Vec<u16> {
        let all = to_broker(relay).concat_bytes();
        let mut rest = &all[..];
        let mut ids = Vec::new();
        while let Ok(Split::Frame(frame)) = split(rest, u32::MAX) {
            if let Packet::Publish(publish) = Packet::decode(frame, Version::V5).unwrap() {
                ids.push(publish.packet_id);
            }
            rest = &rest[frame.bytes.len()..];
        }
        ids
    };
    assert_eq!(ids(&mut relay), [1, 2, 0]);
    let answer = |relay: &mut Relay, kind, id, reason| {
        let mut out = Vec::new();
        Ack::new(id, reason)
            .encode(kind, Version::V5, &mut out)
            .unwrap();
        relay.receive_broker(&out, NOW).unwrap();
    };
    answer(&mut relay, PacketType::PubRec, 2, ReasonCode::Success);
    assert_eq!(ids(&mut relay), [0_u16; 0], "PUBREC is not the end");
    answer(&mut relay, PacketType::PubComp, 2, ReasonCode::Success);
    assert_eq!(ids(&mut relay), [3]);
    answer(&mut relay, PacketType::PubRec, 1, ReasonCode::NotAuthorized);
    assert_eq!(ids(&mut relay), [4]);
    // The same again is no other message.
    let again = publish("t", QoS::ExactlyOnce, 4, &none(), Version::V311);
    relay.receive_client(&again, NOW).unwrap();
    assert_eq!(ids(&mut relay), [4]);
}

#[test]
fn a_client_cannot_have_memory_without_bound() {
    let mut properties = none();
    properties.push_number(PropertyId::ReceiveMaximum, 1);
    let mut relay = up(&[], Version::V311, &properties);
    let message = Message::new("t", vec![0; 60_000]);
    for id in 1..=u16::MAX {
        let publish = Publish {
            dup: false,
            qos: QoS::AtLeastOnce,
            retain: false,
            topic: &message.topic,
            packet_id: id,
            properties: Properties::EMPTY,
            payload: &message.payload,
        };
        let sent = bytes(Packet::Publish(publish), Version::V311);
        to_broker(&mut relay);
        if let Err(ended) = relay.receive_client(&sent, NOW) {
            assert!(
                matches!(&ended, RelayFailure::Unable(why) if why.contains("the 1 that")),
                "{ended}"
            );
            assert!(relay.is_over());
            assert!(usize::from(id) * 60_000 <= HELD + 200_000);
            return;
        }
    }
    panic!("it was never ended");
}

#[test]
fn what_the_broker_does_not_take_is_not_sent() {
    for (version, said) in [(Version::V5, &[0xE0, 1, 0x95][..]), (Version::V311, &[])] {
        let mut properties = none();
        properties.push_number(PropertyId::MaximumPacketSize, 15);
        let mut relay = up(&[], version, &properties);
        let sent = publish("a long topic", QoS::AtMostOnce, 0, &none(), version);
        let ended = relay.receive_client(&sent, NOW).unwrap_err();
        assert!(ended.to_string().contains("the broker takes 15"), "{ended}");
        assert_eq!(to_client(&mut relay), said);
    }
}

#[test]
fn who_vanishes_leaves_a_will() {
    let mut relay = up(&[], Version::V311, &none());
    relay.client_gone();
    assert_eq!(one(&mut relay).1, [0xE0, 1, 0x04]);
    let mut relay = up(&[], Version::V311, &none());
    relay.receive_client(&[0xE0, 0], NOW).unwrap();
    assert_eq!(one(&mut relay).1, [0xE0, 0], "DISCONNECT is no vanishing");
    assert!(relay.is_over());
}

#[test]
fn without_broker_clients_are_told_and_closed() {
    for (version, said) in [
        (Version::V5, &[0x20, 3, 0, 0x88, 0][..]),
        (Version::V311, &[0x20, 2, 0, 3]),
    ] {
        let mut relay = Relay::new(common(&[], false));
        let connect = bytes(Packet::Connect(connect(version)), version);
        relay.receive_client(&connect, NOW).unwrap();
        relay.broker_gone();
        assert_eq!(to_client(&mut relay), said);
        assert!(relay.is_over() && relay.to_broker().is_none());
    }
    let mut relay = up(&[], Version::V5, &none());
    relay.broker_gone();
    assert_eq!(to_client(&mut relay), [0xE0, 1, 0x80]);
}

#[test]
fn packets_before_connack_wait() {
    let mut relay = Relay::new(common(&[], false));
    let mut sent = bytes(Packet::Connect(connect(Version::V5)), Version::V5);
    sent.extend(publish("t", QoS::AtMostOnce, 0, &none(), Version::V5));
    relay.receive_client(&sent, NOW).unwrap();
    assert!(matches!(
        decode(&one(&mut relay).1, Version::V5),
        Packet::Connect(_)
    ));
    relay.receive_broker(&connack(&none()), NOW).unwrap();
    assert!(matches!(
        decode(&one(&mut relay).1, Version::V5),
        Packet::Publish(_)
    ));
}

#[test]
fn pings_that_the_client_does_not_know_of_stay_here() {
    let mut properties = none();
    properties.push_number(PropertyId::ServerKeepAlive, 10);
    let mut relay = up(&[], Version::V311, &properties);
    let later = NOW + Duration::from_secs(10);
    assert_eq!(relay.timeout(), Some(later));
    // The client pings, too, before ours.
    relay.receive_client(&[0xC0, 0], NOW).unwrap();
    relay.tick(later).unwrap();
    assert_eq!(to_broker(&mut relay).concat_bytes(), [0xC0, 0, 0xC0, 0]);
    relay.tick(later * 2).unwrap();
    assert!(relay.to_broker().is_none(), "one at a time");
    relay.receive_broker(&[0xD0, 0, 0xD0, 0], later).unwrap();
    assert_eq!(to_client(&mut relay), [0xD0, 0], "one is the client's");
    assert_eq!(relay.timeout(), Some(later + Duration::from_secs(10)));
}

#[test]
fn a_silent_client_is_gone() {
    let mut relay = Relay::new(common(&[], false));
    let connect = Connect {
        keep_alive: 10,
        ..connect(Version::V311)
    };
    let connect = bytes(Packet::Connect(connect), Version::V311);
    relay.receive_client(&connect, NOW).unwrap();
    to_broker(&mut relay);
    relay.receive_broker(&connack(&none()), NOW).unwrap();
    let end = NOW + Duration::from_secs(15);
    assert_eq!(relay.timeout(), Some(end));
    relay.tick(end - Duration::from_nanos(1)).unwrap();
    assert!(relay.tick(end).is_err());
    assert_eq!(one(&mut relay).1, [0xE0, 1, 0x04]);
}

#[test]
fn a_full_direction_is_not_read_on() {
    let mut relay = up(&[], Version::V5, &none());
    let payload = vec![0; 50_000];
    let publish = Publish {
        dup: false,
        qos: QoS::AtMostOnce,
        retain: false,
        topic: "t",
        packet_id: 0,
        properties: Properties::EMPTY,
        payload: &payload,
    };
    let sent = bytes(Packet::Publish(publish), Version::V5);
    let mut count = 0;
    while relay.wants_client() {
        relay.receive_client(&sent, NOW).unwrap();
        count += 1;
    }
    assert_eq!(count, BUFFER / sent.len() + 1);
    // What was read all the same waits, and goes on when there is room.
    relay.receive_client(&sent, NOW).unwrap();
    assert_eq!(
        to_broker(&mut relay).concat_bytes().len(),
        count * sent.len()
    );
    relay.advance(NOW).unwrap();
    assert_eq!(to_broker(&mut relay).concat_bytes().len(), sent.len());
    while relay.wants_broker() {
        relay.receive_broker(&sent, NOW).unwrap();
    }
    assert!(relay.to_client().len() < BUFFER + sent.len());
}

mod hostile {
    use super::*;
    use proptest::prelude::*;

    fn piece() -> impl Strategy<Value = Vec<u8>> {
        let mut own = none();
        own.push_user("priority", "7").unwrap();
        let alias = {
            let mut alias = none();
            alias.push_number(PropertyId::TopicAlias, 3);
            alias
        };
        let whole = vec![
            bytes(Packet::Connect(connect(Version::V5)), Version::V5),
            bytes(Packet::Connect(connect(Version::V311)), Version::V311),
            connack(&none()),
            publish("a", QoS::ExactlyOnce, 1, &own, Version::V5),
            publish("a", QoS::AtLeastOnce, 2, &none(), Version::V311),
            publish("a", QoS::AtMostOnce, 0, &alias, Version::V5),
            vec![0xC0, 0],
            vec![0xD0, 0],
            vec![0xE0, 0],
            vec![0x40, 2, 0, 1],
            vec![0x50, 3, 0, 1, 0x97],
            vec![0x62, 2, 0, 1],
            vec![0x70, 2, 0, 1],
            vec![0x90, 4, 0, 1, 0, 0x80],
            vec![0xF0, 0],
        ];
        prop_oneof![
            6 => prop::sample::select(whole),
            1 => prop::collection::vec(any::<u8>(), 0..30),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

        /// Whatever either side says, however it is cut: no panic, valid MQTT 5
        /// towards the broker, and nothing after the end.
        #[test]
        fn any_packets_in_any_order(
            pieces in prop::collection::vec((any::<bool>(), piece()), 0..30),
            greeted in prop::option::of(any::<bool>()),
        ) {
            let rules = ["a: priority=1, deadline=3ms"];
            let mut relay = match greeted {
                None => Relay::new(common(&rules, false)),
                Some(true) => up(&rules, Version::V5, &none()),
                Some(false) => up(&rules, Version::V311, &none()),
            };
            let v5_client = greeted == Some(true);
            let mut now = NOW;
            for (from_client, piece) in pieces {
                now += Duration::from_millis(100);
                let was_over = relay.is_over();
                let result = match from_client {
                    true => relay.receive_client(&piece, now),
                    false => relay.receive_broker(&piece, now),
                };
                if result.is_err() {
                    prop_assert!(relay.is_over());
                }
                let _ = relay.tick(now);
                let sent = to_broker(&mut relay);
                prop_assert!(!was_over || sent.is_empty());
                // What a client of MQTT 5 says passes as it is.
                if !v5_client && greeted.is_some() {
                    let sent = sent.concat_bytes();
                    let mut rest = &sent[..];
                    while let Ok(Split::Frame(frame)) = split(rest, u32::MAX) {
                        prop_assert!(Packet::decode(frame, Version::V5).is_ok());
                        rest = &rest[frame.bytes.len()..];
                    }
                    prop_assert!(rest.is_empty());
                }
                to_client(&mut relay);
            }
        }
    }
}
