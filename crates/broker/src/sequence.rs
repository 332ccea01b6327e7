//! Sequence numbers of the messages that a session is sent on each topic, for subscribers that ask
//! for them (`rt-sequence` = `on` in SUBSCRIBE).
//!
//! A number is assigned when it is decided that the session gets a message, so whatever happens to
//! the message afterwards (a full lane, a deadline that has passed, a connection that breaks)
//! leaves a gap that the subscriber sees. The number of topics is bounded; beyond the bound the
//! numbering of all topics starts again, with other sources, so that this does not look like a
//! loss.

use std::hash::{Hash, Hasher};
use std::io::Write as _;
use std::num::{NonZeroU32, NonZeroU64};

use hashbrown::HashMap;
use punctual_codec::PropertyId;
use punctual_model::DELIVERY_KEY;

use crate::base::name::{MessageName, NAME_KEY};

/// Bytes that the name of a topic may have on average.
const AVERAGE_NAME: usize = 256;
/// Length of the longest value: eight digits, a slash, ten digits.
const LONGEST: usize = 19;
/// Bytes of the longest key and value.
const LONGEST_PAIR: usize = DELIVERY_KEY.len() + LONGEST;

/// Where the text of a name begins in its user property.
const NAME_AT: usize = 5 + NAME_KEY.len();
/// The user property of a name, without its length and text.
const NAME_PAIR: [u8; NAME_AT + MessageName::LONGEST] = {
    let mut bytes = [0; NAME_AT + MessageName::LONGEST];
    bytes[0] = PropertyId::UserProperty as u8;
    bytes[2] = NAME_KEY.len() as u8;
    let mut at = 0;
    while at < NAME_KEY.len() {
        bytes[3 + at] = NAME_KEY.as_bytes()[at];
        at += 1;
    }
    bytes
};

/// The number of one message to one session.
///
/// A number is passed on right after it was made. A value that is written at once is read at once,
/// since the processor waits where a read covers several writes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Number {
    /// The source in the upper half, and the count in the lower half.
    key: NonZeroU64,
    /// Flags, and below these [`MessageName::back`], which is no part of a message's name: it is
    /// not known any more after a restart.
    rest: u32,
}

/// Flag: the number names the message, to a neighbour broker. Without the flag it counts the
/// messages to a subscriber.
const NAME: u32 = 1 << 16;
/// Flag: the neighbour may have received the message from another broker.
const AGAIN: u32 = 1 << 17;
/// Flag: the neighbour knows the origin.
const SHORT: u32 = 1 << 18;
/// Mask of [`MessageName::back`].
const BACK: u32 = NAME - 1;

impl PartialEq for Number {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key && self.rest & !BACK == other.rest & !BACK
    }
}

impl Eq for Number {}

impl Hash for Number {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.key, self.rest & !BACK).hash(state);
    }
}

impl From<MessageName> for Number {
    fn from(name: MessageName) -> Self {
        let again = if name.again { AGAIN } else { 0 };
        Self {
            key: key(name.origin, name.number),
            rest: NAME | again | u32::from(name.back),
        }
    }
}

fn key(source: NonZeroU32, count: u32) -> NonZeroU64 {
    let key = u64::from(source.get()) << 32 | u64::from(count);
    // The source is not 0.
    NonZeroU64::new(key).unwrap_or(NonZeroU64::MIN)
}

impl Number {
    /// Source and count.
    pub(crate) fn parts(self) -> (u32, u32) {
        ((self.key.get() >> 32) as u32, self.key.get() as u32)
    }

    /// The name as [`MessageName::key`], if it is one.
    pub(crate) fn name_key(self) -> Option<u64> {
        (self.rest & NAME != 0).then_some(self.key.get())
    }

    /// The inverse of [`Self::parts`].
    pub(crate) fn from_parts((source, count): (u32, u32)) -> Option<Self> {
        let key = key(NonZeroU32::new(source)?, count);
        Some(Self { key, rest: 0 })
    }

    /// The number as a name, as stored for a neighbour. The message may have been a copy from
    /// another link, and counts as one.
    pub(crate) fn as_name(self) -> Self {
        Self {
            rest: self.rest | NAME | AGAIN,
            ..self
        }
    }

