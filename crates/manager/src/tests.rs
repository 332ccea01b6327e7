//! The manager as a whole, on small networks.

use std::sync::Arc;

use proptest::prelude::*;
use punctual_model::network::Document;
use punctual_model::wire::Transport;
use punctual_model::{Requirements, Status};

use crate::*;

/// 100 Mbit/s for everyone, 100 us for a message at the broker and 50 us for
/// each receiver.
fn settings() -> Settings {
    Settings {
        places: vec!["client *: hosts".parse().unwrap()],
        ..Settings::default()
    }
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

/// One at an address of its own.
fn elsewhere(id: &str, session: u64) -> Client {
    Client {
        address: Some([10, 0, 0, 1].into()),
        ..client(id, session)
    }
}

fn publication<'a>(topic: &'a str, requirements: &str) -> Publication<'a> {
    Publication {
        topic,
        requirements: requirements.parse().unwrap(),
        payload: 20,
        properties: 0,
        quota: Quota::default(),
    }
}

fn subscription(filter: &str, requirements: &str) -> Subscription {
    Subscription {
        filter: filter.into(),
        requirements: match requirements {
            "" => Requirements::NONE,
            text => text.parse().unwrap(),
        },
    }
}

fn status(decision: &Decision) -> Status {
    decision.answer.status.unwrap()
}

fn bound(manager: &Manager, id: &str) -> u64 {
    manager.view(id).unwrap().bound_ns
}

/// Every admitted flow keeps its deadline, and what is analysed is what is
/// admitted.
fn check(manager: &Manager) {
    manager.assert_consistent();
    let flows = &manager.network().flows;
    assert_eq!(flows.len(), manager.len());
    let bounds = punctual_analysis::analyze(manager.network());
    for (flow, bounds) in flows.iter().zip(bounds.flows) {
        let worst = bounds.iter().map(|b| b.best.unwrap()).max().unwrap();
        assert!(worst <= flow.deadline, "{}", flow.id);
        assert_eq!(bound(manager, &flow.id), worst, "{}", flow.id);
    }
}

#[test]
fn a_flow_without_receivers_is_bounded_up_to_the_broker() {
    let mut manager = Manager::new(settings()).unwrap();
    let decision = manager.publish(
        &client("p", 1),
        publication("t", "deadline=5ms, period=10ms"),
    );
    assert_eq!(status(&decision), Status::Admitted);
    assert_eq!(decision.answer.flow.as_deref(), Some("t@p"));
    let alone = decision.answer.bound.unwrap().as_nanos() as u64;
    // Two links, two blocking frames, the switch, the processor and what
    // blocks it.
    assert!((600_000..1_000_000).contains(&alone), "{alone}");
    let grant = decision.grant.unwrap();
    assert_eq!((grant.priority, grant.period_ns), (5, 10_000_000));
    assert!(grant.tolerance_ns > 0 && grant.tolerance_ns < 5_000_000);
    check(&manager);
}

#[test]
fn a_receiver_lengthens_the_way() {
    let mut manager = Manager::new(settings()).unwrap();
    manager.publish(
        &client("p", 1),
        publication("a/b", "deadline=5ms, period=10ms"),
    );
    let alone = bound(&manager, "a/b@p");
    let subscribed = manager.subscribe(&client("s", 2), &[subscription("a/+", "")]);
    assert_eq!(subscribed.verdicts, [Verdict::Served]);
    let answer = subscribed.answer.unwrap();
    assert_eq!(answer.status, Some(Status::Admitted));
    let longer = bound(&manager, "a/b@p");
    assert!(longer > alone);
    assert_eq!(answer.bound.unwrap().as_nanos() as u64, longer);
    manager.unsubscribe("s", 2, &["a/+"]);
    assert_eq!(bound(&manager, "a/b@p"), alone);
    check(&manager);
}

/// Where several threads serve clients, the receiver's may be busy, too.
#[test]
fn a_hand_over_between_threads_is_a_stage_of_its_own() {
    let with_threads = |threads| {
        let mut manager = Manager::new(Settings {
            threads,
            ..settings()
        })
        .unwrap();
        manager.publish(
            &client("p", 1),
            publication("a/b", "deadline=9ms, period=10ms"),
        );
        manager.subscribe(&client("s", 2), &[subscription("a/+", "")]);
        check(&manager);
        bound(&manager, "a/b@p")
    };
    let Service {
        receive_ns,
        send_ns,
        blocking_ns,
    } = settings().service;
    let hand_over = receive_ns + send_ns + blocking_ns;
    assert_eq!(with_threads(2) - with_threads(1), hand_over);
}

#[test]
fn a_filter_that_matches_nothing_needs_no_answer() {
    let mut manager = Manager::new(settings()).unwrap();
    let subscribed = manager.subscribe(&client("s", 2), &[subscription("a", "")]);
    assert_eq!(subscribed.answer, None);
    assert_eq!(subscribed.verdicts, [Verdict::Served]);
}

