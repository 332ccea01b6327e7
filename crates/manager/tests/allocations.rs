//! Events cost what they are about, however much else there is: bytes that are
//! taken from the allocator, counted by thread, stand for the work.

#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use punctual_manager::{
    Client, Endpoints, Manager, Publication, Quota, RemoteManager, RequirementsTable, Settings,
    Subscription,
};
use punctual_model::Requirements;
use punctual_model::srt::{Peer, Protocol, Request};

thread_local! {
    static BYTES: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: everything is left to the system allocator; the counter is a thread-local without a
// destructor, so that counting neither allocates nor fails.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.set(BYTES.get() + layout.size() as u64);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer comes from this allocator, hence from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes that something takes.
fn bytes(something: impl FnOnce()) -> u64 {
    let before = BYTES.get();
    something();
    BYTES.get() - before
}

fn client(id: &str, host: u32) -> Client {
    Client {
        id: id.into(),
        session: 1,
        user: None,
        is_proven: false,
        address: Some(std::net::Ipv4Addr::from(0x0a00_0000 + host).into()),
        transport: Default::default(),
    }
}

fn filters(count: u32) -> Vec<Subscription> {
    let filters = (0..count).map(|n| Subscription {
        filter: format!("many/{n}").into(),
        requirements: Requirements::NONE,
    });
    filters.collect()
}

/// Ten times as much takes about ten times as many bytes, not a hundred times.
fn assert_linear(few: u64, many: u64) {
    assert!(many < 20 * few, "{few} and then {many} bytes");
}

#[test]
fn a_filter_costs_the_same_however_many_the_session_has() {
    let subscribe = |count: u32| {
        let mut manager = Manager::new(Settings::default()).unwrap();
        let filters = filters(count);
        bytes(|| {
            manager.subscribe(&client("s", 1), &filters);
        })
    };
    assert_linear(subscribe(300), subscribe(3000));
}

#[test]
fn the_filters_of_others_cost_nothing() {
    let one = |others: u32| {
        let mut manager = Manager::new(Settings::default()).unwrap();
        manager.subscribe(&client("many", 1), &filters(others));
        let publication = Publication {
            topic: "t",
            requirements: "deadline=9ms, period=10ms".parse().unwrap(),
            payload: 10,
            properties: 0,
            quota: Quota::default(),
        };
        bytes(|| {
            manager.publish(&client("p", 2), publication);
            manager.subscribe(&client("s", 3), &filters(1));
            manager.unsubscribe("s", 1, &["many/0"]);
        })
    };
    let (few, many) = (one(10), one(3000));
    assert!(many < few + few / 2, "{few} and then {many} bytes");
}

#[test]
fn a_host_costs_the_same_however_many_there_are() {
    let meet = |count: u32| {
        let mut manager = Manager::new(Settings::default()).unwrap();
        let filters = filters(1);
        bytes(|| {
            for host in 0..count {
                manager.subscribe(&client(&format!("c{host}"), host), &filters);
            }
        })
    };
    assert_linear(meet(200), meet(2000));
}

#[test]
fn flows_of_a_session_end_together() {
    let end = |count: u32| {
        let mut manager = Manager::new(Settings::default()).unwrap();
        for n in 0..count {
            let topic = format!("t/{n}");
            let publication = Publication {
                topic: &topic,
                requirements: "deadline=1000s, period=1000s".parse().unwrap(),
                payload: 10,
                properties: 0,
                quota: Quota::default(),
            };
            manager.publish(&client("p", 1), publication);
        }
        assert_eq!(manager.len(), count as usize);
        bytes(|| manager.ended("p", 1))
    };
    assert_linear(end(20), end(200));
}

/// A table without a controller.
struct Nobody;

impl RequirementsTable for Nobody {
    fn ask(&mut self, _: Request) -> u64 {
        1
    }

    fn withdraw(&mut self, _: &str) {}
}

#[test]
fn a_filter_costs_the_same_where_the_network_is_asked() {
    let subscribe = |count: u32| {
        let mut manager = RemoteManager::new(Settings::default(), Box::new(Nobody));
        let end = |host: u32| Peer {
            protocol: Protocol::Tcp,
            address: std::net::Ipv4Addr::from(0x0a00_0000 + host).into(),
            port: Some(1883),
        };
        let ends = Endpoints {
            client: end(1),
            broker: end(2),
        };
        let filters = filters(count);
        bytes(|| {
            assert!(
                manager
                    .subscribe(&client("s", 1), Some(ends), &filters)
                    .is_ok()
            );
        })
    };
    assert_linear(subscribe(300), subscribe(3000));
}
