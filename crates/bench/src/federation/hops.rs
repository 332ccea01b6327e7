//! What a broker on the way adds to latency, beside what a raw TCP relay on the same cables adds.
//!
//! The brokers stand in a line A, B, D, E. Messages of relays are as large as the payload. What
//! the ends cost is in both figures of a kind (no hop, three hops), so it cancels. Brokers and relays
//! have the two processors of [`Places`] in turn: else it is chance whether the next one wakes where
//! the one before still runs, and that weighs more than what either does.

use std::io::{Read, Write};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::client::{Client, Subscriber};
use super::network::{Brokers, Plan};
use super::relay::Relays;
use super::throughput::Places;
use super::{SETTLE, median};
use crate::error::{Error, Result};

const HOPS: f64 = 3.0;
/// Messages of a round, and the time between two.
const MESSAGES: usize = 400;
const PACE: Duration = Duration::from_millis(2);
/// Bytes of a message.
const SIZE: usize = 100;

/// Medians by rounds, in microseconds.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Latency {
    pub(super) qos: u8,
    /// Of a publication at A for a subscriber at A, and at E.
    pub(super) broker: [Vec<f64>; 2],
    /// Over one relay, and over four.
    pub(super) relay: [Vec<f64>; 2],
}

impl Latency {
    /// What a hop adds: by brokers, and by relays.
    pub(super) fn added(&self) -> [f64; 2] {
        [&self.broker, &self.relay].map(|[near, far]| (median(far) - median(near)) / HOPS)
    }
}

/// Brokers of the line.
const LINE: [usize; 4] = [0, 1, 3, 4];

pub(super) fn measure(plan: &Plan<'_>, places: Places, rounds: u32) -> Result<Vec<Latency>> {
    let brokers = Brokers::start(plan)?;
    brokers.become_one()?;
    let [one, other] = places.carriers;
    let cores = [one, other, one, other];
    for (at, core) in LINE.into_iter().zip(cores) {
        brokers.pin(at, core)?;
    }
    let mut latencies = Vec::new();
    for qos in [0, 1] {
        let mut latency = Latency {
            qos,
            broker: Default::default(),
            relay: Default::default(),
        };
        for n in 0..rounds {
            eprintln!("latency, QoS {qos}, round {}", n + 1);
            for (far, at) in [(0, 0), (1, 4)] {
                latency.broker[far].push(over_brokers(&brokers, at, qos)?);
                latency.relay[far].push(over_relays(
                    &brokers,
                    &cores[..if far == 0 { 1 } else { 4 }],
                )?);
            }
        }
        latencies.push(latency);
    }
    Ok(latencies)
}

/// Median from A to a broker, in microseconds.
fn over_brokers(brokers: &Brokers, at: usize, qos: u8) -> Result<f64> {
    let subscriber = Subscriber::start(brokers, at, "hop", qos)?;
    let mut client = Client::connect(brokers, 0, "publisher")?;
    thread::sleep(SETTLE);
    let mut sent = Vec::new();
    let fill = "x".repeat(SIZE - 8);
    for n in 0..MESSAGES {
        sent.push(Instant::now());
        client.publish("hop", &format!("{n:08}{fill}"), qos)?;
        thread::sleep(PACE);
        if qos > 0 {
            client.receive(Duration::from_millis(1), |_, _| {})?;
        }
    }
    thread::sleep(SETTLE);
    let received = subscriber.received();
    let times: Vec<f64> = received
        .messages
        .iter()
        .filter_map(|(payload, (_, came))| {
            let n: usize = std::str::from_utf8(payload.get(..8)?).ok()?.parse().ok()?;
            Some((*came - *sent.get(n)?).as_secs_f64() * 1e6)
        })
        .collect();
    if times.len() < MESSAGES / 2 {
        return Err(Error::Peer {
            peer: "the mesh".into(),
            why: format!("{} of {MESSAGES} messages arrived", times.len()),
        });
    }
    Ok(median(&times))
}

/// Median over a relay on each of these processors, in microseconds.
fn over_relays(brokers: &Brokers, cores: &[usize]) -> Result<f64> {
    let context = || Error::io("cannot relay");
    let mut relays = Relays::start(brokers, cores.len(), cores)?;
    let mut receiver = relays.out.try_clone().map_err(context())?;
    let reader = thread::spawn(move || -> std::io::Result<Vec<Instant>> {
        let mut came = Vec::new();
        let mut bytes = [0; SIZE];
        while came.len() < MESSAGES {
            receiver.read_exact(&mut bytes)?;
            came.push(Instant::now());
        }
        Ok(came)
    });
    let mut sent = Vec::new();
    for _ in 0..MESSAGES {
        sent.push(Instant::now());
        relays.into.write_all(&[b'x'; SIZE]).map_err(context())?;
        thread::sleep(PACE);
    }
    let panicked = |_| std::io::Error::other("a thread panicked");
    let came = reader.join().map_err(panicked).flatten();
    let came = came.map_err(context())?;
    relays.end()?;
    let times = sent.iter().zip(&came);
    let times: Vec<f64> = times
        .map(|(sent, came)| (*came - *sent).as_secs_f64() * 1e6)
        .collect();
    Ok(median(&times))
}
