//! PUBLISH (section 3.3).
//!
//! Decoding has two steps, for speed: [`RawPublish::decode`] checks all but
//! the topic name; a receiver that has seen the same topic bytes before may
//! skip [`RawPublish::validate`], which checks the rest.

use crate::wire::{MAX_REMAINING_LENGTH, Reader, put_binary, put_header, put_u16};
use crate::{DecodeError, EncodeError, Properties, PropertyId, PropertySet, QoS, Version, topic};

/// A PUBLISH whose topic name has not been checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawPublish<'a> {
    /// Whether this may be a re-delivery.
    pub dup: bool,
    /// Quality of service.
    pub qos: QoS,
    /// Whether to retain it.
    pub retain: bool,
    /// Topic name, **unchecked**; empty when a topic alias stands for it.
    pub topic: &'a [u8],
    /// Packet identifier; 0 exactly for QoS 0.
    pub packet_id: u16,
    /// Empty before MQTT 5.
    pub properties: Properties<'a>,
    /// Application message.
    pub payload: &'a [u8],
}

impl<'a> RawPublish<'a> {
    /// Decodes a PUBLISH from the first byte and the body of its frame.
    ///
    /// # Errors
    /// `Malformed` for QoS 3, DUP with QoS 0, lengths; `Protocol` for packet
    /// identifier 0 and for an empty topic without Topic Alias (section
    /// 3.3.2.1); see [`Properties::check`].
    #[inline]
    pub fn decode(first: u8, body: &'a [u8], version: Version) -> Result<Self, DecodeError> {
        let qos = QoS::from_bits((first >> 1) & 3).ok_or(DecodeError::Malformed("QoS"))?;
        let dup = first & 0x08 != 0;
        if dup && qos == QoS::AtMostOnce {
            return Err(DecodeError::Malformed("DUP with QoS 0"));
        }
        let mut reader = Reader::new(body);
        let topic = reader.binary("topic name")?;
        let packet_id = match qos {
            QoS::AtMostOnce => 0,
            _ => reader.packet_id()?,
        };
        let properties = if version.is_v5() {
            Properties::read(&mut reader, PropertySet::PUBLISH)?
        } else {
            Properties::EMPTY
        };
        if topic.is_empty() && !properties.contains(PropertyId::TopicAlias) {
            return Err(DecodeError::Protocol("empty topic without Topic Alias"));
        }
        Ok(Self {
            dup,
            qos,
            retain: first & 0x01 != 0,
            topic,
            packet_id,
            properties,
            payload: reader.rest(),
        })
    }

    /// Checks topic name and Response Topic.
    ///
    /// # Errors
    /// `TopicNameInvalid`; `Malformed` for bad UTF-8.
    pub fn validate(self) -> Result<Publish<'a>, DecodeError> {
        let topic = if self.topic.is_empty() && self.properties.contains(PropertyId::TopicAlias) {
            ""
        } else {
            topic::validate_name(self.topic)?
        };
        if let Some(response) = self.properties.text(PropertyId::ResponseTopic) {
            topic::validate_name(response.as_bytes())?;
        }
        Ok(Publish {
            dup: self.dup,
            qos: self.qos,
            retain: self.retain,
            topic,
            packet_id: self.packet_id,
            properties: self.properties,
            payload: self.payload,
        })
    }
}

/// An application message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Publish<'a> {
    /// Whether this may be a re-delivery.
    pub dup: bool,
    /// Quality of service.
    pub qos: QoS,
    /// Whether to retain it; from a server: whether it was retained.
    pub retain: bool,
    /// Topic name; empty when a topic alias stands for it.
    pub topic: &'a str,
    /// Packet identifier; 0 exactly for QoS 0.
    pub packet_id: u16,
    /// Empty before MQTT 5.
    pub properties: Properties<'a>,
    /// Application message.
    pub payload: &'a [u8],
}

impl Publish<'_> {
    /// First byte of the fixed header.
    #[inline]
    pub const fn first_byte(dup: bool, qos: QoS, retain: bool) -> u8 {
        0x30 | (dup as u8) << 3 | (qos as u8) << 1 | retain as u8
    }

    /// Appends the packet. On error `out` is as before.
    ///
    /// # Errors
    /// See [`EncodeError`].
    #[inline]
    pub fn encode(&self, version: Version, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        if self.topic.len() > topic::MAX_TOPIC_LEN {
            return Err(EncodeError::FieldTooLong("topic name"));
        }
        let mut len = 2 + self.topic.len() + self.payload.len();
        if self.qos != QoS::AtMostOnce {
            len += 2;
        }
        if version.is_v5() {
            len += self.properties.encoded_len();
        }
        if len > MAX_REMAINING_LENGTH {
            return Err(EncodeError::PacketTooLong);
        }
        out.reserve(len + 5);
        put_header(out, Self::first_byte(self.dup, self.qos, self.retain), len)?;
        put_binary(out, self.topic.as_bytes(), "topic name")?;
        if self.qos != QoS::AtMostOnce {
            put_u16(out, self.packet_id);
        }
        if version.is_v5() {
            self.properties.put(out);
        }
        out.extend_from_slice(self.payload);
        Ok(())
    }
}
