//! What a store hands over becomes sessions, queues and retained messages again.
//!
//! Invariant: a restored shard goes on as the one that was lost would have after
//! it lost all connections, when it was told to restore; times go on while the
//! broker is down.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::{HashMap, HashSet};
use punctual_codec::{QoS, SubscribeOptions, Version, topic};
use punctual_mesh::transfer::{HomeId, Mark, Record, Stamp};
use punctual_store::op::{Content, Highest, SessionOp, SubscriptionOp};
use punctual_store::{ByNumber, Op, Wall};

use super::sessions::{AWAITED, BEHIND, BETWEEN, DEMOTED, NUMBERED, OWED};
use super::wall::{Offset, StoredStamp};
use super::{Journal, had, names};
use crate::base::author::Author;
use crate::base::delivery::{Delivery, Load};
use crate::base::durability::Durability;
use crate::base::name::{peer_of, sign};
use crate::custody::{FORWARD, note_record};
use crate::federation::LinkState;
use crate::hub::{Hub, first_step};
use crate::index::subscriber::Subscriber;
use crate::message::{Parts, Traits};
use crate::reserved::Reserved;
use crate::sequence::{Number, Sequences};
use crate::session::{Received, Replays, Session, Step, Stored, Subscription, Will, Window};
use crate::shard::subscriber;
use crate::timers::Timer;
use crate::{Directory, Message, Nanos};

/// Puts together what a store tells when it recovers, for all shards of a broker.
///
/// Numbers, contents and retained messages come first, then one session after
/// the other.
#[derive(Debug)]
pub struct Restorer {
    offset: Offset,
    directory: Arc<Directory>,
    messages: ByNumber<Arc<Message>>,
    /// Publishers of retained messages: each once.
    authors: HashSet<Arc<Author>, foldhash::fast::RandomState>,
    /// The publishers of messages that may be retained, by the messages' numbers.
    authored: HashMap<u64, Arc<Author>, foldhash::fast::RandomState>,
    /// By sessions, which come later.
    had: HashMap<u64, had::Restored, foldhash::fast::RandomState>,
    session: Option<RestoredSession>,
    /// What waits for it.
    waiting: Vec<Waiting>,
}

/// A message that waits for the session that was begun.
#[derive(Debug)]
struct Waiting {
    message: u64,
    subscription_ids: Option<Arc<[u32]>>,
    qos: QoS,
    retain: bool,
    number: Option<Number>,
    entry: u64,
    /// The packet identifier that it was sent with, and whether PUBREC came.
    sent: Option<(u16, bool)>,
}

/// A session as it was.
#[derive(Debug)]
pub struct RestoredSession {
    number: u64,
    client_id: Arc<str>,
    user: Option<Arc<str>>,
    pub(super) expiry: u32,
    detached: Option<Wall>,
    next_packet_id: u16,
    subscriptions: Vec<Subscription>,
    /// Of a neighbour: brokers behind it with members of shared subscriptions, and all.
    members: Vec<(Box<str>, Vec<Box<str>>)>,
    replays: Replays,
    classes: Option<u8>,
    /// Identifiers of QoS 2 messages of its client, each with its gist.
    received: Vec<(u16, u32)>,
    /// And when it is to be published, if that is known.
    will: Option<(Will, Option<Wall>)>,
    pub(super) entries: Vec<RestoredEntry>,
    had: had::Restored,
}

#[derive(Debug)]
pub(super) struct RestoredEntry {
    pub(super) delivery: Delivery,
    /// The packet identifier that it was sent with, and whether PUBREC came.
    pub(super) sent: Option<(u16, bool)>,
}

impl Restorer {
    /// For the shards of `directory`; `wall` as in
    /// [`crate::Shard::attach_store`].
    pub fn new(directory: Arc<Directory>, wall: u64) -> Self {
        Self {
            offset: Offset(wall),
            directory,
            messages: ByNumber::default(),
            authors: HashSet::default(),
            authored: HashMap::default(),
            had: HashMap::default(),
            session: None,
            waiting: Vec::new(),
        }
    }

