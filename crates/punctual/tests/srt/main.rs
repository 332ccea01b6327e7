//! From a requirement in an MQTT packet to queues on switches: a client, the
//! manager before Mosquitto, the requirements table, the controller, Open vSwitch.
//!
//! Everything runs in network namespaces of the test's own. Needs root, `ip`,
//! `tc`, Open vSwitch and Mosquitto; without them a test prints why and passes,
//! unless PUNCTUAL_REQUIRE_NETNS (PUNCTUAL_REQUIRE_OVS, PUNCTUAL_REQUIRE_MOSQUITTO)
//! is set.

#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod clients;
mod group;
mod linux;
mod network;
mod paho;
mod programs;
mod stages;

use std::thread;
use std::time::{Duration, Instant};

use punctual_client::{Answer, Client, Message, Status};
use punctual_southbound::ovsdb::Endpoint;

use clients::{asking, hear, plain, publish, subscribe, told};
use network::{Network, RATE};
use programs::{Controller, Flood, Programs, Traffic, put_first};
use stages::Stages;

/// Where a test ends that would hang.
const LONG: Duration = Duration::from_secs(180);

/// The ports on the way from the publisher at the first of three switches over the
/// broker at the second to the subscriber at the third.
const PORTS: [(&str, &str); 4] = [
    ("s1", "s1-s2"),
    ("s2", "s2-b"),
    ("s2", "s2-s3"),
    ("s3", "s3-s"),
];

