//! How changes of the table become what is told on links, a slice at a time.
//!
//! Whether a filter is told depends on all filters that cover it, and one filter may cover all others.
//! So changes are worked off in rounds. A round takes over the changes there are ([`Node::settled`]);
//! what changes meanwhile waits for the next one, so all of a round sees the same table. It visits
//! filters that those that changed cover, sees for each whether it is to be told, and tells it at
//! once if it is. What is not to be told any more is withdrawn at the end: whoever covers it, or is
//! not covered by it any more, is told by then. A round that is interrupted leaves neighbours with
//! more filters than they need, and never with fewer.
//!
//! Two things keep a round short, whatever the filters are. Where walks to covered filters
//! visit as many nodes as the table has, all filters are looked at instead. And where the search for
//! what covers a filter visits many nodes ([`COVERING`]) without an answer, the filter is told: its messages
//! would come anyhow.
//!
//! A filter that is wanted on more links while a round goes on is told there before the round ends, unless
//! it is covered by something that the round knows: what covered it before may be withdrawn.

use std::collections::{BTreeMap, VecDeque};

use super::search::{Relation, Walk, covers};
use super::{Changes, LINKS, LinkId, MAX_LEVELS, NOWHERE, Node, ROOT, Table, bit, digest, parts};

/// Units of work in one call of [`Table::changes`]. What cannot be divided may overdraw them once,
/// by [`PIECE`] at most.
pub const SLICE: u64 = 10_000;
/// Nodes that are visited to see whether a filter is covered, beside two for each of its levels.
pub const COVERING: u64 = 256;
/// Units of the longest piece of work that is not divided: a filter's levels, the search for what
/// covers it, and one for each link on which it is told.
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

/// Links on which filters with those sources are wanted by somebody else.
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

    /// Whether the changes that the last call of [`Self::changes`] began with were not told
    /// completely.
    pub fn is_amid(&self) -> bool {
        self.round.is_some() || self.leaving != 0
    }

    /// Units of work that [`Self::changes`] has done so far.
    pub fn work(&self) -> u64 {
        self.work
    }

    /// Goes on telling what changed, for [`SLICE`] units of work: the next messages, of bounded size,
    /// in the order in which they are to be sent. All that had changed before the first of several
    /// calls is told when [`Self::is_amid`] is not so any more.
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
            // What covers a filter says nothing before the round knows who wants that.
            if round.changed.is_empty()
                && let Some(at) = self.fresh.pop_front()
            {
                self.tell_early(at, &mut news);
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

    /// From now on the round knows who wants a filter.
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

    /// Of the links on which a filter is wanted, those on which no other covers it, as far as the
    /// round knows.
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

    /// Sees on which links a filter is to be told.
    fn look_at(&mut self, at: u32, round: &mut Round, news: &mut News) {
        let due = self.due(at, wanted(self.at(at).settled));
        let node = &mut self.nodes[at as usize];
        let (add, remove) = (due & !node.told, node.told & !due);
        // What is to be withdrawn, or nobody wants, is not removed before its turn comes.
        let ends = remove != 0 || node.settled == 0;
        node.touched = ends;
        if ends {
            round.withdrawn.push_back((at, remove));
        }
        self.tell(at, add, news);
    }

    /// Tells a filter where it is wanted since the round began.
    fn tell_early(&mut self, at: u32, news: &mut News) {
        self.work += 1;
        let due = self.due(at, wanted(self.at(at).sources));
        let add = due & !self.at(at).told;
        self.tell(at, add, news);
    }

    /// A filter is told on these links from now on.
    fn tell(&mut self, at: u32, links: u64, news: &mut News) {
        if links != 0 {
            let filter = self.filter(at);
            self.set_told(at, links, &filter, true);
            self.say(links, &filter, news, |(add, _)| add);
        }
    }

    /// A filter is not told any more on these links, unless that may be otherwise by now.
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

    /// Removes what nobody wants and nobody was told.
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
