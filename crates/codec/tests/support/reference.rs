//! The other codec of the differential tests, mqtt-protocol-core, behind the
//! same face as ours: the body of a packet in, a [`Model`] out.
//!
//! It knows 3.1.1 and 5.0. Fixed-header flags and the framing are checked by its
//! connection layer, which is not under comparison.
#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    reason = "part of one test, and tests may unwrap"
)]

use mqtt_protocol_core::mqtt::Arc;
use mqtt_protocol_core::mqtt::packet::{
    Properties, Property, Qos, RetainHandling as TheirRetainHandling, SubEntry, v3_1_1, v5_0,
};
use mqtt_protocol_core::mqtt::prelude::*;
use mqtt_protocol_core::mqtt::result_code::MqttError;
use punctual_codec::packet::RetainHandling;
use punctual_codec::{Frame, PacketType, PropertyId, QoS, ReasonCode, SubscribeOptions, Version};

use crate::support::model::{Model, Props, Shape, Value, WillModel, shape};

/// What the other codec makes of a packet, and the bytes that it encodes it to.
pub struct Reading {
    pub model: Model,
    pub encoded: Vec<u8>,
}

/// Decodes with the other codec; the error is its own.
pub fn decode(frame: Frame<'_>, version: Version) -> Result<Reading, MqttError> {
    let body = frame.body;
    match version {
        Version::V31 => panic!("the other codec does not know 3.1"),
        Version::V311 => decode_311(frame.kind, frame.first, body),
        Version::V5 => decode_5(frame.kind, frame.first, body),
    }
}

/// Runs a parser that must use the whole body.
fn exact<T>(
    body: &[u8],
    parse: impl FnOnce(&[u8]) -> Result<(T, usize), MqttError>,
) -> Result<T, MqttError> {
    let (packet, used) = parse(body)?;
    if used == body.len() {
        Ok(packet)
    } else {
        Err(MqttError::MalformedPacket)
    }
}

fn reading(model: Model, packet: &impl GenericPacketTrait) -> Reading {
    Reading {
        model,
        encoded: packet.to_continuous_buffer(),
    }
}

fn qos(qos: Qos) -> QoS {
    QoS::from_bits(qos as u8).unwrap()
}

fn code(byte: u8) -> ReasonCode {
    ReasonCode::from_byte(byte).unwrap()
}

fn props(properties: &Properties) -> Props {
    properties.iter().map(prop).collect()
}

fn prop(property: &Property) -> (PropertyId, Value) {
    let byte = property.id().as_u8();
    let id = *PropertyId::ALL
        .iter()
        .find(|id| **id as u8 == byte)
        .unwrap();
    let value = match shape(id) {
        Shape::Number => Value::Number(
            property
                .as_u8()
                .map(u32::from)
                .or_else(|| property.as_u16().map(u32::from))
                .or_else(|| property.as_u32())
                .unwrap(),
        ),
        Shape::Text => Value::Text(property.as_str().unwrap().to_owned()),
        Shape::Binary => Value::Binary(property.as_bytes().unwrap().to_vec()),
        Shape::Pair => {
            let (name, value) = property.as_key_value().unwrap();
            Value::Pair(name.to_owned(), value.to_owned())
        }
    };
    (id, value)
}

fn options(entry: &SubEntry) -> (String, SubscribeOptions) {
    let theirs = entry.sub_opts();
    let options = SubscribeOptions {
        qos: qos(theirs.qos()),
        no_local: theirs.nl(),
        retain_as_published: theirs.rap(),
        retain_handling: match theirs.rh() {
            TheirRetainHandling::SendRetained => RetainHandling::Send,
            TheirRetainHandling::SendRetainedIfNotExists => RetainHandling::SendIfNew,
            TheirRetainHandling::DoNotSendRetained => RetainHandling::DoNotSend,
        },
    };
    (entry.topic_filter().to_owned(), options)
}

