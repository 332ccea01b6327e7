//! Brokers that join a mesh: a message that a starting broker acknowledges, with an old store, an
//! empty one or none, arrives at all subscribers, or is not acknowledged.

use punctual_broker::Config;
use punctual_codec::QoS;
use punctual_mesh::Membership;
use punctual_model::{Nanos, Rng};
use punctual_sim::Edge;

use crate::client::{Client, Fate};
use crate::world::World;
use crate::{TOPICS, each_seed, each_shards};

/// Why a broker knows none, or not all, of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    /// The broker was killed.
    Again,
    /// The broker's store was emptied.
    Emptied,
}

fn has_store(seed: u64) -> bool {
    seed.is_multiple_of(2)
}

/// Brokers that wait until they have joined, each with a subscriber that has a persistent session,
/// and a publisher.
fn world(seed: u64) -> World {
    let mut rng = Rng::new(seed);
    let n = 2 + rng.index(4);
    let edges = Edge::graph(&mut rng, n, n + 1);
    let store = has_store(seed);
    let config = Config::default();
    let mut world = World::new(rng, n, edges, store, &config, |settings| {
        settings.tree.hello = Nanos::from_millis(200);
        settings.join_wait = Nanos::from_secs(3);
    });
    for n in 0..n {
        world.sites[n].named = true;
    }
    for site in 0..n {
        for (role, filter) in [('p', None), ('s', Some("#"))] {
            let client = Client::new(format!("{role}{site}"), filter, site);
            world.clients.push(client);
        }
    }
    world
}

fn membership(world: &World, site: usize) -> Option<Membership> {
    let running = world.sites[site].running.as_ref();
    running.map(|running| running.member.node().membership())
}

/// Connects a publisher repeatedly, and publishes as soon and as often as possible.
fn press(world: &mut World, publisher: usize, rounds: usize) {
    for round in 0..rounds {
        if !world.clients[publisher].is_connected() {
            world.connect(publisher);
        }
        let qos = [QoS::AtLeastOnce, QoS::ExactlyOnce][round % 2];
        world.publish(publisher, TOPICS[round % TOPICS.len()], qos);
        let pause = world.rng.below(10);
        world.run_for(pause);
    }
}

fn run(seed: u64, start: Start) -> usize {
    let mut world = world(seed);
    let n = world.sites.len();
    for _ in 0..3 {
        world.run_for(3000);
        (0..2 * n).for_each(|client| world.connect(client));
    }
    world.run_for(3000);
    let site = world.rng.below(n as u64) as usize;
    world.crash(site);
    if start == Start::Emptied {
        world.sites[site].replace_store();
    }
    if start == Start::Emptied || !has_store(seed) {
        // The broker waits for the neighbours in its configuration, and knows no others.
        for edge in &mut world.network.edges {
            if edge.ends[1] == site {
                edge.ends.reverse();
            }
        }
    }
    let away = world.rng.below(3000);
    world.run_for(away);
    world.start(site);
    assert_eq!(membership(&world, site), Some(Membership::Joining));
    press(&mut world, 2 * site, 400);
    assert_eq!(membership(&world, site), Some(Membership::Joined));
    world.run_for(60_000);
    world.note_answers();
    let accepted: Vec<u64> = (world.published.iter())
        .filter(|(_, message)| message.fate == Fate::Accepted)
        .map(|(number, _)| *number)
        .collect();
    for other in (0..n).filter(|other| *other != site) {
        let got = &world.clients[2 * other + 1].received;
        for number in &accepted {
            assert!(
                got.contains(number),
                "seed {seed}, {start:?}: {number} was confirmed at {site} and never came at {other}"
            );
        }
    }
    accepted.len()
}

#[test]
fn what_a_broker_confirms_that_starts_again_arrives() {
    each_seed(10, |seed| assert!(run(seed, Start::Again) > 0));
}

#[test]
fn what_a_broker_confirms_that_knows_nothing_arrives() {
    each_seed(10, |seed| assert!(run(seed, Start::Emptied) > 0));
}

/// Two brokers, of which the first connects to the second.
fn two(store: bool, named: bool) -> World {
    let edge = Edge {
        ends: [0, 1],
        delay: Nanos::from_millis(1),
        is_cut: true,
    };
    let config = Config::default();
    let mut world = World::new(Rng::new(1), 2, vec![edge], store, &config, |settings| {
        settings.join_wait = Nanos::from_secs(3);
    });
    world.crash(0);
    world.sites[0].named = named;
    world.clients.push(Client::new("p".into(), None, 0));
    world.start(0);
    world
}

fn fates(world: &mut World) -> Vec<Fate> {
    world.note_answers();
    world.published.values().map(|it| it.fate).collect()
}

#[test]
fn one_that_reaches_nobody_and_knows_nobody_confirms_nothing() {
    each_shards(|| {
        let mut world = two(true, true);
        world.run_for(2900);
        world.connect(0);
        world.run_for(50);
        assert!(!world.clients[0].is_connected());
        world.run_for(100);
        assert_eq!(membership(&world, 0), Some(Membership::Stranded));
        world.connect(0);
        world.run_for(50);
        press(&mut world, 0, 4);
        world.run_for(50);
        assert_eq!(fates(&mut world), [Fate::Refused; 4]);
        // The broker waits until it reaches a neighbour.
        world.mend(0);
        world.run_for(3000);
        assert_eq!(membership(&world, 0), Some(Membership::Joined));
        press(&mut world, 0, 1);
        world.run_for(50);
        assert_eq!(fates(&mut world)[4], Fate::Accepted);
    });
}

#[test]
fn one_that_is_to_reach_nobody_serves_alone() {
    each_shards(|| {
        let mut world = two(false, false);
        assert_eq!(membership(&world, 0), Some(Membership::Joining));
        world.run_for(3100);
        world.connect(0);
        world.run_for(50);
        press(&mut world, 0, 1);
        world.run_for(50);
        assert_eq!(fates(&mut world), [Fate::Accepted]);
    });
}

#[test]
fn one_that_remembers_neighbours_keeps_messages_for_them() {
    each_shards(|| {
        let mut world = two(true, true);
        world.mend(0);
        world.run_for(3000);
        world.clients.push(Client::new("s".into(), Some("#"), 1));
        world.connect(1);
        world.run_for(3000);
        world.cut(0, false);
        world.crash(0);
        world.start(0);
        world.run_for(3100);
        assert_eq!(membership(&world, 0), Some(Membership::Joined));
        world.connect(0);
        world.run_for(50);
        press(&mut world, 0, 4);
        world.run_for(50);
        assert_eq!(fates(&mut world), [Fate::Accepted; 4]);
        world.mend(0);
        world.run_for(5000);
        let mut received = world.clients[1].received.clone();
        received.sort_unstable();
        assert_eq!(received, [0, 1, 2, 3]);
    });
}
