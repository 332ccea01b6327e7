//! The thesis' experiments: the same publications by topology, locality and way of forwarding.

use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::client::{Client, Subscriber};
use super::network::{Brokers, Plan, System};
use super::{PATIENCE, SETTLE};
use punctual_measure::Result;

/// Connections of each topology, by brokers; the first one connects. The root is the third, C.
pub(super) const TOPOLOGIES: [(&str, [(usize, usize); 4]); 3] = [
    ("tree", [(0, 2), (1, 2), (3, 2), (4, 3)]),
    ("star", [(0, 2), (1, 2), (3, 2), (4, 2)]),
    ("line", [(0, 2), (1, 0), (3, 1), (4, 3)]),
];
/// What publications contain, a number in front: 17 bytes.
const FILL: &str = "0123456789ab";
const PAYLOAD: u64 = 17;
const TOPIC: &str = "test";
/// Ethernet, IPv4, and TCP with the time stamps that Linux sends.
const HEADERS: u64 = 14 + 20 + 32;
/// Seconds in which publications are made, and most of them in a second: 50 and 500 take the
/// thesis' five seconds, 1500 thrice that.
const SECONDS: u32 = 5;
const RATE: u32 = 100;

/// Who publishes and who has subscribed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) enum Locality {
    /// Both at A.
    #[serde(rename = "100 %")]
    Same,
    /// At A, and at E.
    #[serde(rename = "0 %")]
    Apart,
    /// Both at each broker.
    #[serde(rename = "n %")]
    All,
}

impl Locality {
    pub(super) const ALL: [Self; 3] = [Self::Same, Self::Apart, Self::All];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Same => "100 %",
            Self::Apart => "0 %",
            Self::All => "n %",
        }
    }

    /// Brokers of publishers and of subscribers.
    fn places(self) -> (&'static [usize], &'static [usize]) {
        match self {
            Self::Same => (&[0], &[0]),
            Self::Apart => (&[0], &[4]),
            Self::All => (&[0, 1, 2, 3, 4], &[0, 1, 2, 3, 4]),
        }
    }
}

/// What came of one experiment.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Outcome {
    pub(super) topology: &'static str,
    pub(super) system: System,
    pub(super) locality: Locality,
    pub(super) publishes: u32,
    /// Publications in a second.
    pub(super) rate: u32,
    /// Bytes of frames between brokers, all of them together.
    pub(super) bytes: u64,
    /// What the brokers send each other in the same time without publications.
    pub(super) idle_bytes: f64,
    pub(super) expected: u64,
    pub(super) received: u64,
    pub(super) lost: u64,
    pub(super) duplicates: u64,
    /// From the first publication to the last receipt.
    pub(super) seconds: f64,
    /// Processor time of each broker, in milliseconds.
    pub(super) cpu_ms: Vec<f64>,
    /// Changes of subscriptions told between brokers, for this experiment.
    pub(super) advertised: Option<u64>,
}

impl Outcome {
    /// Bytes without those that a quiet mesh costs.
    pub(super) fn net(&self) -> f64 {
        (self.bytes as f64 - self.idle_bytes).max(0.0)
    }

    /// The least that publications from A to E can cost with QoS 1: on each connection of the
    /// way one frame with the PUBLISH and one with the PUBACK.
    pub(super) fn least(&self) -> u64 {
        let links = TOPOLOGIES.iter().find(|(name, _)| *name == self.topology);
        let hops = links.map_or(0, |(_, links)| distance(links, 0, 4));
        let publish = 2 + 2 + TOPIC.len() as u64 + 2 + PAYLOAD;
        hops * u64::from(self.publishes) * (HEADERS + publish + HEADERS + 4)
    }
}

/// Connections between two brokers of a tree.
fn distance(links: &[(usize, usize)], from: usize, to: usize) -> u64 {
    let mut reached = vec![from];
    for hops in 0..=links.len() as u64 {
        if reached.contains(&to) {
            return hops;
        }
        let before = reached.clone();
        let ends = links.iter().flat_map(|(a, b)| [(*a, *b), (*b, *a)]);
        reached.extend(ends.filter(|(a, _)| before.contains(a)).map(|(_, b)| b));
    }
    u64::MAX
}

/// What a quiet mesh costs.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Idle {
    pub(super) topology: &'static str,
    pub(super) system: System,
    pub(super) seconds: f64,
    /// Bytes in a second on each connection, both ways, headers included.
    pub(super) rates: Vec<f64>,
}

/// All experiments of one topology and one way of forwarding.
pub(super) fn series(
    plan: &Plan<'_>,
    topology: &'static str,
    publishes: &[u32],
    quiet: Duration,
) -> Result<(Idle, Vec<Outcome>)> {
    let brokers = Brokers::start(plan)?;
    brokers.become_one()?;
    // What was said about those who asked whether they are one.
    thread::sleep(SETTLE * 4);
    let (start, before) = (Instant::now(), brokers.bytes()?);
    thread::sleep(quiet);
    let after = brokers.bytes()?;
    let seconds = start.elapsed().as_secs_f64();
    let rates = after.iter().zip(&before);
    let idle = Idle {
        topology,
        system: plan.system,
        seconds,
        rates: rates
            .map(|(after, before)| (after - before) as f64 / seconds)
            .collect(),
    };
    let mut outcomes = Vec::new();
    for publishes in publishes {
        for locality in Locality::ALL {
            let (system, locality_name) = (plan.system.name(), locality.name());
            eprintln!("{topology}, {system}, {locality_name}, {publishes} publications");
            outcomes.push(experiment(&brokers, &idle, *publishes, locality)?);
        }
    }
    Ok((idle, outcomes))
}

