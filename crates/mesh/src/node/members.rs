//! Where shared subscriptions have members: this broker's own, those that neighbours tell of, and
//! what the shell knows of the latter.
//!
//! Who hears of a member can send to it, so what is told to neighbours is told to the shell, too. A
//! shared filter whose last member has left is wanted for [`super::Settings::linger`] more, and until all
//! has come that was on its way then ([`super::fences`]): what was given to it has to come, to be
//! given to others.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use hashbrown::HashMap;
use punctual_model::Nanos;

use super::Output;
use super::links::Links;
use super::output::Outputs;
use crate::id::{BrokerId, LinkId};
use crate::reach::{Reach, Told};
use crate::wire::Member;

/// Shared filters whose messages still come after the last member left.
pub(super) const MAX_LEAVING: usize = 1 << 16;

/// Members of shared subscriptions, here and elsewhere.
#[derive(Debug)]
pub(super) struct Members {
    broker: BrokerId,
    /// Members that a neighbour may tell of.
    max: usize,
    reach: Reach<Member>,
    /// Own members by filter.
    own: HashMap<Box<str>, u32, foldhash::fast::RandomState>,
    /// Filters without own members whose messages may still be on their way here, and since
    /// when.
    leaving: VecDeque<(Nanos, Box<str>)>,
    /// What the shell was told of members elsewhere, of all and by links.
    elsewhere: BTreeMap<Box<str>, Vec<BrokerId>>,
    behind: BTreeMap<(LinkId, Box<str>), Vec<BrokerId>>,
}

impl Members {
    pub(super) fn new(broker: BrokerId, max: usize) -> Self {
        Self {
            broker,
            max,
            reach: Reach::lasting(),
            own: HashMap::default(),
            leaving: VecDeque::new(),
            elsewhere: BTreeMap::new(),
            behind: BTreeMap::new(),
        }
    }

    /// A client of this broker is a member, of a shared filter.
    pub(super) fn subscribe(&mut self, shared: &str) {
        let count = self.own.entry(shared.into()).or_default();
        *count += 1;
        if *count == 1 {
            self.reach.add((self.broker.clone(), shared.into()));
        }
    }

    /// A client of this broker is not a member any more; `plain` is what it wanted. Returns such a
    /// filter that is not wanted any more: this one if there are other members here, or another if
    /// too many have been left.
    pub(super) fn unsubscribe(
        &mut self,
        shared: &str,
        plain: &str,
        now: Nanos,
    ) -> Option<Box<str>> {
        if let Some(count) = self.own.get_mut(shared) {
            *count -= 1;
            if *count > 0 {
                return Some(plain.into());
            }
            self.own.remove(shared);
            self.reach.remove(&(self.broker.clone(), shared.into()));
        }
        self.leaving.push_back((now, plain.into()));
        let is_full = self.leaving.len() > MAX_LEAVING;
        is_full.then(|| self.leave()).flatten()
    }

    fn leave(&mut self) -> Option<Box<str>> {
        self.leaving.pop_front().map(|(_, plain)| plain)
    }

    /// A filter that was left and is not wanted any more.
    pub(super) fn left(&mut self, links: &Links, now: Nanos) -> Option<Box<str>> {
        let is_due = self.next_leave(links).is_some_and(|at| at <= now);
        is_due.then(|| self.leave()).flatten()
    }

    /// When there is one.
    pub(super) fn next_leave(&self, links: &Links) -> Option<Nanos> {
        let (since, _) = self.leaving.front()?;
        links.linger_ends(*since)
    }

    /// A neighbour tells of members behind it.
    pub(super) fn heard(
        &mut self,
        link: LinkId,
        all: bool,
        mut add: Vec<Member>,
        remove: &[Member],
    ) {
        // One that is not known is not chosen.
        let known = if all { 0 } else { self.reach.count(link) };
        add.truncate(self.max.saturating_sub(known));
        self.reach.heard(link, all, add, remove);
        self.reach.show(link);
    }

    /// Neighbours are told over a link from now on.
    pub(super) fn activate(&mut self, link: LinkId) {
        self.reach.activate(link);
    }

