//! The floor: what a plain one-thread epoll forwarder costs on this machine.
//!
//! It is no broker. It parses, looks an exact topic up in a hash map, copies the packet into
//! every receiver's buffer and flushes each receiver once per loop turn; QoS 1 gets its packet
//! identifiers rewritten and is acknowledged at once. There are no sessions, wildcards, retained
//! messages, wills, keep-alive or QoS 2, and messages pass only between clients of one protocol
//! version. Invariants: three system calls per message at low load (`epoll_wait`, `recv`,
//! `send`), and no receiver's buffer grows beyond [`HIGH_WATER`] by more than one read per
//! publisher, because a publisher whose receiver is full is not read.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::rc::Rc;

use hashbrown::HashMap;

use crate::error::{Error, Result};
use crate::io::{self, FlushOutcome, Outbox, READ_CHUNK, ReadOutcome, Tail};
use crate::sys::{Epoll, Interest};
use crate::wire::{self, Frame, Version, kind};

/// Bytes pending for a receiver at which its publishers are no longer read.
pub const HIGH_WATER: usize = 1024 * 1024;

/// Bytes pending for a receiver below which its publishers are read again.
const LOW_WATER: usize = HIGH_WATER / 2;

const LISTENER: u32 = u32::MAX;

/// A listening forwarder.
pub struct Floor {
    epoll: Epoll,
    listener: TcpListener,
    connections: Slots,
    routes: Routes,
    /// Connections with bytes to flush at the end of the turn.
    dirty: Vec<u32>,
    shared: Vec<u8>,
}

type Routes = HashMap<Rc<[u8]>, Vec<Route>, foldhash::fast::FixedState>;

#[derive(Clone, Copy)]
struct Route {
    receiver: u32,
    qos: u8,
}

struct Connection {
    stream: TcpStream,
    tail: Tail,
    out: Outbox,
    /// Unknown until CONNECT.
    version: Option<Version>,
    topics: Vec<Rc<[u8]>>,
    /// Publishers that wait for this connection to drain.
    waiters: Vec<u32>,
    next_id: u16,
    in_dirty: bool,
    /// The last `send` came back short.
    blocked: bool,
    /// A receiver of this publisher is full.
    paused: bool,
}

impl Floor {
    /// Listens on `address`; port 0 lets the system choose, see [`Floor::local_addr`].
    ///
    /// # Errors
    /// The address cannot be bound or epoll cannot be had.
    pub fn bind(address: SocketAddr) -> Result<Self> {
        let listener =
            TcpListener::bind(address).map_err(Error::io(format!("cannot listen on {address}")))?;
        listener
            .set_nonblocking(true)
            .map_err(Error::io("cannot set the listener non-blocking"))?;
        let epoll = Epoll::new().map_err(Error::io("cannot create an epoll instance"))?;
        epoll
            .add(listener.as_raw_fd(), LISTENER, Interest::READ)
            .map_err(Error::io("cannot watch the listener"))?;
        Ok(Self {
            epoll,
            listener,
            connections: Slots::default(),
            routes: HashMap::default(),
            dirty: Vec::new(),
            shared: vec![0; READ_CHUNK],
        })
    }

