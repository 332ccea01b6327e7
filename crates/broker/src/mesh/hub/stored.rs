//! What is stored of what sessions have had.

use punctual_store::Op;

use crate::hub::Hub;
use crate::journal::Journal;
use crate::mesh::journal::had::{BEGAN, CUSTODY, word_key};
use crate::mesh::moves::Had;
use crate::session::{Session, Stored};

impl Hub {
    /// From now on it is known of what passes here whether a session has queued it.
    pub(crate) fn begin_here(&mut self, slot: u32) {
        let Some(session) = self.sessions.get_mut(slot) else {
            return;
        };
        session.set_began(self.directory.begins().map(Stored::new));
        if let Some(journal) = self.journal.as_mut().filter(|_| session.durable) {
            journal.began(session);
        }
    }

    /// Emits what a session is where sessions move, unless the store knows that.
    pub(crate) fn store_custody(&mut self, slot: u32) {
        if let (Some(journal), Some(session)) = (&mut self.journal, self.sessions.get_mut(slot))
            && session.durable
            && let Some(custody) = session.custody.as_mut().filter(|it| !it.is_stored)
        {
            custody.is_stored = true;
            let key = &word_key(session.handle.number, CUSTODY);
            let value = &custody.value.encode();
            journal.emit(&Op::Flow { key, value });
        }
    }

    /// What a session has had is to be stored from now on, if the session survives.
    pub(crate) fn store_had(&mut self, slot: u32) {
        if let Some(session) = self.sessions.get_mut(slot)
            && session.durable
            && self.journal.is_some()
            && let Some(had) = &mut session.had
        {
            had.log.get_or_insert_default();
        }
    }

    /// Something was noted in that of a session.
    pub(crate) fn had_more(&mut self, slot: u32) {
        let session = self.sessions.get_mut(slot);
        let log = session.and_then(|session| session.had.as_mut()?.log.as_mut());
        if log.is_some_and(|log| log.is_to_be_listed()) {
            self.links.moves.had_more.push(slot);
        }
    }

    /// Emits what sessions have had since the last time.
    pub(crate) fn emit_had(&mut self) {
        let Some(journal) = &mut self.journal else {
            return;
        };
        for slot in self.links.moves.had_more.drain(..) {
            if let Some(session) = self.sessions.get_mut(slot)
                && let Some(log) = session.had.as_mut().and_then(|had| had.log.as_mut())
            {
                log.emit(journal, session.handle.number);
            }
        }
    }

    /// What a session has had is not needed any more; returns it.
    pub(crate) fn take_had(&mut self, slot: u32) -> Option<Box<Had>> {
        let session = self.sessions.get_mut(slot)?;
        let mut had = session.had.take()?;
        if let (Some(log), Some(journal)) = (had.log.take(), &mut self.journal) {
            log.end(journal, session.handle.number);
        }
        Some(had)
    }
}

/// Removes from the store the instant at which a session began on this broker: it is not valid any more.
pub(crate) fn forget_began(journal: &mut Option<Box<Journal>>, session: &Session) {
    if let Some(journal) = journal {
        let key = word_key(session.handle.number, BEGAN);
        journal.emit(&Op::FlowGone { key: &key });
    }
}

impl Journal {
    /// Nothing of this is stored any more of a session that ends, or does not survive.
    pub(crate) fn end_had(&mut self, session: &mut Session) {
        let number = session.handle.number;
        if let Some(log) = session.had.as_mut().and_then(|had| had.log.take()) {
            log.end(self, number);
        }
        let began = session.began.as_mut().map(|it| &mut it.is_stored);
        let custody = session.custody.as_mut().map(|it| &mut it.is_stored);
        for (word, stored) in [(BEGAN, began), (CUSTODY, custody)] {
            if stored.is_some_and(std::mem::take) {
                let key = word_key(number, word);
                self.emit(&Op::FlowGone { key: &key });
            }
        }
    }

    /// Emits what had been here when a session began to be here, unless the store knows that.
    pub(crate) fn began(&mut self, session: &mut Session) {
        let Some(began) = session.began.as_mut().filter(|it| !it.is_stored) else {
            return;
        };
        began.is_stored = true;
        let began = began.value;
        let mut value = began.stored.to_le_bytes().to_vec();
        value.extend_from_slice(&began.origin.get().to_le_bytes());
        value.extend_from_slice(&began.given.to_le_bytes());
        self.emit(&Op::Flow {
            key: &word_key(session.handle.number, BEGAN),
            value: &value,
        });
    }
}
