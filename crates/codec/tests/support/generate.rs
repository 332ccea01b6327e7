//! Strategies for valid packets of every type and version.
//!
//! What is valid is written down here a second time, from the specification's
//! tables, and not taken from the code under test.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use punctual_codec::packet::RetainHandling;
use punctual_codec::{PacketType, PropertyId as P, QoS, ReasonCode, SubscribeOptions, Version};

use super::model::{Model, Props, Shape, Value, WillModel, shape};

pub fn version() -> impl Strategy<Value = Version> {
    prop::sample::select(super::VERSIONS.to_vec())
}

/// A packet together with a version that has it.
pub fn versioned_packet() -> impl Strategy<Value = (Version, Model)> {
    version().prop_flat_map(|v| packet(v).prop_map(move |p| (v, p)))
}

/// Any packet that `version` has.
pub fn packet(version: Version) -> BoxedStrategy<Model> {
    let v5 = version == Version::V5;
    let mut all = vec![
        connect(version).boxed(),
        connack(version).boxed(),
        publish(version).boxed(),
        publish(version).boxed(),
        ack(version).boxed(),
        subscribe(version).boxed(),
        suback(version).boxed(),
        unsubscribe(version).boxed(),
        unsuback(version).boxed(),
        prop_oneof![Just(Model::PingReq), Just(Model::PingResp)].boxed(),
        disconnect(version).boxed(),
    ];
    if v5 {
        all.push(auth().boxed());
    }
    proptest::strategy::Union::new(all).boxed()
}

/// UTF-8 without U+0000; mostly short, sometimes with lengths that need two
/// and three bytes as a variable byte integer.
pub fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        8 => "[^\0]{0,12}",
        1 => (100usize..400).prop_map(|n| "ä".repeat(n)),
        1 => Just("\u{feff}\u{ffff}\u{1}".to_owned()),
        1 => (16_380usize..16_390).prop_map(|n| "x".repeat(n)),
    ]
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        8 => vec(any::<u8>(), 0..20),
        1 => (120usize..20_000).prop_map(|n| vec![0xA5; n]),
    ]
}

fn level() -> impl Strategy<Value = String> {
    prop_oneof![4 => "[a-c]{0,2}", 1 => "[^\0/+#]{0,8}"]
}

pub fn topic_name() -> impl Strategy<Value = String> {
    (any::<bool>(), vec(level(), 1..6)).prop_filter_map("empty topic", |(dollar, levels)| {
        let topic = format!("{}{}", if dollar { "$" } else { "" }, levels.join("/"));
        (!topic.is_empty()).then_some(topic)
    })
}

/// A topic filter without share prefix.
pub fn plain_filter() -> impl Strategy<Value = String> {
    let level = prop_oneof![3 => level(), 1 => Just("+".to_owned())];
    (vec(level, 1..6), any::<bool>())
        .prop_map(|(mut levels, hash)| {
            if hash {
                levels.push("#".to_owned());
            }
            levels.join("/")
        })
        .prop_filter("empty, or shared by chance", |f| {
            !f.is_empty() && !f.starts_with("$share/")
        })
}

pub fn filter() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => plain_filter(),
        1 => ("[^\0/+#]{1,5}", plain_filter()).prop_map(|(name, f)| format!("$share/{name}/{f}")),
    ]
}

fn qos() -> impl Strategy<Value = QoS> {
    prop::sample::select(vec![QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce])
}

fn number(id: P) -> BoxedStrategy<u32> {
    match id {
        P::PayloadFormatIndicator
        | P::RequestProblemInformation
        | P::RequestResponseInformation
        | P::MaximumQoS
        | P::RetainAvailable
        | P::WildcardSubscriptionAvailable
        | P::SubscriptionIdentifierAvailable
        | P::SharedSubscriptionAvailable => (0..=1u32).boxed(),
        P::ServerKeepAlive | P::TopicAliasMaximum => (0..=65_535u32).boxed(),
        P::ReceiveMaximum | P::TopicAlias => (1..=65_535u32).boxed(),
        P::MaximumPacketSize => (1..=u32::MAX).boxed(),
        P::SubscriptionIdentifier => prop_oneof![
            1..=127u32,
            128..=16_383u32,
            16_384..=2_097_151u32,
            2_097_152..=268_435_455u32,
        ]
        .boxed(),
        _ => any::<u32>().boxed(),
    }
}

