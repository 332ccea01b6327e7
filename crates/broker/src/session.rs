//! Sessions: the state that outlives a connection (section 4.1): subscriptions, messages in flight
//! and queued, packet identifiers, the will.

mod queue;
mod replays;
mod subscriptions;
mod window;

pub(crate) use queue::{Queue, overtakes_held};
pub(crate) use replays::Replays;
pub(crate) use subscriptions::{Subscription, Subscriptions};
pub(crate) use window::{Acknowledgement, Inflight, Step, Window, first_step};

use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashTable};
use punctual_codec::QoS;
use punctual_mesh::transfer::{Mark, Record};
use punctual_store::Wall;

use crate::admission::Flows;
use crate::base::author::Author;
use crate::base::delivery::Delivery;
use crate::base::durability::Durability;
use crate::base::handle::SessionHandle;
use crate::base::name::MessageName;
use crate::mesh::link::LinkState;
use crate::mesh::moves::{Began, DeliveryHistory, TakenUp};
use crate::mesh::throttle::Throttle;
use crate::overflow::Losses;
use crate::reserved::Reserved;
use crate::sequence::{Number, Sequences};
use crate::session::queue::is_older;
use crate::slab::Slab;
use crate::{Message, Nanos};

/// A will message; its `expires` is an interval until the will is published.
#[derive(Debug)]
pub(crate) struct Will {
    pub(crate) message: Arc<Message>,
    /// Seconds between the loss of the connection and the publication of the will.
    pub(crate) delay: u32,
    /// The name of the will in the mesh.
    pub(crate) name: Option<MessageName>,
    /// The time of its publication, once the client is gone.
    pub(crate) due: Option<Nanos>,
    /// The reservation of its bytes in the bound of all wills, as long as the will exists.
    #[expect(dead_code, reason = "it is there to be dropped with the will")]
    pub(crate) reserved: Option<Reserved>,
}

/// The state of a received QoS 2 message until its PUBREL arrives.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Received {
    /// The journal ticket for which PUBREC waits; 0 for none.
    pub(crate) ticket: u64,
    /// Whether the store has it.
    pub(crate) stored: bool,
    /// In a mesh: whether the message was received before the client's last CONNECT.
    pub(crate) earlier: bool,
    /// In a mesh: digest of its topic and content, see [`gist`]; 0 if that is not known.
    pub(crate) gist: u32,
}

impl Received {
    /// Whether a PUBLISH with the same packet identifier is another message, which makes this entry
    /// void.
    ///
    /// In a mesh another broker may have a copy of the session, if a link was cut during its
    /// transfer, or another session of the client. There the client may have completed the
    /// handshake of the message noted here (PUBREC to PUBCOMP), so that the identifier is free and
    /// is used again; and neither broker need know of the client's connection to the other. On one
    /// connection all PUBLISH packets with the same identifier are one message until PUBREL,
    /// whatever DUP says [MQTT-4.3.3-10]. A message of an earlier connection is repeated with DUP 1
    /// [MQTT-3.3.1-1], while a new message has DUP 0 [MQTT-4.3.3-2] and an identifier that is not
    /// in use [MQTT-2.2.1-3]: with DUP 0 the PUBLISH is no repetition. With DUP 1 it repeats this
    /// message, or one that was sent to another broker and may not have arrived there (3.3.1.1); it
    /// is another message unless its digest is the same.
    pub(crate) fn is_other(&self, dup: bool, gist: impl FnOnce() -> u32) -> bool {
        self.earlier && (!dup || self.gist != 0 && self.gist != gist())
    }
}

/// A digest of a message, the same at all brokers, that distinguishes another message from a
/// repetition; never 0.
pub(crate) fn gist(topic: &[u8], payload: &[u8]) -> u32 {
    let mix = |hash: u64, word: u64| {
        let hash = (hash ^ word).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        hash ^ hash >> 32
    };
    let (words, rest) = payload.as_chunks();
    let words = words.iter().copied().map(u64::from_le_bytes);
    let rest = rest.iter().copied().map(u64::from);
    let begin = punctual_model::digest(topic.iter().copied());
    let all = [payload.len() as u64].into_iter().chain(words).chain(rest);
    (all.fold(begin, mix) as u32).max(1)
}

