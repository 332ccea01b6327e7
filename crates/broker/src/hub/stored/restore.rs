//! Makes sessions of this shard from restored ones.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use hashbrown::HashMap;
use punctual_codec::topic;
use punctual_mesh::transfer::{HomeId, Mark, Record, Stamp};
use punctual_store::Wall;

use crate::Nanos;
use crate::base::delivery::{Delivery, Load};
use crate::base::durability::Durability;
use crate::base::name::{peer_of, sign};
use crate::hub::Hub;
use crate::index::subscriber::{Subscriber, subscriber};
use crate::journal::Journal;
use crate::journal::restore::{
    InFlight, PlacedSession, RestoredEntry, RestoredSession, queue_entries, remove_duplicates,
};
use crate::journal::sessions::{AWAITED, BEHIND};
use crate::journal::wall::Offset;
use crate::mesh::custody::{FORWARD, note_record};
use crate::mesh::hub::stored::forget_began;
use crate::mesh::link::LinkState;
use crate::reserved::Reserved;
use crate::sequence::Sequences;
use crate::session::{Received, Session, Stored, Subscription, Will, Window};
use crate::timers::Timer;

impl Hub {
    /// Restores a session; its connection, if it had one, counts as lost now. False if its client
    /// has a session already.
    pub(crate) fn restore(&mut self, restored: RestoredSession, now: Nanos) -> bool {
        let Some(offset) = self.journal.as_ref().map(|journal| journal.offset) else {
            return false;
        };
        let detached = restored.detached;
        let began = restored.history.began;
        let record = restored.history.custody.clone();
        match record {
            // The other broker has not sent the rest, or sends it again.
            Some(Record::Incomplete) => {
                if let Some((slot, ..)) = self.place_with(restored, true, offset, now) {
                    if let Some(session) = self.sessions.get_mut(slot) {
                        session.set_record(Stored::restored(Record::Incomplete));
                    }
                    self.discard_copy(slot);
                }
                return true;
            }
            Some(record @ (Record::Copy { .. } | Record::Stub { .. })) if self.has_custody() => {
                return self.restore_parked(restored, record, offset, now);
            }
            _ => {}
        }
        let client_id = restored.client_id.clone();
        let Some(slot) = self.place(restored, true, offset, usize::MAX, now) else {
            return false;
        };
        if let Some(session) = self.sessions.get_mut(slot) {
            session.detached = detached;
            if let Some(Record::Session(mark)) = &record {
                session.arrived = mark.epoch.micros;
            }
            if let Some((stored, origin, given)) = began {
                match self.directory.began(stored, origin, given) {
                    Some(began) => session.set_began(Some(Stored::restored(began))),
                    None => forget_began(&mut self.journal, session),
                }
            }
        }
        if let Some(session) = self.sessions.get(slot) {
            self.config.note_queue_full(&session.handle, None);
            if self.refuses(&session.handle, None) && !session.handle.link {
                self.look_how_full(slot);
            }
        }
        if detached.is_none() {
            self.store_session(slot, now);
        }
        if self.has_custody() && peer_of(&client_id).is_none() {
            self.restore_mark(slot, record);
        }
        if self
            .sessions
            .get(slot)
            .is_some_and(|it| it.history.is_some())
        {
            self.watch_history(slot, now);
        }
        true
    }

    /// Restores a session from the store or from another broker; returns its slot. `None` if its
    /// client has a session already, or if there are `max` sessions.
    pub(super) fn place(
        &mut self,
        restored: RestoredSession,
        durable: bool,
        offset: Offset,
        max: usize,
        now: Nanos,
    ) -> Option<u32> {
        let (directory, index) = (self.directory.clone(), self.index);
        let client_id = &restored.client_id;
        if self.sessions.named(client_id).is_some()
            || directory.claim(client_id, index, max).is_err()
        {
            return None;
        }
        let (slot, subscriptions, members) = self.place_with(restored, durable, offset, now)?;
        self.sessions.name(slot);
        let session = self.sessions.get(slot)?;
        match peer_of(&session.handle.client_id) {
            Some(_) => self.restore_wishes(slot, subscriptions, members),
            None => self.restore_subscriptions(slot, subscriptions, offset.0),
        }
        Some(slot)
    }

