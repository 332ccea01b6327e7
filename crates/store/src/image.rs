//! The state that a sequence of operations means.
//!
//! A store that keeps contents elsewhere says with each message where (`C`),
//! and with each item in which part of its log it is (`mark`); the image of a
//! model holds the contents themselves and has no use for marks.
//!
//! Invariant: operations applied twice, or those of one shard a little later
//! than those of another, lead to the same state; a content is there exactly
//! while something refers to it, or until the end of its group.

use std::collections::BTreeMap;
use std::hash::BuildHasherDefault;

use hashbrown::{HashMap, HashSet};

use crate::numbers::{ByNumber, NumberHasher};
use crate::op::{
    Content, EntryOp, HighestNumbers, Ids, RECORD_HEADER, SessionOp, SubscriptionOp, WillOp,
};
use crate::rising::RisingMap;
use crate::{Batch, Op, Wall};

/// Bound on ends of entries, and removals of retained messages, that are remembered
/// because their entry or message may arrive later: far more than can be in flight
/// between shards.
const REMEMBERED: usize = 1 << 18;

/// Bytes of a record beside the names and contents in it, roughly.
const ITEM: u64 = RECORD_HEADER as u64 + 16;

/// State after a sequence of operations.
#[derive(Debug, Clone)]
pub struct Image<C = Box<[u8]>> {
    pub(crate) sessions: ByNumber<Session>,
    pub(crate) messages: ByNumber<Message<C>>,
    pub(crate) retained: BTreeMap<Box<str>, Retained>,
    pub(crate) flows: BTreeMap<Box<str>, Flow>,
    /// Operations on entries that have not arrived yet, by entry and session.
    early: BTreeMap<(u64, u64), EarlyChange>,
    /// Versions of removals, and the other way round.
    removed: HashMap<Box<str>, u64>,
    removals: BTreeMap<u64, Box<str>>,
    /// Contents that came in this group.
    fresh: Vec<u64>,
    /// A log is being read, in which what refers to a content may come long
    /// after everything else that did is done with.
    reading: bool,
    pub(crate) highest: HighestNumbers,
    entries: u64,
    live: u64,
}

/// A session and all that it has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Session {
    /// `None` while other things came before it.
    pub(crate) meta: Option<Meta>,
    pub(crate) subscriptions: BTreeMap<Box<str>, Subscription>,
    pub(crate) entries: RisingMap<Entry>,
    pub(crate) received: BTreeMap<u16, ReceivedPublish>,
    pub(crate) will: Option<Will>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Meta {
    client_id: Box<str>,
    user: Option<Box<str>>,
    version: u8,
    expiry: u32,
    detached: Option<Wall>,
    next_packet_id: u16,
    pub(crate) mark: u32,
}

/// A publication with QoS 2 that is not released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReceivedPublish {
    gist: u32,
    pub(crate) mark: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Subscription {
    options: u8,
    id: Option<u32>,
    properties: Box<[u8]>,
    pub(crate) mark: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    message: u64,
    ids: Box<[u32]>,
    number: Option<(u32, u32)>,
    qos: u8,
    retain: bool,
    pub(crate) sent: Option<u16>,
    /// Whether PUBREC arrived, so that the content is not needed any more.
    pub(crate) step: bool,
    pub(crate) mark: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Will {
    /// The operation, encoded.
    op: Box<[u8]>,
    pub(crate) mark: u32,
}

/// A content, or references to one that has not come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Message<C> {
    refs: u32,
    pub(crate) content: Option<C>,
    size: u32,
    /// Came in this group, at whose end it may be given up.
    fresh: bool,
}

impl<C> Message<C> {
    /// One that is only referred to.
    const MISSING: Self = Self {
        refs: 0,
        content: None,
        size: 0,
        fresh: false,
    };
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Retained {
    message: u64,
    version: u64,
    pub(crate) mark: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Flow {
    value: Box<[u8]>,
    pub(crate) mark: u32,
}

/// Operations on an entry that arrived before the entry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct EarlyChange {
    pub(crate) sent: Option<u16>,
    pub(crate) step: bool,
    pub(crate) done: bool,
}

impl<C> Default for Image<C> {
    fn default() -> Self {
        Self {
            sessions: ByNumber::default(),
            messages: ByNumber::default(),
            retained: BTreeMap::new(),
            flows: BTreeMap::new(),
            early: BTreeMap::new(),
            removed: HashMap::new(),
            removals: BTreeMap::new(),
            fresh: Vec::new(),
            reading: false,
            highest: HighestNumbers::default(),
            entries: 0,
            live: 0,
        }
    }
}

impl Image {
    /// Applies the operations of one group.
    pub fn apply(&mut self, group: &Batch) {
        for op in group.iter() {
            self.apply_op(&op, 0, |content, message| {
                let mut bytes = Vec::new();
                let op = Op::Message {
                    message,
                    content: *content,
                };
                op.encode(&mut bytes);
                bytes.into()
            });
        }
        self.settle();
    }

