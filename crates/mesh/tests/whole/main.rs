//! The whole: real broker cores, each with a node of the mesh and a store, and clients, in
//! virtual time, from a seed. Links are cut and fall silent, brokers crash and start
//! again, clients lose their connections; at the end every message that was accepted
//! with QoS 1 or 2 has arrived at each subscriber that wants it, and no message with
//! QoS 2 has arrived twice.
//!
//! `PUNCTUAL_SEEDS=1000 cargo test -p punctual-mesh --release --test whole` runs more;
//! `PUNCTUAL_SEED=7` runs one.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
#![allow(unreachable_pub, reason = "modules of a test")]
#![allow(clippy::print_stdout, reason = "which seed, and what came of it")]

mod client;
mod memory;
mod retained;
mod roam;
#[path = "../support/seeds.rs"]
mod seeds;
mod shares;
mod site;
mod takeover;
mod wills;
mod world;

use std::collections::BTreeMap;

use client::{Client, Fate};
use punctual_broker::Config;
use punctual_codec::{QoS, topic};
use punctual_model::Nanos;
use punctual_sim::Rng;
use seeds::seeds;
use world::{Edge, World};

const TOPICS: [&str; 4] = ["a/b", "a/c", "c/d/e", "d"];
const FILTERS: [&str; 5] = ["a/+", "a/b", "c/#", "#", "d"];

/// A connected graph with some more edges than a tree.
fn graph(rng: &mut Rng, n: usize) -> Vec<Edge> {
    let mut pairs = BTreeMap::new();
    for b in 1..n {
        pairs.insert([rng.below(b as u64) as usize, b], rng.chance(50));
    }
    for _ in 0..rng.below(n as u64 + 1) {
        let (a, b) = (rng.below(n as u64) as usize, rng.below(n as u64) as usize);
        if a != b {
            pairs.insert([a.min(b), a.max(b)], rng.chance(50));
        }
    }
    let mut edge = |([a, b], turned): ([usize; 2], bool)| Edge {
        ends: if turned { [b, a] } else { [a, b] },
        delay: Nanos(rng.within(100_000..=5_000_000)),
        cut: false,
    };
    pairs.into_iter().map(&mut edge).collect()
}

/// What may go wrong.
#[derive(Debug, Clone, Copy)]
struct Faults {
    links: bool,
    crashes: bool,
    clients: bool,
    /// Stores that cannot write for a while.
    stores: bool,
    /// Messages that may wait for one receiver.
    room: usize,
}

impl Faults {
    /// Messages may have to go another way than those before them.
    fn can_disorder(self) -> bool {
        self.links || self.crashes
    }
}

fn fault(world: &mut World, faults: Faults) {
    match world.rng.below(8) {
        0 | 1 if faults.links => {
            let edge = world.rng.below(world.edges.len() as u64) as usize;
            let silently = world.rng.chance(30);
            world.cut(edge, silently);
        }
        2 if faults.crashes => {
            let n = world.rng.below(world.sites.len() as u64) as usize;
            world.crash(n);
        }
        3 if faults.clients => {
            let client = world.rng.below(world.clients.len() as u64) as usize;
            world.hang_up(client);
        }
        4 if faults.stores => {
            let n = world.rng.below(world.sites.len() as u64) as usize;
            match world.rng.chance(50) {
                true => world.sites[n].is_full = true,
                false => world.fill(n),
            }
        }
        _ => {
            for edge in 0..world.edges.len() {
                if world.rng.chance(40) {
                    world.mend(edge);
                }
            }
            for n in 0..world.sites.len() {
                if world.rng.chance(40) {
                    world.start(n);
                }
                if faults.stores && world.rng.chance(40) {
                    world.make_room(n);
                }
            }
            for client in 0..world.clients.len() {
                if world.rng.chance(60) {
                    world.connect(client);
                }
            }
        }
    }
}

/// Brokers as they mostly are, on some graph.
fn world(seed: u64, faults: Faults) -> World {
    let mut rng = Rng::new(seed);
    let n = 2 + rng.below(6) as usize;
    let edges = graph(&mut rng, n);
    let mut config = Config::default();
    config.limits.max_queued_messages = faults.room;
    config.limits.receive_maximum = 16;
    config.durability.patience = Nanos([0, 1_000_000, 100_000_000][seed as usize % 3]);
    let store = faults.crashes || rng.chance(50);
    World::new(rng, n, edges, store, &config, |settings| {
        settings.tree.hello = Nanos::from_millis(200);
        settings.heal = Nanos::from_secs(60);
    })
}