    /// Makes a session from the store or from another broker, without entering it under its client
    /// identifier; returns its slot, its subscriptions, and the brokers behind a neighbour.
    fn place_with(
        &mut self,
        mut restored: RestoredSession,
        durable: bool,
        offset: Offset,
        now: Nanos,
    ) -> Option<PlacedSession> {
        let (directory, index) = (self.directory.clone(), self.index);
        let client_id = &restored.client_id;
        let slot = self.sessions.insert_with(|slot| {
            Session::new(directory.handle_of(client_id, index, slot, restored.number))
        });
        let epoch = self.sessions.next_epoch();
        let session = self.sessions.get_mut(slot)?;
        let permissions = directory.permissions(None, restored.user.as_deref(), client_id);
        session.handle.set_permissions(permissions);
        session.handle.set_durable(durable);
        session.durable = durable;
        session.durability = self.config.durability.default.max(Durability::Batched);
        session.epoch = epoch;
        session.expiry = restored.expiry;
        session.username = restored.user;
        session.classes = restored.classes.unwrap_or(session.classes);
        session.replays = restored.replays;
        session.history = restored.history.history;
        if !restored.received.is_empty() {
            let known = Received {
                ticket: Journal::BEFORE,
                stored: durable,
                ..Received::default()
            };
            let received = restored.received.into_iter();
            let received = received.map(|(id, gist)| (id, Received { gist, ..known }));
            let received = received.collect();
            session.incoming = Some(Box::new(received));
        }
        let subscriptions = &restored.subscriptions;
        // A member of a shared subscription may receive a message for another subscription as well.
        if durable
            && session.history.is_some()
            && !subscriptions.iter().any(Subscription::is_shared)
            && let Some(journal) = &mut self.journal
        {
            for entry in remove_duplicates(&mut restored.entries) {
                journal.dropped(restored.number, entry);
            }
        }
        let inflight = queue_entries(session, subscriptions, restored.entries, now);
        session.window = Window::restore(restored.next_packet_id, inflight);
        self.stats.inflight_messages += u64::from(session.window.open());
        session.share_queue_len();
        let load = session.queue.load();
        self.note_queued(&load);
        let session = self.sessions.get_mut(slot)?;
        // Queued messages may expire; a first sweep determines when.
        if !session.queue.is_empty() && session.sweep_by(now) {
            let timer = Timer::Sweep { slot, epoch };
            self.timers.arm(session.sweep_at, timer);
        }
        if session.expiry != u32::MAX {
            let left = Nanos::from_secs(u64::from(session.expiry));
            let end = match restored.detached {
                Some(since) => offset.nanos(since.saturating_add(left.0)),
                // The session was stored only for its will.
                None if session.expiry == 0 => now + directory.will_wait(),
                None => now + left,
            };
            let timer = Timer::SessionExpiry { slot, epoch };
            self.timers.arm(end.max(now), timer);
        }
        if let Some((will, due)) = restored.will {
            self.restore_will(slot, will, due, now);
        }
        Some((slot, restored.subscriptions, restored.members))
    }

    /// Restores a copy or a stub.
    fn restore_parked(
        &mut self,
        restored: RestoredSession,
        record: Record,
        offset: Offset,
        now: Nanos,
    ) -> bool {
        let client = restored.client_id.clone();
        let began = restored.history.began;
        let Some((slot, subscriptions, _)) = self.place_with(restored, true, offset, now) else {
            return false;
        };
        match &record {
            Record::Stub { .. } => {
                // Messages that were sent and not acknowledged may not have reached the client.
                self.requeue(slot, now);
                self.restore_subscriptions(slot, subscriptions, offset.0);
            }
            _ => self.hold_subscriptions(slot, subscriptions),
        }
        let epoch = self.sessions.next_epoch();
        if let Some(session) = self.sessions.get_mut(slot) {
            // Only the session of a client needs the position at which it began.
            if began.is_some() {
                forget_began(&mut self.journal, session);
            }
            // A copy or stub neither expires nor is swept.
            session.epoch = epoch;
            session.sweep_at = Nanos::MAX;
            session.set_record(Stored::restored(record.clone()));
        }
        self.keep_parked(&client, slot, &record);
        true
    }

    /// Adds messages to a copy of a session; returns the messages in flight.
    pub(crate) fn add_to_copy(
        &mut self,
        slot: u32,
        entries: Vec<RestoredEntry>,
        now: Nanos,
    ) -> Vec<InFlight> {
        let Some(session) = self.sessions.get_mut(slot) else {
            return Vec::new();
        };
        let before = session.queue.load();
        let subscriptions = std::mem::take(&mut session.subscriptions);
        let in_flight = queue_entries(session, &subscriptions, entries, now);
        session.subscriptions = subscriptions;
        session.share_queue_len();
        let load = session.queue.load().since(&before);
        self.note_queued(&load);
        in_flight
    }

    /// Sets the messages in flight of a copy to which all other messages were added.
    pub(crate) fn set_in_flight(&mut self, slot: u32, in_flight: Vec<InFlight>) {
        if let Some(session) = self.sessions.get_mut(slot) {
            session.window = Window::restore(session.window.next_id(), in_flight);
            self.stats.inflight_messages += u64::from(session.window.open());
        }
    }

