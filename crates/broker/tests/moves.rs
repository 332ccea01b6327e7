//! Sessions that go from one broker of a mesh to another while one of them could crash:
//! what is sent when, as far as disks are concerned. Two brokers as state machines with
//! stores, and letters between them.

#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

use std::collections::BTreeSet;
use std::io::IoSlice;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use punctual_broker::{
    Config, ConnId, ConnMeta, Directory, Federation, Holder, LinkLimits, LinkNews, MessageName,
    MoveTimes, Nanos, Newcomer, Operations, Restorer, Scope, Seeker, Shard, StoreTrouble,
    Unwelcome,
};
use punctual_codec::{
    Ack, Connect, Packet, PacketType, Properties, PropertyBuf, PropertyId, Publish, QoS,
    ReasonCode, Split, Subscribe, SubscribeOptions, Version, split,
};
use punctual_store::{Memory, Store as _};

/// What is said about a client's session.
type Letter = (String, Arc<[u8]>);

/// What the brokers say to each other.
#[derive(Debug)]
struct Post {
    name: &'static str,
    origin: u32,
    clock: AtomicU64,
    /// And to whom.
    letters: Mutex<Vec<(String, Letter)>>,
    /// Subscriptions of clients, and how often there were none any more.
    wanted: Mutex<(i32, u32)>,
    /// Names that came from neighbours.
    passed: Mutex<Vec<MessageName>>,
    /// A message is under way.
    linger: Nanos,
    /// Whether it is told when all has come that was on its way, and of whom that is asked.
    fences: AtomicBool,
    fenced: Mutex<Vec<(String, u64)>>,
}

impl Post {
    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::Relaxed)
    }
}

impl Federation for Post {
    fn subscribed(&self, _: &str, _: bool) {
        self.wanted.lock().unwrap().0 += 1;
    }
    fn unsubscribed(&self, _: &str, _: bool) {
        let mut wanted = self.wanted.lock().unwrap();
        wanted.0 -= 1;
        wanted.1 += u32::from(wanted.0 == 0);
    }
    fn admit(&self, _: Newcomer<'_>) -> Result<(), Unwelcome> {
        Ok(())
    }
    fn link(&self, _: ConnId, _: &str, _: LinkNews<'_>) {}
    fn origin(&self) -> NonZeroU32 {
        NonZeroU32::new(self.origin).unwrap()
    }
    fn is_new(&self, _: MessageName, _: bool) -> bool {
        true
    }
    fn name(&self) -> &str {
        self.name
    }
    fn clock(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }
    fn arrived(&self, _: &str, _: Option<&str>, _: bool, since: Option<u64>) -> u64 {
        since.unwrap_or_else(|| self.tick())
    }
    fn seek(&self, _: &str, _: Option<&str>, seeker: Seeker) -> Option<u64> {
        Some(seeker.since().unwrap_or_else(|| self.tick()))
    }
    fn letter(&self, to: &str, client: &str, body: Arc<[u8]>) {
        let letter = (client.into(), body);
        self.letters.lock().unwrap().push((to.into(), letter));
    }
    fn fence(&self, client: &str, number: u64) -> bool {
        self.fenced.lock().unwrap().push((client.into(), number));
        self.fences.load(Ordering::Relaxed)
    }
    fn move_times(&self) -> MoveTimes {
        MoveTimes {
            wait: Nanos::from_secs(5),
            linger: self.linger,
            heal: Nanos::from_secs(5),
        }
    }
    fn mark_passed(&self) -> u64 {
        self.passed.lock().unwrap().len() as u64
    }
    fn passed(&self, mark: u64) -> (Vec<MessageName>, usize) {
        let passed = self.passed.lock().unwrap().clone();
        let since = passed.len() - mark as usize;
        (passed, since)
    }
    fn note(&self, name: MessageName) {
        self.passed.lock().unwrap().push(name);
    }
    fn was_origin(&self, _: NonZeroU32) {}
}

struct Broker {
    shards: Vec<Shard>,
    directory: Arc<Directory>,
    post: Arc<Post>,
    store: Memory,
    now: Nanos,
    /// Of the last PUBLISH that left.
    packet_id: u16,
    /// What the last CONNACK said of the session.
    is_present: bool,
    /// What those had in them that left since this was looked at last.
    payloads: Vec<String>,
}

impl Broker {
    fn new(name: &'static str, origin: u32, clock: u64, shards: u16) -> Self {
        Self::with(name, origin, clock, shards, Nanos::from_millis(1))
    }

    fn with(name: &'static str, origin: u32, clock: u64, shards: u16, linger: Nanos) -> Self {
        let directory = Directory::new(shards);
        let post = Arc::new(Post {
            name,
            origin,
            clock: AtomicU64::new(clock),
            letters: Mutex::default(),
            wanted: Mutex::default(),
            passed: Mutex::default(),
            linger,
            fences: AtomicBool::new(false),
            fenced: Mutex::default(),
        });
        directory.set_federation(post.clone());
        let now = Nanos::from_secs(1);
        let config = Arc::new(Config::default());
        let shard = |index| {
            let mut shard = Shard::new(directory.clone(), index, config.clone(), now);
            shard.attach_store(0);
            shard
        };
        Self {
            shards: (0..shards).map(shard).collect(),
            directory,
            post,
            store: Memory::default(),
            now,
            packet_id: 0,
            is_present: false,
            payloads: Vec::new(),
        }
    }

    fn pass(&mut self, time: Nanos) {
        self.now = self.now + time;
        for shard in &mut self.shards {
            shard.tick(self.now);
        }
    }

    fn take_operations(&mut self, shard: usize) -> Option<Operations> {
        self.shards[shard].take_operations(self.now)
    }

    /// Commits all that is handed over after a while.
    fn commit(&mut self) {
        self.pass(Nanos::from_millis(20));
        for shard in &mut self.shards {
            for _ in 0..5 {
                if let Some(operations) = shard.take_operations(self.now) {
                    self.store.commit(&operations.batch).unwrap();
                    shard.committed(operations.ticket, self.now);
                }
            }
        }
    }

    /// It is killed, and starts again with what was committed.
    fn start_again(self) -> Self {
        let clock = self.post.clock.load(Ordering::Relaxed);
        let mut again = Self::new(self.post.name, self.post.origin + 10, clock, 1);
        again.store = self.store;
        let shard = &mut again.shards[0];
        let mut restorer = Restorer::new(again.directory.clone(), 0);
        let recovered = again.store.recover(&mut |op| {
            if let Some(session) = restorer.take(&op) {
                assert!(shard.restore(session, again.now));
            }
        });
        recovered.unwrap();
        let last = restorer.finish().unwrap();
        assert!(shard.restore(last, again.now));
        again
    }

    fn give(&mut self, (shard, conn): (usize, ConnId), packet: Packet<'_>) {
        let mut bytes = Vec::new();
        packet.encode(Version::V5, &mut bytes).unwrap();
        let received = self.shards[shard].receive(conn, &bytes, self.now);
        assert_eq!(received.consumed, bytes.len());
    }

    /// Kinds of the packets that leave to a connection.
    fn take(&mut self, (shard, conn): (usize, ConnId)) -> Vec<PacketType> {
        let mut all = Vec::new();
        loop {
            let mut slices = [IoSlice::new(&[]); 8];
            let n = self.shards[shard].pending(conn, Scope::All, self.now, &mut slices);
            let bytes: Vec<u8> = slices[..n]
                .iter()
                .flat_map(|slice| slice.to_vec())
                .collect();
            if bytes.is_empty() {
                break;
            }
            self.shards[shard].sent(conn, bytes.len(), self.now);
            all.extend(bytes);
        }
        let (mut kinds, mut rest) = (Vec::new(), &all[..]);
        while let Ok(Split::Frame(frame)) = split(rest, u32::MAX) {
            let length = frame.bytes.len();
            kinds.push(frame.kind);
            match Packet::decode(frame, Version::V5) {
                Ok(Packet::Publish(publish)) => {
                    self.packet_id = publish.packet_id;
                    let payload = String::from_utf8_lossy(publish.payload);
                    self.payloads.push(payload.into_owned());
                }
                Ok(Packet::ConnAck(connack)) => self.is_present = connack.session_present,
                _ => {}
            }
            rest = &rest[length..];
        }
        kinds
    }

    fn connect(&mut self, shard: usize, client_id: &str, expiry: u32) -> (usize, ConnId) {
        let meta = ConnMeta {
            allow_anonymous: true,
            ..ConnMeta::default()
        };
        let conn = (shard, self.shards[shard].open(meta, self.now));
        let mut properties = PropertyBuf::new();
        properties.push_number(PropertyId::SessionExpiryInterval, expiry);
        let connect = Connect {
            version: Version::V5,
            clean_start: false,
            keep_alive: 0,
            properties: properties.as_properties(),
            client_id,
            will: None,
            username: None,
            password: None,
        };
        self.give(conn, Packet::Connect(connect));
        conn
    }

