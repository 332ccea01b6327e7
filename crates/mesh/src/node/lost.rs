//! What happens to messages that were on their way over a link when it ceased to carry.
//!
//! Nothing that was to go over a link is lost with it. While a link does not carry
//! any more, what its neighbour wanted stays wanted, and the shell keeps what is
//! meant for it, as for any session without connection. Every broker knows whom each
//! of its links leads to ([`crate::reach`]). When one that was behind a lost link is
//! behind another, and the tables on the way there are complete, the shell is told
//! to copy what it keeps to that link ([`Output::Copy`]); when filters that overlap
//! are new there, before newer messages go, so that the order is kept. A copy goes
//! on to neighbours from brokers that had it already, too: somebody behind them may
//! have come from elsewhere, and who has it recognises it ([`crate::seen`]).
//!
//! Once all that were behind the lost link are back, what still comes for it is passed on
//! for [`super::Settings::linger`], since messages may be under way from brokers that did not
//! know yet; then it is forgotten. Who does not come back in [`super::Settings::heal`] is given
//! up, unless no link carries at all: then there is nowhere to go yet.

use std::collections::{BTreeMap, BTreeSet};

use punctual_model::Nanos;

use super::links::Links;
use super::{Node, Output};
use crate::id::{BrokerId, LinkId};
use crate::reach::Reach;

/// A link that carried and does not any more.
#[derive(Debug)]
struct Lost {
    since: Nanos,
    /// Who was behind it; `None` if that is not known any more.
    behind: Option<BTreeSet<BrokerId>>,
    /// Since when all of them are back elsewhere.
    back: Option<Nanos>,
    /// When what came meanwhile is passed on next.
    pass_on: Nanos,
}

/// What is kept for one link is to go to another, and is not kept any more if it moves.
#[derive(Debug)]
struct Pass {
    from: LinkId,
    to: LinkId,
    moves: bool,
}

/// What is due for links that are lost.
#[derive(Debug, Default)]
struct Due {
    passes: Vec<Pass>,
    /// Links for which nothing is kept after that.
    over: Vec<LinkId>,
}

/// Links that carried and do not any more.
#[derive(Debug)]
pub(super) struct LostLinks {
    lost: BTreeMap<LinkId, Lost>,
    /// How long what is kept waits for another way.
    heal: Nanos,
    /// After which what still comes is passed on again.
    again: Nanos,
}

impl LostLinks {
    pub(super) fn new(heal: Nanos, again: Nanos) -> Self {
        Self {
            lost: BTreeMap::new(),
            heal,
            again,
        }
    }

    /// What is meant for a link waits from now on.
    pub(super) fn insert(&mut self, link: LinkId, behind: Option<BTreeSet<BrokerId>>, now: Nanos) {
        let lost = Lost {
            since: now,
            behind,
            back: None,
            pass_on: now,
        };
        self.lost.insert(link, lost);
    }

    /// It does not any more.
    pub(super) fn remove(&mut self, link: LinkId) {
        self.lost.remove(&link);
    }

    pub(super) fn contains(&self, link: LinkId) -> bool {
        self.lost.contains_key(&link)
    }

    pub(super) fn links(&self) -> impl Iterator<Item = LinkId> {
        self.lost.keys().copied()
    }

    /// Links that led to any of these brokers, or may have.
    fn that_led_to(&self, who: &BTreeSet<BrokerId>) -> Vec<LinkId> {
        let theirs = |lost: &Lost| {
            let behind = lost.behind.as_ref();
            behind.is_none_or(|behind| !behind.is_disjoint(who))
        };
        let lost = self.lost.iter().filter(|(_, lost)| theirs(lost));
        lost.map(|(link, _)| *link).collect()
    }

    /// What is to be passed on, and given up.
    fn due(&mut self, reach: &Reach<BrokerId>, links: &Links, may_heal: bool, now: Nanos) -> Due {
        let mut due = Due::default();
        for (from, lost) in &mut self.lost {
            let (to, all) = match &lost.behind {
                Some(behind) => reach.where_are(behind),
                None => (Vec::new(), false),
            };
            if !all {
                lost.back = None;
            } else if lost.back.is_none() {
                (lost.back, lost.pass_on) = (Some(now), now);
            }
            let lingers = lost.back.and_then(|back| links.linger_ends(back));
            let lingered = lingers.is_some_and(|end| end <= now);
            let ends = lingered || may_heal && lost.since + self.heal <= now;
            if ends || all && lost.pass_on <= now {
                lost.pass_on = now + self.again;
                let last = to.len();
                due.passes
                    .extend(to.into_iter().zip(1..).map(|(to, i)| Pass {
                        from: *from,
                        to,
                        moves: i == last,
                    }));
            }
            if ends {
                due.over.push(*from);
            }
        }
        due
    }

