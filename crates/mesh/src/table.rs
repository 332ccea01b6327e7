//! The subscription table: who wants which topics, and what has to be said about
//! it on which link.
//!
//! A trie of topic filters, each with the *sources* that want it (this broker's own
//! clients, or the neighbour on a link) and the links on which it was told. On link
//! L a filter is told while somebody other than L wants it and no filter that covers
//! it and is wanted by somebody other than L exists. So a topic new to a tree of N
//! brokers costs N-1 advertisements, and none where a covering filter is known; the
//! last subscriber's leaving withdraws it. Changes gather until [`Table::changes`]
//! is asked for them; additions go before removals, so that a filter that replaces
//! another leaves no gap.
//!
//! After a reconnect both ends compare sums over 64 parts of the filters
//! ([`Table::digests_told`]), and only parts that differ are sent. Bounded by
//! the number of filters: above it, what neighbours want is not taken in any more,
//! and everything is asked for (`#`), so that memory is bounded and nothing is lost.

use std::collections::BTreeMap;

use hashbrown::HashMap;

use crate::id::LinkId;
use crate::wire::BUCKETS;

/// This broker's own clients, as a source.
const OWN: u64 = 1 << 63;
const ROOT: u32 = 0;
/// Bytes of filters in one message of changes.
pub(crate) const BATCH: usize = 16 << 10;

fn bit(link: LinkId) -> u64 {
    1 << (link.0 % LinkId::MAX)
}

/// A number for a filter, the same in every broker.
pub fn digest(filter: &str) -> u64 {
    punctual_model::digest(filter.bytes())
}

fn bucket(digest: u64) -> usize {
    (digest >> 58) as usize
}

#[derive(Debug, Default)]
struct Node {
    parent: u32,
    level: Box<str>,
    children: BTreeMap<Box<str>, u32>,
    /// Who wants the filter that ends here.
    sources: u64,
    /// Links on which it was told.
    told: u64,
    dirty: bool,
}

/// Changes to be told on a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changes {
    /// On which.
    pub link: LinkId,
    /// Wanted from now on.
    pub add: Vec<Box<str>>,
    /// Not wanted any more.
    pub remove: Vec<Box<str>>,
}

/// What a neighbour's advertisement changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Applied {
    /// Filters the neighbour wants now and did not before.
    pub added: Vec<Box<str>>,
    /// Filters it does not want any more.
    pub removed: Vec<Box<str>>,
}

/// The table of one broker.
#[derive(Debug)]
pub struct Table {
    nodes: Vec<Node>,
    free: Vec<u32>,
    dirty: Vec<u32>,
    /// Own clients by filter.
    own: HashMap<Box<str>, u32, foldhash::fast::RandomState>,
    /// Links on which changes are told.
    active: u64,
    /// Filters with a source.
    len: usize,
    max: usize,
    /// Links whose neighbours wanted more than there was room for: they are sent
    /// everything.
    overflown: u64,
    advertised: u64,
}

impl Table {
    /// An empty table of at most `max` filters.
    pub fn new(max: usize) -> Self {
        Self {
            nodes: vec![Node::default()],
            free: Vec::new(),
            dirty: Vec::new(),
            own: HashMap::default(),
            active: 0,
            len: 0,
            max: max.max(1),
            overflown: 0,
            advertised: 0,
        }
    }

    /// Filters that somebody wants.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nobody wants anything.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Additions and removals told to neighbours so far.
    pub fn advertised(&self) -> u64 {
        self.advertised
    }

    /// Whether what the neighbour on a link wants did not fit, so that it is to be
    /// sent everything.
    pub fn is_overflown(&self, link: LinkId) -> bool {
        self.overflown & bit(link) != 0
    }

    /// A client of this broker subscribed to a plain filter.
    pub fn subscribe(&mut self, filter: &str) {
        if filter.starts_with('$') {
            return;
        }
        if let Some(count) = self.own.get_mut(filter) {
            *count += 1;
            return;
        }
        self.own.insert(filter.into(), 1);
        self.set(filter, OWN, true);
    }

    /// A client of this broker does not want a filter any more.
    pub fn unsubscribe(&mut self, filter: &str) {
        if let Some(count) = self.own.get_mut(filter) {
            *count -= 1;
            if *count == 0 {
                self.own.remove(filter);
                self.set(filter, OWN, false);
            }
        }
    }

