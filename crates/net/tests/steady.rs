//! What a message costs a shard's thread in allocations once connections,
//! topics and buffers are known: nothing, urgent or not.
//!
//! A real server on a loopback port, and an allocator that counts what one
//! thread asks for.

#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use punctual_broker::{Config, Nanos};
use punctual_net::layer::LayerConfig;
use punctual_net::marking::Marking;
use punctual_net::{
    AcceptPolicy, Identity, ListenerOptions, ListenerPolicy, Server, ServerOptions, TcpOptions,
};

/// How long anything may take before a test fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// Messages that are on their way at one time.
const BATCH: usize = 50;
/// Batches before those that count, and those.
const WARM_UP: usize = 40;
const COUNTED: usize = 40;

/// Allocations a message that are none: buffers of connections come and go with
/// what happens to meet in one turn.
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

/// A server with one shard, whose thread is watched.
fn server() -> Server {
    let server = Server::start(ServerOptions {
        listeners: vec![ListenerOptions {
            address: "127.0.0.1:0".parse().unwrap(),
            policy: ListenerPolicy {
                layer: LayerConfig::default(),
                identity: Identity::None,
                allow_anonymous: None,
                refuse: None,
                max_connections: usize::MAX,
            },
            udp: None,
            quic: None,
        }],
        broker: Config {
            sys_interval: None,
            ..Config::default()
        },
        shards: 1,
        realtime: None,
        tcp: TcpOptions::default(),
        marking: Marking::default(),
        accept: AcceptPolicy {
            max_connections: usize::MAX,
            rate: 0,
            max_drift: Nanos::MAX,
        },
        max_receive_bytes: 1 << 20,
        shutdown_timeout: Nanos::from_secs(1),
        authentication_threads: 1,
        authenticator: None,
        admission: None,
        store: None,
        federation: None,
        access: None,
    });
    let server = server.unwrap();
    let (done, wait) = channel();
    server.handle().call(0, move |_, _| {
        WATCHED.set(true);
        let _ = done.send(());
    });
    wait.recv_timeout(PATIENCE).unwrap();
    server
}

/// A client that speaks MQTT 5, or 3.1.1.
struct Client {
    stream: TcpStream,
}

impl Client {
    fn connect(to: SocketAddr, v5: bool, id: &str) -> Self {
        let stream = TcpStream::connect(to).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        let mut client = Self { stream };
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

    fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// The next packet; none of them is long.
    fn receive(&mut self) -> Vec<u8> {
        let mut bytes = vec![0; 2];
        self.stream.read_exact(&mut bytes).unwrap();
        assert!(bytes[1] < 0x80, "a packet of less than 128 bytes");
        let rest = usize::from(bytes[1]);
        bytes.resize(2 + rest, 0);
        self.stream.read_exact(&mut bytes[2..]).unwrap();
        bytes
    }
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

/// What is published.
#[derive(Debug)]
struct Traffic {
    v5: bool,
    qos: u8,
    priority: bool,
}

impl Traffic {
    /// One PUBLISH, its packet identifier (QoS 1) `id`.
    fn message(&self, id: u16) -> Vec<u8> {
        let mut body = text("cell/1");
        if self.qos > 0 {
            body.extend(id.to_be_bytes());
        }
        if self.v5 {
            let mut properties = Vec::new();
            if self.priority {
                properties.push(0x26);
                properties.extend(text("priority"));
                properties.extend(text("3"));
            }
            body.push(properties.len() as u8);
            body.extend(properties);
        }
        body.extend([b'x'; 64]);
        packet(0x30 | (self.qos << 1), &body)
    }

    /// Allocations of the shard for a message that `receivers` clients get.
    fn allocations(&self, receivers: usize) -> f64 {
        let server = server();
        let to = server.addresses()[0];
        let mut publisher = Client::connect(to, self.v5, "publisher");
        let connect = |n| {
            let mut receiver = Client::connect(to, self.v5, &format!("receiver-{n}"));
            receiver.subscribe(self.v5, "cell/1", self.qos);
            receiver
        };
        let mut receivers: Vec<Client> = (0..receivers).map(connect).collect();
        let batch: Vec<u8> = (1..=BATCH as u16).flat_map(|id| self.message(id)).collect();
        let mut run = |batches| {
            for _ in 0..batches {
                publisher.send(&batch);
                for receiver in &mut receivers {
                    for _ in 0..BATCH {
                        let message = receiver.receive();
                        assert_eq!(message[0] >> 4, 3, "PUBLISH");
                        if self.qos > 0 {
                            let id = &message[2 + 2 + "cell/1".len()..][..2];
                            receiver.send(&packet(0x40, id));
                        }
                    }
                }
                if self.qos > 0 {
                    (0..BATCH).for_each(|_| assert_eq!(publisher.receive()[0], 0x40));
                }
            }
        };
        run(WARM_UP);
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        run(COUNTED);
        let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
        server.shut_down();
        allocations as f64 / (COUNTED * BATCH) as f64
    }
}

/// One test, because one counter is watched.
#[test]
fn messages_in_steady_state_do_not_allocate() {
    let mut kinds = Vec::new();
    for qos in [0, 1] {
        // Urgent messages state it in a property, which MQTT 3.1.1 has not.
        for (v5, priority) in [(false, false), (true, false), (true, true)] {
            kinds.push(Traffic { v5, qos, priority });
        }
    }
    for traffic in kinds {
        for receivers in [1, 3] {
            let allocations = traffic.allocations(receivers);
            println!("{traffic:?} to {receivers}: {allocations}");
            assert!(
                allocations < NOW_AND_THEN,
                "{traffic:?} to {receivers} receivers: {allocations} allocations a message"
            );
        }
    }
}