    /// The address listened on.
    ///
    /// # Errors
    /// The operating system does not tell.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        self.listener
            .local_addr()
            .map_err(Error::io("cannot read the listener's address"))
    }

    /// Forwards until an error of epoll itself.
    ///
    /// # Errors
    /// `epoll_wait` or `accept` fails for want of resources.
    pub fn run(&mut self) -> Result<()> {
        loop {
            self.turn()?;
        }
    }

    /// Waits for events, handles them all, flushes once.
    fn turn(&mut self) -> Result<()> {
        let count = self
            .epoll
            .wait(None)
            .map_err(Error::io("cannot wait for events"))?;
        for index in 0..count {
            let ready = self.epoll.ready(index);
            if ready.token == LISTENER {
                self.accept()?;
                continue;
            }
            if ready.writable {
                self.mark_dirty(ready.token);
            }
            if ready.readable {
                self.read(ready.token);
            }
        }
        self.flush();
        Ok(())
    }

    fn accept(&mut self) -> Result<()> {
        let stream = match self.listener.accept() {
            Ok((stream, _)) => stream,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                return Ok(());
            }
            Err(e) => return Err(Error::io("cannot accept a connection")(e)),
        };
        io::prepare(&stream).map_err(Error::io("cannot prepare a socket"))?;
        let fd = stream.as_raw_fd();
        let token = self.connections.insert(Connection {
            stream,
            tail: Tail::default(),
            out: Outbox::default(),
            version: None,
            topics: Vec::new(),
            waiters: Vec::new(),
            next_id: 0,
            in_dirty: false,
            blocked: false,
            paused: false,
        });
        self.epoll
            .add(fd, token, Interest::READ)
            .map_err(Error::io("cannot watch a connection"))
    }

    fn read(&mut self, token: u32) {
        let Some(connection) = self.connections.get(token) else {
            return;
        };
        if connection.paused {
            // It is not watched for input, so this is a hang-up, which cannot be masked.
            return self.close(token);
        }
        let len = match connection.tail.read(&connection.stream, &mut self.shared) {
            ReadOutcome::Bytes(len) => len,
            ReadOutcome::Nothing => return,
            ReadOutcome::Closed => return self.close(token),
        };
        let shared = std::mem::take(&mut self.shared);
        let used = self.packets(token, &shared[..len]);
        match (used, self.connections.get(token)) {
            (Some(used), Some(connection)) => connection.tail.keep(&shared[used..len]),
            _ => self.close(token),
        }
        self.shared = shared;
    }

    /// Handles every whole packet in `bytes`; returns how many bytes they took, `None` to close.
    fn packets(&mut self, token: u32, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        loop {
            match wire::frame(&bytes[at..]) {
                Frame::Incomplete => return Some(at),
                Frame::Malformed => return None,
                Frame::Packet { first, body, end } => {
                    let packet = &bytes[at..at + end];
                    at += end;
                    if first >> 4 == kind::PUBLISH {
                        self.forward(token, packet, body)?;
                    } else {
                        self.answer(token, first, &packet[body..])?;
                    }
                }
            }
        }
    }

    fn forward(&mut self, token: u32, packet: &[u8], body: usize) -> Option<()> {
        let Self {
            connections,
            routes,
            dirty,
            ..
        } = self;
        let version = connections.get(token)?.version?;
        let publish = wire::publish(packet[0], &packet[body..], version)?;
        if publish.qos > 1 {
            return None;
        }
        let mut full = None;
        for route in routes.get(publish.topic).map_or(&[][..], Vec::as_slice) {
            let Some(receiver) = connections.get(route.receiver) else {
                continue;
            };
            if receiver.version != Some(version) {
                continue;
            }
            receiver.deliver(packet, body, &publish, route.qos);
            if !receiver.in_dirty {
                receiver.in_dirty = true;
                dirty.push(route.receiver);
            }
            if receiver.out.pending() > HIGH_WATER {
                full = Some(route.receiver);
            }
        }
        if let Some(receiver) = full
            && !connections.get(token)?.paused
        {
            connections.get(receiver)?.waiters.push(token);
            connections.get(token)?.paused = true;
            self.watch(token);
        }
        if publish.qos == 1 {
            let publisher = self.connections.get(token)?;
            wire::put_ack(publisher.out.buffer(), kind::PUBACK, publish.id);
            self.mark_dirty(token);
        }
        Some(())
    }

    fn answer(&mut self, token: u32, first: u8, body: &[u8]) -> Option<()> {
        let connection = self.connections.get(token)?;
        match first >> 4 {
            kind::CONNECT => {
                let version = wire::connect_version(body)?;
                connection.version = Some(version);
                wire::put_connack(connection.out.buffer(), version);
            }
            kind::SUBSCRIBE => {
                let version = connection.version?;
                let filters = wire::subscribe_filters(body, version)?;
                let granted: Vec<u8> = filters.iter().map(|&(_, qos)| qos.min(1)).collect();
                let id = wire::leading_id(body)?;
                wire::put_suback(connection.out.buffer(), version, id, &granted);
                for ((filter, _), qos) in filters.into_iter().zip(granted) {
                    self.subscribe(token, filter, qos);
                }
            }
            kind::PINGREQ => connection.out.buffer().extend_from_slice(&wire::PINGRESP),
            kind::PUBACK => return Some(()),
            _ => return None,
        }
        self.mark_dirty(token);
        Some(())
    }

    fn subscribe(&mut self, token: u32, filter: &[u8], qos: u8) {
        let topic: Rc<[u8]> = filter.into();
        let routes = self.routes.entry(Rc::clone(&topic)).or_default();
        if let Some(route) = routes.iter_mut().find(|route| route.receiver == token) {
            route.qos = qos;
            return;
        }
        routes.push(Route {
            receiver: token,
            qos,
        });
        if let Some(connection) = self.connections.get(token) {
            connection.topics.push(topic);
        }
    }

    fn mark_dirty(&mut self, token: u32) {
        if let Some(connection) = self.connections.get(token)
            && !connection.in_dirty
        {
            connection.in_dirty = true;
            self.dirty.push(token);
        }
    }

    fn flush(&mut self) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for token in dirty.drain(..) {
            let Some(connection) = self.connections.get(token) else {
                continue;
            };
            connection.in_dirty = false;
            let was_blocked = connection.blocked;
            match connection.out.flush(&connection.stream) {
                FlushOutcome::All => connection.blocked = false,
                FlushOutcome::Blocked => connection.blocked = true,
                FlushOutcome::Closed => {
                    self.close(token);
                    continue;
                }
            }
            let waiters = if connection.out.pending() <= LOW_WATER {
                std::mem::take(&mut connection.waiters)
            } else {
                Vec::new()
            };
            if connection.blocked != was_blocked {
                self.watch(token);
            }
            self.resume(waiters);
        }
        self.dirty = dirty;
    }

    fn resume(&mut self, waiters: Vec<u32>) {
        for waiter in waiters {
            if let Some(publisher) = self.connections.get(waiter) {
                publisher.paused = false;
                self.watch(waiter);
            }
        }
    }

    /// Tells epoll what the connection waits for now.
    fn watch(&mut self, token: u32) {
        let Some(connection) = self.connections.get(token) else {
            return;
        };
        let interest = Interest {
            read: !connection.paused,
            write: connection.blocked,
        };
        let fd = connection.stream.as_raw_fd();
        if self.epoll.change(fd, token, interest).is_err() {
            self.close(token);
        }
    }

    fn close(&mut self, token: u32) {
        let Some(connection) = self.connections.remove(token) else {
            return;
        };
        for topic in connection.topics {
            if let Some(routes) = self.routes.get_mut(&topic) {
                routes.retain(|route| route.receiver != token);
                if routes.is_empty() {
                    self.routes.remove(&topic);
                }
            }
        }
        self.resume(connection.waiters);
    }
}