    /// They are not any more; who is behind it still counts.
    pub(super) fn deactivate(&mut self, link: LinkId) {
        self.reach.deactivate(link);
    }

    /// All that the neighbour on a link wants is known.
    pub(super) fn ready(&mut self, link: LinkId) {
        self.reach.ready(link);
        self.reach.show(link);
    }

    /// Nobody is behind a link any more.
    pub(super) fn forget(&mut self, link: LinkId) {
        self.reach.forget(link);
    }

    /// A broker is not behind a lost link any more.
    pub(super) fn forget_broker(&mut self, link: LinkId, broker: &BrokerId) {
        self.reach.drop_from(link, |(id, _)| id == broker);
    }

    /// Who was behind a link before a restart: it is lost.
    pub(super) fn recall(&mut self, link: LinkId, members: Vec<Member>) {
        for (broker, filter) in &members {
            let brokers = self.behind.entry((link, filter.clone())).or_default();
            brokers.push(broker.clone());
        }
        self.reach.recall(link, members.into_iter().collect());
    }

    /// Whether there may be something to tell neighbours.
    pub(super) fn has_changes(&self) -> bool {
        self.reach.has_changes()
    }

    /// What neighbours are to be told.
    pub(super) fn changes(&mut self) -> Vec<Told<Member>> {
        self.reach.changes()
    }

    /// Brokers elsewhere that have members, by filters, as the shell knows it.
    pub(super) fn elsewhere(&self) -> &BTreeMap<Box<str>, Vec<BrokerId>> {
        &self.elsewhere
    }

    /// Tells the shell where shared subscriptions have members elsewhere, if that is not
    /// what it knows. Those whose link is lost count if there are no others: what is meant
    /// for them waits.
    pub(super) fn tell_shell(&mut self, outputs: &mut Outputs) {
        if !self.reach.take_moved() {
            return;
        }
        let mut now: BTreeMap<Box<str>, Vec<BrokerId>> = BTreeMap::new();
        for reached in [true, false] {
            let mut found: BTreeMap<&str, BTreeSet<&BrokerId>> = BTreeMap::new();
            for ((id, filter), ready) in self.reach.all() {
                if ready == reached && *id != self.broker {
                    found.entry(filter).or_default().insert(id);
                }
            }
            for (filter, brokers) in found {
                if !now.contains_key(filter) {
                    now.insert(filter.into(), brokers.into_iter().cloned().collect());
                }
            }
        }
        for (filter, brokers) in differences(&self.elsewhere, &now) {
            outputs.push(Output::Members { filter, brokers });
        }
        self.elsewhere = now;
        self.tell_shell_by_links(outputs);
    }

    /// Tells the shell the same by links, so that it is known after a restart.
    fn tell_shell_by_links(&mut self, outputs: &mut Outputs) {
        let mut now: BTreeMap<(LinkId, Box<str>), Vec<BrokerId>> = BTreeMap::new();
        for (link, (id, filter)) in self.reach.by_links() {
            if *id != self.broker {
                let brokers = now.entry((link, filter.clone())).or_default();
                brokers.push(id.clone());
            }
        }
        for ((link, filter), brokers) in differences(&self.behind, &now) {
            outputs.push(Output::Behind {
                link,
                filter,
                brokers,
            });
        }
        self.behind = now;
    }
}

/// What to say to who knows how it was: what is gone, with no brokers, and then what is other.
fn differences<'a, K: Ord + Clone>(
    before: &'a BTreeMap<K, Vec<BrokerId>>,
    now: &'a BTreeMap<K, Vec<BrokerId>>,
) -> impl Iterator<Item = (K, Vec<BrokerId>)> {
    let gone = before.keys().filter(|key| !now.contains_key(*key));
    let gone = gone.map(|key| (key.clone(), Vec::new()));
    let new = now.iter().filter(|(key, it)| before.get(*key) != Some(it));
    let new = new.map(|(key, brokers)| (key.clone(), brokers.clone()));
    gone.chain(new)
}
