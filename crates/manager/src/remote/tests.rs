//! The manager before a table that remembers what it is asked.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};

use punctual_model::wire::Transport;

use super::*;
use crate::Verdict;

/// Rows by flow, and the generation that was given last.
#[derive(Default)]
struct Rows {
    rows: BTreeMap<String, (Request, u64)>,
    asked: u64,
}

#[derive(Clone, Default)]
struct Paper(Arc<Mutex<Rows>>);

impl RequirementsTable for Paper {
    fn ask(&mut self, request: Request) -> u64 {
        let mut rows = self.0.lock().unwrap();
        rows.asked += 1;
        let generation = rows.asked;
        rows.rows
            .insert(request.flow.clone(), (request, generation));
        generation
    }

    fn withdraw(&mut self, flow: &str) {
        self.0.lock().unwrap().rows.remove(flow);
    }
}

impl Paper {
    fn row(&self, flow: &str) -> Option<(Request, u64)> {
        self.0.lock().unwrap().rows.get(flow).cloned()
    }

    fn asked(&self) -> u64 {
        self.0.lock().unwrap().asked
    }

    fn receivers(&self, flow: &str) -> Vec<String> {
        let (request, _) = self.row(flow).unwrap();
        request.subscribers.iter().map(Peer::to_string).collect()
    }
}

fn bench() -> (RemoteManager, Paper) {
    let paper = Paper::default();
    let manager = RemoteManager::new(Settings::default(), Box::new(paper.clone()));
    (manager, paper)
}

fn client(id: &str, session: u64) -> Client {
    Client {
        id: id.into(),
        session,
        user: None,
        is_proven: false,
        address: None,
        transport: Transport::Tcp,
    }
}

fn at(host: u8, port: u16) -> Option<Endpoints> {
    Some(Endpoints {
        client: Peer::tcp(Ipv4Addr::new(10, 0, 0, host), port),
        broker: Peer::tcp(Ipv4Addr::new(10, 0, 0, 9), 1883),
    })
}

