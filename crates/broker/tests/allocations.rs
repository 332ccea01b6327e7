//! The data path does not allocate: once a shard has been used for a while, a
//! message costs no call of the allocator, whether it goes out with QoS 0, with
//! QoS 1 to sessions that end with their connection, or with QoS 1 to one session
//! that outlives it and acknowledges. Only the public interface is driven, as a
//! shell does it, time and timers included.
//!
//! Allocations are counted by thread, so that tests do not see each other.

#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::IoSlice;
use std::sync::Arc;

use punctual_broker::{
    Config, ConnId, ConnMeta, Directory, Enqueue, Flow, Nanos, Output, Scope, Shard,
};
use punctual_codec::{
    Connect, PacketType, PropertyBuf, PropertyId, Publish, QoS, RawPublish, Split, Subscribe,
    SubscribeOptions, Version, split,
};

thread_local! {
    /// Calls that may have taken memory from the system: new and grown blocks.
    static CALLS: Cell<u64> = const { Cell::new(0) };
    /// Bytes taken and not given back.
    static ALIVE: Cell<i64> = const { Cell::new(0) };
}

struct Counting;

impl Counting {
    fn count(calls: u64, bytes: i64) {
        CALLS.set(CALLS.get() + calls);
        ALIVE.set(ALIVE.get() + bytes);
    }
}

// SAFETY: everything is left to the system allocator; the counters are thread-locals without
// destructors, so that counting neither allocates nor fails.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::count(1, layout.size() as i64);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::count(1, layout.size() as i64);
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::count(1, size as i64 - layout.size() as i64);
        // SAFETY: the pointer comes from this allocator, hence from `System`.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        Self::count(0, -(layout.size() as i64));
        // SAFETY: the pointer comes from this allocator, hence from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of this thread during `work`.
fn allocations(work: impl FnOnce()) -> u64 {
    let before = CALLS.get();
    work();
    CALLS.get() - before
}

/// Bytes of one idle client of the broker proper; the shell has some of its
/// own for each.
const IDLE_CLIENT: i64 = 1024;
/// Turns until everything has its size, and turns that are counted.
const TURNS: usize = 1_000;
/// Time between two turns: over all of them timers fire.
const TURN: Nanos = Nanos::from_millis(1);

/// Who publishes to whom, and how.
#[derive(Debug, Clone, Copy)]
struct Case {
    version: Version,
    qos: QoS,
    receivers: usize,
    receivers_version: Version,
    /// PUBLISH packets that the broker gets at once.
    batch: u16,
    payload: usize,
    /// User properties, as applications attach them.
    properties: bool,
    /// User property `priority`.
    priority: Option<&'static str>,
    enqueue: Enqueue,
    /// Whether the publisher says its topic once, and an alias from then on.
    publisher_alias: bool,
    /// Whether receivers take aliases.
    receiver_aliases: bool,
    /// Whether sessions of receivers outlive their connections.
    sessions_last: bool,
    subscription_id: bool,
    /// Whether receivers are members of one shared subscription.
    share: bool,
}

const PLAIN: Case = Case {
    version: Version::V5,
    qos: QoS::AtMostOnce,
    receivers: 1,
    receivers_version: Version::V5,
    batch: 1,
    payload: 64,
    properties: false,
    priority: None,
    enqueue: Enqueue::PerReceiver,
    publisher_alias: false,
    receiver_aliases: false,
    sessions_last: false,
    subscription_id: false,
    share: false,
};

const PLAIN_V311: Case = Case {
    version: Version::V311,
    ..PLAIN
};

/// A shard with its connections, and memory of its own that is never grown.
struct Shell {
    shard: Shard,
    now: Nanos,
    dirty: Vec<ConnId>,
    outputs: Vec<Output>,
    written: Vec<u8>,
    /// PUBLISH packets with QoS 1 that wait for PUBACK.
    unacknowledged: Vec<(ConnId, u16)>,
    delivered: usize,
    acknowledged: usize,
}

impl Shell {
    fn new(enqueue: Enqueue) -> Self {
        let mut config = Config::default();
        config.lanes.enqueue = enqueue;
        Self::with(config)
    }

    fn with(config: Config) -> Self {
        let now = Nanos::from_secs(1);
        let config = Config {
            sys_interval: None,
            ..config
        };
        Self {
            shard: Shard::new(Directory::new(1), 0, Arc::new(config), now),
            now,
            dirty: Vec::with_capacity(1024),
            outputs: Vec::with_capacity(64),
            written: Vec::with_capacity(1 << 20),
            unacknowledged: Vec::with_capacity(1 << 14),
            delivered: 0,
            acknowledged: 0,
        }
    }

