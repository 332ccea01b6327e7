//! Which brokers are behind which link of the tree.
//!
//! Each broker tells its neighbours on the tree whom it reaches over its other
//! links, itself included; a tree has no circles, so what is told dies out when a broker
//! is gone. It is told only when the table of the link over which a broker came is
//! complete, and after the filters that it wants: who hears that a broker is back
//! can send what it kept for it.

use std::collections::{BTreeMap, BTreeSet};

use crate::id::{BrokerId, LinkId};

/// Whom a link leads to, and who was told there.
#[derive(Debug, Default)]
struct Side {
    /// What the neighbour told.
    behind: BTreeSet<BrokerId>,
    /// What it was told; `None` as long as nothing is told on the link.
    told: Option<BTreeSet<BrokerId>>,
    /// Whether its filters are known, so that messages find their way.
    ready: bool,
    /// It has been told nothing since it carries.
    fresh: bool,
}

/// What is to be told on a link.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) link: LinkId,
    /// Instead of everything told before.
    pub(crate) all: bool,
    pub(crate) add: Vec<BrokerId>,
    pub(crate) remove: Vec<BrokerId>,
}

/// Who is where.
#[derive(Debug)]
pub(crate) struct Reach {
    own: BrokerId,
    sides: BTreeMap<LinkId, Side>,
    dirty: bool,
}

impl Reach {
    pub(crate) fn new(own: BrokerId) -> Self {
        Self {
            own,
            sides: BTreeMap::new(),
            dirty: false,
        }
    }

    /// A link carries messages from now on.
    pub(crate) fn activate(&mut self, link: LinkId) {
        let side = self.sides.entry(link).or_default();
        side.told = Some(BTreeSet::new());
        side.fresh = true;
        self.dirty = true;
    }

    /// It does not any more; returns whom it led to.
    pub(crate) fn deactivate(&mut self, link: LinkId) -> BTreeSet<BrokerId> {
        self.dirty = true;
        let Some(side) = self.sides.get_mut(&link) else {
            return BTreeSet::new();
        };
        (side.told, side.ready) = (None, false);
        side.behind.clone()
    }

    /// Its connection is gone.
    pub(crate) fn forget(&mut self, link: LinkId) {
        self.sides.remove(&link);
        self.dirty = true;
    }

    /// What a neighbour wants is known; returns who is reached over it because of that.
    pub(crate) fn ready(&mut self, link: LinkId) -> BTreeSet<BrokerId> {
        let side = self.sides.entry(link).or_default();
        if side.told.is_none() || std::mem::replace(&mut side.ready, true) {
            return BTreeSet::new();
        }
        self.dirty = true;
        side.behind.clone()
    }

    /// A neighbour tells whom it reaches; returns who is reached over it because of
    /// that.
    pub(crate) fn heard(
        &mut self,
        link: LinkId,
        all: bool,
        add: Vec<BrokerId>,
        remove: &[BrokerId],
    ) -> BTreeSet<BrokerId> {
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
        self.dirty = true;
        match side.ready {
            true => new,
            false => BTreeSet::new(),
        }
    }

    /// Over which links that carry these brokers are reached, and whether all are.
    pub(crate) fn where_are(&self, ids: &BTreeSet<BrokerId>) -> (Vec<LinkId>, bool) {
        let ready = || self.sides.iter().filter(|(_, side)| side.ready);
        let links = ready().filter(|(_, side)| !side.behind.is_disjoint(ids));
        let reached = |id: &BrokerId| ready().any(|(_, side)| side.behind.contains(id));
        (
            links.map(|(link, _)| *link).collect(),
            ids.iter().all(reached),
        )
    }

    /// Whether there may be something to tell.
    pub(crate) fn has_changes(&self) -> bool {
        self.dirty
    }

    /// What is to be told since this was asked last.
    pub(crate) fn changes(&mut self) -> Vec<Told> {
        if !std::mem::take(&mut self.dirty) {
            return Vec::new();
        }
        let links: Vec<LinkId> = self.sides.keys().copied().collect();
        let mut changes = Vec::new();
        for link in links {
            let others = self.sides.iter();
            let others = others.filter(|(other, side)| **other != link && side.ready);
            let mut due: BTreeSet<BrokerId> = others
                .flat_map(|(_, side)| side.behind.iter().cloned())
                .collect();
            due.insert(self.own.clone());
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
        let told = |all, add: &str, remove: &str| Told {
            link: two,
            all,
            add: list(add),
            remove: list(remove),
        };
        assert_eq!(reach.changes(), [told(false, "a b", "")]);
        assert_eq!(reach.heard(one, false, list("c"), &list("a")), ids("c"));
        assert_eq!(reach.changes(), [told(false, "c", "a")]);
        assert_eq!(reach.where_are(&ids("b c")), (vec![one], true));
        assert_eq!(reach.where_are(&ids("a b")), (vec![one], false));
        assert_eq!(reach.heard(one, true, list("c d"), &[]), ids("d"));
        assert_eq!(reach.deactivate(one), ids("c d"));
        assert_eq!(reach.changes(), [told(false, "", "b c")]);
        assert_eq!(reach.changes(), []);
    }
}
