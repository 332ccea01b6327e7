//! What is behind which link of the tree: brokers, or members of shared subscriptions.
//!
//! Each broker tells its neighbours on the tree what it reaches over its other
//! links, its own included; a tree has no circles, so what is told dies out when a broker
//! is gone. It is told only when the table of the link over which something came is
//! complete, and after the filters that it wants: who hears that a broker is back
//! can send what it kept for it.

use std::collections::{BTreeMap, BTreeSet};

use crate::id::LinkId;

/// What a link leads to, and what was told there.
#[derive(Debug)]
struct Side<T> {
    /// What the neighbour told.
    behind: BTreeSet<T>,
    /// What it was told; `None` as long as nothing is told on the link.
    told: Option<BTreeSet<T>>,
    /// Whether its filters are known, so that messages find their way.
    ready: bool,
    /// It has been told nothing since it carries.
    fresh: bool,
    /// What is to be known of it elsewhere: of what it told, what [`Reach::show`] was called
    /// for, as long as messages find their way there, or wait for that.
    shown: BTreeSet<T>,
}

impl<T> Default for Side<T> {
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

/// What is to be told on a link.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Told<T> {
    pub(crate) link: LinkId,
    /// Instead of everything told before.
    pub(crate) all: bool,
    pub(crate) add: Vec<T>,
    pub(crate) remove: Vec<T>,
}

/// What is where.
#[derive(Debug)]
pub(crate) struct Reach<T> {
    own: BTreeSet<T>,
    sides: BTreeMap<LinkId, Side<T>>,
    /// What is behind a lost link is still told elsewhere.
    lasts: bool,
    /// What is here is nowhere else.
    alone: bool,
    /// What is here now and was not when neighbours were told last, or the reverse.
    touched: BTreeSet<T>,
    /// What is behind links, or told there, changed since then.
    dirty: bool,
    /// What is behind links changed since [`Reach::take_moved`].
    moved: bool,
}

impl<T> Default for Reach<T> {
    fn default() -> Self {
        Self {
            own: BTreeSet::new(),
            sides: BTreeMap::new(),
            lasts: false,
            alone: false,
            touched: BTreeSet::new(),
            dirty: false,
            moved: false,
        }
    }
}

impl<T: Ord + Clone> Reach<T> {
    /// Of what waits where it was, and not elsewhere.
    pub(crate) fn lasting() -> Self {
        Self {
            lasts: true,
            ..Self::default()
        }
    }

    /// Of what is at one place, with what is here.
    pub(crate) fn new(own: T) -> Self {
        Self {
            own: BTreeSet::from([own]),
            alone: true,
            ..Self::default()
        }
    }

    /// Something is here.
    pub(crate) fn add(&mut self, own: T) {
        if self.own.insert(own.clone()) {
            self.touched.insert(own);
        }
    }

    /// Something is not here any more.
    pub(crate) fn remove(&mut self, own: &T) {
        if let Some(own) = self.own.take(own) {
            self.touched.insert(own);
        }
    }

    /// Whether what a neighbour tells can be relied upon: messages find their way, and it does not
    /// tell of what is here. It would have come there on a way that ends, over another link of
    /// this broker, and so may all else that is behind that link.
    fn is_reliable(&self, side: &Side<T>) -> bool {
        side.ready && !(self.alone && self.own.iter().any(|own| side.behind.contains(own)))
    }

    fn reliable(&self) -> impl Iterator<Item = (LinkId, &Side<T>)> {
        let sides = self.sides.iter().map(|(link, side)| (*link, side));
        sides.filter(|(_, side)| self.is_reliable(side))
    }

    /// How much the neighbour on a link has told.
    pub(crate) fn count(&self, link: LinkId) -> usize {
        self.sides.get(&link).map_or(0, |side| side.behind.len())
    }

    /// What the neighbour on a link has told.
    pub(crate) fn behind(&self, link: LinkId) -> BTreeSet<T> {
        let side = self.sides.get(&link);
        side.map(|side| side.behind.clone()).unwrap_or_default()
    }

    /// Whether the neighbour on a link has told that.
    pub(crate) fn leads_to(&self, link: LinkId, id: &T) -> bool {
        let side = self.sides.get(&link);
        side.is_some_and(|side| side.behind.contains(id))
    }

    /// What the neighbour on a link was told.
    pub(crate) fn told(&self, link: LinkId) -> Vec<T> {
        let side = self.sides.get(&link);
        let told = side.and_then(|side| side.told.as_ref());
        told.into_iter().flatten().cloned().collect()
    }

    /// What is reached.
    pub(crate) fn reached(&self) -> impl Iterator<Item = &T> {
        self.reliable().flat_map(|(_, side)| &side.behind)
    }

