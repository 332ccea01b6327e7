//! Topics in a tree, so that a lookup comes past those only that a filter may match.
//!
//! A topic is cut into pieces: after every slash, and after 15 bytes of a level that is longer.
//! A piece is compared as two numbers, and says how the tree goes on: one that is full or ends
//! with a slash has more behind it, any other ends its topic. So `a`, `a-b` and `a/b` are three
//! pieces of one node, and the order of the pieces is that of the topics as text, which is what
//! a search that stops goes on by.
//!
//! Memory is proportional to the number of topics, however long they are and however many levels
//! they have: a branch with one topic is that topic, and pieces that all topics of a node share are
//! kept in one piece of memory before its branches. Nothing is moved as a whole when the tree grows.
//!
//! The tree knows topics by number; whoever has it says what they are called.

use std::collections::{BTreeMap, btree_map};
use std::slice;

use smallvec::SmallVec;

use crate::Budget;
use crate::slab::Slab;

/// Bytes of a piece at most.
const PIECE: usize = 15;
/// Branches of a node in one piece of memory at most,
const FEW: usize = 16;
/// and how many there are when they return to it.
const FEW_AGAIN: usize = 8;
/// Topics that are shown at once to who looks for some.
pub(super) const TOGETHER: usize = 32;
/// Bytes that are compared for one unit of work.
const UNIT: usize = 64;
/// The node that is above all topics; it is always there.
const ROOT: u32 = 0;

/// A piece: its bytes, zeros, and its length; so ordered as its bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key(u64, u64);

impl Key {
    fn new(piece: &[u8]) -> Self {
        let mut bytes = [0; PIECE + 1];
        bytes[..piece.len()].copy_from_slice(piece);
        bytes[PIECE] = piece.len() as u8;
        let number = u128::from_be_bytes(bytes);
        Self((number >> 64) as u64, number as u64)
    }

    /// The first piece of the rest of a topic.
    fn first(rest: &[u8]) -> (Self, usize) {
        let most = &rest[..rest.len().min(PIECE)];
        let slash = most.iter().position(|byte| *byte == b'/');
        let len = slash.map_or(most.len(), |at| at + 1);
        (Self::new(&rest[..len]), len)
    }

    fn bytes(self) -> ([u8; PIECE + 1], usize) {
        let bytes = (u128::from(self.0) << 64 | u128::from(self.1)).to_be_bytes();
        (bytes, self.len())
    }

    fn len(self) -> usize {
        usize::from(self.1 as u8)
    }

    /// Topics go on behind it.
    fn goes_on(self) -> bool {
        let (bytes, len) = self.bytes();
        len == PIECE || (len > 0 && bytes[len - 1] == b'/')
    }

    fn begins_with(self, byte: u8) -> bool {
        (self.0 >> 56) as u8 == byte
    }
}

/// How many bytes of the pieces that both begin with.
fn shared(one: &[u8], two: &[u8]) -> usize {
    let mut at = 0;
    loop {
        let (key, len) = Key::first(&one[at..]);
        if !key.goes_on() || key != Key::first(&two[at..]).0 {
            return at;
        }
        at += len;
    }
}

/// What is behind a piece: a node, or one topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Branch(u32);

const TOPIC: u32 = 1 << 31;

impl Branch {
    fn of_topic(topic: u32) -> Self {
        Self(topic | TOPIC)
    }

    fn topic(self) -> Option<u32> {
        (self.0 & TOPIC != 0).then_some(self.0 & !TOPIC)
    }
}

#[derive(Debug)]
struct Node {
    /// Pieces that all topics here have before those that tell them apart.
    before: Box<[u8]>,
    /// At least two, except in the root.
    branches: Branches,
}

#[derive(Debug)]
enum Branches {
    /// In order.
    Few(Vec<(Key, Branch)>),
    Many(BTreeMap<Key, Branch>),
}

impl Branches {
    fn pair(one: (Key, Branch), two: (Key, Branch)) -> Self {
        let mut both = vec![one, two];
        both.sort_unstable_by_key(|(key, _)| *key);
        Self::Few(both)
    }

    fn get(&self, key: Key) -> Option<Branch> {
        match self {
            Self::Few(few) => {
                let at = few.binary_search_by_key(&key, |(key, _)| *key).ok()?;
                Some(few[at].1)
            }
            Self::Many(many) => many.get(&key).copied(),
        }
    }