    /// Passes the operations that produce this state to `tell`, in the order of recovery:
    /// numbers, flows, contents, retained messages, and then one session after the other
    /// with its entries in order. Incomplete items (see [`Image::drop_unfinished`]) are
    /// included.
    pub fn operations(&self, tell: &mut dyn FnMut(Op<'_>)) {
        self.pass_numbers(tell);
        let mut messages: Vec<_> = self.messages.iter().collect();
        messages.sort_unstable_by_key(|(number, _)| **number);
        for (_, message) in messages {
            if let Some(Ok(op)) = message.content.as_ref().map(|bytes| Op::decode(bytes)) {
                tell(op);
            }
        }
        self.pass_rest(tell);
    }
}

impl<C> Image<C> {
    /// Bytes of the records that would write the whole state, roughly.
    pub fn live_bytes(&self) -> u64 {
        self.live
    }

    /// Sessions, complete or not.
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Entries of all sessions.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// Contents.
    pub fn messages(&self) -> usize {
        self.messages.len()
    }

    /// Retained messages.
    pub fn retained(&self) -> usize {
        self.retained.len()
    }

    /// Admitted flows.
    pub fn flows(&self) -> usize {
        self.flows.len()
    }

    /// Applies one operation. `mark` is the segment that contains it; `keep` makes the
    /// stored form of a content. After a group of operations, [`Image::settle`] has to be
    /// called.
    pub(crate) fn apply_op(
        &mut self,
        op: &Op<'_>,
        mark: u32,
        keep: impl FnOnce(&Content<'_>, u64) -> C,
    ) {
        self.highest.see(op);
        match *op {
            Op::Session(ref op) => self.put_session(op, mark),
            Op::SessionEnd { session } => self.end_session(session),
            Op::Subscription(ref op) => self.put_subscription(op, mark),
            Op::Unsubscription { session, filter } => {
                if let Some(state) = self.sessions.get_mut(&session)
                    && let Some(old) = state.subscriptions.remove(filter)
                {
                    self.live -= old.size(filter);
                }
                self.forget_empty(session);
            }
            Op::Message {
                message,
                ref content,
            } => self.put_content(message, content.size(), keep(content, message)),
            Op::Entry(ref op) => self.put_entry(op, mark),
            Op::Sent {
                session,
                entry,
                packet_id,
            } => {
                if let Some(state) = self.sessions.get_mut(&session)
                    && let Some(meta) = &mut state.meta
                {
                    meta.next_packet_id = packet_id.checked_add(1).unwrap_or(1);
                }
                match self.entry(session, entry) {
                    Some(entry) => entry.sent = Some(packet_id),
                    None => self.early(session, entry).sent = Some(packet_id),
                }
            }
            Op::Step { session, entry } => match self.entry(session, entry) {
                Some(_) => self.step(session, entry),
                None => self.early(session, entry).step = true,
            },
            Op::Inflight {
                session,
                entry,
                packet_id,
                step,
            } => {
                if let Some(state) = self.entry(session, entry) {
                    state.sent = Some(packet_id);
                    if step {
                        self.step(session, entry);
                    }
                }
            }
            Op::Done { session, entry } => self.finish(session, entry),
            Op::Received {
                session,
                packet_id,
                gist,
            } => {
                let state = self.sessions.entry(session).or_default();
                let received = ReceivedPublish { gist, mark };
                if state.received.insert(packet_id, received).is_none() {
                    self.live += ITEM;
                }
            }
            Op::Released { session, packet_id } => {
                if let Some(state) = self.sessions.get_mut(&session)
                    && state.received.remove(&packet_id).is_some()
                {
                    self.live -= ITEM;
                }
                self.forget_empty(session);
            }
            Op::Will(ref will) => {
                let mut bytes = Vec::new();
                op.encode(&mut bytes);
                let state = self.sessions.entry(will.session).or_default();
                let new = Will {
                    op: bytes.into(),
                    mark,
                };
                self.live += new.size();
                self.live -= state.will.replace(new).map_or(0, |old| old.size());
            }
            Op::WillGone { session } => {
                if let Some(state) = self.sessions.get_mut(&session) {
                    self.live -= state.will.take().map_or(0, |old| old.size());
                }
                self.forget_empty(session);
            }
            Op::Retain {
                topic,
                message,
                version,
            } => self.retain(topic, message, version, mark),
            Op::RetainGone { topic, version } => self.retain_gone(topic, version),
            Op::Flow { key, value } => {
                let new = Flow {
                    value: value.into(),
                    mark,
                };
                self.live += new.size(key);
                let old = self.flows.insert(key.into(), new);
                self.live -= old.map_or(0, |old| old.size(key));
            }
            Op::FlowGone { key } => {
                self.live -= self.flows.remove(key).map_or(0, |old| old.size(key));
            }
            Op::Highest(_) | Op::GivenBack { .. } => {}
        }
    }

    /// Ends a group: contents that nothing refers to are given up.
    pub(crate) fn settle(&mut self) {
        for number in std::mem::take(&mut self.fresh) {
            if let Some(message) = self.messages.get_mut(&number) {
                message.fresh = false;
                if message.refs == 0 {
                    self.forget_message(number);
                }
            }
        }
    }

    /// Keeps all contents until [`Image::end_reading`].
    pub(crate) fn begin_reading(&mut self) {
        self.reading = true;
    }

    /// Gives up the contents that nothing refers to.
    pub(crate) fn end_reading(&mut self) {
        self.reading = false;
        let unused = self.messages.iter().filter(|(_, it)| it.refs == 0);
        let unused: Vec<u64> = unused.map(|(number, _)| *number).collect();
        for message in unused {
            self.forget_message(message);
        }
    }

    fn put_session(&mut self, op: &SessionOp<'_>, mark: u32) {
        let state = self.sessions.entry(op.session).or_default();
        let new = Meta {
            client_id: op.client_id.into(),
            user: op.user.map(Into::into),
            version: op.version,
            expiry: op.expiry,
            detached: op.detached,
            next_packet_id: op.next_packet_id,
            mark,
        };
        self.live += new.size();
        self.live -= state.meta.replace(new).map_or(0, |old| old.size());
    }

    fn end_session(&mut self, session: u64) {
        let Some(state) = self.sessions.remove(&session) else {
            return;
        };
        self.live -= state.own_size();
        for entry in state.entries.values() {
            self.forget_entry(entry);
        }
    }

    fn put_subscription(&mut self, op: &SubscriptionOp<'_>, mark: u32) {
        let state = self.sessions.entry(op.session).or_default();
        let new = Subscription {
            options: op.options,
            id: op.id,
            properties: op.properties.into(),
            mark,
        };
        self.live += new.size(op.filter);
        let old = state.subscriptions.insert(op.filter.into(), new);
        self.live -= old.map_or(0, |old| old.size(op.filter));
    }

    /// A content of which only its size is known, and where it is kept.
    pub(crate) fn put_content(&mut self, number: u64, size: u32, kept: C) {
        self.highest.message = self.highest.message.max(number);
        let message = self.messages.entry(number).or_insert(Message::MISSING);
        self.live -= u64::from(message.size);
        message.size = size;
        self.live += u64::from(size);
        message.content = Some(kept);
        // What is being read is looked through at the end.
        if !self.reading && !std::mem::replace(&mut message.fresh, true) {
            self.fresh.push(number);
        }
    }

    fn put_entry(&mut self, op: &EntryOp<'_>, mark: u32) {
        let early = self.early.remove(&(op.entry, op.session));
        let early = early.unwrap_or_default();
        if early.done {
            return;
        }
        let new = Entry {
            message: op.message,
            ids: op.subscription_ids.iter().collect(),
            number: op.number,
            qos: op.qos,
            retain: op.retain,
            sent: early.sent,
            step: false,
            mark,
        };
        self.live += new.size();
        self.entries += 1;
        self.refer(op.message);
        let state = self.sessions.entry(op.session).or_default();
        if let Some(old) = state.entries.insert(op.entry, new) {
            // Said twice: how far it is has not changed.
            if let Some(new) = state.entries.get_mut(op.entry) {
                new.sent = new.sent.or(old.sent);
            }
            self.forget_entry(&old);
            if old.step {
                self.step(op.session, op.entry);
            }
        }
        if early.step {
            self.step(op.session, op.entry);
        }
    }

    pub(crate) fn entry(&mut self, session: u64, entry: u64) -> Option<&mut Entry> {
        self.sessions.get_mut(&session)?.entries.get_mut(entry)
    }

    /// PUBREC came for an entry that is there.
    fn step(&mut self, session: u64, entry: u64) {
        if let Some(state) = self.entry(session, entry)
            && !state.step
        {
            state.step = true;
            let message = state.message;
            self.release(message);
        }
    }

    fn finish(&mut self, session: u64, entry: u64) {
        let state = self.sessions.get_mut(&session);
        match state.and_then(|state| state.entries.remove(entry)) {
            Some(old) => {
                self.forget_entry(&old);
                self.forget_empty(session);
            }
            None => self.early(session, entry).done = true,
        }
    }

    fn early(&mut self, session: u64, entry: u64) -> &mut EarlyChange {
        if self.early.len() >= REMEMBERED && !self.early.contains_key(&(entry, session)) {
            self.early.pop_first();
        }
        self.early.entry((entry, session)).or_default()
    }

    /// The operations on an entry that has not arrived yet.
    pub(crate) fn said_early(&self, session: u64, entry: u64) -> EarlyChange {
        let early = self.early.get(&(entry, session));
        early.copied().unwrap_or_default()
    }

    fn retain(&mut self, topic: &str, message: u64, version: u64, mark: u32) {
        if version < self.retained_version(topic) {
            return;
        }
        self.forget_removal(topic);
        self.refer(message);
        let new = Retained {
            message,
            version,
            mark,
        };
        self.live += new.size(topic);
        if let Some(old) = self.retained.insert(topic.into(), new) {
            self.live -= old.size(topic);
            self.release(old.message);
        }
    }

    fn retain_gone(&mut self, topic: &str, version: u64) {
        if version < self.retained_version(topic) {
            return;
        }
        if let Some(old) = self.retained.remove(topic) {
            self.live -= old.size(topic);
            self.release(old.message);
        }
        self.forget_removal(topic);
        if self.removals.len() >= REMEMBERED
            && let Some((_, topic)) = self.removals.pop_first()
        {
            self.removed.remove(&topic);
        }
        if let Some(other) = self.removals.insert(version, topic.into()) {
            self.removed.remove(&other);
        }
        self.removed.insert(topic.into(), version);
    }

    /// The highest version known of a topic.
    pub(crate) fn retained_version(&self, topic: &str) -> u64 {
        let retained = self.retained.get(topic).map(|it| it.version);
        let removed = self.removed.get(topic).copied();
        retained.max(removed).unwrap_or(0)
    }

    fn forget_removal(&mut self, topic: &str) {
        if let Some(version) = self.removed.remove(topic) {
            self.removals.remove(&version);
        }
    }

    fn refer(&mut self, message: u64) {
        let message = self.messages.entry(message).or_insert(Message::MISSING);
        message.refs += 1;
    }

    fn release(&mut self, number: u64) {
        if let Some(message) = self.messages.get_mut(&number) {
            message.refs -= 1;
            if message.refs == 0 && !message.fresh {
                self.forget_message(number);
            }
        }
    }

    fn forget_message(&mut self, number: u64) {
        if self.reading {
            return;
        }
        let message = self.messages.remove(&number);
        self.live -= message.map_or(0, |message| u64::from(message.size));
    }

    fn forget_entry(&mut self, entry: &Entry) {
        self.live -= entry.size();
        self.entries -= 1;
        if !entry.step {
            self.release(entry.message);
        }
    }

    /// A session that never was need not be remembered without anything.
    fn forget_empty(&mut self, session: u64) {
        if self.sessions.get(&session) == Some(&Session::default()) {
            self.sessions.remove(&session);
        }
    }

    /// Whether a content is there.
    pub(crate) fn has_content(&self, message: u64) -> bool {
        let message = self.messages.get(&message);
        message.is_some_and(|message| message.content.is_some())
    }

    /// After a crash: drops incomplete items, that is entries and retained messages
    /// without their contents, and items of sessions that do not exist. None of them was
    /// acknowledged. Returns their number.
    pub fn drop_unfinished(&mut self) -> u64 {
        self.early.clear();
        let (mut dropped, mut finished) = (0, Vec::new());
        let mut ended = Vec::new();
        // Usually everything is there, and there may be very many entries.
        let mut messages = self.messages.values();
        let some_missing = messages.any(|it| it.refs > 0 && it.content.is_none());
        for (&session, state) in &self.sessions {
            if state.meta.is_none() {
                ended.push(session);
                dropped += state.entries.len() as u64;
                continue;
            }
            if !some_missing {
                continue;
            }
            for (entry, it) in state.entries.iter() {
                if !it.step && !self.has_content(it.message) {
                    finished.push((session, entry));
                }
            }
        }
        let topics: Vec<(Box<str>, u64)> = self
            .retained
            .iter()
            .filter(|(_, it)| !self.has_content(it.message))
            .map(|(topic, it)| (topic.clone(), it.version))
            .collect();
        dropped += (finished.len() + topics.len()) as u64;
        for session in ended {
            self.end_session(session);
        }
        for (session, entry) in finished {
            self.finish(session, entry);
        }
        for (topic, version) in topics {
            self.retain_gone(&topic, version);
        }
        dropped
    }

    /// Passes numbers and flows to `tell`, which recovery does before the contents.
    pub(crate) fn pass_numbers(&self, tell: &mut dyn FnMut(Op<'_>)) {
        tell(Op::Highest(self.highest));
        for (key, flow) in &self.flows {
            tell(flow.op(key));
        }
    }

    /// Passes everything after the contents to `tell`.
    pub(crate) fn pass_rest(&self, tell: &mut dyn FnMut(Op<'_>)) {
        for (topic, retained) in &self.retained {
            tell(retained.op(topic));
        }
        let mut sessions: Vec<(u64, &Session)> = self
            .sessions
            .iter()
            .map(|(number, it)| (*number, it))
            .collect();
        sessions.sort_unstable_by_key(|it| it.0);
        for (session, state) in sessions {
            if let Some(meta) = &state.meta {
                tell(meta.op(session));
            }
            for (filter, subscription) in &state.subscriptions {
                tell(subscription.op(session, filter));
            }
            for (&packet_id, it) in &state.received {
                tell(Op::Received {
                    session,
                    packet_id,
                    gist: it.gist,
                });
            }
            if let Some(op) = state.will.as_ref().and_then(Will::op) {
                tell(op);
            }
            for (entry, it) in state.entries.iter() {
                tell(it.op(session, entry));
                if let Some(op) = it.inflight(session, entry) {
                    tell(op);
                }
            }
        }
    }
}

impl Session {
    /// Bytes without its entries.
    fn own_size(&self) -> u64 {
        let subscriptions = self.subscriptions.iter();
        self.meta.as_ref().map_or(0, Meta::size)
            + self.will.as_ref().map_or(0, Will::size)
            + ITEM * self.received.len() as u64
            + subscriptions
                .map(|(filter, it)| it.size(filter))
                .sum::<u64>()
    }
}

impl Meta {
    fn size(&self) -> u64 {
        let user = self.user.as_ref().map_or(0, |user| user.len());
        ITEM + (self.client_id.len() + user) as u64 + 12
    }

    pub(crate) fn op(&self, session: u64) -> Op<'_> {
        Op::Session(SessionOp {
            session,
            client_id: &self.client_id,
            user: self.user.as_deref(),
            version: self.version,
            expiry: self.expiry,
            detached: self.detached,
            next_packet_id: self.next_packet_id,
        })
    }
}

impl Subscription {
    fn size(&self, filter: &str) -> u64 {
        ITEM + (filter.len() + self.properties.len()) as u64
    }

    pub(crate) fn op<'a>(&'a self, session: u64, filter: &'a str) -> Op<'a> {
        Op::Subscription(SubscriptionOp {
            session,
            filter,
            options: self.options,
            id: self.id,
            properties: &self.properties,
        })
    }
}

impl Entry {
    fn size(&self) -> u64 {
        ITEM + 4 * self.ids.len() as u64
    }

    pub(crate) fn op(&self, session: u64, entry: u64) -> Op<'_> {
        Op::Entry(EntryOp {
            session,
            entry,
            message: self.message,
            qos: self.qos,
            retain: self.retain,
            subscription_ids: Ids::from(&self.ids[..]),
            number: self.number,
        })
    }

    pub(crate) fn inflight(&self, session: u64, entry: u64) -> Option<Op<'_>> {
        Some(Op::Inflight {
            session,
            entry,
            packet_id: self.sent?,
            step: self.step,
        })
    }
}

impl Will {
    fn size(&self) -> u64 {
        (RECORD_HEADER + self.op.len()) as u64
    }