/// The client that publishes at a broker.
fn publisher(site: usize) -> Client {
    Client::new(format!("p{site}"), None, site)
}

fn any_qos(world: &mut World) -> QoS {
    *world
        .rng
        .pick(&[QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce])
}

/// A publisher at each broker and subscribers at some, all connected.
fn populate(world: &mut World) {
    for site in 0..world.sites.len() {
        world.clients.push(publisher(site));
        for filter in FILTERS {
            if world.rng.chance(25) {
                let name = format!("s{site}-{filter}");
                world.clients.push(Client::new(name, Some(filter), site));
            }
        }
    }
    connect_all(world);
    world.run_for(5000);
}

fn publishers(world: &World) -> Vec<usize> {
    (0..world.clients.len())
        .filter(|client| world.clients[*client].filter.is_none())
        .collect()
}

fn publish_any(world: &mut World, publishers: &[usize]) {
    let client = *world.rng.pick(publishers);
    let topic = *world.rng.pick(&TOPICS);
    let qos = any_qos(world);
    world.publish(client, topic, qos);
}

/// So many rounds of fewer than `most` publications, with pauses shorter than `pause` ms, and
/// things that go wrong; then everything is mended.
fn live(
    world: &mut World,
    faults: Faults,
    (rounds, most, pause): (u32, u64, u64),
    mut publish: impl FnMut(&mut World),
) {
    for round in 0..rounds {
        for _ in 0..world.rng.below(most) {
            publish(world);
            let pause = world.rng.below(4);
            world.run_for(pause);
        }
        if round % 2 == 1 {
            fault(world, faults);
        }
        let pause = world.rng.below(pause);
        world.run_for(pause);
    }
    // More than once, for clients that find their broker is not there yet.
    for _ in 0..4 {
        heal(world);
        world.run_for(5000);
    }
}

fn heal(world: &mut World) {
    (0..world.edges.len()).for_each(|edge| world.mend(edge));
    (0..world.sites.len()).for_each(|n| world.start(n));
    (0..world.sites.len()).for_each(|n| world.make_room(n));
    connect_all(world);
}

fn connect_all(world: &mut World) {
    (0..world.clients.len()).for_each(|client| world.connect(client));
}

/// What came of the messages.
#[derive(Debug, Default)]
struct Outcome {
    accepted: u64,
    delivered: u64,
    twice: u64,
    /// First deliveries after newer ones of the same publisher, topic and QoS: by QoS.
    late: [u64; 3],
    refused: u64,
}

impl Outcome {
    /// What is not sent again is never late, and `strictly` nothing is.
    fn check_order(&self, strictly: bool) {
        let late = match strictly {
            true => &self.late[..],
            false => &self.late[..1],
        };
        assert!(late.iter().all(|late| *late == 0), "{:?}", self.late);
    }
}

fn run(seed: u64, faults: Faults, outcome: &mut Outcome) {
    let mut world = world(seed, faults);
    populate(&mut world);
    let publishers = publishers(&world);
    live(&mut world, faults, (40, 20, 200), |world| {
        publish_any(world, &publishers);
    });
    // What is kept for links that do not carry is given up by then.
    world.run_for(50_000);
    world.note_answers();
    check(seed, &world, true, outcome);
}

/// `once`: nothing with QoS 2 comes twice.
fn check(seed: u64, world: &World, once: bool, outcome: &mut Outcome) {
    for message in world.published.values() {
        outcome.accepted += u64::from(message.fate == Fate::Accepted);
        outcome.refused += u64::from(message.fate == Fate::Refused);
    }
    for client in &world.clients {
        let Some(filter) = client.filter else {
            continue;
        };
        let mut counts: BTreeMap<u64, u32> = BTreeMap::new();
        let mut last: BTreeMap<(usize, &str, QoS), u64> = BTreeMap::new();
        for number in &client.received {
            let message = &world.published[number];
            let count = counts.entry(*number).or_default();
            *count += 1;
            if *count == 1 {
                let stream = (message.publisher, message.topic, message.qos);
                let newest = last.entry(stream).or_default();
                if *newest > *number {
                    outcome.late[usize::from(message.qos as u8)] += 1;
                }
                *newest = (*newest).max(*number);
            }
        }
        // In one session, that is; who is given a new one is not known any more.
        let mut most: BTreeMap<u64, usize> = BTreeMap::new();
        let ends = client.begins.iter().skip(1).copied();
        let ends = ends.chain([client.received.len()]);
        for (begin, end) in client.begins.iter().copied().zip(ends) {
            let session = &client.received[begin..end];
            for number in session {
                let count = session.iter().filter(|other| *other == number).count();
                let most = most.entry(*number).or_default();
                *most = count.max(*most);
            }
        }
        for (number, message) in &world.published {
            let wanted = topic::matches(filter, message.topic);
            let got = counts.get(number).copied().unwrap_or(0);
            let who = format!(
                "seed {seed}: {number} {message:?} at {} of {}",
                client.name, client.home
            );
            assert!(got == 0 || wanted, "{who} came and is not wanted");
            outcome.delivered += u64::from(got > 0);
            outcome.twice += u64::from(got > 1);
            if once && message.qos != QoS::AtLeastOnce {
                let got = most.get(number).copied().unwrap_or(0);
                assert!(got <= 1, "{who} came {got} times");
            }
            if wanted && message.fate == Fate::Accepted {
                assert!(got >= 1, "{who} never came");
            }
        }
    }
    for (n, site) in world.sites.iter().enumerate() {
        let running = site.running.as_ref().unwrap();
        assert!(running.node.tree().is_attached(), "seed {seed}: {n}");
        let totals = running.directory.totals();
        assert_eq!(
            totals.queued_bytes, 0,
            "seed {seed}: something waits at {n}"
        );
    }
}

