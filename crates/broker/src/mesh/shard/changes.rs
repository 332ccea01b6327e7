//! Changes of the sessions on this shard by transfers: sessions begin, arrive, leave and end.

use std::sync::Arc;

use hashbrown::HashSet;
use punctual_mesh::transfer::{Change, Mark, Record, Stamp, Stub, TransferId};

use crate::admission::Ask;
use crate::base::delivery::{Delivery, Load};
use crate::hub::{Event, Hub, Output};
use crate::journal::Journal;
use crate::mesh::custody::Then;
use crate::mesh::moves::{TakenUp, apart};
use crate::mesh::shard::forwarding::Next;
use crate::remains::Remains;
use crate::session::{Session, Stored};
use crate::shard::Shard;
use crate::tasks::{FILTER, FLOW};
use crate::{Budget, Nanos};

impl Shard {
    pub(crate) fn change(&mut self, client: &Arc<str>, change: Change, now: Nanos) {
        if let Some(custody) = &mut self.hub.links.custody {
            custody.is_changing = true;
        }
        let hub = &mut self.hub;
        match change {
            Change::Begin(mark) => self.begin_session(client, mark, now),
            Change::Mark(mark) => {
                if let Some(slot) = hub.sessions.named(client) {
                    hub.set_record(slot, Record::Session(mark));
                }
            }
            Change::End => {
                if let Some(slot) = hub.sessions.named(client) {
                    // The client has connected to another broker, so its will is not published
                    // [MQTT-3.1.2-8].
                    if hub.take_will(slot).is_some() {
                        hub.store_no_will(slot);
                    }
                    self.end_session(slot, now);
                }
            }
            Change::Prepare { id, from, mark } => hub.prepare_copy(client, &id, from, mark, now),
            Change::DropCopy(id) => {
                if let Some(slot) = hub.take_copy(client, &id) {
                    hub.discard_copy(slot);
                }
            }
            Change::Install(id, mark) => self.install(client, &id, mark, now),
            Change::Absorb(id) => self.absorb(client, &id, now),
            Change::Depart(id, stub) => self.depart(client, Some(id), stub, now),
            Change::Demote(stub) => self.depart(client, None, stub, now),
            Change::Stub(stub) => hub.lead_stubs(client, &stub),
            Change::DropStub => self.drop_stubs(client, now),
            Change::DropOutcome(id) => hub.drop_outcome(client, &id),
        }
        if let Some(custody) = &mut self.hub.links.custody {
            custody.is_changing = false;
        }
        self.hub.wake_custody(now);
    }

    /// Makes a new session, which its client gets once [`Shard::accept`] accepts the connection.
    fn begin_session(&mut self, client: &Arc<str>, mark: Mark, now: Nanos) {
        if let Some(slot) = self.hub.sessions.named(client) {
            self.end_session(slot, now);
        }
        let hub = &mut self.hub;
        let (directory, index) = (hub.directory.clone(), hub.index);
        if directory
            .claim(client, index, hub.config.limits.max_sessions)
            .is_err()
        {
            // [`Shard::accept`] refuses the client.
            return;
        }
        let user = hub.user_that_waits(client, &mark.epoch);
        let slot = hub
            .sessions
            .insert_with(|slot| Session::new(directory.handle(client, index, slot)));
        hub.sessions.name(slot);
        if let Some(session) = hub.sessions.get_mut(slot) {
            session.username = user;
            session.set_began(directory.begins().map(Stored::new));
            // Until then it must not count as one that ends with its connection.
            session.expiry = u32::MAX;
            // Packet identifiers that differ from those of another session, which its client may
            // remember.
            let number = apart(mark.epoch.by.as_str(), mark.epoch.micros);
            let first = number % u64::from(u16::MAX) + 1;
            session.window.begin_at(first as u16);
            session.set_record(Stored::new(Record::Session(mark)));
        }
    }