    /// All that is behind links and may be known, and whether it is reached now.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&T, bool)> {
        let sides = self.sides.values();
        sides.flat_map(|side| side.shown.iter().map(|it| (it, side.ready)))
    }

    /// The same by links.
    pub(crate) fn by_links(&self) -> impl Iterator<Item = (LinkId, &T)> {
        let sides = self.sides.iter();
        sides.flat_map(|(link, side)| side.shown.iter().map(|it| (*link, it)))
    }

    fn set_moved(&mut self) {
        (self.dirty, self.moved) = (true, true);
    }

    /// Whether what is behind links may have changed since this was asked last.
    pub(crate) fn take_moved(&mut self) -> bool {
        std::mem::take(&mut self.moved)
    }

    /// What was behind a link before a restart: it is lost.
    pub(crate) fn recall(&mut self, link: LinkId, behind: BTreeSet<T>) {
        self.set_moved();
        let side = self.sides.entry(link).or_default();
        (side.shown, side.behind) = (behind.clone(), behind);
    }

    /// A link carries messages from now on.
    pub(crate) fn activate(&mut self, link: LinkId) {
        let side = self.sides.entry(link).or_default();
        side.told = Some(BTreeSet::new());
        side.fresh = true;
        self.set_moved();
    }

    /// It does not any more; returns whom it led to.
    pub(crate) fn deactivate(&mut self, link: LinkId) -> BTreeSet<T> {
        self.set_moved();
        let Some(side) = self.sides.get_mut(&link) else {
            return BTreeSet::new();
        };
        (side.told, side.ready) = (None, false);
        if !self.lasts {
            side.shown.clear();
        }
        side.behind.clone()
    }

    /// Some of what was behind a link that is lost is not to be known any more.
    pub(crate) fn drop_from(&mut self, link: LinkId, gone: impl Fn(&T) -> bool) {
        if let Some(side) = self.sides.get_mut(&link) {
            side.behind.retain(|it| !gone(it));
            side.shown.retain(|it| !gone(it));
            self.set_moved();
        }
    }

    /// Its connection is gone.
    pub(crate) fn forget(&mut self, link: LinkId) {
        self.sides.remove(&link);
        self.set_moved();
    }

    /// What a neighbour wants is known; returns who is reached over it because of that.
    pub(crate) fn ready(&mut self, link: LinkId) -> BTreeSet<T> {
        let side = self.sides.entry(link).or_default();
        if side.told.is_none() || std::mem::replace(&mut side.ready, true) {
            return BTreeSet::new();
        }
        self.set_moved();
        let side = self.sides.get(&link).filter(|side| self.is_reliable(side));
        side.map(|side| side.behind.clone()).unwrap_or_default()
    }

    /// Whether all is known that the neighbour on a link wants.
    pub(crate) fn is_ready(&self, link: LinkId) -> bool {
        self.sides.get(&link).is_some_and(|side| side.ready)
    }

    /// What the neighbour on a link has told may be known elsewhere, if it is reached.
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

    /// A neighbour tells whom it reaches; returns who is reached over it because of
    /// that. Who is not reached any more is known elsewhere at once.
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

    /// Over which links that carry these brokers are reached, and whether all are.
    pub(crate) fn where_are(&self, ids: &BTreeSet<T>) -> (Vec<LinkId>, bool) {
        let links = self.reliable();
        let links = links.filter(|(_, side)| !side.behind.is_disjoint(ids));
        let reached = |id: &T| self.reliable().any(|(_, side)| side.behind.contains(id));
        (
            links.map(|(link, _)| link).collect(),
            ids.iter().all(reached),
        )
    }

    /// What is behind links that carry messages, also where it is not reached yet.
    pub(crate) fn expected(&self) -> BTreeSet<T> {
        let sides = self.sides.values().filter(|side| side.told.is_some());
        sides.flat_map(|side| side.behind.iter().cloned()).collect()
    }

    /// Those of these that are not reached.
    pub(crate) fn not_reached(&self, mut ids: BTreeSet<T>) -> BTreeSet<T> {
        for (_, side) in self.reliable() {
            ids.retain(|id| !side.behind.contains(id));
        }
        ids
    }

    /// Whether there may be something to tell.
    pub(crate) fn has_changes(&self) -> bool {
        self.dirty || !self.touched.is_empty()
    }

    /// What is to be told since this was asked last.
    pub(crate) fn changes(&mut self) -> Vec<Told<T>> {
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
            let change = Told {
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

    /// The same where nothing else has changed than whether these are here.
    fn changes_of(&mut self, touched: &BTreeSet<T>) -> Vec<Told<T>> {
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
            let change = Told {
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
        let told = |all, add: &str, remove: &str| Told {
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
        let mut reach = Reach::lasting();
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
        let told = |link, add: &str, remove: &str| Told {
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
