//! Packets that own their data: what a decoded packet is compared with.

use punctual_codec::{
    Ack, Auth, ConnAck, Connect, Disconnect, Packet, PacketType, Properties, PropertyBuf,
    PropertyId, Publish, QoS, ReasonCode, SubAck, Subscribe, SubscribeOptions, UnsubAck,
    Unsubscribe, Version, Will,
};

#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Number(u32),
    Text(String),
    Binary(Vec<u8>),
    Pair(String, String),
}

pub type Props = Vec<(PropertyId, Value)>;

#[derive(Debug, Clone, PartialEq)]
pub struct WillModel {
    pub topic: String,
    pub payload: Vec<u8>,
    pub qos: QoS,
    pub retain: bool,
    pub properties: Props,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Model {
    Connect {
        version: Version,
        clean_start: bool,
        keep_alive: u16,
        client_id: String,
        will: Option<WillModel>,
        username: Option<String>,
        password: Option<Vec<u8>>,
        properties: Props,
    },
    ConnAck {
        session_present: bool,
        reason: ReasonCode,
        properties: Props,
    },
    Publish {
        dup: bool,
        qos: QoS,
        retain: bool,
        topic: String,
        packet_id: u16,
        properties: Props,
        payload: Vec<u8>,
    },
    Ack {
        kind: PacketType,
        packet_id: u16,
        reason: ReasonCode,
        properties: Props,
    },
    Subscribe {
        packet_id: u16,
        properties: Props,
        filters: Vec<(String, SubscribeOptions)>,
    },
    SubAck {
        packet_id: u16,
        properties: Props,
        reasons: Vec<u8>,
    },
    Unsubscribe {
        packet_id: u16,
        properties: Props,
        filters: Vec<String>,
    },
    UnsubAck {
        packet_id: u16,
        properties: Props,
        reasons: Vec<u8>,
    },
    PingReq,
    PingResp,
    Disconnect {
        reason: ReasonCode,
        properties: Props,
    },
    Auth {
        reason: ReasonCode,
        properties: Props,
    },
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Shape {
    Number,
    Text,
    Binary,
    Pair,
}

/// The form of a property's value (table 2-4), written down a second time so
/// that the tests do not ask the code under test.
pub fn shape(id: PropertyId) -> Shape {
    use PropertyId as P;
    match id {
        P::ContentType
        | P::ResponseTopic
        | P::AssignedClientIdentifier
        | P::AuthenticationMethod
        | P::ResponseInformation
        | P::ServerReference
        | P::ReasonString => Shape::Text,
        P::CorrelationData | P::AuthenticationData => Shape::Binary,
        P::UserProperty => Shape::Pair,
        _ => Shape::Number,
    }
}

pub fn buf(properties: &Props) -> PropertyBuf {
    let mut buf = PropertyBuf::new();
    for (id, value) in properties {
        match value {
            Value::Number(n) => {
                buf.push_number(*id, *n);
            }
            Value::Text(text) => {
                buf.push_data(*id, text.as_bytes()).unwrap();
            }
            Value::Binary(data) => {
                buf.push_data(*id, data).unwrap();
            }
            Value::Pair(name, value) => {
                buf.push_user(name, value).unwrap();
            }
        }
    }
    buf
}

/// Reads properties back through the iterator, and checks on the way that the
/// direct accessors agree with it.
pub fn props(properties: &Properties<'_>) -> Props {
    let list: Props = properties
        .iter()
        .map(|p| {
            let value = match shape(p.id) {
                Shape::Number => Value::Number(p.number()),
                Shape::Text => Value::Text(p.text().to_owned()),
                Shape::Binary => Value::Binary(p.data().to_vec()),
                Shape::Pair => {
                    let (name, value) = p.pair();
                    Value::Pair(name.to_owned(), value.to_owned())
                }
            };
            (p.id, value)
        })
        .collect();
    for id in PropertyId::ALL {
        let first = list.iter().find(|(other, _)| other == id).map(|(_, v)| v);
        assert_eq!(properties.contains(*id), first.is_some(), "{id:?}");
        match first {
            Some(Value::Number(n)) => assert_eq!(properties.number(*id), Some(*n)),
            Some(Value::Text(text)) => assert_eq!(properties.text(*id), Some(text.as_str())),
            Some(Value::Binary(data)) => assert_eq!(properties.data(*id), Some(data.as_slice())),
            Some(Value::Pair(name, value)) => {
                assert_eq!(properties.user_value(name), Some(value.as_str()));
            }
            None => assert!(properties.get(*id).is_none()),
        }
    }
    let pairs: Vec<(&str, &str)> = list
        .iter()
        .filter_map(|(_, value)| match value {
            Value::Pair(name, value) => Some((name.as_str(), value.as_str())),
            _ => None,
        })
        .collect();
    assert_eq!(properties.user().collect::<Vec<_>>(), pairs);
    let ids: Vec<u32> = list
        .iter()
        .filter_map(|(id, value)| match value {
            Value::Number(n) if *id == PropertyId::SubscriptionIdentifier => Some(*n),
            _ => None,
        })
        .collect();
    assert_eq!(properties.subscription_ids().collect::<Vec<_>>(), ids);
    list
}

impl Model {
    pub fn of(packet: &Packet<'_>) -> Self {
        let ack = |kind, p: &Ack<'_>| Self::Ack {
            kind,
            packet_id: p.packet_id,
            reason: p.reason,
            properties: props(&p.properties),
        };
        match packet {
            Packet::Connect(p) => Self::Connect {
                version: p.version,
                clean_start: p.clean_start,
                keep_alive: p.keep_alive,
                client_id: p.client_id.to_owned(),
                will: p.will.map(|will| WillModel {
                    topic: will.topic.to_owned(),
                    payload: will.payload.to_vec(),
                    qos: will.qos,
                    retain: will.retain,
                    properties: props(&will.properties),
                }),
                username: p.username.map(str::to_owned),
                password: p.password.map(<[u8]>::to_vec),
                properties: props(&p.properties),
            },
            Packet::ConnAck(p) => Self::ConnAck {
                session_present: p.session_present,
                reason: p.reason,
                properties: props(&p.properties),
            },
            Packet::Publish(p) => Self::Publish {
                dup: p.dup,
                qos: p.qos,
                retain: p.retain,
                topic: p.topic.to_owned(),
                packet_id: p.packet_id,
                properties: props(&p.properties),
                payload: p.payload.to_vec(),
            },
            Packet::PubAck(p) => ack(PacketType::PubAck, p),
            Packet::PubRec(p) => ack(PacketType::PubRec, p),
            Packet::PubRel(p) => ack(PacketType::PubRel, p),
            Packet::PubComp(p) => ack(PacketType::PubComp, p),
            Packet::Subscribe(p) => Self::Subscribe {
                packet_id: p.packet_id,
                properties: props(&p.properties),
                filters: p.filters().map(|(f, o)| (f.to_owned(), o)).collect(),
            },
            Packet::SubAck(p) => Self::SubAck {
                packet_id: p.packet_id,
                properties: props(&p.properties),
                reasons: p.reasons.to_vec(),
            },
            Packet::Unsubscribe(p) => Self::Unsubscribe {
                packet_id: p.packet_id,
                properties: props(&p.properties),
                filters: p.filters().map(str::to_owned).collect(),
            },
            Packet::UnsubAck(p) => Self::UnsubAck {
                packet_id: p.packet_id,
                properties: props(&p.properties),
                reasons: p.reasons.to_vec(),
            },
            Packet::PingReq => Self::PingReq,
            Packet::PingResp => Self::PingResp,
            Packet::Disconnect(p) => Self::Disconnect {
                reason: p.reason,
                properties: props(&p.properties),
            },
            Packet::Auth(p) => Self::Auth {
                reason: p.reason,
                properties: props(&p.properties),
            },
        }
    }

    /// Encodes through the packet types, as a caller would.
    #[expect(clippy::too_many_lines, reason = "one arm for each packet type")]
    pub fn encode(&self, version: Version) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::Connect {
                version,
                clean_start,
                keep_alive,
                client_id,
                will,
                username,
                password,
                properties,
            } => {
                let properties = buf(properties);
                let will_properties = will.as_ref().map(|will| buf(&will.properties));
                let connect = Connect {
                    version: *version,
                    clean_start: *clean_start,
                    keep_alive: *keep_alive,
                    client_id,
                    will: will
                        .as_ref()
                        .zip(will_properties.as_ref())
                        .map(|(will, properties)| Will {
                            topic: &will.topic,
                            payload: &will.payload,
                            qos: will.qos,
                            retain: will.retain,
                            properties: properties.as_properties(),
                        }),
                    username: username.as_deref(),
                    password: password.as_deref(),
                    properties: properties.as_properties(),
                };
                Packet::Connect(connect).encode(*version, &mut out)
            }
            Self::ConnAck {
                session_present,
                reason,
                properties,
            } => Packet::ConnAck(ConnAck {
                session_present: *session_present,
                reason: *reason,
                properties: buf(properties).as_properties(),
            })
            .encode(version, &mut out),
            Self::Publish {
                dup,
                qos,
                retain,
                topic,
                packet_id,
                properties,
                payload,
            } => Packet::Publish(Publish {
                dup: *dup,
                qos: *qos,
                retain: *retain,
                topic,
                packet_id: *packet_id,
                properties: buf(properties).as_properties(),
                payload,
            })
            .encode(version, &mut out),
            Self::Ack {
                kind,
                packet_id,
                reason,
                properties,
            } => {
                let properties = buf(properties);
                let ack = Ack {
                    packet_id: *packet_id,
                    reason: *reason,
                    properties: properties.as_properties(),
                };
                match kind {
                    PacketType::PubAck => Packet::PubAck(ack),
                    PacketType::PubRec => Packet::PubRec(ack),
                    PacketType::PubRel => Packet::PubRel(ack),
                    PacketType::PubComp => Packet::PubComp(ack),
                    other => panic!("{other:?} is no acknowledgement"),
                }
                .encode(version, &mut out)
            }
            Self::Subscribe {
                packet_id,
                properties,
                filters,
            } => {
                let filters: Vec<_> = filters.iter().map(|(f, o)| (f.as_str(), *o)).collect();
                let properties = buf(properties);
                let properties = properties.as_properties();
                Subscribe::put(*packet_id, properties, &filters, version, &mut out)
            }
            Self::SubAck {
                packet_id,
                properties,
                reasons,
            } => Packet::SubAck(SubAck {
                packet_id: *packet_id,
                properties: buf(properties).as_properties(),
                reasons,
            })
            .encode(version, &mut out),
            Self::Unsubscribe {
                packet_id,
                properties,
                filters,
            } => {
                let filters: Vec<_> = filters.iter().map(String::as_str).collect();
                let properties = buf(properties);
                let properties = properties.as_properties();
                Unsubscribe::put(*packet_id, properties, &filters, version, &mut out)
            }
            Self::UnsubAck {
                packet_id,
                properties,
                reasons,
            } => Packet::UnsubAck(UnsubAck {
                packet_id: *packet_id,
                properties: buf(properties).as_properties(),
                reasons,
            })
            .encode(version, &mut out),
            Self::PingReq => Packet::PingReq.encode(version, &mut out),
            Self::PingResp => Packet::PingResp.encode(version, &mut out),
            Self::Disconnect { reason, properties } => Packet::Disconnect(Disconnect {
                reason: *reason,
                properties: buf(properties).as_properties(),
            })
            .encode(version, &mut out),
            Self::Auth { reason, properties } => Packet::Auth(Auth {
                reason: *reason,
                properties: buf(properties).as_properties(),
            })
            .encode(version, &mut out),
        }
        .unwrap();
        out
    }
}
