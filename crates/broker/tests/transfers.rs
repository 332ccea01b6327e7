//! Sessions that move between brokers of a mesh, which are shards with stores here: look-ups, envelopes
//! and fences go between them as calls, and what is forwarded goes over links that carry bytes.

#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use punctual_broker::{
    ClientIds, Config, ConnId, ConnMeta, Directory, Federation, Interest, LinkLimits, LinkNews,
    MessageName, MessageNames, MoveTimes, Nanos, Newcomer, Restorer, SessionTransfers, Shard,
    StoreTrouble, Unwelcome,
};
use punctual_codec::{
    Ack, Connect, Packet, PacketType, Properties, PropertyBuf, PropertyId, Publish, QoS,
    ReasonCode, Split, Subscribe, SubscribeOptions, Version, split,
};
use punctual_mesh::transfer::{
    Extent, FenceAnswer, HomeId, Located, MAX_PART, Stamp, Stub, Times, TransferMessage,
};
use punctual_mesh::wire::SessionAddress;
use punctual_model::Rng;
use punctual_sim::{seeds, take_pending};
use punctual_store::{Memory, Op, Store as _};

const NAMES: [&str; 3] = ["a", "b", "c"];
/// The client that roams.
const CLIENT: &str = "roams";
/// Messages that wait in a large session.
const MANY: usize = 3000;
/// For the machine: as long as a client waits, and until a fence is asked again.
const WAIT: Nanos = Nanos::from_secs(5);

/// What a broker asks of the mesh.
#[derive(Debug)]
enum Wish {
    LookUp(String, Option<String>, Stamp, bool),
    Found(HomeId, Stamp, Located),
    Envelope(String, String, Arc<[u8]>),
    Fence(String, Stub),
    Forward(u64, SessionAddress, Arc<[u8]>),
    Forwarded(u64),
}

#[derive(Debug)]
struct Post {
    name: &'static str,
    origin: u32,
    clock: Arc<AtomicU64>,
    wishes: Mutex<Vec<Wish>>,
    passed: Mutex<Vec<MessageName>>,
}

impl Post {
    fn wish(&self, wish: Wish) {
        self.wishes.lock().unwrap().push(wish);
    }
}

impl Interest for Post {
    fn subscribed(&self, _: &str, _: bool) {}
    fn unsubscribed(&self, _: &str, _: bool) {}
}

impl MessageNames for Post {
    fn origin(&self) -> NonZeroU32 {
        NonZeroU32::new(self.origin).unwrap()
    }
    fn is_new(&self, name: MessageName, _: bool) -> bool {
        let passed = self.passed.lock().unwrap();
        !passed
            .iter()
            .any(|it| (it.origin, it.number) == (name.origin, name.number))
    }
    fn clock(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
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

impl SessionTransfers for Post {
    fn next_stamp(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::Relaxed)
    }
    fn arrived(&self, _: &str, _: Option<&str>, _: bool, since: Option<u64>) -> u64 {
        since.unwrap_or_else(|| self.next_stamp())
    }
    fn transfer_times(&self) -> Times {
        Times {
            session_wait: WAIT,
            heal: WAIT,
            keep: Nanos::from_secs(1000),
        }
    }
    fn look_up(&self, client: &str, user: Option<&str>, at: &Stamp, clean: bool) {
        let user = user.map(str::to_owned);
        self.wish(Wish::LookUp(client.into(), user, at.clone(), clean));
    }
    fn found(&self, by: &HomeId, _: &str, at: &Stamp, located: Located) {
        self.wish(Wish::Found(by.clone(), at.clone(), located));
    }
    fn send_transfer_message(&self, to: &str, client: &str, body: Arc<[u8]>) {
        self.wish(Wish::Envelope(to.into(), client.into(), body));
    }
    fn fence_stub(&self, client: &str, stub: &Stub) {
        self.wish(Wish::Fence(client.into(), stub.clone()));
    }
    fn forward(&self, number: u64, address: &SessionAddress, message: Arc<[u8]>) {
        self.wish(Wish::Forward(number, address.clone(), message));
    }
    fn forwarded(&self, number: u64) {
        self.wish(Wish::Forwarded(number));
    }
    fn move_times(&self) -> MoveTimes {
        MoveTimes {
            linger: Nanos::from_millis(100),
            heal: WAIT,
        }
    }
}

impl Federation for Post {
    fn admit(&self, _: Newcomer<'_>) -> Result<(), Unwelcome> {
        Ok(())
    }
    fn link(&self, _: ConnId, _: &str, _: LinkNews<'_>) {}
    fn name(&self) -> &str {
        self.name
    }
}

struct Broker {
    shard: Shard,
    directory: Arc<Directory>,
    post: Arc<Post>,
    store: Memory,
    /// The connections to others.
    links: BTreeMap<usize, ConnId>,
    /// What has left to clients: kinds of packets, and contents of messages.
    packets: HashMap<ConnId, Vec<PacketType>>,
    payloads: HashMap<ConnId, Vec<String>>,
    /// Session Present of the last CONNACK.
    is_present: bool,
    reason: ReasonCode,
    packet_id: u16,
    /// Commits that its disk does until it hangs.
    commits: usize,
    /// Operations of the largest of them until a session has come.
    largest_commit: usize,
}

/// Brokers in a row, each with a link to the next.
struct World {
    brokers: Vec<Broker>,
    clock: Arc<AtomicU64>,
    now: Nanos,
    /// Whether they hear each other.
    is_whole: bool,
    /// Those that were not answered yet: who asks, and by whom what was found.
    lookups: BTreeMap<(usize, Stamp), (String, BTreeMap<HomeId, Located>)>,
    /// Fences that all have answered: they pass once nothing is on its way on links.
    fences: Vec<(usize, String, Stamp)>,
    /// Whether none passes.
    holds_fences: bool,
    /// As whom the client connects.
    user: &'static str,
    /// Whether brokers commit after each envelope.
    commits_envelopes: bool,
    /// The broker that no claim reaches.
    unclaimed: Option<usize>,
    /// The claims that brokers have sent: sender and user.
    claims: Vec<(usize, Option<String>)>,
}

impl Broker {
    fn new(at: usize, start: u32, clock: &Arc<AtomicU64>, stores: bool, now: Nanos) -> Self {
        let directory = Directory::new(1);
        let post = Arc::new(Post {
            name: NAMES[at],
            origin: 1 + at as u32 + 10 * start,
            clock: clock.clone(),
            wishes: Mutex::default(),
            passed: Mutex::default(),
        });
        directory.set_federation(post.clone());
        // Otherwise another user is not let in where there is a session.
        let mut config = Config {
            client_ids: ClientIds::Any,
            ..Config::default()
        };
        config.limits.max_queued_messages = 2 * MANY;
        let mut shard = Shard::new(directory.clone(), 0, Arc::new(config), now);
        if stores {
            shard.attach_store(0);
        }
        Self {
            shard,
            directory,
            post,
            store: Memory::default(),
            links: BTreeMap::new(),
            packets: HashMap::new(),
            payloads: HashMap::new(),
            is_present: false,
            reason: ReasonCode::Success,
            packet_id: 0,
            commits: usize::MAX,
            largest_commit: 0,
        }
    }

