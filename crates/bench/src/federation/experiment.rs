//! The thesis' experiments: equal publications by topology, locality and method of forwarding.
//!
//! As in the thesis, 50 and 500 publications take five seconds, and 1500 publications are three
//! rounds of 500: a round begins when all publications of the round before have arrived.

use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::client::{Client, Subscriber};
use super::network::{Brokers, Plan, System};
use super::usage::{self, Usage};
use super::{PATIENCE, SETTLE};
use punctual_measure::Result;

/// Connections of each topology, as pairs of brokers of which the first connects. C is the root.
pub(super) const TOPOLOGIES: [(&str, [(usize, usize); 4]); 3] = [
    ("tree", [(0, 2), (1, 2), (3, 2), (4, 3)]),
    ("star", [(0, 2), (1, 2), (3, 2), (4, 2)]),
    ("line", [(0, 2), (1, 0), (3, 1), (4, 3)]),
];
/// A cluster has no topology: every broker is connected to every other one.
pub(super) const CLUSTER: (&str, [(usize, usize); 10]) = (
    "cluster",
    [
        (1, 0),
        (2, 0),
        (2, 1),
        (3, 0),
        (3, 1),
        (3, 2),
        (4, 0),
        (4, 1),
        (4, 2),
        (4, 3),
    ],
);
/// Text that follows the number in a payload; both together are 17 bytes.
const FILL: &str = "0123456789ab";
const PAYLOAD: u64 = 17;
const TOPIC: &str = "test";
/// Bytes of the headers of Ethernet, IPv4, and TCP with the timestamp option that Linux sends.
const HEADERS: u64 = 14 + 20 + 32;
/// Seconds over which the publications of a round are spread.
const SECONDS: u32 = 5;
/// Most publications of a round.
const ROUND: u32 = 500;

/// Brokers of the publishers and of the subscribers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) enum Locality {
    /// Publisher and subscriber at A.
    #[serde(rename = "100 %")]
    Same,
    /// The publisher at A, the subscriber at E.
    #[serde(rename = "0 %")]
    Apart,
    /// A publisher and a subscriber at each broker.
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

    /// Indices of the publishers' brokers, and of the subscribers' brokers.
    fn places(self) -> (&'static [usize], &'static [usize]) {
        match self {
            Self::Same => (&[0], &[0]),
            Self::Apart => (&[0], &[4]),
            Self::All => (&[0, 1, 2, 3, 4], &[0, 1, 2, 3, 4]),
        }
    }
}

/// Results of one experiment.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Outcome {
    pub(super) topology: &'static str,
    pub(super) system: System,
    pub(super) locality: Locality,
    pub(super) publishes: u32,
    /// Number of rounds, one after the other.
    pub(super) rounds: u32,
    /// Publications per second during a round.
    pub(super) rate: f64,
    /// Bytes of all frames between brokers.
    pub(super) bytes: u64,
    /// Bytes that the brokers send each other in an equal time without publications.
    pub(super) idle_bytes: f64,
    pub(super) expected: u64,
    pub(super) received: u64,
    pub(super) lost: u64,
    pub(super) duplicates: u64,
    /// Seconds from the first publication to the last receipt.
    pub(super) seconds: f64,
    /// Bytes by interval, and the processor time of each broker.
    pub(super) usage: Usage,
    /// Changes of subscriptions that the brokers advertised to each other for this experiment.
    pub(super) advertised: Option<u64>,
}

impl Outcome {
    /// Bytes beyond those that an idle mesh sends.
    pub(super) fn net(&self) -> f64 {
        (self.bytes as f64 - self.idle_bytes).max(0.0)
    }

    /// Lower bound of the bytes that publications with QoS 1 from A to E cost: on each connection
    /// of the path one frame with the PUBLISH and one with the PUBACK. `None` if brokers use
    /// another protocol than MQTT between them, or if publications do not go from A to E.
    pub(super) fn least(&self) -> Option<u64> {
        let mut topologies = TOPOLOGIES.iter();
        let (_, links) = topologies.find(|(name, _)| *name == self.topology)?;
        let publish = 2 + 2 + TOPIC.len() as u64 + 2 + PAYLOAD;
        let frames = HEADERS + publish + HEADERS + 4;
        (self.locality == Locality::Apart)
            .then(|| distance(links, 0, 4) * u64::from(self.publishes) * frames)
    }

    /// Sort key in tables.
    pub(super) fn place(&self) -> (usize, System, u32, Locality) {
        let topology = place(self.topology);
        (topology, self.system, self.publishes, self.locality)
    }
}

/// Rank of a topology in tables.
fn place(topology: &str) -> usize {
    let mut topologies = TOPOLOGIES.iter();
    topologies
        .position(|(name, _)| *name == topology)
        .unwrap_or(TOPOLOGIES.len())
}

/// Number of connections on the path between two brokers of a tree.
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

