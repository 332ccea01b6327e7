//! Stored delivery histories and transfer records of sessions.

use punctual_store::Op;

use crate::hub::Hub;
use crate::journal::Journal;
use crate::mesh::journal::history::{BEGAN, CUSTODY, word_key};
use crate::mesh::moves::DeliveryHistory;
use crate::session::{Session, Stored};

impl Hub {
    /// Notes that from now on a session queues each message that passes this broker and matches a
    /// subscription.
    pub(crate) fn begin_here(&mut self, slot: u32) {
        let Some(session) = self.sessions.get_mut(slot) else {
            return;
        };
        session.set_began(self.directory.begins().map(Stored::new));
        if let Some(journal) = self.journal.as_mut().filter(|_| session.durable) {
            journal.began(session);
        }
    }

    /// Emits the transfer record of a session, unless it is stored.
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

    /// Stores the delivery history of a session from now on, if the session survives a restart.
    pub(crate) fn store_history(&mut self, slot: u32) {
        if let Some(session) = self.sessions.get_mut(slot)
            && session.durable
            && self.journal.is_some()
            && let Some(history) = &mut session.history
        {
            history.log.get_or_insert_default();
        }
    }

    /// The delivery history of a session has grown: lists the session for [`Self::emit_history`].
    pub(crate) fn history_grew(&mut self, slot: u32) {
        let session = self.sessions.get_mut(slot);
        let log = session.and_then(|session| session.history.as_mut()?.log.as_mut());
        if log.is_some_and(|log| log.is_to_be_listed()) {
            self.links.moves.history_grew.push(slot);
        }
    }

    /// Emits the additions to delivery histories since the last call.
    pub(crate) fn emit_history(&mut self) {
        let Some(journal) = &mut self.journal else {
            return;
        };
        for slot in self.links.moves.history_grew.drain(..) {
            if let Some(session) = self.sessions.get_mut(slot)
                && let Some(log) = session
                    .history
                    .as_mut()
                    .and_then(|history| history.log.as_mut())
            {
                log.emit(journal, session.handle.number);
            }
        }
    }

    /// Ends and returns the delivery history of a session.
    pub(crate) fn take_history(&mut self, slot: u32) -> Option<Box<DeliveryHistory>> {
        let session = self.sessions.get_mut(slot)?;
        let mut history = session.history.take()?;
        if let (Some(log), Some(journal)) = (history.log.take(), &mut self.journal) {
            log.end(journal, session.handle.number);
        }
        Some(history)
    }
}

/// Removes from the store the position at which a session began on this broker, which is not valid
/// any more.
pub(crate) fn forget_began(journal: &mut Option<Box<Journal>>, session: &Session) {
    if let Some(journal) = journal {
        let key = word_key(session.handle.number, BEGAN);
        journal.emit(&Op::FlowGone { key: &key });
    }
}

impl Journal {
    /// Removes the history and the records of a session from the store: it ends, or no longer
    /// survives a restart.
    pub(crate) fn end_history(&mut self, session: &mut Session) {
        let number = session.handle.number;
        if let Some(log) = session
            .history
            .as_mut()
            .and_then(|history| history.log.take())
        {
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

    /// Emits the position at which a session began on this broker, unless it is stored.
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
