//! MQTT 3.1, 3.1.1 and 5.0 control packets to and from bytes.
//!
//! Decoding borrows from the receive buffer and never copies; encoding appends
//! to a `Vec<u8>` the caller owns and may reuse. Nothing here allocates for
//! what a peer merely *announces*: [`split`] compares the announced size with
//! the caller's limit before a byte of the body is looked at.
//!
//! Invariants: no input makes the decoder panic; what decodes is valid by the
//! specification (strings are UTF-8 without U+0000, properties are allowed in
//! their packet and not repeated, flags have their fixed values); every error
//! carries the MQTT 5 reason code that the specification asks for.
//!
//! Sources: OASIS MQTT 3.1.1 (2014) and MQTT 5.0 (2019). Section numbers in
//! these docs are those of MQTT 5.0 unless they say otherwise.
#![forbid(unsafe_code)]

mod error;
mod frame;
pub mod packet;
mod property;
mod reason;
pub mod topic;
mod wire;

pub use error::{DecodeError, EncodeError};
pub use frame::{Frame, PacketType, Split, split, split_of};
pub use packet::{
    Ack, Auth, ConnAck, Connect, Disconnect, Packet, Publish, RawPublish, SubAck, Subscribe,
    SubscribeOptions, UnsubAck, Unsubscribe, Will,
};
pub use property::{Properties, Property, PropertyBuf, PropertyId, PropertyIter, PropertySet};
pub use reason::ReasonCode;
pub use wire::{MAX_REMAINING_LENGTH, put_varint, varint_len};

/// Protocol version of a connection, fixed by its CONNECT packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// MQTT 3.1 (protocol name `MQIsdp`, level 3).
    V31,
    /// MQTT 3.1.1 (protocol name `MQTT`, level 4).
    V311,
    /// MQTT 5.0 (protocol name `MQTT`, level 5).
    V5,
}

impl Version {
    /// Whether packets of this version carry properties and reason codes.
    #[inline]
    pub fn is_v5(self) -> bool {
        self == Self::V5
    }

    /// The protocol level byte of CONNECT: 3, 4 or 5.
    pub fn level(self) -> u8 {
        match self {
            Self::V31 => 3,
            Self::V311 => 4,
            Self::V5 => 5,
        }
    }
}

/// Quality of service of a publication or subscription (section 4.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(u8)]
pub enum QoS {
    /// Delivered at most once; no acknowledgement.
    #[default]
    AtMostOnce = 0,
    /// Delivered at least once; PUBACK.
    AtLeastOnce = 1,
    /// Delivered exactly once; PUBREC, PUBREL, PUBCOMP.
    ExactlyOnce = 2,
}

impl QoS {
    /// The level for its two-bit encoding; `None` for 3 and above.
    #[inline]
    pub fn from_bits(bits: u8) -> Option<Self> {
        match bits {
            0 => Some(Self::AtMostOnce),
            1 => Some(Self::AtLeastOnce),
            2 => Some(Self::ExactlyOnce),
            _ => None,
        }
    }
}
