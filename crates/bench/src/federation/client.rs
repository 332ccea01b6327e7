//! Clients of the experiments, each at one broker, over its loopback.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::network::{Brokers, MQTT};
use super::{NAMES, PATIENCE};
use crate::error::{Error, Result};
use crate::wire::{self, Frame, PublishTemplate, Version, kind};

/// Longest wait of a subscriber's thread before it looks whether it is to end.
const TURN: Duration = Duration::from_millis(50);

pub(super) struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
    name: String,
    next: u16,
}

impl Client {
    pub(super) fn connect(brokers: &Brokers, at: usize, name: &str) -> Result<Self> {
        let name = format!("{name}-{}", NAMES[at]);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, MQTT));
        let context = || format!("{name} cannot connect");
        let stream = brokers.space(at).enter(|| TcpStream::connect(address))?;
        let stream = stream.map_err(Error::io(context()))?;
        stream.set_nodelay(true).map_err(Error::io(context()))?;
        let mut client = Self {
            stream,
            buffer: Vec::new(),
            name,
            next: 0,
        };
        let mut out = Vec::new();
        wire::put_connect(&mut out, Version::V311, &client.name);
        client.send(&out)?;
        client.until(kind::CONNACK)?;
        Ok(client)
    }

    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<()> {
        let context = format!("{} cannot send", self.name);
        self.stream.write_all(bytes).map_err(Error::io(context))
    }

    pub(super) fn subscribe(&mut self, filter: &str, qos: u8) -> Result<()> {
        let mut out = Vec::new();
        wire::put_subscribe(&mut out, Version::V311, 1, &[filter.to_owned()], qos);
        self.send(&out)?;
        self.until(kind::SUBACK)
    }

    /// Publishes; acknowledgements are read by [`Self::receive`].
    pub(super) fn publish(&mut self, topic: &str, payload: &str, qos: u8) -> Result<()> {
        self.next = self.next.wrapping_add(1).max(1);
        let mut template = PublishTemplate::new(Version::V311, topic, qos, payload.as_bytes());
        if let Some(at) = template.id_at {
            template.bytes[at..at + 2].copy_from_slice(&self.next.to_be_bytes());
        }
        self.send(&template.bytes)
    }

    /// Waits for a packet of that kind.
    fn until(&mut self, wanted: u8) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            if self
                .turn(Duration::from_millis(100), &mut |_, _| {})?
                .contains(&wanted)
            {
                return Ok(());
            }
        }
        Err(Error::Broker {
            client: self.name.clone(),
            what: "does not answer".into(),
        })
    }

    /// Reads for that long, or until something comes, and acknowledges publications.
    pub(super) fn receive(
        &mut self,
        time: Duration,
        mut take: impl FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        self.turn(time, &mut take).map(drop)
    }

    /// Kinds of the packets that came.
    fn turn(&mut self, time: Duration, take: &mut dyn FnMut(&[u8], &[u8])) -> Result<Vec<u8>> {
        let context = || format!("{} cannot read", self.name);
        self.stream
            .set_read_timeout(Some(time))
            .map_err(Error::io(context()))?;
        let mut bytes = [0; 64 << 10];
        match self.stream.read(&mut bytes) {
            Ok(0) => {
                return Err(Error::Broker {
                    client: self.name.clone(),
                    what: "closed the connection".into(),
                });
            }
            Ok(n) => self.buffer.extend_from_slice(&bytes[..n]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => return Err(Error::io(context())(error)),
        }
        let (mut kinds, mut acks, mut done) = (Vec::new(), Vec::new(), 0);
        while let Frame::Packet { first, body, end } = wire::frame(&self.buffer[done..]) {
            let packet = &self.buffer[done + body..done + end];
            kinds.push(first >> 4);
            if first >> 4 == kind::PUBLISH
                && let Some(publish) = wire::publish(first, packet, Version::V311)
            {
                if publish.qos == 1 {
                    wire::put_ack(&mut acks, kind::PUBACK, publish.id);
                }
                take(publish.topic, publish.payload);
            }
            done += end;
        }
        self.buffer.drain(..done);
        if !acks.is_empty() {
            self.send(&acks)?;
        }
        Ok(kinds)
    }
}

/// What a subscriber has received.
#[derive(Debug, Default)]
pub(super) struct Received {
    /// Copies by payload, and when the first of them came.
    pub(super) messages: BTreeMap<Vec<u8>, (u64, Instant)>,
    /// When the last came that was not a copy.
    pub(super) last: Option<Instant>,
}

/// A subscriber on a thread of its own, until dropped.
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
            // What it received stays readable after a panic.
            let _ = thread.join();
        }
    }
}

fn lock(received: &Mutex<Received>) -> MutexGuard<'_, Received> {
    received.lock().unwrap_or_else(PoisonError::into_inner)
}
