//! Throughput of a connection between two brokers, compared with one broker and with raw relays.
//!
//! The first broker has a processor to itself, whether there is a second broker or not; publisher
//! and subscriber share another one, which is also the second broker's if there are only two
//! ([`Places`]). To keep their load low with QoS 0, the publisher sends from a file in memory, and
//! the subscriber checks each message for half a second and then has the kernel discard and count
//! the bytes. With QoS 1 both handle every message. Relays carry the same bytes on the same
//! processors.

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::client::Client;
use super::network::{Brokers, Plan};
use super::relay::{Relays, Waits};
use super::{SETTLE, median};
use crate::sys;
use punctual_measure::wire::{PublishTemplate, Version};
use punctual_measure::{Error, Result};
use punctual_testbed::netns::memory_file;

const TOPIC: &str = "blast";
/// Size of a message in bytes.
const SIZE: usize = 100;
/// Duration of one measurement.
const BLAST: Duration = Duration::from_secs(3);
/// Messages that the publisher sends at once, with QoS 0 and with QoS 1.
const CHUNK: [u16; 2] = [1024, 250];
/// Most unacknowledged messages of the publisher with QoS 1: the default limit for messages in
/// flight between two brokers.
const WINDOW: u64 = 1000;
/// Most bytes that the kernel discards at once.
const DISCARD: usize = 1 << 20;
/// Longest wait for data before a thread checks whether it has to end.
const TURN: Duration = Duration::from_millis(50);

/// Results with one quality of service.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Throughput {
    pub(super) qos: u8,
    /// Publisher and subscriber at one broker, and at two neighbouring brokers.
    pub(super) broker: [Series; 2],
    /// The same bytes over one relay, and over two; only with QoS 0.
    pub(super) relay: [Series; 2],
}

/// Results by round.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Series {
    /// Messages per second.
    pub(super) rate: Vec<f64>,
    /// Processor time per message of the busiest broker, µs; 0 of relays.
    pub(super) cpu: Vec<f64>,
    /// Mean number of processors that publisher and subscriber kept busy together.
    pub(super) generator: Vec<f64>,
}

impl Series {
    fn push(&mut self, blast: &Blast) {
        self.rate.push(blast.rate);
        self.cpu.push(blast.cpu);
        self.generator.push(blast.generator);
    }
}

/// Results of one round.
struct Blast {
    rate: f64,
    cpu: f64,
    generator: f64,
}

/// The processor of each process.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Places {
    /// Processors of the first broker or relay, and of the second.
    pub(super) carriers: [usize; 2],
    pub(super) publisher: usize,
    pub(super) subscriber: usize,
}

impl Places {
    /// Places on a machine with that many processors.
    pub(super) fn of(processors: usize) -> Self {
        let places = |carriers, publisher, subscriber| Self {
            carriers,
            publisher,
            subscriber,
        };
        match processors {
            0 | 1 => places([0, 0], 0, 0),
            2 => places([0, 1], 1, 1),
            3 => places([0, 1], 2, 2),
            _ => places([0, 1], 2, 3),
        }
    }
}

/// Measures QoS 0 and QoS 1 in that many rounds.
pub(super) fn measure(plan: &Plan<'_>, places: Places, rounds: u32) -> Result<Vec<Throughput>> {
    let brokers = Brokers::start(&Plan {
        joins_frames: true,
        ..plan.clone()
    })?;
    brokers.become_one()?;
    brokers.pin(0, places.carriers[0])?;
    brokers.pin(1, places.carriers[1])?;
    let mut all = Vec::new();
    for qos in [0, 1] {
        let mut throughput = Throughput {
            qos,
            broker: Default::default(),
            relay: Default::default(),
        };
        for n in 0..rounds {
            eprintln!("throughput, QoS {qos}, round {}", n + 1);
            for at in [0, 1] {
                throughput.broker[at].push(&over_brokers(&brokers, at, qos, places)?);
                if qos == 0 {
                    throughput.relay[at].push(&over_relays(&brokers, at + 1, places)?);
                }
            }
        }
        all.push(throughput);
    }
    Ok(all)
}

