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

    /// As [`Reader::string`], but only validates the string.
    #[inline]
    pub(crate) fn skip_string(&mut self, what: &'static str) -> Result<(), DecodeError> {
        let bytes = self.binary(what)?;
        if is_plain_ascii(bytes) || is_valid_str(bytes) {
            return Ok(());
        }
        Err(DecodeError::Malformed(what))
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
        Ok(s) if is_plain_ascii(bytes) || !bytes.contains(&0) => Ok(s),
        _ => Err(DecodeError::Malformed(what)),
    }
}

/// The general case, kept out of the way of plain ASCII.
#[inline(never)]
fn is_valid_str(bytes: &[u8]) -> bool {
    valid_str(bytes, "").is_ok()
}

/// Whether every byte is within U+0001 to U+007F, as in nearly all strings.
/// Eight bytes at a time: subtracting 1 from each sets the top bit of a zero
/// byte, and all others have it clear unless they had it set before.
#[inline]
fn is_plain_ascii(bytes: &[u8]) -> bool {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const TOPS: u64 = 0x8080_8080_8080_8080;
    let (words, rest) = bytes.as_chunks::<8>();
    let mut tops = 0;
    for word in words {
        let word = u64::from_ne_bytes(*word);
        tops |= word | word.wrapping_sub(ONES);
    }
    let mut plain = tops & TOPS == 0;
    for byte in rest {
        plain &= matches!(byte, 1..=0x7F);
    }
    plain
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_at_their_boundaries() {
        for (value, bytes) in [
            (0, &[0x00][..]),
            (127, &[0x7F]),
            (128, &[0x80, 0x01]),
            (16_383, &[0xFF, 0x7F]),
            (16_384, &[0x80, 0x80, 0x01]),
            (2_097_151, &[0xFF, 0xFF, 0x7F]),
            (2_097_152, &[0x80, 0x80, 0x80, 0x01]),
            (MAX_REMAINING_LENGTH, &[0xFF, 0xFF, 0xFF, 0x7F]),
        ] {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            assert_eq!(out, bytes, "{value}");
            assert_eq!(varint_len(value), bytes.len(), "{value}");
            assert_eq!(Reader::new(bytes).varint(""), Ok(value as u32));
        }
    }

    /// The fast test for ASCII agrees with the slow one, wherever in a word the
    /// odd byte is.
    #[test]
    fn plain_ascii() {
        for len in 0..40 {
            let mut bytes = vec![b'a'; len];
            assert!(is_plain_ascii(&bytes));
            for at in 0..len {
                for odd in 0..=255 {
                    bytes[at] = odd;
                    assert_eq!(
                        is_plain_ascii(&bytes),
                        (1..0x80).contains(&odd),
                        "{odd:#x} at {at} of {len}"
                    );
                }
                bytes[at] = b'a';
            }
        }
    }

    #[test]
    fn fields_stop_at_the_end() {
        let mut reader = Reader::new(&[0, 3, b'a', b'b']);
        assert_eq!(reader.binary("x"), Err(DecodeError::Malformed("x")));
        assert!(Reader::new(&[0]).u16("x").is_err());
        assert!(Reader::new(&[0, 0, 0]).u32("x").is_err());
        assert!(Reader::new(&[]).u8("x").is_err());
        let mut reader = Reader::new(&[0, 1, b'a', 9]);
        assert_eq!(reader.string("x"), Ok("a"));
        assert_eq!(reader.rest(), &[9]);
    }
}
