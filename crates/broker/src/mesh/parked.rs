//! What waits here of a neighbour's publications: because a receiver has no room, or because
//! nothing can be stored.
//!
//! Each waits for its [`Cause`], behind those that wait for the same, and behind those on its topic.
//! So what comes first is the first to have the room that there is again, what is on one topic stays in
//! its order, and all others overtake.

use std::collections::VecDeque;
use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashSet;

use crate::Nanos;

/// After this it is looked again whether what waits has room.
pub(crate) const PARKED: Nanos = Nanos::from_millis(2);

/// Why a publication has to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Cause {
    /// A receiver has no room, or does not read; its shard and number.
    Receiver(u16, u64),
    /// A neighbour has no room for more of what is kept back for it.
    Brake(u16, u64),
    /// A shard does not take what it was sent.
    Shard(u16),
    /// Nothing can be stored.
    Store,
    /// Nothing but what is on the same topic waits for this.
    Topic,
}

/// One that waits.
#[derive(Debug)]
pub(crate) struct Waiting {
    cause: Cause,
    /// Hash of the topic.
    topic: u64,
    /// The whole packet.
    pub(crate) packet: Box<[u8]>,
}

/// All that wait of one neighbour, in the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct ParkedPublications {
    waiting: VecDeque<Waiting>,
    /// What they wait for.
    causes: HashSet<Cause, RandomState>,
    /// Hashes of their topics.
    topics: HashSet<u64, RandomState>,
}

impl ParkedPublications {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether one on that topic waits.
    pub(crate) fn has_topic(&self, topic: &[u8]) -> bool {
        self.topics.contains(&self.hash(topic))
    }

    /// Whether one waits for that.
    pub(crate) fn has_cause(&self, cause: Cause) -> bool {
        self.causes.contains(&cause)
    }

    /// All that any wait for, but others on their topic.
    pub(crate) fn causes(&self) -> impl Iterator<Item = Cause> {
        self.causes.iter().copied()
    }

    pub(crate) fn park(&mut self, cause: Cause, topic: &[u8], packet: Box<[u8]>) {
        let topic = self.hash(topic);
        self.keep(Waiting {
            cause,
            topic,
            packet,
        });
    }

    /// Takes all out, for each to be looked at in turn: it goes on, or is put back.
    pub(crate) fn take(&mut self) -> VecDeque<Waiting> {
        self.causes.clear();
        self.topics.clear();
        std::mem::take(&mut self.waiting)
    }

    /// Puts one back whose turn it is, if it still waits behind one that was put back before.
    pub(crate) fn keep_behind(&mut self, waiting: Waiting) -> Option<Waiting> {
        let is_behind =
            self.causes.contains(&waiting.cause) || self.topics.contains(&waiting.topic);
        if !is_behind {
            return Some(waiting);
        }
        self.keep(waiting);
        None
    }

    /// Puts one back that others on its topic wait for, and nothing else.
    pub(crate) fn keep_topic(&mut self, mut waiting: Waiting) {
        waiting.cause = Cause::Topic;
        self.keep(waiting);
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    fn keep(&mut self, waiting: Waiting) {
        if waiting.cause != Cause::Topic {
            self.causes.insert(waiting.cause);
        }
        self.topics.insert(waiting.topic);
        self.waiting.push_back(waiting);
    }

    fn hash(&self, topic: &[u8]) -> u64 {
        self.topics.hasher().hash_one(topic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const B: Cause = Cause::Receiver(0, 1);
    const C: Cause = Cause::Receiver(0, 2);

    #[test]
    fn one_waits_behind_those_for_the_same_and_on_its_topic() {
        let mut parked = ParkedPublications::default();
        parked.park(B, b"t", [1].into());
        parked.park(C, b"u", [2].into());
        parked.park(Cause::Topic, b"u", [3].into());
        parked.park(B, b"v", [4].into());
        assert!(parked.has_cause(B) && !parked.has_cause(Cause::Store));
        assert!(!parked.has_cause(Cause::Topic));
        assert!(parked.has_topic(b"v") && !parked.has_topic(b"w"));

        // The first has room now, the second has none.
        let mut gone = Vec::new();
        for waiting in parked.take() {
            let Some(waiting) = parked.keep_behind(waiting) else {
                continue;
            };
            match waiting.packet[0] {
                2 => parked.park(C, b"u", waiting.packet),
                packet => gone.push(packet),
            }
        }
        assert_eq!(gone, [1, 4]);
        let left: Vec<u8> = parked.waiting.iter().map(|it| it.packet[0]).collect();
        assert_eq!(left, [2, 3]);
        assert!(!parked.has_cause(B) && !parked.has_topic(b"v"));
    }
}
