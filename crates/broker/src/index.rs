//! The subscription index: the sessions that receive a topic.
//!
//! A trie over topic levels whose edges are in one hash table keyed by (parent, level): a node
//! costs about a hundred bytes however many children its parent has. Lookups follow at most three
//! edges per level: the level itself, `+`, and `#`. Shards query it only when their own cache does
//! not contain a topic; generation counters, one for filters that start with a wildcard and a table
//! of them hashed by first level for the others, determine whether a cache entry is still valid.

pub(crate) mod group;
pub(crate) mod matched;
pub(crate) mod members;
pub(crate) mod subscriber;
pub(crate) mod target;

pub(crate) use members::Place;

use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use members::Members;
use punctual_codec::{QoS, topic};
use smallvec::{SmallVec, smallvec};

use crate::base::handle::SessionHandle;
use crate::index::group::Group;
use crate::index::matched::{Groups, Matched, TargetList};
use crate::index::subscriber::Subscriber;
use crate::index::target::Target;

/// Generation counters for filters by first level.
const GENERATIONS: usize = 256;
const NONE: u32 = u32::MAX;

/// Maximum number of clients of a topic before they are a crowd: a message to that many is the most
/// that is delivered in one piece.
pub(crate) const CROWD: usize = 512;

/// The subscribers to exactly one filter.
#[derive(Debug, Default)]
struct Subscribers {
    plain: Members,
    /// Boxed, because few filters are shared.
    #[allow(
        clippy::box_collection,
        reason = "a word instead of three in every node"
    )]
    groups: Option<Box<Vec<Arc<Group>>>>,
}

impl Subscribers {
    fn is_empty(&self) -> bool {
        self.plain.is_empty() && self.groups.is_none()
    }

    /// The group of that name, and whether it is new. `filter` has the share prefix.
    fn group_or_insert(&mut self, name: &str, filter: &str) -> (&Group, bool) {
        let groups = self.groups.get_or_insert_default();
        let known = groups.iter().position(|group| group.name() == name);
        let at = known.unwrap_or_else(|| {
            groups.push(Arc::new(Group::new(name, filter)));
            groups.len() - 1
        });
        (&groups[at], known.is_none())
    }
}

#[derive(Debug)]
struct Node {
    parent: u32,
    level: Box<str>,
    /// Child for `+`, or `NONE`.
    plus: u32,
    /// Literal children and `plus`.
    children: u32,
    here: Subscribers,
    /// The subscribers to the filter that ends in `#` below this node.
    below: Option<Box<Subscribers>>,
}

impl Node {
    fn new(parent: u32, level: &str) -> Self {
        Self {
            parent,
            level: level.into(),
            plus: NONE,
            children: 0,
            here: Subscribers::default(),
            below: None,
        }
    }

    fn is_unused(&self) -> bool {
        self.children == 0 && self.here.is_empty() && self.below.is_none()
    }
}

/// The generation for which a cached answer is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Generation {
    wildcard: u32,
    literal: u32,
}

/// Counters beside the index, read without its lock.
#[derive(Debug)]
pub(crate) struct Generations {
    wildcard: AtomicU32,
    literal: [AtomicU32; GENERATIONS],
}

impl Default for Generations {
    fn default() -> Self {
        Self {
            wildcard: AtomicU32::new(0),
            literal: [const { AtomicU32::new(0) }; GENERATIONS],
        }
    }
}

/// The literal counter that filters and topics with this first level use.
pub(crate) fn generation_slot(topic: &str) -> u8 {
    let first = topic.split('/').next().unwrap_or_default();
    foldhash::fast::FixedState::default().hash_one(first) as u8
}

impl Generations {
    #[inline]
    pub(crate) fn current(&self, slot: u8) -> Generation {
        Generation {
            wildcard: self.wildcard.load(Ordering::Acquire),
            literal: self.literal[usize::from(slot)].load(Ordering::Acquire),
        }
    }

