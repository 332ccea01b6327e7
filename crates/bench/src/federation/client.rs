//! Clients of the experiments. Each connects to one broker over the loopback of its namespace.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::network::{Brokers, MQTT};
use super::{NAMES, PATIENCE};
use crate::blocking::{Connection, VERSION};
use punctual_measure::Result;
use punctual_measure::wire::{self, PublishTemplate, kind};

/// Longest wait of a subscriber's thread before it checks whether it has to end.
const TURN: Duration = Duration::from_millis(50);

pub(super) struct Client {
    connection: Connection,
    next: u16,
}

impl Client {
    pub(super) fn connect(brokers: &Brokers, at: usize, name: &str) -> Result<Self> {
        let name = format!("{name}-{}", NAMES[at]);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, MQTT));
        let stream = brokers.space(at).enter(|| TcpStream::connect(address))?;
        let mut client = Self {
            connection: Connection::new(name, stream)?,
            next: 0,
        };
        let mut out = Vec::new();
        wire::put_connect(&mut out, VERSION, client.connection.name());
        client.send(&out)?;
        client.until(kind::CONNACK)?;
        Ok(client)
    }

    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.connection.send(bytes)
    }

    /// Returns the TCP stream; bytes of an incomplete packet that were already read are dropped.
    pub(super) fn into_stream(self) -> TcpStream {
        self.connection.into_stream()
    }

    pub(super) fn subscribe(&mut self, filter: &str, qos: u8) -> Result<()> {
        let mut out = Vec::new();
        wire::put_subscribe(&mut out, VERSION, 1, &[filter.to_owned()], qos);
        self.send(&out)?;
        self.until(kind::SUBACK)
    }

    /// Publishes without waiting; [`Self::receive`] reads the acknowledgements.
    pub(super) fn publish(&mut self, topic: &str, payload: &str, qos: u8) -> Result<()> {
        self.next = self.next.wrapping_add(1).max(1);
        let mut template = PublishTemplate::new(VERSION, topic, qos, payload.as_bytes());
        if let Some(at) = template.id_at {
            template.bytes[at..at + 2].copy_from_slice(&self.next.to_be_bytes());
        }
        self.send(&template.bytes)
    }

    /// Waits for a packet of the type `wanted`.
    fn until(&mut self, wanted: u8) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        let mut came = false;
        while Instant::now() < end {
            let take = |first: u8, _: &[u8]| came |= first >> 4 == wanted;
            self.connection.read(Duration::from_millis(100), take)?;
            if came {
                return Ok(());
            }
        }
        Err(self.connection.failure("does not answer"))
    }

    /// Reads for `time`, or until something arrives, and acknowledges publications.
    pub(super) fn receive(
        &mut self,
        time: Duration,
        mut take: impl FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        let packet = |first: u8, body: &[u8]| {
            if first >> 4 == kind::PUBLISH
                && let Some(publish) = wire::publish(first, body, VERSION)
            {
                take(publish.topic, publish.payload);
            }
        };
        self.connection.read(time, packet).map(drop)
    }

    /// Reads for `time`, or until something arrives; returns the number of PUBACKs that were read.
    pub(super) fn acknowledged(&mut self, time: Duration) -> Result<u64> {
        let mut count = 0;
        let packet = |first: u8, _: &[u8]| count += u64::from(first >> 4 == kind::PUBACK);
        self.connection.read(time, packet)?;
        Ok(count)
    }
}

/// The publications that a subscriber has received.
#[derive(Debug, Default)]
pub(super) struct Received {
    /// Number of copies by payload, and when the first copy arrived.
    pub(super) messages: BTreeMap<Vec<u8>, (u64, Instant)>,
    /// When the last publication arrived that was not a duplicate.
    pub(super) last: Option<Instant>,
}

/// A subscriber on a thread of its own, which ends when the value is dropped.
pub(super) struct Subscriber {
    received: Arc<Mutex<Received>>,
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Subscriber {
    pub(super) fn start(brokers: &Brokers, at: usize, filter: &str, qos: u8) -> Result<Self> {
        let mut client = Client::connect(brokers, at, "subscriber")?;
        client.subscribe(filter, qos)?;
        let received = Arc::new(Mutex::new(Received::default()));
        let stop = Arc::new(AtomicBool::new(false));
        let (into, stopped) = (received.clone(), stop.clone());
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let turn = client.receive(TURN, |_, payload| {
                    let now = Instant::now();
                    let mut received = lock(&into);
                    match received.messages.get_mut(payload) {
                        Some((copies, _)) => *copies += 1,
                        None => {
                            received.messages.insert(payload.to_vec(), (1, now));
                            received.last = Some(now);
                        }
                    }
                });
                if turn.is_err() {
                    return;
                }
            }
        });
        Ok(Self {
            received,
            stop,
            thread: Some(thread),
        })
    }

    pub(super) fn received(&self) -> MutexGuard<'_, Received> {
        lock(&self.received)
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The publications received so far stay readable if the thread panicked.
            let _ = thread.join();
        }
    }
}

fn lock(received: &Mutex<Received>) -> MutexGuard<'_, Received> {
    received.lock().unwrap_or_else(PoisonError::into_inner)
}
