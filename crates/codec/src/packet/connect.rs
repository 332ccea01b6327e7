//! CONNECT (section 3.1), of all three versions.

use crate::wire::{Reader, put_binary, put_header, put_u16};
use crate::{DecodeError, EncodeError, Properties, PropertySet, QoS, Version, topic};

/// Bit of the protocol level that marks a bridge before MQTT 5, as used by Mosquitto and
/// others. MQTT 5 has subscription options for the same purpose.
const BRIDGE: u8 = 0x80;
const BRIDGE_V31: u8 = 3 | BRIDGE;
const BRIDGE_V311: u8 = 4 | BRIDGE;

/// A client's request to connect. That it comes from a bridge stands beside it
/// ([`Connect::is_bridge`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connect<'a> {
    /// From protocol name and level.
    pub version: Version,
    /// Clean Start (clean session before MQTT 5).
    pub clean_start: bool,
    /// Seconds between packets from the client; 0 turns the check off.
    pub keep_alive: u16,
    /// Empty to have one assigned.
    pub client_id: &'a str,
    /// What to publish when the connection is lost.
    pub will: Option<Will<'a>>,
    /// User name.
    pub username: Option<&'a str>,
    /// Password.
    pub password: Option<&'a [u8]>,
    /// Empty before MQTT 5.
    pub properties: Properties<'a>,
}

/// The Will Message in CONNECT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Will<'a> {
    /// Topic name, valid for publishing.
    pub topic: &'a str,
    /// Application message.
    pub payload: &'a [u8],
    /// Quality of service to publish with.
    pub qos: QoS,
    /// Whether to publish as retained.
    pub retain: bool,
    /// Empty before MQTT 5.
    pub properties: Properties<'a>,
}

const CLEAN_START: u8 = 0x02;
const WILL: u8 = 0x04;
const WILL_RETAIN: u8 = 0x20;
const PASSWORD: u8 = 0x40;
const USERNAME: u8 = 0x80;

impl<'a> Connect<'a> {
    /// The version that a CONNECT body requests, from its first bytes; for the answer to
    /// a CONNECT that does not decode. `None` if the bytes do not contain one.
    pub fn peek_version(body: &[u8]) -> Option<Version> {
        let (name, level) = head(body)?;
        version_of(name, level)
    }

    /// Whether a CONNECT body is of a bridge that says so in the protocol level (0x83, 0x84): its
    /// subscriptions are as [`SubscribeOptions::of_bridge`](crate::SubscribeOptions::of_bridge)
    /// makes them.
    pub fn is_bridge(body: &[u8]) -> bool {
        head(body)
            .is_some_and(|(name, level)| level & BRIDGE != 0 && version_of(name, level).is_some())
    }

