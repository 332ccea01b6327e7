//! Two brokers as state machines, joined by a link: what a neighbour is sent, what of
//! it reaches clients, and what happens to messages while the link carries nothing.

#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

use std::collections::HashSet;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use punctual_broker::{
    AccessControl, Admits, Budget, Config, ConnId, ConnMeta, Directory, Discipline, Federation,
    Interest, LINK_PREFIX, LinkLimits, LinkNews, MessageName, MessageNames, MoveTimes, Nanos,
    Newcomer, Permissions, QueueFull, Restorer, RetainedCursor, SessionTransfers, Shard,
    StoreTrouble, Unwelcome, UrgencyRights, WillRecord,
};
use punctual_codec::{
    Ack, Connect, Packet, PacketType, Properties, PropertyBuf, PropertyId, Publish, QoS,
    ReasonCode, Split, Subscribe, Version, Will, split,
};
use punctual_mesh::WillTurn;
use punctual_mesh::transfer::{Extent, Stamp};
use punctual_sim::take_pending;
use punctual_store::{Memory, Store};

const NOW: Nanos = Nanos::from_secs(1);
/// Where neighbours compare what they retain.
const RETAINED: &str = "$mesh/retained";

/// Remembers what it is told.
#[derive(Debug, Default)]
struct Notes {
    origin: u32,
    news: Mutex<Vec<String>>,
    names: Mutex<Vec<MessageName>>,
    /// The same, to be found: origin and number.
    known: Mutex<HashSet<(u32, u32)>>,
    conn: Mutex<Option<ConnId>>,
    wills: Mutex<Vec<WillRecord>>,
    clock: AtomicU64,
    stamps: AtomicU64,
    look_ups: Mutex<Vec<(String, Stamp)>>,
}

impl Interest for Notes {
    fn subscribed(&self, filter: &str, _: bool) {
        self.news.lock().unwrap().push(format!("+{filter}"));
    }
    fn unsubscribed(&self, filter: &str, _: bool) {
        self.news.lock().unwrap().push(format!("-{filter}"));
    }
    fn wishes_kept(&self, number: u64) {
        self.news.lock().unwrap().push(format!("kept {number}"));
    }
    fn flushed(&self, number: u64) {
        self.news.lock().unwrap().push(format!("flushed {number}"));
    }
}

impl MessageNames for Notes {
    fn origin(&self) -> NonZeroU32 {
        NonZeroU32::new(self.origin).unwrap()
    }
    fn is_new(&self, name: MessageName, _: bool) -> bool {
        name.origin.get() != self.origin && !self.was_here(name)
    }
    fn clock(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }
    fn note(&self, name: MessageName) {
        self.names.lock().unwrap().push(name);
        let key = (name.origin.get(), name.number);
        self.known.lock().unwrap().insert(key);
    }
    fn was_here(&self, name: MessageName) -> bool {
        let known = self.known.lock().unwrap();
        known.contains(&(name.origin.get(), name.number))
    }
    fn was_origin(&self, _: NonZeroU32) {}
}

impl SessionTransfers for Notes {
    fn next_stamp(&self) -> u64 {
        self.clock() + self.stamps.fetch_add(1, Ordering::Relaxed)
    }
    fn look_up(&self, client: &str, _: Option<&str>, at: &Stamp, _: bool) {
        let look_up = (client.to_owned(), at.clone());
        self.look_ups.lock().unwrap().push(look_up);
    }
    fn move_times(&self) -> MoveTimes {
        MoveTimes {
            linger: Nanos(0),
            heal: Nanos::from_secs(10),
        }
    }
    fn left_behind(&self, _: &str, will: Option<WillRecord>) {
        self.wills.lock().unwrap().extend(will);
    }
}

impl Federation for Notes {
    fn admit(&self, _: Newcomer<'_>) -> Result<(), Unwelcome> {
        Ok(())
    }
    fn link(&self, conn: ConnId, peer: &str, news: LinkNews<'_>) {
        let text = match news {
            LinkNews::Up { .. } => {
                *self.conn.lock().unwrap() = Some(conn);
                format!("{peer} up")
            }
            LinkNews::Message(bytes) => format!("{peer}: {}", String::from_utf8_lossy(bytes)),
            LinkNews::Waits(true) => format!("{peer} waits"),
            LinkNews::Waits(false) => format!("{peer} waits no more"),
            LinkNews::Down(_) => format!("{peer} down"),
        };
        self.news.lock().unwrap().push(text);
    }
    fn name(&self) -> &str {
        "own"
    }
}

struct Broker {
    shard: Shard,
    directory: Arc<Directory>,
    notes: Arc<Notes>,
}

impl Broker {
    fn new(origin: u32) -> Self {
        Self::with(origin, Config::default())
    }

    fn with(origin: u32, config: Config) -> Self {
        let directory = Directory::new(1);
        let notes = Arc::new(Notes {
            origin,
            ..Notes::default()
        });
        directory.set_federation(notes.clone());
        Self {
            shard: Shard::new(directory.clone(), 0, Arc::new(config), NOW),
            directory,
            notes,
        }
    }

    /// One with a store, to which everything is handed over at once.
    fn stored(origin: u32) -> Self {
        let mut config = Config::default();
        config.durability.patience = Nanos(0);
        let mut broker = Self::with(origin, config);
        broker.shard.attach_store(0);
        broker
    }

    /// What starts again with what is stored.
    fn restored(origin: u32, store: &mut Memory) -> Self {
        let mut broker = Self::stored(origin);
        let mut restorer = Restorer::new(broker.directory.clone(), 0);
        store
            .recover(&mut |op| assert!(restorer.take(&op).is_none()))
            .unwrap();
        assert!(broker.shard.restore(restorer.finish().unwrap(), NOW));
        broker
    }

    /// Commits everything.
    fn commit(&mut self) {
        while let Some(operations) = self.shard.take_operations(NOW) {
            self.shard.committed(operations.ticket, NOW);
        }
    }

    /// A neighbour connects.
    fn neighbour(&mut self, id: &str) -> ConnId {
        let conn = self.open();
        self.give(conn, connect(id));
        self.commit();
        assert_eq!(self.take(conn).first(), Some(&0x20), "CONNACK");
        conn
    }

    /// A client whose session survives, and which subscribes.
    fn durable(&mut self, id: &str, filter: &str) -> ConnId {
        let conn = self.open();
        let mut properties = PropertyBuf::new();
        properties.push_number(PropertyId::SessionExpiryInterval, 100);
        let Packet::Connect(connect) = connect(id) else {
            unreachable!();
        };
        self.give(
            conn,
            Packet::Connect(Connect {
                properties: properties.as_properties(),
                ..connect
            }),
        );
        subscribe(self, conn, filter);
        self.commit();
        self.take(conn);
        conn
    }

    fn open(&mut self) -> ConnId {
        self.shard.open(meta(), NOW)
    }

    fn give(&mut self, conn: ConnId, packet: Packet<'_>) {
        let mut bytes = Vec::new();
        packet.encode(Version::V5, &mut bytes).unwrap();
        let received = self.shard.receive(conn, &bytes, NOW);
        assert_eq!(received.consumed, bytes.len());
        self.let_in();
    }

    /// No other broker knows of the session of a client that waits.
    fn let_in(&mut self) {
        let look_ups = std::mem::take(&mut *self.notes.look_ups.lock().unwrap());
        for (client, at) in look_ups {
            let (none, all) = (Vec::new(), Extent::All);
            self.shard.located(&client, &at, none, all, NOW);
            self.commit();
            self.shard.tick(NOW);
        }
    }

    fn take(&mut self, conn: ConnId) -> Vec<u8> {
        take_pending(&mut self.shard, conn, NOW)
    }

    fn client(&mut self, id: &str) -> ConnId {
        let conn = self.open();
        self.give(conn, connect(id));
        self.take(conn);
        conn
    }

    /// One with a session that outlives its connection, which has not read anything.
    fn persistent(&mut self, id: &str) -> ConnId {
        let conn = self.open();
        let mut properties = PropertyBuf::new();
        properties.push_number(PropertyId::SessionExpiryInterval, 3600);
        let Packet::Connect(connect) = connect(id) else {
            unreachable!();
        };
        let connect = Connect {
            properties: properties.as_properties(),
            ..connect
        };
        self.give(conn, Packet::Connect(connect));
        conn
    }

    fn publish(&mut self, conn: ConnId, topic: &str, payload: &str, packet_id: u16) {
        self.give(conn, Packet::Publish(publish(topic, payload, packet_id)));
    }

    /// Lets messages go to a neighbour that retains the same: both ends compare that, and have
    /// nothing to send.
    fn compare(&mut self, peer: &str, link: ConnId) {
        self.shard.link_carry(peer, true, NOW);
        let sent = self.take(link);
        let Ok(Split::Frame(frame)) = split(&sent, u32::MAX) else {
            panic!("{peer} is told nothing of what is retained");
        };
        assert_eq!(frame.bytes.len(), sent.len(), "and nothing else");
        let Packet::Publish(sums) = Packet::decode(frame, Version::V5).unwrap() else {
            panic!("{sent:?}");
        };
        assert_eq!((sums.topic, sums.payload.len()), (RETAINED, 1 + 64 * 8));
        self.give(link, Packet::Publish(sums));
        assert!(self.take(link).is_empty(), "nothing is missing");
    }
}

fn meta() -> ConnMeta {
    ConnMeta {
        allow_anonymous: true,
        ..ConnMeta::default()
    }
}

fn connect(client_id: &str) -> Packet<'_> {
    Packet::Connect(Connect {
        version: Version::V5,
        clean_start: false,
        keep_alive: 0,
        properties: Properties::default(),
        client_id,
        will: None,
        username: None,
        password: None,
    })
}

fn publish<'a>(topic: &'a str, payload: &'a str, packet_id: u16) -> Publish<'a> {
    Publish {
        dup: false,
        qos: if packet_id == 0 {
            QoS::AtMostOnce
        } else {
            QoS::AtLeastOnce
        },
        retain: false,
        topic,
        packet_id,
        properties: Properties::default(),
        payload: payload.as_bytes(),
    }
}

/// Payloads of the publications in a stream, and how many user properties each has; without what
/// neighbours tell each other of what they retain, and of what they take only little.
fn publications(mut bytes: &[u8]) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    while let Ok(Split::Frame(frame)) = split(bytes, u32::MAX) {
        if let Packet::Publish(publish) = Packet::decode(frame, Version::V5).unwrap()
            && !publish.topic.starts_with("$mesh/")
        {
            let payload = String::from_utf8_lossy(publish.payload).into_owned();
            found.push((payload, publish.properties.user_count()));
        }
        bytes = &bytes[frame.bytes.len()..];
    }
    found
}

fn kinds(mut bytes: &[u8]) -> Vec<PacketType> {
    let mut kinds = Vec::new();
    while let Ok(Split::Frame(frame)) = split(bytes, u32::MAX) {
        kinds.push(frame.kind);
        bytes = &bytes[frame.bytes.len()..];
    }
    kinds
}

/// Broker `a` has connected to broker `b`.
struct Pair {
    a: Broker,
    b: Broker,
    at_a: ConnId,
    at_b: ConnId,
}

impl Pair {
    fn new() -> Self {
        Self::of(Broker::new(2))
    }

    fn of(mut b: Broker) -> Self {
        let mut a = Broker::new(1);
        let at_b = b.neighbour("$mesh/a");
        let limits = LinkLimits {
            receive_maximum: 10,
            max_packet: 1 << 20,
            topic_aliases: 2,
        };
        let at_a = a.shard.open_link(meta(), "b", limits, NOW);
        assert!(
            a.take(at_a).is_empty(),
            "who has connected sends no CONNACK"
        );
        Self { a, b, at_a, at_b }
    }

