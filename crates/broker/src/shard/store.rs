//! The interface of a shard for a shell with a store.

use punctual_codec::{ConnAck, Packet, PropertyBuf, PropertyId};

use super::Shard;
use crate::Nanos;
use crate::base::connection::ConnId;
use crate::base::durability::{self, Durability, StoreTrouble};
use crate::journal::{Journal, Operations, RestoredSession};

impl Shard {
    /// Attaches a store: from now on, durable state is stored. `wall` is the wall clock's time at
    /// the zero of the times that the shard is given, in nanoseconds since 1970. Must be called
    /// before anything else.
    pub fn attach_store(&mut self, wall: u64) {
        self.hub.journal = Some(Box::new(Journal::new(wall)));
    }

    /// Restores a session from before a restart. Must be called after [`Self::attach_store`] and
    /// before connections are opened; on one shard for each session. False if its client has a
    /// session already.
    pub fn restore(&mut self, session: RestoredSession, now: Nanos) -> bool {
        self.hub.restore(session, now)
    }

    /// Whether [`Self::take_operations`] has operations, now or later.
    #[inline]
    pub fn has_operations(&self) -> bool {
        let journal = self.hub.journal.as_ref();
        journal.is_some_and(|journal| journal.has_operations())
    }

    /// Takes the operations that must be committed now, in the order of tickets. Must be called at
    /// the end of each turn, and when [`Self::next_timeout`] is due; [`Self::committed`] must be
    /// called for each ticket.
    pub fn take_operations(&mut self, now: Nanos) -> Option<Operations> {
        self.hub.journal.as_ref()?;
        if self.hub.index == 0 {
            self.hub.emit_retained_changes();
        }
        self.hub.emit_names();
        self.hub.emit_history();
        self.hub.take_operations(now)
    }

    /// Notes that operations up to that ticket are committed: output that waited for them is sent.
    pub fn committed(&mut self, ticket: u64, now: Nanos) {
        // Messages that stubs forward were published before output that waited for the same commit.
        if self.hub.note_stored(ticket) {
            self.forward_stubs(now);
        }
        self.hub.committed(ticket, now);
        self.share_stats_soon(now);
    }

    /// Notes that operations could not be committed; the store tries again. Until it succeeds, and
    /// [`Self::committed`] is called, requests that would have to be stored are refused.
    pub fn store_failed(&mut self, trouble: StoreTrouble, now: Nanos) {
        for (id, new) in self.hub.store_failed(trouble, now) {
            if new {
                self.refuse_corked(id, trouble, now);
            } else if self.hub.outlets.conn(id).is_some() {
                // Packets after the CONNACK may depend on the commit. When the client connects
                // again the failure is known, and the client need not wait.
                self.end_connection(id.slot, trouble.why(), false, now);
            }
        }
        self.share_stats_soon(now);
    }

    /// Notes that the store has capacity only for operations that were handed over already, and for
    /// those that free capacity, for the given reason: it is full, or cannot be enlarged. `None`
    /// means that it has capacity again. Until then, requests that would have to be stored are
    /// refused with that reason, before any operation is handed over.
    pub fn store_full(&mut self, why: Option<StoreTrouble>, now: Nanos) {
        self.hub.store_full(why, now);
        self.share_stats_soon(now);
    }

    /// Number of bytes of operations that are not committed.
    pub fn uncommitted(&self) -> usize {
        let journal = self.hub.journal.as_ref();
        journal.map_or(0, |journal| journal.uncommitted())
    }

    /// Number of packets that wait for commits.
    pub fn held(&self) -> usize {
        self.hub.held()
    }

    /// Sends a client whose new session would not survive a restart a refusal instead of CONNACK.
    fn refuse_corked(&mut self, id: ConnId, trouble: StoreTrouble, now: Nanos) {
        let hub = &mut self.hub;
        let Some(conn) = hub.outlets.conn(id) else {
            return;
        };
        let (version, session) = (conn.version, conn.session);
        let mut properties = PropertyBuf::new();
        if version.is_v5() && trouble.why().len() + 16 < conn.max_packet as usize {
            let _ = properties.push_data(PropertyId::ReasonString, trouble.why().as_bytes());
        }
        let connack = ConnAck {
            session_present: false,
            reason: trouble.reason(),
            properties: properties.as_properties(),
        };
        let mut farewell = Vec::new();
        let told = version.is_v5() || trouble.reason().connack_v3().is_some();
        if told
            && Packet::ConnAck(connack)
                .encode(version, &mut farewell)
                .is_ok()
        {
            conn.extra().farewell = farewell;
        }
        hub.stats.refused_connects += 1;
        hub.stats.count_disconnect(trouble.reason());
        if let Some(session) = hub.sessions.get_mut(session) {
            session.expiry = 0;
        }
        self.end_connection(id.slot, trouble.why(), false, now);
    }

    /// The durability that is guaranteed for a will on that topic, by a rule or for its client.
    pub(super) fn durability_of_will(&self, topic: &str, of_client: Durability) -> Durability {
        if self.hub.journal.is_none() {
            return Durability::None;
        }
        let rules = &self.hub.config.durability.rules;
        durability::of_topic(rules, topic).unwrap_or(of_client)
    }
}

#[cfg(test)]
mod tests;