    /// Sets the transfer record of a restored session.
    fn restore_mark(&mut self, slot: u32, record: Option<Record>) {
        let own = self
            .directory
            .federation()
            .and_then(|it| HomeId::new(it.name()));
        let (Some(session), Some(own)) = (self.sessions.get_mut(slot), own) else {
            return;
        };
        let record = record.map(Stored::restored).unwrap_or_else(|| {
            // The session was stored while sessions did not move.
            let epoch = Stamp { micros: 0, by: own };
            Stored::new(Record::Session(Mark {
                confirmed: true,
                epoch,
                born: None,
                blind: true,
            }))
        });
        session.set_record(record);
        // The machine compares such a session with those at other brokers.
        if session.mark().is_some_and(|mark| mark.blind)
            && let Some(custody) = &mut self.links.custody
        {
            let client = session.handle.client_id.clone();
            custody.records.entry(client).or_default();
        }
        self.store_custody(slot);
    }

    /// Makes a copy of a session from another broker; it neither expires nor is swept.
    pub(crate) fn place_copy(
        &mut self,
        restored: RestoredSession,
        durable: bool,
        offset: Offset,
        now: Nanos,
    ) -> Option<u32> {
        let (slot, subscriptions, _) = self.place_with(restored, durable, offset, now)?;
        self.hold_subscriptions(slot, subscriptions);
        let epoch = self.sessions.next_epoch();
        let session = self.sessions.get_mut(slot)?;
        session.epoch = epoch;
        session.sweep_at = Nanos::MAX;
        Some(slot)
    }

    /// Sets the subscriptions of a copy: they are stored, and not entered in the index.
    fn hold_subscriptions(&mut self, slot: u32, subscriptions: Vec<Subscription>) {
        if let Some(session) = self.sessions.get_mut(slot) {
            session.subscriptions = subscriptions.into_iter().collect();
        }
    }

    /// Puts unacknowledged messages back into the queue, without packet identifiers.
    fn requeue(&mut self, slot: u32, now: Nanos) {
        let Some(session) = self.sessions.get_mut(slot) else {
            return;
        };
        let again: Vec<Delivery> = session.window.unacknowledged().cloned().collect();
        self.stats.inflight_messages -= u64::from(session.window.open());
        session.window.clear();
        session.incoming = None;
        let load = Load::of_all(&again);
        let again = again.into_iter().map(|delivery| (now, delivery));
        session.queue.put_before(again.collect());
        session.share_queue_len();
        self.note_queued(&load);
    }

    /// Makes a copy the session of its client, and enters its subscriptions in the index.
    pub(crate) fn activate(&mut self, slot: u32, now: Nanos) {
        let (directory, index) = (self.directory.clone(), self.index);
        let epoch = self.sessions.next_epoch();
        let Some(session) = self.sessions.get_mut(slot) else {
            return;
        };
        session.epoch = epoch;
        let subscriptions = std::mem::take(&mut session.subscriptions);
        let (expiry, client) = (session.expiry, session.handle.client_id.clone());
        if !session.queue.is_empty() && session.sweep_by(now) {
            let timer = Timer::Sweep { slot, epoch };
            self.timers.arm(session.sweep_at, timer);
        }
        if expiry != u32::MAX {
            let timer = Timer::SessionExpiry { slot, epoch };
            let end = now + Nanos::from_secs(u64::from(expiry));
            self.timers.arm(end, timer);
        }
        // The session counts for the limit of sessions, but is not refused for it: another broker
        // has acknowledged it.
        let _ = directory.claim(&client, index, usize::MAX);
        self.sessions.name(slot);
        self.begin_here(slot);
        let wall = self.offset(now).0;
        self.restore_subscriptions(slot, subscriptions.into_iter().collect(), wall);
    }

    /// Enters a restored copy or stub in the lists of its client.
    fn keep_parked(&mut self, client: &Arc<str>, slot: u32, record: &Record) {
        let _ = self.directory.reserve(client, self.index);
        let Some(custody) = &mut self.links.custody else {
            return;
        };
        let records = custody.records.entry(client.clone()).or_default();
        note_record(records, record);
        match record {
            Record::Copy { id, .. } => {
                let copies = custody.copies.entry(client.clone()).or_default();
                copies.push((id.clone(), slot));
            }
            Record::Stub { outcomes, .. } => {
                custody.stubs.entry(client.clone()).or_default().push(slot);
                custody.unsent.insert(slot);
                let known = custody.outcomes.entry(client.clone()).or_default();
                known.extend(outcomes.iter().cloned());
            }
            Record::Session(_) | Record::Incomplete => {}
        }
    }

