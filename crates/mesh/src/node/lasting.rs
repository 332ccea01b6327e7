//! What persistent sessions of each broker await: messages that are kept for them also while their
//! broker is away for long.
//!
//! The table of subscriptions says over which links a topic is wanted, and not by whom: a link may
//! lead to many brokers, of which some are back elsewhere and others are not, and most of what is
//! wanted may be wanted by clients that are gone with their broker. So each broker tells on the
//! tree, beside the table, the filters for which sessions of its clients outlive their connection,
//! and everybody keeps that by brokers. It is believed where it comes from the link that leads to
//! the broker. Neighbours that come to reach a broker are told a sum over its filters
//! ([`Message::Sums`]) and ask for them only where they have others.
//!
//! Who keeps messages for brokers that are away may get lost itself, and what is kept for it then
//! has to be what those await, too. So it tells which ones it keeps messages for, in the form of
//! filters that no client can have ([`KEEPS`]).
//! A broker that has restarted learns from these filters which brokers of the mesh are away. While it
//! lacks the filters of a broker that it reaches, it assumes that others are away: a session that begins
//! meanwhile may not be the only one of its client.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use punctual_model::Nanos;

use super::output::Outputs;
use super::{Node, Output};
use crate::id::{BrokerId, LinkId};
use crate::reach::Reach;
use crate::table::{digest, parts};
use crate::wire::{self, KEEPS, Message};

/// What one broker's sessions await.
#[derive(Debug, Default)]
struct Known {
    filters: BTreeSet<Box<str>>,
    /// Over their digests.
    sum: u64,
    /// Who tells of it; `None` while nobody does.
    source: Option<LinkId>,
    /// Since when nobody does, and nothing is kept for the broker.
    idle: Option<Nanos>,
    /// Among what the shell keeps of which link it is.
    stored: Option<LinkId>,
    /// Whether an answer with all filters is under way: the source has told another sum, and was asked.
    is_asked: bool,
    /// What has come of all of it, while more is to come.
    coming: Option<Vec<Box<str>>>,
    /// There was no room for some.
    full: bool,
}

impl Known {
    /// Brokers that it keeps messages for.
    fn keeps(&self) -> impl Iterator<Item = BrokerId> {
        let from = (Bound::Included(KEEPS), Bound::Unbounded);
        let from = self.filters.range::<str, _>(from);
        let ids = from.map_while(|filter| filter.strip_prefix(KEEPS));
        ids.filter_map(BrokerId::new)
    }

    /// Whether it is what the broker has told.
    fn is_complete(&self) -> bool {
        self.source.is_some() && !self.is_asked
    }

    /// Nobody tells of it.
    fn lose_source(&mut self) {
        (self.source, self.is_asked, self.coming) = (None, false, None);
    }

    /// Adds a filter or removes it; says whether that is a change.
    fn set(&mut self, filter: &str, awaited: bool) -> bool {
        let changed = match awaited {
            true => self.filters.insert(filter.into()),
            false => self.filters.remove(filter),
        };
        if changed {
            let digest = digest(filter);
            self.sum = match awaited {
                true => self.sum.wrapping_add(digest),
                false => self.sum.wrapping_sub(digest),
            };
        }
        changed
    }
}

/// Changes to what a broker's sessions await.
#[derive(Debug, PartialEq, Eq)]
struct Change {
    of: BrokerId,
    /// Who has told of them.
    source: Option<LinkId>,
    add: Vec<Box<str>>,
    remove: Vec<Box<str>>,
}

/// What persistent sessions await, by their brokers.
#[derive(Debug)]
pub(super) struct Lasting {
    broker: BrokerId,
    /// How long it is known of a broker that nobody tells of.
    heal: Nanos,
    /// Filters of other brokers, at most.
    max: usize,
    len: usize,
    /// Own sessions by filter.
    own: BTreeMap<Box<str>, u32>,
    /// Brokers that messages are kept for here.
    kept: BTreeSet<BrokerId>,
    /// Of all brokers, this one too.
    known: BTreeMap<BrokerId, Known>,
    /// The brokers for which messages are kept have changed, or the brokers of which that is known.
    keeps_changed: bool,
    /// Brokers of which all is known since neighbours were told last.
    completed: BTreeSet<BrokerId>,
    /// What neighbours are to be told: whether it is awaited.
    changed: BTreeMap<BrokerId, BTreeMap<Box<str>, bool>>,
}