    /// Takes the next operation. Returns a session when the next one begins.
    pub fn take(&mut self, op: &Op<'_>) -> Option<RestoredSession> {
        match op {
            Op::Highest(highest) => self.directory.resume(*highest),
            Op::Message { message, content } => {
                let made = self.message(*message, content);
                if let Some(author) = StoredStamp::author(content.stamp) {
                    let shared = |author: &Author| Arc::new(author.clone());
                    let author = self.authors.get_or_insert_with(&author, shared);
                    self.authored.insert(*message, author.clone());
                }
                self.messages.insert(*message, made);
            }
            Op::Retain {
                message, version, ..
            } => {
                let author = self.authored.remove(message);
                if let Some(message) = self.messages.get(message) {
                    let mut retained = self.directory.retained_mut();
                    let entry = retained.entry(message.topic());
                    entry.set(message.to_be_retained(), *version, author);
                }
            }
            Op::Flow { key, value } => {
                if let Some((session, number)) = had::parse(key) {
                    self.had.entry(session).or_default().take(number, value);
                    return None;
                }
                let federation = self.directory.federation();
                let mut names = self.directory.names();
                names.restore(key, value, federation.map(|federation| &**federation));
            }
            Op::Session(session) => {
                let complete = self.complete();
                self.session = Some(RestoredSession::new(session));
                return complete;
            }
            _ => self.detail(op),
        }
        None
    }

    /// Whether a message of the current session is complete: another message has followed it.
    pub(super) fn has_messages(&self) -> bool {
        self.waiting.len() > 1
    }

    /// Takes the operations of the current session that were read since the last call. The last message
    /// stays for the next call, since operations on it may follow, and so does the content with that
    /// number, since its entry may follow.
    pub(super) fn take_so_far(&mut self, content: u64) -> Option<RestoredSession> {
        let last = self.waiting.pop();
        let session = self.complete()?;
        self.session = Some(session.continued());
        let kept = [Some(content), last.as_ref().map(|last| last.message)];
        self.messages
            .retain(|number, _| kept.contains(&Some(*number)));
        self.authored.clear();
        self.waiting.extend(last);
        Some(session)
    }

    /// The same, including the last message.
    pub(super) fn take_all(&mut self) -> Option<RestoredSession> {
        self.complete()
    }

    /// The last session.
    pub fn finish(mut self) -> Option<RestoredSession> {
        self.complete()
    }

    /// The session that was begun, with what waits for it.
    fn complete(&mut self) -> Option<RestoredSession> {
        let mut session = self.session.take()?;
        session.had = self.had.remove(&session.number).unwrap_or_default();
        // All of them are looked for before any is touched: each is somewhere else
        // in memory, and a processor waits for many at a time, if it is let.
        let waiting = std::mem::take(&mut self.waiting);
        let found: Vec<Option<&Arc<Message>>> = waiting
            .iter()
            .map(|it| self.messages.get(&it.message))
            .collect();
        let entries = waiting.into_iter().zip(found);
        session.entries = entries
            .map(|(waiting, message)| RestoredEntry {
                delivery: Delivery {
                    // What only waits for PUBCOMP needs no content.
                    message: message.cloned().unwrap_or_else(|| self.empty()),
                    subscription_ids: waiting.subscription_ids,
                    qos: waiting.qos,
                    retain: waiting.retain,
                    share: 0,
                    number: waiting.number,
                    entry: waiting.entry,
                },
                sent: waiting.sent,
            })
            .collect();
        Some(session)
    }

    fn message(&self, number: u64, content: &Content<'_>) -> Arc<Message> {
        let parts = Parts {
            topic: content.topic.as_bytes(),
            properties: content.properties,
            expiry: None,
            payload: content.payload,
            shared: None,
        };
        let traits = Traits {
            qos: qos(content.qos),
            retain: content.retain,
            expires: self.offset.nanos_or_never(content.expires),
            publisher: content.publisher,
            stamp: self.offset.stamp_from(content.stamp),
            watch: None,
            stored: number,
            name: StoredStamp::name(content.stamp),
        };
        Message::from_parts(&parts, traits)
    }