    /// Decodes the body of CONNECT.
    ///
    /// # Errors
    /// `UnsupportedVersion`; `Malformed` for wrong flags, lengths or strings;
    /// `Protocol` for Authentication Data without Method; `TopicNameInvalid`
    /// for the will; see [`Properties::check`].
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let name = reader.binary("protocol name")?;
        let level = reader.u8("protocol level")?;
        let Some(version) = version_of(name, level) else {
            return Err(DecodeError::UnsupportedVersion);
        };
        let flags = reader.u8("connect flags")?;
        let keep_alive = reader.u16("keep alive")?;
        let v5 = version.is_v5();
        if flags & 1 != 0 {
            return Err(DecodeError::Malformed("reserved connect flag"));
        }
        if !v5 && flags & PASSWORD != 0 && flags & USERNAME == 0 {
            return Err(DecodeError::Malformed("password without user name"));
        }
        let will_bits = (flags >> 3) & 3;
        if flags & WILL == 0 && (will_bits != 0 || flags & WILL_RETAIN != 0) {
            return Err(DecodeError::Malformed("will flags without will"));
        }
        let will_qos = QoS::from_bits(will_bits).ok_or(DecodeError::Malformed("will QoS"))?;
        let properties = if v5 {
            Properties::read(&mut reader, PropertySet::CONNECT)?
        } else {
            Properties::EMPTY
        };
        if properties.contains(crate::PropertyId::AuthenticationData)
            && !properties.contains(crate::PropertyId::AuthenticationMethod)
        {
            return Err(DecodeError::Protocol(
                "Authentication Data without Authentication Method",
            ));
        }
        let client_id = reader.string("client identifier")?;
        let will = if flags & WILL != 0 {
            let properties = if v5 {
                Properties::read(&mut reader, PropertySet::WILL)?
            } else {
                Properties::EMPTY
            };
            if let Some(response) = properties.text(crate::PropertyId::ResponseTopic) {
                topic::validate_name(response.as_bytes())?;
            }
            Some(Will {
                topic: topic::validate_name(reader.binary("will topic")?)?,
                payload: reader.binary("will payload")?,
                qos: will_qos,
                retain: flags & WILL_RETAIN != 0,
                properties,
            })
        } else {
            None
        };
        let username = (flags & USERNAME != 0)
            .then(|| reader.string("user name"))
            .transpose()?;
        let password = (flags & PASSWORD != 0)
            .then(|| reader.binary("password"))
            .transpose()?;
        if !reader.is_empty() {
            return Err(DecodeError::Malformed("CONNECT length"));
        }
        Ok(Self {
            version,
            clean_start: flags & CLEAN_START != 0,
            keep_alive,
            client_id,
            will,
            username,
            password,
            properties,
        })
    }

    /// Appends the packet in the encoding of `self.version`. On error `out` is
    /// as before.
    ///
    /// # Errors
    /// See [`EncodeError`].
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let start = out.len();
        let result = self.append(out);
        if result.is_err() {
            out.truncate(start);
        }
        result
    }

    fn append(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let v5 = self.version.is_v5();
        let name: &[u8] = match self.version {
            Version::V31 => b"MQIsdp",
            Version::V311 | Version::V5 => b"MQTT",
        };
        let mut flags = 0;
        let mut len = 2 + name.len() + 1 + 1 + 2 + 2 + self.client_id.len();
        if self.clean_start {
            flags |= CLEAN_START;
        }
        if v5 {
            len += self.properties.encoded_len();
        }
        if let Some(will) = &self.will {
            flags |= WILL | (will.qos as u8) << 3;
            if will.retain {
                flags |= WILL_RETAIN;
            }
            len += 4 + will.topic.len() + will.payload.len();
            if v5 {
                len += will.properties.encoded_len();
            }
        }
        if let Some(username) = self.username {
            flags |= USERNAME;
            len += 2 + username.len();
        }
        if let Some(password) = self.password {
            flags |= PASSWORD;
            len += 2 + password.len();
        }
        put_header(out, 0x10, len)?;
        put_binary(out, name, "protocol name")?;
        out.extend_from_slice(&[self.version.level(), flags]);
        put_u16(out, self.keep_alive);
        if v5 {
            self.properties.put(out);
        }
        put_binary(out, self.client_id.as_bytes(), "client identifier")?;
        if let Some(will) = &self.will {
            if v5 {
                will.properties.put(out);
            }
            put_binary(out, will.topic.as_bytes(), "will topic")?;
            put_binary(out, will.payload, "will payload")?;
        }
        if let Some(username) = self.username {
            put_binary(out, username.as_bytes(), "user name")?;
        }
        if let Some(password) = self.password {
            put_binary(out, password, "password")?;
        }
        Ok(())
    }
}

/// Protocol name and level.
fn head(body: &[u8]) -> Option<(&[u8], u8)> {
    let mut reader = Reader::new(body);
    Some((reader.binary("").ok()?, reader.u8("").ok()?))
}

fn version_of(name: &[u8], level: u8) -> Option<Version> {
    match (name, level) {
        (b"MQIsdp", 3 | BRIDGE_V31) => Some(Version::V31),
        (b"MQTT", 4 | BRIDGE_V311) => Some(Version::V311),
        (b"MQTT", 5) => Some(Version::V5),
        _ => None,
    }
}