    /// A client that is new in the whole mesh.
    fn newcomer(&mut self, shard: usize, client_id: &str) -> (usize, ConnId) {
        let conn = self.connect_unknown(shard, client_id, 100);
        self.commit();
        assert_eq!(self.take(conn), [PacketType::ConnAck]);
        conn
    }

    /// A client connects, of whose session no other broker has anything.
    fn connect_unknown(&mut self, shard: usize, client_id: &str, expiry: u32) -> (usize, ConnId) {
        let conn = self.connect(shard, client_id, expiry);
        let number = self.post.clock.load(Ordering::Relaxed) - 1;
        self.shards[shard].found(client_id, number, &[], false, self.now);
        conn
    }

    /// A client that is new in the whole mesh subscribes, and is gone.
    fn leave_session(&mut self, client_id: &str, qos: QoS) {
        let conn = self.newcomer(0, client_id);
        self.subscribe(conn, qos);
        self.shards[0].closed(conn.1, "gone", self.now);
    }

    /// What it answers who asks for a client's session.
    fn holder(&self, client_id: &str, number: u64) -> Holder {
        let (at, whole) = self.shards[0].sought(client_id, None, number).unwrap();
        let broker = self.post.name.into();
        Holder { broker, at, whole }
    }

    /// Clients that are new here, although they wanted sessions, are gone; returns who they are.
    fn leave_sessions(&mut self, count: u32) -> BTreeSet<String> {
        let leave = |n| {
            let client = format!("client-{n}");
            let conn = self.connect_unknown(0, &client, 10_000);
            self.shards[0].closed(conn.1, "gone", self.now);
            client
        };
        (0..count).map(leave).collect()
    }

    fn subscribe(&mut self, conn: (usize, ConnId), qos: QoS) {
        let options = SubscribeOptions {
            qos,
            ..SubscribeOptions::default()
        };
        let (mut bytes, none) = (Vec::new(), Properties::EMPTY);
        Subscribe::put(1, none, &[("t", options)], Version::V5, &mut bytes).unwrap();
        self.shards[conn.0].receive(conn.1, &bytes, self.now);
        self.commit();
        assert_eq!(self.take(conn), [PacketType::SubAck]);
    }

    fn publish(&mut self, conn: (usize, ConnId), qos: QoS, dup: bool) {
        self.publish_text(conn, qos, dup, "x");
    }

    fn publish_text(&mut self, conn: (usize, ConnId), qos: QoS, dup: bool, text: &str) {
        let publish = Publish {
            dup,
            qos,
            retain: false,
            topic: "t",
            packet_id: 1,
            properties: Properties::default(),
            payload: text.as_bytes(),
        };
        self.give(conn, Packet::Publish(publish));
    }

    /// Publishes with QoS 2, under the one identifier that all have here, and has PUBREC.
    fn publish_exactly(&mut self, conn: (usize, ConnId), dup: bool, text: &str) {
        self.publish_text(conn, QoS::ExactlyOnce, dup, text);
        self.commit();
        assert_eq!(self.take(conn), [PacketType::PubRec], "{text}");
    }

    /// Completes the handshake of that.
    fn release(&mut self, conn: (usize, ConnId)) {
        self.give(conn, Packet::PubRel(Ack::new(1, ReasonCode::Success)));
        self.commit();
        assert_eq!(self.take(conn), [PacketType::PubComp]);
    }

    /// A client connects whose session is here, and nobody else is reached.
    fn come_back(&mut self, client_id: &str) -> (usize, ConnId) {
        let conn = self.connect_unknown(0, client_id, 100);
        self.commit();
        assert_eq!(self.take(conn).first(), Some(&PacketType::ConnAck));
        assert!(self.is_present);
        conn
    }

    /// A neighbour to which messages go.
    fn neighbour(&mut self) -> (usize, ConnId) {
        let meta = ConnMeta {
            allow_anonymous: true,
            ..ConnMeta::default()
        };
        let limits = LinkLimits {
            receive_maximum: 100,
            max_packet: 1 << 20,
            topic_aliases: 0,
        };
        let link = self.shards[0].open_link(meta, "c", limits, self.now);
        self.shards[0].link_carry("c", true, self.now);
        (0, link)
    }

    /// A message of that name comes from a neighbour, with its name as content.
    fn named(&mut self, link: (usize, ConnId), name: &str, expiry: Option<u32>) {
        let mut properties = PropertyBuf::new();
        if let Some(expiry) = expiry {
            properties.push_number(PropertyId::MessageExpiryInterval, expiry);
        }
        properties.push_user("@", name).unwrap();
        self.packet_id += 1;
        let publish = Publish {
            dup: false,
            qos: QoS::AtLeastOnce,
            retain: false,
            topic: "t",
            packet_id: self.packet_id,
            properties: properties.as_properties(),
            payload: name.as_bytes(),
        };
        self.give(link, Packet::Publish(publish));
    }

    /// The contents of what is sent on a connection.
    fn payloads(&mut self, conn: (usize, ConnId)) -> Vec<String> {
        self.take(conn);
        std::mem::take(&mut self.payloads)
    }

    fn letters(&self) -> Vec<Letter> {
        let letters = std::mem::take(&mut *self.post.letters.lock().unwrap());
        let letters = letters.into_iter();
        letters.map(|(_, letter)| letter).collect()
    }

    fn letters_to(&self, broker: &Broker) -> Vec<Letter> {
        let mut letters = self.post.letters.lock().unwrap();
        let to = letters.extract_if(.., |(to, _)| to == broker.post.name);
        to.map(|(_, letter)| letter).collect()
    }

