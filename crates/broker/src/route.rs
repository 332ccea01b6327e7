//! Routes: the receivers of a topic as answered by the subscription index, split by shard, and each
//! shard's cache of such answers.

use std::cell::RefCell;
use std::collections::HashSet;
use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use crate::base::durability::{self, Durability, DurabilityRule};
use crate::base::queue_full::{QueueFull, QueuePolicies};
use crate::directory::Directory;
use crate::index::matched::Matched;
use crate::index::{Generation, generation_slot};
use crate::order::Order;
use crate::urgency::{self, UrgencyRule};

/// A cached answer.
#[derive(Debug, Default)]
pub(crate) struct Route {
    /// The number by which others refer to the route: how many numbers were assigned before, and
    /// its place. Never that of another route; 0 for none.
    number: u64,
    topic: String,
    slot: u8,
    /// Whether the route was used since the clock hand passed.
    used: bool,
    generation: Generation,
    /// Version of the rules that the route follows.
    rules: u32,
    pub(crate) matched: Matched,
    /// Urgency of messages whose publisher states none. Boxed: few topics have
    /// one.
    pub(crate) rule: Option<Box<UrgencyRule>>,
    /// The durability of its messages, if the topic determines it.
    pub(crate) durability: Option<Durability>,
    /// The policy for its messages when a queue is full, if the topic determines it.
    pub(crate) queue_full: Option<QueueFull>,
    /// The order of its messages in a mesh; `None` if there was no message yet.
    order: RefCell<Option<Box<Order>>>,
}

/// Whether some clients get a topic's messages that did not get them before.
fn gains_clients(before: &Matched, now: &Matched) -> bool {
    let clients = |matched: &Matched| -> HashSet<u64, RandomState> {
        let clients = matched.targets().filter(|target| !target.session.link);
        clients.map(|target| target.session.number).collect()
    };
    before.crowd || now.crowd || !clients(now).is_subset(&clients(before))
}

impl Route {
    /// Whether clients get the topic's messages, other than as members of shared subscriptions.
    pub(crate) fn has_clients(&self) -> bool {
        self.matched.crowd || self.matched.targets().any(|target| !target.session.link)
    }

    /// Reads the order of the topic's messages.
    #[inline]
    pub(crate) fn order<R: Default>(&self, look: impl FnOnce(&Order) -> R) -> R {
        self.order.borrow().as_deref().map(look).unwrap_or_default()
    }

    /// Changes the order of the topic's messages.
    #[inline]
    pub(crate) fn order_mut(&self, change: impl FnOnce(&mut Order)) {
        change(self.order.borrow_mut().get_or_insert_default());
    }

    pub(crate) fn topic(&self) -> &str {
        &self.topic
    }

    fn weight(&self) -> usize {
        size_of::<Self>() + size_of::<Order>() + self.topic.capacity() + self.matched.weight()
    }
}

/// Bytes a topic may take in the cache, on average.
const AVERAGE_WEIGHT: usize = 1024;
/// Maximum number of used routes that one search for a route to evict skips.
const MOST_PASSED: usize = 32;
/// Place of the route of a topic that is not cached.
const GUEST: usize = 0;

/// A shard's routes by topic.
///
/// As long as there is capacity, each topic is cached. Beyond it, a topic must be used twice within
/// a while (`seen`), and replaces one that was not used lately (the hand of a clock: Corbató, "A
/// paging experiment with the Multics system", 1968). Until then its route is the *guest*, whose
/// number only its last user knows.
#[derive(Debug)]
pub(crate) struct RouteCache {
    /// The routes by place; the first is the guest.
    routes: Vec<Route>,
    /// Places of all routes but the guest.
    table: HashTable<u32>,
    hasher: RandomState,
    /// A part of the hash of the last topic that was not cached, by another part of that hash.
    seen: Box<[u8]>,
    capacity: usize,
    /// Number of bytes that the routes take.
    weight: usize,
    /// Number of route numbers that were assigned.
    count: u64,
    /// Number of bits of a route number that hold the place.
    place_bits: u32,
    /// Place at which the search for a route to evict begins.
    hand: usize,
    rules: Vec<UrgencyRule>,
    durability: Vec<DurabilityRule>,
    policies: QueuePolicies,
    /// Number of changes of the rules.
    changes: u32,
}

impl RouteCache {
    pub(crate) fn new(
        capacity: usize,
        rules: Vec<UrgencyRule>,
        durability: Vec<DurabilityRule>,
        policies: QueuePolicies,
    ) -> Self {
        Self {
            routes: vec![Route::default()],
            table: HashTable::new(),
            hasher: RandomState::default(),
            seen: Box::default(),
            capacity: capacity.max(1),
            weight: 0,
            count: 0,
            place_bits: usize::BITS - capacity.max(1).leading_zeros(),
            hand: GUEST,
            rules,
            durability,
            policies,
            changes: 0,
        }
    }

