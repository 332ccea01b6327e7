//! The client alone: transactions, monitors, reconnection.

use punctual_southbound::ovsdb::operation::{Condition, Mutation, Mutator, Operation, Outcome};
use punctual_southbound::ovsdb::value::{Datum, Row};
use punctual_southbound::ovsdb::{Client, Error, Event, Events, Options, Table};
use punctual_southbound::srt::DATABASE;
use punctual_southbound::srt::rows::{MANAGER, REQUEST, of_manager, of_request};

use crate::server::Server;
use crate::{LONG, need_ovs, request, run, soon};

fn manager(name: &str) -> Row {
    of_manager(&punctual_model::srt::Manager {
        name: name.into(),
        address: "here".into(),
        generation: 1,
        last_seen_ms: 2,
    })
}

fn connect(server: &Server, tables: Vec<Table>) -> (Client, Events) {
    let options = Options::new(vec![server.endpoint()], DATABASE, tables);
    Client::start(options).unwrap()
}

async fn connected(events: &mut Events) {
    while !matches!(soon(events.next()).await, Some(Event::Connected { .. })) {}
}

#[test]
fn every_operation_is_done() {
    need_ovs!();
    run(async {
        let server = Server::start();
        let (client, _events) = connect(&server, vec![]);
        let of = |name: &str| vec![Condition::equal("name", name)];
        let all = vec![
            Operation::insert(MANAGER, manager("a")),
            Operation::insert(MANAGER, manager("b")),
            Operation::Update {
                table: MANAGER.into(),
                conditions: of("a"),
                row: Row::default().with("address", "there"),
            },
            Operation::Mutate {
                table: MANAGER.into(),
                conditions: of("a"),
                mutations: vec![Mutation {
                    column: "generation".into(),
                    mutator: Mutator::Add,
                    value: 4.into(),
                }],
            },
            Operation::Wait {
                table: MANAGER.into(),
                conditions: of("a"),
                columns: vec!["generation".into()],
                equal: true,
                rows: vec![Row::default().with("generation", 5)],
                timeout_ms: 0,
            },
            Operation::Delete {
                table: MANAGER.into(),
                conditions: of("b"),
            },
            Operation::Comment("a test".into()),
            Operation::Select {
                table: MANAGER.into(),
                conditions: vec![],
                columns: Some(vec!["name".into(), "address".into()]),
            },
        ];
        let outcomes = client.transact(all, LONG).await.unwrap();
        let expected = Row::default().with("name", "a").with("address", "there");
        assert_eq!(outcomes[2..4], [Outcome::Count(1), Outcome::Count(1)]);
        assert_eq!(
            outcomes[4..7],
            [Outcome::Done, Outcome::Count(1), Outcome::Done]
        );
        assert_eq!(outcomes[7], Outcome::Rows(vec![expected]));

        let locked = vec![Operation::Assert { lock: "x".into() }];
        let refused = client.transact(locked, LONG).await.unwrap_err();
        assert!(refused.to_string().contains("not owner"), "{refused}");
    });
}

#[test]
fn the_server_enforces_ranges() {
    need_ovs!();
    run(async {
        let server = Server::start();
        let (client, _events) = connect(&server, vec![]);
        let mut good = request("f");
        good.manager = "m".into();
        let good = of_request(&good);
        for (column, value) in [
            ("qos", Datum::from(3)),
            ("priority", Datum::from(8)),
            ("deadline_ns", Datum::from(0)),
            ("wire_bytes", Datum::from(9_039)),
            ("manager", Datum::from("")),
            ("bandwidth", Datum::from(0)),
        ] {
            let insert = Operation::insert(REQUEST, good.clone().with(column, value));
            match client.transact(vec![insert], LONG).await {
                Err(Error::Refused(failure)) => assert_eq!(failure.error, "constraint violation"),
                other => panic!("{column}: {other:?}"),
            }
        }
        let insert = Operation::insert(REQUEST, good);
        client.transact(vec![insert.clone()], LONG).await.unwrap();
        let twice = client.transact(vec![insert], LONG).await;
        assert!(
            matches!(twice, Err(Error::Refused(_))),
            "one request for a flow"
        );
    });
}

#[test]
fn a_monitor_goes_on_after_the_server_was_away() {
    need_ovs!();
    run(async {
        let mut server = Server::start();
        let one_of_two = Table {
            any: vec![Condition::equal("name", "a")],
            ..Table::all(MANAGER)
        };
        let (watcher, mut events) = connect(&server, vec![one_of_two]);
        let (writer, _events) = connect(&server, vec![]);
        connected(&mut events).await;
        let insert = |name| vec![Operation::insert(MANAGER, manager(name))];
        for name in ["b", "a"] {
            writer.transact(insert(name), LONG).await.unwrap();
        }
        let Some(Event::Changed(changes)) = soon(events.next()).await else {
            panic!("no change");
        };
        assert_eq!(changes.len(), 1, "only what was asked for");
        assert_eq!(changes[0].new.as_ref().unwrap().text("name"), "a");

        server.kill();
        let event = soon(events.next()).await;
        assert!(
            matches!(event, Some(Event::Disconnected { .. })),
            "{event:?}"
        );
        assert_eq!(
            watcher.look(|cache| cache.rows(MANAGER).count()),
            1,
            "it is remembered"
        );
        server.run();
        // It waits for the server.
        let update = Operation::Update {
            table: MANAGER.into(),
            conditions: vec![],
            row: Row::default().with("address", "elsewhere"),
        };
        writer.transact(vec![update], LONG).await.unwrap();
        let mut changed = Vec::new();
        while changed.is_empty() {
            if let Some(Event::Changed(changes)) = soon(events.next()).await {
                changed = changes;
            }
        }
        assert_eq!(changed[0].old.as_ref().unwrap().text("address"), "here");
        assert_eq!(
            changed[0].new.as_ref().unwrap().text("address"),
            "elsewhere"
        );
        assert!(watcher.connections() >= 2);
    });
}

#[test]
fn nobody_waits_for_ever() {
    need_ovs!();
    run(async {
        let mut server = Server::start();
        server.kill();
        let (client, mut events) = connect(&server, vec![]);
        let patience = std::time::Duration::from_millis(50);
        let error = client.transact(vec![], patience).await.unwrap_err();
        assert!(matches!(error, Error::Away(_)), "{error}");
        drop(client);
        assert_eq!(soon(events.next()).await, None);
    });
}