impl Connection {
    /// Copies a PUBLISH to this receiver at the lower of both QoS.
    #[inline]
    fn deliver(&mut self, packet: &[u8], body: usize, publish: &wire::Publish<'_>, granted: u8) {
        let out = self.out.buffer();
        let id_at = body + publish.id_at;
        match (publish.qos, granted) {
            (0, _) => out.extend_from_slice(packet),
            (_, 0) => {
                // Without its identifier the packet is two bytes shorter, length included.
                let topic = &packet[body..id_at];
                let rest = &packet[id_at + 2..];
                wire::put_header(out, kind::PUBLISH << 4, topic.len() + rest.len());
                out.extend_from_slice(topic);
                out.extend_from_slice(rest);
            }
            _ => {
                self.next_id = self.next_id.checked_add(1).unwrap_or(1);
                let at = out.len() + id_at;
                out.extend_from_slice(packet);
                out[at..at + 2].copy_from_slice(&self.next_id.to_be_bytes());
            }
        }
    }
}

/// Connections by token, tokens reused.
#[derive(Default)]
struct Slots {
    slots: Vec<Option<Connection>>,
    /// Reused oldest first, so that an event of a closed connection seldom meets a new one.
    free: VecDeque<u32>,
}

impl Slots {
    fn insert(&mut self, connection: Connection) -> u32 {
        if let Some(token) = self.free.pop_front() {
            self.slots[token as usize] = Some(connection);
            return token;
        }
        self.slots.push(Some(connection));
        (self.slots.len() - 1) as u32
    }

    #[inline]
    fn get(&mut self, token: u32) -> Option<&mut Connection> {
        self.slots.get_mut(token as usize)?.as_mut()
    }