    fn bump(&self, filter: &str) {
        if filter.starts_with(['+', '#']) {
            self.bump_all();
        } else {
            self.literal[usize::from(generation_slot(filter))].fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Invalidates every cached answer.
    pub(crate) fn bump_all(&self) {
        self.wildcard.fetch_add(1, Ordering::AcqRel);
    }
}

/// The trie.
#[derive(Debug)]
pub(crate) struct Index {
    nodes: Vec<Node>,
    free: Vec<u32>,
    edges: HashTable<u32>,
    hasher: RandomState,
}

impl Default for Index {
    fn default() -> Self {
        Self {
            nodes: vec![Node::new(NONE, "")],
            free: Vec::new(),
            edges: HashTable::new(),
            hasher: RandomState::default(),
        }
    }
}

impl Index {
    /// Number of levels of filters in use.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len() - 1 - self.free.len()
    }

    /// Adds or replaces the subscription of `subscriber.session` to `filter`
    /// (with share prefix, valid). Returns whether it is new.
    pub(crate) fn subscribe(
        &mut self,
        filter: &str,
        subscriber: Subscriber,
        generations: &Generations,
    ) -> bool {
        let (share, plain) = topic::split_share(filter);
        let subscribers = self.subscribers_or_insert(plain);
        if let Some(name) = share {
            let (group, is_new) = subscribers.group_or_insert(name, filter);
            let new = group.add(Target {
                share: group.sign,
                ..Target::new(&subscriber)
            });
            if is_new {
                generations.bump(plain);
            }
            return new;
        }
        let new = subscribers.plain.insert(subscriber);
        generations.bump(plain);
        new
    }

    /// The subscribers to a plain filter.
    fn subscribers_or_insert(&mut self, plain: &str) -> &mut Subscribers {
        let (path, below) = match plain.strip_suffix('#') {
            Some(path) => (path.strip_suffix('/'), true),
            None => (Some(plain), false),
        };
        let mut node = 0;
        for level in path.into_iter().flat_map(|path| path.split('/')) {
            node = self.child_or_insert(node, level);
        }
        let node = &mut self.nodes[node as usize];
        match below {
            true => node.below.get_or_insert_default(),
            false => &mut node.here,
        }
    }

    /// Notes the other brokers of the mesh at which a shared subscription has members, by their
    /// signs.
    pub(crate) fn share_elsewhere(
        &mut self,
        filter: &str,
        brokers: &[u32],
        generations: &Generations,
    ) {
        let (Some(name), plain) = topic::split_share(filter) else {
            return;
        };
        let (group, is_new) = self
            .subscribers_or_insert(plain)
            .group_or_insert(name, filter);
        group.set_elsewhere(brokers);
        if is_new {
            generations.bump(plain);
        }
        // An empty group is removed.
        self.change(filter, generations, |_| false, |_| false);
    }

    /// Removes the subscription of `session` to `filter`. Returns whether it existed.
    pub(crate) fn unsubscribe(
        &mut self,
        filter: &str,
        session: &Arc<SessionHandle>,
        generations: &Generations,
    ) -> bool {
        let plain = |members: &mut Members| members.remove(session);
        self.change(filter, generations, plain, |group| group.remove(session))
    }

    /// Changes the subscribers to a filter, by `change` or as a group by `share`, and forgets the
    /// filter if it has none any more. Returns the result of the called function.
    fn change(
        &mut self,
        filter: &str,
        generations: &Generations,
        change: impl FnOnce(&mut Members) -> bool,
        share: impl FnOnce(&Group) -> bool,
    ) -> bool {
        let (name, plain) = topic::split_share(filter);
        let (path, below) = match plain.strip_suffix('#') {
            Some(path) => (path.strip_suffix('/'), true),
            None => (Some(plain), false),
        };
        let mut at = 0;
        for level in path.into_iter().flat_map(|path| path.split('/')) {
            match self.child(at, level) {
                Some(child) => at = child,
                None => return false,
            }
        }
        let node = &mut self.nodes[at as usize];
        let subscribers = match (below, &mut node.below) {
            (false, _) => &mut node.here,
            (true, Some(below)) => below,
            (true, None) => return false,
        };
        // Routes refer to the group, so a change of its members does not invalidate them.
        let (changed, gone) = match name {
            None => {
                let changed = change(&mut subscribers.plain);
                (changed, changed)
            }
            Some(name) => {
                let groups = subscribers.groups.as_mut();
                let known = groups.and_then(|groups| {
                    let at = groups.iter().position(|group| group.name() == name)?;
                    let changed = share(&groups[at]);
                    let gone = groups[at].members().is_empty();
                    if gone {
                        groups.swap_remove(at);
                    }
                    Some((changed, gone))
                });
                known.unwrap_or_default()
            }
        };
        if gone {
            generations.bump(plain);
        }
        if subscribers.groups.as_ref().is_some_and(|g| g.is_empty()) {
            subscribers.groups = None;
        }
        if below && subscribers.is_empty() {
            node.below = None;
        }
        self.prune(at);
        changed
    }

    fn prune(&mut self, mut at: u32) {
        while at != 0 && self.nodes[at as usize].is_unused() {
            let parent = self.nodes[at as usize].parent;
            let level = std::mem::take(&mut self.nodes[at as usize].level);
            if &*level == "+" {
                self.nodes[parent as usize].plus = NONE;
            } else {
                let hash = self.hash(parent, &level);
                if let Ok(entry) = self.edges.find_entry(hash, |n| *n == at) {
                    entry.remove();
                }
            }
            self.nodes[parent as usize].children -= 1;
            self.free.push(at);
            at = parent;
        }
    }

    fn hash(&self, parent: u32, level: &str) -> u64 {
        self.hasher.hash_one((parent, level))
    }

    fn child(&self, parent: u32, level: &str) -> Option<u32> {
        if level == "+" {
            let plus = self.nodes[parent as usize].plus;
            return (plus != NONE).then_some(plus);
        }
        self.literal_child(parent, level)
    }

    fn literal_child(&self, parent: u32, level: &str) -> Option<u32> {
        let hash = self.hash(parent, level);
        self.edges
            .find(hash, |n| {
                let node = &self.nodes[*n as usize];
                node.parent == parent && *node.level == *level
            })
            .copied()
    }

    fn child_or_insert(&mut self, parent: u32, level: &str) -> u32 {
        if let Some(child) = self.child(parent, level) {
            return child;
        }
        let node = Node::new(parent, level);
        let at = match self.free.pop() {
            Some(at) => {
                self.nodes[at as usize] = node;
                at
            }
            None => {
                self.nodes.push(node);
                (self.nodes.len() - 1) as u32
            }
        };
        self.nodes[parent as usize].children += 1;
        if level == "+" {
            self.nodes[parent as usize].plus = at;
        } else {
            let hash = self.hash(parent, level);
            let (nodes, hasher) = (&self.nodes, &self.hasher);
            self.edges.insert_unique(hash, at, |n| {
                let node = &nodes[*n as usize];
                hasher.hash_one((node.parent, &*node.level))
            });
        }
        at
    }

    /// All receivers of a message on `topic` (a valid name), by shard; overlapping subscriptions of
    /// one session are merged into one with the highest QoS and all identifiers [MQTT-3.3.4-2]
    /// [MQTT-3.3.4-4]. Clients are left out if they are a crowd.
    pub(crate) fn matches(&self, topic: &str) -> Matched {
        let mut found = Collector::default();
        self.visit(topic, |subscribers| found.add(subscribers, topic));
        found.finish()
    }

    /// The clients that receive a message on `topic` by a plain subscription and whose places come
    /// after `after`: about the first `most` of them. Also returns the number of visited
    /// subscriptions, and the place after which the next ones come; `None` if there are none.
    pub(crate) fn clients_after(
        &self,
        topic: &str,
        after: Place,
        most: usize,
    ) -> (Matched, usize, Option<Place>) {
        let mut lists: SmallVec<[&Members; 8]> = SmallVec::new();
        self.visit(topic, |subscribers| lists.push(&subscribers.plain));
        let of_each = (most / lists.len().max(1)).max(1);
        let mut found: Vec<(Place, &Subscriber)> = Vec::new();
        // All lists were visited up to this place.
        let mut end = None;
        for list in lists {
            let mut taken = 0;
            for subscriber in list.after(after) {
                let place = Place::of(&subscriber.session);
                if end.is_some_and(|end| place > end) {
                    break;
                }
                found.push((place, subscriber));
                taken += 1;
                if taken == of_each {
                    end = Some(place);
                    break;
                }
            }
        }
        let looked_at = found.len();
        let is_next = |(place, subscriber): &&(Place, &Subscriber)| {
            end.is_none_or(|end| *place <= end) && subscriber.session.may_receive(topic.as_bytes())
        };
        let targets = found.iter().filter(is_next);
        let targets = targets.map(|(_, subscriber)| Target::new(subscriber));
        let found = Collector {
            targets: targets.collect(),
            ..Collector::default()
        };
        (found.finish(), looked_at, end)
    }

    /// Calls `visit` with the subscribers to each filter that matches `topic` (a valid name).
    fn visit<'a>(&'a self, topic: &str, mut visit: impl FnMut(&'a Subscribers)) {
        // Wildcards at the start do not match such a topic.
        let dollar = topic.starts_with('$');
        // The stack holds at most one entry per `+` on the path, and one more: no recursion, since
        // publishers choose the number of levels.
        let mut ways: SmallVec<[(u32, Option<&str>); 8]> = smallvec![(0, Some(topic))];
        while let Some((at, rest)) = ways.pop() {
            let node = &self.nodes[at as usize];
            let skips = dollar && at == 0;
            if let Some(below) = node.below.as_ref().filter(|_| !skips) {
                visit(below);
            }
            let Some(rest) = rest else {
                visit(&node.here);
                continue;
            };
            let (level, rest) = match rest.split_once('/') {
                Some((level, rest)) => (level, Some(rest)),
                None => (rest, None),
            };
            if node.plus != NONE && !skips {
                ways.push((node.plus, rest));
            }
            ways.extend(self.literal_child(at, level).map(|child| (child, rest)));
        }
    }
}

#[derive(Default)]
struct Collector {
    targets: TargetList,
    groups: Groups,
    /// Number of client subscriptions that were visited.
    clients: usize,
    /// Whether there are too many of them.
    crowd: bool,
}

impl Collector {
    fn add(&mut self, subscribers: &Subscribers, topic: &str) {
        let members = &subscribers.plain;
        if !self.crowd {
            self.clients += members.clients();
            self.crowd = self.clients > CROWD;
            if self.crowd {
                self.targets.retain(|target| target.session.link);
            }
        }
        let clients = (!self.crowd).then(|| members.after(Place::FIRST_CLIENT));
        let all = members.links().chain(clients.into_iter().flatten());
        let allowed = |s: &&Subscriber| s.session.may_receive(topic.as_bytes());
        for subscriber in all.filter(allowed) {
            self.targets.push(Target::new(subscriber));
        }
        let groups = subscribers.groups.iter().flat_map(|groups| groups.iter());
        self.groups.extend(groups.cloned());
    }

    fn finish(mut self) -> Matched {
        self.targets.sort_by_key(Target::key);
        self.targets.dedup_by(|later, first| first.merge(later));
        Matched::new(self.targets, self.groups).with_crowd(self.crowd)
    }
}

/// The QoS a message is delivered with: the lower of published and granted.
#[inline]
pub(crate) fn delivered_qos(published: QoS, granted: QoS) -> QoS {
    published.min(granted)
}

#[cfg(test)]
mod tests;