impl Lasting {
    pub(super) fn new(broker: BrokerId, max: usize, heal: Nanos) -> Self {
        Self {
            heal,
            known: BTreeMap::from([(broker.clone(), Known::default())]),
            broker,
            max,
            len: 0,
            own: BTreeMap::new(),
            kept: BTreeSet::new(),
            keeps_changed: false,
            completed: BTreeSet::new(),
            changed: BTreeMap::new(),
        }
    }

    /// A session here that outlives its connection awaits what is published on a plain filter.
    pub(super) fn subscribe(&mut self, filter: &str) {
        if let Some(count) = self.own.get_mut(filter) {
            *count += 1;
            return;
        }
        self.own.insert(filter.into(), 1);
        self.set(&self.broker.clone(), filter, true);
    }

    /// It does not any more.
    pub(super) fn unsubscribe(&mut self, filter: &str) {
        if let Some(count) = self.own.get_mut(filter) {
            *count -= 1;
            if *count == 0 {
                self.own.remove(filter);
                self.set(&self.broker.clone(), filter, false);
            }
        }
    }

    /// How many filters are known of other brokers.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Messages are kept here for these brokers from now on, instead of those before.
    pub(super) fn keep_for(&mut self, kept: BTreeSet<BrokerId>) {
        let before = std::mem::replace(&mut self.kept, kept.clone());
        let own = self.broker.clone();
        for id in before.symmetric_difference(&kept) {
            self.set(&own, &format!("{KEEPS}{id}"), kept.contains(id));
        }
    }

    /// Adds a filter of a broker or removes it; says whether that is a change.
    fn set(&mut self, of: &BrokerId, filter: &str, awaited: bool) -> bool {
        let is_own = *of == self.broker;
        let Some(known) = self.known.get_mut(of) else {
            return false;
        };
        if awaited && !is_own && self.len >= self.max && !known.filters.contains(filter) {
            known.full = true;
            return false;
        }
        if !known.set(filter, awaited) {
            return false;
        }
        self.keeps_changed |= filter.starts_with(KEEPS);
        if !is_own {
            self.len = if awaited { self.len + 1 } else { self.len - 1 };
        }
        let changed = self.changed.entry(of.clone()).or_default();
        // Also if it was so before: who has asked for all meanwhile may know it otherwise.
        changed.insert(filter.into(), awaited);
        true
    }

    /// Whether [`Self::knows_all_of`] or [`Self::kept_for`] may have changed since this was asked last.
    pub(super) fn take_keeps_changed(&mut self) -> bool {
        std::mem::take(&mut self.keeps_changed)
    }

    /// Whether all is known that a broker has told.
    pub(super) fn knows_all_of(&self, id: &BrokerId) -> bool {
        *id == self.broker || self.known.get(id).is_some_and(Known::is_complete)
    }

    /// Other brokers for which this broker, or a broker that is reached, keeps messages.
    pub(super) fn kept_for(&self) -> BTreeSet<BrokerId> {
        let told = self.known.iter();
        let told = told.filter(|(id, known)| known.source.is_some() || **id == self.broker);
        let keeps = told.flat_map(|(_, known)| known.keeps());
        keeps.filter(|id| *id != self.broker).collect()
    }

    /// Brokers of which all is known that was not known when this was asked last.
    fn take_completed(&mut self) -> BTreeSet<BrokerId> {
        std::mem::take(&mut self.completed)
    }

    /// Sums over what sessions at these brokers await, as far as all is known of that, and at those that
    /// are away.
    pub(super) fn sums(&self, of: &[BrokerId]) -> Vec<(BrokerId, u64)> {
        let known = self.known.iter();
        let told = known.filter(|(id, known)| match of.contains(id) {
            true => self.knows_all_of(id),
            false => known.source.is_none() && **id != self.broker,
        });
        told.map(|(id, known)| (id.clone(), known.sum)).collect()
    }

