//! Controllers around networks in virtual time: whatever happens, the packets of
//! every admitted flow come once to each of its receivers.
#![allow(clippy::unwrap_used, missing_docs, unreachable_pub)]

mod support;

use punctual_controller::plan::Packet;
use punctual_controller::{Effect, End, Event, Policing, Routing, Settings};
use punctual_model::Rng;
use punctual_model::srt::{Peer, Protocol, State};
use punctual_sim::seeds;
use support::{World, request};

fn key(flow: &str) -> (String, String) {
    ("m".into(), flow.into())
}

fn udp(switch: u8, host: u8, port: u16) -> Peer {
    Peer::udp([10, 0, switch, host], port)
}

fn tcp(switch: u8, host: u8, port: u16) -> Peer {
    Peer::tcp([10, 0, switch, host], port)
}

#[test]
fn a_flow_over_a_broker_has_two_streams() {
    let mut world = World::new(1, 5, 2);
    let broker = tcp(3, 1, 1883);
    world.request(request(
        "f",
        tcp(1, 1, 4000),
        &[tcp(4, 2, 5000)],
        Some(broker),
    ));
    world.settle();
    let row = &world.rows[&key("f")];
    assert_eq!(row.state, State::Admitted, "{}", row.reason);
    assert_eq!(row.queue, Some(5));
    let bound = row.bounds_ns[&tcp(4, 2, 5000)];
    assert!((1..=10_000_000).contains(&bound), "{bound}");
    let path = &row.paths[&tcp(4, 2, 5000)];
    assert!(path.contains(&"h3-0!service".to_owned()), "{path:?}");
    world.check("after the request");
    world.withdraw(&key("f"));
    world.settle();
    assert_eq!((world.rows.len(), world.entries()), (0, 0));
}

/// From a publisher over a broker to a subscriber, all on one switch.
fn over_a_broker(flow: &str, number: u16, deadline_ns: u64) -> punctual_model::srt::Request {
    let mut asked = request(
        flow,
        tcp(1, 1, 10_000 + number),
        &[tcp(1, 2, 20_000 + number)],
        Some(tcp(1, 3, 1883)),
    );
    asked.deadline_ns = deadline_ns;
    asked.period_ns = 20_000_000;
    asked.wire_bytes = 1538;
    asked
}

#[test]
fn the_bound_of_an_idle_flow_does_not_depend_on_its_deadline() {
    let bound = |deadline_ns: u64| {
        let mut world = World::new(3, 2, 3);
        world.request(over_a_broker("f", 0, deadline_ns));
        world.settle();
        let row = &world.rows[&key("f")];
        assert_eq!(row.state, State::Admitted, "{}", row.reason);
        row.bounds_ns[&tcp(1, 2, 20_000)]
    };
    let bounds = [5, 20, 100, 1_000].map(|millis| bound(millis * 1_000_000));
    assert!(bounds[0] < 3_000_000, "{bounds:?}");
    assert_eq!(bounds, [bounds[0]; 4]);
}

#[test]
fn a_network_is_filled_with_flows_over_a_broker() {
    let mut world = World::new(3, 2, 3);
    for number in 0..120 {
        world.request(over_a_broker(&format!("f{number}"), number, 20_000_000));
    }
    world.settle();
    let admitted = world
        .rows
        .values()
        .filter(|row| row.state == State::Admitted);
    // A processor of 150 µs a message and links of 123 µs a frame have time for 120 in 20 ms.
    let admitted = admitted.count();
    let why = world.rows.values().find(|row| row.state != State::Admitted);
    assert!(admitted >= 110, "{admitted}: {why:?}");
    world.check("120 flows");
}

#[test]
fn what_a_broker_sends_over_a_more_urgent_connection_has_its_class_from_there_on() {
    let mut world = World::new(4, 2, 3);
    let broker = Some(tcp(2, 1, 1883));
    let mut urgent = request("urgent", tcp(1, 1, 4000), &[tcp(1, 2, 5000)], broker);
    urgent.priority = Some(7);
    let shared = [tcp(1, 2, 5000), tcp(1, 3, 5001)];
    let mut plain = request("plain", tcp(1, 1, 4001), &shared, broker);
    plain.priority = Some(3);
    world.request(plain);
    world.settle();
    let alone = world.rows[&key("plain")].bounds_ns.clone();
    world.request(urgent);
    world.settle();
    for flow in ["plain", "urgent"] {
        let row = &world.rows[&key(flow)];
        assert_eq!(row.state, State::Admitted, "{}", row.reason);
    }
    let bounds = &world.rows[&key("plain")].bounds_ns;
    assert!(
        bounds.values().all(|bound| *bound < 10_000_000),
        "{bounds:?}"
    );
    assert!(alone.iter().all(|(peer, bound)| bounds[peer] >= *bound));
    world.check("two classes behind a broker");
}

