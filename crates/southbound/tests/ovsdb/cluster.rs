//! Three servers in a Raft cluster, of which the leader is killed.

use std::collections::BTreeSet;
use std::time::Instant;

use punctual_model::srt::State;
use punctual_southbound::ovsdb::Endpoint;
use punctual_southbound::srt::{
    ControllerOptions, ControllerSide, DATABASE, ManagerOptions, ManagerSide,
};

use crate::server::{Server, free_address, tool};
use crate::{admit_all, manager_options, need_ovs, request, run, soon};

fn cluster() -> Vec<Server> {
    let servers: Vec<Server> = (0..3).map(|_| Server::prepare()).collect();
    let address: Vec<String> = (0..3).map(|_| format!("tcp:{}", free_address())).collect();
    let (first, rest) = servers.split_first().unwrap();
    let schema = first.path("schema");
    tool(&[
        "--election-timer=250",
        "create-cluster",
        &first.path("db"),
        &schema,
        &address[0],
    ]);
    for (server, own) in rest.iter().zip(&address[1..]) {
        tool(&[
            "join-cluster",
            &server.path("db"),
            DATABASE,
            own,
            &address[0],
        ]);
    }
    let mut servers = servers;
    for server in &mut servers {
        server.run();
    }
    servers
}

fn role(server: &Server) -> Option<String> {
    let status = server.control(&["cluster/status", DATABASE])?;
    // One that is still joining calls itself a follower, too, and has no vote.
    if !status.lines().any(|line| line == "Status: cluster member") {
        return None;
    }
    let role = status.lines().find_map(|line| line.strip_prefix("Role: "));
    role.map(str::to_owned)
}

#[test]
fn no_row_is_lost_with_the_leader() {
    need_ovs!();
    run(async {
        let mut servers = cluster();
        let endpoints: Vec<Endpoint> = servers.iter().map(Server::endpoint).collect();
        // Until all have joined.
        let all_there = |servers: &[Server]| {
            let roles: Vec<_> = servers.iter().filter_map(role).collect();
            roles.iter().filter(|role| *role == "follower").count() == 2
                && roles.iter().any(|role| role == "leader")
        };
        while !all_there(&servers) {
            tokio::task::yield_now().await;
        }
        let (side, inbox) = ControllerSide::start(ControllerOptions {
            endpoints: endpoints.clone(),
            tls: None,
            name: "c".into(),
            silence: crate::LONG,
            read_only: false,
        })
        .unwrap();
        let admitting = tokio::spawn(admit_all(side.clone(), inbox));
        let manager = ManagerSide::start(ManagerOptions {
            endpoints,
            ..manager_options(&servers[0], "m")
        })
        .unwrap();
        let mut expected = BTreeSet::new();
        for n in 0..20 {
            let flow = format!("before-{n}");
            assert_eq!(
                soon(manager.ask(request(&flow))).await.state,
                State::Admitted
            );
            expected.insert(flow);
        }

        let leader = servers
            .iter()
            .position(|s| role(s).as_deref() == Some("leader"))
            .unwrap();
        // Some are on their way when it happens.
        let under_way: Vec<_> = (0..20)
            .map(|n| {
                let flow = format!("during-{n}");
                expected.insert(flow.clone());
                let manager = manager.clone();
                tokio::spawn(async move { manager.ask(request(&flow)).await })
            })
            .collect();
        tokio::task::yield_now().await;
        servers[leader].kill();
        let killed = Instant::now();
        for asking in under_way {
            let channel = soon(asking).await.unwrap();
            assert_eq!(channel.state, State::Admitted, "{}", channel.reason);
        }
        println!(
            "decisions resumed {:?} after the leader was killed",
            killed.elapsed()
        );

        let flows = |side: &ControllerSide| -> BTreeSet<String> {
            side.channels().into_iter().map(|c| c.flow).collect()
        };
        while flows(&side) != expected {
            tokio::task::yield_now().await;
        }
        // The killed one comes back and everyone agrees.
        servers[leader].run();
        assert_eq!(
            soon(manager.ask(request("after"))).await.state,
            State::Admitted
        );
        admitting.abort();
    });
}