    /// The next of the same source, unless this is the last.
    fn following(self) -> Option<Self> {
        let (_, count) = self.parts();
        count.checked_add(1)?;
        let key = self.key.checked_add(1)?;
        Some(Self { key, ..self })
    }

    /// The same message, sent over another link than before.
    pub(crate) fn again(self) -> Self {
        match self.rest & NAME {
            0 => self,
            _ => self.as_name(),
        }
    }

    /// A name, after that number of the same origin; 0 if that is not known.
    pub(crate) fn after(self, last: u32) -> Self {
        let back = (self.key.get() as u32).wrapping_sub(last);
        let back = if last == 0 || back > BACK { 0 } else { back };
        Self {
            rest: self.rest & !BACK | back,
            ..self
        }
    }

    /// Where it was taken in, if it is a name.
    #[inline]
    pub(crate) fn origin(self) -> Option<NonZeroU32> {
        NonZeroU32::new((self.name_key()? >> 32) as u32)
    }

    /// The same name without its origin; for a message that is encoded at once.
    #[inline]
    pub(crate) fn without_origin(self) -> Self {
        Self {
            rest: self.rest | SHORT,
            ..self
        }
    }

    /// The same name without the reference to the previous message.
    pub(crate) fn alone(self) -> Self {
        Self {
            rest: self.rest & !BACK,
            ..self
        }
    }

    /// Whether it names a message that was sent over another link before.
    pub(crate) fn is_again(self) -> bool {
        self.rest & AGAIN != 0
    }

    fn value(self) -> ([u8; LONGEST], usize) {
        let mut value = [0; LONGEST];
        let mut left = &mut value[..];
        // There is room for the longest.
        let (source, count) = self.parts();
        let _ = write!(left, "{source:08x}/{count}");
        let len = LONGEST - left.len();
        (value, len)
    }

    /// The message name, if the number is a name.
    fn name(self) -> Option<MessageName> {
        let name = MessageName::from_key(self.name_key()?)?;
        Some(MessageName {
            again: self.is_again(),
            back: (self.rest & BACK) as u16,
            ..name
        })
    }

    fn is_whole(self) -> bool {
        self.rest & SHORT == 0
    }

    /// Bytes of the user property.
    #[inline]
    pub(crate) fn encoded_len(self) -> usize {
        match self.name() {
            Some(name) => NAME_AT + name.text_len(self.is_whole()),
            None => 1 + 2 + DELIVERY_KEY.len() + 2 + self.value().1,
        }
    }

    /// Appends the user property.
    #[inline]
    pub(crate) fn encode(self, out: &mut Vec<u8>) {
        let Some(name) = self.name() else {
            let (value, len) = self.value();
            return put_pair(DELIVERY_KEY, &value[..len], out);
        };
        let mut len = 0;
        let start = out.len();
        out.extend_from_slice(&NAME_PAIR);
        if let Some((before, text)) = out[start..].split_last_chunk_mut() {
            len = name.put_text(self.is_whole(), text);
            before[NAME_AT - 1] = len as u8;
        }
        out.truncate(start + NAME_AT + len);
    }
}

/// Appends a user property; key and value take at most [`LONGEST_PAIR`] bytes.
#[inline]
fn put_pair(key: &str, value: &[u8], out: &mut Vec<u8>) {
    let mut bytes = [0; 5 + LONGEST_PAIR];
    let (key, from) = (key.as_bytes(), 5 + key.len());
    bytes[0] = PropertyId::UserProperty as u8;
    bytes[1..3].copy_from_slice(&(key.len() as u16).to_be_bytes());
    bytes[3..from - 2].copy_from_slice(key);
    bytes[from - 2..from].copy_from_slice(&(value.len() as u16).to_be_bytes());
    bytes[from..from + value.len()].copy_from_slice(value);
    out.extend_from_slice(&bytes[..from + value.len()]);
}

/// The sequence numbers of a session, by topic.
#[derive(Debug)]
pub(crate) struct Sequences {
    /// Source of the next topic.
    source: u32,
    /// The next number of each topic.
    topics: HashMap<Box<[u8]>, Number, foldhash::fast::RandomState>,
    /// Bytes of their names.
    bytes: usize,
}

