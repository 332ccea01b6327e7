//! Detection of duplicate messages, by name and never by content.
//!
//! The name of a message is the broker instance that accepted it from a client (`origin`, never reused
//! after a restart) and a number that counts up there. Names are remembered in a bounded number of
//! groups, and the oldest group is forgotten first. A name that is not remembered is new, with one
//! exception: a message that is *sent again* after the tree changed, with a number not above the highest
//! forgotten one of its origin, may be a duplicate. The caller decides, by its QoS.

use std::collections::VecDeque;

use hashbrown::HashMap;

type FoldHash = foldhash::fast::RandomState;

/// The name of a message, unique in the mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Name {
    /// The broker instance that accepted it from a client.
    pub origin: u32,
    /// Number of the message there, counting up.
    pub number: u32,
}

/// Whether a message is a duplicate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It was not seen before.
    New,
    /// It was seen before.
    Seen,
    /// It is sent again, and may have been seen so long ago that its name was forgotten.
    Unknown,
}

/// Number of consecutive numbers in one word.
const ROW: u32 = u64::BITS;

/// Identifies a row of [`ROW`] consecutive numbers: origin, and number divided by [`ROW`].
type Row = (u32, u32);

/// The names that are remembered.
///
/// Most names come in the order of their numbers, so they are stored as bits of words.
#[derive(Debug)]
pub struct SeenMessages {
    /// A bit for each remembered number of a row; no word is 0.
    rows: HashMap<Row, u64, FoldHash>,
    /// The same in order of arrival, in groups: names of one row that arrived one after another.
    order: VecDeque<(Row, u64)>,
    len: usize,
    /// How many names were ever noted.
    noted: u64,
    /// Whether the next name begins a new group, because of [`Self::mark`].
    marked: bool,
    /// Highest forgotten number of each origin.
    forgotten: HashMap<u32, u32, FoldHash>,
    max: usize,
}

/// The row of a name, and its bit there.
fn place(name: Name) -> (Row, u64) {
    ((name.origin, name.number / ROW), 1 << (name.number % ROW))
}

/// The names of a row.
fn names((origin, place): Row, mut bits: u64) -> impl Iterator<Item = Name> {
    std::iter::from_fn(move || {
        let bit = (bits != 0).then(|| bits.trailing_zeros())?;
        bits &= bits - 1;
        let number = place * ROW + bit;
        Some(Name { origin, number })
    })
}

impl SeenMessages {
    /// Remembers the last `max` groups of names, at least the last `max` names. A group is up to 64 names
    /// of one row that arrive one after another.
    pub fn new(max: usize) -> Self {
        Self {
            rows: HashMap::default(),
            order: VecDeque::new(),
            len: 0,
            noted: 0,
            marked: false,
            forgotten: HashMap::default(),
            max: max.max(1),
        }
    }

    /// Whether a message is a duplicate; `again` says that it was sent over another link before.
    pub fn judge(&self, name: Name, again: bool) -> Verdict {
        let (row, bit) = place(name);
        if self.rows.get(&row).is_some_and(|row| row & bit != 0) {
            return Verdict::Seen;
        }
        let is_forgotten = |forgotten: &u32| name.number <= *forgotten;
        match again && self.forgotten.get(&name.origin).is_some_and(is_forgotten) {
            true => Verdict::Unknown,
            false => Verdict::New,
        }
    }

    /// Remembers a message; returns whether it was not remembered before.
    pub fn note(&mut self, name: Name) -> bool {
        let (row, bit) = place(name);
        let bits = self.rows.entry(row).or_insert(0);
        if *bits & bit != 0 {
            return false;
        }
        *bits |= bit;
        self.len += 1;
        self.noted += 1;
        let marked = std::mem::take(&mut self.marked);
        match self.order.back_mut() {
            Some((last, bits)) if *last == row && !marked => *bits |= bit,
            _ => {
                self.order.push_back((row, bit));
                self.forget();
            }
        }
        true
    }

    /// Forgets the oldest groups beyond the bound.
    fn forget(&mut self) {
        while self.order.len() > self.max
            && let Some((row, gone)) = self.order.pop_front()
        {
            self.len -= gone.count_ones() as usize;
            if let Some(bits) = self.rows.get_mut(&row) {
                *bits &= !gone;
                if *bits == 0 {
                    self.rows.remove(&row);
                }
            }
            let highest = row.1 * ROW + gone.ilog2();
            if self.forgotten.len() >= self.max {
                self.forgotten.clear();
            }
            let forgotten = self.forgotten.entry(row.0).or_insert(0);
            *forgotten = highest.max(*forgotten);
        }
    }

