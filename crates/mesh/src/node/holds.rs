//! Holds: newer messages wait at a link that begins to carry, until older ones have passed it.
//!
//! While two parts of the mesh are separated, each queues messages for the other, at the brokers where
//! the links were lost ([`super::lost`]). When the parts join, all of these messages pass the link
//! between them, since the links form a tree. So do new publications, perhaps on a shorter path. Both
//! ends of that link therefore hold back new publications ([`Output::Hold`]), while copies pass, until a
//! fence ([`super::fences`]) over all their other links has passed. Each broker answers the fence when it
//! knows which brokers are reached again, and so has forwarded what it had queued for them, and when that
//! was acknowledged: then these messages have arrived at the link. Each end waits only for brokers on its
//! own side, so the two ends never wait for each other. A hold ends after [`super::Settings::heal`] at
//! the latest.

use std::collections::BTreeMap;

use punctual_model::Nanos;

use super::{Node, Output};
use crate::id::LinkId;

/// Progress of a hold at one end of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The brokers behind the link are not known yet.
    Opening,
    /// They are being advertised on the other links; then the fence is sent.
    Known,
    /// The fence with this number is open.
    Asked(u64),
}

/// Links with a hold, their progress, and when the hold ends at the latest.
#[derive(Debug, Default)]
pub(super) struct Holds(BTreeMap<LinkId, (Stage, Nanos)>);

impl Holds {
    /// When the first hold ends at the latest.
    pub(super) fn next(&self) -> Option<Nanos> {
        self.0.values().map(|(_, until)| *until).min()
    }

    pub(super) fn remove(&mut self, link: LinkId) {
        self.0.remove(&link);
    }

    /// The brokers behind a link are known.
    pub(super) fn leads(&mut self, link: LinkId) {
        if let Some((stage, _)) = self.0.get_mut(&link) {
            *stage = Stage::Known;
        }
    }

    /// More brokers came into reach behind a link: its fence is to be sent again.
    pub(super) fn leads_to_more(&mut self, link: LinkId) {
        if let Some((stage @ Stage::Asked(_), _)) = self.0.get_mut(&link) {
            *stage = Stage::Known;
        }
    }
}

impl Node {
    /// Begins a hold at a link that begins to carry, if other links carry or are likely to soon: older
    /// messages may come from there.
    pub(super) fn hold(&mut self, link: LinkId, now: Nanos) {
        let others = self.links.carrying().any(|other| other != link);
        if others || self.lost.may_carry_again(&self.links, now) {
            let until = now + self.settings.heal;
            self.holds.0.insert(link, (Stage::Opening, until));
            self.outputs.push(Output::Hold { link, holds: true });
        }
    }

    /// Sends fences for the links whose brokers have been advertised on all other links.
    pub(super) fn ask_for_holds(&mut self, now: Nanos) {
        if self.is_changing(now) {
            return;
        }
        let holds = self.holds.0.iter();
        let known = holds.filter(|(_, (stage, _))| *stage == Stage::Known);
        let known = known.filter(|(link, _)| !self.commit.is_to_show(**link));
        let known: Vec<(LinkId, Nanos)> = known.map(|(link, (_, until))| (*link, *until)).collect();
        for (link, until) in known {
            let number = self.fences.begin_for_hold(link, now, until);
            if let Some((stage, _)) = self.holds.0.get_mut(&link) {
                *stage = Stage::Asked(number);
            }
            self.ask_own(number, now);
        }
    }

    /// Whether the reached brokers are changing: updates to neighbours are pending, or a link is likely
    /// to carry again soon (a broker that changes its parent drops its children for a moment).
    pub(super) fn is_changing(&self, now: Nanos) -> bool {
        self.pace.is_amid()
            || self.reach.has_changes()
            || self.lost.may_carry_again(&self.links, now)
    }

    /// The fence of a hold has passed, or expired.
    pub(super) fn end_hold(&mut self, link: LinkId, number: u64) {
        let hold = self.holds.0.get(&link);
        if hold.is_some_and(|(stage, _)| *stage == Stage::Asked(number)) {
            self.let_go(link);
        }
    }

    /// Ends the holds that have lasted for long enough.
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