    /// Carries what is to be sent both ways until nothing is; publications from a to b.
    fn carry(&mut self) -> Vec<(String, usize)> {
        let mut all = Vec::new();
        loop {
            let (to_b, to_a) = (self.a.take(self.at_a), self.b.take(self.at_b));
            if to_b.is_empty() && to_a.is_empty() {
                return all;
            }
            all.extend(publications(&to_b));
            assert_eq!(
                self.b.shard.receive(self.at_b, &to_b, NOW).consumed,
                to_b.len()
            );
            assert_eq!(
                self.a.shard.receive(self.at_a, &to_a, NOW).consumed,
                to_a.len()
            );
        }
    }
}

fn subscribe(broker: &mut Broker, conn: ConnId, filter: &str) {
    let mut payload = (filter.len() as u16).to_be_bytes().to_vec();
    payload.extend_from_slice(filter.as_bytes());
    payload.push(1);
    let mut body = vec![0, 1, 0];
    body.extend_from_slice(&payload);
    let packet = Subscribe::decode(&body, Version::V5).unwrap();
    broker.give(conn, Packet::Subscribe(packet));
    broker.take(conn);
}

#[test]
fn a_message_crosses_with_its_name_and_arrives_without() {
    let mut pair = Pair::new();
    let subscriber = pair.b.client("subscriber");
    subscribe(&mut pair.b, subscriber, "t/#");
    assert_eq!(*pair.b.notes.news.lock().unwrap(), ["a up", "+t/#"]);
    pair.a.shard.link_interest("b", &["t/#".into()], &[]);
    let publisher = pair.a.client("publisher");

    // Kept while the link carries nothing.
    pair.a.publish(publisher, "t/1", "one", 1);
    assert_eq!(pair.carry(), []);
    pair.a.shard.link_carry("b", true, NOW);
    assert_eq!(pair.carry(), [("one".to_owned(), 1)]);
    assert_eq!(
        publications(&pair.b.take(subscriber)),
        [("one".to_owned(), 0)]
    );

    // With every QoS, and nothing that nobody wants.
    pair.a.publish(publisher, "t/1", "zero", 0);
    pair.a.publish(publisher, "other", "no", 2);
    assert_eq!(pair.carry(), [("zero".to_owned(), 1)]);
    assert_eq!(
        publications(&pair.b.take(subscriber)),
        [("zero".to_owned(), 0)]
    );

    // What is not wanted any more.
    pair.a.shard.link_interest("b", &[], &["t/#".into()]);
    pair.a.publish(publisher, "t/1", "two", 3);
    assert_eq!(pair.carry(), []);
    let names = pair.b.notes.names.lock().unwrap();
    let names: Vec<_> = names
        .iter()
        .map(|name| (name.origin.get(), name.number))
        .collect();
    assert_eq!(names, [(1, 1), (1, 2)]);
}

/// A broker whose clock is wrong, or that lies, does not keep others from retaining what is newer.
#[test]
fn what_was_retained_in_the_future_is_delivered_and_not_kept() {
    const DAY: u64 = 24 * 3600 * 1_000_000;
    const TODAY: u64 = 1_800_000_000_000_000;
    let mut pair = Pair::new();
    let subscriber = pair.b.client("subscriber");
    subscribe(&mut pair.b, subscriber, "t");
    pair.a.shard.link_carry("b", true, NOW);
    pair.b.shard.link_carry("a", true, NOW);
    pair.a.shard.link_interest("b", &["t".into()], &[]);
    pair.carry();
    pair.b.notes.clock.store(TODAY, Ordering::Relaxed);
    let publisher = pair.a.client("publisher");
    let own = pair.b.client("own");
    let kept = |pair: &Pair| -> Vec<String> {
        let (from, mut budget) = (RetainedCursor::default(), Budget::new(100));
        let (found, _) = pair
            .b
            .directory
            .retained_page("t", &from, 9, &mut budget, NOW);
        let payloads = found
            .iter()
            .map(|it| String::from_utf8_lossy(it.payload()).into_owned());
        payloads.collect()
    };
    for (n, (ahead, payload, stays)) in [(DAY / 2, "near", "near"), (2 * DAY, "far", "near")]
        .into_iter()
        .enumerate()
    {
        pair.a.notes.clock.store(TODAY + ahead, Ordering::Relaxed);
        let publish = Publish {
            retain: true,
            ..publish("t", payload, n as u16 + 1)
        };
        pair.a.give(publisher, Packet::Publish(publish));
        pair.carry();
        assert_eq!(
            publications(&pair.b.take(subscriber)),
            [(payload.to_owned(), 0)]
        );
        assert_eq!(kept(&pair), [stays]);
    }
    let publish = Publish {
        retain: true,
        ..publish("t", "own", 1)
    };
    pair.b.give(own, Packet::Publish(publish));
    assert_eq!(kept(&pair), ["own"]);
}

/// It is told when a neighbour has acknowledged all that was queued for it at a moment: what waited, and
/// what was in flight; not what came later.
#[test]
fn it_is_told_when_what_was_queued_is_acknowledged() {
    let mut pair = Pair::new();
    let at = |millis| NOW + Nanos::from_millis(millis);
    let flushed = |pair: &Pair, number: u64| {
        let news = pair.a.notes.news.lock().unwrap();
        news.contains(&format!("flushed {number}"))
    };
    pair.a.shard.link_interest("b", &["t".into()], &[]);
    pair.a.shard.link_carry("b", true, NOW);
    pair.a.shard.link_flush("b", 1, NOW);
    assert!(flushed(&pair, 1), "nothing is queued");
    let publisher = pair.a.client("publisher");
    let publish = |pair: &mut Pair, ids: std::ops::Range<u16>| {
        ids.for_each(|id| pair.a.publish(publisher, "t", "m", id));
    };
    // Ten may be in flight.
    publish(&mut pair, 1..16);
    pair.a.shard.link_flush("b", 2, NOW);
    pair.a.shard.tick(at(1));
    let mut took = 0;
    for round in 1..9 {
        publish(&mut pair, 100 * round..100 * round + 2);
        pair.a
            .shard
            .link_flush("b", 2 + u64::from(round), at(20 * u64::from(round)));
        if flushed(&pair, 2) {
            break;
        }
        let sent = pair.carry().len();
        pair.b.shard.tick(at(20 * u64::from(round) + 10));
        took += sent;
        pair.carry();
        pair.a.shard.tick(at(20 * u64::from(round) + 15));
    }
    assert!(took >= 15 && flushed(&pair, 2), "{took}");
    // Nobody is told where the connection is lost.
    publish(&mut pair, 2000..2001);
    pair.a.shard.link_flush("b", 50, at(500));
    let lost = pair.at_a;
    pair.a.shard.closed(lost, "lost", at(500));
    pair.a.shard.tick(at(600));
    pair.a.shard.link_flush("b", 51, at(600));
    assert!(!flushed(&pair, 50) && !flushed(&pair, 51));
}

#[test]
fn a_copy_for_another_neighbour_is_recognised() {
    let mut pair = Pair::new();
    let subscriber = pair.b.client("subscriber");
    subscribe(&mut pair.b, subscriber, "t");
    // A third broker was the way to b; it is gone, and what was meant for it goes
    // to b, which has the first message already.
    let limits = LinkLimits {
        receive_maximum: 10,
        max_packet: 1 << 20,
        topic_aliases: 0,
    };
    let gone = pair.a.shard.open_link(meta(), "c", limits, NOW);
    for peer in ["b", "c"] {
        pair.a.shard.link_interest(peer, &["t".into()], &[]);
        pair.a.shard.link_carry(peer, true, NOW);
    }
    let publisher = pair.a.client("publisher");
    pair.a.publish(publisher, "t", "one", 1);
    assert_eq!(publications(&pair.a.take(gone)), [("one".to_owned(), 1)]);
    assert_eq!(pair.carry().len(), 1);
    pair.a.shard.link_interest("b", &[], &["t".into()]);
    pair.a.shard.closed(gone, "lost", NOW);
    pair.a.publish(publisher, "t", "two", 2);
    assert_eq!(pair.carry(), []);
    pair.a.shard.link_copy("c", "b", false, NOW);
    assert_eq!(pair.carry().len(), 2);
    let got = publications(&pair.b.take(subscriber));
    assert_eq!(got, [("one".to_owned(), 0), ("two".to_owned(), 0)]);
    assert!(pair.b.notes.names.lock().unwrap()[1].again);
    // Both waited for it alone, one of them in flight.
    assert_eq!(pair.a.shard.link_forget("c", NOW), 2);
    assert!(pair.a.shard.client("$mesh/c").is_none());
    assert_eq!(pair.a.shard.stats().dropped(), 2);
}

/// A link begins to carry while others have kept older messages for who is behind it: what comes here waits
/// for these; not what has no order with them.
#[test]
fn what_is_newer_waits_for_what_others_have_kept() {
    let mut config = Config::default();
    config.limits.max_queued_messages = 20;
    let mut broker = Broker::with(2, config);
    let link = broker.neighbour("$mesh/a");
    let mut row = FromA {
        broker,
        link,
        number: 0,
        now: NOW,
    };
    let to_c = row.neighbour("c", &["#"]);
    row.carry("c");
    row.broker.shard.link_hold("c", true, NOW);
    let publisher = row.broker.client("publisher");
    let publish = |row: &mut FromA, payload: &str, id: u16| {
        row.broker.publish(publisher, "t", payload, id);
    };
    publish(&mut row, "newer", 1);
    publish(&mut row, "at most once", 0);
    let mut properties = PropertyBuf::new();
    properties.push_number(PropertyId::MessageExpiryInterval, 60);
    let expiring = Publish {
        properties: properties.as_properties(),
        ..self::publish("t", "expires", 2)
    };
    row.broker.give(publisher, Packet::Publish(expiring));
    let mut properties = PropertyBuf::new();
    properties.push_user("priority", "7").unwrap();
    let urgent = Publish {
        properties: properties.as_properties(),
        ..self::publish("t", "urgent", 3)
    };
    row.broker.give(publisher, Packet::Publish(urgent));
    assert_eq!(row.got(to_c), ["urgent", "at most once", "expires"]);
    // A copy of what was kept elsewhere goes before it, on whatever way it comes here.
    let gone = row.neighbour("d", &["t"]);
    row.carry("d");
    row.broker.shard.link_interest("c", &[], &["#".into()]);
    publish(&mut row, "older", 4);
    assert_eq!(row.got(gone), ["older"]);
    row.broker.shard.closed(gone, "lost", NOW);
    row.broker.shard.link_interest("c", &["#".into()], &[]);
    row.broker.shard.link_copy("d", "c", false, NOW);
    assert_eq!(row.got(to_c), ["older"]);
    publish(&mut row, "newest", 5);
    assert_eq!(row.got(to_c), [""; 0]);
    row.broker.shard.link_hold("c", false, NOW);
    assert_eq!(row.got(to_c), ["newer", "newest"]);
    // No more than a quarter of the queue waits.
    row.broker.shard.link_hold("c", true, NOW);
    (10..14).for_each(|id| publish(&mut row, "held", id));
    assert_eq!(row.got(to_c), [""; 0]);
    publish(&mut row, "held", 14);
    assert_eq!(row.got(to_c), ["held"; 5]);
    assert_eq!(row.broker.shard.stats().publishes_held, 7);
    // Nothing waits for the next connection.
    row.broker.shard.link_hold("c", true, NOW);
    publish(&mut row, "held", 15);
    row.broker.shard.closed(to_c, "lost", NOW);
    let to_c = row.neighbour("c", &[]);
    row.carry("c");
    publish(&mut row, "last", 16);
    assert!(row.got(to_c).ends_with(&["held".into(), "last".into()]));
}

