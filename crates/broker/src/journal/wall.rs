//! Converts the broker's times to times of the wall clock, which runs while the broker is down.

use punctual_store::Wall;
use smallvec::SmallVec;

use crate::Nanos;
use crate::base::author::Author;
use crate::egress::{Class, Rank, Stamp};

/// Bits of a real-time key that hold a time, below the priority.
const TIME_BITS: u32 = 61;
const TIME: u64 = (1 << TIME_BITS) - 1;

/// Wall-clock time at the zero of the broker's clock, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Offset(pub(crate) u64);

impl Offset {
    pub(crate) fn wall(self, at: Nanos) -> Wall {
        at.0.saturating_add(self.0)
    }

    /// `None` for [`Nanos::MAX`], which means never.
    pub(crate) fn deadline(self, at: Nanos) -> Option<Wall> {
        (at < Nanos::MAX).then(|| self.wall(at))
    }

    /// A time before the zero of the broker's clock becomes zero.
    pub(crate) fn nanos(self, wall: Wall) -> Nanos {
        Nanos(wall.saturating_sub(self.0))
    }

    pub(crate) fn nanos_or_never(self, wall: Option<Wall>) -> Nanos {
        wall.map_or(Nanos::MAX, |wall| self.nanos(wall))
    }
}

/// The stored form of a [`Stamp`], independent of the discipline and of the broker's clock; behind
/// it the name of the message in the mesh, and behind that its author. A first byte has a bit for
/// each part that is present; without parts there is no byte.
#[derive(Debug, Clone)]
pub(crate) struct StoredStamp(SmallVec<[u8; 1 + Self::LEN + Self::NAME]>);

impl StoredStamp {
    /// Bytes of class, flags and priority, of the key, and of the deadline.
    const LEN: usize = 3 + 8 + 8;
    const NAME: usize = 8;
    const DROP_LATE: u8 = 1;

    const HAS_STAMP: u8 = 1;
    const HAS_NAME: u8 = 2;
    const HAS_AUTHOR: u8 = 4;

    /// The stored bytes; empty for a plain message.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Begins the next part, and sets its bit.
    fn part(&mut self, which: u8) -> &mut impl Extend<u8> {
        match self.0.first_mut() {
            Some(there) => *there |= which,
            None => self.0.push(which),
        }
        &mut self.0
    }

    /// Appends the name of the message, as [`crate::MessageName::key`]; 0 for none.
    pub(crate) fn named(mut self, name: u64) -> Self {
        if name != 0 {
            self.part(Self::HAS_NAME).extend(name.to_le_bytes());
        }
        self
    }

    /// Appends the author of the message.
    pub(crate) fn by(mut self, author: Option<&Author>) -> Self {
        if let Some(author) = author {
            author.put(self.part(Self::HAS_AUTHOR));
        }
        self
    }

    /// Stamp, name and author; absent ones are empty.
    fn parts(bytes: &[u8]) -> [&[u8]; 3] {
        let Some((there, mut rest)) = bytes.split_first() else {
            return [&[]; 3];
        };
        let mut take = |which, len: usize| match there & which {
            0 => &[],
            _ => {
                let (part, behind) = rest.split_at(len.min(rest.len()));
                rest = behind;
                part
            }
        };
        [
            take(Self::HAS_STAMP, Self::LEN),
            take(Self::HAS_NAME, Self::NAME),
            take(Self::HAS_AUTHOR, usize::MAX),
        ]
    }

    /// The name behind a stored stamp; 0 for none.
    pub(crate) fn name(bytes: &[u8]) -> u64 {
        let [_, name, _] = Self::parts(bytes);
        name.try_into().map_or(0, u64::from_le_bytes)
    }

    /// The author behind a stored stamp, if there is one.
    pub(crate) fn author(bytes: &[u8]) -> Option<Author> {
        let [.., author] = Self::parts(bytes);
        Author::read(author)
    }
}