    fn read(&mut self, from: &str, letters: Vec<Letter>) {
        for (client, body) in letters {
            self.shards[0].letter(from, &client, &body, self.now);
        }
    }
}

/// A client comes to `b`, which hears that its session is at `a`.
fn want(a: &Broker, b: &mut Broker, client_id: &str) -> (usize, ConnId) {
    let conn = b.connect(0, client_id, 100);
    let number = b.post.clock.load(Ordering::Relaxed) - 1;
    let holder = a.holder(client_id, number);
    b.shards[0].found(client_id, number, &[holder], false, b.now);
    conn
}

/// A client comes to `b` whose session is at `a`.
fn come(a: &mut Broker, b: &mut Broker, client_id: &str) -> (usize, ConnId) {
    let conn = want(a, b, client_id);
    assert_eq!(b.take(conn), []);
    let take = b.letters();
    a.read(b.post.name, take);
    conn
}

/// Carries letters until there are none.
fn carry(a: &mut Broker, b: &mut Broker) {
    loop {
        let (to_b, to_a) = (a.letters_to(b), b.letters_to(a));
        if to_b.is_empty() && to_a.is_empty() {
            return;
        }
        b.read(a.post.name, to_b);
        b.commit();
        a.read(b.post.name, to_a);
    }
}

/// A client "moves" has gone from `a` to `b`, where it is connected, and what is left of its session stays
/// at `a` for a while; so many shards are at `a`.
fn gone_on(shards: u16) -> (Broker, Broker, (usize, ConnId)) {
    let linger = Nanos::from_secs(3);
    let mut a = Broker::with("a", 1, 1000, shards, linger);
    let mut b = Broker::with("b", 2, 2000, 1, linger);
    a.leave_session("moves", QoS::AtLeastOnce);
    let there = come(&mut a, &mut b, "moves");
    carry(&mut a, &mut b);
    (a, b, there)
}

/// Lets `a` ask `b` until it has asked for all, and tells for whom, by turns.
fn ask_on(a: &mut Broker, b: &mut Broker) -> Vec<Vec<String>> {
    let mut turns = Vec::new();
    loop {
        let asked = a.letters();
        if asked.is_empty() {
            return turns;
        }
        turns.push(asked.iter().map(|(client, _)| client.clone()).collect());
        b.read("a", asked);
        a.read("b", b.letters());
    }
}

/// Two brokers, and the ticket of what is on its way to the store of `a`: a message with QoS 2 of
/// "publisher" for "kept".
fn uncommitted() -> (Broker, Broker, u64) {
    let mut a = Broker::new("a", 1, 1000, 1);
    let kept = a.newcomer(0, "kept");
    a.subscribe(kept, QoS::ExactlyOnce);
    let publisher = a.newcomer(0, "publisher");
    a.publish(publisher, QoS::ExactlyOnce, false);
    let handed = a.take_operations(0).unwrap();
    (a, Broker::new("b", 2, 2000, 1), handed.ticket)
}

/// The last round of a session that goes from `a`, which has come before.
fn last_round(a: &mut Broker) -> Vec<Letter> {
    a.pass(Nanos::from_millis(100));
    a.pass(Nanos::from_millis(100));
    let last = a.letters();
    assert_eq!(last.len(), 1);
    last
}

#[test]
fn a_message_with_qos_2_is_safe_before_its_identifier_goes() {
    let (mut a, mut b, ticket) = uncommitted();
    let there = come(&mut a, &mut b, "publisher");
    // Otherwise it would be told there that the message is safe.
    assert!(a.letters().is_empty());
    a.pass(Nanos::from_secs(1));
    assert!(a.letters().is_empty());
    a.shards[0].committed(ticket, a.now);
    a.commit();
    carry(&mut a, &mut b);
    b.commit();
    assert_eq!(b.take(there), [PacketType::ConnAck]);
    b.publish(there, QoS::ExactlyOnce, true);
    assert_eq!(b.take(there), [PacketType::PubRec]);
    assert_eq!(b.shards[0].stats().publishes_received_qos2, 0);
}

#[test]
fn a_copy_with_qos_2_is_not_elsewhere_before_the_message_is_safe() {
    let (mut a, mut b, ticket) = uncommitted();
    let there = come(&mut a, &mut b, "kept");
    assert!(a.letters().is_empty());
    a.shards[0].committed(ticket, a.now);
    a.commit();
    carry(&mut a, &mut b);
    b.commit();
    let both = [PacketType::ConnAck, PacketType::Publish];
    assert_eq!(b.take(there), both);
}

#[test]
fn what_another_shard_has_sent_when_a_session_leaves_goes_with_it() {
    let mut a = Broker::new("a", 1, 1000, 2);
    let mut b = Broker::new("b", 2, 2000, 1);
    let kept = a.newcomer(0, "kept");
    a.subscribe(kept, QoS::AtLeastOnce);
    let publisher = a.connect(1, "", 0);
    assert_eq!(a.take(publisher), [PacketType::ConnAck]);
    let there = come(&mut a, &mut b, "kept");
    carry(&mut a, &mut b);
    b.commit();
    assert_eq!(b.take(there), [PacketType::ConnAck]);
    // It is on its way between the shards while the last round goes.
    a.publish(publisher, QoS::AtLeastOnce, false);
    let mut mail = Vec::new();
    a.shards[1].take_outbox(0, &mut mail);
    a.commit();
    assert_eq!(a.take(publisher), [PacketType::PubAck]);
    let last = last_round(&mut a);
    let now = a.now;
    a.shards[0].remote(mail.into_iter(), now);
    b.read("a", last);
    b.commit();
    carry(&mut a, &mut b);
    for _ in 0..3 {
        a.pass(Nanos::from_millis(100));
        carry(&mut a, &mut b);
    }
    assert!(a.shards[0].client("kept").is_none());
    assert_eq!(b.take(there), [PacketType::Publish]);
}

#[test]
fn a_session_wants_what_was_on_its_way_until_that_has_come() {
    let mut a = Broker::new("a", 1, 1000, 1);
    let mut b = Broker::new("b", 2, 2000, 1);
    a.post.fences.store(true, Ordering::Relaxed);
    let moves = a.newcomer(0, "moves");
    a.subscribe(moves, QoS::AtLeastOnce);
    let link = a.neighbour();
    let there = come(&mut a, &mut b, "moves");
    carry(&mut a, &mut b);
    b.commit();
    let on = |a: &mut Broker, b: &mut Broker| {
        for _ in 0..5 {
            carry(a, b);
            a.pass(Nanos::from_secs(1));
            a.commit();
        }
    };
    on(&mut a, &mut b);
    let asked = std::mem::take(&mut *a.post.fenced.lock().unwrap());
    let [(client, number)] = &asked[..] else {
        panic!("{asked:?}");
    };
    assert_eq!(client, "moves");
    a.named(link, "7,5", None);
    a.commit();
    on(&mut a, &mut b);
    assert_eq!(b.payloads(there), ["7,5"]);
    // The answer to another question.
    let now = a.now;
    a.shards[0].fenced("moves", number + 1, now);
    on(&mut a, &mut b);
    assert!(a.shards[0].client("moves").is_some());
    a.named(link, "7,6", None);
    a.commit();
    let now = a.now;
    a.shards[0].fenced("moves", *number, now);
    on(&mut a, &mut b);
    assert_eq!(b.payloads(there), ["7,6"]);
    assert!(a.shards[0].client("moves").is_none());
    assert_eq!(*a.post.fenced.lock().unwrap(), []);
}

#[test]
fn the_end_of_a_move_waits_for_nothing_that_is_not_stored_after_all() {
    let mut a = Broker::new("a", 1, 1000, 1);
    let mut b = Broker::new("b", 2, 2000, 1);
    let leaves = a.newcomer(0, "leaves");
    a.subscribe(leaves, QoS::AtLeastOnce);
    let there = come(&mut a, &mut b, "leaves");
    carry(&mut a, &mut b);
    b.commit();
    assert_eq!(b.take(there), [PacketType::ConnAck]);
    let last = last_round(&mut a);
    // The last that is to be stored there is not, when its receiver has it.
    let publisher = b.connect(0, "", 0);
    b.publish(publisher, QoS::AtLeastOnce, false);
    b.read("a", last);
    assert!(b.take_operations(0).is_none());
    assert!(b.letters().is_empty());
    assert_eq!(b.take(there), [PacketType::Publish]);
    let ack = Ack::new(b.packet_id, ReasonCode::Success);
    b.give(there, Packet::PubAck(ack));
    assert!(b.take_operations(0).is_none());
    let answer = b.letters();
    assert_eq!(answer.len(), 1);
    a.read("b", answer);
    assert!(a.shards[0].client("leaves").is_none());
}

/// What comes to a session at its new broker waits for what came before it to the old one, with any
/// QoS, for half a second at most; what expires does not.
#[test]
fn what_comes_to_a_session_on_two_ways_comes_in_order() {
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let linger = Nanos::from_secs(2);
        let mut a = Broker::with("a", 1, 1000, 1, linger);
        let mut b = Broker::with("b", 2, 2000, 1, linger);
        let moves = a.newcomer(0, "moves");
        a.subscribe(moves, qos);
        let (at_a, at_b) = (a.neighbour(), b.neighbour());
        a.named(at_a, "7.5", None);
        a.commit();
        let there = come(&mut a, &mut b, "moves");
        carry(&mut a, &mut b);
        b.commit();
        assert_eq!(b.payloads(there), ["7.5"]);
        // The sixth goes to the old broker, and has not come from there.
        b.named(at_b, "7,7", None);
        b.named(at_b, "7,8", None);
        b.named(at_b, "7.9", Some(100));
        b.named(at_b, "8,3", None);
        assert_eq!(b.payloads(there), ["7.9", "8,3"]);
        a.named(at_a, "7,6", None);
        a.commit();
        a.pass(Nanos::from_millis(100));
        let round = a.letters();
        assert_eq!(round.len(), 1);
        b.read("a", round);
        b.commit();
        assert_eq!(b.payloads(there), ["7,6", "7,7", "7,8"]);
        // Nor has the tenth.
        b.named(at_b, "7,B", None);
        b.pass(Nanos::from_millis(450));
        assert!(b.payloads(there).is_empty());
        b.pass(Nanos::from_millis(50));
        b.commit();
        assert_eq!(b.payloads(there), ["7,B"]);
        // The move ends, and with it all waiting.
        b.named(at_b, "7,D", None);
        assert!(b.payloads(there).is_empty());
        for _ in 0..10 {
            carry(&mut a, &mut b);
            a.pass(Nanos::from_secs(1));
            a.commit();
        }
        assert!(a.shards[0].client("moves").is_none());
        assert_eq!(b.payloads(there), ["7,D"]);
        b.named(at_b, "7,F", None);
        assert_eq!(b.payloads(there), ["7,F"]);
    }
}

/// What was at a broker before a session subscribed there, that session has not had, and gets it where
/// it goes if it comes there by itself; what was there since is not given to it again, also where the
/// broker was killed meanwhile.
#[test]
fn only_what_came_since_a_session_was_there_is_taken_for_had() {
    for kills in 0..3 {
        what_is_taken_for_had(kills);
    }
}

