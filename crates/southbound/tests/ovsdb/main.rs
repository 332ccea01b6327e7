//! The client and the requirements table against real `ovsdb-server`s, each with
//! its own directory and sockets.
//!
//! Without `ovsdb-server` (package openvswitch-switch) the tests say so and do
//! nothing, unless `PUNCTUAL_REQUIRE_OVS` is set.
#![allow(clippy::unwrap_used, reason = "tests may")]

mod client;
mod cluster;
mod rights;
mod server;
mod service;
mod table;

use std::future::Future;
use std::net::Ipv4Addr;
use std::time::Duration;

use punctual_model::srt::{Channel, Peer, Request, State};
use punctual_southbound::srt::{ControllerOptions, ControllerSide, Inbox, Letter, ManagerOptions};

use crate::server::Server;

/// How long a test may wait for something that has to happen.
const LONG: Duration = Duration::from_secs(30);

/// Runs a test on a runtime of its own.
fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async { tokio::time::timeout(LONG * 2, test).await.unwrap() });
}

/// Waits for something that has to happen.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, future).await.unwrap()
}

/// Waits until something is so.
async fn until(condition: impl Fn() -> bool) {
    while !condition() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn request(flow: &str) -> Request {
    Request {
        manager: String::new(),
        flow: flow.into(),
        generation: 0,
        topic: format!("topic/{flow}"),
        qos: 1,
        publisher: Peer::tcp(Ipv4Addr::new(10, 0, 0, 1), 41_000),
        subscribers: [2, 3]
            .map(|n| Peer::tcp(Ipv4Addr::new(10, 0, 0, n), 42_000))
            .into(),
        broker: Some(Peer::tcp(Ipv4Addr::new(10, 0, 0, 9), 1883)),
        deadline_ns: 5_000_000,
        period_ns: 10_000_000,
        jitter_ns: 0,
        size: 100,
        wire_bytes: 202,
        frames: 1,
        priority: None,
        bandwidth: None,
    }
}

fn manager_options(server: &Server, name: &str) -> ManagerOptions {
    ManagerOptions {
        endpoints: vec![server.endpoint()],
        tls: None,
        name: name.into(),
        address: "127.0.0.1:1".into(),
        decision: LONG,
        keep: LONG * 10,
    }
}

fn controller_options(server: &Server) -> ControllerOptions {
    ControllerOptions {
        endpoints: vec![server.endpoint()],
        tls: None,
        name: "c".into(),
        silence: LONG * 10,
        read_only: false,
    }
}

fn controller(server: &Server) -> (ControllerSide, Inbox) {
    ControllerSide::start(controller_options(server)).unwrap()
}

/// An admission of a request.
fn admitted(request: &Request) -> Channel {
    let bounds = request.subscribers.iter().map(|peer| (*peer, 1_000_000));
    Channel {
        bounds_ns: bounds.collect(),
        paths: request
            .subscribers
            .iter()
            .map(|peer| (*peer, vec!["b".into(), "a".into()]))
            .collect(),
        queue: Some(5),
        ..Channel::of(request, State::Admitted, "")
    }
}

/// Admits everything that is asked for, until it is aborted.
async fn admit_all(side: ControllerSide, mut inbox: Inbox) {
    loop {
        match inbox.next().await {
            Letter::Asked(request) => side.answer(&admitted(&request)),
            Letter::Withdrawn { manager, flow } => side.retract(&manager, &flow),
            Letter::Reached => side.settled(),
            Letter::Away(_) => {}
        }
    }
}

/// Whether there are servers to test with.
macro_rules! need_ovs {
    () => {
        if punctual_testbed::Ovs::is_missing() {
            return;
        }
    };
}
pub(crate) use need_ovs;
