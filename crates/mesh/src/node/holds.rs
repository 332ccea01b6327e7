//! What is newer waits at a link that begins to carry, until what is older has come.
//!
//! While parts of the mesh did not reach each other, each kept what it had for the other: wherever the
//! links were lost ([`super::lost`]). When they become one again, all of that passes the link that joins
//! them, since the links form a tree. So does what is published from then on, perhaps on a shorter way.
//! Both ends of that link therefore hold what is newer ([`Output::Hold`]), while copies pass, until a
//! question has gone over all their other links ([`super::fences`]). Each broker answers it when it has
//! heard who is back, and so has passed on what it kept, and when that is acknowledged: it has come to
//! the link. Who holds waits only for those on its own side, so that no two wait for each other. After
//! [`super::Settings::heal`] it does not wait any more.

use std::collections::BTreeMap;

use punctual_model::Nanos;

use super::{Node, Output};
use crate::id::LinkId;

/// How far one end of a link is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It is not known whom the link leads to.
    Opening,
    /// Others are told that, and are to be asked then.
    Known,
    /// They are asked, with that number.
    Asked(u64),
}

/// Links at which something is held.
#[derive(Debug, Default)]
pub(super) struct Holds(BTreeMap<LinkId, (Stage, Nanos)>);

impl Holds {
    /// When one ends at the latest.
    pub(super) fn next(&self) -> Option<Nanos> {
        self.0.values().map(|(_, until)| *until).min()
    }

    pub(super) fn remove(&mut self, link: LinkId) {
        self.0.remove(&link);
    }

    /// A link leads to others.
    pub(super) fn leads(&mut self, link: LinkId) {
        if let Some((stage, _)) = self.0.get_mut(&link) {
            *stage = Stage::Known;
        }
    }

    /// It leads to more than was known when all was known that its neighbour wants.
    pub(super) fn leads_to_more(&mut self, link: LinkId) {
        if let Some((stage @ Stage::Asked(_), _)) = self.0.get_mut(&link) {
            *stage = Stage::Known;
        }
    }
}

impl Node {
    /// A link begins to carry: if others do, or will, these may lead to something that is to come first.
    pub(super) fn hold(&mut self, link: LinkId, now: Nanos) {
        let others = self.links.carrying().any(|other| other != link);
        if others || self.lost.may_carry_again(&self.links, now) {
            let until = now + self.settings.heal;
            self.holds.0.insert(link, (Stage::Opening, until));
            self.outputs.push(Output::Hold { link, holds: true });
        }
    }

    /// Asks for links of which all others have been told whom they lead to.
    pub(super) fn ask_for_holds(&mut self, now: Nanos) {
        if self.is_changing(now) {
            return;
        }
        let holds = self.holds.0.iter();
        let known = holds.filter(|(_, (stage, _))| *stage == Stage::Known);
        let known = known.filter(|(link, _)| !self.keeping.is_to_show(**link));
        let known: Vec<(LinkId, Nanos)> = known.map(|(link, (_, until))| (*link, *until)).collect();
        for (link, until) in known {
            let number = self.fences.begin_for_hold(link, now, until);
            if let Some((stage, _)) = self.holds.0.get_mut(&link) {
                *stage = Stage::Asked(number);
            }
            self.ask_own(number, now);
        }
    }

    /// Whether neighbours have not been told all that is known of who is reached, or there will soon
    /// be others again: who takes another parent lets go of its children for a moment.
    pub(super) fn is_changing(&self, now: Nanos) -> bool {
        self.pace.is_amid()
            || self.reach.has_changes()
            || self.lost.may_carry_again(&self.links, now)
    }

    /// A question for a link is answered, or not waited for any more.
    pub(super) fn end_hold(&mut self, link: LinkId, number: u64) {
        let hold = self.holds.0.get(&link);
        if hold.is_some_and(|(stage, _)| *stage == Stage::Asked(number)) {
            self.let_go(link);
        }
    }

    /// Ends what has lasted for long enough.
    pub(super) fn end_late_holds(&mut self, now: Nanos) {
        let holds = self.holds.0.iter();
        let late = holds.filter(|(_, (_, until))| *until <= now);
        let late: Vec<LinkId> = late.map(|(link, _)| *link).collect();
        late.into_iter().for_each(|link| self.let_go(link));
    }

    fn let_go(&mut self, link: LinkId) {
        self.holds.remove(link);
        self.outputs.push(Output::Hold { link, holds: false });
    }
}