/// What is in flight to it counts as what waits, whether there is a connection or not.
#[test]
fn what_a_neighbour_that_is_given_up_does_not_get_is_counted_once() {
    let limits = LinkLimits {
        receive_maximum: 2,
        max_packet: 1 << 20,
        topic_aliases: 0,
    };
    for connected in [false, true] {
        let mut broker = Broker::new(1);
        let link = broker.shard.open_link(meta(), "b", limits, NOW);
        broker.shard.link_interest("b", &["t".into()], &[]);
        broker.shard.link_carry("b", true, NOW);
        let publisher = broker.client("publisher");
        for packet_id in 1..=3 {
            broker.publish(publisher, "t", "x", packet_id);
        }
        assert_eq!(publications(&broker.take(link)).len(), 2);
        broker.shard.link_carry("b", false, NOW);
        if !connected {
            broker.shard.closed(link, "lost", NOW);
        }
        assert_eq!(broker.shard.link_forget("b", NOW), 3);
        let stats = broker.shard.stats();
        assert_eq!((stats.dropped(), stats.inflight_messages), (3, 0));
        assert_eq!(broker.shard.link_forget("b", NOW), 0);
        assert_eq!(broker.shard.stats().dropped(), 3);
    }
}

/// A message of a neighbour whose subscriber's session survives, as it was sent.
fn crossing(pair: &mut Pair, payload: &str, packet_id: u16) -> Vec<u8> {
    pair.a.shard.link_interest("b", &["t".into()], &[]);
    pair.a.shard.link_carry("b", true, NOW);
    let publisher = pair.a.client("publisher");
    pair.a.publish(publisher, "t", payload, packet_id);
    let sent = pair.a.take(pair.at_a);
    assert_eq!(publications(&sent).len(), 1);
    sent
}

#[test]
fn what_comes_again_is_not_acknowledged_before_it_is_safe() {
    let mut pair = Pair::of(Broker::stored(2));
    pair.b.durable("subscriber", "t");
    let other = pair.b.neighbour("$mesh/c");
    let sent = crossing(&mut pair, "one", 1);
    let b = &mut pair.b;
    for conn in [pair.at_b, other] {
        b.shard.receive(conn, &sent, NOW);
        assert_eq!(kinds(&b.take(conn)), []);
    }
    b.commit();
    for conn in [pair.at_b, other] {
        assert_eq!(kinds(&b.take(conn)), [PacketType::PubAck]);
    }
    // And from now on at once.
    b.shard.receive(other, &sent, NOW);
    assert_eq!(kinds(&b.take(other)), [PacketType::PubAck]);
}

#[test]
fn acknowledgements_to_a_neighbour_wait_shortly_for_company() {
    fn leaving(b: &mut Broker) -> Vec<ConnId> {
        let mut dirty = Vec::new();
        b.shard.take_dirty(&mut dirty);
        dirty
    }
    let mut config = Config::default();
    config.limits.receive_maximum = 12;
    let mut pair = Pair::of(Broker::with(2, config));
    let subscriber = pair.b.client("subscriber");
    subscribe(&mut pair.b, subscriber, "t");
    let sent: Vec<_> = (1..=5)
        .map(|n| crossing(&mut pair, &n.to_string(), n))
        .collect();
    let (b, at_b) = (&mut pair.b, pair.at_b);
    b.shard.tick(NOW);
    leaving(b);
    b.shard.receive(at_b, &sent[0], NOW);
    assert_eq!(
        leaving(b),
        [subscriber],
        "who is sent the message goes first"
    );
    let due = b.shard.next_timeout().unwrap();
    assert!(due > NOW && due < NOW + Nanos::from_millis(10), "{due:?}");
    b.shard.tick(due);
    assert_eq!(leaving(b), [at_b]);
    assert_eq!(kinds(&b.take(at_b)), [PacketType::PubAck]);

    // With whatever goes there.
    b.shard.receive(at_b, &sent[1], NOW);
    b.shard.link_send(at_b, "$mesh/link", b"news");
    assert!(leaving(b).contains(&at_b));
    assert_eq!(
        kinds(&b.take(at_b)),
        [PacketType::PubAck, PacketType::Publish]
    );

    // Or when a quarter of the 12 messages that may be under way wait for them.
    for packet in &sent[2..] {
        assert!(!leaving(b).contains(&at_b));
        b.shard.receive(at_b, packet, NOW);
    }
    assert!(leaving(b).contains(&at_b));
    assert_eq!(kinds(&b.take(at_b)), [PacketType::PubAck; 3]);

    // With a store they wait for less than a commit takes.
    let mut pair = Pair::of(Broker::stored(2));
    let subscriber = pair.b.client("subscriber");
    subscribe(&mut pair.b, subscriber, "t");
    let sent = crossing(&mut pair, "1", 1);
    let (b, at_b) = (&mut pair.b, pair.at_b);
    b.commit();
    b.shard.tick(NOW);
    leaving(b);
    b.shard.receive(at_b, &sent, NOW);
    assert_eq!(leaving(b), [subscriber]);
    let due = b.shard.next_timeout().unwrap();
    assert!(due > NOW && due < NOW + Nanos::from_millis(1), "{due:?}");
    b.shard.tick(due);
    assert_eq!(leaving(b), [at_b]);
}

#[test]
fn a_neighbour_is_not_refused_what_cannot_be_stored_now() {
    let mut pair = Pair::of(Broker::stored(2));
    let subscriber = pair.b.durable("subscriber", "t");
    let first = crossing(&mut pair, "one", 1);
    let second = crossing(&mut pair, "two", 2);
    let (b, at_b) = (&mut pair.b, pair.at_b);
    b.shard.receive(at_b, &first, NOW);
    let failed = b.shard.take_operations(NOW).unwrap();
    b.shard.store_failed(StoreTrouble::Full, NOW);
    b.shard.receive(at_b, &second, NOW);
    assert_eq!(kinds(&b.take(at_b)), []);
    assert_eq!(
        publications(&b.take(subscriber)),
        [("one".to_owned(), 0)],
        "the other is not taken in"
    );
    let last = |b: &Broker| b.notes.news.lock().unwrap().last().cloned();
    assert_eq!(last(b).as_deref(), Some("a waits"));
    b.shard.committed(failed.ticket, NOW);
    b.shard.tick(NOW + Nanos::from_secs(1));
    assert_eq!(last(b).as_deref(), Some("a waits no more"));
    assert_eq!(publications(&b.take(subscriber)), [("two".to_owned(), 0)]);
    assert_eq!(kinds(&b.take(at_b)), [PacketType::PubAck]);
    b.commit();
    assert_eq!(kinds(&b.take(at_b)), [PacketType::PubAck]);
    assert_eq!(b.shard.stats().refused_store, 0);
}

/// Where a neighbour's queue is full, what comes from another for it is not acknowledged, and
/// nothing is lost.
#[test]
fn what_has_no_room_in_a_neighbours_queue_waits() {
    let mut config = Config::default();
    config.limits.max_queued_messages = 1;
    let mut pair = Pair::of(Broker::with(2, config));
    let c = pair.b.neighbour("$mesh/c");
    pair.b.shard.link_interest("c", &["t".into()], &[]);
    let sent = [("one", 1), ("two", 2), ("three", 3)]
        .map(|(payload, number)| crossing(&mut pair, payload, number));
    let (b, at_b) = (&mut pair.b, pair.at_b);
    for (sent, answers) in sent.iter().zip([1, 0, 0]) {
        b.shard.receive(at_b, sent, NOW);
        assert_eq!(kinds(&b.take(at_b)), vec![PacketType::PubAck; answers]);
    }
    assert_eq!(b.shard.stats().publishes_parked, 2);
    let last = |b: &Broker| b.notes.news.lock().unwrap().last().cloned();
    assert_eq!(last(b).as_deref(), Some("a waits"));
    b.shard.link_carry("c", true, NOW);
    b.shard.tick(NOW + Nanos::from_secs(1));
    let came = publications(&b.take(c)).into_iter().map(|(text, _)| text);
    assert_eq!(came.collect::<Vec<_>>(), ["one", "two", "three"]);
    assert_eq!(last(b).as_deref(), Some("a waits no more"));
    assert_eq!(kinds(&b.take(at_b)), [PacketType::PubAck; 2]);
}

/// Where brokers are away for long, only what is still wanted there is kept, nobody waits for room,
/// and what has none is dropped and counted.
#[test]
fn nobody_waits_for_who_is_away_for_long() {
    let mut config = Config::default();
    config.limits.max_queued_messages = 3;
    config.limits.max_kept_messages = 4;
    config.limits.urgent_reserve = 0;
    let mut broker = Broker::with(1, config);
    let c = broker.neighbour("$mesh/c");
    let both = ["t".into(), "fleeting".into()];
    broker.shard.link_interest("c", &both, &[]);
    broker.shard.closed(c, "lost", NOW);
    let publisher = broker.client("publisher");
    let come = |broker: &mut Broker, topic: &str, packet_id: u16| {
        broker.publish(publisher, topic, &packet_id.to_string(), packet_id);
        let answer = broker.take(publisher);
        answer[1] == 2 || answer[4] == 0
    };
    assert!(come(&mut broker, "t", 1));
    assert!(come(&mut broker, "fleeting", 2));
    assert!(come(&mut broker, "t", 3));
    assert!(!come(&mut broker, "t", 4), "a full queue refuses");
    broker.shard.link_interest("c", &[], &both[1..]);
    broker.shard.link_narrow("c");
    assert_eq!(broker.shard.stats().dropped(), 0);
    assert_eq!(broker.shard.link_trim("c"), 1);
    assert_eq!(broker.shard.stats().dropped(), 1);
    for packet_id in 5..=8 {
        assert!(come(&mut broker, "t", packet_id));
    }
    assert_eq!(broker.shard.stats().dropped(), 3);
    // A neighbour that sends something does not wait, either.
    let a = broker.neighbour("$mesh/a");
    let mut properties = PropertyBuf::new();
    properties.push_user("@", "7.1").unwrap();
    let publish = Publish {
        properties: properties.as_properties(),
        ..publish("t", "9", 9)
    };
    broker.give(a, Packet::Publish(publish));
    assert_eq!(kinds(&broker.take(a)), [PacketType::PubAck]);
    assert_eq!(broker.shard.stats().dropped(), 4);
    // It is as before when it is back.
    let c = broker.neighbour("$mesh/c");
    broker.shard.link_carry("c", true, NOW);
    let came = publications(&broker.take(c))
        .into_iter()
        .map(|(text, _)| text);
    assert_eq!(came.collect::<Vec<_>>(), ["1", "3", "5", "6"]);
    broker.shard.closed(c, "lost", NOW);
    let accepted = (10..=14).filter(|packet_id| come(&mut broker, "t", *packet_id));
    assert_eq!(accepted.count(), 3);
}

/// What persistent sessions await behind a neighbour is kept by their brokers, with what else is
/// kept of it.
#[test]
fn what_persistent_sessions_await_elsewhere_is_kept() {
    let (mut store, mut broker) = (Memory::default(), Broker::stored(1));
    let conn = broker.open();
    broker.give(conn, connect("$mesh/b"));
    let filters =
        |names: &[&str]| -> Vec<Box<str>> { names.iter().map(|it| (*it).into()).collect() };
    let shard = &mut broker.shard;
    shard.link_interest("b", &filters(&["t"]), &[]);
    shard.link_lasting("b", "x", &filters(&["t", "u"]), &[]);
    shard.link_lasting("b", "y", &filters(&["u", "$mesh/keeps/z"]), &[]);
    shard.link_lasting("b", "x", &[], &filters(&["t", "unknown"]));
    let mut commit = |broker: &mut Broker| {
        while let Some(operations) = broker.shard.take_operations(NOW) {
            store.commit(&operations.batch).unwrap();
            broker.shard.committed(operations.ticket, NOW);
        }
        Broker::restored(2, &mut store)
    };
    let kept = |broker: &Broker| {
        let kept = broker.shard.links().remove(0);
        let mut members = kept.members;
        members.sort();
        members
    };
    let expected: Vec<(String, Box<str>)> = [("x", "u"), ("y", "$mesh/keeps/z"), ("y", "u")]
        .map(|(broker, filter)| (broker.to_owned(), filter.into()))
        .into();
    assert_eq!(kept(&broker), expected);
    let again = commit(&mut broker);
    assert_eq!(kept(&again), expected);
    let filters = again.shard.links().remove(0).filters;
    assert_eq!(filters, ["t".into()], "what is kept is not wanted");
    // Which goes with the link, as it has a connection.
    broker.shard.link_forget("b", NOW);
    assert_eq!(kept(&commit(&mut broker)), []);
}