impl Offset {
    /// The stored form of a stamp.
    pub(crate) fn stamp(self, stamp: Stamp) -> StoredStamp {
        let mut stored = StoredStamp(SmallVec::new());
        if stamp == Stamp::PLAIN {
            return stored;
        }
        let key = stamp.rank.key;
        let (priority, key) = match stamp.class() {
            // The bits below the priority are a time of the broker's clock, or all ones for none.
            Class::RealTime if key & TIME == TIME => ((key >> TIME_BITS) as u8, u64::MAX),
            Class::RealTime => ((key >> TIME_BITS) as u8, self.wall(Nanos(key & TIME))),
            _ => (0, key),
        };
        let deadline = self.deadline(stamp.deadline).unwrap_or(u64::MAX);
        let flags = match stamp.drop_late {
            true => StoredStamp::DROP_LATE,
            false => 0,
        };
        let part = stored.part(StoredStamp::HAS_STAMP);
        part.extend([stamp.class() as u8, flags, priority]);
        part.extend(key.to_le_bytes());
        part.extend(deadline.to_le_bytes());
        stored
    }

    /// The inverse of [`Self::stamp`]; a plain stamp for other bytes.
    pub(crate) fn stamp_from(self, bytes: &[u8]) -> Stamp {
        let [stamp, ..] = StoredStamp::parts(bytes);
        let Some((&[class, flags, priority], rest)) = stamp.split_first_chunk() else {
            return Stamp::PLAIN;
        };
        let (Some((key, rest)), Some(class)) = (
            rest.split_first_chunk(),
            Class::ALL.get(usize::from(class)).copied(),
        ) else {
            return Stamp::PLAIN;
        };
        let Some(deadline) = rest.first_chunk() else {
            return Stamp::PLAIN;
        };
        let (key, deadline) = (u64::from_le_bytes(*key), u64::from_le_bytes(*deadline));
        let key = match class {
            Class::RealTime => {
                let at = if key == u64::MAX {
                    TIME
                } else {
                    self.nanos(key).0.min(TIME)
                };
                u64::from(priority & 7) << TIME_BITS | at
            }
            _ => key,
        };
        Stamp {
            rank: Rank { class, key },
            deadline: self.nanos_or_never((deadline < u64::MAX).then_some(deadline)),
            drop_late: flags & StoredStamp::DROP_LATE != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const START: u64 = 1_700_000_000_000_000_000;

    proptest! {
        /// After a restart an hour later, stored times and ranks are unchanged.
        #[test]
        fn stamps_survive(
            class in 0..4usize, priority in 0..8u64, at in 1..1u64 << 50, deadline in 1..1u64 << 50,
            drop_late: bool, none: bool, name: u64,
        ) {
            let class = Class::ALL[class];
            let at = if none { TIME } else { at };
            let key = match class {
                Class::RealTime => priority << TIME_BITS | at,
                Class::Priority => at,
                Class::Normal | Class::Bulk => 0,
            };
            let stamp = Stamp {
                rank: Rank { class, key },
                deadline: if none { Nanos::MAX } else { Nanos(deadline) },
                drop_late,
            };
            let (before, after) = (Offset(START), Offset(START - 3_600_000_000_000));
            let stored = before.stamp(stamp);
            prop_assert_eq!(before.stamp_from(stored.bytes()), stamp);
            let later = after.stamp_from(stored.bytes());
            let again = after.stamp(later);
            prop_assert_eq!(again.bytes(), stored.bytes());
            prop_assert_eq!(later.rank.class, class);
            prop_assert_eq!(StoredStamp::author(stored.bytes()), None);
            let author = Author {
                user: none.then(|| "someone".into()),
                client_id: "c".into(),
                listener: None,
            };
            let named = stored.named(name);
            prop_assert_eq!(StoredStamp::author(named.bytes()), None);
            let named = named.by(Some(&author));
            prop_assert_eq!(StoredStamp::author(named.bytes()), Some(author.clone()));
            prop_assert_eq!(before.stamp_from(named.bytes()), stamp);
            prop_assert_eq!(StoredStamp::name(named.bytes()), name);
            let plain = before.stamp(Stamp::PLAIN);
            prop_assert!(plain.bytes().is_empty());
            let plain = plain.named(name).by(Some(&author));
            prop_assert_eq!(StoredStamp::author(plain.bytes()), Some(author));
            prop_assert_eq!(before.stamp_from(plain.bytes()), Stamp::PLAIN);
            prop_assert_eq!(StoredStamp::name(plain.bytes()), name);
        }

        #[test]
        fn any_bytes_are_a_stamp(bytes: Vec<u8>) {
            let _ = Offset(START).stamp_from(&bytes);
            let _ = StoredStamp::name(&bytes);
            let _ = StoredStamp::author(&bytes);
        }
    }
}