/// A session.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) handle: Arc<SessionHandle>,
    /// Slot of the connection, while the client is connected.
    pub(crate) conn: Option<u32>,
    /// Changes with every connect and disconnect, so that timers of earlier
    /// epochs are recognised.
    pub(crate) epoch: u64,
    /// Seconds that the session outlives its connection; `u32::MAX` for ever.
    pub(crate) expiry: u32,
    /// The time at which the client connected last, for a mesh.
    pub(crate) arrived: u64,
    pub(crate) window: Window,
    pub(crate) queue: Queue,
    pub(crate) subscriptions: Subscriptions,
    pub(crate) replays: Replays,
    /// Whether a task that looks up retained messages for the session is queued.
    pub(crate) replay_waits: bool,
    /// Packet identifiers of QoS 2 messages received and not yet released.
    pub(crate) incoming: Option<Box<HashMap<u16, Received, RandomState>>>,
    pub(crate) will: Option<Box<Will>>,
    pub(crate) username: Option<Arc<str>>,
    /// The listener of the client's last connection since this process started.
    pub(crate) listener: Option<u16>,
    /// The time of the next sweep of the queue; `MAX` if none is needed.
    pub(crate) sweep_at: Nanos,
    /// Traffic classes that the session receives, a bit each.
    pub(crate) classes: u8,
    /// Whether the admission service knows of the session.
    pub(crate) asked: bool,
    /// Whether the store has it.
    pub(crate) durable: bool,
    /// Whether the store has the will, though not the session, which ends with its connection.
    pub(crate) has_will_record: bool,
    /// Ticket of the journal record that creates the session.
    pub(crate) created: u64,
    /// Whether the stored record of the session is out of date.
    pub(crate) stale: bool,
    /// The time since which the session has no connection, as it is stored.
    pub(crate) detached: Option<Wall>,
    /// The durability that is guaranteed for the client's publications.
    pub(crate) durability: Durability,
    /// Flows that the client publishes.
    pub(crate) flows: Option<Box<Flows>>,
    /// Sequence numbers of messages sent to the session, since a subscription asked for them.
    pub(crate) sequences: Option<Box<Sequences>>,
    /// The state of the link, if the session is that of a neighbour broker.
    pub(crate) link: Option<Box<LinkState>>,
    /// In a mesh: the messages that this broker had received when the session began here with
    /// subscriptions; `None` if that was before this broker started, and is not stored.
    pub(crate) began: Option<Box<Stored<Began>>>,
    /// The history for recognising repeated deliveries, while repetitions are likely.
    pub(crate) history: Option<Box<DeliveryHistory>>,
    /// The transfer record of the session, where sessions move between brokers.
    pub(crate) custody: Option<Box<Stored<Record>>>,
    /// Messages lost because the queue was full, if any.
    pub(crate) losses: Option<Box<Losses>>,
    /// In a mesh: whether the queue is nearly full, with the policy to refuse, as neighbours are
    /// notified.
    pub(crate) is_full: bool,
}

/// A value of a session that has a store key of its own, and whether it has been stored.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stored<T> {
    pub(crate) value: T,
    /// Whether the store has the value.
    pub(crate) is_stored: bool,
}

impl<T> Stored<T> {
    /// A value that is still to be stored.
    pub(crate) const fn new(value: T) -> Self {
        Self {
            value,
            is_stored: false,
        }
    }

    /// A value that was restored from the store.
    pub(crate) const fn restored(value: T) -> Self {
        Self {
            value,
            is_stored: true,
        }
    }
}

impl Session {
    /// The mark that decides between this session and another session of its client; `None` if this
    /// is a stub, or sessions do not move.
    pub(crate) fn mark(&self) -> Option<&Mark> {
        match self.record() {
            Some(Record::Session(mark)) => Some(mark),
            _ => None,
        }
    }

