//! Emits the operations of sessions.

use punctual_codec::Version;
use punctual_store::Op;
use punctual_store::op::SubscriptionOp;

use crate::Nanos;
use crate::base::durability::{Durability, StoreTrouble};
use crate::hub::Hub;
use crate::index::subscriber::OPTIONS;
use crate::journal::answers::After;
use crate::journal::sessions::BETWEEN;

impl Hub {
    /// Emits the identity of a session, and the time since which it has no connection.
    pub(crate) fn store_session(&mut self, slot: u32, now: Nanos) {
        let Some(journal) = &mut self.journal else {
            return;
        };
        let Some(session) = self.sessions.get_mut(slot).filter(|s| s.durable) else {
            return;
        };
        // Not the time of storing: the expiry interval counts from the loss of the connection.
        session.detached = match session.conn {
            Some(_) => None,
            None => Some(session.detached.unwrap_or(journal.offset.wall(now))),
        };
        // A full store accepts operations that replace existing records.
        if journal.is_failing() {
            journal.defer(session, slot);
            return;
        }
        let conn = session.conn.and_then(|slot| self.outlets.conns.get(slot));
        let version = conn.map_or(Version::V5, |conn| conn.version);
        journal.session(session, version);
        self.store_custody(slot);
    }

    /// Emits the changes of a session by CONNECT. CONNACK, and all later packets, wait until they
    /// are committed; while commits fail, only packets that depend on them wait.
    pub(crate) fn store_connected(&mut self, conn: u32, slot: u32, new: bool, now: Nanos) {
        let Some(session) = self.sessions.get(slot).filter(|s| s.durable) else {
            self.store_will_record(conn, slot);
            return;
        };
        let has_will = session.will.is_some();
        self.store_session(slot, now);
        if let (true, Some(session), Some(journal)) =
            (new, self.sessions.get_mut(slot), &self.journal)
        {
            session.created = journal.latest();
        }
        match has_will {
            true => self.store_will(slot),
            false if !new => self.store_no_will(slot),
            false => {}
        }
        if let Some(journal) = &self.journal
            && !journal.is_failing()
        {
            let ticket = journal.latest();
            let new = !self.is_safe(slot);
            // Control messages between brokers, QoS 0 and urgent messages do not wait for the disk.
            // A session that is not stored yet receives nothing: other shards may store entries for
            // it, which a restart would drop.
            if new || !self.sessions.get(slot).is_some_and(|it| it.handle.link) {
                self.cork(conn, ticket, new);
            }
        }
    }

    /// Emits the will of a session that ends with its connection, as a session of which nothing
    /// else is stored: after a restart its client has lost its connection. CONNACK waits until that
    /// is committed. While the store is in trouble, the client is accepted without it.
    fn store_will_record(&mut self, conn: u32, slot: u32) {
        let is_stored = self.store_trouble().is_none();
        let (Some(session), Some(journal)) = (self.sessions.get_mut(slot), &mut self.journal)
        else {
            return;
        };
        let Some(will) = session.will.as_ref().filter(|_| {
            is_stored && session.durability > Durability::None && session.link.is_none()
        }) else {
            return;
        };
        session.has_will_record = true;
        journal.session(session, Version::V5);
        journal.will(session.handle.number, will);
        let ticket = journal.latest();
        self.cork(conn, ticket, true);
    }

    /// Emits that a session that ends with its connection has no will any more.
    pub(crate) fn store_no_will_record(&mut self, slot: u32) {
        if let (Some(session), Some(journal)) = (self.sessions.get_mut(slot), &mut self.journal)
            && std::mem::take(&mut session.has_will_record)
        {
            let session = session.handle.number;
            journal.emit(&Op::SessionEnd { session });
        }
    }

    /// Whether a session that is to survive a restart is committed.
    pub(crate) fn is_safe(&self, slot: u32) -> bool {
        let (Some(session), Some(journal)) = (self.sessions.get(slot), &self.journal) else {
            return false;
        };
        !session.durable || journal.is_committed(session.created)
    }

    /// Whether commits fail at the moment.
    pub(crate) fn is_store_failing(&self) -> bool {
        self.journal
            .as_ref()
            .is_some_and(|journal| journal.is_failing())
    }

    /// Why new messages and sessions cannot be stored at the moment.
    pub(crate) fn store_trouble(&self) -> Option<StoreTrouble> {
        self.journal.as_ref()?.trouble()
    }

    /// Emits that a session has ended, or no longer survives a restart.
    pub(crate) fn store_session_end(&mut self, slot: u32) {
        let Some(journal) = &mut self.journal else {
            return;
        };
        if let Some(session) = self.sessions.get_mut(slot)
            && std::mem::take(&mut session.durable)
        {
            session.handle.set_durable(false);
            journal.end_history(session);
            let number = session.handle.number;
            // Operations on a session after its end would stay in the store for ever.
            if journal.kept.has_foreign() {
                let waiting = session.queue.iter().map(|delivery| delivery.entry);
                let in_flight = session.window.unfinished().map(|it| it.entry());
                for entry in waiting.chain(in_flight) {
                    if journal.kept.is_foreign(entry) {
                        journal.dropped(number, entry);
                    }
                }
            }
            journal.emit(&Op::SessionEnd { session: number });
        }
    }

