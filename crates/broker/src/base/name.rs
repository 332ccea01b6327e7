//! Names in a mesh: of messages, of neighbours, of shared subscriptions.

use std::num::NonZeroU32;

use crate::base::version::VERSION_BITS;

/// Client identifiers of neighbour brokers begin with this.
pub const LINK_PREFIX: &str = "$mesh/";

/// User name of a broker whose password is the secret of its mesh.
pub const SECRET_USER: &str = "$mesh";

/// Topics on which neighbours speak to each other begin with this.
pub const LINK_TOPIC: &[u8] = b"$mesh/";

/// Key of the user property with a message's name.
pub(crate) const NAME_KEY: &str = "@";

/// Digits of numbers in a name.
const DIGITS: &[u8; 64] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz-";

/// The value of each digit; [`NO_DIGIT`] of all other bytes.
const VALUES: [u8; 256] = {
    let mut values = [NO_DIGIT; 256];
    let mut value = 0;
    while value < DIGITS.len() {
        values[DIGITS[value] as usize] = value as u8;
        value += 1;
    }
    values
};

const NO_DIGIT: u8 = u8::MAX;

/// The name of a message throughout the mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MessageName {
    /// The broker instance to which the message was published.
    pub origin: NonZeroU32,
    /// Number of the message, ascending at that instance.
    pub number: u32,
    /// Whether it was sent over another link before.
    pub again: bool,
    /// Difference between its number and that of the previous message on its topic, of the same
    /// origin and with the same QoS, that took the same paths; 0 if there was none or it is not
    /// known.
    pub back: u16,
}

impl MessageName {
    /// Maximum number of bytes that [`Self::put_text`] writes, including bytes beyond the text.
    pub(crate) const LONGEST: usize = 18;

    /// The name of the previous message, if that is known; marked as sent again, since a message
    /// that is not remembered may have been received before.
    pub(crate) fn previous(self) -> Option<Self> {
        (self.back > 0).then(|| Self {
            number: self.number.wrapping_sub(u32::from(self.back)),
            again: true,
            back: 0,
            ..self
        })
    }

    /// Origin and number as one number; never 0.
    pub(crate) fn key(self) -> u64 {
        u64::from(self.origin.get()) << 32 | u64::from(self.number)
    }

    /// The inverse of [`Self::key`].
    pub(crate) fn from_key(key: u64) -> Option<Self> {
        Some(Self {
            origin: NonZeroU32::new((key >> 32) as u32)?,
            number: key as u32,
            again: false,
            back: 0,
        })
    }

    /// Writes the name as text and returns its length: digits of 6 bits each, the lowest first;
    /// those of the origin are left out unless `whole` is set. The separator between the numbers
    /// encodes whether the message is sent again, and whether it follows the number before it, as
    /// nearly always where one topic is busy; any other distance comes last.
    #[inline]
    pub(crate) fn put_text(self, whole: bool, text: &mut [u8; Self::LONGEST]) -> usize {
        let mut len = 0;
        let mut put = |mut number: u32, end: u8| {
            while number > 0 {
                text[len] = DIGITS[(number & 63) as usize];
                len += 1;
                number >>= 6;
            }
            text[len] = end;
            len += 1;
        };
        let middle = match (self.again, self.back) {
            (false, 1) => b',',
            (false, _) => b'.',
            (true, 1) => b';',
            (true, _) => b'!',
        };
        put(if whole { self.origin.get() } else { 0 }, middle);
        put(self.number, b'.');
        if self.back > 1 {
            put(u32::from(self.back), b'.');
        }
        len - 1
    }

    /// Length of the text in bytes.
    #[inline]
    pub(crate) fn text_len(self, whole: bool) -> usize {
        let digits = |number: u32| (u32::BITS - number.leading_zeros()).div_ceil(6) as usize;
        let origin = if whole { digits(self.origin.get()) } else { 0 };
        let numbers = origin + 1 + digits(self.number);
        match self.back {
            0 | 1 => numbers,
            back => numbers + 1 + digits(back.into()),
        }
    }

    /// Parses the output of [`Self::put_text`], and nothing else; if the origin is left out, it is
    /// `known`.
    #[inline]
    pub(crate) fn parse(text: &[u8], known: impl FnOnce() -> Option<NonZeroU32>) -> Option<Self> {
        let mut bytes = text.iter();
        // Reads one number and the byte that ends it.
        let mut read = || {
            let (mut number, mut shift, mut last) = (0u64, 0, u8::MAX);
            for byte in &mut bytes {
                let value = VALUES[usize::from(*byte)];
                if value == NO_DIGIT {
                    return (shift == 0 || last != 0).then_some((number, Some(*byte)));
                }
                if shift > 30 {
                    return None;
                }
                number |= u64::from(value) << shift;
                (last, shift) = (value, shift + 6);
            }
            (shift == 0 || last != 0).then_some((number, None))
        };
        let (origin, end) = read()?;
        let (again, follows) = match end? {
            b'!' => (true, false),
            b'.' => (false, false),
            b';' => (true, true),
            b',' => (false, true),
            _ => return None,
        };
        let (number, end) = read()?;
        let back = match end {
            None => u16::from(follows),
            Some(b'.') if !follows => {
                let (back, end) = read()?;
                let back = u16::try_from(back).ok()?;
                (back > 1 && end.is_none()).then_some(back)?
            }
            Some(_) => return None,
        };
        Some(Self {
            origin: match NonZeroU32::new(u32::try_from(origin).ok()?) {
                None => known()?,
                Some(origin) => origin,
            },
            number: u32::try_from(number).ok()?,
            again,
            back,
        })
    }
}

/// A digest that represents a name in notes, the same in every broker; never 0. Two duties of one
/// message may have equal signs by chance: one in 10^16 pairs.
pub(crate) fn sign(name: &str) -> u32 {
    ((punctual_model::digest(name.bytes()) >> (64 - VERSION_BITS / 2)) as u32).max(1)
}

/// The neighbour's name in a client identifier.
pub(crate) fn peer_of(client_id: &str) -> Option<&str> {
    client_id.strip_prefix(LINK_PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn names_are_read_as_written(
            origin in 1..=u32::MAX,
            number: u32,
            again: bool,
            back in prop_oneof![0..3u16, any::<u16>()],
            whole: bool,
        ) {
            let name = MessageName {
                origin: NonZeroU32::new(origin).unwrap(),
                number,
                again,
                back,
            };
            let mut text = [0; MessageName::LONGEST];
            let len = name.put_text(whole, &mut text);
            let text = &text[..len];
            let known = || (!whole).then_some(name.origin);
            prop_assert_eq!(MessageName::parse(text, known), Some(name));
            prop_assert_eq!(MessageName::parse(text, || None), whole.then_some(name));
            prop_assert_eq!(name.text_len(whole), len);
            prop_assert_eq!(MessageName::parse(&[text, b"0"].concat(), known), None);
            let plain = MessageName { back: 0, ..name };
            prop_assert_eq!(text.len() == plain.text_len(whole), back < 2);
        }

        #[test]
        fn other_text_is_refused_or_one_way_to_write_a_name(text in "[.!,;0-9A-Za-z_-]{0,18}") {
            let mut whole = true;
            let known = || {
                whole = false;
                Some(NonZeroU32::MIN)
            };
            if let Some(name) = MessageName::parse(text.as_bytes(), known) {
                let mut again = [0; MessageName::LONGEST];
                let len = name.put_text(whole, &mut again);
                prop_assert_eq!(&again[..len], text.as_bytes());
            }
        }
    }
}
