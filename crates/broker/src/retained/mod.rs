//! Retained messages (section 3.3.1.3), one per topic, in a [`tree`] of topics, so that a
//! subscription visits only those that it may match, and is served in pieces.
//!
//! Each message has a version, higher than that of its topic's previous message. In a mesh versions
//! are times, so that all brokers agree which of two messages is newer, wherever they were
//! published, and a topic without a message remembers for a while the version at which it lost its
//! message.

pub(crate) mod lack;
mod pages;
mod shared;
#[cfg(test)]
mod tests;
mod tree;

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::base::version::{LAST_VERSION, SALT};
use punctual_codec::topic;
use punctual_model::VERSIONS_SINCE;
use smallvec::SmallVec;

use crate::base::author::Author;
use crate::slab::Slab;
use crate::{Budget, Message, Nanos};
use shared::Shared;
pub(crate) use shared::{DigestCursor, PARTS, digest, part};
use tree::{Gap, TOGETHER, Tree};

/// The store.
#[derive(Debug, Default)]
pub(crate) struct Retained {
    /// Places in `messages` by topic.
    topics: Tree,
    messages: Slab<RetainedEntry>,
    bytes: usize,
    /// The expiry time of each message that expires, with its place.
    expiries: BTreeSet<(Nanos, u32)>,
    /// The highest version so far.
    version: u64,
    /// Number of times that a topic was given a message, or lost its message.
    changes: u64,
    /// In a mesh: the digests that brokers compare.
    shared: Option<Box<Shared>>,
    /// Topics that have no message any more although the store has one, with the version of that
    /// message.
    gone: Vec<(Box<str>, u64)>,
}

/// The retained message of one topic.
#[derive(Debug)]
pub(crate) struct RetainedEntry {
    pub(crate) message: Arc<Message>,
    pub(crate) version: u64,
    /// Number of the change that stored the message.
    change: u64,
    /// The client of this broker that published it; `None` if the broker itself or another broker
    /// did.
    pub(crate) author: Option<Arc<Author>>,
}

/// The topic from which a search through retained messages continues. A change during the search is
/// found if its topic is not before that one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RetainedCursor(Box<[u8]>);

impl RetainedCursor {
    /// A cursor at the first topic above this one.
    #[must_use]
    pub fn after(topic: &str) -> Self {
        // Topics cannot contain U+0000.
        Self([topic.as_bytes(), b"\0"].concat().into())
    }
}

/// A message that a search found, which may have been replaced since.
#[derive(Debug)]
pub(crate) struct RetainedMatch {
    pub(crate) message: Arc<Message>,
    /// Number of the [change](Retained::changes) that stored the message.
    pub(crate) change: u64,
    /// The place of the message in the store; `u32::MAX` for none.
    place: u32,
}

impl RetainedMatch {
    /// A result that says that a topic has no message any more.
    pub(crate) fn removal(message: Arc<Message>) -> Self {
        Self {
            message,
            change: 0,
            place: u32::MAX,
        }
    }
}

/// One piece of a search.
#[derive(Debug, Default)]
pub(crate) struct Piece {
    pub(crate) found: Vec<RetainedMatch>,
    /// The position at which to continue; `None` at the end.
    pub(crate) next: Option<RetainedCursor>,
}

/// The message of a topic, or the place where it would be: the topic is looked up once for several
/// queries and changes.
#[derive(Debug)]
pub(crate) struct Entry<'a> {
    store: &'a mut Retained,
    topic: &'a str,
    place: Result<u32, Gap>,
}