fn experiment(
    brokers: &Brokers,
    idle: &Idle,
    publishes: u32,
    locality: Locality,
) -> Result<Outcome> {
    let (publishers, subscribers) = locality.places();
    let told = brokers.advertised()?;
    let subscribers = subscribers
        .iter()
        .map(|at| Subscriber::start(brokers, *at, TOPIC, 1));
    let subscribers = subscribers.collect::<Result<Vec<_>>>()?;
    let mut clients = publishers
        .iter()
        .map(|at| Client::connect(brokers, *at, "publisher"))
        .collect::<Result<Vec<_>>>()?;
    thread::sleep(SETTLE);
    let advertised = brokers
        .advertised()?
        .zip(told)
        .map(|(after, before)| after - before);
    let rate = (publishes / SECONDS).clamp(1, RATE);
    let (bytes, cpu) = (brokers.bytes()?, brokers.cpu());
    let start = Instant::now();
    for n in 0..publishes {
        let due = start + Duration::from_secs_f64(f64::from(n) / f64::from(rate));
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let at = n as usize % clients.len();
        clients[at].publish(TOPIC, &format!("{n:05}{FILL}"), 1)?;
    }
    let expected = u64::from(publishes) * subscribers.len() as u64;
    let end = Instant::now() + PATIENCE;
    let count = || {
        let counts = subscribers.iter().map(|s| s.received().messages.len());
        counts.sum::<usize>() as u64
    };
    while count() < expected && Instant::now() < end && !stalled(&subscribers) {
        thread::sleep(Duration::from_millis(5));
    }
    let last = subscribers.iter().filter_map(|s| s.received().last).max();
    thread::sleep(SETTLE);
    let copies = |s: &Subscriber| -> u64 {
        let received = s.received();
        received.messages.values().map(|(copies, _)| copies).sum()
    };
    let copies: u64 = subscribers.iter().map(copies).sum();
    let received = count();
    let after = brokers.bytes()?;
    let time = start.elapsed().as_secs_f64();
    let spent = brokers.cpu();
    let spent = spent.iter().zip(&cpu);
    Ok(Outcome {
        topology: idle.topology,
        system: brokers.system,
        locality,
        publishes,
        rate,
        bytes: after.iter().sum::<u64>() - bytes.iter().sum::<u64>(),
        idle_bytes: idle.rates.iter().sum::<f64>() * time,
        expected,
        received,
        lost: expected - received.min(expected),
        duplicates: copies - received,
        seconds: last.map_or(0.0, |at| (at - start).as_secs_f64()),
        cpu_ms: spent
            .map(|(after, before)| (after - before) * 1e3)
            .collect(),
        advertised,
    })
}

/// Whether nobody has received anything for long.
fn stalled(subscribers: &[Subscriber]) -> bool {
    let last = subscribers.iter().filter_map(|s| s.received().last).max();
    last.is_some_and(|at| at.elapsed() > Duration::from_secs(3))
}

/// What becomes of one publication where connections form a circle.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Circle {
    pub(super) system: System,
    /// Copies that each subscriber has received in [`CIRCLE`].
    pub(super) copies: Vec<u64>,
    /// Bytes between brokers meanwhile.
    pub(super) bytes: u64,
}

/// How long copies are counted.
pub(super) const CIRCLE: Duration = Duration::from_secs(2);

/// One publication at A where A, B and C are connected to each other, D and E to C.
pub(super) fn circle(plan: &Plan<'_>) -> Result<Circle> {
    let brokers = Brokers::start(plan)?;
    if plan.system == System::MosquittoBridges {
        // A question whether they are one would go round for ever.
        thread::sleep(Duration::from_secs(4));
    } else {
        brokers.become_one()?;
    }
    let subscribers = (0..super::NAMES.len())
        .map(|at| Subscriber::start(&brokers, at, TOPIC, 0))
        .collect::<Result<Vec<_>>>()?;
    let mut client = Client::connect(&brokers, 0, "publisher")?;
    thread::sleep(SETTLE);
    let before = brokers.bytes()?;
    client.publish(TOPIC, "once", 0)?;
    thread::sleep(CIRCLE);
    let after = brokers.bytes()?;
    let copies = |s: &Subscriber| s.received().messages.values().map(|(n, _)| n).sum();
    Ok(Circle {
        system: plan.system,
        copies: subscribers.iter().map(copies).collect(),
        bytes: after.iter().sum::<u64>() - before.iter().sum::<u64>(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::{NAMES, ROOT};
    use super::*;

    #[test]
    fn topologies_are_trees_around_the_root() {
        for (name, links) in TOPOLOGIES {
            for to in 0..NAMES.len() {
                assert!(distance(&links, ROOT, to) <= 4, "{name}");
            }
        }
        let ways = TOPOLOGIES.map(|(_, links)| distance(&links, 0, 4));
        assert_eq!(ways, [3, 2, 3]);
    }
}