    /// Adds a branch, or replaces it.
    fn set(&mut self, key: Key, branch: Branch) {
        match self {
            Self::Few(few) => match few.binary_search_by_key(&key, |(key, _)| *key) {
                Ok(at) => few[at].1 = branch,
                Err(at) if few.len() < FEW => few.insert(at, (key, branch)),
                Err(_) => {
                    let mut many: BTreeMap<_, _> = few.drain(..).collect();
                    many.insert(key, branch);
                    *self = Self::Many(many);
                }
            },
            Self::Many(many) => {
                many.insert(key, branch);
            }
        }
    }

    fn remove(&mut self, key: Key) {
        match self {
            Self::Few(few) => few.retain(|(other, _)| *other != key),
            Self::Many(many) => {
                many.remove(&key);
                if many.len() <= FEW_AGAIN {
                    let few = many.iter().map(|(key, branch)| (*key, *branch));
                    *self = Self::Few(few.collect());
                }
            }
        }
    }

    /// The branch, if there is one only.
    fn sole(&self) -> Option<(Key, Branch)> {
        match self {
            Self::Few(few) => match few[..] {
                [sole] => Some(sole),
                _ => None,
            },
            Self::Many(_) => None,
        }
    }

    fn from(&self, key: Key) -> Ways<'_> {
        match self {
            Self::Few(few) => {
                let at = few.partition_point(|(other, _)| *other < key);
                Ways::Few(few[at..].iter())
            }
            Self::Many(many) => Ways::Many(many.range(key..)),
        }
    }

    fn all(&self) -> Ways<'_> {
        match self {
            Self::Few(few) => Ways::Few(few.iter()),
            Self::Many(many) => Ways::Many(many.range(..)),
        }
    }
}

/// Where a topic would be that is not there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gap {
    node: u32,
    /// Bytes of the topic above that node.
    above: usize,
}

/// The tree.
#[derive(Debug)]
pub(super) struct Tree {
    nodes: Slab<Node>,
}

impl Default for Tree {
    fn default() -> Self {
        let mut nodes = Slab::default();
        let root = nodes.insert(Node {
            before: Box::default(),
            branches: Branches::Few(Vec::new()),
        });
        debug_assert_eq!(root, ROOT);
        Self { nodes }
    }
}

impl Tree {
    /// Changes a branch of a node.
    fn set(&mut self, node: u32, key: Key, branch: Branch) {
        if let Some(node) = self.nodes.get_mut(node) {
            node.branches.set(key, branch);
        }
    }