    fn commit(&mut self, now: Nanos) -> bool {
        let mut some = false;
        while self.commits > 0
            && let Some(operations) = self.shard.take_operations(now)
        {
            if self.shard.stats().sessions_moved_in == 0 {
                self.largest_commit = self.largest_commit.max(operations.batch.len());
            }
            self.store.commit(&operations.batch).unwrap();
            self.shard.committed(operations.ticket, now);
            self.commits -= 1;
            some = true;
        }
        some
    }

    /// Reads what leaves to a client; it acknowledges messages with QoS 1.
    fn read(&mut self, conn: ConnId, now: Nanos) {
        let bytes = take_pending(&mut self.shard, conn, now);
        let mut rest = &bytes[..];
        let mut acks = Vec::new();
        while let Ok(Split::Frame(frame)) = split(rest, u32::MAX) {
            let length = frame.bytes.len();
            self.packets.entry(conn).or_default().push(frame.kind);
            match Packet::decode(frame, Version::V5) {
                Ok(Packet::Publish(publish)) => {
                    let payload = String::from_utf8_lossy(publish.payload).into_owned();
                    self.payloads.entry(conn).or_default().push(payload);
                    if publish.qos == QoS::AtLeastOnce {
                        acks.push(publish.packet_id);
                    }
                }
                Ok(Packet::ConnAck(connack)) => {
                    (self.is_present, self.reason) = (connack.session_present, connack.reason);
                }
                _ => {}
            }
            rest = &rest[length..];
        }
        for packet_id in acks {
            self.give(
                conn,
                Packet::PubAck(Ack::new(packet_id, ReasonCode::Success)),
                now,
            );
        }
    }

    fn give(&mut self, conn: ConnId, packet: Packet<'_>, now: Nanos) {
        let mut bytes = Vec::new();
        packet.encode(Version::V5, &mut bytes).unwrap();
        self.shard.receive(conn, &bytes, now);
    }
}

impl Broker {
    /// A publisher sends a message.
    fn publish(&mut self, conn: ConnId, qos: QoS, text: &str, now: Nanos) {
        self.packet_id += 1;
        let publish = Publish {
            dup: false,
            qos,
            retain: false,
            topic: "t",
            packet_id: self.packet_id,
            properties: Properties::EMPTY,
            payload: text.as_bytes(),
        };
        self.give(conn, Packet::Publish(publish), now);
    }

    /// How many messages its store has for the client, in how many sessions.
    fn stored(&mut self) -> (usize, usize) {
        let (mut sessions, mut entries) = (BTreeSet::new(), 0);
        let count = &mut |op: Op<'_>| match op {
            Op::Session(it) if it.client_id == CLIENT => _ = sessions.insert(it.session),
            Op::Entry(it) if sessions.contains(&it.session) => entries += 1,
            _ => {}
        };
        self.store.recover(count).unwrap();
        (entries, sessions.len())
    }
}

impl World {
    fn new(count: usize) -> Self {
        Self::with_stores(count, true)
    }

    fn with_stores(count: usize, stores: bool) -> Self {
        let clock = Arc::new(AtomicU64::new(1_700_000_000_000_000));
        let now = Nanos::from_secs(1);
        let broker = |at| Broker::new(at, 0, &clock, stores, now);
        let brokers = (0..count).map(broker).collect();
        let mut world = Self {
            brokers,
            clock,
            now,
            is_whole: true,
            lookups: BTreeMap::new(),
            fences: Vec::new(),
            holds_fences: false,
            user: "somebody",
            commits_envelopes: false,
            unclaimed: None,
            claims: Vec::new(),
        };
        for at in 0..count {
            world.link(at);
        }
        world.reach();
        world
    }

