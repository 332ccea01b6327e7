//! What brokers do, each thing once.
//!
//! The same broker in the same state hears the same advert in very many orders of
//! events. States, adverts and queues are therefore kept once and have numbers, and
//! so is what a state becomes of an event: a world is a few numbers, and a step in
//! it is mostly looking up.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::rc::Rc;

use super::super::{Advert, BrokerId, LinkId, Rank, Tree, TreeOutput, TreeSettings};
use super::flaw::Flaw;
use super::print::{LARGEST, Print, of_advert, of_tree};
use punctual_model::Nanos;

/// Brokers at most.
pub(super) const MAX: usize = 5;

/// States of brokers that are kept beyond one graph, of some kilobytes each.
const LARGE: usize = 200_000;

/// Number of a state, an advert or a queue; [`NONE`] for a broker that is down, the
/// end of a connection, and a queue with nothing in it.
pub(super) type Id = u32;
pub(super) const NONE: Id = 0;

pub(super) fn rank(n: usize) -> Rank {
    Rank {
        // Not in the order of names, and two of them alike.
        capacity: [2, 3, 1, 3, 2][n],
        id: name(n),
    }
}

pub(super) fn name(n: usize) -> BrokerId {
    BrokerId::new(&n.to_string()).unwrap()
}

pub(super) fn number(id: &BrokerId) -> usize {
    id.as_str().parse().unwrap()
}

pub(super) fn cost(a: usize, b: usize) -> u64 {
    // Such that the cheapest way is not always the one with the fewest links.
    let (a, b) = (a.min(b), a.max(b));
    [7, 1, 4, 2, 9, 3, 5, 1, 2, 6][(a * 5 + b * 3) % 10]
}

/// Brokers of a set, which is a bit for each.
pub(super) fn each(mut set: u8) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let next = set.trailing_zeros() as usize;
        set &= set.wrapping_sub(1);
        (next < MAX).then_some(next)
    })
}

/// What happens to one broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Act {
    Start,
    LinkUp(u8),
    LinkDown(u8),
    Receive(u8, Id),
    Hello,
}

/// What becomes of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Effect {
    pub(super) then: Id,
    /// The adverts that it sends, by neighbour.
    pub(super) sends: [Id; MAX],
}

/// State of a broker, and what is often asked of it.
#[derive(Debug)]
pub(super) struct Local {
    pub(super) tree: Rc<Tree>,
    /// The parent that has accepted it.
    pub(super) parent: Option<u8>,
    /// The children that it holds.
    pub(super) children: u8,
    pub(super) epoch: u8,
    pub(super) print: Print,
}

impl Local {
    /// Whether each circle of links that are held through `before` goes through `self`, too.
    pub(super) fn lets_through(&self, before: &Self) -> bool {
        let circles = before.parent.is_some() && before.children != 0;
        let kept = self.parent == before.parent && before.children & !self.children == 0;
        !circles || kept
    }
}

#[derive(Debug)]
pub(super) struct Machine {
    pub(super) flaw: Flaw,
    locals: Vec<Local>,
    trees: QuickMap<Rc<Tree>, Id>,
    adverts: Interner<Advert>,
    queues: Interner<Vec<Id>>,
    /// Queues without their first, and with one more.
    shorter: Vec<Id>,
    longer: QuickMap<(Id, Id), Id>,
    effects: QuickMap<(Id, Act), Effect>,
    skeletons: QuickMap<Tree, u32>,
    said: QuickMap<Advert, u32>,
    advert_prints: Vec<Print>,
    queued: QuickMap<Vec<u32>, u32>,
    queue_prints: Vec<Print>,
    /// Whether a broker has counted further than any run that ends.
    pub(super) is_endless: bool,
}