    /// A neighbour tells of these brokers from now on, and what it knows comes to those sums; returns
    /// of which it is to be asked for all. Of those that it does not lead to it is believed where
    /// nothing is known.
    fn heard_sums(
        &mut self,
        link: LinkId,
        sums: Vec<(BrokerId, u64)>,
        leads: &BTreeSet<BrokerId>,
        outputs: &mut Outputs,
    ) -> Vec<BrokerId> {
        let mut ask = Vec::new();
        for (of, sum) in sums {
            let known = self.known.get(&of);
            let is_known = known.is_some_and(|known| known.source.is_some() || known.sum != 0);
            if of == self.broker || is_known && !leads.contains(&of) {
                continue;
            }
            let known = self.known.entry(of.clone()).or_default();
            let before = (known.source, known.is_asked);
            (known.source, known.coming) = (Some(link), None);
            known.is_asked = known.sum != sum;
            if (known.source, known.is_asked) != before {
                self.keeps_changed = true;
                if !known.is_asked {
                    self.completed.insert(of.clone());
                }
            }
            if known.stored != Some(link) {
                let all: Vec<Box<str>> = known.filters.iter().cloned().collect();
                if let Some(before) = known.stored.replace(link).filter(|_| !all.is_empty()) {
                    tell_shell(outputs, before, &of, Vec::new(), all.clone());
                }
                if !all.is_empty() {
                    tell_shell(outputs, link, &of, all, Vec::new());
                }
            }
            if known.is_asked {
                ask.push(of);
            }
        }
        ask
    }

    /// All that sessions at a broker await.
    fn all_of(&self, of: &BrokerId) -> Option<Vec<Box<str>>> {
        let known = self.known.get(of)?;
        Some(known.filters.iter().cloned().collect())
    }

    /// A neighbour tells what sessions at a broker await.
    fn heard(&mut self, link: LinkId, told: wire::Lasting, outputs: &mut Outputs) {
        let wire::Lasting {
            of,
            all,
            more,
            mut add,
            mut remove,
        } = told;
        let Some(known) = self.known.get_mut(&of) else {
            return;
        };
        if known.source != Some(link) {
            return;
        }
        if all {
            known.coming = Some(Vec::new());
        }
        let is_all = known.coming.is_some();
        if let Some(coming) = &mut known.coming {
            let room = self.max.saturating_sub(coming.len());
            known.full |= add.len() > room;
            add.truncate(room);
            coming.append(&mut add);
            if more {
                return;
            }
            add = known.coming.take().unwrap_or_default();
            let all: BTreeSet<&str> = add.iter().map(|filter| &**filter).collect();
            let gone = known.filters.iter();
            remove = gone.filter(|old| !all.contains(&***old)).cloned().collect();
        }
        remove.retain(|filter| self.set(&of, filter, false));
        add.retain(|filter| self.set(&of, filter, true));
        if let Some(known) = self.known.get_mut(&of).filter(|it| is_all && it.is_asked) {
            known.is_asked = false;
            self.keeps_changed = true;
            self.completed.insert(of.clone());
        }
        if !add.is_empty() || !remove.is_empty() {
            tell_shell(outputs, link, &of, add, remove);
        }
    }

    /// A neighbour tells of none of these brokers any more.
    fn silent(&mut self, link: LinkId, about: impl Fn(&BrokerId) -> bool) {
        for (id, known) in &mut self.known {
            if known.source == Some(link) && about(id) {
                known.lose_source();
                self.keeps_changed = true;
            }
        }
    }

    /// Brokers are reached now: a link that told of them, and does not lead to them, is no source any more.
    fn reached(&mut self, who: &BTreeSet<BrokerId>, leads: impl Fn(LinkId, &BrokerId) -> bool) {
        for id in who {
            if let Some(known) = self.known.get_mut(id)
                && known.source.is_some_and(|source| !leads(source, id))
            {
                known.lose_source();
                self.keeps_changed = true;
            }
        }
    }

    /// Brokers that nobody tells of although a link leads there: from now on who is at its end does.
    /// It may have told something that was not believed, so it is to be asked for all.
    fn adopt(
        &mut self,
        leads: impl Fn(&BrokerId) -> Option<LinkId>,
    ) -> BTreeMap<LinkId, Vec<BrokerId>> {
        let mut ask: BTreeMap<LinkId, Vec<BrokerId>> = BTreeMap::new();
        for (id, known) in &mut self.known {
            if known.source.is_none()
                && *id != self.broker
                && let Some(link) = leads(id)
            {
                known.source = Some(link);
                self.keeps_changed = true;
                self.completed.insert(id.clone());
                ask.entry(link).or_default().push(id.clone());
            }
        }
        ask
    }

