//! The retained messages that a neighbour lacks.

use std::sync::Arc;

use hashbrown::HashSet;
use punctual_codec::{Properties, QoS};

use super::{Retained, RetainedMatch, digest, part};
use crate::{Message, Nanos};

/// The retained messages that a neighbour lacks, as far as they were compared.
#[derive(Debug)]
pub(crate) struct Lack {
    /// Parts that differ, a bit each.
    parts: u64,
    /// Digests of the messages of these parts that the neighbour has.
    has: HashSet<u64, foldhash::fast::RandomState>,
}

impl Lack {
    /// The lack of a neighbour in whose retained messages these parts differ, and which has these
    /// digests of them.
    pub(crate) fn new(parts: u64, has: HashSet<u64, foldhash::fast::RandomState>) -> Self {
        Self { parts, has }
    }

    /// Whether the neighbour lacks a retained message, so that it must be sent.
    pub(crate) fn has(&self, topic: &str, version: u64) -> bool {
        let digest = digest(topic, version);
        self.parts & part(digest) != 0 && !self.has.contains(&digest)
    }

    /// The removals that must be sent, for topics that have lost their message.
    pub(crate) fn gone(&self, retained: &Retained, now: Nanos) -> Vec<RetainedMatch> {
        let gone = retained.gone_since();
        gone.filter(|(topic, version)| self.has(topic, *version))
            .map(|(topic, _)| RetainedMatch::removal(removal(topic, now)))
            .collect()
    }
}

/// A message that removes a retained message.
pub(crate) fn removal(topic: &str, now: Nanos) -> Arc<Message> {
    let qos = QoS::AtLeastOnce;
    Message::new(topic.as_bytes(), Properties::EMPTY, b"", qos, true, now, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lacking_is_found_by_topic_and_version() {
        let digests = [("a", 1), ("b", 2)].map(|(topic, version)| digest(topic, version));
        assert_ne!(digest("a", 1), digest("a", 2));
        let lack = Lack {
            parts: u64::MAX,
            has: digests.into_iter().collect(),
        };
        assert!(!lack.has("a", 1) && !lack.has("b", 2));
        assert!(lack.has("a", 2) && lack.has("c", 1));
        let elsewhere = Lack {
            parts: !part(digest("c", 1)),
            has: HashSet::default(),
        };
        assert!(!elsewhere.has("c", 1));
    }
}
