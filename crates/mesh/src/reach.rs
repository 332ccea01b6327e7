//! Reachability: which brokers, or members of shared subscriptions, are behind which link of the tree.
//!
//! Each broker advertises to each neighbour on the tree what it has itself, and what it reaches over its
//! other links. A tree has no cycles, so an advertisement disappears when its broker does. An entry is
//! advertised only when the table of the link on which it came is complete, and after the filters of that
//! broker, so that a broker which learns that another is reached again can send what it has queued for
//! it.

use std::collections::{BTreeMap, BTreeSet};

use crate::id::LinkId;

/// What one link leads to, and what was advertised on it.
#[derive(Debug)]
struct LinkReach<T> {
    /// What the neighbour has advertised.
    behind: BTreeSet<T>,
    /// What was advertised to the neighbour; `None` while the link does not carry.
    told: Option<BTreeSet<T>>,
    /// Whether the filters of the neighbour are complete, so that publications are forwarded.
    ready: bool,
    /// Whether nothing was sent on it since it carries.
    fresh: bool,
    /// The part of `behind` that is advertised on other links: as it was when [`Reach::show`] was called.
    shown: BTreeSet<T>,
}

impl<T> Default for LinkReach<T> {
    fn default() -> Self {
        Self {
            behind: BTreeSet::new(),
            told: None,
            ready: false,
            fresh: false,
            shown: BTreeSet::new(),
        }
    }
}

/// An update for a neighbour.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ReachUpdate<T> {
    pub(crate) link: LinkId,
    /// Whether it replaces everything sent before.
    pub(crate) all: bool,
    pub(crate) add: Vec<T>,
    pub(crate) remove: Vec<T>,
}

/// What is behind which link, of one kind of entry.
#[derive(Debug)]
pub(crate) struct Reach<T> {
    own: BTreeSet<T>,
    sides: BTreeMap<LinkId, LinkReach<T>>,
    /// Whether entries behind a lost link are still advertised.
    retains_lost: bool,
    /// Whether an entry of this broker exists nowhere else.
    alone: bool,
    /// Own entries that were added or removed since the last [`Self::changes`].
    touched: BTreeSet<T>,
    /// Whether entries behind links changed since then.
    dirty: bool,
    /// Whether entries behind links changed since [`Reach::take_moved`].
    moved: bool,
}

impl<T> Default for Reach<T> {
    fn default() -> Self {
        Self {
            own: BTreeSet::new(),
            sides: BTreeMap::new(),
            retains_lost: false,
            alone: false,
            touched: BTreeSet::new(),
            dirty: false,
            moved: false,
        }
    }
}

impl<T: Ord + Clone> Reach<T> {
    /// For entries that are still advertised after their link was lost (members of shared subscriptions).
    pub(crate) fn retaining() -> Self {
        Self {
            retains_lost: true,
            ..Self::default()
        }
    }

    /// For entries that exist once in the mesh (brokers), with the own entry.
    pub(crate) fn new(own: T) -> Self {
        Self {
            own: BTreeSet::from([own]),
            alone: true,
            ..Self::default()
        }
    }

    /// Adds an own entry.
    pub(crate) fn add(&mut self, own: T) {
        if self.own.insert(own.clone()) {
            self.touched.insert(own);
        }
    }

    /// Removes an own entry.
    pub(crate) fn remove(&mut self, own: &T) {
        if let Some(own) = self.own.take(own) {
            self.touched.insert(own);
        }
    }

    /// Whether the advertisements of a neighbour count: its filters are complete, and it does not
    /// advertise an own entry of this broker. Such an advertisement would be left over from a path
    /// through another link of this broker, and so may be everything else that this neighbour advertises.
    fn is_reliable(&self, side: &LinkReach<T>) -> bool {
        side.ready && !(self.alone && self.own.iter().any(|own| side.behind.contains(own)))
    }

    fn reliable(&self) -> impl Iterator<Item = (LinkId, &LinkReach<T>)> {
        let sides = self.sides.iter().map(|(link, side)| (*link, side));
        sides.filter(|(_, side)| self.is_reliable(side))
    }

    /// Number of entries that the neighbour on a link has advertised.
    pub(crate) fn count(&self, link: LinkId) -> usize {
        self.sides.get(&link).map_or(0, |side| side.behind.len())
    }

