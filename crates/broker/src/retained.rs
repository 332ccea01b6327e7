//! Retained messages (section 3.3.1.3), one per topic, ordered by topic so
//! that a subscription to many of them can be served in pieces.
//!
//! Each has a version, higher than that of what its topic had before. In a mesh
//! versions are times, so that all brokers agree which of two messages is the newer
//! wherever they were published, and a topic that has none any more remembers since
//! which version, for a while.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::ops::Bound;
use std::sync::Arc;

use hashbrown::HashMap;
use punctual_codec::topic;

use crate::{Message, Nanos};

/// Topics looked at in one piece.
const SCAN: usize = 4096;
/// For how many versions, which are times in a mesh, it is remembered that a topic has
/// none any more: a day.
const REMEMBERED: u64 = (24 * 3600 * 1_000_000) << SALT;
/// Of how many topics, and how many bytes their names may have.
const MAX_GONE: usize = 1 << 16;
const MAX_GONE_BYTES: usize = 8 << 20;
/// Seconds from 1970 to 2020, from which versions in a mesh count microseconds.
const EPOCH: u64 = 1_577_836_800;
/// Bits of a version in which brokers differ that publish in the same microsecond.
const SALT: u32 = 3;
/// Bits of a version in a mesh; they last until 2091.
pub(crate) const VERSION_BITS: u32 = 54;

/// The store.
#[derive(Debug, Default)]
pub(crate) struct Retained {
    messages: BTreeMap<Box<str>, Kept>,
    bytes: usize,
    expiries: BinaryHeap<Reverse<(Nanos, Box<str>)>>,
    /// The highest there was.
    version: u64,
    /// In a mesh: topics that have none any more.
    graves: Option<Box<Graves>>,
    /// Topics that have no message any more although the store knows one, with
    /// the version of that.
    gone: Vec<(Box<str>, u64)>,
}

/// What one topic has.
#[derive(Debug)]
struct Kept {
    message: Arc<Message>,
    version: u64,
}

/// Topics that have no message any more, and since which version; the oldest are
/// forgotten first.
#[derive(Debug, Default)]
struct Graves {
    versions: HashMap<Box<str>, u64, foldhash::fast::RandomState>,
    order: BTreeSet<(u64, Box<str>)>,
    bytes: usize,
}

impl Graves {
    /// Notes one more; `latest` is the highest version of all.
    fn bury(&mut self, topic: &str, version: u64, latest: u64) {
        self.open(topic);
        self.versions.insert(topic.into(), version);
        self.order.insert((version, topic.into()));
        self.bytes += topic.len();
        while let Some((oldest, topic)) = self.order.first()
            && (oldest + REMEMBERED < latest
                || self.order.len() > MAX_GONE
                || self.bytes > MAX_GONE_BYTES)
        {
            let topic = topic.clone();
            self.open(&topic);
        }
    }

    /// Forgets one.
    fn open(&mut self, topic: &str) {
        if let Some((topic, version)) = self.versions.remove_entry(topic) {
            self.bytes -= topic.len();
            self.order.remove(&(version, topic));
        }
    }
}

/// One piece of a scan.
#[derive(Debug, Default)]
pub(crate) struct Piece {
    pub(crate) messages: Vec<Arc<Message>>,
    /// Where to go on; `None` when done.
    pub(crate) next: Option<Box<str>>,
}

