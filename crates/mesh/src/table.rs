//! The subscription table: the filters of own clients and of neighbours, and which of them are
//! advertised on which link.
//!
//! A trie of topic filters, each with the *sources* that want it (this broker's own clients, or the
//! neighbour on a link) and the links on which it was advertised. A filter is advertised on link L
//! while a source other than L wants it, and no filter that covers it is wanted by a source other
//! than L. So a new topic in a tree of N brokers costs N-1 advertisements, and none where a
//! covering filter is known; it is withdrawn when the last subscriber leaves. Changes are collected
//! until [`Table::changes`] is called; additions precede removals, so that a filter that replaces
//! another leaves no gap. They are processed in slices (`round`), so that no set of filters keeps
//! the broker from its other work.
//!
//! After a reconnect both ends compare sums over 64 parts of the filters
//! ([`Table::digests_told`]), and only parts that differ are sent. Bounded by
//! the number of filters: above it, what neighbours want is not taken in any more,
//! and everything is asked for (`#`), so that memory is bounded and nothing is lost.

mod round;
mod search;

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};

use hashbrown::{HashMap, HashSet};

pub use self::round::{COVERING, PIECE, SLICE};
use self::round::{Round, wanted};
use self::search::{Relation, Walk, covers};
use crate::id::LinkId;
use crate::wire::{BUCKETS, MAX_LEVELS};

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

/// All links, as a set of bits.
const LINKS: u64 = !OWN;
/// The place of a node where no filter ends.
const NOWHERE: u32 = u32::MAX;
/// Bound on the nodes that are visited to find the receivers of a topic, or the links with filters
/// that overlap.
pub const SEARCH: u64 = 100_000;

#[derive(Debug)]
struct Node {
    parent: u32,
    level: Box<str>,
    children: BTreeMap<Box<str>, u32>,
    /// The sources that want the filter that ends here, a bit each.
    sources: u64,
    /// The same as seen by the present or last round.
    settled: u64,
    /// Links on which it was advertised, or would have been if they carried.
    told: u64,
    /// Where it is among the filters of its part.
    place: u32,
    part: u8,
    /// Whether the filter has a wildcard.
    is_wide: bool,
    /// It waits for the next round.
    changed: bool,
    /// It waits for a later step of this round.
    touched: bool,
}

impl Default for Node {
    fn default() -> Self {
        Self {
            parent: ROOT,
            level: Box::default(),
            children: BTreeMap::new(),
            sources: 0,
            settled: 0,
            told: 0,
            place: NOWHERE,
            part: 0,
            is_wide: false,
            changed: false,
            touched: false,
        }
    }
}

/// Sums of digests, by parts and links.
#[derive(Debug)]
struct Sums(Vec<[u64; 64]>);

impl Sums {
    fn new() -> Self {
        Self(vec![[0; 64]; BUCKETS])
    }

    /// Adds a digest to the sums of these links, or takes it away.
    fn change(&mut self, digest: u64, links: u64, add: bool) {
        let difference = if add { digest } else { digest.wrapping_neg() };
        for (link, sum) in self.0[bucket(digest)].iter_mut().enumerate() {
            let is_meant = links >> link & 1;
            *sum = sum.wrapping_add(difference & is_meant.wrapping_neg());
        }
    }

    fn of(&self, link: LinkId) -> Box<[u64; BUCKETS]> {
        let at = usize::from(link.0 % LinkId::MAX);
        Box::new(std::array::from_fn(|part| self.0[part][at]))
    }
}

/// Changes to be advertised on a link.
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
pub struct AppliedChanges {
    /// Filters the neighbour wants now and did not before.
    pub added: Vec<Box<str>>,
    /// Filters it does not want any more.
    pub removed: Vec<Box<str>>,
    /// Whether a filter did not fit, so that the neighbour wants everything from now on.
    pub overflows: bool,
}