    /// What sessions at a broker awaited before a restart, as the shell has kept it of a link.
    pub(super) fn recall(&mut self, link: LinkId, of: BrokerId, filter: &str) {
        if of != self.broker {
            let known = self.known.entry(of.clone()).or_default();
            known.stored.get_or_insert(link);
            self.set(&of, filter, true);
        }
    }

    /// Nothing is known of a link after a restart any more.
    pub(super) fn forget(&mut self, link: LinkId) {
        for known in self.known.values_mut() {
            known.stored.take_if(|stored| *stored == link);
        }
    }

    /// What sessions at these brokers await, and at those that they keep messages for, unless these
    /// are reached otherwise.
    pub(super) fn awaited(
        &self,
        away: &BTreeSet<BrokerId>,
        reach: &Reach<BrokerId>,
    ) -> BTreeSet<Box<str>> {
        let mut all = BTreeSet::new();
        let (mut brokers, mut next) = (away.clone(), Vec::from_iter(away.iter().cloned()));
        while let Some(known) = next.pop().map(|id| self.known.get(&id)) {
            let Some(known) = known else {
                continue;
            };
            let keeps = reach.not_reached(known.keeps().collect());
            next.extend(keeps.difference(&brokers).cloned());
            brokers.extend(keeps);
            let filters = known.filters.iter();
            all.extend(filters.filter(|it| !it.starts_with(KEEPS)).cloned());
            if known.full {
                all.insert("#".into());
            }
        }
        all
    }

    /// Those that a broker keeps messages for, as far as it has told.
    pub(super) fn kept_by(&self, broker: &BrokerId) -> BTreeSet<BrokerId> {
        let known = self.known.get(broker);
        known.into_iter().flat_map(Known::keeps).collect()
    }

    /// Forgets brokers that nobody has told of for [`super::Settings::heal`], unless something is kept
    /// for them here or elsewhere.
    pub(super) fn retain(
        &mut self,
        is_kept: impl Fn(&BrokerId) -> bool,
        outputs: &mut Outputs,
        now: Nanos,
    ) {
        let own = self.broker.clone();
        let is_idle =
            |id: &BrokerId, known: &Known| known.source.is_none() && *id != own && !is_kept(id);
        if !self.known.iter().any(|(id, known)| is_idle(id, known)) {
            return;
        }
        let kept: BTreeSet<BrokerId> = self.known.values().flat_map(Known::keeps).collect();
        let heal = self.heal;
        let gone = self.known.extract_if(.., |id, known| {
            let is_idle = is_idle(id, known) && !kept.contains(id);
            known.idle = is_idle.then(|| known.idle.unwrap_or(now));
            known.idle.is_some_and(|since| since + heal <= now)
        });
        for (id, known) in gone {
            self.len -= known.filters.len();
            self.changed.remove(&id);
            if let Some(link) = known.stored.filter(|_| !known.filters.is_empty()) {
                tell_shell(
                    outputs,
                    link,
                    &id,
                    Vec::new(),
                    Vec::from_iter(known.filters),
                );
            }
        }
    }

    pub(super) fn has_changes(&self) -> bool {
        !self.changed.is_empty()
    }

    /// What neighbours are to be told.
    fn changes(&mut self) -> Vec<Change> {
        let changed = std::mem::take(&mut self.changed).into_iter();
        let changed = changed.filter(|(_, filters)| !filters.is_empty());
        let change = |(of, filters): (BrokerId, BTreeMap<Box<str>, bool>)| {
            let (add, remove): (Vec<_>, Vec<_>) =
                filters.into_iter().partition(|(_, awaited)| *awaited);
            let names = |some: Vec<(Box<str>, bool)>| some.into_iter().map(|(name, _)| name);
            Change {
                source: self.known.get(&of).and_then(|known| known.source),
                of,
                add: names(add).collect(),
                remove: names(remove).collect(),
            }
        };
        changed.map(change).collect()
    }
}