#[test]
fn the_flow_that_does_not_fit_is_told_where_and_by_how_much() {
    // One client may ask for all that there is.
    let settings = Settings {
        max_user_load: 100,
        ..settings()
    };
    let mut manager = Manager::new(settings).unwrap();
    manager.subscribe(&client("s", 1), &[subscription("#", "")]);
    let mut admitted = 0;
    let refused = (0..100).find_map(|n| {
        let topic = format!("t{n}");
        let decision = manager.publish(
            &client("p", 2),
            publication(&topic, "deadline=3ms, period=3ms"),
        );
        match status(&decision) {
            Status::Admitted => {
                admitted += 1;
                None
            }
            _ => decision.answer.reason,
        }
    });
    assert!((5..20).contains(&admitted), "{admitted}");
    let reason = refused.unwrap();
    assert!(reason.contains(&format!("t{admitted}@p")), "{reason}");
    assert!(reason.contains("too long"), "{reason}");
    assert!(reason.contains("broker.cpu"), "{reason}");
    assert_eq!(manager.len(), admitted);
    check(&manager);
}

#[test]
fn what_was_rejected_comes_in_when_another_goes() {
    let mut manager = Manager::new(settings()).unwrap();
    let requirements = "deadline=1ms, period=10ms";
    for n in 0..9 {
        manager.publish(&client(&format!("p{n}"), 1), publication("t", requirements));
    }
    let admitted = manager.len();
    assert!(admitted < 9 && manager.wishes() == 9 - admitted);
    manager.take_changes();
    manager.reconsider(10);
    assert_eq!(manager.take_changes(), [], "nobody has gone");
    manager.ended("p0", 1);
    manager.reconsider(10);
    assert_eq!(manager.len(), admitted);
    let changes = manager.take_changes();
    assert!(
        changes.iter().any(
            |change| matches!(change, Change::Flow { notify: true, decision: Some(d), .. }
                if status(d) == Status::Admitted)
        ),
        "{changes:?}"
    );
    check(&manager);
}

#[test]
fn a_receiver_that_would_make_others_late_is_best_effort() {
    let mut manager = Manager::new(Settings {
        places: vec![
            "client far*: slow".parse().unwrap(),
            "client *: hosts".parse().unwrap(),
        ],
        star: Star {
            access_rate: 1_000_000,
            ..Settings::default().star
        },
        ..settings()
    })
    .unwrap();
    let requirements = "deadline=40ms, period=40ms, size=200";
    manager.subscribe(&client("far", 1), &[subscription("a", "")]);
    assert_eq!(
        status(&manager.publish(&client("p", 2), publication("a", requirements))),
        Status::Admitted
    );
    // Sixteen frames of 12 ms each do not fit behind each other.
    let mut verdicts = Vec::new();
    for n in 0..16 {
        let subscribed =
            manager.subscribe(&client(&format!("far{n}"), 3), &[subscription("a", "")]);
        verdicts.extend(subscribed.verdicts);
        if verdicts.last() == Some(&Verdict::BestEffort) {
            assert!(subscribed.answer.unwrap().reason.unwrap().contains("a@p"));
        }
        check(&manager);
    }
    assert_eq!(verdicts[0], Verdict::Served);
    assert_eq!(verdicts[15], Verdict::BestEffort);
}

#[test]
fn a_receivers_own_deadline_counts_if_it_can() {
    let mut manager = Manager::new(settings()).unwrap();
    manager.publish(
        &client("p", 1),
        publication("a", "deadline=50ms, period=50ms"),
    );
    let strict = manager.subscribe(&client("s", 1), &[subscription("a", "deadline=10ms")]);
    assert_eq!(strict.verdicts, [Verdict::Served]);
    assert_eq!(manager.network().flows[0].deadline, 10_000_000);
    let never = manager.subscribe(&client("r", 1), &[subscription("a", "deadline=10us")]);
    assert_eq!(never.verdicts, [Verdict::BestEffort]);
    assert!(
        never
            .answer
            .unwrap()
            .reason
            .unwrap()
            .contains("receiver's own")
    );
    assert_eq!(manager.network().flows[0].deadline, 10_000_000);
    // And a flow that comes later is not refused for a receiver's wish.
    let later = manager.publish(
        &client("q", 1),
        publication("a", "deadline=50ms, period=50ms"),
    );
    assert_eq!(status(&later), Status::Admitted);
    check(&manager);
}

#[test]
fn a_rejected_change_leaves_what_was_admitted() {
    let mut manager = Manager::new(settings()).unwrap();
    let p = client("p", 1);
    let first = manager.publish(&p, publication("a", "deadline=5ms, period=10ms"));
    let change = manager.publish(&p, publication("a", "deadline=50us, period=10ms"));
    assert_eq!(status(&change), Status::Rejected);
    assert_eq!(change.grant, first.grant);
    assert!(change.answer.reason.unwrap().contains("stays"));
    let change = manager.publish(&p, publication("a", "deadline=6ms, period=20ms"));
    assert_eq!(status(&change), Status::Admitted);
    assert_eq!(change.grant.unwrap().period_ns, 20_000_000);
    assert_eq!(manager.len(), 1);
    check(&manager);
}

