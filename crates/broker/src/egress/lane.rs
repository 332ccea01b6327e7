//! A lane of urgent messages: a priority queue that is FIFO among equals and
//! can give up the oldest of its least urgent entries.
//!
//! Keys and slots are in a binary heap of 16-byte entries, values in a slab
//! beside it, so that sorting moves little. The order in which entries are
//! given up is needed only by a lane that overflows: a second heap is built
//! then, and kept up to date lazily. Push and pop are O(log n); giving up is
//! O(log n) amortised. Nothing is allocated while the lane stays within the
//! largest length it has had.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Bits of an order word that hold the slot; the others count arrivals.
const SLOT_BITS: u32 = 24;
const SLOT_MASK: u64 = (1 << SLOT_BITS) - 1;

/// A lane of urgent messages: smallest key first, FIFO among equals. Bounded by
/// [`Lane::MAX_ENTRIES`]; its users have smaller bounds.
#[derive(Debug)]
pub struct Lane<T> {
    /// Key, then arrival and slot.
    heap: BinaryHeap<Reverse<(u64, u64)>>,
    /// Largest key first, and among equals the earliest arrival. Entries that
    /// have left are recognised by their slot's order word.
    worst: BinaryHeap<(u64, Reverse<u64>)>,
    /// Order word of the entry that has the slot (0: free), and the entry.
    slots: Vec<(u64, Option<T>)>,
    free: Vec<u32>,
    arrivals: u64,
}

impl<T> Default for Lane<T> {
    fn default() -> Self {
        Self {
            heap: BinaryHeap::new(),
            worst: BinaryHeap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            arrivals: 0,
        }
    }
}

impl<T> Lane<T> {
    /// Entries that one lane can hold.
    pub const MAX_ENTRIES: usize = 1 << SLOT_BITS;

    /// Entries it holds.
    #[inline]
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether it holds none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds an entry behind those with the same key.
    ///
    /// # Errors
    /// Hands it back if there are [`Lane::MAX_ENTRIES`].
    #[inline]
    pub fn push(&mut self, key: u64, value: T) -> Result<(), T> {
        if self.is_empty() {
            self.arrivals = 0;
            self.heap.clear();
            self.worst.clear();
        }
        self.append(key, value)
    }

    /// The same while entries are away that may be put back.
    ///
    /// # Errors
    /// Hands it back if there are [`Lane::MAX_ENTRIES`].
    #[inline]
    pub fn append(&mut self, key: u64, value: T) -> Result<(), T> {
        self.arrivals += 1;
        self.insert(key, self.arrivals, value)
    }

    /// Puts an entry back where [`Self::pop`] took it from.
    pub fn push_back(&mut self, key: u64, arrival: u64, value: T) {
        // There was room for it before it was taken.
        let _ = self.insert(key, arrival, value);
        self.arrivals = self.arrivals.max(arrival);
    }

