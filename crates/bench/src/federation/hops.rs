//! Latency that each broker on a path adds, compared with a raw TCP relay on the same cables.
//!
//! The brokers stand in a line C, A, B, D, E. A relay forwards messages as large as the payload,
//! and with QoS 1 an acknowledgement comes back over the relays before the next message. The cost
//! of publisher and subscriber is in both figures of a kind (no hop, four hops), so it cancels.
//! Brokers and relays alternate between the two processors of [`Places`], and the first and the
//! last one never share a processor with publisher and subscriber: otherwise it would be chance
//! whether a process has to wait for its predecessor on the same processor, which weighs more than
//! the work of either.
//!
//! Two series are measured: in one, each message is sent as soon as the one before has arrived, as
//! with request and response (caches and branch predictors are warm); in the other, one message is
//! sent every [`PACE`], when caches and predictors have lost most of that state.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::client::Client;
use super::network::{Brokers, Plan};
use super::relay::{Relays, Waits};
use super::throughput::Places;
use super::{PATIENCE, SETTLE, median};
use crate::sys;
use punctual_measure::{Error, Result};

const HOPS: f64 = (LINE.len() - 1) as f64;
/// Time between two messages of [`Pace::Apart`].
const PACE: Duration = Duration::from_millis(2);
/// Time from the last acknowledgement to the next message of [`Pace::InTurn`]: the brokers finish
/// their work for the message before, and no processor enters a deep idle state.
const REST: Duration = Duration::from_micros(30);
/// Size in bytes of a message, and of an acknowledgement.
const SIZE: usize = 100;
const ACKNOWLEDGEMENT: usize = 4;

/// When a message is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Pace {
    /// [`REST`] after the message before has arrived and was acknowledged.
    InTurn,
    /// One message every [`PACE`].
    Apart,
}

impl Pace {
    const ALL: [Self; 2] = [Self::InTurn, Self::Apart];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::InTurn => "one after the other",
            Self::Apart => "one every 2 ms",
        }
    }

    /// Number of messages in a round.
    fn messages(self) -> usize {
        match self {
            Self::InTurn => 10_000,
            Self::Apart => 400,
        }
    }

    fn wait(self) {
        let begun = Instant::now();
        match self {
            // A sleep would last longer than [`REST`].
            Self::InTurn => while begun.elapsed() < REST {},
            Self::Apart => thread::sleep(PACE),
        }
    }
}

/// Median latency of each round, in microseconds.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Latency {
    pub(super) qos: u8,
    pub(super) pace: Pace,
    /// From a publisher at C to a subscriber at C, and to one at E.
    pub(super) broker: [Vec<f64>; 2],
    /// Over one relay, and over five relays.
    pub(super) relay: [Vec<f64>; 2],
    /// Over one relay, and over five, that wait in `epoll_wait`.
    pub(super) epoll_relay: [Vec<f64>; 2],
}

impl Latency {
    /// Latency that a hop adds, µs: over brokers, over relays, and over relays that use epoll.
    pub(super) fn added(&self) -> [f64; 3] {
        [&self.broker, &self.relay, &self.epoll_relay]
            .map(|[near, far]| (median(far) - median(near)) / HOPS)
    }
}

/// Indices of the brokers in the order of the line.
const LINE: [usize; 5] = [2, 0, 1, 3, 4];

pub(super) fn measure(plan: &Plan<'_>, places: Places, rounds: u32) -> Result<Vec<Latency>> {
    let brokers = Brokers::start(plan)?;
    brokers.become_one()?;
    let [one, other] = places.carriers;
    let cores = [one, other, one, other, one];
    for (at, core) in LINE.into_iter().zip(cores) {
        brokers.pin(at, core)?;
    }
    thread::scope(|scope| {
        // A thread of its own, because pinning it to a processor must not outlast the measurement.
        let measured = scope.spawn(|| {
            let pinned = sys::pin_to_core(places.publisher);
            pinned.map_err(Error::io("cannot pin publisher and subscriber"))?;
            series(&brokers, &cores, rounds)
        });
        let panicked = |_| io::Error::other("a thread panicked");
        let measured = measured.join().map_err(panicked);
        measured.map_err(Error::io("cannot measure"))?
    })
}

