//! PUBACK, PUBREC, PUBREL and PUBCOMP (sections 3.4 to 3.7), which have one
//! layout.

use crate::wire::{Reader, put_header, put_u16};
use crate::{DecodeError, EncodeError, PacketType, Properties, PropertySet, ReasonCode, Version};

/// An acknowledgement of a PUBLISH with QoS 1 or 2, or a step of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ack<'a> {
    /// Identifier of the PUBLISH; never 0 when decoded.
    pub packet_id: u16,
    /// How it went; always `Success` before MQTT 5.
    pub reason: ReasonCode,
    /// Reason String and User Properties.
    pub properties: Properties<'a>,
}

impl<'a> Ack<'a> {
    /// An acknowledgement without properties.
    #[inline]
    pub fn new(packet_id: u16, reason: ReasonCode) -> Self {
        Self {
            packet_id,
            reason,
            properties: Properties::EMPTY,
        }
    }

    /// Decodes the body of an acknowledgement of type `kind`.
    ///
    /// # Errors
    /// `Malformed` for a wrong length; `Protocol` for identifier 0 or a reason
    /// code that `kind` does not have; see [`Properties::check`].
    #[inline(always)]
    pub fn decode(kind: PacketType, body: &'a [u8], version: Version) -> Result<Self, DecodeError> {
        // What nearly all are: a success, in the shortest form.
        if let [high, low] = *body
            && (high | low) != 0
        {
            let packet_id = u16::from_be_bytes([high, low]);
            return Ok(Self::new(packet_id, ReasonCode::Success));
        }
        Self::decode_long(kind, body, version)
    }

    #[inline(never)]
    fn decode_long(
        kind: PacketType,
        body: &'a [u8],
        version: Version,
    ) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let packet_id = reader.packet_id()?;
        let mut ack = Self::new(packet_id, ReasonCode::Success);
        if reader.is_empty() {
            return Ok(ack);
        }
        if !version.is_v5() {
            return Err(DecodeError::Malformed("acknowledgement length"));
        }
        ack.reason = ReasonCode::from_byte(reader.u8("reason code")?)
            .filter(|reason| reason.allowed_in(kind))
            .ok_or(DecodeError::Protocol("reason code"))?;
        if !reader.is_empty() {
            ack.properties = Properties::read(&mut reader, PropertySet::ACK)?;
        }
        if !reader.is_empty() {
            return Err(DecodeError::Malformed("acknowledgement length"));
        }
        Ok(ack)
    }

    /// Appends the acknowledgement as type `kind`, in the shortest form.
    ///
    /// # Errors
    /// `PacketTooLong`.
    #[inline(always)]
    pub fn encode(
        &self,
        kind: PacketType,
        version: Version,
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        let flags = if kind == PacketType::PubRel {
            0b0010
        } else {
            0
        };
        let first = ((kind as u8) << 4) | flags;
        let [high, low] = self.packet_id.to_be_bytes();
        if (self.reason == ReasonCode::Success && self.properties.is_empty()) || !version.is_v5() {
            out.extend_from_slice(&[first, 2, high, low]);
            return Ok(());
        }
        self.encode_long(first, out)
    }

    #[inline(never)]
    fn encode_long(&self, first: u8, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let [high, low] = self.packet_id.to_be_bytes();
        if self.properties.is_empty() {
            out.extend_from_slice(&[first, 3, high, low, self.reason.byte()]);
        } else {
            put_header(out, first, 3 + self.properties.encoded_len())?;
            put_u16(out, self.packet_id);
            out.push(self.reason.byte());
            self.properties.put(out);
        }
        Ok(())
    }
}