    /// Whether the session is a stub, whose queued messages are forwarded.
    pub(crate) fn is_stub(&self) -> bool {
        matches!(self.record(), Some(Record::Stub { .. }))
    }

    /// The client of the session as a publisher.
    pub(crate) fn author(&self) -> Author {
        Author {
            user: self.username.clone(),
            client_id: self.handle.client_id.clone(),
            listener: self.listener,
        }
    }

    /// The messages that this broker had received when the session began here.
    pub(crate) fn began(&self) -> Option<Began> {
        self.began.as_deref().map(|began| began.value)
    }

    pub(crate) fn set_began(&mut self, began: Option<Stored<Began>>) {
        self.began = began.map(Box::new);
    }

    /// The transfer record of the session, where sessions move between brokers.
    pub(crate) fn record(&self) -> Option<&Record> {
        self.custody.as_deref().map(|custody| &custody.value)
    }

    pub(crate) fn new(handle: Arc<SessionHandle>) -> Self {
        Self {
            handle,
            conn: None,
            epoch: 0,
            expiry: 0,
            arrived: 0,
            window: Window::default(),
            queue: Queue::default(),
            subscriptions: Subscriptions::default(),
            replay_waits: false,
            replays: Replays::default(),
            incoming: None,
            will: None,
            username: None,
            listener: None,
            sweep_at: Nanos::MAX,
            classes: crate::urgency::ALL_CLASSES,
            asked: false,
            durable: false,
            has_will_record: false,
            created: 0,
            stale: false,
            detached: None,
            durability: Durability::None,
            flows: None,
            sequences: None,
            link: None,
            began: None,
            history: None,
            custody: None,
            losses: None,
            is_full: false,
        }
    }

    /// The number of the next message on a topic, if messages are numbered.
    #[inline]
    pub(crate) fn number(&mut self, topic: &[u8], most: usize) -> Option<Number> {
        let sequences = self.sequences.as_mut()?;
        Some(sequences.next(topic, most))
    }

    /// Whether a message that is sent again is already in flight or queued for a neighbour that
    /// accepts no messages now: one that is not connected, or whose Receive Maximum is 0.
    pub(crate) fn keeps_copy(&self, number: Option<Number>, receive_max: Option<u16>) -> bool {
        if !number.is_some_and(Number::is_again) || receive_max.is_some_and(|max| max > 0) {
            return false;
        }
        let mut kept = self.undelivered();
        kept.any(|delivery| delivery.number == number)
    }

    /// Messages that the client may not have received: first those in flight, the oldest first,
    /// then those that are queued.
    pub(crate) fn undelivered(&self) -> impl Iterator<Item = &Delivery> {
        self.window.unacknowledged().chain(self.queue.iter())
    }

    /// Packet identifiers of messages with QoS 2 that the client may remember, and these messages.
    pub(crate) fn remembered(&self) -> impl Iterator<Item = TakenUp> {
        let exactly = |it: &Inflight<'_>| matches!(it.step, Step::Rec | Step::Comp);
        let handshakes = self.window.unfinished().filter(exactly);
        handshakes.map(|it| (it.packet_id, it.delivery.cloned()))
    }

    /// Sets the transfer record of the session.
    pub(crate) fn set_record(&mut self, record: Stored<Record>) {
        let is_stub = matches!(record.value, Record::Stub { .. });
        self.handle.carries.store(is_stub, Ordering::Relaxed);
        self.custody = Some(Box::new(record));
    }

    /// Queues a message, or defers it.
    pub(crate) fn enqueue(&mut self, delivery: Delivery, now: Nanos) {
        let topic = delivery.message.topic_bytes();
        let is_plain =
            delivery.qos > QoS::AtMostOnce && !delivery.message.stamp.class().is_urgent();
        let handle = &self.handle;
        let is_older = is_older(&delivery);
        let is_behind = !(is_older && handle.holds()) && self.queue.has_throttled(topic);
        match is_plain && (handle.is_kept_back(topic, delivery.retain, is_older) || is_behind) {
            true => self.queue.push_throttled(delivery, now),
            false => self.queue.push(delivery, now),
        }
    }

