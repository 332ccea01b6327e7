//! Hand-assembled bytes of every packet type beside what they mean.

use punctual_codec::packet::RetainHandling;
use punctual_codec::{PacketType, PropertyId as P, QoS, ReasonCode, SubscribeOptions, Version};

use super::model::{Model, Value, WillModel};

pub struct Golden {
    pub name: &'static str,
    pub version: Version,
    /// As in [`super::hex`]; the shortest encoding of `model`.
    pub hex: &'static str,
    pub model: Model,
}

fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

fn pair(name: &str, value: &str) -> (P, Value) {
    (
        P::UserProperty,
        Value::Pair(name.to_owned(), value.to_owned()),
    )
}

fn ack(kind: PacketType, reason: ReasonCode, properties: Vec<(P, Value)>) -> Model {
    Model::Ack {
        kind,
        packet_id: 0x1234,
        reason,
        properties,
    }
}

pub fn golden() -> Vec<Golden> {
    let mut all = Vec::new();
    let mut add = |name, version, hex, model| {
        all.push(Golden {
            name,
            version,
            hex,
            model,
        });
    };
    connects(&mut add);
    connacks(&mut add);
    publishes(&mut add);
    acks(&mut add);
    subscriptions(&mut add);
    rest(&mut add);
    all
}

type Add<'a> = &'a mut dyn FnMut(&'static str, Version, &'static str, Model);

fn connects(add: Add<'_>) {
    add(
        "connect-31",
        Version::V31,
        "10 10 0006 'MQIsdp' 03 02 003C 0002 'ab'",
        Model::Connect {
            version: Version::V31,
            clean_start: true,
            keep_alive: 60,
            client_id: "ab".into(),
            will: None,
            username: None,
            password: None,
            properties: vec![],
        },
    );
    add(
        "connect-311",
        Version::V311,
        "10 22 0004 'MQTT' 04 F4 0000 0002 'ab' 0003 'w/t' 0002 'by' 0004 'user' 0003 'pwd'",
        Model::Connect {
            version: Version::V311,
            clean_start: false,
            keep_alive: 0,
            client_id: "ab".into(),
            will: Some(WillModel {
                topic: "w/t".into(),
                payload: b"by".to_vec(),
                qos: QoS::ExactlyOnce,
                retain: true,
                properties: vec![],
            }),
            username: Some("user".into()),
            password: Some(b"pwd".to_vec()),
            properties: vec![],
        },
    );
    add(
        "connect-5-minimal",
        Version::V5,
        "10 0D 0004 'MQTT' 05 02 0000 00 0000",
        Model::Connect {
            version: Version::V5,
            clean_start: true,
            keep_alive: 0,
            client_id: String::new(),
            will: None,
            username: None,
            password: None,
            properties: vec![],
        },
    );
    add(
        "connect-5-full",
        Version::V5,
        "10 6E 0004 'MQTT' 05 CE 000A \
         2A 11 0000000A 15 0002 'XY' 16 0001 FF 17 00 19 01 21 0014 22 0005 26 0001 'k' 0001 'v' \
            27 00001000 26 0001 'k' 0000 \
         0003 'cid' \
         25 18 00000005 01 01 02 00000E10 03 0004 'text' 08 0003 'r/t' 09 0002 C0DE \
            26 0001 'a' 0001 'b' \
         0004 'w/ü' 0001 00 0001 'u' 0000",
        Model::Connect {
            version: Version::V5,
            clean_start: true,
            keep_alive: 10,
            client_id: "cid".into(),
            will: Some(WillModel {
                topic: "w/ü".into(),
                payload: vec![0],
                qos: QoS::AtLeastOnce,
                retain: false,
                properties: vec![
                    (P::WillDelayInterval, Value::Number(5)),
                    (P::PayloadFormatIndicator, Value::Number(1)),
                    (P::MessageExpiryInterval, Value::Number(3600)),
                    (P::ContentType, text("text")),
                    (P::ResponseTopic, text("r/t")),
                    (P::CorrelationData, Value::Binary(vec![0xC0, 0xDE])),
                    pair("a", "b"),
                ],
            }),
            username: Some("u".into()),
            password: Some(vec![]),
            properties: vec![
                (P::SessionExpiryInterval, Value::Number(10)),
                (P::AuthenticationMethod, text("XY")),
                (P::AuthenticationData, Value::Binary(vec![0xFF])),
                (P::RequestProblemInformation, Value::Number(0)),
                (P::RequestResponseInformation, Value::Number(1)),
                (P::ReceiveMaximum, Value::Number(20)),
                (P::TopicAliasMaximum, Value::Number(5)),
                pair("k", "v"),
                (P::MaximumPacketSize, Value::Number(4096)),
                pair("k", ""),
            ],
        },
    );
    add(
        "connect-5-password-only",
        Version::V5,
        "10 11 0004 'MQTT' 05 40 FFFF 00 0000 0002 'pw'",
        Model::Connect {
            version: Version::V5,
            clean_start: false,
            keep_alive: 65_535,
            client_id: String::new(),
            will: None,
            username: None,
            password: Some(b"pw".to_vec()),
            properties: vec![],
        },
    );
}

