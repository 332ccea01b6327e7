//! Wills: when a broker is lost, the others publish the wills of its clients once, except for
//! clients that have connected again, elsewhere or to that broker.

use std::collections::BTreeSet;

use punctual_broker::Config;
use punctual_codec::QoS;
use punctual_model::{Nanos, Rng};
use punctual_sim::Edge;

use crate::client::{Bequest, Client};
use crate::world::{World, name};
use crate::{Faults, any_qos, connect_all, each_seed, each_shards, heal, world};

const TOPICS: [&str; 3] = ["w/1", "w/2", "w/x/y"];

/// How the broker is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loss {
    /// The broker is killed, and restarts when the others have given it up long ago.
    Long,
    /// The broker is killed, and restarts at once.
    Short,
    /// The broker runs, and all of its links are cut.
    Cut,
}

/// Whether the other brokers form one mesh without a given broker.
fn holds_without(world: &World, lost: usize) -> bool {
    let n = world.sites.len();
    let first = usize::from(lost == 0);
    let mut reached = BTreeSet::from([first]);
    loop {
        let before = reached.len();
        for edge in &world.network.edges {
            let [a, b] = edge.ends;
            if a != lost && b != lost && (reached.contains(&a) || reached.contains(&b)) {
                reached.extend([a, b]);
            }
        }
        if reached.len() == before {
            return before == n - 1;
        }
    }
}

/// How often a client received a message.
fn count(client: &Client, number: u64) -> usize {
    let same = client.received.iter().filter(|other| **other == number);
    same.count()
}

#[expect(
    clippy::too_many_lines,
    reason = "one course of events, checked at its end"
)]
fn run(seed: u64, loss: Loss) {
    let faults = Faults {
        links: true,
        crashes: true,
        clients: true,
        stores: false,
        room: 10_000,
    };
    let mut world = world(seed, faults);
    let n = world.sites.len();
    for site in 0..n {
        let subscriber = Client::new(format!("s{site}"), Some("w/#"), site);
        world.clients.push(subscriber);
    }
    for site in 0..n {
        for i in 0..1 + world.rng.below(4) {
            let mut client = Client::new(format!("w{site}-{i}"), None, site);
            client.lasts = world.rng.chance(50);
            let topic = *world.rng.pick(&TOPICS);
            client.bequest = Some(Bequest {
                topic,
                qos: any_qos(&mut world),
                retain: false,
                delay: *world.rng.pick(&[0, 5, 20]),
                numbers: Vec::new(),
            });
            world.clients.push(client);
        }
    }
    connect_all(&mut world);
    world.run_for(5000);

    let lost = world.rng.below(n as u64) as usize;
    let holds = holds_without(&world, lost);
    let cut: Vec<usize> = (0..world.network.edges.len())
        .filter(|edge| world.network.edges[*edge].ends.contains(&lost))
        .collect();
    match loss {
        Loss::Cut => {
            for edge in cut {
                let silently = world.rng.chance(50);
                world.cut(edge, silently);
            }
        }
        Loss::Long | Loss::Short => world.crash(lost),
    }
    let left: Vec<usize> = (n..world.clients.len())
        .filter(|client| world.clients[*client].home == lost)
        .collect();
    let mut back = BTreeSet::new();
    let soon = 1 + world.rng.below(3000);
    world.run_for(soon);
    for client in left.clone() {
        // If the other brokers are not connected, none of them can cancel the will for all.
        if loss == Loss::Long && holds && world.rng.chance(40) {
            world.clients[client].home = (lost + 1 + world.rng.below(n as u64 - 1) as usize) % n;
            world.connect(client);
            back.insert(client);
        }
    }
    if loss == Loss::Short {
        world.start(lost);
        for client in left.clone() {
            if world.rng.chance(50) {
                world.connect(client);
                back.insert(client);
            }
        }
    }
    world.run_for(40_000);
    let first = |client: &usize| world.clients[*client].bequest.as_ref().unwrap().numbers[0];
    for client in &left {
        for subscriber in (0..n).filter(|site| *site != lost) {
            let got = count(&world.clients[subscriber], first(client));
            let who = format!(
                "seed {seed}: {} at {subscriber}",
                world.clients[*client].name
            );
            let gone = !back.contains(client) && loss != Loss::Short;
            assert!(got <= 1, "{who} came {got} times");
            assert!(got == 0 || !back.contains(client), "{who} came and is back");
            assert!(got == 1 || !gone || !holds, "{who} never came");
        }
    }
    // After repair, every subscriber receives each will once.
    heal_but(&mut world, &left);
    for client in &left {
        let bequest = world.clients[*client].bequest.clone().unwrap();
        let number = bequest.numbers[0];
        for subscriber in 0..n {
            let got = count(&world.clients[subscriber], number);
            let who = format!(
                "seed {seed}: {} {bequest:?} at {subscriber}",
                world.clients[*client].name
            );
            assert!(
                got <= 1 || bequest.qos == QoS::AtLeastOnce,
                "{who} came {got} times"
            );
            assert!(got == 0 || !back.contains(client), "{who} came and is back");
            let sure = bequest.qos != QoS::AtMostOnce && !back.contains(client);
            let sure = sure && loss != Loss::Cut && holds;
            assert!(got > 0 || !sure, "{who} never came");
            let crossed = loss == Loss::Cut && subscriber == lost;
            assert!(got == 0 || !crossed, "{who} came to its own side");
        }
    }
    if loss == Loss::Cut {
        really_lose(seed, &mut world, &left);
    }
    // Wills of other brokers' clients stay unpublished, unless their brokers were lost as well.
    if !holds {
        return;
    }
    for client in n..world.clients.len() {
        let bequest = world.clients[client].bequest.as_ref().unwrap();
        let number = *bequest.numbers.last().unwrap();
        let is_back = back.contains(&client) || !left.contains(&client);
        for subscriber in (0..n).filter(|_| is_back) {
            let got = count(&world.clients[subscriber], number);
            // A broker that is cut off cannot know that the client is back.
            let most = usize::from(loss == Loss::Cut && subscriber == lost);
            assert!(
                got <= most,
                "seed {seed}: {} lives",
                world.clients[client].name
            );
        }
    }
}

