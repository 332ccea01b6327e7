//! The generator through the floor in one process: every message arrives once and in order, at
//! both QoS and in both versions. Nothing here depends on time.

#![expect(clippy::unwrap_used, reason = "a test may end at once")]

use std::net::SocketAddr;
use std::time::Duration;

use punctual_measure::{Floor, Options, Pace, Report, Scenario, Version, run};

/// A floor of its own for each run: it forwards by topic, and tests run at the same time.
fn floor() -> SocketAddr {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut floor = Floor::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        tell.send(floor.local_addr().unwrap()).unwrap();
        floor.run().unwrap();
    });
    told.recv().unwrap()
}

fn counted(name: &str, prefix: &str, messages: u64) -> Options {
    let mut options = Options::new(name.parse().unwrap(), floor());
    options.messages = Some(messages);
    options.duration = Duration::from_secs(300);
    options.client_prefix = prefix.to_owned();
    options
}

fn expect_clean(report: &Report, deliveries: u64) {
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.expected, deliveries, "{report}");
}

#[test]
fn fans_deliver_everything_once_in_order() {
    for (name, publishers, subscribers) in [("1-1", 1, 1), ("5-1", 5, 1), ("1-7", 1, 7)] {
        for (version, qos) in [(Version::V311, 0), (Version::V311, 1), (Version::V5, 1)] {
            let mut options = counted(name, "fan-", 3000);
            options.version = version;
            options.qos = qos;
            let report = run(&options).unwrap();
            assert_eq!(report.sent, 3000 * publishers);
            expect_clean(&report, 3000 * publishers * subscribers);
        }
    }
    let mut options = counted("2-3", "flat-", 50_000);
    options.pace = Pace::FlatOut;
    options.payload = 200;
    expect_clean(&run(&options).unwrap(), 50_000 * 2 * 3);
}

#[test]
fn pairs_at_a_rate_deliver_everything_and_time_it() {
    let mut options = counted("3pairs", "rate-", 40);
    options.pace = Pace::Rate(3000.0);
    let report = run(&options).unwrap();
    expect_clean(&report, 120);
    assert_eq!(report.latency.unwrap().count, 120);
}

#[test]
fn factory_answers_every_message() {
    let report = run(&counted("factory", "cell-", 30)).unwrap();
    // Eight topics with two receivers each.
    expect_clean(&report, 30 * 8 * 2);
    assert_eq!(report.round_trip.unwrap().count, 30 * 4);
}

#[test]
fn idle_connections_are_counted() {
    let mut options = counted("idle", "idle-", 0);
    options.connections = 50;
    options.duration = Duration::ZERO;
    options.broker_pid = Some(std::process::id());
    let report = run(&options).unwrap();
    let idle = report.idle.unwrap();
    assert_eq!(idle.connections, 50);
    assert!(idle.connects_per_s > 0.0 && idle.rss_after.is_some());
}

#[test]
fn qos_2_is_more_than_the_floor_grants() {
    let mut options = counted("1pairs", "two-", 1);
    options.qos = 2;
    let error = run(&options).unwrap_err().to_string();
    assert!(error.contains("granted [01]"), "{error}");
}

#[test]
fn a_payload_without_room_for_the_stamp_is_refused() {
    let mut options = counted("1-1", "small-", 1);
    options.payload = 10;
    let error = run(&options).unwrap_err().to_string();
    assert!(error.contains("--payload = 10"), "{error}");
    assert_eq!(Scenario::Rate.to_string(), "rate");
}