    fn connect(&mut self, connect: &Connect<'_>) -> ConnId {
        let meta = ConnMeta {
            allow_anonymous: true,
            ..ConnMeta::default()
        };
        let id = self.shard.open(meta, self.now);
        let mut bytes = Vec::new();
        connect.encode(&mut bytes).unwrap();
        self.receive(id, &bytes);
        self.flush(connect.version);
        id
    }

    fn receive(&mut self, id: ConnId, bytes: &[u8]) {
        let received = self.shard.receive(id, bytes, self.now);
        assert_eq!(
            (received.consumed, received.flow),
            (bytes.len(), Flow::Read)
        );
    }

    /// Writes what connections of that version have to say.
    fn flush(&mut self, version: Version) {
        self.shard.take_urgent(&mut self.dirty);
        let urgent = self.dirty.len();
        self.shard.take_dirty(&mut self.dirty);
        for at in 0..self.dirty.len() {
            let id = self.dirty[at];
            self.written.clear();
            let mut slices = [IoSlice::new(&[]); 8];
            let scope = if at < urgent {
                Scope::Urgent
            } else {
                Scope::All
            };
            let now = self.now;
            let filled = self.shard.pending(id, scope, now, &mut slices);
            for slice in &slices[..filled] {
                self.written.extend_from_slice(slice);
            }
            self.shard.sent(id, self.written.len(), self.now);
            self.take(id, version);
        }
        self.dirty.clear();
        self.shard.take_outputs(&mut self.outputs);
        self.outputs.clear();
    }

    /// A client gets the packets in `written`.
    fn take(&mut self, id: ConnId, version: Version) {
        let mut rest = &self.written[..];
        while let Ok(Split::Frame(frame)) = split(rest, u32::MAX) {
            rest = &rest[frame.bytes.len()..];
            match frame.kind {
                PacketType::Publish => {
                    let publish = RawPublish::decode(frame.first, frame.body, version).unwrap();
                    self.delivered += 1;
                    if publish.qos == QoS::AtLeastOnce {
                        self.unacknowledged.push((id, publish.packet_id));
                    }
                }
                PacketType::PubAck => self.acknowledged += 1,
                _ => {}
            }
        }
        assert!(rest.is_empty(), "half a packet was written");
    }

    /// The publisher's bytes arrive, everything is delivered and acknowledged.
    fn turn(&mut self, publisher: ConnId, bytes: &[u8], version: Version) {
        self.now = self.now + TURN;
        self.shard.tick(self.now);
        self.receive(publisher, bytes);
        self.flush(version);
        for at in 0..self.unacknowledged.len() {
            let (id, packet_id) = self.unacknowledged[at];
            let [high, low] = packet_id.to_be_bytes();
            self.receive(id, &[0x40, 2, high, low]);
        }
        self.unacknowledged.clear();
        self.flush(version);
    }
}

fn connect<'a>(version: Version, client_id: &'a str, properties: &'a PropertyBuf) -> Connect<'a> {
    Connect {
        version,
        clean_start: true,
        keep_alive: 60,
        client_id,
        will: None,
        username: None,
        password: None,
        properties: properties.as_properties(),
    }
}

/// The packets of one turn.
fn publications(case: &Case, topic: &str) -> Vec<u8> {
    let mut properties = PropertyBuf::new();
    if case.properties {
        properties.push_user("unit", "°C").unwrap();
        properties.push_user("place", "hall 3").unwrap();
    }
    if let Some(priority) = case.priority {
        properties.push_user("priority", priority).unwrap();
    }
    if case.publisher_alias {
        properties.push_number(PropertyId::TopicAlias, 1);
    }
    let mut bytes = Vec::new();
    for number in 1..=case.batch {
        let publish = Publish {
            dup: false,
            qos: case.qos,
            retain: false,
            topic,
            packet_id: if case.qos == QoS::AtMostOnce {
                0
            } else {
                number
            },
            properties: properties.as_properties(),
            payload: &vec![number as u8; case.payload],
        };
        publish.encode(case.version, &mut bytes).unwrap();
    }
    bytes
}