/// The table of one broker.
#[derive(Debug)]
pub struct Table {
    nodes: Vec<Node>,
    free: Vec<u32>,
    /// Nodes whose sources changed, for the next round.
    changed: VecDeque<u32>,
    /// Those of them that became wanted on more links during the present round.
    fresh: VecDeque<u32>,
    round: Option<Round>,
    /// Nodes where filters end, by the parts of these.
    by_part: Vec<Vec<u32>>,
    /// Checksums of the advertised filters, and of the filters of neighbours.
    told_sums: Sums,
    wanted_sums: Sums,
    /// How many filters neighbours want, by links.
    counts: [usize; 64],
    /// Units of work on changes.
    work: u64,
    /// Own clients by filter.
    own: HashMap<Box<str>, u32, foldhash::fast::RandomState>,
    /// Links on which changes are advertised.
    active: u64,
    /// Filters with a source.
    len: usize,
    max: usize,
    /// Links whose neighbours wanted more than there was room for: they are sent
    /// everything.
    overflown: u64,
    /// Links whose neighbours are forgotten: they want nothing any more, although nodes from
    /// `forgotten` on may still have them as sources.
    leaving: u64,
    forgotten: usize,
    advertised: u64,
}

impl Table {
    /// An empty table of at most `max` filters.
    pub fn new(max: usize) -> Self {
        Self {
            nodes: vec![Node::default()],
            free: Vec::new(),
            changed: VecDeque::new(),
            fresh: VecDeque::new(),
            round: None,
            by_part: vec![Vec::new(); BUCKETS],
            told_sums: Sums::new(),
            wanted_sums: Sums::new(),
            counts: [0; 64],
            work: 0,
            own: HashMap::default(),
            active: 0,
            len: 0,
            max: max.max(1),
            overflown: 0,
            leaving: 0,
            forgotten: 0,
            advertised: 0,
        }
    }