fn what_is_taken_for_had(kills: u32) {
    let (mut a, mut b) = (Broker::new("a", 1, 1000, 1), Broker::new("b", 2, 2000, 1));
    let (at_a, at_b) = (a.neighbour(), b.neighbour());
    let publisher = a.newcomer(0, "publisher");
    let watches = a.newcomer(0, "watches");
    a.subscribe(watches, QoS::ExactlyOnce);
    a.named(at_a, "7.5", None);
    a.publish(publisher, QoS::AtLeastOnce, false);
    a.commit();
    let moves = a.newcomer(0, "moves");
    a.subscribe(moves, QoS::ExactlyOnce);
    a.named(at_a, "7.6", None);
    a.publish(publisher, QoS::AtLeastOnce, false);
    a.commit();
    assert_eq!(a.payloads(moves), ["7.6", "x"]);
    let mut since = vec!["7.6".to_owned(), "1.2".to_owned()];
    for life in 1..=kills {
        a = a.start_again();
        let moves = a.come_back("moves");
        a.payloads(moves);
        let (link, publisher) = (a.neighbour(), a.newcomer(0, "publisher"));
        let passes = format!("7.{}", 10 + life);
        a.named(link, &passes, None);
        a.publish(publisher, QoS::AtLeastOnce, false);
        a.commit();
        assert_eq!(a.payloads(moves), [&*passes, "x"]);
        // As 11, 21 are written in names.
        since.extend([passes, format!("{}.1", ["B", "L"][life as usize - 1])]);
    }
    let there = come(&mut a, &mut b, "moves");
    carry(&mut a, &mut b);
    b.commit();
    b.payloads(there);
    let before = ["7.5", "1.1"].map(str::to_owned);
    for name in before.iter().chain(&since).chain([&"7.7".to_owned()]) {
        b.named(at_b, name, None);
    }
    assert_eq!(b.payloads(there), ["7.5", "1.1", "7.7"], "{kills}");
}

/// Two sessions of a client at two brokers, which have the same message and are asked for by each other
/// at the same time, do not change places: each would take the other broker to have the message.
#[test]
fn two_sessions_do_not_change_places() {
    for late in [false, true] {
        let (mut a, mut b) = (Broker::new("a", 1, 2000, 1), Broker::new("b", 2, 1000, 1));
        for broker in [&mut a, &mut b] {
            let link = broker.neighbour();
            broker.leave_session("moves", QoS::ExactlyOnce);
            broker.named(link, "7.1", None);
            broker.commit();
        }
        let (mut a, mut b) = (a.start_again(), b.start_again());
        b.post.clock.store(3000, Ordering::Relaxed);
        a.shards[0].broker_came("b", Nanos(0), a.now);
        b.shards[0].broker_came("a", Nanos(0), b.now);
        let (mut to_a, mut to_b) = (b.letters(), a.letters());
        assert_eq!((to_a.len(), to_b.len()), (1, 1));
        if late {
            // What was asked before the client came is answered before what it asks for.
            a.read("b", std::mem::take(&mut to_a));
            to_b.extend(a.letters());
        }
        let moves = want(&a, &mut b, "moves");
        to_a.extend(b.letters());
        a.read("b", to_a);
        b.read("a", to_b);
        carry(&mut a, &mut b);
        b.commit();
        assert_eq!(b.payloads(moves), ["7.1"], "{late}");
    }
}

/// The same where one of the two came there for a client that has gone on before it was let in, and the
/// broker that it came from was killed before it heard of that.
#[test]
fn a_session_does_not_change_places_with_what_came_of_it() {
    let (mut a, mut b) = (Broker::new("a", 1, 1000, 1), Broker::new("b", 2, 2000, 1));
    let link = a.neighbour();
    a.leave_session("moves", QoS::ExactlyOnce);
    a.named(link, "7.1", None);
    a.commit();
    let there = come(&mut a, &mut b, "moves");
    b.shards[0].closed(there.1, "gone", b.now);
    b.read("a", a.letters());
    b.commit();
    b.letters();
    let mut a = a.start_again();
    a.shards[0].broker_came("b", Nanos(0), a.now);
    b.shards[0].broker_came("a", Nanos(0), b.now);
    b.pass(Nanos::from_secs(2));
    let (to_a, to_b) = (b.letters(), a.letters());
    assert!(!to_a.is_empty() && !to_b.is_empty());
    a.read("b", to_a);
    b.read("a", to_b);
    for _ in 0..10 {
        carry(&mut a, &mut b);
        a.commit();
        a.pass(Nanos::from_secs(1));
        b.pass(Nanos::from_secs(1));
    }
    let moves = b.come_back("moves");
    assert_eq!(b.payloads(moves), ["7.1"]);
}

/// A client goes back to a broker where something is left of its session, which asks for it once more
/// before it is known there who has it: the session comes as such, not as a part of what is left.
#[test]
fn a_session_that_comes_before_it_is_asked_for_is_not_what_is_left_of_it() {
    for came in [false, true] {
        a_session_comes_before_it_is_asked_for(came);
    }
}

/// With `came` it had come from there before.
fn a_session_comes_before_it_is_asked_for(came: bool) {
    let with = |name, origin, clock| Broker::with(name, origin, clock, 1, Nanos::from_secs(3));
    let (mut a, mut b) = (with("a", 1, 1000), with("b", 2, 2000));
    let first = if came { &mut b } else { &mut a };
    let moves = first.newcomer(0, "moves");
    first.subscribe(moves, QoS::ExactlyOnce);
    if came {
        a.post.clock.store(2500, Ordering::Relaxed);
        come(&mut b, &mut a, "moves");
        carry(&mut a, &mut b);
        a.commit();
        carry(&mut a, &mut b);
        b.post.clock.store(2700, Ordering::Relaxed);
    }
    come(&mut a, &mut b, "moves");
    carry(&mut a, &mut b);
    // Nothing more of it comes for a while.
    b.pass(Nanos::from_millis(1500));
    let again = b.letters();
    assert_eq!(again.len(), 1);
    a.post.clock.store(3000, Ordering::Relaxed);
    let moves = a.connect(0, "moves", 100);
    let number = a.post.clock.load(Ordering::Relaxed) - 1;
    let (at, whole) = b.shards[0].sought("moves", None, number).unwrap();
    assert!(whole);
    a.read("b", again);
    for finds in [false, true] {
        if finds {
            let broker = "b".into();
            a.shards[0].found(
                "moves",
                number,
                &[Holder { broker, at, whole }],
                false,
                a.now,
            );
        }
        for _ in 0..3 {
            carry(&mut a, &mut b);
            a.commit();
        }
    }
    assert_eq!(a.take(moves), [PacketType::ConnAck]);
    assert!(a.is_present);
}

/// A session comes for a client that has gone on: it is newer than where it came from, which may have it
/// still, and than an older one, which the client is not given where that is.
#[test]
fn a_session_that_was_not_waited_for_is_newer_than_an_older_one() {
    let (mut a, mut b) = (Broker::new("a", 1, 2000, 1), Broker::new("b", 2, 3000, 1));
    let mut c = Broker::new("c", 3, 1000, 1);
    for broker in [&mut a, &mut c] {
        broker.leave_session("moves", QoS::ExactlyOnce);
    }
    let (before, _) = a.shards[0].sought("moves", None, 5000).unwrap();
    let there = come(&mut a, &mut b, "moves");
    b.shards[0].closed(there.1, "gone", b.now);
    b.read("a", a.letters());
    b.commit();
    let (at, whole) = b.shards[0].sought("moves", None, 5000).unwrap();
    assert!(whole && at > before, "{at} after {before}");
    c.shards[0].arrived_elsewhere("moves", 4000, false, c.now);
    c.post.clock.store(5000, Ordering::Relaxed);
    let moves = want(&b, &mut c, "moves");
    c.commit();
    assert_eq!(c.take(moves), [], "is given the older one");
}

/// A session has gone on, or has ended, by the time that it is asked for where it was found: whoever has it
/// now is asked for, and the client is not given an older one meanwhile, or a new one.
#[test]
fn a_session_that_has_gone_on_is_asked_for_again() {
    for (has_older, ends) in [(false, false), (true, false), (false, true)] {
        let with = |name, origin, clock| Broker::with(name, origin, clock, 1, Nanos::from_secs(3));
        let (mut a, mut b) = (with("a", 1, 2000), with("b", 2, 3000));
        let mut c = with("c", 3, 1000);
        if has_older {
            c.leave_session("moves", QoS::ExactlyOnce);
            c.shards[0].arrived_elsewhere("moves", 2500, false, c.now);
        }
        let moves = a.newcomer(0, "moves");
        a.subscribe(moves, QoS::ExactlyOnce);
        // It is found at the first broker, and goes to the second one.
        c.post.clock.store(4000, Ordering::Relaxed);
        let moves = want(&a, &mut c, "moves");
        let number = c.post.clock.load(Ordering::Relaxed) - 1;
        let there = come(&mut a, &mut b, "moves");
        carry(&mut a, &mut b);
        b.commit();
        assert_eq!(b.take(there), [PacketType::ConnAck]);
        if ends {
            for _ in 0..5 {
                a.pass(Nanos::from_secs(1));
                a.commit();
                carry(&mut a, &mut b);
            }
            assert!(a.shards[0].client("moves").is_none());
        }
        carry(&mut a, &mut c);
        c.commit();
        assert_eq!(c.take(moves), [], "{has_older}, {ends}");
        let holder = b.holder("moves", number);
        c.shards[0].found("moves", number, &[holder], false, c.now);
        carry(&mut b, &mut c);
        c.commit();
        assert_eq!(c.take(moves), [PacketType::ConnAck]);
        assert!(c.is_present);
        let (_, whole) = b.shards[0].sought("moves", None, number).unwrap();
        assert!(!whole);
    }
}

