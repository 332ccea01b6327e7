//! Order while brokers reconnect that were cut off: messages kept for a broker precede newer ones.

use std::collections::{BTreeMap, BTreeSet};

use punctual_broker::Config;
use punctual_codec::QoS;
use punctual_model::{Nanos, Rng};
use punctual_sim::Edge;

use crate::client::Fate;
use crate::world::{World, name};
use crate::{a_pair_at_each, connect_all, each_shards};

/// How brokers in a ring lose each other and reconnect.
#[derive(Debug, Clone, Copy)]
struct Case {
    brokers: usize,
    /// Connections that are cut, by the first broker of each.
    cut: &'static [usize],
    /// The cut connections that are restored first; the others are restored later.
    back: &'static [usize],
}

/// One broker is cut off, and reconnects at its previous place.
const SAME: Case = Case {
    brokers: 4,
    cut: &[3, 2],
    back: &[3],
};
/// One broker is cut off, and reconnects at another place.
const OTHER: Case = Case { back: &[2], ..SAME };
/// One broker is cut off, and reconnects at both places at once.
const BOTH: Case = Case {
    back: &[2, 3],
    ..SAME
};
/// The broker stays reachable by another path.
const SPARE: Case = Case { cut: &[3], ..SAME };
/// Two brokers are cut off together, and reconnect at their previous places.
const PAIR: Case = Case {
    brokers: 6,
    cut: &[5, 3],
    back: &[5],
};
/// Two brokers are cut off together, and the other one of them is reached first.
const TURNED: Case = Case { back: &[3], ..PAIR };

/// First deliveries by QoS, and those of them that came after newer messages of the same stream.
#[derive(Debug, Default, Clone, Copy)]
struct Count {
    first: [usize; 3],
    late: [usize; 3],
    /// Longest delivery time of a QoS 1 message that was published after the reconnection.
    longest: Nanos,
}

/// A ring in which each broker has a publisher and a subscriber.
fn circle(seed: u64, brokers: usize, store: bool, window: u16) -> World {
    let edges = (0..brokers).map(|n| Edge::new([n, (n + 1) % brokers], Nanos::from_millis(5)));
    let mut config = Config::default();
    config.limits.receive_maximum = window;
    let mut world = World::new(
        Rng::new(seed),
        brokers,
        edges.collect(),
        store,
        &config,
        |settings| {
            settings.tree.hello = Nanos::from_millis(200);
            settings.capacity = u64::from(settings.id == name(0));
        },
    );
    world.window = window;
    a_pair_at_each(&mut world);
    world.run_for(3000);
    connect_all(&mut world);
    world.run_for(3000);
    world
}

/// Each publisher sends a message every `pace` ms, for `millis` ms.
fn load(world: &mut World, millis: u64, pace: u64) {
    for round in 0..millis / pace {
        for publisher in (0..world.clients.len()).step_by(2) {
            let topic = ["t", "u"][(round % 2) as usize];
            let qos = [
                QoS::AtLeastOnce,
                QoS::AtLeastOnce,
                QoS::AtMostOnce,
                QoS::ExactlyOnce,
            ];
            world.publish(publisher, topic, qos[(round / 2 % 4) as usize]);
        }
        world.run_for(pace);
    }
}

fn count(world: &World, since: Nanos) -> Count {
    let mut count = Count::default();
    for subscriber in world.clients.iter().filter(|it| it.filter.is_some()) {
        let mut seen = BTreeSet::new();
        let mut newest: BTreeMap<(usize, &str, QoS), u64> = BTreeMap::new();
        for (number, at) in subscriber.received.iter().zip(&subscriber.times) {
            if !seen.insert(*number) {
                continue;
            }
            let message = &world.published[number];
            let qos = usize::from(message.qos as u8);
            count.first[qos] += 1;
            let stream = (message.publisher, message.topic, message.qos);
            let newest = newest.entry(stream).or_insert(*number);
            count.late[qos] += usize::from(number < newest);
            *newest = (*newest).max(*number);
            if qos == 1 && message.sent >= since {
                count.longest = count.longest.max(*at - message.sent);
            }
        }
        let missing = world.published.iter().filter(|(number, message)| {
            message.qos > QoS::AtMostOnce
                && message.fate == Fate::Accepted
                && !seen.contains(number)
        });
        assert_eq!(missing.count(), 0, "{} misses some", subscriber.name);
    }
    count
}

fn run(case: Case, away: u64, seed: u64, (store, window, pace): (bool, u16, u64)) -> Count {
    let mut world = circle(seed, case.brokers, store, window);
    load(&mut world, 1000, pace);
    let silently = seed % 2 == 1;
    for edge in case.cut {
        world.cut(*edge, silently);
    }
    load(&mut world, away, pace);
    let back = world.now();
    for edge in case.back {
        world.mend(*edge);
    }
    load(&mut world, 5000, pace);
    for edge in case.cut {
        world.mend(*edge);
    }
    load(&mut world, 3000, pace);
    world.run_for(30_000);
    world.note_answers();
    count(&world, back)
}

/// Number of late deliveries in such a mesh; prints the result of each case.
fn late(
    cases: &[(&str, Case)],
    aways: &[u64],
    (store, window, pace): (bool, u16, u64),
) -> [usize; 3] {
    let mut late = [0; 3];
    for (what, case) in cases {
        for (seed, away) in (0..).zip(aways) {
            let all = run(*case, *away, seed, (store, window, pace));
            println!(
                "window {window}, {what}, away for {away} ms: late {:?} of {:?}, longest {} ms",
                all.late,
                all.first,
                all.longest.0 / 1_000_000,
            );
            (0..3).for_each(|qos| late[qos] += all.late[qos]);
        }
    }
    late
}

#[test]
fn what_was_kept_comes_before_what_is_newer() {
    each_shards(|| {
        let cases = [
            ("same", SAME),
            ("other", OTHER),
            ("both", BOTH),
            ("spare", SPARE),
            ("pair", PAIR),
            ("turned", TURNED),
        ];
        let late = late(&cases, &[1000, 1000, 5000, 13_000], (false, 16, 20));
        assert_eq!(late[1..], [0, 0]);
    });
}

#[test]
fn what_was_kept_in_stores_comes_before_what_is_newer() {
    each_shards(|| {
        let cases = [("same", SAME), ("other", OTHER), ("turned", TURNED)];
        let late = late(&cases, &[5000, 13_000], (true, 1000, 20));
        assert_eq!(late[1..], [0, 0]);
    });
}
