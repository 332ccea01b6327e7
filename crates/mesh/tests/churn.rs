//! Large meshes under churn, from a seed: the links always form a forest, and soon a single tree
//! again, whatever faults links and brokers have.
//!
//! `PUNCTUAL_SEEDS=1000 cargo test -p punctual-mesh --release --test churn` runs more seeds;
//! `PUNCTUAL_SEED=7` runs one.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

#[allow(unreachable_pub, reason = "shared by test programs")]
mod world;

use punctual_mesh::Settings;
use punctual_model::{Nanos, Rng};
use punctual_sim::{Edge, seeds};
use world::World;

fn settings(settings: &mut Settings) {
    settings.tree.hello = Nanos::from_millis(200);
    settings.heal = Nanos::from_secs(3600);
}

fn build(rng: &mut Rng, n: usize) -> World {
    let capacities: Vec<u64> = (0..n).map(|_| rng.below(4)).collect();
    let edges = Edge::graph(rng, n, n * 2);
    World::new(&capacities, edges, settings)
}

/// Injects a fault of a link or a broker.
fn fault(world: &mut World, rng: &mut Rng, crashes: bool) {
    match rng.below(if crashes { 6 } else { 4 }) {
        0 | 1 => {
            let edge = rng.index(world.network.edges.len());
            let silently = rng.chance(30);
            world.cut(edge, silently);
        }
        2 | 3 => {
            for edge in 0..world.network.edges.len() {
                if rng.chance(50) {
                    world.mend(edge);
                }
            }
        }
        4 => {
            let n = rng.index(world.brokers.len());
            world.crash(n);
        }
        _ => {
            for n in 0..world.brokers.len() {
                if rng.chance(50) {
                    world.start(n);
                }
            }
        }
    }
}

fn heal(world: &mut World) {
    (0..world.network.edges.len()).for_each(|edge| world.mend(edge));
    (0..world.brokers.len()).for_each(|n| world.start(n));
}

#[test]
fn large_meshes_become_one_tree() {
    let mut times = Vec::new();
    for seed in seeds(12) {
        let mut rng = Rng::new(seed);
        let n = 2 + rng.index(49);
        let mut world = build(&mut rng, n);
        times.push(world.settle(Nanos::from_secs(20)));
        for _ in 0..10 {
            fault(&mut world, &mut rng, true);
            // Some faults occur while the mesh still handles the last one.
            let pause = rng.below(300);
            for _ in 0..pause / 5 {
                world.run_for(5);
                world.settled().unwrap();
            }
        }
        heal(&mut world);
        times.push(world.settle(Nanos::from_secs(20)));
        // When path costs are measured, the tree no longer changes.
        world.run_for(10_000);
        let before = world.held();
        world.run_for(10_000);
        assert!(world.settled().unwrap());
        assert_eq!(before, world.held(), "seed {seed}");
    }
    times.sort_unstable();
    let at = |per_cent: usize| times[(times.len() - 1) * per_cent / 100].0 / 1_000_000;
    println!(
        "convergence: p50 {} ms, p90 {} ms, max {} ms",
        at(50),
        at(90),
        at(100)
    );
}

/// Five brokers with redundant connections.
fn five(rng: &mut Rng, hello: Nanos) -> World {
    let capacities: Vec<u64> = (0..5).map(|_| rng.below(4)).collect();
    let edges = Edge::graph(rng, 5, 10);
    let mut world = World::new(&capacities, edges, |settings| settings.tree.hello = hello);
    world.run_for(20);
    world.settle(Nanos::from_secs(60));
    // By this time path costs are measured.
    world.run(world.now() + Nanos(hello.0 * 20));
    world
}

/// Whether the connection over an edge carries messages.
fn carries(world: &World, edge: usize) -> bool {
    let [a, b] = world.network.edges[edge].ends;
    let mut held = world.held().into_iter();
    held.any(|ends| ends == (a, b) || ends == (b, a))
}

/// Whether the graph of brokers is disconnected without an edge.
fn is_needed(world: &mut World, edge: usize) -> bool {
    world.network.edges[edge].is_cut = true;
    let parts = world.components().len();
    world.mend(edge);
    parts > 1
}

#[test]
fn a_silent_link_is_replaced_within_three_hellos() {
    let mut shares = Vec::new();
    for seed in seeds(40) {
        let mut rng = Rng::new(seed ^ 0x51E);
        let hello = Nanos::from_millis([50, 200, 2000][seed as usize % 3]);
        let mut world = five(&mut rng, hello);
        for edge in 0..world.network.edges.len() {
            if !carries(&world, edge) || is_needed(&mut world, edge) {
                continue;
            }
            // At a random time between two hellos.
            let pause = rng.below(hello.0);
            world.run(world.now() + Nanos(pause));
            world.cut(edge, true);
            let start = world.now();
            while carries(&world, edge) || !world.settled().unwrap() {
                world.run_for(1);
                let took = world.now() - start;
                assert!(took.0 <= hello.0 * 3, "{took:?}, with {hello:?}");
            }
            shares.push((world.now() - start).0 * 100 / hello.0);
            world.mend(edge);
            world.run(world.now() + Nanos(hello.0 * 40));
            world.settle(Nanos::from_secs(60));
        }
    }
    shares.sort_unstable();
    println!("hundredths of a hello: {shares:?}");
    assert!(shares.len() > 10);
}