/// A link from the neighbour `a`, whose messages come with names.
struct FromA {
    broker: Broker,
    link: ConnId,
    number: u16,
    now: Nanos,
}

impl FromA {
    /// With a room of two in queues, of which one message takes the half that makes a client slow.
    fn new() -> Self {
        let mut config = Config::default();
        config.limits.max_queued_messages = 2;
        config.limits.urgent_reserve = 0;
        let mut broker = Broker::with(2, config);
        let link = broker.neighbour("$mesh/a");
        Self {
            broker,
            link,
            number: 0,
            now: NOW,
        }
    }

    /// Another neighbour, that wants this.
    fn neighbour(&mut self, peer: &str, filters: &[&str]) -> ConnId {
        let conn = self.broker.neighbour(&format!("$mesh/{peer}"));
        let filters: Vec<Box<str>> = filters.iter().map(|it| (*it).into()).collect();
        self.broker.shard.link_interest(peer, &filters, &[]);
        conn
    }

    fn carry(&mut self, peer: &str) {
        let shard = &mut self.broker.shard;
        shard.link_carry(peer, true, NOW);
    }

    /// A message comes; whether it is acknowledged.
    fn come(&mut self, topic: &str, payload: &str, qos: QoS) -> bool {
        self.number += 1;
        let mut properties = PropertyBuf::new();
        let name = format!("1.{:x}", self.number);
        properties.push_user("@", &name).unwrap();
        let publish = Publish {
            qos,
            properties: properties.as_properties(),
            ..publish(topic, payload, self.number)
        };
        self.broker.give(self.link, Packet::Publish(publish));
        !self.broker.take(self.link).is_empty()
    }

    /// The payloads of what one is sent.
    fn got(&mut self, conn: ConnId) -> Vec<String> {
        let got = publications(&self.broker.take(conn)).into_iter();
        got.map(|(payload, _)| payload).collect()
    }

    /// What waits is looked at again.
    fn look(&mut self) {
        self.now = self.now + Nanos::from_millis(2);
        self.broker.shard.tick(self.now);
    }
}

/// Messages of a neighbour for one whose queue is full hold nothing that goes to others, and come
/// in their order themselves.
#[test]
fn what_has_no_room_in_one_queue_does_not_hold_what_goes_to_others() {
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let mut from = FromA::new();
        let full = from.neighbour("full", &["slow/#", "both"]);
        let other = from.neighbour("other", &["fast", "both"]);
        from.carry("other");
        let client = from.broker.client("client");
        subscribe(&mut from.broker, client, "fast");
        for (payload, acknowledged) in [("1", true), ("2", true), ("3", false), ("4", false)] {
            assert_eq!(from.come("slow/a", payload, qos), acknowledged, "{payload}");
        }
        assert!(!from.come("slow/b", "5", qos));
        assert!(from.come("fast", "6", qos));
        // One that both are to have waits for both, and others on its topic with it.
        assert!(!from.come("both", "7", qos));
        assert!(!from.come("both", "8", qos));
        assert!(from.come("fast", "9", qos));
        from.look();
        assert_eq!(from.got(other), ["6", "9"]);
        assert_eq!(from.got(client), ["6", "9"]);
        assert_eq!(from.broker.shard.stats().publishes_parked, 5);

        from.carry("full");
        from.look();
        assert_eq!(from.got(full), ["1", "2", "3", "4", "5", "7", "8"]);
        assert_eq!(from.got(other), ["7", "8"]);
        assert_eq!(kinds(&from.broker.take(from.link)).len(), 5);
        assert!(from.come("slow/a", "10", qos), "nothing waits any more");
    }
}

/// The same of a client that does not read fast enough.
#[test]
fn what_waits_for_a_slow_client_does_not_hold_what_goes_to_others() {
    let mut from = FromA::new();
    let slow = from.broker.open();
    let mut properties = PropertyBuf::new();
    properties.push_number(PropertyId::ReceiveMaximum, 1);
    let Packet::Connect(connect) = connect("slow") else {
        panic!("CONNECT")
    };
    let connect = Connect {
        properties: properties.as_properties(),
        ..connect
    };
    from.broker.give(slow, Packet::Connect(connect));
    let fast = from.broker.client("fast");
    subscribe(&mut from.broker, slow, "slow");
    subscribe(&mut from.broker, fast, "fast");
    for (payload, acknowledged) in [("1", true), ("2", true), ("3", false)] {
        let came = from.come("slow", payload, QoS::AtLeastOnce);
        assert_eq!(came, acknowledged, "{payload}");
    }
    assert!(from.come("fast", "4", QoS::AtLeastOnce));
    assert_eq!(from.got(fast), ["4"]);
    for payload in ["1", "2", "3"] {
        from.look();
        let sent = from.broker.take(slow);
        let Ok(Split::Frame(frame)) = split(&sent, u32::MAX) else {
            panic!("nothing is sent instead of {payload}")
        };
        let Packet::Publish(publish) = Packet::decode(frame, Version::V5).unwrap() else {
            panic!("PUBLISH")
        };
        assert_eq!(publish.payload, payload.as_bytes());
        let ack = Ack::new(publish.packet_id, ReasonCode::Success);
        from.broker.give(slow, Packet::PubAck(ack));
    }
    assert_eq!(kinds(&from.broker.take(from.link)), [PacketType::PubAck]);
}

#[test]
fn a_topic_that_comes_again_crosses_as_an_alias() {
    let mut pair = Pair::new();
    let subscriber = pair.b.client("subscriber");
    subscribe(&mut pair.b, subscriber, "a/topic");
    pair.a.shard.link_interest("b", &["a/topic".into()], &[]);
    pair.a.shard.link_carry("b", true, NOW);
    let publisher = pair.a.client("publisher");
    for number in 1..=5 {
        pair.a.publish(publisher, "a/topic", "x", number);
        let sent = pair.a.take(pair.at_a);
        let has_topic = sent.windows(7).any(|part| part == b"a/topic");
        // The first time there is no telling that it will.
        assert!(!has_topic || number <= 2, "{number}");
        pair.b.shard.receive(pair.at_b, &sent, NOW);
        pair.carry();
    }
    assert_eq!(publications(&pair.b.take(subscriber)).len(), 5);
}

/// The first on a topic as well as those that are recognised as the same again.
#[test]
fn a_message_with_qos_0_goes_on_once_to_all_others() {
    let mut pair = Pair::new();
    let subscriber = pair.b.client("subscriber");
    subscribe(&mut pair.b, subscriber, "t");
    let further = pair.b.neighbour("$mesh/c");
    for (broker, peers) in [(&mut pair.a, &["b"][..]), (&mut pair.b, &["a", "c"])] {
        for peer in peers {
            broker.shard.link_interest(peer, &["t".into()], &[]);
            broker.shard.link_carry(peer, true, NOW);
        }
    }
    pair.carry();
    pair.b.take(further);
    let publisher = pair.a.client("publisher");
    for number in 1..=5 {
        let payload = number.to_string();
        pair.a.publish(publisher, "t", &payload, 0);
        let sent = pair.a.take(pair.at_a);
        pair.b.shard.receive(pair.at_b, &sent, NOW);
        let got = publications(&pair.b.take(subscriber));
        assert_eq!(got, [(payload.clone(), 0)]);
        assert_eq!(publications(&pair.b.take(further)), [(payload, 1)]);
        assert!(pair.b.take(pair.at_b).is_empty(), "it came from there");
        assert_eq!(pair.b.notes.names.lock().unwrap().len(), number);

        pair.b.shard.receive(pair.at_b, &sent, NOW);
        assert!(pair.b.take(subscriber).is_empty());
        assert!(pair.b.take(further).is_empty());
        let stats = pair.b.shard.stats();
        assert_eq!(stats.publishes_recognised, number as u64);
        assert_eq!(stats.publishes_received_qos0, 2 * number as u64);
    }
}

/// Under an alias, while messages come from there one after the other.
#[test]
fn where_a_message_was_taken_in_is_said_when_it_changes() {
    /// Who publishes, on which topic, and whether where it was taken in is said.
    const ALL: [(&str, &str, bool); 10] = [
        ("own", "t", true),
        ("own", "t", false),
        ("other", "t", true),
        // By itself, so that the order in which it is sent does not matter.
        ("urgent", "t", true),
        ("other", "t", false),
        ("own", "t", true),
        ("other", "u", true),
        ("other", "u", false),
        // There are two aliases.
        ("own", "v", true),
        ("own", "t", false),
    ];
    for (at_once, qos) in [(false, 0), (false, 1), (true, 0), (true, 1)] {
        let mut pair = Pair::new();
        let subscriber = pair.b.client("subscriber");
        subscribe(&mut pair.b, subscriber, "#");
        pair.a.shard.link_interest("b", &["#".into()], &[]);
        pair.a.shard.link_carry("b", true, NOW);
        pair.carry();
        let other = pair.a.neighbour("$mesh/z");
        let publisher = pair.a.client("publisher");
        let mut row = Vec::new();
        for (at, (who, topic, is_said)) in ALL.into_iter().enumerate() {
            let number = at + 1;
            let mut properties = PropertyBuf::new();
            let property = match who {
                "own" => None,
                "urgent" => Some(("priority", "0".to_owned())),
                _ => Some(("@", format!("7.{number}"))),
            };
            if let Some((key, value)) = property {
                properties.push_user(key, &value).unwrap();
            }
            let packet = Publish {
                properties: properties.as_properties(),
                ..publish(topic, "x", qos * number as u16)
            };
            let from = if who == "other" { other } else { publisher };
            pair.a.give(from, Packet::Publish(packet));
            let sent = pair.a.take(pair.at_a);
            let Ok(Split::Frame(frame)) = split(&sent, u32::MAX) else {
                panic!("{who} on {topic}: {sent:?}");
            };
            let Packet::Publish(packet) = Packet::decode(frame, Version::V5).unwrap() else {
                panic!("{who} on {topic}: {sent:?}");
            };
            let (key, name) = packet.properties.iter().last().unwrap().pair();
            assert_eq!(key, "@");
            let has_origin = name.starts_with(if who == "other" { '7' } else { '1' });
            assert_eq!(has_origin, is_said, "{number}: {name}");
            row.extend(sent);
            if !at_once || number == ALL.len() {
                let consumed = pair.b.shard.receive(pair.at_b, &row, NOW).consumed;
                assert_eq!(consumed, row.len());
                row.clear();
                pair.carry();
            }
        }
        assert_eq!(publications(&pair.b.take(subscriber)).len(), ALL.len());
        let names = pair.b.notes.names.lock().unwrap();
        let heard: Vec<u32> = names.iter().map(|name| name.origin.get()).collect();
        let expected = ALL.map(|(who, _, _)| if who == "other" { 7 } else { 1 });
        assert_eq!(heard, expected);
    }
}

/// Between brokers, too, and whatever waits.
#[test]
fn what_is_urgent_overtakes_others_on_a_link() {
    let mut pair = Pair::new();
    pair.a.shard.link_interest("b", &["t".into()], &[]);
    pair.a.shard.link_carry("b", true, NOW);
    let publisher = pair.a.client("publisher");
    for (payload, number) in [("bulk 1", 1), ("bulk 2", 2), ("bulk 3", 3)] {
        pair.a.publish(publisher, "t", payload, number);
    }
    let mut properties = PropertyBuf::new();
    properties.push_user("priority", "0").unwrap();
    let urgent = Publish {
        properties: properties.as_properties(),
        ..publish("t", "urgent", 4)
    };
    pair.a.give(publisher, Packet::Publish(urgent));
    let sent = publications(&pair.a.take(pair.at_a));
    let texts: Vec<&str> = sent.iter().map(|(text, _)| &**text).collect();
    assert_eq!(texts, ["urgent", "bulk 1", "bulk 2", "bulk 3"]);
}

