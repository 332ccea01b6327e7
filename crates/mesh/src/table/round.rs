//! Rounds: how changes of the table become advertisements on links, a slice at a time.
//!
//! Whether a filter is advertised depends on all filters that cover it, and one filter may cover
//! all others. So changes are processed in rounds. A round works on a snapshot of the sources
//! ([`Node::settled`]); later changes wait for the next round. It visits the changed filters and
//! the filters that they cover, decides for each whether it is to be advertised, and if so
//! advertises it at once. Withdrawals come at the end, when the filters that cover a withdrawn one,
//! or were covered by it, have been advertised. A round that is interrupted leaves neighbours with
//! more filters than they need, and never with fewer.
//!
//! Two bounds keep a round short, whatever the filters are. When walks to covered filters have
//! visited as many nodes as the table has, all filters are examined instead. And if the search for
//! covering filters has visited many nodes ([`COVERING`]) without an answer, the filter is
//! advertised: that is never wrong, since its messages would come anyway.
//!
//! A filter that becomes wanted on more links during a round is advertised there before the round
//! ends, unless a filter in the snapshot covers it: the filter that covered it before may be
//! withdrawn.

use std::collections::{BTreeMap, VecDeque};

use super::search::{Relation, Walk, covers};
use super::{Changes, LINKS, LinkId, MAX_LEVELS, NOWHERE, Node, ROOT, Table, bit, digest, parts};

/// Units of work in one call of [`Table::changes`]. What cannot be divided may overdraw them once,
/// by [`PIECE`] at most.
pub const SLICE: u64 = 10_000;
/// Nodes that are visited to see whether a filter is covered, beside two for each of its levels.
pub const COVERING: u64 = 256;
/// Units of the longest indivisible piece of work: a filter's levels, the search for covering
/// filters, and one for each link on which it is advertised.
pub const PIECE: u64 = 3 * MAX_LEVELS as u64 + COVERING + LinkId::MAX as u64 + 2;

/// Where a round is.
#[derive(Debug)]
pub(super) struct Round {
    /// Nodes whose sources changed before it began, and were not taken over yet.
    changed: VecDeque<u32>,
    /// Wildcard filters that changed.
    wide: Vec<u32>,
    /// The walk to what one of them covers.
    walk: Option<Walk>,
    /// Nodes that these walks may visit.
    visits: usize,
    /// Filters to be looked at.
    touched: VecDeque<u32>,
    /// All filters from this node on are to be looked at.
    all: Option<usize>,
    /// Filters to be withdrawn, and on which links.
    withdrawn: VecDeque<(u32, u64)>,
}

/// What a slice tells, by links.
type News = BTreeMap<LinkId, (Vec<Box<str>>, Vec<Box<str>>)>;

/// Links on which filters with these sources are wanted by another source.
pub(super) fn wanted(sources: u64) -> u64 {
    match sources.count_ones() {
        0 => 0,
        1 => LINKS & !sources,
        _ => LINKS,
    }
}

/// Links on which filters are not covered by others that have those sources together.
fn uncovered(sources: u64) -> u64 {
    match sources.count_ones() {
        0 => LINKS,
        1 => LINKS & sources,
        _ => 0,
    }
}

impl Table {
    /// Whether there may be something to tell.
    pub fn has_changes(&self) -> bool {
        !self.changed.is_empty() || self.is_amid()
    }

    /// Whether a round is in progress: not all of its changes were returned by [`Self::changes`]
    /// yet.
    pub fn is_amid(&self) -> bool {
        self.round.is_some() || self.leaving != 0
    }

    /// Units of work that [`Self::changes`] has done so far.
    pub fn work(&self) -> u64 {
        self.work
    }

    /// Continues the round, or begins one, for [`SLICE`] units of work: returns the next messages,
    /// of bounded size, in the order in which they are to be sent. When [`Self::is_amid`] is false,
    /// all changes made before the round have been returned.
    pub fn changes(&mut self) -> Vec<Changes> {
        self.changes_within(SLICE)
    }

    /// The same for so many units of work.
    pub(super) fn changes_within(&mut self, units: u64) -> Vec<Changes> {
        let mut news = News::new();
        let end = self.work + units;
        while self.leaving != 0 && self.work < end {
            self.work += 1;
            self.forget_at_next();
        }
        if self.leaving != 0 {
            return Vec::new();
        }
        let mut round = self.round.take().unwrap_or_else(|| self.begin());
        let is_over = loop {
            if self.work >= end {
                break false;
            }
            // Covering is decided only once the snapshot of the sources is complete.
            if round.changed.is_empty()
                && let Some(at) = self.fresh.pop_front()
            {
                self.advertise_early(at, &mut news);
            } else if !self.go_on(&mut round, &mut news) {
                break true;
            }
        };
        if !is_over {
            self.round = Some(round);
        }
        let mut changes = Vec::new();
        for (link, (add, remove)) in news {
            let parts = parts(false, add, remove, |f| f.len() + 2, |f| f.len() + 2);
            let messages = parts.into_iter();
            changes.extend(messages.map(|(add, remove)| Changes { link, add, remove }));
        }
        changes
    }

    fn begin(&mut self) -> Round {
        Round {
            changed: std::mem::take(&mut self.changed),
            wide: Vec::new(),
            walk: None,
            visits: self.nodes.len(),
            touched: VecDeque::new(),
            all: None,
            withdrawn: VecDeque::new(),
        }
    }

