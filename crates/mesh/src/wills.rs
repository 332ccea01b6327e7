//! Wills of clients, stored by neighbours (*guards*) in case the clients' broker is lost.
//!
//! A broker sends the wills of its clients to two neighbours on the tree, its guards, which act one after
//! the other in turn, and withdraws wills that are not to be published any more. A guard that has lost
//! the broker publishes the wills that are due, unless the broker is back, or the client has connected
//! elsewhere. A will has its message name from the time its client connected, so if several brokers
//! publish it, receivers recognise the duplicates like all others ([`crate::seen`]).
//!
//! A lost broker that returns receives a report ([`crate::wire::GuardReport`]). If it has restarted
//! meanwhile, it stores the unpublished wills as a guard of its previous start, and publishes those whose
//! clients do not return.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use punctual_model::Nanos;

use crate::id::{BrokerId, LinkId};
use crate::wire::{Arrival, ClientWill, GuardReport};

/// Number of neighbours that guard the wills of a broker.
pub(crate) const GUARDS: usize = 2;
/// For how long it is remembered which wills of a lost broker were published.
const REMEMBERED: Nanos = Nanos::from_secs(86_400);

/// An update of wills to a guard, or from a guarded broker.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct WillsUpdate {
    pub(crate) link: LinkId,
    pub(crate) all: bool,
    pub(crate) turn: u8,
    pub(crate) add: Vec<ClientWill>,
    pub(crate) remove: Vec<Box<str>>,
}

/// A broker, and its [`crate::Settings::instance`].
pub(crate) type BrokerStart = (BrokerId, u64);

/// Wills guarded here for another broker.
#[derive(Debug, Default)]
struct Ward {
    turn: u8,
    wills: BTreeMap<Box<str>, ClientWill>,
    lost: Option<Outage>,
    /// Wills that were published.
    published: Vec<ClientWill>,
    /// The brokers that were reached at the last publication, or when wills were published again.
    told: BTreeSet<BrokerId>,
    /// When the published wills are published again, since more brokers are reached.
    pass_on: Option<Nanos>,
    /// Its clients that have connected elsewhere while it may not have learned of that.
    moved: BTreeMap<Box<str>, Arrival>,
    /// Whether a will was dropped because of the bound.
    full: bool,
}

#[derive(Debug)]
struct Outage {
    since: Nanos,
    /// When a will is due, or the ward is forgotten.
    next: Nanos,
}

impl Ward {
    fn is_empty(&self) -> bool {
        self.wills.is_empty() && self.published.is_empty() && self.moved.is_empty()
    }
}

fn size<'a>(wills: impl IntoIterator<Item = &'a ClientWill>) -> usize {
    wills.into_iter().map(ClientWill::size).sum()
}

/// Wills of this broker's clients and of others'.
#[derive(Debug)]
pub(crate) struct Wills {
    /// How long a broker is lost before the first of its wills is published.
    wait: Nanos,
    /// How much later the next guard publishes.
    linger: Nanos,
    /// Bound on the bytes of wills of other brokers.
    max: usize,
    held: usize,
    own: BTreeMap<Box<str>, ClientWill>,
    changed: BTreeSet<Box<str>>,
    guards: Vec<LinkId>,
    /// By brokers and their starts.
    wards: BTreeMap<BrokerStart, Ward>,
}

impl Wills {
    pub(crate) fn new(wait: Nanos, linger: Nanos, max: usize) -> Self {
        Self {
            wait,
            linger,
            max,
            held: 0,
            own: BTreeMap::new(),
            changed: BTreeSet::new(),
            guards: Vec::new(),
            wards: BTreeMap::new(),
        }
    }

    /// Sets the will of a client of this broker, or removes it with `None`.
    pub(crate) fn set(&mut self, client: &str, will: Option<ClientWill>) {
        let known = match will {
            Some(will) => self.own.insert(client.into(), will),
            None => self.own.remove(client),
        };
        if known.is_some() || self.own.contains_key(client) {
            self.changed.insert(client.into());
        }
    }

