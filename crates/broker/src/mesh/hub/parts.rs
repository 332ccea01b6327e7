//! The copy of a session that another broker sends in parts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use punctual_codec::{PacketType, QoS, ReasonCode};
use punctual_mesh::transfer::Record;
use punctual_store::Op;

use crate::Nanos;
use crate::base::delivery::{Delivery, Load};
use crate::hub::Hub;
use crate::journal::content::released;
use crate::journal::restore::RestoredSession;
use crate::journal::wall::Offset;
use crate::mesh::journal::moved::Round;
use crate::mesh::moves::TakenUp;

impl Hub {
    /// The wall clock of the mesh in microseconds since 1970; 0 without a mesh.
    pub(crate) fn mesh_clock(&self) -> u64 {
        self.directory.federation().map_or(0, |mesh| mesh.clock())
    }

    /// Offset of the wall clock of the mesh from this broker's clock. Times in transfers are on the
    /// wall clock.
    pub(crate) fn offset(&self, now: Nanos) -> Offset {
        Offset(self.mesh_clock().saturating_mul(1000).saturating_sub(now.0))
    }
}

impl Hub {
    /// Begins to read a client's session from another broker.
    pub(crate) fn begin_round(&self, client: &Arc<str>, now: Nanos) -> Round {
        let most = self.config.limits.max_queued_bytes.saturating_mul(4);
        let has_store = self.journal.is_some();
        Round::new(&self.directory, client, self.offset(now), most, has_store)
    }

    /// Adds the next part of a session to its copy; `None` if it does not encode a part of a
    /// session, or if there is no room for it.
    pub(crate) fn read_part(&mut self, round: &mut Round, bytes: &[u8], now: Nanos) -> Option<()> {
        round.read(&self.directory, bytes)?;
        if round.restorer.has_messages() {
            let more = round.restorer.take_so_far(round.message)?;
            self.add_part(round, more, now)?;
        }
        Some(())
    }

    /// Completes the copy of a session after its last part; returns its slot. `None` if something
    /// is missing.
    pub(crate) fn end_parts(&mut self, round: &mut Round, now: Nanos) -> Option<u32> {
        let more = round.restorer.take_all()?;
        self.add_part(round, more, now)?;
        let is_whole = round.rest.is_empty() && round.names.is_empty();
        let slot = round.slot.filter(|_| is_whole)?;
        self.set_in_flight(slot, std::mem::take(&mut round.in_flight));
        if let (Some(journal), Some(session)) = (&self.journal, self.sessions.get_mut(slot)) {
            session.created = journal.latest();
        }
        Some(slot)
    }

    fn add_part(&mut self, round: &mut Round, mut more: RestoredSession, now: Nanos) -> Option<()> {
        let entries = std::mem::take(&mut more.entries);
        if entries.len() > round.names.len() {
            return None;
        }
        let slot = match round.slot {
            Some(slot) => slot,
            None => self.begin_copy(round, more, now)?,
        };
        if let Some(history) = self.sessions.get_mut(slot)?.history.as_mut() {
            for name in round.names.drain(..entries.len()) {
                history.note_moved(name);
            }
        }
        self.history_grew(slot);
        if let (Some(journal), Some(session)) = (&mut self.journal, self.sessions.get(slot))
            && session.durable
        {
            for entry in &entries {
                journal.keep_entry(session.handle.number, entry);
            }
        }
        let in_flight = self.add_to_copy(slot, entries, now);
        round.in_flight.extend(in_flight);
        Some(())
    }

    /// Makes the copy of a session, with everything except messages.
    fn begin_copy(
        &mut self,
        round: &mut Round,
        restored: RestoredSession,
        now: Nanos,
    ) -> Option<u32> {
        let durable = self.journal.is_some() && restored.expiry > 0;
        let slot = self.place_copy(restored, durable, self.offset(now), now)?;
        round.slot = Some(slot);
        self.sessions.get_mut(slot)?.history = round.history.take();
        self.store_session(slot, now);
        self.set_record(slot, Record::Incomplete);
        if let (Some(journal), Some(session)) = (&mut self.journal, self.sessions.get(slot))
            && durable
        {
            for subscription in session.subscriptions.iter() {
                journal.subscription(session, subscription);
            }
            for (packet_id, known) in session.incoming.iter().flat_map(|it| it.iter()) {
                journal.emit(&Op::Received {
                    session: session.handle.number,
                    packet_id: *packet_id,
                    gist: known.gist,
                });
            }
        }
        Some(slot)
    }

    /// Releases packet identifiers of QoS 2 messages that a client may have received in another
    /// session, which ends: the client would take another message with such an identifier for a
    /// duplicate.
    pub(crate) fn take_up(&mut self, slot: u32, taken_up: Vec<TakenUp>) {
        for (packet_id, delivery) in taken_up {
            let Some(session) = self.sessions.get_mut(slot) else {
                return;
            };
            let number = session.handle.number;
            let entry = match session.durable && self.journal.is_some() {
                true => self.directory.next_entry.fetch_add(1, Ordering::Relaxed),
                false => 0,
            };
            let delivery = delivery.filter(|_| entry > 0);
            let stored = delivery.is_some();
            let delivery = delivery.map(|delivery| Delivery { entry, ..delivery });
            let conn = session.conn;
            let Some(tell) = session.window.take_up(packet_id, delivery, conn.is_some()) else {
                continue;
            };
            self.stats.inflight_messages += 1;
            if let Some(journal) = self.journal.as_mut().filter(|_| stored) {
                journal.emit(&Op::Entry(released(number, entry)));
                journal.emit(&Op::Inflight {
                    session: number,
                    entry,
                    packet_id,
                    step: true,
                });
            }
            if let Some(conn) = conn.filter(|_| tell) {
                let (kind, reason) = (PacketType::PubRel, ReasonCode::Success);
                self.answer(conn, kind, packet_id, reason, None);
            }
        }
    }

    /// Adds messages to the queue of a session, except those that it has received.
    pub(crate) fn append_own(&mut self, slot: u32, deliveries: Vec<Delivery>, now: Nanos) {
        if let Some(session) = self.sessions.get_mut(slot) {
            session.history.get_or_insert_default();
            self.store_history(slot);
        }
        let Some(session) = self.sessions.get_mut(slot) else {
            return;
        };
        let Some(history) = &mut session.history else {
            return;
        };
        let is_stored = session.durable;
        let number = |next: &AtomicU64| match is_stored {
            true => next.fetch_add(1, Ordering::Relaxed),
            false => 0,
        };
        let mut load = Load::default();
        for delivery in deliveries {
            if !history.note_moved(delivery.message.name) {
                continue;
            }
            let message = delivery
                .message
                .stored_as(number(&self.directory.next_message));
            let delivery = Delivery {
                entry: number(&self.directory.next_entry),
                message,
                ..delivery
            };
            if let Some(journal) = &mut self.journal
                && is_stored
                && delivery.qos != QoS::AtMostOnce
            {
                journal.keep_moved(session.handle.number, &delivery);
            }
            load.add(&delivery.message);
            session.queue.push(delivery, now);
        }
        session.share_queue_len();
        self.note_queued(&load);
        self.history_grew(slot);
        self.pump(slot, now);
    }
}