/// Polls until something is there.
#[track_caller]
fn until<T>(what: &str, look: impl Fn() -> Option<T>) -> T {
    let end = Instant::now() + LONG;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "waited too long: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// A subscriber of `axis/#` and a publisher whose requirement is admitted, and the answer.
#[track_caller]
fn admitted(network: &Network, asked: &Message) -> (Client, Client, Answer) {
    let mut subscriber = network.client("s", &network.subscriber);
    subscribe(&mut subscriber, "axis/#");
    let mut publisher = network.client("p", &network.publisher);
    let answer = publish(&mut publisher, asked).unwrap();
    assert_eq!(answer.status, Some(Status::Admitted), "{:?}", answer.reason);
    (subscriber, publisher, answer)
}

/// The publisher is at the first switch, the broker at the second and the
/// subscriber at the third. What is admitted is found in its queue at every
/// port, and does not wait for a flood, as what is not does.
#[test]
fn a_requirement_becomes_queues_on_every_switch() {
    let Some(network) = Network::build(3, 2) else {
        return;
    };
    let Some(programs) = Programs::start(&network, &[]) else {
        return;
    };
    let asked = asking("axis/1", Duration::from_millis(50));
    let (mut subscriber, mut publisher, answer) = admitted(&network, &asked);
    let bound = answer.bound.unwrap();
    assert!(bound <= Duration::from_millis(50), "{bound:?}");
    assert_eq!(answer.flow.as_deref(), Some("axis/1@p"));
    hear(&mut subscriber);

    let channel = programs.channel("axis/1@p").unwrap();
    assert_eq!(channel["state"], "admitted");
    let queue = u8::try_from(channel["queue"].as_u64().unwrap()).unwrap();
    assert!(queue > 0, "{channel}");
    let before = PORTS.map(|(_, port)| network.sent(port, queue));
    let messages = 20;
    for _ in 0..messages {
        publish(&mut publisher, &asked);
        hear(&mut subscriber);
    }
    for ((switch, port), before) in PORTS.iter().zip(before) {
        let passed = network.sent(port, queue) - before;
        assert!(
            passed >= messages,
            "{passed} packets in queue {queue} of {port} at {switch}"
        );
    }

    // Twice what the links carry, along all of the way.
    let flood = Flood::start(&network, 2 * RATE);
    let lost = || (network.dropped("s1-s2", 0) > 0).then_some(());
    until("the flood to fill the queue", lost);
    let mut other = network.client("o", &network.publisher);
    let time = |client: &mut _, message: &_| {
        let began = Instant::now();
        publish(client, message);
        began.elapsed()
    };
    let (mut urgent, mut usual) = (Vec::new(), Vec::new());
    for _ in 0..messages {
        urgent.push(time(&mut publisher, &asked));
        usual.push(time(&mut other, &plain("other/1")));
        hear(&mut subscriber);
    }
    // What is admitted had room in its queue all the way.
    for (switch, port) in PORTS {
        let dropped = network.dropped(port, queue);
        assert_eq!(dropped, 0, "in queue {queue} of {port} at {switch}");
    }
    drop(flood);
    let (urgent, usual) = (median(urgent), median(usual));
    println!("PUBLISH to PUBACK under a flood: {urgent:?} admitted, {usual:?} other (medians)");
}

/// With tags live switches take the entries, and hosts notice nothing.
#[test]
fn priorities_can_be_carried_in_tags_too() {
    let Some(network) = Network::build(3, 2) else {
        return;
    };
    let patience = ["--decision-timeout", "20000"];
    let Some(_programs) = Programs::start_with(&network, &patience, &["--tags"]) else {
        return;
    };
    let asked = asking("axis/1", Duration::from_millis(50));
    let (mut subscriber, _publisher, _) = admitted(&network, &asked);
    hear(&mut subscriber);
    for (switch, what) in [("s1", "push_vlan"), ("s2", "pop_vlan"), ("s3", "pop_vlan")] {
        let flows = network.ovs.ofctl("dump-flows", switch, [""; 0]).unwrap();
        assert!(flows.contains(what), "{switch}: {flows}");
    }
}

/// What cannot be met is carried, and its publisher told where there is no room.
#[test]
fn what_cannot_be_met_is_refused_with_the_reason() {
    let Some(network) = Network::build(3, 2) else {
        return;
    };
    let Some(programs) = Programs::start(&network, &["--decision-timeout", "20000"]) else {
        return;
    };
    let mut publisher = network.client("p", &network.publisher);
    let hopeless = asking("axis/1", Duration::from_micros(200));
    let answer = publish(&mut publisher, &hopeless).unwrap();
    assert_eq!(answer.status, Some(Status::BestEffort), "it is carried");
    let reason = answer.reason.unwrap();
    assert!(reason.contains("deadline"), "{reason}");
    let channel = programs.channel("axis/1@p").unwrap();
    assert_eq!(channel["state"], "rejected");
    assert_eq!(channel["reason"], reason.as_str());

    // A flow that ends is withdrawn.
    drop(publisher);
    until("the request to go", || {
        programs.channel("axis/1@p").is_none().then_some(())
    });
}

/// While the controller is away what was admitted goes on, and a new request has
/// an answer in time; the decision follows when it is back.
#[test]
fn without_the_controller_there_is_an_answer_in_time() {
    let Some(network) = Network::build(3, 2) else {
        return;
    };
    let patience = Duration::from_secs(2);
    let Some(mut programs) = Programs::start(&network, &["--decision-timeout", "2000"]) else {
        return;
    };
    let mut publisher = network.client("p", &network.publisher);
    subscribe(&mut publisher, "$SYS/rt/clients/p");
    let first = asking("axis/1", Duration::from_millis(50));
    let answer = publish(&mut publisher, &first).unwrap();
    assert_eq!(answer.status, Some(Status::Admitted), "{:?}", answer.reason);

    programs.controller.stop();
    let began = Instant::now();
    let second = asking("axis/2", Duration::from_millis(50));
    let answer = publish(&mut publisher, &second).unwrap();
    assert_eq!(answer.status, Some(Status::BestEffort));
    let reason = answer.reason.unwrap();
    assert!(reason.contains("controller has not decided"), "{reason}");
    assert!(began.elapsed() >= patience, "it was waited for");
    // Of what was admitted before nothing has changed.
    let answer = publish(&mut publisher, &first);
    assert!(answer.is_none(), "{answer:?}");

    programs.controller = Controller::start(&network, &programs.table, &[]);
    told(&mut publisher, "axis/2 rt-status=admitted");
    for flow in ["axis/1@p", "axis/2@p"] {
        let channel = programs.channel(flow).unwrap();
        assert_eq!(channel["state"], "admitted");
    }
}

/// A controller that ends and begins again removes nothing from the switches of what was
/// admitted, nor of what other packets go by: not one of a datagram each millisecond is lost.
/// The switches come back when they like, seconds after the controller.
#[test]
fn what_was_admitted_stays_while_the_controller_begins_again() {
    let Some(network) = Network::build(3, 2) else {
        return;
    };
    let patience = ["--decision-timeout", "20000"];
    let Some(mut programs) = Programs::start(&network, &patience) else {
        return;
    };
    let asked = asking("axis/1", Duration::from_millis(50));
    let (mut subscriber, mut publisher, _) = admitted(&network, &asked);
    hear(&mut subscriber);
    let traffic = Traffic::start(&network);
    until("datagrams", || (traffic.arrived() > 100).then_some(()));
    for round in 1..=2 {
        programs.controller.stop();
        let began = Instant::now();
        let before: Vec<_> = (1..=3).map(|number| network.entries(number)).collect();
        until("switches to wait between attempts", || {
            let waited = network.seconds_without_controller();
            waited.iter().all(|seconds| *seconds >= 3).then_some(())
        });
        programs.controller = Controller::start(&network, &programs.table, &[]);
        until("all switches to be compared", || {
            (programs.controller.compared() >= 3).then_some(())
        });
        let away = began.elapsed().as_secs_f64();
        for (number, before) in (1..=3).zip(before) {
            let after = network.entries(number);
            for entry in before.keys() {
                let age = after.get(entry);
                assert!(
                    age.is_some_and(|age| *age >= away.floor()),
                    "{round}: s{number} had for {away:.1} s, and has for {age:?} s: {entry}"
                );
            }
            assert_eq!(after.len(), before.len(), "{after:#?}");
        }
        publish(&mut publisher, &asked);
        hear(&mut subscriber);
    }
    let (sent, arrived) = traffic.stop();
    assert_eq!(arrived, sent, "datagrams arrived and sent");
}

/// How long it takes from PUBLISH to PUBACK until all eight switches have a new
/// flow: a connection each, for those of one connection are one stream.
#[test]
#[ignore = "a measurement: --release, --ignored --nocapture, on a quiet machine"]
fn set_up_over_eight_switches() {
    measure_set_up(false);
}

/// The same with real-time priority for all who take part, as on a machine that
/// others use.
#[test]
#[ignore = "a measurement: --release, --ignored --nocapture"]
fn set_up_over_eight_switches_before_other_programs() {
    measure_set_up(true);
}

#[expect(clippy::print_stdout, reason = "figures")]
fn measure_set_up(realtime: bool) {
    const FLOWS: usize = 200;
    let Some(network) = Network::build(8, 8) else {
        return;
    };
    let more: &[&str] = if realtime { &["--realtime"] } else { &[] };
    let Some(programs) = Programs::start_with(&network, more, more) else {
        return;
    };
    // What forwards goes before other programs: all switches are threads of one.
    put_first(network.ovs.pid(), 45);
    if realtime {
        programs.put_others_first(40);
        put_first(std::process::id(), 40);
    }
    let stages = Stages::watch(Endpoint::Unix(programs.table.socket()));
    let mut times: [Vec<Duration>; 5] = Default::default();
    let mut clients = Vec::new();
    for n in 0..FLOWS {
        let mut client = network.client(&format!("p{n}"), &network.publisher);
        let message = asking(&format!("axis/{n}"), Duration::from_millis(500));
        let began = Instant::now();
        let answer = publish(&mut client, &message).unwrap();
        let ended = Instant::now();
        assert_eq!(
            answer.status,
            Some(Status::Admitted),
            "{n}: {:?}",
            answer.reason
        );
        let (asked, answered) = stages.of(&format!("axis/{n}@p{n}"));
        // The same without a decision.
        let known = Instant::now();
        publish(&mut client, &message);
        let each = [
            ended - began,
            asked.saturating_duration_since(began),
            answered.saturating_duration_since(asked),
            ended.saturating_duration_since(answered),
            known.elapsed(),
        ];
        for (times, time) in times.iter_mut().zip(each) {
            times.push(time);
        }
        clients.push(client);
    }
    println!("over 8 switches, {FLOWS} flows, a connection each:");
    let names = [
        "PUBLISH to PUBACK with a new flow",
        "of it, until it is in the table",
        "of it, until all switches have it and the answer is in the table",
        "of it, until the PUBACK is there",
        "PUBLISH to PUBACK with a flow that is known",
    ];
    for (name, mut times) in names.into_iter().zip(times) {
        let last = median(times[FLOWS * 3 / 4..].to_vec());
        times.sort();
        println!(
            "{name}: p50 {:?}, p99 {:?}, longest {:?}; p50 of the last quarter {last:?}",
            times[FLOWS / 2],
            times[FLOWS * 99 / 100],
            times[FLOWS - 1]
        );
    }
}
