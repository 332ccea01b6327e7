//! Topic aliases that clients have defined, and those that the broker has defined to a client.
//!
//! Both ends of a link between brokers know of each alias where the last message under it was taken
//! in, so that names of others from there need not say that: nearly always one broker after
//! the other publishes on a topic. All messages under an alias come in the order in which they
//! are written; others say it always.

use std::hash::BuildHasher;
use std::num::NonZeroU32;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use crate::sequence::Number;

/// What an alias that a client has defined stands for.
#[derive(Debug, Default)]
pub(crate) struct Alias {
    /// Empty if it is not defined.
    pub(crate) topic: Box<[u8]>,
    /// Where a neighbour's last message under it was taken in.
    pub(crate) origin: Option<NonZeroU32>,
}

/// Topics by alias and aliases by topic. Most messages have the topic of the one before, which is
/// looked at first.
#[derive(Debug, Default)]
pub(crate) struct Aliases {
    /// That of alias 1 first.
    topics: Vec<Box<[u8]>>,
    /// Where the last message under each was taken in, as the neighbour knows; 0 if it was not said.
    origins: Vec<u32>,
    /// Places in `topics`.
    table: HashTable<u16>,
    hasher: RandomState,
    /// The place that was asked for last.
    last: u16,
}

impl Aliases {
    /// How many there are.
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

    /// Gives the next alias, of 65 535 at most, to a topic that has none.
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

    /// A number as it is to be said under the alias that was asked for or inserted last.
    #[inline]
    pub(crate) fn shorten(&self, number: Number) -> Number {
        let known = self.origins.get(usize::from(self.last));
        match number.origin() {
            Some(origin) if known == Some(&origin.get()) => number.without_origin(),
            _ => number,
        }
    }

    /// A message with that number was written under that alias.
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
