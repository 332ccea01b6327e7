//! Counts the copies of one publication where connections between brokers form a loop.

use std::thread;
use std::time::Duration;

use serde::Serialize;

use super::client::{Client, Subscriber};
use super::network::{Brokers, Plan, System};
use super::{NAMES, SETTLE};
use punctual_measure::Result;

const TOPIC: &str = "test";
/// Time after the publication in which copies are counted.
const TIME: Duration = Duration::from_secs(2);

/// Copies and bytes that one publication caused.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Circle {
    pub(super) system: System,
    /// Copies that each subscriber has received within [`TIME`].
    pub(super) copies: Vec<u64>,
    /// Bytes sent between brokers within [`TIME`].
    pub(super) bytes: u64,
}

/// Publishes once at A, where A, B and C are connected to each other, and D and E to C. Every
/// connection has carried a message in both directions before: a connection that is still down
/// would open the loop.
pub(super) fn circle(plan: &Plan<'_>) -> Result<Circle> {
    let brokers = Brokers::start(plan)?;
    brokers.connect_all()?;
    let subscribers = (0..NAMES.len())
        .map(|at| Subscriber::start(&brokers, at, TOPIC, 0))
        .collect::<Result<Vec<_>>>()?;
    let mut client = Client::connect(&brokers, 0, "publisher")?;
    // Our brokers need time to advertise the new subscription.
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