fn property(id: P) -> BoxedStrategy<(P, Value)> {
    match shape(id) {
        Shape::Number => number(id).prop_map(Value::Number).boxed(),
        Shape::Text if id == P::ResponseTopic => topic_name().prop_map(Value::Text).boxed(),
        Shape::Text => text().prop_map(Value::Text).boxed(),
        Shape::Binary => bytes().prop_map(Value::Binary).boxed(),
        Shape::Pair => (text(), text())
            .prop_map(|(k, v)| Value::Pair(k, v))
            .boxed(),
    }
    .prop_map(move |value| (id, value))
    .boxed()
}

/// Any of `once` at most once and any number of `repeated`, in any order.
fn properties(version: Version, once: &[P], repeated: &[P]) -> BoxedStrategy<Props> {
    if version != Version::V5 {
        return Just(Props::new()).boxed();
    }
    let mut parts: Vec<BoxedStrategy<Props>> = once
        .iter()
        .map(|id| {
            option::weighted(0.3, property(*id))
                .prop_map(|p| p.into_iter().collect())
                .boxed()
        })
        .collect();
    parts.extend(repeated.iter().map(|id| vec(property(*id), 0..4).boxed()));
    let full = parts.prop_map(|lists| lists.concat()).prop_shuffle();
    prop_oneof![1 => Just(Props::new()), 3 => full].boxed()
}

fn with_method(mut properties: Props, method: String) -> Props {
    if !properties
        .iter()
        .any(|(id, _)| *id == P::AuthenticationMethod)
    {
        properties.push((P::AuthenticationMethod, Value::Text(method)));
    }
    properties
}

fn connect(version: Version) -> impl Strategy<Value = Model> {
    let once = [
        P::SessionExpiryInterval,
        P::AuthenticationMethod,
        P::AuthenticationData,
        P::RequestProblemInformation,
        P::RequestResponseInformation,
        P::ReceiveMaximum,
        P::TopicAliasMaximum,
        P::MaximumPacketSize,
    ];
    (
        any::<bool>(),
        any::<u16>(),
        text(),
        option::of(will(version)),
        option::of(text()),
        option::of(bytes()),
        properties(version, &once, &[P::UserProperty]),
        text(),
    )
        .prop_map(
            move |(clean_start, keep_alive, client_id, will, username, password, p, method)| {
                let data = p.iter().any(|(id, _)| *id == P::AuthenticationData);
                Model::Connect {
                    version,
                    clean_start,
                    keep_alive,
                    client_id,
                    will,
                    // Before MQTT 5 a password needs a user name.
                    password: password.filter(|_| username.is_some() || version == Version::V5),
                    username,
                    properties: if data { with_method(p, method) } else { p },
                }
            },
        )
}

fn will(version: Version) -> impl Strategy<Value = WillModel> {
    let once = [
        P::PayloadFormatIndicator,
        P::MessageExpiryInterval,
        P::ContentType,
        P::ResponseTopic,
        P::CorrelationData,
        P::WillDelayInterval,
    ];
    (
        topic_name(),
        bytes(),
        qos(),
        any::<bool>(),
        properties(version, &once, &[P::UserProperty]),
    )
        .prop_map(|(topic, payload, qos, retain, properties)| WillModel {
            topic,
            payload,
            qos,
            retain,
            properties,
        })
}

fn reason(codes: &'static [u8]) -> impl Strategy<Value = ReasonCode> {
    prop::sample::select(codes).prop_map(|code| ReasonCode::from_byte(code).unwrap())
}