    /// The entries that the neighbour on a link has advertised.
    pub(crate) fn behind(&self, link: LinkId) -> BTreeSet<T> {
        let side = self.sides.get(&link);
        side.map(|side| side.behind.clone()).unwrap_or_default()
    }

    /// Whether the neighbour on a link has advertised an entry.
    pub(crate) fn leads_to(&self, link: LinkId, id: &T) -> bool {
        let side = self.sides.get(&link);
        side.is_some_and(|side| side.behind.contains(id))
    }

    /// The entries that were advertised to the neighbour on a link.
    pub(crate) fn told(&self, link: LinkId) -> Vec<T> {
        let side = self.sides.get(&link);
        let told = side.and_then(|side| side.told.as_ref());
        told.into_iter().flatten().cloned().collect()
    }

    /// All entries that are reached.
    pub(crate) fn reached(&self) -> impl Iterator<Item = &T> {
        self.reliable().flat_map(|(_, side)| &side.behind)
    }

    /// All entries behind links that may be used, and whether the filters of their link are complete.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&T, bool)> {
        let sides = self.sides.values();
        sides.flat_map(|side| side.shown.iter().map(|it| (it, side.ready)))
    }

    /// The same, with their links.
    pub(crate) fn by_links(&self) -> impl Iterator<Item = (LinkId, &T)> {
        let sides = self.sides.iter();
        sides.flat_map(|(link, side)| side.shown.iter().map(|it| (*link, it)))
    }

    fn set_moved(&mut self) {
        (self.dirty, self.moved) = (true, true);
    }

    /// Whether entries behind links may have changed since the last call.
    pub(crate) fn take_moved(&mut self) -> bool {
        std::mem::take(&mut self.moved)
    }

    /// Restores the entries behind a link after a restart; the link is lost.
    pub(crate) fn recall(&mut self, link: LinkId, behind: BTreeSet<T>) {
        self.set_moved();
        let side = self.sides.entry(link).or_default();
        (side.shown, side.behind) = (behind.clone(), behind);
    }

    /// A link begins to carry.
    pub(crate) fn activate(&mut self, link: LinkId) {
        let side = self.sides.entry(link).or_default();
        side.told = Some(BTreeSet::new());
        side.fresh = true;
        self.set_moved();
    }

    /// A link ceases to carry; returns the entries behind it.
    pub(crate) fn deactivate(&mut self, link: LinkId) -> BTreeSet<T> {
        self.set_moved();
        let Some(side) = self.sides.get_mut(&link) else {
            return BTreeSet::new();
        };
        (side.told, side.ready) = (None, false);
        if !self.retains_lost {
            side.shown.clear();
        }
        side.behind.clone()
    }

    /// Removes entries behind a lost link.
    pub(crate) fn drop_from(&mut self, link: LinkId, gone: impl Fn(&T) -> bool) {
        if let Some(side) = self.sides.get_mut(&link) {
            side.behind.retain(|it| !gone(it));
            side.shown.retain(|it| !gone(it));
            self.set_moved();
        }
    }

    /// Removes a link whose connection is closed.
    pub(crate) fn forget(&mut self, link: LinkId) {
        self.sides.remove(&link);
        self.set_moved();
    }

    /// The filters of a neighbour are complete; returns the entries that are reached because of that.
    pub(crate) fn ready(&mut self, link: LinkId) -> BTreeSet<T> {
        let side = self.sides.entry(link).or_default();
        if side.told.is_none() || std::mem::replace(&mut side.ready, true) {
            return BTreeSet::new();
        }
        self.set_moved();
        let side = self.sides.get(&link).filter(|side| self.is_reliable(side));
        side.map(|side| side.behind.clone()).unwrap_or_default()
    }

    /// Whether the filters of the neighbour on a link are complete.
    pub(crate) fn is_ready(&self, link: LinkId) -> bool {
        self.sides.get(&link).is_some_and(|side| side.ready)
    }

    /// Advertises the entries behind a link on other links, if they are reached.
    pub(crate) fn show(&mut self, link: LinkId) {
        let side = self.sides.get(&link).filter(|side| self.is_reliable(side));
        let Some(behind) = side.map(|side| side.behind.clone()) else {
            return;
        };
        if let Some(side) = self.sides.get_mut(&link) {
            side.shown = behind;
            self.set_moved();
        }
    }

    /// Applies an update of a neighbour; returns the entries that are reached because of it. Removals are
    /// advertised on other links at once.
    pub(crate) fn heard(
        &mut self,
        link: LinkId,
        all: bool,
        add: Vec<T>,
        remove: &[T],
    ) -> BTreeSet<T> {
        let was_reliable = self
            .sides
            .get(&link)
            .is_some_and(|side| self.is_reliable(side));
        let side = self.sides.entry(link).or_default();
        let before = match all {
            true => std::mem::take(&mut side.behind),
            false => BTreeSet::new(),
        };
        for gone in remove {
            side.behind.remove(gone);
        }
        let mut new = BTreeSet::new();
        for id in add {
            if side.behind.insert(id.clone()) && !before.contains(&id) {
                new.insert(id);
            }
        }
        if side.ready {
            side.shown.retain(|it| side.behind.contains(it));
        }
        self.set_moved();
        let side = self.sides.get(&link).filter(|side| self.is_reliable(side));
        match (side, was_reliable) {
            (Some(_), true) => new,
            (Some(side), false) => side.behind.clone(),
            (None, _) => BTreeSet::new(),
        }
    }

    /// The links over which any of these entries is reached, and whether all of them are.
    pub(crate) fn where_are(&self, ids: &BTreeSet<T>) -> (Vec<LinkId>, bool) {
        let links = self.reliable();
        let links = links.filter(|(_, side)| !side.behind.is_disjoint(ids));
        let reached = |id: &T| self.reliable().any(|(_, side)| side.behind.contains(id));
        (
            links.map(|(link, _)| link).collect(),
            ids.iter().all(reached),
        )
    }

    /// The entries behind links that carry, whether or not they are reached yet.
    pub(crate) fn expected(&self) -> BTreeSet<T> {
        let sides = self.sides.values().filter(|side| side.told.is_some());
        sides.flat_map(|side| side.behind.iter().cloned()).collect()
    }

    /// Those of these entries that are not reached.
    pub(crate) fn not_reached(&self, mut ids: BTreeSet<T>) -> BTreeSet<T> {
        for (_, side) in self.reliable() {
            ids.retain(|id| !side.behind.contains(id));
        }
        ids
    }

    /// Whether there may be updates to send.
    pub(crate) fn has_changes(&self) -> bool {
        self.dirty || !self.touched.is_empty()
    }

    /// Takes the updates for all neighbours.
    pub(crate) fn changes(&mut self) -> Vec<ReachUpdate<T>> {
        let touched = std::mem::take(&mut self.touched);
        if !std::mem::take(&mut self.dirty) {
            return self.changes_of(&touched);
        }
        let links: Vec<LinkId> = self.sides.keys().copied().collect();
        let mut changes = Vec::new();
        for link in links {
            let others = self.sides.iter();
            let others = others.filter(|(other, _)| **other != link);
            let mut due: BTreeSet<T> = others
                .flat_map(|(_, side)| side.shown.iter().cloned())
                .collect();
            due.extend(self.own.iter().cloned());
            let Some(side) = self.sides.get_mut(&link) else {
                continue;
            };
            let Some(told) = &mut side.told else {
                continue;
            };
            let change = ReachUpdate {
                link,
                all: std::mem::take(&mut side.fresh),
                add: due.difference(told).cloned().collect(),
                remove: told.difference(&due).cloned().collect(),
            };
            *told = due;
            if change.all || !change.add.is_empty() || !change.remove.is_empty() {
                changes.push(change);
            }
        }
        changes
    }

    /// The same if only these own entries have changed.
    fn changes_of(&mut self, touched: &BTreeSet<T>) -> Vec<ReachUpdate<T>> {
        let links: Vec<LinkId> = self.sides.keys().copied().collect();
        let mut changes = Vec::new();
        for link in links {
            let others = || self.sides.iter().filter(|(other, _)| **other != link);
            let is_due =
                |it: &T| self.own.contains(it) || others().any(|(_, side)| side.shown.contains(it));
            let (due, over): (Vec<&T>, Vec<&T>) = touched.iter().partition(|it| is_due(it));
            let told = self
                .sides
                .get_mut(&link)
                .and_then(|side| side.told.as_mut());
            let Some(told) = told else {
                continue;
            };
            let change = ReachUpdate {
                link,
                all: false,
                add: due
                    .into_iter()
                    .filter(|it| told.insert((*it).clone()))
                    .cloned()
                    .collect(),
                remove: over
                    .into_iter()
                    .filter(|it| told.remove(*it))
                    .cloned()
                    .collect(),
            };
            if !change.add.is_empty() || !change.remove.is_empty() {
                changes.push(change);
            }
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::BrokerId;

    fn ids(names: &str) -> BTreeSet<BrokerId> {
        let names = names.split_whitespace();
        names.map(|name| BrokerId::new(name).unwrap()).collect()
    }

    fn list(names: &str) -> Vec<BrokerId> {
        ids(names).into_iter().collect()
    }

    #[test]
    fn who_is_behind_a_link_is_told_on_the_others_once_it_is_ready() {
        let (one, two) = (LinkId(1), LinkId(2));
        let mut reach = Reach::new(BrokerId::new("own").unwrap());
        reach.activate(one);
        assert_eq!(reach.heard(one, true, list("a b"), &[]), ids(""));
        reach.activate(two);
        let first = reach.changes();
        assert!(first.iter().all(|told| told.all && told.add == list("own")));
        assert_eq!(first.len(), 2);
        assert_eq!(reach.where_are(&ids("a")), (vec![], false));
        assert_eq!(reach.ready(one), ids("a b"));
        assert_eq!(reach.ready(one), ids(""));
        // Not before that is allowed.
        assert_eq!(reach.changes(), []);
        reach.show(one);
        let told = |all, add: &str, remove: &str| ReachUpdate {
            link: two,
            all,
            add: list(add),
            remove: list(remove),
        };
        assert_eq!(reach.changes(), [told(false, "a b", "")]);
        assert_eq!(reach.heard(one, false, list("c"), &list("a")), ids("c"));
        assert_eq!(reach.changes(), [told(false, "", "a")]);
        reach.show(one);
        assert_eq!(reach.changes(), [told(false, "c", "")]);
        assert_eq!(reach.where_are(&ids("b c")), (vec![one], true));
        assert_eq!(reach.where_are(&ids("a b")), (vec![one], false));
        assert_eq!(reach.heard(one, true, list("c d"), &[]), ids("d"));
        assert_eq!(reach.deactivate(one), ids("c d"));
        assert_eq!(reach.changes(), [told(false, "", "b c")]);
        assert_eq!(reach.changes(), []);
    }

    #[test]
    fn what_comes_and_goes_here_is_told_where_it_is_not_known_from_elsewhere() {
        let (one, two) = (LinkId(1), LinkId(2));
        let mut reach = Reach::retaining();
        for link in [one, two] {
            reach.activate(link);
            reach.ready(link);
        }
        reach.heard(one, true, list("a"), &[]);
        reach.show(one);
        reach.changes();
        assert!(reach.take_moved());
        for here in ["a", "b", "c"] {
            reach.add(BrokerId::new(here).unwrap());
        }
        reach.remove(&BrokerId::new("c").unwrap());
        let told = |link, add: &str, remove: &str| ReachUpdate {
            link,
            all: false,
            add: list(add),
            remove: list(remove),
        };
        assert_eq!(reach.changes(), [told(one, "a b", ""), told(two, "b", "")]);
        reach.remove(&BrokerId::new("a").unwrap());
        assert_eq!(reach.changes(), [told(one, "", "a")]);
        assert!(!reach.has_changes() && !reach.take_moved());
    }

    #[test]
    fn who_takes_this_way_for_its_own_is_not_believed_until_it_does_not() {
        let (one, two) = (LinkId(1), LinkId(2));
        let mut reach = Reach::new(BrokerId::new("own").unwrap());
        reach.activate(one);
        reach.activate(two);
        assert_eq!(reach.heard(one, true, list("a b own c"), &[]), ids(""));
        assert_eq!(reach.ready(one), ids(""));
        reach.show(one);
        assert_eq!(reach.where_are(&ids("a")), (vec![], false));
        assert_eq!(reach.not_reached(ids("a c")), ids("a c"));
        assert_eq!(reach.heard(one, false, list("d"), &[]), ids(""));
        assert!(
            reach
                .changes()
                .iter()
                .all(|told| told.add == list("own") && told.remove.is_empty())
        );
        assert_eq!(
            reach.heard(one, false, vec![], &list("c own")),
            ids("a b d")
        );
        assert_eq!(reach.where_are(&ids("a b")), (vec![one], true));
        assert_eq!(reach.heard(one, false, list("own"), &[]), ids(""));
        assert_eq!(reach.not_reached(ids("a")), ids("a"));
    }
}
