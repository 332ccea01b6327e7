//! Sessions follow their clients: subscribers that go from broker to broker with Clean
//! Start 0, under load, while links and brokers fail. Nothing is lost, nothing with QoS 2 comes
//! twice unless brokers are killed, and at the end each session is at one broker.

use std::collections::BTreeSet;

use punctual_broker::Config;
use punctual_codec::QoS;
use punctual_model::Nanos;
use punctual_sim::Rng;

use crate::client::Client;
use crate::world::{Edge, World};
use crate::{
    Faults, Outcome, check, connect_all, each_seed, live, populate, publish_any, publisher,
    publishers, world,
};

/// A subscriber goes to another broker, perhaps before its own notices.
fn roam(world: &mut World, client: usize) {
    if world.clients[client].filter.is_none() {
        return;
    }
    match world.rng.chance(50) {
        true => world.hang_up(client),
        false => world.vanish(client),
    }
    let home = world.rng.below(world.sites.len() as u64) as usize;
    world.clients[client].home = home;
    if world.rng.chance(80) {
        world.connect(client);
    }
}

fn run(seed: u64, faults: Faults, outcome: &mut Outcome, moved: &mut u64) {
    let mut world = world(seed, faults);
    populate(&mut world);
    let all = world.clients.len() as u64;
    let publishers = publishers(&world);
    live(&mut world, faults, (40, 20, 200), |world| {
        publish_any(world, &publishers);
        // With brokers that are killed, from where all is well: a client that finds another
        // session while its own is not reached has two, and what it knows of one is not true
        // of the other.
        let may = !faults.crashes || world.is_whole(Nanos::from_millis(700));
        if may && world.rng.chance(10) {
            let client = world.rng.below(all) as usize;
            roam(world, client);
        }
    });
    world.run_for(60_000);
    world.note_answers();
    for site in &mut world.sites {
        let stats = site.running.as_mut().unwrap().shard.stats();
        *moved += stats.sessions_moved_in;
    }
    // A broker that is killed does not know any more what a session that came has had elsewhere.
    check(seed, &world, !faults.crashes, outcome);
    for client in world.clients.iter().filter(|client| client.lasts) {
        let has = |n: &usize| holds(&world, *n, &client.name);
        let at: Vec<usize> = (0..world.sites.len()).filter(has).collect();
        assert_eq!(at, [client.home], "seed {seed}: where {} is", client.name);
    }
}

fn holds(world: &World, site: usize, client: &str) -> bool {
    let running = world.sites[site].running.as_ref().unwrap();
    running.shard.client(client).is_some()
}

fn all(few: u64, faults: Faults) {
    let (mut outcome, mut moved) = (Outcome::default(), 0);
    each_seed(few, |seed| run(seed, faults, &mut outcome, &mut moved));
    println!("{faults:?}: {outcome:?}, {moved} moved");
    assert!(outcome.delivered > 0 && moved > 0);
}

#[test]
fn sessions_follow_in_quiet() {
    let faults = Faults {
        links: false,
        crashes: false,
        clients: false,
        room: 10_000,
    };
    all(8, faults);
}

#[test]
fn sessions_follow_while_links_fail() {
    let faults = Faults {
        links: true,
        crashes: false,
        clients: true,
        room: 10_000,
    };
    all(8, faults);
}

#[test]
fn sessions_follow_while_brokers_are_killed() {
    let faults = Faults {
        links: true,
        crashes: true,
        clients: true,
        room: 10_000,
    };
    all(8, faults);
}

/// Two brokers, a subscriber that is at the first, and a publisher at each.
fn pair(store: bool) -> World {
    let edge = Edge {
        ends: [0, 1],
        delay: Nanos::from_millis(2),
        cut: false,
    };
    let config = Config::default();
    let mut world = World::new(Rng::new(1), 2, vec![edge], store, &config, |_| ());
    world.clients = vec![
        Client::new("s".into(), Some("t"), 0),
        publisher(0),
        publisher(1),
    ];
    world.run_for(5000);
    connect_all(&mut world);
    world.run_for(1000);
    world
}

#[test]
fn what_was_queued_comes_at_another_broker_in_order() {
    for store in [false, true] {
        let mut world = pair(store);
        world.hang_up(0);
        for at in 0..300 {
            let qos = if at % 2 == 0 {
                QoS::AtLeastOnce
            } else {
                QoS::ExactlyOnce
            };
            world.publish(1 + at % 2, "t", qos);
            world.run_for(1);
        }
        world.run_for(1000);
        world.clients[0].home = 1;
        world.connect(0);
        // And what comes while it moves.
        for _ in 0..300 {
            world.publish(1, "t", QoS::ExactlyOnce);
            world.publish(2, "t", QoS::ExactlyOnce);
            world.run_for(10);
        }
        world.run_for(5000);
        let received = &world.clients[0].received;
        let all: BTreeSet<u64> = received.iter().copied().collect();
        assert_eq!((received.len(), all.len()), (900, 900), "store {store}");
        for publisher in [1, 2] {
            // What waited; what comes while it moves may come on two ways.
            let of =
                |number: &&u64| **number < 300 && world.published[*number].publisher == publisher;
            let numbers: Vec<&u64> = received.iter().filter(of).collect();
            assert!(
                numbers.is_sorted(),
                "store {store}, {publisher}: {numbers:?}"
            );
        }
        assert_eq!(world.clients[0].presents, [false, true]);
        assert!(!holds(&world, 0, "s") && holds(&world, 1, "s"));
    }
}

#[test]
fn who_finds_its_broker_dead_gets_what_waits_there_when_it_is_back() {
    let mut world = pair(true);
    world.hang_up(0);
    for _ in 0..20 {
        world.publish(1, "t", QoS::ExactlyOnce);
    }
    world.run_for(1000);
    world.crash(0);
    world.run_for(1000);
    world.clients[0].home = 1;
    world.connect(0);
    world.run_for(1000);
    assert_eq!(world.clients[0].presents, [false, false]);
    for _ in 0..20 {
        world.publish(2, "t", QoS::ExactlyOnce);
    }
    world.run_for(1000);
    assert_eq!(world.clients[0].received.len(), 20);
    world.start(0);
    world.run_for(10_000);
    let all: BTreeSet<u64> = world.clients[0].received.iter().copied().collect();
    assert_eq!((world.clients[0].received.len(), all.len()), (40, 40));
    assert!(!holds(&world, 0, "s") && holds(&world, 1, "s"));
}
