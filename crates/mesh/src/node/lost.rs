//! Lost links: what happens to messages that were in flight on a link, or queued for it, when it ceased
//! to carry.
//!
//! No message for a lost link is dropped at once. While a link does not carry, the filters of its
//! neighbour stay, and the shell queues matching messages, as for any session without a connection. Every
//! broker knows which brokers each of its links leads to ([`crate::reach`]). When a broker that was
//! behind a lost link is reached over another, and the tables on the path are complete, the shell copies
//! the queue to that link ([`Output::Copy`]). It does the same when the neighbour on a link adds filters
//! that overlap with the queue, before it sends newer messages, so that the order is preserved; messages
//! that took another path wait where both paths meet ([`super::holds`]). Brokers forward a copy even if
//! they have seen it before, as a broker behind them may have moved there; duplicates are recognised
//! ([`crate::seen`]).
//!
//! Once all brokers that were behind the lost link are reached again, messages that still arrive for it
//! are copied for [`super::Settings::linger`], and until a fence ([`super::fences`]) shows that no
//! message is in flight from a broker that did not know of the change yet. Then the link is forgotten.
//!
//! If brokers are not reached again within [`super::Settings::heal`], only messages for their persistent
//! sessions ([`super::interest`]) are queued from then on, until [`super::Settings::keep`] after the
//! loss. Messages queued before that stay for another `heal`, since the clients that are to receive them
//! may be connected to a broker that is only cut off; then those that match no persistent session are
//! dropped. A link behind which no persistent session has filters is given up. Nothing expires while no
//! link carries at all, as there is nowhere to copy to. An operator who knows that a broker will not
//! return can say so earlier ([`Node::forget`]).

use std::collections::{BTreeMap, BTreeSet};

use punctual_model::Nanos;

use super::links::Links;
use super::{Event, Node, Output};
use crate::id::{BrokerId, LinkId};
use crate::reach::Reach;

/// Why [`Node::forget`] fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForgetError {
    /// Nothing is stored for this broker here.
    Unknown,
    /// The broker is connected or reached, or is this broker itself.
    Present,
}

/// A link that ceased to carry.
#[derive(Debug)]
struct LostLink {
    since: Nanos,
    /// The brokers behind it; `None` if unknown since a restart.
    behind: Option<BTreeSet<BrokerId>>,
    /// Since when all of them are reached over other links.
    back: Option<Nanos>,
    /// When messages that arrived meanwhile are copied next.
    pass_on: Nanos,
    /// The brokers that were away when its filters were reduced to their persistent interest.
    away: Option<BTreeSet<BrokerId>>,
    /// When queued messages that do not match these filters are dropped.
    trim: Option<Nanos>,
    /// Since when a different set of brokers is away.
    changed: Option<Nanos>,
    /// The fence that has to pass before the link is forgotten or its filters are reduced again.
    fence: FenceState,
    /// A broker that an operator removed from `behind`, until the next call of [`LostLinks::due`].
    forgotten: Option<BrokerId>,
}

/// State of a fence, see [`super::fences`].
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum FenceState {
    #[default]
    NotAsked,
    /// To be sent.
    ToAsk,
    /// Sent with this number, and not answered.
    Asked(u64),
    Passed,
}

impl LostLink {
    /// Whether the fence has passed; requests one if there is none.
    fn is_fenced(&mut self) -> bool {
        if self.fence == FenceState::NotAsked {
            self.fence = FenceState::ToAsk;
        }
        self.fence == FenceState::Passed
    }

    /// The brokers that are away, if the filters are to be reduced to their persistent interest: if they
    /// were not yet; if one of them was forgotten; or if the set has changed, and no message can be in
    /// flight from a broker that does not know of the change.
    fn narrows(
        &mut self,
        away: BTreeSet<BrokerId>,
        forgets: bool,
        links: &Links,
        now: Nanos,
    ) -> Option<BTreeSet<BrokerId>> {
        match &self.away {
            None => Some(away),
            Some(before) if *before == away => {
                (self.changed, self.fence) = (None, FenceState::NotAsked);
                forgets.then_some(away)
            }
            Some(_) => {
                let changed = *self.changed.get_or_insert(now);
                let ends = links.linger_ends(changed);
                let lingered = ends.is_some_and(|end| end <= now);
                (lingered && self.is_fenced()).then_some(away)
            }
        }
    }
}

/// The queue of one link is to be copied to another, and emptied if `moves`.
#[derive(Debug)]
struct CopyOrder {
    from: LinkId,
    to: LinkId,
    moves: bool,
}

