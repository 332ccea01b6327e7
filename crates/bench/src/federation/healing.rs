//! How long a mesh takes to recover after its root was killed, and after a cable silently stopped
//! carrying frames.
//!
//! All five brokers are connected to each other, so the spanning tree is a star around the root.
//! Clients at each broker publish to all others every few milliseconds. A mesh has recovered when a
//! publication that was made after the event has arrived from each broker at each other one; the
//! recovery time is counted from just before the event.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::client::{Client, Subscriber};
use super::network::{Brokers, Plan};
use super::{NAMES, PATIENCE, ROOT, SETTLE};
use punctual_measure::{Error, Result};

const TOPIC: &str = "heal";
/// Time between two publications of a broker.
const PACE: Duration = Duration::from_millis(2);
/// Duration of the traffic before the event.
const BEFORE: Duration = Duration::from_millis(200);
/// Connections of a full mesh.
pub(super) const MESH: [(usize, usize); 10] = [
    (0, 2),
    (1, 2),
    (3, 2),
    (4, 2),
    (0, 1),
    (1, 3),
    (3, 4),
    (4, 0),
    (0, 3),
    (1, 4),
];

/// The failure that a round injects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Event {
    /// The root is killed, and the kernel closes its connections.
    RootKilled,
    /// The cable between A and the root drops all frames, and its ends stay up.
    CableSilent,
}

impl Event {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::RootKilled => "root killed (kill -9)",
            Self::CableSilent => "cable to the root silent",
        }
    }
}

/// Results of all rounds for one event.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Healing {
    pub(super) event: Event,
    /// Interval between hello messages, ms.
    pub(super) hello_ms: u64,
    /// Recovery times, one for each round, ascending.
    pub(super) milliseconds: Vec<f64>,
    /// Publications with QoS 1 at surviving brokers, and how often a surviving broker missed one.
    pub(super) publications: u64,
    pub(super) missing: u64,
}

impl Healing {
    /// The recovery time in ms that `percent` of the rounds did not exceed.
    pub(super) fn percentile(&self, percent: usize) -> f64 {
        let rank = (self.milliseconds.len() * percent).div_ceil(100).max(1);
        self.milliseconds.get(rank - 1).copied().unwrap_or(0.0)
    }
}

/// Injects an event in each of several rounds.
pub(super) fn rounds(
    plan: &Plan<'_>,
    event: Event,
    hello: Duration,
    number: u32,
) -> Result<Healing> {
    let plan = Plan {
        hello: Some(hello),
        ..plan.clone()
    };
    let mut brokers = Brokers::start(&plan)?;
    let mut healing = Healing {
        event,
        hello_ms: hello.as_millis() as u64,
        milliseconds: Vec::new(),
        publications: 0,
        missing: 0,
    };
    for n in 0..number {
        brokers.become_one()?;
        whole(&brokers)?;
        let (milliseconds, publications, missing) = round(&mut brokers, event)?;
        eprintln!("{}, {}: {milliseconds:.1} ms", event.name(), n + 1);
        healing.milliseconds.push(milliseconds);
        healing.publications += publications;
        healing.missing += missing;
        match event {
            Event::RootKilled => brokers.run(ROOT)?,
            Event::CableSilent => brokers.plug(0, ROOT, true)?,
        }
    }
    healing.milliseconds.sort_by(f64::total_cmp);
    Ok(healing)
}