fn connacks(add: Add<'_>) {
    let connack = |session_present, reason, properties| Model::ConnAck {
        session_present,
        reason,
        properties,
    };
    add(
        "connack-31",
        Version::V31,
        "20 02 00 00",
        connack(false, ReasonCode::Success, vec![]),
    );
    add(
        "connack-311-session",
        Version::V311,
        "20 02 01 00",
        connack(true, ReasonCode::Success, vec![]),
    );
    add(
        "connack-311-refused",
        Version::V311,
        "20 02 00 05",
        connack(false, ReasonCode::NotAuthorized, vec![]),
    );
    add(
        "connack-5-refused",
        Version::V5,
        "20 03 00 87 00",
        connack(false, ReasonCode::NotAuthorized, vec![]),
    );
    add(
        "connack-5-full",
        Version::V5,
        "20 41 01 00 3E 11 FFFFFFFF 12 0002 'id' 13 003C 15 0001 'm' 16 0001 00 1A 0001 'i' \
         1C 0001 's' 1F 0002 'ok' 21 000A 22 000A 24 01 25 00 27 00010000 28 01 29 00 2A 01 \
         26 0001 'k' 0001 'v'",
        connack(
            true,
            ReasonCode::Success,
            vec![
                (P::SessionExpiryInterval, Value::Number(u32::MAX)),
                (P::AssignedClientIdentifier, text("id")),
                (P::ServerKeepAlive, Value::Number(60)),
                (P::AuthenticationMethod, text("m")),
                (P::AuthenticationData, Value::Binary(vec![0])),
                (P::ResponseInformation, text("i")),
                (P::ServerReference, text("s")),
                (P::ReasonString, text("ok")),
                (P::ReceiveMaximum, Value::Number(10)),
                (P::TopicAliasMaximum, Value::Number(10)),
                (P::MaximumQoS, Value::Number(1)),
                (P::RetainAvailable, Value::Number(0)),
                (P::MaximumPacketSize, Value::Number(65_536)),
                (P::WildcardSubscriptionAvailable, Value::Number(1)),
                (P::SubscriptionIdentifierAvailable, Value::Number(0)),
                (P::SharedSubscriptionAvailable, Value::Number(1)),
                pair("k", "v"),
            ],
        ),
    );
}