    /// Opens the links of a broker, as far as they are not open.
    fn link(&mut self, at: usize) {
        let limits = LinkLimits {
            receive_maximum: 100,
            max_packet: 1 << 20,
            topic_aliases: 0,
        };
        let count = self.brokers.len();
        let peers = [at.wrapping_sub(1), at + 1];
        for peer in peers.into_iter().filter(|peer| *peer < count) {
            let now = self.now;
            let broker = &mut self.brokers[at];
            if broker.links.contains_key(&peer) {
                continue;
            }
            let meta = ConnMeta {
                allow_anonymous: true,
                ..ConnMeta::default()
            };
            let name = NAMES[peer];
            let conn = broker.shard.open_link(meta, name, limits, now);
            broker.shard.link_carry(name, true, now);
            let behind: Vec<&str> = match peer < at {
                true => NAMES[..at].to_vec(),
                false => NAMES[at + 1..count].to_vec(),
            };
            broker.shard.link_leads(name, &behind);
            broker.shard.link_interest(name, &["t".into()], &[]);
            broker.links.insert(peer, conn);
        }
    }

    /// Tells all who is reached.
    fn reach(&mut self) {
        let count = self.brokers.len();
        for at in 0..count {
            let others = (0..count).filter(|other| *other != at && self.is_whole);
            let reached: BTreeSet<HomeId> =
                others.map(|it| HomeId::new(NAMES[it]).unwrap()).collect();
            let now = self.now;
            self.brokers[at]
                .shard
                .set_reach(&reached, !self.is_whole, now);
        }
    }

    fn pass(&mut self, time: Nanos) {
        self.now = self.now + time;
        self.clock.fetch_add(time.0 / 1000, Ordering::Relaxed);
        for broker in &mut self.brokers {
            broker.shard.tick(self.now);
        }
        self.settle();
    }

    fn at(name: &str) -> usize {
        NAMES.iter().position(|it| *it == name).unwrap()
    }

    /// Goes on until nothing is on its way.
    fn settle(&mut self) {
        let mut quiet = 0;
        for _ in 0..1000 {
            self.now = self.now + Nanos::from_millis(1);
            let mut busy = false;
            for at in 0..self.brokers.len() {
                let now = self.now;
                self.brokers[at].shard.tick(now);
                busy |= self.brokers[at].commit(now);
                let wishes = std::mem::take(&mut *self.brokers[at].post.wishes.lock().unwrap());
                busy |= !wishes.is_empty();
                for wish in wishes {
                    self.fulfil(at, wish);
                }
                busy |= self.carry(at);
            }
            quiet = if busy { 0 } else { quiet + 1 };
            if quiet == 5 && !self.holds_fences {
                for (at, client, epoch) in std::mem::take(&mut self.fences) {
                    let shard = &mut self.brokers[at].shard;
                    shard.fence_passed(&client, &epoch, self.now);
                    quiet = 0;
                }
            }
            // Neither a commit nor another try of something waits for longer.
            if quiet > 40 {
                return;
            }
        }
        panic!("it never ends");
    }

    /// Carries what leaves on the links of a broker.
    fn carry(&mut self, at: usize) -> bool {
        let mut some = false;
        for (peer, conn) in self.brokers[at].links.clone() {
            let bytes = take_pending(&mut self.brokers[at].shard, conn, self.now);
            if self.is_whole && !bytes.is_empty() {
                some = true;
                let to = self.brokers[peer].links[&at];
                self.brokers[peer].shard.receive(to, &bytes, self.now);
            }
        }
        some
    }

    fn fulfil(&mut self, at: usize, wish: Wish) {
        let (now, count) = (self.now, self.brokers.len());
        let own = HomeId::new(NAMES[at]).unwrap();
        match wish {
            Wish::LookUp(client, user, stamp, clean) => {
                self.lookups
                    .insert((at, stamp.clone()), (client.clone(), BTreeMap::new()));
                for other in (0..count).filter(|it| *it != at && self.is_whole) {
                    let shard = &mut self.brokers[other].shard;
                    shard.look_up(&own, &client, user.as_deref(), (&stamp, clean), now);
                }
                self.answer(at, stamp);
            }
            Wish::Found(by, stamp, located) => {
                let by = Self::at(by.as_str());
                if let Some((_, found)) = self.lookups.get_mut(&(by, stamp.clone())) {
                    found.insert(own, located);
                }
                self.answer(by, stamp);
            }
            Wish::Envelope(to, client, body) => {
                let claim = match TransferMessage::decode(&body) {
                    Ok(TransferMessage::Claim { user, .. }) => Some(user),
                    _ => None,
                };
                let is_lost = claim.is_some() && self.unclaimed == Some(Self::at(&to));
                let claim = claim.map(|user| (at, user.map(Into::into)));
                self.claims.extend(claim);
                if self.is_whole && !is_lost {
                    let shard = &mut self.brokers[Self::at(&to)].shard;
                    shard.transfer_message(NAMES[at], &client, &body, now);
                    if self.commits_envelopes {
                        self.brokers[Self::at(&to)].commit(now);
                    }
                }
            }
            Wish::Fence(client, stub) => {
                if !self.is_whole {
                    return;
                }
                let others = (0..count).filter(|it| *it != at);
                let mut clear = true;
                for other in others {
                    let shard = &mut self.brokers[other].shard;
                    clear &= shard.fence_asked(&own, &client, &stub, now) == FenceAnswer::Clear;
                }
                if clear {
                    self.fences.push((at, client, stub.target_epoch));
                }
            }
            Wish::Forward(number, address, message) => {
                let shard = &mut self.brokers[at].shard;
                shard.take_forwarded(number, &address, &message, now);
            }
            Wish::Forwarded(number) => self.brokers[at].shard.forwarded(number),
        }
    }