/// Work that is due for lost links.
#[derive(Debug, Default)]
struct DueWork {
    passes: Vec<CopyOrder>,
    /// Links whose filters are then reduced to the persistent interest of these brokers.
    narrow: Vec<(LinkId, BTreeSet<BrokerId>)>,
    /// Links whose queued messages that match no filter are then dropped.
    trim: Vec<LinkId>,
    /// Links that are then given up, with the forgotten broker if that is the reason.
    over: Vec<(LinkId, Option<BrokerId>)>,
    /// Links for which a fence is to be sent.
    fences: Vec<LinkId>,
}

/// All lost links.
#[derive(Debug)]
pub(super) struct LostLinks {
    lost: BTreeMap<LinkId, LostLink>,
    /// The brokers behind links that carry again, until their neighbours send the present set.
    carry_again: BTreeMap<LinkId, BTreeSet<BrokerId>>,
    /// How long all messages are queued for a broker that is away.
    heal: Nanos,
    /// How long messages for its persistent sessions are.
    keep: Nanos,
    /// Interval at which messages that still arrive are copied.
    again: Nanos,
}

impl LostLinks {
    pub(super) fn new(heal: Nanos, keep: Nanos, again: Nanos) -> Self {
        Self {
            lost: BTreeMap::new(),
            carry_again: BTreeMap::new(),
            heal,
            keep: keep.max(heal),
            again,
        }
    }

    /// Messages for a link are queued from now on.
    pub(super) fn insert(
        &mut self,
        link: LinkId,
        mut behind: Option<BTreeSet<BrokerId>>,
        now: Nanos,
    ) {
        if let (Some(before), Some(behind)) = (self.carry_again.remove(&link), &mut behind) {
            behind.extend(before);
        }
        let lost = LostLink {
            since: now,
            behind,
            back: None,
            pass_on: now,
            away: None,
            trim: None,
            changed: None,
            fence: FenceState::NotAsked,
            forgotten: None,
        };
        self.lost.insert(link, lost);
    }

    /// The link is forgotten.
    pub(super) fn remove(&mut self, link: LinkId) {
        self.lost.remove(&link);
        self.carry_again.remove(&link);
    }

    /// The link carries again.
    pub(super) fn carries_again(&mut self, link: LinkId) {
        if let Some(behind) = self.lost.remove(&link).and_then(|lost| lost.behind) {
            self.carry_again.insert(link, behind);
        }
    }

    /// The neighbour on a link has sent the brokers that it leads to.
    pub(super) fn heard(&mut self, link: LinkId) {
        self.carry_again.remove(&link);
    }

    /// Replaces a broker by its heirs (the brokers for which it queued messages). Returns the lost links
    /// that led to it, with the brokers that they count as leading to now; `None` if no link led to it.
    fn forget(
        &mut self,
        broker: &BrokerId,
        heirs: &BTreeSet<BrokerId>,
    ) -> Option<BTreeMap<LinkId, BTreeSet<BrokerId>>> {
        let mut known = false;
        for behind in self.carry_again.values_mut() {
            known |= behind.remove(broker);
        }
        let mut links = BTreeMap::new();
        for (link, lost) in &mut self.lost {
            if let Some(behind) = &mut lost.behind
                && behind.remove(broker)
            {
                behind.extend(heirs.iter().cloned());
                links.insert(*link, behind.clone());
                lost.forgotten = Some(broker.clone());
                if let Some(away) = &mut lost.away {
                    away.remove(broker);
                    away.extend(heirs.iter().cloned());
                }
            }
        }
        (known || !links.is_empty()).then_some(links)
    }

    /// Whether a link is likely to carry again soon: it was lost within [`Links::linger`], its neighbour
    /// is connected, and not all brokers behind it are reached otherwise.
    pub(super) fn may_carry_again(&self, links: &Links, now: Nanos) -> bool {
        let mut lost = self.lost.iter();
        lost.any(|(link, lost)| {
            let is_recent = lost.since + links.linger() > now;
            lost.back.is_none() && is_recent && links.is_up(*link)
        })
    }

    pub(super) fn contains(&self, link: LinkId) -> bool {
        self.lost.contains_key(&link)
    }

    pub(super) fn links(&self) -> impl Iterator<Item = LinkId> {
        self.lost.keys().copied()
    }