/// Delivers for a while, and returns how often that allocated in a second
/// while of the same length.
fn steady_state_allocations(case: &Case) -> u64 {
    let mut shell = Shell::new(case.enqueue);
    let mut wishes = PropertyBuf::new();
    if case.receiver_aliases {
        wishes.push_number(PropertyId::TopicAliasMaximum, 10);
    }
    if case.sessions_last {
        wishes.push_number(PropertyId::SessionExpiryInterval, 60);
    }
    for number in 0..case.receivers {
        let name = format!("receiver-{number}");
        let id = shell.connect(&connect(case.receivers_version, &name, &wishes));
        let mut properties = PropertyBuf::new();
        if case.subscription_id {
            properties.push_number(PropertyId::SubscriptionIdentifier, 7);
        }
        let options = SubscribeOptions {
            qos: QoS::AtLeastOnce,
            ..SubscribeOptions::default()
        };
        let mut bytes = Vec::new();
        let filter = match case.share {
            true => "$share/group/plant/+/temperature",
            false => "plant/+/temperature",
        };
        let filters = [(filter, options)];
        let (properties, version) = (properties.as_properties(), case.receivers_version);
        Subscribe::put(1, properties, &filters, version, &mut bytes).unwrap();
        shell.receive(id, &bytes);
        shell.flush(case.receivers_version);
    }
    let nothing = PropertyBuf::new();
    let publisher = shell.connect(&connect(case.version, "publisher", &nothing));
    let topic = "plant/oven/temperature";
    let bytes = if case.publisher_alias {
        shell.turn(
            publisher,
            &publications(case, topic),
            case.receivers_version,
        );
        publications(case, "")
    } else {
        publications(case, topic)
    };
    for _ in 0..TURNS {
        shell.turn(publisher, &bytes, case.receivers_version);
    }
    (shell.delivered, shell.acknowledged) = (0, 0);
    let count = allocations(|| {
        for _ in 0..TURNS {
            shell.turn(publisher, &bytes, case.receivers_version);
        }
    });
    let published = TURNS * usize::from(case.batch);
    let copies = if case.share { 1 } else { case.receivers };
    assert_eq!(shell.delivered, published * copies, "{case:?}");
    let acknowledged = if case.qos == QoS::AtMostOnce {
        0
    } else {
        published
    };
    assert_eq!(shell.acknowledged, acknowledged, "{case:?}");
    let stats = shell.shard.stats();
    assert_eq!(
        (stats.inflight_messages, stats.dropped()),
        (0, 0),
        "{case:?}"
    );
    count
}

fn check(cases: &[Case]) {
    for case in cases {
        assert_eq!(steady_state_allocations(case), 0, "{case:?}");
    }
}

#[test]
fn the_counter_counts() {
    let mut list = Vec::with_capacity(1);
    assert_eq!(allocations(|| list.push(1u64)), 0);
    assert_eq!(allocations(|| list.push(2)), 1, "a list that grows");
    assert_eq!(
        allocations(|| drop(std::hint::black_box(Box::new(1u64)))),
        1
    );
    assert_eq!(
        allocations(|| drop(std::hint::black_box(vec![0u8; 100]))),
        1
    );
}

#[test]
fn qos_0_to_one_does_not_allocate() {
    for version in [Version::V311, Version::V5] {
        let plain = Case {
            version,
            receivers_version: version,
            ..PLAIN
        };
        check(&[
            plain,
            Case { batch: 50, ..plain },
            Case {
                batch: 5,
                payload: 3_000,
                ..plain
            },
        ]);
    }
}

#[test]
fn qos_0_to_many_does_not_allocate() {
    for version in [Version::V311, Version::V5] {
        let many = Case {
            version,
            receivers: 100,
            receivers_version: version,
            ..PLAIN
        };
        check(&[many, Case { batch: 20, ..many }]);
    }
}

/// The member whose turn it is is found without a list of all members.
#[test]
fn a_shared_subscription_does_not_allocate() {
    for version in [Version::V311, Version::V5] {
        let shared = Case {
            version,
            receivers: 50,
            receivers_version: version,
            share: true,
            ..PLAIN
        };
        let acknowledged = Case {
            qos: QoS::AtLeastOnce,
            ..shared
        };
        let batch = |case| Case { batch: 20, ..case };
        check(&[shared, batch(shared), acknowledged, batch(acknowledged)]);
    }
}

/// What is kept until it is acknowledged is kept where what was acknowledged was.
#[test]
fn qos_1_to_one_session_that_lasts_does_not_allocate() {
    let one = Case {
        qos: QoS::AtLeastOnce,
        sessions_last: true,
        ..PLAIN
    };
    check(&[
        one,
        Case { batch: 50, ..one },
        Case {
            batch: 50,
            receiver_aliases: true,
            subscription_id: true,
            ..one
        },
    ]);
}

/// Messages with a priority are sorted, not just appended.
#[test]
fn priorities_do_not_allocate() {
    let urgent = Case {
        priority: Some("3"),
        ..PLAIN
    };
    let acknowledged = Case {
        qos: QoS::AtLeastOnce,
        ..urgent
    };
    let many = |case| Case {
        receivers: 50,
        batch: 10,
        ..case
    };
    check(&[urgent, many(urgent), acknowledged, many(acknowledged)]);
    let shared = |case| Case {
        enqueue: Enqueue::Shared,
        ..case
    };
    check(&[shared(many(urgent)), shared(many(acknowledged))]);
}

