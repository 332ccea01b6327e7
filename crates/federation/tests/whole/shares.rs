//! Shared subscriptions: of all members at all brokers one receives each message, preferably a
//! connected member at the publisher's broker; also if links fail and brokers are killed.

use punctual_codec::{QoS, topic};

use crate::client::{Client, Fate};
use crate::world::World;
use crate::{Faults, TOPICS, any_qos, connect_all, each_seed, live, publisher, world};

const GROUPS: [&str; 3] = ["$share/g/a/+", "$share/h/#", "$share/g/d"];

fn run(seed: u64, faults: Faults) {
    let mut world = world(seed, faults);
    let n = world.sites.len();
    world.clients.extend((0..n).map(publisher));
    for (at, group) in GROUPS.into_iter().enumerate() {
        for member in 0..1 + world.rng.below(4) {
            let site = world.rng.below(n as u64) as usize;
            let name = format!("m{at}-{member}");
            world.clients.push(Client::new(name, Some(group), site));
        }
    }
    world
        .clients
        .push(Client::new("plain".into(), Some("#"), 0));
    connect_all(&mut world);
    world.run_for(5000);
    live(&mut world, faults, (40, 12, 200), |world| {
        let publisher = world.rng.below(n as u64) as usize;
        let topic = *world.rng.pick(&TOPICS);
        let qos = any_qos(world);
        world.publish(publisher, topic, qos);
    });
    world.run_for(50_000);
    world.note_answers();
    for group in GROUPS {
        check(seed, &world, group, faults);
    }
}

fn check(seed: u64, world: &World, group: &str, faults: Faults) {
    let members: Vec<&Client> = world
        .clients
        .iter()
        .filter(|client| client.filter == Some(group))
        .collect();
    for (number, message) in &world.published {
        let got = |member: &&&Client| member.received.contains(number);
        let times = members.iter().map(|member| {
            let same = member.received.iter().filter(|other| *other == number);
            same.count()
        });
        let (times, receiver) = (times.sum::<usize>(), members.iter().find(got));
        let wanted = topic::matches(topic::split_share(group).1, message.topic);
        let who = format!("seed {seed}: {number} {message:?} to {group}");
        assert!(times == 0 || wanted, "{who} came and is not wanted");
        if message.qos != QoS::AtLeastOnce {
            assert!(times <= 1, "{who} came {times} times");
        }
        if wanted && message.fate == Fate::Accepted && message.qos != QoS::AtMostOnce {
            assert!(times >= 1, "{who} never came");
        }
        if !faults.links && !faults.clients && wanted {
            assert_eq!(times, 1, "{who}");
            let home = message.publisher;
            let local = members.iter().any(|member| member.home == home);
            assert!(
                !local || receiver.is_some_and(|it| it.home == home),
                "{who}"
            );
        }
    }
}

#[test]
fn one_member_gets_each_message_in_quiet() {
    let faults = Faults {
        links: false,
        crashes: false,
        clients: false,
        stores: false,
        room: 10_000,
    };
    each_seed(4, |seed| run(seed, faults));
}

#[test]
fn one_member_gets_each_message_with_links() {
    let faults = Faults {
        links: true,
        crashes: false,
        clients: true,
        stores: false,
        room: 10_000,
    };
    each_seed(8, |seed| run(seed, faults));
}

#[test]
fn one_member_gets_each_message_while_brokers_are_killed() {
    let faults = Faults {
        links: true,
        crashes: true,
        clients: true,
        stores: false,
        room: 10_000,
    };
    each_seed(8, |seed| run(seed, faults));
}
