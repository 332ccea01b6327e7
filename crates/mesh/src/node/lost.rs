//! What happens to messages that were on their way over a link when it ceased to carry.
//!
//! Nothing that was to go over a link is lost with it. While a link does not carry
//! any more, what its neighbour wanted stays wanted, and the shell keeps what is
//! meant for it, as for any session without connection. Every broker knows whom each
//! of its links leads to ([`crate::reach`]). When one that was behind a lost link is
//! behind another, and the tables on the way there are complete, the shell is told
//! to copy what it keeps to that link ([`Output::Copy`]); when filters that overlap
//! are new there, before newer messages go, so that the order is kept; what took another way waits where both join
//! ([`super::holds`]). A copy goes
//! on to neighbours from brokers that had it already, too: somebody behind them may
//! have come from elsewhere, and who has it recognises it ([`crate::seen`]).
//!
//! Once all that were behind the lost link are back, what still comes for it is passed on
//! for [`super::Settings::linger`], and until all has come that was on its way then
//! ([`super::fences`]), since messages may be under way from brokers that did not
//! know yet; then it is forgotten. For who does not come back in [`super::Settings::heal`] only what
//! its persistent sessions await ([`super::lasting`]) is taken from then on, for
//! [`super::Settings::keep`] altogether. What was acknowledged before is kept for as long again: the
//! clients that are to get it may be connected all the while, at a broker that is only cut off. After
//! that it is dropped, and who awaits nothing is given up, unless no link carries at all:
//! then there is nowhere to go yet. An operator who knows that a broker does not come back may say so
//! earlier ([`Node::forget`]).

use std::collections::{BTreeMap, BTreeSet};

use punctual_model::Nanos;

use super::links::Links;
use super::{Event, Node, Output};
use crate::id::{BrokerId, LinkId};
use crate::reach::Reach;

/// Why a broker is not forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotForgotten {
    /// Nothing is kept for it here.
    Unknown,
    /// It is connected or reached, or is this broker.
    Present,
}

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
    /// Those that were away when what is kept was narrowed to what they await.
    away: Option<BTreeSet<BrokerId>>,
    /// When what waits and they do not await is dropped.
    trim: Option<Nanos>,
    /// Since when others are.
    changed: Option<Nanos>,
    /// Whether all has come that was on its way, when that was long enough ago.
    fence: Across,
    /// One that an operator has taken out of `behind`, until what follows from that is done.
    forgotten: Option<BrokerId>,
}

/// Whether all has come that was on its way, see [`super::fences`].
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Across {
    #[default]
    Unasked,
    /// It is to be asked.
    Wanted,
    /// With that number.
    Asked(u64),
    Passed,
}

impl Lost {
    /// Whether all has come that was on its way; asks for it if not.
    fn is_fenced(&mut self) -> bool {
        if self.fence == Across::Unasked {
            self.fence = Across::Wanted;
        }
        self.fence == Across::Passed
    }

    /// Those that are away, if what is kept is to be narrowed to what they await: when it was not,
    /// when one of them was forgotten, or, once nothing can be under way from who does not know yet,
    /// when others are away by now.
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
                (self.changed, self.fence) = (None, Across::Unasked);
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
    /// Links for which only that is kept after that which these await.
    narrow: Vec<(LinkId, BTreeSet<BrokerId>)>,
    /// Links for which what waits and is not awaited is dropped after that.
    trim: Vec<LinkId>,
    /// Links for which nothing is kept after that, and who was forgotten if it is for that.
    over: Vec<(LinkId, Option<BrokerId>)>,
    /// Links for which nothing is done before all has come that is on its way.
    fences: Vec<LinkId>,
}

/// Links that carried and do not any more.
#[derive(Debug)]
pub(super) struct LostLinks {
    lost: BTreeMap<LinkId, Lost>,
    /// Whom links led to that carry again, until their neighbours say whom they lead to now.
    carry_again: BTreeMap<LinkId, BTreeSet<BrokerId>>,
    /// How long what is kept waits for another way.
    heal: Nanos,
    /// How long what persistent sessions await does.
    keep: Nanos,
    /// After which what still comes is passed on again.
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

    /// What is meant for a link waits from now on.
    pub(super) fn insert(
        &mut self,
        link: LinkId,
        mut behind: Option<BTreeSet<BrokerId>>,
        now: Nanos,
    ) {
        if let (Some(before), Some(behind)) = (self.carry_again.remove(&link), &mut behind) {
            behind.extend(before);
        }
        let lost = Lost {
            since: now,
            behind,
            back: None,
            pass_on: now,
            away: None,
            trim: None,
            changed: None,
            fence: Across::Unasked,
            forgotten: None,
        };
        self.lost.insert(link, lost);
    }

    /// It does not any more.
    pub(super) fn remove(&mut self, link: LinkId) {
        self.lost.remove(&link);
        self.carry_again.remove(&link);
    }