/// Measures QoS 0 and QoS 1 at both paces.
fn series(brokers: &Brokers, cores: &[usize], rounds: u32) -> Result<Vec<Latency>> {
    let mut latencies = Vec::new();
    for (qos, pace) in [0, 1]
        .into_iter()
        .flat_map(|qos| Pace::ALL.map(|pace| (qos, pace)))
    {
        let mut latency = Latency {
            qos,
            pace,
            broker: Default::default(),
            relay: Default::default(),
            epoll_relay: Default::default(),
        };
        for n in 0..rounds {
            eprintln!("latency, QoS {qos}, {}, round {}", pace.name(), n + 1);
            for (far, way) in [&LINE[..1], &LINE].into_iter().enumerate() {
                latency.broker[far].push(over_brokers(brokers, way, qos, pace)?);
                for (relay, waits) in [
                    (&mut latency.relay, Waits::InRead),
                    (&mut latency.epoll_relay, Waits::InEpoll),
                ] {
                    relay[far].push(over_relays(brokers, way, cores, (waits, qos), pace)?);
                }
            }
        }
        latencies.push(latency);
    }
    Ok(latencies)
}

/// Median latency from the first broker of `way` to the last, in microseconds.
fn over_brokers(brokers: &Brokers, way: &[usize], qos: u8, pace: Pace) -> Result<f64> {
    let mut subscriber = Client::connect(brokers, way[way.len() - 1], "subscriber")?;
    subscriber.subscribe("hop", qos)?;
    let mut publisher = Client::connect(brokers, way[0], "publisher")?;
    thread::sleep(SETTLE);
    let fill = "x".repeat(SIZE - 8);
    let mut times = Vec::new();
    for n in 0..pace.messages() {
        let payload = format!("{n:08}{fill}");
        let sent = Instant::now();
        publisher.publish("hop", &payload, qos)?;
        let mut came = None;
        while came.is_none() {
            subscriber.receive(PATIENCE, |_, received| {
                came = (received == payload.as_bytes()).then(Instant::now);
            })?;
            if came.is_none() && sent.elapsed() > PATIENCE {
                return Err(lost(n, "did not arrive"));
            }
        }
        times.extend(came.map(|came| (came - sent).as_secs_f64() * 1e6));
        let mut acknowledged = qos == 0;
        while !acknowledged {
            acknowledged = publisher.acknowledged(PATIENCE)? > 0;
            if !acknowledged && sent.elapsed() > PATIENCE {
                return Err(lost(n, "was not acknowledged"));
            }
        }
        pace.wait();
    }
    Ok(median(&times))
}

fn lost(n: usize, why: &str) -> Error {
    Error::Peer {
        peer: "the mesh".into(),
        why: format!("publication {n} {why}"),
    }
}

/// Median latency over one relay in the place of each broker, in microseconds.
fn over_relays(
    brokers: &Brokers,
    way: &[usize],
    cores: &[usize],
    (waits, qos): (Waits, u8),
    pace: Pace,
) -> Result<f64> {
    let mut relays = Relays::start(brokers, way, cores, waits)?;
    let round = |into: &mut TcpStream, out: &mut TcpStream| -> io::Result<f64> {
        let mut bytes = [b'x'; SIZE];
        let sent = Instant::now();
        into.write_all(&bytes)?;
        out.read_exact(&mut bytes)?;
        let time = sent.elapsed().as_secs_f64() * 1e6;
        if qos > 0 {
            let mut bytes = [b'x'; ACKNOWLEDGEMENT];
            out.write_all(&bytes)?;
            into.read_exact(&mut bytes)?;
        }
        Ok(time)
    };
    let mut times = Vec::new();
    for _ in 0..pace.messages() {
        let time = round(&mut relays.into, &mut relays.out);
        times.push(time.map_err(Error::io("cannot relay"))?);
        pace.wait();
    }
    relays.end()?;
    Ok(median(&times))
}
