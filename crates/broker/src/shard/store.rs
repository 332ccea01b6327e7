//! What a shell with a store tells a shard, and asks it for.

use punctual_codec::{ConnAck, Packet, PropertyBuf, PropertyId};

use super::Shard;
use crate::Nanos;
use crate::base::connection::ConnId;
use crate::base::durability::{self, Durability, StoreTrouble};
use crate::journal::{Journal, Operations, RestoredSession};

impl Shard {
    /// From now on, what is to survive is stored. `wall` is the wall clock's time
    /// at the zero of the times that the shard is given, in nanoseconds since
    /// 1970. To be called before anything else.
    pub fn attach_store(&mut self, wall: u64) {
        self.hub.journal = Some(Box::new(Journal::new(wall)));
    }

    /// Makes a session as it was before a restart. To be called after
    /// [`Self::attach_store`] and before connections are opened; on one shard for
    /// each session. False if its client has a session already.
    pub fn restore(&mut self, session: RestoredSession, now: Nanos) -> bool {
        self.hub.restore(session, now)
    }

    /// Whether [`Self::take_operations`] has something, now or later.
    #[inline]
    pub fn has_operations(&self) -> bool {
        let journal = self.hub.journal.as_ref();
        journal.is_some_and(|journal| journal.has_operations())
    }

    /// What has happened and is to be committed now, in the order of tickets. To be
    /// called at the end of each turn, and when [`Self::next_timeout`] says so;
    /// [`Self::committed`] is due for each ticket.
    pub fn take_operations(&mut self, now: Nanos) -> Option<Operations> {
        self.hub.journal.as_ref()?;
        if self.hub.index == 0 {
            self.hub.emit_retained_changes();
            self.hub.emit_names();
        }
        self.hub.emit_history();
        self.hub.take_operations(now)
    }

    /// Operations up to that ticket are safe: what waited for them leaves.
    pub fn committed(&mut self, ticket: u64, now: Nanos) {
        // What stubs forward was published before what has waited for the same commit.
        if self.hub.note_stored(ticket) {
            self.forward_stubs(now);
        }
        self.hub.committed(ticket, now);
        self.share_stats_soon(now);
    }

    /// Operations could not be committed; the store tries again. Until it
    /// succeeds, and [`Self::committed`] says so, what would have to be stored is
    /// refused.
    pub fn store_failed(&mut self, trouble: StoreTrouble, now: Nanos) {
        for (id, new) in self.hub.store_failed(trouble, now) {
            if new {
                self.refuse_corked(id, trouble, now);
            } else if self.hub.outlets.conn(id).is_some() {
                // What follows its CONNACK may depend on the commit. When it comes
                // again that is known, and it need not wait.
                self.end_connection(id.slot, trouble.why(), false, now);
            }
        }
        self.share_stats_soon(now);
    }

    /// The store has room only for what was handed over already, and for what gives
    /// room back, for that reason: it is full, or cannot be made larger. With `None` it
    /// has more again. While it has not, what would have to be stored is refused with
    /// that reason, before anything is handed over.
    pub fn store_full(&mut self, why: Option<StoreTrouble>, now: Nanos) {
        self.hub.store_full(why, now);
        self.share_stats_soon(now);
    }

    /// Bytes of operations that are not committed.
    pub fn uncommitted(&self) -> usize {
        let journal = self.hub.journal.as_ref();
        journal.map_or(0, |journal| journal.uncommitted())
    }

    /// Packets that wait for commits.
    pub fn held(&self) -> usize {
        self.hub.held()
    }

    /// A client whose new session would not survive gets a refusal instead of
    /// CONNACK.
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

    /// What is promised about a will on that topic, by a rule or for its client.
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