    /// Emits the will of a session, and when it is to be published, if that is known.
    pub(crate) fn store_will(&mut self, slot: u32) {
        let Some(journal) = &mut self.journal else {
            return;
        };
        let Some(session) = self
            .sessions
            .get_mut(slot)
            .filter(|s| s.durable || s.has_will_record)
        else {
            return;
        };
        // A full store accepts wills: there is one for each session, and no new session while the
        // store is full.
        if journal.is_failing() {
            journal.defer(session, slot);
        } else if let Some(will) = &session.will {
            journal.will(session.handle.number, will);
        }
    }

    /// Emits that a session has no will any more.
    pub(crate) fn store_no_will(&mut self, slot: u32) {
        let Some(journal) = &mut self.journal else {
            return;
        };
        if let Some(session) = self.sessions.get(slot).filter(|s| s.durable) {
            let session = session.handle.number;
            journal.emit(&Op::WillGone { session });
        }
    }

    /// Emits a subscription of a session.
    pub(crate) fn store_subscription(&mut self, slot: u32, filter: &str) {
        let Some(journal) = &mut self.journal else {
            return;
        };
        let Some(session) = self.sessions.get_mut(slot).filter(|s| s.durable) else {
            return;
        };
        journal.began(session);
        if let Some(known) = session.subscriptions.find(filter) {
            journal.subscription(session, known);
        }
    }

    /// Emits a filter of a neighbour, or its removal.
    pub(crate) fn store_wish(&mut self, slot: u32, filter: &str, wanted: bool) {
        let Some(journal) = &mut self.journal else {
            return;
        };
        let Some(session) = self.sessions.get(slot).filter(|s| s.durable) else {
            return;
        };
        let session = session.handle.number;
        journal.emit(&match wanted {
            true => Op::Subscription(SubscriptionOp {
                session,
                filter,
                options: OPTIONS.byte(),
                id: None,
                properties: &[],
            }),
            false => Op::Unsubscription { session, filter },
        });
    }

    /// Emits the brokers behind a neighbour for a filter: those with members of a shared
    /// subscription, those with persistent sessions that await the filter behind
    /// [`AWAITED`](crate::journal::sessions::AWAITED), or with
    /// [`BEHIND`](crate::journal::sessions::BEHIND) all of them. They replace earlier ones.
    pub(crate) fn store_members(&mut self, slot: u32, filter: &str, brokers: &[&str]) {
        let Some(journal) = &mut self.journal else {
            return;
        };
        let Some(session) = self.sessions.get(slot).filter(|s| s.durable) else {
            return;
        };
        let session = session.handle.number;
        let names = brokers.join(BETWEEN);
        journal.emit(&match brokers {
            [] => Op::Unsubscription { session, filter },
            _ => Op::Subscription(SubscriptionOp {
                session,
                filter,
                options: OPTIONS.byte(),
                id: None,
                properties: names.as_bytes(),
            }),
        });
    }

    /// Emits that a session has unsubscribed from a filter.
    pub(crate) fn store_unsubscription(&mut self, slot: u32, filter: &str) {
        let Some(journal) = &mut self.journal else {
            return;
        };
        if let Some(session) = self.sessions.get(slot).filter(|s| s.durable) {
            let session = session.handle.number;
            journal.emit(&Op::Unsubscription { session, filter });
        }
    }

    /// The ticket that an answer about a session's own state waits for.
    pub(crate) fn ticket_of(&self, slot: u32) -> Option<After> {
        let journal = self.journal.as_ref()?;
        let durable = self.sessions.get(slot)?.durable;
        durable.then(|| After::ticket(journal.latest()))
    }

    /// The store has recovered: emits the sessions and retained messages that changed meanwhile.
    pub(super) fn catch_up(&mut self, now: Nanos) {
        let Some(journal) = &mut self.journal else {
            return;
        };
        let sessions = std::mem::take(&mut journal.stale_sessions);
        // A full store does not accept retained messages.
        let has_room = journal.trouble().is_none();
        let topics = has_room.then(|| std::mem::take(&mut journal.stale_topics));
        let topics = topics.unwrap_or_default();
        for slot in sessions {
            if let Some(session) = self.sessions.get_mut(slot)
                && std::mem::take(&mut session.stale)
            {
                let has_will = session.will.is_some();
                self.store_session(slot, now);
                match has_will {
                    true => self.store_will(slot),
                    false => self.store_no_will(slot),
                }
            }
        }
        if topics.is_empty() {
            return;
        }
        let directory = self.directory.clone();
        let retained = directory.retained();
        for topic in topics {
            if let Some(kept) = retained.get(&topic)
                && kept.message.stored != 0
            {
                self.store_retained(kept);
            }
        }
    }
}