const CONNACK: &[u8] = &[
    0x00, 0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x8C, 0x90, 0x95, 0x97,
    0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F,
];
/// MQTT 5 codes for which 3.1.1 has a return code of the same meaning.
const CONNACK_V3: &[u8] = &[0x00, 0x84, 0x85, 0x88, 0x86, 0x87];
const PUBACK: &[u8] = &[0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99];
const PUBREL: &[u8] = &[0x00, 0x92];
const SUBACK: &[u8] = &[
    0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2,
];
const SUBACK_V3: &[u8] = &[0x00, 0x01, 0x02, 0x80];
const UNSUBACK: &[u8] = &[0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91];
const DISCONNECT: &[u8] = &[
    0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, 0x8D, 0x8E, 0x8F, 0x90, 0x93, 0x94, 0x95,
    0x96, 0x97, 0x98, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9E, 0x9F, 0xA0, 0xA1, 0xA2,
];
const AUTH: &[u8] = &[0x00, 0x18, 0x19];

/// The reason codes that the specification's tables give `kind` (sections
/// 3.2.2.2, 3.4.2.1 to 3.7.2.1, 3.9.3, 3.11.3, 3.14.2.1 and 3.15.2.1).
pub fn reason_codes(kind: PacketType) -> &'static [u8] {
    match kind {
        PacketType::ConnAck => CONNACK,
        PacketType::PubAck | PacketType::PubRec => PUBACK,
        PacketType::PubRel | PacketType::PubComp => PUBREL,
        PacketType::SubAck => SUBACK,
        PacketType::UnsubAck => UNSUBACK,
        PacketType::Disconnect => DISCONNECT,
        PacketType::Auth => AUTH,
        _ => &[],
    }
}

fn connack(version: Version) -> impl Strategy<Value = Model> {
    let once = [
        P::SessionExpiryInterval,
        P::AssignedClientIdentifier,
        P::ServerKeepAlive,
        P::AuthenticationMethod,
        P::AuthenticationData,
        P::ResponseInformation,
        P::ServerReference,
        P::ReasonString,
        P::ReceiveMaximum,
        P::TopicAliasMaximum,
        P::MaximumQoS,
        P::RetainAvailable,
        P::MaximumPacketSize,
        P::WildcardSubscriptionAvailable,
        P::SubscriptionIdentifierAvailable,
        P::SharedSubscriptionAvailable,
    ];
    let codes = if version == Version::V5 {
        CONNACK
    } else {
        CONNACK_V3
    };
    (
        any::<bool>(),
        reason(codes),
        properties(version, &once, &[P::UserProperty]),
    )
        .prop_map(move |(present, reason, properties)| Model::ConnAck {
            session_present: present && reason == ReasonCode::Success && version != Version::V31,
            reason,
            properties,
        })
}

fn publish(version: Version) -> impl Strategy<Value = Model> {
    let once = [
        P::PayloadFormatIndicator,
        P::MessageExpiryInterval,
        P::ContentType,
        P::ResponseTopic,
        P::CorrelationData,
        P::TopicAlias,
    ];
    (
        any::<bool>(),
        qos(),
        any::<bool>(),
        topic_name(),
        any::<bool>(),
        1..=u16::MAX,
        properties(
            version,
            &once,
            &[P::UserProperty, P::SubscriptionIdentifier],
        ),
        bytes(),
    )
        .prop_map(|(dup, qos, retain, topic, keep, id, properties, payload)| {
            let alias = properties.iter().any(|(id, _)| *id == P::TopicAlias);
            Model::Publish {
                dup: dup && qos != QoS::AtMostOnce,
                qos,
                retain,
                topic: if alias && !keep { String::new() } else { topic },
                packet_id: if qos == QoS::AtMostOnce { 0 } else { id },
                properties,
                payload,
            }
        })
}

