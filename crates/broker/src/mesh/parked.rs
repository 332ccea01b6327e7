//! Blocked publications of a neighbour: a receiver has no room for them, or the store does not
//! accept them.
//!
//! Each publication waits for its [`BlockReason`], behind those that wait for the same cause, and behind
//! those on its topic. So the publication that arrived first receives the first free room,
//! publications on one topic stay in order, and all others may overtake.

use std::collections::VecDeque;
use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashSet;

use crate::Nanos;

/// Time between two retries of blocked publications.
pub(crate) const PARKED: Nanos = Nanos::from_millis(2);

/// Why a publication is blocked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum BlockReason {
    /// A receiver has no room, or does not read; the shard and the number of its session.
    Receiver(u16, u64),
    /// A neighbour has no room for more held-back messages; the shard and the number of its
    /// session.
    Throttle(u16, u64),
    /// The outbox to another shard is full.
    Shard(u16),
    /// The store does not accept the publication now.
    Store,
    /// An earlier publication on the same topic is blocked.
    Topic,
}

/// A blocked publication.
#[derive(Debug)]
pub(crate) struct Waiting {
    cause: BlockReason,
    /// Hash of the topic.
    topic: u64,
    /// The encoded PUBLISH packet.
    pub(crate) packet: Box<[u8]>,
}

/// All blocked publications of one neighbour, in the order of arrival.
#[derive(Debug, Default)]
pub(crate) struct ParkedPublications {
    waiting: VecDeque<Waiting>,
    /// The causes of all of them.
    causes: HashSet<BlockReason, RandomState>,
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

    /// Whether a publication on that topic is blocked.
    pub(crate) fn has_topic(&self, topic: &[u8]) -> bool {
        self.topics.contains(&self.hash(topic))
    }

    /// Whether a publication is blocked for that cause.
    pub(crate) fn has_cause(&self, cause: BlockReason) -> bool {
        self.causes.contains(&cause)
    }

    /// The causes of all publications but [`BlockReason::Topic`].
    pub(crate) fn causes(&self) -> impl Iterator<Item = BlockReason> {
        self.causes.iter().copied()
    }

    pub(crate) fn park(&mut self, cause: BlockReason, topic: &[u8], packet: Box<[u8]>) {
        let topic = self.hash(topic);
        self.keep(Waiting {
            cause,
            topic,
            packet,
        });
    }

    /// Takes all publications out. The caller checks each in turn: it is delivered, or put back.
    pub(crate) fn take(&mut self) -> VecDeque<Waiting> {
        self.causes.clear();
        self.topics.clear();
        std::mem::take(&mut self.waiting)
    }

    /// Puts a publication back if it still waits behind one that was put back before; otherwise
    /// returns it.
    pub(crate) fn keep_behind(&mut self, waiting: Waiting) -> Option<Waiting> {
        let is_behind =
            self.causes.contains(&waiting.cause) || self.topics.contains(&waiting.topic);
        if !is_behind {
            return Some(waiting);
        }
        self.keep(waiting);
        None
    }

    /// Puts a publication back for which only others on its topic wait.
    pub(crate) fn keep_topic(&mut self, mut waiting: Waiting) {
        waiting.cause = BlockReason::Topic;
        self.keep(waiting);
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    fn keep(&mut self, waiting: Waiting) {
        if waiting.cause != BlockReason::Topic {
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

    const B: BlockReason = BlockReason::Receiver(0, 1);
    const C: BlockReason = BlockReason::Receiver(0, 2);

    #[test]
    fn one_waits_behind_those_for_the_same_and_on_its_topic() {
        let mut parked = ParkedPublications::default();
        parked.park(B, b"t", [1].into());
        parked.park(C, b"u", [2].into());
        parked.park(BlockReason::Topic, b"u", [3].into());
        parked.park(B, b"v", [4].into());
        assert!(parked.has_cause(B) && !parked.has_cause(BlockReason::Store));
        assert!(!parked.has_cause(BlockReason::Topic));
        assert!(parked.has_topic(b"v") && !parked.has_topic(b"w"));

        // The first publication has room now, the second one has none.
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
