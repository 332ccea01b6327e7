//! What becomes of one publication where connections form a circle.

use std::thread;
use std::time::Duration;

use serde::Serialize;

use super::client::{Client, Subscriber};
use super::network::{Brokers, Plan, System};
use super::{NAMES, SETTLE};
use punctual_measure::Result;

const TOPIC: &str = "test";
/// How long copies are counted.
const TIME: Duration = Duration::from_secs(2);

/// What came of one publication.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Circle {
    pub(super) system: System,
    /// Copies that each subscriber has received in [`TIME`].
    pub(super) copies: Vec<u64>,
    /// Bytes between brokers meanwhile.
    pub(super) bytes: u64,
}

/// One publication at A where A, B and C are connected to each other, D and E to C. Every
/// connection has carried something before, both ways: one that is not up yet opens the circle.
pub(super) fn circle(plan: &Plan<'_>) -> Result<Circle> {
    let brokers = Brokers::start(plan)?;
    brokers.connect_all()?;
    let subscribers = (0..NAMES.len())
        .map(|at| Subscriber::start(&brokers, at, TOPIC, 0))
        .collect::<Result<Vec<_>>>()?;
    let mut client = Client::connect(&brokers, 0, "publisher")?;
    // Our brokers tell each other who wants the topic.
    thread::sleep(SETTLE);
    let before = brokers.bytes()?;
    client.publish(TOPIC, "once", 0)?;
    thread::sleep(TIME);
    let after = brokers.bytes()?;
    let copies = |s: &Subscriber| s.received().messages.values().map(|(n, _)| n).sum();
    Ok(Circle {
        system: plan.system,
        copies: subscribers.iter().map(copies).collect(),
        bytes: after.iter().sum::<u64>() - before.iter().sum::<u64>(),
    })
}
