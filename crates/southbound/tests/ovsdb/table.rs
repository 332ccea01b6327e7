//! Managers and a controller around the requirements table.

use std::time::Duration;

use punctual_model::srt::{Manager, Request, State};
use punctual_southbound::ovsdb::operation::Operation;
use punctual_southbound::ovsdb::{Client, Options};
use punctual_southbound::srt::rows::{MANAGER, REQUEST, of_manager, of_request};
use punctual_southbound::srt::{
    ControllerOptions, ControllerSide, DATABASE, Inbox, Letter, ManagerOptions, ManagerSide,
};

use crate::server::Server;
use crate::{
    LONG, admit_all, admitted, controller, controller_options, manager_options, need_ovs, request,
    run, soon, until,
};

#[test]
fn a_request_is_answered_changed_and_withdrawn() {
    need_ovs!();
    run(async {
        let server = Server::start();
        let (side, mut inbox) = controller(&server);
        side.prepare("c").await.unwrap();
        let manager = ManagerSide::start(manager_options(&server, "edge-a")).unwrap();
        let asking = tokio::spawn({
            let manager = manager.clone();
            async move { manager.ask(request("f")).await }
        });
        let mut asked = None;
        while asked.is_none() {
            if let Letter::Asked(request) = soon(inbox.next()).await {
                asked = Some(request);
            }
        }
        let first = asked.unwrap();
        assert_eq!(first.manager, "edge-a");
        side.answer(&admitted(&first));
        assert_eq!(soon(asking).await.unwrap(), admitted(&first));

        // The same is not asked for again.
        assert_eq!(soon(manager.ask(request("f"))).await, admitted(&first));
        // The controller thinks better of it.
        let mut worse = admitted(&first);
        worse.state = State::Failed;
        worse.reason = "link a-b is down".into();
        side.answer(&worse);
        assert_eq!(soon(manager.next_change()).await, worse);

        let mut other = request("f");
        other.period_ns = 20_000_000;
        let asking = tokio::spawn({
            let (manager, other) = (manager.clone(), other.clone());
            async move { manager.ask(other).await }
        });
        let Letter::Asked(second) = soon(inbox.next()).await else {
            panic!("another letter");
        };
        assert!(second.generation > first.generation);
        assert_eq!(second.period_ns, 20_000_000);
        // An answer to what was asked before is none.
        side.answer(&admitted(&first));
        side.answer(&admitted(&second));
        assert_eq!(soon(asking).await.unwrap(), admitted(&second));

        manager.withdraw("f");
        let Letter::Withdrawn { manager: of, flow } = soon(inbox.next()).await else {
            panic!("another letter");
        };
        assert_eq!((of.as_str(), flow.as_str()), ("edge-a", "f"));
        side.retract(&of, &flow);
        while !side.channels().is_empty() {
            tokio::task::yield_now().await;
        }
    });
}

#[test]
fn without_a_controller_the_answer_is_best_effort_and_the_decision_follows() {
    need_ovs!();
    run(async {
        let server = Server::start();
        let options = ManagerOptions {
            decision: Duration::from_millis(100),
            ..manager_options(&server, "m")
        };
        let manager = ManagerSide::start(options).unwrap();
        let channel = soon(manager.ask(request("f"))).await;
        assert_eq!(channel.state, State::BestEffort);
        assert!(channel.reason.contains("100ms"), "{}", channel.reason);

        let (side, inbox) = controller(&server);
        let admitting = tokio::spawn(admit_all(side, inbox));
        let late = soon(manager.next_change()).await;
        assert_eq!((late.state, late.flow.as_str()), (State::Admitted, "f"));
        admitting.abort();
    });
}