fn ack(version: Version) -> impl Strategy<Value = Model> {
    let kinds = [
        PacketType::PubAck,
        PacketType::PubRec,
        PacketType::PubRel,
        PacketType::PubComp,
    ];
    (
        prop::sample::select(kinds.to_vec()),
        1..=u16::MAX,
        any::<prop::sample::Index>(),
        properties(version, &[P::ReasonString], &[P::UserProperty]),
    )
        .prop_map(move |(kind, packet_id, code, properties)| {
            let code = if version == Version::V5 {
                *code.get(reason_codes(kind))
            } else {
                0
            };
            Model::Ack {
                kind,
                packet_id,
                reason: ReasonCode::from_byte(code).unwrap(),
                properties,
            }
        })
}

fn options(version: Version) -> impl Strategy<Value = SubscribeOptions> {
    (qos(), any::<bool>(), any::<bool>(), 0..3u8).prop_map(move |(qos, nl, rap, rh)| {
        if version != Version::V5 {
            return SubscribeOptions {
                qos,
                ..Default::default()
            };
        }
        SubscribeOptions {
            qos,
            no_local: nl,
            retain_as_published: rap,
            retain_handling: match rh {
                0 => RetainHandling::Send,
                1 => RetainHandling::SendIfNew,
                _ => RetainHandling::DoNotSend,
            },
        }
    })
}

fn subscribe(version: Version) -> impl Strategy<Value = Model> {
    (
        1..=u16::MAX,
        properties(version, &[P::SubscriptionIdentifier], &[P::UserProperty]),
        vec((filter(), options(version)), 1..5),
    )
        .prop_map(|(packet_id, properties, mut filters)| {
            for (filter, options) in &mut filters {
                options.no_local &= !filter.starts_with("$share/");
            }
            Model::Subscribe {
                packet_id,
                properties,
                filters,
            }
        })
}

fn suback(version: Version) -> impl Strategy<Value = Model> {
    let codes = if version == Version::V5 {
        SUBACK
    } else {
        SUBACK_V3
    };
    (
        1..=u16::MAX,
        properties(version, &[P::ReasonString], &[P::UserProperty]),
        vec(prop::sample::select(codes), 1..6),
    )
        .prop_map(|(packet_id, properties, reasons)| Model::SubAck {
            packet_id,
            properties,
            reasons,
        })
}

fn unsubscribe(version: Version) -> impl Strategy<Value = Model> {
    (
        1..=u16::MAX,
        properties(version, &[], &[P::UserProperty]),
        vec(filter(), 1..5),
    )
        .prop_map(|(packet_id, properties, filters)| Model::Unsubscribe {
            packet_id,
            properties,
            filters,
        })
}

fn unsuback(version: Version) -> impl Strategy<Value = Model> {
    (
        1..=u16::MAX,
        properties(version, &[P::ReasonString], &[P::UserProperty]),
        vec(prop::sample::select(UNSUBACK), 1..6),
    )
        .prop_map(move |(packet_id, properties, reasons)| Model::UnsubAck {
            packet_id,
            properties,
            reasons: if version == Version::V5 {
                reasons
            } else {
                Vec::new()
            },
        })
}

fn disconnect(version: Version) -> impl Strategy<Value = Model> {
    let once = [
        P::SessionExpiryInterval,
        P::ServerReference,
        P::ReasonString,
    ];
    let codes = if version == Version::V5 {
        DISCONNECT
    } else {
        &DISCONNECT[..1]
    };
    (
        reason(codes),
        properties(version, &once, &[P::UserProperty]),
    )
        .prop_map(|(reason, properties)| Model::Disconnect { reason, properties })
}

fn auth() -> impl Strategy<Value = Model> {
    let once = [
        P::AuthenticationMethod,
        P::AuthenticationData,
        P::ReasonString,
    ];
    (
        reason(AUTH),
        properties(Version::V5, &once, &[P::UserProperty]),
        text(),
    )
        .prop_map(|(reason, properties, method)| Model::Auth {
            // Only Success without any property may do without the method.
            properties: if reason == ReasonCode::Success && properties.is_empty() {
                properties
            } else {
                with_method(properties, method)
            },
            reason,
        })
}