#[test]
fn a_subscriber_on_the_machine_of_the_broker_has_a_bound() {
    let mut world = World::new(5, 2, 2);
    let local = tcp(2, 1, 5000);
    let subscribers = [local, tcp(1, 2, 5001)];
    world.request(request(
        "f",
        tcp(1, 1, 4000),
        &subscribers,
        Some(tcp(2, 1, 1883)),
    ));
    world.settle();
    let row = &world.rows[&key("f")];
    assert_eq!(row.state, State::Admitted, "{}", row.reason);
    let (near, far) = (row.bounds_ns[&local], row.bounds_ns[&tcp(1, 2, 5001)]);
    assert!(0 < near && near < far, "{near} {far}");
}

#[test]
fn what_goes_to_a_broker_without_subscribers_takes_its_part_of_the_network() {
    let mut world = World::new(6, 2, 2);
    let broker = Some(tcp(2, 1, 1883));
    // Each takes 60 % of the link to the broker.
    for flow in ["one", "two"] {
        let mut asked = request(flow, tcp(1, 1, 4000), &[], broker);
        (asked.wire_bytes, asked.frames) = (1538, 49);
        world.request(asked);
    }
    world.settle();
    let states = ["one", "two"].map(|flow| world.rows[&key(flow)].state);
    assert_eq!(states, [State::Admitted, State::Rejected]);
}

#[test]
fn a_group_follows_its_members() {
    let mut world = World::new(2, 6, 2);
    let mut asked = request(
        "g",
        udp(1, 1, 4000),
        &[udp(3, 1, 5000), udp(4, 1, 5000)],
        None,
    );
    world.request(asked.clone());
    world.settle();
    let row = &world.rows[&key("g")];
    assert!(row.group_address.is_some_and(|group| group.is_multicast()));
    assert!(row.rendezvous.is_some());
    world.check("two members");
    asked.subscribers.insert(udp(5, 2, 5001));
    asked.subscribers.insert(udp(5, 2, 5002));
    asked.generation += 1;
    world.request(asked.clone());
    world.settle();
    world.check("two more at one host");
    asked.subscribers.remove(&udp(3, 1, 5000));
    asked.generation += 1;
    world.request(asked);
    world.settle();
    world.check("one left");
}

#[test]
fn members_that_stay_miss_nothing_and_get_nothing_twice() {
    for seed in 0..40 {
        let mut world = World::new(seed, 7, 2);
        let stay = [udp(3, 1, 5000), udp(6, 1, 5000)];
        let come = [udp(4, 1, 5000), udp(5, 2, 5000), udp(2, 2, 5000)];
        let mut asked = request("g", udp(1, 1, 4000), &stay, None);
        world.request(asked.clone());
        world.settle();
        let (packet, _) = world.packets(&key("g")).remove(0);
        let mut sent = 0;
        for change in come {
            for _ in 0..2 {
                if !asked.subscribers.remove(&change) {
                    asked.subscribers.insert(change);
                }
                asked.generation += 1;
                world.request(asked.clone());
                for _ in 0..30 {
                    world.send("g", packet);
                    sent += 1;
                    let pause = world.rng.below(500_000);
                    world.run(pause);
                }
            }
        }
        world.settle();
        assert_eq!(world.sent.len(), sent);
        for sent in &world.sent {
            for peer in stay {
                let copies = sent
                    .copies
                    .iter()
                    .filter(|(_, copy)| copy.destination == peer.address);
                assert_eq!(copies.count(), 1, "seed {seed}, sent at {}", sent.at);
            }
            assert_eq!(sent.lost, 0, "seed {seed}, sent at {}", sent.at);
        }
    }
}