/// Measures from a publisher at A to a subscriber at another broker, or at A.
fn over_brokers(brokers: &Brokers, at: usize, qos: u8, places: Places) -> Result<Blast> {
    let mut subscriber = Client::connect(brokers, at, "receiver")?;
    subscriber.subscribe(TOPIC, qos)?;
    let publisher = Client::connect(brokers, 0, "sender")?;
    thread::sleep(SETTLE);
    let run = Arc::new(Run::default());
    let subscribed = {
        let run = run.clone();
        spawn(places.subscriber, move || match qos {
            0 => run.discard(subscriber),
            _ => run.receive(subscriber),
        })
    };
    let published = {
        let run = run.clone();
        spawn(places.publisher, move || match qos {
            0 => run.blast(&publisher.into_stream()),
            _ => run.publish(publisher),
        })
    };
    let blast = run.measure(|| brokers.cpu());
    run.end(published, subscribed)?;
    Ok(blast)
}

/// Measures the same bytes over one or two relays.
fn over_relays(brokers: &Brokers, number: usize, places: Places) -> Result<Blast> {
    let relays = Relays::start(brokers, &[0, 1][..number], &places.carriers, Waits::InRead)?;
    let clone = |stream: &TcpStream| stream.try_clone().map_err(Error::io("cannot relay"));
    let (into, out) = (clone(&relays.into)?, clone(&relays.out)?);
    let run = Arc::new(Run::default());
    let subscribed = {
        let run = run.clone();
        spawn(places.subscriber, move || run.count(&out))
    };
    let published = {
        let run = run.clone();
        spawn(places.publisher, move || run.blast(&into))
    };
    let blast = run.measure(Vec::new);
    run.end(published, subscribed)?;
    relays.end()?;
    Ok(blast)
}

/// State that publisher, subscriber and the measuring thread share.
#[derive(Default)]
struct Run {
    /// Bytes of the messages that arrived.
    bytes: AtomicU64,
    /// Processor time of publisher and subscriber, in nanoseconds.
    cpu: [AtomicU64; 2],
    /// The subscriber need not check messages any more.
    measured: AtomicBool,
    /// The publisher has to end, and after it the subscriber.
    stop: [AtomicBool; 2],
}

const PUBLISHER: usize = 0;
const SUBSCRIBER: usize = 1;

impl Run {
    /// Waits while traffic settles, and then measures. `cpu` returns each broker's processor time
    /// in seconds.
    fn measure(&self, cpu: impl Fn() -> Vec<f64>) -> Blast {
        thread::sleep(SETTLE);
        self.measured.store(true, Ordering::Relaxed);
        let generator = || -> u64 { self.cpu.iter().map(|c| c.load(Ordering::Relaxed)).sum() };
        let (before, own, start) = (cpu(), generator(), Instant::now());
        let first = self.bytes.load(Ordering::Relaxed);
        thread::sleep(BLAST);
        let (after, used, time) = (cpu(), generator() - own, start.elapsed().as_secs_f64());
        let bytes = self.bytes.load(Ordering::Relaxed) - first;
        let messages = bytes as f64 / template(0).bytes.len() as f64;
        let spent = after
            .iter()
            .zip(&before)
            .map(|(after, before)| after - before);
        Blast {
            rate: messages / time,
            cpu: spent.fold(0.0, f64::max) / messages.max(1.0) * 1e6,
            generator: used as f64 / 1e9 / time,
        }
    }