#[test]
fn flows_end_with_their_session_and_not_with_an_older_one() {
    let mut manager = Manager::new(settings()).unwrap();
    let requirements = "deadline=5ms, period=10ms";
    manager.publish(&client("p", 7), publication("a", requirements));
    manager.ended("p", 6);
    assert_eq!(manager.len(), 1);
    // The end of session 7 is still on its way.
    manager.publish(&client("p", 8), publication("b", requirements));
    assert!(manager.view("a@p").is_none());
    manager.ended("p", 7);
    assert!(manager.view("b@p").is_some());
    let stale = manager.publish(&client("p", 7), publication("c", requirements));
    assert_eq!(status(&stale), Status::Rejected);
    manager.ended("p", 8);
    assert!(manager.is_empty());
    check(&manager);
}

#[test]
fn who_moves_takes_its_flows_along() {
    let document = Document::from_toml(
        r#"
        nodes = [{ id = "s" }, { id = "near" }, { id = "far" }, { id = "broker" }]
        links = [
          { id = "near>s", from = "near", to = "s", rate = "100Mbit" },
          { id = "s>near", from = "s", to = "near", rate = "100Mbit" },
          { id = "far>s", from = "far", to = "s", rate = "100kbit" },
          { id = "s>far", from = "s", to = "far", rate = "100kbit" },
          { id = "s>broker", from = "s", to = "broker", rate = "100Mbit" },
          { id = "broker>s", from = "broker", to = "s", rate = "100Mbit" },
        ]
        "#,
    )
    .unwrap();
    let mut manager = Manager::new(Settings {
        network: Some(document),
        places: vec![
            "address 10.0.0.0/24: near".parse().unwrap(),
            "address 10.0.1.0/24: far".parse().unwrap(),
        ],
        ..Settings::default()
    })
    .unwrap();
    let at = |id: &str, address: &str| Client {
        address: Some(address.parse().unwrap()),
        ..client(id, 1)
    };
    manager.subscribe(&at("s", "10.0.0.2"), &[subscription("a", "")]);
    let p = at("p", "10.0.0.1");
    let decision = manager.publish(&p, publication("a", "deadline=5ms, period=10ms"));
    assert_eq!(status(&decision), Status::Admitted);
    // The receiver goes where nothing arrives in 5 ms.
    manager.connected(&at("s", "10.0.1.2"));
    let changes = manager.take_changes();
    assert!(
        matches!(&changes[..], [Change::Subscription { served: false, .. }]),
        "{changes:?}"
    );
    // And then the publisher.
    manager.connected(&at("p", "10.0.1.1"));
    let changes = manager.take_changes();
    assert!(
        matches!(&changes[..], [Change::Flow { decision: Some(d), .. }] if d.grant.is_none()),
        "{changes:?}"
    );
    assert!(manager.is_empty());
    // A receiver that has no place for a while is best effort from then on: what is admitted meanwhile
    // does not count it.
    manager.connected(&at("p", "10.0.0.1"));
    manager.subscribe(&at("r", "10.0.0.2"), &[subscription("a", "")]);
    manager.take_changes();
    manager.connected(&at("r", "10.0.2.2"));
    let changes = manager.take_changes();
    assert!(
        matches!(&changes[..], [Change::Subscription { served: false, reason, .. }]
            if reason.contains("admission.places")),
        "{changes:?}"
    );
    let p = at("p", "10.0.0.1");
    let decision = manager.publish(&p, publication("a", "deadline=5ms, period=10ms"));
    assert_eq!(status(&decision), Status::Admitted);
    manager.connected(&at("r", "10.0.0.2"));
    let receivers = |manager: &Manager| manager.view("a@p").unwrap().receivers.len();
    assert_eq!(receivers(&manager), 0);
    let state = manager.state();
    manager.restore(&state);
    assert_eq!(receivers(&manager), 0);
    manager.subscribe(&at("r", "10.0.0.2"), &[subscription("a", "")]);
    assert_eq!(receivers(&manager), 1);
    // Who is nowhere gets no promise.
    let nowhere = at("n", "10.0.2.1");
    let decision = manager.publish(&nowhere, publication("a", "deadline=5ms, period=10ms"));
    let reason = decision.answer.reason.unwrap();
    assert!(reason.contains("admission.places"), "{reason}");
}

#[test]
fn the_flows_of_a_file_pass_the_processor() {
    let mut document =
        Document::from_toml(include_str!("../../../examples/networks/line.toml")).unwrap();
    document.nodes.iter_mut().for_each(|n| {
        if n.id == "receiver" {
            n.id = "broker".into();
        }
    });
    document.links.iter_mut().for_each(|l| {
        if l.to == "receiver" {
            l.to = "broker".into();
        }
    });
    let manager = Manager::new(Settings {
        network: Some(document.clone()),
        ..Settings::default()
    })
    .unwrap();
    assert_eq!(manager.network().flows.len(), 3);
    let error = Manager::new(Settings {
        network: Some(document),
        broker: "hub".into(),
        ..Settings::default()
    })
    .unwrap_err();
    assert!(error.to_string().contains("hub"), "{error}");
}

