//! What can be wrong with bytes from a peer, and with packets we were asked
//! to encode. One table maps each to the MQTT 5 reason code for DISCONNECT or
//! CONNACK (section 4.13).
//!
//! Where the specification says Malformed Packet or Protocol Error, the error is that
//! one. Where it only says MUST NOT, its definitions decide (section 1.2): a packet that
//! cannot be parsed is malformed, a parsed packet with a value that is not allowed is a
//! protocol error; invalid flags are always malformed (section 2.1.3). Topics and aliases
//! have reason codes of their own.

use std::fmt;

use crate::ReasonCode;

/// Why bytes from the peer are not a valid control packet. The string names
/// the field that is at fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DecodeError {
    /// Cannot be parsed by the specification: reason 0x81.
    Malformed(&'static str),
    /// Parses, but the protocol forbids it here: reason 0x82.
    Protocol(&'static str),
    /// Neither MQTT 3.1, 3.1.1 nor 5.0: reason 0x84.
    UnsupportedVersion,
    /// Announced size, in bytes with the fixed header, exceeds the limit:
    /// reason 0x95.
    PacketTooLarge {
        /// Announced size in bytes.
        size: u64,
        /// The caller's limit in bytes.
        limit: u32,
    },
    /// The topic name is empty or has a wildcard: reason 0x90.
    TopicNameInvalid,
    /// A topic filter breaks the rules of section 4.7.1: reason 0x8F.
    TopicFilterInvalid,
    /// Topic Alias 0 [MQTT-3.3.2-8]: reason 0x94.
    TopicAliasInvalid,
}

impl DecodeError {
    /// The reason code to disconnect with.
    pub fn reason(&self) -> ReasonCode {
        match self {
            Self::Malformed(_) => ReasonCode::MalformedPacket,
            Self::Protocol(_) => ReasonCode::ProtocolError,
            Self::UnsupportedVersion => ReasonCode::UnsupportedProtocolVersion,
            Self::PacketTooLarge { .. } => ReasonCode::PacketTooLarge,
            Self::TopicNameInvalid => ReasonCode::TopicNameInvalid,
            Self::TopicFilterInvalid => ReasonCode::TopicFilterInvalid,
            Self::TopicAliasInvalid => ReasonCode::TopicAliasInvalid,
        }
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(what) => write!(f, "malformed packet: {what}"),
            Self::Protocol(what) => write!(f, "protocol error: {what}"),
            Self::UnsupportedVersion => f.write_str("unsupported protocol version"),
            Self::PacketTooLarge { size, limit } => {
                write!(f, "packet of {size} bytes exceeds the limit of {limit}")
            }
            Self::TopicNameInvalid => f.write_str("invalid topic name"),
            Self::TopicFilterInvalid => f.write_str("invalid topic filter"),
            Self::TopicAliasInvalid => f.write_str("topic alias 0"),
        }
    }
}

impl std::error::Error for DecodeError {}

/// Why a packet cannot be encoded: the caller put in what MQTT cannot carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum EncodeError {
    /// A string or binary field is longer than 65 535 bytes.
    FieldTooLong(&'static str),
    /// The packet exceeds 268 435 455 bytes of remaining length.
    PacketTooLong,
}

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FieldTooLong(what) => write!(f, "{what} is longer than 65535 bytes"),
            Self::PacketTooLong => f.write_str("packet is longer than 268435455 bytes"),
        }
    }
}

impl std::error::Error for EncodeError {}
