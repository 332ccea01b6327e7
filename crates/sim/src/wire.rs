//! The client's end of a byte stream: packets from the broker, decoded,
//! checked against what a server may send to this client, and owned.

use std::collections::HashMap;

use punctual_codec::{
    Ack, Packet, PacketType, Properties, PropertyId, Publish, QoS, ReasonCode, Split, Version,
    split,
};
use punctual_model::DELIVERY_KEY;

/// Bytes of which `Debug` shows the first ones and the number.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Blob(pub Vec<u8>);

impl std::fmt::Debug for Blob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for byte in self.0.iter().take(8) {
            write!(f, "{byte:02x}")?;
        }
        write!(f, "({})", self.0.len())
    }
}

/// A PUBLISH from the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivered {
    /// Re-delivery.
    pub dup: bool,
    /// Quality of service.
    pub qos: QoS,
    /// Retain flag.
    pub retain: bool,
    /// Topic; that of the topic alias if the packet had none.
    pub topic: String,
    /// Packet identifier; 0 for QoS 0.
    pub packet_id: u16,
    /// Encoded properties as received, without topic alias, expiry interval, subscription
    /// identifiers, will delay and `rt-delivery`.
    pub properties: Blob,
    /// Message Expiry Interval.
    pub expiry: Option<u32>,
    /// Subscription Identifiers, ascending.
    pub ids: Vec<u32>,
    /// Source and number in the user property `rt-delivery`, which a broker adds on request.
    pub number: Option<(u32, u32)>,
    /// Application message.
    pub payload: Blob,
}

/// A packet from the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Incoming {
    /// CONNACK.
    ConnAck {
        /// Session Present.
        session_present: bool,
        /// Reason code.
        reason: ReasonCode,
        /// Encoded properties.
        properties: Vec<u8>,
    },
    /// PUBLISH.
    Publish(Delivered),
    /// PUBACK, PUBREC, PUBREL or PUBCOMP.
    Ack {
        /// Which of them.
        kind: PacketType,
        /// Packet identifier.
        packet_id: u16,
        /// Reason code.
        reason: ReasonCode,
    },
    /// SUBACK or UNSUBACK.
    Reasons {
        /// Which of them.
        kind: PacketType,
        /// Packet identifier.
        packet_id: u16,
        /// Reason codes.
        reasons: Vec<u8>,
    },
    /// PINGRESP.
    PingResp,
    /// DISCONNECT.
    Disconnect {
        /// Reason code.
        reason: ReasonCode,
    },
    /// AUTH.
    Auth {
        /// Reason code.
        reason: ReasonCode,
        /// Authentication Data.
        data: Vec<u8>,
    },
}

/// Decodes the packets that a broker sends on one connection, and checks their order and limits.
#[derive(Debug)]
pub struct Decoder {
    version: Version,
    max_packet: u32,
    alias_max: u16,
    aliases: HashMap<u16, String>,
    buffer: Vec<u8>,
    started: bool,
    ended: bool,
}

impl Decoder {
    /// Creates a decoder for a client that announced these limits in CONNECT: packet size in bytes,
    /// highest topic alias.
    pub fn new(version: Version, max_packet: u32, alias_max: u16) -> Self {
        Self {
            version,
            max_packet,
            alias_max,
            aliases: HashMap::new(),
            buffer: Vec::new(),
            started: false,
            ended: false,
        }
    }

    /// The buffer to which the caller appends received bytes.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    /// Takes the next packet, if it has been received completely.
    ///
    /// # Errors
    /// The rule that the broker has broken.
    pub fn next_packet(&mut self) -> Result<Option<Incoming>, String> {
        let frame = match split(&self.buffer, self.max_packet) {
            Ok(Split::Frame(frame)) => frame,
            Ok(Split::Incomplete { .. }) => return Ok(None),
            Err(error) => return Err(format!("undecodable bytes from the broker: {error}")),
        };
        if self.ended {
            return Err("packet after DISCONNECT or a refusing CONNACK".into());
        }
        let packet = Packet::decode(frame, self.version)
            .map_err(|error| format!("undecodable {:?}: {error}", frame.kind))?;
        let incoming = match &packet {
            Packet::Publish(publish) => {
                Incoming::Publish(delivered(publish, self.alias_max, &mut self.aliases)?)
            }
            other => owned(other)?,
        };
        let size = frame.bytes.len();
        match &incoming {
            Incoming::ConnAck { .. } if self.started => return Err("second CONNACK".into()),
            Incoming::ConnAck { reason, .. } => {
                self.started = true;
                self.ended = *reason != ReasonCode::Success;
            }
            Incoming::Auth { .. } => {}
            _ if !self.started => return Err(format!("{incoming:?} before CONNACK")),
            Incoming::Disconnect { .. } if !self.version.is_v5() => {
                return Err("DISCONNECT to a client before MQTT 5".into());
            }
            Incoming::Disconnect { .. } => self.ended = true,
            _ => {}
        }
        self.buffer.drain(..size);
        Ok(Some(incoming))
    }
}