#[test]
fn the_loss_of_the_root_takes_100_milliseconds() {
    let mut times = Vec::new();
    for seed in seeds(60) {
        let mut rng = Rng::new(seed ^ 0x5007);
        let mut world = five(&mut rng, Nanos::from_secs(2));
        let root = world.brokers.iter().position(|broker| {
            let status = broker.node.as_ref().unwrap().status();
            status.root.id == status.id
        });
        world.crash(root.unwrap());
        times.push(world.settle(Nanos::from_millis(100)).0 / 1_000_000);
    }
    times.sort_unstable();
    println!("milliseconds: {times:?}");
}

/// An overloaded machine runs no broker for longer than a neighbour may be silent, or runs all
/// brokers late: no broker loses a neighbour.
#[test]
fn a_busy_machine_loses_nobody() {
    for seed in seeds(12) {
        let mut rng = Rng::new(seed ^ 0xB5);
        let hello = Nanos::from_millis([50, 200, 2000][seed as usize % 3]);
        let mut world = five(&mut rng, hello);
        let before = world.connections();
        for _ in 0..20 {
            world.stand_still(Nanos(hello.0 * (1 + rng.below(6))));
            for _ in 0..20 {
                world.run(world.now() + Nanos(hello.0 / 10));
                assert!(world.settled().unwrap(), "seed {seed}");
            }
        }
        assert_eq!(world.connections(), before, "seed {seed}");
        // The tree is as before, with transmission times that are random noise.
        world.noise = Some((Rng::new(seed), Nanos(hello.0 / 2)));
        world.run(world.now() + Nanos(hello.0 * 40));
        let (mut moved, mut held) = (0, world.held());
        for _ in 0..100 {
            world.run(world.now() + hello);
            moved += usize::from(held != world.held());
            held = world.held();
        }
        assert_eq!(world.connections(), before, "seed {seed}");
        assert!(moved <= 10, "seed {seed}: {moved}");
    }
}

/// A neighbour receives nothing from a broker, which receives all of the neighbour's messages: the
/// broker is not its child, however low the cost of the link is, and is reached by another path.
#[test]
fn a_link_that_carries_one_way_only_is_no_way_to_the_root() {
    let edge = |ends, millis| Edge::new(ends, Nanos::from_millis(millis));
    let edges = vec![edge([0, 1], 5), edge([1, 2], 5), edge([0, 2], 1)];
    let mut world = World::new(&[9, 0, 0], edges, |_| {});
    world.settle(Nanos::from_secs(20));
    world.run_for(30_000);
    assert!(world.held().contains(&(2, 0)));
    world.mute.insert([2, 0]);
    world.run_for(10_000);
    let mut attached = 0;
    for _ in 0..1000 {
        world.run_for(50);
        attached += usize::from(world.held() == [(1, 0), (2, 1)]);
    }
    assert_eq!(attached, 1000);
}

#[test]
fn a_quiet_tree_says_little() {
    let mut world = build(&mut Rng::new(5), 5);
    world.run_for(20);
    world.settle(Nanos::from_secs(20));
    world.run_for(5000);
    let (bytes, links) = (world.control_bytes, world.network.edges.len() as u64);
    world.run_for(60_000);
    let rate = (world.control_bytes - bytes) / links / 60;
    // At five hellos per second in each direction; the default is one in two seconds.
    println!("{rate} B/s on each link at a hello every 200 ms");
    assert!(rate < 600, "{rate}");
}

/// Changes of the tree and measurements of the link are sent in the same hellos.
#[test]
fn ways_that_change_take_no_more_hellos() {
    let links = 4;
    let edges = (0..links).map(|n| Edge::new([n, n + 1], Nanos(100_000)));
    let mut world = World::new(&[9, 0, 0, 0, 0], edges.collect(), |_| {});
    world.settle(Nanos::from_secs(20));
    // To the middle of the interval between two hellos.
    world.run_for(21_000);
    for round in 0..20 {
        for edge in &mut world.network.edges {
            edge.delay = Nanos(if round % 2 == 0 { 5_000_000 } else { 100_000 });
        }
        let cost = |world: &World| {
            let last = world.brokers.last().unwrap().node.as_ref().unwrap();
            last.tree().path().0
        };
        let (hellos, before) = (world.hellos, cost(&world));
        world.run_for(20_000);
        assert_ne!(cost(&world), before);
        // Ten hellos in each direction.
        assert_eq!(world.hellos - hellos, 20 * links as u64);
    }
}

#[test]
fn a_new_topic_costs_one_advertisement_less_than_brokers() {
    let mut rng = Rng::new(9);
    for n in [2, 5, 20] {
        let mut world = build(&mut rng, n);
        world.run_for(20);
        world.settle(Nanos::from_secs(20));
        let told = |world: &World| -> u64 {
            let nodes = world
                .brokers
                .iter()
                .filter_map(|broker| broker.node.as_ref());
            nodes.map(|node| node.status().advertised).sum()
        };
        world.run_for(2000);
        let before = told(&world);
        world.subscribe(n / 2, "new/topic");
        world.run_for(2000);
        assert_eq!(told(&world) - before, n as u64 - 1);
        // A second subscriber elsewhere is advertised on the path to the first one only.
        world.subscribe(0, "new/topic");
        world.run_for(2000);
        let second = told(&world) - before - (n as u64 - 1);
        assert!((1..n as u64).contains(&second), "{second}");
        // A filter that is covered by an advertised one is not advertised.
        let before = told(&world);
        world.subscribe(0, "new/#");
        world.run_for(2000);
        let covering = told(&world) - before;
        world.subscribe(0, "new/other/topic");
        world.run_for(2000);
        assert_eq!(told(&world) - before, covering);
    }
}
