//! What retained messages cost: `cargo bench -p punctual-broker --bench retained`.
//!
//! Through one shard, as clients use it: storing 10^6 messages on `ret/{0..999}/{0..999}/v`,
//! replacing all of them, and subscriptions, from the packet until every byte that answers it is
//! written. Times are those that the thread was on a processor, of the fastest of several rounds.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a program for developers"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use punctual_broker::{Config, ConnId, ConnMeta, Directory, Flow, Nanos, Output, Scope, Shard};
use punctual_codec::{Connect, Properties, Publish, QoS, Subscribe, SubscribeOptions, Version};

/// Values of each of the two levels that vary.
const VALUES: usize = 1000;
const MESSAGES: usize = VALUES * VALUES;
/// Messages that are handed over at once.
const PIPELINED: usize = 50;
const ROUNDS: usize = 5;
/// How long a round takes at least: the system says how long a thread ran in steps of milliseconds.
const ENOUGH: Duration = Duration::from_millis(300);
const PAYLOAD: [u8; 8] = [7; 8];

/// Bytes of memory in use, as common allocators give it out: in multiples of 16, eight of which are
/// their own.
static ALIVE: AtomicUsize = AtomicUsize::new(0);

struct Counting;

impl Counting {
    fn given(layout: Layout) -> usize {
        (layout.size() + 8).next_multiple_of(16).max(32)
    }
}

// SAFETY: everything is left to the system allocator; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALIVE.fetch_add(Self::given(layout), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALIVE.fetch_sub(Self::given(layout), Ordering::Relaxed);
        // SAFETY: the pointer comes from this allocator, hence from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Time of this thread on a processor.
fn on_processor() -> Duration {
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(schedstat.split(' ').next().unwrap().parse().unwrap())
}

struct Broker {
    shard: Shard,
    now: Nanos,
}

impl Broker {
    fn new() -> Self {
        let now = Nanos(1_000_000_000);
        let shard = Shard::new(Directory::new(1), 0, Arc::new(Config::default()), now);
        Self { shard, now }
    }

    fn connect(&mut self, client_id: &str) -> ConnId {
        let meta = ConnMeta {
            allow_anonymous: true,
            nonce: [1; 16],
            ..ConnMeta::default()
        };
        let conn = self.shard.open(meta, self.now);
        let connect = Connect {
            version: Version::V5,
            clean_start: true,
            keep_alive: 0,
            client_id,
            will: None,
            username: None,
            password: None,
            properties: Properties::EMPTY,
        };
        let mut bytes = Vec::new();
        connect.encode(&mut bytes).unwrap();
        self.shard.receive(conn, &bytes, self.now);
        self.shard.go_on(conn);
        self.drain(conn);
        conn
    }

    fn receive(&mut self, conn: ConnId, bytes: &[u8]) {
        self.now = self.now + Nanos(1_000);
        let received = self.shard.receive(conn, bytes, self.now);
        assert_eq!(
            (received.consumed, received.flow),
            (bytes.len(), Flow::Read)
        );
    }

    /// Writes all that a connection has, and lets time pass, until there is no more.
    fn drain(&mut self, conn: ConnId) -> usize {
        let (mut outputs, mut dirty): (Vec<Output>, Vec<ConnId>) = (Vec::new(), Vec::new());
        let mut total = 0;
        loop {
            self.shard.take_outputs(&mut outputs);
            black_box(outputs.drain(..).count());
            self.shard.take_dirty(&mut dirty);
            dirty.clear();
            let mut slices = [IoSlice::new(&[]); 16];
            let n = self.shard.pending(conn, Scope::All, self.now, &mut slices);
            let written: usize = slices[..n].iter().map(|slice| slice.len()).sum();
            total += written;
            self.shard.sent(conn, written, self.now);
            let due = self.shard.next_timeout().is_some_and(|at| at <= self.now);
            self.shard.tick(self.now);
            if written == 0 && !due {
                return total;
            }
        }
    }

    /// Publishes on every topic; the time of each message.
    fn fill(&mut self, conn: ConnId, packets: &[Vec<u8>]) -> Duration {
        let start = on_processor();
        for bytes in packets {
            self.receive(conn, bytes);
        }
        (on_processor() - start) / MESSAGES as u32
    }

    /// Subscribes several times; the shortest time until all was written, and how much that was.
    fn subscribe(&mut self, conn: ConnId, filter: &str) -> (Duration, usize) {
        let filters = [(filter, SubscribeOptions::default())];
        let mut bytes = Vec::new();
        Subscribe::put(1, Properties::EMPTY, &filters, Version::V5, &mut bytes).unwrap();
        let rounds = (0..ROUNDS).map(|_| {
            let (start, mut times, mut written) = (on_processor(), 0, 0);
            loop {
                self.receive(conn, &bytes);
                written = self.drain(conn).max(written);
                times += 1;
                let time = on_processor() - start;
                if time > ENOUGH {
                    return (time / times, written);
                }
            }
        });
        rounds.min().unwrap()
    }
}

/// PUBLISH packets for every topic in an order without a pattern, several in a piece.
fn packets() -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    let mut bytes = Vec::new();
    for n in 0..MESSAGES {
        // Prime to 10^6, so every number comes once.
        let at = n * 611_953 % MESSAGES;
        let topic = format!("ret/{}/{}/v", at / VALUES, at % VALUES);
        let publish = Publish {
            dup: false,
            qos: QoS::AtMostOnce,
            retain: true,
            topic: &topic,
            packet_id: 0,
            properties: Properties::EMPTY,
            payload: &PAYLOAD,
        };
        publish.encode(Version::V5, &mut bytes).unwrap();
        if (n + 1) % PIPELINED == 0 {
            packets.push(std::mem::take(&mut bytes));
        }
    }
    packets
}

fn main() {
    let packets = packets();
    let mut broker = Broker::new();
    let publisher = broker.connect("publisher");
    let subscriber = broker.connect("subscriber");
    let before = ALIVE.load(Ordering::Relaxed);
    let time = broker.fill(publisher, &packets);
    let taken = ALIVE.load(Ordering::Relaxed) - before;
    println!("{:28} {:>12.1?} a message", "storing 10^6", time);
    println!("{:28} {:>10} B", "memory of each", taken / MESSAGES);
    let time = broker.fill(publisher, &packets);
    println!("{:28} {:>12.1?} a message", "replacing them", time);
    let filters = [
        "ret/7/7/v",
        "ret/+/7/v",
        "ret/7/+/v",
        "+/+/none",
        "other/+/v",
    ];
    for filter in filters.into_iter().chain(["ret/+/+/none", "#"]) {
        let (time, bytes) = broker.subscribe(subscriber, filter);
        println!("{filter:28} {time:>12.1?} for {bytes} bytes");
    }
}
