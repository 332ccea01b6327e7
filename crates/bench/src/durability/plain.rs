//! Plain and urgent traffic beside bulk traffic that keeps the store fully loaded.
//!
//! Bulk traffic runs at the highest rate that level `batched` sustains; the baseline is the same
//! broker at level `none` with bulk traffic of that rate, so that only the store differs.

use std::thread;
use std::time::Duration;

use serde::Serialize;

use super::systems::{Commits, System};
use super::throughput::LATE;
use punctual_measure::load::{self, Options, Pace, Report, Scenario};
use punctual_measure::wire::Version;
use punctual_measure::{Error, Result};

/// Payload of bulk messages in bytes: large, so that the disk limits the rate and not the broker.
const BULK_PAYLOAD: usize = 8 << 10;
/// Pattern of bulk traffic, and the most undelivered messages of each publisher.
const BULK: Scenario = Scenario::Pairs(10);
const BULK_WINDOW: u32 = 100;
/// Messages per second of plain and of urgent traffic.
const PLAIN_RATE: f64 = 5000.0;
const URGENT_RATE: f64 = 200.0;
/// `SCHED_FIFO` priority of the clients that are timed: bulk clients share their core.
const FIFO: u8 = 30;

/// Results of one run.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Run {
    pub(super) plain: Report,
    pub(super) urgent: Report,
    pub(super) bulk: Report,
    pub(super) commits: Option<Commits>,
}

/// Rate of bulk traffic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Bulk {
    /// The highest rate that the broker sustains.
    All,
    /// Messages per second.
    Rate(f64),
}

/// Performs one run with a fresh broker.
pub(super) fn run(
    system: &System,
    bulk: Bulk,
    duration: Duration,
    generator_core: usize,
) -> Result<Run> {
    let broker = system.start_empty()?;
    let usual = Options {
        warm_up: duration / 4,
        duration,
        core: Some(generator_core),
        ..Options::new(Scenario::Rate, broker.address)
    };
    let plain = Options {
        pace: Pace::Rate(PLAIN_RATE),
        fifo: FIFO,
        topic_prefix: "plain/".to_owned(),
        client_prefix: "plain-".to_owned(),
        ..usual.clone()
    };
    let urgent = Options {
        scenario: Scenario::Pairs(1),
        pace: Pace::Rate(URGENT_RATE),
        version: Version::V5,
        qos: 1,
        persistent: true,
        acks: true,
        fifo: FIFO,
        user_properties: vec![("priority".to_owned(), "0".to_owned())],
        topic_prefix: "urgent/".to_owned(),
        client_prefix: "urgent-".to_owned(),
        ..usual.clone()
    };
    let bulk = Options {
        scenario: BULK,
        pace: match bulk {
            Bulk::All => Pace::Window(BULK_WINDOW),
            Bulk::Rate(rate) => Pace::Rate(rate),
        },
        payload: BULK_PAYLOAD,
        qos: 1,
        persistent: true,
        // A message that is acknowledged before its commit need not be written.
        ack_delay: LATE,
        broker_pid: Some(broker.pid()),
        topic_prefix: "bulk/".to_owned(),
        client_prefix: "bulk-".to_owned(),
        ..usual
    };
    let (plain, urgent, bulk) = thread::scope(|scope| {
        let [plain, urgent, bulk] =
            [plain, urgent, bulk].map(|options| scope.spawn(move || load::run(&options)));
        let ended = |_| Error::io("a generator ended")(std::io::ErrorKind::Other.into());
        Ok::<_, Error>((
            plain.join().map_err(ended)??,
            urgent.join().map_err(ended)??,
            bulk.join().map_err(ended)??,
        ))
    })?;
    let commits = broker.commits()?;
    drop(broker);
    system.remove_data()?;
    Ok(Run {
        plain,
        urgent,
        bulk,
        commits,
    })
}
