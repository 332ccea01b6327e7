//! What clients with many filters, and many clients, cost the manager:
//! `cargo bench -p punctual-manager`.
//!
//! Each line is the time of all of them and that of one; run on an otherwise idle
//! machine.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a program for developers"
)]

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::time::Instant;

use punctual_manager::{Client, Manager, Publication, Quota, Settings, Subscription};
use punctual_model::Requirements;

fn client(id: &str, host: u32) -> Client {
    Client {
        id: id.into(),
        session: 1,
        user: None,
        is_proven: false,
        address: Some(Ipv4Addr::from(0x0a00_0000 + host).into()),
        transport: Default::default(),
    }
}

fn filters(count: u32) -> Vec<Subscription> {
    let filters = (0..count).map(|n| Subscription {
        filter: format!("line/{}/axis/{n}", n % 100).into(),
        requirements: Requirements::NONE,
    });
    filters.collect()
}

fn publish(manager: &mut Manager, publisher: u32) {
    let publication = Publication {
        topic: &format!("line/{}/flow", publisher % 100),
        requirements: "deadline=1000s, period=1000s".parse().unwrap(),
        payload: 64,
        properties: 0,
        quota: Quota::default(),
    };
    manager.publish(&client(&format!("p{publisher}"), publisher), publication);
}

fn new() -> Manager {
    Manager::new(Settings {
        max_flows: 1 << 20,
        max_hosts: 1 << 20,
        ..Settings::default()
    })
    .unwrap()
}

fn measure<R>(what: &str, count: u32, run: impl FnOnce() -> R) {
    let began = Instant::now();
    black_box(run());
    let took = began.elapsed();
    let one = took.as_nanos() / u128::from(count);
    println!(
        "{what:48} {count:7} {:10.3} ms {one:10} ns each",
        took.as_secs_f64() * 1e3
    );
}

fn main() {
    for count in [100, 1000, 10_000, 100_000] {
        let mut manager = new();
        let all = filters(count);
        measure("SUBSCRIBE of filters in one session", count, || {
            manager.subscribe(&client("s", 1), &all)
        });
        let names: Vec<&str> = all.iter().map(|s| &*s.filter).collect();
        measure("the same again", count, || {
            manager.subscribe(&client("s", 1), &all)
        });
        measure("what is to be kept", count, || manager.changed_state());
        measure("UNSUBSCRIBE", count, || manager.unsubscribe("s", 1, &names));
        manager.subscribe(&client("s", 1), &all);
        measure("end of the session", count, || manager.ended("s", 1));
    }
    for count in [100, 1000, 10_000] {
        let mut manager = new();
        let one = filters(1);
        measure("first SUBSCRIBE of hosts", count, || {
            for host in 0..count {
                manager.subscribe(&client(&format!("c{host}"), host), &one);
            }
        });
    }
    for count in [100, 1000, 10_000] {
        let mut manager = new();
        measure("flows of hosts", count, || {
            (0..count).for_each(|publisher| publish(&mut manager, publisher));
        });
        measure("excerpt for an analysis", 1, || {
            manager.excerpt("new", "line/0/flow")
        });
        measure("copy of all", 1, || manager.clone());
        measure("filters beside these flows", 1000, || {
            manager.subscribe(&client("s", 1), &filters(1000))
        });
    }
}