    fn remove(&mut self, token: u32) -> Option<Connection> {
        let connection = self.slots.get_mut(token as usize)?.take()?;
        self.free.push_back(token);
        Some(connection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::PublishTemplate;
    use std::io::{Read, Write};

    /// A floor that is driven turn by turn, and a client that knows when a turn is due.
    struct Bench {
        floor: Floor,
    }

    impl Bench {
        fn new() -> Self {
            let floor = Floor::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
            Self { floor }
        }

        fn client(&mut self, version: Version) -> TcpStream {
            let mut client = TcpStream::connect(self.floor.local_addr().unwrap()).unwrap();
            self.floor.turn().unwrap();
            let mut connect = Vec::new();
            wire::put_connect(&mut connect, version, "c");
            let mut expected = Vec::new();
            wire::put_connack(&mut expected, version);
            self.exchange(&mut client, &connect, &expected);
            client
        }

        fn subscriber(&mut self, version: Version, topic: &str, qos: u8) -> TcpStream {
            let mut client = self.client(version);
            let mut subscribe = Vec::new();
            wire::put_subscribe(&mut subscribe, version, 1, &[topic.to_owned()], qos);
            let mut expected = Vec::new();
            wire::put_suback(&mut expected, version, 1, &[qos.min(1)]);
            self.exchange(&mut client, &subscribe, &expected);
            client
        }

        fn exchange(&mut self, client: &mut TcpStream, request: &[u8], expected: &[u8]) {
            client.write_all(request).unwrap();
            self.floor.turn().unwrap();
            assert_eq!(receive(client, expected.len()), expected);
        }
    }

    fn receive(client: &mut TcpStream, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        client.read_exact(&mut bytes).unwrap();
        bytes
    }

    fn publish(topic: &str, qos: u8, id: u16) -> Vec<u8> {
        let mut template = PublishTemplate::new(Version::V311, topic, qos, b"payload");
        if let Some(at) = template.id_at {
            template.bytes[at..at + 2].copy_from_slice(&id.to_be_bytes());
        }
        template.bytes
    }

    #[test]
    fn qos_1_is_acknowledged_and_gets_the_receivers_own_identifier() {
        let mut bench = Bench::new();
        let mut one = bench.subscriber(Version::V311, "t", 1);
        let mut zero = bench.subscriber(Version::V311, "t", 0);
        let mut publisher = bench.client(Version::V311);
        bench.exchange(&mut publisher, &publish("t", 1, 777), &[0x40, 2, 3, 9]);
        let first = publish("t", 1, 1);
        assert_eq!(receive(&mut one, first.len()), first);
        let plain = publish("t", 0, 0);
        assert_eq!(receive(&mut zero, plain.len()), plain);
    }

    #[test]
    fn only_the_exact_topic_and_version_is_delivered() {
        let mut bench = Bench::new();
        let mut subscriber = bench.subscriber(Version::V311, "t", 0);
        let mut other_version = bench.subscriber(Version::V5, "t", 0);
        let mut publisher = bench.client(Version::V311);
        let mut both = publish("t/u", 0, 0);
        both.extend(publish("t", 0, 0));
        publisher.write_all(&both).unwrap();
        bench.floor.turn().unwrap();
        let expected = publish("t", 0, 0);
        assert_eq!(receive(&mut subscriber, expected.len()), expected);
        // PINGRESP is the first thing the other one gets.
        bench.exchange(&mut other_version, &[0xc0, 0], &wire::PINGRESP);
    }

    #[test]
    fn a_receiver_that_does_not_read_stops_its_publisher() {
        let mut bench = Bench::new();
        let mut subscriber = bench.subscriber(Version::V311, "t", 0);
        let mut publisher = bench.client(Version::V311);
        publisher.set_nonblocking(true).unwrap();
        let packet = PublishTemplate::new(Version::V311, "t", 0, &[1; 60_000]).bytes;
        let mut sent = 0;
        while !bench
            .floor
            .connections
            .slots
            .iter()
            .flatten()
            .any(|c| c.paused)
        {
            match publisher.write(&packet[sent % packet.len()..]) {
                Ok(n) => sent += n,
                Err(e) => assert_eq!(e.kind(), ErrorKind::WouldBlock),
            }
            bench.floor.turn().unwrap();
        }
        let pending = bench.floor.connections.slots.iter().flatten();
        assert!(pending.map(|c| c.out.pending()).max() <= Some(HIGH_WATER + READ_CHUNK));

        // Once the receiver reads, every whole packet arrives; its leaving ends the loop.
        let packets = sent / packet.len();
        let reader = std::thread::spawn(move || {
            (0..packets).all(|_| receive(&mut subscriber, packet.len()) == packet)
        });
        while bench.floor.connections.slots.iter().flatten().count() > 1 {
            bench.floor.turn().unwrap();
        }
        assert!(reader.join().unwrap());
    }
}