    /// Whether there are updates for the guards `wanted`, in this order.
    pub(crate) fn has_changes(&self, wanted: &[LinkId]) -> bool {
        self.guards != wanted || !self.changed.is_empty()
    }

    /// Takes the updates; from now on `wanted` are the guards.
    pub(crate) fn changes(&mut self, wanted: Vec<LinkId>) -> Vec<WillsUpdate> {
        let changed = std::mem::take(&mut self.changed);
        let before = std::mem::replace(&mut self.guards, wanted);
        let mut all = Vec::new();
        for link in before.iter().filter(|link| !self.guards.contains(link)) {
            all.push(WillsUpdate {
                link: *link,
                all: true,
                turn: 0,
                add: Vec::new(),
                remove: Vec::new(),
            });
        }
        for (turn, link) in self.guards.iter().enumerate() {
            let anew = before.get(turn) != Some(link);
            let mut told = WillsUpdate {
                link: *link,
                all: anew,
                turn: turn as u8,
                add: Vec::new(),
                remove: Vec::new(),
            };
            if anew {
                told.add = self.own.values().cloned().collect();
            } else {
                for client in &changed {
                    match self.own.get(client) {
                        Some(will) => told.add.push(will.clone()),
                        None => told.remove.push(client.clone()),
                    }
                }
            }
            if anew || !changed.is_empty() {
                all.push(told);
            }
        }
        all
    }

    /// Applies an update of a guarded broker; returns whether a will exceeds the bound for the first
    /// time.
    pub(crate) fn heard(&mut self, whose: BrokerStart, told: WillsUpdate, now: Nanos) -> bool {
        if told.all
            && let Some(ward) = self.wards.get_mut(&whose)
        {
            ward.moved.clear();
            let forgotten = std::mem::take(&mut ward.wills);
            self.held -= size(forgotten.values());
        }
        let nothing = told.add.is_empty() && told.remove.is_empty();
        if nothing && !self.wards.contains_key(&whose) {
            return false;
        }
        let ward = self.wards.entry(whose.clone()).or_default();
        if told.all {
            ward.turn = told.turn;
        }
        let mut overflows = false;
        for client in told.remove {
            ward.moved.remove(&client);
            let gone = ward.wills.remove(&client);
            self.held -= gone.map_or(0, |will| will.size());
        }
        for will in told.add {
            ward.moved.remove(&will.client);
            let known = ward.wills.remove(&will.client);
            self.held -= known.map_or(0, |will| will.size());
            match self.held + will.size() <= self.max {
                true => {
                    self.held += will.size();
                    ward.wills.insert(will.client.clone(), will);
                }
                false => overflows |= !std::mem::replace(&mut ward.full, true),
            }
        }
        if let Some(lost) = &mut ward.lost {
            // A new will may be due earlier than the known ones.
            lost.next = now;
        } else if ward.is_empty() {
            self.wards.remove(&whose);
        }
        overflows
    }

    /// A client has connected to a broker: older wills of it are not published.
    pub(crate) fn arrived(&mut self, arrival: &Arrival) {
        let Arrival { client, at, .. } = arrival;
        for ward in self.wards.values_mut() {
            if ward.wills.get(client).is_some_and(|will| will.at < *at) {
                ward.moved.insert(client.clone(), arrival.clone());
                let gone = ward.wills.remove(client);
                self.held -= gone.map_or(0, |will| will.size());
            }
        }
    }

    /// Brokers with wills here.
    pub(crate) fn wards(&self) -> impl Iterator<Item = &BrokerStart> {
        self.wards.keys()
    }

    /// A guarded broker is lost from now on.
    pub(crate) fn lose(&mut self, whose: &BrokerStart, now: Nanos) {
        if let Some(ward) = self.wards.get_mut(whose)
            && ward.lost.is_none()
        {
            ward.lost = Some(Outage {
                since: now,
                next: now,
            });
        }
    }