/// Traffic of a mesh without publications.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Idle {
    pub(super) topology: &'static str,
    pub(super) system: System,
    pub(super) seconds: f64,
    /// Bytes per second on each connection, both directions, headers included.
    pub(super) rates: Vec<f64>,
}

impl Idle {
    /// Sort key in tables.
    pub(super) fn place(&self) -> (usize, System) {
        (place(self.topology), self.system)
    }
}

/// Runs all experiments of one topology and one method of forwarding; `keep` gets each result at
/// once.
pub(super) fn series(
    plan: &Plan<'_>,
    topology: &'static str,
    publishes: &[u32],
    quiet: Duration,
    keep: &(dyn Fn(Measured) -> Result<()> + Sync),
) -> Result<()> {
    let brokers = Brokers::start(plan)?;
    brokers.become_one()?;
    // The brokers still advertise that the clients of the reachability check have left.
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
    keep(Measured::Idle(idle.clone()))?;
    for publishes in publishes {
        for locality in Locality::ALL {
            let (system, locality_name) = (plan.system.name(), locality.name());
            eprintln!("{topology}, {system}, {locality_name}, {publishes} publications");
            let outcome = experiment(&brokers, &idle, *publishes, locality)?;
            keep(Measured::Outcome(outcome))?;
        }
    }
    Ok(())
}

/// A result.
#[derive(Debug)]
pub(super) enum Measured {
    Idle(Idle),
    Outcome(Outcome),
}

/// Number of rounds of an experiment, and the publications of each round.
fn rounds(publishes: u32) -> (u32, u32) {
    match publishes {
        // As many as in the thesis, or a multiple of a round.
        _ if publishes.is_multiple_of(ROUND) => (publishes / ROUND, ROUND),
        _ => (1, publishes),
    }
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
    let (rounds, of_round) = rounds(publishes);
    let rate = f64::from(of_round) / f64::from(SECONDS);
    let start = Instant::now();
    let (last, usage) = usage::during(brokers, || {
        for round in 0..rounds {
            let start = Instant::now();
            for n in 0..of_round {
                let due = start + Duration::from_secs_f64(f64::from(n) / rate);
                thread::sleep(due.saturating_duration_since(Instant::now()));
                let at = n as usize % clients.len();
                let payload = format!("{:05}{FILL}", round * of_round + n);
                clients[at].publish(TOPIC, &payload, 1)?;
            }
            let published = u64::from((round + 1) * of_round);
            arrived(&subscribers, published * subscribers.len() as u64);
        }
        let last = subscribers.iter().filter_map(|s| s.received().last).max();
        thread::sleep(SETTLE);
        Ok(last)
    })?;
    let time = start.elapsed().as_secs_f64();
    let copies = |s: &Subscriber| -> u64 {
        let received = s.received();
        received.messages.values().map(|(copies, _)| copies).sum()
    };
    let copies: u64 = subscribers.iter().map(copies).sum();
    let expected = u64::from(publishes) * subscribers.len() as u64;
    let received = count(&subscribers);
    Ok(Outcome {
        topology: idle.topology,
        system: brokers.system,
        locality,
        publishes,
        rounds,
        rate,
        bytes: usage.bytes(),
        idle_bytes: idle.rates.iter().sum::<f64>() * time,
        expected,
        received,
        lost: expected - received.min(expected),
        duplicates: copies - received,
        seconds: last.map_or(0.0, |at| (at - start).as_secs_f64()),
        usage,
        advertised,
    })
}

/// Publications that arrived, summed over subscribers, without duplicates.
fn count(subscribers: &[Subscriber]) -> u64 {
    let counts = subscribers.iter().map(|s| s.received().messages.len());
    counts.sum::<usize>() as u64
}

/// Waits until `expected` publications have arrived, or until no more arrive.
fn arrived(subscribers: &[Subscriber], expected: u64) {
    let end = Instant::now() + PATIENCE;
    while count(subscribers) < expected && Instant::now() < end && !stalled(subscribers) {
        thread::sleep(Duration::from_millis(5));
    }
}

/// Whether no subscriber has received a publication for three seconds.
fn stalled(subscribers: &[Subscriber]) -> bool {
    let last = subscribers.iter().filter_map(|s| s.received().last).max();
    last.is_some_and(|at| at.elapsed() > Duration::from_secs(3))
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

    #[test]
    fn in_a_cluster_everybody_is_a_neighbour_of_everybody() {
        let (_, links) = CLUSTER;
        for from in 0..NAMES.len() {
            for to in 0..from {
                assert_eq!(distance(&links, from, to), 1);
            }
        }
    }

    #[test]
    fn many_publications_are_the_five_hundred_several_times() {
        let known = [50, 500, 750, 1500].map(rounds);
        assert_eq!(known, [(1, 50), (1, 500), (1, 750), (3, 500)]);
    }
}
