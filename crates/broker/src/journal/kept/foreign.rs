//! Entries of sessions of this shard that other shards have emitted, for as long as
//! those may not have handed them over.
//!
//! Invariant: nothing is here for longer than it may stay there.

use std::collections::VecDeque;

use hashbrown::HashMap;

use crate::Nanos;

/// What is known of an entry.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known {
    /// Shard that has emitted it.
    pub(super) home: u16,
    pub(super) at: Nanos,
    /// Where its packet identifier was said here: chunk and place.
    pub(super) sent: Option<(u64, usize)>,
    /// It is handed over there, whatever its session says ([`super::Kept::insist`]).
    pub(super) insisted: bool,
}

/// Entries by their numbers.
#[derive(Debug, Default)]
pub(super) struct Foreign {
    known: HashMap<u64, Known, foldhash::fast::RandomState>,
    /// In the order in which they came.
    order: VecDeque<(Nanos, u64)>,
}

impl Foreign {
    pub(super) fn add(&mut self, entry: u64, home: u16, at: Nanos) {
        let known = Known {
            home,
            at,
            sent: None,
            insisted: false,
        };
        self.known.insert(entry, known);
        self.order.push_back((at, entry));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    pub(super) fn has(&self, entry: u64) -> bool {
        self.known.contains_key(&entry)
    }

    pub(super) fn get_mut(&mut self, entry: u64) -> Option<&mut Known> {
        self.known.get_mut(&entry)
    }

    pub(super) fn remove(&mut self, entry: u64) -> Option<Known> {
        self.known.remove(&entry)
    }

    /// Forgets those that came before; returns how many there were.
    pub(super) fn forget(&mut self, before: Nanos) -> u32 {
        let mut forgotten = 0;
        while let Some((_, entry)) = self.order.pop_front_if(|(at, _)| *at < before) {
            forgotten += u32::from(self.known.remove(&entry).is_some());
        }
        forgotten
    }
}