    /// The number of names noted so far, for [`Self::since`].
    pub fn mark(&mut self) -> u64 {
        self.marked = true;
        self.noted
    }

    /// How many names were noted since [`Self::mark`] returned this value; they are the last ones of
    /// [`Self::latest`].
    pub fn since(&self, mark: u64) -> u64 {
        self.noted.saturating_sub(mark)
    }

    /// The last `most` names, the latest at the end; within a group in the order of their numbers.
    pub fn latest(&self, most: usize) -> impl Iterator<Item = Name> {
        let (mut first, mut count) = (self.order.len(), 0);
        while count < most && first > 0 {
            first -= 1;
            count += self.order[first].1.count_ones() as usize;
        }
        let groups = self.order.range(first..);
        let all = groups.flat_map(|(row, bits)| names(*row, *bits));
        all.skip(count.saturating_sub(most))
    }

    /// How many names are remembered.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no name is remembered.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name(origin: u32, number: u32) -> Name {
        Name { origin, number }
    }

    #[test]
    fn names_are_seen_once_in_any_order() {
        let mut seen = SeenMessages::new(100);
        for number in [5, 1, 9, 2] {
            for origin in [1, 2] {
                let name = name(origin, number);
                assert_eq!(seen.judge(name, origin == 2), Verdict::New);
                seen.note(name);
                seen.note(name);
            }
        }
        assert_eq!(seen.len(), 8);
        for number in [1, 2, 5, 9] {
            assert_eq!(seen.judge(name(1, number), false), Verdict::Seen);
            assert_eq!(seen.judge(name(2, number), true), Verdict::Seen);
        }
    }

    proptest! {
        /// As one list of names says it, the oldest first.
        #[test]
        fn the_last_names_are_remembered(
            names in proptest::collection::vec((1..4u32, 0..300u32), 1..400),
            max in 1..40usize,
        ) {
            let mut seen = SeenMessages::new(max);
            let mut list: Vec<Name> = Vec::new();
            for (origin, number) in names {
                let name = name(origin, number);
                let known = list.contains(&name);
                prop_assert_eq!(seen.judge(name, false) == Verdict::Seen, known);
                prop_assert_eq!(seen.note(name), !known);
                if !known {
                    list.push(name);
                }
                prop_assert!(seen.len() >= max.min(list.len()) && seen.order.len() <= max);
                list.drain(..list.len() - seen.len());
                let sorted = |mut names: Vec<Name>| {
                    names.sort_unstable_by_key(|name| (name.origin, name.number));
                    names
                };
                prop_assert_eq!(sorted(seen.latest(400).collect()), sorted(list.clone()));
                prop_assert_eq!(seen.latest(max).count(), max.min(list.len()));
                let kept: u32 = seen.rows.values().map(|row| row.count_ones()).sum();
                prop_assert_eq!(kept as usize, list.len());
                prop_assert!(seen.rows.values().all(|row| *row != 0));
            }
        }

        #[test]
        fn the_latest_names_come_in_their_order(
            first in 0..200u32,
            count in 1..300u32,
            most in 1..300usize,
        ) {
            let mut seen = SeenMessages::new(500);
            let all: Vec<Name> = (first..first + count).map(|number| name(7, number)).collect();
            for name in &all {
                seen.note(*name);
            }
            let latest: Vec<Name> = seen.latest(most).collect();
            prop_assert_eq!(&latest[..], &all[all.len().saturating_sub(most)..]);
        }
    }

    #[test]
    fn memory_is_bounded_and_says_so() {
        let mut seen = SeenMessages::new(3);
        for number in 1..=200 {
            assert_eq!(seen.judge(name(7, number), false), Verdict::New);
            seen.note(name(7, number));
        }
        // Those from 64 on are three rows.
        assert_eq!(seen.len(), 200 - 63);
        assert_eq!(seen.judge(name(7, 200), true), Verdict::Seen);
        assert_eq!(seen.judge(name(7, 4), true), Verdict::Unknown);
        // One that was not sent before is new whatever its number: it waited behind
        // more urgent ones.
        assert_eq!(seen.judge(name(7, 4), false), Verdict::New);
        assert_eq!(seen.judge(name(8, 4), true), Verdict::New);
        for origin in 1..=20 {
            seen.note(name(origin, 1));
        }
        assert!(seen.forgotten.len() <= 3);
    }
}