fn publishes(add: Add<'_>) {
    add(
        "publish-311-qos0",
        Version::V311,
        "30 07 0003 'a/b' 'hi'",
        Model::Publish {
            dup: false,
            qos: QoS::AtMostOnce,
            retain: false,
            topic: "a/b".into(),
            packet_id: 0,
            properties: vec![],
            payload: b"hi".to_vec(),
        },
    );
    add(
        "publish-31-qos2-dup-retain",
        Version::V31,
        "3D 05 0001 'a' 0001",
        Model::Publish {
            dup: true,
            qos: QoS::ExactlyOnce,
            retain: true,
            topic: "a".into(),
            packet_id: 1,
            properties: vec![],
            payload: vec![],
        },
    );
    add(
        "publish-5-qos1",
        Version::V5,
        "32 35 0003 'a/b' FFFF \
         2B 01 01 02 0000003C 03 0001 't' 08 0001 'r' 09 0001 00 0B 01 0B FFFFFF7F 23 0007 \
            26 0001 'k' 0001 'v' 26 0001 'k' 0001 'w' \
         'hi'",
        Model::Publish {
            dup: false,
            qos: QoS::AtLeastOnce,
            retain: false,
            topic: "a/b".into(),
            packet_id: 65_535,
            properties: vec![
                (P::PayloadFormatIndicator, Value::Number(1)),
                (P::MessageExpiryInterval, Value::Number(60)),
                (P::ContentType, text("t")),
                (P::ResponseTopic, text("r")),
                (P::CorrelationData, Value::Binary(vec![0])),
                (P::SubscriptionIdentifier, Value::Number(1)),
                (P::SubscriptionIdentifier, Value::Number(268_435_455)),
                (P::TopicAlias, Value::Number(7)),
                pair("k", "v"),
                pair("k", "w"),
            ],
            payload: b"hi".to_vec(),
        },
    );
    add(
        "publish-5-alias-only",
        Version::V5,
        "31 07 0000 03 23 0001 00",
        Model::Publish {
            dup: false,
            qos: QoS::AtMostOnce,
            retain: true,
            topic: String::new(),
            packet_id: 0,
            properties: vec![(P::TopicAlias, Value::Number(1))],
            payload: vec![0],
        },
    );
}

fn acks(add: Add<'_>) {
    use PacketType::{PubAck, PubComp, PubRec, PubRel};
    let plain = |kind| ack(kind, ReasonCode::Success, vec![]);
    add("puback-311", Version::V311, "40 02 1234", plain(PubAck));
    add("pubrec-311", Version::V311, "50 02 1234", plain(PubRec));
    add("pubrel-311", Version::V311, "62 02 1234", plain(PubRel));
    add("pubcomp-311", Version::V311, "70 02 1234", plain(PubComp));
    add("puback-5", Version::V5, "40 02 1234", plain(PubAck));
    add(
        "puback-5-reason",
        Version::V5,
        "40 03 1234 10",
        ack(PubAck, ReasonCode::NoMatchingSubscribers, vec![]),
    );
    add(
        "pubrec-5-full",
        Version::V5,
        "50 10 1234 97 0C 1F 0002 'no' 26 0001 'k' 0001 'v'",
        ack(
            PubRec,
            ReasonCode::QuotaExceeded,
            vec![(P::ReasonString, text("no")), pair("k", "v")],
        ),
    );
    add(
        "pubrel-5-reason",
        Version::V5,
        "62 03 1234 92",
        ack(PubRel, ReasonCode::PacketIdentifierNotFound, vec![]),
    );
    add(
        "pubcomp-5-success-with-property",
        Version::V5,
        "70 08 1234 00 04 1F 0001 'x'",
        ack(
            PubComp,
            ReasonCode::Success,
            vec![(P::ReasonString, text("x"))],
        ),
    );
}