impl Entry<'_> {
    fn kept(&self) -> Option<&RetainedEntry> {
        self.store.messages.get(self.place.ok()?)
    }

    /// Whether the topic has a message.
    pub(crate) fn is_there(&self) -> bool {
        self.place.is_ok()
    }

    /// Whether a message of `size` bytes would stay within bounds.
    pub(crate) fn has_room(&self, size: usize, max_messages: usize, max_bytes: usize) -> bool {
        let old = self.kept();
        let messages = self.store.len() + usize::from(old.is_none());
        let bytes = self.store.bytes - old.map_or(0, |kept| kept.message.size()) + size;
        messages <= max_messages && bytes <= max_bytes
    }

    /// The version of the topic's current or last message; 0 if that is not known.
    pub(crate) fn version(&self) -> u64 {
        let kept = self.kept().map(|kept| kept.version);
        kept.unwrap_or_else(|| self.store.gone_version(self.topic))
    }

    /// Whether the store may have a message of the topic.
    pub(crate) fn is_stored(&self) -> bool {
        self.kept().is_some_and(|kept| kept.message.stored != 0)
    }

    /// The version of the next change; see [`Retained::next_version`].
    pub(crate) fn next_version(&mut self, clock: Option<(u64, u32)>) -> u64 {
        self.store.next_version(clock)
    }

    /// Stores a message of the topic, or removes the topic's message if the payload is empty
    /// [MQTT-3.3.1-6].
    pub(crate) fn set(self, message: Arc<Message>, version: u64, author: Option<Arc<Author>>) {
        debug_assert_eq!(message.topic(), self.topic);
        let store = self.store;
        store.raise_version(version);
        store.changes += 1;
        if message.payload().is_empty() {
            if let Ok(place) = self.place {
                store.clear(place);
            }
            if let Some(shared) = &mut store.shared {
                shared.bury(self.topic, version, store.version);
            }
            return;
        }
        if let Some(shared) = &mut store.shared {
            shared.open(self.topic);
            shared.add(self.topic, version);
        }
        store.bytes += message.size();
        let expires = message.expires;
        let kept = RetainedEntry {
            message,
            version,
            change: store.changes,
            author,
        };
        let place = match self.place {
            Ok(place) => {
                if let Some(old) = store.messages.get_mut(place) {
                    let old = std::mem::replace(old, kept);
                    store.forget(&old, place);
                }
                place
            }
            Err(gap) => {
                let place = store.messages.insert(kept);
                let (topics, messages) = (&mut store.topics, &store.messages);
                topics.insert(gap, self.topic.as_bytes(), place, names(messages));
                place
            }
        };
        if expires < Nanos::MAX {
            store.expiries.insert((expires, place));
        }
    }
}

/// The names of the topics that the tree refers to by number.
fn names<'a>(messages: &'a Slab<RetainedEntry>) -> impl Fn(u32) -> &'a [u8] {
    |place| {
        let kept = messages.get(place);
        kept.map_or(&[], |kept| kept.message.topic_bytes())
    }
}