/// A session goes from one broker to another while these are asked for it, so that it is found at neither,
/// but what is left of it is: they are asked once more before its client is given a new one.
#[test]
fn a_session_that_moves_while_it_is_asked_for_is_asked_for_again() {
    for comes in [true, false] {
        let with = |name, origin, clock| Broker::with(name, origin, clock, 1, Nanos::from_secs(3));
        let (mut a, mut b) = (with("a", 1, 1000), with("b", 2, 2000));
        let moves = a.newcomer(0, "moves");
        a.subscribe(moves, QoS::ExactlyOnce);
        come(&mut a, &mut b, "moves");
        carry(&mut a, &mut b);
        let mut c = with("c", 3, 3000);
        let moves = want(&a, &mut c, "moves");
        let number = c.post.clock.load(Ordering::Relaxed) - 1;
        assert_eq!(c.take(moves), [], "{comes}");
        carry(&mut a, &mut c);
        assert_eq!(c.take(moves), [], "{comes}");
        let broker = if comes { &b } else { &a };
        let holder = broker.holder("moves", number);
        assert_eq!(holder.whole, comes);
        c.shards[0].found("moves", number, &[holder], false, c.now);
        let broker = if comes { &mut b } else { &mut a };
        carry(broker, &mut c);
        c.commit();
        assert_eq!(c.take(moves), [PacketType::ConnAck]);
        assert_eq!(c.is_present, comes);
    }
}

/// A session comes to where its client does not wait any more, and takes in what is left of it elsewhere.
/// It does not end there when its client is back where it came from, which has not what was left.
#[test]
fn a_session_that_was_added_to_does_not_end_when_it_stays_where_it_was() {
    let with = |name, origin, clock| Broker::with(name, origin, clock, 1, Nanos::from_secs(3));
    let (mut a, mut b) = (with("a", 1, 2000), with("b", 2, 3000));
    let mut c = with("c", 3, 1000);
    for broker in [&mut a, &mut c] {
        broker.leave_session("moves", QoS::AtLeastOnce);
    }
    let link = c.neighbour();
    c.named(link, "7.1", None);
    c.commit();
    let there = b.connect(0, "moves", 100);
    let number = b.post.clock.load(Ordering::Relaxed) - 1;
    let holders = [&a, &c].map(|broker| broker.holder("moves", number));
    b.shards[0].found("moves", number, &holders, false, b.now);
    b.shards[0].closed(there.1, "gone", b.now);
    let mut take = b.letters();
    let second = take.split_off(1);
    a.read("b", take);
    b.read("a", a.letters());
    b.commit();
    let safe = b.letters();
    c.read("b", second);
    b.read("c", c.letters());
    b.commit();
    c.read("b", b.letters());
    // The client is back, and then the first broker hears that its session has come.
    let moves = a.connect_unknown(0, "moves", 100);
    a.commit();
    assert_eq!(a.payloads(moves), [""; 0]);
    a.read("b", safe);
    b.read("a", a.letters());
    let moves = b.come_back("moves");
    assert_eq!(b.payloads(moves), ["7.1"]);
}

/// A session has come, and where it comes from has not heard of that and gives it to another broker, too. The
/// client comes back to the first one before that has heard where it was: others are asked who has the session.
#[test]
fn a_session_that_may_have_gone_elsewhere_too_is_asked_for() {
    for hears in [false, true] {
        let (mut a, mut b) = (Broker::new("a", 1, 1000, 1), Broker::new("b", 2, 2000, 1));
        let mut c = Broker::new("c", 3, 3000, 1);
        let link = a.neighbour();
        a.leave_session("moves", QoS::AtLeastOnce);
        a.named(link, "7.1", None);
        a.commit();
        let first = come(&mut a, &mut b, "moves");
        b.read("a", a.letters());
        b.commit();
        assert_eq!(b.payloads(first), ["7.1"]);
        let got = b.letters();
        let second = come(&mut a, &mut c, "moves");
        let session = a.letters();
        if hears {
            a.read("b", got);
            b.read("a", a.letters());
        }
        c.read("a", session);
        c.commit();
        carry(&mut a, &mut c);
        c.commit();
        assert_eq!(c.payloads(second), ["7.1"]);
        c.give(
            second,
            Packet::PubAck(Ack::new(c.packet_id, ReasonCode::Success)),
        );
        c.commit();
        b.post.clock.store(4000, Ordering::Relaxed);
        let third = want(&c, &mut b, "moves");
        b.commit();
        assert_eq!(b.take(third), [], "{hears}");
        carry(&mut c, &mut b);
        assert_eq!(b.payloads(third), [""; 0], "{hears}");
        assert!(b.is_present);
    }
}

/// A session comes when its client does not wait any more, and was given a new one, which it may not have
/// heard of: it stays where it is until that is known, with its subscriptions.
#[test]
fn a_session_that_comes_too_late_stays_where_it_is_until_its_client_has_heard() {
    let (mut a, mut b) = (Broker::new("a", 1, 1000, 1), Broker::new("b", 2, 2000, 1));
    let link = a.neighbour();
    a.leave_session("moves", QoS::AtLeastOnce);
    let moves = come(&mut a, &mut b, "moves");
    b.pass(Nanos::from_secs(5));
    b.commit();
    assert_eq!(b.take(moves), [PacketType::ConnAck]);
    assert!(!b.is_present);
    carry(&mut a, &mut b);
    a.named(link, "7.1", None);
    a.commit();
    carry(&mut a, &mut b);
    let (_, whole) = a.shards[0].sought("moves", None, 3000).unwrap();
    assert!(whole);
    b.give(moves, Packet::PingReq);
    carry(&mut a, &mut b);
    assert_eq!(b.payloads(moves), ["7.1"]);
}

/// A client comes back to where an old copy of its session is, which its newest one begins to go to before it
/// is known there who has it: that comes as such, and is not added to the older one.
#[test]
fn a_session_that_comes_before_it_is_asked_for_is_not_added_to_an_older_one() {
    let with = |name, origin, clock| Broker::with(name, origin, clock, 1, Nanos::from_secs(3));
    let (mut a, mut b) = (with("a", 1, 1000), with("b", 2, 2000));
    let mut c = with("c", 3, 3000);
    let link = a.neighbour();
    a.leave_session("moves", QoS::AtLeastOnce);
    a.named(link, "7.1", None);
    a.commit();
    // The second broker has a copy, of which the first one does not hear, and the third one has it then.
    let moves = come(&mut a, &mut b, "moves");
    b.read("a", a.letters());
    b.shards[0].closed(moves.1, "gone", b.now);
    b.commit();
    b.letters();
    come(&mut a, &mut c, "moves");
    carry(&mut a, &mut c);
    // The client is at the first one again, and gets what waits.
    a.post.clock.store(4000, Ordering::Relaxed);
    let moves = come(&mut c, &mut a, "moves");
    carry(&mut c, &mut a);
    a.commit();
    assert_eq!(a.payloads(moves), ["7.1"]);
    a.give(
        moves,
        Packet::PubAck(Ack::new(a.packet_id, ReasonCode::Success)),
    );
    a.commit();
    a.letters();
    b.shards[0].arrived_elsewhere("moves", 4000, false, b.now);
    b.post.clock.store(5000, Ordering::Relaxed);
    let moves = b.connect(0, "moves", 100);
    a.shards[0].arrived_elsewhere("moves", 5000, false, a.now);
    let holder = Holder {
        broker: "b".into(),
        at: 5000,
        whole: true,
    };
    a.shards[0].found("moves", 4500, &[holder], false, a.now);
    carry(&mut a, &mut b);
    assert_eq!(b.take(moves), []);
    let holder = a.holder("moves", 5000);
    assert!(holder.whole);
    b.shards[0].found("moves", 5000, &[holder], false, b.now);
    carry(&mut a, &mut b);
    a.commit();
    carry(&mut a, &mut b);
    assert_eq!(b.payloads(moves), [""; 0]);
    assert!(b.is_present);
}

