//! Slow disks: while the tree recovers under load, QoS 0 waits for no commit, and QoS 1 for few,
//! however long commits take.

use punctual_broker::Config;
use punctual_codec::QoS;
use punctual_model::{Nanos, Rng};
use punctual_sim::{Commits, Edge};

use crate::client::Fate;
use crate::world::{World, name};
use crate::{a_pair_at_each, connect_all};

/// Duration of each commit.
const COMMIT: Nanos = Nanos::from_millis(50);

/// Four brokers in a ring, each with a publisher, a subscriber, and slow commits.
fn circle(seed: u64) -> World {
    let edges = [[1, 0], [2, 1], [3, 2], [0, 3]].map(|ends| Edge::new(ends, Nanos::from_millis(1)));
    let mut config = Config::default();
    config.limits.receive_maximum = 1000;
    let mut world = World::new(Rng::new(seed), 4, edges.into(), true, &config, |settings| {
        settings.tree.hello = Nanos::from_millis(200);
        settings.capacity = u64::from(settings.id == name(0));
    });
    for store in world
        .sites
        .iter_mut()
        .filter_map(|site| site.store.as_mut())
    {
        store.set_commits(Commits::Groups, [COMMIT, COMMIT]);
    }
    world.window = 1000;
    a_pair_at_each(&mut world);
    world.run_for(3000);
    connect_all(&mut world);
    world.run_for(5000);
    world
}

/// Sorted delivery times to subscribers at other brokers, and the number of messages that never
/// arrived.
fn delays(world: &World, qos: QoS, since: Nanos) -> (Vec<u64>, usize) {
    let (mut delays, mut never) = (Vec::new(), 0);
    for subscriber in world.clients.iter().filter(|it| it.filter.is_some()) {
        let came: std::collections::BTreeMap<u64, Nanos> = (subscriber.received.iter().copied())
            .zip(subscriber.times.iter().copied())
            .rev()
            .collect();
        let sent = world.published.iter();
        for (number, message) in sent.filter(|(_, it)| it.qos == qos && it.sent >= since) {
            match came.get(number) {
                Some(at) => delays.push((*at - message.sent).0 / 1_000_000),
                None => never += 1,
            }
        }
    }
    delays.sort_unstable();
    (delays, never)
}

/// Each publisher sends a message every 4 ms, for `millis` ms.
fn load(world: &mut World, millis: u64) {
    for round in 0..millis / 4 {
        for publisher in [0, 2, 4, 6] {
            let qos = [QoS::AtMostOnce, QoS::AtLeastOnce][(round % 2) as usize];
            world.publish(publisher, "d", qos);
        }
        world.run_for(4);
    }
}

#[test]
fn a_slow_disk_does_not_make_healing_slow() {
    for seed in 0..4 {
        let mut world = circle(seed);
        load(&mut world, 1000);
        for (edge, silently) in [(0, false), (2, false), (0, true)] {
            let start = world.now();
            world.cut(edge, silently);
            load(&mut world, 3000);
            world.run_for(10_000);
            let (zero, lost) = delays(&world, QoS::AtMostOnce, start);
            let (one, never) = delays(&world, QoS::AtLeastOnce, start);
            let at = |all: &[u64], share: usize| all[(all.len() - 1) * share / 1000];
            println!(
                "seed {seed}, edge {edge}, silently {silently}: QoS 0 p99 {} ms, {lost} lost; QoS 1 \
                 p50 {} ms, p99 {} ms, max {} ms",
                at(&zero, 990),
                at(&one, 500),
                at(&one, 990),
                at(&one, 1000),
            );
            // Of 5000 messages; the loss of a silent link is noticed after two and a half hello
            // intervals.
            assert!(at(&zero, 990) <= 10 && (silently || lost <= 20));
            assert!(at(&one, 990) <= 1000 && never == 0);
            world.mend(edge);
            world.run_for(5000);
        }
        world.note_answers();
        assert!(world.published.values().all(|it| it.fate != Fate::Refused));
    }
}