/// A neighbour whose disk stands still acknowledges nothing, also after it has connected again: what it had
/// beyond the window of other messages is sent again as well, and urgent messages go on.
#[test]
fn what_is_urgent_goes_on_when_a_neighbour_connects_again() {
    let mut pair = Pair::new();
    pair.a.shard.link_interest("b", &["t".into()], &[]);
    pair.a.shard.link_carry("b", true, NOW);
    let publisher = pair.a.client("publisher");
    let mut properties = PropertyBuf::new();
    properties.push_user("priority", "0").unwrap();
    let urgent = |pair: &mut Pair, number: u16| {
        let packet = Publish {
            properties: properties.as_properties(),
            ..publish("t", "urgent", number)
        };
        pair.a.give(publisher, Packet::Publish(packet));
    };
    // The neighbour takes 10, and as many again with those that are urgent.
    for number in 1..=12 {
        pair.a.publish(publisher, "t", "bulk", number);
    }
    (13..=15).for_each(|number| urgent(&mut pair, number));
    assert_eq!(publications(&pair.a.take(pair.at_a)).len(), 13);

    pair.a.shard.closed(pair.at_a, "lost", NOW);
    let limits = LinkLimits {
        receive_maximum: 10,
        max_packet: 1 << 20,
        topic_aliases: 0,
    };
    pair.at_a = pair.a.shard.open_link(meta(), "b", limits, NOW);
    pair.a.shard.link_carry("b", true, NOW);
    assert_eq!(publications(&pair.a.take(pair.at_a)).len(), 13);
    urgent(&mut pair, 16);
    let sent = publications(&pair.a.take(pair.at_a));
    let texts: Vec<&str> = sent.iter().map(|(text, _)| &**text).collect();
    assert_eq!(texts, ["urgent"]);
}

#[test]
fn what_comes_again_is_passed_on_until_all_have_it() {
    let mut pair = Pair::new();
    let limits = LinkLimits {
        receive_maximum: 10,
        max_packet: 1 << 20,
        topic_aliases: 0,
    };
    let other = pair.b.shard.open_link(meta(), "d", limits, NOW);
    let gone = pair.a.shard.open_link(meta(), "c", limits, NOW);
    for peer in ["b", "c"] {
        pair.a.shard.link_interest(peer, &["t".into()], &[]);
        pair.a.shard.link_carry(peer, true, NOW);
    }
    for peer in ["a", "d"] {
        pair.b.shard.link_interest(peer, &["t".into()], &[]);
        pair.b.shard.link_carry(peer, true, NOW);
    }
    let publisher = pair.a.client("publisher");
    pair.a.publish(publisher, "t", "one", 1);
    pair.a.shard.closed(gone, "lost", NOW);
    assert_eq!(pair.carry().len(), 1);
    assert_eq!(publications(&pair.b.take(other)).len(), 1);

    let mut again = |change: fn(&mut Shard)| {
        change(&mut pair.b.shard);
        pair.a.shard.link_copy("c", "b", false, NOW);
        assert_eq!(pair.carry().len(), 1);
        publications(&pair.b.take(other)).len()
    };
    // Somebody may have come to the other neighbour.
    assert_eq!(again(|_| {}), 1);
    assert_eq!(again(|_| {}), 0);
    assert_eq!(again(|b| b.link_interest("d", &["t".into()], &[])), 0);
    assert_eq!(again(|b| b.link_interest("d", &["u".into()], &[])), 1);
    assert_eq!(again(|_| {}), 0);
    assert_eq!(again(Shard::link_reached), 1);
    assert_eq!(again(|_| {}), 0);
    assert_eq!(again(|b| b.link_carry("d", true, NOW)), 1);
}

/// Each time that a link begins to carry, and only then.
#[test]
fn what_is_retained_is_compared_when_a_link_carries() {
    let mut pair = Pair::new();
    for (broker, texts) in [
        (&mut pair.a, [("a/1", "one"), ("a/2", "four")]),
        (&mut pair.b, [("b/1", "two"), ("b/2", "three")]),
    ] {
        let client = broker.client("client");
        for (number, (topic, text)) in (1..).zip(texts) {
            let publish = Publish {
                retain: true,
                ..publish(topic, text, number)
            };
            broker.give(client, Packet::Publish(publish));
        }
    }
    let retained = |broker: &Broker| -> Vec<String> {
        let (from, mut budget) = (RetainedCursor::default(), Budget::new(100));
        let page = broker
            .directory
            .retained_page("#", &from, 9, &mut budget, NOW);
        let texts = page.0.iter().map(|it| it.payload().to_vec());
        let mut texts: Vec<_> = texts.map(|it| String::from_utf8(it).unwrap()).collect();
        texts.sort();
        texts
    };
    assert!(pair.a.take(pair.at_a).is_empty() && pair.b.take(pair.at_b).is_empty());
    for (broker, peer) in [(&mut pair.a, "b"), (&mut pair.b, "a")] {
        broker.shard.link_carry(peer, true, NOW);
    }
    pair.carry();
    for broker in [&pair.a, &pair.b] {
        assert_eq!(retained(broker), ["four", "one", "three", "two"]);
    }
    let says = |broker: &mut Broker, link| kinds(&broker.take(link)).len();
    pair.a.shard.link_carry("b", true, NOW);
    assert_eq!(says(&mut pair.a, pair.at_a), 0, "it did already");
    pair.a.shard.link_carry("b", false, NOW);
    assert_eq!(says(&mut pair.a, pair.at_a), 0);
    pair.a.compare("b", pair.at_a);
}

/// A copy that the neighbour has not acknowledged may have been there before the broker that
/// it is for: who comes afterwards is sent it by another one. One that waits is enough.
#[test]
fn what_is_under_way_to_a_neighbour_is_copied_again() {
    let mut pair = Pair::new();
    let limits = LinkLimits {
        receive_maximum: 10,
        max_packet: 1 << 20,
        topic_aliases: 0,
    };
    let other = pair.b.shard.open_link(meta(), "d", limits, NOW);
    let gone = pair.a.shard.open_link(meta(), "c", limits, NOW);
    for peer in ["b", "c"] {
        pair.a.shard.link_interest(peer, &["t".into()], &[]);
        pair.a.shard.link_carry(peer, true, NOW);
    }
    pair.b.shard.link_carry("d", true, NOW);
    let publisher = pair.a.client("publisher");
    pair.a.publish(publisher, "t", "one", 1);
    pair.a.shard.closed(gone, "lost", NOW);
    assert_eq!(pair.carry().len(), 1);

    pair.a.shard.link_copy("c", "b", false, NOW);
    let copy = pair.a.take(pair.at_a);
    pair.b.shard.receive(pair.at_b, &copy, NOW);
    let acknowledgement = pair.b.take(pair.at_b);
    pair.b.shard.link_interest("d", &["t".into()], &[]);
    pair.a.shard.link_copy("c", "b", true, NOW);
    pair.a.shard.receive(pair.at_a, &acknowledgement, NOW);
    assert_eq!(pair.carry().len(), 1);
    assert_eq!(publications(&pair.b.take(other)).len(), 1);

    pair.a.publish(publisher, "t", "two", 2);
    assert_eq!(pair.carry().len(), 1);
    assert_eq!(publications(&pair.b.take(other)).len(), 1);
    pair.a.shard.link_carry("b", false, NOW);
    pair.a.shard.link_copy("c", "b", false, NOW);
    pair.a.shard.link_copy("c", "b", false, NOW);
    pair.a.shard.link_carry("b", true, NOW);
    assert_eq!(pair.carry().len(), 1);
}

#[test]
fn a_run_crosses_as_one_and_reaches_everybody_once() {
    let mut pair = Pair::new();
    let plain = pair.b.client("plain");
    subscribe(&mut pair.b, plain, "t");
    // One that cannot be sent what came byte for byte.
    let old = pair.b.open();
    let mut bytes = Vec::new();
    let Packet::Connect(connect) = connect("old") else {
        panic!("CONNECT")
    };
    let connect = Packet::Connect(Connect {
        version: Version::V311,
        ..connect
    });
    connect.encode(Version::V311, &mut bytes).unwrap();
    bytes.extend([0x82, 6, 0, 1, 0, 1, b't', 0]);
    let received = pair.b.shard.receive(old, &bytes, NOW);
    pair.b.let_in();
    pair.b.shard.receive(old, &bytes[received.consumed..], NOW);
    assert_eq!(pair.b.take(old), [0x20, 2, 0, 0, 0x90, 3, 0, 1, 0]);
    let limits = LinkLimits {
        receive_maximum: 10,
        max_packet: 1 << 20,
        topic_aliases: 0,
    };
    // For the second the longest parts of runs are too long.
    let further = [("c", 1 << 20), ("d", 1 << 16)].map(|(peer, max_packet)| {
        let limits = LinkLimits {
            max_packet,
            ..limits
        };
        let link = pair.b.shard.open_link(meta(), peer, limits, NOW);
        pair.b.shard.link_interest(peer, &["t".into()], &[]);
        pair.b.compare(peer, link);
        link
    });
    // What it is called is the same for all neighbours.
    let limits = LinkLimits {
        topic_aliases: 2,
        ..limits
    };
    let other = pair.a.shard.open_link(meta(), "e", limits, NOW);
    for peer in ["b", "e"] {
        pair.a.shard.link_interest(peer, &["t".into()], &[]);
        pair.a.shard.link_carry(peer, true, NOW);
    }
    pair.carry();
    pair.a.take(other);
    let publisher = pair.a.client("publisher");
    let texts: Vec<String> = (0..300).map(|n| format!("message {n:03}")).collect();
    let mut bytes = Vec::new();
    for text in &texts {
        let packet = Packet::Publish(publish("t", text, 0));
        packet.encode(Version::V5, &mut bytes).unwrap();
    }
    pair.a.shard.receive(publisher, &bytes, NOW);

    let run = pair.a.take(pair.at_a);
    assert_eq!(pair.a.take(other), run);
    assert!(run.len() < bytes.len() + bytes.len() / 20, "{}", run.len());
    let parts = publications(&run);
    assert!(parts.len() > 1 && parts.len() < 10, "{}", parts.len());
    // The second time it is recognised.
    for _ in 0..2 {
        pair.b.shard.receive(pair.at_b, &run, NOW);
    }
    let payloads = |bytes: &[u8], version| {
        let (mut found, mut bytes) = (Vec::new(), bytes);
        while let Ok(Split::Frame(frame)) = split(bytes, u32::MAX) {
            if let Packet::Publish(publish) = Packet::decode(frame, version).unwrap() {
                found.push(String::from_utf8(publish.payload.to_vec()).unwrap());
            }
            bytes = &bytes[frame.bytes.len()..];
        }
        found
    };
    assert_eq!(payloads(&pair.b.take(plain), Version::V5), texts);
    assert_eq!(payloads(&pair.b.take(old), Version::V311), texts);
    let [c, d] = further.map(|link| pair.b.take(link));
    assert_eq!(publications(&c), parts, "passed on as it came");
    let named = texts
        .iter()
        .map(|text| (text.clone(), 1))
        .collect::<Vec<_>>();
    assert_eq!(publications(&d), named, "one by one, each with a name");

    // What is no run ends the link.
    let (mut rest, mut broken) = (&*run, Vec::new());
    while let Ok(Split::Frame(frame)) = split(rest, u32::MAX) {
        broken = frame.bytes.to_vec();
        rest = &rest[broken.len()..];
    }
    // The topic of its last message.
    let at = broken.len() - texts[0].len() - 2;
    assert_eq!(broken[at], b't');
    broken[at] = b'u';
    pair.b.shard.receive(pair.at_b, &broken, NOW);
    assert_eq!(pair.b.notes.news.lock().unwrap().last().unwrap(), "a down");
}

