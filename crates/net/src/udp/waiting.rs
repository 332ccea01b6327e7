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

use crate::datagram::CLASSES;

/// Entries of a heap that are not worth tidying up.
const SLACK: usize = 64;

/// Receivers by slot, and the rank of what waits for each. Among equals, who has
/// waited longest since it was last served comes first.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    places: Vec<Option<Place>>,
    /// Key, arrival and slot; one holds if `places` says the same.
    heaps: [BinaryHeap<Reverse<(u64, u64, u32)>>; CLASSES],
    /// Receivers that wait with each class.
    counts: [usize; CLASSES],
    arrivals: u64,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    rank: Rank,
    arrival: u64,
}

impl Waiting {
    /// Puts a receiver where that rank belongs; `None`: it does not wait.
    pub(super) fn set(&mut self, slot: u32, rank: Option<Rank>) {
        if self.rank(slot) != rank {
            self.put(slot, rank);
        }
    }

    /// Like [`Self::set`] for one that was just served: behind its equals.
    pub(super) fn served(&mut self, slot: u32, rank: Option<Rank>) {
        let alone = rank.is_none_or(|rank| self.counts[rank.class as usize] == 1);
        if !alone || self.rank(slot) != rank {
            self.put(slot, rank);
        }
    }

    /// Of what waits for a receiver.
    pub(super) fn rank(&self, slot: u32) -> Option<Rank> {
        let place = self.places.get(slot as usize).copied().flatten();
        place.map(|place| place.rank)
    }

    fn put(&mut self, slot: u32, rank: Option<Rank>) {
        let at = slot as usize;
        if at >= self.places.len() {
            self.places.resize(at + 1, None);
        }
        let arrival = self.arrivals;
        self.arrivals += 1;
        let place = rank.map(|rank| Place { rank, arrival });
        if let Some(old) = std::mem::replace(&mut self.places[at], place) {
            self.counts[old.rank.class as usize] -= 1;
        }
        if let Some(Rank { class, key }) = rank {
            let class = class as usize;
            self.counts[class] += 1;
            self.heaps[class].push(Reverse((key, arrival, slot)));
            if self.heaps[class].len() > SLACK + 2 * self.counts[class] {
                let places = &self.places;
                self.heaps[class].retain(|Reverse(entry)| holds(places, *entry));
            }
        }
    }

    /// The most urgent receiver of a class.
    pub(super) fn first(&mut self, class: usize) -> Option<u32> {
        if self.counts[class] == 0 {
            self.heaps[class].clear();
            return None;
        }
        while let Some(&Reverse(entry)) = self.heaps[class].peek() {
            if holds(&self.places, entry) {
                return Some(entry.2);
            }
            self.heaps[class].pop();
        }
        None
    }

    /// Whether a receiver waits with a class.
    pub(super) fn has(&self, class: usize) -> bool {
        self.counts[class] > 0
    }

    /// Whether nobody waits.
    pub(super) fn is_empty(&self) -> bool {
        self.counts == [0; CLASSES]
    }
}

/// Arrivals are never given twice, so that they say which entries are of today.
fn holds(places: &[Option<Place>], (_, arrival, slot): (u64, u64, u32)) -> bool {
    let place = places.get(slot as usize).copied().flatten();
    place.is_some_and(|place| place.arrival == arrival)
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
            steps in prop::collection::vec(
                (0..8u32, prop::option::of((0..4usize, 0..4u64)), any::<bool>()), 0..400)
        ) {
            let mut waiting = Waiting::default();
            let mut model = BTreeSet::new();
            for (arrival, (slot, to, served)) in steps.into_iter().enumerate() {
                let is_there = |entry: &&(usize, u64, usize, u32)| entry.3 == slot;
                let old = model.iter().find(is_there).copied();
                if served || old.map(|entry| (entry.0, entry.1)) != to {
                    model.retain(|entry| entry.3 != slot);
                    model.extend(to.map(|(class, key)| (class, key, arrival, slot)));
                }
                let rank = to.and_then(|(class, key)| rank(Class::ALL[class], key));
                match served {
                    true => waiting.served(slot, rank),
                    false => waiting.set(slot, rank),
                }
                prop_assert_eq!(waiting.is_empty(), model.is_empty());
                for class in 0..CLASSES {
                    let first = model.iter().find(|entry| entry.0 == class);
                    prop_assert_eq!(waiting.has(class), first.is_some());
                    prop_assert_eq!(waiting.first(class), first.map(|entry| entry.3));
                }
            }
        }
    }

    #[test]
    fn equals_take_turns() {
        let mut waiting = Waiting::default();
        let normal = rank(Class::Normal, 0);
        for slot in 0..3 {
            waiting.set(slot, normal);
        }
        let turns = std::iter::repeat_with(|| {
            let slot = waiting.first(Class::Normal as usize);
            slot.inspect(|slot| waiting.served(*slot, normal))
        });
        let turns: Vec<_> = turns.flatten().take(6).collect();
        assert_eq!(turns, [0, 1, 2, 0, 1, 2]);
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
