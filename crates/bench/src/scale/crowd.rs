//! Many clients on one thread, with a send buffer each; received packets are counted.
//!
//! Payloads are skipped without being stored, so that a payload of 16 MiB costs the clients no more
//! per byte than small ones. Every wait fails after the time `patience`.

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

use punctual_measure::io::{self, FlushOutcome, Outbox, READ_CHUNK};
use punctual_measure::wire::{self, Frame, Version, kind};
use punctual_measure::{Error, Result};

use crate::sys::{Epoll, Interest};

/// Most bytes that wait in the buffer of one socket before a client adds no more.
const HIGH_WATER: usize = 256 << 10;
/// Most unanswered packets over all clients: less than the connections that wait for accept at a
/// broker (Mosquitto: 100).
const WINDOW: u64 = 64;
/// Longest wait before the clock is read again.
const TURN: Duration = Duration::from_millis(50);
/// Lowest return or reason code that reports a failure.
const REFUSED: u8 = 0x80;

/// Received packets, by type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) connacks: u64,
    pub(super) subacks: u64,
    pub(super) pubacks: u64,
    pub(super) publishes: u64,
}

struct Client {
    name: String,
    version: Version,
    stream: TcpStream,
    out: Outbox,
    blocked: bool,
    scan: Scan,
    publishes: u64,
}

/// Clients of one broker, by index. Dropping the value closes all connections.
pub(super) struct Crowd {
    address: SocketAddr,
    patience: Duration,
    epoll: Epoll,
    clients: Vec<Client>,
    shared: Vec<u8>,
    pub(super) seen: Seen,
}

impl Crowd {
    pub(super) fn new(address: SocketAddr, patience: Duration) -> Result<Self> {
        Ok(Self {
            address,
            patience,
            epoll: Epoll::new().map_err(Error::io("cannot create an epoll instance"))?,
            clients: Vec::new(),
            shared: vec![0; READ_CHUNK],
            seen: Seen::default(),
        })
    }

    pub(super) fn len(&self) -> u64 {
        self.clients.len() as u64
    }

    /// The smallest number of publications that any client has received.
    pub(super) fn fewest(&self) -> u64 {
        let each = self.clients.iter().map(|client| client.publishes);
        each.min().unwrap_or(0)
    }

    /// Adds a client with an open connection.
    pub(super) fn adopt(
        &mut self,
        name: &str,
        version: Version,
        stream: TcpStream,
    ) -> Result<usize> {
        let index = self.clients.len();
        io::prepare(&stream)
            .and_then(|()| {
                self.epoll
                    .add(stream.as_raw_fd(), index as u32, Interest::READ)
            })
            .map_err(Error::io(format!(
                "cannot prepare a socket (client {name})"
            )))?;
        self.clients.push(Client {
            name: name.to_owned(),
            version,
            stream,
            out: Outbox::default(),
            blocked: false,
            scan: Scan::default(),
            publishes: 0,
        });
        Ok(index)
    }

    /// Opens a TCP connection, without sending CONNECT.
    pub(super) fn open(&mut self, name: &str, version: Version) -> Result<usize> {
        let deadline = Instant::now() + self.patience;
        let stream = loop {
            match TcpStream::connect_timeout(&self.address, self.patience) {
                Ok(stream) => break stream,
                // All local ports belong to connections that were closed a moment ago.
                Err(error)
                    if error.kind() == ErrorKind::AddrNotAvailable && Instant::now() < deadline =>
                {
                    thread::sleep(TURN);
                }
                Err(error) => {
                    return Err(Error::io(format!("cannot connect (client {name})"))(error));
                }
            }
        };
        self.adopt(name, version, stream)
    }

    /// Connects that many clients, with clean sessions or, with `persistent`, with sessions that
    /// outlive their connections; returns the time it took.
    pub(super) fn greet(
        &mut self,
        prefix: &str,
        count: u64,
        version: Version,
        persistent: bool,
    ) -> Result<Duration> {
        self.pipeline(
            "CONNACK",
            count,
            |seen| seen.connacks,
            |crowd, n| {
                let name = format!("{prefix}-{n}");
                let index = crowd.open(&name, version)?;
                crowd.send(index, |out| {
                    wire::put_connect_with(out, version, &name, persistent);
                })
            },
        )
    }

    /// Connects one client and subscribes to its filters.
    pub(super) fn client(
        &mut self,
        name: &str,
        version: Version,
        filters: &[String],
    ) -> Result<usize> {
        let index = self.clients.len();
        self.greet(name, 1, version, false)?;
        self.subscribe(&[index], filters)?;
        Ok(index)
    }

