//! The codec against another one, mqtt-protocol-core, which is written by other
//! people from the same specification: the same bytes are accepted with the same
//! fields, the same bytes are refused, and valid packets encode to the same
//! bytes. Every difference must have one of the justifications below, and every
//! justification must occur, so that the lists stay true.

#[path = "support/reference.rs"]
mod reference;
mod support;

use std::collections::HashSet;

use proptest::prelude::*;
use punctual_codec::{
    Connect, DecodeError, Frame, Packet, PacketType, PropertyId, QoS, ReasonCode, Split, Version,
    put_varint, split,
};
use punctual_model::Rng;
use reference::Reading;
use support::generate::packet;
use support::golden::golden;
use support::model::{Model, Props, Value};
use support::mutate::mutate;
use support::{config, hex, whole_frame};

/// A packet that we refuse and the other codec accepts.
struct Refused<'a> {
    error: DecodeError,
    frame: Frame<'a>,
    version: Version,
    theirs: Reading,
}

type Justified = (&'static str, fn(&Refused<'_>) -> bool);
type Forgiven = (&'static str, fn(&Model) -> bool);

/// Why we refuse what the other codec accepts. It leaves these rules to its
/// connection layer or to its caller, or does not check them.
const WE_ARE_STRICTER: &[Justified] = &[
    ("U+0000 in a string [MQTT-1.5.4-2]", |r| {
        malformed(r) && strings(&r.theirs.model).iter().any(|s| s.contains('\0'))
    }),
    (
        "wildcard in a topic name, or none [MQTT-3.3.2-2] [MQTT-4.7.3-1]",
        |r| {
            r.error == DecodeError::TopicNameInvalid
                && topics(&r.theirs.model)
                    .iter()
                    .any(|t| t.is_empty() || t.contains(['+', '#']))
        },
    ),
    ("neither topic name nor alias (3.3.2.1)", |r| {
        match &r.theirs.model {
            Model::Publish {
                topic, properties, ..
            } => protocol(r) && topic.is_empty() && !has(properties, PropertyId::TopicAlias),
            _ => false,
        }
    }),
    (
        "misplaced wildcard, or empty filter (4.7.1) [MQTT-4.7.3-1]",
        |r| {
            r.error == DecodeError::TopicFilterInvalid
                && filters(&r.theirs.model)
                    .iter()
                    .any(|f| f.is_empty() || f.contains(['+', '#']))
        },
    ),
    (
        "No Local on a shared subscription [MQTT-3.8.3-4]",
        |r| match &r.theirs.model {
            Model::Subscribe { filters, .. } => {
                protocol(r)
                    && filters
                        .iter()
                        .any(|(f, o)| o.no_local && f.starts_with("$share/"))
            }
            _ => false,
        },
    ),
    ("packet identifier 0 (2.2.1)", |r| {
        protocol(r) && packet_id(&r.theirs.model) == Some(0)
    }),
    ("DUP with QoS 0 [MQTT-3.3.1-2]", |r| {
        let qos0 = |m: &Model| {
            matches!(
                m,
                Model::Publish {
                    dup: true,
                    qos: QoS::AtMostOnce,
                    ..
                }
            )
        };
        malformed(r) && qos0(&r.theirs.model)
    }),
    ("reserved flag of CONNECT [MQTT-3.1.2-3]", |r| {
        malformed(r) && connect_flags(r).is_some_and(|flags| flags & 0x01 != 0)
    }),
    (
        "will flags without will [MQTT-3.1.2-11] [MQTT-3.1.2-13]",
        |r| {
            malformed(r)
                && connect_flags(r).is_some_and(|flags| flags & 0x04 == 0 && flags & 0x38 != 0)
        },
    ),
    ("will QoS 3 [MQTT-3.1.2-12]", |r| {
        malformed(r) && connect_flags(r).is_some_and(|flags| flags & 0x18 == 0x18)
    }),
    ("reserved flags of CONNACK [MQTT-3.2.2-1]", |r| {
        malformed(r) && r.frame.kind == PacketType::ConnAck && r.frame.body[0] > 1
    }),
    ("session present with a failure [MQTT-3.2.2-6]", |r| {
        let is = |m: &Model| match m {
            Model::ConnAck {
                session_present,
                reason,
                ..
            } => *session_present && *reason != ReasonCode::Success,
            _ => false,
        };
        protocol(r) && is(&r.theirs.model)
    }),
    (
        "3.1.1 acknowledgements have two bytes (3.1.1, 3.4 to 3.7)",
        |r| {
            malformed(r)
                && r.version == Version::V311
                && matches!(r.theirs.model, Model::Ack { .. })
                && r.frame.body.len() > 2
        },
    ),
    ("3.1.1 has no options but QoS [MQTT-3-8.3-4]", |r| {
        r.error == DecodeError::Malformed("reserved subscription options")
            && r.version == Version::V311
    }),
    ("AUTH without method (3.15.2.2.2)", |r| {
        match &r.theirs.model {
            Model::Auth { properties, .. } => {
                protocol(r) && !has(properties, PropertyId::AuthenticationMethod)
            }
            _ => false,
        }
    }),
    ("a number not in its shortest form [MQTT-1.5.5-1]", |r| {
        malformed(r) && r.theirs.encoded.len() < r.frame.bytes.len()
    }),
    ("no property length [MQTT-2.2.2-1]", |r| {
        r.error == DecodeError::Malformed("property length")
            && matches!(r.frame.kind, PacketType::Publish | PacketType::Auth)
    }),
];

/// Why we accept what the other codec refuses.
const WE_ARE_LAXER: &[Forgiven] = &[
    (
        "MQTT 5 allows a password without user name (3.1.2.9)",
        |m| match m {
            Model::Connect {
                version,
                username,
                password,
                ..
            } => *version == Version::V5 && username.is_none() && password.is_some(),
            _ => false,
        },
    ),
    ("0x8C is a code of DISCONNECT (table 2-6)", |m| match m {
        Model::Disconnect { reason, .. } => *reason == ReasonCode::BadAuthenticationMethod,
        _ => false,
    }),
];

fn malformed(r: &Refused<'_>) -> bool {
    matches!(r.error, DecodeError::Malformed(_))
}

fn protocol(r: &Refused<'_>) -> bool {
    matches!(r.error, DecodeError::Protocol(_))
}

fn has(properties: &Props, id: PropertyId) -> bool {
    properties.iter().any(|(other, _)| *other == id)
}

fn connect_flags(r: &Refused<'_>) -> Option<u8> {
    (r.frame.kind == PacketType::Connect).then(|| r.frame.body[7])
}

fn packet_id(model: &Model) -> Option<u16> {
    match model {
        Model::Publish {
            qos: QoS::AtMostOnce,
            ..
        } => None,
        Model::Publish { packet_id, .. }
        | Model::Ack { packet_id, .. }
        | Model::Subscribe { packet_id, .. }
        | Model::SubAck { packet_id, .. }
        | Model::Unsubscribe { packet_id, .. }
        | Model::UnsubAck { packet_id, .. } => Some(*packet_id),
        _ => None,
    }
}

fn properties(model: &Model) -> Vec<&Props> {
    match model {
        Model::Connect {
            properties, will, ..
        } => {
            let will = will.iter().map(|will| &will.properties);
            std::iter::once(properties).chain(will).collect()
        }
        Model::ConnAck { properties, .. }
        | Model::Publish { properties, .. }
        | Model::Ack { properties, .. }
        | Model::Subscribe { properties, .. }
        | Model::SubAck { properties, .. }
        | Model::Unsubscribe { properties, .. }
        | Model::UnsubAck { properties, .. }
        | Model::Disconnect { properties, .. }
        | Model::Auth { properties, .. } => vec![properties],
        Model::PingReq | Model::PingResp => vec![],
    }
}

fn filters(model: &Model) -> Vec<&str> {
    match model {
        Model::Subscribe { filters, .. } => filters.iter().map(|(f, _)| f.as_str()).collect(),
        Model::Unsubscribe { filters, .. } => filters.iter().map(String::as_str).collect(),
        _ => vec![],
    }
}

/// Names that a message is published to: topics and Response Topics.
fn topics(model: &Model) -> Vec<&str> {
    let mut topics: Vec<&str> = properties(model)
        .into_iter()
        .flatten()
        .filter_map(|property| match property {
            (PropertyId::ResponseTopic, Value::Text(text)) => Some(text.as_str()),
            _ => None,
        })
        .collect();
    match model {
        Model::Publish { topic, .. } => topics.push(topic),
        Model::Connect {
            will: Some(will), ..
        } => topics.push(&will.topic),
        _ => {}
    }
    topics
}

fn strings(model: &Model) -> Vec<&str> {
    let mut strings = topics(model);
    strings.extend(filters(model));
    for (_, value) in properties(model).into_iter().flatten() {
        match value {
            Value::Text(text) => strings.push(text),
            Value::Pair(name, value) => strings.extend([name.as_str(), value]),
            Value::Number(_) | Value::Binary(_) => {}
        }
    }
    if let Model::Connect {
        client_id,
        username,
        ..
    } = model
    {
        strings.push(client_id);
        strings.extend(username.as_deref());
    }
    strings
}

/// Compares the codecs on one packet. Returns the justification of a
/// difference.
fn compare(bytes: &[u8], version: Version) -> Option<&'static str> {
    let frame = match split(bytes, u32::MAX) {
        Ok(Split::Frame(frame)) => frame,
        other => panic!("{other:?}: {bytes:02x?}"),
    };
    let ours = Packet::decode(frame, version);
    match (ours, reference::decode(frame, version)) {
        (Ok(ours), Ok(theirs)) => {
            assert_eq!(Model::of(&ours), theirs.model, "{bytes:02x?}");
            None
        }
        (Err(_), Err(_)) => None,
        (Err(error), Ok(theirs)) => {
            let refused = Refused {
                error,
                frame,
                version,
                theirs,
            };
            match WE_ARE_STRICTER.iter().find(|(_, is)| is(&refused)) {
                Some((why, _)) => Some(why),
                None => panic!(
                    "only we refuse ({version:?}, {error}): {:?} {bytes:02x?}",
                    refused.theirs.model
                ),
            }
        }
        (Ok(ours), Err(error)) => {
            let model = Model::of(&ours);
            match WE_ARE_LAXER.iter().find(|(_, is)| is(&model)) {
                Some((why, _)) => Some(why),
                None => panic!("only we accept ({error:?}): {model:?} {bytes:02x?}"),
            }
        }
    }
}