/// Clients state nothing but what their identifier says.
#[derive(Debug)]
struct Stating(UrgencyRights);

impl AccessControl for Stating {
    fn permissions(&self, _: Option<&str>, client_id: &str) -> Option<Arc<dyn Permissions>> {
        let (max_rt_priority, min_priority) = match client_id {
            "nothing" => (None, None),
            "a-little" => (Some(2), None),
            _ => return None,
        };
        Some(Arc::new(Self(UrgencyRights {
            max_rt_priority,
            min_priority,
        })))
    }
}

impl Permissions for Stating {
    fn may_publish(&self, _: &str) -> bool {
        true
    }

    fn may_receive(&self, _: &str) -> bool {
        true
    }

    fn may_subscribe(&self, _: &str) -> bool {
        true
    }

    fn urgency(&self, _: &str) -> UrgencyRights {
        self.0
    }
}

/// Two brokers of which the first looks at rights, a third behind the second, and a
/// subscriber to `t` there and at the third.
struct Line {
    pair: Pair,
    c: Broker,
    b_to_c: ConnId,
    c_to_b: ConnId,
    subscribers: [ConnId; 2],
}

impl Line {
    fn new(config: fn() -> Config) -> Self {
        let mut pair = Pair::of(Broker::with(2, config()));
        let rights = Arc::new(Stating(UrgencyRights::ALL));
        pair.a.directory.set_access_control(Some(rights));
        let mut c = Broker::with(3, config());
        let c_to_b = c.neighbour("$mesh/b");
        let limits = LinkLimits {
            receive_maximum: 10,
            max_packet: 1 << 20,
            topic_aliases: 2,
        };
        let b_to_c = pair.b.shard.open_link(meta(), "c", limits, NOW);
        pair.a.shard.link_carry("b", true, NOW);
        pair.b.shard.link_carry("a", true, NOW);
        pair.b.shard.link_carry("c", true, NOW);
        c.shard.link_carry("b", true, NOW);
        pair.a.shard.link_interest("b", &["t".into()], &[]);
        pair.b.shard.link_interest("c", &["t".into()], &[]);
        let subscribers = [pair.b.client("subscriber"), c.client("subscriber-c")];
        subscribe(&mut pair.b, subscribers[0], "t");
        subscribe(&mut c, subscribers[1], "t");
        let mut line = Self {
            pair,
            c,
            b_to_c,
            c_to_b,
            subscribers,
        };
        line.carry();
        line
    }

    fn carry(&mut self) {
        loop {
            let mut moved = !self.pair.carry().is_empty();
            let to_c = self.pair.b.take(self.b_to_c);
            let to_b = self.c.take(self.c_to_b);
            moved |= !to_c.is_empty() || !to_b.is_empty();
            self.c.shard.receive(self.c_to_b, &to_c, NOW);
            self.pair.b.shard.receive(self.b_to_c, &to_b, NOW);
            if !moved {
                return;
            }
        }
    }

    /// What the subscribers have got, in their order.
    fn delivered(&mut self) -> [Vec<(String, usize)>; 2] {
        self.carry();
        let [at_b, at_c] = self.subscribers;
        [
            publications(&self.pair.b.take(at_b)),
            publications(&self.c.take(at_c)),
        ]
    }

    /// A client of the first broker publishes after a plain message of another.
    fn overtake(&mut self, client: &str, stated: &[(&str, &str)], qos: u16) {
        let plain = self.pair.a.client("plain");
        let stating = self.pair.a.client(client);
        self.pair.a.publish(plain, "t", "plain", qos);
        self.carry();
        let mut properties = PropertyBuf::new();
        for (key, value) in stated {
            properties.push_user(key, value).unwrap();
        }
        let publish = Publish {
            properties: properties.as_properties(),
            ..publish("t", client, qos)
        };
        self.pair.a.give(stating, Packet::Publish(publish));
    }
}

#[test]
fn what_is_stated_without_the_right_is_followed_nowhere() {
    let all = [("priority", "0"), ("rt-priority", "7")];
    let first = |client: &str, stated: usize| {
        [0, 1].map(|qos| {
            let mut line = Line::new(Config::default);
            line.overtake(client, &all[stated..=stated], qos);
            let delivered = line.delivered();
            for delivered in &delivered {
                assert_eq!(delivered.len(), 2);
                // What is stated reaches the subscriber all the same.
                assert!(delivered.contains(&(client.to_owned(), 1)), "{delivered:?}");
            }
            delivered.map(|mut delivered| delivered.remove(0).0)
        })
    };
    for stated in [0, 1] {
        let nowhere = first("nothing", stated);
        assert_eq!(nowhere, [["plain", "plain"]; 2]);
        let everywhere = first("anything", stated);
        assert_eq!(everywhere, [["anything", "anything"]; 2]);
    }
}

#[test]
fn a_right_to_a_priority_binds_deadlines_everywhere() {
    let edf = || Config {
        discipline: Discipline::Edf,
        ..Config::default()
    };
    let mut line = Line::new(edf);
    // The right to 2 makes of a deadline what is due in 100 ms.
    for (client, deadline) in [("a-little", "1us"), ("anything", "20ms")] {
        let stated = [("rt-deadline", deadline), ("rt-priority", "2")];
        let stating = line.pair.a.client(client);
        let mut properties = PropertyBuf::new();
        for (key, value) in stated {
            properties.push_user(key, value).unwrap();
        }
        let publish = Publish {
            properties: properties.as_properties(),
            ..publish("t", client, 1)
        };
        line.pair.a.give(stating, Packet::Publish(publish));
        line.carry();
    }
    let both = ["anything", "a-little"].map(|client| (client.to_owned(), 2));
    assert_eq!(line.delivered(), [both.to_vec(), both.to_vec()]);
}

#[test]
fn a_will_is_followed_as_far_as_its_client_may_state() {
    // Published by its own broker, or by another that lost it.
    for lost in [false, true] {
        for (client, first) in [("nothing", "plain"), ("anything", "will")] {
            let mut line = Line::new(Config::default);
            let mut properties = PropertyBuf::new();
            properties.push_user("priority", "0").unwrap();
            let Packet::Connect(connect) = connect(client) else {
                panic!("CONNECT")
            };
            let conn = line.pair.a.open();
            let will = Will {
                topic: "t",
                payload: b"will",
                qos: QoS::AtLeastOnce,
                retain: false,
                properties: properties.as_properties(),
            };
            let connect = Connect {
                will: Some(will),
                ..connect
            };
            line.pair.a.give(conn, Packet::Connect(connect));
            let plain = line.pair.a.client("plain");
            line.pair.a.publish(plain, "t", "plain", 1);
            line.carry();
            match lost {
                false => line.pair.a.shard.closed(conn, "gone", NOW),
                true => {
                    let told = line.pair.a.notes.wills.lock().unwrap()[0].message.clone();
                    line.pair
                        .b
                        .shard
                        .link_will(client, &told, WillTurn::Guarded, NOW);
                }
            }
            for delivered in line.delivered() {
                assert_eq!(delivered.len(), 2);
                assert_eq!(delivered[0].0, first, "{client}, lost: {lost}");
                assert!(delivered.contains(&("will".to_owned(), 1)));
            }
        }
    }
}

#[test]
fn what_a_neighbour_lacks_is_not_urgent_any_more() {
    let mut pair = Pair::new();
    let alarming = pair.a.client("alarming");
    let mut properties = PropertyBuf::new();
    properties.push_user("priority", "0").unwrap();
    let alarm = Publish {
        retain: true,
        properties: properties.as_properties(),
        ..publish("t", "alarm", 1)
    };
    pair.a.give(alarming, Packet::Publish(alarm));
    let subscriber = pair.b.client("subscriber");
    subscribe(&mut pair.b, subscriber, "t");
    let plain = pair.b.client("plain");
    pair.b.publish(plain, "t", "plain", 1);
    pair.a.shard.link_carry("b", true, NOW);
    pair.b.shard.link_carry("a", true, NOW);
    pair.carry();
    let both = [("plain".to_owned(), 0), ("alarm".to_owned(), 1)];
    assert_eq!(publications(&pair.b.take(subscriber)), both);
}

#[test]
fn a_row_crosses_in_order_and_is_acknowledged_once() {
    // The second broker has a subscriber of its own, or all goes on to the third.
    for own in [true, false] {
        let mut line = Line::new(Config::default);
        if !own {
            let b = &mut line.pair.b;
            b.shard.closed(line.subscribers[0], "gone", NOW);
        }
        // Sessions do not look any more whether they had a message elsewhere.
        for broker in [&mut line.pair.a, &mut line.pair.b, &mut line.c] {
            broker.shard.tick(NOW + Nanos::from_secs(1));
        }
        let publisher = line.pair.a.client("publisher");
        let texts: Vec<String> = (0..300).map(|n| format!("message {n:03}")).collect();
        let mut crossed = Vec::new();
        for (part, texts) in texts.chunks(8).enumerate() {
            let mut bytes = Vec::new();
            for (n, text) in texts.iter().enumerate() {
                let id = (part * 8 + n + 1) as u16;
                let packet = Packet::Publish(publish("t", text, id));
                packet.encode(Version::V5, &mut bytes).unwrap();
            }
            let (a, b) = (&mut line.pair.a, &mut line.pair.b);
            let (at_a, at_b) = (line.pair.at_a, line.pair.at_b);
            let consumed = a.shard.receive(publisher, &bytes, NOW).consumed;
            assert_eq!(consumed, bytes.len());
            let answers = vec![PacketType::PubAck; texts.len()];
            assert_eq!(kinds(&a.take(publisher)), answers);
            // All of it goes, and comes a second time as from another way.
            let row = a.take(at_a);
            crossed.extend(publications(&row));
            for _ in 0..2 {
                let consumed = b.shard.receive(at_b, &row, NOW).consumed;
                assert_eq!(consumed, row.len());
            }
            let acknowledged = b.take(at_b);
            assert_eq!(kinds(&acknowledged), [answers.clone(), answers].concat());
            a.shard.receive(at_a, &acknowledged, NOW);
            line.carry();
        }
        let of = |properties| {
            let all = texts.iter().map(|text| (text.clone(), properties));
            all.collect::<Vec<_>>()
        };
        assert_eq!(crossed, of(1), "one by one, each with a name");
        let [at_b, at_c] = line.delivered();
        assert_eq!(at_b, if own { of(0) } else { Vec::new() });
        assert_eq!(at_c, of(0));
        assert_eq!(line.c.notes.names.lock().unwrap().len(), texts.len());
    }
}

#[test]
fn brokers_speak_on_topics_that_clients_cannot_use() {
    let mut pair = Pair::new();
    pair.a.shard.link_send(pair.at_a, "$mesh/1", b"hello");
    pair.carry();
    assert_eq!(*pair.b.notes.news.lock().unwrap(), ["a up", "a: hello"]);
    let client = pair.b.client("client");
    pair.b.publish(client, "$mesh/1", "x", 1);
    let answer = pair.b.take(client);
    assert_eq!(answer.get(4), Some(&0x87), "not authorized");
    // A neighbour's message without a name ends the link.
    pair.b.publish(pair.at_b, "t", "x", 2);
    assert_eq!(pair.b.notes.news.lock().unwrap().last().unwrap(), "a down");
}

#[test]
fn without_a_federation_there_are_no_neighbours() {
    let mut shard = Shard::new(Directory::new(1), 0, Arc::new(Config::default()), NOW);
    let conn = shard.open(meta(), NOW);
    let mut bytes = Vec::new();
    connect("$mesh/a").encode(Version::V5, &mut bytes).unwrap();
    shard.receive(conn, &bytes, NOW);
    assert_eq!(shard.clients_connected(), 0);
}