    /// A guarded broker is back without a restart; its wills stay here. Returns the report for it.
    pub(crate) fn found(&mut self, whose: &BrokerStart, now: Nanos) -> Option<GuardReport> {
        let ward = self.wards.get_mut(whose)?;
        if ward.lost.is_none() && ward.published.is_empty() {
            return None;
        }
        let since = ward.lost.take().map_or(now, |lost| lost.since);
        let published = std::mem::take(&mut ward.published);
        self.held -= size(&published);
        let left = GuardReport {
            to: whose.0.clone(),
            instance: whose.1,
            lost: (now - since).0 / 1_000_000,
            wills: Vec::new(),
            published,
            moved: std::mem::take(&mut ward.moved).into_values().collect(),
        };
        if ward.is_empty() {
            self.wards.remove(whose);
        }
        Some(left)
    }

    /// A guarded broker is back, and takes over its wills. Returns the report with them.
    pub(crate) fn give_back(&mut self, whose: &BrokerStart, now: Nanos) -> Option<GuardReport> {
        let ward = self.wards.remove(whose)?;
        self.held -= size(ward.wills.values()) + size(&ward.published);
        let since = ward.lost.map_or(now, |lost| lost.since);
        let left = GuardReport {
            to: whose.0.clone(),
            instance: whose.1,
            lost: (now - since).0 / 1_000_000,
            wills: ward.wills.into_values().collect(),
            published: ward.published,
            moved: ward.moved.into_values().collect(),
        };
        Some(left)
    }

    /// Stores a report: of this broker before its restart, or of a broker that is not reached.
    pub(crate) fn inherit(&mut self, left: GuardReport, now: Nanos) {
        let ward = self.wards.entry((left.to, left.instance));
        let is_known = matches!(ward, Entry::Occupied(_));
        let ward = ward.or_default();
        for will in left.published {
            if self.held + will.size() <= self.max {
                self.held += will.size();
                ward.published.push(will);
            }
        }
        let moved = left.moved.into_iter();
        ward.moved.extend(moved.map(|it| (it.client.clone(), it)));
        if is_known && ward.lost.is_none() {
            // The broker is connected, and may have changed these wills.
            return;
        }
        let lost = Nanos(left.lost.saturating_mul(1_000_000));
        let since = Nanos(now.0.saturating_sub(lost.0));
        ward.lost.get_or_insert(Outage { since, next: now }).next = now;
        for will in left.wills {
            if self.held + will.size() <= self.max && !ward.wills.contains_key(&will.client) {
                self.held += will.size();
                ward.wills.insert(will.client.clone(), will);
            }
        }
    }

    /// When [`Self::due`] or [`Self::again`] returns something next.
    pub(crate) fn next(&self) -> Option<Nanos> {
        let lost = self.wards.values().filter_map(|ward| ward.lost.as_ref());
        let again = self.wards.values().filter_map(|ward| ward.pass_on);
        lost.map(|lost| lost.next).chain(again).min()
    }

    /// A broker came into reach. Wills that were published while it was away are published again for it,
    /// if the brokers that they belong to are still lost in a moment: they may come into reach with it.
    pub(crate) fn came(&mut self, broker: &BrokerId, now: Nanos) {
        for ((whose, _), ward) in &mut self.wards {
            let is_news = !ward.published.is_empty() && !ward.told.contains(broker);
            if ward.lost.is_some() && whose != broker && is_news {
                ward.pass_on.get_or_insert(now + self.linger);
            }
        }
    }

    /// Takes the wills that are to be published again now, given the reached brokers.
    pub(crate) fn again(&mut self, reached: &BTreeSet<BrokerId>, now: Nanos) -> Vec<ClientWill> {
        let mut all = Vec::new();
        for ward in self.wards.values_mut() {
            if ward.pass_on.is_some_and(|at| at <= now) {
                ward.pass_on = None;
                if ward.lost.is_some() {
                    ward.told.extend(reached.iter().cloned());
                    all.extend(ward.published.iter().cloned());
                }
            }
        }
        all
    }