    /// Sets the filters under remote flow control: of messages on these, the neighbour takes only
    /// few at a time.
    pub(crate) fn set_throttle(&mut self, filters: Arc<[Box<str>]>) {
        let Some(link) = &mut self.link else {
            return;
        };
        if link.throttle.is_empty() && filters.is_empty() {
            return;
        }
        self.handle.set_throttle(Throttle::new(&filters));
        link.throttle = filters;
        self.sort_out();
    }

    /// Ends the hold of newer messages by the link: they queue behind all waiting messages. Returns
    /// whether the link held them before.
    pub(crate) fn end_hold(&mut self, now: Nanos) -> bool {
        let held = self.handle.set_holds(false);
        if held {
            self.queue.renew_throttled(now);
            self.sort_out();
        }
        held
    }

    /// Decides again for each waiting message whether it is deferred.
    fn sort_out(&mut self) {
        let handle = &self.handle;
        let is_throttled = |delivery: &Delivery| {
            let topic = delivery.message.topic_bytes();
            delivery.qos > QoS::AtMostOnce
                && handle.is_kept_back(topic, delivery.retain, is_older(delivery))
        };
        self.queue.sort_out(is_throttled);
        self.window.throttle(is_throttled);
        self.share_queue_len();
    }

    /// Marks all received QoS 2 messages as earlier than the current connection, in a mesh; see
    /// [`Received::is_other`].
    pub(crate) fn mark_received(&mut self) {
        let incoming = self.incoming.iter_mut();
        let known = incoming.flat_map(|incoming| incoming.values_mut());
        known.for_each(|known| known.earlier = true);
    }

    /// Whether the session ends with its connection.
    #[inline]
    pub(crate) fn is_transient(&self) -> bool {
        self.expiry == 0
    }

    /// Notes that a queued message expires at `expires`; true if the queue must be swept earlier
    /// because of that. The sweep time is rounded up to whole seconds, so that a queue is swept at
    /// most once a second.
    pub(crate) fn sweep_by(&mut self, expires: Nanos) -> bool {
        if expires == Nanos::MAX {
            return false;
        }
        let at = Nanos::from_secs(expires.as_secs().saturating_add(1));
        let earlier = at < self.sweep_at;
        self.sweep_at = self.sweep_at.min(at);
        earlier
    }

    /// Publishes the number and bytes of queued messages to other shards.
    #[inline]
    pub(crate) fn share_queue_len(&self) {
        self.handle
            .queued
            .store(self.queue.len() as u32, Ordering::Release);
        self.handle
            .queued_bytes
            .store(self.queue.bytes(), Ordering::Release);
        if let Some(throttling) = &self.handle.throttling {
            let (messages, bytes) = self.queue.throttled();
            throttling.share(messages, bytes);
        }
    }
}

/// Sessions by client identifier. The identifiers are not stored again: a slot leads to the session
/// that holds the identifier.
#[derive(Debug, Default)]
pub(crate) struct Names {
    table: HashTable<u32>,
    hasher: foldhash::quality::RandomState,
}

impl Names {
    pub(crate) fn find(&self, sessions: &Slab<Session>, client_id: &str) -> Option<u32> {
        let named = |slot: &u32| name(sessions, *slot) == client_id;
        let hash = self.hasher.hash_one(client_id);
        self.table.find(hash, named).copied()
    }

    /// Adds a session that is in `sessions`.
    pub(crate) fn insert(&mut self, sessions: &Slab<Session>, slot: u32) {
        let hash = |slot: &u32| self.hasher.hash_one(name(sessions, *slot));
        self.table.insert_unique(hash(&slot), slot, hash);
    }

    /// Removes a session, which may have left `sessions` already.
    pub(crate) fn remove(&mut self, client_id: &str, slot: u32) {
        let hash = self.hasher.hash_one(client_id);
        if let Ok(entry) = self.table.find_entry(hash, |other| *other == slot) {
            entry.remove();
        }
    }
}