#[test]
fn a_listener_may_be_for_brokers_or_for_clients_only() {
    for (admits, id, is_let_in) in [
        (Admits::Brokers, "client", false),
        (Admits::Brokers, "$mesh/b", true),
        (Admits::Clients, "client", true),
        (Admits::Clients, "$mesh/b", false),
        (Admits::All, "$mesh/b", true),
    ] {
        let mut broker = Broker::new(1);
        broker.directory.set_admits(vec![admits]);
        let conn = broker.open();
        broker.give(conn, connect(id));
        assert_eq!(
            broker.shard.clients_connected() == 1,
            is_let_in,
            "{admits:?} {id}"
        );
    }
}

/// It is said that what neighbours want is kept when a restart would not change that.
#[test]
fn what_a_neighbour_wants_is_kept_when_it_is_committed() {
    let news = |broker: &Broker| -> Vec<String> {
        let mut news = broker.notes.news.lock().unwrap();
        let all = std::mem::take(&mut *news);
        all.into_iter()
            .filter(|it| it.starts_with("kept"))
            .collect()
    };
    let mut without = Broker::new(1);
    without.neighbour("$mesh/b");
    without.shard.link_interest("b", &["t".into()], &[]);
    without.shard.link_keep(1);
    assert_eq!(news(&without), ["kept 1"]);

    let mut store = Memory::default();
    let mut broker = Broker::stored(1);
    let conn = broker.open();
    broker.give(conn, connect("$mesh/b"));
    let operations = broker.shard.take_operations(NOW).unwrap();
    store.commit(&operations.batch).unwrap();
    broker.shard.committed(operations.ticket, NOW);
    broker.shard.link_interest("b", &["t".into()], &[]);
    broker.shard.link_leads("b", &["b", "c"]);
    broker.shard.link_keep(1);
    assert_eq!(news(&broker), [""; 0]);
    let operations = broker.shard.take_operations(NOW).unwrap();
    broker.shard.store_failed(StoreTrouble::Full, NOW);
    assert_eq!(news(&broker), [""; 0]);
    broker.shard.link_keep(2);
    broker.shard.committed(operations.ticket, NOW);
    assert_eq!(news(&broker), ["kept 2"]);
    broker.shard.link_keep(3);
    assert_eq!(news(&broker), ["kept 3"], "there is nothing new");

    store.commit(&operations.batch).unwrap();
    let mut again = Broker::restored(2, &mut store);
    let kept = again.shard.links();
    assert_eq!(kept.len(), 1);
    assert_eq!(
        (&*kept[0].peer, &*kept[0].filters),
        ("b", &["t".into()][..])
    );
    assert_eq!(kept[0].behind, ["b", "c"]);
    // Which goes with the session.
    again.neighbour("$mesh/b");
    again.shard.link_forget("b", NOW);
    again.commit();
    assert_eq!(again.shard.links()[0].behind, [""; 0]);
}

#[test]
fn it_is_told_what_came_before_a_message() {
    let mut pair = Pair::new();
    let subscriber = pair.b.client("subscriber");
    subscribe(&mut pair.b, subscriber, "t");
    let limits = LinkLimits {
        receive_maximum: 10,
        max_packet: 1 << 20,
        topic_aliases: 0,
    };
    // Taken in at the first, and passed on by the second.
    let [at_a, at_b] = [&mut pair.a, &mut pair.b].map(|broker| {
        let link = broker.shard.open_link(meta(), "c", limits, NOW);
        broker.compare("c", link);
        broker.shard.link_interest("c", &["t".into()], &[]);
        link
    });
    pair.a.shard.link_carry("b", true, NOW);
    pair.a.shard.link_interest("b", &["t".into()], &[]);
    pair.carry();
    let publisher = pair.a.client("publisher");
    for (packet_id, text) in [(1, "first"), (2, "second")] {
        pair.a.publish(publisher, "t", text, packet_id);
        pair.carry();
    }

    let names = |mut bytes: &[u8]| {
        let mut names = Vec::new();
        while let Ok(Split::Frame(frame)) = split(bytes, u32::MAX) {
            if let Packet::Publish(publish) = Packet::decode(frame, Version::V5).unwrap()
                && publish.topic == "t"
            {
                let (key, name) = publish.properties.iter().last().unwrap().pair();
                assert_eq!(key, "@");
                names.push(name.to_owned());
            }
            bytes = &bytes[frame.bytes.len()..];
        }
        names
    };
    for link in [pair.a.take(at_a), pair.b.take(at_b)] {
        assert_eq!(names(&link), ["1.1", "1,2"]);
    }
    let received = publications(&pair.b.take(subscriber));
    assert_eq!(received, [("first".into(), 0), ("second".into(), 0)]);
}

/// What others begin to subscribe to says nothing about what clients had of a topic.
#[test]
fn what_comes_early_waits_unless_somebody_else_gets_it() {
    let mut broker = Broker::new(2);
    let subscriber = broker.client("subscriber");
    subscribe(&mut broker, subscriber, "t/a");
    let limits = LinkLimits {
        receive_maximum: 10,
        max_packet: 1 << 20,
        topic_aliases: 0,
    };
    let link = broker.shard.open_link(meta(), "c", limits, NOW);
    broker.shard.link_carry("c", true, NOW);
    let mut packet_id = 0;
    let mut come = |broker: &mut Broker, name: &str| {
        packet_id += 1;
        let mut properties = PropertyBuf::new();
        properties.push_user("@", name).unwrap();
        let publish = Publish {
            properties: properties.as_properties(),
            ..publish("t/a", name, packet_id)
        };
        broker.give(link, Packet::Publish(publish));
    };
    let got = |broker: &mut Broker| -> Vec<String> {
        let got = publications(&broker.take(subscriber)).into_iter();
        got.map(|(payload, _)| payload).collect()
    };
    come(&mut broker, "1.5");
    let other = broker.client("other");
    for filter in ["t/b", "+/c", "u"] {
        subscribe(&mut broker, other, filter);
    }
    // The sixth is missing.
    come(&mut broker, "1,7");
    assert_eq!(got(&mut broker), ["1.5"]);
    come(&mut broker, "1,6");
    broker.shard.tick(NOW + Nanos::from_millis(2));
    assert_eq!(got(&mut broker), ["1,6", "1,7"]);
    // Of who has just come it is not known what it has had.
    subscribe(&mut broker, other, "t/+");
    come(&mut broker, "1,9");
    assert_eq!(got(&mut broker), ["1,9"]);
}

/// Brokers that are joined as a tree, in virtual time.
struct Net {
    brokers: Vec<Broker>,
    links: Vec<[(usize, ConnId); 2]>,
    /// Brokers that read nothing, and send nothing.
    stopped: Vec<usize>,
    now: Nanos,
}

impl Net {
    /// Joined by `edges`.
    fn new(brokers: usize, edges: &[[usize; 2]], config: &Config) -> Self {
        let broker = |n| Broker::with(1 + n as u32, config.clone());
        let mut net = Self {
            brokers: (0..brokers).map(broker).collect(),
            links: Vec::new(),
            stopped: Vec::new(),
            now: NOW,
        };
        for [from, to] in edges {
            let link = net.join(*from, *to, config);
            net.links.push(link);
        }
        net
    }

    fn join(&mut self, from: usize, to: usize, config: &Config) -> [(usize, ConnId); 2] {
        let limits = LinkLimits {
            receive_maximum: config.limits.receive_maximum,
            max_packet: 1 << 20,
            topic_aliases: 2,
        };
        let [name, other] = [from, to].map(|n| n.to_string());
        let there = self.brokers[to].open();
        let mut properties = PropertyBuf::new();
        let most = u32::from(limits.receive_maximum);
        properties.push_number(PropertyId::ReceiveMaximum, most);
        properties.push_number(PropertyId::SessionExpiryInterval, u32::MAX);
        let client_id = format!("$mesh/{name}");
        let Packet::Connect(connect) = connect(&client_id) else {
            unreachable!();
        };
        let connect = Connect {
            properties: properties.as_properties(),
            ..connect
        };
        self.brokers[to].give(there, Packet::Connect(connect));
        self.brokers[to].take(there);
        let shard = &mut self.brokers[from].shard;
        let here = shard.open_link(meta(), &other, limits, self.now);
        shard.link_carry(&other, true, self.now);
        let shard = &mut self.brokers[to].shard;
        shard.link_carry(&name, true, self.now);
        [(from, here), (to, there)]
    }

    /// A link is lost, and there again.
    fn reconnect(&mut self, link: usize, config: &Config) {
        let [(from, here), (to, there)] = self.links[link];
        self.brokers[from].shard.closed(here, "lost", self.now);
        self.brokers[to].shard.closed(there, "lost", self.now);
        self.links[link] = self.join(from, to, config);
    }

    fn wants(&mut self, at: usize, peer: usize, filters: &[&str]) {
        let filters: Vec<Box<str>> = filters.iter().map(|it| (*it).into()).collect();
        let shard = &mut self.brokers[at].shard;
        shard.link_interest(&peer.to_string(), &filters, &[]);
    }

    fn take(&mut self, at: usize, conn: ConnId) -> Vec<u8> {
        take_pending(&mut self.brokers[at].shard, conn, self.now)
    }

    /// A millisecond passes, in which links carry what there is to be sent.
    fn step(&mut self) {
        self.now = self.now + Nanos::from_millis(1);
        for broker in &mut self.brokers {
            broker.shard.tick(self.now);
        }
        loop {
            let mut moved = false;
            for [a, b] in self.links.clone() {
                for ((from, here), (to, there)) in [(a, b), (b, a)] {
                    if self.stopped.contains(&from) || self.stopped.contains(&to) {
                        continue;
                    }
                    let bytes = self.take(from, here);
                    let shard = &mut self.brokers[to].shard;
                    let received = shard.receive(there, &bytes, self.now);
                    assert_eq!(received.consumed, bytes.len(), "{from} to {to}");
                    moved |= !bytes.is_empty();
                }
            }
            if !moved {
                return;
            }
        }
    }

    /// A client sends a packet, as soon as it is not held back.
    fn give(&mut self, at: usize, conn: ConnId, packet: &[u8]) {
        loop {
            let shard = &mut self.brokers[at].shard;
            if shard.receive(conn, packet, self.now).consumed > 0 {
                return;
            }
            self.step();
        }
    }

    /// A client of a broker publishes; whether the message is taken in.
    fn publish(&mut self, at: usize, conn: ConnId, publish: Publish<'_>) -> bool {
        let (qos, packet_id) = (publish.qos, publish.packet_id);
        let mut bytes = Vec::new();
        publish.encode(Version::V5, &mut bytes).unwrap();
        self.give(at, conn, &bytes);
        let answer = self.take(at, conn);
        let Ok(Split::Frame(frame)) = split(&answer, u32::MAX) else {
            panic!("no answer");
        };
        let ack = Ack::decode(frame.kind, frame.body, Version::V5).unwrap();
        let taken = !ack.reason.is_error();
        if taken && qos == QoS::ExactlyOnce {
            let release = Ack::new(packet_id, ReasonCode::Success);
            bytes.clear();
            release
                .encode(PacketType::PubRel, Version::V5, &mut bytes)
                .unwrap();
            self.give(at, conn, &bytes);
            self.take(at, conn);
        }
        taken
    }

    /// What a client is sent, all of which it acknowledges.
    fn got(&mut self, at: usize, conn: ConnId) -> Vec<String> {
        let mut all = Vec::new();
        loop {
            let bytes = self.take(at, conn);
            if bytes.is_empty() {
                return all;
            }
            let (mut rest, mut acks) = (&bytes[..], Vec::new());
            while let Ok(Split::Frame(frame)) = split(rest, u32::MAX) {
                if let Packet::Publish(it) = Packet::decode(frame, Version::V5).unwrap() {
                    all.push(String::from_utf8_lossy(it.payload).into_owned());
                    let ack = Ack::new(it.packet_id, ReasonCode::Success);
                    ack.encode(PacketType::PubAck, Version::V5, &mut acks)
                        .unwrap();
                }
                rest = &rest[frame.bytes.len()..];
            }
            let shard = &mut self.brokers[at].shard;
            assert_eq!(shard.receive(conn, &acks, self.now).consumed, acks.len());
        }
    }
}

