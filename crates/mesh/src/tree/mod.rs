//! One spanning tree over any graph of brokers: root, parents, and which links
//! carry messages, as a state machine.
//!
//! **Paths.** Every broker advertises to each neighbour which root it believes in, its cost to reach that
//! root, and the root's epoch ([`Advert`]; the whole state each time, so a lost one is repaired by the
//! next). It chooses the best root it is offered, then the least cost. Counting to infinity is excluded
//! as in DUAL and Babel (RFC 8966): an offer may be *newly* chosen only if its epoch is newer than any
//! this broker advertised for that root, or the epoch is the same and the offer's cost is below every
//! cost this broker advertised in it (the *feasibility distance*). Along parents (epoch, least advertised
//! cost) therefore strictly improves, no broker chooses one that depends on it, and offers of a root that
//! died are used up after finitely many choices. A broker whose offers are all infeasible asks the root
//! for a newer epoch ([`EpochRequest`]), so that it need not wait for the next hello.
//!
//! **Links.** Paths may be wrong while changes propagate; links that carry messages must not form a cycle
//! even then. A link carries when *both* ends hold it, and it is taken into use as ports are in RSTP
//! (IEEE 802.1D-2004, proposal and agreement):
//! 1. A broker that chooses a parent first releases all its children, then asks with an attempt number
//!    never used before; until it is accepted it holds no link.
//! 2. A broker that is root, or accepted by its parent, holds a child once for each attempt it has not
//!    answered yet, and says so.
//! 3. On hearing that, and only if the attempt is its latest, the child holds the link.
//!
//! *Invariant: the links held by both ends are a forest, at every moment, whatever is lost, delayed or
//! crashes.* Each broker has one parent, so a cycle would be a directed one. Take its link that came into
//! use last. It did by step 3, as each attempt is held only once; at that moment the child held no link
//! to a child of its own (step 1, and step 2 allows no new one before step 3), so no cycle led through
//! it.
//!
//! `explore` checks this for every order of events in all small graphs, in larger ones
//! for every order with few delays, and the tests in `tests/` on large ones at random.

mod advert;
#[cfg(test)]
mod explore;

pub use advert::{Advert, EpochRequest};

use std::collections::{BTreeMap, VecDeque};

use punctual_model::{LAST_INSTANT, Nanos};

use crate::id::{BrokerId, LinkId, Rank};

/// Bound on remembered roots; those not heard of for longest are forgotten.
const KNOWN: usize = 1024;

/// How often in a row the silence of a neighbour is attributed to a stall of this broker.
const EXCUSES: u8 = 3;

/// Times and tolerances of the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub struct TreeSettings {
    /// Longest time between two adverts on a link; at least 50 ms.
    pub hello: Nanos,
    /// By how many per cent another path must be cheaper to replace the present one.
    pub hysteresis: u32,
}

impl Default for TreeSettings {
    fn default() -> Self {
        Self {
            hello: Nanos::from_secs(2),
            hysteresis: 25,
        }
    }
}

impl TreeSettings {
    /// Silence after which a neighbour counts as lost: two and a half hellos, so that the tree is
    /// connected again within three.
    pub fn patience(&self) -> Nanos {
        Nanos(self.hello.0.saturating_mul(5) / 2)
    }

    /// Lateness of a tick from which this broker is taken to have stalled, without receiving anything.
    fn stall(&self) -> Nanos {
        Nanos(self.hello.0 / 4)
    }

    /// Longest silence of a broker that works.
    fn quiet(&self) -> Nanos {
        Nanos(self.hello.0.saturating_mul(5) / 4)
    }

    /// Age from which an offer is discarded. Above [`Self::patience`], which detects every ordinary loss.
    fn max_age(&self) -> Nanos {
        Nanos(self.hello.0.saturating_mul(6))
    }
}

/// What a link is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Edge {
    /// A spare: carries no messages.
    Spare,
    /// Leads to the chosen parent, which has not accepted yet.
    Joining,
    /// Leads to the parent; carries messages.
    Parent,
    /// Leads to a child; carries messages.
    Child,
}

