//! CONNACK (section 3.2).

use crate::wire::{Reader, put_header};
use crate::{DecodeError, EncodeError, PacketType, Properties, PropertySet, ReasonCode, Version};

/// The server's answer to CONNECT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnAck<'a> {
    /// Whether the server resumed a session.
    pub session_present: bool,
    /// Success or why not.
    pub reason: ReasonCode,
    /// Empty before MQTT 5.
    pub properties: Properties<'a>,
}

impl<'a> ConnAck<'a> {
    /// Decodes the body of CONNACK. Return codes of 3.1.1 become the MQTT 5
    /// reason codes of the same meaning.
    ///
    /// # Errors
    /// `Malformed`; `Protocol` for a code that CONNACK does not have and for
    /// Session Present with a failure [MQTT-3.2.2-6]; see
    /// [`Properties::check`].
    pub fn decode(body: &'a [u8], version: Version) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let session_present = match (reader.u8("acknowledge flags")?, version) {
            // MQTT 3.1 has no flags here, only a byte that is not used.
            (0, _) | (_, Version::V31) => false,
            (1, _) => true,
            _ => return Err(DecodeError::Malformed("acknowledge flags")),
        };
        let code = reader.u8("reason code")?;
        let (reason, properties) = if version.is_v5() {
            let reason = ReasonCode::from_byte(code)
                .filter(|reason| reason.allowed_in(PacketType::ConnAck))
                .ok_or(DecodeError::Protocol("reason code"))?;
            (reason, Properties::read(&mut reader, PropertySet::CONNACK)?)
        } else {
            let reason = match code {
                0 => ReasonCode::Success,
                1 => ReasonCode::UnsupportedProtocolVersion,
                2 => ReasonCode::ClientIdentifierNotValid,
                3 => ReasonCode::ServerUnavailable,
                4 => ReasonCode::BadUserNameOrPassword,
                5 => ReasonCode::NotAuthorized,
                _ => return Err(DecodeError::Protocol("return code")),
            };
            (reason, Properties::EMPTY)
        };
        if !reader.is_empty() {
            return Err(DecodeError::Malformed("CONNACK length"));
        }
        if session_present && reason != ReasonCode::Success {
            return Err(DecodeError::Protocol("Session Present with a failure"));
        }
        Ok(Self {
            session_present,
            reason,
            properties,
        })
    }

    /// Appends the packet. For 3.1.1 a reason without return code becomes 3
    /// (server unavailable); callers should close instead, see
    /// [`ReasonCode::connack_v3`].
    ///
    /// # Errors
    /// `PacketTooLong`.
    pub fn encode(&self, version: Version, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        if version.is_v5() {
            put_header(out, 0x20, 2 + self.properties.encoded_len())?;
            out.extend_from_slice(&[u8::from(self.session_present), self.reason.byte()]);
            self.properties.put(out);
        } else {
            let present = u8::from(self.session_present && version == Version::V311);
            let code = self.reason.connack_v3().unwrap_or(3);
            out.extend_from_slice(&[0x20, 2, present, code]);
        }
        Ok(())
    }
}