    /// Whether the queue of a lost link is being copied elsewhere, or may soon be.
    pub(super) fn may_turn(&self, now: Nanos) -> bool {
        let mut lost = self.lost.values();
        lost.any(|lost| lost.back.is_some() || lost.since + self.heal > now)
    }

    /// A fence was sent for a link.
    fn fence_is_asked(&mut self, link: LinkId, number: u64) {
        if let Some(lost) = self.lost.get_mut(&link) {
            lost.fence = FenceState::Asked(number);
        }
    }

    /// Whether a link waits for this fence.
    fn awaits_fence(&self, link: LinkId, number: u64) -> bool {
        let lost = self.lost.get(&link);
        lost.is_some_and(|lost| lost.fence == FenceState::Asked(number))
    }

    /// A fence has passed.
    pub(super) fn fenced(&mut self, link: LinkId, number: u64) {
        if self.awaits_fence(link, number)
            && let Some(lost) = self.lost.get_mut(&link)
        {
            lost.fence = FenceState::Passed;
        }
    }

    /// All brokers behind lost links, and behind links that carry again and have not been confirmed yet.
    fn behind(&self) -> BTreeSet<BrokerId> {
        let behind = self.lost.values().filter_map(|lost| lost.behind.as_ref());
        let behind = behind.chain(self.carry_again.values());
        behind.flatten().cloned().collect()
    }

    /// Brokers for which only messages for persistent sessions are queued.
    pub(super) fn away(&self) -> BTreeSet<BrokerId> {
        let away = self.lost.values().filter_map(|lost| lost.away.as_ref());
        away.flatten().cloned().collect()
    }

    /// Lost links that led to any of these brokers, or may have.
    fn that_led_to(&self, who: &BTreeSet<BrokerId>) -> Vec<LinkId> {
        let theirs = |lost: &LostLink| {
            let behind = lost.behind.as_ref();
            behind.is_none_or(|behind| !behind.is_disjoint(who))
        };
        let lost = self.lost.iter().filter(|(_, lost)| theirs(lost));
        lost.map(|(link, _)| *link).collect()
    }

    /// Takes the work that is due. `may_heal`: see [`Node::may_give_up`]. `is_awaited` says whether any
    /// of some brokers has persistent interest.
    fn due(
        &mut self,
        reach: &Reach<BrokerId>,
        links: &Links,
        may_heal: bool,
        is_awaited: impl Fn(&BTreeSet<BrokerId>) -> bool,
        now: Nanos,
    ) -> DueWork {
        let mut due = DueWork::default();
        for (from, lost) in &mut self.lost {
            let (to, all) = match &lost.behind {
                Some(behind) => reach.where_are(behind),
                None => (Vec::new(), false),
            };
            if all != lost.back.is_some() {
                (lost.back, lost.fence) = (all.then_some(now), FenceState::NotAsked);
                if all {
                    (lost.pass_on, lost.changed) = (now, None);
                }
            }
            let lingers = lost.back.and_then(|back| links.linger_ends(back));
            let lingered = lingers.is_some_and(|end| end <= now);
            let lingered = lingered && lost.is_fenced();
            let forgotten = lost.forgotten.take();
            let forgets = forgotten.is_some();
            let is_empty = lost.behind.as_ref().is_some_and(BTreeSet::is_empty);
            let is_late = may_heal && lost.since + self.keep <= now;
            let mut ends = lingered || is_late || forgets && is_empty;
            let mut narrows = None;
            let heals = may_heal && lost.since + self.heal <= now;
            // A decision of an operator counts even while no broker is reached.
            if !ends && !all && (heals || forgets && lost.away.is_some()) {
                let behind = lost.behind.clone().unwrap_or_default();
                let away = reach.not_reached(behind);
                narrows = lost.narrows(away, forgets, links, now);
                if narrows.is_some() {
                    let wait = if forgets { Nanos(0) } else { self.heal };
                    lost.trim = Some(now + wait);
                }
            }
            if !ends && !all && lost.trim.is_some_and(|at| at <= now) {
                lost.trim = None;
                match narrows.as_ref().or(lost.away.as_ref()) {
                    Some(away) if is_awaited(away) => due.trim.push(*from),
                    _ => (ends, narrows) = (true, None),
                }
            }
            if lost.fence == FenceState::ToAsk {
                due.fences.push(*from);
            }
            if ends || narrows.is_some() || all && lost.pass_on <= now {
                lost.pass_on = now + self.again;
                let last = to.len();
                due.passes
                    .extend(to.into_iter().zip(1..).map(|(to, i)| CopyOrder {
                        from: *from,
                        to,
                        moves: i == last && narrows.is_none(),
                    }));
            }
            if ends {
                due.over.push((*from, forgotten));
            } else if let Some(away) = narrows {
                (lost.away, lost.changed) = (Some(away.clone()), None);
                lost.fence = FenceState::NotAsked;
                due.narrow.push((*from, away));
            }
        }
        due
    }

