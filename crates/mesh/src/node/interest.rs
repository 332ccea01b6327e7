//! Persistent interest: the filters of persistent sessions at each broker. Messages that match them are
//! queued even while that broker is away for long.
//!
//! The subscription table says over which links a topic is wanted, and not by which broker: a link may
//! have led to many brokers, of which some are reached again over other links, and most filters may
//! belong to clean sessions that ended with their connection. So each broker also advertises on the tree
//! the filters of its persistent sessions, and every broker stores them by broker. An update is accepted
//! only from the link that leads to the broker (its *source*). Neighbours that come to reach a broker
//! receive a checksum of its filters ([`Message::Sums`]) and ask for the filters only if their own
//! checksum differs.
//!
//! A broker that queues messages for brokers that are away may itself be lost. What is queued for it must
//! then match the filters of those brokers, too. So each broker advertises for which brokers it queues
//! messages, as filters that no client can have ([`KEEPS`]). A broker that has restarted learns from
//! these filters which brokers of the mesh are away. While it lacks the filters of a broker that it
//! reaches, it assumes that others are away: a session that begins meanwhile may not be the only one of
//! its client.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use punctual_model::Nanos;

use super::output::Outputs;
use super::{Node, Output};
use crate::id::{BrokerId, LinkId};
use crate::reach::Reach;
use crate::table::{digest, parts};
use crate::wire::{self, KEEPS, Message};

/// The persistent interest of one broker.
#[derive(Debug, Default)]
struct BrokerInterest {
    filters: BTreeSet<Box<str>>,
    /// Sum of the digests of the filters.
    sum: u64,
    /// The link that leads to the broker and sends its updates; `None` while there is none.
    source: Option<LinkId>,
    /// Since when there is no source, and no messages are queued for the broker.
    idle: Option<Nanos>,
    /// The link under which the shell stores the filters.
    stored: Option<LinkId>,
    /// Whether all filters were requested from the source, as its checksum differs.
    is_asked: bool,
    /// Filters of a full update of which parts are still to come.
    coming: Option<Vec<Box<str>>>,
    /// Whether filters were dropped because of the bound `max`.
    full: bool,
}

impl BrokerInterest {
    /// Brokers for which this one queues messages.
    fn keeps(&self) -> impl Iterator<Item = BrokerId> {
        let from = (Bound::Included(KEEPS), Bound::Unbounded);
        let from = self.filters.range::<str, _>(from);
        let ids = from.map_while(|filter| filter.strip_prefix(KEEPS));
        ids.filter_map(BrokerId::new)
    }

    /// Whether these are all filters of the broker, as last advertised.
    fn is_complete(&self) -> bool {
        self.source.is_some() && !self.is_asked
    }

    /// There is no source any more.
    fn lose_source(&mut self) {
        (self.source, self.is_asked, self.coming) = (None, false, None);
    }