    pub(crate) fn op(&self) -> Option<Op<'_>> {
        Op::decode(&self.op).ok()
    }
}

impl Retained {
    fn size(&self, topic: &str) -> u64 {
        ITEM + topic.len() as u64
    }

    pub(crate) fn op<'a>(&self, topic: &'a str) -> Op<'a> {
        Op::Retain {
            topic,
            message: self.message,
            version: self.version,
        }
    }
}

impl Flow {
    fn size(&self, key: &str) -> u64 {
        ITEM + (key.len() + self.value.len()) as u64
    }

    pub(crate) fn op<'a>(&'a self, key: &'a str) -> Op<'a> {
        Op::Flow {
            key,
            value: &self.value,
        }
    }
}

impl Content<'_> {
    /// Bytes of the record, roughly.
    fn size(&self) -> u32 {
        let bytes =
            self.topic.len() + self.properties.len() + self.payload.len() + self.stamp.len();
        u32::try_from(bytes + ITEM as usize).unwrap_or(u32::MAX)
    }
}

impl<C: PartialEq> Image<C> {
    /// The operations to be rewritten for an item in the segment `mark`, if that segment
    /// contains its live version; none if the item is obsolete.
    pub(crate) fn still(&self, op: &Op<'_>, mark: u32, kept: &C, tell: &mut dyn FnMut(Op<'_>)) {
        let state = |session| self.sessions.get(session);
        match op {
            Op::Session(of) => {
                let meta = state(&of.session).and_then(|it| it.meta.as_ref());
                if let Some(meta) = meta.filter(|it| it.mark == mark) {
                    tell(meta.op(of.session));
                }
            }
            Op::Subscription(of) => {
                let it = state(&of.session).and_then(|it| it.subscriptions.get(of.filter));
                if let Some(it) = it.filter(|it| it.mark == mark) {
                    tell(it.op(of.session, of.filter));
                }
            }
            Op::Message { message, .. } => {
                let it = self.messages.get(message);
                if it.is_some_and(|it| it.content.as_ref() == Some(kept)) {
                    tell(*op);
                }
            }
            Op::Entry(of) => {
                let it = state(&of.session).and_then(|it| it.entries.get(of.entry));
                if let Some(it) = it.filter(|it| it.mark == mark) {
                    tell(it.op(of.session, of.entry));
                    if let Some(op) = it.inflight(of.session, of.entry) {
                        tell(op);
                    }
                }
            }
            Op::Received {
                session,
                packet_id,
                gist,
            } => {
                let it = state(session).and_then(|it| it.received.get(packet_id));
                if it == Some(&ReceivedPublish { gist: *gist, mark }) {
                    tell(*op);
                }
            }
            Op::Will(of) => {
                let will = state(&of.session).and_then(|it| it.will.as_ref());
                if let Some(op) = will.filter(|it| it.mark == mark).and_then(Will::op) {
                    tell(op);
                }
            }
            Op::Retain { topic, .. } => {
                if let Some(it) = self.retained.get(*topic).filter(|it| it.mark == mark) {
                    tell(it.op(topic));
                }
            }
            Op::Flow { key, .. } => {
                if let Some(it) = self.flows.get(*key).filter(|it| it.mark == mark) {
                    tell(it.op(key));
                }
            }
            _ => {}
        }
    }

    /// Notes that the operations of [`Image::still`] were rewritten into another segment.
    pub(crate) fn moved(&mut self, op: &Op<'_>, mark: u32, kept: C) {
        let mark = |it: &mut u32| *it = mark;
        match op {
            Op::Message { message, .. } => {
                if let Some(it) = self.messages.get_mut(message) {
                    it.content = Some(kept);
                }
            }
            Op::Retain { topic, .. } => {
                self.retained
                    .get_mut(*topic)
                    .map(|it| &mut it.mark)
                    .map(mark);
            }
            Op::Flow { key, .. } => {
                self.flows.get_mut(*key).map(|it| &mut it.mark).map(mark);
            }
            Op::Session(SessionOp { session, .. })
            | Op::Subscription(SubscriptionOp { session, .. })
            | Op::Entry(EntryOp { session, .. })
            | Op::Received { session, .. }
            | Op::Will(WillOp { session, .. }) => {
                if let Some(found) = self.sessions.get_mut(session).and_then(|it| it.mark_of(op)) {
                    mark(found);
                }
            }
            _ => {}
        }
    }
}