fn name(sessions: &Slab<Session>, slot: u32) -> &str {
    sessions
        .get(slot)
        .map_or("", |session| &session.handle.client_id)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    proptest::proptest! {
        #[test]
        fn a_window_has_the_content_of_what_is_kept(
            // A message that is kept or not, or the end of one that is open.
            steps in proptest::collection::vec(
                (proptest::bool::ANY, proptest::option::of(0..8_usize)),
                0..300,
            ),
        ) {
            let mut window = Window::default();
            let mut model: Vec<(u16, u64)> = Vec::new();
            for (at, (kept, done)) in steps.into_iter().enumerate() {
                match done {
                    Some(place) if !model.is_empty() => {
                        let (id, entry) = model.remove(place % model.len());
                        let advanced = window.advance(id, Step::Ack, Step::Done);
                        proptest::prop_assert_eq!(advanced, Some(entry));
                        proptest::prop_assert_eq!(window.advance(id, Step::Ack, Step::Done), None);
                    }
                    _ => {
                        let entry = if kept { at as u64 + 1 } else { 0 };
                        let id = window.push(QoS::AtLeastOnce);
                        if kept {
                            window.keep(Delivery::example(0));
                            window.name_last(entry);
                        }
                        model.push((id, entry));
                    }
                }
                let open: Vec<_> = window.unfinished().map(|it| (it.packet_id, it.entry())).collect();
                proptest::prop_assert_eq!(&open, &model);
                for (id, entry) in &model {
                    let found = window.in_flight(*id).map(|it| it.entry());
                    proptest::prop_assert_eq!(found, Some(*entry));
                }
                let kept = model.iter().filter(|(_, entry)| *entry > 0).count();
                proptest::prop_assert_eq!(window.unacknowledged().count(), kept);
            }
        }
    }

    /// The simple model of a window: the open messages, in the order of their identifiers, which
    /// are counted without wrapping.
    #[derive(Debug, Default)]
    struct Model {
        open: Vec<Open>,
        next: u64,
    }

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    struct Open {
        count: u64,
        step: Step,
        entry: u64,
        sent: bool,
    }

    fn id_of(count: u64) -> u16 {
        (count % u64::from(u16::MAX)) as u16 + 1
    }

    impl Model {
        fn place(&self, packet_id: u16) -> Option<usize> {
            self.open.iter().position(|it| id_of(it.count) == packet_id)
        }

        fn is_sent(&self) -> bool {
            self.open.iter().all(|it| it.sent)
        }

        /// Number of identifiers that may be assigned, if the oldest message that was not overtaken
        /// is at position `oldest`.
        fn free(&self, oldest: usize) -> u64 {
            let oldest = self.open.get(oldest).map_or(self.next, |it| it.count);
            u64::from(u16::MAX) - (self.next - oldest)
        }

        /// Skips identifiers in use, up to the given one; false if others are between.
        fn leave_out(&mut self, packet_id: u16) -> bool {
            while id_of(self.next) != packet_id {
                if self.place(id_of(self.next)).is_none() {
                    return false;
                }
                self.next += 1;
            }
            true
        }

        /// Restores the order in which identifiers seem to have been assigned.
        fn sort(&mut self) {
            let ids = u64::from(u16::MAX);
            for it in &mut self.open {
                while it.count + ids < self.next {
                    it.count += ids;
                }
            }
            self.open.sort_by_key(|it| it.count);
        }

        fn push(&mut self, step: Step, entry: u64) {
            let (count, sent) = (self.next, true);
            self.open.push(Open {
                count,
                step,
                entry,
                sent,
            });
            self.next += 1;
        }

        fn advance(&mut self, packet_id: u16, from: Step, to: Step) -> Option<u64> {
            let place = self.place(packet_id)?;
            let it = &mut self.open[place];
            if !it.sent || it.step != from {
                return None;
            }
            it.step = to;
            let entry = it.entry;
            if to == Step::Done {
                self.open.remove(place);
            }
            Some(entry)
        }

        fn take_up(
            &mut self,
            packet_id: u16,
            entry: u64,
            listens: bool,
            overtaken: usize,
        ) -> Option<bool> {
            if self.place(packet_id).is_some() {
                return None;
            }
            let ids = u64::from(u16::MAX);
            let counts = self.next - ids..self.next;
            let count = counts.into_iter().find(|it| id_of(*it) == packet_id)?;
            let rest = &self.open[overtaken..];
            let at = overtaken + rest.partition_point(|it| it.count < count);
            let sent = listens && self.open[..at].iter().all(|it| it.sent);
            let step = Step::Comp;
            self.open.insert(
                at,
                Open {
                    count,
                    step,
                    entry,
                    sent,
                },
            );
            Some(sent)
        }

        fn next_resend(&mut self, max: u16) -> Option<Open> {
            let sent = self.open.iter().filter(|it| it.sent).count();
            let next = self.open.iter_mut().find(|it| !it.sent)?;
            (sent < usize::from(max)).then(|| {
                next.sent = true;
                *next
            })
        }
    }

    #[derive(Debug, Clone)]
    enum Act {
        Push(bool, bool),
        /// The position among the open messages.
        Advance(usize, Step, Step),
        AdvanceAny(i32, Step, Step),
        /// The distance behind the next identifier.
        TakeUp(i32, bool),
        Disconnect,
        Connect(u16),
        Resend(u16),
        Restart,
    }

    fn act() -> impl proptest::strategy::Strategy<Value = Act> {
        use proptest::prelude::*;
        let step = || {
            proptest::sample::select(vec![
                (Step::Ack, Step::Done),
                (Step::Rec, Step::Comp),
                (Step::Rec, Step::Done),
                (Step::Comp, Step::Done),
            ])
        };
        let distance = || prop_oneof![-20..20, -70_000..70_000];
        prop_oneof![
            8 => any::<(bool, bool)>().prop_map(|(exactly, kept)| Act::Push(exactly, kept)),
            8 => (0..20_usize, step()).prop_map(|(at, (from, to))| Act::Advance(at, from, to)),
            1 => (distance(), step()).prop_map(|(at, (from, to))| Act::AdvanceAny(at, from, to)),
            2 => (distance(), any::<bool>()).prop_map(|(at, kept)| Act::TakeUp(at, kept)),
            1 => Just(Act::Disconnect),
            2 => (1..12_u16).prop_map(Act::Connect),
            4 => (1..12_u16).prop_map(Act::Resend),
            1 => Just(Act::Restart),
        ]
    }

    proptest::proptest! {
        #[test]
        fn a_window_does_what_its_model_does(
            begin in proptest::sample::select(vec![1_u16, 100, 65_500, 65_535]),
            acts in proptest::collection::vec(act(), 0..300),
        ) {
            let ids = u64::from(u16::MAX);
            let mut window = Window::default();
            window.begin_at(begin);
            let mut model = Model { next: 10 * ids + u64::from(begin) - 1, ..Model::default() };
            let (mut listens, mut entries) = (true, 0);
            for act in acts {
                entries += 1;
                let overtaken = window.overtaken_len();
                let far = |distance: i32| id_of(model.next.wrapping_add_signed(-i64::from(distance)));
                let number = |kept: bool| if kept { entries } else { 0 };
                match act {
                    Act::Push(exactly, kept) if listens && window.has_room(u16::MAX) => {
                        let (qos, step) = match exactly {
                            true => (QoS::ExactlyOnce, Step::Rec),
                            false => (QoS::AtLeastOnce, Step::Ack),
                        };
                        let id = window.push(qos);
                        proptest::prop_assert_eq!(id, id_of(model.next));
                        proptest::prop_assert_eq!(model.place(id), None);
                        if kept {
                            window.keep(Delivery::example(0));
                            window.name_last(entries);
                        }
                        model.push(step, number(kept));
                    }
                    Act::Push(..) => {}
                    Act::Advance(at, from, to) => {
                        let Some(it) = model.open.get(at % model.open.len().max(1)) else {
                            continue;
                        };
                        let id = id_of(it.count);
                        let advanced = window.advance(id, from, to);
                        proptest::prop_assert_eq!(advanced, model.advance(id, from, to));
                    }
                    Act::AdvanceAny(distance, from, to) => {
                        let id = far(distance);
                        let advanced = window.advance(id, from, to);
                        proptest::prop_assert_eq!(advanced, model.advance(id, from, to));
                    }
                    Act::TakeUp(distance, kept) => {
                        let id = far(distance);
                        let content = kept.then(|| Delivery::example(entries));
                        let taken = window.take_up(id, content, listens);
                        proptest::prop_assert_eq!(taken, model.take_up(id, number(kept), listens, overtaken));
                    }
                    Act::Disconnect => {
                        window.rewind();
                        listens = false;
                        model.open.iter_mut().for_each(|it| it.sent = false);
                    }
                    Act::Connect(max) | Act::Resend(max) => {
                        listens |= matches!(act, Act::Connect(_));
                        if !listens {
                            continue;
                        }
                        loop {
                            let next = window.next_resend(max, false);
                            let next = next.map(|it| (it.packet_id, it.step, it.entry()));
                            let own = model.next_resend(max);
                            let own = own.map(|it| (id_of(it.count), it.step, it.entry));
                            proptest::prop_assert_eq!(next, own);
                            if next.is_none() {
                                let room = model.is_sent() && model.free(overtaken) > 0;
                                proptest::prop_assert_eq!(window.has_room(u16::MAX), room);
                                break;
                            }
                        }
                    }
                    Act::Restart => {
                        // Messages that were not kept are forgotten.
                        model.open.retain(|it| it.entry > 0);
                        model.open.iter_mut().for_each(|it| it.sent = false);
                        let open = model.open.iter().rev();
                        let open = open.map(|it| (id_of(it.count), it.step, Delivery::example(it.entry)));
                        window = Window::restore(window.next_id(), open.collect());
                        model.sort();
                        listens = false;
                    }
                }
                proptest::prop_assert!(model.leave_out(window.next_id()));
                let overtaken = window.overtaken_len();
                let open: Vec<_> = window
                    .unfinished()
                    .map(|it| (it.packet_id, it.step, it.entry()))
                    .collect();
                let own = model.open.iter().map(|it| (id_of(it.count), it.step, it.entry));
                proptest::prop_assert_eq!(open, own.collect::<Vec<_>>());
                proptest::prop_assert_eq!(window.open() as usize, model.open.len());
                proptest::prop_assert!(window.entries.len() <= 300);
                if window.has_room(u16::MAX) {
                    proptest::prop_assert!(model.is_sent() && model.free(overtaken) > 0);
                }
                for it in &model.open {
                    let found = window.in_flight(id_of(it.count)).map(|it| it.entry());
                    proptest::prop_assert_eq!(found, it.sent.then_some(it.entry));
                }
            }
        }
    }

    #[test]
    fn window_wraps_and_finds_identifiers() {
        let mut window = Window::default();
        let mut open = VecDeque::new();
        for _ in 0..200_000 {
            open.push_back(window.push(QoS::AtLeastOnce));
            if open.len() > 10 {
                // The third is acknowledged before the first.
                let id = open.remove(2).unwrap();
                assert!(window.advance(id, Step::Ack, Step::Done).is_some());
                assert!(window.advance(id, Step::Ack, Step::Done).is_none());
                let id = open.pop_front().unwrap();
                assert_ne!(id, 0);
                assert!(window.advance(id, Step::Ack, Step::Done).is_some());
            }
            assert_eq!(window.open() as usize, open.len());
        }
        assert!(window.entries.len() < 20);
    }

    #[test]
    fn resends_in_order_within_the_window() {
        let mut window = Window::default();
        let ids: Vec<u16> = (0..5).map(|_| window.push(QoS::ExactlyOnce)).collect();
        assert!(window.advance(ids[1], Step::Rec, Step::Comp).is_some());
        assert!(window.advance(ids[2], Step::Rec, Step::Comp).is_some());
        assert!(window.advance(ids[2], Step::Comp, Step::Done).is_some());
        window.rewind();
        assert!(!window.has_room(10));
        assert!(window.advance(ids[0], Step::Rec, Step::Comp).is_none());
        assert_eq!(window.next_resend(2, false).unwrap().packet_id, ids[0]);
        let second = window.next_resend(2, false).unwrap();
        assert_eq!((second.packet_id, second.step), (ids[1], Step::Comp));
        assert!(window.next_resend(2, false).is_none());
        assert!(window.advance(ids[1], Step::Comp, Step::Done).is_some());
        assert_eq!(window.next_resend(2, false).unwrap().packet_id, ids[3]);
        assert!(window.next_resend(2, false).is_none());
        assert_eq!(window.next_resend(3, false).unwrap().packet_id, ids[4]);
        assert!(!window.is_rewound());
        assert!(window.has_room(10));
    }

    #[test]
    fn identifiers_of_another_session_are_not_given_again_until_they_are_released() {
        for (listens, taken) in [(true, [7, 3]), (false, [3, 7]), (true, [65_535, 1])] {
            let mut window = Window::default();
            window.begin_at(5);
            assert_eq!(window.push(QoS::ExactlyOnce), 5);
            if !listens {
                window.rewind();
            }
            assert_eq!(window.take_up(5, None, listens), None, "in use");
            for id in taken {
                assert_eq!(window.take_up(id, None, listens), Some(listens), "{id}");
                assert_eq!(window.take_up(id, None, listens), None, "{id}");
            }
            assert_eq!(window.open(), 3);
            let again: Vec<_> = std::iter::from_fn(|| {
                let next = window.next_resend(10, false)?;
                Some((next.packet_id, next.step))
            })
            .collect();
            assert_eq!(again.len(), if listens { 0 } else { 3 }, "{again:?}");
            let mut given = Vec::new();
            for _ in 0..100_000 {
                assert!(window.has_room(u16::MAX));
                let id = window.push(QoS::AtLeastOnce);
                assert!(window.advance(id, Step::Ack, Step::Done).is_some());
                given.push(id);
            }
            assert!(taken.iter().all(|id| !given.contains(id)));
            for id in taken {
                assert!(window.advance(id, Step::Comp, Step::Done).is_some());
            }
            assert!(window.advance(5, Step::Rec, Step::Done).is_some());
            assert_eq!((window.open(), window.entries.len()), (0, 0));
        }
    }

    #[test]
    fn a_restored_window_goes_on_where_it_was() {
        let inflight = |packet_id, step| (packet_id, step, Delivery::example(u64::from(packet_id)));
        // The identifiers wrap, and one in between is done.
        let kept = vec![
            inflight(2, Step::Ack),
            inflight(u16::MAX, Step::Comp),
            inflight(u16::MAX - 2, Step::Rec),
        ];
        let mut window = Window::restore(3, kept);
        assert_eq!((window.open(), window.next_id()), (3, 3));
        assert!(window.is_rewound() && !window.has_room(10));
        let mut again = Vec::new();
        while let Some(next) = window.next_resend(10, false) {
            again.push((next.packet_id, next.step));
        }
        assert_eq!(
            again,
            [
                (u16::MAX - 2, Step::Rec),
                (u16::MAX, Step::Comp),
                (2, Step::Ack)
            ]
        );
        assert!(window.has_room(10));
        assert_eq!(window.push(QoS::AtLeastOnce), 3);
        assert_eq!(window.advance(2, Step::Ack, Step::Done), Some(2));
        assert_eq!(window.advance(1, Step::Ack, Step::Done), None);
        // Nothing in flight: only the numbering continues.
        let mut window = Window::restore(7, Vec::new());
        assert!(window.has_room(1) && !window.is_rewound());
        assert_eq!(window.push(QoS::AtLeastOnce), 7);
    }
}