    /// Does one piece of a round; says whether there was any left.
    fn go_on(&mut self, round: &mut Round, news: &mut News) -> bool {
        self.work += 1;
        if let Some(at) = round.changed.pop_front() {
            self.take_over(at, round);
        } else if let Some(walk) = &mut round.walk {
            let found = walk.step(&self.nodes);
            if walk.is_over() {
                round.walk = None;
            }
            if let Some(at) = found {
                self.touch(at, round);
            }
            match round.visits.checked_sub(1) {
                Some(left) => round.visits = left,
                None => {
                    (round.walk, round.all) = (None, Some(0));
                    round.wide.clear();
                    // All of them are found among all filters.
                    round.touched.clear();
                }
            }
        } else if let Some(at) = round.wide.pop() {
            let levels: Vec<Box<str>> = self.levels(at).into_iter().map(Box::from).collect();
            self.work += levels.len() as u64;
            round.walk = Some(Walk::new(levels, Relation::Covered));
        } else if let Some(at) = round.touched.pop_front() {
            self.look_at(at, round, news);
        } else if let Some(at) = round.all.filter(|at| *at < self.nodes.len()) {
            round.all = Some(at + 1);
            if self.nodes[at].place != NOWHERE {
                self.look_at(at as u32, round, news);
            }
        } else if let Some((at, links)) = round.withdrawn.pop_front() {
            self.withdraw(at, links, news);
        } else {
            return false;
        }
        true
    }

    /// Adds a filter to the snapshot of the round.
    fn take_over(&mut self, at: u32, round: &mut Round) {
        let node = &mut self.nodes[at as usize];
        node.changed = false;
        let before = std::mem::replace(&mut node.settled, node.sources);
        if before != node.settled && node.is_wide {
            round.wide.push(at);
        }
        self.touch(at, round);
    }

    fn touch(&mut self, at: u32, round: &mut Round) {
        let node = &mut self.nodes[at as usize];
        if node.place != NOWHERE && !node.touched {
            node.touched = true;
            round.touched.push_back(at);
        }
    }

    /// Of the links on which a filter is wanted, those on which no other filter in the snapshot
    /// covers it.
    fn due(&mut self, at: u32, wanted: u64) -> u64 {
        if wanted == 0 {
            return 0;
        }
        let levels = self.levels(at);
        let enough = |found| wanted & uncovered(found) == 0;
        let settled = |node: &Node| node.settled;
        let depth = levels.len() as u64;
        let limit = 2 * depth + COVERING;
        let search = covers(&self.nodes, &levels, at, settled, enough, limit);
        self.work += depth + search.visits;
        wanted & uncovered(search.found)
    }

    /// Decides on which links a filter is advertised.
    fn look_at(&mut self, at: u32, round: &mut Round, news: &mut News) {
        let due = self.due(at, wanted(self.at(at).settled));
        let node = &mut self.nodes[at as usize];
        let (add, remove) = (due & !node.told, node.told & !due);
        // A filter that is to be withdrawn, or has no source, is removed only in its turn.
        let ends = remove != 0 || node.settled == 0;
        node.touched = ends;
        if ends {
            round.withdrawn.push_back((at, remove));
        }
        self.tell(at, add, news);
    }

    /// Tells a filter where it is wanted since the round began.
    fn advertise_early(&mut self, at: u32, news: &mut News) {
        self.work += 1;
        let due = self.due(at, wanted(self.at(at).sources));
        let add = due & !self.at(at).told;
        self.tell(at, add, news);
    }

    /// Advertises a filter on these links.
    fn tell(&mut self, at: u32, links: u64, news: &mut News) {
        if links != 0 {
            let filter = self.filter(at);
            self.set_told(at, links, &filter, true);
            self.say(links, &filter, news, |(add, _)| add);
        }
    }

    /// Withdraws a filter on these links, unless it has changed meanwhile.
    fn withdraw(&mut self, at: u32, links: u64, news: &mut News) {
        let node = &mut self.nodes[at as usize];
        node.touched = false;
        if node.changed {
            return;
        }
        if links != 0 {
            let filter = self.filter(at);
            self.set_told(at, links, &filter, false);
            self.say(links, &filter, news, |(_, remove)| remove);
        }
        self.prune(at);
    }

    fn set_told(&mut self, at: u32, links: u64, filter: &str, told: bool) {
        let node = &mut self.nodes[at as usize];
        node.told = if told {
            node.told | links
        } else {
            node.told & !links
        };
        self.told_sums.change(digest(filter), links, told);
    }

    fn say(
        &mut self,
        links: u64,
        filter: &str,
        news: &mut News,
        list: impl Fn(&mut (Vec<Box<str>>, Vec<Box<str>>)) -> &mut Vec<Box<str>>,
    ) {
        let links = links & self.active;
        let each = (0..LinkId::MAX).map(LinkId);
        for link in each.filter(|link| links & bit(*link) != 0) {
            list(news.entry(link).or_default()).push(filter.into());
        }
        self.advertised += u64::from(links.count_ones());
        self.work += u64::from(links.count_ones());
    }

    /// Removes nodes without sources, advertisements and children.
    fn prune(&mut self, mut at: u32) {
        while at != ROOT {
            let node = &self.nodes[at as usize];
            let is_used = node.sources | node.told != 0 || !node.children.is_empty();
            if is_used || node.changed || node.touched {
                return;
            }
            self.displace(at);
            let node = std::mem::take(&mut self.nodes[at as usize]);
            self.nodes[node.parent as usize]
                .children
                .remove(&node.level);
            self.free.push(at);
            self.work += 1;
            at = node.parent;
        }
    }
}
