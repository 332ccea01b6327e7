//! Sessions that follow their clients: subscribers, and publishers with unacknowledged messages,
//! move from broker to broker with Clean Start 0, under load, while links and brokers fail. No
//! message is lost, no QoS 2 message arrives twice unless its publisher had to publish it anew, and
//! at the end each session is at one broker.

use std::collections::BTreeSet;

use punctual_broker::Config;
use punctual_codec::QoS;
use punctual_mesh::transfer::Record;
use punctual_model::{Nanos, Rng};
use punctual_sim::{Edge, are_seeds_chosen};

use crate::client::{Anew, Client, Fate};
use crate::world::World;
use crate::{
    CRASHES, Faults, LINKS, Outcome, QUIET, check, connect_all, drain, each_seed, each_shards,
    introduce, live, place, publish_any, publisher, publishers, world, world_far_apart,
    world_with_long_queues,
};

/// The clients that move from broker to broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    Subscribers,
    /// Subscribers, and publishers with persistent sessions.
    All,
    /// All clients, which hardly stay anywhere.
    Restless,
}

/// Moves a client to another broker, possibly before its previous broker notices.
fn roam(world: &mut World, client: usize) {
    if !world.clients[client].lasts {
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

fn run(seed: u64, faults: Faults, who: Who, outcome: &mut Outcome, moved: &mut u64) {
    run_in(&mut world(seed, faults), seed, faults, who, outcome, moved);
}

fn run_in(
    world: &mut World,
    seed: u64,
    faults: Faults,
    who: Who,
    outcome: &mut Outcome,
    moved: &mut u64,
) {
    place(world);
    if who != Who::Subscribers {
        for client in publishers(world) {
            let anew = match world.rng.chance(50) {
                true => Anew::Publishes,
                false => Anew::GoesOn,
            };
            let client = &mut world.clients[client];
            (client.lasts, client.anew) = (true, Some(anew));
        }
    }
    introduce(world);
    let all = world.clients.len() as u64;
    let publishers = publishers(world);
    let often = if who == Who::Restless { 40 } else { 10 };
    live(world, faults, (40, 20, 200), |world| {
        publish_any(world, &publishers);
        if !world.rng.chance(often) {
            return;
        }
        let client = world.rng.below(all) as usize;
        roam(world, client);
    });
    // A message that a client may not have received yet stays in the session until the client sends
    // a packet.
    for client in 0..world.clients.len() {
        world.ping(client);
    }
    world.run_for(60_000);
    drain(world);
    // The rest of a session ends when its last message has arrived.
    world.run_for(5000);
    world.note_answers();
    for site in &mut world.sites {
        let running = site.running.as_mut().unwrap();
        *moved += running.count(|stats| stats.sessions_moved_in);
    }
    check(seed, world, true, outcome);
    for client in world.clients.iter().filter(|client| client.lasts) {
        let has = |n: &usize| holds(world, *n, &client.name);
        let at: Vec<usize> = (0..world.sites.len()).filter(has).collect();
        let records: Vec<_> = at.iter().map(|n| record(world, *n, &client.name)).collect();
        let name = &client.name;
        assert_eq!(
            at,
            [client.home],
            "seed {seed}: where {name} is: {records:#?}"
        );
    }
}

fn holds(world: &World, site: usize, client: &str) -> bool {
    let running = world.sites[site].running.as_ref().unwrap();
    running.client(client).is_some()
}

/// What a broker has stored of a client's session.
fn record(world: &World, site: usize, client: &str) -> Option<Record> {
    let running = world.sites[site].running.as_ref().unwrap();
    running.client(client)?.record().cloned()
}

fn all(few: u64, faults: Faults, who: Who) {
    let (mut outcome, mut moved) = (Outcome::default(), 0);
    each_seed(few, |seed| run(seed, faults, who, &mut outcome, &mut moved));
    println!("{who:?}, {faults:?}: {outcome:?}, {moved} moved");
    assert!(are_seeds_chosen() || outcome.delivered > 0 && moved > 0);
}

#[test]
fn sessions_follow_in_quiet() {
    let faults = QUIET;
    all(8, faults, Who::Subscribers);
}

#[test]
fn sessions_follow_while_links_fail() {
    let faults = LINKS;
    all(8, faults, Who::Subscribers);
}

/// Sessions move while messages to their previous brokers are in flight for seconds.
#[test]
fn sessions_follow_while_messages_are_under_way_for_long() {
    under_way_for_long(QUIET);
}

#[test]
fn sessions_follow_while_messages_are_under_way_for_long_and_links_fail() {
    under_way_for_long(LINKS);
}

fn under_way_for_long(faults: Faults) {
    let (mut outcome, mut moved) = (Outcome::default(), 0);
    each_seed(8, |seed| {
        let mut world = world_with_long_queues(seed, faults);
        let who = Who::Subscribers;
        run_in(&mut world, seed, faults, who, &mut outcome, &mut moved);
    });
    println!("under way for long, {faults:?}: {outcome:?}, {moved} moved");
    assert!(are_seeds_chosen() || outcome.delivered > 0 && moved > 0);
}

/// With this seed a session arrives at a broker that its client has left while it waited for the
/// session.
#[test]
fn sessions_follow_who_does_not_wait_any_more() {
    each_shards(|| {
        let faults = LINKS;
        let seed = 566;
        let mut world = world(seed, faults);
        world.window = 64;
        run_in(
            &mut world,
            seed,
            faults,
            Who::Subscribers,
            &mut Outcome::default(),
            &mut 0,
        );
    });
}

/// With these seeds a client connects to another broker, which does not find its session, while
/// links are cut, and later to further brokers.
#[test]
fn who_is_given_another_session_loses_nothing() {
    each_shards(|| {
        let links = LINKS;
        let crashes = CRASHES;
        let seeds = [
            // Messages published at that broker before the second session subscribed belong to the
            // first session.
            (1382, links),
            (7982, links),
            (9555, links),
            // Messages kept by brokers that were cut off arrive after the session has left.
            (6264, links),
            // At the broker that the client has left, no client waits for the session any more.
            (5586, links),
            // A message without a receiver does not return to its sender.
            (928, links),
            // A neighbour claims that it reaches others over this broker.
            (9124, links),
            // The broker that created the second session is killed before it asks for the first.
            (69, crashes),
            (357, crashes),
            // The second session has queued messages when its broker restarts; the first session has them as well.
            (239, crashes),
            (689, crashes),
        ];
        for (seed, faults) in seeds {
            run(
                seed,
                faults,
                Who::Subscribers,
                &mut Outcome::default(),
                &mut 0,
            );
        }
    });
}

/// With these seeds a publisher alternates between two brokers that do not reach each other, and
/// reuses a packet identifier for which one of them still awaits PUBREL: for a message that is new
/// there, or one that it has sent to the other broker before without success; with the last seeds
/// that broker was killed meanwhile.
#[test]
fn what_is_published_under_an_identifier_of_an_old_copy_is_not_lost() {
    each_shards(|| {
        let links = [49, 51, 156, 257, 148, 149].map(|seed| (seed, LINKS));
        let crashes = [900, 907, 976, 1914].map(|seed| (seed, CRASHES));
        for (seed, faults) in links.into_iter().chain(crashes) {
            run(seed, faults, Who::All, &mut Outcome::default(), &mut 0);
        }
    });
}

/// With this seed a broker concludes too early that no broker has a client's session: the broker
/// that has it is behind a silent link whose loss is not noticed yet.
#[test]
fn a_session_is_found_although_who_has_it_was_not_heard() {
    each_shards(|| {
        run(2551, LINKS, Who::All, &mut Outcome::default(), &mut 0);
    });
}

#[test]
fn sessions_follow_while_brokers_are_killed() {
    let faults = CRASHES;
    all(16, faults, Who::Subscribers);
}

#[test]
fn publishers_roam_in_quiet() {
    let faults = QUIET;
    all(8, faults, Who::All);
}

#[test]
fn publishers_roam_while_links_fail() {
    let faults = LINKS;
    all(8, faults, Who::All);
}

#[test]
fn publishers_roam_while_brokers_are_killed() {
    let faults = CRASHES;
    all(16, faults, Who::All);
}

#[test]
fn who_hardly_stays_loses_nothing() {
    for faults in [QUIET, LINKS, CRASHES] {
        all(4, faults, Who::Restless);
    }
    for seed in [
        // A session returns to a broker with remains of it before that broker knows where the
        // session is.
        3164,
        // A client returns to the session's previous broker before the current one knows that.
        6031, // A session has gone on from where it was found.
        6199,
    ] {
        run(seed, QUIET, Who::Restless, &mut Outcome::default(), &mut 0);
    }
}

/// Moving clients with brokers far from each other: clients move on before their sessions arrive.
#[test]
fn who_hardly_stays_far_from_others_loses_nothing() {
    let (mut outcome, mut moved) = (Outcome::default(), 0);
    for faults in [QUIET, LINKS, CRASHES] {
        each_seed(4, |seed| {
            let mut world = world_far_apart(5, seed, faults);
            let who = Who::Restless;
            run_in(&mut world, seed, faults, who, &mut outcome, &mut moved);
        });
    }
    // A link has carried briefly at its other end, and the neighbour is unreachable later while a
    // stub forwards messages.
    let (seed, faults, who) = (4_000_913, CRASHES, Who::Restless);
    let mut world = world_far_apart(5, seed, faults);
    run_in(&mut world, seed, faults, who, &mut outcome, &mut moved);
    println!("far from others: {outcome:?}, {moved} moved");
    assert!(are_seeds_chosen() || outcome.delivered > 0 && moved > 0);
}

/// Two brokers, a subscriber at the first, and a publisher at each.
fn pair(store: bool, filter: &'static str) -> World {
    pair_of(store, Client::new("s".into(), Some(filter), 0))
}

/// A [`pair`] with a given subscriber.
fn pair_of(store: bool, subscriber: Client) -> World {
    pair_with(2, 16, store, subscriber)
}

/// A [`pair`] with `delay` ms between the brokers, and `window` messages in flight.
fn pair_with(delay: u64, window: u16, store: bool, subscriber: Client) -> World {
    let edge = Edge::new([0, 1], Nanos::from_millis(delay));
    let config = Config::default();
    let mut world = World::new(Rng::new(1), 2, vec![edge], store, &config, |_| ());
    world.window = window;
    world.clients = vec![subscriber, publisher(0), publisher(1)];
    world.run_for(5000);
    connect_all(&mut world);
    world.run_for(1000);
    world
}

/// Broker 0 between two others: publishers at 1 and 2, and a client with a session at 1 that has
/// just connected to 0.
fn trio(store: bool) -> World {
    let edge = |ends| Edge::new(ends, Nanos::from_millis(5));
    let edges = vec![edge([0, 1]), edge([0, 2])];
    let config = Config::default();
    let mut world = World::new(Rng::new(1), 3, edges, store, &config, |_| ());
    world.clients = vec![
        Client::new("s".into(), Some("t"), 1),
        publisher(1),
        publisher(2),
    ];
    world.run_for(5000);
    connect_all(&mut world);
    world.run_for(1000);
    world.hang_up(0);
    chatter(&mut world, 20);
    world.clients[0].home = 0;
    world.connect(0);
    world
}

#[test]
fn what_was_queued_comes_at_another_broker_in_order() {
    each_shards(|| {
        for store in [false, true] {
            let mut world = pair(store, "t");
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
            // Messages are published while the session moves.
            for _ in 0..300 {
                world.publish(1, "t", QoS::ExactlyOnce);
                world.publish(2, "t", QoS::ExactlyOnce);
                world.run_for(1);
            }
            world.run_for(5000);
            let received = &world.clients[0].received;
            let all: BTreeSet<u64> = received.iter().copied().collect();
            assert_eq!((received.len(), all.len()), (900, 900), "store {store}");
            // Messages that were queued before the move keep their order. Messages that are published at the new
            // broker during the move may overtake earlier ones, which the old broker forwards.
            for publisher in [1, 2] {
                for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
                    let of = |number: &&u64| {
                        let message = &world.published[*number];
                        let is_it = (message.publisher, message.qos) == (publisher, qos);
                        is_it && (publisher == 1 || **number < 300)
                    };
                    let numbers: Vec<&u64> = received.iter().filter(of).collect();
                    assert!(
                        numbers.is_sorted(),
                        "store {store}, {publisher}, {qos:?}: {numbers:?}"
                    );
                }
            }
            assert_eq!(world.clients[0].presents, [false, true]);
            assert!(!holds(&world, 0, "s") && holds(&world, 1, "s"));
        }
    });
}

#[test]
fn who_finds_its_broker_dead_gets_what_waits_there_when_it_is_back() {
    each_shards(|| {
        let mut world = pair(true, "t");
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
    });
}

/// A restarted broker remembers a neighbour even if no client there has subscribed: while that
/// neighbour is unreachable, a session that the broker creates may be a second one.
#[test]
fn who_was_at_a_broker_without_subscriptions_has_one_session_in_the_end() {
    each_shards(|| {
        let mut idle = Client::new("s".into(), None, 0);
        idle.lasts = true;
        let mut world = pair_of(true, idle);
        world.hang_up(0);
        world.cut(0, false);
        world.crash(1);
        world.start(1);
        world.run_for(100);
        world.clients[0].home = 1;
        world.connect(0);
        world.run_for(1000);
        assert_eq!(world.clients[0].presents, [false, false]);
        world.mend(0);
        world.run_for(10_000);
        assert!(!holds(&world, 0, "s") && holds(&world, 1, "s"));
    });
}

/// Messages wait for seconds to cross a slow link to the broker that had a session when they were
/// published; the session has left long before they arrive.
#[test]
fn what_waits_for_seconds_comes_to_where_a_session_has_gone() {
    each_shards(|| {
        for store in [false, true] {
            let mut world = pair_with(4, 1, store, Client::new("s".into(), Some("t"), 0));
            world.hang_up(0);
            for _ in 0..500 {
                world.publish(2, "t", QoS::ExactlyOnce);
                world.run_for(1);
            }
            world.move_to(0, 1);
            world.run_for(3500);
            let under_way = world.published.len() - world.clients[0].received.len();
            assert!(under_way > 50, "{under_way}");
            came_once(&mut world, 1, "what waited");
            assert!(!holds(&world, 0, "s") && holds(&world, 1, "s"));
        }
    });
}

/// Publishes more messages to the first broker's subscription than the link accepts at once; a
/// third client subscribes at the second broker.
fn burst(world: &mut World, filter: &'static str, qos: QoS) {
    world.clients.push(Client::new("o".into(), Some(filter), 1));
    world.connect(3);
    world.run_for(1000);
    for _ in 0..30 {
        for _ in 0..10 {
            world.publish(1, "t", qos);
        }
        world.run_for(1);
    }
}

/// A message that arrives at a broker after the session has already delivered it elsewhere is
/// recognised as a duplicate, although the broker was killed meanwhile.
#[test]
fn what_a_session_has_had_elsewhere_is_known_after_a_kill() {
    each_shards(|| {
        for after in 1..12 {
            let mut world = pair(true, "t");
            burst(&mut world, "t", QoS::ExactlyOnce);
            world.run_for(5);
            world.move_to(0, 1);
            world.run_for(3 * after);
            let under_way = 300 - world.clients[3].received.len();
            assert!(under_way > 50, "{under_way}");
            world.crash(1);
            world.run_for(500);
            world.start(1);
            // Earlier it would be given another session, if this broker has none.
            world.run_for(3000);
            connect_all(&mut world);
            world.run_for(10_000);
            for client in [0, 3] {
                let received = &world.clients[client].received;
                let all: BTreeSet<u64> = received.iter().copied().collect();
                let counts = (received.len(), all.len());
                assert_eq!(counts, (300, 300), "{client}, killed after {after}");
            }
        }
    });
}

/// Messages that passed the previous broker of a member of a shared subscription reach the member
/// at its present broker: at the first broker they had no receiver.
#[test]
fn a_member_that_has_moved_gets_what_was_under_way() {
    for store in [false, true] {
        let mut world = pair(store, "$share/g/t");
        world.hang_up(0);
        burst(&mut world, "$share/g/t", QoS::ExactlyOnce);
        world.clients[0].home = 1;
        world.connect(0);
        world.run_for(10_000);
        let received = [0, 3].map(|client| world.clients[client].received.clone());
        assert!(received.iter().all(|numbers| numbers.len() > 50), "{store}");
        let mut all = received.concat();
        all.sort_unstable();
        assert_eq!(all, (0..300).collect::<Vec<u64>>(), "{store}");
    }
}

/// Publishes at both brokers; each round takes a few milliseconds.
fn chatter(world: &mut World, rounds: u64) {
    for round in 0..rounds {
        world.publish(1 + (round % 2) as usize, "t", QoS::ExactlyOnce);
        world.run_for(1);
    }
}

/// Checks that each accepted message arrived once at the client, which is connected to `home`.
fn came_once(world: &mut World, home: usize, what: &str) {
    all_came(world, home, what);
    let mut all = world.clients[0].received.clone();
    all.sort_unstable();
    assert!(
        all.is_sorted_by(|a, b| a < b),
        "{what}: some came twice: {all:?}"
    );
}

/// Checks that each accepted message arrived at the client, which is connected to `home`.
fn all_came(world: &mut World, home: usize, what: &str) {
    world.run_for(15_000);
    world.note_answers();
    let all = &world.clients[0].received;
    let accepted = world
        .published
        .iter()
        .filter(|(_, it)| it.fate == Fate::Accepted);
    let accepted: Vec<u64> = accepted.map(|(number, _)| *number).collect();
    let missed: Vec<&u64> = accepted.iter().filter(|it| !all.contains(it)).collect();
    assert!(missed.is_empty(), "{what}: {missed:?} never came");
    let has = |n: &usize| holds(world, *n, "s");
    let at: Vec<usize> = (0..world.sites.len()).filter(has).collect();
    assert_eq!(at, [home], "{what}");
}

/// A client that leaves a broker before its session has arrived there loses no message.
#[test]
fn who_goes_on_before_the_session_has_come_loses_nothing() {
    each_shards(|| {
        for store in [false, true] {
            for after in 1..40 {
                let mut world = trio(store);
                chatter(&mut world, after);
                world.move_to(0, 2);
                chatter(&mut world, 100);
                came_once(&mut world, 2, &format!("store {store}, after {after}"));
            }
        }
    });
}

/// A client that was at both brokers while they did not reach each other receives the messages that
/// wait at the broker where it was in between.
#[test]
fn who_was_elsewhere_while_all_was_cut_gets_what_waits_there() {
    each_shards(|| {
        for after in 1..12 {
            let mut world = pair(false, "t");
            world.move_to(0, 1);
            world.run_for(after);
            world.cut(0, true);
            world.run_for(1000);
            for home in [0, 1] {
                world.move_to(0, home);
                world.run_for(1000);
                if home == 0 {
                    world.hang_up(0);
                    chatter(&mut world, 20);
                }
            }
            world.mend(0);
            came_once(&mut world, 1, &format!("after {after}"));
        }
    });
}

/// The broker to which a session has returned is killed; the broker that had the session in between
/// does not fetch it again.
#[test]
fn a_session_that_has_come_back_stays_where_its_client_is() {
    each_shards(|| {
        for after in 1..40 {
            let mut world = pair(true, "t");
            for home in [1, 0] {
                world.hang_up(0);
                chatter(&mut world, 10);
                world.clients[0].home = home;
                world.connect(0);
                chatter(&mut world, 5 * after);
            }
            world.hang_up(0);
            world.crash(0);
            chatter(&mut world, 300);
            world.start(0);
            world.run_for(500);
            world.connect(1);
            chatter(&mut world, 300);
            connect_all(&mut world);
            came_once(&mut world, 0, &format!("after {after}"));
        }
    });
}

/// A session arrives at a broker that its client has left unnoticed for another one, and that
/// broker is killed soon after it has learned where the client is.
#[test]
fn what_came_too_late_is_sent_on_by_a_broker_that_starts_again() {
    each_shards(|| {
        for after in 1..30 {
            let mut world = trio(true);
            world.run_for(after);
            // The client's broker does not notice.
            world.vanish(0);
            world.clients[0].home = 2;
            world.connect(0);
            world.run_for(200);
            world.crash(0);
            world.run_for(500);
            world.start(0);
            world.run_for(40_000);
            came_once(&mut world, 2, &format!("after {after}"));
        }
    });
}

/// A client that was given a second session while the brokers did not reach each other does not
/// take a message of the first session for one that it received in the second.
#[test]
fn sessions_at_two_brokers_use_other_packet_identifiers() {
    for after in 1..4 {
        let mut world = pair(false, "t");
        world.hang_up(0);
        world.cut(0, false);
        for _ in 0..20 {
            world.publish(1, "t", QoS::ExactlyOnce);
        }
        world.run_for(1000);
        world.clients[0].home = 1;
        world.connect(0);
        world.run_for(1000);
        assert_eq!(world.clients[0].presents, [false, false]);
        for _ in 0..20 {
            world.publish(2, "t", QoS::ExactlyOnce);
        }
        world.run_for(after);
        world.vanish(0);
        world.clients[0].home = 0;
        world.connect(0);
        world.run_for(1000);
        assert_eq!(world.clients[0].presents.last(), Some(&true));
        let received: BTreeSet<u64> = world.clients[0].received.iter().copied().collect();
        assert!(
            (0..20).all(|number| received.contains(&number)),
            "after {after}: {received:?}"
        );
    }
}

/// A session is cut off while it moves, so that both brokers have it and neither knows where it is;
/// its client alternates between them, and does not take a message from one broker for one that it
/// received from the other.
#[test]
fn a_session_that_two_brokers_have_uses_other_packet_identifiers_at_each() {
    let mut both = 0;
    for store in [false, true] {
        for attempt in 0..60 {
            let mut world = pair(store, "t");
            (0..attempt).for_each(|_| _ = world.rng.any());
            world.move_to(0, 1);
            world.run_for(1 + attempt % 15);
            world.cut(0, true);
            world.run_for(1000);
            let mut unreleased = 0;
            for round in 0..6 {
                for publisher in [1, 2] {
                    for _ in 0..5 {
                        world.publish(publisher, "t", QoS::ExactlyOnce);
                    }
                }
                world.run_for(1 + (attempt + round) % 3);
                unreleased += world.clients[0].unreleased();
                world.move_to(0, (round % 2) as usize);
                world.run_for(500);
                if store && round == 2 {
                    // The session continues with the packet identifiers that it had.
                    world.crash(1);
                    world.start(1);
                    world.connect(2);
                    world.run_for(500);
                }
            }
            let presents = &world.clients[0].presents;
            both += usize::from(unreleased > 0 && presents.iter().skip(1).all(|it| *it));
            world.mend(0);
            all_came(&mut world, 1, &format!("store {store}, attempt {attempt}"));
        }
    }

    assert!(both > 0);
}

/// A client connects to the other broker of a [`pair`] while the one that has its session is cut
/// off; timing varies by `attempt`.
fn comes_cut_off(store: bool, attempt: u64) -> World {
    let mut world = pair(store, "t");
    (0..attempt).for_each(|_| _ = world.rng.any());
    world.hang_up(0);
    world.cut(0, false);
    world.run_for(1000);
    world.clients[0].home = 1;
    world.connect(0);
    world
}

/// A client that did not receive the CONNACK of a new session gets Session Present 0 again, and
/// does not take the new session for the one in which it has subscribed.
#[test]
fn who_has_not_heard_of_a_new_session_is_told_again() {
    each_shards(|| {
        let mut unheard = 0;
        for store in [false, true] {
            for silent in [false, true] {
                for attempt in 0..8 {
                    let mut world = comes_cut_off(store, attempt);
                    world.run_for(1);
                    let hears = world.clients[0].is_connected();
                    unheard += u32::from(!hears && holds(&world, 1, "s"));
                    match silent {
                        true => world.vanish(0),
                        false => world.hang_up(0),
                    }
                    if attempt % 2 == 1 && store {
                        world.crash(1);
                        world.start(1);
                        world.run_for(5);
                        connect_all(&mut world);
                    } else {
                        world.connect(0);
                    }
                    world.run_for(1000);
                    assert!(hears || world.clients[0].presents.last() == Some(&false));
                    world.publish(2, "t", QoS::AtLeastOnce);
                    world.run_for(1000);
                    assert!(world.clients[0].received.contains(&0));
                }
            }
        }
        assert!(unheard > 0);
    });
}

/// A client that was given a second session while its own was unreachable, and has sent nothing
/// since, gets its own session as soon as that is reachable.
#[test]
fn a_session_that_was_never_used_gives_way() {
    each_shards(|| {
        let mut world = pair(false, "t");
        for home in [1, 0] {
            world.move_to(0, home);
            world.run_for(1000);
        }
        world.hang_up(0);
        world.cut(0, false);
        for _ in 0..10 {
            world.publish(1, "t", QoS::AtLeastOnce);
        }
        world.run_for(1000);
        // The client does not subscribe again.
        world.clients[0].filter = None;
        world.clients[0].home = 1;
        world.connect(0);
        world.run_for(1000);
        assert_eq!(world.clients[0].presents, [false, true, true, false]);
        world.mend(0);
        world.run_for(5000);
        assert!(!world.clients[0].is_connected());
        world.connect(0);
        world.run_for(5000);
        assert_eq!(world.clients[0].presents.last(), Some(&true));
        let numbers: Vec<u64> = (0..10).collect();
        assert_eq!(world.clients[0].received, numbers);
    });
}

/// Messages that wait for the broker that has a session arrive there, although the client has had a
/// second session meanwhile at a broker that they passed before.
#[test]
fn what_waits_for_a_link_is_not_what_another_session_has_had() {
    each_shards(|| {
        let mut world = pair(false, "t");
        world.cut(0, false);
        for _ in 0..100 {
            world.publish(2, "t", QoS::ExactlyOnce);
        }
        world.run_for(1000);
        for home in [1, 0] {
            world.move_to(0, home);
            world.run_for(1000);
        }
        assert_eq!(world.clients[0].presents, [false, false, true]);
        world.mend(0);
        came_once(&mut world, 0, "what waited");
    });
}

/// Packet identifiers that a client remembers of a session are released when another session takes
/// its place: otherwise the client would take a new message for a repeated one.
#[test]
fn what_a_client_remembers_of_a_session_that_ends_is_released() {
    each_shards(|| {
        let mut remembered = 0;
        for store in [false, true] {
            for attempt in 0..40 {
                let mut world = pair(store, "t");
                (0..attempt).for_each(|_| _ = world.rng.any());
                world.cut(0, false);
                world.run_for(1000);
                // Once to each broker, so that there are two sessions, and back to the first
                // broker.
                for home in [1, 0] {
                    world.move_to(0, home);
                    world.run_for(1000);
                }
                for _ in 0..5 {
                    world.publish(1, "t", QoS::ExactlyOnce);
                }
                world.run_for(1 + attempt % 4);
                world.hang_up(0);
                remembered += world.clients[0].unreleased();
                world.clients[0].home = 1;
                world.connect(0);
                world.run_for(1000);
                world.mend(0);
                world.run_for(10_000);
                assert!(holds(&world, 1, "s") && !holds(&world, 0, "s"));
                let left = world.clients[0].unreleased();
                assert_eq!(left, 0, "store {store}, attempt {attempt}");
            }
        }
        assert!(remembered > 0);
    });
}

/// A second session of a client that has delivered nothing yet, and survives a kill, recognises its
/// queued messages when they arrive again from the broker with the first session.
#[test]
fn what_waits_in_a_session_that_survived_is_known() {
    each_shards(|| {
        let mut world = pair(true, "t");
        world.hang_up(0);
        world.cut(0, false);
        world.run_for(1000);
        world.clients[0].home = 1;
        world.connect(0);
        world.run_for(1000);
        assert_eq!(world.clients[0].presents, [false, false]);
        world.hang_up(0);
        world.crash(1);
        world.run_for(10);
        world.start(1);
        world.connect(2);
        world.run_for(100);
        for _ in 0..10 {
            world.publish(2, "t", QoS::ExactlyOnce);
        }
        world.run_for(1000);
        world.connect(0);
        world.run_for(1000);
        assert_eq!(world.clients[0].received.len(), 10);
        world.mend(0);
        came_once(&mut world, 1, "what waited");
    });
}

/// A broker that created a second session while the client's own was cut off, and was killed before
/// it could ask for that one, asks after its restart: one session remains, at the client's last
/// broker, with the messages of both.
#[test]
fn sessions_become_one_although_the_broker_that_made_another_one_was_killed() {
    each_shards(|| {
        let all = [(0, 0), (0, 5000), (1, 0), (1, 5000)];
        for (last, pause) in all {
            for kills in [1, 2] {
                let mut world = pair(true, "t");
                // Without this pause the other broker may have been unreachable for the first one
                // when its session was created, so that this one asks, too.
                world.run_for(pause);
                world.hang_up(0);
                world.cut(0, false);
                world.run_for(1000);
                world.publish(1, "t", QoS::ExactlyOnce);
                // No session at the first broker subscribes to the topic of the other session.
                world.clients[0].filter = Some("u");
                for home in [1, last] {
                    world.move_to(0, home);
                    world.run_for(1000);
                }
                assert_eq!(world.clients[0].presents, [false, false, true]);
                world.hang_up(0);
                world.publish(2, "u", QoS::ExactlyOnce);
                world.run_for(1000);
                for _ in 0..kills {
                    world.crash(1);
                    world.start(1);
                    world.run_for(1000);
                }
                world.connect(2);
                world.mend(0);
                world.run_for(10_000);
                let at = [0, 1].map(|site| holds(&world, site, "s"));
                let what = format!("at {last}, {pause} ms, {kills} kills");
                assert_eq!(at, [last == 0, last == 1], "{what}");
                world.connect(0);
                came_once(&mut world, last, &what);
            }
        }
    });
}

/// A session that began with Clean Start 1 and never moved stays at the client's last broker,
/// although that broker was killed: it is replaced neither by a session that the client was given
/// while its own was cut off, nor by an older one that was unreachable then.
#[test]
fn a_session_that_began_with_clean_start_stays_where_its_client_was_last() {
    each_shards(|| {
        for kills in 0..3 {
            let mut subscriber = Client::new("s".into(), Some("t"), 0);
            subscriber.clean_start = true;
            let mut world = pair_of(true, subscriber);
            world.cut(0, false);
            world.run_for(1000);
            world.clients[0].filter = Some("u");
            for home in [1, 0] {
                world.move_to(0, home);
                world.run_for(1000);
            }
            assert_eq!(world.clients[0].presents, [false, false, true]);
            world.hang_up(0);
            world.publish(1, "t", QoS::ExactlyOnce);
            world.publish(2, "u", QoS::ExactlyOnce);
            kill_and_mend(&mut world, 0, kills);
            world.connect(0);
            world.run_for(1000);
            // The client has subscribed there, and has received SUBACK.
            world.publish(2, "t", QoS::ExactlyOnce);
            came_once(&mut world, 0, &format!("given another one, {kills} kills"));

            let mut world = pair(true, "t");
            world.hang_up(0);
            world.cut(0, false);
            world.run_for(1000);
            let client = &mut world.clients[0];
            (client.clean_start, client.filter) = (true, Some("u"));
            world.move_to(0, 1);
            world.run_for(1000);
            world.hang_up(0);
            world.publish(2, "u", QoS::ExactlyOnce);
            kill_and_mend(&mut world, 1, kills);
            world.connect(0);
            world.run_for(1000);
            assert_eq!(world.clients[0].presents, [false, false, true]);
            world.publish(1, "u", QoS::ExactlyOnce);
            came_once(&mut world, 1, &format!("from before, {kills} kills"));
        }
    });
}

/// Kills a broker of a pair `kills` times, and reconnects the two.
fn kill_and_mend(world: &mut World, broker: usize, kills: u32) {
    world.run_for(1000);
    for _ in 0..kills {
        world.crash(broker);
        world.start(broker);
        world.run_for(1000);
    }
    for publisher in [1, 2] {
        if !world.clients[publisher].is_connected() {
            world.connect(publisher);
        }
    }
    world.mend(0);
    world.run_for(10_000);
}

/// A client did not learn of a session that it was given while its own was cut off, and returns to
/// its own: the unknown session must not end the subscriptions of the client's own session.
#[test]
fn what_a_client_has_subscribed_to_is_not_lost_to_a_session_that_it_has_not_heard_of() {
    each_shards(|| {
        let mut unheard = 0;
        let ways = [0, 1].into_iter().flat_map(|home| {
            let pauses = [500, 10_000].into_iter();
            pauses.flat_map(move |pause| [false, true].map(|killed| (home, pause, killed)))
        });
        for (home, pause, killed) in ways {
            for attempt in 0..8 {
                let mut world = comes_cut_off(true, attempt);
                world.run_for(1 + attempt % 3);
                if world.clients[0].is_connected() {
                    continue;
                }
                world.vanish(0);
                if killed {
                    world.crash(1);
                    world.start(1);
                }
                unheard += u32::from(holds(&world, 1, "s"));
                world.connect(2);
                world.run_for(100);
                world.mend(0);
                world.run_for(pause);
                world.publish(1, "t", QoS::ExactlyOnce);
                world.publish(2, "t", QoS::ExactlyOnce);
                world.run_for(10);
                world.clients[0].home = home;
                world.connect(0);
                for _ in 0..10 {
                    world.publish(1, "t", QoS::ExactlyOnce);
                    world.publish(2, "t", QoS::ExactlyOnce);
                    world.run_for(1);
                }
                let way = format!("at {home} after {pause}, killed: {killed}, attempt {attempt}");
                came_once(&mut world, home, &way);
            }
        }
        assert!(unheard > 0);
    });
}