#[expect(clippy::too_many_lines, reason = "one arm for each packet type")]
fn decode_311(kind: PacketType, first: u8, body: &[u8]) -> Result<Reading, MqttError> {
    let ack = |packet_id| Model::Ack {
        kind,
        packet_id,
        reason: ReasonCode::Success,
        properties: vec![],
    };
    Ok(match kind {
        PacketType::Connect => {
            let p = exact(body, v3_1_1::Connect::parse)?;
            let model = Model::Connect {
                version: Version::V311,
                clean_start: p.clean_session(),
                keep_alive: p.keep_alive(),
                client_id: p.client_id().to_owned(),
                will: p.will_topic().map(|topic| WillModel {
                    topic: topic.to_owned(),
                    payload: p.will_payload().unwrap_or_default().to_vec(),
                    qos: qos(p.will_qos()),
                    retain: p.will_retain(),
                    properties: vec![],
                }),
                username: p.user_name().map(str::to_owned),
                password: p.password().map(<[u8]>::to_vec),
                properties: vec![],
            };
            reading(model, &p)
        }
        PacketType::ConnAck => {
            let p = exact(body, v3_1_1::Connack::parse)?;
            let reason = match p.return_code() as u8 {
                0 => ReasonCode::Success,
                1 => ReasonCode::UnsupportedProtocolVersion,
                2 => ReasonCode::ClientIdentifierNotValid,
                3 => ReasonCode::ServerUnavailable,
                4 => ReasonCode::BadUserNameOrPassword,
                _ => ReasonCode::NotAuthorized,
            };
            let model = Model::ConnAck {
                session_present: p.session_present(),
                reason,
                properties: vec![],
            };
            reading(model, &p)
        }
        PacketType::Publish => {
            let p = exact(body, |body| {
                v3_1_1::Publish::parse(first & 0x0F, Arc::from(body))
            })?;
            let model = Model::Publish {
                dup: p.dup(),
                qos: qos(p.qos()),
                retain: p.retain(),
                topic: p.topic_name().to_owned(),
                packet_id: p.packet_id().unwrap_or(0),
                properties: vec![],
                payload: p.payload().as_slice().to_vec(),
            };
            reading(model, &p)
        }
        PacketType::PubAck => {
            let p = exact(body, v3_1_1::Puback::parse)?;
            reading(ack(p.packet_id()), &p)
        }
        PacketType::PubRec => {
            let p = exact(body, v3_1_1::Pubrec::parse)?;
            reading(ack(p.packet_id()), &p)
        }
        PacketType::PubRel => {
            let p = exact(body, v3_1_1::Pubrel::parse)?;
            reading(ack(p.packet_id()), &p)
        }
        PacketType::PubComp => {
            let p = exact(body, v3_1_1::Pubcomp::parse)?;
            reading(ack(p.packet_id()), &p)
        }
        PacketType::Subscribe => {
            let p = exact(body, v3_1_1::Subscribe::parse)?;
            let model = Model::Subscribe {
                packet_id: p.packet_id(),
                properties: vec![],
                filters: p.entries().iter().map(options).collect(),
            };
            reading(model, &p)
        }
        PacketType::SubAck => {
            let p = exact(body, v3_1_1::Suback::parse)?;
            let model = Model::SubAck {
                packet_id: p.packet_id(),
                properties: vec![],
                reasons: p.return_codes().iter().map(|c| *c as u8).collect(),
            };
            reading(model, &p)
        }
        PacketType::Unsubscribe => {
            let p = exact(body, v3_1_1::Unsubscribe::parse)?;
            let model = Model::Unsubscribe {
                packet_id: p.packet_id(),
                properties: vec![],
                filters: p.entries().iter().map(|f| f.as_str().to_owned()).collect(),
            };
            reading(model, &p)
        }
        PacketType::UnsubAck => {
            let p = exact(body, v3_1_1::Unsuback::parse)?;
            let model = Model::UnsubAck {
                packet_id: p.packet_id(),
                properties: vec![],
                reasons: vec![],
            };
            reading(model, &p)
        }
        PacketType::PingReq => {
            let p = exact(body, v3_1_1::Pingreq::parse)?;
            reading(Model::PingReq, &p)
        }
        PacketType::PingResp => {
            let p = exact(body, v3_1_1::Pingresp::parse)?;
            reading(Model::PingResp, &p)
        }
        PacketType::Disconnect => {
            let p = exact(body, v3_1_1::Disconnect::parse)?;
            let model = Model::Disconnect {
                reason: ReasonCode::Success,
                properties: vec![],
            };
            reading(model, &p)
        }
        PacketType::Auth => return Err(MqttError::ProtocolError),
    })
}

