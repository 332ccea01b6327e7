//! Fingerprints of worlds: counters by what is asked of them.
//!
//! Of epochs and attempts only the order matters, for they are compared, and
//! new ones are one above the highest: states that differ in how far counters have
//! got count as one. An exception is an epoch of a broker that has started again and
//! does not know what it had reached before: those above its own count exactly, for
//! its own may reach one of them.

use super::super::{Advert, EpochRequest, Tree, TreeChangeCause};
use super::machine::{MAX, Machine, each, number};
use super::world::World;

/// A counter: the epoch of a root; from [`ATTEMPT`] the attempts of a broker, 0 for
/// none; in an advert those of who sends and of who receives it.
type Counter = usize;
const ATTEMPT: Counter = MAX;
const ASKS: Counter = 2 * MAX;
const ANSWERED: Counter = 2 * MAX + 1;
/// A run that counts so far counts for ever.
pub(super) const LARGEST: u64 = 63;
const COUNTERS: usize = 2 * MAX + 2;

/// A state, an advert or a queue without its counters, and these.
#[derive(Debug, Clone, Default)]
pub(super) struct Print {
    pub(super) skeleton: u32,
    pub(super) counters: Vec<(u8, u8)>,
}

/// Takes the counters out.
#[derive(Default)]
struct CounterList(Vec<(u8, u8)>);

impl CounterList {
    fn take(&mut self, what: Counter, value: &mut u64) {
        let counted = std::mem::take(value).min(LARGEST);
        self.0.push((what as u8, counted as u8));
    }

    fn epoch_request(&mut self, epoch_request: &mut Option<EpochRequest>) {
        if let Some(epoch_request) = epoch_request {
            self.take(number(&epoch_request.root), &mut epoch_request.above);
        }
    }
}

pub(super) fn of_advert(advert: &Advert) -> (Advert, Vec<(u8, u8)>) {
    let (mut advert, mut taken) = (advert.clone(), CounterList::default());
    taken.take(number(&advert.root.id), &mut advert.epoch);
    taken.take(ASKS, &mut advert.asks);
    taken.take(ANSWERED, &mut advert.answered);
    taken.epoch_request(&mut advert.epoch_request);
    (advert, taken.0)
}

pub(super) fn of_tree(tree: &Tree) -> (Tree, Vec<(u8, u8)>) {
    let (mut tree, mut taken) = (tree.clone(), CounterList::default());
    let own = number(&tree.own.id);
    taken.take(own, &mut tree.epoch);
    taken.take(ATTEMPT + own, &mut tree.attempts);
    taken.take(number(&tree.path.root.id), &mut tree.path.epoch);
    if let Some(parent) = &mut tree.parent {
        taken.take(ATTEMPT + own, &mut parent.attempt);
    }
    for (id, known) in &mut tree.known {
        taken.take(number(id), &mut known.epoch);
    }
    taken.epoch_request(&mut tree.epoch_request);
    for (link, neighbour) in &mut tree.links {
        let to = ATTEMPT + usize::from(link.0);
        taken.take(to, &mut neighbour.asks);
        taken.take(to, &mut neighbour.answered);
        if let Some(offer) = &mut neighbour.offer {
            taken.take(number(&offer.root.id), &mut offer.epoch);
        }
        taken.epoch_request(&mut neighbour.epoch_request);
        // What was said last is what the rest of the state says, after every event.
        neighbour.last = None;
    }
    // Told, and never asked.
    tree.why = TreeChangeCause::PathLost;
    (tree, taken.0)
}

/// The counters of a world, in an order that the rest of it tells.
struct Counters {
    all: [(u8, u8); 512],
    len: usize,
    /// Values that occur, as bits.
    seen: [u64; COUNTERS],
}

impl Counters {
    fn add(&mut self, counters: &[(u8, u8)], of: &[u8; COUNTERS]) {
        let room = &mut self.all[self.len..][..counters.len()];
        for (place, (what, value)) in room.iter_mut().zip(counters) {
            let what = of[usize::from(*what)];
            *place = (what, *value);
            self.seen[usize::from(what)] |= 1 << value;
        }
        self.len += counters.len();
    }
}

impl Machine {
    /// A world by what matters.
    pub(super) fn print(&self, world: &World) -> u128 {
        let mut counters = Counters {
            all: [(0, 0); 512],
            len: 0,
            // Attempts of 0 are told from the first.
            seen: [1; COUNTERS],
        };
        let mut of: [u8; COUNTERS] = std::array::from_fn(|what| what as u8);
        // A broker starts with epoch 1; one that is not to start again says no more.
        let mut exact = [63; COUNTERS];
        if world.left.starts > 0 {
            exact[..MAX].fill(1);
        }
        let mut hash = Mix(0x6A09_E667_F3BC_C908_BB67_AE85_84CA_A73B);
        hash.add(world.key());
        for (broker, state) in world.brokers.iter().enumerate() {
            let Some(local) = self.local(*state) else {
                hash.add(u64::MAX);
                continue;
            };
            exact[broker] = local.epoch;
            hash.add(local.print.skeleton.into());
            counters.add(&local.print.counters, &of);
        }
        for to in 0..MAX {
            for from in each(world.under_way[to]) {
                let queue = self.queue_print(world.queues[to][from]);
                hash.add(((to * MAX + from) as u64) << 32 | u64::from(queue.skeleton));
                (of[ASKS], of[ANSWERED]) = ((ATTEMPT + from) as u8, (ATTEMPT + to) as u8);
                counters.add(&queue.counters, &of);
            }
        }
        // Ten counters to a word: each is below 64.
        for ten in counters.all[..counters.len].chunks(10) {
            let word = ten.iter().fold(1, |word, (what, value)| {
                let what = usize::from(*what);
                let from = exact[what].min(*value);
                let order = (counters.seen[what] & ((1 << from) - 1)).count_ones();
                (word << 6) | (u64::from(order) + u64::from(value - from))
            });
            hash.add(word);
        }
        hash.0
    }
}

/// A hash of 128 bits: what is added is multiplied in.
pub(super) struct Mix(pub(super) u128);

impl Mix {
    pub(super) fn add(&mut self, n: u64) {
        let mixed =
            (self.0 ^ u128::from(n)).wrapping_mul(0x2360_ED05_1FC6_5DA4_4385_DF64_9FCC_F645);
        self.0 = mixed ^ mixed >> 67;
    }
}