    /// Allocates memory for all topics. Otherwise the cache would repeatedly be copied into twice
    /// as much memory, in one piece, and clients determine the number of topics.
    pub(crate) fn reserve(&mut self) {
        let (routes, hasher) = (&self.routes, &self.hasher);
        let hash = |at: &u32| hasher.hash_one(routes[*at as usize].topic.as_bytes());
        // If that memory is not available, the cache grows when it has to. hashbrown rehashes a
        // table that is full of tombstones; one that is at most half full has almost none.
        let _ = self.table.try_reserve(2 * self.capacity, hash);
        let _ = self.routes.try_reserve_exact(self.capacity);
        self.keep_seen();
    }

    /// Replaces the rules. Cached routes follow them when they are used next.
    pub(crate) fn set_rules(
        &mut self,
        rules: &[UrgencyRule],
        durability: &[DurabilityRule],
        policies: &QueuePolicies,
    ) {
        let known = (&*self.rules, &*self.durability, &self.policies);
        if known != (rules, durability, policies) {
            self.rules = rules.to_vec();
            self.durability = durability.to_vec();
            self.policies = policies.clone();
            self.changes = self.changes.wrapping_add(1);
        }
    }

    /// The route that was found or inserted last.
    #[inline]
    pub(crate) fn get(&self, number: u64) -> &Route {
        &self.routes[self.place(number)]
    }

    /// The place of the route with that number.
    #[inline]
    fn place(&self, number: u64) -> usize {
        (number & ((1 << self.place_bits) - 1)) as usize
    }

    /// A new number for a route at that place.
    fn number(&mut self, at: usize) -> u64 {
        self.count += 1;
        self.count << self.place_bits | at as u64
    }

    /// The place of the route with that number, if it is that of the topic with those bytes.
    #[inline]
    fn place_of(&self, topic: &[u8], number: u64) -> Option<usize> {
        let place = self.place(number);
        let route = self.routes.get(place).filter(|_| number != 0)?;
        (route.number == number && route.topic.as_bytes() == topic).then_some(place)
    }

    /// Whether `number` is that of the topic with those bytes, and remains so when the route is
    /// updated.
    #[inline]
    pub(crate) fn confirm(&mut self, topic: &[u8], number: u64, directory: &Directory) -> bool {
        let at = self.place_of(topic, number);
        at.is_some_and(|at| self.used(at, directory) == number)
    }

    /// The number of the route of the topic with those bytes if it is `guess`
    /// or found in the table. A known topic is a valid topic name.
    #[inline]
    pub(crate) fn find(&mut self, topic: &[u8], guess: u64, directory: &Directory) -> Option<u64> {
        let at = match self.place_of(topic, guess) {
            Some(at) => at,
            None => {
                let hash = self.hasher.hash_one(topic);
                let routes = &self.routes;
                *self
                    .table
                    .find(hash, |at| routes[*at as usize].topic.as_bytes() == topic)?
                    as usize
            }
        };
        Some(self.used(at, directory))
    }

    /// Notes that a route is used, and updates it. Returns its number.
    #[inline]
    fn used(&mut self, at: usize, directory: &Directory) -> u64 {
        let route = &mut self.routes[at];
        route.used = true;
        let current = directory.generations.current(route.slot);
        match route.generation == current && route.rules == self.changes {
            true => route.number,
            false => self.renew(at, directory),
        }
    }

