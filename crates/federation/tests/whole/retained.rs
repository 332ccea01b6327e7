//! Retained messages: when the mesh is quiet, all brokers have equal retained messages, none is
//! older than the last accepted one, and each new subscriber receives each of them once.

use std::collections::BTreeMap;

use punctual_codec::QoS;
use punctual_model::Nanos;

use crate::client::{Client, Fate, Published};
use crate::world::World;
use crate::{Faults, any_qos, connect_all, each_seed, live, publisher, world};

const TOPICS: [&str; 6] = ["r/0", "r/1", "r/2", "r/3", "r/4", "r/5"];
/// Longest delay from a client to its broker.
const WAY: Nanos = Nanos::from_millis(20);

fn publish(world: &mut World, topic: &'static str, is_empty: bool) {
    let n = world.sites.len() as u64;
    let publisher = world.rng.below(n) as usize;
    let qos = any_qos(world);
    world.send(Published {
        publisher,
        topic,
        qos,
        retain: true,
        is_empty,
        sent: world.now(),
        fate: Fate::Unknown,
    });
}

fn run(seed: u64, faults: Faults) {
    let mut world = world(seed, faults);
    let n = world.sites.len();
    world.clients.extend((0..n).map(publisher));
    for site in 0..n {
        if world.rng.chance(30) {
            let name = format!("s{site}");
            world.clients.push(Client::new(name, Some("r/+"), site));
        }
    }
    connect_all(&mut world);
    world.run_for(2000);
    live(&mut world, faults, (30, 8, 400), |world| {
        let topic = *world.rng.pick(&TOPICS);
        // The removal of a retained message is not remembered over a restart.
        let is_empty = !faults.crashes && world.rng.chance(20);
        publish(world, topic, is_empty);
    });
    world.note_answers();
    let first = agreed(seed, &world);
    for topic in TOPICS {
        check(seed, &world, topic, first.get(topic));
    }
    // From here on the order of messages is known.
    let mut expected = first;
    for topic in TOPICS {
        if world.rng.chance(50) {
            let is_empty = world.rng.chance(30);
            let number = world.published.len() as u64;
            publish(&mut world, topic, is_empty);
            match is_empty {
                true => expected.remove(topic),
                false => expected.insert(topic.into(), number),
            };
        }
    }
    world.run_for(5000);
    assert_eq!(agreed(seed, &world), expected, "seed {seed}");
    // By this time brokers have discarded what they kept for absent ones: a new subscription brings
    // the message to those that had it only as a retained one.
    world.run_for(60_000);
    for site in 0..n {
        let name = format!("late{site}");
        world.clients.push(Client::new(name, Some("r/+"), site));
        world.connect(world.clients.len() - 1);
    }
    world.run_for(1000);
    for late in &world.clients[world.clients.len() - n..] {
        let mut retained = late.retained.clone();
        retained.sort();
        let expected: Vec<_> = expected.clone().into_iter().collect();
        assert_eq!(retained, expected, "seed {seed}: {}", late.name);
        assert_eq!(late.received.len(), expected.len(), "seed {seed}");
    }
}

/// The retained messages, which are equal at all brokers.
fn agreed(seed: u64, world: &World) -> BTreeMap<String, u64> {
    let all = world.sites.iter().enumerate().map(|(n, site)| {
        let retained = site.running.as_ref().unwrap().retains(world.now());
        let number = |payload: String| payload.parse().unwrap();
        let retained = retained.into_iter();
        let retained: BTreeMap<String, u64> = retained
            .map(|(topic, payload)| (topic, number(payload)))
            .collect();
        (n, retained)
    });
    let all: Vec<_> = all.collect();
    for (n, retained) in &all {
        assert_eq!(*retained, all[0].1, "seed {seed}: 0 and {n} disagree");
    }
    all[0].1.clone()
}

/// The retained message of a topic is not older than the last accepted one.
fn check(seed: u64, world: &World, topic: &str, kept: Option<&u64>) {
    let of_topic = || {
        let all = world.published.iter();
        all.filter(|(_, message)| message.topic == topic)
    };
    let accepted =
        of_topic().filter(|(_, it)| it.fate == Fate::Accepted && it.qos != QoS::AtMostOnce);
    let Some((number, last)) = accepted.max_by_key(|(_, message)| message.sent) else {
        return;
    };
    let mut may_be = of_topic().filter(|(number, message)| match kept {
        Some(kept) => *number == kept,
        None => message.is_empty,
    });
    assert!(
        may_be.any(|(_, message)| message.sent + WAY >= last.sent),
        "seed {seed}: {topic} has {kept:?}, and {number} {last:?} was accepted"
    );
}

#[test]
fn retained_messages_are_everywhere_with_links() {
    let faults = Faults {
        links: true,
        crashes: false,
        clients: false,
        stores: false,
        room: 10_000,
    };
    each_seed(8, |seed| run(seed, faults));
}

#[test]
fn retained_messages_are_everywhere_with_brokers_that_have_a_store() {
    let faults = Faults {
        links: true,
        crashes: true,
        clients: true,
        stores: false,
        room: 10_000,
    };
    each_seed(8, |seed| run(seed, faults));
}