    /// Ends a session that another one replaces; returns its undelivered messages, and the packet
    /// identifiers that its client may remember.
    pub(crate) fn leave_behind(&mut self, slot: u32, now: Nanos) -> (Vec<Delivery>, Vec<TakenUp>) {
        let hub = &mut self.hub;
        if hub.take_will(slot).is_some() {
            hub.store_no_will(slot);
        }
        let Some(session) = hub.sessions.get(slot) else {
            return Default::default();
        };
        let taken_up = session.remembered().collect();
        let waiting: Vec<Delivery> = session.undelivered().cloned().collect();
        for delivery in &waiting {
            Journal::insist(&mut hub.journal, delivery.entry);
        }
        self.end_session(slot, now);
        (waiting, taken_up)
    }

    /// Makes a copy the session of its client; a previous session there ends.
    fn install(&mut self, client: &Arc<str>, id: &TransferId, mark: Mark, now: Nanos) {
        let Some(slot) = self.hub.take_copy(client, id) else {
            return;
        };
        let record = self.hub.sessions.get(slot).and_then(Session::record);
        let from = match record {
            Some(Record::Copy { from, .. }) => from.as_str(),
            _ => "",
        };
        let broker = from.into();
        self.hub.thaw(client, now);
        let own = self.hub.sessions.named(client);
        let wanted = own.map(|own| self.hub.keep_wanted(own));
        let (left, taken_up) = own
            .map(|own| self.leave_behind(own, now))
            .unwrap_or_default();
        let hub = &mut self.hub;
        hub.activate(slot, now);
        let fence = hub.outboxes.fence(hub.index);
        let number = hub.sessions.get(slot).map(|it| it.handle.number);
        if let (Some(custody), Some(number), true) = (&mut hub.links.custody, number, fence > 0) {
            custody.beginning.insert(slot, number);
            custody.fenced.push_back((fence, Then::Begin(slot, number)));
        }
        hub.set_record(slot, Record::Session(mark));
        hub.append_own(slot, left, now);
        hub.take_up(slot, taken_up);
        hub.end_wanted(wanted.unwrap_or_default());
        hub.watch_history(slot, now);
        hub.stats.sessions_moved_in += 1;
        hub.outlets.outputs.push(Output::Event(Event::SessionCame {
            client_id: client.clone(),
            broker,
        }));
    }

    /// Adds to the session the messages and packet identifiers of a copy that the session lacks,
    /// and discards the copy.
    fn absorb(&mut self, client: &Arc<str>, id: &TransferId, now: Nanos) {
        let Some(copy) = self.hub.take_copy(client, id) else {
            return;
        };
        let hub = &mut self.hub;
        if let (Some(slot), Some(session)) = (hub.sessions.named(client), hub.sessions.get(copy))
            && let Some(Record::Copy { mark, .. }) = session.record()
        {
            let own = hub.sessions.get(slot).and_then(Session::mark);
            let takes = own.is_some_and(|own| own.takes(&mark.epoch));
            let taken_up = session.remembered().collect();
            let waiting = session.undelivered().filter(|_| takes);
            let waiting: Vec<Delivery> = waiting.cloned().collect();
            let count = waiting.len() as u64;
            for delivery in waiting {
                hub.take_in(slot, Next::Message(delivery), now);
            }
            hub.take_up(slot, taken_up);
            hub.watch_history(slot, now);
            hub.stats.messages_moved_late += count;
        }
        self.hub.discard_copy(copy);
    }