fn delivered(
    publish: &Publish<'_>,
    alias_max: u16,
    aliases: &mut HashMap<u16, String>,
) -> Result<Delivered, String> {
    let alias = publish
        .properties
        .number(PropertyId::TopicAlias)
        .map(|alias| alias as u16);
    let topic = match alias {
        None => publish.topic.to_owned(),
        Some(alias) if alias > alias_max => {
            return Err(format!(
                "topic alias {alias} above the client's {alias_max}"
            ));
        }
        Some(alias) if publish.topic.is_empty() => match aliases.get(&alias) {
            Some(topic) => topic.clone(),
            None => return Err(format!("topic alias {alias} was never defined")),
        },
        Some(alias) => {
            aliases.insert(alias, publish.topic.to_owned());
            publish.topic.to_owned()
        }
    };
    let mut ids: Vec<u32> = publish.properties.subscription_ids().collect();
    ids.sort_unstable();
    Ok(Delivered {
        dup: publish.dup,
        qos: publish.qos,
        retain: publish.retain,
        topic,
        packet_id: publish.packet_id,
        properties: Blob(forwarded(publish.properties)),
        expiry: publish.properties.number(PropertyId::MessageExpiryInterval),
        ids,
        number: number(publish.properties)?,
        payload: Blob(publish.payload.to_vec()),
    })
}

/// Source and number of a message in the user property `rt-delivery`.
fn number(properties: Properties<'_>) -> Result<Option<(u32, u32)>, String> {
    let Some(value) = properties.user_value(DELIVERY_KEY) else {
        return Ok(None);
    };
    let parsed = value.split_once('/').and_then(|(source, number)| {
        let source = u32::from_str_radix(source, 16).ok()?;
        Some((source, number.parse().ok()?))
    });
    let wrong = || format!("{DELIVERY_KEY} = {value:?}");
    parsed.map(Some).ok_or_else(wrong)
}

/// Encodes the properties that a broker passes from publishers to subscribers unchanged.
pub(crate) fn forwarded(properties: Properties<'_>) -> Vec<u8> {
    properties
        .iter()
        .filter(|property| {
            let own = property.id == PropertyId::UserProperty && property.pair().0 == DELIVERY_KEY;
            !own && !matches!(
                property.id,
                PropertyId::TopicAlias
                    | PropertyId::MessageExpiryInterval
                    | PropertyId::SubscriptionIdentifier
                    | PropertyId::WillDelayInterval
            )
        })
        .flat_map(|property| property.bytes)
        .copied()
        .collect()
}

fn owned(packet: &Packet<'_>) -> Result<Incoming, String> {
    let ack = |kind, ack: &Ack<'_>| Incoming::Ack {
        kind,
        packet_id: ack.packet_id,
        reason: ack.reason,
    };
    let reasons = |kind, packet_id, reasons: &[u8]| Incoming::Reasons {
        kind,
        packet_id,
        reasons: reasons.to_vec(),
    };
    Ok(match packet {
        Packet::ConnAck(p) => Incoming::ConnAck {
            session_present: p.session_present,
            reason: p.reason,
            properties: p.properties.as_bytes().to_vec(),
        },
        Packet::PubAck(p) => ack(PacketType::PubAck, p),
        Packet::PubRec(p) => ack(PacketType::PubRec, p),
        Packet::PubRel(p) => ack(PacketType::PubRel, p),
        Packet::PubComp(p) => ack(PacketType::PubComp, p),
        Packet::SubAck(p) => reasons(PacketType::SubAck, p.packet_id, p.reasons),
        Packet::UnsubAck(p) => reasons(PacketType::UnsubAck, p.packet_id, p.reasons),
        Packet::PingResp => Incoming::PingResp,
        Packet::Disconnect(p) => Incoming::Disconnect { reason: p.reason },
        Packet::Auth(p) => Incoming::Auth {
            reason: p.reason,
            data: p
                .properties
                .data(PropertyId::AuthenticationData)
                .unwrap_or_default()
                .to_vec(),
        },
        other => return Err(format!("a broker does not send {other:?}")),
    })
}