impl Session {
    /// In which part of the log something of it is.
    fn mark_of(&mut self, op: &Op<'_>) -> Option<&mut u32> {
        match op {
            Op::Session(_) => self.meta.as_mut().map(|it| &mut it.mark),
            Op::Subscription(of) => {
                let it = self.subscriptions.get_mut(of.filter)?;
                Some(&mut it.mark)
            }
            Op::Entry(of) => self.entries.get_mut(of.entry).map(|it| &mut it.mark),
            Op::Received { packet_id, .. } => {
                self.received.get_mut(packet_id).map(|it| &mut it.mark)
            }
            Op::Will(_) => self.will.as_mut().map(|it| &mut it.mark),
            _ => None,
        }
    }
}

impl EarlyChange {
    /// The operation to be written after the entry.
    pub(crate) fn op(self, of: &EntryOp<'_>) -> Option<Op<'static>> {
        let (session, entry) = (of.session, of.entry);
        match self.sent {
            Some(packet_id) => Some(Op::Inflight {
                session,
                entry,
                packet_id,
                step: self.step,
            }),
            None => self.step.then_some(Op::Step { session, entry }),
        }
    }
}

/// What a store does with one operation of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Disposition {
    /// Writes and applies it.
    Write,
    /// Writes an entry together with how far it is already said to be.
    WriteSent(EarlyChange),
    /// Applies it only: it is about something that is not there.
    Remember,
    /// Neither: another operation of the group has undone it.
    Skip,
}