    /// What belongs to the session that was begun.
    fn detail(&mut self, op: &Op<'_>) {
        let Some(own) = &mut self.session else {
            return;
        };
        match op {
            Op::Subscription(it) if it.session == own.number => own.subscribe(it),
            Op::Received {
                session,
                packet_id,
                gist,
            } if *session == own.number => own.received.push((*packet_id, *gist)),
            Op::Will(will) if will.session == own.number => {
                let content = &will.content;
                let message = Message::will(
                    content.topic,
                    content.properties,
                    content.payload,
                    qos(content.qos),
                    content.retain,
                    will.expiry,
                );
                let delay = will.delay;
                let name = content.stamp.try_into().ok().and_then(names::name_of);
                let restored = Will {
                    message,
                    delay,
                    name,
                    due: None,
                    reserved: None,
                };
                own.will = Some((restored, will.due));
            }
            Op::Entry(entry) if entry.session == own.number => {
                let ids: Vec<u32> = entry.subscription_ids.iter().collect();
                self.waiting.push(Waiting {
                    message: entry.message,
                    subscription_ids: (!ids.is_empty()).then(|| ids.into()),
                    qos: qos(entry.qos),
                    retain: entry.retain,
                    number: entry.number.and_then(Number::from_parts),
                    entry: entry.entry,
                    sent: None,
                });
            }
            Op::Inflight {
                session,
                entry,
                packet_id,
                step,
            } if *session == own.number => {
                if let Some(last) = self.waiting.last_mut()
                    && last.entry == *entry
                {
                    last.sent = Some((*packet_id, *step));
                }
            }
            _ => {}
        }
    }

    fn empty(&self) -> Arc<Message> {
        let content = Content {
            topic: "",
            properties: &[],
            payload: &[],
            publisher: 0,
            qos: 0,
            retain: false,
            expires: None,
            stamp: &[],
        };
        self.message(0, &content)
    }
}

impl RestoredSession {
    fn new(session: &SessionOp<'_>) -> Self {
        Self {
            number: session.session,
            client_id: session.client_id.into(),
            user: session.user.map(Into::into),
            expiry: session.expiry,
            detached: session.detached,
            next_packet_id: session.next_packet_id,
            subscriptions: Vec::new(),
            members: Vec::new(),
            replays: Replays::default(),
            classes: None,
            received: Vec::new(),
            will: None,
            entries: Vec::new(),
            had: had::Restored::default(),
        }
    }

    /// A session with the same number, client and user, and nothing else.
    fn continued(&self) -> Self {
        Self::new(&SessionOp {
            session: self.number,
            client_id: &self.client_id,
            user: self.user.as_deref(),
            version: 0,
            expiry: self.expiry,
            detached: self.detached,
            next_packet_id: self.next_packet_id,
        })
    }

    /// Which of that many shards it is for.
    pub fn home(&self, shards: u16) -> u16 {
        match peer_of(&self.client_id) {
            Some(_) => 0,
            // All that there is of a client is on one shard.
            None => {
                let client = punctual_model::digest(self.client_id.bytes());
                (client % u64::from(shards.max(1))) as u16
            }
        }
    }

