//! Who receives a topic, ready to be used: the answer of the subscription
//! index, split by shard, and each shard's cache of such answers.

use std::cell::RefCell;
use std::collections::HashSet;
use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use punctual_codec::QoS;
use smallvec::SmallVec;

use crate::directory::{Directory, SessionHandle};
use crate::group::Group;
use crate::index::{Generation, Subscriber, generation_slot};
use crate::journal::{self, Durability, DurabilityRule};
use crate::order::Order;
use crate::urgency::{self, UrgencyRule};

/// One receiver of a message.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) session: Arc<SessionHandle>,
    pub(crate) slot: u32,
    pub(crate) qos: QoS,
    pub(crate) no_local: bool,
    pub(crate) retain_as_published: bool,
    /// Messages of admitted flows go to it with the plain ones.
    pub(crate) demoted: bool,
    /// What it is sent is numbered.
    pub(crate) numbered: bool,
    /// As a member of a shared subscription.
    pub(crate) shared: bool,
    pub(crate) subscription_ids: Option<Arc<[u32]>>,
}

impl Target {
    pub(crate) fn new(subscriber: &Subscriber) -> Self {
        Self {
            session: subscriber.session.clone(),
            slot: subscriber.session.slot,
            qos: subscriber.options.qos,
            no_local: subscriber.options.no_local,
            retain_as_published: subscriber.options.retain_as_published,
            demoted: subscriber.demoted,
            numbered: subscriber.numbered,
            shared: false,
            subscription_ids: (subscriber.id != 0).then(|| Arc::from([subscriber.id])),
        }
    }

    pub(crate) fn key(&self) -> (u16, u64) {
        (self.session.shard, self.session.number)
    }

    #[inline]
    pub(crate) fn ids(&self) -> &[u32] {
        self.subscription_ids.as_ref().map_or(&[], |ids| ids)
    }

    /// Takes `other` in if it is a subscription of the same session.
    pub(crate) fn merge(&mut self, other: &Self) -> bool {
        if !Arc::ptr_eq(&self.session, &other.session) {
            return false;
        }
        self.qos = self.qos.max(other.qos);
        self.no_local &= other.no_local;
        self.retain_as_published |= other.retain_as_published;
        self.demoted &= other.demoted;
        self.numbered |= other.numbered;
        if let Some(ids) = &other.subscription_ids {
            self.subscription_ids = Some(self.ids().iter().chain(ids.iter()).copied().collect());
        }
        true
    }
}

/// Shared subscriptions of one topic.
pub(crate) type Groups = SmallVec<[Arc<Group>; 1]>;

/// All receivers of one topic.
#[derive(Debug)]
pub(crate) struct Matched {
    /// By shard, each list in the order of session numbers.
    pub(crate) shards: SmallVec<[(u16, Arc<[Target]>); 1]>,
    pub(crate) groups: Groups,
    /// Highest QoS anyone receives with; with groups, whose members come and go, the highest of all.
    pub(crate) max_qos: QoS,
}

impl Matched {
    /// Takes targets sorted by shard.
    pub(crate) fn new(targets: Vec<Target>, groups: Groups) -> Self {
        let max_qos = match groups.is_empty() {
            true => targets.iter().map(|t| t.qos).max().unwrap_or_default(),
            false => QoS::ExactlyOnce,
        };
        let shards = targets
            .chunk_by(|a, b| a.session.shard == b.session.shard)
            .map(|chunk| (chunk[0].session.shard, Arc::from(chunk)))
            .collect();
        Self {
            shards,
            groups,
            max_qos,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.shards.is_empty() && self.groups.is_empty()
    }

    /// All but those of groups.
    pub(crate) fn targets(&self) -> impl Iterator<Item = &Target> {
        self.shards.iter().flat_map(|(_, targets)| targets.iter())
    }

    /// Bytes that the targets take.
    fn weight(&self) -> usize {
        let targets = self.shards.iter().map(|(_, targets)| targets.len());
        targets.sum::<usize>() * size_of::<Target>()
    }
}

/// A cached answer.
#[derive(Debug)]
pub(crate) struct Route {
    topic: Box<str>,
    slot: u8,
    generation: Generation,
    pub(crate) matched: Arc<Matched>,
    /// Urgency of messages whose publisher states none. Boxed: few topics have
    /// one.
    pub(crate) rule: Option<Box<UrgencyRule>>,
    /// What is promised about its messages, if the topic decides that.
    pub(crate) durability: Option<Durability>,
    /// The order of its messages in a mesh; `None` as long as there was none.
    order: RefCell<Option<Box<Order>>>,
}

/// Whether clients get a topic's messages that did not before.
fn gains_clients(before: &Matched, now: &Matched) -> bool {
    let clients = |matched: &Matched| -> HashSet<u64, RandomState> {
        let clients = matched.targets().filter(|target| !target.session.link);
        clients.map(|target| target.session.number).collect()
    };
    !clients(now).is_subset(&clients(before))
}

impl Route {
    /// Whether clients get its messages, other than as members of shared subscriptions.
    pub(crate) fn has_clients(&self) -> bool {
        self.matched.targets().any(|target| !target.session.link)
    }