impl Disposition {
    pub(crate) fn is_written(&self) -> bool {
        matches!(self, Self::Write | Self::WriteSent(_))
    }
}

impl<C> Image<C> {
    /// Decides for each operation of a group whether it has to be written. An operation that another one of
    /// the same group undoes, or that changes nothing, is left out.
    pub(crate) fn fates(&self, group: &[Op<'_>]) -> Vec<Disposition> {
        let sums = Sums::of(group);
        let each = group.iter().enumerate();
        let mut fates: Vec<Disposition> = each
            .map(|(at, op)| self.fate(at, op, group, &sums))
            .collect();
        // A content is needed if a later operation refers to it, usually the next one.
        let refers = |at: usize, to: u64| {
            let message = match group.get(at) {
                Some(Op::Entry(EntryOp { message, .. }) | Op::Retain { message, .. }) => *message,
                _ => return false,
            };
            message == to && fates[at].is_written()
        };
        let unsure: Vec<(usize, u64)> = group
            .iter()
            .enumerate()
            .filter_map(|(at, op)| match op {
                Op::Message { message, .. } => Some((at, *message)),
                _ => None,
            })
            .filter(|(at, message)| {
                let known = self.messages.get(message);
                !refers(at + 1, *message) && known.is_none_or(|it| it.content.is_some())
            })
            .collect();
        if unsure.is_empty() {
            return fates;
        }
        let mut needed = HashSet::<u64, BuildHasherDefault<NumberHasher>>::default();
        for (op, fate) in group.iter().zip(&fates) {
            if let (Op::Entry(EntryOp { message, .. }) | Op::Retain { message, .. }, true) =
                (op, fate.is_written())
            {
                needed.insert(*message);
            }
        }
        for (at, message) in unsure {
            if !needed.contains(&message) {
                fates[at] = Disposition::Skip;
            }
        }
        fates
    }

    fn fate(&self, at: usize, op: &Op<'_>, group: &[Op<'_>], sums: &Sums<'_>) -> Disposition {
        let write = |yes| {
            if yes {
                Disposition::Write
            } else {
                Disposition::Skip
            }
        };
        match *op {
            Op::Entry(EntryOp { session, entry, .. }) => {
                let early = self.said_early(session, entry);
                match sums.done.contains(&(session, entry)) {
                    _ if early.done => Disposition::Remember,
                    true => Disposition::Skip,
                    false if early != EarlyChange::default() => Disposition::WriteSent(early),
                    false => Disposition::Write,
                }
            }
            Op::Sent { session, entry, .. } | Op::Step { session, entry } => {
                let before = at.checked_sub(1).map(|before| &group[before]);
                let known = is_entry(before, session, entry)
                    || sums.entered(session, entry, at)
                    || self.has_entry(session, entry);
                // Said too early, it still says which identifier was the last.
                let counts = matches!(op, Op::Sent { .. });
                match (known, sums.done.contains(&(session, entry))) {
                    (_, true) => Disposition::Skip,
                    (false, false) if !counts => Disposition::Remember,
                    (_, false) => Disposition::Write,
                }
            }
            Op::Done { session, entry } => {
                if self.has_entry(session, entry) {
                    Disposition::Write
                } else if sums.entries.contains_key(&(session, entry)) {
                    Disposition::Skip
                } else {
                    Disposition::Remember
                }
            }
            Op::Received {
                session, packet_id, ..
            } => write(sums.received.get(&(session, packet_id)) == Some(&at)),
            Op::Released { session, packet_id } => {
                let state = self.sessions.get(&session);
                let known = state.is_some_and(|state| state.received.contains_key(&packet_id));
                write(known && sums.received.get(&(session, packet_id)) == Some(&at))
            }
            Op::Retain { topic, version, .. } => write(
                sums.retained.get(topic) == Some(&version)
                    && version >= self.retained_version(topic),
            ),
            Op::RetainGone { topic, version } => {
                let last = sums.retained.get(topic) == Some(&version);
                match last
                    && self
                        .retained
                        .get(topic)
                        .is_some_and(|it| it.version <= version)
                {
                    true => Disposition::Write,
                    false => Disposition::Remember,
                }
            }
            _ => Disposition::Write,
        }
    }