    /// A session becomes a stub: after the transfer `id`, which has moved all messages but later
    /// ones, or without a transfer because another session has precedence; then the stub keeps all
    /// undelivered messages.
    fn depart(&mut self, client: &Arc<str>, id: Option<TransferId>, stub: Stub, now: Nanos) {
        let hub = &mut self.hub;
        let Some(slot) = hub.sessions.named(client) else {
            return;
        };
        match id {
            None => hub.thaw(client, now),
            Some(_) => hub.forget_snapshot(client, slot),
        }
        let mark = hub.sessions.get(slot).and_then(Session::mark);
        let was_later = mark.is_some_and(|mark| mark.epoch > stub.target_epoch);
        if let Some(will) = hub.take_will(slot) {
            // Otherwise the client connected to another broker after this one, so its will is not
            // published [MQTT-3.1.2-8].
            if was_later {
                self.publish_will(slot, &will, now);
            }
            self.hub.store_no_will(slot);
        }
        let hub = &mut self.hub;
        if hub.sessions.get(slot).is_some_and(|session| session.asked) {
            hub.ask(slot, Ask::Ended);
        }
        let _ = hub.take_history(slot);
        let epoch = hub.sessions.next_epoch();
        let Some(session) = hub.sessions.get_mut(slot) else {
            return;
        };
        // With a new epoch earlier timers are void: a stub does not expire.
        session.epoch = epoch;
        session.sweep_at = Nanos::MAX;
        session.flows = None;
        session.asked = false;
        // Messages that the client has not acknowledged are forwarded.
        let undelivered: Vec<Delivery> = match id {
            None => session.window.unacknowledged().cloned().collect(),
            Some(_) => Vec::new(),
        };
        let remembered = session.remembered().map(|(packet_id, _)| packet_id);
        let remembered = remembered.collect();
        if let Some(custody) = hub.links.custody.as_mut().filter(|_| id.is_none()) {
            custody.remembered.insert(slot, remembered);
        }
        let load = Load::of_all(&undelivered);
        hub.stats.inflight_messages -= u64::from(session.window.open());
        let entries: HashSet<u64> = undelivered.iter().map(|it| it.entry).collect();
        for entry in session.window.clear() {
            if !entries.contains(&entry) {
                Journal::passed_on(&mut hub.journal, session, entry);
            }
        }
        let undelivered = undelivered.into_iter().map(|delivery| (now, delivery));
        session.queue.put_before(undelivered.collect());
        session.share_queue_len();
        let messages = session.queue.len() as u64;
        let incoming = session.incoming.iter().flat_map(|it| it.keys().copied());
        let incoming: Vec<u16> = incoming.collect();
        hub.note_queued(&load);
        for packet_id in incoming {
            hub.forget_received(slot, packet_id);
        }
        if let Some(session) = hub.sessions.get(slot) {
            hub.forget_fullness(session);
        }
        if let Some(session) = hub.sessions.get_mut(slot) {
            (session.incoming, session.losses, session.is_full) = (None, None, false);
        }
        hub.sessions.unname(client, slot);
        hub.directory.vacate();
        let broker: Arc<str> = stub.target.as_str().into();
        if let Some(custody) = &mut hub.links.custody {
            custody.stubs.entry(client.clone()).or_default().push(slot);
            custody.unsent.insert(slot);
            if let Some(id) = id {
                let outcome = (id, stub.target.clone());
                let outcomes = custody.outcomes.entry(client.clone()).or_default();
                outcomes.push(outcome);
            }
        }
        hub.lead_stubs(client, &stub);
        hub.stats.sessions_moved_out += 1;
        hub.outlets.outputs.push(Output::Event(Event::SessionLeft {
            client_id: client.clone(),
            broker,
            messages,
        }));
    }

    /// Ends the stubs of a client: all messages in transit to them have arrived, or are given up.
    fn drop_stubs(&mut self, client: &Arc<str>, now: Nanos) {
        let custody = self.hub.links.custody.as_mut();
        let stubs = custody.and_then(|it| it.stubs.remove(client));
        for slot in stubs.unwrap_or_default() {
            if let Some(custody) = &mut self.hub.links.custody {
                custody.unsent.remove(&slot);
            }
            while self.forward_next(slot, now) {}
            if let Some(custody) = &mut self.hub.links.custody {
                custody.remembered.remove(&slot);
            }
            self.end_stub(slot, now);
        }
        self.hub.store_outcomes(client);
    }

    /// Ends a stub.
    fn end_stub(&mut self, slot: u32, now: Nanos) {
        let hub = &mut self.hub;
        let custody = hub.links.custody.as_mut();
        if custody.is_some_and(|it| it.next.contains_key(&slot)) {
            hub.stats.dropped_session_ended += 1;
        }
        if let Some(session) = hub.end_placed(slot) {
            let mut budget = Budget::new(32 * FILTER + FLOW);
            self.clear_away(Remains::of(session), &mut budget, now);
        }
    }
}

impl Hub {
    /// Sets the record of a session, a copy or a stub, and stores it.
    pub(crate) fn set_record(&mut self, slot: u32, record: Record) {
        if let Some(session) = self.sessions.get_mut(slot) {
            session.set_record(Stored::new(record));
            self.store_custody(slot);
        }
    }

