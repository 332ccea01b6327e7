//! A tree of topics, so that a lookup visits only those that a filter may match.
//!
//! A topic is cut into pieces: after every slash, and after 15 bytes of a level that is longer. A
//! piece is compared as two numbers, and determines whether the topic continues: a piece that is
//! full or ends with a slash has more pieces behind it, any other ends its topic. So `a`, `a-b` and
//! `a/b` are three pieces of one node, and the order of the pieces is that of the topics as text,
//! by which an interrupted search continues.
//!
//! Memory is proportional to the number of topics, however long they are and however many levels
//! they have: a branch with one topic is that topic, and pieces that all topics of a node share are
//! kept in one piece of memory before its branches, which are in [`Pages`]. Nothing is moved as a
//! whole when the tree grows.
//!
//! The tree refers to topics by number; its owner maps the numbers to names.

use std::cmp::Ordering;

use smallvec::SmallVec;

use super::pages::{Pages, Range};
use crate::Budget;
use crate::slab::Slab;

/// Maximum number of bytes of a piece.
const PIECE: usize = 15;
/// Number of branches that are visited together, and of topics that are passed at once to a search.
pub(super) const TOGETHER: usize = 32;
/// Number of bytes compared for one unit of work.
const UNIT: usize = 64;
/// The node above all topics, which always exists.
const ROOT: u32 = 0;

/// A piece: its bytes, zeros, and its length; it is ordered like its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Key(u64, u64);

impl Ord for Key {
    /// Compares as one number, without a branch instruction.
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

    /// Whether topics continue behind the piece.
    fn goes_on(self) -> bool {
        self.len() == PIECE || self.ends_level()
    }

    /// Whether the piece ends a level, so that another level follows.
    fn ends_level(self) -> bool {
        let (bytes, len) = self.bytes();
        len > 0 && bytes[len - 1] == b'/'
    }

    fn begins_with(self, byte: u8) -> bool {
        (self.0 >> 56) as u8 == byte
    }
}

/// Number of bytes in the pieces with which both begin.
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

/// The content behind a piece: a node, or one topic.
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
    /// Pieces that all topics of the node share, before the pieces that differ.
    before: Box<[u8]>,
    /// At least two, except in the root.
    branches: Branches,
}

/// The branches of a node, in order.
type Branches = Pages<Key, Branch>;

/// The place where a missing topic would be.
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

    /// The number of a topic, or the place where it would be.
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
            // The node is replaced by one for the new topic and the old content.
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
        // This is a topic: otherwise the new one would not be missing here.
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

    /// Removes a topic that is in the tree.
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
            // A single remaining branch replaces the node.
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

    /// Visits all topics that `filter` (without share prefix) may match, in order, from `from` on,
    /// until `budget` is spent or `visit` returns the topic at which to stop; `visit` is passed
    /// several at once. Returns the position at which to continue; `None` at the end.
    ///
    /// A unit of work is a visited branch. Some are topics that do not match. At least one branch
    /// is visited that was not visited before, and the path to it is completed: the budget may be
    /// exceeded by the depth of the tree.
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
        // Branches on the path to the start position were visited before and are no progress.
        let mut progress = false;
        let mut path: Vec<u8> = Vec::new();
        let mut frames: SmallVec<[Frame<'_, '_>; 8]> = SmallVec::new();
        frames.extend(self.enter(ROOT, At::default(), &levels, from, &mut path, budget));
        let mut topics: SmallVec<[u32; TOGETHER]> = SmallVec::new();
        // No topic is between one and itself with U+0000 behind.
        let after = |topic| Some([name(topic), b"\0"].concat().into());
        while let Some(frame) = frames.last_mut() {
            path.truncate(frame.path);
            let Some(VisitedBranch { key, branch, below }) = self.next(frame, budget) else {
                frames.pop();
                continue;
            };
            let (at, from_here) = (frame.at, frame.from);
            // Topics that begin with $ do not match filters that begin with a wildcard
            // [MQTT-4.7.2-1].
            let hidden = ends_with_any && path.is_empty() && key.begins_with(b'$');
            let (bytes, len) = key.bytes();
            let bytes = &bytes[..len];
            let (first, rest) = from_here.split_at(from_here.len().min(len));
            let rest = if bytes == first { rest } else { &[] };
            // A topic that ends with a slash is no position to continue from: its node has the same
            // one.
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

    /// The branches of a node that matching topics from `from` on may have; none if there is no
    /// such topic.
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

    /// The next branch of a node. At most as many branches are visited together as the budget has
    /// units.
    ///
    /// Nodes are far from each other in memory. If the filter names the level below `+`, little is
    /// done with each, and most of the time would be spent waiting for one after the other. So each
    /// step is done for all nodes before the next step begins, and the processor fetches many of
    /// them at once.
    fn next<'t>(&'t self, frame: &mut Frame<'t, '_>, budget: &Budget) -> Option<VisitedBranch> {
        if frame.named.is_empty() {
            let (key, branch) = frame.ways.next()?;
            let below = None;
            return Some(VisitedBranch { key, branch, below });
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
            let ways = nodes.iter().rev().map(|(key, branch, node)| VisitedBranch {
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

/// The first pieces, in order, of topics that match these levels of a filter, the first of which
/// begins `within` bytes above; none if it is a wildcard.
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
    // The level above `#` matches, too. The pieces are in the order of topics: the second begins
    // with the first.
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

/// The part of a filter that is matched by the pieces above.
#[derive(Debug, Clone, Copy, Default)]
struct At {
    level: usize,
    /// Bytes of that level.
    within: usize,
}

impl At {
    /// Advances over pieces that continue, or the last one of a topic; `None` if no matching topic
    /// begins like that.
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

/// A node that is being visited.
struct Frame<'t, 'f> {
    /// Branches that are still to be visited.
    ways: Ways<'t>,
    at: At,
    /// The part below this node of the topic at which to continue; empty if that topic is above.
    from: &'f [u8],
    /// Bytes of the node's path.
    path: usize,
    /// Where the filter has `+` here and names the level below: the pieces that it may have there.
    named: SmallVec<[Key; 2]>,
    /// Branches that were fetched and not yet followed, the next one last.
    ahead: Vec<VisitedBranch>,
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

    /// The branches found below a branch of this node; `None` if there are none.
    fn named(&self, below: &[Option<Branch>; 2]) -> Option<Ways<'t>> {
        let found = self.named.iter().zip(below);
        let found = found.filter_map(|(key, branch)| Some((*key, (*branch)?)));
        let found: SmallVec<_> = found.collect();
        (!found.is_empty()).then(|| Ways::Named(found.into_iter()))
    }
}

/// A branch that is being visited.
#[derive(Debug)]
struct VisitedBranch {
    key: Key,
    branch: Branch,
    /// Branches of the node behind it for the pieces that the filter names there; `None` if they
    /// were not looked up.
    below: Option<[Option<Branch>; 2]>,
}

/// Branches that are still to be visited, in order.
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