    /// The number of a topic, or where it would be.
    pub(super) fn find<'a>(
        &self,
        topic: &[u8],
        name: impl Fn(u32) -> &'a [u8],
    ) -> Result<u32, Gap> {
        let (mut at, mut above) = (ROOT, 0);
        loop {
            let gap = Gap { node: at, above };
            let node = self.nodes.get(at).ok_or(gap)?;
            let rest = topic[above..].strip_prefix(&*node.before).ok_or(gap)?;
            let (key, len) = Key::first(rest);
            let branch = node.branches.get(key).ok_or(gap)?;
            if let Some(found) = branch.topic() {
                return if name(found) == topic {
                    Ok(found)
                } else {
                    Err(gap)
                };
            }
            above += node.before.len() + len;
            at = branch.0;
        }
    }

    /// Adds a topic where [`Self::find`] has found that it is missing; nothing has changed since.
    pub(super) fn insert<'a>(
        &mut self,
        gap: Gap,
        topic: &[u8],
        number: u32,
        name: impl Fn(u32) -> &'a [u8],
    ) {
        let Some(node) = self.nodes.get_mut(gap.node) else {
            return;
        };
        let mut above = gap.above + shared(&node.before, &topic[gap.above..]);
        let common = above - gap.above;
        if common < node.before.len() {
            // Its place is that of a node for the new topic and what was here.
            let (old, len) = Key::first(&node.before[common..]);
            let upper = Node {
                before: node.before[..common].into(),
                branches: Branches::Few(Vec::with_capacity(2)),
            };
            let mut lower = std::mem::replace(node, upper);
            lower.before = lower.before[common + len..].into();
            let lower = self.nodes.insert(lower);
            self.set(gap.node, old, Branch(lower));
        }
        let (key, len) = Key::first(&topic[above..]);
        let node = self.nodes.get(gap.node);
        let mut branch = Branch::of_topic(number);
        // A topic, or the new one would not be missing here.
        if let Some(other) = node.and_then(|node| node.branches.get(key)) {
            above += len;
            let theirs = &name(other.0 & !TOPIC)[above..];
            let ours = &topic[above..];
            let common = shared(theirs, ours);
            let theirs = (Key::first(&theirs[common..]).0, other);
            let before = ours[..common].into();
            let ours = (Key::first(&ours[common..]).0, branch);
            let branches = Branches::pair(theirs, ours);
            branch = Branch(self.nodes.insert(Node { before, branches }));
        }
        self.set(gap.node, key, branch);
    }

    /// Removes a topic that is there.
    pub(super) fn remove(&mut self, topic: &[u8]) {
        let (mut at, mut above) = (ROOT, 0);
        let mut parent = None;
        while let Some(node) = self.nodes.get_mut(at) {
            above += node.before.len();
            let (key, len) = Key::first(&topic[above..]);
            if let Some(branch) = node.branches.get(key)
                && branch.topic().is_none()
            {
                parent = Some((at, key));
                above += len;
                at = branch.0;
                continue;
            }
            node.branches.remove(key);
            // One branch that is left takes the place of the node.
            if let (Some((parent, key)), Some((rest, sole))) = (parent, node.branches.sole()) {
                let before = std::mem::take(&mut node.before);
                self.nodes.remove(at);
                self.set(parent, key, sole);
                if sole.topic().is_none()
                    && let Some(below) = self.nodes.get_mut(sole.0)
                {
                    let (bytes, len) = rest.bytes();
                    below.before = [&before, &bytes[..len], &below.before].concat().into();
                }
            }
            return;
        }
    }

    /// Comes to all topics that `filter` (without share prefix) may match, in order, from `from`
    /// on, until nothing is left of `budget` or `visit` says with which topic it is enough; it is
    /// shown some at once. Returns from where to go on; `None` when done.
    ///
    /// A unit of work is a branch that is looked at. Some are topics that do not match. At least
    /// one is looked at that was not before, and what leads to it is not left half way: the budget
    /// may be overdrawn by the depth of the tree.
    pub(super) fn walk<'a>(
        &self,
        filter: &str,
        from: &[u8],
        budget: &mut Budget,
        name: impl Fn(u32) -> &'a [u8],
        mut visit: impl FnMut(&[u32]) -> Option<u32>,
    ) -> Option<Box<[u8]>> {
        let levels: Levels<'_> = filter.as_bytes().split(|byte| *byte == b'/').collect();
        let ends_with_any = matches!(levels[0], b"+" | b"#");
        // What was looked at before, as it leads to where to go on, does not count as progress.
        let mut progress = false;
        let mut path: Vec<u8> = Vec::new();
        let mut frames: SmallVec<[Frame<'_, '_>; 8]> = SmallVec::new();
        frames.extend(self.enter(ROOT, At::default(), &levels, from, &mut path, budget));
        let mut topics: SmallVec<[u32; TOGETHER]> = SmallVec::new();
        // No topic is between one and itself with U+0000 behind.
        let after = |topic| Some([name(topic), b"\0"].concat().into());
        while let Some(frame) = frames.last_mut() {
            path.truncate(frame.path);
            let Some((key, branch)) = frame.ways.next() else {
                frames.pop();
                continue;
            };
            let (at, from_here) = (frame.at, frame.from);
            // What begins with $ is not for filters that begin with a wildcard [MQTT-4.7.2-1].
            let hidden = ends_with_any && path.is_empty() && key.begins_with(b'$');
            let (bytes, len) = key.bytes();
            let bytes = &bytes[..len];
            let (first, rest) = from_here.split_at(from_here.len().min(len));
            let rest = if bytes == first { rest } else { &[] };
            // The end of a topic that ends with a slash is nothing to go on from: it is where its
            // node is.
            if progress && budget.is_spent() && len > 0 {
                path.extend_from_slice(bytes);
                return visit(&topics).map_or(Some(path.into()), after);
            }
            budget.spend(1);
            progress |= rest.is_empty();
            let Some(at) = at.pass(&levels, bytes).filter(|_| !hidden) else {
                continue;
            };
            match branch.topic() {
                Some(topic) => {
                    let before = !rest.is_empty() && name(topic) < from;
                    if !before {
                        topics.push(topic);
                    }
                    if topics.len() == TOGETHER {
                        if let Some(last) = visit(&topics) {
                            return after(last);
                        }
                        topics.clear();
                    }
                }
                None => {
                    path.extend_from_slice(bytes);
                    frames.extend(self.enter(branch.0, at, &levels, rest, &mut path, budget));
                }
            }
        }
        visit(&topics).and_then(after)
    }

    /// The branches of a node that topics from `from` on may have which match; none if it has
    /// no such topic.
    fn enter<'t, 'f>(
        &'t self,
        node: u32,
        at: At,
        levels: &Levels<'_>,
        from: &'f [u8],
        path: &mut Vec<u8>,
        budget: &mut Budget,
    ) -> Option<Frame<'t, 'f>> {
        let Node { before, branches } = self.nodes.get(node)?;
        budget.spend((before.len() / UNIT) as u64);
        let from = match from.strip_prefix(&**before) {
            Some(rest) => rest,
            None if **before < *from => return None,
            None => &[],
        };
        let at = at.pass(levels, before)?;
        let first = Key::first(from).0;
        path.extend_from_slice(before);
        let ways = match *levels.get(at.level)? {
            b"+" | b"#" if from.is_empty() => branches.all(),
            b"+" | b"#" => branches.from(first),
            level => {
                let mut named = SmallVec::new();
                let mut add = |key: Key| {
                    if from.is_empty() || key >= first {
                        named.extend(branches.get(key).map(|branch| (key, branch)));
                    }
                };
                match level.get(at.within..)? {
                    long if long.len() >= PIECE => add(Key::new(&long[..PIECE])),
                    // The level above `#` matches too.
                    rest => {
                        let below = &levels[at.level + 1..];
                        let mut piece = [b'/'; PIECE];
                        piece[..rest.len()].copy_from_slice(rest);
                        // In the order of topics: the second begins with the first.
                        if let [] | [b"#"] = below {
                            add(Key::new(rest));
                        }
                        if !below.is_empty() {
                            add(Key::new(&piece[..=rest.len()]));
                        }
                    }
                }
                Ways::Named(named.into_iter())
            }
        };
        Some(Frame {
            ways,
            at,
            from,
            path: path.len(),
        })
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }
}