/// A row of brokers, at whose end one takes nothing of what is on `slow/#`, and another one gets
/// `fast`.
struct Row {
    net: Net,
    hops: usize,
    slow: ConnId,
    fast: ConnId,
    publisher: ConnId,
    /// Where that publishes, and how.
    at: usize,
    qos: QoS,
}

impl Row {
    fn new(hops: usize, config: &Config, qos: QoS) -> Self {
        let (last, slow, fast) = (hops - 1, hops, hops + 1);
        let row = (1..hops).map(|n| [n - 1, n]);
        let edges: Vec<[usize; 2]> = row.chain([[last, slow], [last, fast]]).collect();
        let mut net = Net::new(hops + 2, &edges, config);
        for n in 0..last {
            net.wants(n, n + 1, &["slow/#", "fast"]);
        }
        net.wants(last, slow, &["slow/#"]);
        net.wants(last, fast, &["fast"]);
        let [at_slow, at_fast] = [(slow, "slow/#"), (fast, "fast")].map(|(n, filter)| {
            let client = net.brokers[n].client("subscriber");
            subscribe(&mut net.brokers[n], client, filter);
            client
        });
        let publisher = net.brokers[0].client("publisher");
        net.stopped.push(slow);
        Self {
            net,
            hops,
            slow: at_slow,
            fast: at_fast,
            publisher,
            at: 0,
            qos,
        }
    }

    /// Whether a message is taken in.
    fn publish(&mut self, topic: &str, payload: usize) -> bool {
        let payload = payload.to_string();
        let publish = Publish {
            qos: self.qos,
            ..publish(topic, &payload, 1)
        };
        self.net.publish(self.at, self.publisher, publish)
    }

    fn fast(&mut self) -> Vec<usize> {
        numbers(self.net.got(self.hops + 1, self.fast))
    }

    /// The one that took nothing takes all, and its subscriber gets so many messages.
    fn take_all(&mut self, expected: usize) -> Vec<usize> {
        self.net.stopped.clear();
        let mut got = Vec::new();
        while got.len() < expected {
            let before = got.len();
            for _ in 0..100 {
                self.net.step();
                got.extend(numbers(self.net.got(self.hops, self.slow)));
            }
            assert!(before < got.len(), "{before} of {expected}");
        }
        got
    }
}

fn numbers(payloads: Vec<String>) -> Vec<usize> {
    payloads.iter().map(|it| it.parse().unwrap()).collect()
}

/// What goes to a neighbour that takes nothing holds nothing that goes to others, at two and three
/// hops, however much of it is taken in; it comes when it takes something again, all of it, once and
/// in order.
#[test]
fn who_takes_nothing_far_away_does_not_hold_what_goes_to_others() {
    for (hops, qos, topics) in [
        (2, QoS::AtLeastOnce, 1),
        (3, QoS::AtLeastOnce, 5000),
        (3, QoS::ExactlyOnce, 1),
    ] {
        let mut config = Config::default();
        config.limits.max_queued_messages = 3000;
        let mut row = Row::new(hops, &config, qos);
        let mut expected = Vec::new();
        for n in 0..30_000 {
            if row.publish(&format!("slow/{}", n % topics), n) {
                expected.push(n);
            }
            // All the time, and thousands of them.
            if n % 10 == 0 {
                assert!(row.publish("fast", n), "{n}");
                row.net.step();
                assert_eq!(row.fast(), [n], "{hops} {qos:?}");
            }
        }
        let accepted = expected.len();
        assert!((1000 + 2700..29_000).contains(&accepted), "{accepted}");
        let brokers = row.net.brokers.iter_mut();
        let mut queued = brokers.map(|it| it.shard.stats().queued_messages);
        assert!(queued.all(|queued| queued <= 3000 * 3 / 2));
        let mut got = row.take_all(accepted);
        // On each topic in order.
        got.sort_by_key(|n| n % topics);
        expected.sort_by_key(|n| n % topics);
        assert!(got == expected, "{hops} {qos:?}");
        assert!(row.publish("slow/0", 0));
        assert_eq!(row.take_all(1), [0]);
    }
}

/// Also where clients there have filled its queue before, so that all that is under way has to wait,
/// and where more others come than there are packet identifiers.
#[test]
fn who_is_full_already_does_not_hold_what_goes_to_others() {
    let mut config = Config::default();
    config.limits.max_queued_messages = 40;
    config.limits.receive_maximum = 20;
    let mut row = Row::new(2, &config, QoS::AtLeastOnce);
    let there = row.net.brokers[1].client("publisher");
    let far = (std::mem::replace(&mut row.publisher, there), row.at);
    row.at = 1;
    let mut expected: Vec<usize> = (0..100).filter(|n| row.publish("slow/a", *n)).collect();
    (row.publisher, row.at) = far;
    // More than may be under way at once.
    expected.extend((100..130).filter(|n| row.publish("slow/b", *n)));
    assert!(expected.len() >= 20 + 36 + 20);
    let parked = row.net.brokers[1].shard.stats().publishes_parked;
    for n in 0..70_000 {
        assert!(row.publish("fast", n), "{n}");
        if n % 10 == 0 {
            row.net.step();
            let most = row.fast().into_iter().max();
            assert_eq!(most, Some(n));
        }
    }
    assert!(
        row.net.brokers[1].shard.stats().publishes_parked >= 20,
        "{parked}"
    );
    assert_eq!(row.take_all(expected.len()), expected);
}

/// At the end of a row of brokers is a session whose policy is to refuse and whose client is away: what
/// goes to it is refused where it is published, once the queues on the way are full. Nothing that was
/// taken in is lost, and nothing else is held.
#[test]
fn what_a_full_session_far_away_has_no_room_for_is_refused_where_it_is_published() {
    for (hops, topics) in [(2, 1), (3, 1), (2, 500)] {
        let mut config = Config {
            queue_full: QueueFull::Refuse,
            ..Config::default()
        };
        config.limits.max_queued_messages = 300;
        config.limits.receive_maximum = 20;
        let edges: Vec<[usize; 2]> = (1..hops).map(|n| [n - 1, n]).collect();
        let mut net = Net::new(hops, &edges, &config);
        let last = hops - 1;
        for n in 0..last {
            net.wants(n, n + 1, &["slow/#", "fast"]);
        }
        let away = net.brokers[last].persistent("away");
        subscribe(&mut net.brokers[last], away, "slow/#");
        net.brokers[last].shard.closed(away, "lost", NOW);
        let fast = net.brokers[last].client("fast");
        subscribe(&mut net.brokers[last], fast, "fast");
        let publisher = net.brokers[0].client("publisher");
        let mut accepted = Vec::new();
        for n in 0..3000 {
            let (topic, payload) = (format!("slow/{}", n % topics), n.to_string());
            if net.publish(0, publisher, publish(&topic, &payload, 1)) {
                accepted.push(n);
            }
            assert!(
                net.publish(0, publisher, publish("fast", &payload, 1)),
                "{n}"
            );
            net.step();
            assert_eq!(numbers(net.got(last, fast)), [n], "{hops}");
        }
        // Its own queue, and on each hop half of one and two windows.
        let most = 300 + (hops - 1) * (150 + 2 * 20);
        assert!((270..=most).contains(&accepted.len()), "{}", accepted.len());

        let back = net.brokers[last].persistent("away");
        let mut got = Vec::new();
        for _ in 0..1000 {
            net.step();
            got.extend(numbers(net.got(last, back)));
        }
        got.sort_by_key(|n| n % topics);
        accepted.sort_by_key(|n| n % topics);
        assert!(
            got == accepted,
            "{hops}: {} of {}",
            got.len(),
            accepted.len()
        );
        let mut brokers = net.brokers.iter_mut();
        assert!(brokers.all(|broker| broker.shard.stats().dropped() == 0));
        assert!(net.publish(0, publisher, publish("slow/0", "0", 1)));
        net.step();
        assert_eq!(numbers(net.got(last, back)), [0]);
    }
}

/// The same where the session loses its oldest messages: nobody is refused, and what was taken in is
/// delivered or counted.
#[test]
fn a_full_session_far_away_loses_its_own_messages_by_default() {
    let mut config = Config::default();
    config.limits.max_queued_messages = 300;
    config.limits.receive_maximum = 20;
    let mut net = Net::new(2, &[[0, 1]], &config);
    net.wants(0, 1, &["slow/#"]);
    let away = net.brokers[1].persistent("away");
    subscribe(&mut net.brokers[1], away, "slow/#");
    net.brokers[1].shard.closed(away, "lost", NOW);
    let publisher = net.brokers[0].client("publisher");
    for n in 0..1000 {
        assert!(
            net.publish(0, publisher, publish("slow/a", &n.to_string(), 1)),
            "{n}"
        );
        net.step();
    }
    let back = net.brokers[1].persistent("away");
    net.step();
    let got = numbers(net.got(1, back));
    let dropped = net.brokers[1].shard.stats().dropped_queue_full as usize;
    assert_eq!(got, (dropped..1000).collect::<Vec<_>>());
    assert!(got.len() >= 270 && net.brokers[0].shard.stats().dropped() == 0);
}

/// What is kept back is sent on another way, or is there after the connection was lost, with what
/// else waits.
#[test]
fn what_is_kept_back_survives_its_connection() {
    let mut config = Config::default();
    config.limits.max_queued_messages = 40;
    config.limits.receive_maximum = 20;
    let mut row = Row::new(2, &config, QoS::AtLeastOnce);
    let mut accepted = Vec::new();
    for n in 0..200 {
        if row.publish("slow/a", n) {
            accepted.push(n);
        }
        row.net.step();
    }
    assert!(row.net.brokers[0].shard.stats().publishes_throttled > 0);
    // All of it is somewhere: at c, in flight and queued; at b what is under way and kept back.
    assert!(accepted.len() > 20 + 27 + 20, "{}", accepted.len());
    row.net.reconnect(0, &config);
    assert_eq!(row.take_all(accepted.len()), accepted);
    assert!(row.publish("fast", 1));
    row.net.step();
    assert_eq!(row.fast(), [1]);
}

/// Neighbours may do nothing, if rights are asked for.
#[derive(Debug)]
struct Nothing;

impl AccessControl for Nothing {
    fn permissions(&self, _: Option<&str>, client_id: &str) -> Option<Arc<dyn Permissions>> {
        let is_link = client_id.starts_with(LINK_PREFIX);
        is_link.then(|| Arc::new(Self) as Arc<dyn Permissions>)
    }
}

impl Permissions for Nothing {
    fn may_publish(&self, _: &str) -> bool {
        false
    }

    fn may_receive(&self, _: &str) -> bool {
        false
    }

    fn may_subscribe(&self, _: &str) -> bool {
        false
    }
}

/// When rights are read again, neighbours that are connected have all of them, as before.
#[test]
fn neighbours_keep_their_rights_when_these_are_read_again() {
    let mut pair = Pair::new();
    pair.a.shard.link_interest("b", &["t".into()], &[]);
    pair.a.shard.link_carry("b", true, NOW);
    let publisher = pair.a.client("publisher");
    pair.a.directory.set_access_control(Some(Arc::new(Nothing)));
    pair.a.shard.access_changed();
    for _ in 0..16 {
        let _ = pair.a.shard.work(NOW, &mut Budget::unlimited());
    }
    assert_eq!(pair.a.shard.tasks(), 0);
    pair.a.publish(publisher, "t", "after", 1);
    assert_eq!(pair.carry(), [("after".to_owned(), 1)]);
}