/// A session comes from where only what was left of it was found, before the one that was found: it has come
/// there meanwhile. It is not added to the older one that is here, but found again.
#[test]
fn a_session_that_was_not_there_yet_is_not_added_to_an_older_one() {
    let (mut a, mut b) = (Broker::new("a", 1, 2000, 1), Broker::new("b", 2, 1000, 1));
    for broker in [&mut a, &mut b] {
        broker.leave_session("moves", QoS::ExactlyOnce);
    }
    b.shards[0].arrived_elsewhere("moves", 3000, false, b.now);
    b.post.clock.store(4000, Ordering::Relaxed);
    let moves = b.connect(0, "moves", 100);
    let holder = |broker: &str, at, whole| Holder {
        broker: broker.into(),
        at,
        whole,
    };
    let holders = [holder("a", 0, false), holder("c", 3000, true)];
    b.shards[0].found("moves", 4000, &holders, false, b.now);
    let mut take = b.letters();
    take.truncate(1);
    a.read("b", take);
    carry(&mut a, &mut b);
    let holder = a.holder("moves", 4000);
    assert!(holder.whole);
    b.shards[0].found("moves", 4000, &[holder], false, b.now);
    carry(&mut a, &mut b);
    // It says again what was not answered.
    a.pass(Nanos::from_millis(1));
    carry(&mut a, &mut b);
    b.commit();
    assert_eq!(b.take(moves), [PacketType::ConnAck]);
    let (_, whole) = a.shards[0].sought("moves", None, 4000).unwrap();
    assert!(!whole);
}

/// A session comes in place of what is left of it, from where it was not yet when that was asked, and its
/// client has gone on: it is newer than what was left.
#[test]
fn a_session_that_comes_in_place_of_what_is_left_is_newer() {
    let with = |name, origin, clock| Broker::with(name, origin, clock, 1, Nanos::from_secs(3));
    let (mut a, mut b) = (with("a", 1, 1000), with("b", 2, 2000));
    let moves = b.newcomer(0, "moves");
    b.subscribe(moves, QoS::AtLeastOnce);
    let (before, _) = b.shards[0].sought("moves", None, 5000).unwrap();
    a.post.clock.store(3000, Ordering::Relaxed);
    come(&mut b, &mut a, "moves");
    carry(&mut b, &mut a);
    b.post.clock.store(4000, Ordering::Relaxed);
    let moves = b.connect(0, "moves", 100);
    let holder = Holder {
        broker: "a".into(),
        at: 0,
        whole: false,
    };
    b.shards[0].found("moves", 4000, std::slice::from_ref(&holder), false, b.now);
    b.shards[0].closed(moves.1, "gone", b.now);
    b.shards[0].found("moves", 4000, &[holder], false, b.now);
    carry(&mut b, &mut a);
    let (at, whole) = b.shards[0].sought("moves", None, 5000).unwrap();
    assert!(whole && at > before, "{at} after {before}");
}

/// What is left of a session was asked for by a broker that its client has left before it was let in: it is
/// told that nothing is there, and finds the session.
#[test]
fn what_is_left_does_not_wait_for_who_has_gone_on() {
    let with = |name, origin, clock| Broker::with(name, origin, clock, 1, Nanos::from_secs(3));
    let (mut a, mut b) = (with("a", 1, 1000), with("b", 2, 2000));
    let link = a.neighbour();
    let moves = a.newcomer(0, "moves");
    a.subscribe(moves, QoS::AtLeastOnce);
    let moves = come(&mut a, &mut b, "moves");
    carry(&mut a, &mut b);
    let mut c = with("c", 3, 3000);
    let gone = want(&a, &mut c, "moves");
    c.shards[0].closed(gone.1, "gone", c.now);
    c.shards[0].found("moves", 3000, &[], false, c.now);
    a.named(link, "7.1", None);
    a.commit();
    carry(&mut a, &mut c);
    let holder = b.holder("moves", 5000);
    a.shards[0].found("moves", 4000, &[holder], false, a.now);
    carry(&mut a, &mut b);
    assert_eq!(b.payloads(moves), ["7.1"]);
}

/// A client waits for its session where an older one of it is, and goes on before it has come: what comes
/// then is not taken in by the older one.
#[test]
fn a_session_that_is_not_waited_for_any_more_stays_where_it_is() {
    let (mut a, mut b) = (Broker::new("a", 1, 2000, 1), Broker::new("b", 2, 1000, 1));
    for broker in [&mut a, &mut b] {
        broker.leave_session("moves", QoS::ExactlyOnce);
    }
    b.shards[0].arrived_elsewhere("moves", 2500, false, b.now);
    b.post.clock.store(3000, Ordering::Relaxed);
    want(&a, &mut b, "moves");
    let take = b.letters();
    b.shards[0].arrived_elsewhere("moves", 4000, false, b.now);
    a.read("b", take);
    carry(&mut a, &mut b);
    let (_, whole) = a.shards[0].sought("moves", None, 5000).unwrap();
    assert!(whole);
}

/// A client was given a new session, and sent what waited, but has not heard of that when the broker is
/// killed: that session is not taken for the one that it has elsewhere.
#[test]
fn a_session_that_was_sent_something_in_vain_is_not_taken_for_the_old_one() {
    let with = |name, origin, clock| Broker::with(name, origin, clock, 1, Nanos::from_secs(3));
    let (mut a, mut b) = (with("a", 1, 1000), with("b", 2, 2000));
    let link = a.neighbour();
    let moves = a.newcomer(0, "moves");
    a.subscribe(moves, QoS::AtLeastOnce);
    come(&mut a, &mut b, "moves");
    carry(&mut a, &mut b);
    a.named(link, "7.1", None);
    a.commit();
    let find_nothing = |a: &mut Broker| {
        let moves = a.connect_unknown(0, "moves", 100);
        a.commit();
        let sent = a.payloads(moves);
        assert_eq!((a.is_present, sent), (false, vec!["7.1".to_owned()]));
    };
    find_nothing(&mut a);
    let mut a = a.start_again();
    find_nothing(&mut a);
}

/// A client goes back to a broker that hears of nobody, and is given a new session there. What was on
/// its way there for the one that went on from there goes to it, until its client says something and
/// so has heard that it is a new one.
#[test]
fn what_was_on_its_way_is_for_a_new_session_until_its_client_has_heard_of_it() {
    for again in [false, true] {
        let (mut a, mut b, there) = gone_on(1);
        let link = a.neighbour();
        let find_nothing = |a: &mut Broker| {
            let conn = a.connect_unknown(0, "moves", 100);
            a.commit();
            a.take(conn);
            assert!(!a.is_present);
            conn
        };
        let mut moves = find_nothing(&mut a);
        if again {
            a.shards[0].closed(moves.1, "gone", a.now);
            moves = find_nothing(&mut a);
        }
        // The others have not heard that it is not wanted there any more.
        assert_eq!(*a.post.wanted.lock().unwrap(), (1, 0), "{again}");
        a.named(link, "7.1", None);
        a.commit();
        assert_eq!(a.payloads(moves), ["7.1"], "{again}");

        // Not acknowledged, it goes to the session that its client has.
        let holder = b.holder("moves", 5000);
        a.shards[0].closed(moves.1, "gone", a.now);
        a.shards[0].arrived_elsewhere("moves", 4000, false, a.now);
        a.pass(Nanos::from_secs(3));
        a.shards[0].found("moves", 3000, &[holder], false, a.now);
        carry(&mut a, &mut b);
        assert_eq!(b.payloads(there), ["7.1"], "{again}");
    }

    let (mut a, ..) = gone_on(1);
    let link = a.neighbour();
    let moves = a.connect_unknown(0, "moves", 100);
    a.commit();
    assert_eq!(*a.post.wanted.lock().unwrap(), (1, 0));
    a.give(moves, Packet::PingReq);
    assert_eq!(*a.post.wanted.lock().unwrap(), (0, 1));
    assert_eq!(a.shards[0].stats().subscriptions, 0);
    a.named(link, "7.1", None);
    a.commit();
    assert_eq!(a.payloads(moves), [""; 0]);
}

/// Nor for longer than what was left would have been there, although that client says nothing.
#[test]
fn what_a_new_session_inherits_ends() {
    let (mut a, ..) = gone_on(1);
    let moves = a.connect_unknown(0, "moves", 100);
    a.shards[0].closed(moves.1, "gone", a.now);
    a.pass(Nanos::from_millis(12_900));
    assert_eq!(a.shards[0].stats().subscriptions, 1);
    a.pass(Nanos::from_millis(200));
    assert_eq!(a.shards[0].stats().subscriptions, 0);
    assert_eq!(*a.post.wanted.lock().unwrap(), (0, 1));
}

/// What another shard has sent when another session takes the place of a client's is for that.
#[test]
fn what_another_shard_has_sent_is_for_who_takes_the_place() {
    let (mut a, ..) = gone_on(2);
    let publisher = a.connect(1, "", 0);
    assert_eq!(a.take(publisher), [PacketType::ConnAck]);
    a.publish(publisher, QoS::AtLeastOnce, false);
    let mut mail = Vec::new();
    a.shards[1].take_outbox(0, &mut mail);
    let moves = a.connect_unknown(0, "moves", 100);
    let now = a.now;
    a.shards[0].remote(mail.into_iter(), now);
    a.commit();
    assert_eq!(a.payloads(moves), ["x"]);
}

