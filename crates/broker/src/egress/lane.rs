//! A lane of urgent messages: a priority queue that is FIFO among equals and can drop the oldest of
//! its least urgent entries.
//!
//! Keys and slots are in a binary heap of 16-byte entries, values in a slab beside it, so that
//! sorting moves little. Only a lane that overflows needs the order in which entries are dropped:
//! then a second heap, of the entries that may be dropped, is built and kept up to date lazily
//! until the lane is empty. Push and pop are O(log n); dropping is O(log n) amortised, however many
//! entries may not be dropped. Nothing is allocated while the lane stays within its largest length
//! so far.

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
    /// Entries that may be dropped, if [`Self::ranked`]: largest key first, and among equals the
    /// earliest arrival. Entries that have left are recognised by their slot's order word.
    worst: BinaryHeap<(u64, Reverse<u64>)>,
    ranked: bool,
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    /// Number of entries that may be dropped.
    loose: usize,
    arrivals: u64,
}

#[derive(Debug)]
struct Slot<T> {
    /// Order word of the entry in this slot; 0 if the slot is free.
    order: u64,
    may_go: bool,
    value: Option<T>,
}

impl<T> Default for Lane<T> {
    fn default() -> Self {
        Self {
            heap: BinaryHeap::new(),
            worst: BinaryHeap::new(),
            ranked: false,
            slots: Vec::new(),
            free: Vec::new(),
            loose: 0,
            arrivals: 0,
        }
    }
}

impl<T> Lane<T> {
    /// Maximum number of entries of one lane.
    pub const MAX_ENTRIES: usize = 1 << SLOT_BITS;

    /// Number of entries in the lane.
    #[inline]
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether the lane is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of entries that [may be dropped](Self::give_up).
    #[inline]
    pub fn loose(&self) -> usize {
        self.loose
    }

    /// Adds an entry behind those with the same key. `may_go` says whether [`Self::give_up`] may
    /// drop it.
    ///
    /// # Errors
    /// Hands it back if there are [`Lane::MAX_ENTRIES`].
    #[inline]
    pub fn push(&mut self, key: u64, may_go: bool, value: T) -> Result<(), T> {
        if self.is_empty() {
            self.arrivals = 0;
            self.heap.clear();
            self.worst.clear();
            self.ranked = false;
        }
        self.append(key, may_go, value)
    }

    /// As [`Self::push`], while entries that were taken out may still be put back.
    ///
    /// # Errors
    /// Hands it back if there are [`Lane::MAX_ENTRIES`].
    #[inline]
    pub fn append(&mut self, key: u64, may_go: bool, value: T) -> Result<(), T> {
        self.arrivals += 1;
        self.insert(key, self.arrivals, may_go, value)
    }

    /// Puts an entry back where [`Self::pop`] took it from.
    pub fn push_back(&mut self, key: u64, arrival: u64, may_go: bool, value: T) {
        // The entry had a slot before it was taken.
        let _ = self.insert(key, arrival, may_go, value);
        self.arrivals = self.arrivals.max(arrival);
    }