    fn answer(&mut self, at: usize, stamp: Stamp) {
        let key = (at, stamp);
        let all = match self.is_whole {
            true => self.brokers.len() - 1,
            false => 0,
        };
        let (extent, is_all) = match self.is_whole {
            true => (
                Extent::All,
                self.lookups.get(&key).map_or(0, |it| it.1.len()) == all,
            ),
            false => (Extent::Reached, true),
        };
        if is_all && let Some((client, found)) = self.lookups.remove(&key) {
            let answers = found.into_iter().collect();
            let shard = &mut self.brokers[at].shard;
            shard.located(&client, &key.1, answers, extent, self.now);
        }
    }

    /// No broker hears another one any more.
    fn cut(&mut self) {
        self.is_whole = false;
        self.fences.clear();
        for broker in &mut self.brokers {
            for conn in std::mem::take(&mut broker.links).into_values() {
                broker.shard.closed(conn, "lost", self.now);
            }
        }
        self.reach();
        self.settle();
    }

    /// All hear each other again.
    fn heal(&mut self) {
        self.is_whole = true;
        (0..self.brokers.len()).for_each(|at| self.link(at));
        self.reach();
        self.settle();
    }

    /// A broker is killed, and starts again with what is committed.
    fn kill(&mut self, at: usize) {
        let now = self.now;
        let start = self.brokers[at].post.origin / 10 + 1;
        let mut again = Broker::new(at, start, &self.clock, true, now);
        again.store = std::mem::take(&mut self.brokers[at].store);
        let mut restorer = Restorer::new(again.directory.clone(), 0);
        let mut sessions = Vec::new();
        let recovered = again
            .store
            .recover(&mut |op| sessions.extend(restorer.take(&op)));
        recovered.unwrap();
        sessions.extend(restorer.finish());
        for session in sessions {
            assert!(again.shard.restore(session, now));
        }
        self.brokers[at] = again;
        for other in 0..self.brokers.len() {
            if let Some(conn) = self.brokers[other].links.remove(&at) {
                self.brokers[other].shard.closed(conn, "lost", now);
            }
        }
        if self.is_whole {
            (0..self.brokers.len()).for_each(|at| self.link(at));
        }
        self.reach();
        self.settle();
    }

    fn connect_as(&mut self, at: usize, clean: bool, expiry: u32) -> ConnId {
        let conn = self.knock(at, clean, expiry);
        self.settle();
        self.brokers[at].read(conn, self.now);
        self.settle();
        conn
    }

    /// The client sends CONNECT.
    fn knock(&mut self, at: usize, clean: bool, expiry: u32) -> ConnId {
        let meta = ConnMeta {
            allow_anonymous: true,
            ..ConnMeta::default()
        };
        let now = self.now;
        let broker = &mut self.brokers[at];
        let conn = broker.shard.open(meta, now);
        let mut properties = PropertyBuf::new();
        properties.push_number(PropertyId::SessionExpiryInterval, expiry);
        let connect = Connect {
            version: Version::V5,
            clean_start: clean,
            keep_alive: 0,
            properties: properties.as_properties(),
            client_id: CLIENT,
            will: None,
            username: Some(self.user),
            password: None,
        };
        broker.give(conn, Packet::Connect(connect), now);
        conn
    }

    /// The client connects, and is let in; says whether with its session.
    fn come(&mut self, at: usize) -> (ConnId, bool) {
        let conn = self.connect_as(at, false, 1000);
        let broker = &mut self.brokers[at];
        let kinds = broker.packets.entry(conn).or_default();
        assert_eq!(kinds.first(), Some(&PacketType::ConnAck), "{at}");
        assert_eq!(broker.reason, ReasonCode::Success);
        let present = broker.is_present;
        // So it is known to have heard.
        broker.give(conn, Packet::PingReq, self.now);
        self.settle();
        (conn, present)
    }

    fn leave(&mut self, at: usize, conn: ConnId) {
        self.brokers[at].shard.closed(conn, "gone", self.now);
        self.settle();
    }

    fn subscribe(&mut self, at: usize, conn: ConnId) {
        let options = SubscribeOptions {
            qos: QoS::ExactlyOnce,
            ..SubscribeOptions::default()
        };
        let (mut bytes, none) = (Vec::new(), Properties::EMPTY);
        Subscribe::put(1, none, &[("t", options)], Version::V5, &mut bytes).unwrap();
        self.brokers[at].shard.receive(conn, &bytes, self.now);
        self.settle();
    }

    /// A message with QoS 1 is published at a broker.
    fn publish(&mut self, at: usize, text: &str) {
        let conn = self.send(at, QoS::AtLeastOnce, text);
        let broker = &mut self.brokers[at];
        broker.read(conn, self.now);
        let kinds = broker.packets.remove(&conn).unwrap();
        assert_eq!(kinds, [PacketType::ConnAck, PacketType::PubAck], "{text}");
        broker.shard.closed(conn, "done", self.now);
        self.settle();
    }

    /// Publishes the messages of a large session at a broker; returns them.
    fn publish_many(&mut self, at: usize) -> Vec<String> {
        let all: Vec<String> = (0..MANY).map(|it| format!("{it:0>100}")).collect();
        for some in all.chunks(100) {
            let conn = self.send(at, QoS::AtLeastOnce, &some[0]);
            for text in &some[1..] {
                self.brokers[at].publish(conn, QoS::AtLeastOnce, text, self.now);
            }
            self.settle();
            self.brokers[at].shard.closed(conn, "done", self.now);
        }
        self.settle();
        all
    }