    fn subscribe(&mut self, subscription: &SubscriptionOp<'_>) {
        let options = SubscribeOptions::from_byte(subscription.options, Version::V5);
        // One that is not valid was not stored by a broker.
        let (Ok(options), Ok(())) = (options, topic::validate_filter(subscription.filter)) else {
            return;
        };
        let shared = topic::split_share(subscription.filter).0.is_some();
        let is_own = subscription.filter == BEHIND || subscription.filter.starts_with(AWAITED);
        if (shared || is_own) && peer_of(&self.client_id).is_some() {
            let brokers = std::str::from_utf8(subscription.properties).unwrap_or_default();
            let brokers = brokers.split(BETWEEN).map(Into::into).collect();
            self.members.push((subscription.filter.into(), brokers));
            return;
        }
        let flags = subscription.properties.first().copied().unwrap_or(0);
        self.classes = subscription.properties.get(1).copied().or(self.classes);
        let mut subscription = Subscription {
            filter: subscription.filter.into(),
            options,
            id: subscription.id.unwrap_or(0),
            numbered: flags & NUMBERED != 0,
            demoted: flags & DEMOTED != 0,
            lasting: false,
            replay: 0,
            reserved: None,
        };
        if flags & OWED != 0 {
            // All that is owed was there before, as far as that is known.
            self.replays.begin(&mut subscription, u64::MAX, 0);
        }
        self.subscriptions.push(subscription);
    }
}

/// Messages that are not committed at a time: fewer by far have that many bytes.
const MOST_UNCOMMITTED: u64 = 1 << 24;

impl Directory {
    /// Numbers that were used before are not used again.
    fn resume(&self, highest: Highest) {
        let raise = |next: &AtomicU64, highest: u64| {
            next.fetch_max(highest.saturating_add(1), Ordering::Relaxed);
        };
        raise(&self.next_number, highest.session);
        // Nor are those of messages that were not committed: some were sent by names that have them.
        let message = match highest.message {
            0 => 0,
            highest => highest.saturating_add(MOST_UNCOMMITTED),
        };
        raise(&self.next_message, message);
        raise(&self.next_entry, highest.entry);
        self.retained_mut().raise_version(highest.version);
    }
}

/// The slot of what was made of a session, what that subscribes to, and who is behind it if it is a
/// neighbour's.
type Parked = (u32, Vec<Subscription>, Vec<(Box<str>, Vec<Box<str>>)>);

/// Of a session with more subscriptions it is not looked for by which its messages have come.
const MOST_MATCHED: usize = 64;

/// The sign of the shared subscription that a message came to a session by, if that is the only one of
/// the session's subscriptions that it may have come by; else 0.
fn share_of(subscriptions: &[Subscription], delivery: &Delivery) -> u32 {
    let name = delivery.message.topic();
    let filters = subscriptions.iter().map(|it| &it.filter);
    let mut filters = filters.filter(|it| topic::matches(topic::split_share(it).1, name));
    match (filters.next(), filters.next()) {
        (Some(only), None) if only.starts_with(topic::SHARE_PREFIX) => sign(only),
        _ => 0,
    }
}

/// A message in flight: its packet identifier, what it waits for, and what it is.
pub(super) type InFlight = (u16, Step, Delivery);

/// Queues the messages that wait in a session; returns the messages in flight.
fn queue_entries(
    session: &mut Session,
    subscriptions: &[Subscription],
    entries: Vec<RestoredEntry>,
    now: Nanos,
) -> Vec<InFlight> {
    let mut in_flight = Vec::new();
    let is_shared = |it: &Subscription| it.filter.starts_with(topic::SHARE_PREFIX);
    let shares = subscriptions.len() <= MOST_MATCHED && subscriptions.iter().any(is_shared);
    for RestoredEntry { mut delivery, sent } in entries {
        if !session.durable {
            delivery.entry = 0;
        }
        if session.handle.link {
            delivery.number = delivery.number.map(Number::as_name);
        } else if shares {
            delivery.share = share_of(subscriptions, &delivery);
        }
        let (packet_id, step) = match sent {
            None => {
                session.queue.push(delivery, now);
                continue;
            }
            Some((packet_id, true)) => (packet_id, Step::Comp),
            Some((packet_id, false)) => (packet_id, first_step(delivery.qos)),
        };
        in_flight.push((packet_id, step, delivery));
    }
    in_flight
}

