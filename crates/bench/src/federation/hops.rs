//! What a broker on the way costs: latency beside that of a raw TCP relay on the same cables, and
//! throughput over one connection beside that of one broker.
//!
//! The brokers stand in a line A, B, D, E. A relay is a thread in each of their namespaces that
//! reads from one connection and writes to the next; its messages are as large as the PUBLISH.
//! What the ends cost is in both figures of a kind (no hop, three hops), so it cancels.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::SETTLE;
use super::client::{Client, Subscriber};
use super::network::{Brokers, Plan};
use crate::error::{Error, Result};
use crate::wire::{PublishTemplate, Version};

/// From A to E: brokers of the line, and the number of the cable to the next.
const WAY: [(usize, u8); 4] = [(0, 1), (1, 2), (3, 3), (4, 0)];
const HOPS: f64 = 3.0;
const RELAY: u16 = 7000;
/// Messages of a round, and the time between two.
const MESSAGES: usize = 400;
const PACE: Duration = Duration::from_millis(2);
/// Bytes of a message.
const SIZE: usize = 100;
/// How long throughput is measured.
const BLAST: Duration = Duration::from_secs(3);

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

/// Messages in a second.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Throughput {
    /// Publisher and subscriber at one broker, by round.
    pub(super) one: Vec<f64>,
    /// At two neighbours.
    pub(super) two: Vec<f64>,
    /// Processor time of a message in µs: of the one broker, and of the busier of the two.
    pub(super) cpu: [Vec<f64>; 2],
    /// Processors of the machine.
    pub(super) processors: usize,
}

pub(super) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

pub(super) fn measure(plan: &Plan<'_>, rounds: u32) -> Result<(Vec<Latency>, Throughput)> {
    let brokers = Brokers::start(plan)?;
    brokers.become_one()?;
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
                latency.relay[far].push(over_relays(&brokers, if far == 0 { 1 } else { 4 })?);
            }
        }
        latencies.push(latency);
    }
    let mut throughput = Throughput {
        one: Vec::new(),
        two: Vec::new(),
        cpu: Default::default(),
        processors: thread::available_parallelism().map_or(1, usize::from),
    };
    for n in 0..rounds {
        eprintln!("throughput, round {}", n + 1);
        let (rate, cpu) = blast(&brokers, 0)?;
        throughput.one.push(rate);
        throughput.cpu[0].push(cpu);
        let (rate, cpu) = blast(&brokers, 1)?;
        throughput.two.push(rate);
        throughput.cpu[1].push(cpu);
    }
    Ok((latencies, throughput))
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

/// Median over so many relays, in microseconds.
fn over_relays(brokers: &Brokers, number: usize) -> Result<f64> {
    let context = || Error::io("cannot relay");
    let listen = |at: usize| {
        let address = (Ipv4Addr::UNSPECIFIED, RELAY);
        brokers.space(at).enter(|| TcpListener::bind(address))
    };
    let way = &WAY[..number];
    let listeners = way
        .iter()
        .map(|(at, _)| listen(*at)?.map_err(context()))
        .collect::<Result<Vec<_>>>()?;
    // The receiver listens where the last relay is.
    let (last, _) = way[number - 1];
    let local = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let end = brokers
        .space(last)
        .enter(|| TcpListener::bind(local(RELAY + 1)))?
        .map_err(context())?;
    let mut threads = Vec::new();
    for (index, listener) in listeners.into_iter().enumerate() {
        let (at, cable) = way[index];
        let next = match index + 1 == number {
            true => local(RELAY + 1),
            // Who is further from the root has .1 on each cable.
            false => SocketAddr::from((Ipv4Addr::new(10, 9, cable, 1), RELAY)),
        };
        let space = brokers.space(at).clone();
        threads.push(thread::spawn(move || -> std::io::Result<()> {
            let mut to = space
                .enter(|| TcpStream::connect(next))
                .map_err(std::io::Error::other)??;
            to.set_nodelay(true)?;
            let (mut from, _) = listener.accept()?;
            let mut bytes = [0; 4096];
            loop {
                match from.read(&mut bytes)? {
                    0 => return Ok(()),
                    n => to.write_all(&bytes[..n])?,
                }
            }
        }));
    }
    let mut sender = brokers
        .space(0)
        .enter(|| TcpStream::connect(local(RELAY)))?
        .map_err(context())?;
    sender.set_nodelay(true).map_err(context())?;
    let (mut receiver, _) = end.accept().map_err(context())?;
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
        sender.write_all(&[b'x'; SIZE]).map_err(context())?;
        thread::sleep(PACE);
    }
    let panicked = |_| std::io::Error::other("a thread panicked");
    let came = reader.join().map_err(panicked).flatten();
    let came = came.map_err(context())?;
    drop(sender);
    for thread in threads {
        thread
            .join()
            .map_err(panicked)
            .flatten()
            .map_err(context())?;
    }
    let times = sent.iter().zip(&came);
    let times: Vec<f64> = times
        .map(|(sent, came)| (*came - *sent).as_secs_f64() * 1e6)
        .collect();
    Ok(median(&times))
}

/// Messages in a second from A to a subscriber at a broker with QoS 0, and the processor time of
/// a message in the busiest broker, in microseconds.
fn blast(brokers: &Brokers, at: usize) -> Result<(f64, f64)> {
    let mut receiver = Client::connect(brokers, at, "receiver")?;
    receiver.subscribe("blast", 0)?;
    let mut sender = Client::connect(brokers, 0, "sender")?;
    thread::sleep(SETTLE);
    let template = PublishTemplate::new(Version::V311, "blast", 0, &[b'x'; SIZE]);
    let chunk = template.bytes.repeat(256);
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let thread = thread::spawn(move || {
        while !stopped.load(Ordering::Relaxed) && sender.send(&chunk).is_ok() {}
        sender
    });
    let turn = Duration::from_millis(50);
    let warm = Instant::now() + SETTLE;
    while Instant::now() < warm {
        receiver.receive(turn, |_, _| {})?;
    }
    let (cpu, start, mut count) = (brokers.cpu(), Instant::now(), 0u64);
    while start.elapsed() < BLAST {
        receiver.receive(turn, |_, _| count += 1)?;
    }
    let (time, spent) = (start.elapsed().as_secs_f64(), brokers.cpu());
    stop.store(true, Ordering::Relaxed);
    // The sender waits for room until its last messages are read.
    while !thread.is_finished() {
        receiver.receive(turn, |_, _| {})?;
    }
    let spent = spent.iter().zip(&cpu).map(|(after, before)| after - before);
    let busiest = spent.fold(0.0, f64::max);
    Ok((count as f64 / time, busiest / count.max(1) as f64 * 1e6))
}
