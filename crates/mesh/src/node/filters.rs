//! Which topics are wanted where: the table of this broker, and how it is made the same again at
//! both ends of a link that carries anew.
//!
//! Each end says what it believes to have been told, as sums over parts; the other asks for parts
//! that differ. Until all of them have come what the neighbour wants is not complete, and who is
//! behind it is not reached.

use std::collections::BTreeMap;

use super::output::Outputs;
use crate::id::LinkId;
use crate::table::Table;
use crate::wire::{BUCKETS, Message};

/// The table, and what of it is awaited.
#[derive(Debug)]
pub(super) struct Filters {
    pub(super) table: Table,
    /// Parts of the filters that are awaited from neighbours whose table differs.
    awaited: BTreeMap<LinkId, u64>,
    /// Parts of what neighbours were told that they ask for, and were not sent yet.
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

    /// A link carries from now on: says what is taken as told.
    pub(super) fn activate(&mut self, link: LinkId, outputs: &mut Outputs) {
        self.table.activate(link);
        let digests = self.table.digests_told(link);
        outputs.send(link, &Message::Digest(digests));
    }

    /// It does not any more; what the neighbour wanted stays wanted.
    pub(super) fn deactivate(&mut self, link: LinkId) {
        self.table.deactivate(link);
        self.awaited.remove(&link);
        self.asked.remove(&link);
    }

    /// The neighbour on a link says what it believes to have told; whether that is all here. Asks
    /// for what is not.
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

    /// The neighbour on a link asks for parts of what it was told.
    pub(super) fn say_again(&mut self, link: LinkId, bits: u64) {
        *self.asked.entry(link).or_default() |= bits;
    }

    /// Sends one of the parts that are asked for; says whether there are more. They are sent one by
    /// one, so that all of a large table does not keep the broker from its other work.
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

    /// A part has come; whether it was the last that was awaited.
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