#[test]
fn users_have_quotas() {
    let mut manager = Manager::new(settings()).unwrap();
    let of = |id: &str, user: &str| Client {
        user: Some(user.into()),
        is_proven: true,
        ..client(id, 1)
    };
    let ask = |manager: &mut Manager, id: &str, user: &str, quota| {
        let publication = Publication {
            quota,
            ..publication("t", "deadline=9ms, period=10ms")
        };
        manager.publish(&of(id, user), publication)
    };
    let two = Quota {
        max_flows: Some(2),
        max_bandwidth: None,
    };
    assert_eq!(status(&ask(&mut manager, "a", "u", two)), Status::Admitted);
    assert_eq!(status(&ask(&mut manager, "b", "u", two)), Status::Admitted);
    // The same flow again is no further one.
    assert_eq!(status(&ask(&mut manager, "a", "u", two)), Status::Admitted);
    let third = ask(&mut manager, "c", "u", two);
    assert!(third.answer.reason.unwrap().contains("max-flows"));
    assert_eq!(status(&ask(&mut manager, "d", "v", two)), Status::Admitted);
    let slow = Quota {
        max_flows: None,
        max_bandwidth: Some(1000),
    };
    let wide = ask(&mut manager, "e", "w", slow);
    assert!(wide.answer.reason.unwrap().contains("max-bandwidth"));
    check(&manager);
}

/// However many flows a client asks for, others have room; and what it has is for others when it has
/// been away for long.
#[test]
fn nobody_has_all_of_the_processor() {
    let mut manager = Manager::new(settings()).unwrap();
    let hog = client("hog", 1);
    let mut topics = (0..).map(|n| format!("f/{n}"));
    let refused = topics.find_map(|topic| {
        let asked = publication(&topic, "deadline=9ms, period=1ms");
        let decision = manager.publish(&hog, asked);
        (status(&decision) != Status::Admitted).then_some(decision)
    });
    let why = refused.unwrap().answer.reason.unwrap();
    assert!(why.contains("admission.max_user_load"), "{why}");
    let hoarded = manager.len();
    let other = manager.publish(
        &elsewhere("p", 2),
        publication("t", "deadline=9ms, period=1ms"),
    );
    assert_eq!(status(&other), Status::Admitted);
    // Who has rights of its own has what these say.
    let asked = Publication {
        quota: Quota::UNLIMITED,
        ..publication("more", "deadline=9ms, period=1ms")
    };
    assert_eq!(status(&manager.publish(&hog, asked)), Status::Admitted);
    check(&manager);

    manager.absent("hog", 7);
    assert_eq!(manager.len(), hoarded + 2, "that is another session");
    manager.absent("hog", 1);
    assert_eq!(manager.len(), 1);
    let back = manager.publish(&hog, publication("f/0", "deadline=9ms, period=1ms"));
    assert_eq!(status(&back), Status::Admitted);
    check(&manager);
}

/// Neither more client identifiers nor user names that are just claimed give anybody more.
#[test]
fn whoever_proves_nothing_has_the_share_of_its_address() {
    let at = |n: usize, user: Option<&str>, address: &str| Client {
        user: user.map(Into::into),
        address: address.parse().ok(),
        ..client(&format!("c{n}"), 1)
    };
    let ask = |manager: &mut Manager, client: &Client| {
        let asked = publication("t", "deadline=9ms, period=1ms");
        manager.publish(client, asked)
    };
    for (addresses, words) in [
        (["10.0.0.5", "::ffff:10.0.0.5"], "at 10.0.0.5"),
        (["2001:db8::1", "2001:db8::2"], "in 2001:db8::/64"),
        (["127.0.0.1", "none"], "on this machine"),
    ] {
        let mut manager = Manager::new(settings()).unwrap();
        let names = (0..1000).map(|n| format!("user{n}"));
        let refused = names.enumerate().find_map(|(n, name)| {
            let user = (n % 3 == 0).then_some(name.as_str());
            let decision = ask(&mut manager, &at(n, user, addresses[n % 2]));
            (status(&decision) != Status::Admitted).then_some(decision.answer.reason)
        });
        let why = refused.flatten().unwrap();
        let said = format!("clients without a proven user name {words} may use");
        assert!(why.contains(&said), "{why}");
        // Others have theirs: elsewhere, and who has proven who it is.
        let proven = Client {
            is_proven: true,
            ..at(2001, Some("user0"), addresses[0])
        };
        for other in [at(2000, None, "10.0.0.6"), proven] {
            let decision = ask(&mut manager, &other);
            assert_eq!(status(&decision), Status::Admitted);
        }
        check(&manager);
    }
}

/// Flows that seldom send need little of the processor in the long run. Sent together, they delay what
/// is no more urgent, so how many a client has depends on how urgent they are, too.
#[test]
fn nobody_has_all_of_the_time_before_a_short_deadline() {
    for (hoarded, word, most) in [
        // 100 us each: half of the millisecond that the priority is meant for.
        ("deadline=1s, period=100ms, rt-priority=7", "1000 us", 5),
        // As urgent as the others.
        ("deadline=5ms, period=100ms", "5000 us", 25),
    ] {
        let mut manager = Manager::new(settings()).unwrap();
        let hog = client("hog", 1);
        let why = (0..1000).find_map(|n| {
            let decision = manager.publish(&hog, publication(&format!("f/{n}"), hoarded));
            (status(&decision) != Status::Admitted).then_some(decision.answer.reason)
        });
        let why = why.flatten().unwrap();
        assert!(
            why.contains("admission.max_user_load") && why.contains(word),
            "{why}"
        );
        assert_eq!(manager.len(), most, "{hoarded}");
        // What is less urgent has room beside them, and so have others.
        for (who, asked) in [
            (&hog, "deadline=1s, period=1s"),
            (&elsewhere("p", 2), "deadline=5ms, period=10ms"),
        ] {
            let decision = manager.publish(who, publication("t", asked));
            assert_eq!(
                status(&decision),
                Status::Admitted,
                "{:?}",
                decision.answer.reason
            );
        }
        check(&manager);
    }
}