impl Hub {
    /// Makes a session as it was; its connection, if it had one, was lost now.
    /// False if its client has one already.
    pub(crate) fn restore(&mut self, restored: RestoredSession, now: Nanos) -> bool {
        let Some(offset) = self.journal.as_ref().map(|journal| journal.offset) else {
            return false;
        };
        let detached = restored.detached;
        let began = restored.had.began;
        let record = restored.had.custody.clone();
        match record {
            // The rest of it was not sent, or is sent again.
            Some(Record::Incomplete) => {
                if let Some((slot, ..)) = self.park(restored, true, offset, now) {
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
                    None => had::forget_began(&mut self.journal, session),
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
        if self.sessions.get(slot).is_some_and(|it| it.had.is_some()) {
            self.watch_had(slot, now);
        }
        true
    }

    /// The same for one that may come from elsewhere; returns its slot. `None` if its client
    /// has one already, or if there are `max` sessions.
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
        if self.session_named(client_id).is_some()
            || directory.claim(client_id, index, max).is_err()
        {
            return None;
        }
        let (slot, subscriptions, members) = self.park(restored, durable, offset, now)?;
        self.names.insert(&self.sessions, slot);
        let session = self.sessions.get(slot)?;
        match peer_of(&session.handle.client_id) {
            Some(_) => self.restore_wishes(slot, subscriptions, members),
            None => self.restore_subscriptions(slot, subscriptions, offset.0),
        }
        Some(slot)
    }

    /// Makes what a store or another broker has of a session, of which nobody knows yet; returns what
    /// it subscribes to, and who is behind a neighbour.
    fn park(
        &mut self,
        restored: RestoredSession,
        durable: bool,
        offset: Offset,
        now: Nanos,
    ) -> Option<Parked> {
        let (directory, index) = (self.directory.clone(), self.index);
        let client_id = &restored.client_id;
        let slot = self.sessions.insert_with(|slot| {
            Session::new(directory.handle_of(client_id, index, slot, restored.number))
        });
        let epoch = self.epoch();
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
        session.had = restored.had.had;
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
        let inflight = queue_entries(session, subscriptions, restored.entries, now);
        session.window = Window::restore(restored.next_packet_id, inflight);
        self.stats.inflight_messages += u64::from(session.window.open());
        session.share_queue_len();
        let load = session.queue.load();
        self.note_queued(&load);
        let session = self.sessions.get_mut(slot)?;
        // What waits may expire; a first sweep finds out when.
        if !session.queue.is_empty() && session.sweep_by(now) {
            let timer = Timer::Sweep { slot, epoch };
            self.timers.arm(session.sweep_at, timer);
        }
        if session.expiry != u32::MAX {
            let left = Nanos::from_secs(u64::from(session.expiry));
            let end = match restored.detached {
                Some(since) => offset.nanos(since.saturating_add(left.0)),
                // It is there only for what it leaves behind.
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

    /// Makes a copy or a stub as it was.
    fn restore_parked(
        &mut self,
        restored: RestoredSession,
        record: Record,
        offset: Offset,
        now: Nanos,
    ) -> bool {
        let client = restored.client_id.clone();
        let began = restored.had.began;
        let Some((slot, subscriptions, _)) = self.park(restored, true, offset, now) else {
            return false;
        };
        match &record {
            Record::Stub { .. } => {
                // What was sent of it and not answered is not with its client.
                self.requeue(slot, now);
                self.restore_subscriptions(slot, subscriptions, offset.0);
            }
            _ => self.hold_subscriptions(slot, subscriptions),
        }
        let epoch = self.epoch();
        if let Some(session) = self.sessions.get_mut(slot) {
            // It is not a session of a client, which would need that.
            if began.is_some() {
                had::forget_began(&mut self.journal, session);
            }
            // It neither expires nor is swept.
            session.epoch = epoch;
            session.sweep_at = Nanos::MAX;
            session.set_record(Stored::restored(record.clone()));
        }
        self.keep_parked(&client, slot, &record);
        true
    }

    /// Adds messages to a copy of a session; returns the messages in flight.
    pub(super) fn add_to_copy(
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
    pub(super) fn set_in_flight(&mut self, slot: u32, in_flight: Vec<InFlight>) {
        if let Some(session) = self.sessions.get_mut(slot) {
            session.window = Window::restore(session.window.next_id(), in_flight);
            self.stats.inflight_messages += u64::from(session.window.open());
        }
    }

    /// A session that was restored is the one of its client.
    fn restore_mark(&mut self, slot: u32, record: Option<Record>) {
        let own = self
            .directory
            .federation()
            .and_then(|it| HomeId::new(it.name()));
        let (Some(session), Some(own)) = (self.sessions.get_mut(slot), own) else {
            return;
        };
        let record = record.map(Stored::restored).unwrap_or_else(|| {
            // It was made where sessions did not move.
            let epoch = Stamp { micros: 0, by: own };
            Stored::new(Record::Session(Mark {
                confirmed: true,
                epoch,
                born: None,
                blind: true,
            }))
        });
        session.set_record(record);
        // Those that are still to be compared with others are told to the machine.
        if session.mark().is_some_and(|mark| mark.blind)
            && let Some(custody) = &mut self.custody
        {
            let client = session.handle.client_id.clone();
            custody.records.entry(client).or_default();
        }
        self.store_custody(slot);
    }

    /// Makes a copy of a session that came; it neither expires nor is swept.
    pub(super) fn park_copy(
        &mut self,
        restored: RestoredSession,
        durable: bool,
        offset: Offset,
        now: Nanos,
    ) -> Option<u32> {
        let (slot, subscriptions, _) = self.park(restored, durable, offset, now)?;
        self.hold_subscriptions(slot, subscriptions);
        let epoch = self.epoch();
        let session = self.sessions.get_mut(slot)?;
        session.epoch = epoch;
        session.sweep_at = Nanos::MAX;
        Some(slot)
    }

    /// Subscriptions of a copy: they are stored, and nobody looks for them.
    fn hold_subscriptions(&mut self, slot: u32, subscriptions: Vec<Subscription>) {
        if let Some(session) = self.sessions.get_mut(slot) {
            session.subscriptions = subscriptions.into_iter().collect();
        }
    }

    /// What was sent and is not acknowledged waits once more, without a packet identifier.
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

    /// A copy becomes a session: its client finds it, and it gets what it subscribes to.
    pub(crate) fn activate(&mut self, slot: u32, now: Nanos) {
        let (directory, index) = (self.directory.clone(), self.index);
        let epoch = self.epoch();
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
        // It counts, and is let in even so: it was acknowledged elsewhere.
        let _ = directory.claim(&client, index, usize::MAX);
        self.names.insert(&self.sessions, slot);
        self.begin_here(slot);
        let wall = self.offset(now).0;
        self.restore_subscriptions(slot, subscriptions.into_iter().collect(), wall);
    }

    /// A parked session is a copy or stub of its client.
    fn keep_parked(&mut self, client: &Arc<str>, slot: u32, record: &Record) {
        let _ = self.directory.reserve(client, self.index);
        let Some(custody) = &mut self.custody else {
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

    /// What a neighbour wants, and who is behind it.
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
        self.neighbours.push(slot);
        session.link = Some(Box::new(LinkState {
            filters,
            members,
            awaited,
            behind,
            ..LinkState::default()
        }));
        // Whoever publishes before the first neighbour is back finds members, too.
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
            subscription.lasting = Subscription::is_lasting(lasts, subscription.options.qos);
            if subscription.numbered && session.sequences.is_none() {
                // Not what it was before the restart.
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
                federation.subscribed(filter, subscription.lasting);
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
        // Others may have published it meanwhile, and say so.
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
        self.tell_will(slot);
    }
}

fn qos(bits: u8) -> QoS {
    QoS::from_bits(bits).unwrap_or_default()
}