    fn end(
        &self,
        published: JoinHandle<Result<()>>,
        subscribed: JoinHandle<Result<()>>,
    ) -> Result<()> {
        for (thread, stop) in [published, subscribed].into_iter().zip(&self.stop) {
            stop.store(true, Ordering::Relaxed);
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        Ok(())
    }

    fn goes_on(&self, who: usize) -> bool {
        self.cpu[who].store(sys::thread_cpu_ns(), Ordering::Relaxed);
        !self.stop[who].load(Ordering::Relaxed)
    }

    /// Sends messages with QoS 0 as fast as the socket accepts them.
    fn blast(&self, stream: &TcpStream) -> Result<()> {
        let context = || Error::io("cannot publish");
        let chunk = template(0).bytes.repeat(usize::from(CHUNK[0]));
        let file = memory_file("publications", &chunk).map_err(context())?;
        while self.goes_on(PUBLISHER) {
            let mut sent = 0;
            while sent < chunk.len() {
                sent +=
                    sys::send_file(stream, &file, sent, chunk.len() - sent).map_err(context())?;
            }
        }
        Ok(())
    }

    /// Publishes with QoS 1 as fast as the broker acknowledges.
    fn publish(&self, mut client: Client) -> Result<()> {
        let template = template(1);
        let mut chunk = template.bytes.repeat(usize::from(CHUNK[1]));
        let (mut next, mut waiting) = (0, 0);
        while self.goes_on(PUBLISHER) {
            if waiting + u64::from(CHUNK[1]) > WINDOW {
                waiting -= client.acknowledged(TURN)?;
                continue;
            }
            for packet in chunk.chunks_exact_mut(template.bytes.len()) {
                next = next % u16::MAX + 1;
                if let Some(at) = template.id_at {
                    packet[at..at + 2].copy_from_slice(&u16::to_be_bytes(next));
                }
            }
            client.send(&chunk)?;
            waiting += u64::from(CHUNK[1]);
        }
        Ok(())
    }

    /// Checks messages until the measurement begins, and then counts bytes only.
    fn discard(&self, mut client: Client) -> Result<()> {
        while !self.measured.load(Ordering::Relaxed) && self.goes_on(SUBSCRIBER) {
            self.look(&mut client)?;
        }
        self.count(&client.into_stream())
    }

    /// Checks each message and acknowledges it.
    fn receive(&self, mut client: Client) -> Result<()> {
        while self.goes_on(SUBSCRIBER) {
            self.look(&mut client)?;
        }
        Ok(())
    }

    fn look(&self, client: &mut Client) -> Result<()> {
        let (mut count, mut wrong) = (0, 0);
        client.receive(TURN, |topic, payload| {
            match topic == TOPIC.as_bytes() && payload == PAYLOAD {
                true => count += 1,
                false => wrong += 1,
            }
        })?;
        if wrong > 0 {
            return Err(Error::Peer {
                peer: "the mesh".into(),
                why: format!("{wrong} messages that were not published arrived"),
            });
        }
        let bytes = count * template(0).bytes.len() as u64;
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Counts bytes until the subscriber has to end, or the stream ends.
    fn count(&self, stream: &TcpStream) -> Result<()> {
        let context = || Error::io("cannot receive");
        stream.set_read_timeout(Some(TURN)).map_err(context())?;
        while self.goes_on(SUBSCRIBER) {
            match sys::discard(stream, DISCARD) {
                Ok(0) => return Ok(()),
                Ok(n) => drop(self.bytes.fetch_add(n as u64, Ordering::Relaxed)),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(context()(error)),
            }
        }
        Ok(())
    }
}

const PAYLOAD: &[u8] = &[b'x'; SIZE];

fn template(qos: u8) -> PublishTemplate {
    PublishTemplate::new(Version::V311, TOPIC, qos, PAYLOAD)
}

/// Runs `work` on a thread that is pinned to a core.
fn spawn(
    core: usize,
    work: impl FnOnce() -> Result<()> + Send + 'static,
) -> JoinHandle<Result<()>> {
    thread::spawn(move || {
        sys::pin_to_core(core).map_err(Error::io(format!("cannot pin to processor {core}")))?;
        work()
    })
}

impl Throughput {
    /// Median rate over two brokers as a share of the rate over one; the same of relays.
    pub(super) fn shares(&self) -> [f64; 2] {
        [&self.broker, &self.relay].map(|[one, two]| median(&two.rate) / median(&one.rate))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_carrier_shares_its_processor_with_nobody_where_there_are_two() {
        for processors in 2..6 {
            let places = Places::of(processors);
            let [first, second] = places.carriers;
            let others = [second, places.publisher, places.subscriber];
            assert!(!others.contains(&first), "{places:?}");
            assert!(others.iter().all(|core| *core < processors), "{places:?}");
        }
        assert_eq!(Places::of(1).carriers, [0, 0]);
    }

    #[test]
    fn shares_are_of_medians() {
        let series = |rate: &[f64]| Series {
            rate: rate.to_vec(),
            ..Series::default()
        };
        let throughput = Throughput {
            qos: 0,
            broker: [series(&[9.0, 10.0, 30.0]), series(&[7.0, 1.0, 8.0])],
            relay: [series(&[4.0]), series(&[3.0])],
        };
        assert_eq!(throughput.shares(), [0.7, 0.75]);
    }
}