    /// When something is due.
    fn next(&self, links: &Links, may_heal: bool) -> Option<Nanos> {
        let due = self.lost.values().filter_map(|lost| {
            let end = may_heal.then_some(lost.since + self.heal);
            let lingered = lost.back.and_then(|back| links.linger_ends(back));
            let next = lost.back.map(|_| lost.pass_on);
            end.into_iter().chain(lingered).chain(next).min()
        });
        due.min()
    }
}

impl Node {
    /// A link does not carry any more that led to these, its neighbour among them.
    pub(super) fn lose(&mut self, link: LinkId, behind: BTreeSet<BrokerId>, now: Nanos) {
        // Some may have come by another link before this one was known to be lost.
        let (came, _) = self.reach.where_are(&behind);
        self.lost.insert(link, Some(behind), now);
        for to in came {
            self.copy(link, to, false);
        }
    }

    /// Brokers are behind a link now: what is kept for them goes there.
    pub(super) fn came(&mut self, link: LinkId, who: &BTreeSet<BrokerId>) {
        if who.is_empty() {
            return;
        }
        self.outputs.push(Output::Reached);
        for from in self.lost.that_led_to(who) {
            self.copy(from, link, false);
        }
    }

    /// A neighbour wants filters that it did not: what waits for lost ones goes first.
    pub(super) fn copy_overlapping(&mut self, link: LinkId, added: &[Box<str>]) {
        let lost: Vec<LinkId> = self.lost.links().filter(|lost| *lost != link).collect();
        for lost in lost {
            let kept = self.filters.table.wanted_by(lost);
            let overlap = |new: &str| kept.iter().any(|old| overlaps(old, new));
            if added.iter().any(|new| overlap(new)) {
                self.copy(lost, link, false);
            }
        }
    }

    /// What is kept for one link goes to another.
    fn copy(&mut self, from: LinkId, to: LinkId, moves: bool) {
        let both = (self.links.peer(from), self.links.peer(to));
        if let (Some(from), Some(to)) = both
            && from != to
        {
            let (from, to) = (from.clone(), to.clone());
            self.outputs.push(Output::Copy { from, to, moves });
        }
    }

    /// Passes on what came for lost links whose brokers are all back elsewhere, and
    /// gives up what has waited for long enough.
    pub(super) fn pass_on(&mut self, now: Nanos) {
        let may_give_up = self.may_give_up();
        let due = self.lost.due(&self.reach, &self.links, may_give_up, now);
        for Pass { from, to, moves } in due.passes {
            self.copy(from, to, moves);
        }
        due.over.into_iter().for_each(|link| self.give_up(link));
    }

    /// When [`Self::pass_on`] is due.
    pub(super) fn next_pass(&self) -> Option<Nanos> {
        self.lost.next(&self.links, self.may_give_up())
    }

    /// Whether messages that wait have had somewhere else to go.
    fn may_give_up(&self) -> bool {
        self.links.any_carries() && self.tree.is_attached()
    }

    /// Nothing is kept for a link any more.
    fn give_up(&mut self, link: LinkId) {
        self.lost.remove(link);
        match self.links.get(link) {
            Some(up) => {
                let peer = up.peer.clone();
                self.forget_wishes(link);
                self.outputs.push(Output::Forget(peer));
            }
            None => self.release(link),
        }
    }

    /// Lets a link's number be used again if nothing depends on it.
    pub(super) fn release(&mut self, link: LinkId) {
        if self.links.is_up(link) || self.lost.contains(link) {
            return;
        }
        self.forget_wishes(link);
        if let Some(peer) = self.links.release(link) {
            self.outputs.push(Output::Forget(peer));
        }
    }

    /// Nothing is wanted over a link.
    fn forget_wishes(&mut self, link: LinkId) {
        self.filters.table.forget(link);
        self.members.forget(link);
        self.keeping.forget(link);
    }
}

/// Whether there are topics that both filters match.
fn overlaps(a: &str, b: &str) -> bool {
    let (mut a, mut b) = (a.split('/'), b.split('/'));
    loop {
        match (a.next(), b.next()) {
            (Some("#"), _) | (_, Some("#")) | (None, None) => return true,
            (Some(x), Some(y)) if x == y || x == "+" || y == "+" => {}
            _ => return false,
        }
    }
}
