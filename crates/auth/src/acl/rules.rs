//! Topic filters with access rights, as a trie by topic level.
//!
//! A lookup collects the rights of every filter that matches a topic: at each level it follows the
//! literal child and the `+` child and takes what `#` gives. A node is reached by one path only, so
//! that a lookup visits no node twice, and recursion is as deep as the longest filter, which
//! `topic::check_filter` bounds. Lookups do not allocate.

use std::ops::BitOrAssign;

/// The name of a level that no rule names: filters cannot hold it. It stands for all such names.
const OTHER: &str = "\0";

/// Nodes, and levels of topics, that are looked at to see whether a filter reaches anything that rules
/// grant: a fraction of a millisecond. Where that is not enough it is taken to reach something; each
/// message is looked at anyway.
const MOST_STEPS: usize = 4096;

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
    /// Levels of the filter with the most, `#` not counted.
    depth: usize,
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
        let mut node = &mut self.root;
        for (above, level) in filter.split('/').enumerate() {
            node = match level {
                "#" => {
                    node.below |= access;
                    return;
                }
                "+" => node.plus.get_or_insert_default(),
                _ => node.child_or_new(level),
            };
            self.depth = self.depth.max(above + 1);
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

    /// Levels of the filter with the most, `#` not counted.
    pub(super) fn depth(&self) -> usize {
        self.depth
    }

    /// Whether a topic that a filter matches and a rule gives one of these rights on has a property;
    /// that `has` it depends only on which rules match a topic. Rules have at most `depth` levels, also
    /// where others than these are asked.
    ///
    /// A filter and a rule have a filter in common, or nothing. Where that has wildcards, names that
    /// no rule holds stand for all: whatever rule matches such a topic matches all others with as many
    /// levels, too. Beyond `depth`, their number makes no difference.
    pub(super) fn reaches(
        &self,
        filter: &str,
        access: Access,
        depth: usize,
        mut has: impl FnMut(&str) -> bool,
    ) -> bool {
        let mut steps = MOST_STEPS;
        let is_reserved = filter.starts_with('$');
        let mut path: Vec<&str> = Vec::new();
        let mut stack = vec![Place {
            node: &self.root,
            above: None,
            rest: Rest::new(Some(filter)),
        }];
        while let Some(Place { node, above, rest }) = stack.pop() {
            if let Some((levels, level)) = above {
                path.truncate(levels);
                path.push(level);
            }
            if steps == 0 {
                return true;
            }
            steps -= 1;
            let is_skipped = path.is_empty() && is_reserved;
            if node.below.overlaps(Access::DENY) && !is_skipped {
                // So is all that rules grant further down.
                continue;
            }
            let below = node.below.overlaps(access) && !is_skipped;
            let here = node.here.overlaps(access);
            let mut sample =
                |tail: Rest<'_>| Sample { path: &path, tail }.any(depth, &mut steps, &mut has);
            let found = match rest {
                Rest::End if here || below => sample(Rest::End),
                Rest::All if below => sample(Rest::All),
                Rest::All if here => sample(Rest::End),
                Rest::Levels(_) if below => sample(rest),
                _ => false,
            };
            if found {
                return true;
            }
            node.push_children(path.len(), rest, &mut stack);
        }
        false
    }
}

/// The levels of a filter that follow those a node stands for.
#[derive(Debug, Clone, Copy)]
enum Rest<'a> {
    /// Nothing.
    End,
    /// `#`.
    All,
    /// These levels, the first of which is not `#`.
    Levels(&'a str),
}

impl<'a> Rest<'a> {
    fn new(rest: Option<&'a str>) -> Self {
        match rest {
            None => Self::End,
            Some("#") => Self::All,
            Some(levels) => Self::Levels(levels),
        }
    }
}

/// A node that a filter leads to.
struct Place<'a> {
    node: &'a Node,
    /// How many levels are above its own, and what that is called in what filter and rules have in
    /// common; `None` for the root.
    above: Option<(usize, &'a str)>,
    rest: Rest<'a>,
}

/// Topics that stand for all that match one filter.
struct Sample<'a> {
    /// Its first levels.
    path: &'a [&'a str],
    /// What follows them.
    tail: Rest<'a>,
}

impl Sample<'_> {
    fn any(&self, depth: usize, steps: &mut usize, has: &mut impl FnMut(&str) -> bool) -> bool {
        let mut levels = self.path.to_vec();
        let mut tail = self.tail;
        while let Rest::Levels(rest) = tail {
            let (level, rest) = split_level(rest);
            levels.push(if level == "+" { OTHER } else { level });
            tail = Rest::new(rest);
        }
        let fixed = levels.len();
        let most = match tail {
            Rest::All => (depth + 1).saturating_sub(fixed).max(1),
            _ => 0,
        };
        // What is deeper than all rules is the least likely to be denied.
        for more in std::iter::once(most).chain(0..most) {
            if *steps == 0 {
                return true;
            }
            levels.resize(fixed + more, OTHER);
            *steps = steps.saturating_sub(levels.len());
            if has(&levels.join("/")) {
                return true;
            }
        }
        false
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

    /// The children that a filter leads on to.
    fn push_children<'a>(&'a self, levels: usize, rest: Rest<'a>, stack: &mut Vec<Place<'a>>) {
        let (wanted, rest) = match rest {
            Rest::End => return,
            Rest::All => ("+", Rest::All),
            Rest::Levels(rest) => {
                let (level, rest) = split_level(rest);
                (level, Rest::new(rest))
            }
        };
        // A wildcard at the start does not match these.
        let is_reserved = |level: &str| levels == 0 && level.starts_with('$');
        let place = |node, level| Place {
            node,
            above: Some((levels, level)),
            rest,
        };
        if wanted != "+" {
            let plus = self.plus.as_deref().filter(|_| !is_reserved(wanted));
            stack.extend(
                self.child(wanted)
                    .into_iter()
                    .chain(plus)
                    .map(|node| place(node, wanted)),
            );
            return;
        }
        let literal = self.literal.iter().filter(|(level, _)| !is_reserved(level));
        stack.extend(literal.map(|(level, node)| place(node, level)));
        stack.extend(self.plus.as_deref().map(|node| place(node, OTHER)));
    }

    /// `rest` is the part of the topic below this node, `None` at its end.
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