    fn insert(&mut self, key: u64, arrival: u64, may_go: bool, value: T) -> Result<(), T> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.slots.len() >= Self::MAX_ENTRIES => return Err(value),
            None => {
                self.slots.push(Slot {
                    order: 0,
                    may_go,
                    value: None,
                });
                (self.slots.len() - 1) as u32
            }
        };
        let order = arrival << SLOT_BITS | u64::from(slot);
        self.slots[slot as usize] = Slot {
            order,
            may_go,
            value: Some(value),
        };
        self.heap.push(Reverse((key, order)));
        self.loose += usize::from(may_go);
        if may_go && self.ranked {
            self.worst.push((key, Reverse(order)));
        }
        Ok(())
    }

    fn take(&mut self, order: u64) -> Option<T> {
        let at = (order & SLOT_MASK) as usize;
        let slot = self.slots.get_mut(at)?;
        if slot.order != order {
            return None;
        }
        let value = slot.value.take()?;
        slot.order = 0;
        self.loose -= usize::from(slot.may_go);
        self.free.push(at as u32);
        Some(value)
    }

    /// Whether an entry of the heaps is still in the lane.
    fn is_here(slots: &[Slot<T>], order: u64) -> bool {
        slots[(order & SLOT_MASK) as usize].order == order
    }

    /// Removes dropped entries from the front of the heap.
    #[inline]
    fn clean(&mut self) {
        while let Some(Reverse((_, order))) = self.heap.peek() {
            if Self::is_here(&self.slots, *order) {
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
        let slot = &self.slots[(order & SLOT_MASK) as usize];
        Some((*key, slot.value.as_ref()?))
    }

    /// Removes the most urgent entry; returns its key, arrival and value.
    #[inline]
    pub fn pop(&mut self) -> Option<(u64, u64, T)> {
        self.clean();
        let Reverse((key, order)) = self.heap.pop()?;
        let value = self.take(order)?;
        if self.worst.len() > 2 * self.loose + 64 {
            let slots = &self.slots;
            self.worst
                .retain(|(_, Reverse(order))| Self::is_here(slots, *order));
        }
        Some((key, order >> SLOT_BITS, value))
    }

    /// The oldest of the least urgent entries that may be dropped: its key and order word. Builds
    /// the second heap if there is none.
    fn find_worst(&mut self) -> Option<(u64, u64)> {
        if self.loose == 0 {
            return None;
        }
        if !self.ranked {
            self.ranked = true;
            let slots = &self.slots;
            let all = self.heap.iter().map(|Reverse(entry)| *entry);
            let loose = all.filter(|(_, order)| {
                Self::is_here(slots, *order) && slots[(order & SLOT_MASK) as usize].may_go
            });
            self.worst = loose.map(|(key, order)| (key, Reverse(order))).collect();
        }
        while let Some((key, Reverse(order))) = self.worst.peek() {
            if Self::is_here(&self.slots, *order) {
                return Some((*key, *order));
            }
            self.worst.pop();
        }
        None
    }

    /// The key of the least urgent entry that may be dropped.
    pub fn worst_key(&mut self) -> Option<u64> {
        self.find_worst().map(|(key, _)| key)
    }

    /// Removes the oldest of the least urgent entries that may be dropped.
    pub fn give_up(&mut self) -> Option<(u64, T)> {
        let (key, order) = self.find_worst()?;
        let value = self.take(order)?;
        if self.heap.len() > 2 * self.len() + 64 {
            let slots = &self.slots;
            self.heap
                .retain(|Reverse((_, order))| Self::is_here(slots, *order));
        }
        Some((key, value))
    }

    /// All entries, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|slot| slot.value.as_ref())
    }

    /// Removes the entries that `keep` does not select.
    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        for at in 0..self.slots.len() {
            let slot = &self.slots[at];
            if slot.value.as_ref().is_some_and(|value| !keep(value)) {
                let _ = self.take(slot.order);
            }
        }
        let slots = &self.slots;
        self.heap
            .retain(|Reverse((_, order))| Self::is_here(slots, *order));
        self.worst.clear();
        self.ranked = false;
    }

    /// Number of entries for which memory is allocated.
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
        Push(u64, bool),
        Pop,
        PopAndPutBack,
        GiveUp,
        Retain,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (0..5u64, any::<bool>()).prop_map(|(key, may_go)| Step::Push(key, may_go)),
            2 => Just(Step::Pop),
            1 => Just(Step::PopAndPutBack),
            1 => Just(Step::GiveUp),
            1 => Just(Step::Retain),
        ];
        proptest::collection::vec(step, 0..300)
    }

    proptest! {
        /// Compares with a sorted list: smallest key first, FIFO among equals; the entry that is
        /// dropped is the oldest with the largest key among those that may be dropped.
        #[test]
        fn agrees_with_a_sorted_list(steps in steps()) {
            let mut lane = Lane::default();
            let mut model: Vec<(u64, bool, u32)> = Vec::new();
            let mut next = 0;
            for step in steps {
                match step {
                    Step::Push(key, may_go) => {
                        next += 1;
                        prop_assert!(lane.push(key, may_go, (may_go, next)).is_ok());
                        let at = model.partition_point(|(other, ..)| *other <= key);
                        model.insert(at, (key, may_go, next));
                    }
                    Step::Pop => {
                        let popped = lane.pop().map(|(key, _, (may_go, n))| (key, may_go, n));
                        let expected = (!model.is_empty()).then(|| model.remove(0));
                        prop_assert_eq!(popped, expected);
                    }
                    Step::PopAndPutBack => {
                        if let Some((key, arrival, value)) = lane.pop() {
                            lane.push_back(key, arrival, value.0, value);
                        }
                    }
                    Step::Retain => {
                        lane.retain(|(_, value)| value % 7 != 0);
                        model.retain(|(.., value)| value % 7 != 0);
                    }
                    Step::GiveUp => {
                        let loose = model.iter().rfind(|(_, may_go, _)| *may_go);
                        let worst = loose.map(|(key, ..)| *key);
                        prop_assert_eq!(lane.worst_key(), worst);
                        let at = model.iter().position(|(key, may_go, _)| {
                            *may_go && Some(*key) == worst
                        });
                        let expected = at.map(|at| model.remove(at));
                        let given_up = lane.give_up().map(|(key, (may_go, n))| (key, may_go, n));
                        prop_assert_eq!(given_up, expected);
                    }
                }
                prop_assert_eq!(lane.len(), model.len());
                let loose = model.iter().filter(|(_, may_go, _)| *may_go).count();
                prop_assert_eq!(lane.loose(), loose);
                let head = lane.peek().map(|(key, value)| (key, value.0, value.1));
                prop_assert_eq!(head, model.first().copied());
                prop_assert!(lane.heap.len() <= 2 * lane.len() + 65);
                prop_assert!(lane.worst.len() <= 2 * loose + 66);
            }
        }
    }
}
