//! DISCONNECT (section 3.14).

use crate::wire::{Reader, put_header};
use crate::{DecodeError, EncodeError, PacketType, Properties, PropertySet, ReasonCode, Version};

/// The last packet on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disconnect<'a> {
    /// Why; always `Success` (normal disconnection) before MQTT 5.
    pub reason: ReasonCode,
    /// Empty before MQTT 5.
    pub properties: Properties<'a>,
}

impl<'a> Disconnect<'a> {
    /// Decodes the body of DISCONNECT.
    ///
    /// # Errors
    /// `Malformed` for a wrong length; `Protocol` for a reason code that
    /// DISCONNECT does not have; see [`Properties::check`].
    pub fn decode(body: &'a [u8], version: Version) -> Result<Self, DecodeError> {
        let mut packet = Self {
            reason: ReasonCode::Success,
            properties: Properties::EMPTY,
        };
        if body.is_empty() {
            return Ok(packet);
        }
        if !version.is_v5() {
            return Err(DecodeError::Malformed("DISCONNECT length"));
        }
        let mut reader = Reader::new(body);
        packet.reason = ReasonCode::from_byte(reader.u8("reason code")?)
            .filter(|reason| reason.allowed_in(PacketType::Disconnect))
            .ok_or(DecodeError::Protocol("reason code"))?;
        if !reader.is_empty() {
            packet.properties = Properties::read(&mut reader, PropertySet::DISCONNECT)?;
        }
        if !reader.is_empty() {
            return Err(DecodeError::Malformed("DISCONNECT length"));
        }
        Ok(packet)
    }

    /// Appends the packet. Before MQTT 5 reason and properties are left out.
    ///
    /// # Errors
    /// `PacketTooLong`.
    pub fn encode(&self, version: Version, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        if !version.is_v5() || (self.reason == ReasonCode::Success && self.properties.is_empty()) {
            return put_header(out, 0xE0, 0);
        }
        if self.properties.is_empty() {
            out.extend_from_slice(&[0xE0, 1, self.reason.byte()]);
            return Ok(());
        }
        put_header(out, 0xE0, 1 + self.properties.encoded_len())?;
        out.push(self.reason.byte());
        self.properties.put(out);
        Ok(())
    }
}