/// What comes late to a session that goes on already, and is not wanted there any more, goes after it.
#[test]
fn what_comes_to_a_session_that_ends_goes_on_with_it() {
    let with = |name, origin, clock| Broker::with(name, origin, clock, 1, Nanos::from_secs(3));
    let (mut a, mut b, mut c) = (with("a", 1, 1000), with("b", 2, 2000), with("c", 3, 3000));
    let link = a.neighbour();
    a.leave_session("moves", QoS::AtLeastOnce);
    let moves = come(&mut a, &mut b, "moves");
    carry(&mut a, &mut b);
    b.commit();
    b.shards[0].closed(moves.1, "gone", b.now);
    let moves = come(&mut b, &mut c, "moves");
    carry(&mut b, &mut c);
    b.pass(Nanos::from_secs(3));
    b.pass(Nanos::from_millis(1));
    assert_eq!(b.shards[0].stats().subscriptions, 0);
    assert!(b.shards[0].client("moves").is_some());
    a.named(link, "7.1", None);
    a.commit();
    a.pass(Nanos::from_millis(100));
    carry(&mut a, &mut b);
    for _ in 0..3 {
        b.pass(Nanos::from_millis(100));
        carry(&mut b, &mut c);
    }
    assert_eq!(c.payloads(moves), ["7.1"]);
    assert!(b.shards[0].client("moves").is_none());
}

/// A broker with an old copy of a session asks for what is left of it elsewhere, and its client goes on;
/// what was left is a session by then, as that has come there, and is not added to the old copy.
#[test]
fn a_session_that_was_left_when_it_was_asked_for_is_not_added_to_an_older_one() {
    let with = |name, origin, clock| Broker::with(name, origin, clock, 1, Nanos::from_secs(3));
    let (mut a, mut b, mut c) = (with("a", 1, 2000), with("b", 2, 1000), with("c", 3, 3000));
    for broker in [&mut a, &mut b] {
        broker.leave_session("moves", QoS::AtLeastOnce);
    }
    let there = come(&mut a, &mut c, "moves");
    carry(&mut a, &mut c);
    c.shards[0].closed(there.1, "gone", c.now);
    b.shards[0].arrived_elsewhere("moves", 3000, false, b.now);
    b.post.clock.store(5000, Ordering::Relaxed);
    let gone = want(&a, &mut b, "moves");
    b.shards[0].closed(gone.1, "gone", b.now);
    b.shards[0].found("moves", 5000, &[], false, b.now);
    let take = b.letters();

    a.post.clock.store(4000, Ordering::Relaxed);
    come(&mut c, &mut a, "moves");
    carry(&mut c, &mut a);
    a.read("b", take);
    carry(&mut a, &mut b);
    let (_, whole) = a.shards[0].sought("moves", None, 6000).unwrap();
    assert!(whole);
}

/// A client connects again while its session is on its way to it, which is asked for again so that all
/// of it is sent once more: it stays where it has come by then.
#[test]
fn a_session_that_is_sent_again_to_where_it_has_come_stays_there() {
    let (mut a, mut b) = (Broker::new("a", 1, 1000, 1), Broker::new("b", 2, 2000, 1));
    a.leave_session("moves", QoS::ExactlyOnce);
    let publisher = a.newcomer(0, "publisher");
    a.publish_exactly(publisher, false, "x");
    let other = a.newcomer(0, "other");
    want(&a, &mut b, "moves");
    a.read("b", b.letters());
    a.commit();
    let parts = a.letters();
    let moves = want(&a, &mut b, "moves");
    let again = b.letters();
    b.read("a", parts);
    b.commit();
    assert_eq!(b.payloads(moves), ["x"]);
    assert!(b.is_present);
    // What has come is acknowledged before what is sent again is stored.
    a.publish(other, QoS::ExactlyOnce, false);
    a.read("b", again);
    for _ in 0..5 {
        carry(&mut a, &mut b);
        a.pass(Nanos::from_millis(100));
        a.commit();
    }
    assert!(a.shards[0].client("moves").is_none());
    assert_eq!(b.shards[0].stats().clients_connected, 1);
}

/// A broker asks for the session of a client that has connected to another one since: it hears so, and
/// neither gets that session nor makes another one, or keeps it.
#[test]
fn who_asks_after_the_client_has_gone_on_hears_so() {
    for waits in [true, false] {
        let (mut a, mut b) = (Broker::new("a", 1, 5000, 1), Broker::new("b", 2, 1000, 1));
        let moves = match waits {
            true => b.connect(0, "moves", 100),
            false => b.newcomer(0, "moves"),
        };
        let here = a.newcomer(0, "moves");
        a.subscribe(here, QoS::AtLeastOnce);
        let holder = a.holder("moves", 1000);
        assert_eq!((holder.at, holder.whole), (5000, true));
        b.shards[0].found("moves", 1000, &[holder], false, b.now);
        for _ in 0..3 {
            carry(&mut a, &mut b);
            b.pass(Nanos::from_millis(100));
        }
        assert!(!b.take(moves).contains(&PacketType::ConnAck));
        assert_eq!(b.shards[0].stats().clients_connected, 0, "{waits}");
        assert!(b.shards[0].client("moves").is_none());
        assert!(a.shards[0].client("moves").is_some());
        assert_eq!(a.shards[0].stats().clients_connected, 1);
    }
}

/// A client goes back to a broker whose store has no room, where something is left of its session: it is
/// refused, as where nothing is left, since its session could not come. What is left goes on to the
/// session.
#[test]
fn who_goes_back_to_a_broker_without_room_is_not_given_another_session() {
    let with = |name, origin, clock| Broker::with(name, origin, clock, 1, Nanos::from_secs(3));
    let (mut a, mut b) = (with("a", 1, 1000), with("b", 2, 2000));
    let link = a.neighbour();
    let moves = a.newcomer(0, "moves");
    a.subscribe(moves, QoS::ExactlyOnce);
    let moves = come(&mut a, &mut b, "moves");
    carry(&mut a, &mut b);
    a.shards[0].store_full(Some(StoreTrouble::Full), a.now);
    let before = a.post.clock.load(Ordering::Relaxed);
    a.connect(0, "moves", 100);
    assert_eq!(a.post.clock.load(Ordering::Relaxed), before, "asks");
    a.shards[0].store_full(None, a.now);
    a.named(link, "7.1", None);
    for _ in 0..3 {
        a.commit();
        carry(&mut a, &mut b);
    }
    assert_eq!(b.payloads(moves), ["7.1"]);
}

/// Where not all have been heard of whether they have a client's session, or none, all are asked
/// twice more; not where nobody has it, however long that took.
#[test]
fn who_may_not_have_answered_is_asked_again() {
    for (took, answer, seeks) in [
        (1, Some(false), 0),
        (4900, Some(false), 0),
        (1, Some(true), 1),
        (4900, Some(true), 1),
        (5000, None, 1),
    ] {
        let mut b = Broker::new("b", 2, 1000, 1);
        let moves = b.connect(0, "moves", 100);
        let number = b.post.clock.load(Ordering::Relaxed) - 1;
        b.pass(Nanos::from_millis(took));
        if let Some(incomplete) = answer {
            b.shards[0].found("moves", number, &[], incomplete, b.now);
        }
        b.commit();
        assert_eq!(b.take(moves), [PacketType::ConnAck]);
        assert!(!b.is_present);
        for (later, seeks) in [(5, seeks), (40, seeks), (100, 0)] {
            let before = b.post.clock.load(Ordering::Relaxed);
            b.pass(Nanos::from_secs(later));
            let asked = b.post.clock.load(Ordering::Relaxed) - before;
            assert_eq!(asked, seeks, "{answer:?} after {took} ms, {later} s later");
        }
    }
}

/// A client that waits for its session does not any more when another broker asks for it as one that
/// has connected there later.
#[test]
fn who_is_elsewhere_by_now_is_not_waited_for() {
    let (mut a, mut b) = (Broker::new("a", 1, 1000, 1), Broker::new("b", 2, 2000, 1));
    let waits = a.connect(0, "moves", 100);
    let number = a.post.clock.load(Ordering::Relaxed) - 1;
    let holder = Holder {
        broker: "a".into(),
        at: 1,
        whole: true,
    };
    b.connect(0, "moves", 100);
    let later = b.post.clock.load(Ordering::Relaxed) - 1;
    b.shards[0].found("moves", later, &[holder], false, b.now);
    let take = b.letters();
    a.read("b", take);
    a.shards[0].found("moves", number, &[], false, a.now);
    a.commit();
    assert_eq!(a.take(waits), []);
    assert!(a.shards[0].client("moves").is_none());
}