    /// Subscribes these clients, each to an equal share of `filters`, with 100 filters in a packet;
    /// returns the time until all packets were answered.
    pub(super) fn subscribe(&mut self, clients: &[usize], filters: &[String]) -> Result<Duration> {
        let share = filters.len().div_ceil(clients.len().max(1)).max(1);
        let parts = filters.chunks(share).zip(clients);
        // All clients send their first packet before any client sends its second.
        let mut packets: Vec<(usize, usize, &[String])> = parts
            .flat_map(|(part, &client)| {
                let packets = part.chunks(100).enumerate();
                packets.map(move |(at, packet)| (at, client, packet))
            })
            .collect();
        packets.sort_by_key(|&(at, ..)| at);
        let count = packets.len() as u64;
        self.pipeline(
            "SUBACK",
            count,
            |seen| seen.subacks,
            |crowd, n| {
                let Some(&(at, client, filters)) = packets.get(n as usize) else {
                    return Ok(());
                };
                let version = crowd.clients[client].version;
                let id = (at % usize::from(u16::MAX)) as u16 + 1;
                crowd.send(client, |out| {
                    wire::put_subscribe(out, version, id, filters, 0);
                })
            },
        )
    }

    /// Sends `count` packets, of which at most [`WINDOW`] are unanswered; returns the time until
    /// all are answered.
    fn pipeline(
        &mut self,
        what: &str,
        count: u64,
        answered: impl Fn(&Seen) -> u64,
        mut send: impl FnMut(&mut Self, u64) -> Result<()>,
    ) -> Result<Duration> {
        let started = Instant::now();
        let (before, mut sent) = (answered(&self.seen), 0);
        self.until(what, count, |crowd| {
            while sent < count && sent - (answered(&crowd.seen) - before) < WINDOW {
                send(crowd, sent)?;
                sent += 1;
            }
            Ok(answered(&crowd.seen) - before)
        })?;
        Ok(started.elapsed())
    }

    /// Appends bytes to the send buffer of a client, and sends.
    pub(super) fn send(&mut self, index: usize, put: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        put(self.clients[index].out.buffer());
        self.flush(index)
    }

    /// Whether the send buffer of a client is below [`HIGH_WATER`].
    pub(super) fn has_room(&self, index: usize) -> bool {
        self.clients[index].out.pending() < HIGH_WATER
    }

    /// Serves the clients until `count` returns at least `due`; `count` may send.
    ///
    /// # Errors
    /// The wait exceeds the patience, or the broker refuses a packet or closes a connection.
    pub(super) fn until(
        &mut self,
        what: &str,
        due: u64,
        mut count: impl FnMut(&mut Self) -> Result<u64>,
    ) -> Result<()> {
        let deadline = Instant::now() + self.patience;
        loop {
            let came = count(self)?;
            if came >= due {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(Error::Broker {
                    client: self
                        .clients
                        .last()
                        .map_or("none", |last| &last.name)
                        .to_owned(),
                    what: format!("had sent {came} of {due} {what} after {:?}", self.patience),
                });
            }
            self.turn()?;
        }
    }

    /// Waits for events of the sockets, and handles all of them.
    pub(super) fn turn(&mut self) -> Result<()> {
        let ready = self.epoll.wait(Some(TURN.as_nanos() as u64));
        for at in 0..ready.map_err(Error::io("cannot wait for events"))? {
            let ready = self.epoll.ready(at);
            let index = ready.token as usize;
            if ready.writable {
                self.flush(index)?;
            }
            if ready.readable {
                self.read(index)?;
            }
        }
        Ok(())
    }

    fn flush(&mut self, index: usize) -> Result<()> {
        let client = &mut self.clients[index];
        let blocked = match client.out.flush(&client.stream) {
            FlushOutcome::All => false,
            FlushOutcome::Blocked => true,
            FlushOutcome::Closed => return Err(client.failure("closed the connection")),
        };
        if blocked == client.blocked {
            return Ok(());
        }
        client.blocked = blocked;
        let interest = Interest {
            read: true,
            write: blocked,
        };
        self.epoll
            .change(client.stream.as_raw_fd(), index as u32, interest)
            .map_err(Error::io("cannot watch a connection"))
    }

    fn read(&mut self, index: usize) -> Result<()> {
        let client = &mut self.clients[index];
        let length = match client.stream.read(&mut self.shared) {
            Ok(0) => return Err(client.failure("closed the connection")),
            Ok(length) => length,
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                return Ok(());
            }
            Err(error) => {
                let context = format!("cannot read (client {})", client.name);
                return Err(Error::io(context)(error));
            }
        };
        let before = self.seen.publishes;
        let version = client.version;
        let seen = &mut self.seen;
        let taken = client.scan.take(&self.shared[..length], |first, body| {
            note(seen, version, first, body)
        });
        client.publishes += self.seen.publishes - before;
        taken.map_err(|what| client.failure(&what))
    }
}