impl Machine {
    pub(super) fn new(flaw: Flaw) -> Self {
        Self {
            flaw,
            locals: Vec::new(),
            trees: QuickMap::default(),
            adverts: Interner::default(),
            queues: Interner::default(),
            shorter: Vec::new(),
            longer: QuickMap::default(),
            effects: QuickMap::default(),
            skeletons: QuickMap::default(),
            said: QuickMap::default(),
            advert_prints: Vec::new(),
            queued: QuickMap::default(),
            queue_prints: Vec::new(),
            is_endless: false,
        }
    }

    /// The state of a broker that is up.
    pub(super) fn local(&self, id: Id) -> Option<&Local> {
        self.locals.get((id as usize).checked_sub(1)?)
    }

    fn advert(&self, id: Id) -> &Advert {
        &self.adverts.all[id as usize - 1]
    }

    /// What is in a queue, first to last.
    pub(super) fn queue(&self, id: Id) -> &[Id] {
        match id {
            NONE => &[],
            _ => &self.queues.all[id as usize - 1],
        }
    }

    pub(super) fn queue_print(&self, id: Id) -> &Print {
        &self.queue_prints[id as usize - 1]
    }

    /// To be called where no world is kept.
    pub(super) fn forget_if_large(&mut self) {
        if self.locals.len() > LARGE {
            *self = Self::new(self.flaw);
        }
    }

    /// The first of a queue, and the rest.
    pub(super) fn pop(&mut self, queue: Id) -> (Id, Id) {
        let at = queue as usize - 1;
        (self.queues.all[at][0], self.shorter[at])
    }

    pub(super) fn push(&mut self, queue: Id, item: Id) -> Id {
        if let Some(longer) = self.longer.get(&(queue, item)) {
            return *longer;
        }
        let mut items = self.queue(queue).to_vec();
        items.push(item);
        let longer = self.keep_queue(items);
        self.longer.insert((queue, item), longer);
        longer
    }

    fn keep_queue(&mut self, items: Vec<Id>) -> Id {
        if items.is_empty() {
            return NONE;
        }
        if let Some(id) = self.queues.ids.get(&items) {
            return *id;
        }
        let rest = self.keep_queue(items[1..].to_vec());
        self.shorter.push(rest);
        let prints = items.iter().map(|item| match *item {
            NONE => Print::default(),
            advert => self.advert_prints[advert as usize - 1].clone(),
        });
        let (skeletons, counters): (Vec<u32>, Vec<_>) =
            prints.map(|print| (print.skeleton, print.counters)).unzip();
        let next = self.queued.len() as u32;
        let skeleton = *self.queued.entry(skeletons).or_insert(next);
        let counters = counters.concat();
        self.queue_prints.push(Print { skeleton, counters });
        self.queues.keep(items)
    }

    /// What becomes of a state when something happens; `broker` is who it is.
    pub(super) fn effect(&mut self, broker: usize, state: Id, act: Act) -> Effect {
        if let Some(effect) = self.effects.get(&(state, act)) {
            return *effect;
        }
        let mut tree = match self.local(state) {
            Some(local) => (*local.tree).clone(),
            None => fresh(broker),
        };
        let advert = match act {
            Act::Receive(_, advert) => Some(self.advert(advert).clone()),
            _ => None,
        };
        let flaw = self.flaw;
        let outputs = flaw.around(&mut tree, advert, |tree, advert| happen(tree, act, advert));
        let mut sends = [NONE; MAX];
        for output in outputs {
            if let TreeOutput::Send(LinkId(to), mut advert) = output {
                advert.number = 1;
                sends[usize::from(to)] = self.keep_advert(advert);
            }
        }
        // Queues neither lose order nor repeat, so the numbers of adverts say nothing.
        for neighbour in tree.links.values_mut() {
            (neighbour.received, neighbour.sent) = (0, 0);
            neighbour.last.iter_mut().for_each(|last| last.number = 1);
        }
        let then = self.keep_tree(tree);
        let effect = Effect { then, sends };
        // Of a broker that is down the state does not say who it is.
        if state != NONE {
            self.effects.insert((state, act), effect);
        }
        effect
    }