/// A link is cut while the session of a publisher moves, so that both brokers have it, with the
/// identifier of a message whose PUBREL has not come. The client goes to and fro between them and uses
/// that identifier again, for new messages: neither takes one of those for the repetition of what it has
/// had, also if that was sent to the other one before, in vain. What is repeated is sent with DUP
/// [MQTT-3.3.1-1], and is not delivered again; nor is, on one connection, whatever comes before PUBREL
/// [MQTT-4.3.3-10].
#[test]
fn an_identifier_of_an_old_copy_is_not_that_of_a_new_message() {
    let (mut a, mut b) = (Broker::new("a", 1, 1000, 1), Broker::new("b", 2, 2000, 1));
    let mut receivers = Vec::new();
    for broker in [&mut a, &mut b] {
        let receiver = broker.newcomer(0, "receiver");
        broker.subscribe(receiver, QoS::AtLeastOnce);
        receivers.push(receiver);
    }
    let publisher = a.newcomer(0, "publisher");
    a.publish_exactly(publisher, false, "1");
    // It goes to the second broker, and the first one hears nothing of that it is there.
    let publisher = come(&mut a, &mut b, "publisher");
    a.commit();
    let session = a.letters();
    assert_eq!(session.len(), 1);
    b.read("a", session);
    b.commit();
    assert_eq!(b.take(publisher), [PacketType::ConnAck]);
    assert!(b.is_present);
    b.letters();
    // There it repeats the message, and is done with it.
    b.publish_exactly(publisher, true, "1");
    b.release(publisher);
    b.publish_exactly(publisher, false, "2");
    b.shards[0].closed(publisher.1, "cut", b.now);

    // There that identifier is still the one of the first message.
    let publisher = a.come_back("publisher");
    a.publish_exactly(publisher, false, "3");
    a.publish_exactly(publisher, false, "3");
    a.publish_exactly(publisher, true, "3");
    a.shards[0].closed(publisher.1, "cut", a.now);
    let publisher = a.come_back("publisher");
    a.publish_exactly(publisher, true, "3");
    a.release(publisher);
    a.publish_exactly(publisher, false, "4");
    a.shards[0].closed(publisher.1, "cut", a.now);
    assert_eq!(a.payloads(receivers[0]), ["1", "3", "4"]);

    // The second broker has not heard that the client was elsewhere.
    let publisher = b.come_back("publisher");
    b.publish_exactly(publisher, false, "5");
    b.shards[0].closed(publisher.1, "cut", b.now);
    // "6" was sent to the first broker, and did not arrive.
    let publisher = b.come_back("publisher");
    b.publish_exactly(publisher, true, "6");
    b.publish_exactly(publisher, true, "6");
    b.release(publisher);
    assert_eq!(b.payloads(receivers[1]), ["2", "5", "6"]);
}

/// What tells a message with QoS 2 from others goes with the session of its publisher.
#[test]
fn a_repetition_is_told_from_another_message_where_a_session_has_come() {
    let (mut a, mut b) = (Broker::new("a", 1, 1000, 1), Broker::new("b", 2, 2000, 1));
    let receiver = b.newcomer(0, "receiver");
    b.subscribe(receiver, QoS::AtLeastOnce);
    let publisher = a.newcomer(0, "publisher");
    a.publish_exactly(publisher, false, "1");
    let publisher = come(&mut a, &mut b, "publisher");
    a.commit();
    carry(&mut a, &mut b);
    b.commit();
    assert_eq!(b.take(publisher), [PacketType::ConnAck]);
    b.publish_exactly(publisher, true, "1");
    assert!(b.payloads(receiver).is_empty());
    b.shards[0].closed(publisher.1, "cut", b.now);
    let publisher = b.come_back("publisher");
    b.publish_exactly(publisher, true, "2");
    b.release(publisher);
    assert_eq!(b.payloads(receiver), ["2"]);
}

/// A broker that was killed knows what tells a message with QoS 2 from others with its identifier, also
/// in a session that has come from elsewhere: what comes with DUP is no repetition if it says something
/// else, since it was sent elsewhere before, in vain.
#[test]
fn a_repetition_is_told_from_another_message_after_a_kill() {
    for (moved, text, expected) in [
        (false, "1", &["1"][..]),
        (false, "2", &["1", "2"]),
        (true, "1", &[]),
        (true, "2", &["2"]),
    ] {
        let (mut a, mut b) = (Broker::new("a", 1, 1000, 1), Broker::new("b", 2, 2000, 1));
        for broker in [&mut a, &mut b] {
            let receiver = broker.newcomer(0, "receiver");
            broker.subscribe(receiver, QoS::AtLeastOnce);
        }
        let publisher = a.newcomer(0, "publisher");
        a.publish_exactly(publisher, false, "1");
        if moved {
            come(&mut a, &mut b, "publisher");
            a.commit();
            carry(&mut a, &mut b);
        }
        let mut broker = if moved { b } else { a }.start_again();
        let publisher = broker.come_back("publisher");
        broker.publish_exactly(publisher, true, text);
        broker.release(publisher);
        let receiver = broker.come_back("receiver");
        assert_eq!(broker.payloads(receiver), expected, "{moved} {text}");
    }
}

/// A broker that is reached again is asked for few sessions at a time of those that it may have an old
/// one of, and for the next ones as it answers. If it is lost meanwhile, it is asked when it is back for
/// all that it has not answered about, also where it was given up to wait for that.
#[test]
fn a_broker_is_asked_for_few_sessions_at_a_time() {
    let (mut a, mut b) = (Broker::new("a", 1, 1000, 1), Broker::new("b", 2, 2000, 1));
    let mut all = a.leave_sessions(1000);
    a.commit();
    let mut a = a.start_again();
    a.shards[0].broker_came("b", Nanos(0), a.now);
    let mut first = a.letters();
    assert!((100..400).contains(&first.len()), "{}", first.len());
    let most = first.len();
    first.truncate(50);
    for (client, _) in &first {
        all.remove(client);
    }
    b.read("a", first);
    a.read("b", b.letters());
    assert_eq!(a.letters().len(), 50);
    for _ in 0..120 {
        a.pass(Nanos::from_secs(1));
        a.letters();
    }
    a.shards[0].broker_came("b", a.now, a.now);
    a.pass(Nanos::from_millis(1));
    for asked in ask_on(&mut a, &mut b) {
        assert!(asked.len() <= most);
        for client in &asked {
            all.remove(client);
        }
    }
    assert!(all.is_empty(), "{} were not asked for", all.len());
}

/// Where a broker has sessions that stay there, since their clients may not have heard of those that
/// they were given elsewhere, it is asked for the next ones.
#[test]
fn who_keeps_a_session_has_answered() {
    let (mut a, mut b) = (
        Broker::new("a", 1, 1_000_000, 1),
        Broker::new("b", 2, 1000, 1),
    );
    let stay = b.leave_sessions(600);
    let mut all = a.leave_sessions(600);
    a.commit();
    let mut a = a.start_again();
    a.shards[0].broker_came("b", Nanos(0), a.now);
    for client in ask_on(&mut a, &mut b).iter().flatten() {
        assert!(all.remove(client), "{client} was asked for twice");
    }
    assert!(all.is_empty(), "{} were not asked for", all.len());
    assert_eq!(stay.len(), 600);
    assert!(stay.iter().all(|it| b.shards[0].client(it).is_some()));
}

/// A broker that has something of a session, and is lost before it has answered for longer than it is
/// asked, is asked for that again when it is back.
#[test]
fn a_broker_that_was_asked_in_vain_is_asked_when_it_is_back() {
    let mut a = Broker::new("a", 1, 1000, 1);
    let _ = a.connect(0, "c", 10_000);
    let number = a.post.clock.load(Ordering::Relaxed) - 1;
    let holder = Holder {
        broker: "b".into(),
        at: 1,
        whole: false,
    };
    a.shards[0].found("c", number, &[holder], false, a.now);
    assert_eq!(a.letters().len(), 1);
    let mut again = 0;
    for _ in 0..300 {
        a.pass(Nanos::from_secs(1));
        again += a.letters().len();
    }
    assert_eq!(again, 8);
    for asked in [1, 0] {
        a.shards[0].broker_came("b", a.now, a.now);
        let letters = a.letters();
        assert_eq!(letters.len(), asked);
        // It answers.
        let mut b = Broker::new("b", 2, 2000, 1);
        b.read("a", letters);
        a.read("b", b.letters());
    }
}

/// Another user connects to another broker with the same identifier, and begins anew there: the
/// session here is not that user's, and stays with its connection.
#[test]
fn a_session_stays_when_another_user_connects_elsewhere() {
    let mut a = Broker::new("a", 1, 1000, 1);
    let conn = a.newcomer(0, "moves");
    let is_connected = |a: &Broker| {
        a.shards[0]
            .client("moves")
            .is_some_and(|it| it.is_connected())
    };
    for clean in [false, true] {
        a.shards[0].user_arrived_elsewhere("moves", Some("other"), (9000, clean), a.now);
        assert!(is_connected(&a), "{conn:?}");
    }
    a.shards[0].user_arrived_elsewhere("moves", None, (9000, true), a.now);
    assert!(a.shards[0].client("moves").is_none());
}