    /// Approximate number of bytes that an operation makes obsolete.
    pub(crate) fn replaced_by(&self, op: &Op<'_>) -> u64 {
        let state = |session| self.sessions.get(session);
        let content = |message: u64| match self.messages.get(&message) {
            Some(it) if it.refs == 1 => u64::from(it.size),
            _ => 0,
        };
        let entry = |it: &Entry| it.size() + if it.step { 0 } else { content(it.message) };
        match op {
            Op::Session(op) => try_size(state(&op.session), |it| Some(it.meta.as_ref()?.size())),
            Op::SessionEnd { session } => try_size(state(session), |it| {
                Some(it.own_size() + it.entries.values().map(entry).sum::<u64>())
            }),
            Op::Done { session, entry: of } => {
                try_size(state(session), |it| it.entries.get(*of).map(entry))
            }
            Op::Step { session, entry: of } => try_size(state(session), |it| {
                let it = it.entries.get(*of)?;
                Some(if it.step { 0 } else { content(it.message) })
            }),
            Op::Unsubscription { session, filter } => try_size(state(session), |it| {
                Some(it.subscriptions.get(*filter)?.size(filter))
            }),
            Op::Subscription(op) => try_size(state(&op.session), |it| {
                Some(it.subscriptions.get(op.filter)?.size(op.filter))
            }),
            Op::Released { .. } => ITEM,
            Op::WillGone { session } => {
                try_size(state(session), |it| Some(it.will.as_ref()?.size()))
            }
            Op::Retain { topic, .. } | Op::RetainGone { topic, .. } => {
                try_size(self.retained.get(*topic), |it| {
                    Some(it.size(topic) + content(it.message))
                })
            }
            Op::Flow { key, .. } | Op::FlowGone { key } => {
                try_size(self.flows.get(*key), |it| Some(it.size(key)))
            }
            _ => 0,
        }
    }