    /// What is known of the order of its messages.
    #[inline]
    pub(crate) fn order<R: Default>(&self, look: impl FnOnce(&Order) -> R) -> R {
        self.order.borrow().as_deref().map(look).unwrap_or_default()
    }

    /// Changes that.
    #[inline]
    pub(crate) fn order_mut(&self, change: impl FnOnce(&mut Order)) {
        change(self.order.borrow_mut().get_or_insert_default());
    }

    pub(crate) fn topic(&self) -> &str {
        &self.topic
    }

    fn weight(&self) -> usize {
        size_of::<Self>() + size_of::<Order>() + self.topic.len() + self.matched.weight()
    }
}

/// Bytes a topic may take in the cache, on average.
const AVERAGE_WEIGHT: usize = 1024;

/// A shard's answers by topic. When full it starts again: topics in use come
/// back at the price of one walk each.
#[derive(Debug)]
pub(crate) struct RouteCache {
    routes: Vec<Route>,
    table: HashTable<u32>,
    hasher: RandomState,
    capacity: usize,
    /// Bytes that the routes take.
    weight: usize,
    /// Number of the first route here; numbers are never used twice.
    first: u64,
    rules: Vec<UrgencyRule>,
    durability: Vec<DurabilityRule>,
}

impl RouteCache {
    pub(crate) fn new(
        capacity: usize,
        rules: Vec<UrgencyRule>,
        durability: Vec<DurabilityRule>,
    ) -> Self {
        Self {
            routes: Vec::new(),
            table: HashTable::new(),
            hasher: RandomState::default(),
            capacity: capacity.max(1),
            weight: 0,
            first: 1,
            rules,
            durability,
        }
    }

    /// Replaces the rules; known topics are looked up again.
    pub(crate) fn set_rules(&mut self, rules: &[UrgencyRule], durability: &[DurabilityRule]) {
        if self.rules != rules || self.durability != durability {
            self.rules = rules.to_vec();
            self.durability = durability.to_vec();
            self.start_again();
        }
    }

    fn start_again(&mut self) {
        self.first += self.routes.len() as u64;
        self.routes.clear();
        self.table.clear();
        self.weight = 0;
    }

    #[inline]
    pub(crate) fn get(&self, number: u64) -> &Route {
        &self.routes[(number - self.first) as usize]
    }

    /// The number of the route of the topic with those bytes if it is `guess`
    /// or found in the table, and the cache is not to start again. A known
    /// topic is a valid topic name.
    #[inline]
    pub(crate) fn find(&mut self, topic: &[u8], guess: u64, directory: &Directory) -> Option<u64> {
        let guess = guess.wrapping_sub(self.first) as usize;
        let known = match self.routes.get(guess) {
            Some(route) if route.topic.as_bytes() == topic => guess,
            _ => {
                let hash = self.hasher.hash_one(topic);
                let routes = &self.routes;
                *self
                    .table
                    .find(hash, |at| routes[*at as usize].topic.as_bytes() == topic)?
                    as usize
            }
        };
        let route = &mut self.routes[known];
        let current = directory.generations.current(route.slot);
        if route.generation != current {
            let (generation, matched) = directory.lookup(&route.topic, route.slot);
            self.weight -= route.weight();
            route.generation = generation;
            if let Some(order) = route.order.get_mut()
                && gains_clients(&route.matched, &matched)
            {
                order.forget();
            }
            route.matched = Arc::new(matched);
            self.weight += route.weight();
            if self.is_too_heavy() && self.routes.len() > 1 {
                return None;
            }
        }
        Some(self.first + known as u64)
    }

    #[cfg(test)]
    pub(crate) fn weight(&self) -> usize {
        self.weight
    }

    fn is_too_heavy(&self) -> bool {
        self.weight > self.capacity.saturating_mul(AVERAGE_WEIGHT)
    }

    /// Remembers a valid topic that [`Self::find`] does not know.
    pub(crate) fn insert(&mut self, topic: &str, directory: &Directory) -> u64 {
        if self.routes.len() >= self.capacity || self.is_too_heavy() {
            self.start_again();
        }
        let slot = generation_slot(topic);
        let (generation, matched) = directory.lookup(topic, slot);
        let at = self.routes.len() as u32;
        let route = Route {
            topic: topic.into(),
            slot,
            generation,
            matched: Arc::new(matched),
            rule: urgency::of_topic(&self.rules, topic).map(|rule| Box::new(rule.clone())),
            durability: journal::of_topic(&self.durability, topic),
            order: RefCell::default(),
        };
        self.weight += route.weight();
        self.routes.push(route);
        let (routes, hasher) = (&self.routes, &self.hasher);
        self.table
            .insert_unique(hasher.hash_one(topic.as_bytes()), at, |at| {
                hasher.hash_one(routes[*at as usize].topic.as_bytes())
            });
        self.first + u64::from(at)
    }
}