#[test]
fn a_group_gets_its_tree_back_when_a_cable_is_repaired() {
    for routing in [Routing::Admission, Routing::Paper] {
        let mut world = World::with(1, 5, 2, |settings| settings.routing = routing);
        let members = [udp(2, 1, 5000), udp(3, 1, 5000)];
        world.request(request("g", udp(1, 1, 4000), &members, None));
        world.settle();
        let before = world.rows[&key("g")].clone();
        let (packet, _) = world.packets(&key("g")).remove(0);
        let cables = world.cables();
        let used = |(a, b): &&(End, End)| (a.datapath, b.datapath) == (1, 2);
        let cable = *cables.iter().find(used).unwrap();
        world.set_cable(cable, false);
        world.settle();
        let around = world.rows[&key("g")].clone();
        assert_ne!(around.paths, before.paths, "the cable is not used");
        world.set_cable(cable, true);
        // Longer than a minute: it may have changed for the failure.
        for _ in 0..700 {
            world.send("g", packet);
            world.run(100_000_000);
        }
        assert_eq!(world.rows[&key("g")].paths, before.paths, "{routing:?}");
        assert!(world.rows[&key("g")].bounds_ns < around.bounds_ns);
        for sent in &world.sent {
            assert_eq!(
                (sent.copies.len(), sent.lost),
                (2, 0),
                "sent at {}",
                sent.at
            );
        }
        world.check("after the repair");
    }
}

/// 2 000 joins, leaves, failures and repairs in 40 networks, while packets come.
#[test]
fn a_group_that_changes_and_loses_cables_misses_nothing_and_gets_nothing_twice() {
    for seed in 0..40 {
        let mut world = World::new(seed, 7, 2);
        let mut rng = Rng::new(seed ^ 0x6e0);
        let members: Vec<Peer> = (2..=7)
            .flat_map(|switch| [1, 2].map(|host| udp(switch, host, 5000)))
            .collect();
        let mut asked = request("g", udp(1, 1, 4000), &members[..2], None);
        world.request(asked.clone());
        world.settle();
        let mut down = None;
        for event in 0..50 {
            let trace = format!("seed {seed}, event {event}");
            let before = asked.subscribers.clone();
            let (packet, _) = world.packets(&key("g")).remove(0);
            let fails = match rng.below(4) {
                0 if down.is_none() => {
                    let cables = world.cables();
                    let cable = *rng.pick(&cables);
                    down = Some(cable);
                    world.set_cable(cable, false);
                    true
                }
                1 if down.is_some() => {
                    world.set_cable(down.take().unwrap(), true);
                    false
                }
                _ => {
                    let member = *rng.pick(&members);
                    let leaves = asked.subscribers.len() > 1 && asked.subscribers.remove(&member);
                    if !leaves {
                        asked.subscribers.insert(member);
                    }
                    asked.generation += 1;
                    world.request(asked.clone());
                    false
                }
            };
            for _ in 0..20 {
                world.send("g", packet);
                let pause = world.rng.below(500_000);
                world.run(pause);
            }
            world.settle();
            for sent in &world.sent {
                for peer in before.intersection(&asked.subscribers) {
                    let is_here = |copy: &&(End, Packet)| copy.1.destination == peer.address;
                    let copies = sent.copies.iter().filter(is_here).count();
                    // A failing cable may lose the packets that are in transit to it.
                    let least = usize::from(!fails);
                    assert!(
                        (least..=1).contains(&copies),
                        "{trace}: {copies} for {peer}"
                    );
                }
                assert!(fails || sent.lost == 0, "{trace}, sent at {}", sent.at);
            }
            world.check(&trace);
        }
    }
}

#[test]
fn a_more_urgent_flow_raises_its_connection() {
    let mut world = World::new(3, 4, 2);
    let broker = tcp(3, 1, 1883);
    let publisher = tcp(1, 1, 4000);
    world.request(request("slow", publisher, &[tcp(2, 1, 5000)], Some(broker)));
    world.settle();
    let mut urgent = request("fast", publisher, &[tcp(4, 1, 5000)], Some(broker));
    urgent.priority = Some(7);
    world.request(urgent);
    world.settle();
    world.check("both");
    assert_eq!(world.rows[&key("fast")].queue, Some(7));
    // Their packets to the broker have one header.
    let sent: Vec<_> = world.packets(&key("slow"));
    world.send("slow", sent[0].0);
    world.run(20_000_000);
    assert_eq!(world.sent[0].queues.first(), Some(&7));
}