    /// Adds or removes a filter; returns whether that changed anything.
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

/// Changes to the persistent interest of one broker, to be sent to neighbours.
#[derive(Debug, PartialEq, Eq)]
struct InterestChange {
    of: BrokerId,
    /// The link from which they came, to which they are not sent.
    source: Option<LinkId>,
    add: Vec<Box<str>>,
    remove: Vec<Box<str>>,
}

/// Persistent interest of this broker and of others.
#[derive(Debug)]
pub(super) struct PersistentInterest {
    broker: BrokerId,
    /// How long the filters of a broker without a source are stored.
    heal: Nanos,
    /// Bound on the filters of other brokers.
    max: usize,
    len: usize,
    /// Number of own persistent sessions, by filter.
    own: BTreeMap<Box<str>, u32>,
    /// Brokers for which this one queues messages.
    kept: BTreeSet<BrokerId>,
    /// All known brokers, this one included.
    known: BTreeMap<BrokerId, BrokerInterest>,
    /// See [`Self::take_keeps_changed`].
    keeps_changed: bool,
    /// Brokers whose filters became complete since neighbours were notified last.
    completed: BTreeSet<BrokerId>,
    /// Changes that neighbours have not received: by broker and filter, whether it was added.
    changed: BTreeMap<BrokerId, BTreeMap<Box<str>, bool>>,
}

impl PersistentInterest {
    pub(super) fn new(broker: BrokerId, max: usize, heal: Nanos) -> Self {
        Self {
            heal,
            known: BTreeMap::from([(broker.clone(), BrokerInterest::default())]),
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

    /// A persistent session here subscribed to a plain filter.
    pub(super) fn subscribe(&mut self, filter: &str) {
        if let Some(count) = self.own.get_mut(filter) {
            *count += 1;
            return;
        }
        self.own.insert(filter.into(), 1);
        self.set(&self.broker.clone(), filter, true);
    }

    /// A persistent session here unsubscribed, or ended.
    pub(super) fn unsubscribe(&mut self, filter: &str) {
        if let Some(count) = self.own.get_mut(filter) {
            *count -= 1;
            if *count == 0 {
                self.own.remove(filter);
                self.set(&self.broker.clone(), filter, false);
            }
        }
    }

    /// Number of filters of other brokers.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Sets the brokers for which this one queues messages.
    pub(super) fn keep_for(&mut self, kept: BTreeSet<BrokerId>) {
        let before = std::mem::replace(&mut self.kept, kept.clone());
        let own = self.broker.clone();
        for id in before.symmetric_difference(&kept) {
            self.set(&own, &format!("{KEEPS}{id}"), kept.contains(id));
        }
    }

    /// Adds or removes a filter of a broker; returns whether that changed anything.
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
        // Also if two changes cancel out: a neighbour that received all filters between them has the
        // other state.
        changed.insert(filter.into(), awaited);
        true
    }

    /// Whether [`Self::knows_all_of`] or [`Self::kept_for`] may have changed since this was asked last.
    pub(super) fn take_keeps_changed(&mut self) -> bool {
        std::mem::take(&mut self.keeps_changed)
    }

    /// Whether the filters of a broker are complete.
    pub(super) fn knows_all_of(&self, id: &BrokerId) -> bool {
        *id == self.broker || self.known.get(id).is_some_and(BrokerInterest::is_complete)
    }

    /// Other brokers for which this broker, or one that is reached, queues messages.
    pub(super) fn kept_for(&self) -> BTreeSet<BrokerId> {
        let told = self.known.iter();
        let told = told.filter(|(id, known)| known.source.is_some() || **id == self.broker);
        let keeps = told.flat_map(|(_, known)| known.keeps());
        keeps.filter(|id| *id != self.broker).collect()
    }

    /// Takes the brokers whose filters became complete since the last call.
    fn take_completed(&mut self) -> BTreeSet<BrokerId> {
        std::mem::take(&mut self.completed)
    }

    /// Checksums of the filters of those of these brokers whose filters are complete here, and of all
    /// brokers without a source.
    pub(super) fn sums(&self, of: &[BrokerId]) -> Vec<(BrokerId, u64)> {
        let known = self.known.iter();
        let told = known.filter(|(id, known)| match of.contains(id) {
            true => self.knows_all_of(id),
            false => known.source.is_none() && **id != self.broker,
        });
        told.map(|(id, known)| (id.clone(), known.sum)).collect()
    }

    /// A neighbour has sent checksums: it is the source of these brokers from now on. Returns the brokers
    /// whose filters are to be requested from it. For brokers that the link does not lead to, it is
    /// accepted only if nothing is known of them.
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
                    ask_shell_to_store(outputs, before, &of, Vec::new(), all.clone());
                }
                if !all.is_empty() {
                    ask_shell_to_store(outputs, link, &of, all, Vec::new());
                }
            }
            if known.is_asked {
                ask.push(of);
            }
        }
        ask
    }

    /// All filters of a broker.
    fn all_of(&self, of: &BrokerId) -> Option<Vec<Box<str>>> {
        let known = self.known.get(of)?;
        Some(known.filters.iter().cloned().collect())
    }

    /// Applies an update from a neighbour.
    fn heard(&mut self, link: LinkId, told: wire::InterestUpdate, outputs: &mut Outputs) {
        let wire::InterestUpdate {
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
            ask_shell_to_store(outputs, link, &of, add, remove);
        }
    }

    /// A neighbour is the source of none of these brokers any more.
    fn silent(&mut self, link: LinkId, about: impl Fn(&BrokerId) -> bool) {
        for (id, known) in &mut self.known {
            if known.source == Some(link) && about(id) {
                known.lose_source();
                self.keeps_changed = true;
            }
        }
    }

    /// These brokers are reached now: a source that does not lead to them is dropped.
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

    /// Makes the link that leads to a broker its source, where there is none. Updates of that link may
    /// have been rejected before, so all filters of the returned brokers are to be requested.
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

    /// Restores a filter of a broker after a restart, as the shell stored it under a link.
    pub(super) fn recall(&mut self, link: LinkId, of: BrokerId, filter: &str) {
        if of != self.broker {
            let known = self.known.entry(of.clone()).or_default();
            known.stored.get_or_insert(link);
            self.set(&of, filter, true);
        }
    }

    /// The shell stores nothing under this link any more.
    pub(super) fn forget(&mut self, link: LinkId) {
        for known in self.known.values_mut() {
            known.stored.take_if(|stored| *stored == link);
        }
    }

    /// The filters of these brokers, and of those for which they queue messages, unless these are
    /// reached.
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

    /// Brokers for which a broker has advertised that it queues messages.
    pub(super) fn kept_by(&self, broker: &BrokerId) -> BTreeSet<BrokerId> {
        let known = self.known.get(broker);
        known.into_iter().flat_map(BrokerInterest::keeps).collect()
    }

    /// Forgets brokers that have had no source for [`super::Settings::heal`], unless messages are queued
    /// for them here or elsewhere.
    pub(super) fn retain(
        &mut self,
        is_kept: impl Fn(&BrokerId) -> bool,
        outputs: &mut Outputs,
        now: Nanos,
    ) {
        let own = self.broker.clone();
        let is_idle = |id: &BrokerId, known: &BrokerInterest| {
            known.source.is_none() && *id != own && !is_kept(id)
        };
        if !self.known.iter().any(|(id, known)| is_idle(id, known)) {
            return;
        }
        let kept: BTreeSet<BrokerId> = self
            .known
            .values()
            .flat_map(BrokerInterest::keeps)
            .collect();
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
                ask_shell_to_store(
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

    /// Takes the changes that neighbours are to receive.
    fn changes(&mut self) -> Vec<InterestChange> {
        let changed = std::mem::take(&mut self.changed).into_iter();
        let changed = changed.filter(|(_, filters)| !filters.is_empty());
        let change = |(of, filters): (BrokerId, BTreeMap<Box<str>, bool>)| {
            let (add, remove): (Vec<_>, Vec<_>) =
                filters.into_iter().partition(|(_, awaited)| *awaited);
            let names = |some: Vec<(Box<str>, bool)>| some.into_iter().map(|(name, _)| name);
            InterestChange {
                source: self.known.get(&of).and_then(|known| known.source),
                of,
                add: names(add).collect(),
                remove: names(remove).collect(),
            }
        };
        changed.map(change).collect()
    }
}

/// Has the shell store a change of a broker's filters.
fn ask_shell_to_store(
    outputs: &mut Outputs,
    link: LinkId,
    of: &BrokerId,
    add: Vec<Box<str>>,
    remove: Vec<Box<str>>,
) {
    outputs.push(Output::PersistentInterest {
        link,
        broker: of.clone(),
        add,
        remove,
    });
}

impl Node {
    /// Handles [`Message::Sums`].
    pub(super) fn heard_sums(&mut self, link: LinkId, sums: Vec<(BrokerId, u64)>) {
        let mut leads = self.reach.behind(link);
        // A link that does not carry here does not count as leading to a broker that another link leads
        // to.
        if !self.links.carries(link) {
            let carry: Vec<LinkId> = self.links.carrying().collect();
            leads.retain(|id| !carry.iter().any(|other| self.reach.leads_to(*other, id)));
        }
        let ask = self
            .interest
            .heard_sums(link, sums, &leads, &mut self.outputs);
        if !ask.is_empty() {
            self.outputs.send(link, &Message::Ask(ask));
        }
    }

    /// A neighbour is the source of none of these brokers any more; another link may take over.
    pub(super) fn silent(&mut self, link: LinkId, about: impl Fn(&BrokerId) -> bool) {
        self.interest.silent(link, about);
        let links: Vec<LinkId> = self.links.carrying().collect();
        let leads = |id: &BrokerId| {
            let mut links = links.iter().copied().filter(|other| *other != link);
            links.find(|link| self.reach.leads_to(*link, id))
        };
        for (link, about) in self.interest.adopt(leads) {
            self.outputs.send(link, &Message::Ask(about));
        }
    }

    /// Handles [`Message::Ask`].
    pub(super) fn asked(&mut self, link: LinkId, about: Vec<BrokerId>) {
        if about.is_empty() {
            let sums = self.interest.sums(&self.reach.told(link));
            self.outputs.send(link, &Message::Sums(sums));
        }
        for of in about {
            if let Some(all) = self.interest.all_of(&of) {
                self.send_interest(link, &of, true, all, Vec::new());
            }
        }
    }

    /// These brokers are reached now: drops sources that do not lead to them.
    pub(super) fn believe_who_leads_to(&mut self, who: &BTreeSet<BrokerId>) {
        let reach = &self.reach;
        self.interest
            .reached(who, |link, id| reach.leads_to(link, id));
    }

    /// Sends checksums of brokers whose filters were incomplete when neighbours learned that they are
    /// reached.
    pub(super) fn send_completed_checksums(&mut self) {
        let completed = self.interest.take_completed();
        if completed.is_empty() {
            return;
        }
        let links: Vec<LinkId> = self.links.carrying().collect();
        for link in links {
            let told = self.reach.told(link);
            let is_news = |id: &&BrokerId| {
                let known = self.interest.known.get(*id);
                told.contains(id) && known.is_some_and(|it| it.source != Some(link))
            };
            let news: Vec<BrokerId> = completed.iter().filter(is_news).cloned().collect();
            if !news.is_empty() {
                let sums = self.interest.sums(&news);
                self.outputs.send(link, &Message::Sums(sums));
            }
        }
    }

    /// Applies an update from a neighbour.
    pub(super) fn heard_interest(&mut self, link: LinkId, told: wire::InterestUpdate) {
        self.interest.heard(link, told, &mut self.outputs);
    }

    /// Sends the changes of persistent interest to neighbours.
    pub(super) fn send_interest_changes(&mut self) {
        for change in self.interest.changes() {
            let links: Vec<LinkId> = self.links.carrying().collect();
            for link in links.into_iter().filter(|to| Some(*to) != change.source) {
                let (add, remove) = (change.add.clone(), change.remove.clone());
                self.send_interest(link, &change.of, false, add, remove);
            }
        }
    }

    /// In messages of bounded size.
    fn send_interest(
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
            let told = wire::InterestUpdate {
                of: of.clone(),
                all: std::mem::take(&mut all),
                more: is_all && parts.peek().is_some(),
                add,
                remove,
            };
            self.outputs.send(link, &Message::PersistentInterest(told));
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

    fn told(of: &str, (all, more): (bool, bool), add: &str, remove: &str) -> wire::InterestUpdate {
        wire::InterestUpdate {
            of: id(of),
            all,
            more,
            add: filters(add),
            remove: filters(remove),
        }
    }

    fn awaited(interest: &PersistentInterest, of: &str) -> String {
        let all = interest.awaited(&BTreeSet::from([id(of)]), &Reach::default());
        let all: Vec<&str> = all.iter().map(|filter| &**filter).collect();
        all.join(" ")
    }

    fn hear_sum(
        interest: &mut PersistentInterest,
        link: LinkId,
        of: &str,
        sum: u64,
    ) -> Vec<BrokerId> {
        let leads = BTreeSet::from([id("x")]);
        interest.heard_sums(link, vec![(id(of), sum)], &leads, &mut Outputs::default())
    }

    #[test]
    fn only_who_leads_to_a_broker_is_believed() {
        let (one, two) = (LinkId(1), LinkId(2));
        let mut interest = PersistentInterest::new(id("own"), 10, Nanos(9));
        let mut outputs = Outputs::default();
        let mut hear = |interest: &mut PersistentInterest, link, told| {
            interest.heard(link, told, &mut outputs);
        };
        hear(&mut interest, one, told("x", (false, false), "a", ""));
        assert_eq!(awaited(&interest, "x"), "", "nobody was said to lead there");
        assert_eq!(hear_sum(&mut interest, one, "x", digest("a")), [id("x")]);
        hear(&mut interest, one, told("x", (true, true), "a b", ""));
        assert_eq!(awaited(&interest, "x"), "", "more is to come");
        hear(&mut interest, one, told("x", (false, false), "c", ""));
        assert_eq!(awaited(&interest, "x"), "a b c");
        // Known elsewhere, and the same: nothing has to be asked for.
        let sum = digest("a").wrapping_add(digest("b"));
        let sum = sum.wrapping_add(digest("c"));
        assert_eq!(
            hear_sum(&mut interest, two, "x", sum),
            Vec::<BrokerId>::new()
        );
        hear(&mut interest, one, told("x", (false, false), "d", "a"));
        hear(&mut interest, two, told("x", (false, false), "e", "b"));
        assert_eq!(awaited(&interest, "x"), "a c e");
        interest.silent(two, |_| true);
        hear(&mut interest, two, told("x", (false, false), "f", ""));
        assert_eq!(awaited(&interest, "x"), "a c e");
        interest.retain(|kept| *kept == id("x"), &mut Outputs::default(), Nanos(0));
        interest.retain(|_| false, &mut Outputs::default(), Nanos(10));
        assert_eq!(awaited(&interest, "x"), "a c e");
        interest.retain(|_| false, &mut Outputs::default(), Nanos(19));
        assert_eq!((awaited(&interest, "x").as_str(), interest.len), ("", 0));
    }

    #[test]
    fn what_a_broker_keeps_for_others_is_awaited_with_what_its_own_sessions_await() {
        let one = LinkId(1);
        let mut interest = PersistentInterest::new(id("own"), 10, Nanos(9));
        let mut outputs = Outputs::default();
        for (of, add) in [
            ("x", "a $mesh/keeps/y"),
            ("y", "b $mesh/keeps/x"),
            ("z", "c"),
        ] {
            assert_eq!(hear_sum(&mut interest, one, of, 1), [id(of)]);
            interest.heard(one, told(of, (true, false), add, ""), &mut outputs);
        }
        assert_eq!(awaited(&interest, "x"), "a b");
        assert_eq!(awaited(&interest, "z"), "c");
        // Nobody tells of one that is away but who keeps messages for it.
        interest.silent(one, |of| *of == id("y"));
        for now in [0, 100] {
            interest.retain(|_| false, &mut outputs, Nanos(now));
        }
        assert_eq!(awaited(&interest, "x"), "a b");
        let sums: Vec<BrokerId> = interest.sums(&[]).into_iter().map(|(of, _)| of).collect();
        assert_eq!(sums, [id("y")]);
        interest.keep_for(BTreeSet::from([id("y"), id("z")]));
        interest.keep_for(BTreeSet::from([id("z")]));
        let change = &interest.changes()[0];
        assert_eq!(
            (&change.of, &change.add),
            (&id("own"), &filters("$mesh/keeps/z"))
        );
    }

    #[test]
    fn all_is_known_of_a_broker_once_its_last_answer_has_come() {
        let (one, keeps) = (LinkId(1), "$mesh/keeps/y");
        let (x, y) = (id("x"), BTreeSet::from([id("y")]));
        let mut interest = PersistentInterest::new(id("own"), 10, Nanos(9));
        assert!(interest.knows_all_of(&id("own")) && !interest.knows_all_of(&x));
        assert_eq!(interest.sums(std::slice::from_ref(&x)), []);
        assert_eq!(hear_sum(&mut interest, one, "x", 0), []);
        assert!(interest.take_keeps_changed() && interest.knows_all_of(&x));
        assert_eq!(interest.take_completed(), BTreeSet::from([id("x")]));

        // After a moment without a connection it keeps messages for another one; the answer is under way.
        interest.silent(one, |_| true);
        assert!(interest.take_keeps_changed() && !interest.knows_all_of(&x));
        let mut outputs = Outputs::default();
        assert_eq!(hear_sum(&mut interest, one, "x", digest(keeps)), [id("x")]);
        assert!(!interest.knows_all_of(&x));
        assert_eq!(interest.sums(std::slice::from_ref(&x)), []);
        interest.heard(one, told("x", (true, false), keeps, ""), &mut outputs);
        assert!(interest.take_keeps_changed() && interest.knows_all_of(&x));
        assert_eq!(interest.kept_for(), y);
        assert_eq!(
            interest.sums(std::slice::from_ref(&x)),
            [(id("x"), digest(keeps))]
        );

        // After another one it says the same, and nothing is asked for.
        interest.silent(one, |_| true);
        assert_eq!(interest.kept_for(), BTreeSet::new());
        assert_eq!(hear_sum(&mut interest, one, "x", digest(keeps)), []);
        assert!(interest.take_keeps_changed() && interest.knows_all_of(&x));
        assert_eq!(interest.kept_for(), y);

        // Another neighbour leads there now, and the first one does not.
        interest.reached(&BTreeSet::from([x.clone()]), |link, _| link != one);
        assert!(interest.take_keeps_changed() && !interest.knows_all_of(&x));
    }

    #[test]
    fn what_is_told_is_what_changed_on_the_whole() {
        let mut interest = PersistentInterest::new(id("own"), 10, Nanos(9));
        for filter in ["a", "a", "b", "c"] {
            interest.subscribe(filter);
        }
        interest.unsubscribe("a");
        interest.unsubscribe("c");
        let change = |add: &str, remove: &str| InterestChange {
            of: id("own"),
            source: None,
            add: filters(add),
            remove: filters(remove),
        };
        assert_eq!(interest.changes(), [change("a b", "c")]);
        interest.unsubscribe("a");
        interest.unsubscribe("b");
        interest.subscribe("b");
        // Who was told all in between has it otherwise.
        assert_eq!(interest.changes(), [change("b", "a")]);
        assert_eq!(interest.changes(), []);
        assert_eq!(interest.sums(&[id("own")]), [(id("own"), digest("b"))]);
    }

    #[test]
    fn what_has_no_room_makes_everything_awaited() {
        let (one, sum) = (LinkId(1), 7);
        let mut interest = PersistentInterest::new(id("own"), 2, Nanos(9));
        interest.subscribe("own/filters/count/not");
        let mut outputs = Outputs::default();
        hear_sum(&mut interest, one, "x", sum);
        interest.heard(one, told("x", (true, false), "a b c", ""), &mut outputs);
        assert_eq!(awaited(&interest, "x"), "# a b");
    }
}