/// Disconnects clients that the others took for lost: their wills are published a second time.
fn really_lose(seed: u64, world: &mut World, left: &[usize]) {
    let n = world.sites.len();
    let counts = |world: &World| -> Vec<usize> {
        let bequests = left.iter().map(|it| world.clients[*it].bequest.as_ref());
        let numbers = bequests.map(|bequest| bequest.unwrap().numbers[0]);
        let all = numbers.flat_map(|number| (0..n).map(move |site| (site, number)));
        all.map(|(site, number)| count(&world.clients[site], number))
            .collect()
    };
    let before = counts(world);
    left.iter().for_each(|client| world.hang_up(*client));
    world.run_for(25_000);
    let once_more: Vec<usize> = before.iter().map(|count| count + 1).collect();
    assert_eq!(counts(world), once_more, "seed {seed}");
}

/// Repairs everything, except for clients that do not return.
fn heal_but(world: &mut World, gone: &[usize]) {
    let lost: Vec<usize> = gone
        .iter()
        .copied()
        .filter(|client| !world.clients[*client].is_connected())
        .collect();
    let homes: Vec<usize> = lost.iter().map(|it| world.clients[*it].home).collect();
    for _ in 0..3 {
        // Their broker is not running.
        for client in &lost {
            world.clients[*client].home = usize::MAX;
        }
        heal(world);
        for (client, home) in lost.iter().zip(&homes) {
            world.clients[*client].home = *home;
        }
        world.run_for(5000);
    }
}

#[test]
fn what_the_clients_of_a_killed_broker_leave_is_published_once() {
    each_seed(6, |seed| run(seed, Loss::Long));
}

#[test]
fn a_broker_that_starts_again_at_once_is_not_taken_for_dead() {
    each_seed(6, |seed| run(seed, Loss::Short));
}