#[test]
fn what_if_changes_nothing() {
    let mut manager = Manager::new(settings()).unwrap();
    manager.publish(
        &client("p", 1),
        publication("a", "deadline=9ms, period=10ms"),
    );
    let before = manager.state();
    let asked = publication("b", "deadline=5ms, period=10ms");
    let (decision, others) = manager.what_if(&client("q", 1), asked);
    assert_eq!(status(&decision), Status::Admitted);
    let names: Vec<_> = others.iter().map(|view| view.id.as_str()).collect();
    assert_eq!(names, ["a@p", "b@q"]);
    assert_eq!((manager.state(), manager.len()), (before, 1));
    check(&manager);
}

#[test]
fn flows_come_back_after_a_restart() {
    let mut manager = Manager::new(settings()).unwrap();
    manager.subscribe(&client("s", 3), &[subscription("a/#", "deadline=8ms")]);
    manager.publish(
        &client("p", 4),
        publication("a/1", "deadline=9ms, period=10ms, late=drop"),
    );
    manager.reserve(
        &client("old", 0),
        publication("a/2", "deadline=9ms, period=10ms"),
    );
    let state = manager.changed_state().unwrap();
    assert_eq!(manager.changed_state(), None);
    let read = State::from_json(&state.to_json()).unwrap();
    assert_eq!(read, state);

    let mut again = Manager::new(settings()).unwrap();
    assert_eq!(again.restore(&read), Vec::<String>::new());
    assert_eq!(again.state(), state);
    assert_eq!(again.views(None, usize::MAX).len(), 2);
    assert_eq!(bound(&again, "a/1@p"), bound(&manager, "a/1@p"));
    // The one comes back and the other does not.
    again.connected(&client("p", 1));
    assert!(matches!(
        &again.take_changes()[..],
        [Change::Flow { notify: false, .. }]
    ));
    again.give_up_restored();
    assert!(again.view("a/1@p").is_some());
    assert!(again.view("a/2@old").is_some(), "made over the API");
    assert!(again.view("a/1@p").unwrap().receivers.is_empty());
    check(&again);
    for (text, word) in [
        ("{", "list of flows"),
        (r#"{"version":2,"clients":[]}"#, "version"),
    ] {
        let error = State::from_json(text).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn names_of_flows_are_unambiguous() {
    let mut manager = Manager::new(settings()).unwrap();
    let requirements = "deadline=9ms, period=10ms";
    manager.publish(&client("c", 1), publication("a@b", requirements));
    manager.publish(&client("b@c", 1), publication("a", requirements));
    assert_eq!(manager.len(), 2);
    assert!(manager.remove("a@b%40c"));
    assert!(!manager.remove("a@b%40c"));
    assert!(manager.view("a@b@c").is_some());
}

#[test]
fn large_messages_wait_for_their_last_frame_at_the_broker() {
    let mut manager = Manager::new(settings()).unwrap();
    manager.subscribe(&client("s", 1), &[subscription("a", "")]);
    let large = "deadline=90ms, period=100ms, size=14000";
    manager.publish(&client("p", 1), publication("a", large));
    let flow = &manager.network().flows[0];
    assert_eq!(flow.frames, 10);
    // Ten frames to the broker, its work, and ten from it; store and forward.
    let frame = 1538 * 80;
    assert!(bound(&manager, "a@p") > 10 * frame + 150_000 + 9 * 12_304);
    check(&manager);
}

/// What is kept of flows: names, priorities, receivers.
fn kept(manager: &Manager) -> Vec<(String, u8, Vec<String>)> {
    let receivers = |view: &FlowView| {
        let mut all: Vec<_> = view.receivers.iter().map(|r| r.client.clone()).collect();
        all.sort_unstable();
        all
    };
    let views = manager.views(None, usize::MAX).into_iter();
    views
        .map(|view| (view.id.clone(), view.priority, receivers(&view)))
        .collect()
}

#[test]
fn a_flow_without_a_priority_gets_one_with_which_all_are_in_time() {
    let mut manager = Manager::new(settings()).unwrap();
    let mut ask = |n: u32, requirements: &str| {
        let decision =
            manager.publish(&client(&format!("p{n}"), 1), publication("t", requirements));
        (
            status(&decision),
            decision.grant.map(|grant| grant.priority),
        )
    };
    // They share one band, and the broker's processor.
    for n in 0..10 {
        let found = ask(n, "deadline=3ms, period=10ms");
        assert_eq!(found, (Status::Admitted, Some(6)));
    }
    // Among them it would be late; above them it is not, nor are they.
    let stated = "deadline=1100us, period=10ms, rt-priority=6";
    assert_eq!(ask(10, stated).0, Status::Rejected);
    let found = ask(11, "deadline=1100us, period=10ms");
    assert_eq!(found, (Status::Admitted, Some(7)));
    let before = kept(&manager);
    let mut restored = Manager::new(settings()).unwrap();
    assert_eq!(restored.restore(&manager.state()), [""; 0]);
    assert_eq!(kept(&restored), before);
    check(&restored);
}

#[test]
fn subscriptions_that_are_best_effort_stay_so_over_a_restart() {
    let slow = Settings {
        star: Star {
            access_rate: 1_000_000,
            ..Settings::default().star
        },
        places: Vec::new(),
        ..Settings::default()
    };
    let mut manager = Manager::new(slow.clone()).unwrap();
    let at = |id: &str, host: u8| Client {
        address: Some([10, 0, 0, host].into()),
        ..client(id, 1)
    };
    let requirements = "deadline=20ms, period=40ms, size=100";
    let decision = manager.publish(&at("p", 1), publication("a", requirements));
    assert_eq!(status(&decision), Status::Admitted);
    let verdict = manager
        .subscribe(&at("far", 2), &[subscription("a", "")])
        .verdicts;
    assert_eq!(verdict, [Verdict::BestEffort]);
    let mut restored = Manager::new(slow).unwrap();
    let state = State::from_json(&manager.state().to_json()).unwrap();
    assert_eq!(restored.restore(&state), [""; 0]);
    assert_eq!(kept(&restored), kept(&manager));
    assert_eq!(restored.state(), manager.state());
}

#[test]
fn every_rejected_flow_is_looked_at_again() {
    let mut manager = Manager::new(Settings {
        max_flows: 4,
        ..settings()
    })
    .unwrap();
    let name = |n: u32| client(&format!("p{n}"), 1);
    for n in 0..4 {
        manager.publish(&name(n), publication("t", "deadline=50ms, period=1s"));
    }
    // Three that can never be in time, and one that can.
    for n in 4..7 {
        manager.publish(&name(n), publication("t", "deadline=1us, period=1s"));
    }
    manager.publish(&name(7), publication("t", "deadline=50ms, period=1s"));
    assert_eq!((manager.len(), manager.wishes()), (4, 4));
    manager.ended("p0", 1);
    manager.reconsider(2);
    assert_eq!(manager.len(), 3);
    manager.reconsider(2);
    assert_eq!((manager.len(), manager.wishes()), (4, 3));
    manager.take_changes();
    manager.reconsider(2);
    assert_eq!(manager.take_changes(), []);
}

#[test]
fn flows_of_the_file_that_say_where_they_go_get_paths() {
    let text = r#"{
      "nodes": [{"id":"p"},{"id":"s"},{"id":"q"},{"id":"broker"}],
      "links": [
        {"id":"p>s","from":"p","to":"s","rate_bps":100000000},
        {"id":"s>q","from":"s","to":"q","rate_bps":100000000},
        {"id":"s>broker","from":"s","to":"broker","rate_bps":100000000},
        {"id":"broker>s","from":"broker","to":"s","rate_bps":100000000}],
      "flows": [{"id":"m","prio":7,"period_ns":10000000,"wire_bytes":200,"from":"p","to":["q"]},
                {"id":"n","prio":7,"period_ns":10000000,"wire_bytes":200,"from":"p","to":["q"],"via":"broker"}]}"#;
    let settings = |text: &str| Settings {
        network: Some(Document::from_json(text).unwrap()),
        ..Settings::default()
    };
    let manager = Manager::new(settings(text)).unwrap();
    let links = |flow: usize| manager.network().flows[flow].hops.len();
    // Past the broker, and through it and its processor.
    assert_eq!((links(0), links(1)), (2, 5));
    let error = Manager::new(settings(&text.replace("\"to\":[\"q\"]", "\"to\":[\"z\"]")));
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("to: \"z\" is not among the nodes"),
        "{error}"
    );
}

fn asker(id: &str, session: u64) -> punctual_broker::Asker {
    punctual_broker::Asker {
        client_id: id.into(),
        session,
        username: None,
        is_proven: false,
        peer: None,
        local: None,
        listener: None,
        quota: Default::default(),
    }
}

fn work(id: &str, session: u64, ask: punctual_broker::Ask) -> Work {
    let asker = asker(id, session);
    Work::new(
        punctual_broker::AdmissionRequest { asker, ask },
        Transport::Tcp,
    )
}

fn subscribing(id: &str, session: u64, filters: &[String]) -> Work {
    let ask = punctual_broker::Ask::Subscribe {
        conn: punctual_broker::ConnId {
            slot: 1,
            generation: 1,
        },
        filters: filters.iter().map(|filter| (&**filter).into()).collect(),
        requirements: Requirements::NONE,
    };
    work(id, session, ask)
}

/// Works on it in slices, and calls something between two of them; how many there
/// were.
fn finish(
    manager: &mut Manager,
    mut work: Work,
    mut between: impl FnMut(&mut Manager),
) -> (usize, Option<Reply>) {
    for slices in 1.. {
        let mut units = SLICE;
        match manager.work(work, &mut units) {
            Progress::Done(reply) => return (slices, reply),
            Progress::Left(left) => work = left,
        }
        assert_eq!(units, 0, "a slice that is not used up");
        between(manager);
    }
    unreachable!()
}

fn many(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("many/{n}")).collect()
}