    /// Whether nobody else at this broker wants a filter than somebody who does not want it any more.
    pub fn is_last(&self, filter: &str) -> bool {
        self.own.get(filter) == Some(&1)
    }

    /// A neighbour told changes.
    pub fn apply(&mut self, link: LinkId, add: Vec<Box<str>>, remove: Vec<Box<str>>) -> Applied {
        let mut applied = Applied::default();
        for filter in add {
            if self.len >= self.max && self.find(&filter).is_none_or(|n| self.at(n).sources == 0) {
                self.overflown |= bit(link);
                continue;
            }
            if self.set(&filter, bit(link), true) {
                applied.added.push(filter);
            }
        }
        for filter in remove {
            if self.set(&filter, bit(link), false) {
                applied.removed.push(filter);
            }
        }
        applied
    }

    /// A neighbour told all it wants of one part.
    pub fn replace(&mut self, link: LinkId, index: u8, filters: Vec<Box<str>>) -> Applied {
        let mut gone = self.wanted_by(link);
        gone.retain(|filter| bucket(digest(filter)) == usize::from(index));
        gone.retain(|filter| !filters.contains(filter));
        self.apply(link, filters, gone)
    }

    /// Forgets what the neighbour on a link wanted; says what that was.
    pub fn forget(&mut self, link: LinkId) -> Vec<Box<str>> {
        let gone = self.wanted_by(link);
        for filter in &gone {
            self.set(filter, bit(link), false);
        }
        self.overflown &= !bit(link);
        gone
    }

    /// What the neighbour on a link wants.
    pub fn wanted_by(&self, link: LinkId) -> Vec<Box<str>> {
        self.filters(|node| node.sources & bit(link) != 0)
    }

    /// How many filters the neighbour on a link wants.
    pub fn count_wanted_by(&self, link: LinkId) -> usize {
        let wanted = |node: &&Node| node.sources & bit(link) != 0;
        self.nodes.iter().filter(wanted).count()
    }

    /// Whether own clients want a topic, and the links over which it is wanted.
    pub fn receivers(&self, topic: &str) -> (bool, Vec<LinkId>) {
        let levels: Vec<&str> = topic.split('/').collect();
        let sources = match topic.starts_with('$') {
            true => 0,
            false => self.above(ROOT, &levels, true, u32::MAX) | self.overflown,
        };
        let links = (0..LinkId::MAX).map(LinkId);
        (
            sources & OWN != 0,
            links.filter(|link| sources & bit(*link) != 0).collect(),
        )
    }

    /// From now on changes are told on a link; what would have to be told is taken
    /// as told, and compared by [`Self::digests_told`].
    pub fn activate(&mut self, link: LinkId) {
        self.active |= bit(link);
        for at in 0..self.nodes.len() as u32 {
            let told = self.is_due(at, link);
            let node = &mut self.nodes[at as usize];
            node.told = node.told & !bit(link) | if told { bit(link) } else { 0 };
        }
    }

    /// Nothing is told on a link any more.
    pub fn deactivate(&mut self, link: LinkId) {
        self.active &= !bit(link);
    }

    /// Sums over what was told on a link, by parts.
    pub fn digests_told(&self, link: LinkId) -> Box<[u64; BUCKETS]> {
        self.digests(|node| node.told & bit(link) != 0)
    }

    /// Sums over what the neighbour on a link wants, by parts.
    pub fn digests_wanted_by(&self, link: LinkId) -> Box<[u64; BUCKETS]> {
        self.digests(|node| node.sources & bit(link) != 0)
    }

    /// What was told on a link of one part.
    pub fn told(&mut self, link: LinkId, index: u8) -> Vec<Box<str>> {
        let mut filters = self.filters(|node| node.told & bit(link) != 0);
        filters.retain(|filter| bucket(digest(filter)) == usize::from(index));
        self.advertised += filters.len() as u64;
        filters
    }