impl Edge {
    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Spare => "spare",
            Self::Joining => "joining",
            Self::Parent => "parent",
            Self::Child => "child",
        }
    }

    /// Whether messages go over the link.
    pub fn carries(self) -> bool {
        matches!(self, Self::Parent | Self::Child)
    }
}

/// Why the root or the parent changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub enum TreeChangeCause {
    /// A better root was advertised.
    BetterRoot,
    /// A path to the root is cheaper by more than the tolerance.
    ShorterPath,
    /// The link to the parent is down.
    ParentLost,
    /// The parent does not reach the root any more, or only by paths that may not be chosen before the
    /// root begins a new epoch.
    PathLost,
}

impl std::fmt::Display for TreeChangeCause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::BetterRoot => "a better root was heard of",
            Self::ShorterPath => "a shorter path was found",
            Self::ParentLost => "the link to the parent is down",
            Self::PathLost => "the parent lost the root",
        })
    }
}

/// A request or a report of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub enum TreeOutput {
    /// Send to the neighbour.
    Send(LinkId, Advert),
    /// The role of the link changed.
    Edge(LinkId, Edge),
    /// Nothing was received on the link for [`TreeSettings::patience`]: it counts as down, and is to be
    /// closed.
    Silent(LinkId),
    /// The root changed.
    Root {
        /// Before.
        old: Rank,
        /// Now; this broker itself if it is alone or elects.
        new: Rank,
        /// Cause.
        why: TreeChangeCause,
    },
    /// The parent changed.
    Parent {
        /// The link to it; `None` if this broker is root.
        link: Option<LinkId>,
        /// Cost of the path to the root in microseconds.
        cost: u64,
        /// Cause.
        why: TreeChangeCause,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Offer {
    root: Rank,
    epoch: u64,
    cost: u64,
    hops: u16,
    /// When the root began the epoch, as far as known.
    born: Nanos,
}

#[derive(Debug, Clone)]
#[cfg_attr(test, derive(PartialEq, Eq, Hash))]
struct Neighbour {
    id: BrokerId,
    cost: u64,
    offer: Option<Offer>,
    epoch_request: Option<EpochRequest>,
    /// Number of the last advert received, and of the last one sent.
    received: u64,
    sent: u64,
    last: Option<Advert>,
    heard: Nanos,
    /// How often in a row its silence was excused, because this broker had stalled.
    excuses: u8,
    /// Whether it hears this broker, see [`Tree::set_hears`].
    hears: bool,
    sent_at: Nanos,
    /// The attempt with which it asks to become a child; 0 if it does not.
    asks: u64,
    /// The last attempt that was answered.
    answered: u64,
    /// Whether it is held as child.
    held: bool,
    edge: Edge,
}

#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
struct Parent {
    link: LinkId,
    attempt: u64,
    accepted: bool,
}

/// The best (epoch, cost) that this broker ever advertised for a root.
#[derive(Debug, Clone)]
#[cfg_attr(test, derive(PartialEq, Eq, Hash))]
struct FeasibilityDistance {
    epoch: u64,
    least: u64,
    heard: Nanos,
}

/// The tree as one broker sees it.
#[derive(Debug, Clone)]
#[cfg_attr(test, derive(PartialEq, Eq, Hash))]
pub struct Tree {
    own: Rank,
    settings: TreeSettings,
    epoch: u64,
    /// See [`Self::set_last_epoch`].
    last_epoch: u64,
    attempts: u64,
    parent: Option<Parent>,
    /// The path in use: root, epoch, cost, number of links.
    path: Offer,
    links: BTreeMap<LinkId, Neighbour>,
    known: BTreeMap<BrokerId, FeasibilityDistance>,
    epoch_request: Option<EpochRequest>,
    hello_at: Nanos,
    why: TreeChangeCause,
    outputs: VecDeque<TreeOutput>,
}

impl Tree {
    /// A broker without neighbours, which is root.
    pub fn new(own: Rank, settings: TreeSettings, now: Nanos) -> Self {
        let path = Offer {
            root: own.clone(),
            epoch: 1,
            cost: 0,
            hops: 0,
            born: now,
        };
        Self {
            own,
            settings,
            epoch: 1,
            last_epoch: LAST_INSTANT,
            attempts: 0,
            parent: None,
            path,
            links: BTreeMap::new(),
            known: BTreeMap::new(),
            epoch_request: None,
            hello_at: now + settings.hello,
            why: TreeChangeCause::BetterRoot,
            outputs: VecDeque::new(),
        }
    }

    /// Replaces times and tolerances.
    pub fn set_settings(&mut self, settings: TreeSettings, now: Nanos) {
        self.settings = settings;
        self.hello_at = self.hello_at.min(now + settings.hello);
    }

    /// Sets the highest epoch that is accepted of any root; initially [`LAST_INSTANT`].
    ///
    /// A root has to surpass every epoch that was ever advertised for it before it is chosen again, so an
    /// epoch near the maximum would exclude it for ever. A root counts its epochs up, a few in a second,
    /// and skips to those advertised for it. So a limit that grows faster, as the microseconds of a clock
    /// do, excludes no root for longer than clocks differ.
    pub fn set_last_epoch(&mut self, epoch: u64) {
        self.last_epoch = epoch;
    }

    /// Whether the epochs of an advert are within that limit.
    pub fn can_be_true(&self, advert: &Advert) -> bool {
        let above = advert
            .epoch_request
            .as_ref()
            .map_or(0, |epoch_request| epoch_request.above);
        advert.epoch.max(above) <= self.last_epoch
    }

    /// Changes the capacity of this broker; advertised with a new epoch.
    pub fn set_capacity(&mut self, capacity: u64, now: Nanos) {
        if self.own.capacity != capacity {
            self.own.capacity = capacity;
            self.epoch = self.epoch.saturating_add(1);
            self.settle(now);
        }
    }

    /// A link to a neighbour came up, with a cost above 0. A link with that number
    /// that was up before is replaced.
    pub fn link_up(&mut self, link: LinkId, neighbour: BrokerId, cost: u64, now: Nanos) {
        if self.links.contains_key(&link) {
            self.link_down(link, now);
        }
        let neighbour = Neighbour {
            id: neighbour,
            cost: cost.max(1),
            offer: None,
            epoch_request: None,
            received: 0,
            sent: 0,
            last: None,
            heard: now,
            excuses: 0,
            hears: true,
            sent_at: now,
            asks: 0,
            answered: 0,
            held: false,
            edge: Edge::Spare,
        };
        self.links.insert(link, neighbour);
        self.settle(now);
    }

    /// A link is down.
    pub fn link_down(&mut self, link: LinkId, now: Nanos) {
        let Some(neighbour) = self.links.remove(&link) else {
            return;
        };
        if neighbour.edge != Edge::Spare {
            self.outputs.push_back(TreeOutput::Edge(link, Edge::Spare));
        }
        if self.parent.as_ref().is_some_and(|p| p.link == link) {
            self.why = TreeChangeCause::ParentLost;
        }
        self.settle(now);
        self.why = TreeChangeCause::PathLost;
    }

    /// Sets whether the neighbour on a link receives what this broker sends; initially true. A neighbour
    /// that does not is not chosen as parent: messages to it would be lost, and it could not accept this
    /// broker. Takes effect with the next message or tick.
    pub fn set_hears(&mut self, link: LinkId, hears: bool) {
        if let Some(neighbour) = self.links.get_mut(&link) {
            neighbour.hears = hears;
        }
    }

    /// Has the last advert on a link sent again, with the next message or tick.
    pub fn repeat(&mut self, link: LinkId) {
        if let Some(neighbour) = self.links.get_mut(&link) {
            neighbour.last = None;
        }
    }

    /// The cost of a link changed.
    pub fn set_cost(&mut self, link: LinkId, cost: u64, now: Nanos) {
        if let Some(neighbour) = self.links.get_mut(&link)
            && neighbour.cost != cost.max(1)
        {
            neighbour.cost = cost.max(1);
            self.settle(now);
        }
    }

    /// Handles an advert, and with it a new cost of the link if there is one. An advert that was
    /// overtaken by a later one is ignored.
    ///
    /// Both are applied together: applied one after the other, each broker on the path from the root
    /// would send two adverts for each that it receives, which doubles with every link.
    ///
    /// An advert beyond the limit of epochs ([`Self::can_be_true`]) offers no path and requests nothing;
    /// it still shows that the neighbour is alive, and its state of the link counts.
    pub fn receive(&mut self, link: LinkId, advert: Advert, cost: Option<u64>, now: Nanos) {
        let can_be_true = self.can_be_true(&advert);
        let Some(neighbour) = self.links.get_mut(&link) else {
            return;
        };
        (neighbour.heard, neighbour.excuses) = (now, 0);
        if advert.number <= neighbour.received {
            if let Some(cost) = cost {
                self.set_cost(link, cost, now);
            }
            return;
        }
        if let Some(cost) = cost {
            neighbour.cost = cost.max(1);
        }
        neighbour.received = advert.number;
        neighbour.epoch_request = advert.epoch_request.filter(|_| can_be_true);
        neighbour.asks = advert.asks;
        if neighbour.held && advert.asks != neighbour.answered {
            neighbour.held = false;
        }
        if can_be_true && advert.root.id == self.own.id && advert.epoch > self.epoch {
            // An epoch of this broker before its restart.
            self.epoch = advert.epoch.saturating_add(1);
        }
        neighbour.offer = can_be_true.then(|| Offer {
            root: advert.root,
            epoch: advert.epoch,
            cost: advert.cost,
            hops: advert.hops,
            born: now - advert.age,
        });
        let mut refused = false;
        if let Some(parent) = &mut self.parent
            && parent.link == link
            && advert.answered == parent.attempt
        {
            refused = !advert.held;
            parent.accepted = advert.held;
        }
        if refused {
            self.attempt(link);
        }
        self.settle(now);
    }

    /// Sends hellos, and drops neighbours and roots that fell silent.
    pub fn tick(&mut self, now: Nanos) {
        self.excuse(now);
        let patience = self.settings.patience();
        let silent: Vec<LinkId> = self
            .links
            .iter()
            .filter(|(_, n)| n.heard + patience <= now)
            .map(|(link, _)| *link)
            .collect();
        for link in silent {
            self.outputs.push_back(TreeOutput::Silent(link));
            self.link_down(link, now);
        }
        if self.is_root() && now >= self.hello_at {
            self.hello_at = now + self.settings.hello;
            self.epoch = self.epoch.saturating_add(1);
        }
        // The root's epoch passes every link once per hello, in both directions. Only where it does not
        // is the advert repeated.
        let quiet = self.settings.quiet();
        for neighbour in self.links.values_mut() {
            if neighbour.sent_at + quiet <= now {
                neighbour.last = None;
            }
        }
        self.settle(now);
    }

    /// If this broker stalled, messages that neighbours sent meanwhile have not been processed: the
    /// neighbours get time before they count as silent, and offers do not age. This is limited to
    /// [`EXCUSES`] in a row, so that the loss of a neighbour is detected on any machine.
    fn excuse(&mut self, now: Nanos) {
        let stalled = now - self.next_timeout();
        if stalled <= self.settings.stall() {
            return;
        }
        let patience = self.settings.patience();
        let least = Nanos((now.0 + self.settings.hello.0 / 2).saturating_sub(patience.0));
        let later = |at: Nanos| (at + stalled).min(now);
        let parent = self.parent.as_ref().map(|parent| parent.link);
        for (link, neighbour) in &mut self.links {
            if neighbour.excuses == EXCUSES {
                continue;
            }
            neighbour.excuses += 1;
            neighbour.heard = later(neighbour.heard).max(least);
            if let Some(offer) = &mut neighbour.offer {
                offer.born = later(offer.born);
            }
            if parent == Some(*link) {
                self.path.born = later(self.path.born);
            }
        }
    }

    /// When [`Self::tick`] is to be called next.
    pub fn next_timeout(&self) -> Nanos {
        let (patience, quiet) = (self.settings.patience(), self.settings.quiet());
        let links = self.links.values();
        let links = links.map(|n| (n.heard + patience).min(n.sent_at + quiet));
        let own = match self.is_root() {
            true => self.hello_at,
            false => self.path.born + self.settings.max_age(),
        };
        links.fold(own, Ord::min)
    }

    /// Takes the outputs, to be carried out in this order.
    pub fn take_outputs(&mut self) -> VecDeque<TreeOutput> {
        std::mem::take(&mut self.outputs)
    }

    /// Whether this broker is root.
    pub fn is_root(&self) -> bool {
        self.parent.is_none()
    }

    /// The root, as far as known.
    pub fn root(&self) -> &Rank {
        &self.path.root
    }

    /// The root's epoch in the path in use.
    pub fn epoch(&self) -> u64 {
        self.path.epoch
    }

    /// Cost of the path to the root in microseconds, and its number of links.
    pub fn path(&self) -> (u64, u16) {
        (self.path.cost, self.path.hops)
    }

    /// The link to the parent, if there is one and whether it has accepted.
    pub fn parent(&self) -> Option<(LinkId, bool)> {
        self.parent.as_ref().map(|p| (p.link, p.accepted))
    }

    /// Whether this broker is root, or its parent has accepted it.
    pub fn is_attached(&self) -> bool {
        self.parent.as_ref().is_none_or(|parent| parent.accepted)
    }

    /// Role of a link; `None` if it is not up.
    pub fn edge(&self, link: LinkId) -> Option<Edge> {
        Some(self.links.get(&link)?.edge)
    }

    /// Cost of a link, and the root and cost that its neighbour offers.
    pub fn offer(&self, link: LinkId) -> Option<(u64, Option<(&Rank, u64)>)> {
        let neighbour = self.links.get(&link)?;
        let offer = neighbour.offer.as_ref();
        Some((neighbour.cost, offer.map(|o| (&o.root, o.cost))))
    }

    /// Whether the neighbour on a link asks to become a child of this broker.
    pub fn is_asked(&self, link: LinkId) -> bool {
        self.links.get(&link).is_some_and(|it| it.asks != 0)
    }

    /// After any change: chooses the path, answers attempts of neighbours, and sends adverts.
    fn settle(&mut self, now: Nanos) {
        self.bump_if_sought();
        self.choose(now);
        self.accept();
        self.tell(now);
    }

    /// Begins an epoch if a neighbour requests one of this root.
    fn bump_if_sought(&mut self) {
        if !self.is_root() {
            return;
        }
        let sought = |epoch_request: &&EpochRequest| epoch_request.root == self.own.id;
        let seeks = self.links.values().filter_map(|n| n.epoch_request.as_ref());
        if let Some(epoch) = seeks
            .filter(sought)
            .map(|epoch_request| epoch_request.above)
            .max()
            && epoch >= self.epoch
        {
            self.epoch = epoch.saturating_add(1);
        }
    }

    fn choose(&mut self, now: Nanos) {
        let max_age = self.settings.max_age();
        let incumbent = self.parent.as_ref().map(|parent| parent.link);
        let mut best: Option<(LinkId, &Neighbour, &Offer)> = None;
        let mut kept = None;
        let mut missed: Option<(&Rank, u64)> = None;
        for (link, neighbour) in &self.links {
            let Some(offer) = neighbour.offer.as_ref().filter(|_| neighbour.hears) else {
                continue;
            };
            if !offer.root.is_better_than(&self.own)
                || offer.root.id == self.own.id
                || offer.born + max_age <= now
            {
                continue;
            }
            let is_incumbent = incumbent == Some(*link) && offer.root.id == self.path.root.id;
            if !self.may_choose(offer, is_incumbent) {
                let epoch = self.known.get(&offer.root.id).map_or(0, |k| k.epoch);
                if missed.is_none_or(|(root, _)| offer.root.is_better_than(root)) {
                    missed = Some((&offer.root, epoch));
                }
                continue;
            }
            if is_incumbent {
                kept = Some((*link, neighbour, offer));
            }
            let key = |n: &Neighbour, o: &Offer| (o.cost.saturating_add(n.cost), n.id.clone());
            let better = best.is_none_or(|(_, n, o)| {
                offer
                    .root
                    .cmp(&o.root)
                    .then_with(|| key(neighbour, offer).cmp(&key(n, o)))
                    .is_lt()
            });
            if better {
                best = Some((*link, neighbour, offer));
            }
        }
        // The path in use stays unless another is clearly better.
        if let (Some((_, n, o)), Some((_, nb, ob))) = (kept, best)
            && o.root.id == ob.root.id
        {
            let (now, other) = (
                o.cost.saturating_add(n.cost),
                ob.cost.saturating_add(nb.cost),
            );
            let tolerated = now.saturating_mul(u64::from(100 - self.settings.hysteresis.min(99)));
            let clearly = match self.settings.hysteresis {
                0 => (other, &nb.id) < (now, &n.id),
                _ => other.saturating_mul(100) < tolerated,
            };
            if !clearly {
                best = kept;
            }
        }
        let chosen = best.map(|(link, neighbour, offer)| {
            let path = Offer {
                cost: offer.cost.saturating_add(neighbour.cost),
                hops: offer.hops.saturating_add(1),
                ..offer.clone()
            };
            (link, path)
        });
        let root = chosen.as_ref().map_or(&self.own, |(_, path)| &path.root);
        self.epoch_request = missed
            .filter(|(missed, _)| missed.is_better_than(root))
            .map(|(missed, above)| EpochRequest {
                root: missed.id.clone(),
                above,
            });
        self.take(chosen, now);
    }

    /// Whether an offer is feasible: its path cannot lead back to this broker.
    fn may_choose(&self, offer: &Offer, is_incumbent: bool) -> bool {
        let Some(known) = self.known.get(&offer.root.id) else {
            return true;
        };
        match offer.epoch.cmp(&known.epoch) {
            std::cmp::Ordering::Greater => true,
            // A parent that was feasible when chosen may become more expensive: its least advertised cost
            // counts.
            std::cmp::Ordering::Equal => is_incumbent || offer.cost < known.least,
            std::cmp::Ordering::Less => false,
        }
    }

    /// Uses a path, or becomes root.
    fn take(&mut self, chosen: Option<(LinkId, Offer)>, now: Nanos) {
        let old = self.path.root.clone();
        let old_link = self.parent.as_ref().map(|parent| parent.link);
        let link = chosen.as_ref().map(|(link, _)| *link);
        match chosen {
            Some((_, path)) => {
                self.remember(&path, now);
                self.path = path;
            }
            None => {
                if old_link.is_some() {
                    // Brokers that depended on this one may choose it again at once.
                    self.epoch = self.epoch.saturating_add(1);
                    self.hello_at = now + self.settings.hello;
                }
                self.path = Offer {
                    root: self.own.clone(),
                    epoch: self.epoch,
                    cost: 0,
                    hops: 0,
                    born: now,
                };
            }
        }
        let why = match self.path.root.cmp(&old) {
            std::cmp::Ordering::Less => TreeChangeCause::BetterRoot,
            std::cmp::Ordering::Equal if self.why != TreeChangeCause::ParentLost => {
                TreeChangeCause::ShorterPath
            }
            _ => self.why,
        };
        if self.path.root.id != old.id {
            let new = self.path.root.clone();
            self.outputs.push_back(TreeOutput::Root { old, new, why });
        }
        if link == old_link {
            return;
        }
        match link {
            None => self.parent = None,
            Some(link) => self.attempt(link),
        }
        let cost = self.path.cost;
        self.outputs
            .push_back(TreeOutput::Parent { link, cost, why });
    }

    /// Releases all children, and asks to become a child itself.
    fn attempt(&mut self, link: LinkId) {
        for neighbour in self.links.values_mut() {
            neighbour.held = false;
        }
        self.attempts += 1;
        self.parent = Some(Parent {
            link,
            attempt: self.attempts,
            accepted: false,
        });
    }

    /// Remembers what is about to be advertised.
    fn remember(&mut self, path: &Offer, now: Nanos) {
        if self.known.len() >= KNOWN && !self.known.contains_key(&path.root.id) {
            let oldest = self.known.iter().min_by_key(|(_, known)| known.heard);
            if let Some(oldest) = oldest.map(|(id, _)| id.clone()) {
                self.known.remove(&oldest);
            }
        }
        let known = self
            .known
            .entry(path.root.id.clone())
            .or_insert(FeasibilityDistance {
                epoch: path.epoch,
                least: path.cost,
                heard: now,
            });
        known.heard = now;
        if path.epoch > known.epoch {
            (known.epoch, known.least) = (path.epoch, path.cost);
        } else {
            known.least = known.least.min(path.cost);
        }
    }

    /// Holds the children that ask, once each attempt.
    fn accept(&mut self) {
        if !self.is_attached() {
            return;
        }
        let parent = self.parent.as_ref().map(|parent| parent.link);
        for (link, neighbour) in &mut self.links {
            if neighbour.asks > neighbour.answered && parent != Some(*link) {
                neighbour.answered = neighbour.asks;
                neighbour.held = true;
            }
        }
    }

    /// Sends changed adverts to all neighbours, and reports changed roles of links.
    fn tell(&mut self, now: Nanos) {
        let parent = self.parent.clone();
        let up = self.seek_for_parent();
        for (link, neighbour) in &mut self.links {
            let asked = parent.as_ref().filter(|parent| parent.link == *link);
            let advert = Advert {
                number: neighbour.sent,
                root: self.path.root.clone(),
                epoch: self.path.epoch,
                cost: self.path.cost,
                hops: self.path.hops,
                age: now - self.path.born,
                asks: asked.map_or(0, |parent| parent.attempt),
                answered: neighbour.answered,
                held: neighbour.held,
                epoch_request: match asked {
                    Some(_) => up.clone().or_else(|| self.epoch_request.clone()),
                    None => self.epoch_request.clone(),
                },
            };
            let news = neighbour
                .last
                .as_ref()
                .is_none_or(|last| !last.says_same(&advert));
            if news {
                neighbour.sent += 1;
                neighbour.sent_at = now;
                let advert = Advert {
                    number: neighbour.sent,
                    ..advert
                };
                neighbour.last = Some(advert.clone());
                self.outputs.push_back(TreeOutput::Send(*link, advert));
            }
            let edge = match asked {
                Some(Parent { accepted: true, .. }) => Edge::Parent,
                Some(_) => Edge::Joining,
                None if neighbour.held => Edge::Child,
                None => Edge::Spare,
            };
            if edge != neighbour.edge {
                neighbour.edge = edge;
                self.outputs.push_back(TreeOutput::Edge(*link, edge));
            }
        }
    }

    /// What others seek of the root that this broker depends on: passed on.
    fn seek_for_parent(&self) -> Option<EpochRequest> {
        let (root, epoch) = (&self.path.root.id, self.path.epoch);
        let seeks = self.links.values().filter_map(|n| n.epoch_request.as_ref());
        seeks
            .filter(|epoch_request| epoch_request.root == *root && epoch_request.above >= epoch)
            .max_by_key(|epoch_request| epoch_request.above)
            .cloned()
    }
}
