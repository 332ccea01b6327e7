//! What a message costs a shard's thread in allocations, locks and lines of
//! the log once connections, topics and buffers are known: nothing, urgent or not, by
//! TCP and by UDP.
//!
//! A real server on loopback ports, an allocator that counts what one thread asks
//! for, and a log of all levels that counts what it says.

#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use punctual_broker::lock::taken;
use punctual_net::marking::Marking;
use punctual_net::{Server, UdpOptions};
use tracing::span;

/// How long anything may take before a test fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// Messages that are on their way at one time.
const BATCH: usize = 50;
/// Batches before those that count, and those.
const WARM_UP: usize = 40;
const COUNTED: usize = 40;

/// Allocations or locks a message that are none: buffers of connections come and go
/// with what happens to meet in one turn.
const NOW_AND_THEN: f64 = 0.05;

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    static WATCHED: Cell<bool> = const { Cell::new(false) };
}

/// Allocations of the watched thread.
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

fn count() {
    // While a thread ends there may be no flag any more; nobody asks then.
    if WATCHED.try_with(Cell::get).unwrap_or(false) {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: every call goes to the system's allocator unchanged; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are those of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Events of the watched thread, of every level.
static EVENTS: AtomicU64 = AtomicU64::new(0);

/// A log that formats nothing, but would have to.
struct Log;

impl tracing::Subscriber for Log {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        self.event_or_span();
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.event_or_span();
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

impl Log {
    fn event_or_span(&self) {
        if WATCHED.try_with(Cell::get).unwrap_or(false) {
            EVENTS.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Runs something on the shard's thread.
fn on_shard<T: Send + 'static>(server: &Server, run: fn() -> T) -> T {
    let (done, wait) = channel();
    server.handle().call(0, move |_, _| {
        let _ = done.send(run());
    });
    wait.recv_timeout(PATIENCE).unwrap()
}

/// A server with one shard, whose thread is watched, by TCP and by UDP.
fn server() -> Server {
    let mut options = support::options(UdpOptions {
        cookie: false,
        ..UdpOptions::default()
    });
    options.broker.sys_interval = None;
    options.marking = Marking::default();
    let server = Server::start(options).unwrap();
    on_shard(&server, || {
        WATCHED.set(true);
        tracing::info!("watched");
    });
    server
}

/// How a client talks.
enum Transport {
    Tcp(TcpStream),
    /// And packets that have come in one datagram.
    Udp(UdpSocket, VecDeque<Vec<u8>>),
}

/// A client that speaks MQTT 5, or 3.1.1.
struct Client {
    way: Transport,
}

impl Client {
    fn connect(server: &Server, udp: bool, v5: bool, id: &str) -> Self {
        let to: SocketAddr = server.addresses()[usize::from(!udp)];
        let way = if udp {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.connect(to).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            Transport::Udp(socket, VecDeque::new())
        } else {
            let stream = TcpStream::connect(to).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.set_nodelay(true).unwrap();
            Transport::Tcp(stream)
        };
        let mut client = Self { way };
        let mut body = text("MQTT");
        body.extend([if v5 { 5 } else { 4 }, 2, 0, 0]);
        if v5 {
            body.push(0);
        }
        body.extend(text(id));
        client.send(&packet(0x10, &body));
        assert_eq!(client.receive()[0], 0x20);
        client
    }

    fn subscribe(&mut self, v5: bool, filter: &str, qos: u8) {
        let mut body = vec![0, 1];
        if v5 {
            body.push(0);
        }
        body.extend(text(filter));
        body.push(qos);
        self.send(&packet(0x82, &body));
        assert_eq!(self.receive()[0], 0x90);
    }

    /// Sends whole packets.
    fn send(&mut self, bytes: &[u8]) {
        match &mut self.way {
            Transport::Tcp(stream) => stream.write_all(bytes).unwrap(),
            Transport::Udp(socket, _) => packets(bytes).for_each(|packet| {
                socket.send(packet).unwrap();
            }),
        }
    }

    /// The next packet.
    fn receive(&mut self) -> Vec<u8> {
        match &mut self.way {
            Transport::Tcp(stream) => {
                let mut bytes = vec![0; 2];
                stream.read_exact(&mut bytes).unwrap();
                bytes.resize(length(&bytes), 0);
                stream.read_exact(&mut bytes[2..]).unwrap();
                bytes
            }
            Transport::Udp(socket, come) => loop {
                if let Some(packet) = come.pop_front() {
                    return packet;
                }
                let mut datagram = [0; 1500];
                let len = socket.recv(&mut datagram).unwrap();
                come.extend(packets(&datagram[..len]).map(<[u8]>::to_vec));
            },
        }
    }
}

/// Length of the packet that begins so; none of them is long.
fn length(bytes: &[u8]) -> usize {
    assert!(bytes[1] < 0x80, "a packet of less than 128 bytes");
    2 + usize::from(bytes[1])
}

/// One after the other.
fn packets(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let packet = bytes.split_off(..length(bytes.get(..2)?))?;
        Some(packet)
    })
}

fn text(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u16).to_be_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes
}

fn packet(first: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first, body.len() as u8];
    bytes.extend(body);
    bytes
}

/// What is published, and how.
#[derive(Debug)]
struct Traffic {
    udp: bool,
    v5: bool,
    qos: u8,
    /// What every message states.
    stated: Option<(&'static str, &'static str)>,
}

impl Traffic {
    /// One PUBLISH, its packet identifier (QoS 1 and 2) `id`.
    fn message(&self, id: u16) -> Vec<u8> {
        let mut body = text("cell/1");
        if self.qos > 0 {
            body.extend(id.to_be_bytes());
        }
        if self.v5 {
            let mut properties = Vec::new();
            if let Some((key, value)) = self.stated {
                properties.push(0x26);
                properties.extend(text(key));
                properties.extend(text(value));
            }
            body.push(properties.len() as u8);
            body.extend(properties);
        }
        body.extend([b'x'; 60]);
        packet(0x30 | (self.qos << 1), &body)
    }

    /// What a message costs that `receivers` clients get.
    fn costs(&self, receivers: usize) -> Costs {
        let server = server();
        let connect = |id: &str| Client::connect(&server, self.udp, self.v5, id);
        let mut publisher = connect("publisher");
        let connect = |n| {
            let mut receiver = connect(&format!("receiver-{n}"));
            receiver.subscribe(self.v5, "cell/1", self.qos);
            receiver
        };
        let mut receivers: Vec<Client> = (0..receivers).map(connect).collect();
        let batch: Vec<u8> = (1..=BATCH as u16).flat_map(|id| self.message(id)).collect();
        let mut run = |batches| {
            for _ in 0..batches {
                publisher.send(&batch);
                if self.qos == 2 {
                    for _ in 0..BATCH {
                        let received = publisher.receive();
                        assert_eq!(received[0], 0x50, "PUBREC");
                        publisher.send(&packet(0x62, &received[2..4]));
                    }
                }
                for receiver in &mut receivers {
                    let mut left = BATCH;
                    while left > 0 {
                        let message = receiver.receive();
                        if message[0] == 0x62 {
                            receiver.send(&packet(0x70, &message[2..4]));
                            left -= 1;
                            continue;
                        }
                        assert_eq!(message[0] >> 4, 3, "PUBLISH");
                        let id = || &message[2 + 2 + "cell/1".len()..][..2];
                        match self.qos {
                            2 => receiver.send(&packet(0x50, id())),
                            1 => receiver.send(&packet(0x40, id())),
                            _ => {}
                        }
                        left -= usize::from(self.qos < 2);
                    }
                }
                let last = [None, Some(0x40), Some(0x70)][usize::from(self.qos)];
                if let Some(last) = last {
                    (0..BATCH).for_each(|_| assert_eq!(publisher.receive()[0], last));
                }
            }
        };
        run(WARM_UP);
        let counted = || {
            // Being asked takes one.
            let locks = on_shard(&server, taken);
            let [allocations, events] =
                [&ALLOCATIONS, &EVENTS].map(|count| count.load(Ordering::Relaxed));
            [allocations, locks, events]
        };
        let before = counted();
        run(COUNTED);
        let after = counted();
        server.shut_down();
        let messages = (COUNTED * BATCH) as f64;
        Costs {
            allocations: (after[0] - before[0]) as f64 / messages,
            locks: (after[1] - before[1]) as f64 / messages,
            events: after[2] - before[2],
        }
    }
}

/// What a message costs the shard.
#[derive(Debug)]
struct Costs {
    allocations: f64,
    locks: f64,
    /// Of all messages.
    events: u64,
}

/// One test, because one counter is watched.
#[test]
fn messages_in_steady_state_neither_allocate_nor_lock_nor_log() {
    tracing::subscriber::set_global_default(Log).unwrap();
    let mut kinds = Vec::new();
    for (udp, qos) in [(false, 0), (false, 1), (false, 2), (true, 0)] {
        // Urgent messages state it in a property, which MQTT 3.1.1 has not.
        for (v5, stated) in [
            (false, None),
            (true, None),
            (true, Some(("priority", "3"))),
            (true, Some(("rt-deadline", "10s"))),
        ] {
            kinds.push(Traffic {
                udp,
                v5,
                qos,
                stated,
            });
        }
    }
    for traffic in kinds {
        for receivers in [1, 3] {
            let costs = traffic.costs(receivers);
            println!("{traffic:?} to {receivers}: {costs:?}");
            let most = costs.allocations.max(costs.locks);
            assert!(most < NOW_AND_THEN, "{traffic:?} to {receivers}: {costs:?}");
            assert_eq!(costs.events, 0, "{traffic:?} to {receivers}");
        }
    }
    assert!(EVENTS.load(Ordering::Relaxed) > 0, "the log is heard");
}
