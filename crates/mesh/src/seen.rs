//! Messages that were here before, recognised by what they are called and never by
//! what they contain.
//!
//! Every message is called by the broker instance that took it in (`origin`, never
//! used again after a restart) and a number that counts up there. A bounded number
//! of names is remembered, the oldest forgotten first. A name that is not
//! remembered is new, with one exception: a message that is *sent again* after the
//! tree healed, with a number at or below one forgotten of its origin, may be a
//! repetition; the caller decides, by its quality of service.

use std::collections::VecDeque;

use hashbrown::HashMap;

type Fast = foldhash::fast::RandomState;

/// What a message is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Name {
    /// The broker instance that took it in from a client.
    pub origin: u32,
    /// Counts up there.
    pub number: u32,
}

/// What is known of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It was not here before.
    New,
    /// It was.
    Seen,
    /// It is sent again, and may have been here so long ago that it was forgotten.
    Unknown,
}

/// Numbers in a row that are remembered by one word.
const ROW: u32 = u64::BITS;

/// The names that are remembered.
///
/// Most come in the order of their numbers, so they are kept as bits of words, of which the same
/// few are used all the time.
#[derive(Debug)]
pub struct Seen {
    /// Those of [`ROW`] numbers in a row, by origin and place of the row; none is 0.
    rows: HashMap<(u32, u32), u64, Fast>,
    order: VecDeque<Name>,
    /// Highest forgotten number of each origin.
    forgotten: HashMap<u32, u32, Fast>,
    max: usize,
}

/// Which row a name is in, and its bit there.
fn place(name: Name) -> ((u32, u32), u64) {
    ((name.origin, name.number / ROW), 1 << (name.number % ROW))
}

impl Seen {
    /// Remembers up to `max` names.
    pub fn new(max: usize) -> Self {
        Self {
            rows: HashMap::default(),
            order: VecDeque::new(),
            forgotten: HashMap::default(),
            max: max.max(1),
        }
    }

    /// What is known of a message; with `again`, one that was sent over another link
    /// before.
    pub fn judge(&self, name: Name, again: bool) -> Verdict {
        let (row, bit) = place(name);
        if self.rows.get(&row).is_some_and(|row| row & bit != 0) {
            return Verdict::Seen;
        }
        let forgotten = self.forgotten.get(&name.origin);
        match again && forgotten.is_some_and(|forgotten| name.number <= *forgotten) {
            true => Verdict::Unknown,
            false => Verdict::New,
        }
    }

    /// Notes a message.
    pub fn note(&mut self, name: Name) {
        let (row, bit) = place(name);
        let row = self.rows.entry(row).or_insert(0);
        if *row & bit != 0 {
            return;
        }
        *row |= bit;
        if self.order.len() >= self.max
            && let Some(oldest) = self.order.pop_front()
        {
            self.forget(oldest);
        }
        self.order.push_back(name);
    }

    fn forget(&mut self, name: Name) {
        let (row, bit) = place(name);
        if let Some(bits) = self.rows.get_mut(&row) {
            *bits &= !bit;
            if *bits == 0 {
                self.rows.remove(&row);
            }
        }
        if self.forgotten.len() >= self.max {
            self.forgotten.clear();
        }
        let forgotten = self.forgotten.entry(name.origin).or_insert(0);
        *forgotten = name.number.max(*forgotten);
    }

    /// The names that were noted last, the latest at the end.
    pub fn latest(&self, most: usize) -> impl Iterator<Item = Name> {
        let first = self.order.len().saturating_sub(most);
        self.order.iter().skip(first).copied()
    }

    /// How many names are remembered.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
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
        let mut seen = Seen::new(100);
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
            names in proptest::collection::vec((1..4u32, 0..200u32), 1..300),
            max in 1..40usize,
        ) {
            let mut seen = Seen::new(max);
            let mut list: Vec<Name> = Vec::new();
            for (origin, number) in names {
                let name = name(origin, number);
                let known = list.contains(&name);
                prop_assert_eq!(seen.judge(name, false) == Verdict::Seen, known);
                seen.note(name);
                if !known {
                    list.push(name);
                    list.drain(..list.len().saturating_sub(max));
                }
                let latest: Vec<Name> = seen.latest(max).collect();
                prop_assert_eq!(&latest, &list);
                let kept: u32 = seen.rows.values().map(|row| row.count_ones()).sum();
                prop_assert_eq!(kept as usize, list.len());
                prop_assert!(seen.rows.values().all(|row| *row != 0));
            }
        }
    }

    #[test]
    fn memory_is_bounded_and_says_so() {
        let mut seen = Seen::new(3);
        for number in 1..=10 {
            assert_eq!(seen.judge(name(7, number), false), Verdict::New);
            seen.note(name(7, number));
        }
        assert_eq!(seen.len(), 3);
        assert_eq!(seen.judge(name(7, 10), true), Verdict::Seen);
        assert_eq!(seen.judge(name(7, 4), true), Verdict::Unknown);
        // One that was not sent before is new whatever its number: it waited behind
        // more urgent ones.
        assert_eq!(seen.judge(name(7, 4), false), Verdict::New);
        assert_eq!(seen.judge(name(8, 4), true), Verdict::New);
        assert!(seen.forgotten.len() <= 3);
    }
}