    /// It does not any more, since it carries again.
    pub(super) fn carries_again(&mut self, link: LinkId) {
        if let Some(behind) = self.lost.remove(&link).and_then(|lost| lost.behind) {
            self.carry_again.insert(link, behind);
        }
    }

    /// The neighbour on a link says whom it leads to.
    pub(super) fn heard(&mut self, link: LinkId) {
        self.carry_again.remove(&link);
    }

    /// Nothing is kept for this broker any more, but for its heirs. Returns links that led to it, with
    /// those that something is kept for there now; `None` if none did.
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

    /// Whether any has not carried for a moment only, whose neighbour is connected and not reached
    /// elsewhere: it is likely to carry soon.
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

    /// Whether what is kept for any goes elsewhere, as all are back, or may soon.
    pub(super) fn may_turn(&self, now: Nanos) -> bool {
        let mut lost = self.lost.values();
        lost.any(|lost| lost.back.is_some() || lost.since + self.heal > now)
    }

    /// A question is asked for a link.
    fn fence_is_asked(&mut self, link: LinkId, number: u64) {
        if let Some(lost) = self.lost.get_mut(&link) {
            lost.fence = Across::Asked(number);
        }
    }

    /// Whether a link waits for the answer to a question.
    fn awaits_fence(&self, link: LinkId, number: u64) -> bool {
        let lost = self.lost.get(&link);
        lost.is_some_and(|lost| lost.fence == Across::Asked(number))
    }

    /// That is answered.
    pub(super) fn fenced(&mut self, link: LinkId, number: u64) {
        if self.awaits_fence(link, number)
            && let Some(lost) = self.lost.get_mut(&link)
        {
            lost.fence = Across::Passed;
        }
    }

    /// All that any led to, or those that carry again and are not known to lead to them.
    fn behind(&self) -> BTreeSet<BrokerId> {
        let behind = self.lost.values().filter_map(|lost| lost.behind.as_ref());
        let behind = behind.chain(self.carry_again.values());
        behind.flatten().cloned().collect()
    }