fn publication(topic: &'static str, requirements: &str) -> Publication<'static> {
    Publication {
        topic,
        requirements: requirements.parse().unwrap(),
        payload: 20,
        properties: 0,
        quota: Quota::default(),
    }
}

const PLAIN: &str = "deadline=5ms, period=10ms, size=64";

fn publish(manager: &mut RemoteManager, requirements: &str) -> Option<Decision> {
    let publication = publication("axis", requirements);
    manager.publish(&client("p", 1), at(1, 4001), publication, QoS::AtLeastOnce)
}

fn subscribe(manager: &mut RemoteManager, id: &str, host: u8) -> Result<Subscribed, u64> {
    let subscription = Subscription {
        filter: "axis/#".into(),
        requirements: Requirements::NONE,
    };
    let port = 5000 + u16::from(host);
    manager.subscribe(&client(id, 1), at(host, port), &[subscription])
}

/// Answers what is asked now.
fn decide(manager: &mut RemoteManager, paper: &Paper, state: State) {
    let (request, generation) = paper.row("axis@p").unwrap();
    let bounds = request.subscribers.iter().map(|peer| (*peer, 1_000_000));
    let channel = Channel {
        flow: request.flow.clone(),
        generation,
        state,
        reason: match state {
            State::Admitted => String::new(),
            _ => "link a-b has no room".into(),
        },
        bounds_ns: bounds.collect(),
        queue: Some(5),
        ..Channel::default()
    };
    manager.decided(channel);
    manager.registry.assert_consistent();
}

/// What the publisher is told: the status, whether it was not asked for, and
/// whether it is granted anything.
fn told(manager: &mut RemoteManager) -> Vec<(Status, bool, bool)> {
    let changes = manager.take_changes().into_iter();
    let flows = changes.filter_map(|change| match change {
        Change::Flow {
            decision, notify, ..
        } => decision.map(|decision| {
            let status = decision.answer.status.unwrap();
            (status, notify, decision.grant.is_some())
        }),
        Change::Subscription { .. } => None,
    });
    flows.collect()
}

fn verdicts(manager: &mut RemoteManager) -> Vec<Vec<Verdict>> {
    let all = manager.take_subscribed().into_iter();
    all.map(|(_, subscribed)| subscribed.verdicts).collect()
}

#[test]
fn a_requirement_becomes_a_row_and_its_answer_a_decision() {
    let (mut manager, paper) = bench();
    subscribe(&mut manager, "s", 2).unwrap();
    assert_eq!(publish(&mut manager, PLAIN), None);
    let (row, _) = paper.row("axis@p").unwrap();
    assert_eq!((row.topic.as_str(), row.qos), ("axis", 1));
    assert_eq!(row.publisher.to_string(), "tcp:10.0.0.1:4001");
    assert_eq!(row.broker.unwrap().to_string(), "tcp:10.0.0.9:1883");
    assert_eq!(paper.receivers("axis@p"), ["tcp:10.0.0.2:5002"]);
    assert_eq!((row.deadline_ns, row.size), (5_000_000, 64));
    // Clocks of publishers may be wrong.
    assert_eq!(row.period_ns, 9_998_000);
    assert_eq!(row.check().unwrap_err().field(), "manager", "the table's");

    decide(&mut manager, &paper, State::Admitted);
    assert_eq!(told(&mut manager), [(Status::Admitted, false, true)]);
    let view = manager.view("axis@p").unwrap();
    assert_eq!((view.priority, view.bound_ns), (5, 1_000_000));
    assert_eq!(view.receivers[0].client, "s");
    // What is known is not asked for again.
    let again = publish(&mut manager, PLAIN).unwrap();
    assert_eq!(again.answer.status, Some(Status::Admitted));
    assert_eq!(paper.asked(), 1);
}

#[test]
fn what_cannot_be_understood_is_rejected_here() {
    let (mut manager, paper) = bench();
    let decision = publish(&mut manager, "deadline=5ms").unwrap();
    assert!(decision.answer.reason.unwrap().contains("rt-period"));
    let nowhere = manager.publish(
        &client("p", 1),
        None,
        publication("axis", PLAIN),
        QoS::AtMostOnce,
    );
    assert!(nowhere.unwrap().answer.reason.unwrap().contains("address"));
    assert_eq!(
        (paper.asked(), manager.registry.clients_after(None).count()),
        (0, 0)
    );
}

#[test]
fn an_answer_to_an_earlier_question_counts_for_nothing() {
    let (mut manager, paper) = bench();
    publish(&mut manager, PLAIN);
    let (request, generation) = paper.row("axis@p").unwrap();
    publish(&mut manager, "deadline=2ms, period=10ms, size=64");
    let stale = Channel {
        generation,
        ..Channel::of(&request, State::Admitted, "")
    };
    manager.decided(stale);
    assert_eq!(told(&mut manager), []);
    decide(&mut manager, &paper, State::Rejected);
    assert_eq!(told(&mut manager), [(Status::Rejected, false, false)]);
}

#[test]
fn a_rejected_change_leaves_what_was_admitted() {
    let (mut manager, paper) = bench();
    publish(&mut manager, PLAIN);
    decide(&mut manager, &paper, State::Admitted);
    told(&mut manager);
    publish(&mut manager, "deadline=1ms, period=10ms, size=64");
    decide(&mut manager, &paper, State::Rejected);
    assert_eq!(told(&mut manager), [(Status::Rejected, false, true)]);
    let (row, _) = paper.row("axis@p").unwrap();
    assert_eq!(row.deadline_ns, 5_000_000, "it asks for what it had");
    decide(&mut manager, &paper, State::Admitted);
    assert_eq!(told(&mut manager), [(Status::Admitted, true, true)]);
    // And if that has gone meanwhile, it is told.
    publish(&mut manager, "deadline=1ms, period=10ms, size=64");
    decide(&mut manager, &paper, State::Rejected);
    told(&mut manager);
    decide(&mut manager, &paper, State::Rejected);
    assert_eq!(told(&mut manager), [(Status::Rejected, true, false)]);
}

#[test]
fn a_subscriber_waits_for_the_network() {
    let (mut manager, paper) = bench();
    publish(&mut manager, PLAIN);
    decide(&mut manager, &paper, State::Admitted);
    let number = subscribe(&mut manager, "s", 2).unwrap_err();
    decide(&mut manager, &paper, State::Admitted);
    let subscribed = manager.take_subscribed();
    assert_eq!(subscribed[0].0, number);
    let answer = subscribed[0].1.answer.as_ref().unwrap();
    assert_eq!(answer.bound, Some(Duration::from_millis(1)));
    // Who unsubscribes is taken out.
    manager.unsubscribe("s", 1, &["axis/#"]);
    assert_eq!(paper.receivers("axis@p"), [""; 0]);
}

#[test]
fn a_subscriber_without_room_keeps_out_nobody_else() {
    let (mut manager, paper) = bench();
    publish(&mut manager, PLAIN);
    decide(&mut manager, &paper, State::Admitted);
    told(&mut manager);
    subscribe(&mut manager, "s", 2).unwrap_err();
    subscribe(&mut manager, "t", 3).unwrap_err();
    assert_eq!(paper.receivers("axis@p"), ["tcp:10.0.0.2:5002"]);
    decide(&mut manager, &paper, State::Rejected);
    assert_eq!(verdicts(&mut manager), [[Verdict::BestEffort]]);
    assert_eq!(paper.receivers("axis@p"), ["tcp:10.0.0.3:5003"]);
    decide(&mut manager, &paper, State::Admitted);
    assert_eq!(verdicts(&mut manager), [[Verdict::Served]]);
    assert_eq!(told(&mut manager), [(Status::Admitted, false, true)]);
    assert_eq!(manager.len(), 1);
}

#[test]
fn without_a_controller_there_is_an_answer_and_the_decision_follows() {
    let (mut manager, paper) = bench();
    publish(&mut manager, PLAIN);
    decide(&mut manager, &paper, State::BestEffort);
    assert_eq!(told(&mut manager), [(Status::BestEffort, false, false)]);
    decide(&mut manager, &paper, State::Admitted);
    assert_eq!(told(&mut manager), [(Status::Admitted, true, true)]);

    // It goes again: what was admitted stays, who comes is served as can be.
    subscribe(&mut manager, "s", 2).unwrap_err();
    decide(&mut manager, &paper, State::BestEffort);
    assert_eq!(verdicts(&mut manager), [[Verdict::BestEffort]]);
    decide(&mut manager, &paper, State::BestEffort);
    assert_eq!(told(&mut manager), []);
    assert_eq!(manager.len(), 1);
    // It is back, and the receiver gets its place.
    decide(&mut manager, &paper, State::Admitted);
    assert_eq!(paper.receivers("axis@p"), ["tcp:10.0.0.2:5002"]);
    manager.take_changes();
    decide(&mut manager, &paper, State::Admitted);
    let changes = manager.take_changes();
    let served = |change: &Change| matches!(change, Change::Subscription { served: true, .. });
    assert!(changes.iter().any(served), "{changes:?}");
}

#[test]
fn what_the_network_lost_is_told() {
    let (mut manager, paper) = bench();
    publish(&mut manager, PLAIN);
    decide(&mut manager, &paper, State::Admitted);
    told(&mut manager);
    decide(&mut manager, &paper, State::Failed);
    assert_eq!(told(&mut manager), [(Status::BestEffort, true, false)]);
    decide(&mut manager, &paper, State::Admitted);
    assert_eq!(told(&mut manager), [(Status::Admitted, true, true)]);
}

#[test]
fn a_client_that_comes_back_from_elsewhere_is_asked_for_there() {
    let (mut manager, paper) = bench();
    subscribe(&mut manager, "s", 2).unwrap();
    publish(&mut manager, PLAIN);
    decide(&mut manager, &paper, State::Admitted);
    manager.connected(&client("p", 1), at(1, 4002));
    let (row, _) = paper.row("axis@p").unwrap();
    assert_eq!(row.publisher.to_string(), "tcp:10.0.0.1:4002");
    decide(&mut manager, &paper, State::Admitted);
    manager.connected(&client("s", 1), at(2, 6000));
    assert_eq!(paper.receivers("axis@p"), ["tcp:10.0.0.2:6000"]);
    decide(&mut manager, &paper, State::Rejected);
    assert_eq!(paper.receivers("axis@p"), [""; 0]);
    let changes = manager.take_changes();
    let lost = |change: &Change| matches!(change, Change::Subscription { served: false, .. });
    assert!(changes.iter().any(lost), "{changes:?}");
}

#[test]
fn the_brokers_own_machine_is_on_no_network() {
    let (mut manager, paper) = bench();
    let here = at(9, 4001);
    let publication = publication("axis", PLAIN);
    let decision = manager.publish(&client("p", 1), here, publication, QoS::AtLeastOnce);
    assert_eq!(
        decision.unwrap().answer.status,
        Some(Status::BestEffort),
        "nothing is asked for"
    );
    assert!(paper.row("axis@p").is_none());
    subscribe(&mut manager, "s", 2).unwrap_err();
    let (row, _) = paper.row("axis@p").unwrap();
    assert_eq!(
        (row.publisher.to_string(), row.broker),
        ("tcp:10.0.0.9".into(), None)
    );
    decide(&mut manager, &paper, State::Admitted);
    assert_eq!(told(&mut manager), [(Status::Admitted, true, true)]);
    manager.ended("s", 1);
    assert!(paper.row("axis@p").is_none(), "withdrawn");
}

#[test]
fn who_has_gone_leaves_nothing() {
    let (mut manager, paper) = bench();
    publish(&mut manager, PLAIN);
    // In the middle of a decision, and of a trial.
    subscribe(&mut manager, "s", 2).unwrap_err();
    manager.ended("p", 1);
    assert!(paper.row("axis@p").is_none());
    assert_eq!(verdicts(&mut manager), [[Verdict::Served]]);
    manager.registry.assert_consistent();
    manager.ended("s", 1);
    assert_eq!(manager.registry.clients_after(None).count(), 0);
    assert!(manager.registry.flows().is_empty());
    assert!(manager.joins.is_empty() && manager.tickets.is_empty() && manager.queue.is_empty());
}

#[test]
fn a_newer_session_takes_the_place() {
    let (mut manager, paper) = bench();
    publish(&mut manager, PLAIN);
    manager.publish(
        &client("p", 2),
        at(1, 4001),
        publication("other", PLAIN),
        QoS::AtLeastOnce,
    );
    assert!(paper.row("axis@p").is_none());
    let old = publish(&mut manager, PLAIN).unwrap();
    assert!(old.answer.reason.unwrap().contains("newer session"));
}

#[test]
fn who_cannot_be_in_a_row_keeps_out_nobody() {
    let (mut manager, paper) = bench();
    let subscription = [Subscription {
        filter: "axis/#".into(),
        requirements: Requirements::NONE,
    }];
    // Nobody knows where this one is.
    let nowhere = manager.subscribe(&client("n", 1), None, &subscription);
    assert_eq!(nowhere.unwrap().verdicts, [Verdict::BestEffort]);
    // This one is at another address of the broker.
    let elsewhere = |port| {
        at(2, port).map(|ends| Endpoints {
            broker: Peer::tcp(Ipv4Addr::new(10, 0, 1, 9), 1883),
            ..ends
        })
    };
    let early = manager.subscribe(&client("e", 1), elsewhere(1), &subscription);
    early.unwrap();
    publish(&mut manager, PLAIN);
    decide(&mut manager, &paper, State::Admitted);
    assert_eq!(told(&mut manager), [(Status::Admitted, false, true)]);
    let late = manager.subscribe(&client("l", 1), elsewhere(2), &subscription);
    let late = late.unwrap();
    assert_eq!(late.verdicts, [Verdict::BestEffort]);
    assert!(late.answer.unwrap().reason.unwrap().contains("10.0.1.9"));
    assert_eq!(paper.receivers("axis@p"), [""; 0]);
}
