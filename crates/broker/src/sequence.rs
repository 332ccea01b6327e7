//! Numbers of what a session is sent on each topic, for subscribers that ask
//! for them (`rt-sequence` = `on` in SUBSCRIBE).
//!
//! A number is given when it is decided that a message is for the session, so
//! whatever happens to it afterwards (a full lane, a deadline that has passed, a
//! connection that breaks) leaves a gap that the subscriber sees. Bounded by
//! topics; past the bound all begin again, with other sources, so that nothing
//! counts as lost for that.

use std::hash::{Hash, Hasher};
use std::io::Write as _;
use std::num::NonZeroU32;

use hashbrown::HashMap;
use punctual_codec::PropertyId;
use punctual_model::DELIVERY_KEY;

use crate::federation::{MessageName, NAME_KEY};

/// Bytes that the name of a topic may have on average.
const AVERAGE_NAME: usize = 256;
/// Length of the longest value: eight digits, a slash, ten digits.
const LONGEST: usize = 19;
/// Bytes of the longest key and value.
const LONGEST_PAIR: usize = DELIVERY_KEY.len() + LONGEST;

/// The number of one message to one session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Number {
    source: NonZeroU32,
    count: u32,
    kind: Kind,
    back: Back,
}

/// [`MessageName::back`], which is no part of what a message is called: after a restart it is not
/// known any more.
#[derive(Debug, Clone, Copy)]
struct Back(u16);

impl PartialEq for Back {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Back {}

impl Hash for Back {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

/// What a number is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    /// Counts what a subscriber is sent.
    Delivery,
    /// Names the message, to a neighbour broker.
    Name { again: bool },
}

impl From<MessageName> for Number {
    fn from(name: MessageName) -> Self {
        Self {
            source: name.origin,
            count: name.number,
            kind: Kind::Name { again: name.again },
            back: Back(name.back),
        }
    }
}

impl Number {
    /// Source and count.
    pub(crate) fn parts(self) -> (u32, u32) {
        (self.source.get(), self.count)
    }

    /// The name as [`MessageName::key`], if it is one.
    pub(crate) fn name_key(self) -> Option<u64> {
        let named = matches!(self.kind, Kind::Name { .. });
        named.then(|| u64::from(self.source.get()) << 32 | u64::from(self.count))
    }

    /// The inverse of [`Self::parts`].
    pub(crate) fn from_parts((source, count): (u32, u32)) -> Option<Self> {
        let source = NonZeroU32::new(source)?;
        Some(Self {
            source,
            count,
            kind: Kind::Delivery,
            back: Back(0),
        })
    }

    /// What is stored for a neighbour is a name. It may have been a copy from another
    /// link, and counts as one.
    pub(crate) fn as_name(self) -> Self {
        Self {
            kind: Kind::Name { again: true },
            ..self
        }
    }

    /// The same message, sent over another link than before.
    pub(crate) fn again(self) -> Self {
        Self {
            kind: match self.kind {
                Kind::Name { .. } => Kind::Name { again: true },
                Kind::Delivery => Kind::Delivery,
            },
            ..self
        }
    }

    /// A name, after that number of the same origin; 0 if that is not known.
    pub(crate) fn after(self, last: u32) -> Self {
        let back = self.count.wrapping_sub(last);
        Self {
            back: Back(match last {
                0 => 0,
                _ => u16::try_from(back).unwrap_or(0),
            }),
            ..self
        }
    }

    /// Without saying what came before it.
    pub(crate) fn alone(self) -> Self {
        Self {
            back: Back(0),
            ..self
        }
    }

    /// Whether it names a message that was sent over another link before.
    pub(crate) fn is_again(self) -> bool {
        self.kind == Kind::Name { again: true }
    }

    fn value(self) -> ([u8; LONGEST], usize) {
        let mut value = [0; LONGEST];
        let mut left = &mut value[..];
        // There is room for the longest.
        let _ = write!(left, "{:08x}/{}", self.source, self.count);
        let len = LONGEST - left.len();
        (value, len)
    }

    fn name(self, again: bool) -> MessageName {
        MessageName {
            origin: self.source,
            number: self.count,
            again,
            back: self.back.0,
        }
    }

    /// Bytes of the user property.
    #[inline]
    pub(crate) fn encoded_len(self) -> usize {
        let (key, value) = match self.kind {
            Kind::Delivery => (DELIVERY_KEY.len(), self.value().1),
            Kind::Name { again } => (NAME_KEY.len(), self.name(again).text_len()),
        };
        1 + 2 + key + 2 + value
    }

    /// Appends the user property.
    #[inline]
    pub(crate) fn encode(self, out: &mut Vec<u8>) {
        match self.kind {
            Kind::Delivery => {
                let (value, len) = self.value();
                put_pair(DELIVERY_KEY, &value[..len], out);
            }
            Kind::Name { again } => {
                let (text, len) = self.name(again).text();
                put_pair(NAME_KEY, &text[..len], out);
            }
        }
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

/// What a session counts.
#[derive(Debug)]
pub(crate) struct Sequences {
    /// Source of the next topic.
    source: u32,
    /// The next number of each.
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
            source,
            count: 0,
            kind: Kind::Delivery,
            back: Back(0),
        }
    }

    /// The number of the next message on a topic, of `most` topics that are
    /// counted.
    pub(crate) fn next(&mut self, topic: &[u8], most: usize) -> Number {
        if let Some(next) = self.topics.get_mut(topic) {
            let number = *next;
            if let Some(count) = number.count.checked_add(1) {
                next.count = count;
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
        let next = Number { count: 1, ..number };
        self.topics.insert(topic.into(), next);
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
            let mut seen: Map<NonZeroU32, (u8, u32)> = Map::new();
            for topic in topics {
                let number = sequences.next(&[topic], most);
                let next = seen.entry(number.source).or_insert((topic, 0));
                prop_assert_eq!(*next, (topic, number.count));
                next.1 += 1;
                prop_assert!(sequences.topics.len() <= most);
            }
        }

        #[test]
        fn the_property_is_one(source in 1..=u32::MAX, count: u32) {
            let source_number = NonZeroU32::new(source).unwrap();
            let number = Number { source: source_number, count, kind: Kind::Delivery, back: Back(0) };
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
        assert_eq!((first.count, second.count), (0, 1));
        // After the last number comes another source, and none is 0.
        if let Some(next) = sequences.topics.get_mut(&b"t"[..]) {
            next.count = u32::MAX;
        }
        let again = sequences.next(b"t", 4);
        assert_eq!((again.count, again.source.get()), (0, 1));
        assert_eq!(sequences.next(b"t", 4).count, 1);
    }
}