fn each_seed(few: u64, mut run: impl FnMut(u64)) {
    for seed in seeds(few) {
        println!("seed {seed}");
        run(seed);
    }
}

fn all(few: u64, faults: Faults) {
    let mut outcome = Outcome::default();
    each_seed(few, |seed| run(seed, faults, &mut outcome));
    println!("{faults:?}: {outcome:?}");
    assert!(outcome.delivered > 0);
    outcome.check_order(!faults.can_disorder());
}

#[test]
fn nothing_is_lost_in_quiet() {
    let faults = Faults {
        links: false,
        crashes: false,
        clients: false,
        stores: false,
        room: 10_000,
    };
    all(4, faults);
}

#[test]
fn nothing_is_lost_with_links() {
    let faults = Faults {
        links: true,
        crashes: false,
        clients: true,
        stores: false,
        room: 10_000,
    };
    all(8, faults);
}

#[test]
fn nothing_is_lost_with_brokers_that_have_a_store() {
    let faults = Faults {
        links: true,
        crashes: true,
        clients: true,
        stores: false,
        room: 10_000,
    };
    all(8, faults);
}

#[test]
fn nothing_is_lost_with_stores_that_fill_up() {
    let faults = Faults {
        links: true,
        crashes: true,
        clients: true,
        stores: true,
        room: 10_000,
    };
    all(8, faults);
}

/// With these seeds a link carries at one end alone for a moment, and the other end hears
/// what the neighbour wants.
#[test]
fn nothing_is_kept_for_ever_for_a_link_that_carried_at_one_end() {
    let faults = Faults {
        links: true,
        crashes: true,
        clients: true,
        stores: false,
        room: 10_000,
    };
    for seed in [52, 53] {
        run(seed, faults, &mut Outcome::default());
    }
}

/// One broker sees that the root is gone and comes to the other, which sees it later: what
/// the other has meant for the root is not left waiting.
#[test]
fn what_waits_goes_to_who_came_before_the_loss_was_seen() {
    let edge = |ends, micros: u64| Edge {
        ends,
        delay: Nanos(micros * 1000),
        cut: false,
    };
    let edges = vec![edge([0, 1], 500), edge([0, 2], 2000), edge([1, 2], 5000)];
    let config = Config::default();
    let mut world = World::new(Rng::new(1), 3, edges, false, &config, |settings| {
        settings.tree.hello = Nanos::from_millis(200);
        settings.heal = Nanos::from_secs(60);
        settings.capacity = u64::from(settings.id == world::name(0));
    });
    for (name, filter, home) in [("p", None, 1), ("s", Some("#"), 2)] {
        world.clients.push(Client::new(name.into(), filter, home));
        world.connect(world.clients.len() - 1);
    }
    world.run_for(5000);
    let parent = |world: &World| {
        let status = world.sites[2].running.as_ref().unwrap().node.status();
        status.parent
    };
    assert_eq!(parent(&world), Some(world::name(0)));
    world.cut(0, true);
    world.cut(1, false);
    for _ in 0..5 {
        world.publish(0, "d", QoS::AtLeastOnce);
    }
    world.run_for(150);
    assert_eq!(parent(&world), Some(world::name(1)));
    assert!(world.clients[1].received.is_empty());
    world.run_for(3000);
    assert_eq!(world.clients[1].received, [0, 1, 2, 3, 4]);
}