    /// Whether there may be something to tell.
    pub fn has_changes(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// What has to be told since this was asked last, in messages of bounded size,
    /// in the order in which they are to be sent.
    pub fn changes(&mut self) -> Vec<Changes> {
        let dirty = std::mem::take(&mut self.dirty);
        let links: Vec<LinkId> = (0..LinkId::MAX)
            .map(LinkId)
            .filter(|link| self.active & bit(*link) != 0)
            .collect();
        let mut add: Vec<Vec<Box<str>>> = vec![Vec::new(); links.len()];
        let mut remove = add.clone();
        for at in dirty {
            self.nodes[at as usize].dirty = false;
            let above = self.above_node(at);
            for (i, link) in links.iter().enumerate() {
                let node = &self.nodes[at as usize];
                let due = Self::due(node.sources, above, *link);
                if due == (node.told & bit(*link) != 0) {
                    continue;
                }
                let filter = self.filter(at);
                self.nodes[at as usize].told ^= bit(*link);
                self.advertised += 1;
                match due {
                    true => add[i].push(filter),
                    false => remove[i].push(filter),
                }
            }
            self.prune(at);
        }
        let mut changes = Vec::new();
        for (i, link) in links.iter().enumerate() {
            let (add, remove) = (std::mem::take(&mut add[i]), std::mem::take(&mut remove[i]));
            batches(*link, add, remove, &mut changes);
        }
        changes
    }

    fn at(&self, node: u32) -> &Node {
        &self.nodes[node as usize]
    }

    fn is_due(&self, at: u32, link: LinkId) -> bool {
        let sources = self.at(at).sources;
        sources != 0 && Self::due(sources, self.above_node(at), link)
    }

    /// Whether a filter with those sources is to be told on a link, when `above`
    /// are the sources of all filters that cover it.
    fn due(sources: u64, above: u64, link: LinkId) -> bool {
        sources & !bit(link) != 0 && above & !bit(link) == 0
    }

    /// Adds or removes a source; says whether that is a change.
    fn set(&mut self, filter: &str, source: u64, wanted: bool) -> bool {
        let at = match wanted {
            true => self.find_or_insert(filter),
            false => match self.find(filter) {
                Some(at) => at,
                None => return false,
            },
        };
        let before = self.at(at).sources;
        let after = if wanted {
            before | source
        } else {
            before & !source
        };
        if before == after {
            return false;
        }
        self.nodes[at as usize].sources = after;
        self.len = self.len + usize::from(before == 0) - usize::from(after == 0);
        self.touch(at);
        if filter.contains(['+', '#']) {
            let levels: Vec<&str> = filter.split('/').collect();
            self.touch_below(ROOT, &levels, true);
        }
        true
    }

    fn touch(&mut self, at: u32) {
        let node = &mut self.nodes[at as usize];
        if !node.dirty {
            node.dirty = true;
            self.dirty.push(at);
        }
    }

    /// Touches the filters below `node` that `pattern` covers.
    fn touch_below(&mut self, node: u32, pattern: &[&str], first: bool) {
        let Some((level, rest)) = pattern.split_first() else {
            if self.at(node).sources != 0 {
                self.touch(node);
            }
            return;
        };
        match *level {
            "#" => {
                if !first && self.at(node).sources != 0 {
                    self.touch(node);
                }
                let children: Vec<u32> = self.at(node).children.values().copied().collect();
                for child in children {
                    self.touch_below(child, pattern, false);
                }
            }
            "+" => {
                let children: Vec<u32> = self
                    .at(node)
                    .children
                    .iter()
                    .filter(|(level, _)| &***level != "#")
                    .map(|(_, child)| *child)
                    .collect();
                for child in children {
                    self.touch_below(child, rest, false);
                }
            }
            level => {
                if let Some(child) = self.at(node).children.get(level).copied() {
                    self.touch_below(child, rest, false);
                }
            }
        }
    }

    /// Sources of the filters that cover the one that ends in `at`.
    fn above_node(&self, at: u32) -> u64 {
        let filter = self.filter(at);
        let levels: Vec<&str> = filter.split('/').collect();
        self.above(ROOT, &levels, true, at)
    }

    /// Sources of the filters below `node` that cover `levels`, but for `except`.
    /// Covering is by form: `+/#` counts as covered by `#` and not the reverse,
    /// although both match the same.
    fn above(&self, node: u32, levels: &[&str], first: bool, except: u32) -> u64 {
        let here = self.at(node);
        let mut sources = 0;
        if let Some(all) = here.children.get("#")
            && *all != except
        {
            sources |= self.at(*all).sources;
        }
        let Some((level, rest)) = levels.split_first() else {
            if !first && node != except {
                sources |= here.sources;
            }
            return sources;
        };
        if *level == "#" {
            return sources;
        }
        if let Some(plus) = here.children.get("+") {
            sources |= self.above(*plus, rest, false, except);
        }
        if *level != "+"
            && let Some(child) = here.children.get(*level)
        {
            sources |= self.above(*child, rest, false, except);
        }
        sources
    }

    fn find(&self, filter: &str) -> Option<u32> {
        filter.split('/').try_fold(ROOT, |node, level| {
            self.at(node).children.get(level).copied()
        })
    }

    fn find_or_insert(&mut self, filter: &str) -> u32 {
        let mut node = ROOT;
        for level in filter.split('/') {
            node = match self.at(node).children.get(level) {
                Some(child) => *child,
                None => {
                    let child = Node {
                        parent: node,
                        level: level.into(),
                        ..Node::default()
                    };
                    let at = match self.free.pop() {
                        Some(at) => {
                            self.nodes[at as usize] = child;
                            at
                        }
                        None => {
                            self.nodes.push(child);
                            (self.nodes.len() - 1) as u32
                        }
                    };
                    self.nodes[node as usize].children.insert(level.into(), at);
                    at
                }
            };
        }
        node
    }

    /// Removes what nobody wants and nobody was told.
    fn prune(&mut self, mut at: u32) {
        while at != ROOT {
            let active = self.active;
            let node = &self.nodes[at as usize];
            if node.sources != 0
                || node.told & active != 0
                || !node.children.is_empty()
                || node.dirty
            {
                return;
            }
            let node = std::mem::take(&mut self.nodes[at as usize]);
            self.nodes[node.parent as usize]
                .children
                .remove(&node.level);
            self.free.push(at);
            at = node.parent;
        }
    }

    fn filter(&self, mut at: u32) -> Box<str> {
        let mut levels = Vec::new();
        while at != ROOT {
            levels.push(&*self.at(at).level);
            at = self.at(at).parent;
        }
        levels.reverse();
        levels.join("/").into()
    }

    fn filters(&self, chosen: impl Fn(&Node) -> bool) -> Vec<Box<str>> {
        let all = self.nodes.iter().enumerate().skip(1);
        all.filter(|(_, node)| chosen(node))
            .map(|(at, _)| self.filter(at as u32))
            .collect()
    }

    fn digests(&self, chosen: impl Fn(&Node) -> bool) -> Box<[u64; BUCKETS]> {
        let mut sums = Box::new([0u64; BUCKETS]);
        for filter in self.filters(chosen) {
            let digest = digest(&filter);
            let sum = &mut sums[bucket(digest)];
            *sum = sum.wrapping_add(digest);
        }
        sums
    }
}

fn batches(link: LinkId, add: Vec<Box<str>>, remove: Vec<Box<str>>, into: &mut Vec<Changes>) {
    let parts = parts(false, add, remove, |f| f.len() + 2, |f| f.len() + 2);
    let changes = |(add, remove)| Changes { link, add, remove };
    into.extend(parts.into_iter().map(changes));
}

/// What is added and what is removed, in parts for one message each that end with what makes
/// them larger than [`BATCH`] bytes. If there is nothing, none, or with `one` an empty one.
pub(crate) fn parts<A, R>(
    one: bool,
    add: Vec<A>,
    remove: Vec<R>,
    added: impl Fn(&A) -> usize,
    removed: impl Fn(&R) -> usize,
) -> Vec<(Vec<A>, Vec<R>)> {
    let add = add.into_iter().map(|item| (added(&item), Some(item), None));
    let remove = remove.into_iter();
    let remove = remove.map(|item| (removed(&item), None, Some(item)));
    let (mut parts, mut part, mut bytes) = (Vec::new(), (Vec::new(), Vec::new()), 0);
    for (size, add, remove) in add.chain(remove) {
        part.0.extend(add);
        part.1.extend(remove);
        bytes += size;
        if bytes > BATCH {
            parts.push(std::mem::take(&mut part));
            bytes = 0;
        }
    }
    if bytes > 0 || one && parts.is_empty() {
        parts.push(part);
    }
    parts
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use proptest::prelude::*;

    const A: LinkId = LinkId(0);
    const B: LinkId = LinkId(1);

    fn table() -> Table {
        let mut table = Table::new(100_000);
        table.activate(A);
        table.activate(B);
        table
    }

    fn texts(filters: &[Box<str>]) -> Vec<&str> {
        let mut texts: Vec<&str> = filters.iter().map(|f| &**f).collect();
        texts.sort_unstable();
        texts
    }

    fn boxed(filters: &[&str]) -> Vec<Box<str>> {
        filters.iter().map(|f| Box::from(*f)).collect()
    }

    #[test]
    fn a_filter_is_told_to_all_but_who_told_it() {
        let mut table = table();
        table.apply(A, boxed(&["a/b"]), Vec::new());
        let changes = table.changes();
        assert_eq!(changes.len(), 1);
        assert_eq!((changes[0].link, texts(&changes[0].add)), (B, vec!["a/b"]));
        // The second source is told to the first.
        table.subscribe("a/b");
        table.subscribe("a/b");
        let changes = table.changes();
        assert_eq!(changes.len(), 1);
        assert_eq!((changes[0].link, texts(&changes[0].add)), (A, vec!["a/b"]));
        // The last to leave withdraws it.
        table.unsubscribe("a/b");
        assert_eq!(table.changes(), []);
        table.unsubscribe("a/b");
        table.apply(A, Vec::new(), boxed(&["a/b"]));
        let changes = table.changes();
        assert_eq!(changes.len(), 2);
        assert!(
            changes
                .iter()
                .all(|c| texts(&c.remove) == ["a/b"] && c.add.is_empty())
        );
        assert!(table.is_empty());
        assert_eq!(table.nodes.len() - table.free.len(), 1);
    }

    #[test]
    fn covered_filters_are_not_told() {
        let mut table = table();
        table.subscribe("a/#");
        table.changes();
        table.subscribe("a/b");
        table.apply(A, boxed(&["a", "a/+/c"]), Vec::new());
        assert_eq!(table.changes(), []);
        // The covering one leaves: first come those it covered.
        table.unsubscribe("a/#");
        let changes = table.changes();
        assert_eq!(changes.len(), 2);
        assert_eq!(texts(&changes[0].add), ["a/b"]);
        assert_eq!(texts(&changes[0].remove), ["a/#"]);
        assert_eq!(texts(&changes[1].add), ["a", "a/+/c", "a/b"]);
    }

    #[test]
    fn what_covers_from_the_same_side_does_not_count() {
        let mut table = table();
        table.apply(A, boxed(&["#"]), Vec::new());
        table.subscribe("x");
        let changes = table.changes();
        // A does not hear of its own '#', so it has to hear of x; B gets '#' only.
        assert_eq!(texts(&changes[0].add), ["x"]);
        assert_eq!(texts(&changes[1].add), ["#"]);
    }

    #[test]
    fn a_full_table_asks_for_everything() {
        let mut table = Table::new(2);
        table.activate(B);
        table.apply(A, boxed(&["a", "b", "c"]), Vec::new());
        assert_eq!(table.len(), 2);
        assert!(table.is_overflown(A) && !table.is_overflown(B));
        assert_eq!(table.receivers("zzz"), (false, vec![A]));
        table.forget(A);
        assert!(!table.is_overflown(A));
    }

    #[test]
    fn batches_are_bounded_and_in_order() {
        let mut table = table();
        for i in 0..5000 {
            table.subscribe(&format!("some/long/topic/name/{i}"));
        }
        let changes = table.changes();
        assert!(changes.len() > 10);
        let total: usize = changes.iter().map(|c| c.add.len()).sum();
        assert_eq!(total, 10_000);
    }

    fn filter() -> impl Strategy<Value = String> {
        let level = || prop_oneof![Just("a"), Just("b"), Just("+"), Just("")];
        (proptest::collection::vec(level(), 1..4), any::<bool>()).prop_map(|(levels, all)| {
            let mut filter = levels.join("/");
            if all {
                filter.push_str("/#");
            }
            if filter.is_empty() {
                "#".into()
            } else {
                filter
            }
        })
    }

    #[derive(Debug, Clone)]
    enum Step {
        Own(bool, String),
        Remote(bool, bool, String),
        Tell,
        Reconnect(bool),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (any::<bool>(), filter()).prop_map(|(on, f)| Step::Own(on, f)),
            4 => (any::<bool>(), any::<bool>(), filter())
                .prop_map(|(side, on, f)| Step::Remote(side, on, f)),
            2 => Just(Step::Tell),
            1 => any::<bool>().prop_map(Step::Reconnect),
        ]
    }