#[test]
fn long_questions_are_worked_on_in_slices_and_others_are_answered_between() {
    let mut manager = Manager::new(settings()).unwrap();
    let filters = [many(2000), vec!["t".into(), "+".into()]].concat();
    let mut published = 0;
    let publish = |manager: &mut Manager| {
        let p = client(&format!("p{published}"), 1);
        published += 1;
        let decision = manager.publish(&p, publication("t", "deadline=90ms, period=90ms"));
        assert_eq!(status(&decision), Status::Admitted);
    };
    let (slices, reply) = finish(&mut manager, subscribing("s", 1, &filters), publish);
    assert_eq!((slices, published), (5, 4));
    let Some(Reply::Subscription { decision, .. }) = reply else {
        panic!("no answer")
    };
    let decided = decision.verdicts.iter().map(|(filter, _)| &**filter);
    assert!(decided.eq(filters.iter().map(|filter| &**filter)));
    assert_eq!(decision.answer.unwrap().status, Some(Status::Admitted));
    assert_eq!(manager.view("t@p0").unwrap().receivers.len(), 1);
    check(&manager);
    // Another session comes when the first slice of its end is done.
    let ended = work("s", 1, punctual_broker::Ask::Ended);
    let (slices, _) = finish(&mut manager, ended, |manager| {
        let views = manager.views(None, usize::MAX);
        assert_eq!(views.len(), 4);
    });
    assert!(slices > 4, "{slices}");
    assert!(manager.state().clients.iter().all(|saved| saved.id != "s"));
    check(&manager);
}

