//! Topic aliases that clients have defined, and those that the broker has defined to a client.
//!
//! Both ends of a link between brokers remember for each alias the origin in the name of the last
//! message under it, and later names under the alias omit the same origin: nearly always the
//! messages of a topic have one origin for a long time. All messages under an alias arrive in the
//! order in which they are written; messages without an alias always have the origin.

use std::hash::BuildHasher;
use std::num::NonZeroU32;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use crate::sequence::Number;

/// A topic alias that a client has defined.
#[derive(Debug, Default)]
pub(crate) struct Alias {
    /// Empty if the alias is not defined.
    pub(crate) topic: Box<[u8]>,
    /// Origin of a neighbour's last message under the alias.
    pub(crate) origin: Option<NonZeroU32>,
}

/// Topics by alias and aliases by topic. Most messages have the topic of the previous one, which is
/// compared first.
#[derive(Debug, Default)]
pub(crate) struct Aliases {
    /// By alias, the topic of alias 1 first.
    topics: Vec<Box<[u8]>>,
    /// By alias, the origin of the last message under it that the neighbour knows; 0 for none.
    origins: Vec<u32>,
    /// Positions in `topics`, hashed by topic.
    table: HashTable<u16>,
    hasher: RandomState,
    /// The place that was looked up last.
    last: u16,
}

impl Aliases {
    /// Number of aliases.
    pub(crate) fn len(&self) -> usize {
        self.topics.len()
    }

    /// The alias of a topic.
    #[inline]
    pub(crate) fn get(&mut self, topic: &[u8]) -> Option<u16> {
        match self.topics.get(usize::from(self.last)) {
            Some(last) if **last == *topic => {}
            _ => self.last = self.find(topic)?,
        }
        Some(self.last + 1)
    }

    fn find(&self, topic: &[u8]) -> Option<u16> {
        let is_it = |at: &u16| *self.topics[usize::from(*at)] == *topic;
        let hash = self.hasher.hash_one(topic);
        self.table.find(hash, is_it).copied()
    }

    /// Assigns the next alias to a topic that has none; at most 65 535 in all.
    pub(crate) fn insert(&mut self, topic: &[u8]) {
        let at = self.topics.len() as u16;
        self.topics.push(topic.into());
        self.origins.push(0);
        let (topics, hasher) = (&self.topics, &self.hasher);
        let hash = hasher.hash_one(topic);
        self.table
            .insert_unique(hash, at, |at| hasher.hash_one(&*topics[usize::from(*at)]));
        self.last = at;
    }

    /// The form of a number for a message under the alias that was looked up or inserted last:
    /// without the origin if the neighbour knows it.
    #[inline]
    pub(crate) fn shorten(&self, number: Number) -> Number {
        let known = self.origins.get(usize::from(self.last));
        match number.origin() {
            Some(origin) if known == Some(&origin.get()) => number.without_origin(),
            _ => number,
        }
    }

    /// Records that a message with that number was written under the alias that was looked up or
    /// inserted last.
    #[inline]
    pub(crate) fn wrote(&mut self, number: Number) {
        if let (Some(origin), Some(known)) = (
            number.origin(),
            self.origins.get_mut(usize::from(self.last)),
        ) {
            *known = origin.get();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_topic_has_its_alias() {
        let mut aliases = Aliases::default();
        let topics: Vec<String> = (1..=300).map(|number| format!("t/{number}")).collect();
        for (before, topic) in topics.iter().enumerate() {
            assert_eq!(aliases.len(), before);
            assert_eq!(aliases.get(topic.as_bytes()), None);
            aliases.insert(topic.as_bytes());
            assert_eq!(aliases.get(b"another"), None);
        }
        for (at, topic) in topics.iter().enumerate().rev() {
            let alias = Some(at as u16 + 1);
            assert_eq!(aliases.get(topic.as_bytes()), alias, "by the table");
            assert_eq!(aliases.get(topic.as_bytes()), alias, "as the last one");
        }
    }
}