/// The version to decode by; `None` for 3.1 and bridges, which the other codec does not
/// know.
fn version_for(bytes: &[u8], version: Version) -> Option<Version> {
    let frame = whole_frame(bytes);
    let version = match frame.kind {
        PacketType::Connect if Connect::is_bridge(frame.body) => return None,
        PacketType::Connect => Connect::peek_version(frame.body).unwrap_or(version),
        _ => version,
    };
    (version != Version::V31).then_some(version)
}

#[test]
fn golden_packets_and_mutations() {
    const ROUNDS: usize = 5000;
    let inputs: Vec<_> = golden()
        .into_iter()
        .map(|case| (case.version, hex(case.hex)))
        .collect();
    // Not every seed brings all differences about.
    let mut rng = Rng::new(2);
    let mut seen = HashSet::new();
    for (version, bytes) in &inputs {
        if let Some(version) = version_for(bytes, *version) {
            seen.extend(compare(bytes, version));
        }
        for _ in 0..ROUNDS {
            let other = &rng.pick(&inputs).1;
            let body = mutate(whole_frame(bytes).body, other, &mut rng);
            let mut mutant = vec![bytes[0]];
            if bytes[0] >> 4 == PacketType::Publish as u8 {
                mutant[0] = 0x30 | rng.below(16) as u8;
            }
            put_varint(&mut mutant, body.len());
            mutant.extend_from_slice(&body);
            if let Some(version) = version_for(&mutant, *version) {
                seen.extend(compare(&mutant, version));
            }
        }
    }
    let stricter = WE_ARE_STRICTER.iter().map(|(why, _)| *why);
    for why in stricter.chain(WE_ARE_LAXER.iter().map(|(why, _)| *why)) {
        assert!(seen.contains(why), "never needed: {why}");
    }
}

proptest! {
    #![proptest_config(config(1000))]

    #[test]
    fn valid_packets(
        (version, model) in prop::sample::select(vec![Version::V311, Version::V5])
            .prop_flat_map(|v| (Just(v), packet(v))),
    ) {
        let bytes = model.encode(version);
        match reference::decode(whole_frame(&bytes), version) {
            Ok(theirs) => {
                prop_assert_eq!(&theirs.model, &model);
                prop_assert_eq!(theirs.encoded, bytes);
            }
            Err(error) => {
                let known = WE_ARE_LAXER.iter().any(|(_, is)| is(&model));
                prop_assert!(known, "{:?}", error);
            }
        }
    }
}
