//! Members of shared subscriptions: own ones, those that neighbours advertise, and what was reported to
//! the shell.
//!
//! A broker that learns of a member may choose it as the receiver of a message, so what is advertised to
//! neighbours is reported to the shell, too. A shared filter whose last member has left stays in the
//! table for [`super::Settings::linger`], and until everything in flight has arrived ([`super::fences`]):
//! messages that were assigned to this broker must arrive here, to be reassigned to members elsewhere.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use hashbrown::HashMap;
use punctual_model::Nanos;

use super::Output;
use super::links::Links;
use super::output::Outputs;
use crate::id::{BrokerId, LinkId};
use crate::reach::{Reach, ReachUpdate};
use crate::wire::Member;

/// Bound on the shared filters that stay in the table after their last member left.
pub(super) const MAX_LEAVING: usize = 1 << 16;

/// Members of shared subscriptions, here and elsewhere.
#[derive(Debug)]
pub(super) struct Members {
    broker: BrokerId,
    /// Bound on the members that a neighbour may advertise.
    max: usize,
    reach: Reach<Member>,
    /// Number of own members, by filter.
    own: HashMap<Box<str>, u32, foldhash::fast::RandomState>,
    /// Filters without own members for which messages may still be in flight, and since when.
    leaving: VecDeque<(Nanos, Box<str>)>,
    /// Brokers with members elsewhere as last reported to the shell, in all and by links.
    elsewhere: BTreeMap<Box<str>, Vec<BrokerId>>,
    behind: BTreeMap<(LinkId, Box<str>), Vec<BrokerId>>,
}

impl Members {
    pub(super) fn new(broker: BrokerId, max: usize) -> Self {
        Self {
            broker,
            max,
            reach: Reach::retaining(),
            own: HashMap::default(),
            leaving: VecDeque::new(),
            elsewhere: BTreeMap::new(),
            behind: BTreeMap::new(),
        }
    }

    /// A client of this broker joined a shared subscription.
    pub(super) fn subscribe(&mut self, shared: &str) {
        let count = self.own.entry(shared.into()).or_default();
        *count += 1;
        if *count == 1 {
            self.reach.add((self.broker.clone(), shared.into()));
        }
    }

    /// A client of this broker left a shared subscription; `plain` is its filter without `$share`.
    /// Returns a plain filter to be unsubscribed at once: this one if there are other members here (each
    /// member counts once in the table), or the oldest of those that stay, beyond [`MAX_LEAVING`].
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

    /// Takes a plain filter whose time to stay is over.
    pub(super) fn left(&mut self, links: &Links, now: Nanos) -> Option<Box<str>> {
        let is_due = self.next_leave(links).is_some_and(|at| at <= now);
        is_due.then(|| self.leave()).flatten()
    }

    /// When [`Self::left`] returns a filter next.
    pub(super) fn next_leave(&self, links: &Links) -> Option<Nanos> {
        let (since, _) = self.leaving.front()?;
        links.linger_ends(*since)
    }

    /// Applies an update of the members behind a neighbour.
    pub(super) fn heard(
        &mut self,
        link: LinkId,
        all: bool,
        mut add: Vec<Member>,
        remove: &[Member],
    ) {
        // A member beyond the bound is unknown here, and so not chosen.
        let known = if all { 0 } else { self.reach.count(link) };
        add.truncate(self.max.saturating_sub(known));
        self.reach.heard(link, all, add, remove);
        self.reach.show(link);
    }

    /// A link carries from now on: members are advertised on it.
    pub(super) fn activate(&mut self, link: LinkId) {
        self.reach.activate(link);
    }

    /// A link ceased to carry; the members behind it still count.
    pub(super) fn deactivate(&mut self, link: LinkId) {
        self.reach.deactivate(link);
    }

    /// The filters of the neighbour on a link are complete.
    pub(super) fn ready(&mut self, link: LinkId) {
        self.reach.ready(link);
        self.reach.show(link);
    }

    /// Forgets the members behind a link.
    pub(super) fn forget(&mut self, link: LinkId) {
        self.reach.forget(link);
    }

    /// Forgets the members at a broker behind a lost link.
    pub(super) fn forget_broker(&mut self, link: LinkId, broker: &BrokerId) {
        self.reach.drop_from(link, |(id, _)| id == broker);
    }

    /// Restores the members behind a link after a restart; the link counts as lost.
    pub(super) fn recall(&mut self, link: LinkId, members: Vec<Member>) {
        for (broker, filter) in &members {
            let brokers = self.behind.entry((link, filter.clone())).or_default();
            brokers.push(broker.clone());
        }
        self.reach.recall(link, members.into_iter().collect());
    }

    /// Whether neighbours may have to be notified.
    pub(super) fn has_changes(&self) -> bool {
        self.reach.has_changes()
    }

    /// Takes the updates for neighbours.
    pub(super) fn changes(&mut self) -> Vec<ReachUpdate<Member>> {
        self.reach.changes()
    }

    /// Other brokers with members, by shared filter, as reported to the shell.
    pub(super) fn elsewhere(&self) -> &BTreeMap<Box<str>, Vec<BrokerId>> {
        &self.elsewhere
    }

    /// Reports changes of the brokers with members elsewhere to the shell. Brokers behind a lost link
    /// count only if no broker with members is reached: messages for them are queued.
    pub(super) fn report_members(&mut self, outputs: &mut Outputs) {
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
        self.report_members_by_link(outputs);
    }

    /// Reports the same by links, to be stored for a restart.
    fn report_members_by_link(&mut self, outputs: &mut Outputs) {
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

/// The entries that differ: first removed keys, with no brokers, then new and changed ones.
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
