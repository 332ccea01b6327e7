//! The subscription table of this broker, and how both ends of a link synchronise it when the link begins
//! to carry.
//!
//! Each end sends checksums, by parts, of the filters that it takes as advertised; the other end requests
//! the parts that differ. Until all of these have arrived, the filters of the neighbour are incomplete,
//! and the brokers behind it do not count as reached.

use std::collections::BTreeMap;

use super::output::Outputs;
use crate::id::LinkId;
use crate::table::Table;
use crate::wire::{BUCKETS, Message};

/// The table, and the parts that are being synchronised.
#[derive(Debug)]
pub(super) struct Filters {
    pub(super) table: Table,
    /// Parts (a bit each) that were requested from neighbours and have not arrived.
    awaited: BTreeMap<LinkId, u64>,
    /// Parts (a bit each) that neighbours have requested and were not sent yet.
    asked: BTreeMap<LinkId, u64>,
}

impl Filters {
    pub(super) fn new(max: usize) -> Self {
        Self {
            table: Table::new(max),
            awaited: BTreeMap::new(),
            asked: BTreeMap::new(),
        }
    }

    /// A link begins to carry: sends the checksums of the filters advertised on it.
    pub(super) fn activate(&mut self, link: LinkId, outputs: &mut Outputs) {
        self.table.activate(link);
        let digests = self.table.digests_told(link);
        outputs.send(link, &Message::Digest(digests));
    }

    /// A link ceases to carry; the filters of the neighbour stay.
    pub(super) fn deactivate(&mut self, link: LinkId) {
        self.table.deactivate(link);
        self.awaited.remove(&link);
        self.asked.remove(&link);
    }

    /// Compares the checksums of a neighbour with the filters known of it, and requests the parts that
    /// differ. Returns whether there are none.
    pub(super) fn compare(
        &mut self,
        link: LinkId,
        theirs: &[u64; BUCKETS],
        outputs: &mut Outputs,
    ) -> bool {
        let ours = self.table.digests_wanted_by(link);
        let differ = (0..BUCKETS).filter(|i| theirs[*i] != ours[*i]);
        let bits = differ.fold(0, |bits, i| bits | 1 << i);
        match bits {
            0 => drop(self.awaited.remove(&link)),
            _ => {
                self.awaited.insert(link, bits);
                outputs.send(link, &Message::Want(bits));
            }
        }
        bits == 0
    }

    /// The neighbour on a link requests these parts.
    pub(super) fn say_again(&mut self, link: LinkId, bits: u64) {
        *self.asked.entry(link).or_default() |= bits;
    }

    /// Sends one requested part; returns whether there are more. Parts are sent one by one, so that a
    /// large table does not keep the broker from its other work.
    pub(super) fn say_next_part(&mut self, outputs: &mut Outputs) -> bool {
        if let Some(mut asked) = self.asked.first_entry() {
            let (link, bits) = (*asked.key(), *asked.get());
            let index = bits.trailing_zeros() as u8;
            match bits & bits.wrapping_sub(1) {
                0 => drop(asked.remove()),
                rest => *asked.get_mut() = rest,
            }
            if bits != 0 {
                let filters = self.table.told(link, index);
                outputs.send(link, &Message::Bucket { index, filters });
            }
        }
        !self.asked.is_empty()
    }

    /// A requested part has arrived; returns whether it was the last one.
    pub(super) fn part_came(&mut self, link: LinkId, index: u8) -> bool {
        let Some(awaited) = self.awaited.get_mut(&link) else {
            return false;
        };
        *awaited &= !(1 << index);
        let is_last = *awaited == 0;
        if is_last {
            self.awaited.remove(&link);
        }
        is_last
    }
}
