//! Blocking clients that fill a broker, read what it has stored, and publish until it is killed.

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::blocking::{Connection, VERSION};
use punctual_measure::Result;
use punctual_measure::wire::{self, Connack, PublishTemplate, kind};

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes of the sequence number at the start of each payload.
const NUMBER: usize = 8;

/// A connection of an MQTT client.
pub(super) struct Client {
    connection: Connection,
    /// Received packets that no caller has read yet.
    inbox: VecDeque<Packet>,
}

/// A packet that a client has received.
pub(super) enum Packet {
    Connack(Connack),
    Suback,
    /// Packet identifier.
    Puback(u16),
    /// The sequence number at the start of the payload.
    Publish(u64),
    Other,
}

impl Client {
    /// Opens a connection, and sends CONNECT and, if there is a filter, SUBSCRIBE, without waiting
    /// for the answers.
    pub(super) fn open(
        address: SocketAddr,
        name: String,
        persistent: bool,
        filter: Option<&str>,
    ) -> Result<Self> {
        let mut connection = Connection::new(name, TcpStream::connect(address))?;
        let mut out = Vec::new();
        wire::put_connect_with(&mut out, VERSION, connection.name(), persistent);
        if let Some(filter) = filter {
            wire::put_subscribe(&mut out, VERSION, 1, &[filter.to_owned()], 1);
        }
        connection.send(&out)?;
        Ok(Self {
            connection,
            inbox: VecDeque::new(),
        })
    }

    /// Connects and waits for CONNACK; returns the Session Present flag.
    pub(super) fn connect(
        address: SocketAddr,
        name: String,
        persistent: bool,
    ) -> Result<(Self, bool)> {
        let mut client = Self::open(address, name, persistent, None)?;
        match client.next(PATIENCE)? {
            Some(Packet::Connack(connack)) if connack.code == 0 => {
                Ok((client, connack.session_present))
            }
            _ => Err(client.connection.failure("did not accept the connection")),
        }
    }

    /// Waits for the SUBACK to a subscription sent by [`Client::open`], and disconnects.
    fn subscribed(mut self) -> Result<()> {
        while let Some(packet) = self.next(PATIENCE)? {
            if let Packet::Suback = packet {
                return self.connection.send(&[kind::DISCONNECT << 4, 0]);
            }
        }
        Err(self.connection.failure("sent no SUBACK"))
    }

    /// The next packet; `None` if none arrives within `patience`. Publications are acknowledged.
    pub(super) fn next(&mut self, patience: Duration) -> Result<Option<Packet>> {
        while self.inbox.is_empty() {
            let inbox = &mut self.inbox;
            let take = |first: u8, body: &[u8]| inbox.push_back(packet(first, body));
            if !self.connection.read(patience, take)? {
                return Ok(None);
            }
        }
        Ok(self.inbox.pop_front())
    }

    /// The next packet that has already been received.
    fn next_here(&mut self) -> Option<Packet> {
        self.inbox.pop_front()
    }
}

fn packet(first: u8, body: &[u8]) -> Packet {
    match first >> 4 {
        kind::CONNACK => wire::connack(body, VERSION).map_or(Packet::Other, Packet::Connack),
        kind::SUBACK => Packet::Suback,
        kind::PUBACK => wire::leading_id(body).map_or(Packet::Other, Packet::Puback),
        kind::PUBLISH => {
            let publish = wire::publish(first, body, VERSION);
            let number = publish.and_then(|publish| publish.payload.first_chunk::<NUMBER>());
            number.map_or(Packet::Other, |number| {
                Packet::Publish(u64::from_be_bytes(*number))
            })
        }
        _ => Packet::Other,
    }
}

/// Publishes messages with sequence numbers and QoS 1 to several topics in turn, and records which
/// were acknowledged.
pub(super) struct Numbered {
    client: Client,
    topics: Vec<PublishTemplate>,
    next: u64,
    /// Sequence numbers of messages in flight, by packet identifier.
    inflight: Vec<Option<u64>>,
    window: usize,
    waiting: usize,
    /// Sequence numbers of acknowledged messages.
    pub(super) acknowledged: Vec<u64>,
    /// Number of acknowledged messages, for other threads.
    pub(super) count: Arc<AtomicU64>,
}

impl Numbered {
    /// Connects a publisher with at most `window` unacknowledged messages.
    pub(super) fn connect(
        address: SocketAddr,
        topics: impl Iterator<Item = String>,
        payload: usize,
        window: usize,
    ) -> Result<Self> {
        let (client, _) = Client::connect(address, "numbered".to_owned(), false)?;
        let payload = vec![b'.'; payload.max(NUMBER)];
        Ok(Self {
            client,
            topics: topics
                .map(|topic| PublishTemplate::new(VERSION, &topic, 1, &payload))
                .collect(),
            next: 0,
            inflight: vec![None; 1 << 16],
            window,
            waiting: 0,
            acknowledged: Vec::new(),
            count: Arc::default(),
        })
    }

    /// Publishes up to sequence number `last`, until `deadline`, or until the connection fails;
    /// returns whether the broker is still there.
    pub(super) fn publish_until(&mut self, last: u64, deadline: Instant) -> bool {
        let mut out = Vec::new();
        loop {
            let going = self.next < last && Instant::now() < deadline;
            if !going && self.waiting == 0 {
                return true;
            }
            out.clear();
            while going && self.next < last && self.waiting < self.window {
                self.put(&mut out);
            }
            if !out.is_empty() && self.client.connection.send(&out).is_err() {
                return false;
            }
            let mut packet = match self.client.next(PATIENCE) {
                Ok(Some(packet)) => Some(packet),
                _ => return false,
            };
            while let Some(came) = packet {
                self.take(&came);
                packet = self.client.next_here();
            }
        }
    }

    fn take(&mut self, packet: &Packet) {
        if let Packet::Puback(id) = *packet
            && let Some(number) = self.inflight[usize::from(id)].take()
        {
            self.acknowledged.push(number);
            self.count.fetch_add(1, Ordering::Relaxed);
            self.waiting -= 1;
        }
    }

    fn put(&mut self, out: &mut Vec<u8>) {
        let number = self.next;
        self.next += 1;
        self.waiting += 1;
        // A packet identifier is reused only long after its message has left the window.
        let id = (number % u64::from(u16::MAX)) as u16 + 1;
        self.inflight[usize::from(id)] = Some(number);
        let template = &self.topics[(number % self.topics.len() as u64) as usize];
        let at = out.len();
        out.extend_from_slice(&template.bytes);
        let payload = at + template.payload_at;
        out[payload..payload + NUMBER].copy_from_slice(&number.to_be_bytes());
        if let Some(id_at) = template.id_at {
            out[at + id_at..at + id_at + 2].copy_from_slice(&id.to_be_bytes());
        }
    }
}

/// Creates sessions that outlive their connections, each with a subscription to `topic` of its
/// index, and disconnects them.
pub(super) fn make_sessions(
    address: SocketAddr,
    sessions: u32,
    topic: impl Fn(u32) -> String,
) -> Result<()> {
    const AT_ONCE: usize = 250;
    let numbers: Vec<u32> = (0..sessions).collect();
    for some in numbers.chunks(AT_ONCE) {
        let clients = some
            .iter()
            .map(|&n| Client::open(address, session_name(n), true, Some(&topic(n))))
            .collect::<Result<Vec<_>>>()?;
        clients.into_iter().try_for_each(Client::subscribed)?;
    }
    Ok(())
}

/// Client identifier of a session, by its index.
pub(super) fn session_name(number: u32) -> String {
    format!("durable-{number}")
}