    /// Those that only what their persistent sessions await is kept for.
    pub(super) fn away(&self) -> BTreeSet<BrokerId> {
        let away = self.lost.values().filter_map(|lost| lost.away.as_ref());
        away.flatten().cloned().collect()
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

    /// What is to be passed on, and given up. `is_awaited` says whether persistent sessions at any of
    /// some brokers await something.
    fn due(
        &mut self,
        reach: &Reach<BrokerId>,
        links: &Links,
        may_heal: bool,
        is_awaited: impl Fn(&BTreeSet<BrokerId>) -> bool,
        now: Nanos,
    ) -> Due {
        let mut due = Due::default();
        for (from, lost) in &mut self.lost {
            let (to, all) = match &lost.behind {
                Some(behind) => reach.where_are(behind),
                None => (Vec::new(), false),
            };
            if all != lost.back.is_some() {
                (lost.back, lost.fence) = (all.then_some(now), Across::Unasked);
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
            // The word of an operator counts also where nobody is reached.
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
            if lost.fence == Across::Wanted {
                due.fences.push(*from);
            }
            if ends || narrows.is_some() || all && lost.pass_on <= now {
                lost.pass_on = now + self.again;
                let last = to.len();
                due.passes
                    .extend(to.into_iter().zip(1..).map(|(to, i)| Pass {
                        from: *from,
                        to,
                        moves: i == last && narrows.is_none(),
                    }));
            }
            if ends {
                due.over.push((*from, forgotten));
            } else if let Some(away) = narrows {
                (lost.away, lost.changed) = (Some(away.clone()), None);
                lost.fence = Across::Unasked;
                due.narrow.push((*from, away));
            }
        }
        due
    }

    /// When something is due.
    fn next(&self, links: &Links, may_heal: bool) -> Option<Nanos> {
        let due = self.lost.values().filter_map(|lost| {
            // Later it is told when there is something to do.
            let lingers = |since| {
                let ends = links.linger_ends(since);
                ends.filter(|_| matches!(lost.fence, Across::Unasked | Across::Passed))
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
    /// A link does not carry any more that led to these, its neighbour among them.
    pub(super) fn lose(&mut self, link: LinkId, mut behind: BTreeSet<BrokerId>, now: Nanos) {
        // It was behind it for those who had not heard yet that it is not.
        behind.remove(&self.settings.id);
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
        self.believe_who_leads_to(who);
        for from in self.lost.that_led_to(who) {
            self.copy(from, link, false);
        }
    }

    /// A neighbour wants filters that it did not: what waits for lost ones goes first.
    pub(super) fn copy_overlapping(&mut self, link: LinkId, added: &[Box<str>]) {
        let lost: Vec<LinkId> = self.lost.links().filter(|lost| *lost != link).collect();
        if !lost.is_empty() {
            for lost in self.filters.table.overlapping(&lost, added) {
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
        let (lasting, reach) = (&self.lasting, &self.reach);
        let is_awaited = |away: &BTreeSet<BrokerId>| !lasting.awaited(away, reach).is_empty();
        let due = self
            .lost
            .due(&self.reach, &self.links, may_give_up, is_awaited, now);
        for Pass { from, to, moves } in due.passes {
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
        self.lasting
            .retain(|id| led_to.contains(id), &mut self.outputs, now);
    }

    /// A broker that is away does not come back: nothing is kept for it here any more. Should it do
    /// so all the same, it is a broker like any other, and its sessions have missed that. What it
    /// would have passed on to others that are away as well is kept for these. Who of the others
    /// keeps messages for it goes on to do so.
    ///
    /// # Errors
    /// [`NotForgotten`], if that is not so; nothing has changed then.
    pub fn forget(&mut self, broker: &BrokerId, now: Nanos) -> Result<(), NotForgotten> {
        let is_own = *broker == self.settings.id;
        let is_there = self.links.to(broker).is_some() || self.reach.expected().contains(broker);
        if is_own || is_there {
            return Err(NotForgotten::Present);
        }
        let mut heirs = self.lasting.kept_by(broker);
        heirs.remove(&self.settings.id);
        let heirs = self.reach.not_reached(heirs);
        let links = self.lost.forget(broker, &heirs);
        let was_reached = self.presence.forget(broker);
        let links = match links {
            None if !was_reached => return Err(NotForgotten::Unknown),
            links => links.unwrap_or_default(),
        };
        self.outputs.log(Event::Forgotten(broker.clone()));
        for (link, others) in links {
            self.reach.drop_from(link, |id| id == broker);
            self.members.forget_broker(link, broker);
            if !others.is_empty() && self.keeping.leads(link, &others) {
                let brokers = others.into_iter().collect();
                self.outputs.push(Output::Leads { link, brokers });
            }
        }
        self.note_kept();
        self.pass_on(now);
        self.settle(now);
        Ok(())
    }

    /// Brokers that links lead to, or led to before they were lost.
    pub(super) fn led_to(&self) -> BTreeSet<BrokerId> {
        let mut all = self.reach.expected();
        all.append(&mut self.lost.behind());
        all
    }

    /// Lets others know which brokers messages are kept for here.
    pub(super) fn note_kept(&mut self) {
        let kept = self.reach.not_reached(self.led_to());
        self.lasting.keep_for(kept);
    }

    /// Of what was wanted over a link only that is from now on which these await. What waits stays.
    fn narrow(&mut self, link: LinkId, away: BTreeSet<BrokerId>) {
        let Some(peer) = self.peer(link).cloned() else {
            return;
        };
        let awaited = self.lasting.awaited(&away, &self.reach);
        let brokers = away.into_iter().collect();
        let filters = awaited.len();
        self.outputs.log(Event::Away {
            peer: peer.clone(),
            brokers,
            filters,
        });
        let was_full = self.filters.table.is_overflown(link);
        let before: BTreeSet<Box<str>> = self.filters.table.wanted_by(link).into_iter().collect();
        self.filters.table.forget(link);
        let added = awaited.difference(&before).cloned().collect();
        let mut gone: Vec<Box<str>> = before.difference(&awaited).cloned().collect();
        let everything: Box<str> = "#".into();
        if was_full && !awaited.contains(&everything) {
            gone.push(everything);
        }
        self.filters
            .table
            .apply(link, awaited.into_iter().collect(), Vec::new());
        self.tell_interest(link, added, gone);
        self.outputs.push(Output::Narrow(peer));
    }

    /// When [`Self::pass_on`] is due.
    pub(super) fn next_pass(&self) -> Option<Nanos> {
        self.lost.next(&self.links, self.may_give_up())
    }

    /// Whether messages that wait have had somewhere else to go.
    fn may_give_up(&self) -> bool {
        self.links.any_carries() && self.tree.is_attached()
    }

    /// Nothing is kept for a link any more, because a broker was forgotten if one is named.
    fn give_up(&mut self, link: LinkId, forgotten: Option<BrokerId>) {
        self.lost.remove(link);
        match self.links.get(link) {
            Some(up) => {
                let peer = up.peer.clone();
                self.forget_wishes(link);
                self.outputs.push(Output::Forget { peer, forgotten });
            }
            None => self.release(link, forgotten),
        }
    }

    /// Lets a link's number be used again if nothing depends on it.
    pub(super) fn release(&mut self, link: LinkId, forgotten: Option<BrokerId>) {
        if self.links.is_up(link) || self.lost.contains(link) {
            return;
        }
        self.forget_wishes(link);
        if let Some(peer) = self.links.release(link) {
            self.outputs.push(Output::Forget { peer, forgotten });
        }
    }

    /// Nothing is wanted over a link.
    fn forget_wishes(&mut self, link: LinkId) {
        self.filters.table.forget(link);
        self.members.forget(link);
        self.keeping.forget(link);
        self.lasting.forget(link);
    }
}