    /// Takes the wills that are to be published now, each with the broker of its client.
    pub(crate) fn due(
        &mut self,
        reached: &BTreeSet<BrokerId>,
        now: Nanos,
    ) -> Vec<(BrokerId, ClientWill)> {
        let mut all = Vec::new();
        let (wait, linger) = (self.wait, self.linger);
        for ((id, _), ward) in &mut self.wards {
            let Some(lost) = ward.lost.as_mut().filter(|lost| lost.next <= now) else {
                continue;
            };
            let turn = Nanos(linger.0 * u64::from(ward.turn));
            let due = |will: &ClientWill| {
                let delay = Nanos::from_secs(u64::from(will.delay));
                lost.since + delay.max(wait) + turn
            };
            let mut next = Nanos::MAX;
            let (before, mut left) = (all.len(), BTreeMap::new());
            for (client, will) in std::mem::take(&mut ward.wills) {
                if due(&will) <= now {
                    all.push((id.clone(), will));
                } else {
                    next = next.min(due(&will));
                    left.insert(client, will);
                }
            }
            ward.wills = left;
            lost.next = match ward.wills.is_empty() {
                true => lost.since + REMEMBERED,
                false => next,
            };
            let published = all[before..].iter().map(|(_, will)| will.clone());
            ward.published.extend(published);
            if all.len() > before {
                // A broker that was reached earlier, and is not now, gets all of them again later.
                ward.told.clone_from(reached);
            }
        }
        let held = &mut self.held;
        self.wards.retain(|_, ward| {
            let over = |lost: &Outage| lost.since + REMEMBERED <= now;
            let keeps = !ward.wills.is_empty() || !ward.lost.as_ref().is_some_and(over);
            *held -= if keeps { 0 } else { size(&ward.published) };
            keeps
        });
        all
    }