    /// Restores the filters of a neighbour, and the brokers behind it.
    fn restore_wishes(
        &mut self,
        slot: u32,
        wishes: Vec<Subscription>,
        members: Vec<(Box<str>, Vec<Box<str>>)>,
    ) {
        let by_root = self.by_root();
        let Some(session) = self.sessions.get_mut(slot) else {
            return;
        };
        let generations = &self.directory.generations;
        let mut index = self.directory.index_mut();
        let mut members: HashMap<_, _, _> = members.into_iter().collect();
        let behind: Vec<Box<str>> = members.remove(BEHIND).unwrap_or_default();
        for broker in &behind {
            let subscriber = subscriber(&session.handle, by_root);
            index.subscribe(&format!("{FORWARD}{broker}"), subscriber, generations);
        }
        for wish in &wishes {
            let subscriber = subscriber(&session.handle, by_root);
            index.subscribe(&wish.filter, subscriber, &self.directory.generations);
        }
        let filters = wishes.into_iter().map(|wish| wish.filter).collect();
        let awaited = members.extract_if(|filter, _| filter.starts_with(AWAITED));
        let awaited = awaited.map(|(filter, brokers)| (filter[AWAITED.len()..].into(), brokers));
        let awaited = awaited.collect();
        let shared: Vec<Box<str>> = members.keys().cloned().collect();
        self.links.neighbours.push(slot);
        session.link = Some(Box::new(LinkState {
            filters,
            members,
            awaited,
            behind,
            ..LinkState::default()
        }));
        // With this, a publication before the first neighbour has reconnected finds remote members,
        // too.
        for filter in shared {
            let links = self.sessions.iter().filter_map(|(_, it)| it.link.as_ref());
            let brokers = links.flat_map(|link| link.members.get(&filter)).flatten();
            let signs: Vec<u32> = brokers.map(|broker| sign(broker)).collect();
            index.share_elsewhere(&filter, &signs, &self.directory.generations);
        }
    }

    pub(crate) fn restore_subscriptions(
        &mut self,
        slot: u32,
        mut subscriptions: Vec<Subscription>,
        wall: u64,
    ) {
        let directory = self.directory.clone();
        let Some(session) = self.sessions.get_mut(slot) else {
            return;
        };
        let count = subscriptions.len();
        let mut index = directory.index_mut();
        let lasts = !session.is_transient();
        for subscription in &mut subscriptions {
            let (total, bytes) = (&directory.subscription_bytes, subscription.filter.len());
            subscription.reserved = Some(Reserved::count(total, bytes));
            subscription.persistent = Subscription::is_lasting(lasts, subscription.options.qos);
            if subscription.numbered && session.sequences.is_none() {
                // The sequence numbers differ from those before the restart.
                let seed = wall ^ wall >> 32 ^ session.handle.number.rotate_left(16);
                session.sequences = Some(Box::new(Sequences::new(seed as u32)));
            }
            let subscriber = Subscriber {
                session: session.handle.clone(),
                options: subscription.options,
                id: subscription.id,
                demoted: subscription.demoted,
                numbered: subscription.numbered,
            };
            let filter = &subscription.filter;
            index.subscribe(filter, subscriber, &directory.generations);
            if let Some(federation) = directory.federation() {
                federation.subscribed(filter, subscription.persistent);
            }
            let shared = filter.starts_with(topic::SHARE_PREFIX);
            self.stats.shared_subscriptions += u64::from(shared);
        }
        session.subscriptions = subscriptions.into_iter().collect();
        directory.subscriptions.fetch_add(count, Ordering::Relaxed);
        self.stats.subscriptions += count as u64;
    }

    fn restore_will(&mut self, slot: u32, mut will: Will, due: Option<Wall>, now: Nanos) {
        let Some(offset) = self.journal.as_ref().map(|journal| journal.offset) else {
            return;
        };
        let Some(session) = self.sessions.get_mut(slot) else {
            return;
        };
        // Another broker may have published the will meanwhile, and reports that.
        let wait = self.directory.will_wait();
        let delay = Nanos::from_secs(u64::from(will.delay.min(session.expiry)));
        will.name = will.name.or_else(|| self.directory.will_name());
        let at = due.map_or(now + delay, |due| offset.nanos(due));
        will.due = Some(at);
        session.will = Some(Box::new(will));
        let timer = Timer::Will {
            slot,
            epoch: session.epoch,
        };
        self.timers.arm(at.max(now + wait), timer);
        if due.is_none() {
            self.store_will(slot);
        }
        self.send_will_to_federation(slot);
    }
}