#[test]
fn filters_that_many_topics_have_to_be_compared_with_take_more_of_a_slice() {
    let mut manager = Manager::new(settings()).unwrap();
    for n in 0..500 {
        let topic = format!("{n}/a");
        let stated = publication(&topic, "deadline=1000s, period=1000s");
        assert_eq!(
            status(&manager.publish(&client("p", 1), stated)),
            Status::Admitted
        );
    }
    let filters: Vec<_> = (0..512).map(|n| format!("+/none/{n}")).collect();
    let (slices, _) = finish(&mut manager, subscribing("s", 1, &filters), |_| {});
    assert!(slices >= 8, "{slices}");
    let ended = work("s", 1, punctual_broker::Ask::Ended);
    let (slices, _) = finish(&mut manager, ended, |_| {});
    assert!(slices >= 8, "{slices}");
}

#[test]
fn what_is_left_of_an_older_session_goes_before_anything_of_a_newer_one() {
    let mut manager = Manager::new(settings()).unwrap();
    finish(&mut manager, subscribing("s", 1, &many(2000)), |_| {});
    // In slices, too.
    let (slices, _) = finish(&mut manager, subscribing("s", 2, &["t".into()]), |_| {});
    assert!(slices > 4, "{slices}");
    let state = manager.state();
    assert_eq!(state.clients[0].subscriptions.len(), 1);
    check(&manager);
    // And if its own end has begun.
    finish(&mut manager, subscribing("s", 2, &many(2000)), |_| {});
    let mut units = SLICE;
    let ended = work("s", 2, punctual_broker::Ask::Ended);
    let Progress::Left(ended) = manager.work(ended, &mut units) else {
        panic!("all at once")
    };
    manager.subscribe(&client("s", 3), &[subscription("u", "")]);
    assert_eq!(manager.state().clients[0].subscriptions.len(), 1);
    drop(ended);
    let given_up: Vec<Box<str>> = many(600).into_iter().map(String::into).collect();
    finish(&mut manager, subscribing("s", 3, &many(700)), |_| {});
    let giving_up = Work::giving_up(client("s", 3), given_up);
    let (slices, _) = finish(&mut manager, giving_up, |_| {});
    assert_eq!(slices, 3);
    assert_eq!(manager.state().clients[0].subscriptions.len(), 101);
    check(&manager);
}

#[test]
fn what_nobody_comes_back_for_goes_in_slices() {
    let mut manager = Manager::new(settings()).unwrap();
    for n in 0..50 {
        let id = format!("c{n:02}");
        manager.subscribe(&client(&id, 1), &[subscription("t", "")]);
    }
    let mut again = Manager::new(settings()).unwrap();
    again.restore(&manager.state());
    let mut reached = None;
    let mut left = Vec::new();
    loop {
        let mut units = SLICE;
        let all = again.give_up_some(&mut reached, &mut units);
        left.push(again.state().clients.len());
        if all {
            break;
        }
    }
    assert!(left.len() > 20 && left[0] == 48, "{left:?}");
    assert_eq!(left.last(), Some(&0));
}