    /// When [`Self::due`] returns something next.
    fn next(&self, links: &Links, may_heal: bool) -> Option<Nanos> {
        let due = self.lost.values().filter_map(|lost| {
            // While a fence is open, its answer triggers the next step.
            let lingers = |since| {
                let ends = links.linger_ends(since);
                ends.filter(|_| matches!(lost.fence, FenceState::NotAsked | FenceState::Passed))
            };
            let all = match lost.back {
                Some(back) => [lingers(back), Some(lost.pass_on)],
                None => {
                    let heals = lost.away.is_none().then_some(lost.since + self.heal);
                    let narrows = lost.changed.and_then(lingers);
                    [heals, narrows].map(|at| at.filter(|_| may_heal))
                }
            };
            let end = may_heal.then_some(lost.since + self.keep);
            let trim = lost.trim.filter(|_| may_heal && lost.back.is_none());
            all.into_iter().chain([end, trim]).flatten().min()
        });
        due.min()
    }
}

impl Node {
    /// A link that led to these brokers, its neighbour included, ceased to carry.
    pub(super) fn lose(&mut self, link: LinkId, mut behind: BTreeSet<BrokerId>, now: Nanos) {
        // Brokers with outdated information count this broker itself as behind the link.
        behind.remove(&self.settings.id);
        // Some may have been reached over another link before the loss of this one was noticed.
        let (came, _) = self.reach.where_are(&behind);
        self.lost.insert(link, Some(behind), now);
        for to in came {
            self.copy(link, to, false);
        }
    }

    /// Brokers came into reach over a link: messages queued for them are copied there.
    pub(super) fn came(&mut self, link: LinkId, who: &BTreeSet<BrokerId>) {
        if who.is_empty() {
            return;
        }
        self.outputs.push(Output::Reached);
        self.believe_who_leads_to(who);
        for from in self.lost.that_led_to(who) {
            self.copy(from, link, false);
        }
    }

    /// A neighbour added filters: queued messages of lost links that overlap with them are copied to it
    /// first.
    pub(super) fn copy_overlapping(&mut self, link: LinkId, added: &[Box<str>]) {
        let lost: Vec<LinkId> = self.lost.links().filter(|lost| *lost != link).collect();
        if !lost.is_empty() {
            for lost in self.filters.table.overlapping(&lost, added) {
                self.copy(lost, link, false);
            }
        }
    }

    /// Has the queue of one link copied to another.
    fn copy(&mut self, from: LinkId, to: LinkId, moves: bool) {
        let both = (self.links.peer(from), self.links.peer(to));
        if let (Some(from), Some(to)) = both
            && from != to
        {
            let (from, to) = (from.clone(), to.clone());
            self.outputs.push(Output::Copy { from, to, moves });
        }
    }

    /// Does the work that is due for lost links.
    pub(super) fn pass_on(&mut self, now: Nanos) {
        let may_give_up = self.may_give_up();
        let (interest, reach) = (&self.interest, &self.reach);
        let is_awaited = |away: &BTreeSet<BrokerId>| !interest.awaited(away, reach).is_empty();
        let due = self
            .lost
            .due(&self.reach, &self.links, may_give_up, is_awaited, now);
        for CopyOrder { from, to, moves } in due.passes {
            self.copy(from, to, moves);
        }
        for (link, away) in due.narrow {
            self.narrow(link, away);
        }
        for peer in due
            .trim
            .into_iter()
            .filter_map(|link| self.links.peer(link))
        {
            self.outputs.push(Output::Trim(peer.clone()));
        }
        if !due.over.is_empty() {
            for (link, forgotten) in due.over {
                self.give_up(link, forgotten);
            }
            self.note_kept();
        }
        for link in due.fences {
            let number = self.fences.begin_for(link, now, now + self.settings.heal);
            self.lost.fence_is_asked(link, number);
        }
        let lost = &self.lost;
        self.fences
            .retain(|link, number| lost.awaits_fence(link, number));
        let led_to = self.led_to();
        self.interest
            .retain(|id| led_to.contains(id), &mut self.outputs, now);
    }

