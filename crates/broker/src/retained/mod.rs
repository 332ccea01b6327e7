//! Retained messages (section 3.3.1.3), one per topic, in a [`tree`] of topics so that a
//! subscription comes past those only that it may match, and is served in pieces.
//!
//! Each has a version, higher than that of what its topic had before. In a mesh
//! versions are times, so that all brokers agree which of two messages is the newer
//! wherever they were published, and a topic that has none any more remembers since
//! which version, for a while.

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
    messages: Slab<Kept>,
    bytes: usize,
    /// When each message expires that does, with its place.
    expiries: BTreeSet<(Nanos, u32)>,
    /// The highest there was.
    version: u64,
    /// How many times a topic was given a message, or lost the one that it had.
    changes: u64,
    /// In a mesh: what brokers compare.
    shared: Option<Box<Shared>>,
    /// Topics that have no message any more although the store knows one, with
    /// the version of that.
    gone: Vec<(Box<str>, u64)>,
}

/// What one topic has.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) message: Arc<Message>,
    pub(crate) version: u64,
    /// Which of the changes this was.
    change: u64,
    /// The client of this broker that published it; `None` if the broker itself or another broker did.
    pub(crate) author: Option<Arc<Author>>,
}

/// From which topic a search through retained messages goes on. What changes meanwhile is found if
/// it is not before that topic.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RetainedCursor(Box<[u8]>);

impl RetainedCursor {
    /// From the first topic above this one.
    #[must_use]
    pub fn after(topic: &str) -> Self {
        // Topics cannot contain U+0000.
        Self([topic.as_bytes(), b"\0"].concat().into())
    }
}

/// A message that was found, which may have been replaced since.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) message: Arc<Message>,
    /// Which of the [changes](Retained::changes) of retained messages it was.
    pub(crate) change: u64,
    /// Its place in the store, or none.
    place: u32,
}

impl Found {
    /// What says that a topic has none any more.
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
    pub(crate) found: Vec<Found>,
    /// Where to go on; `None` when done.
    pub(crate) next: Option<RetainedCursor>,
}

/// What a topic has, or where it would be: the topic is looked up once for all that is asked and done.
#[derive(Debug)]
pub(crate) struct Entry<'a> {
    store: &'a mut Retained,
    topic: &'a str,
    place: Result<u32, Gap>,
}