    fn keep_advert(&mut self, advert: Advert) -> Id {
        let id = self.adverts.keep(advert);
        if id as usize > self.advert_prints.len() {
            let (skeleton, counters) = of_advert(&self.adverts.all[id as usize - 1]);
            let next = self.said.len() as u32 + 1;
            let skeleton = *self.said.entry(skeleton).or_insert(next);
            self.advert_prints.push(Print { skeleton, counters });
        }
        id
    }

    fn keep_tree(&mut self, tree: Tree) -> Id {
        if let Some(id) = self.trees.get(&tree) {
            return *id;
        }
        let (skeleton, counters) = of_tree(&tree);
        let next = self.skeletons.len() as u32;
        let skeleton = *self.skeletons.entry(skeleton).or_insert(next);
        let parent = tree.parent.as_ref().filter(|parent| parent.accepted);
        let parent = parent.map(|parent| parent.link.0);
        let held = tree.links.iter().filter(|(_, n)| n.held);
        let children = held.fold(0, |set, (link, _)| set | 1 << link.0);
        self.is_endless |= tree.epoch.max(tree.attempts) >= LARGEST;
        let tree = Rc::new(tree);
        self.locals.push(Local {
            parent,
            children,
            epoch: tree.epoch.min(LARGEST) as u8,
            print: Print { skeleton, counters },
            tree: Rc::clone(&tree),
        });
        let id = self.locals.len() as Id;
        self.trees.insert(tree, id);
        id
    }
}

fn fresh(broker: usize) -> Tree {
    let settings = TreeSettings {
        hysteresis: 0,
        ..TreeSettings::default()
    };
    Tree::new(rank(broker), settings, Nanos(0))
}

/// Time stands still: what it would do is done by [`Act::Hello`] and [`Act::LinkDown`].
fn happen(tree: &mut Tree, act: Act, advert: Option<Advert>) {
    let now = Nanos(0);
    let own = number(&tree.own.id);
    match act {
        Act::Start => {}
        Act::LinkUp(to) => {
            let to = usize::from(to);
            tree.link_up(LinkId(to as u8), name(to), cost(own, to), now);
        }
        Act::LinkDown(from) => tree.link_down(LinkId(from), now),
        Act::Receive(from, _) => advert
            .into_iter()
            .for_each(|advert| tree.receive(LinkId(from), advert, None, now)),
        Act::Hello => {
            if tree.is_root() {
                tree.epoch += 1;
                tree.path.epoch = tree.epoch;
            }
            for neighbour in tree.links.values_mut() {
                neighbour.last = None;
            }
            tree.settle(now);
        }
    }
}

/// Things that are kept once, numbered from 1.
#[derive(Debug)]
struct Interner<T> {
    all: Vec<Rc<T>>,
    ids: QuickMap<Rc<T>, Id>,
}

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Self {
            all: Vec::new(),
            ids: QuickMap::default(),
        }
    }
}

impl<T: Eq + Hash> Interner<T> {
    fn keep(&mut self, thing: T) -> Id {
        if let Some(id) = self.ids.get(&thing) {
            return *id;
        }
        let thing = Rc::new(thing);
        self.all.push(Rc::clone(&thing));
        let id = self.all.len() as Id;
        self.ids.insert(thing, id);
        id
    }
}

pub(super) type QuickMap<K, V> = HashMap<K, V, BuildHasherDefault<QuickHasher>>;

/// For keys that are a few small numbers.
#[derive(Debug, Default)]
pub(super) struct QuickHasher(u64);

impl Hasher for QuickHasher {
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    fn write_u8(&mut self, n: u8) {
        self.write_u64(n.into());
    }

    fn write_u32(&mut self, n: u32) {
        self.write_u64(n.into());
    }

    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }

    fn write_isize(&mut self, n: isize) {
        self.write_u64(n as u64);
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0.rotate_left(23) ^ n).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}
