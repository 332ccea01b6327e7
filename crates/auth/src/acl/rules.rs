//! Topic filters with access rights, as a trie by topic level.
//!
//! A lookup collects the rights of every filter that matches a topic: at each level it follows the
//! literal child and the `+` child and takes what `#` gives. A node is reached by one path only, so
//! that a lookup visits no node twice, and recursion is as deep as the longest filter, which
//! `topic::check_filter` bounds. Lookups do not allocate.

use std::ops::BitOrAssign;

/// A set of `read`, `write` and `deny`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Access(u8);

impl Access {
    const NONE: Self = Self(0);
    pub(super) const READ: Self = Self(1);
    pub(super) const WRITE: Self = Self(2);
    pub(super) const READ_WRITE: Self = Self(3);
    pub(super) const DENY: Self = Self(4);

    /// The answer of the rules that match a topic, `None` if they do not decide.
    pub(super) fn decide(self, wanted: Self) -> Option<bool> {
        if self.overlaps(Self::DENY) {
            Some(false)
        } else {
            self.overlaps(wanted).then_some(true)
        }
    }

    fn overlaps(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

impl BitOrAssign for Access {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

/// A set of rules.
#[derive(Debug, Clone, Default)]
pub(super) struct Rules {
    root: Node,
    /// Filters of `deny` rules again, for [`Rules::denied`].
    denied: Vec<Box<str>>,
    /// All rights that some rule gives.
    all: Access,
}

#[derive(Debug, Clone, Default)]
struct Node {
    /// Children by level, sorted.
    literal: Vec<(Box<str>, Node)>,
    plus: Option<Box<Node>>,
    /// Rights of the filter that ends here.
    here: Access,
    /// Rights of the filter that goes on from here with `#`.
    below: Access,
}

impl Rules {
    /// Adds a valid filter.
    pub(super) fn insert(&mut self, filter: &str, access: Access) {
        if access == Access::DENY {
            self.denied.push(filter.into());
        }
        self.all |= access;
        let mut node = &mut self.root;
        for level in filter.split('/') {
            node = match level {
                "#" => {
                    node.below |= access;
                    return;
                }
                "+" => node.plus.get_or_insert_default(),
                _ => node.child_or_new(level),
            };
        }
        node.here |= access;
    }

    /// The rights of all filters that match the topic together.
    pub(super) fn lookup(&self, topic: &str) -> Access {
        let mut found = Access::NONE;
        if topic.starts_with('$') {
            // Wildcards at the start do not match.
            let (level, rest) = split_level(topic);
            if let Some(node) = self.root.child(level) {
                node.collect(rest, &mut found);
            }
        } else if !topic.is_empty() {
            self.root.collect(Some(topic), &mut found);
        }
        found
    }

    /// The filters of the `deny` rules.
    pub(super) fn denied(&self) -> impl Iterator<Item = &str> {
        self.denied.iter().map(|filter| &**filter)
    }

    /// Whether some rule gives one of these rights.
    pub(super) fn grants_any(&self, access: Access) -> bool {
        self.all.overlaps(access)
    }
}

impl Node {
    fn child(&self, level: &str) -> Option<&Self> {
        let at = self
            .literal
            .binary_search_by(|(name, _)| (**name).cmp(level))
            .ok()?;
        Some(&self.literal[at].1)
    }

    fn child_or_new(&mut self, level: &str) -> &mut Self {
        let at = match self
            .literal
            .binary_search_by(|(name, _)| (**name).cmp(level))
        {
            Ok(at) => at,
            Err(at) => {
                self.literal.insert(at, (level.into(), Self::default()));
                at
            }
        };
        &mut self.literal[at].1
    }

    /// `rest` is what is left of the topic below this node, `None` at its end.
    fn collect(&self, rest: Option<&str>, found: &mut Access) {
        *found |= self.below;
        let Some(rest) = rest else {
            *found |= self.here;
            return;
        };
        let (level, rest) = split_level(rest);
        if let Some(node) = self.child(level) {
            node.collect(rest, found);
        }
        if let Some(node) = &self.plus {
            node.collect(rest, found);
        }
    }
}

fn split_level(topic: &str) -> (&str, Option<&str>) {
    match topic.split_once('/') {
        Some((level, rest)) => (level, Some(rest)),
        None => (topic, None),
    }
}