#[test]
fn what_does_not_fit_is_refused_with_the_link_and_its_load() {
    let mut world = World::new(4, 3, 3);
    let mut refused = 0;
    for number in 0..40_u16 {
        let from = udp(1 + (number % 3) as u8, 1, 4000 + number);
        let mut asked = request(&format!("f{number:02}"), from, &[udp(2, 3, 5000)], None);
        asked.wire_bytes = 1538;
        asked.period_ns = 2_000_000;
        asked.deadline_ns = 60_000_000;
        world.request(asked);
        world.settle();
        let row = &world.rows[&key(&format!("f{number:02}"))];
        if row.state == State::Rejected {
            refused += 1;
            assert!(row.reason.contains("s2>h2-2"), "{}", row.reason);
            assert!(row.reason.contains(" %"), "{}", row.reason);
        }
    }
    // 16.25 frames of 123.04 us fit into 2 ms.
    assert_eq!(refused, 40 - 16);
    world.check("full");
}

#[test]
fn what_was_refused_is_tried_again_when_there_is_room() {
    let mut world = World::new(4, 3, 3);
    let admitted = |world: &World| -> Vec<String> {
        let rows = world.rows.iter();
        let rows = rows.filter(|(_, row)| row.state == State::Admitted);
        rows.map(|((_, flow), _)| flow.clone()).collect()
    };
    for number in 0..20_u16 {
        let from = udp(1 + (number % 3) as u8, 1, 4000 + number);
        let mut asked = request(&format!("f{number:02}"), from, &[udp(2, 3, 5000)], None);
        asked.wire_bytes = 1538;
        asked.period_ns = 2_000_000;
        asked.deadline_ns = 60_000_000;
        asked.priority = Some(if number == 18 { 6 } else { 5 });
        world.request(asked);
        world.settle();
    }
    assert_eq!(admitted(&world).len(), 16);
    // The more important one first, then who was there first.
    for (gone, now) in [("f03", "f18"), ("f05", "f16")] {
        world.withdraw(&key(gone));
        world.settle();
        let all = admitted(&world);
        assert!(all.len() == 16 && all.contains(&now.to_owned()), "{all:?}");
    }
    world.check("others have their places");
    // One that asks for less leaves room, too.
    let mut modest = world.requests[&key("f00")].clone();
    modest.generation += 1;
    modest.period_ns = 60_000_000;
    world.request(modest);
    world.settle();
    let all = admitted(&world);
    assert!(
        all.len() == 17 && all.contains(&"f17".to_owned()),
        "{all:?}"
    );
    world.check("one asks for less");
}

#[test]
fn a_host_that_is_unknown_is_waited_for() {
    let mut world = World::with(5, 3, 2, |_| {});
    let stranger = udp(9, 9, 5000);
    world.request(request("f", udp(1, 1, 4000), &[stranger], None));
    world.settle();
    let row = &world.rows[&key("f")];
    assert_eq!(row.state, State::Pending);
    assert!(row.reason.contains("10.0.9.9"), "{}", row.reason);
}

#[test]
fn detours_carry_packets_until_there_is_a_new_way() {
    let mut world = World::new(6, 6, 2);
    for number in 0..6_u8 {
        let (from, to) = (udp(1 + number, 1, 4000), udp(1 + (number + 2) % 6, 2, 5000));
        world.request(request(&format!("f{number}"), from, &[to], None));
    }
    world.settle();
    let status = world.controller.status();
    assert!(
        status.covered_completely && status.uncovered.is_empty(),
        "{:?}",
        status.uncovered
    );
    let mut delivered_by_detour = 0;
    for cable in world.cables() {
        let link = |from: End, to: End| format!("s{}>s{}", from.datapath, to.datapath);
        let links = [link(cable.0, cable.1), link(cable.1, cable.0)];
        let uncovered = world.controller.status().uncovered;
        let is_uncovered = |key: &(String, String)| {
            let mut all = uncovered.iter();
            all.any(|it| links.contains(&it.link) && it.flows.contains(key))
        };
        // The controller knows nothing of it yet.
        let plan = world.controller.plan().clone();
        let down = [cable.0, cable.1]
            .map(|end| (format!("s{}", end.datapath), end.port))
            .into();
        for (k, row) in &world.rows {
            assert_eq!(row.state, State::Admitted);
            for (packet, receivers) in world.packets(k) {
                let at = world.host(packet.source).at.unwrap();
                let delivered = plan.deliver(&format!("s{}", at.datapath), at.port, packet, &down);
                let delivered = delivered.unwrap();
                // A flow may have no detour on the path that it took when another cable was down.
                if !is_uncovered(k) {
                    assert_eq!(delivered.len(), receivers.len(), "{k:?} without {cable:?}");
                    let mut paths = row.paths.values().flatten();
                    delivered_by_detour += usize::from(paths.any(|it| links.contains(it)));
                }
            }
        }
        world.set_cable(cable, false);
        world.settle();
        assert!(world.rows.values().all(|row| row.state == State::Admitted));
        world.check("a cable is down");
        world.set_cable(cable, true);
        world.settle();
        world.check("it works again");
    }
    assert!(delivered_by_detour > 0);
}