#[test]
fn without_the_database_everything_is_caught_up_with_later() {
    need_ovs!();
    run(async {
        let mut server = Server::start();
        let (side, inbox) = controller(&server);
        let admitting = tokio::spawn(admit_all(side.clone(), inbox));
        let options = ManagerOptions {
            decision: Duration::from_secs(10),
            ..manager_options(&server, "m")
        };
        let manager = ManagerSide::start(options.clone()).unwrap();
        assert_eq!(
            soon(manager.ask(request("kept"))).await.state,
            State::Admitted
        );
        assert_eq!(
            soon(manager.ask(request("gone"))).await.state,
            State::Admitted
        );

        server.kill();
        let impatient = ManagerSide::start(ManagerOptions {
            decision: Duration::from_millis(50),
            name: "n".into(),
            ..options
        })
        .unwrap();
        let channel = soon(impatient.ask(request("new"))).await;
        assert_eq!(channel.state, State::BestEffort);
        assert!(
            channel
                .reason
                .contains("the database of requirements is away"),
            "{}",
            channel.reason
        );
        // What was admitted is so still; what goes meanwhile is remembered.
        assert_eq!(
            soon(manager.ask(request("kept"))).await.state,
            State::Admitted
        );
        manager.withdraw("gone");

        server.run();
        let late = soon(impatient.next_change()).await;
        assert_eq!((late.state, late.flow.as_str()), (State::Admitted, "new"));
        let flows = || -> Vec<String> { side.channels().into_iter().map(|c| c.flow).collect() };
        while flows().len() != 2 {
            tokio::task::yield_now().await;
        }
        assert!(!flows().contains(&"gone".to_owned()));
        admitting.abort();
    });
}