/// What is not forwarded byte for byte: another protocol version, properties,
/// aliases on either side, subscription identifiers.
#[test]
fn qos_0_encoded_anew_does_not_allocate() {
    let properties = Case {
        properties: true,
        ..PLAIN
    };
    check(&[
        properties,
        Case {
            receivers_version: Version::V311,
            ..properties
        },
        Case {
            version: Version::V311,
            ..PLAIN
        },
        Case {
            publisher_alias: true,
            ..properties
        },
        Case {
            receiver_aliases: true,
            ..properties
        },
        Case {
            subscription_id: true,
            receivers: 10,
            batch: 3,
            ..properties
        },
    ]);
}

#[test]
fn qos_1_to_transient_sessions_does_not_allocate() {
    for version in [Version::V311, Version::V5] {
        let plain = Case {
            version,
            receivers_version: version,
            qos: QoS::AtLeastOnce,
            ..PLAIN
        };
        check(&[
            plain,
            Case { batch: 50, ..plain },
            Case {
                receivers: 100,
                batch: 3,
                ..plain
            },
        ]);
    }
    check(&[Case {
        qos: QoS::AtLeastOnce,
        properties: true,
        publisher_alias: true,
        receiver_aliases: true,
        subscription_id: true,
        receivers: 5,
        ..PLAIN
    }]);
}

/// A topic that comes once in a while has no place among those in use: what is known of it uses the
/// memory of the one before. Of 255 such topics one is taken for one that came twice.
#[test]
fn topics_that_are_not_cached_do_not_allocate() {
    const TOPICS: usize = 5_000;
    let mut config = Config::default();
    config.limits.topic_cache = 64;
    let mut shell = Shell::with(config);
    let (version, nothing) = (Version::V311, PropertyBuf::new());
    let receiver = shell.connect(&connect(version, "receiver", &nothing));
    let mut bytes = Vec::new();
    let filters = [("#", SubscribeOptions::default())];
    Subscribe::put(1, nothing.as_properties(), &filters, version, &mut bytes).unwrap();
    shell.receive(receiver, &bytes);
    shell.flush(version);
    let publisher = shell.connect(&connect(version, "publisher", &nothing));
    let topics = (0..TOPICS).map(|n| publications(&PLAIN_V311, &format!("machine/{n:06}")));
    let topics: Vec<_> = topics.collect();
    let mut all = || {
        for bytes in &topics {
            shell.turn(publisher, bytes, version);
        }
    };
    all();
    let count = allocations(all);
    assert_eq!(shell.delivered, 2 * TOPICS);
    assert!(count < TOPICS as u64 / 20, "{count} allocations");
}

/// Bytes that `clients` cost, each.
fn bytes_each(clients: usize, mut make: impl FnMut(usize)) -> i64 {
    let before = ALIVE.get();
    (0..clients).for_each(&mut make);
    (ALIVE.get() - before) / clients as i64
}

#[test]
fn an_idle_client_is_small() {
    const CLIENTS: usize = 10_000;
    let mut shell = Shell::new(Enqueue::PerReceiver);
    let nothing = PropertyBuf::new();
    let mut ids = Vec::with_capacity(CLIENTS);
    let connected = bytes_each(CLIENTS, |number| {
        let name = format!("sensor-{number:08}");
        ids.push(shell.connect(&connect(Version::V5, &name, &nothing)));
    });
    let mut bytes = Vec::with_capacity(100);
    let subscribed = bytes_each(CLIENTS, |number| {
        bytes.clear();
        let filter = format!("command/sensor-{number:08}");
        let filters = [(filter.as_str(), SubscribeOptions::default())];
        let properties = nothing.as_properties();
        Subscribe::put(1, properties, &filters, Version::V5, &mut bytes).unwrap();
        shell.receive(ids[number], &bytes);
        shell.flush(Version::V5);
    });
    let mut resumable = PropertyBuf::new();
    resumable.push_number(PropertyId::SessionExpiryInterval, 3600);
    let away = bytes_each(CLIENTS, |number| {
        let name = format!("reader-{number:08}");
        let id = shell.connect(&connect(Version::V5, &name, &resumable));
        shell.shard.closed(id, "gone", shell.now);
        shell.flush(Version::V5);
    });
    println!(
        "bytes of the broker proper: {connected} for a connected client, {subscribed} more with a \
         subscription of its own; {away} for a session whose client is away"
    );
    assert!(connected <= IDLE_CLIENT, "{connected} bytes");
    assert!(away <= IDLE_CLIENT, "{away} bytes");
    assert_eq!(shell.shard.clients_connected(), CLIENTS as u64);
    assert_eq!(shell.shard.stats().sessions, 2 * CLIENTS as u64);
}