#[test]
fn an_excerpt_says_what_the_manager_says() {
    let mut manager = Manager::new(settings()).unwrap();
    for n in 0..6 {
        let id = format!("c{n}");
        let own = subscription("t/+", if n == 0 { "deadline=4ms" } else { "" });
        manager.subscribe(&client(&id, 1), &[own, subscription("u", "")]);
        let stated = publication("t/1", "deadline=9ms, period=20ms");
        manager.publish(&client(&id, 1), stated);
    }
    for (topic, asked) in [
        ("t/1", "deadline=5ms, period=10ms"),
        ("t/2", "deadline=300us, period=10ms"),
        ("u", "deadline=9ms, period=10ms"),
        ("v", "deadline=9ms, period=10ms"),
    ] {
        for id in ["c0", "new"] {
            let excerpt = manager.excerpt(id, topic);
            let (asker, wanted) = (client(id, 0), publication(topic, asked));
            assert_eq!(
                excerpt.what_if(&asker, wanted),
                manager.what_if(&asker, wanted)
            );
            assert_eq!(
                excerpt.remedies(&asker, wanted),
                manager.remedies(&asker, wanted)
            );
        }
    }
    let (publisher, topic) = manager.about("t/1@c0").unwrap();
    let excerpt = manager.excerpt(publisher, topic);
    assert_eq!(excerpt.explain("t/1@c0"), manager.explain("t/1@c0"));
    assert_eq!(excerpt.view("t/1@c0"), manager.view("t/1@c0"));
}

#[test]
fn a_page_of_flows_is_bounded_by_their_receivers_too() {
    let mut manager = Manager::new(Settings {
        places: vec!["client *: broker".parse().unwrap()],
        ..settings()
    })
    .unwrap();
    for n in 0..4000 {
        manager.subscribe(&client(&format!("s{n}"), 1), &[subscription("#", "")]);
    }
    for n in 0..5 {
        let topic = format!("t{n}");
        let stated = publication(&topic, "deadline=1000s, period=1000s");
        let decision = manager.publish(&client("p", 1), stated);
        assert_eq!(status(&decision), Status::Admitted, "{decision:?}");
    }
    let (flows, more) = manager.page(None, 100);
    assert_eq!((flows.len(), more), (2, true));
    let (flows, more) = manager.page(Some("t1@p"), 2);
    assert_eq!((flows.len(), more), (2, true));
    let (flows, more) = manager.page(Some("t3@p"), 100);
    assert_eq!((flows.len(), more), (1, false));
    assert_eq!(manager.page(None, 1).0.len(), 1);
}

#[derive(Debug, Clone)]
enum Step {
    Publish(u8, u8, u8),
    Subscribe(u8, u8),
    Unsubscribe(u8, u8),
    End(u8),
    Remove(u8, u8),
    Reconsider,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..5_u8, 0..4_u8, 0..6_u8).prop_map(|(c, t, d)| Step::Publish(c, t, d)),
        3 => (0..5_u8, 0..6_u8).prop_map(|(c, f)| Step::Subscribe(c, f)),
        1 => (0..5_u8, 0..6_u8).prop_map(|(c, f)| Step::Unsubscribe(c, f)),
        1 => (0..5_u8).prop_map(Step::End),
        1 => (0..5_u8, 0..4_u8).prop_map(|(c, t)| Step::Remove(c, t)),
        1 => Just(Step::Reconsider),
    ];
    proptest::collection::vec(step, 1..16)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Whatever happens, who is admitted keeps its deadline; and what is
    /// refused for one changes no bound of the others.
    #[test]
    fn promises_are_kept(steps in steps()) {
        let mut manager = Manager::new(settings()).unwrap();
        let name = |c: u8| format!("c{c}");
        let filters = ["t0", "t1", "t2", "+", "#", "$share/g/t0"];
        let deadlines = ["600us", "900us", "1500us", "2ms", "5ms", "50ms"];
        for step in steps {
            let before = manager.views(None, usize::MAX);
            match step {
                Step::Publish(c, t, d) => {
                    let requirements = format!("deadline={}, period=4ms", deadlines[usize::from(d)]);
                    let topic = format!("t{t}");
                    let decision =
                        manager.publish(&client(&name(c), 1), publication(&topic, &requirements));
                    if status(&decision) == Status::Rejected {
                        prop_assert_eq!(&before, &manager.views(None, usize::MAX));
                    }
                }
                Step::Subscribe(c, f) => {
                    let wanted = [subscription(filters[usize::from(f)], "")];
                    let subscribed = manager.subscribe(&client(&name(c), 1), &wanted);
                    if subscribed.verdicts == [Verdict::Refused] {
                        prop_assert_eq!(&before, &manager.views(None, usize::MAX));
                    }
                }
                Step::Unsubscribe(c, f) => {
                    manager.unsubscribe(&name(c), 1, &[filters[usize::from(f)]]);
                }
                Step::End(c) => manager.ended(&name(c), 1),
                Step::Remove(c, t) => {
                    manager.remove(&format!("t{t}@c{c}"));
                }
                Step::Reconsider => manager.reconsider(3),
            }
            check(&manager);
            // Everyone that is served has a bound within what was asked for.
            for view in manager.views(None, usize::MAX) {
                for receiver in &view.receivers {
                    prop_assert!(receiver.bound_ns <= view.deadline_ns);
                }
                prop_assert!(view.bound_ns <= view.deadline_ns);
            }
        }
        let again: Arc<str> = manager.state().to_json().into();
        let mut restored = Manager::new(settings()).unwrap();
        let lost = restored.restore(&State::from_json(&again).unwrap());
        prop_assert_eq!(lost, Vec::<String>::new());
        prop_assert_eq!(kept(&restored), kept(&manager));
        check(&restored);
    }
}
