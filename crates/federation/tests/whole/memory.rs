//! Memory of a broker in a large mesh: 200 brokers that know 100 000 different filters of each
//! other, each broker with its core, its node and its sessions.
//!
//! `cargo test -p punctual-federation --release --test whole -- --ignored --nocapture large_meshes`
//! prints the memory; it takes two minutes, and 15 GB for all brokers together.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use punctual_broker::Config;
use punctual_model::{Nanos, Rng};
use punctual_sim::Edge;

use crate::world::World;

const BROKERS: usize = 200;
const FILTERS: usize = 100_000;
/// Most bytes that one broker may allocate.
const MOST: i64 = 200 << 20;

thread_local! {
    /// Bytes that are allocated now, and their maximum so far.
    static ALIVE: Cell<[i64; 2]> = const { Cell::new([0; 2]) };
}

struct Counting;

impl Counting {
    fn count(bytes: i64) {
        let [alive, most] = ALIVE.get();
        let alive = alive + bytes;
        ALIVE.set([alive, most.max(alive)]);
    }
}

// SAFETY: all calls are forwarded to the system allocator; the counter is a thread-local without
// destructor, so that counting neither allocates nor fails.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::count(layout.size() as i64);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        Self::count(-(layout.size() as i64));
        // SAFETY: the pointer comes from this allocator, hence from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::count(size as i64 - layout.size() as i64);
        // SAFETY: the pointer comes from this allocator, hence from `System`.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn alive() -> i64 {
    ALIVE.get()[0]
}

/// A random tree, and half as many redundant edges.
fn edges(rng: &mut Rng) -> Vec<Edge> {
    let mut pairs: Vec<[usize; 2]> = (1..BROKERS)
        .map(|b| [rng.below(b as u64) as usize, b])
        .collect();
    while pairs.len() < BROKERS * 3 / 2 {
        let [a, b] = [(); 2].map(|()| rng.below(BROKERS as u64) as usize);
        let pair = [a.min(b), a.max(b)];
        if a != b && !pairs.contains(&pair) {
            pairs.push(pair);
        }
    }
    let edge = |ends| Edge::new(ends, Nanos(rng.within(100_000..=5_000_000)));
    pairs.into_iter().map(edge).collect()
}

#[test]
#[ignore = "takes two minutes and 15 GB"]
fn large_meshes_fit_into_memory() {
    let mut rng = Rng::new(1);
    let edges = edges(&mut rng);
    let mut world = World::new(rng, BROKERS, edges, false, &Config::default(), |_| {});
    world.run_for(30_000);
    let knows = |world: &World, n: usize| {
        let running = world.sites[n].running.as_ref().unwrap();
        let status = running.member.node().status();
        (status.attached, status.filters)
    };
    for n in 0..BROKERS {
        assert_eq!(knows(&world, n), (true, 0), "broker {n}");
    }
    let before = alive();
    for n in 0..BROKERS {
        let filters = (0..FILTERS / BROKERS)
            .map(|k| format!("plant/{n}/line/{}/sensor/{k}/value", k % 10))
            .collect();
        world.subscribe_much(n, filters);
        world.run_for(20);
    }
    world.run_for(30_000);
    for n in 0..BROKERS {
        assert_eq!(knows(&world, n), (true, FILTERS), "broker {n}");
    }
    let all = alive() - before;
    let taken = world.sites.iter_mut().map(|site| {
        let before = alive();
        drop(site.running.take());
        before - alive()
    });
    let mut taken: Vec<i64> = taken.collect();
    taken.sort_unstable();
    let [middle, most] = [taken[BROKERS / 2], taken[BROKERS - 1]];
    println!(
        "{BROKERS} brokers, {FILTERS} filters: median {:.1} MB a broker, most {:.1} MB, {} bytes \
         a filter; all together {:.0} MB more than without filters, {:.0} MB at most",
        middle as f64 / 1e6,
        most as f64 / 1e6,
        most / FILTERS as i64,
        all as f64 / 1e6,
        ALIVE.get()[1] as f64 / 1e6
    );
    assert!(most <= MOST, "{most} bytes");
}
