//! Retained messages (section 3.3.1.3), one per topic, ordered by topic so
//! that a subscription to many of them can be served in pieces.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::Bound;
use std::sync::Arc;

use punctual_codec::topic;

use crate::{Message, Nanos};

/// Topics looked at in one piece.
const SCAN: usize = 4096;

/// The store.
#[derive(Debug, Default)]
pub(crate) struct Retained {
    messages: BTreeMap<Box<str>, Arc<Message>>,
    bytes: usize,
    expiries: BinaryHeap<Reverse<(Nanos, Box<str>)>>,
    /// Of the last change that a store is told.
    version: u64,
    /// Topics that have no message any more although the store knows one, with
    /// the version of that.
    gone: Vec<(Box<str>, u64)>,
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
        let bytes = self.bytes - old.map_or(0, |m| m.size()) + size;
        messages <= max_messages && bytes <= max_bytes
    }

    /// Whether `message` is still the one of its topic.
    pub(crate) fn is_current(&self, message: &Arc<Message>) -> bool {
        let current = self.messages.get(message.topic());
        current.is_some_and(|current| Arc::ptr_eq(current, message))
    }

    /// Stores `message`, or removes what its topic has if its payload is empty
    /// [MQTT-3.3.1-6].
    pub(crate) fn set(&mut self, message: Arc<Message>) {
        if message.payload().is_empty() {
            self.clear(message.topic());
            return;
        }
        self.bytes += message.size();
        if message.expires < Nanos::MAX {
            self.expiries
                .push(Reverse((message.expires, message.topic().into())));
        }
        if let Some(old) = self.messages.insert(message.topic().into(), message) {
            self.bytes -= old.size();
        }
    }

    /// Removes what a topic has, for another reason than a publication.
    pub(crate) fn remove(&mut self, topic: &str) -> bool {
        let stored = self.is_stored(topic);
        let removed = self.clear(topic);
        if stored {
            let version = self.next_version();
            self.gone.push((topic.into(), version));
        }
        removed
    }

    fn clear(&mut self, topic: &str) -> bool {
        match self.messages.remove(topic) {
            Some(old) => {
                self.bytes -= old.size();
                true
            }
            None => false,
        }
    }

    /// The message of a topic.
    pub(crate) fn get(&self, topic: &str) -> Option<Arc<Message>> {
        self.messages.get(topic).cloned()
    }

    /// Whether the store may know a message of the topic.
    pub(crate) fn is_stored(&self, topic: &str) -> bool {
        self.messages.get(topic).is_some_and(|m| m.stored != 0)
    }

    /// Of the next change that a store is told.
    pub(crate) fn next_version(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    /// Goes on after a restart.
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
                && self.messages.get(&topic).is_some_and(|m| m.is_expired(now))
                && self.remove(&topic)
            {
                removed += 1;
            }
        }
        if self.expiries.len() > 2 * self.messages.len() + 1024 {
            let messages = &self.messages;
            self.expiries.retain(|Reverse((at, topic))| {
                messages.get(topic).is_some_and(|m| m.expires == *at)
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
                    .filter(|m| !m.is_expired(now))
                    .cloned(),
            );
            return piece;
        }
        let prefix = literal_prefix(filter);
        let from = from.max(prefix);
        let range = (Bound::Included(from), Bound::Unbounded);
        for (looked, (topic, message)) in self.messages.range::<str, _>(range).enumerate() {
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
            store.set(message(topic, b"x"));
        }
        for limit in [1, 2, 100] {
            assert_eq!(all(&store, "a/#", limit), ["a", "a/b", "a/b/c", "a/c"]);
            assert_eq!(all(&store, "+/b", limit), ["a/b", "b/b"]);
            assert_eq!(all(&store, "a/+", limit), ["a/b", "a/c"]);
            assert_eq!(all(&store, "a/b", limit), ["a/b"]);
            assert_eq!(all(&store, "#", limit).len(), 6);
            assert_eq!(all(&store, "$SYS/#", limit), ["$SYS/x"]);
        }
        store.set(message("a/b", b""));
        assert_eq!(all(&store, "a/#", 10), ["a", "a/b/c", "a/c"]);
        assert_eq!(store.len(), 6);
        for topic in ["a", "a/b/c", "a/c", "ab", "b/b", "$SYS/x"] {
            assert!(store.remove(topic));
        }
        assert_eq!(store.bytes(), 0);
    }
}