    /// The first broker does not know any more that the second one wants anything: messages come there by
    /// stubs alone.
    fn forget_interest(&mut self) {
        let shard = &mut self.brokers[0].shard;
        shard.link_interest("b", &[], &["t".into()]);
    }

    /// A message with QoS 2 is sent to a broker, which need not answer.
    fn offer(&mut self, at: usize, text: &str) {
        let conn = self.send(at, QoS::ExactlyOnce, text);
        self.brokers[at].shard.closed(conn, "gone", self.now);
        self.settle();
    }

    /// A message is sent to a broker.
    fn send(&mut self, at: usize, qos: QoS, text: &str) -> ConnId {
        let meta = ConnMeta {
            allow_anonymous: true,
            ..ConnMeta::default()
        };
        let now = self.now;
        let broker = &mut self.brokers[at];
        let conn = broker.shard.open(meta, now);
        let connect = Connect {
            version: Version::V5,
            clean_start: true,
            keep_alive: 0,
            properties: Properties::EMPTY,
            client_id: "",
            will: None,
            username: None,
            password: None,
        };
        broker.give(conn, Packet::Connect(connect), now);
        broker.publish(conn, qos, text, now);
        self.settle();
        conn
    }

    /// What the client has got on a connection.
    fn got(&mut self, at: usize, conn: ConnId) -> Vec<String> {
        let mut got = Vec::new();
        loop {
            self.brokers[at].read(conn, self.now);
            match self.brokers[at].payloads.remove(&conn) {
                Some(more) => got.extend(more),
                None => return got,
            }
            self.settle();
        }
    }
}

#[test]
fn a_session_goes_to_where_its_client_connects() {
    let mut world = World::new(3);
    let (conn, present) = world.come(0);
    assert!(!present);
    world.subscribe(0, conn);
    world.leave(0, conn);
    world.publish(0, "1");
    world.publish(2, "2");
    let (conn, present) = world.come(1);
    assert!(present);
    assert_eq!(world.got(1, conn), ["1", "2"]);
    world.publish(1, "3");
    world.publish(0, "4");
    assert_eq!(world.got(1, conn), ["3", "4"]);
}

/// The client subscribes at a broker, and is gone.
fn left_behind(count: usize, at: usize) -> World {
    let mut world = World::new(count);
    let (conn, present) = world.come(at);
    assert!(!present);
    world.subscribe(at, conn);
    world.leave(at, conn);
    world
}

/// The first of two brokers has a session with these messages; brokers commit after each envelope.
fn large_session() -> (World, Vec<String>) {
    let mut world = left_behind(2, 0);
    let all = world.publish_many(0);
    world.commits_envelopes = true;
    (world, all)
}

#[test]
fn a_session_goes_back_and_forth() {
    let mut world = left_behind(3, 0);
    let mut expected = Vec::new();
    for turn in 0..12 {
        for publisher in 0..3 {
            let text = format!("{turn}-{publisher}");
            world.publish(publisher, &text);
            expected.push(text);
        }
        let at = turn * 2 % 3;
        let (conn, present) = world.come(at);
        assert!(present, "{turn}");
        let mut got = world.got(at, conn);
        got.sort();
        expected.sort();
        assert_eq!(got, expected, "{turn}");
        expected.clear();
        if turn % 3 > 0 {
            world.leave(at, conn);
        }
    }
}

#[test]
fn what_comes_to_a_stub_goes_on() {
    let mut world = left_behind(3, 0);
    world.come(1);
    let shard = &mut world.brokers[0].shard;
    assert_eq!(shard.stats().sessions_moved_out, 1);
    // The stub is still there: its end waits for all that is on its way.
    world.publish(0, "at the stub");
    world.pass(WAIT + WAIT);
    world.publish(0, "after it");
    let (conn, present) = world.come(1);
    assert!(present);
    assert_eq!(world.got(1, conn), ["at the stub", "after it"]);
}

/// Several stubs of one client have the same subscriptions: each forwards what comes by the same name, and
/// the session takes it in once.
#[test]
fn what_comes_to_several_stubs_is_one_message() {
    let mut world = left_behind(2, 0);
    world.holds_fences = true;
    let mut conn = world.come(1).0;
    for at in [0, 1] {
        world.leave(1 - at, conn);
        conn = world.come(at).0;
    }
    // The other broker is not known to want it, so that it goes on by the stubs alone.
    world.forget_interest();
    for text in ["1", "2", "3"] {
        world.publish(0, text);
    }
    assert_eq!(world.got(1, conn), ["1", "2", "3"]);
}

#[test]
fn copies_and_stubs_survive_kills() {
    for killed in [vec![0], vec![1], vec![0, 1], vec![1, 0, 1]] {
        let mut world = left_behind(2, 0);
        world.publish(1, "1");
        let (conn, _) = world.come(1);
        world.leave(1, conn);
        world.publish(0, "2");
        for at in &killed {
            world.kill(*at);
        }
        world.publish(0, "3");
        world.publish(1, "4");
        let (conn, present) = world.come(0);
        assert!(present, "{killed:?}");
        let mut got = world.got(0, conn);
        got.sort();
        got.dedup();
        let all: &[&str] = &["1", "2", "3", "4"];
        assert!(got == all || got == all[1..], "{killed:?} {got:?}");
    }
}

/// The new broker stores a large session part by part.
#[test]
fn a_large_session_comes_in_pieces() {
    let (mut world, all) = large_session();
    world.brokers[1].largest_commit = 0;
    let (conn, present) = world.come(1);
    assert!(present);
    let largest = world.brokers[1].largest_commit;
    // Each message takes a hundred bytes of a part and more, and two operations.
    let most = 2 * MAX_PART / 100;
    assert!(largest > 0 && largest < most, "{largest} of {most}");
    let got = world.got(1, conn);
    assert!(got == all);
    assert_eq!(world.brokers[1].stored(), (0, 1));
}

/// The new broker is killed when it has stored some parts of the session, but not all.
#[test]
fn what_came_of_a_session_is_nothing_after_a_restart() {
    for commits in [1, 2, 10, 20] {
        let (mut world, all) = large_session();
        world.brokers[1].commits = commits;
        world.connect_as(1, false, 1000);
        world.settle();
        let (entries, sessions) = world.brokers[1].stored();
        assert!(sessions <= 1 && entries < MANY, "{commits}: {entries}");
        assert!(commits < 10 || entries > 0, "{commits}");
        world.kill(1);
        assert_eq!(world.brokers[1].stored(), (0, 0), "{commits}");
        world.pass(WAIT);
        let (conn, present) = world.come(1);
        assert!(present, "{commits}");
        assert!(world.got(1, conn) == all, "{commits}");
    }
}

/// Where the store has no room, nothing of a session is written that comes there, and it stays where it was.
#[test]
fn nothing_of_a_session_is_stored_where_there_is_no_room() {
    let (mut world, all) = large_session();
    world.knock(1, false, 1000);
    let now = world.now;
    let full = Some(StoreTrouble::Full);
    world.brokers[1].shard.store_full(full, now);
    world.brokers[1].largest_commit = 0;
    world.settle();
    assert_eq!(world.brokers[1].largest_commit, 0);
    let now = world.now;
    world.brokers[1].shard.store_full(None, now);
    world.pass(WAIT);
    let (conn, present) = world.come(1);
    assert!(present);
    assert!(world.got(1, conn) == all);
}

/// The brokers do not reach each other any more before the session has left: it is as it was.
#[test]
fn a_session_that_does_not_leave_has_its_messages_in_order() {
    let (mut world, all) = large_session();
    world.brokers[1].commits = 5;
    world.connect_as(1, false, 1000);
    world.is_whole = false;
    world.reach();
    world.publish(0, "later");
    let (conn, present) = world.come(0);
    assert!(present);
    let got = world.got(0, conn);
    assert!(got.starts_with(&all) && got[MANY..] == ["later"]);
    assert_eq!(world.brokers[0].stored(), (0, 1));
}

#[test]
fn clean_start_ends_what_is_elsewhere() {
    let mut world = left_behind(3, 0);
    world.publish(0, "old");
    let conn = world.connect_as(2, true, 1000);
    world.leave(2, conn);
    let (conn, present) = world.come(0);
    assert!(present);
    assert_eq!(world.got(0, conn), [""; 0]);
    assert_eq!(world.brokers[1].shard.stats().sessions_moved_in, 0);
}

/// What others store does not delay a client of whose session nothing is stored, however long the disk takes.
#[test]
fn a_session_that_is_not_stored_does_not_wait_for_what_others_store() {
    let mut world = World::new(2);
    let other = world.send(0, QoS::AtMostOnce, "before");
    world.brokers[0].commits = 0;
    let retained = Publish {
        dup: false,
        qos: QoS::AtMostOnce,
        retain: true,
        topic: "retained",
        packet_id: 0,
        properties: Properties::EMPTY,
        payload: b"stored",
    };
    let now = world.now;
    world.brokers[0].give(other, Packet::Publish(retained), now);
    let conn = world.connect_as(0, true, 0);
    let kinds = world.brokers[0].packets.remove(&conn);
    assert_eq!(kinds.as_deref(), Some(&[PacketType::ConnAck][..]));
    world.brokers[0].commits = usize::MAX;
    assert!(
        world.brokers[0].commit(now),
        "the other has stored something"
    );
}

#[test]
fn a_session_that_ends_with_its_connection_does_not_move() {
    let mut world = World::new(2);
    let old = world.connect_as(0, false, 0);
    world.subscribe(0, old);
    let (conn, present) = world.come(1);
    assert!(!present);
    assert_eq!(world.brokers[0].shard.stats().sessions_taken_over, 1);
    world.publish(0, "nobody's");
    assert_eq!(world.got(1, conn), [""; 0]);
}

#[test]
fn of_two_sessions_the_later_one_stays_and_gets_what_the_other_has() {
    let mut world = left_behind(2, 0);
    world.publish(0, "old");
    world.cut();
    let (conn, present) = world.come(1);
    assert!(!present);
    world.subscribe(1, conn);
    world.leave(1, conn);
    world.publish(0, "0");
    world.publish(1, "1");
    world.heal();
    world.pass(WAIT);
    world.pass(WAIT);
    let (conn, present) = world.come(1);
    assert!(present);
    let mut got = world.got(1, conn);
    got.sort();
    assert_eq!(got, ["0", "1", "old"]);
    assert_eq!(world.brokers[0].shard.stats().sessions, 1);
}

/// A session had messages that only this broker has seen when it yielded to another one. Before its stub can
/// forward them, the mesh falls apart and the client is given a new session at the same broker, with the
/// same subscription: the messages are older than that session, and were not queued in it.
#[test]
fn what_a_stub_has_comes_to_a_later_session_at_its_broker() {
    let mut world = World::with_stores(2, false);
    world.forget_interest();
    let (conn, _) = world.come(0);
    world.subscribe(0, conn);
    world.leave(0, conn);
    world.publish(0, "1");
    world.publish(0, "2");
    world.cut();
    let (conn, present) = world.come(1);
    assert!(!present);
    world.leave(1, conn);
    // The other session is claimed, and no link leads to it yet.
    world.brokers[0].shard.link_leads("b", &[]);
    world.is_whole = true;
    world.reach();
    world.settle();
    assert_eq!(world.brokers[0].shard.stats().sessions_moved_out, 1);
    world.cut();
    let conn = world.connect_as(0, false, 1000);
    assert!(!world.brokers[0].is_present);
    world.subscribe(0, conn);
    world.publish(0, "3");
    assert_eq!(world.got(0, conn), ["1", "2", "3"]);
}

/// A session leaves before another broker has answered its claim: the stub repeats the claim, for the same
/// user, until that broker has yielded.
#[test]
fn a_stub_claims_for_the_session_that_has_left() {
    let mut world = left_behind(3, 0);
    world.cut();
    // Its client is not known to have heard of this one, so it is the lesser one.
    let conn = world.connect_as(2, false, 1000);
    assert!(!world.brokers[2].is_present);
    world.leave(2, conn);
    world.unclaimed = Some(2);
    world.heal();
    assert!(world.come(1).1);
    world.claims.clear();
    world.pass(WAIT);
    assert!(world.claims.iter().any(|(at, _)| *at == 0));
    let user = Some(world.user.to_owned());
    assert!(world.claims.iter().all(|(_, it)| *it == user));
    world.unclaimed = None;
    // Claims are repeated at intervals that double.
    for _ in 0..10 {
        world.pass(WAIT);
    }
    for at in [0, 2] {
        assert_eq!(world.brokers[at].stored(), (0, 0), "{at}");
    }
}

/// Another user's sessions with the same client identifier are not compared with it: nothing of it is
/// forwarded there, and it does not yield.
#[test]
fn another_user_gets_nothing_of_a_session() {
    let mut world = left_behind(2, 0);
    world.publish(0, "somebody's");
    world.cut();
    world.user = "another";
    let (conn, _) = world.come(1);
    world.subscribe(1, conn);
    world.heal();
    world.pass(WAIT);
    world.pass(WAIT);
    assert_eq!(world.got(1, conn), [""; 0]);
    world.user = "somebody";
    let (conn, present) = world.come(0);
    assert!(present);
    assert_eq!(world.got(0, conn), ["somebody's"]);
}

/// A session has moved, and ends as another user connects there with its client identifier: what its stub
/// forwards is for nobody.
#[test]
fn another_user_gets_nothing_of_a_stub() {
    let mut world = left_behind(2, 0);
    world.holds_fences = true;
    let (conn, _) = world.come(1);
    world.leave(1, conn);
    world.user = "another";
    let (conn, present) = world.come(1);
    assert!(!present);
    world.forget_interest();
    world.publish(0, "somebody's");
    world.pass(WAIT);
    assert_eq!(world.got(1, conn), [""; 0]);
    assert_eq!(world.brokers[1].shard.stats().dropped_session_ended, 1);
}

/// While the session is away, its client connects where its stub is, and is gone before it is known to
/// have heard of a new session: what the stub has is still for the session that is away.
#[test]
fn a_session_that_nobody_has_heard_of_does_not_end_a_stub() {
    let mut world = left_behind(2, 0);
    world.holds_fences = true;
    let (conn, _) = world.come(1);
    world.leave(1, conn);
    world.cut();
    world.publish(0, "1");
    for text in ["2", "3"] {
        let conn = world.connect_as(0, false, 0);
        world.publish(0, text);
        world.leave(0, conn);
    }
    world.heal();
    world.pass(WAIT);
    let (conn, present) = world.come(1);
    assert!(present);
    assert_eq!(world.got(1, conn), ["1", "2", "3"]);
}

/// A session's message goes to another broker, with the session or by its stub, while the disk of its broker
/// hangs. If the broker is killed now, the session has never left, and lacks the message: so its
/// publisher has no answer yet.
#[test]
fn what_is_passed_on_is_acknowledged_when_that_is_durable() {
    for is_before in [true, false] {
        let mut world = left_behind(2, 0);
        world.holds_fences = true;
        world.forget_interest();
        if !is_before {
            world.come(1);
        }
        world.brokers[0].commits = 0;
        let publisher = world.send(0, QoS::AtLeastOnce, "1");
        if is_before {
            world.connect_as(1, false, 1000);
        }
        let got = |world: &mut World| {
            let broker = &mut world.brokers[0];
            broker.read(publisher, world.now);
            broker.packets.remove(&publisher).unwrap_or_default()
        };
        let broker = &mut world.brokers[0];
        assert_eq!(broker.shard.stats().sessions_moved_out, 1);
        let written = broker.shard.take_operations(world.now).unwrap();
        assert_eq!(got(&mut world), [PacketType::ConnAck], "{is_before}");
        let broker = &mut world.brokers[0];
        broker.store.commit(&written.batch).unwrap();
        broker.shard.committed(written.ticket, world.now);
        broker.commits = usize::MAX;
        world.settle();
        assert_eq!(got(&mut world), [PacketType::PubAck], "{is_before}");
        let (conn, present) = world.come(1);
        assert!(present);
        assert_eq!(world.got(1, conn), ["1"], "{is_before}");
    }
}

/// What comes while a session is frozen is in no snapshot, and forwarded. It is the same message when the old
/// owner is killed at any moment after it has forwarded it.
#[test]
fn what_came_meanwhile_is_forwarded_once_whenever_the_old_owner_is_killed() {
    let mut forwarded = 0;
    for commits in 0..8 {
        let mut world = left_behind(2, 0);
        world.publish(0, "before");
        world.holds_fences = true;
        // The copy is not durable yet.
        world.brokers[1].commits = 0;
        let conn = world.connect_as(1, false, 1000);
        // Nobody else wants it, so it has no name.
        world.forget_interest();
        world.offer(0, "meanwhile");
        world.brokers[0].commits = commits;
        world.brokers[1].commits = usize::MAX;
        world.settle();
        let mut got = world.got(1, conn);
        forwarded += usize::from(got.len() == 2);
        world.kill(0);
        world.pass(WAIT);
        got.extend(world.got(1, conn));
        if got.is_empty() {
            // The old owner has it still.
            let (conn, present) = world.come(1);
            assert!(present, "{commits}");
            got.extend(world.got(1, conn));
        }
        assert_eq!(got, ["before", "meanwhile"], "{commits}");
    }
    assert!(forwarded > 0);
}

/// A message with QoS 2 comes to a stub, and the broker is killed before it is durable: its publisher sends
/// it again, and it has not been forwarded before.
#[test]
fn what_is_exactly_once_is_forwarded_when_it_is_durable() {
    let mut world = left_behind(2, 0);
    world.holds_fences = true;
    let (conn, _) = world.come(1);
    world.forget_interest();
    for (commits, expected) in [(0, &[][..]), (usize::MAX, &["1"][..])] {
        world.brokers[0].commits = commits;
        world.offer(0, "1");
        assert_eq!(world.got(1, conn), expected);
        world.kill(0);
        world.pass(WAIT);
        assert_eq!(world.got(1, conn), [""; 0]);
    }
    // It waits for no more than that.
    world.publish(0, "2");
    world.offer(0, "3");
    assert_eq!(world.got(1, conn), ["2", "3"]);
}

/// What may go wrong while a client roams.
#[derive(Clone, Copy)]
struct Faults {
    kills: bool,
    cuts: bool,
}

/// A client roams at random: it gets all that was acknowledged for it, and without faults once.
fn roam(seed: u64, faults: Faults) {
    let mut rng = Rng::new(seed);
    let count = 2 + rng.below(2) as usize;
    let mut world = World::new(count);
    let (first, _) = world.come(0);
    world.subscribe(0, first);
    let mut place = Some((0, first));
    let (mut owed, mut got) = (BTreeSet::new(), Vec::new());
    for turn in 0..40 {
        let at = rng.index(count);
        match rng.below(12) {
            0..4 => {
                let text = format!("{turn}");
                world.publish(at, &text);
                let is_near = place.is_some_and(|(here, _)| here == at);
                if world.is_whole || is_near {
                    owed.insert(text);
                }
            }
            4..8 => {
                let conn = world.connect_as(at, false, 1000);
                let broker = &mut world.brokers[at];
                let kinds = broker.packets.entry(conn).or_default();
                if kinds.first() != Some(&PacketType::ConnAck)
                    || broker.reason != ReasonCode::Success
                {
                    place = None;
                    continue;
                }
                let present = broker.is_present;
                broker.give(conn, Packet::PingReq, world.now);
                world.settle();
                assert!(
                    present || !world.is_whole || faults.cuts,
                    "seed {seed} turn {turn}"
                );
                if !present {
                    world.subscribe(at, conn);
                }
                got.extend(world.got(at, conn));
                place = Some((at, conn));
            }
            8 => {
                if let Some((at, conn)) = place.take() {
                    got.extend(world.got(at, conn));
                    world.leave(at, conn);
                }
            }
            9 => {
                let time = Nanos::from_millis(rng.below(8000));
                if let Some((at, conn)) = place {
                    got.extend(world.got(at, conn));
                }
                world.pass(time);
            }
            10 if faults.kills => {
                if let Some((here, conn)) = place {
                    got.extend(world.got(here, conn));
                    if here == at {
                        place = None;
                    }
                }
                world.kill(at);
            }
            11 if faults.cuts => match world.is_whole {
                true => world.cut(),
                false => world.heal(),
            },
            _ => {}
        }
    }
    if !world.is_whole {
        world.heal();
    }
    for _ in 0..4 {
        world.pass(WAIT);
    }
    let at = rng.index(count);
    let (conn, present) = world.come(at);
    assert!(present, "seed {seed}");
    got.extend(world.got(at, conn));
    for _ in 0..4 {
        world.pass(WAIT);
        got.extend(world.got(at, conn));
    }
    let all: BTreeSet<String> = got.iter().cloned().collect();
    let lost: Vec<&String> = owed.difference(&all).collect();
    assert!(lost.is_empty(), "seed {seed}: lost {lost:?}, got {got:?}");
    if !faults.kills && !faults.cuts {
        assert_eq!(all.len(), got.len(), "seed {seed}: twice, {got:?}");
    }
    let sessions: u64 = world
        .brokers
        .iter_mut()
        .map(|it| it.shard.stats().sessions)
        .sum();
    let links = 2 * (count as u64 - 1);
    assert_eq!(
        sessions,
        1 + links,
        "seed {seed}: all copies and stubs have ended"
    );
}

fn roams(kills: bool, cuts: bool) {
    seeds(60).for_each(|seed| roam(seed, Faults { kills, cuts }));
}

#[test]
fn a_client_roams_without_faults() {
    roams(false, false);
}

#[test]
fn a_client_roams_while_brokers_are_killed() {
    roams(true, false);
}

#[test]
fn a_client_roams_while_the_mesh_falls_apart() {
    roams(true, true);
}