    /// Number of filters with a source.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no filter has a source.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Additions and removals sent to neighbours so far.
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
        let filter = &*within_levels(filter);
        if let Some(count) = self.own.get_mut(filter) {
            *count += 1;
            return;
        }
        self.own.insert(filter.into(), 1);
        self.set(filter, OWN, true);
    }

    /// A client of this broker does not want a filter any more.
    pub fn unsubscribe(&mut self, filter: &str) {
        let filter = &*within_levels(filter);
        if let Some(count) = self.own.get_mut(filter) {
            *count -= 1;
            if *count == 0 {
                self.own.remove(filter);
                self.set(filter, OWN, false);
            }
        }
    }

    /// Whether a filter has one own subscription, so that the next [`Self::unsubscribe`] removes
    /// it.
    pub fn is_last(&self, filter: &str) -> bool {
        self.own.get(&*within_levels(filter)) == Some(&1)
    }

    /// Applies changes of a neighbour.
    pub fn apply(
        &mut self,
        link: LinkId,
        add: Vec<Box<str>>,
        remove: Vec<Box<str>>,
    ) -> AppliedChanges {
        let mut applied = AppliedChanges::default();
        for filter in add {
            if self.len >= self.max && self.find(&filter).is_none_or(|n| self.at(n).sources == 0) {
                self.overflown |= bit(link);
                applied.overflows = true;
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

    /// What the neighbour on a link wants in one part and is not among these filters.
    pub fn not_among(&self, link: LinkId, index: u8, filters: &[Box<str>]) -> Vec<Box<str>> {
        let all: HashSet<&str, foldhash::fast::RandomState> =
            filters.iter().map(|filter| &**filter).collect();
        let mut others = self.of_part(index, |node| self.sources(node) & bit(link) != 0);
        others.retain(|filter| !all.contains(&**filter));
        others
    }

    /// How many more filters fit.
    pub fn room(&self) -> usize {
        self.max.saturating_sub(self.len)
    }

    /// Whether the neighbour on a link wants a filter.
    pub fn is_wanted_by(&self, link: LinkId, filter: &str) -> bool {
        let node = self.find(filter).map(|node| self.at(node));
        node.is_some_and(|node| self.sources(node) & bit(link) != 0)
    }

    /// Forgets what the neighbour on a link wanted. It wants nothing from now on, and the table is
    /// tidied up by [`Self::changes`].
    pub fn forget(&mut self, link: LinkId) {
        let at = usize::from(link.0 % LinkId::MAX);
        self.overflown &= !bit(link);
        if std::mem::take(&mut self.counts[at]) > 0 {
            self.wanted_sums.0.iter_mut().for_each(|sums| sums[at] = 0);
            self.leaving |= bit(link);
            self.forgotten = 0;
        }
    }

    /// Goes on with that at one node.
    fn forget_at_next(&mut self) {
        match self.nodes.get(self.forgotten) {
            Some(node) => {
                let sources = node.sources & !self.leaving;
                self.set_sources(self.forgotten as u32, sources);
                self.forgotten += 1;
            }
            None => self.leaving = 0,
        }
    }

    /// What the neighbour on a link wants.
    pub fn wanted_by(&self, link: LinkId) -> Vec<Box<str>> {
        let parts = 0..BUCKETS as u8;
        let wanted = |node: &Node| self.sources(node) & bit(link) != 0;
        parts.flat_map(|part| self.of_part(part, wanted)).collect()
    }

    /// How many filters the neighbour on a link wants.
    pub fn count_wanted_by(&self, link: LinkId) -> usize {
        self.counts[usize::from(link.0 % LinkId::MAX)]
    }

    /// Whether own clients want a topic, and the links over which it is wanted. If that is
    /// undecided after [`SEARCH`] nodes of the table, every source counts as wanting it.
    pub fn receivers(&self, topic: &str) -> (bool, Vec<LinkId>) {
        let levels: Vec<&str> = topic.split('/').collect();
        let links = || (0..LinkId::MAX).map(LinkId);
        let own = if self.own.is_empty() { 0 } else { OWN };
        let others = links().filter(|link| self.count_wanted_by(*link) > 0);
        let everybody = others.fold(own, |all, link| all | bit(link)) | self.overflown;
        let enough = |found| (found | self.overflown) == everybody;
        let sources = |node: &Node| self.sources(node);
        let search = match topic.starts_with('$') {
            true => None,
            false => Some(covers(
                &self.nodes,
                &levels,
                u32::MAX,
                sources,
                enough,
                SEARCH,
            )),
        };
        let sources = search.map_or(0, |search| match search.is_complete {
            true => search.found | self.overflown,
            false => everybody,
        });
        (
            sources & OWN != 0,
            links().filter(|link| sources & bit(*link) != 0).collect(),
        )
    }

    /// Links over which something is wanted that has topics in common with any of these filters. If
    /// that is not known after [`SEARCH`] nodes of the table, all of `links`, which is asked
    /// for.
    pub fn overlapping(&self, links: &[LinkId], filters: &[Box<str>]) -> Vec<LinkId> {
        let asked = links.iter().fold(0, |all, link| all | bit(*link));
        let (mut found, mut visits) = (0, 0);
        'search: for filter in filters {
            let levels = filter.split('/').map(Box::from).collect();
            let mut walk = Walk::new(levels, Relation::Overlapping);
            while !walk.is_over() && found != asked {
                if visits == SEARCH {
                    found = asked;
                    break 'search;
                }
                visits += 1;
                if let Some(at) = walk.step(&self.nodes) {
                    found |= self.sources(self.at(at)) & asked;
                }
            }
        }
        let mut found_links = links.to_vec();
        found_links.retain(|link| found & bit(*link) != 0);
        found_links
    }

    /// A link begins to carry: changes are advertised on it from now on. The filters recorded as
    /// advertised are taken as known there, and compared by [`Self::digests_told`].
    pub fn activate(&mut self, link: LinkId) {
        self.active |= bit(link);
    }

    /// A link ceases to carry: nothing is advertised on it.
    pub fn deactivate(&mut self, link: LinkId) {
        self.active &= !bit(link);
    }

    /// Checksums of the filters advertised on a link, by parts.
    pub fn digests_told(&self, link: LinkId) -> Box<[u64; BUCKETS]> {
        self.told_sums.of(link)
    }

    /// Sums over what the neighbour on a link wants, by parts.
    pub fn digests_wanted_by(&self, link: LinkId) -> Box<[u64; BUCKETS]> {
        self.wanted_sums.of(link)
    }

    /// The filters of one part that were advertised on a link.
    pub fn told(&mut self, link: LinkId, index: u8) -> Vec<Box<str>> {
        let filters = self.of_part(index, |node| node.told & bit(link) != 0);
        self.advertised += filters.len() as u64;
        filters
    }

    fn at(&self, node: u32) -> &Node {
        &self.nodes[node as usize]
    }

    /// The sources that want the filter that ends in a node.
    fn sources(&self, node: &Node) -> u64 {
        node.sources & !self.leaving
    }

    /// Adds or removes a source; says whether that is a change.
    fn set(&mut self, filter: &str, source: u64, wanted: bool) -> bool {
        // The link number was reused before its old filters were completely removed.
        while self.leaving & source != 0 {
            self.forget_at_next();
        }
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
        let digest = digest(filter);
        self.place(at, bucket(digest));
        self.set_sources(at, after);
        if source != OWN {
            self.wanted_sums.change(digest, source, wanted);
            let count = &mut self.counts[source.trailing_zeros() as usize];
            *count = if wanted { *count + 1 } else { *count - 1 };
        }
        true
    }

    /// From now on these want a filter, instead of those before.
    fn set_sources(&mut self, at: u32, sources: u64) {
        let is_amid = self.is_amid();
        let node = &mut self.nodes[at as usize];
        let before = std::mem::replace(&mut node.sources, sources);
        if before == sources {
            return;
        }
        self.len = self.len + usize::from(before == 0) - usize::from(sources == 0);
        if !std::mem::replace(&mut node.changed, true) {
            self.changed.push_back(at);
        }
        // The round may be about to withdraw what covers it there.
        if is_amid && wanted(sources) & !wanted(before) != 0 {
            self.fresh.push_back(at);
        }
    }

    /// A filter ends in that node, and is of that part.
    fn place(&mut self, at: u32, part: usize) {
        let (node, places) = (&mut self.nodes[at as usize], &mut self.by_part[part]);
        if node.place == NOWHERE {
            (node.place, node.part) = (places.len() as u32, part as u8);
            places.push(at);
        }
    }

    /// No filter ends there any more.
    fn displace(&mut self, at: u32) {
        let node = &mut self.nodes[at as usize];
        let place = std::mem::replace(&mut node.place, NOWHERE);
        if place == NOWHERE {
            return;
        }
        let places = &mut self.by_part[usize::from(node.part)];
        places.swap_remove(place as usize);
        if let Some(moved) = places.get(place as usize) {
            self.nodes[*moved as usize].place = place;
        }
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
                        is_wide: self.at(node).is_wide || matches!(level, "+" | "#"),
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

    fn levels(&self, mut at: u32) -> Vec<&str> {
        let mut levels = Vec::new();
        while at != ROOT {
            levels.push(&*self.at(at).level);
            at = self.at(at).parent;
        }
        levels.reverse();
        levels
    }

    fn filter(&self, at: u32) -> Box<str> {
        self.levels(at).join("/").into()
    }

    fn of_part(&self, part: u8, chosen: impl Fn(&Node) -> bool) -> Vec<Box<str>> {
        let all = self.by_part[usize::from(part)].iter();
        all.filter(|at| chosen(self.at(**at)))
            .map(|at| self.filter(*at))
            .collect()
    }
}

/// The filter, or where it has more than [`MAX_LEVELS`] levels, one of that many that covers it.
pub(crate) fn within_levels(filter: &str) -> Cow<'_, str> {
    let mut slashes = filter.match_indices('/').map(|(at, _)| at);
    let last = slashes.nth(MAX_LEVELS - 2);
    match (last, slashes.next()) {
        (Some(at), Some(_)) => Cow::Owned(format!("{}/#", &filter[..at])),
        _ => Cow::Borrowed(filter),
    }
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
    use proptest::test_runner::TestCaseError;

    const A: LinkId = LinkId(0);
    const B: LinkId = LinkId(1);

    fn table() -> Table {
        let mut table = Table::new(100_000);
        table.activate(A);
        table.activate(B);
        table
    }

    /// All that is to be told.
    fn all_changes(table: &mut Table) -> Vec<Changes> {
        let mut changes = Vec::new();
        while table.has_changes() {
            let before = table.work();
            changes.extend(table.changes());
            assert!(table.work() - before <= SLICE + PIECE);
        }
        changes
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
        let changes = all_changes(&mut table);
        assert_eq!(changes.len(), 1);
        assert_eq!((changes[0].link, texts(&changes[0].add)), (B, vec!["a/b"]));
        // The second source is told to the first.
        table.subscribe("a/b");
        table.subscribe("a/b");
        let changes = all_changes(&mut table);
        assert_eq!(changes.len(), 1);
        assert_eq!((changes[0].link, texts(&changes[0].add)), (A, vec!["a/b"]));
        // The last to leave withdraws it.
        table.unsubscribe("a/b");
        assert_eq!(all_changes(&mut table), []);
        table.unsubscribe("a/b");
        table.apply(A, Vec::new(), boxed(&["a/b"]));
        let changes = all_changes(&mut table);
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
        all_changes(&mut table);
        table.subscribe("a/b");
        table.apply(A, boxed(&["a", "a/+/c"]), Vec::new());
        assert_eq!(all_changes(&mut table), []);
        // The covering one leaves: first come those it covered.
        table.unsubscribe("a/#");
        let changes = all_changes(&mut table);
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
        let changes = all_changes(&mut table);
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
        let changes = all_changes(&mut table);
        assert!(changes.len() > 10);
        let total: usize = changes.iter().map(|c| c.add.len()).sum();
        assert_eq!(total, 10_000);
    }

    /// All filters of `levels` levels that are each `a` or `+`, and `z`, the narrowest first.
    fn mixed(levels: u32) -> impl Iterator<Item = String> {
        (0..1u32 << levels).map(move |bits| {
            let levels = (0..levels).map(|level| if bits >> level & 1 == 1 { "+" } else { "a" });
            format!("{}/z", Vec::from_iter(levels).join("/"))
        })
    }

    /// Each of them covers up to 8191 others, and is covered by as many: 3^13 pairs.
    #[test]
    fn filters_that_cover_each_other_take_bounded_work() {
        let mut table = table();
        let mut known: [BTreeSet<Box<str>>; 2] = Default::default();
        let told = |table: &mut Table, known: &mut [BTreeSet<Box<str>>; 2]| {
            for change in all_changes(table) {
                let known = &mut known[usize::from(change.link.0)];
                known.extend(change.add);
                change.remove.iter().for_each(|f| {
                    known.remove(f);
                });
            }
        };
        let narrow = "+/".repeat(13) + "z";
        // All at once.
        mixed(13).for_each(|filter| table.subscribe(&filter));
        told(&mut table, &mut known);
        let at_once = table.work();
        assert!(at_once < 1_000_000, "{at_once}");
        assert_eq!(known[0], BTreeSet::from([narrow.as_str().into()]));
        // The one that covers all goes and comes back.
        table.unsubscribe(&narrow);
        told(&mut table, &mut known);
        assert_eq!(known[0].len(), 13);
        assert!(
            known[0]
                .iter()
                .all(|filter| filter.matches('a').count() == 1)
        );
        table.subscribe(&narrow);
        told(&mut table, &mut known);
        let round = (table.work() - at_once) / 2;
        assert!(round < 1_000_000, "{round}");
        assert_eq!(known[1], BTreeSet::from([narrow.as_str().into()]));
        mixed(13).for_each(|filter| table.unsubscribe(&filter));
        told(&mut table, &mut known);
        assert!(known[0].is_empty() && known[1].is_empty());
        assert_eq!(table.nodes.len() - table.free.len(), 1);
    }

    /// The same from a neighbour, one by one: to others none of them is covered by own filters.
    #[test]
    fn each_filter_takes_bounded_work_where_all_cover_each_other() {
        let mut table = table();
        let mut most = 0;
        for filter in mixed(13) {
            let before = table.work();
            table.apply(A, vec![filter.into()], Vec::new());
            // One slice for each input, as in a node.
            table.changes();
            most = most.max(table.work() - before);
        }
        assert!((1..=SLICE + PIECE).contains(&most), "{most}");
        all_changes(&mut table);
        assert_eq!(table.receivers(&("a/".repeat(13) + "z")), (false, vec![A]));
    }

    #[test]
    fn filters_have_a_limited_number_of_levels() {
        let deepest = "+/".repeat(MAX_LEVELS - 1) + "z";
        let deeper = "+/".repeat(32_767) + "z";
        let instead = "+/".repeat(MAX_LEVELS - 1) + "#";
        assert_eq!(within_levels(&deepest), deepest);
        assert_eq!(within_levels(&deeper), instead);
        let mut table = table();
        table.subscribe(&deepest);
        for _ in 0..2 {
            table.subscribe(&deeper);
        }
        let changes = all_changes(&mut table);
        assert_eq!(texts(&changes[0].add), [instead.as_str()]);
        assert!(table.is_last(&deepest) && !table.is_last(&deeper));
        // The walks to what they cover go no deeper than that, and end.
        table.apply(A, vec!["a/".repeat(MAX_LEVELS - 1).into()], Vec::new());
        table.unsubscribe(&deeper);
        assert_eq!(all_changes(&mut table), []);
        table.unsubscribe(&deeper);
        let changes = all_changes(&mut table).into_iter();
        let (add, remove): (Vec<_>, Vec<_>) = changes
            .filter(|change| change.link == A)
            .map(|change| (change.add, change.remove))
            .unzip();
        assert_eq!(texts(&add.concat()), [deepest.as_str()]);
        assert_eq!(texts(&remove.concat()), [instead.as_str()]);
        assert!(table.work() < 20 * PIECE, "{}", table.work());
    }

    #[test]
    fn a_new_filter_does_not_wait_for_the_end_of_a_round() {
        let mut table = table();
        for n in 0..5000 {
            table.subscribe(&format!("{n}/+"));
        }
        table.changes();
        assert!(table.is_amid());
        table.subscribe("new");
        assert!(texts(&table.changes()[0].add).contains(&"new"));
        assert!(table.is_amid());
    }

    #[test]
    fn a_neighbour_is_forgotten_in_slices() {
        let mut table = table();
        let filters = (0..50_000).map(|n| format!("some/{n}").into()).collect();
        table.apply(A, filters, Vec::new());
        all_changes(&mut table);
        table.forget(A);
        assert_eq!(table.receivers("some/7"), (false, vec![]));
        assert_eq!(table.digests_wanted_by(A), table.digests_wanted_by(B));
        table.changes();
        assert!(table.is_amid() && !table.is_empty());
        // Somebody else gets its number before that is done.
        table.apply(A, boxed(&["some/8"]), Vec::new());
        assert_eq!((table.len(), table.count_wanted_by(A)), (1, 1));
        all_changes(&mut table);
        assert_eq!(table.nodes.len() - table.free.len(), 3);
    }

    #[test]
    fn links_that_new_filters_concern() {
        let mut table = table();
        table.apply(A, boxed(&["a/+/c", "b/#", "x"]), Vec::new());
        table.apply(B, boxed(&["+/y", "q/r/s"]), Vec::new());
        for (filter, links) in [
            ("a/b/c", vec![A]),
            ("a/b/+", vec![A]),
            ("a/#", vec![A, B]),
            ("b", vec![A]),
            ("b/y", vec![A, B]),
            ("q/+/s", vec![B]),
            ("q/+", vec![B]),
            ("q/r", vec![]),
            ("+", vec![A]),
            ("z/z/z", vec![]),
            ("#", vec![A, B]),
        ] {
            assert_eq!(
                table.overlapping(&[A, B], &boxed(&[filter])),
                links,
                "{filter}"
            );
        }
        // Where that would take too long to find out, all are.
        mixed(13).for_each(|filter| table.subscribe(&filter));
        let many: Vec<Box<str>> = (0..100)
            .map(|n| ("+/".repeat(13) + &n.to_string()).into())
            .collect();
        assert_eq!(table.overlapping(&[A, B], &many), [A, B]);
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
        /// For so many units of work.
        Tell(u64),
        Down(bool),
        Up(bool),
        Forget(bool),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (any::<bool>(), filter()).prop_map(|(on, f)| Step::Own(on, f)),
            4 => (any::<bool>(), any::<bool>(), filter())
                .prop_map(|(side, on, f)| Step::Remote(side, on, f)),
            6 => (1..40u64).prop_map(Step::Tell),
            1 => any::<bool>().prop_map(Step::Down),
            1 => any::<bool>().prop_map(Step::Up),
            1 => any::<bool>().prop_map(Step::Forget),
        ]
    }

    fn covers(wide: &str, narrow: &str) -> bool {
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
    }

    fn wanted(sources: &BTreeMap<String, u64>, link: LinkId) -> BTreeSet<String> {
        let others = sources.iter().filter(|(_, s)| **s & !bit(link) != 0);
        others.map(|(f, _)| f.clone()).collect()
    }

    /// By the definition, without a trie.
    fn expected(sources: &BTreeMap<String, u64>, link: LinkId) -> BTreeSet<String> {
        let others = wanted(sources, link);
        let is_covered = |f: &String| others.iter().any(|g| g != f && covers(g, f));
        others.iter().filter(|f| !is_covered(f)).cloned().collect()
    }

    /// A neighbour that follows the messages never loses a filter that somebody wants, and knows in
    /// the end what the definition says. A link that carries again is repaired by the parts that
    /// differ.
    fn follow(steps: Vec<Step>) -> Result<(), TestCaseError> {
        let mut table = table();
        let mut sources: BTreeMap<String, u64> = BTreeMap::new();
        let mut own: BTreeMap<String, u32> = BTreeMap::new();
        let mut known = [BTreeSet::new(), BTreeSet::new()];
        let mut is_up = [true, true];
        // What each neighbour knows, or knows to be covered, and somebody wants since then.
        let mut sent: [BTreeSet<String>; 2] = Default::default();
        let learn = |known: &mut [BTreeSet<String>; 2], changes: Vec<Changes>| {
            for change in changes {
                let known = &mut known[usize::from(change.link.0)];
                known.extend(change.add.iter().map(ToString::to_string));
                change.remove.iter().for_each(|f| {
                    known.remove(&**f);
                });
            }
        };
        let steps = steps.into_iter().chain([Step::Up(true), Step::Up(false)]);
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
                Step::Forget(side) => {
                    let link = if side { A } else { B };
                    table.forget(link);
                    sources
                        .values_mut()
                        .for_each(|sources| *sources &= !bit(link));
                    prop_assert!(table.wanted_by(link).is_empty());
                }
                Step::Tell(units) => learn(&mut known, table.changes_within(units)),
                Step::Down(side) => {
                    let link = if side { A } else { B };
                    table.deactivate(link);
                    is_up[usize::from(link.0)] = false;
                }
                Step::Up(side) => {
                    let link = if side { A } else { B };
                    let at = usize::from(link.0);
                    if std::mem::replace(&mut is_up[at], true) {
                        continue;
                    }
                    let known = &mut known[at];
                    table.activate(link);
                    let mut theirs = Table::new(1000);
                    theirs.apply(
                        A,
                        known.iter().map(|f| Box::from(&**f)).collect(),
                        Vec::new(),
                    );
                    let (told, held) = (table.digests_told(link), theirs.digests_wanted_by(A));
                    for index in 0..BUCKETS {
                        if told[index] != held[index] {
                            let filters = table.told(link, index as u8);
                            let gone = theirs.not_among(A, index as u8, &filters);
                            theirs.apply(A, filters, gone);
                        }
                    }
                    prop_assert_eq!(&told, &theirs.digests_wanted_by(A));
                    *known = theirs
                        .wanted_by(A)
                        .iter()
                        .map(ToString::to_string)
                        .collect();
                }
            }
            for link in [A, B] {
                let at = usize::from(link.0);
                let wanted = wanted(&sources, link);
                let is_known = |f: &String| known[at].iter().any(|g| covers(g, f));
                sent[at].retain(|f| is_up[at] && wanted.contains(f));
                prop_assert!(sent[at].iter().all(is_known));
                if is_up[at] {
                    sent[at].extend(wanted.into_iter().filter(is_known));
                }
            }
        }
        learn(&mut known, all_changes(&mut table));
        sources.retain(|_, s| *s != 0);
        prop_assert_eq!(table.len(), sources.len());
        for link in [A, B] {
            prop_assert_eq!(&known[usize::from(link.0)], &expected(&sources, link));
        }
        for topic in ["a", "a/b", "b/a/", "/"] {
            let wanted = sources
                .iter()
                .filter(|(f, _)| punctual_codec::topic::matches(f, topic));
            let wanted = wanted.fold(0, |all, (_, s)| all | s);
            let (mine, links) = table.receivers(topic);
            prop_assert_eq!(mine, wanted & OWN != 0);
            prop_assert_eq!(links.contains(&A), wanted & bit(A) != 0);
            prop_assert_eq!(links.contains(&B), wanted & bit(B) != 0);
        }
        Ok(())
    }

    fn advertise_in_pieces(steps: &[(&str, &str)]) {
        let steps = steps.iter().map(|(what, value)| match *what {
            "tell" => Step::Tell(value.parse().unwrap()),
            "own" => Step::Own(true, (*value).to_owned()),
            "end" => Step::Own(false, (*value).to_owned()),
            "a" => Step::Remote(true, true, (*value).to_owned()),
            "b" => Step::Remote(false, true, (*value).to_owned()),
            _ => Step::Forget(false),
        });
        follow(steps.collect()).unwrap();
    }

    /// A filter that comes while a round is interrupted is told, if what covers it is about to be
    /// withdrawn.
    #[test]
    fn a_new_filter_outlives_what_covered_it() {
        advertise_in_pieces(&[
            ("b", "#"),
            ("tell", "12"),
            ("forget b", ""),
            ("own", "a"),
            ("own", "a/a"),
            ("a", "+/a"),
            ("tell", "8"),
            ("end", "a"),
            ("b", "a/#"),
            ("tell", "17"),
            ("tell", "34"),
        ]);
    }

    /// The same of one that is wanted already, and then by somebody else, too.
    #[test]
    fn a_filter_is_told_where_it_is_wanted_since_then() {
        advertise_in_pieces(&[
            ("b", "#"),
            ("tell", "12"),
            ("forget b", ""),
            ("a", "a/a"),
            ("tell", "5"),
            ("a", "/+/#"),
            ("tell", "10"),
            ("b", "/+/#"),
            ("tell", "20"),
        ]);
    }

    proptest! {
        /// Whatever happens, and wherever telling is interrupted.
        #[test]
        fn neighbours_know_what_is_wanted(steps in proptest::collection::vec(step(), 1..80)) {
            follow(steps)?;
        }
    }
}