/// The levels of a filter.
type Levels<'a> = SmallVec<[&'a [u8]; 16]>;

/// How far a filter is matched by what is above.
#[derive(Debug, Clone, Copy, Default)]
struct At {
    level: usize,
    /// Bytes of that level.
    within: usize,
}

impl At {
    /// Goes on over pieces that go on, or the last one of a topic; `None` if nothing matches that
    /// begins so.
    fn pass(mut self, levels: &Levels<'_>, pieces: &[u8]) -> Option<Self> {
        let mut rest = pieces;
        loop {
            let level = *levels.get(self.level)?;
            if level == b"#" {
                return Some(self);
            }
            let slash = rest.iter().position(|byte| *byte == b'/');
            let part = &rest[..slash.unwrap_or(rest.len())];
            if level != b"+" {
                let wanted = level.get(self.within..)?.strip_prefix(part)?;
                if slash.is_some() && !wanted.is_empty() {
                    return None;
                }
            }
            let Some(slash) = slash else {
                self.within += part.len();
                return Some(self);
            };
            (self.level, self.within) = (self.level + 1, 0);
            rest = &rest[slash + 1..];
        }
    }
}

/// A node that is being looked at.
struct Frame<'t, 'f> {
    /// Branches that are left.
    ways: Ways<'t>,
    at: At,
    /// What of the topic to go on from is below this node; empty if it is above.
    from: &'f [u8],
    /// Bytes of its path.
    path: usize,
}

/// Branches that are still to be looked at, in order.
enum Ways<'a> {
    Few(slice::Iter<'a, (Key, Branch)>),
    Many(btree_map::Range<'a, Key, Branch>),
    Named(smallvec::IntoIter<[(Key, Branch); 2]>),
}

impl Iterator for Ways<'_> {
    type Item = (Key, Branch);

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::Few(few) => few.next().copied(),
            Self::Many(many) => many.next().map(|(key, branch)| (*key, *branch)),
            Self::Named(named) => named.next(),
        }
    }
}