impl Entry<'_> {
    fn kept(&self) -> Option<&Kept> {
        self.store.messages.get(self.place.ok()?)
    }

    /// Whether it has a message.
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

    /// The version of what the topic has, or had; 0 if that is not known.
    pub(crate) fn version(&self) -> u64 {
        let kept = self.kept().map(|kept| kept.version);
        kept.unwrap_or_else(|| self.store.gone_version(self.topic))
    }

    /// Whether the store may know a message of the topic.
    pub(crate) fn is_stored(&self) -> bool {
        self.kept().is_some_and(|kept| kept.message.stored != 0)
    }

    /// Of the next change; see [`Retained::next_version`].
    pub(crate) fn next_version(&mut self, clock: Option<(u64, u32)>) -> u64 {
        self.store.next_version(clock)
    }

    /// Stores a message of the topic, or removes what it has if the payload is empty
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
        let kept = Kept {
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

/// What the topics are called that the tree knows by number.
fn names<'a>(messages: &'a Slab<Kept>) -> impl Fn(u32) -> &'a [u8] {
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

    /// How many there were: what is published from now on has a higher number.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    fn find(&self, topic: &str) -> Result<u32, Gap> {
        self.topics.find(topic.as_bytes(), names(&self.messages))
    }

    /// What a topic has, to be asked and changed.
    pub(crate) fn entry<'a>(&'a mut self, topic: &'a str) -> Entry<'a> {
        Entry {
            place: self.find(topic),
            store: self,
            topic,
        }
    }

    /// What is kept for a topic.
    pub(crate) fn get(&self, topic: &str) -> Option<&Kept> {
        self.messages.get(self.find(topic).ok()?)
    }

    /// The version and the publisher of a message that a search found, unless its topic has another
    /// message now.
    pub(crate) fn current(&self, found: &Found) -> Option<(u64, Option<&Arc<Author>>)> {
        let message = &found.message;
        match self.messages.get(found.place) {
            Some(kept) => {
                let is_it = Arc::ptr_eq(&kept.message, message);
                is_it.then_some((kept.version, kept.author.as_ref()))
            }
            // A topic that has none.
            None if message.payload().is_empty() && self.find(message.topic()).is_err() => {
                Some((self.gone_version(message.topic()), None))
            }
            None => None,
        }
    }

    /// The version of a message that a search found, unless its topic has another message now.
    pub(crate) fn current_version(&self, found: &Found) -> Option<u64> {
        self.current(found).map(|(version, _)| version)
    }

    /// Remembers from now on which topics have none any more, and what sums to compare.
    pub(crate) fn remember_gone(&mut self) {
        let shared = self.shared.get_or_insert_default();
        for (_, kept) in self.messages.iter() {
            shared.add(kept.message.topic(), kept.version);
        }
    }

    /// Since which version a topic is known to have none.
    fn gone_version(&self, topic: &str) -> u64 {
        let shared = self.shared.as_ref();
        shared.map_or(0, |shared| shared.gone_version(topic))
    }

    /// Removes what a topic has, for another reason than a publication.
    fn remove(&mut self, place: u32) {
        let Some(Kept {
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
    fn clear(&mut self, place: u32) -> Option<Kept> {
        let old = self.messages.remove(place)?;
        self.topics.remove(old.message.topic_bytes());
        self.forget(&old, place);
        Some(old)
    }

    /// A message is not at its place any more.
    fn forget(&mut self, old: &Kept, place: u32) {
        self.bytes -= old.message.size();
        if old.message.expires < Nanos::MAX {
            self.expiries.remove(&(old.message.expires, place));
        }
        if let Some(shared) = &mut self.shared {
            shared.take(old.message.topic(), old.version);
        }
    }

    /// Of the next change; in a mesh `clock` has the microseconds since 1970 and a
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

    /// Goes on after a restart, or after what another broker has.
    pub(crate) fn raise_version(&mut self, version: u64) {
        self.version = self.version.max(version);
    }

    /// Goes back to this version, if it has gone beyond; says whether it had.
    pub(crate) fn lower_version(&mut self, latest: u64) -> bool {
        let was_beyond = self.version > latest;
        self.version = self.version.min(latest);
        was_beyond
    }

    /// Takes the removals that no publication told.
    pub(crate) fn take_gone(&mut self) -> Vec<(Box<str>, u64)> {
        std::mem::take(&mut self.gone)
    }

    pub(crate) fn has_gone(&self) -> bool {
        !self.gone.is_empty()
    }

    /// Removes what has expired, a unit of work each; says how many. If nothing is left of the
    /// budget, there may be more.
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
    /// order of their topics. A unit of work is a branch of the tree of topics that is looked at;
    /// the budget may be overdrawn by its depth.
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
            // Messages are far from each other in memory. So that a processor asks for many before
            // it has the first, nothing is done with one before the same was done with all.
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
                    found.push(Found {
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

    /// Topics that are known to have none any more, and since which version.
    pub(crate) fn gone_since(&self) -> impl Iterator<Item = (&str, u64)> {
        self.shared.iter().flat_map(|shared| shared.gone())
    }

    /// Sums over the parts of what clients see, equal in brokers that retain the same.
    pub(crate) fn sums(&self) -> [u64; PARTS] {
        let shared = self.shared.as_ref();
        shared.map_or([0; PARTS], |shared| *shared.sums())
    }

    /// Digests of what clients see in some parts, a bit each, from a place on, a unit of work for
    /// each topic that is looked at; whether those were the last. What changes meanwhile may be
    /// missing, or come twice.
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