    /// By the definition, without a trie.
    fn expected(sources: &BTreeMap<String, u64>, link: LinkId) -> BTreeSet<String> {
        let covers = |wide: &str, narrow: &str| {
            let (wide, narrow): (Vec<&str>, Vec<&str>) =
                (wide.split('/').collect(), narrow.split('/').collect());
            fn from(wide: &[&str], narrow: &[&str]) -> bool {
                match (wide, narrow) {
                    (["#"], _) => true,
                    ([], []) => true,
                    ([w, wide @ ..], [n, narrow @ ..]) => {
                        *n != "#" && (w == n || *w == "+") && from(wide, narrow)
                    }
                    _ => false,
                }
            }
            from(&wide, &narrow)
        };
        let others: Vec<&String> = sources
            .iter()
            .filter(|(_, s)| **s & !bit(link) != 0)
            .map(|(f, _)| f)
            .collect();
        let is_covered = |f: &String| others.iter().any(|g| *g != f && covers(g, f));
        others
            .iter()
            .filter(|f| !is_covered(f))
            .map(|f| (*f).clone())
            .collect()
    }

    proptest! {
        /// Whatever happens, what was told on each link is what the definition says,
        /// a neighbour that follows the messages knows it, and a reconnect is
        /// repaired by the parts that differ.
        #[test]
        fn neighbours_know_what_is_wanted(steps in proptest::collection::vec(step(), 1..60)) {
            let mut table = table();
            let mut sources: BTreeMap<String, u64> = BTreeMap::new();
            let mut own: BTreeMap<String, u32> = BTreeMap::new();
            let mut known = [BTreeSet::new(), BTreeSet::new()];
            let follow = |known: &mut [BTreeSet<String>; 2], changes: Vec<Changes>| {
                for change in changes {
                    let known = &mut known[usize::from(change.link.0)];
                    known.extend(change.add.iter().map(ToString::to_string));
                    change.remove.iter().for_each(|f| { known.remove(&**f); });
                }
            };
            for step in steps {
                match step {
                    Step::Own(on, f) => {
                        let count = own.entry(f.clone()).or_default();
                        if on {
                            *count += 1;
                            table.subscribe(&f);
                        } else if *count > 0 {
                            *count -= 1;
                            table.unsubscribe(&f);
                        }
                        let source = sources.entry(f).or_default();
                        *source = *source & !OWN | if *count > 0 { OWN } else { 0 };
                    }
                    Step::Remote(side, on, f) => {
                        let link = if side { A } else { B };
                        let filters = vec![Box::from(&*f)];
                        let source = sources.entry(f).or_default();
                        if on {
                            table.apply(link, filters, Vec::new());
                            *source |= bit(link);
                        } else {
                            table.apply(link, Vec::new(), filters);
                            *source &= !bit(link);
                        }
                    }
                    Step::Tell => follow(&mut known, table.changes()),
                    Step::Reconnect(side) => {
                        let link = if side { A } else { B };
                        let known = &mut known[usize::from(link.0)];
                        table.deactivate(link);
                        table.activate(link);
                        let mut theirs = Table::new(1000);
                        theirs.apply(A, known.iter().map(|f| Box::from(&**f)).collect(), Vec::new());
                        let (told, held) = (table.digests_told(link), theirs.digests_wanted_by(A));
                        for index in 0..BUCKETS {
                            if told[index] != held[index] {
                                let filters = table.told(link, index as u8);
                                theirs.replace(A, index as u8, filters);
                            }
                        }
                        prop_assert_eq!(&told, &theirs.digests_wanted_by(A));
                        *known = theirs.wanted_by(A).iter().map(ToString::to_string).collect();
                    }
                }
            }
            follow(&mut known, table.changes());
            sources.retain(|_, s| *s != 0);
            prop_assert_eq!(table.len(), sources.len());
            for link in [A, B] {
                prop_assert_eq!(&known[usize::from(link.0)], &expected(&sources, link));
            }
            for topic in ["a", "a/b", "b/a/", "/"] {
                let wanted = sources.iter().filter(|(f, _)| punctual_codec::topic::matches(f, topic));
                let wanted = wanted.fold(0, |all, (_, s)| all | s);
                let (mine, links) = table.receivers(topic);
                prop_assert_eq!(mine, wanted & OWN != 0);
                prop_assert_eq!(links.contains(&A), wanted & bit(A) != 0);
                prop_assert_eq!(links.contains(&B), wanted & bit(B) != 0);
            }
        }
    }
}