    /// Queries the index again for a route. Returns the route's number.
    #[cold]
    fn renew(&mut self, at: usize, directory: &Directory) -> u64 {
        let route = &mut self.routes[at];
        let (generation, matched) = directory.lookup(&route.topic, route.slot);
        let before = route.weight();
        route.generation = generation;
        if let Some(order) = route.order.get_mut()
            && gains_clients(&route.matched, &matched)
        {
            order.forget();
        }
        route.matched = matched;
        if route.rules != self.changes {
            route.rules = self.changes;
            route.rule = rule_of(&self.rules, &route.topic);
            route.durability = durability::of_topic(&self.durability, &route.topic);
            route.queue_full = self.policies.of_topic(&route.topic);
        }
        let number = route.number;
        match at {
            GUEST => number,
            _ => {
                self.weight = self.weight - before + route.weight();
                self.make_room(number)
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn weight(&self) -> usize {
        self.weight
    }

    /// Number of cached topics.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// Number of topics for which memory is allocated.
    #[cfg(test)]
    pub(crate) fn room(&self) -> [usize; 2] {
        [self.routes.capacity(), self.table.num_buckets()]
    }

    fn is_too_heavy(&self) -> bool {
        self.weight > self.capacity.saturating_mul(AVERAGE_WEIGHT)
    }

    /// Caches a valid topic that [`Self::find`] has not found, or makes it the guest.
    pub(crate) fn insert(&mut self, topic: &str, directory: &Directory) -> u64 {
        let hash = self.hasher.hash_one(topic.as_bytes());
        let is_full = self.table.len() >= self.capacity || self.is_too_heavy();
        // In a mesh the order of its messages must be kept.
        let admitted = !is_full || directory.federation().is_some() || self.was_seen(hash);
        let at = match admitted {
            true => self.free_place(),
            false => GUEST,
        };
        let number = self.number(at);
        let slot = generation_slot(topic);
        let (generation, matched) = directory.lookup(topic, slot);
        let route = &mut self.routes[at];
        // The guest's memory is reused.
        let mut name = std::mem::take(&mut route.topic);
        name.clear();
        match at {
            GUEST => name.push_str(topic),
            _ => name = topic.into(),
        }
        *route = Route {
            number,
            topic: name,
            slot,
            used: false,
            generation,
            rules: self.changes,
            matched,
            rule: rule_of(&self.rules, topic),
            durability: durability::of_topic(&self.durability, topic),
            queue_full: self.policies.of_topic(topic),
            order: RefCell::default(),
        };
        if at == GUEST {
            return number;
        }
        self.weight += route.weight();
        let (routes, hasher) = (&self.routes, &self.hasher);
        self.table.insert_unique(hash, at as u32, |at| {
            hasher.hash_one(routes[*at as usize].topic.as_bytes())
        });
        self.make_room(number)
    }

    /// Whether the last uncached topic in the same position of `seen` had that hash; notes this
    /// hash.
    fn was_seen(&mut self, hash: u64) -> bool {
        self.keep_seen();
        let [high, ..] = hash.to_be_bytes();
        let seen = &mut self.seen[hash as usize & (self.capacity.next_power_of_two() - 1)];
        std::mem::replace(seen, high.max(1)) == high.max(1)
    }

    fn keep_seen(&mut self) {
        if self.seen.is_empty() {
            self.seen = vec![0; self.capacity.next_power_of_two()].into();
        }
    }

    /// A free place for another route; evicts a route if necessary.
    fn free_place(&mut self) -> usize {
        if self.table.len() < self.capacity {
            self.routes.push(Route::default());
            return self.routes.len() - 1;
        }
        let at = self.turn(GUEST);
        self.take(at);
        at
    }

    /// Evicts routes until the bound in bytes holds, but not the route with the number `kept`.
    /// Returns the number that the latter has then.
    fn make_room(&mut self, mut kept: u64) -> u64 {
        while self.is_too_heavy() && self.table.len() > 1 {
            let at = self.turn(self.place(kept));
            self.take(at);
            let last = self.routes.len() - 1;
            if at < last {
                // The last route moves to that place, and so gets another number.
                let hash = self.hasher.hash_one(self.routes[last].topic.as_bytes());
                if let Some(place) = self.table.find_mut(hash, |it| *it as usize == last) {
                    *place = at as u32;
                }
                let number = self.number(at);
                let moved = &mut self.routes[last];
                if std::mem::replace(&mut moved.number, number) == kept {
                    kept = number;
                }
            }
            self.routes.swap_remove(at);
        }
        kept
    }

    /// The place of a route that was not used lately, other than `kept`.
    fn turn(&mut self, kept: usize) -> usize {
        let mut passed = 0;
        loop {
            self.hand += 1;
            if self.hand >= self.routes.len() {
                self.hand = GUEST + 1;
            }
            if self.hand == kept {
                continue;
            }
            let was_used = std::mem::take(&mut self.routes[self.hand].used);
            if !was_used || passed >= MOST_PASSED {
                return self.hand;
            }
            passed += 1;
        }
    }

    /// Removes the route at that place from the table, and leaves an empty one.
    fn take(&mut self, at: usize) {
        let hash = self.hasher.hash_one(self.routes[at].topic.as_bytes());
        if let Ok(entry) = self.table.find_entry(hash, |it| *it as usize == at) {
            entry.remove();
        }
        let route = std::mem::take(&mut self.routes[at]);
        self.weight -= route.weight();
    }
}

fn rule_of(rules: &[UrgencyRule], topic: &str) -> Option<Box<UrgencyRule>> {
    urgency::of_topic(rules, topic).map(|rule| Box::new(rule.clone()))
}