    fn insert(&mut self, key: u64, arrival: u64, value: T) -> Result<(), T> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.slots.len() >= Self::MAX_ENTRIES => return Err(value),
            None => {
                self.slots.push((0, None));
                (self.slots.len() - 1) as u32
            }
        };
        let order = arrival << SLOT_BITS | u64::from(slot);
        self.slots[slot as usize] = (order, Some(value));
        self.heap.push(Reverse((key, order)));
        if !self.worst.is_empty() {
            self.worst.push((key, Reverse(order)));
        }
        Ok(())
    }

    fn take(&mut self, order: u64) -> Option<T> {
        let slot = (order & SLOT_MASK) as usize;
        let (current, value) = self.slots.get_mut(slot)?;
        if *current != order {
            return None;
        }
        let value = value.take()?;
        *current = 0;
        self.free.push(slot as u32);
        Some(value)
    }

    /// Drops entries of the heap that were given up.
    #[inline]
    fn clean(&mut self) {
        while let Some(Reverse((_, order))) = self.heap.peek() {
            if self.slots[(order & SLOT_MASK) as usize].0 == *order {
                return;
            }
            self.heap.pop();
        }
    }

    /// The key and value of the most urgent entry.
    #[inline]
    pub fn peek(&mut self) -> Option<(u64, &T)> {
        self.clean();
        let Reverse((key, order)) = self.heap.peek()?;
        let value = self.slots[(order & SLOT_MASK) as usize].1.as_ref()?;
        Some((*key, value))
    }

    /// Removes the most urgent entry; returns its key, arrival and value.
    #[inline]
    pub fn pop(&mut self) -> Option<(u64, u64, T)> {
        self.clean();
        let Reverse((key, order)) = self.heap.pop()?;
        let value = self.take(order)?;
        if self.worst.len() > 2 * self.len() + 64 {
            self.worst.clear();
        }
        Some((key, order >> SLOT_BITS, value))
    }

    /// Builds the order of giving up, unless it is there.
    fn rank_worst(&mut self) {
        if self.worst.is_empty() {
            let slots = &self.slots;
            let alive = |order: u64| slots[(order & SLOT_MASK) as usize].0 == order;
            self.worst = self
                .heap
                .iter()
                .filter(|Reverse((_, order))| alive(*order))
                .map(|Reverse((key, order))| (*key, Reverse(*order)))
                .collect();
        }
    }

    /// Takes the oldest of the least urgent entries that `may_go` out of the
    /// order of giving up: its key and order word.
    fn find_worst(&mut self, may_go: impl Fn(&T) -> bool) -> Option<(u64, u64)> {
        self.rank_worst();
        let mut kept = Vec::new();
        let mut found = None;
        while let Some((key, Reverse(order))) = self.worst.pop() {
            let (current, value) = &self.slots[(order & SLOT_MASK) as usize];
            if *current != order {
                continue;
            }
            if value.as_ref().is_some_and(&may_go) {
                found = Some((key, order));
                break;
            }
            kept.push((key, Reverse(order)));
        }
        self.worst.extend(kept);
        found
    }

    /// The key of the least urgent of the entries that `may_go`.
    pub fn worst_key(&mut self, may_go: impl Fn(&T) -> bool) -> Option<u64> {
        let (key, order) = self.find_worst(may_go)?;
        self.worst.push((key, Reverse(order)));
        Some(key)
    }

    /// Removes the oldest of the least urgent entries that `may_go`.
    pub fn give_up(&mut self, may_go: impl Fn(&T) -> bool) -> Option<(u64, T)> {
        let (key, order) = self.find_worst(may_go)?;
        let value = self.take(order)?;
        if self.heap.len() > 2 * self.len() + 64 {
            let slots = &self.slots;
            self.heap
                .retain(|Reverse((_, order))| slots[(order & SLOT_MASK) as usize].0 == *order);
        }
        Some((key, value))
    }

    /// All entries, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|(_, value)| value.as_ref())
    }

    /// Removes the entries that are not to be kept.
    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        for slot in 0..self.slots.len() {
            let (order, value) = &self.slots[slot];
            if value.as_ref().is_some_and(|value| !keep(value)) {
                let _ = self.take(*order);
            }
        }
        let slots = &self.slots;
        let alive = |order: u64| slots[(order & SLOT_MASK) as usize].0 == order;
        self.heap.retain(|Reverse((_, order))| alive(*order));
        self.worst.clear();
    }

    /// Entries there has been room for.
    pub fn capacity(&self) -> usize {
        self.slots.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Step {
        Push(u64),
        Pop,
        PopAndPutBack,
        GiveUp,
        Retain,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (0..5u64).prop_map(Step::Push),
            2 => Just(Step::Pop),
            1 => Just(Step::PopAndPutBack),
            1 => Just(Step::GiveUp),
            1 => Just(Step::Retain),
        ];
        proptest::collection::vec(step, 0..300)
    }

    proptest! {
        /// Against a sorted list: smallest key first, FIFO among equals; what
        /// is given up is the oldest with the largest key.
        #[test]
        fn agrees_with_a_sorted_list(steps in steps()) {
            let mut lane = Lane::default();
            let mut model: Vec<(u64, u32)> = Vec::new();
            let mut next = 0;
            for step in steps {
                match step {
                    Step::Push(key) => {
                        next += 1;
                        prop_assert!(lane.push(key, next).is_ok());
                        let at = model.partition_point(|(other, _)| *other <= key);
                        model.insert(at, (key, next));
                    }
                    Step::Pop => {
                        let popped = lane.pop().map(|(key, _, value)| (key, value));
                        let expected = (!model.is_empty()).then(|| model.remove(0));
                        prop_assert_eq!(popped, expected);
                    }
                    Step::PopAndPutBack => {
                        if let Some((key, arrival, value)) = lane.pop() {
                            lane.push_back(key, arrival, value);
                        }
                    }
                    Step::Retain => {
                        lane.retain(|value| value % 7 != 0);
                        model.retain(|(_, value)| value % 7 != 0);
                    }
                    Step::GiveUp => {
                        let worst = model.last().map(|(key, _)| *key);
                        prop_assert_eq!(lane.worst_key(|_| true), worst);
                        let at = model.iter().position(|(key, _)| Some(*key) == worst);
                        let expected = at.map(|at| model.remove(at));
                        prop_assert_eq!(lane.give_up(|_| true), expected);
                    }
                }
                prop_assert_eq!(lane.len(), model.len());
                let head = lane.peek().map(|(key, value)| (key, *value));
                prop_assert_eq!(head, model.first().copied());
                prop_assert!(lane.heap.len() <= 2 * lane.len() + 65);
                prop_assert!(lane.worst.len() <= 2 * lane.len() + 66);
            }
        }
    }

    #[test]
    fn entries_that_may_not_go_stay() {
        let mut lane = Lane::default();
        for (key, value) in [(1, 'a'), (9, 'b'), (9, 'c'), (5, 'd')] {
            lane.push(key, value).unwrap();
        }
        assert_eq!(lane.worst_key(|v| !"bc".contains(*v)), Some(5));
        assert_eq!(lane.give_up(|v| !"bc".contains(*v)), Some((5, 'd')));
        assert_eq!(lane.give_up(|_| true), Some((9, 'b')));
        assert_eq!(lane.give_up(|v| *v != 'c'), Some((1, 'a')));
        assert_eq!(lane.give_up(|v| *v != 'c'), None);
        assert_eq!(lane.iter().collect::<String>(), "c");
    }
}