#[test]
fn a_controller_that_starts_again_finds_what_there_was() {
    need_ovs!();
    run(async {
        let server = Server::start();
        let manager = ManagerSide::start(manager_options(&server, "m")).unwrap();
        let (side, inbox) = controller(&server);
        let admitting = tokio::spawn(admit_all(side, inbox));
        for flow in ["a", "b"] {
            assert_eq!(
                soon(manager.ask(request(flow))).await.state,
                State::Admitted
            );
        }
        admitting.abort();
        let _ = admitting.await;
        // One goes while nobody is there.
        manager.withdraw("b");
        while manager.unsettled() > 0 {
            tokio::task::yield_now().await;
        }

        let (side, mut inbox) = controller(&server);
        let mut asked = Vec::new();
        loop {
            match soon(inbox.next()).await {
                Letter::Asked(request) => asked.push(request),
                Letter::Reached => break,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(
            asked.iter().map(|r| r.flow.as_str()).collect::<Vec<_>>(),
            ["a"]
        );
        assert_eq!(side.channels().len(), 2, "as they were");
        side.answer(&admitted(&asked[0]));
        side.settled();
        while side.channels().len() != 1 {
            tokio::task::yield_now().await;
        }
        assert_eq!(side.channels(), [admitted(&asked[0])]);
        assert_eq!(
            manager.channel("a"),
            Some(admitted(&asked[0])),
            "it never went"
        );
    });
}

#[test]
fn a_manager_that_starts_again_keeps_what_it_asks_for_again() {
    need_ovs!();
    run(async {
        let server = Server::start();
        let (side, inbox) = controller(&server);
        let admitting = tokio::spawn(admit_all(side.clone(), inbox));
        let manager = ManagerSide::start(manager_options(&server, "m")).unwrap();
        for flow in ["a", "b"] {
            assert_eq!(
                soon(manager.ask(request(flow))).await.state,
                State::Admitted
            );
        }
        let before = manager.channel("a").unwrap();
        drop(manager);

        let again = ManagerSide::start(ManagerOptions {
            keep: Duration::from_millis(500),
            ..manager_options(&server, "m")
        })
        .unwrap();
        while again.channel("a").is_none() {
            tokio::task::yield_now().await;
        }
        assert_eq!(
            soon(again.ask(request("a"))).await,
            before,
            "the same generation"
        );
        // What is not asked for again goes in the end.
        while side.channels().len() != 1 {
            tokio::task::yield_now().await;
        }
        assert_eq!(side.channels(), [before]);
        admitting.abort();
    });
}

/// A request that the server takes, but means nothing.
#[test]
fn nonsense_is_refused_with_the_reason() {
    need_ovs!();
    run(async {
        use punctual_southbound::ovsdb::operation::Operation;
        use punctual_southbound::ovsdb::{Client, Event, Options, Table};
        use punctual_southbound::srt::rows::{CHANNEL, REQUEST, of_request, to_channel};
        let server = Server::start();
        let (_side, _inbox) = controller(&server);
        let tables = vec![Table::all(CHANNEL)];
        let options = Options::new(vec![server.endpoint()], DATABASE, tables);
        let (client, mut events) = Client::start(options).unwrap();
        let mut request = request("f");
        request.manager = "m".into();
        let row = of_request(&request).with("publisher", "somewhere");
        client
            .transact(vec![Operation::insert(REQUEST, row)], LONG)
            .await
            .unwrap();
        loop {
            if let Some(Event::Changed(changes)) = soon(events.next()).await {
                let channel = to_channel(changes[0].new.as_ref().unwrap()).unwrap();
                assert_eq!(channel.state, State::Rejected);
                assert!(
                    channel.reason.contains("tcp:ADDRESS:PORT"),
                    "{}",
                    channel.reason
                );
                break;
            }
        }
    });
}

/// A controller that takes managers for dead soon.
fn impatient(server: &Server) -> (ControllerSide, Inbox) {
    ControllerSide::start(ControllerOptions {
        silence: Duration::from_millis(400),
        ..controller_options(server)
    })
    .unwrap()
}

/// What a manager has left is removed also when it died after it had written its
/// requests again and before it had said again that it is there.
#[test]
fn requests_written_again_by_a_dying_manager_are_removed() {
    need_ovs!();
    run(async {
        let server = Server::start();
        let (_side, mut inbox) = impatient(&server);
        let options = Options::new(vec![server.endpoint()], DATABASE, vec![]);
        let (admin, _events) = Client::start(options).unwrap();
        let of_the_dead = Request {
            manager: "dead".into(),
            ..request("f")
        };
        let ask = || Operation::insert(REQUEST, of_request(&of_the_dead));
        let said = Manager {
            name: "dead".into(),
            address: String::new(),
            generation: 1,
            last_seen_ms: 1,
        };
        let say = Operation::insert(MANAGER, of_manager(&said));
        admin.transact(vec![say, ask()], LONG).await.unwrap();
        for _ in 0..2 {
            let removed =
                async { while !matches!(inbox.next().await, Letter::Withdrawn { .. }) {} };
            soon(removed).await;
            admin.transact(vec![ask()], LONG).await.unwrap();
        }
    });
}

/// A manager that says nothing any more is taken for dead, and one that never
/// said anything is left alone; if it lives after all, its requests come back.
#[test]
fn requests_of_a_manager_that_went_silent_are_removed() {
    need_ovs!();
    run(async {
        let server = Server::start();
        let (side, inbox) = impatient(&server);
        let admitting = tokio::spawn(admit_all(side.clone(), inbox));
        let options = Options::new(vec![server.endpoint()], DATABASE, vec![]);
        let (admin, _events) = Client::start(options).unwrap();
        let by_hand = Request {
            manager: "me".into(),
            ..request("g")
        };
        let insert = Operation::insert(REQUEST, of_request(&by_hand));
        admin.transact(vec![insert], LONG).await.unwrap();
        let [dead, living] = ["edge-a", "edge-b"]
            .map(|name| ManagerSide::start(manager_options(&server, name)).unwrap());
        for manager in [&dead, &living] {
            assert_eq!(soon(manager.ask(request("f"))).await.state, State::Admitted);
        }
        drop(dead);
        // It says every minute that it is there, which is too seldom here. What
        // is removed is written again, and answered again.
        let again = soon(living.next_change()).await;
        assert_eq!((again.flow.as_str(), again.state), ("f", State::Admitted));
        let managers = || -> Vec<String> {
            let requests = side.requests().into_iter();
            requests.map(|request| request.manager).collect()
        };
        soon(until(|| managers() == ["edge-b", "me"])).await;
        admitting.abort();
    });
}