#[test]
fn a_controller_that_begins_anew_keeps_ways() {
    for seed in 0..10 {
        let mut world = World::new(seed, 6, 2);
        let mut rng = Rng::new(seed);
        for number in 0..12 {
            let asked = any_request(&mut rng, number, 6);
            world.request(asked);
        }
        world.settle();
        world.check("before");
        let rows = world.rows.clone();
        world.restart_controller();
        world.settle();
        for (key, row) in &rows {
            let now = &world.rows[key];
            // Refused flows are tried again after all others, and may fit beside other paths.
            if row.state != State::Admitted && now.state == State::Admitted {
                continue;
            }
            assert_eq!(
                (now.state, &now.paths),
                (row.state, &row.paths),
                "seed {seed}"
            );
            let kept = (now.queue, now.group_address, &now.rendezvous);
            assert_eq!(
                kept,
                (row.queue, row.group_address, &row.rendezvous),
                "seed {seed}"
            );
        }
        world.check("after");
    }
}

#[test]
fn ways_can_be_found_as_the_paper_does() {
    for seed in 0..10 {
        let paper = |settings: &mut Settings| settings.routing = Routing::Paper;
        let mut world = World::with(seed, 6, 2, paper);
        let mut rng = Rng::new(seed);
        for number in 0..12 {
            let asked = any_request(&mut rng, number, 6);
            world.request(asked);
        }
        world.settle();
        let rows = world.rows.values();
        let admitted = rows.filter(|row| row.state == State::Admitted).count();
        assert!(admitted > 0, "seed {seed}");
        world.check("by equation (1)");
    }
}

#[test]
fn who_is_held_to_what_is_declared_can_be_chosen() {
    for (police, expected) in [
        (Policing::Nothing, [false, false]),
        (Policing::Datagrams, [true, false]),
        (Policing::Everything, [true, true]),
    ] {
        let mut world = World::with(1, 4, 2, |settings| settings.police = police);
        world.request(request("d", udp(1, 1, 4000), &[udp(3, 1, 5000)], None));
        world.request(request("t", tcp(1, 1, 4000), &[tcp(3, 1, 5000)], None));
        world.settle();
        world.check("both are carried");
        let plan = world.controller.plan();
        let held = [Protocol::Udp, Protocol::Tcp].map(|protocol| {
            let mut entries = plan.entries();
            entries.any(|(_, matching, entry)| {
                matching.header.protocol == protocol && entry.police.is_some()
            })
        });
        assert_eq!(held, expected, "{police:?}");
    }
}

#[test]
fn what_was_promised_goes_on_while_a_controller_begins_anew() {
    for seed in 0..20 {
        let mut world = World::new(seed, 6, 2);
        let to = [udp(3, 1, 5000), udp(5, 1, 5000)];
        world.request(request("g", udp(1, 1, 4000), &to, None));
        world.settle();
        let (packet, _) = world.packets(&key("g")).remove(0);
        world.restart_controller();
        for _ in 0..100 {
            world.send("g", packet);
            let pause = world.rng.below(500_000);
            world.run(pause);
        }
        world.settle();
        for sent in &world.sent {
            assert_eq!(sent.copies.len(), 2, "seed {seed}, sent at {}", sent.at);
            assert_eq!(sent.lost, 0, "seed {seed}, sent at {}", sent.at);
            assert_eq!(sent.queues.len(), 1, "seed {seed}, sent at {}", sent.at);
        }
        assert_eq!(world.sent.len(), 100);
    }
}

/// A few at a time, so that nobody who asks meanwhile waits for all.
#[test]
fn bounds_that_have_grown_are_written_again_in_turns() {
    const FLOWS: u16 = 40;
    let mut world = World::new(7, 3, 2);
    let to = udp(2, 1, 5000);
    for number in 0..FLOWS {
        let from = udp(1, 1, 4000 + number);
        world.request(request(&format!("f{number:02}"), from, &[to], None));
    }
    world.run(50_000_000);
    let first = world.rows.clone();
    assert!(first.values().all(|row| row.state == State::Admitted));
    let (mut most, mut sum) = (0, 0);
    while world.controller.next_tick().0 < world.now + 3_000_000_000 {
        let now = world.controller.next_tick();
        let mut effects = Vec::new();
        world.controller.handle(Event::Tick, now, &mut effects);
        let mut written = 0;
        for effect in effects {
            if let Effect::Write(channel) = effect {
                written += 1;
                let key = (channel.manager.clone(), channel.flow.clone());
                world.rows.insert(key, channel);
            }
        }
        (most, sum) = (most.max(written), sum + written);
    }
    assert!((1..=16).contains(&most) && sum > most, "{most} of {sum}");
    for (key, row) in &world.rows {
        let bound = row.bounds_ns[&to];
        assert!(bound >= first[key].bounds_ns[&to], "{key:?}");
        let now = world.controller.explain(&key.0, &key.1);
        assert!(bound >= now[0].bound_ns, "{key:?}");
    }
}