/// Lets what a broker's sessions await be known after a restart.
fn tell_shell(
    outputs: &mut Outputs,
    link: LinkId,
    of: &BrokerId,
    add: Vec<Box<str>>,
    remove: Vec<Box<str>>,
) {
    outputs.push(Output::Lasting {
        link,
        broker: of.clone(),
        add,
        remove,
    });
}

impl Node {
    /// A neighbour tells of brokers, with sums over what their sessions await.
    pub(super) fn heard_sums(&mut self, link: LinkId, sums: Vec<(BrokerId, u64)>) {
        let mut leads = self.reach.behind(link);
        // One that does not carry here leads nowhere where another one does.
        if !self.links.carries(link) {
            let carry: Vec<LinkId> = self.links.carrying().collect();
            leads.retain(|id| !carry.iter().any(|other| self.reach.leads_to(*other, id)));
        }
        let ask = self
            .lasting
            .heard_sums(link, sums, &leads, &mut self.outputs);
        if !ask.is_empty() {
            self.outputs.send(link, &Message::Ask(ask));
        }
    }

    /// A neighbour tells of none of these brokers any more: others may.
    pub(super) fn silent(&mut self, link: LinkId, about: impl Fn(&BrokerId) -> bool) {
        self.lasting.silent(link, about);
        let links: Vec<LinkId> = self.links.carrying().collect();
        let leads = |id: &BrokerId| {
            let mut links = links.iter().copied().filter(|other| *other != link);
            links.find(|link| self.reach.leads_to(*link, id))
        };
        for (link, about) in self.lasting.adopt(leads) {
            self.outputs.send(link, &Message::Ask(about));
        }
    }

    /// A neighbour asks what sessions at these brokers await.
    pub(super) fn asked(&mut self, link: LinkId, about: Vec<BrokerId>) {
        if about.is_empty() {
            let sums = self.lasting.sums(&self.reach.told(link));
            self.outputs.send(link, &Message::Sums(sums));
        }
        for of in about {
            if let Some(all) = self.lasting.all_of(&of) {
                self.send_lasting(link, &of, true, all, Vec::new());
            }
        }
    }

    /// Brokers are reached now.
    pub(super) fn believe_who_leads_to(&mut self, who: &BTreeSet<BrokerId>) {
        let reach = &self.reach;
        self.lasting
            .reached(who, |link, id| reach.leads_to(link, id));
    }

    /// Tells neighbours of brokers of which they could not be told when they heard that these are here.
    pub(super) fn tell_completed(&mut self) {
        let completed = self.lasting.take_completed();
        if completed.is_empty() {
            return;
        }
        let links: Vec<LinkId> = self.links.carrying().collect();
        for link in links {
            let told = self.reach.told(link);
            let is_news = |id: &&BrokerId| {
                let known = self.lasting.known.get(*id);
                told.contains(id) && known.is_some_and(|it| it.source != Some(link))
            };
            let news: Vec<BrokerId> = completed.iter().filter(is_news).cloned().collect();
            if !news.is_empty() {
                let sums = self.lasting.sums(&news);
                self.outputs.send(link, &Message::Sums(sums));
            }
        }
    }

    /// A neighbour tells what sessions at a broker await.
    pub(super) fn heard_lasting(&mut self, link: LinkId, told: wire::Lasting) {
        self.lasting.heard(link, told, &mut self.outputs);
    }

    /// Tells neighbours what changed of what sessions await.
    pub(super) fn tell_lasting(&mut self) {
        for change in self.lasting.changes() {
            let links: Vec<LinkId> = self.links.carrying().collect();
            for link in links.into_iter().filter(|to| Some(*to) != change.source) {
                let (add, remove) = (change.add.clone(), change.remove.clone());
                self.send_lasting(link, &change.of, false, add, remove);
            }
        }
    }

