//! Entries of sessions of this shard that other shards have emitted, as long as those shards may
//! not have handed them over.
//!
//! Invariant: an entry is removed after twice the longest time for which it may stay at the other
//! shard.

use std::collections::VecDeque;

use hashbrown::HashMap;

use crate::Nanos;

/// A recorded entry.
#[derive(Debug, Clone, Copy)]
pub(super) struct ForeignEntry {
    /// Shard that has emitted the entry.
    pub(super) home: u16,
    pub(super) at: Nanos,
    /// Ticket and place of this shard's operation with its packet identifier.
    pub(super) sent: Option<(u64, usize)>,
    /// Whether the other shard hands it over even if its session finishes it
    /// ([`super::PendingOperations::insist`]).
    pub(super) insisted: bool,
}

/// Entries by their numbers.
#[derive(Debug, Default)]
pub(super) struct Foreign {
    known: HashMap<u64, ForeignEntry, foldhash::fast::RandomState>,
    /// Times and numbers, in the order of arrival.
    order: VecDeque<(Nanos, u64)>,
}

impl Foreign {
    pub(super) fn add(&mut self, entry: u64, home: u16, at: Nanos) {
        let known = ForeignEntry {
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

    pub(super) fn get_mut(&mut self, entry: u64) -> Option<&mut ForeignEntry> {
        self.known.get_mut(&entry)
    }

    pub(super) fn remove(&mut self, entry: u64) -> Option<ForeignEntry> {
        self.known.remove(&entry)
    }

    /// Forgets entries that were recorded before that time; returns their number.
    pub(super) fn forget(&mut self, before: Nanos) -> u32 {
        let mut forgotten = 0;
        while let Some((_, entry)) = self.order.pop_front_if(|(at, _)| *at < before) {
            forgotten += u32::from(self.known.remove(&entry).is_some());
        }
        forgotten
    }
}
