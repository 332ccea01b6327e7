//! Receivers that wait to be sent something, the most urgent first.
//!
//! One heap for each class, since sockets are full class by class. What a
//! receiver waits with changes often; entries that do not hold any more stay
//! in the heap until they come up, or until there are more of them than of the
//! others. Almost always one receiver waits and is served at once: that costs
//! no search, no hash and no allocation.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use punctual_broker::Rank;

use super::socket::CLASSES;

/// Entries of a heap that are not worth tidying up.
const SLACK: usize = 64;

/// Receivers by slot, and the rank of what waits for each.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    ranks: Vec<Option<Rank>>,
    /// Key and slot; one holds if `ranks` says the same.
    heaps: [BinaryHeap<Reverse<(u64, u32)>>; CLASSES],
    /// Receivers that wait with each class.
    counts: [usize; CLASSES],
}

impl Waiting {
    /// Puts a receiver where that rank belongs; `None`: it does not wait.
    pub(super) fn set(&mut self, slot: u32, rank: Option<Rank>) {
        let at = slot as usize;
        if at >= self.ranks.len() {
            if rank.is_none() {
                return;
            }
            self.ranks.resize(at + 1, None);
        }
        let old = std::mem::replace(&mut self.ranks[at], rank);
        if old == rank {
            return;
        }
        if let Some(old) = old {
            self.counts[old.class as usize] -= 1;
        }
        if let Some(Rank { class, key }) = rank {
            let class = class as usize;
            self.counts[class] += 1;
            self.heaps[class].push(Reverse((key, slot)));
            if self.heaps[class].len() > SLACK + 2 * self.counts[class] {
                self.tidy(class);
            }
        }
    }

    /// The most urgent receiver of a class.
    pub(super) fn first(&mut self, class: usize) -> Option<u32> {
        if self.counts[class] == 0 {
            self.heaps[class].clear();
            return None;
        }
        while let Some(&Reverse((key, slot))) = self.heaps[class].peek() {
            if holds(&self.ranks, class, key, slot) {
                return Some(slot);
            }
            self.heaps[class].pop();
        }
        None
    }

    /// Whether a receiver waits with a class.
    pub(super) fn has(&self, class: usize) -> bool {
        self.counts[class] > 0
    }

    /// Leaves one entry for each receiver.
    fn tidy(&mut self, class: usize) {
        let mut entries = std::mem::take(&mut self.heaps[class]).into_vec();
        entries.retain(|&Reverse((key, slot))| holds(&self.ranks, class, key, slot));
        entries.sort_unstable();
        entries.dedup();
        self.heaps[class] = entries.into();
    }
}

fn holds(ranks: &[Option<Rank>], class: usize, key: u64, slot: u32) -> bool {
    let rank = ranks.get(slot as usize).copied().flatten();
    rank.is_some_and(|rank| rank.class as usize == class && rank.key == key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use punctual_broker::Class;

    fn rank(class: Class, key: u64) -> Option<Rank> {
        Some(Rank { class, key })
    }

    proptest! {
        /// Against a plain ordered set.
        #[test]
        fn the_most_urgent_of_each_class_is_first(
            steps in prop::collection::vec((0..8u32, prop::option::of((0..4usize, 0..4u64))), 0..400)
        ) {
            let mut waiting = Waiting::default();
            let mut model = BTreeSet::new();
            for (slot, to) in steps {
                model.retain(|(_, _, other)| *other != slot);
                model.extend(to.map(|(class, key)| (class, key, slot)));
                waiting.set(slot, to.and_then(|(class, key)| rank(Class::ALL[class], key)));
                for class in 0..CLASSES {
                    let first = model.iter().find(|entry| entry.0 == class);
                    prop_assert_eq!(waiting.has(class), first.is_some());
                    prop_assert_eq!(waiting.first(class), first.map(|entry| entry.2));
                }
            }
        }
    }

    #[test]
    fn entries_that_do_not_hold_do_not_pile_up() {
        let mut waiting = Waiting::default();
        waiting.set(0, rank(Class::Normal, 0));
        for key in 0..100_000 {
            waiting.set(1, rank(Class::Normal, key));
        }
        assert!(waiting.heaps[Class::Normal as usize].len() <= SLACK + 5);
        assert_eq!(waiting.first(Class::Normal as usize), Some(0));
        waiting.set(0, None);
        assert_eq!(waiting.first(Class::Normal as usize), Some(1));
        waiting.set(1, None);
        assert_eq!(waiting.first(Class::Normal as usize), None);
    }
}
