//! The sessions of a shard.

use std::ops::{Deref, DerefMut};

use crate::session::{Names, Session};
use crate::slab::Slab;

/// Sessions by slot, and by client identifier.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    slab: Slab<Session>,
    names: Names,
    last_epoch: u64,
}

impl Sessions {
    /// Slot of the session with that client identifier.
    pub(crate) fn named(&self, client_id: &str) -> Option<u32> {
        self.names.find(&self.slab, client_id)
    }

    /// Enters the session in that slot under its client identifier.
    pub(crate) fn name(&mut self, slot: u32) {
        self.names.insert(&self.slab, slot);
    }

    /// Removes the entry of the session in that slot under its client identifier.
    pub(crate) fn unname(&mut self, client_id: &str, slot: u32) {
        self.names.remove(client_id, slot);
    }

    /// A new epoch, which no session has had: it makes the timers of an earlier connection of a
    /// session void.
    pub(crate) fn next_epoch(&mut self) -> u64 {
        self.last_epoch += 1;
        self.last_epoch
    }
}

impl Deref for Sessions {
    type Target = Slab<Session>;

    #[inline]
    fn deref(&self) -> &Slab<Session> {
        &self.slab
    }
}

impl DerefMut for Sessions {
    #[inline]
    fn deref_mut(&mut self) -> &mut Slab<Session> {
        &mut self.slab
    }
}