#[test]
fn both_sides_of_a_cut_hear_of_a_will_once() {
    each_seed(6, |seed| run(seed, Loss::Cut));
}

/// Three brokers in a row with stores, of which the first is the root; a subscriber with a
/// persistent session at each, and a client of the last broker with a will.
fn row() -> World {
    let edge = |ends| Edge::new(ends, Nanos::from_millis(1));
    let edges = vec![edge([1, 0]), edge([2, 1])];
    let config = Config::default();
    let mut world = World::new(Rng::new(1), 3, edges, true, &config, |settings| {
        settings.tree.hello = Nanos::from_millis(200);
        settings.capacity = u64::from(settings.id == name(0));
    });
    for site in 0..3 {
        let subscriber = Client::new(format!("s{site}"), Some("w/#"), site);
        world.clients.push(subscriber);
    }
    let mut client = Client::new("w".into(), None, 2);
    client.bequest = Some(Bequest {
        topic: "w/1",
        qos: QoS::ExactlyOnce,
        retain: false,
        delay: 0,
        numbers: Vec::new(),
    });
    world.clients.push(client);
    world.run_for(2000);
    connect_all(&mut world);
    world.run_for(2000);
    world
}

/// How often each subscriber received the will.
fn came(world: &World) -> Vec<usize> {
    let number = world.clients[3].bequest.as_ref().unwrap().numbers[0];
    let subscribers = &world.clients[..3];
    subscribers.iter().map(|it| count(it, number)).collect()
}

/// All brokers are cut off from each other when the client is lost: its own broker publishes the
/// will, and so does the guard, for the subscribers that each reaches. Then one link after the
/// other is restored.
#[test]
fn a_will_comes_to_everybody_once_however_the_mesh_was_in_parts() {
    each_shards(|| {
        for order in [[1, 0], [0, 1]] {
            for wait in [3_000, 14_000] {
                let mut world = row();
                world.cut(0, false);
                world.cut(1, false);
                world.run_for(500);
                world.hang_up(3);
                world.run_for(wait);
                for edge in order {
                    world.mend(edge);
                    world.run_for(8000);
                }
                world.run_for(20_000);
                assert_eq!(came(&world), [1, 1, 1], "{order:?}, {wait} ms");
            }
        }
    });
}

/// The broker is dead, and its guard reaches no other broker when it publishes the will: others
/// receive the will when they are reachable, and the broker's own subscribers when it restarts.
#[test]
fn a_will_comes_to_who_is_reached_after_it_was_published() {
    each_shards(|| {
        let mut world = row();
        world.cut(0, false);
        world.crash(2);
        world.run_for(15_000);
        assert_eq!(came(&world), [0, 1, 0]);
        world.mend(0);
        world.run_for(8000);
        assert_eq!(came(&world), [1, 1, 0]);
        world.clients[3].home = usize::MAX;
        world.start(2);
        world.run_for(2000);
        connect_all(&mut world);
        world.run_for(30_000);
        assert_eq!(came(&world), [1, 1, 1]);
    });
}

/// The guard is cut off when the client of the dead broker connects elsewhere, and learns of that
/// by the claim of the client's session before the will is due.
#[test]
fn a_will_of_a_client_that_is_back_behind_a_cut_is_not_published() {
    each_shards(|| {
        let mut world = row();
        world.cut(0, false);
        world.crash(2);
        world.run_for(500);
        world.move_to(3, 0);
        world.run_for(1000);
        world.mend(0);
        world.run_for(30_000);
        assert_eq!(came(&world), [0, 0, 0]);
    });
}

/// All brokers are killed at once: the will survives only in the store of the client's broker.
#[test]
fn a_will_outlives_all_brokers_in_a_store() {
    each_shards(|| {
        let mut world = row();
        (0..3).for_each(|site| world.crash(site));
        world.run_for(1000);
        world.clients[3].home = usize::MAX;
        (0..3).for_each(|site| world.start(site));
        world.run_for(2000);
        connect_all(&mut world);
        world.run_for(30_000);
        assert_eq!(came(&world), [1, 1, 1]);
    });
}