impl Retained {
    pub(crate) fn len(&self) -> usize {
        self.messages.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether a message of `size` bytes on `topic` would stay within bounds.
    pub(crate) fn has_room(
        &self,
        topic: &str,
        size: usize,
        max_messages: usize,
        max_bytes: usize,
    ) -> bool {
        let old = self.messages.get(topic);
        let messages = self.messages.len() + usize::from(old.is_none());
        let bytes = self.bytes - old.map_or(0, |m| m.message.size()) + size;
        messages <= max_messages && bytes <= max_bytes
    }

    /// Whether `message` is still the one of its topic; an empty one if it has none.
    pub(crate) fn is_current(&self, message: &Arc<Message>) -> bool {
        match self.messages.get(message.topic()) {
            Some(current) => Arc::ptr_eq(&current.message, message),
            None => message.payload().is_empty(),
        }
    }

    /// Remembers from now on which topics have none any more.
    pub(crate) fn remember_gone(&mut self) {
        self.graves.get_or_insert_default();
    }

    /// The version of what a topic has, or had; 0 if that is not known.
    pub(crate) fn version_of(&self, topic: &str) -> u64 {
        let gone = self.graves.as_ref().and_then(|it| it.versions.get(topic));
        let kept = self.messages.get(topic).map(|kept| kept.version);
        kept.or(gone.copied()).unwrap_or(0)
    }

    /// Stores `message`, or removes what its topic has if its payload is empty
    /// [MQTT-3.3.1-6].
    pub(crate) fn set(&mut self, message: Arc<Message>, version: u64) {
        self.raise_version(version);
        if message.payload().is_empty() {
            self.clear(message.topic());
            if let Some(graves) = &mut self.graves {
                graves.bury(message.topic(), version, self.version);
            }
            return;
        }
        if let Some(graves) = &mut self.graves {
            graves.open(message.topic());
        }
        self.bytes += message.size();
        if message.expires < Nanos::MAX {
            self.expiries
                .push(Reverse((message.expires, message.topic().into())));
        }
        let topic = message.topic().into();
        let kept = Kept { message, version };
        if let Some(old) = self.messages.insert(topic, kept) {
            self.bytes -= old.message.size();
        }
    }

    /// Removes what a topic has, for another reason than a publication.
    pub(crate) fn remove(&mut self, topic: &str) -> bool {
        let stored = self.is_stored(topic);
        let Some(version) = self.clear(topic) else {
            return false;
        };
        if let Some(graves) = &mut self.graves {
            graves.bury(topic, version, self.version);
        }
        if stored {
            self.version += 1;
            self.gone.push((topic.into(), self.version));
        }
        true
    }

    /// Removes the message of a topic; returns its version.
    fn clear(&mut self, topic: &str) -> Option<u64> {
        let old = self.messages.remove(topic)?;
        self.bytes -= old.message.size();
        Some(old.version)
    }

    /// The message of a topic.
    pub(crate) fn get(&self, topic: &str) -> Option<Arc<Message>> {
        self.messages.get(topic).map(|kept| kept.message.clone())
    }

    /// Whether the store may know a message of the topic.
    pub(crate) fn is_stored(&self, topic: &str) -> bool {
        let kept = self.messages.get(topic);
        kept.is_some_and(|kept| kept.message.stored != 0)
    }

    /// Of the next change; in a mesh `clock` has the microseconds since 1970 and a
    /// number that is different in each broker.
    pub(crate) fn next_version(&mut self, clock: Option<(u64, u32)>) -> u64 {
        self.version = match clock {
            None => self.version + 1,
            Some((micros, own)) => {
                let micros = micros.saturating_sub(EPOCH * 1_000_000);
                let time = micros.max((self.version >> SALT) + 1);
                time << SALT | u64::from(own % (1 << SALT))
            }
        };
        self.version
    }

    /// Goes on after a restart, or after what another broker has.
    pub(crate) fn raise_version(&mut self, version: u64) {
        self.version = self.version.max(version);
    }

    /// Takes the removals that no publication told.
    pub(crate) fn take_gone(&mut self) -> Vec<(Box<str>, u64)> {
        std::mem::take(&mut self.gone)
    }

    pub(crate) fn has_gone(&self) -> bool {
        !self.gone.is_empty()
    }

    /// Removes what has expired; at most `SCAN` a call.
    pub(crate) fn expire(&mut self, now: Nanos) -> usize {
        let mut removed = 0;
        for _ in 0..SCAN {
            match self.expiries.peek() {
                Some(Reverse((at, _))) if *at <= now => {}
                _ => break,
            }
            if let Some(Reverse((_, topic))) = self.expiries.pop()
                && (self.messages.get(&topic)).is_some_and(|kept| kept.message.is_expired(now))
                && self.remove(&topic)
            {
                removed += 1;
            }
        }
        if self.expiries.len() > 2 * self.messages.len() + 1024 {
            let messages = &self.messages;
            self.expiries.retain(|Reverse((at, topic))| {
                let kept = messages.get(topic);
                kept.is_some_and(|kept| kept.message.expires == *at)
            });
        }
        removed
    }

    /// The next messages that match `filter` (without share prefix) at or
    /// after the topic `from`, at most `limit`.
    pub(crate) fn scan(&self, filter: &str, from: &str, limit: usize, now: Nanos) -> Piece {
        let mut piece = Piece::default();
        if !topic::has_wildcard(filter) {
            piece.messages.extend(
                self.messages
                    .get(filter)
                    .map(|kept| &kept.message)
                    .filter(|message| !message.is_expired(now))
                    .cloned(),
            );
            return piece;
        }
        let prefix = literal_prefix(filter);
        let from = from.max(prefix);
        let range = (Bound::Included(from), Bound::Unbounded);
        for (looked, (topic, Kept { message, .. })) in
            self.messages.range::<str, _>(range).enumerate()
        {
            if !topic.starts_with(prefix) {
                break;
            }
            if piece.messages.len() == limit || looked == SCAN {
                piece.next = Some(topic.clone());
                break;
            }
            if topic::matches(filter, topic) && !message.is_expired(now) {
                piece.messages.push(message.clone());
            }
        }
        piece
    }

    /// Topics that clients see, with the versions of what they have or had.
    pub(crate) fn versions(&self) -> impl Iterator<Item = (&str, u64)> {
        let kept = self.messages.iter();
        let kept = kept.map(|(topic, kept)| (&**topic, kept.version));
        kept.chain(self.gone_since())
            .filter(|(topic, _)| !topic.starts_with('$'))
    }

    /// Topics that are known to have none any more, and since which version.
    pub(crate) fn gone_since(&self) -> impl Iterator<Item = (&str, u64)> {
        let graves = self.graves.iter().flat_map(|graves| &graves.versions);
        graves.map(|(topic, version)| (&**topic, *version))
    }
}

/// What every topic that matches begins with. `a/#` also matches `a`.
fn literal_prefix(filter: &str) -> &str {
    let end = filter.find(['+', '#']).unwrap_or(filter.len());
    let prefix = &filter[..end];
    if filter[end..].starts_with('#') {
        prefix.strip_suffix('/').unwrap_or(prefix)
    } else {
        prefix
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use punctual_codec::{Properties, QoS};

    fn message(topic: &str, payload: &[u8]) -> Arc<Message> {
        Message::new(
            topic.as_bytes(),
            Properties::EMPTY,
            payload,
            QoS::AtMostOnce,
            true,
            Nanos(0),
            0,
        )
    }

    fn all(store: &Retained, filter: &str, limit: usize) -> Vec<String> {
        let mut from = Some(Box::from(""));
        let mut topics = Vec::new();
        while let Some(at) = from {
            let piece = store.scan(filter, &at, limit, Nanos(0));
            topics.extend(piece.messages.iter().map(|m| m.topic().to_owned()));
            from = piece.next;
        }
        topics
    }

    #[test]
    fn scans_in_pieces() {
        let mut store = Retained::default();
        for topic in ["a", "a/b", "a/b/c", "a/c", "ab", "b/b", "$SYS/x"] {
            store.set(message(topic, b"x"), 1);
        }
        for limit in [1, 2, 100] {
            assert_eq!(all(&store, "a/#", limit), ["a", "a/b", "a/b/c", "a/c"]);
            assert_eq!(all(&store, "+/b", limit), ["a/b", "b/b"]);
            assert_eq!(all(&store, "a/+", limit), ["a/b", "a/c"]);
            assert_eq!(all(&store, "a/b", limit), ["a/b"]);
            assert_eq!(all(&store, "#", limit).len(), 6);
            assert_eq!(all(&store, "$SYS/#", limit), ["$SYS/x"]);
        }
        store.set(message("a/b", b""), 2);
        assert_eq!(all(&store, "a/#", 10), ["a", "a/b/c", "a/c"]);
        assert_eq!(store.len(), 6);
        for topic in ["a", "a/b/c", "a/c", "ab", "b/b", "$SYS/x"] {
            assert!(store.remove(topic));
        }
        assert_eq!(store.bytes(), 0);
    }

    #[test]
    fn versions_in_a_mesh_are_times_and_only_grow() {
        let mut store = Retained::default();
        let micros = EPOCH * 1_000_000;
        let clock = |after: u64, own| Some((micros + after, own));
        let first = store.next_version(clock(1000, 1));
        let second = store.next_version(clock(1000, 1));
        assert!(second > first);
        // A clock that stands, or is behind that of another broker.
        store.set(message("a", b"x"), 5000 << SALT | 2);
        assert!(store.next_version(clock(1001, 1)) > 5000 << SALT | 2);
        assert_ne!(
            store.next_version(clock(9000, 1)) & 7,
            store.next_version(clock(9500, 2)) & 7
        );
        let last = store.next_version(clock(2_000_000_000_000_000, 7));
        assert!(last < 1 << VERSION_BITS);
    }

    #[test]
    fn what_is_gone_is_remembered_within_bounds() {
        let mut store = Retained::default();
        store.set(message("a", b"x"), 1);
        store.set(message("a", b""), 2);
        assert_eq!(store.version_of("a"), 0, "alone nothing has to be");
        store.remember_gone();
        store.set(message("a", b""), 3);
        assert_eq!(store.version_of("a"), 3);
        store.set(message("a", b"y"), 4);
        assert_eq!(store.version_of("a"), 4);
        assert!(store.remove("a"));
        assert_eq!(store.version_of("a"), 4);
        for n in 0..2 * MAX_GONE {
            let topic = format!("some/topic/{n}");
            store.set(message(&topic, b""), 5 + n as u64);
        }
        let graves = store.graves.as_ref().unwrap();
        assert_eq!(graves.order.len(), MAX_GONE);
        assert_eq!(graves.versions.len(), MAX_GONE);
        assert_eq!(store.version_of("a"), 0);
        let later = 2 * MAX_GONE as u64 + 10 + REMEMBERED;
        store.set(message("b", b""), later);
        let graves = store.graves.as_ref().unwrap();
        assert_eq!((graves.order.len(), graves.bytes), (1, 1));
    }
}