    fn has_entry(&self, session: u64, entry: u64) -> bool {
        let state = self.sessions.get(&session);
        state.is_some_and(|state| state.entries.contains(entry))
    }
}

fn try_size<T>(of: Option<&T>, size: impl FnOnce(&T) -> Option<u64>) -> u64 {
    of.and_then(size).unwrap_or(0)
}

/// Whether an operation is that entry.
fn is_entry(op: Option<&Op<'_>>, session: u64, entry: u64) -> bool {
    matches!(op, Some(Op::Entry(it)) if (it.session, it.entry) == (session, entry))
}

/// What a group comes to.
#[derive(Default)]
struct Sums<'a> {
    /// Where entries are, by session and number.
    entries: HashMap<(u64, u64), usize, BuildHasherDefault<NumberHasher>>,
    done: HashSet<(u64, u64), BuildHasherDefault<NumberHasher>>,
    /// Where the last word about an identifier is.
    received: HashMap<(u64, u16), usize>,
    /// The highest version of a topic.
    retained: HashMap<&'a str, u64>,
}

impl<'a> Sums<'a> {
    fn of(group: &[Op<'a>]) -> Self {
        let mut sums = Self::default();
        // Numbers of entries rise, so most removed entries are older than the group.
        let mut first = u64::MAX;
        let (mut some_done, mut some_said) = (false, false);
        let mut before = None;
        for (at, op) in group.iter().enumerate() {
            match *op {
                Op::Entry(EntryOp { entry, .. }) => first = first.min(entry),
                // What comes right after its entry needs no looking up.
                Op::Sent { session, entry, .. } => some_said |= !is_entry(before, session, entry),
                Op::Step { .. } => some_said = true,
                Op::Done { .. } => some_done = true,
                Op::Received {
                    session, packet_id, ..
                }
                | Op::Released { session, packet_id } => {
                    sums.received.insert((session, packet_id), at);
                }
                Op::Retain { topic, version, .. } | Op::RetainGone { topic, version } => {
                    let highest = sums.retained.entry(topic).or_default();
                    *highest = version.max(*highest);
                }
                _ => {}
            }
            before = Some(op);
        }
        if some_done {
            let from = if some_said { 0 } else { first };
            sums.done.extend(group.iter().filter_map(|op| match *op {
                Op::Done { session, entry } if entry >= from => Some((session, entry)),
                _ => None,
            }));
        }
        if some_said || !sums.done.is_empty() {
            for (at, op) in group.iter().enumerate() {
                if let Op::Entry(EntryOp { session, entry, .. }) = *op {
                    sums.entries.entry((session, entry)).or_insert(at);
                }
            }
        }
        sums
    }

    /// Whether an entry came before.
    fn entered(&self, session: u64, entry: u64, at: usize) -> bool {
        self.entries
            .get(&(session, entry))
            .is_some_and(|&entered| entered < at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_an_entry_of_its_group_is_written() {
        let (session, entry) = (1, 7);
        let came = Op::Entry(EntryOp {
            session,
            entry,
            message: 3,
            qos: 2,
            retain: false,
            subscription_ids: Ids::NONE,
            number: None,
        });
        let other = Op::Received {
            session: 2,
            packet_id: 1,
            gist: 0,
        };
        let sent = Op::Sent {
            session,
            entry,
            packet_id: 5,
        };
        let step = Op::Step { session, entry };
        let done = Op::Done { session, entry };
        let image = Image::<()>::default();
        for group in [
            vec![came, sent],
            vec![came, other, sent],
            vec![came, sent, other, step],
            vec![came, other, step],
        ] {
            let fates = image.fates(&group);
            assert!(
                fates.iter().all(Disposition::is_written),
                "{group:?}: {fates:?}"
            );
        }
        for group in [vec![came, sent, done], vec![came, other, sent, step, done]] {
            let fates = image.fates(&group);
            let written = group.iter().zip(&fates).filter(|(_, it)| it.is_written());
            assert!(written.map(|it| *it.0).all(|op| op == other), "{fates:?}");
        }
        // Early, it says which identifier was the last.
        assert_eq!(image.fates(&[sent, came])[0], Disposition::Write);
        for early in [step, done] {
            assert_eq!(image.fates(&[early])[0], Disposition::Remember);
        }
    }
}