#[expect(clippy::too_many_lines, reason = "one arm for each packet type")]
fn decode_5(kind: PacketType, first: u8, body: &[u8]) -> Result<Reading, MqttError> {
    let ack = |packet_id, reason: Option<u8>, properties: &Option<Properties>| Model::Ack {
        kind,
        packet_id,
        reason: code(reason.unwrap_or(0)),
        properties: properties.as_ref().map(props).unwrap_or_default(),
    };
    Ok(match kind {
        PacketType::Connect => {
            let p = exact(body, v5_0::Connect::parse)?;
            let model = Model::Connect {
                version: Version::V5,
                clean_start: p.clean_start(),
                keep_alive: p.keep_alive(),
                client_id: p.client_id().to_owned(),
                will: p.will_topic().map(|topic| WillModel {
                    topic: topic.to_owned(),
                    payload: p.will_payload().unwrap_or_default().to_vec(),
                    qos: qos(p.will_qos()),
                    retain: p.will_retain(),
                    properties: props(&p.will_props),
                }),
                username: p.user_name().map(str::to_owned),
                password: p.password().map(<[u8]>::to_vec),
                properties: props(&p.props),
            };
            reading(model, &p)
        }
        PacketType::ConnAck => {
            let p = exact(body, v5_0::Connack::parse)?;
            let model = Model::ConnAck {
                session_present: p.session_present(),
                reason: code(p.reason_code() as u8),
                properties: props(&p.props),
            };
            reading(model, &p)
        }
        PacketType::Publish => {
            let p = exact(body, |body| {
                v5_0::Publish::parse(first & 0x0F, Arc::from(body))
            })?;
            let model = Model::Publish {
                dup: p.dup(),
                qos: qos(p.qos()),
                retain: p.retain(),
                topic: p.topic_name().to_owned(),
                packet_id: p.packet_id().unwrap_or(0),
                properties: props(&p.props),
                payload: p.payload().as_slice().to_vec(),
            };
            reading(model, &p)
        }
        PacketType::PubAck => {
            let p = exact(body, v5_0::Puback::parse)?;
            let reason = p.reason_code().map(|c| c as u8);
            reading(ack(p.packet_id(), reason, &p.props), &p)
        }
        PacketType::PubRec => {
            let p = exact(body, v5_0::Pubrec::parse)?;
            let reason = p.reason_code().map(|c| c as u8);
            reading(ack(p.packet_id(), reason, &p.props), &p)
        }
        PacketType::PubRel => {
            let p = exact(body, v5_0::Pubrel::parse)?;
            let reason = p.reason_code().map(|c| c as u8);
            reading(ack(p.packet_id(), reason, &p.props), &p)
        }
        PacketType::PubComp => {
            let p = exact(body, v5_0::Pubcomp::parse)?;
            let reason = p.reason_code().map(|c| c as u8);
            reading(ack(p.packet_id(), reason, &p.props), &p)
        }
        PacketType::Subscribe => {
            let p = exact(body, v5_0::Subscribe::parse)?;
            let model = Model::Subscribe {
                packet_id: p.packet_id(),
                properties: props(&p.props),
                filters: p.entries().iter().map(options).collect(),
            };
            reading(model, &p)
        }
        PacketType::SubAck => {
            let p = exact(body, v5_0::Suback::parse)?;
            let model = Model::SubAck {
                packet_id: p.packet_id(),
                properties: props(&p.props),
                reasons: p.reason_codes().iter().map(|c| *c as u8).collect(),
            };
            reading(model, &p)
        }
        PacketType::Unsubscribe => {
            let p = exact(body, v5_0::Unsubscribe::parse)?;
            let model = Model::Unsubscribe {
                packet_id: p.packet_id(),
                properties: props(&p.props),
                filters: p.entries().iter().map(|f| f.as_str().to_owned()).collect(),
            };
            reading(model, &p)
        }
        PacketType::UnsubAck => {
            let p = exact(body, v5_0::Unsuback::parse)?;
            let model = Model::UnsubAck {
                packet_id: p.packet_id(),
                properties: props(&p.props),
                reasons: p.reason_codes().iter().map(|c| *c as u8).collect(),
            };
            reading(model, &p)
        }
        PacketType::PingReq => {
            let p = exact(body, v5_0::Pingreq::parse)?;
            reading(Model::PingReq, &p)
        }
        PacketType::PingResp => {
            let p = exact(body, v5_0::Pingresp::parse)?;
            reading(Model::PingResp, &p)
        }
        PacketType::Disconnect => {
            let p = exact(body, v5_0::Disconnect::parse)?;
            let model = Model::Disconnect {
                reason: code(p.reason_code().map_or(0, |c| c as u8)),
                properties: p.props.as_ref().map(props).unwrap_or_default(),
            };
            reading(model, &p)
        }
        PacketType::Auth => {
            let p = exact(body, v5_0::Auth::parse)?;
            let model = Model::Auth {
                reason: code(p.reason_code().map_or(0, |c| c as u8)),
                properties: p.props.as_ref().map(props).unwrap_or_default(),
            };
            reading(model, &p)
        }
    })
}