impl Client {
    fn failure(&self, what: &str) -> Error {
        Error::Broker {
            client: self.name.clone(),
            what: what.to_owned(),
        }
    }
}

/// Counts a packet; `Err` if it has a code that reports a failure.
fn note(
    seen: &mut Seen,
    version: Version,
    first: u8,
    body: &[u8],
) -> std::result::Result<(), String> {
    let refused = |what: &str| Err(format!("{what} ({:02x?})", &body[..body.len().min(8)]));
    match first >> 4 {
        kind::PUBLISH => seen.publishes += 1,
        kind::CONNACK => {
            if wire::connack(body, version).is_none_or(|connack| connack.code != 0) {
                return refused("refused a connection");
            }
            seen.connacks += 1;
        }
        kind::SUBACK => {
            // Behind the packet identifier and, with version 5, at least one byte of properties.
            let codes = body.get(2..).unwrap_or(&[]);
            if codes.last().is_none_or(|&code| code >= REFUSED)
                || version == Version::V311 && codes.iter().any(|&code| code >= REFUSED)
            {
                return refused("refused a subscription");
            }
            seen.subacks += 1;
        }
        kind::PUBACK => {
            if body.get(2).is_some_and(|&code| code >= REFUSED) {
                return refused("refused a publication");
            }
            seen.pubacks += 1;
        }
        kind::DISCONNECT => return refused("disconnected"),
        _ => {}
    }
    Ok(())
}

/// Splits the received bytes into packets.
#[derive(Debug, Default)]
struct Scan {
    /// The beginning of an incomplete packet: any type but PUBLISH, or less than a fixed header.
    kept: Vec<u8>,
    /// Bytes of a PUBLISH that have not arrived yet.
    skip: usize,
}

impl Scan {
    /// Passes on every complete packet: its first byte and the bytes that follow its length, except
    /// those of a PUBLISH that arrived in parts.
    fn take(
        &mut self,
        mut bytes: &[u8],
        mut each: impl FnMut(u8, &[u8]) -> std::result::Result<(), String>,
    ) -> std::result::Result<(), String> {
        if self.skip > 0 {
            let part = self.skip.min(bytes.len());
            self.skip -= part;
            bytes = &bytes[part..];
            if self.skip > 0 {
                return Ok(());
            }
            each(kind::PUBLISH << 4, &[])?;
        }
        let mut joined = std::mem::take(&mut self.kept);
        let mut bytes = match joined.is_empty() {
            true => bytes,
            false => {
                joined.extend_from_slice(bytes);
                &joined
            }
        };
        loop {
            match wire::frame(bytes) {
                Frame::Packet { first, body, end } => {
                    each(first, &bytes[body..end])?;
                    bytes = &bytes[end..];
                }
                Frame::Malformed => return Err("sent what is no MQTT".to_owned()),
                Frame::Incomplete => {
                    let is_publish = bytes
                        .first()
                        .is_some_and(|first| first >> 4 == kind::PUBLISH);
                    match wire::packet_length(bytes) {
                        Some(length) if is_publish => self.skip = length - bytes.len(),
                        _ => self.kept = bytes.to_vec(),
                    }
                    return Ok(());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use punctual_measure::wire::PublishTemplate;

    #[test]
    fn packets_are_counted_however_they_are_cut() {
        let mut bytes = Vec::new();
        wire::put_connack(&mut bytes, Version::V311);
        bytes.extend(PublishTemplate::new(Version::V311, "t", 0, &[7; 300]).bytes);
        wire::put_suback(&mut bytes, Version::V311, 1, &[0, 0]);
        bytes.extend(PublishTemplate::new(Version::V311, "t", 0, b"").bytes);
        let expected = Seen {
            connacks: 1,
            subacks: 1,
            pubacks: 0,
            publishes: 2,
        };
        for step in 1..=bytes.len() {
            let (mut scan, mut seen) = (Scan::default(), Seen::default());
            for part in bytes.chunks(step) {
                scan.take(part, |first, body| {
                    note(&mut seen, Version::V311, first, body)
                })
                .unwrap();
            }
            assert_eq!(seen, expected, "{step}");
            assert!(scan.kept.is_empty() && scan.skip == 0);
        }
    }

    #[test]
    fn what_a_broker_refuses_is_no_answer() {
        for (version, first, body) in [
            (Version::V311, kind::CONNACK, &[0, 5][..]),
            (Version::V311, kind::SUBACK, &[0, 1, 0x80, 0]),
            (Version::V5, kind::SUBACK, &[0, 1, 0, 0x97]),
            (Version::V5, kind::PUBACK, &[0, 1, 0x97]),
            (Version::V5, kind::DISCONNECT, &[0x97]),
        ] {
            let mut seen = Seen::default();
            assert!(note(&mut seen, version, first << 4, body).is_err());
            assert_eq!(seen, Seen::default());
        }
    }
}
