//! SUBACK and UNSUBACK (sections 3.9 and 3.11).

use crate::wire::{Reader, put_header, put_u16};
use crate::{DecodeError, EncodeError, PacketType, Properties, PropertySet, ReasonCode, Version};

/// The answer to SUBSCRIBE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubAck<'a> {
    /// Identifier of the SUBSCRIBE.
    pub packet_id: u16,
    /// Empty before MQTT 5.
    pub properties: Properties<'a>,
    /// One reason code a filter, in order; 3.1.1 knows 0, 1, 2 and 0x80.
    pub reasons: &'a [u8],
}

/// The answer to UNSUBSCRIBE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnsubAck<'a> {
    /// Identifier of the UNSUBSCRIBE.
    pub packet_id: u16,
    /// Empty before MQTT 5.
    pub properties: Properties<'a>,
    /// One reason code a filter, in order; empty before MQTT 5.
    pub reasons: &'a [u8],
}

fn check_reasons(reasons: &[u8], kind: PacketType) -> Result<(), DecodeError> {
    let known =
        |byte: &u8| ReasonCode::from_byte(*byte).is_some_and(|reason| reason.allowed_in(kind));
    if reasons.is_empty() || !reasons.iter().all(known) {
        return Err(DecodeError::Protocol("reason codes"));
    }
    Ok(())
}

impl<'a> SubAck<'a> {
    /// Decodes the body of SUBACK.
    ///
    /// # Errors
    /// `Malformed`; `Protocol` for packet identifier 0, no reason code or one
    /// that the packet does not have; see [`Properties::check`].
    pub fn decode(body: &'a [u8], version: Version) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let packet_id = reader.packet_id()?;
        let properties = if version.is_v5() {
            Properties::read(&mut reader, PropertySet::ACK)?
        } else {
            Properties::EMPTY
        };
        let reasons = reader.rest();
        check_reasons(reasons, PacketType::SubAck)?;
        if !version.is_v5() && reasons.iter().any(|r| !matches!(r, 0 | 1 | 2 | 0x80)) {
            return Err(DecodeError::Protocol("return codes"));
        }
        Ok(Self {
            packet_id,
            properties,
            reasons,
        })
    }

    /// Appends the packet.
    ///
    /// # Errors
    /// `PacketTooLong`.
    pub fn encode(&self, version: Version, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let properties = if version.is_v5() {
            self.properties.encoded_len()
        } else {
            0
        };
        put_header(out, 0x90, 2 + properties + self.reasons.len())?;
        put_u16(out, self.packet_id);
        if version.is_v5() {
            self.properties.put(out);
        }
        out.extend_from_slice(self.reasons);
        Ok(())
    }
}

impl<'a> UnsubAck<'a> {
    /// Decodes the body of UNSUBACK.
    ///
    /// # Errors
    /// `Malformed`; `Protocol` for packet identifier 0, no reason code or one
    /// that the packet does not have; see [`Properties::check`].
    pub fn decode(body: &'a [u8], version: Version) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let packet_id = reader.packet_id()?;
        let mut packet = Self {
            packet_id,
            properties: Properties::EMPTY,
            reasons: &[],
        };
        if version.is_v5() {
            packet.properties = Properties::read(&mut reader, PropertySet::ACK)?;
            packet.reasons = reader.rest();
            check_reasons(packet.reasons, PacketType::UnsubAck)?;
        } else if !reader.is_empty() {
            return Err(DecodeError::Malformed("UNSUBACK length"));
        }
        Ok(packet)
    }

    /// Appends the packet; before MQTT 5 without reason codes.
    ///
    /// # Errors
    /// `PacketTooLong`.
    pub fn encode(&self, version: Version, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        if version.is_v5() {
            let len = 2 + self.properties.encoded_len() + self.reasons.len();
            put_header(out, 0xB0, len)?;
            put_u16(out, self.packet_id);
            self.properties.put(out);
            out.extend_from_slice(self.reasons);
        } else {
            put_header(out, 0xB0, 2)?;
            put_u16(out, self.packet_id);
        }
        Ok(())
    }
}
