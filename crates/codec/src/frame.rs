//! Fixed headers (section 2.1): cutting a byte stream into frames without
//! copying and without trusting the announced length.

use crate::wire::varint_len;
use crate::{DecodeError, Version};

/// Bit of the fixed header that says that a packet was sent before.
const DUP: u8 = 0x08;

/// The fifteen control packet types (section 2.1.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names are those of the specification")]
pub enum PacketType {
    Connect = 1,
    ConnAck,
    Publish,
    PubAck,
    PubRec,
    PubRel,
    PubComp,
    Subscribe,
    SubAck,
    Unsubscribe,
    UnsubAck,
    PingReq,
    PingResp,
    Disconnect,
    Auth,
}

impl PacketType {
    /// All types, in the order of their numbers.
    pub const ALL: [Self; 15] = [
        Self::Connect,
        Self::ConnAck,
        Self::Publish,
        Self::PubAck,
        Self::PubRec,
        Self::PubRel,
        Self::PubComp,
        Self::Subscribe,
        Self::SubAck,
        Self::Unsubscribe,
        Self::UnsubAck,
        Self::PingReq,
        Self::PingResp,
        Self::Disconnect,
        Self::Auth,
    ];

    /// The type in the upper four bits of a fixed header's first byte; `None`
    /// for the reserved type 0.
    #[inline]
    pub fn from_first_byte(first: u8) -> Option<Self> {
        match first >> 4 {
            0 => None,
            n => Some(Self::ALL[usize::from(n) - 1]),
        }
    }

    /// The lower four bits, fixed for all types but PUBLISH [MQTT-2.1.3-1].
    #[inline]
    fn fixed_flags(self) -> Option<u8> {
        match self {
            Self::Publish => None,
            Self::PubRel | Self::Subscribe | Self::Unsubscribe => Some(0b0010),
            _ => Some(0),
        }
    }

    /// Whether the type may have these lower four bits. In MQTT 3.1 PUBREL, SUBSCRIBE and
    /// UNSUBSCRIBE that are sent again have DUP, like PUBLISH (3.1 section 2.1).
    #[inline]
    fn may_have(self, flags: u8, version: Version) -> bool {
        match self.fixed_flags() {
            None => true,
            Some(fixed) if flags == fixed => true,
            Some(fixed) => version == Version::V31 && fixed != 0 && flags == fixed | DUP,
        }
    }
}

/// One whole control packet, still undecoded.
#[derive(Debug, Clone, Copy)]
pub struct Frame<'a> {
    /// First byte of the fixed header: type and flags, already checked.
    pub first: u8,
    /// Type of the packet.
    pub kind: PacketType,
    /// The bytes after the fixed header.
    pub body: &'a [u8],
    /// The packet with its fixed header, as received.
    pub bytes: &'a [u8],
}

impl Frame<'_> {
    /// Whether the remaining length was encoded in as few bytes as possible,
    /// as MQTT 5 demands [MQTT-1.5.5-1] and 3.1.1 does not.
    #[inline]
    pub fn is_minimal(&self) -> bool {
        self.bytes.len() == 1 + varint_len(self.body.len()) + self.body.len()
    }
}

/// What [`split`] found at the start of a buffer.
#[derive(Debug, Clone, Copy)]
pub enum Split<'a> {
    /// A whole packet; the next starts after `frame.bytes`.
    Frame(Frame<'a>),
    /// More bytes are needed: at least `total` from the start of the buffer
    /// for the packet to be whole, if its fixed header is complete.
    Incomplete {
        /// Size of the whole packet in bytes, once known; never above the limit.
        total: Option<usize>,
    },
}

/// Cuts the first packet off `buf`, which is of any version from 3.1.1 on. A packet that announces
/// more than `max` bytes (fixed header included) is an error as soon as its header is seen.
///
/// # Errors
/// `Malformed` for a reserved type, wrong fixed flags or a remaining length of
/// more than four bytes; `PacketTooLarge`.
#[inline]
pub fn split(buf: &[u8], max: u32) -> Result<Split<'_>, DecodeError> {
    split_of(buf, max, Version::V311)
}

/// The same for packets of that version: MQTT 3.1 has flags that later ones have not.
///
/// # Errors
/// As for [`split`].
#[inline]
pub fn split_of(buf: &[u8], max: u32, version: Version) -> Result<Split<'_>, DecodeError> {
    let Some(&first) = buf.first() else {
        return Ok(Split::Incomplete { total: None });
    };
    let Some(kind) = PacketType::from_first_byte(first) else {
        return Err(DecodeError::Malformed("packet type 0 is reserved"));
    };
    if !kind.may_have(first & 0x0F, version) {
        return Err(DecodeError::Malformed("fixed header flags"));
    }
    let mut length = 0usize;
    let mut header = 1;
    loop {
        let Some(&byte) = buf.get(header) else {
            return Ok(Split::Incomplete { total: None });
        };
        length |= usize::from(byte & 0x7F) << (7 * (header - 1));
        header += 1;
        if byte & 0x80 == 0 {
            break;
        }
        if header > 4 {
            return Err(DecodeError::Malformed("remaining length"));
        }
    }
    let total = header + length;
    if total as u64 > u64::from(max) {
        return Err(DecodeError::PacketTooLarge {
            size: total as u64,
            limit: max,
        });
    }
    match buf.get(..total) {
        Some(bytes) => Ok(Split::Frame(Frame {
            first,
            kind,
            body: &bytes[header..],
            bytes,
        })),
        None => Ok(Split::Incomplete { total: Some(total) }),
    }
}