    /// Number of wills of this broker's clients, and of wills stored for others.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let kept = self.wards.values().map(|ward| ward.wills.len()).sum();
        (self.own.len(), kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = Nanos::from_secs(1);

    fn id(name: &str) -> BrokerId {
        BrokerId::new(name).unwrap()
    }

    fn will(client: &str, at: u64, delay: u32) -> ClientWill {
        ClientWill {
            client: client.into(),
            at,
            delay,
            message: [1, 2, 3].into(),
        }
    }

    fn wills() -> Wills {
        Wills::new(Nanos::from_secs(10), Nanos::from_secs(2), 1000)
    }

    fn told(turn: u8, add: Vec<ClientWill>) -> WillsUpdate {
        WillsUpdate {
            link: LinkId(0),
            all: true,
            turn,
            add,
            remove: Vec::new(),
        }
    }

    fn clients(wills: &[ClientWill]) -> Vec<&str> {
        wills.iter().map(|will| &*will.client).collect()
    }

    fn due(wills: &mut Wills, now: Nanos) -> Vec<String> {
        let due = wills.due(&BTreeSet::new(), now).into_iter();
        due.map(|(_, will)| will.client.into()).collect()
    }

    #[test]
    fn guards_are_told_all_once_and_then_what_changes() {
        let (one, two, three) = (LinkId(1), LinkId(2), LinkId(3));
        let mut own = wills();
        own.set("a", Some(will("a", 1, 0)));
        own.set("nobody", None);
        let first = own.changes(vec![one, two]);
        assert_eq!(first.len(), 2);
        assert!(first.iter().all(|told| told.all && told.add.len() == 1));
        assert_eq!((first[0].turn, first[1].turn), (0, 1));
        assert!(!own.has_changes(&[one, two]));
        own.set("b", Some(will("b", 2, 0)));
        own.set("a", None);
        let second = own.changes(vec![one, two]);
        for (told, link) in second.iter().zip([one, two]) {
            assert_eq!((told.link, told.all), (link, false));
            assert_eq!(
                (&told.add[..], &told.remove[..]),
                (&[will("b", 2, 0)][..], &["a".into()][..])
            );
        }
        // Another guard is told all, and who is none any more forgets all.
        let third = own.changes(vec![one, three]);
        assert_eq!(third.len(), 2);
        assert_eq!(
            (third[0].link, third[0].all, third[0].add.len()),
            (two, true, 0)
        );
        assert_eq!(
            (third[1].link, third[1].all, third[1].add.len()),
            (three, true, 1)
        );
    }

    #[test]
    fn what_a_lost_broker_left_is_due_after_a_while_in_turn() {
        for turn in 0..2 {
            let (mut wards, x) = (wills(), (id("x"), 7));
            let three = vec![will("a", 1, 0), will("b", 2, 0), will("late", 3, 60)];
            wards.heard(x.clone(), told(turn, three), SECOND);
            assert_eq!(wards.next(), None);
            wards.lose(&x, SECOND);
            assert!(due(&mut wards, SECOND).is_empty());
            // It is elsewhere now.
            for (client, at) in [("b", 3), ("a", 1)] {
                wards.arrived(&Arrival {
                    client: client.into(),
                    user: None,
                    at,
                    clean: false,
                });
            }
            let at = Nanos::from_secs(11 + 2 * u64::from(turn));
            assert_eq!(wards.next(), Some(at));
            assert!(due(&mut wards, at - Nanos(1)).is_empty());
            assert_eq!(due(&mut wards, at), ["a"]);
            assert!(due(&mut wards, at).is_empty());
            let late = Nanos::from_secs(61 + 2 * u64::from(turn));
            assert_eq!(wards.next(), Some(late));
            assert_eq!(due(&mut wards, late), ["late"]);
            assert_eq!(wards.counts(), (0, 0));
            let left = wards.found(&x, late).unwrap();
            assert_eq!(clients(&left.published), ["a", "late"]);
            assert_eq!((&*left.moved[0].client, left.moved[0].at), ("b", 3));
            assert_eq!((wards.next(), wards.held), (None, 0));
        }
    }

    #[test]
    fn who_is_back_is_given_what_it_left() {
        let (mut wards, x) = (wills(), (id("x"), 7));
        wards.heard(x.clone(), told(0, vec![will("a", 1, 0)]), SECOND);
        wards.lose(&x, SECOND);
        let later = Nanos::from_secs(5);
        // It has started again, and tells what it has now.
        let again = (id("x"), 8);
        assert!(!wards.heard(again, told(0, vec![will("c", 4, 0)]), later));
        let left = wards.give_back(&x, later).unwrap();
        assert_eq!(
            (left.instance, left.lost, clients(&left.wills)),
            (7, 4000, vec!["a"])
        );
        assert_eq!(wards.next(), None);
        assert_eq!(wards.counts(), (0, 1));
        // It goes on counting.
        let mut own = wills();
        own.inherit(left, Nanos::from_secs(100));
        assert!(due(&mut own, Nanos::from_secs(105)).is_empty());
        assert_eq!(due(&mut own, Nanos::from_secs(106)), ["a"]);
    }

    #[test]
    fn what_has_no_room_is_not_kept() {
        let (mut wards, x) = (wills(), (id("x"), 7));
        let many: Vec<_> = (0..100).map(|n| will(&format!("c{n}"), 1, 0)).collect();
        let full = wards.heard(x.clone(), told(0, many), SECOND);
        assert!(full && wards.held <= 1000);
        let kept = wards.counts().1;
        assert!(kept > 0 && kept < 100);
        wards.heard(x.clone(), told(0, Vec::new()), SECOND);
        assert_eq!((wards.held, wards.counts()), (0, (0, 0)));
    }
}