fn subscriptions(add: Add<'_>) {
    let qos = |qos| SubscribeOptions {
        qos,
        ..SubscribeOptions::default()
    };
    add(
        "subscribe-311",
        Version::V311,
        "82 0E 000A 0003 'a/b' 01 0003 'c/#' 02",
        Model::Subscribe {
            packet_id: 10,
            properties: vec![],
            filters: vec![
                ("a/b".into(), qos(QoS::AtLeastOnce)),
                ("c/#".into(), qos(QoS::ExactlyOnce)),
            ],
        },
    );
    add(
        "subscribe-5",
        Version::V5,
        "82 1B 000A 03 0B 8001 0001 '+' 2C 000A '$share/g/a' 1A 0001 '#' 00",
        Model::Subscribe {
            packet_id: 10,
            properties: vec![(P::SubscriptionIdentifier, Value::Number(128))],
            filters: vec![
                (
                    "+".into(),
                    SubscribeOptions {
                        qos: QoS::AtMostOnce,
                        no_local: true,
                        retain_as_published: true,
                        retain_handling: RetainHandling::DoNotSend,
                    },
                ),
                (
                    "$share/g/a".into(),
                    SubscribeOptions {
                        qos: QoS::ExactlyOnce,
                        no_local: false,
                        retain_as_published: true,
                        retain_handling: RetainHandling::SendIfNew,
                    },
                ),
                ("#".into(), SubscribeOptions::default()),
            ],
        },
    );
    add(
        "suback-311",
        Version::V311,
        "90 06 000A 00 01 02 80",
        Model::SubAck {
            packet_id: 10,
            properties: vec![],
            reasons: vec![0, 1, 2, 0x80],
        },
    );
    add(
        "suback-5",
        Version::V5,
        "90 0A 000A 04 1F 0001 'r' 02 87 A2",
        Model::SubAck {
            packet_id: 10,
            properties: vec![(P::ReasonString, text("r"))],
            reasons: vec![0x02, 0x87, 0xA2],
        },
    );
    add(
        "unsubscribe-311",
        Version::V311,
        "A2 08 000A 0001 'a' 0001 '#'",
        Model::Unsubscribe {
            packet_id: 10,
            properties: vec![],
            filters: vec!["a".into(), "#".into()],
        },
    );
    add(
        "unsubscribe-5",
        Version::V5,
        "A2 0D 000A 07 26 0001 'k' 0001 'v' 0001 '+'",
        Model::Unsubscribe {
            packet_id: 10,
            properties: vec![pair("k", "v")],
            filters: vec!["+".into()],
        },
    );
    add(
        "unsuback-311",
        Version::V311,
        "B0 02 000A",
        Model::UnsubAck {
            packet_id: 10,
            properties: vec![],
            reasons: vec![],
        },
    );
    add(
        "unsuback-5",
        Version::V5,
        "B0 05 000A 00 00 11",
        Model::UnsubAck {
            packet_id: 10,
            properties: vec![],
            reasons: vec![0x00, 0x11],
        },
    );
}

fn rest(add: Add<'_>) {
    add("pingreq", Version::V311, "C0 00", Model::PingReq);
    add("pingresp", Version::V5, "D0 00", Model::PingResp);
    let disconnect = |reason, properties| Model::Disconnect { reason, properties };
    add(
        "disconnect-311",
        Version::V311,
        "E0 00",
        disconnect(ReasonCode::Success, vec![]),
    );
    add(
        "disconnect-5",
        Version::V5,
        "E0 00",
        disconnect(ReasonCode::Success, vec![]),
    );
    add(
        "disconnect-5-reason",
        Version::V5,
        "E0 01 04",
        disconnect(ReasonCode::DisconnectWithWill, vec![]),
    );
    add(
        "disconnect-5-bad-method",
        Version::V5,
        "E0 01 8C",
        disconnect(ReasonCode::BadAuthenticationMethod, vec![]),
    );
    add(
        "disconnect-5-full",
        Version::V5,
        "E0 15 9C 13 11 00000000 1C 0001 's' 1F 0001 'r' 26 0001 'k' 0000",
        disconnect(
            ReasonCode::UseAnotherServer,
            vec![
                (P::SessionExpiryInterval, Value::Number(0)),
                (P::ServerReference, text("s")),
                (P::ReasonString, text("r")),
                pair("k", ""),
            ],
        ),
    );
    let auth = |reason, properties| Model::Auth { reason, properties };
    add(
        "auth-5",
        Version::V5,
        "F0 00",
        auth(ReasonCode::Success, vec![]),
    );
    add(
        "auth-5-full",
        Version::V5,
        "F0 15 18 13 15 0003 'SCR' 16 0001 01 1F 0000 26 0001 'k' 0000",
        auth(
            ReasonCode::ContinueAuthentication,
            vec![
                (P::AuthenticationMethod, text("SCR")),
                (P::AuthenticationData, Value::Binary(vec![1])),
                (P::ReasonString, text("")),
                pair("k", ""),
            ],
        ),
    );
}
