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
//! kept in one piece of memory before its branches, which are in [`Pages`]. Nothing is moved as a whole
//! when the tree grows.
//!
//! The tree knows topics by number; whoever has it says what they are called.

use std::cmp::Ordering;

use smallvec::SmallVec;

use super::pages::{Pages, Range};
use crate::Budget;
use crate::slab::Slab;

/// Bytes of a piece at most.
const PIECE: usize = 15;
/// Branches that are looked at together, and topics that are shown at once to who looks for some.
pub(super) const TOGETHER: usize = 32;
/// Bytes that are compared for one unit of work.
const UNIT: usize = 64;
/// The node that is above all topics; it is always there.
const ROOT: u32 = 0;

/// A piece: its bytes, zeros, and its length; so ordered as its bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Key(u64, u64);

impl Ord for Key {
    /// As one number: without a branch.
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        self.number().cmp(&other.number())
    }
}

impl PartialOrd for Key {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }

    #[inline]
    fn lt(&self, other: &Self) -> bool {
        self.number() < other.number()
    }

    #[inline]
    fn le(&self, other: &Self) -> bool {
        self.number() <= other.number()
    }
}

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

    #[inline]
    fn number(self) -> u128 {
        u128::from(self.0) << 64 | u128::from(self.1)
    }

    fn bytes(self) -> ([u8; PIECE + 1], usize) {
        (self.number().to_be_bytes(), self.len())
    }

    fn len(self) -> usize {
        usize::from(self.1 as u8)
    }

    /// Topics go on behind it.
    fn goes_on(self) -> bool {
        self.len() == PIECE || self.ends_level()
    }

    /// What goes on behind it is another level.
    fn ends_level(self) -> bool {
        let (bytes, len) = self.bytes();
        len > 0 && bytes[len - 1] == b'/'
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

/// The branches of a node, in order.
type Branches = Pages<Key, Branch>;

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
            branches: Branches::default(),
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
                branches: Branches::default(),
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
            let Some(Way { key, branch, below }) = self.next(frame, budget) else {
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
                    let below = below.filter(|_| rest.is_empty());
                    let entered = match below.map(|below| frame.named(&below)) {
                        Some(ways) => ways.map(|ways| Frame::new(ways, at, rest, path.len())),
                        None => self.enter(branch.0, at, &levels, rest, &mut path, budget),
                    };
                    frames.extend(entered);
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
        let here = Some(first).filter(|_| !from.is_empty());
        let ways = match levels.get(at.level..)? {
            [b"+" | b"#", ..] => Ways::All(branches.range(here)),
            named => {
                named.first()?.get(at.within..)?;
                let pieces = pieces(named, at.within).into_iter();
                let pieces = pieces.filter(|key| from.is_empty() || *key >= first);
                let named = pieces.filter_map(|key| Some((key, branches.get(key)?)));
                Ways::Named(named.collect::<SmallVec<_>>().into_iter())
            }
        };
        let mut frame = Frame::new(ways, at, from, path.len());
        if let [b"+", below @ ..] = &levels[at.level..] {
            frame.named = pieces(below, 0);
        }
        Some(frame)
    }

    /// The next branch of a node, at most as many of which are looked at together as the budget has
    /// units.
    ///
    /// Nodes are far from each other in memory. Where the filter names the level below `+`, little is
    /// done with each, and most of the time would go into waiting for one after the other. So that a
    /// processor asks for many before it has the first, nothing is done with one before the same was
    /// done with all.
    fn next<'t>(&'t self, frame: &mut Frame<'t, '_>, budget: &Budget) -> Option<Way> {
        if frame.named.is_empty() {
            let (key, branch) = frame.ways.next()?;
            let below = None;
            return Some(Way { key, branch, below });
        }
        if frame.ahead.is_empty() {
            let most = budget.left().clamp(1, TOGETHER as u64) as usize;
            let ways = frame.ways.by_ref().take(most);
            let nodes = ways.map(|(key, branch)| {
                let node = match branch.topic() {
                    None if key.ends_level() => self.nodes.get(branch.0),
                    _ => None,
                };
                let node = node.filter(|node| node.before.is_empty());
                (key, branch, node)
            });
            let nodes: SmallVec<[_; TOGETHER]> = nodes.collect();
            let named = &frame.named;
            let ways = nodes.iter().rev().map(|(key, branch, node)| Way {
                key: *key,
                branch: *branch,
                below: node.map(|node| {
                    let mut below = [None; 2];
                    for (below, key) in below.iter_mut().zip(named) {
                        *below = node.branches.get(*key);
                    }
                    below
                }),
            });
            frame.ahead.extend(ways);
        }
        frame.ahead.pop()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }
}

/// The first pieces, in order, that topics may have which match these levels of a filter, the first of
/// which begins so many bytes above; none if it is a wildcard.
fn pieces(levels: &[&[u8]], within: usize) -> SmallVec<[Key; 2]> {
    let mut pieces = SmallVec::new();
    let (level, below) = match levels {
        [] | [b"+" | b"#", ..] => return pieces,
        [level, below @ ..] => (level, below),
    };
    let rest = level.get(within..).unwrap_or_default();
    if rest.len() >= PIECE {
        pieces.push(Key::new(&rest[..PIECE]));
        return pieces;
    }
    // The level above `#` matches too. In the order of topics: the second begins with the first.
    if let [] | [b"#"] = below {
        pieces.push(Key::new(rest));
    }
    if !below.is_empty() {
        let mut piece = [b'/'; PIECE];
        piece[..rest.len()].copy_from_slice(rest);
        pieces.push(Key::new(&piece[..=rest.len()]));
    }
    pieces
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
    /// Where the filter has `+` here and names the level below: the pieces that it may have there.
    named: SmallVec<[Key; 2]>,
    /// Branches that were looked at and not yet followed, the next one last.
    ahead: Vec<Way>,
}

impl<'t, 'f> Frame<'t, 'f> {
    fn new(ways: Ways<'t>, at: At, from: &'f [u8], path: usize) -> Self {
        let (named, ahead) = (SmallVec::new(), Vec::new());
        Self {
            ways,
            at,
            from,
            path,
            named,
            ahead,
        }
    }

    /// What was found below a branch of this node; `None` if that is nothing.
    fn named(&self, below: &[Option<Branch>; 2]) -> Option<Ways<'t>> {
        let found = self.named.iter().zip(below);
        let found = found.filter_map(|(key, branch)| Some((*key, (*branch)?)));
        let found: SmallVec<_> = found.collect();
        (!found.is_empty()).then(|| Ways::Named(found.into_iter()))
    }
}

/// A branch that is looked at.
#[derive(Debug)]
struct Way {
    key: Key,
    branch: Branch,
    /// Branches of the node behind it for the pieces that the filter names there; `None` if that was
    /// not looked at.
    below: Option<[Option<Branch>; 2]>,
}

/// Branches that are still to be looked at, in order.
enum Ways<'a> {
    All(Range<'a, Key, Branch>),
    Named(smallvec::IntoIter<[(Key, Branch); 2]>),
}

impl Iterator for Ways<'_> {
    type Item = (Key, Branch);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::All(all) => all.next(),
            Self::Named(named) => named.next(),
        }
    }
}
