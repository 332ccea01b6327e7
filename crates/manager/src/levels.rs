//! Topics, or topic filters, by their levels: which filters match a topic, and
//! which topics a filter matches, found without a look at all others.
//!
//! Nodes refer to each other by number, so that names with very many levels need
//! no deep recursion.

use std::collections::{BTreeMap, BTreeSet};

use punctual_codec::topic;

/// The number of the node that is above all names.
const ROOT: usize = 0;

/// What is kept under names, in order.
#[derive(Debug, Clone)]
pub(crate) struct Levels<T> {
    nodes: Vec<Node<T>>,
    /// Nodes that are not in use.
    free: Vec<usize>,
}

#[derive(Debug, Clone)]
struct Node<T> {
    up: usize,
    /// The level that leads here.
    level: Box<str>,
    below: BTreeMap<Box<str>, usize>,
    here: BTreeSet<T>,
}

impl<T> Node<T> {
    fn new(up: usize, level: &str) -> Self {
        Self {
            up,
            level: level.into(),
            below: BTreeMap::new(),
            here: BTreeSet::new(),
        }
    }
}

impl<T> Default for Levels<T> {
    fn default() -> Self {
        Self {
            nodes: vec![Node::new(ROOT, "")],
            free: Vec::new(),
        }
    }
}

impl<T: Ord> Levels<T> {
    /// Puts something under a name, once; a filter without its share prefix.
    pub(crate) fn insert(&mut self, name: &str, value: T) {
        let mut at = ROOT;
        for level in name.split('/') {
            at = match self.nodes[at].below.get(level) {
                Some(next) => *next,
                None => self.add(at, level),
            };
        }
        self.nodes[at].here.insert(value);
    }

    fn add(&mut self, up: usize, level: &str) -> usize {
        let node = Node::new(up, level);
        let at = match self.free.pop() {
            Some(at) => {
                self.nodes[at] = node;
                at
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() - 1
            }
        };
        self.nodes[up].below.insert(level.into(), at);
        at
    }

    /// Takes something away from under a name.
    pub(crate) fn remove(&mut self, name: &str, value: &T) {
        let mut at = ROOT;
        for level in name.split('/') {
            match self.nodes[at].below.get(level) {
                Some(next) => at = *next,
                None => return,
            }
        }
        self.nodes[at].here.remove(value);
        while at != ROOT && self.nodes[at].here.is_empty() && self.nodes[at].below.is_empty() {
            let Node { up, level, .. } =
                std::mem::replace(&mut self.nodes[at], Node::new(ROOT, ""));
            self.nodes[up].below.remove(&level);
            self.free.push(at);
            at = up;
        }
    }

    /// What is under filters that match this topic.
    pub(crate) fn of_topic(&self, topic: &str) -> Vec<&T> {
        let mut found = Vec::new();
        let mut open = vec![(ROOT, Some(topic))];
        while let Some((at, rest)) = open.pop() {
            let node = &self.nodes[at];
            let wild = at != ROOT || !topic.starts_with('$');
            // The level above `#` matches, too.
            if wild && let Some(all) = node.below.get("#") {
                found.extend(&self.nodes[*all].here);
            }
            let Some(rest) = rest else {
                found.extend(&node.here);
                continue;
            };
            let (level, next) = split(rest);
            open.extend(node.below.get(level).map(|below| (*below, next)));
            if wild {
                open.extend(node.below.get("+").map(|below| (*below, next)));
            }
        }
        found
    }

    /// What is under topics that this filter matches, and how many nodes were looked
    /// at.
    pub(crate) fn search(&self, filter: &str) -> (Vec<&T>, u64) {
        let mut found = Vec::new();
        let mut looks = 0;
        let mut open = vec![(ROOT, Some(filter))];
        while let Some((at, rest)) = open.pop() {
            looks += 1;
            let node = &self.nodes[at];
            let Some(rest) = rest else {
                found.extend(&node.here);
                continue;
            };
            let (level, next) = split(rest);
            let below = node.below.iter();
            let below = below.filter(|(level, _)| at != ROOT || !level.starts_with('$'));
            match level {
                "#" => {
                    found.extend(&node.here);
                    open.extend(below.map(|(_, below)| (*below, Some("#"))));
                }
                "+" => open.extend(below.map(|(_, below)| (*below, next))),
                _ => open.extend(node.below.get(level).map(|below| (*below, next))),
            }
        }
        (found, looks)
    }
}

fn split(rest: &str) -> (&str, Option<&str>) {
    match rest.split_once('/') {
        Some((level, next)) => (level, Some(next)),
        None => (rest, None),
    }
}

/// A filter as it is matched.
pub(crate) fn plain(filter: &str) -> &str {
    topic::split_share(filter).1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn levels() -> impl Strategy<Value = String> {
        let level = prop_oneof![Just(""), Just("a"), Just("b"), Just("$x")];
        proptest::collection::vec(level, 1..4).prop_map(|levels| levels.join("/"))
    }

    fn filters() -> impl Strategy<Value = String> {
        let level = prop_oneof![Just(""), Just("a"), Just("b"), Just("$x"), Just("+")];
        let end = prop_oneof![Just(""), Just("#"), Just("/#")];
        (proptest::collection::vec(level, 1..4), end).prop_map(|(levels, end)| match end {
            "#" => "#".to_owned(),
            end => levels.join("/") + end,
        })
    }

    proptest! {
        #[test]
        fn what_is_found_is_what_matches(
            topics in proptest::collection::vec(levels(), 1..8),
            filters in proptest::collection::vec(filters(), 1..8),
            gone in proptest::collection::vec(any::<bool>(), 16),
        ) {
            let topics: Vec<_> = topics.into_iter().filter(|topic| !topic.is_empty()).collect();
            let filters: Vec<_> = filters.into_iter().filter(|filter| !filter.is_empty()).collect();
            let (mut by_topic, mut by_filter) = (Levels::default(), Levels::default());
            for (at, topic) in topics.iter().enumerate() {
                by_topic.insert(topic, at);
            }
            for (at, filter) in filters.iter().enumerate() {
                by_filter.insert(filter, at);
            }
            for (at, topic) in topics.iter().enumerate().filter(|(at, _)| gone[*at]) {
                by_topic.remove(topic, &at);
            }
            for (at, filter) in filters.iter().enumerate().filter(|(at, _)| gone[8 + *at]) {
                by_filter.remove(filter, &at);
            }
            for (at, filter) in filters.iter().enumerate() {
                let mut found = by_topic.search(filter).0;
                found.sort_unstable();
                let expected = topics.iter().enumerate();
                let expected = expected.filter(|(at, t)| !gone[*at] && topic::matches(filter, t));
                let expected: Vec<_> = expected.map(|(at, _)| at).collect();
                prop_assert_eq!(found, expected.iter().collect::<Vec<_>>(), "{} {}", at, filter);
            }
            for topic in &topics {
                let mut found = by_filter.of_topic(topic);
                found.sort_unstable();
                let expected = filters.iter().enumerate();
                let expected = expected.filter(|(at, f)| !gone[8 + *at] && topic::matches(f, topic));
                let expected: Vec<_> = expected.map(|(at, _)| at).collect();
                prop_assert_eq!(found, expected.iter().collect::<Vec<_>>(), "{}", topic);
            }
            for (at, topic) in topics.iter().enumerate() {
                by_topic.remove(topic, &at);
            }
            prop_assert_eq!(by_topic.nodes.len(), 1 + by_topic.free.len());
        }
    }
}
