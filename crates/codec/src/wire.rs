//! Primitive fields (section 1.5): a cursor over received bytes and the
//! functions that append fields to a buffer.

use crate::{DecodeError, EncodeError};

/// Largest value of a variable byte integer, and so of a remaining length.
pub const MAX_REMAINING_LENGTH: usize = 268_435_455;

/// A cursor over the body of one packet. Errors name the field.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    #[inline]
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    #[inline]
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    #[inline]
    pub(crate) fn take(&mut self, n: usize, what: &'static str) -> Result<&'a [u8], DecodeError> {
        match self.rest.split_at_checked(n) {
            Some((head, tail)) => {
                self.rest = tail;
                Ok(head)
            }
            None => Err(DecodeError::Malformed(what)),
        }
    }

    #[inline]
    pub(crate) fn u8(&mut self, what: &'static str) -> Result<u8, DecodeError> {
        match self.rest.split_first() {
            Some((first, tail)) => {
                self.rest = tail;
                Ok(*first)
            }
            None => Err(DecodeError::Malformed(what)),
        }
    }

    #[inline]
    pub(crate) fn u16(&mut self, what: &'static str) -> Result<u16, DecodeError> {
        match self.rest {
            [a, b, tail @ ..] => {
                self.rest = tail;
                Ok(u16::from_be_bytes([*a, *b]))
            }
            _ => Err(DecodeError::Malformed(what)),
        }
    }

    #[inline]
    pub(crate) fn u32(&mut self, what: &'static str) -> Result<u32, DecodeError> {
        match self.rest {
            [a, b, c, d, tail @ ..] => {
                self.rest = tail;
                Ok(u32::from_be_bytes([*a, *b, *c, *d]))
            }
            _ => Err(DecodeError::Malformed(what)),
        }
    }

    /// A packet identifier, which is never zero [MQTT-2.2.1-3].
    #[inline]
    pub(crate) fn packet_id(&mut self) -> Result<u16, DecodeError> {
        match self.u16("packet identifier")? {
            0 => Err(DecodeError::Protocol("packet identifier is zero")),
            id => Ok(id),
        }
    }

    /// Two length bytes and that many bytes (section 1.5.6).
    #[inline]
    pub(crate) fn binary(&mut self, what: &'static str) -> Result<&'a [u8], DecodeError> {
        let len = self.u16(what)?;
        self.take(usize::from(len), what)
    }

    /// A UTF-8 string without U+0000 [MQTT-1.5.4-1] [MQTT-1.5.4-2].
    #[inline]
    pub(crate) fn string(&mut self, what: &'static str) -> Result<&'a str, DecodeError> {
        valid_str(self.binary(what)?, what)
    }

    /// A variable byte integer in its shortest form [MQTT-1.5.5-1].
    pub(crate) fn varint(&mut self, what: &'static str) -> Result<u32, DecodeError> {
        let mut value = 0u32;
        for i in 0..4 {
            let byte = self.u8(what)?;
            value |= u32::from(byte & 0x7F) << (7 * i);
            if byte & 0x80 == 0 {
                if byte == 0 && i > 0 {
                    return Err(DecodeError::Malformed(what));
                }
                return Ok(value);
            }
        }
        Err(DecodeError::Malformed(what))
    }
}

/// Checks a UTF-8 string field: well-formed and without U+0000.
#[inline]
pub(crate) fn valid_str<'a>(bytes: &'a [u8], what: &'static str) -> Result<&'a str, DecodeError> {
    match std::str::from_utf8(bytes) {
        Ok(s) if !bytes.contains(&0) => Ok(s),
        _ => Err(DecodeError::Malformed(what)),
    }
}

/// Bytes that `value` takes as a variable byte integer: 1 to 4.
#[inline]
pub fn varint_len(value: usize) -> usize {
    match value {
        0..=127 => 1,
        128..=16_383 => 2,
        16_384..=2_097_151 => 3,
        _ => 4,
    }
}

/// Appends `value` (at most [`MAX_REMAINING_LENGTH`]) as a variable byte
/// integer.
#[inline]
pub fn put_varint(out: &mut Vec<u8>, mut value: usize) {
    debug_assert!(value <= MAX_REMAINING_LENGTH);
    while value >= 0x80 {
        out.push((value as u8) | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[inline]
pub(crate) fn put_u16(out: &mut Vec<u8>, value: u16) {
    out.extend_from_slice(&value.to_be_bytes());
}

#[inline]
pub(crate) fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_be_bytes());
}

/// Appends two length bytes and the data.
pub(crate) fn put_binary(
    out: &mut Vec<u8>,
    data: &[u8],
    what: &'static str,
) -> Result<(), EncodeError> {
    let len = u16::try_from(data.len()).map_err(|_| EncodeError::FieldTooLong(what))?;
    put_u16(out, len);
    out.extend_from_slice(data);
    Ok(())
}

/// Appends a fixed header for a body of `body` bytes.
pub(crate) fn put_header(out: &mut Vec<u8>, first: u8, body: usize) -> Result<(), EncodeError> {
    if body > MAX_REMAINING_LENGTH {
        return Err(EncodeError::PacketTooLong);
    }
    out.push(first);
    put_varint(out, body);
    Ok(())
}