    /// Declares that a broker which is away will not return: messages for it are not kept here any more.
    /// If it does return, it is a broker like any other, and its sessions have missed these messages.
    /// Messages that it would have forwarded to other brokers that are away are kept for those. Other
    /// brokers that queue messages for it are not affected.
    ///
    /// # Errors
    /// [`ForgetError`]; nothing has changed then.
    pub fn forget(&mut self, broker: &BrokerId, now: Nanos) -> Result<(), ForgetError> {
        let is_own = *broker == self.settings.id;
        let is_there = self.links.to(broker).is_some() || self.reach.expected().contains(broker);
        if is_own || is_there {
            return Err(ForgetError::Present);
        }
        let mut heirs = self.interest.kept_by(broker);
        heirs.remove(&self.settings.id);
        let heirs = self.reach.not_reached(heirs);
        let links = self.lost.forget(broker, &heirs);
        let was_reached = self.presence.forget(broker);
        let links = match links {
            None if !was_reached => return Err(ForgetError::Unknown),
            links => links.unwrap_or_default(),
        };
        self.outputs.log(Event::Forgotten(broker.clone()));
        for (link, others) in links {
            self.reach.drop_from(link, |id| id == broker);
            self.members.forget_broker(link, broker);
            if !others.is_empty() {
                self.report_leads(link, others);
            }
        }
        self.note_kept();
        self.pass_on(now);
        self.settle(now);
        Ok(())
    }

    /// Brokers that links lead to, or led to before these were lost.
    pub(super) fn led_to(&self) -> BTreeSet<BrokerId> {
        let mut all = self.reach.expected();
        all.append(&mut self.lost.behind());
        all
    }

    /// Advertises the brokers for which this one queues messages.
    pub(super) fn note_kept(&mut self) {
        let kept = self.reach.not_reached(self.led_to());
        self.interest.keep_for(kept);
    }

    /// Reduces the filters of a link to the persistent interest of these brokers. Messages already queued
    /// stay.
    fn narrow(&mut self, link: LinkId, away: BTreeSet<BrokerId>) {
        let Some(peer) = self.peer(link).cloned() else {
            return;
        };
        let awaited = self.interest.awaited(&away, &self.reach);
        let brokers = away.into_iter().collect();
        let filters = awaited.len();
        self.outputs.log(Event::Away {
            peer: peer.clone(),
            brokers,
            filters,
        });
        let was_full = self.filters.table.is_overflown(link);
        let before: BTreeSet<Box<str>> = self.filters.table.wanted_by(link).into_iter().collect();
        self.filters.forget(link);
        let added = awaited.difference(&before).cloned().collect();
        let mut gone: Vec<Box<str>> = before.difference(&awaited).cloned().collect();
        let everything: Box<str> = "#".into();
        if was_full && !awaited.contains(&everything) {
            gone.push(everything);
        }
        self.filters
            .table
            .apply(link, awaited.into_iter().collect(), Vec::new());
        self.report_interest(link, added, gone);
        self.outputs.push(Output::Narrow(peer));
    }

    /// When [`Self::pass_on`] is to be called next.
    pub(super) fn next_pass(&self) -> Option<Nanos> {
        self.lost.next(&self.links, self.may_give_up())
    }

    /// Whether queued messages may expire: only while this broker is attached and some link carries, so
    /// that there was another path to copy them to.
    fn may_give_up(&self) -> bool {
        self.links.any_carries() && self.tree.is_attached()
    }

    /// Gives up a lost link; `forgotten` is the broker that was forgotten, if that is the reason.
    fn give_up(&mut self, link: LinkId, forgotten: Option<BrokerId>) {
        self.lost.remove(link);
        match self.links.get(link) {
            Some(up) => {
                let peer = up.peer.clone();
                self.forget_interest(link);
                self.outputs.push(Output::Forget { peer, forgotten });
            }
            None => self.release(link, forgotten),
        }
    }

    /// Frees the number of a link that is neither up nor lost.
    pub(super) fn release(&mut self, link: LinkId, forgotten: Option<BrokerId>) {
        if self.links.is_up(link) || self.lost.contains(link) {
            return;
        }
        self.forget_interest(link);
        if let Some(peer) = self.links.release(link) {
            self.outputs.push(Output::Forget { peer, forgotten });
        }
    }

    /// Forgets the filters, members and interest of a link.
    fn forget_interest(&mut self, link: LinkId) {
        self.filters.forget(link);
        self.members.forget(link);
        self.commit.forget(link);
        self.interest.forget(link);
    }
}