impl Sequences {
    /// With sources from `seed` on, which is not to be the same after a restart
    /// of the broker.
    pub(crate) fn new(seed: u32) -> Self {
        Self {
            source: seed,
            topics: HashMap::default(),
            bytes: 0,
        }
    }

    fn begin(&mut self) -> Number {
        self.source = self.source.wrapping_add(1);
        let source = NonZeroU32::new(self.source).unwrap_or_else(|| {
            self.source = 1;
            NonZeroU32::MIN
        });
        Number {
            key: key(source, 0),
            rest: 0,
        }
    }

    /// The number of the next message on a topic, of `most` topics that are
    /// counted.
    pub(crate) fn next(&mut self, topic: &[u8], most: usize) -> Number {
        if let Some(next) = self.topics.get_mut(topic) {
            let number = *next;
            if let Some(following) = number.following() {
                *next = following;
                return number;
            }
        } else {
            if self.topics.len() >= most || self.bytes + topic.len() > most * AVERAGE_NAME {
                self.topics.clear();
                self.bytes = 0;
            }
            self.bytes += topic.len();
        }
        let number = self.begin();
        self.topics
            .insert(topic.into(), number.following().unwrap_or(number));
        number
    }

    /// Takes back the number that was given last on a topic.
    pub(crate) fn take_back(&mut self, topic: &[u8], number: Number) {
        if let Some(next) = self.topics.get_mut(topic) {
            *next = number;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use punctual_codec::{Properties, PropertySet};
    use std::collections::HashMap as Map;

    proptest! {
        /// However many topics there are: of one source on one topic the
        /// numbers are 0, 1, 2..., and no source occurs on two topics.
        #[test]
        fn numbers_are_consecutive(
            topics in proptest::collection::vec(0..12u8, 1..300),
            most in 1..8usize,
            seed in any::<u32>(),
        ) {
            let mut sequences = Sequences::new(seed);
            let mut seen: Map<u32, (u8, u32)> = Map::new();
            for topic in topics {
                let number = sequences.next(&[topic], most);
                let next = seen.entry(number.parts().0).or_insert((topic, 0));
                prop_assert_eq!(*next, (topic, number.parts().1));
                next.1 += 1;
                prop_assert!(sequences.topics.len() <= most);
            }
        }

        #[test]
        fn the_property_is_one(source in 1..=u32::MAX, count: u32) {
            let number = Number::from_parts((source, count)).unwrap();
            let mut bytes = Vec::new();
            number.encode(&mut bytes);
            prop_assert_eq!(bytes.len(), number.encoded_len());
            let properties = Properties::check(&bytes, PropertySet::PUBLISH).unwrap();
            let expected = format!("{source:08x}/{count}");
            prop_assert_eq!(properties.user_value(DELIVERY_KEY), Some(&*expected));
        }
    }

    #[test]
    fn long_names_count() {
        let mut sequences = Sequences::new(0);
        for topic in 0..10u8 {
            sequences.next(&[topic; 300], 4);
            assert!(sequences.bytes <= 4 * AVERAGE_NAME);
            assert_eq!(sequences.bytes, 300 * sequences.topics.len());
        }
    }

    #[test]
    fn a_number_that_is_taken_back_comes_again() {
        let mut sequences = Sequences::new(u32::MAX - 1);
        let first = sequences.next(b"t", 4);
        let second = sequences.next(b"t", 4);
        sequences.take_back(b"t", second);
        assert_eq!(sequences.next(b"t", 4), second);
        assert_eq!((first.parts().1, second.parts().1), (0, 1));
        // After the last number comes another source, and none is 0.
        if let Some(next) = sequences.topics.get_mut(&b"t"[..]) {
            *next = Number::from_parts((next.parts().0, u32::MAX)).unwrap();
        }
        let again = sequences.next(b"t", 4);
        assert_eq!(again.parts(), (1, 0));
        assert_eq!(sequences.next(b"t", 4).parts(), (1, 1));
    }
}