    /// In messages of bounded size.
    fn send_lasting(
        &mut self,
        link: LinkId,
        of: &BrokerId,
        mut all: bool,
        add: Vec<Box<str>>,
        remove: Vec<Box<str>>,
    ) {
        let is_all = all;
        let parts = parts(all, add, remove, |it| it.len() + 2, |it| it.len() + 2);
        let mut parts = parts.into_iter().peekable();
        while let Some((add, remove)) = parts.next() {
            let told = wire::Lasting {
                of: of.clone(),
                all: std::mem::take(&mut all),
                more: is_all && parts.peek().is_some(),
                add,
                remove,
            };
            self.outputs.send(link, &Message::Lasting(told));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(name: &str) -> BrokerId {
        BrokerId::new(name).unwrap()
    }

    fn filters(names: &str) -> Vec<Box<str>> {
        names.split_whitespace().map(Box::from).collect()
    }

    fn told(of: &str, (all, more): (bool, bool), add: &str, remove: &str) -> wire::Lasting {
        wire::Lasting {
            of: id(of),
            all,
            more,
            add: filters(add),
            remove: filters(remove),
        }
    }

    fn awaited(lasting: &Lasting, of: &str) -> String {
        let all = lasting.awaited(&BTreeSet::from([id(of)]), &Reach::default());
        let all: Vec<&str> = all.iter().map(|filter| &**filter).collect();
        all.join(" ")
    }

    fn hear_sum(lasting: &mut Lasting, link: LinkId, of: &str, sum: u64) -> Vec<BrokerId> {
        let leads = BTreeSet::from([id("x")]);
        lasting.heard_sums(link, vec![(id(of), sum)], &leads, &mut Outputs::default())
    }

    #[test]
    fn only_who_leads_to_a_broker_is_believed() {
        let (one, two) = (LinkId(1), LinkId(2));
        let mut lasting = Lasting::new(id("own"), 10, Nanos(9));
        let mut outputs = Outputs::default();
        let mut hear = |lasting: &mut Lasting, link, told| lasting.heard(link, told, &mut outputs);
        hear(&mut lasting, one, told("x", (false, false), "a", ""));
        assert_eq!(awaited(&lasting, "x"), "", "nobody was said to lead there");
        assert_eq!(hear_sum(&mut lasting, one, "x", digest("a")), [id("x")]);
        hear(&mut lasting, one, told("x", (true, true), "a b", ""));
        assert_eq!(awaited(&lasting, "x"), "", "more is to come");
        hear(&mut lasting, one, told("x", (false, false), "c", ""));
        assert_eq!(awaited(&lasting, "x"), "a b c");
        // Known elsewhere, and the same: nothing has to be asked for.
        let sum = digest("a").wrapping_add(digest("b"));
        let sum = sum.wrapping_add(digest("c"));
        assert_eq!(
            hear_sum(&mut lasting, two, "x", sum),
            Vec::<BrokerId>::new()
        );
        hear(&mut lasting, one, told("x", (false, false), "d", "a"));
        hear(&mut lasting, two, told("x", (false, false), "e", "b"));
        assert_eq!(awaited(&lasting, "x"), "a c e");
        lasting.silent(two, |_| true);
        hear(&mut lasting, two, told("x", (false, false), "f", ""));
        assert_eq!(awaited(&lasting, "x"), "a c e");
        lasting.retain(|kept| *kept == id("x"), &mut Outputs::default(), Nanos(0));
        lasting.retain(|_| false, &mut Outputs::default(), Nanos(10));
        assert_eq!(awaited(&lasting, "x"), "a c e");
        lasting.retain(|_| false, &mut Outputs::default(), Nanos(19));
        assert_eq!((awaited(&lasting, "x").as_str(), lasting.len), ("", 0));
    }

    #[test]
    fn what_a_broker_keeps_for_others_is_awaited_with_what_its_own_sessions_await() {
        let one = LinkId(1);
        let mut lasting = Lasting::new(id("own"), 10, Nanos(9));
        let mut outputs = Outputs::default();
        for (of, add) in [
            ("x", "a $mesh/keeps/y"),
            ("y", "b $mesh/keeps/x"),
            ("z", "c"),
        ] {
            assert_eq!(hear_sum(&mut lasting, one, of, 1), [id(of)]);
            lasting.heard(one, told(of, (true, false), add, ""), &mut outputs);
        }
        assert_eq!(awaited(&lasting, "x"), "a b");
        assert_eq!(awaited(&lasting, "z"), "c");
        // Nobody tells of one that is away but who keeps messages for it.
        lasting.silent(one, |of| *of == id("y"));
        for now in [0, 100] {
            lasting.retain(|_| false, &mut outputs, Nanos(now));
        }
        assert_eq!(awaited(&lasting, "x"), "a b");
        let sums: Vec<BrokerId> = lasting.sums(&[]).into_iter().map(|(of, _)| of).collect();
        assert_eq!(sums, [id("y")]);
        lasting.keep_for(BTreeSet::from([id("y"), id("z")]));
        lasting.keep_for(BTreeSet::from([id("z")]));
        let change = &lasting.changes()[0];
        assert_eq!(
            (&change.of, &change.add),
            (&id("own"), &filters("$mesh/keeps/z"))
        );
    }

    #[test]
    fn all_is_known_of_a_broker_once_its_last_answer_has_come() {
        let (one, keeps) = (LinkId(1), "$mesh/keeps/y");
        let (x, y) = (id("x"), BTreeSet::from([id("y")]));
        let mut lasting = Lasting::new(id("own"), 10, Nanos(9));
        assert!(lasting.knows_all_of(&id("own")) && !lasting.knows_all_of(&x));
        assert_eq!(lasting.sums(std::slice::from_ref(&x)), []);
        assert_eq!(hear_sum(&mut lasting, one, "x", 0), []);
        assert!(lasting.take_keeps_changed() && lasting.knows_all_of(&x));
        assert_eq!(lasting.take_completed(), BTreeSet::from([id("x")]));

        // After a moment without a connection it keeps messages for another one; the answer is under way.
        lasting.silent(one, |_| true);
        assert!(lasting.take_keeps_changed() && !lasting.knows_all_of(&x));
        let mut outputs = Outputs::default();
        assert_eq!(hear_sum(&mut lasting, one, "x", digest(keeps)), [id("x")]);
        assert!(!lasting.knows_all_of(&x));
        assert_eq!(lasting.sums(std::slice::from_ref(&x)), []);
        lasting.heard(one, told("x", (true, false), keeps, ""), &mut outputs);
        assert!(lasting.take_keeps_changed() && lasting.knows_all_of(&x));
        assert_eq!(lasting.kept_for(), y);
        assert_eq!(
            lasting.sums(std::slice::from_ref(&x)),
            [(id("x"), digest(keeps))]
        );

        // After another one it says the same, and nothing is asked for.
        lasting.silent(one, |_| true);
        assert_eq!(lasting.kept_for(), BTreeSet::new());
        assert_eq!(hear_sum(&mut lasting, one, "x", digest(keeps)), []);
        assert!(lasting.take_keeps_changed() && lasting.knows_all_of(&x));
        assert_eq!(lasting.kept_for(), y);

        // Another neighbour leads there now, and the first one does not.
        lasting.reached(&BTreeSet::from([x.clone()]), |link, _| link != one);
        assert!(lasting.take_keeps_changed() && !lasting.knows_all_of(&x));
    }

    #[test]
    fn what_is_told_is_what_changed_on_the_whole() {
        let mut lasting = Lasting::new(id("own"), 10, Nanos(9));
        for filter in ["a", "a", "b", "c"] {
            lasting.subscribe(filter);
        }
        lasting.unsubscribe("a");
        lasting.unsubscribe("c");
        let change = |add: &str, remove: &str| Change {
            of: id("own"),
            source: None,
            add: filters(add),
            remove: filters(remove),
        };
        assert_eq!(lasting.changes(), [change("a b", "c")]);
        lasting.unsubscribe("a");
        lasting.unsubscribe("b");
        lasting.subscribe("b");
        // Who was told all in between has it otherwise.
        assert_eq!(lasting.changes(), [change("b", "a")]);
        assert_eq!(lasting.changes(), []);
        assert_eq!(lasting.sums(&[id("own")]), [(id("own"), digest("b"))]);
    }

    #[test]
    fn what_has_no_room_makes_everything_awaited() {
        let (one, sum) = (LinkId(1), 7);
        let mut lasting = Lasting::new(id("own"), 2, Nanos(9));
        lasting.subscribe("own/filters/count/not");
        let mut outputs = Outputs::default();
        hear_sum(&mut lasting, one, "x", sum);
        lasting.heard(one, told("x", (true, false), "a b c", ""), &mut outputs);
        assert_eq!(awaited(&lasting, "x"), "# a b");
    }
}
