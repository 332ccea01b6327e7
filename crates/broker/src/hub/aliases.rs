//! Topic aliases that the broker has defined to a client.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

/// Topics by alias and aliases by topic. Most messages have the topic of the one before, which is
/// looked at first.
#[derive(Debug, Default)]
pub(crate) struct Aliases {
    /// That of alias 1 first.
    topics: Vec<Box<[u8]>>,
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
        let (topics, hasher) = (&self.topics, &self.hasher);
        let hash = hasher.hash_one(topic);
        self.table
            .insert_unique(hash, at, |at| hasher.hash_one(&*topics[usize::from(*at)]));
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
