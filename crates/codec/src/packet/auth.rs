//! AUTH (section 3.15), MQTT 5 only.

use crate::wire::{Reader, put_header};
use crate::{
    DecodeError, EncodeError, PacketType, Properties, PropertyId, PropertySet, ReasonCode, Version,
};

/// A step of an enhanced authentication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Auth<'a> {
    /// Success, Continue authentication or Re-authenticate.
    pub reason: ReasonCode,
    /// Method, data, Reason String, User Properties.
    pub properties: Properties<'a>,
}

impl<'a> Auth<'a> {
    /// Decodes the body of AUTH.
    ///
    /// # Errors
    /// `Protocol` before MQTT 5, for a reason code that AUTH does not have,
    /// and without Authentication Method (section 3.15.2.2.2), which only
    /// Success may omit, together with all other properties; `Malformed`; see
    /// [`Properties::check`].
    pub fn decode(body: &'a [u8], version: Version) -> Result<Self, DecodeError> {
        if !version.is_v5() {
            return Err(DecodeError::Protocol("AUTH before MQTT 5"));
        }
        let mut auth = Self {
            reason: ReasonCode::Success,
            properties: Properties::EMPTY,
        };
        if body.is_empty() {
            return Ok(auth);
        }
        let mut reader = Reader::new(body);
        auth.reason = ReasonCode::from_byte(reader.u8("reason code")?)
            .filter(|reason| reason.allowed_in(PacketType::Auth))
            .ok_or(DecodeError::Protocol("reason code"))?;
        auth.properties = Properties::read(&mut reader, PropertySet::AUTH)?;
        if !reader.is_empty() {
            return Err(DecodeError::Malformed("AUTH length"));
        }
        let bare = auth.reason == ReasonCode::Success && auth.properties.is_empty();
        if !bare && !auth.properties.contains(PropertyId::AuthenticationMethod) {
            return Err(DecodeError::Protocol("AUTH without Authentication Method"));
        }
        Ok(auth)
    }

    /// Appends the packet.
    ///
    /// # Errors
    /// `PacketTooLong`.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        if self.reason == ReasonCode::Success && self.properties.is_empty() {
            return put_header(out, 0xF0, 0);
        }
        put_header(out, 0xF0, 1 + self.properties.encoded_len())?;
        out.push(self.reason.byte());
        self.properties.put(out);
        Ok(())
    }
}