/// A request of some kind.
fn any_request(rng: &mut Rng, number: u64, switches: u64) -> punctual_model::srt::Request {
    let host = |port: u64, rng: &mut Rng| {
        (
            (1 + rng.below(switches)) as u8,
            (1 + rng.below(2)) as u8,
            (5000 + port) as u16,
        )
    };
    let from = host(number % 5, rng);
    let count = 1 + rng.below(3);
    let to: Vec<_> = (0..count).map(|_| host(100, rng)).collect();
    let broker = (rng.below(2) == 0).then(|| tcp(1 + (number % 2) as u8, 1, 1883));
    let name = format!("f{number:03}");
    let mut asked = match broker {
        Some(broker) => {
            let to: Vec<_> = to.iter().map(|(s, h, p)| tcp(*s, *h, *p)).collect();
            request(&name, tcp(from.0, from.1, from.2), &to, Some(broker))
        }
        None => {
            let to: Vec<_> = to.iter().map(|(s, h, p)| udp(*s, *h, *p)).collect();
            request(&name, udp(from.0, from.1, from.2), &to, None)
        }
    };
    asked.priority = Some(rng.below(8) as u8);
    asked.deadline_ns = 5_000_000 + rng.below(30_000_000);
    asked.period_ns = 5_000_000 + rng.below(20_000_000);
    asked.wire_bytes = 100 + rng.below(1_400) as u32;
    asked
}

/// Whatever happens, in whatever order: afterwards every admitted flow works.
#[test]
fn whatever_happens() {
    seeds(120).for_each(trace);
}

fn trace(seed: u64) {
    let mut rng = Rng::new(seed ^ 0xabcd);
    let switches = 3 + rng.below(6);
    let mut world = World::new(seed, switches, 2);
    let mut number = 0;
    let mut down = Vec::new();
    for turn in 0..25 {
        let what = rng.below(10);
        let trace = format!("seed {seed}, turn {turn}, event {what}");
        match what {
            0..=3 => {
                number += 1;
                let asked = any_request(&mut rng, number, switches);
                world.request(asked);
            }
            4 if !world.requests.is_empty() => {
                let at = rng.below(world.requests.len() as u64) as usize;
                let key = world.requests.keys().nth(at).unwrap().clone();
                world.withdraw(&key);
            }
            5 if !world.requests.is_empty() => {
                let at = rng.below(world.requests.len() as u64) as usize;
                let mut asked = world.requests.values().nth(at).unwrap().clone();
                let other = any_request(&mut rng, number, switches);
                asked.generation += 1;
                asked.priority = other.priority;
                asked.deadline_ns = other.deadline_ns;
                if asked.broker.is_some() == other.broker.is_some() {
                    asked.subscribers = other.subscribers;
                }
                world.request(asked);
            }
            6 | 7 => {
                let cables = world.cables();
                let cable = cables[rng.below(cables.len() as u64) as usize];
                match down.iter().position(|known| *known == cable) {
                    Some(at) => {
                        down.remove(at);
                        world.set_cable(cable, true);
                    }
                    None => {
                        down.push(cable);
                        world.set_cable(cable, false);
                    }
                }
            }
            8 => world.restart_switch(1 + rng.below(switches)),
            _ => world.restart_controller(),
        }
        // Sometimes the next thing happens before all is done.
        match rng.below(3) {
            0 => world.run(rng.below(4_000_000)),
            _ => {
                world.settle();
                world.check(&trace);
            }
        }
    }
    world.settle();
    world.check(&format!("seed {seed}, at the end"));
    for key in world.requests.keys().cloned().collect::<Vec<_>>() {
        world.withdraw(&key);
    }
    world.settle();
    assert_eq!(
        (world.entries(), world.rows.len()),
        (0, 0),
        "seed {seed}: something is left"
    );
}