    /// Sets the target of all stubs of a client.
    fn lead_stubs(&mut self, client: &Arc<str>, stub: &Stub) {
        let is_here = self.is_own(&stub.target);
        let Some(custody) = &mut self.links.custody else {
            return;
        };
        let stubs = custody.stubs.get(client).cloned().unwrap_or_default();
        let outcomes = custody.outcomes.get(client).cloned().unwrap_or_default();
        if is_here {
            // Other shards may have sent messages to the stub alone, before the session was here.
            let fence = self.outboxes.fence(self.index);
            let then = Then::LeadHere(client.clone(), stub.target_epoch.clone());
            custody.fenced.push_back((fence, then));
        } else {
            stubs.iter().for_each(|slot| {
                custody.here_since.remove(slot);
            });
        }
        custody.unsent.extend(&stubs);
        for (at, slot) in stubs.iter().enumerate() {
            let is_last = at + 1 == stubs.len();
            let outcomes = if is_last {
                outcomes.clone()
            } else {
                Vec::new()
            };
            let stub = stub.clone();
            self.set_record(*slot, Record::Stub { stub, outcomes });
        }
    }

    /// All messages have arrived that other shards had sent before the stubs of a client were led to
    /// the session on this broker that has that epoch.
    pub(crate) fn stubs_lead_here(&mut self, client: &Arc<str>, epoch: &Stamp, now: Nanos) {
        let Some(custody) = &mut self.links.custody else {
            return;
        };
        for slot in custody.stubs.get(client).into_iter().flatten() {
            let record = self.sessions.get(*slot).and_then(Session::record);
            if let Some(Record::Stub { stub, .. }) = record
                && stub.target_epoch == *epoch
            {
                custody.here_since.entry(*slot).or_insert(now);
            }
        }
    }

    fn drop_outcome(&mut self, client: &Arc<str>, id: &TransferId) {
        if let Some(custody) = &mut self.links.custody
            && let Some(outcomes) = custody.outcomes.get_mut(client)
        {
            outcomes.retain(|(known, _)| known != id);
            if outcomes.is_empty() {
                custody.outcomes.remove(client);
            }
        }
        self.store_outcomes(client);
    }

    /// Emits the outcomes of unconfirmed transfers of a client, in the record of its last stub.
    fn store_outcomes(&mut self, client: &Arc<str>) {
        let Some(custody) = &self.links.custody else {
            return;
        };
        let all = custody.outcomes.get(client).cloned().unwrap_or_default();
        let last = custody.stubs.get(client).and_then(|it| it.last()).copied();
        let session = last.and_then(|slot| self.sessions.get(slot));
        if let Some(Record::Stub { stub, .. }) = session.and_then(Session::record)
            && let Some(slot) = last
        {
            let (stub, outcomes) = (stub.clone(), all);
            self.set_record(slot, Record::Stub { stub, outcomes });
        }
    }

    /// The slot of a copy.
    pub(crate) fn copy(&self, client: &Arc<str>, id: &TransferId) -> Option<u32> {
        let mut copies = self.links.custody.as_ref()?.copies.get(client)?.iter();
        copies.find(|(known, _)| known == id).map(|(_, slot)| *slot)
    }

    fn take_copy(&mut self, client: &Arc<str>, id: &TransferId) -> Option<u32> {
        let slot = self.copy(client, id)?;
        let custody = self.links.custody.as_mut()?;
        let copies = custody.copies.get_mut(client)?;
        copies.retain(|(known, _)| known != id);
        if copies.is_empty() {
            custody.copies.remove(client);
        }
        Some(slot)
    }

    /// All other shards know the subscriptions of a session that arrived. So from now on each
    /// message that passes here and matches one of them has been queued in it.
    pub(crate) fn has_begun(&mut self, slot: u32, number: u64) {
        // Another session may have the slot since.
        if let Some(custody) = &mut self.links.custody
            && custody.beginning.get(&slot) == Some(&number)
        {
            custody.beginning.remove(&slot);
            let session = self.sessions.get(slot);
            if session.is_some_and(|it| it.handle.number == number) {
                self.begin_here(slot);
            }
        }
    }
}