impl Retained {
    pub(crate) fn len(&self) -> usize {
        self.messages.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Number of changes so far: later changes have higher numbers.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    fn find(&self, topic: &str) -> Result<u32, Gap> {
        self.topics.find(topic.as_bytes(), names(&self.messages))
    }

    /// The entry of a topic, for queries and changes.
    pub(crate) fn entry<'a>(&'a mut self, topic: &'a str) -> Entry<'a> {
        Entry {
            place: self.find(topic),
            store: self,
            topic,
        }
    }

    /// The retained message of a topic.
    pub(crate) fn get(&self, topic: &str) -> Option<&RetainedEntry> {
        self.messages.get(self.find(topic).ok()?)
    }

    /// The version and the publisher of a message that a search found, unless its topic has another
    /// message now.
    pub(crate) fn current(&self, found: &RetainedMatch) -> Option<(u64, Option<&Arc<Author>>)> {
        let message = &found.message;
        match self.messages.get(found.place) {
            Some(kept) => {
                let is_it = Arc::ptr_eq(&kept.message, message);
                is_it.then_some((kept.version, kept.author.as_ref()))
            }
            // The topic has no message.
            None if message.payload().is_empty() && self.find(message.topic()).is_err() => {
                Some((self.gone_version(message.topic()), None))
            }
            None => None,
        }
    }

    /// The version of a message that a search found, unless its topic has another message now.
    pub(crate) fn current_version(&self, found: &RetainedMatch) -> Option<u64> {
        self.current(found).map(|(version, _)| version)
    }

    /// From now on, remembers topics that lose their message, and maintains the sums that brokers
    /// compare.
    pub(crate) fn remember_gone(&mut self) {
        let shared = self.shared.get_or_insert_default();
        for (_, kept) in self.messages.iter() {
            shared.add(kept.message.topic(), kept.version);
        }
    }

    /// The version at which a topic is known to have lost its message; 0 if unknown.
    fn gone_version(&self, topic: &str) -> u64 {
        let shared = self.shared.as_ref();
        shared.map_or(0, |shared| shared.gone_version(topic))
    }

    /// Removes the message of a topic, for another reason than a publication.
    fn remove(&mut self, place: u32) {
        let Some(RetainedEntry {
            message, version, ..
        }) = self.clear(place)
        else {
            return;
        };
        let topic = message.topic();
        if let Some(shared) = &mut self.shared {
            shared.bury(topic, version, self.version);
        }
        if message.stored != 0 {
            self.version += 1;
            self.gone.push((topic.into(), self.version));
        }
    }

    /// Removes the message at a place.
    fn clear(&mut self, place: u32) -> Option<RetainedEntry> {
        let old = self.messages.remove(place)?;
        self.topics.remove(old.message.topic_bytes());
        self.forget(&old, place);
        Some(old)
    }

    /// Updates the sums and expiries for a message that is not at its place any more.
    fn forget(&mut self, old: &RetainedEntry, place: u32) {
        self.bytes -= old.message.size();
        if old.message.expires < Nanos::MAX {
            self.expiries.remove(&(old.message.expires, place));
        }
        if let Some(shared) = &mut self.shared {
            shared.take(old.message.topic(), old.version);
        }
    }

    /// The version of the next change; in a mesh `clock` has the microseconds since 1970 and a
    /// number that is different in each broker.
    pub(crate) fn next_version(&mut self, clock: Option<(u64, u32)>) -> u64 {
        self.version = match clock {
            None => self.version.saturating_add(1),
            Some((micros, own)) => {
                let micros = micros.saturating_sub(VERSIONS_SINCE);
                let time = micros.max((self.version >> SALT) + 1);
                let time = time.min(LAST_VERSION >> SALT);
                time << SALT | u64::from(own % (1 << SALT))
            }
        };
        self.version
    }

    /// Raises the version after a restart, or to a version of another broker.
    pub(crate) fn raise_version(&mut self, version: u64) {
        self.version = self.version.max(version);
    }

    /// Lowers the version to `latest`, if it is above; returns whether it was.
    pub(crate) fn lower_version(&mut self, latest: u64) -> bool {
        let was_beyond = self.version > latest;
        self.version = self.version.min(latest);
        was_beyond
    }

    /// Takes the removals that no publication caused.
    pub(crate) fn take_gone(&mut self) -> Vec<(Box<str>, u64)> {
        std::mem::take(&mut self.gone)
    }

    pub(crate) fn has_gone(&self) -> bool {
        !self.gone.is_empty()
    }

    /// Removes expired messages, a unit of work each; returns their number. If the budget is spent,
    /// there may be more.
    pub(crate) fn expire(&mut self, now: Nanos, budget: &mut Budget) -> usize {
        let mut removed = 0;
        while let Some((at, place)) = self.expiries.first().copied()
            && at <= now
            && !budget.is_spent()
        {
            budget.spend(1);
            self.remove(place);
            removed += 1;
        }
        removed
    }

    /// The next messages that match `filter` (without share prefix), at most `limit` and in the
    /// order of their topics. A unit of work is a visited branch of the tree of topics; the budget
    /// may be exceeded by the depth of the tree.
    pub(crate) fn scan(
        &self,
        filter: &str,
        from: &RetainedCursor,
        limit: usize,
        budget: &mut Budget,
        now: Nanos,
    ) -> Piece {
        let mut found = Vec::new();
        let end = filter.as_bytes().last();
        let end = end.filter(|byte| !matches!(byte, b'+' | b'#'));
        let add = |places: &[u32]| {
            // Messages are far from each other in memory. Each step is done for all messages before
            // the next step begins, so that the processor fetches many of them at once.
            let messages = places.iter().filter_map(|place| {
                let kept = self.messages.get(*place)?;
                Some((*place, kept.change, &kept.message))
            });
            let mut messages: SmallVec<[_; TOGETHER]> = messages.collect();
            messages.retain(|(_, _, message)| !message.is_expired(now));
            if end.is_some() {
                messages.retain(|(_, _, message)| message.topic_bytes().last() == end);
            }
            for (place, change, message) in messages {
                if topic::matches(filter, message.topic()) {
                    let message = message.clone();
                    found.push(RetainedMatch {
                        message,
                        change,
                        place,
                    });
                    if found.len() == limit {
                        return Some(place);
                    }
                }
            }
            None
        };
        let (from, names) = (&*from.0, names(&self.messages));
        let next = self.topics.walk(filter, from, budget, names, add);
        Piece {
            found,
            next: next.map(RetainedCursor),
        }
    }

    /// Topics that are known to have lost their message, and the version at which they did.
    pub(crate) fn gone_since(&self) -> impl Iterator<Item = (&str, u64)> {
        self.shared.iter().flat_map(|shared| shared.gone())
    }

    /// Sums of the retained messages that clients see, by part; equal in brokers that retain the
    /// same messages.
    pub(crate) fn sums(&self) -> [u64; PARTS] {
        let shared = self.shared.as_ref();
        shared.map_or([0; PARTS], |shared| *shared.sums())
    }

    /// Collects digests of the retained messages that clients see in the given parts (a bit each),
    /// from a position on, at a unit of work for each visited topic; returns whether the end was
    /// reached. Changes made meanwhile may be missing, or appear twice.
    pub(crate) fn digests(
        &self,
        parts: u64,
        from: &mut DigestCursor,
        budget: &mut Budget,
        into: &mut Vec<u64>,
    ) -> bool {
        let mut add = |topic: &str, version| {
            let digest = digest(topic, version);
            if part(digest) & parts != 0 && !topic.starts_with('$') {
                into.push(digest);
            }
        };
        while from.place < self.messages.places() {
            if budget.is_spent() {
                return false;
            }
            budget.spend(1);
            if let Some(kept) = self.messages.get(from.place) {
                add(kept.message.topic(), kept.version);
            }
            from.place += 1;
        }
        let shared = self.shared.as_ref();
        shared.is_none_or(|shared| shared.visit_gone(from, budget, add))
    }
}