/// Waits until the spanning tree is the star around the root.
fn whole(brokers: &Brokers) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    for at in (0..NAMES.len()).filter(|at| *at != ROOT) {
        loop {
            let status = brokers.status(at)?;
            if status["parent"] == NAMES[ROOT] && status["attached"] == true {
                break;
            }
            if Instant::now() > end {
                return Err(Error::Peer {
                    peer: NAMES[at].into(),
                    why: format!("it is not attached to the root: {status}"),
                });
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
    Ok(())
}

/// Returns the recovery time in ms, the publications, and how often one was missing.
fn round(brokers: &mut Brokers, event: Event) -> Result<(f64, u64, u64)> {
    let alive: Vec<usize> = (0..NAMES.len())
        .filter(|at| event != Event::RootKilled || *at != ROOT)
        .collect();
    let subscribers = alive
        .iter()
        .map(|at| Subscriber::start(brokers, *at, TOPIC, 1));
    let subscribers = subscribers.collect::<Result<Vec<_>>>()?;
    let clients = alive
        .iter()
        .map(|at| Client::connect(brokers, *at, "publisher"))
        .collect::<Result<Vec<_>>>()?;
    thread::sleep(SETTLE);
    let stop = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = clients
        .into_iter()
        .enumerate()
        .map(|(index, client)| {
            let stop = stop.clone();
            thread::spawn(move || publish(client, index, &stop))
        })
        .collect();
    thread::sleep(BEFORE);
    let start = Instant::now();
    match event {
        Event::RootKilled => drop(brokers.kill(ROOT)?),
        Event::CableSilent => brokers.plug(0, ROOT, false)?,
    }
    let happened = Instant::now();
    // Waits until every broker hears every other one again, or the time is over.
    let heard = |from: usize, at: usize| {
        let received = subscribers[at].received();
        let prefix = format!("{from}-").into_bytes();
        let of = received
            .messages
            .iter()
            .filter(|(p, _)| p.starts_with(&prefix));
        let numbers = of.map(|(payload, (_, at))| (number(payload), *at));
        numbers.collect::<Vec<_>>()
    };
    let pairs: Vec<(usize, usize)> = (0..alive.len())
        .flat_map(|from| (0..alive.len()).map(move |at| (from, at)))
        .filter(|(from, at)| from != at)
        .collect();
    let end = start + PATIENCE;
    let silence = Duration::from_millis(500);
    while Instant::now() < end {
        thread::sleep(Duration::from_millis(100));
        let lately = |(from, at): &(usize, usize)| {
            let arrivals = heard(*from, *at).into_iter().map(|(_, at)| at);
            arrivals
                .max()
                .is_some_and(|at| at > happened && at.elapsed() < silence)
        };
        if pairs.iter().all(lately) {
            break;
        }
    }
    stop.store(true, Ordering::Relaxed);
    let sent: Vec<Vec<Instant>> = threads
        .into_iter()
        .map(|thread| thread.join().unwrap_or_default())
        .collect();
    thread::sleep(SETTLE * 2);
    let (mut healed, mut missing) = (start, 0);
    for (from, at) in pairs {
        let arrivals = heard(from, at);
        missing += sent[from].len().saturating_sub(arrivals.len()) as u64;
        let after = arrivals
            .iter()
            .filter(|(n, _)| sent[from].get(*n).is_some_and(|sent| *sent > happened));
        match after.map(|(_, at)| *at).min() {
            Some(first) => healed = healed.max(first),
            None => {
                return Err(Error::Peer {
                    peer: "the mesh".into(),
                    why: format!(
                        "{} is not heard at {} after: {}",
                        NAMES[alive[from]],
                        NAMES[alive[at]],
                        event.name()
                    ),
                });
            }
        }
    }
    let publications = sent.iter().map(|sent| sent.len() as u64).sum();
    let milliseconds = (healed - start).as_secs_f64() * 1e3;
    Ok((milliseconds, publications, missing))
}

/// Publishes until `stop`; returns when each publication was made, by its number.
fn publish(mut client: Client, index: usize, stop: &AtomicBool) -> Vec<Instant> {
    let mut sent = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let payload = format!("{index}-{}", sent.len());
        sent.push(Instant::now());
        let published = client.publish(TOPIC, &payload, 1);
        thread::sleep(PACE);
        let read = client.receive(Duration::from_millis(1), |_, _| {});
        if published.and(read).is_err() {
            break;
        }
    }
    sent
}

/// The number behind the dash in a payload.
fn number(payload: &[u8]) -> usize {
    let text = std::str::from_utf8(payload).unwrap_or_default();
    let number = text.split_once('-').and_then(|(_, n)| n.parse().ok());
    number.unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let healing = Healing {
            event: Event::RootKilled,
            hello_ms: 100,
            milliseconds: vec![1.0, 2.0, 3.0, 9.0],
            publications: 0,
            missing: 0,
        };
        assert_eq!(healing.percentile(50), 2.0);
        assert_eq!(healing.percentile(99), 9.0);
        assert_eq!(number(b"3-17"), 17);
        assert_eq!(number(b"x"), usize::MAX);
    }

    #[test]
    fn every_pair_is_connected_once() {
        let mut pairs: Vec<_> = MESH.iter().map(|(a, b)| (a.min(b), a.max(b))).collect();
        pairs.sort_unstable();
        pairs.dedup();
        assert_eq!(pairs.len(), NAMES.len() * (NAMES.len() - 1) / 2);
    }
}
