//! What is emitted, what waits for it, and that a restored shard goes on.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};

use punctual_codec::{
    Ack, Connect, Frame, Packet, PacketType, PropertyBuf, PropertyId, Publish, QoS, ReasonCode,
    Split, Subscribe, SubscribeOptions, Version, Will, split,
};
use punctual_store::{Memory, Op, Store as _};

use crate::base::connection::ConnId;
use crate::base::durability::{Durability, DurabilityRule, StoreTrouble};
use crate::base::name::MessageName;
use crate::journal::keeping::Reception;
use crate::journal::{Journal, Restorer};
use crate::mesh::federation::{
    Federation, Interest, LinkNews, MessageNames, Newcomer, SessionTransfers, Unwelcome,
};
use crate::{Budget, Config, ConnMeta, Directory, Nanos, Output, Scope, Shard, Work};

const NOW: Nanos = Nanos::from_secs(1);
const WALL: u64 = 1_700_000_000_000_000_000;

fn shard() -> Shard {
    shard_of(|_| {})
}

fn shard_of(change: impl FnOnce(&mut Config)) -> Shard {
    let mut config = Config {
        sys_interval: None,
        ..Config::default()
    };
    config.durability.patience = Nanos(0);
    change(&mut config);
    let mut shard = Shard::new(Directory::new(1), 0, Arc::new(config), NOW);
    shard.attach_store(WALL);
    shard
}

/// The kinds of the packets that leave to a connection now.
fn leaving(shard: &mut Shard, id: ConnId) -> Vec<PacketType> {
    let bytes = written(shard, id);
    frames(&bytes).map(|frame| frame.kind).collect()
}

/// The packets in what leaves to a connection.
fn frames(mut rest: &[u8]) -> impl Iterator<Item = Frame<'_>> {
    std::iter::from_fn(move || match split(rest, u32::MAX) {
        Ok(Split::Frame(frame)) => {
            rest = &rest[frame.bytes.len()..];
            Some(frame)
        }
        _ => None,
    })
}

/// What leaves to a connection now.
fn written(shard: &mut Shard, id: ConnId) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let mut slices = [IoSlice::new(&[]); 8];
        let filled = shard.pending(id, Scope::All, NOW, &mut slices);
        let before = bytes.len();
        for slice in &slices[..filled] {
            bytes.extend_from_slice(slice);
        }
        if bytes.len() == before {
            break;
        }
        let sent = bytes.len() - before;
        shard.sent(id, sent, NOW);
    }
    bytes
}

fn tell(shard: &mut Shard, id: ConnId, packet: &Packet<'_>) {
    let mut bytes = Vec::new();
    packet.encode(Version::V5, &mut bytes).unwrap();
    let received = shard.receive(id, &bytes, NOW);
    assert_eq!(received.consumed, bytes.len());
}

fn connect(shard: &mut Shard, client_id: &str, expiry: u32) -> ConnId {
    connect_as(shard, client_id, None, expiry)
}

fn connect_as(shard: &mut Shard, client_id: &str, user: Option<&str>, expiry: u32) -> ConnId {
    connect_with(shard, client_id, user, expiry, None)
}

fn connect_with(
    shard: &mut Shard,
    client_id: &str,
    user: Option<&str>,
    expiry: u32,
    will: Option<Will<'_>>,
) -> ConnId {
    connect_at(shard, 0, client_id, user, expiry, will)
}

fn connect_at(
    shard: &mut Shard,
    listener: u16,
    client_id: &str,
    user: Option<&str>,
    expiry: u32,
    will: Option<Will<'_>>,
) -> ConnId {
    let meta = ConnMeta {
        listener,
        allow_anonymous: true,
        nonce: [7; 16],
        ..ConnMeta::default()
    };
    let id = shard.open(meta, NOW);
    let mut properties = PropertyBuf::new();
    properties.push_number(PropertyId::SessionExpiryInterval, expiry);
    tell(
        shard,
        id,
        &Packet::Connect(Connect {
            version: Version::V5,
            clean_start: false,
            keep_alive: 0,
            client_id,
            will,
            username: user,
            password: None,
            properties: properties.as_properties(),
        }),
    );
    id
}

fn subscribe(shard: &mut Shard, id: ConnId, qos: QoS) {
    subscribe_to(shard, id, "t", qos);
}

fn subscribe_to(shard: &mut Shard, id: ConnId, filter: &str, qos: QoS) {
    let options = SubscribeOptions {
        qos,
        ..SubscribeOptions::default()
    };
    let mut bytes = Vec::new();
    let none = PropertyBuf::new();
    let filters = [(filter, options)];
    Subscribe::put(1, none.as_properties(), &filters, Version::V5, &mut bytes).unwrap();
    assert_eq!(shard.receive(id, &bytes, NOW).consumed, bytes.len());
}

fn publish(shard: &mut Shard, id: ConnId, qos: QoS, packet_id: u16) {
    publish_to(shard, id, "t", qos, packet_id);
}

fn publish_to(shard: &mut Shard, id: ConnId, topic: &str, qos: QoS, packet_id: u16) {
    let none = PropertyBuf::new();
    tell(
        shard,
        id,
        &Packet::Publish(Publish {
            dup: false,
            qos,
            retain: false,
            topic,
            packet_id,
            properties: none.as_properties(),
            payload: b"x",
        }),
    );
}

/// A shard with what the store has, which is one session.
fn restored(store: &mut Memory) -> Shard {
    let mut shard = shard();
    let mut restorer = Restorer::new(shard.hub.directory.clone(), WALL);
    let mut restored = Vec::new();
    store
        .recover(&mut |op: Op<'_>| restored.extend(restorer.take(&op)))
        .unwrap();
    restored.extend(restorer.finish());
    assert_eq!(restored.len(), 1);
    for session in restored {
        assert!(shard.restore(session, NOW));
    }
    shard
}

/// Commits what was emitted; returns what that was.
fn commit(shard: &mut Shard, store: &mut Memory) -> Vec<String> {
    let Some(operations) = shard.take_operations(NOW) else {
        return Vec::new();
    };
    let ops = operations
        .batch
        .iter()
        .map(|op| format!("{op:?}"))
        .collect();
    store.commit(&operations.batch).unwrap();
    shard.committed(operations.ticket, NOW);
    ops
}

/// A shard in which messages wait for their receivers.
fn patient() -> (Shard, Memory) {
    let shard = shard_of(|config| config.durability.patience = Nanos::from_secs(1));
    (shard, Memory::default())
}

/// A subscriber whose session survives, with its answers taken.
fn subscriber(shard: &mut Shard, store: &mut Memory, client_id: &str, qos: QoS) -> ConnId {
    let id = connect(shard, client_id, 100);
    subscribe(shard, id, qos);
    commit(shard, store);
    leaving(shard, id);
    id
}

/// A patient shard with a subscriber whose session survives and a publisher.
fn patient_pair(qos: QoS) -> (Shard, Memory, ConnId, ConnId) {
    let (mut shard, mut store) = patient();
    let kept = subscriber(&mut shard, &mut store, "kept", qos);
    let publisher = connect(&mut shard, "publisher", 0);
    leaving(&mut shard, publisher);
    (shard, store, kept, publisher)
}

fn acknowledge(shard: &mut Shard, id: ConnId, packet_id: u16) {
    let ack = Ack::new(packet_id, ReasonCode::Success);
    tell(shard, id, &Packet::PubAck(ack));
}

#[test]
fn a_message_that_all_have_acknowledged_is_neither_stored_nor_waited_for() {
    let (mut shard, mut store, kept, publisher) = patient_pair(QoS::AtLeastOnce);
    publish(&mut shard, publisher, QoS::AtLeastOnce, 1);
    assert!(commit(&mut shard, &mut store).is_empty());
    assert_eq!(leaving(&mut shard, publisher), []);
    assert_eq!(leaving(&mut shard, kept), [PacketType::Publish]);
    acknowledge(&mut shard, kept, 1);
    assert_eq!(leaving(&mut shard, publisher), [PacketType::PubAck]);
    // Nothing of it is stored when something else is.
    subscribe_to(&mut shard, kept, "other", QoS::AtLeastOnce);
    let ops = commit(&mut shard, &mut store);
    assert_eq!(ops.len(), 1, "{ops:?}");
    assert_eq!(shard.uncommitted(), 0);
}

#[test]
fn who_has_not_acknowledged_gets_it_after_a_crash() {
    let (mut shard, mut store) = patient();
    let quick = connect(&mut shard, "quick", 0);
    subscribe(&mut shard, quick, QoS::AtLeastOnce);
    subscriber(&mut shard, &mut store, "slow", QoS::AtLeastOnce);
    let publisher = connect(&mut shard, "publisher", 0);
    leaving(&mut shard, publisher);
    publish(&mut shard, publisher, QoS::AtLeastOnce, 1);
    acknowledge(&mut shard, quick, 1);
    assert!(commit(&mut shard, &mut store).is_empty());
    assert_eq!(leaving(&mut shard, publisher), []);
    // Until then they wait for no more than that.
    let due = shard.next_timeout().unwrap();
    assert!(due <= NOW + Nanos::from_secs(1));
    let operations = (0..9).find_map(|_| shard.take_operations(due)).unwrap();
    store.commit(&operations.batch).unwrap();
    shard.committed(operations.ticket, due);
    assert_eq!(leaving(&mut shard, publisher), [PacketType::PubAck]);
    let mut again = restored(&mut store);
    let slow = connect(&mut again, "slow", 100);
    commit(&mut again, &mut store);
    let left = leaving(&mut again, slow);
    assert_eq!(left, [PacketType::ConnAck, PacketType::Publish]);
}

/// [MQTT-4.6.0-2]: a message that is needless waits with its acknowledgement for
/// those before it.
#[test]
fn acknowledgements_stay_in_their_order() {
    let (mut shard, mut store) = patient();
    let slow = connect(&mut shard, "slow", 100);
    subscribe_to(&mut shard, slow, "s", QoS::AtLeastOnce);
    let kept = subscriber(&mut shard, &mut store, "kept", QoS::AtLeastOnce);
    let publisher = connect(&mut shard, "publisher", 0);
    let other = connect(&mut shard, "other", 0);
    for id in [publisher, other] {
        leaving(&mut shard, id);
    }
    publish_to(&mut shard, publisher, "s", QoS::AtLeastOnce, 1);
    publish(&mut shard, publisher, QoS::AtLeastOnce, 2);
    publish(&mut shard, other, QoS::AtLeastOnce, 1);
    acknowledge(&mut shard, kept, 1);
    acknowledge(&mut shard, kept, 2);
    assert_eq!(leaving(&mut shard, publisher), []);
    assert_eq!(leaving(&mut shard, other), [PacketType::PubAck]);
    // What is asked for cannot wait, nor can what came before.
    subscribe_to(&mut shard, kept, "more", QoS::AtLeastOnce);
    let ops = commit(&mut shard, &mut store);
    assert_eq!(ops.len(), 4, "message, entry, sent, subscription: {ops:?}");
    let both = [PacketType::PubAck, PacketType::PubAck];
    assert_eq!(leaving(&mut shard, publisher), both);
}

/// Two shards: on the first a subscriber whose session survives, on the second a
/// publisher.
struct Two {
    shards: [Shard; 2],
    subscriber: ConnId,
    publisher: ConnId,
    store: Memory,
}

impl Two {
    fn new() -> Self {
        let mut config = Config {
            sys_interval: None,
            ..Config::default()
        };
        config.durability.patience = Nanos::from_secs(1);
        let (directory, config) = (Directory::new(2), Arc::new(config));
        let mut shards = [0, 1].map(|index| {
            let mut shard = Shard::new(directory.clone(), index, config.clone(), NOW);
            shard.attach_store(WALL);
            shard
        });
        let mut store = Memory::default();
        let subscriber = subscriber(&mut shards[0], &mut store, "kept", QoS::AtLeastOnce);
        // Without an identifier it stays where it is.
        let publisher = connect(&mut shards[1], "", 0);
        leaving(&mut shards[1], publisher);
        Self {
            shards,
            subscriber,
            publisher,
            store,
        }
    }

    fn publish(&mut self, packet_id: u16) {
        publish(
            &mut self.shards[1],
            self.publisher,
            QoS::AtLeastOnce,
            packet_id,
        );
    }

    /// Ends the turn of a shard; what it hands over, and what it writes to the other.
    fn turn(&mut self, shard: usize) -> Vec<String> {
        let ops = commit(&mut self.shards[shard], &mut self.store);
        let mut mail = Vec::new();
        let other = 1 - shard;
        self.shards[shard].take_outbox(other as u16, &mut mail);
        self.shards[other].remote(mail.into_iter(), NOW);
        ops
    }

    /// What the subscriber gets after a crash.
    fn after_a_crash(mut self) -> Vec<PacketType> {
        let mut again = restored(&mut self.store);
        let kept = connect(&mut again, "kept", 100);
        commit(&mut again, &mut self.store);
        leaving(&mut again, kept)
    }
}

#[test]
fn what_a_receiver_on_another_shard_has_acknowledged_is_not_stored_either() {
    let mut two = Two::new();
    two.publish(1);
    assert!(two.turn(1).is_empty());
    assert_eq!(leaving(&mut two.shards[1], two.publisher), []);
    let got = leaving(&mut two.shards[0], two.subscriber);
    assert_eq!(got, [PacketType::Publish]);
    assert!(two.turn(0).is_empty());
    acknowledge(&mut two.shards[0], two.subscriber, 1);
    assert!(two.turn(0).is_empty());
    let answer = leaving(&mut two.shards[1], two.publisher);
    assert_eq!(answer, [PacketType::PubAck]);
    // Also when everything is handed over.
    for shard in [0, 1] {
        two.shards[shard].shut_down(NOW);
        let ops = two.turn(shard);
        assert!(ops.iter().all(|op| op.starts_with("Session")), "{ops:?}");
        assert_eq!(two.shards[shard].uncommitted(), 0);
    }
    assert_eq!(two.after_a_crash(), [PacketType::ConnAck]);
}

#[test]
fn what_was_said_of_it_on_its_own_shard_is_said_to_the_end() {
    for acknowledged in [false, true] {
        let mut two = Two::new();
        two.publish(1);
        two.turn(1);
        leaving(&mut two.shards[0], two.subscriber);
        // A subscription hands over that it was sent.
        subscribe_to(&mut two.shards[0], two.subscriber, "more", QoS::AtLeastOnce);
        let ops = two.turn(0);
        assert!(ops[0].starts_with("Sent"), "{ops:?}");
        if acknowledged {
            acknowledge(&mut two.shards[0], two.subscriber, 1);
            subscribe_to(
                &mut two.shards[0],
                two.subscriber,
                "even more",
                QoS::AtLeastOnce,
            );
            let ops = two.turn(0);
            assert!(ops[0].starts_with("Done"), "{ops:?}");
        }
        assert_eq!(leaving(&mut two.shards[1], two.publisher), []);
        two.shards[1].shut_down(NOW);
        let ops = two.turn(1);
        assert_eq!(ops.len(), 2, "message, entry: {ops:?}");
        let redelivered = two.after_a_crash().contains(&PacketType::Publish);
        assert_eq!(redelivered, !acknowledged);
    }
}

/// What is copied for another session refers to a content of the publisher's shard.
#[test]
fn what_is_copied_stays_where_its_publisher_is() {
    for order in [[0, 1], [1, 0]] {
        let mut two = Two::new();
        two.publish(1);
        assert!(two.turn(1).is_empty());
        leaving(&mut two.shards[0], two.subscriber);
        let hub = &mut two.shards[0].hub;
        let slot = hub.sessions.named("kept").unwrap();
        let session = hub.sessions.get(slot).unwrap();
        let entry = session.window.unacknowledged().next().unwrap().entry;
        Journal::insist(&mut hub.journal, entry);
        assert_ne!(copy(&mut two.shards[0], "kept", false), 0);
        acknowledge(&mut two.shards[0], two.subscriber, 1);
        for shard in [0, 1].into_iter().chain(order) {
            two.turn(shard);
        }
        assert_eq!(leaving(&mut two.shards[1], two.publisher), []);
        for shard in order {
            two.shards[shard].shut_down(NOW);
            two.turn(shard);
        }
        assert_eq!(two.store.stats().entries, 1, "the copy: {order:?}");
        assert!(two.after_a_crash().contains(&PacketType::Publish));
    }
}

#[test]
fn nothing_is_stored_for_a_session_that_has_ended_on_another_shard() {
    for delivered in [false, true] {
        let mut two = Two::new();
        two.publish(1);
        if delivered {
            two.turn(1);
        }
        let kept = two.subscriber;
        two.shards[0].closed(kept, "gone", NOW);
        assert!(two.shards[0].forget("kept", NOW));
        two.turn(0);
        two.turn(1);
        two.turn(0);
        let answer = leaving(&mut two.shards[1], two.publisher);
        assert_eq!(answer, [PacketType::PubAck]);
        two.shards[1].shut_down(NOW);
        two.turn(1);
        let stats = two.store.stats();
        assert_eq!((stats.sessions, stats.entries, stats.messages), (0, 0, 0));
    }
}

#[test]
fn what_was_handed_over_is_acknowledged_when_it_is_needless() {
    let (mut shard, mut store) = (shard(), Memory::default());
    let kept = subscriber(&mut shard, &mut store, "kept", QoS::AtLeastOnce);
    let publisher = connect(&mut shard, "publisher", 0);
    leaving(&mut shard, publisher);
    publish(&mut shard, publisher, QoS::AtLeastOnce, 1);
    let handed = shard.take_operations(NOW).unwrap();
    acknowledge(&mut shard, kept, 1);
    assert_eq!(leaving(&mut shard, publisher), [PacketType::PubAck]);
    store.commit(&handed.batch).unwrap();
    shard.committed(handed.ticket, NOW);
    let ops = commit(&mut shard, &mut store);
    assert!(ops[0].starts_with("Done"), "{ops:?}");
    assert_eq!(leaving(&mut shard, publisher), []);
}

#[test]
fn only_messages_with_qos_1_wait_for_receivers() {
    let (mut shard, mut store, kept, publisher) = patient_pair(QoS::ExactlyOnce);
    // Identifiers of QoS 2, at both ends.
    publish(&mut shard, publisher, QoS::ExactlyOnce, 1);
    assert_eq!(commit(&mut shard, &mut store).len(), 3);
    assert_eq!(leaving(&mut shard, publisher), [PacketType::PubRec]);
    assert_eq!(leaving(&mut shard, kept), [PacketType::Publish]);
    let surviving = connect(&mut shard, "surviving", 100);
    commit(&mut shard, &mut store);
    leaving(&mut shard, surviving);
    let one = subscriber(&mut shard, &mut store, "one", QoS::AtLeastOnce);
    shard.closed(kept, "gone", NOW);
    commit(&mut shard, &mut store);
    let publish_with = |shard: &mut Shard, id, retain: bool, packet_id| {
        let mut properties = PropertyBuf::new();
        if !retain {
            properties.push_user("priority", "1").unwrap();
        }
        let publish = Publish {
            dup: false,
            qos: QoS::AtLeastOnce,
            retain,
            topic: "t",
            packet_id,
            properties: properties.as_properties(),
            payload: b"x",
        };
        tell(shard, id, &Packet::Publish(publish));
    };
    // What is retained, and what is urgent.
    for (retain, packet_id) in [(true, 2), (false, 3)] {
        publish_with(&mut shard, publisher, retain, packet_id);
        assert!(!commit(&mut shard, &mut store).is_empty());
        assert_eq!(leaving(&mut shard, publisher), [PacketType::PubAck]);
    }
    leaving(&mut shard, one);
}

#[test]
fn a_content_that_a_neighbour_is_to_get_later_stays() {
    let (mut shard, mut store, kept, publisher) = patient_pair(QoS::AtLeastOnce);
    publish(&mut shard, publisher, QoS::AtLeastOnce, 1);
    let entry = copy(&mut shard, "kept", false);
    assert_ne!(entry, 0);
    acknowledge(&mut shard, kept, 1);
    assert_eq!(leaving(&mut shard, publisher), []);
    subscribe_to(&mut shard, kept, "other", QoS::AtLeastOnce);
    let ops = commit(&mut shard, &mut store);
    assert_eq!(ops.len(), 3, "message, the copy, subscription: {ops:?}");
    assert_eq!(leaving(&mut shard, publisher), [PacketType::PubAck]);
}

/// Knows no other broker, and what was written to any.
#[derive(Debug, Default)]
struct Alone {
    forwarded: Mutex<Vec<u64>>,
}

impl Interest for Alone {
    fn subscribed(&self, _: &str, _: bool) {}
    fn unsubscribed(&self, _: &str, _: bool) {}
}

impl MessageNames for Alone {
    fn origin(&self) -> NonZeroU32 {
        NonZeroU32::MIN
    }
    fn is_new(&self, _: MessageName, _: bool) -> bool {
        true
    }
    fn clock(&self) -> u64 {
        0
    }
    fn note(&self, _: MessageName) {}
    fn was_origin(&self, _: NonZeroU32) {}
}

impl SessionTransfers for Alone {
    fn forwarded(&self, number: u64) {
        self.forwarded.lock().unwrap().push(number);
    }
}

impl Federation for Alone {
    fn admit(&self, _: Newcomer<'_>) -> Result<(), Unwelcome> {
        Ok(())
    }
    fn link(&self, _: ConnId, _: &str, _: LinkNews<'_>) {}
    fn name(&self) -> &str {
        "own"
    }
}

/// After a restart a broker recognises the messages that its clients published before, whichever shard
/// has stored something.
#[test]
fn each_shard_stores_the_origin_of_names_with_its_first_message() {
    let mut two = Two::new();
    let directory = two.shards[1].hub.directory.clone();
    directory.set_federation(Arc::new(Alone::default()));
    two.publish(1);
    two.shards[1].shut_down(NOW);
    let ops = two.turn(1);
    let is_origin = |op: &String| op.contains("mesh/origins");
    assert!(ops.iter().any(is_origin), "{ops:?}");
}

/// What a neighbour has forwarded waits for a commit, which turns out to be needless.
#[test]
fn what_was_forwarded_is_acknowledged_when_nothing_has_to_be_committed() {
    let (mut shard, mut store) = patient();
    let alone = Arc::new(Alone::default());
    let kept = subscriber(&mut shard, &mut store, "kept", QoS::AtLeastOnce);
    let publisher = connect(&mut shard, "publisher", 0);
    leaving(&mut shard, publisher);
    shard.hub.directory.set_federation(alone.clone());
    assert!(shard.hub.has_custody());
    // What its names begin with is stored with the first of them.
    publish(&mut shard, publisher, QoS::AtLeastOnce, 9);
    let due = NOW + Nanos::from_secs(1);
    let first = (0..9).find_map(|_| shard.take_operations(due)).unwrap();
    store.commit(&first.batch).unwrap();
    shard.committed(first.ticket, NOW);
    let session = shard.hub.sessions.named("kept");
    let session = session
        .and_then(|slot| shard.hub.sessions.get(slot))
        .unwrap();
    let packet_id = session.window.next_id();
    publish(&mut shard, publisher, QoS::AtLeastOnce, 1);
    let ticket = shard.hub.journal.as_ref().unwrap().latest();
    let custody = shard.hub.links.custody.as_mut().unwrap();
    custody.forwarded.push_back((ticket, 7));
    shard.hub.custody_committed(NOW);
    assert!(alone.forwarded.lock().unwrap().is_empty());
    assert!(shard.take_operations(NOW).is_none());
    acknowledge(&mut shard, kept, packet_id);
    assert!(shard.take_operations(NOW).is_none());
    assert_eq!(*alone.forwarded.lock().unwrap(), [7]);
}

/// What a neighbour has not acknowledged is copied for another one while none of it is
/// handed over, and is with one of both in all that a store may have then.
#[test]
fn what_goes_to_another_neighbour_is_never_with_neither() {
    for moves in [false, true] {
        let (mut shard, mut store) = patient();
        let publisher = connect(&mut shard, "publisher", 0);
        leaving(&mut shard, publisher);
        shard
            .hub
            .directory
            .set_federation(Arc::new(Alone::default()));
        for peer in ["$mesh/b", "$mesh/c"] {
            connect(&mut shard, peer, u32::MAX);
            commit(&mut shard, &mut store);
        }
        shard.link_interest("b", &["t".into()], &[]);
        commit(&mut shard, &mut store);
        publish(&mut shard, publisher, QoS::AtLeastOnce, 1);
        assert!(commit(&mut shard, &mut store).is_empty());
        // In another turn, and so handed over later.
        let later = NOW + Nanos::from_millis(900);
        shard.link_copy("b", "c", moves, later);
        assert!(shard.take_operations(later).is_none());
        let waits = |store: &mut Memory| -> Vec<(u64, String)> {
            let (mut topics, mut all) = (BTreeMap::new(), Vec::new());
            let recovered = store.recover(&mut |op| match op {
                Op::Message { message, content } => {
                    topics.insert(message, content.topic.to_owned());
                }
                Op::Entry(entry) => all.push((entry.session, topics[&entry.message].clone())),
                _ => {}
            });
            recovered.unwrap();
            all
        };
        let due = NOW + Nanos::from_secs(1);
        let first = (0..9).find_map(|_| shard.take_operations(due)).unwrap();
        store.commit(&first.batch).unwrap();
        assert_eq!(waits(&mut store).len(), 1, "moves: {moves}");
        shard.committed(first.ticket, due);
        assert_eq!(leaving(&mut shard, publisher), [PacketType::PubAck]);
        let due = later + Nanos::from_secs(1);
        let second = (0..9).find_map(|_| shard.take_operations(due)).unwrap();
        store.commit(&second.batch).unwrap();
        let left = waits(&mut store);
        assert_eq!(left.len(), if moves { 1 } else { 2 }, "{left:?}");
        assert!(left.iter().all(|(_, topic)| topic == "t"));
    }
}

/// As links do when what waits for one goes by another.
fn copy(shard: &mut Shard, client_id: &str, insists: bool) -> u64 {
    let hub = &mut shard.hub;
    let slot = hub.sessions.named(client_id).unwrap();
    let session = hub.sessions.get(slot).unwrap();
    let delivery = session.window.unacknowledged().next().unwrap();
    let message = delivery.message.clone();
    let reception = Reception {
        qos: delivery.qos,
        retain: false,
        number: None,
        subscription_ids: &[],
    };
    let (journal, directory) = (&mut hub.journal, &hub.directory);
    Journal::keep_retained(journal, directory, &message, session, reception, insists)
}

#[test]
fn what_moves_to_another_session_is_stored_whatever_the_trouble() {
    let (mut shard, mut store) = (shard(), Memory::default());
    subscriber(&mut shard, &mut store, "kept", QoS::AtLeastOnce);
    subscriber(&mut shard, &mut store, "exactly", QoS::ExactlyOnce);
    let publisher = connect(&mut shard, "publisher", 0);
    publish(&mut shard, publisher, QoS::ExactlyOnce, 1);
    commit(&mut shard, &mut store);
    shard.store_failed(StoreTrouble::Full, NOW);
    assert_eq!(copy(&mut shard, "kept", false), 0);
    assert_ne!(copy(&mut shard, "kept", true), 0);
    // With QoS 2 an identifier must not be another's after a crash.
    assert_ne!(copy(&mut shard, "exactly", false), 0);
}

/// [MQTT-4.3.3-10]: it is acknowledged again, and not before it is safe.
#[test]
fn a_repetition_is_acknowledged_when_its_message_is_safe() {
    for listener in [0, 1] {
        let mut shard = shard_of(|config| {
            let durability = &mut config.durability;
            durability.listeners = vec![None, Some(Durability::None)];
            durability.rules = vec![DurabilityRule {
                filter: "t".into(),
                durability: Durability::Batched,
            }];
        });
        let mut store = Memory::default();
        subscriber(&mut shard, &mut store, "kept", QoS::ExactlyOnce);
        let connect = |shard: &mut Shard| connect_at(shard, listener, "p", None, 100, None);
        let before = connect(&mut shard);
        commit(&mut shard, &mut store);
        leaving(&mut shard, before);
        publish(&mut shard, before, QoS::ExactlyOnce, 1);
        let handed = shard.take_operations(NOW).unwrap();
        shard.closed(before, "lost", NOW);
        let again = connect(&mut shard);
        publish(&mut shard, again, QoS::ExactlyOnce, 1);
        let early = leaving(&mut shard, again);
        assert!(!early.contains(&PacketType::PubRec), "{early:?}");
        store.commit(&handed.batch).unwrap();
        shard.committed(handed.ticket, NOW);
        commit(&mut shard, &mut store);
        assert!(leaving(&mut shard, again).contains(&PacketType::PubRec));
        assert_eq!(shard.stats().publishes_received_qos2, 1);
    }
}

#[test]
fn a_store_that_fails_refuses_nothing_that_is_needless() {
    let (mut shard, mut store) = patient();
    let slow = connect(&mut shard, "slow", 100);
    subscribe_to(&mut shard, slow, "s", QoS::AtLeastOnce);
    let kept = subscriber(&mut shard, &mut store, "kept", QoS::AtLeastOnce);
    let publisher = connect(&mut shard, "publisher", 0);
    leaving(&mut shard, publisher);
    publish_to(&mut shard, publisher, "s", QoS::AtLeastOnce, 1);
    publish(&mut shard, publisher, QoS::AtLeastOnce, 2);
    publish(&mut shard, publisher, QoS::AtLeastOnce, 3);
    acknowledge(&mut shard, kept, 1);
    shard.store_failed(StoreTrouble::Full, NOW);
    assert_eq!(leaving(&mut shard, publisher), [PacketType::PubAck; 3]);
    assert_eq!(shard.stats().refused_store, 2);
    // Nothing waits any more that could make room.
    assert!(!commit(&mut shard, &mut store).is_empty());
}

#[test]
fn a_full_store_refuses_what_is_new_and_takes_what_goes_on() {
    let (mut shard, mut store) = (shard(), Memory::default());
    let kept = subscriber(&mut shard, &mut store, "kept", QoS::ExactlyOnce);
    let publisher = connect(&mut shard, "publisher", 0);
    leaving(&mut shard, publisher);
    // It was accepted before the store said so.
    publish(&mut shard, publisher, QoS::ExactlyOnce, 1);
    shard.store_full(Some(StoreTrouble::Full), NOW);
    publish(&mut shard, publisher, QoS::AtLeastOnce, 2);
    assert_eq!(shard.stats().refused_store, 1);
    let ops = commit(&mut shard, &mut store);
    let entries = ops.iter().filter(|op| op.starts_with("Entry"));
    assert_eq!(entries.count(), 1, "{ops:?}");
    assert!(leaving(&mut shard, publisher).contains(&PacketType::PubRec));
    // It goes all the way to its receiver.
    commit(&mut shard, &mut store);
    assert!(leaving(&mut shard, kept).contains(&PacketType::Publish));
    let ack = |packet_id| Ack {
        packet_id,
        reason: ReasonCode::Success,
        properties: Default::default(),
    };
    tell(&mut shard, kept, &Packet::PubRec(ack(1)));
    commit(&mut shard, &mut store);
    assert_eq!(leaving(&mut shard, kept), [PacketType::PubRel]);
    // A commit is no sign of room.
    publish(&mut shard, publisher, QoS::AtLeastOnce, 3);
    assert_eq!(shard.stats().refused_store, 2);
    shard.store_full(None, NOW);
    publish(&mut shard, publisher, QoS::AtLeastOnce, 4);
    assert_eq!(shard.stats().refused_store, 2);
    assert!(!commit(&mut shard, &mut store).is_empty());
}

#[test]
fn sessions_are_caught_up_with_when_commits_succeed_though_the_store_is_full() {
    let (mut shard, mut store) = (shard(), Memory::default());
    let kept = subscriber(&mut shard, &mut store, "kept", QoS::AtLeastOnce);
    let publisher = connect(&mut shard, "publisher", 0);
    publish(&mut shard, publisher, QoS::AtLeastOnce, 1);
    let handed = shard.take_operations(NOW).unwrap();
    shard.store_failed(StoreTrouble::Full, NOW);
    shard.closed(kept, "lost", NOW);
    assert!(shard.take_operations(NOW).is_none());
    shard.store_full(Some(StoreTrouble::Full), NOW);
    store.commit(&handed.batch).unwrap();
    shard.committed(handed.ticket, NOW);
    let ops = commit(&mut shard, &mut store);
    assert!(ops.iter().any(|op| op.starts_with("Session(")), "{ops:?}");
}

#[test]
fn a_store_that_cannot_be_made_larger_is_not_said_to_be_full() {
    let (mut shard, mut store) = (shard(), Memory::default());
    subscriber(&mut shard, &mut store, "kept", QoS::AtLeastOnce);
    let publisher = connect(&mut shard, "publisher", 0);
    leaving(&mut shard, publisher);
    for (why, reason) in [
        (StoreTrouble::Full, ReasonCode::QuotaExceeded),
        (
            StoreTrouble::Failed,
            ReasonCode::ImplementationSpecificError,
        ),
    ] {
        shard.store_full(Some(why), NOW);
        publish(&mut shard, publisher, QoS::AtLeastOnce, 1);
        let bytes = written(&mut shard, publisher);
        let packets = frames(&bytes).map(|frame| Packet::decode(frame, Version::V5).unwrap());
        let reasons = packets.map(|packet| match packet {
            Packet::PubAck(ack) => ack.reason,
            other => panic!("{other:?}"),
        });
        assert_eq!(reasons.collect::<Vec<_>>(), [reason]);
    }
}

#[test]
fn who_leaves_while_commits_fail_has_left_then() {
    let (mut shard, mut store) = (shard(), Memory::default());
    subscriber(&mut shard, &mut store, "kept", QoS::AtLeastOnce);
    let mut delay = PropertyBuf::new();
    delay.push_number(PropertyId::WillDelayInterval, 30);
    let will = Will {
        topic: "gone",
        payload: b"x",
        qos: QoS::AtLeastOnce,
        retain: false,
        properties: delay.as_properties(),
    };
    let mortal = connect_with(&mut shard, "mortal", None, 100, Some(will));
    commit(&mut shard, &mut store);
    let publisher = connect(&mut shard, "publisher", 0);
    publish(&mut shard, publisher, QoS::AtLeastOnce, 1);
    let failed = shard.take_operations(NOW).unwrap();
    shard.store_failed(StoreTrouble::Full, NOW);
    let second = |seconds| NOW + Nanos::from_secs(seconds);
    shard.closed(mortal, "lost", second(1));
    assert!(shard.take_operations(second(1)).is_none());
    store.commit(&failed.batch).unwrap();
    shard.committed(failed.ticket, second(20));
    let operations = shard.take_operations(second(20)).unwrap();
    store.commit(&operations.batch).unwrap();
    let wall = |at: Nanos| Some(WALL + at.0);
    let mut seen = (None, None);
    store
        .recover(&mut |op: Op<'_>| match op {
            Op::Session(it) if it.client_id == "mortal" => seen.0 = it.detached,
            Op::Will(it) => seen.1 = it.due,
            _ => {}
        })
        .unwrap();
    assert_eq!(seen, (wall(second(1)), wall(second(31))));
}

#[test]
fn what_stays_is_handed_over_before_the_end() {
    let (mut shard, mut store) = patient();
    subscriber(&mut shard, &mut store, "kept", QoS::AtLeastOnce);
    let publisher = connect(&mut shard, "publisher", 0);
    publish(&mut shard, publisher, QoS::AtLeastOnce, 1);
    assert!(commit(&mut shard, &mut store).is_empty());
    shard.shut_down(NOW);
    let ops = commit(&mut shard, &mut store);
    assert!(ops.iter().any(|op| op.starts_with("Entry")), "{ops:?}");
    let mut again = restored(&mut store);
    let kept = connect(&mut again, "kept", 100);
    commit(&mut again, &mut store);
    assert!(leaving(&mut again, kept).contains(&PacketType::Publish));
}

#[test]
fn publishers_that_wait_go_on_when_receivers_have_acknowledged() {
    let mut shard = shard_of(|config| {
        config.durability.patience = Nanos::from_secs(1);
        config.durability.max_uncommitted = 80;
    });
    let mut store = Memory::default();
    let kept = subscriber(&mut shard, &mut store, "kept", QoS::AtLeastOnce);
    let publisher = connect(&mut shard, "publisher", 0);
    publish(&mut shard, publisher, QoS::AtLeastOnce, 1);
    publish(&mut shard, publisher, QoS::AtLeastOnce, 2);
    assert!(shard.hub.outlets.conn(publisher).unwrap().paused > 0);
    assert!(commit(&mut shard, &mut store).is_empty());
    acknowledge(&mut shard, kept, 1);
    acknowledge(&mut shard, kept, 2);
    assert_eq!(shard.hub.outlets.conn(publisher).unwrap().paused, 0);
}

#[test]
fn what_survives_waits_for_its_commit_and_nothing_else_does() {
    use PacketType::{ConnAck, PubAck, SubAck};
    let (mut shard, mut store) = (shard(), Memory::default());
    let kept = connect(&mut shard, "kept", 100);
    let publisher = connect(&mut shard, "publisher", 0);
    assert_eq!(leaving(&mut shard, kept), []);
    assert_eq!(leaving(&mut shard, publisher), [ConnAck]);
    // Nobody is there to keep it.
    publish(&mut shard, publisher, QoS::AtLeastOnce, 1);
    assert_eq!(leaving(&mut shard, publisher), [PubAck]);
    commit(&mut shard, &mut store);
    assert_eq!(leaving(&mut shard, kept), [ConnAck]);
    subscribe(&mut shard, kept, QoS::AtLeastOnce);
    assert_eq!(leaving(&mut shard, kept), []);
    commit(&mut shard, &mut store);
    assert_eq!(leaving(&mut shard, kept), [SubAck]);
    // The delivery does not wait, the acknowledgement does.
    publish(&mut shard, publisher, QoS::AtLeastOnce, 2);
    assert_eq!(leaving(&mut shard, kept), [PacketType::Publish]);
    assert_eq!(leaving(&mut shard, publisher), []);
    let ops = commit(&mut shard, &mut store);
    assert_eq!(ops.len(), 3, "message, entry, sent: {ops:?}");
    assert_eq!(leaving(&mut shard, publisher), [PubAck]);
    assert!(!shard.has_operations());
    // QoS 0 is nothing to be stored.
    publish(&mut shard, publisher, QoS::AtMostOnce, 0);
    assert!(!shard.has_operations());
}

#[test]
fn identifiers_of_qos_2_are_safe_before_they_are_seen() {
    let (mut shard, mut store) = (shard(), Memory::default());
    let kept = connect(&mut shard, "kept", 100);
    subscribe(&mut shard, kept, QoS::ExactlyOnce);
    let publisher = connect(&mut shard, "publisher", 0);
    commit(&mut shard, &mut store);
    leaving(&mut shard, kept);
    publish(&mut shard, publisher, QoS::ExactlyOnce, 1);
    assert_eq!(leaving(&mut shard, kept), []);
    commit(&mut shard, &mut store);
    assert_eq!(leaving(&mut shard, kept), [PacketType::Publish]);
    let received = Ack::new(1, ReasonCode::Success);
    tell(&mut shard, kept, &Packet::PubRec(received));
    assert_eq!(leaving(&mut shard, kept), []);
    commit(&mut shard, &mut store);
    assert_eq!(leaving(&mut shard, kept), [PacketType::PubRel]);
    // What remains after a crash is PUBREL, with the same identifier.
    let mut again = restored(&mut store);
    let kept = connect(&mut again, "kept", 100);
    assert_eq!(leaving(&mut again, kept), []);
    commit(&mut again, &mut store);
    assert_eq!(
        leaving(&mut again, kept),
        [PacketType::ConnAck, PacketType::PubRel]
    );
    tell(&mut again, kept, &Packet::PubComp(received));
    let ops = commit(&mut again, &mut store);
    assert!(ops[0].starts_with("Done"), "{ops:?}");
    // And the next message gets the next identifier.
    let session = again.hub.sessions.named("kept").unwrap();
    assert_eq!(again.hub.sessions.get(session).unwrap().window.next_id(), 2);
}

/// Of a QoS 2 message that is not to survive, the receiver may have the identifier when the
/// broker crashes: it is given to no other message before the receiver has let go of it.
#[test]
fn identifiers_of_messages_that_do_not_survive_are_safe_too() {
    use PacketType::{ConnAck, PubRec, PubRel, Publish};
    let mut shard = shard_of(|config| {
        config.durability.rules = vec![DurabilityRule {
            filter: "light".into(),
            durability: Durability::None,
        }];
    });
    let mut store = Memory::default();
    let kept = subscriber(&mut shard, &mut store, "kept", QoS::ExactlyOnce);
    subscribe_to(&mut shard, kept, "light", QoS::ExactlyOnce);
    let publisher = connect(&mut shard, "publisher", 0);
    commit(&mut shard, &mut store);
    leaving(&mut shard, kept);
    leaving(&mut shard, publisher);
    publish_to(&mut shard, publisher, "light", QoS::ExactlyOnce, 1);
    // Nobody promised its publisher anything.
    assert_eq!(leaving(&mut shard, publisher), [PubRec]);
    assert_eq!(leaving(&mut shard, kept), []);
    let ops = commit(&mut shard, &mut store);
    assert!(!ops.iter().any(|op| op.starts_with("Message")), "{ops:?}");
    assert_eq!(leaving(&mut shard, kept), [Publish]);
    let mut again = restored(&mut store);
    let kept = connect(&mut again, "kept", 100);
    commit(&mut again, &mut store);
    assert_eq!(leaving(&mut again, kept), [ConnAck, PubRel]);
    let session = again.hub.sessions.named("kept").unwrap();
    assert_eq!(again.hub.sessions.get(session).unwrap().window.next_id(), 2);
    // That is all that was left.
    tell(
        &mut again,
        kept,
        &Packet::PubComp(Ack::new(1, ReasonCode::PacketIdentifierNotFound)),
    );
    commit(&mut again, &mut store);
    let mut last = restored(&mut store);
    let kept = connect(&mut last, "kept", 100);
    commit(&mut last, &mut store);
    assert_eq!(leaving(&mut last, kept), [ConnAck]);
}

/// The same for one that waited: it is over like any other when the receiver says so.
#[test]
fn identifiers_of_messages_that_do_not_survive_end_like_others() {
    use PacketType::{ConnAck, PubRel, Publish};
    let mut shard = shard_of(|config| {
        config.limits.max_inflight = 1;
        config.durability.listeners = vec![None, Some(Durability::None)];
    });
    let mut store = Memory::default();
    let kept = subscriber(&mut shard, &mut store, "kept", QoS::ExactlyOnce);
    let publisher = connect_at(&mut shard, 1, "publisher", None, 0, None);
    for packet_id in [1, 2] {
        publish(&mut shard, publisher, QoS::ExactlyOnce, packet_id);
    }
    let success = |packet_id| Ack::new(packet_id, ReasonCode::Success);
    for packet_id in [1, 2] {
        assert_eq!(leaving(&mut shard, kept), []);
        commit(&mut shard, &mut store);
        assert_eq!(leaving(&mut shard, kept), [Publish]);
        tell(&mut shard, kept, &Packet::PubRec(success(packet_id)));
        commit(&mut shard, &mut store);
        assert_eq!(leaving(&mut shard, kept), [PubRel]);
        tell(&mut shard, kept, &Packet::PubComp(success(packet_id)));
    }
    commit(&mut shard, &mut store);
    let mut again = restored(&mut store);
    let kept = connect(&mut again, "kept", 100);
    commit(&mut again, &mut store);
    assert_eq!(leaving(&mut again, kept), [ConnAck]);
}

#[test]
fn what_was_retained_before_a_subscription_comes_after_a_restart_too() {
    let mut shard = shard_of(|config| config.limits.max_inflight = 1);
    let mut store = Memory::default();
    let publisher = connect(&mut shard, "publisher", 0);
    for (topic, packet_id) in [("r/1", 1), ("r/2", 2), ("r/3", 3)] {
        let none = PropertyBuf::new();
        let publish = Publish {
            dup: false,
            qos: QoS::AtLeastOnce,
            retain: true,
            topic,
            packet_id,
            properties: none.as_properties(),
            payload: b"x",
        };
        tell(&mut shard, publisher, &Packet::Publish(publish));
    }
    let kept = connect(&mut shard, "kept", 100);
    commit(&mut shard, &mut store);
    leaving(&mut shard, kept);
    subscribe_to(&mut shard, kept, "r/#", QoS::AtLeastOnce);
    commit(&mut shard, &mut store);
    let publishes = |shard: &mut Shard, id| {
        let left = leaving(shard, id).into_iter();
        left.filter(|it| *it == PacketType::Publish).count()
    };
    assert_eq!(publishes(&mut shard, kept), 1);
    // That one again, as it was not acknowledged, and all of them.
    let mut again = restored(&mut store);
    let kept = connect(&mut again, "kept", 100);
    commit(&mut again, &mut store);
    assert_eq!(publishes(&mut again, kept), 4);
    let session = again.hub.sessions.named("kept").unwrap();
    for packet_id in 1..=4 {
        let ack = Ack::new(packet_id, ReasonCode::Success);
        tell(&mut again, kept, &Packet::PubAck(ack));
    }
    assert!(again.hub.sessions.get(session).unwrap().replays.is_empty());
    commit(&mut again, &mut store);
    // Nothing more is owed.
    let mut last = restored(&mut store);
    let kept = connect(&mut last, "kept", 100);
    commit(&mut last, &mut store);
    assert_eq!(leaving(&mut last, kept), [PacketType::ConnAck]);
}

#[test]
fn while_commits_fail_only_what_has_to_be_stored_is_refused() {
    let (mut shard, mut store) = (shard(), Memory::default());
    let kept = connect(&mut shard, "kept", 100);
    subscribe(&mut shard, kept, QoS::AtLeastOnce);
    let publisher = connect(&mut shard, "publisher", 0);
    commit(&mut shard, &mut store);
    leaving(&mut shard, kept);
    leaving(&mut shard, publisher);
    publish(&mut shard, publisher, QoS::AtLeastOnce, 1);
    let failed = shard.take_operations(NOW).unwrap();
    shard.store_failed(StoreTrouble::Full, NOW);
    assert_eq!(leaving(&mut shard, publisher), [PacketType::PubAck]);
    assert_eq!(shard.stats().refused_store, 1);
    publish(&mut shard, publisher, QoS::AtLeastOnce, 2);
    assert_eq!(shard.stats().refused_store, 2);
    assert_eq!(leaving(&mut shard, kept), [PacketType::Publish]);
    publish(&mut shard, publisher, QoS::AtMostOnce, 0);
    assert_eq!(leaving(&mut shard, kept), [PacketType::Publish]);
    // A session that exists comes back, a new one is refused.
    let kept = connect(&mut shard, "kept", 100);
    assert_eq!(leaving(&mut shard, kept)[0], PacketType::ConnAck);
    connect(&mut shard, "new", 100);
    assert_eq!(shard.stats().refused_connects, 1);
    store.commit(&failed.batch).unwrap();
    shard.committed(failed.ticket, NOW);
    leaving(&mut shard, publisher);
    publish(&mut shard, publisher, QoS::AtLeastOnce, 3);
    assert_eq!(leaving(&mut shard, publisher), []);
    commit(&mut shard, &mut store);
    assert_eq!(leaving(&mut shard, publisher), [PacketType::PubAck]);
}

#[test]
fn refusals_wait_for_nothing_that_has_to_wait() {
    let (mut shard, mut store) = (shard(), Memory::default());
    let kept = connect(&mut shard, "kept", 100);
    subscribe(&mut shard, kept, QoS::ExactlyOnce);
    let publisher = connect(&mut shard, "publisher", 0);
    commit(&mut shard, &mut store);
    leaving(&mut shard, publisher);
    // One that is there comes back, and a new one just before the trouble.
    let back = connect(&mut shard, "kept", 100);
    let new = connect(&mut shard, "new", 100);
    publish(&mut shard, publisher, QoS::ExactlyOnce, 1);
    publish(&mut shard, publisher, QoS::AtLeastOnce, 2);
    publish(&mut shard, publisher, QoS::AtLeastOnce, 3);
    let failed = shard.take_operations(NOW).unwrap();
    assert_eq!(leaving(&mut shard, publisher), []);
    assert_eq!(leaving(&mut shard, back), []);
    shard.store_failed(StoreTrouble::Full, NOW);
    for ended in [back, new] {
        assert!(shard.hub.outlets.conn(ended).is_none());
    }
    assert_eq!(shard.stats().refused_connects, 1);
    let back = connect(&mut shard, "kept", 100);
    assert_eq!(leaving(&mut shard, back)[0], PacketType::ConnAck);
    // Whether the one with QoS 2 is lost is not known.
    let both = [PacketType::PubAck, PacketType::PubAck];
    assert_eq!(leaving(&mut shard, publisher), both);
    assert_eq!(shard.stats().refused_store, 2);
    publish(&mut shard, publisher, QoS::AtLeastOnce, 4);
    assert_eq!(leaving(&mut shard, publisher), [PacketType::PubAck]);
    // Nobody keeps what it subscribes to.
    subscribe(&mut shard, publisher, QoS::AtLeastOnce);
    assert_eq!(leaving(&mut shard, publisher), [PacketType::SubAck]);
    // In its order.
    publish(&mut shard, publisher, QoS::ExactlyOnce, 5);
    assert_eq!(leaving(&mut shard, publisher), []);
    store.commit(&failed.batch).unwrap();
    shard.committed(failed.ticket, NOW);
    commit(&mut shard, &mut store);
    let both = [PacketType::PubRec, PacketType::PubRec];
    assert_eq!(leaving(&mut shard, publisher), both);
}

#[test]
fn what_nobody_could_be_refused_is_stored_once_that_is_possible() {
    let (mut shard, mut store) = (shard(), Memory::default());
    let kept = connect(&mut shard, "kept", 100);
    subscribe(&mut shard, kept, QoS::ExactlyOnce);
    let none = PropertyBuf::new();
    let will = Will {
        topic: "t",
        payload: b"x",
        qos: QoS::ExactlyOnce,
        retain: false,
        properties: none.as_properties(),
    };
    let mortal = connect_with(&mut shard, "mortal", None, 0, Some(will));
    commit(&mut shard, &mut store);
    leaving(&mut shard, kept);
    shard.store_failed(StoreTrouble::Failed, NOW);
    shard.closed(mortal, "gone", NOW);
    // Its identifier has to be safe before it is seen.
    assert_eq!(leaving(&mut shard, kept), []);
    let ops = commit(&mut shard, &mut store);
    assert!(ops.iter().any(|op| op.starts_with("Sent")), "{ops:?}");
    assert_eq!(leaving(&mut shard, kept), [PacketType::Publish]);
}

#[test]
fn nothing_is_said_before_connack() {
    for commit_first in [false, true] {
        let (mut shard, mut store) = (shard(), Memory::default());
        let old = connect(&mut shard, "kept", 100);
        if commit_first {
            commit(&mut shard, &mut store);
            leaving(&mut shard, old);
        }
        connect(&mut shard, "kept", 100);
        let mut outputs = Vec::new();
        shard.take_outputs(&mut outputs);
        let farewell = outputs.iter().find_map(|output| match output {
            Output::Close { conn, tail } if *conn == old => Some(tail),
            _ => None,
        });
        let said = !farewell.unwrap().is_empty();
        assert_eq!(said, commit_first);
    }
}

#[test]
fn what_waits_for_one_user_is_for_no_other() {
    for (user, gets) in [(Some("her"), true), (Some("him"), false), (None, false)] {
        let (mut shard, mut store) = (shard(), Memory::default());
        let kept = connect_as(&mut shard, "kept", Some("her"), 100);
        subscribe(&mut shard, kept, QoS::AtLeastOnce);
        shard.closed(kept, "gone", NOW);
        let publisher = connect(&mut shard, "publisher", 0);
        publish(&mut shard, publisher, QoS::AtLeastOnce, 1);
        commit(&mut shard, &mut store);
        let mut again = restored(&mut store);
        let taken = connect_as(&mut again, "kept", user, 100);
        commit(&mut again, &mut store);
        let left = leaving(&mut again, taken);
        assert_eq!(left.contains(&PacketType::Publish), gets, "{user:?}");
        // Others cannot take it from her, and so after the next start.
        let mut third = restored(&mut store);
        let kept = connect_as(&mut third, "kept", Some("her"), 100);
        commit(&mut third, &mut store);
        let left = leaving(&mut third, kept);
        assert!(left.contains(&PacketType::Publish), "{user:?}");
    }
}

/// What goes to very many clients, in slices, is acknowledged when all of them have it for sure.
#[test]
fn a_crowd_keeps_a_message_before_its_publisher_is_told() {
    const EACH: usize = 400;
    let config = || {
        let mut config = Config {
            sys_interval: None,
            ..Config::default()
        };
        config.durability.patience = Nanos(0);
        Arc::new(config)
    };
    let directory = Directory::new(2);
    let mut store = Memory::default();
    let mut shards = [0, 1].map(|index| {
        let mut shard = Shard::new(directory.clone(), index, config(), NOW);
        shard.attach_store(WALL);
        for n in 0..EACH {
            let client_id = format!("{index} {n}");
            assert!(directory.reserve(&Arc::from(&*client_id), index));
            subscriber(&mut shard, &mut store, &client_id, QoS::AtLeastOnce);
        }
        shard
    });
    let publisher = connect(&mut shards[0], "", 0);
    leaving(&mut shards[0], publisher);
    publish(&mut shards[0], publisher, QoS::AtLeastOnce, 1);
    let (mut slices, mut ops, mut mail) = (0, Vec::new(), Vec::new());
    let budget = || Budget::new(200);
    while let Some(Work::FanOut) = shards[0].work(NOW, &mut budget()) {
        slices += 1;
        ops.extend(commit(&mut shards[0], &mut store));
        let is_over = shards[0].tasks() == 0;
        shards[0].take_outbox(1, &mut mail);
        shards[1].remote(mail.drain(..), NOW);
        commit(&mut shards[1], &mut store);
        let told = leaving(&mut shards[0], publisher);
        assert_eq!(!told.is_empty(), is_over);
    }
    assert!(slices > 10, "{slices}");
    let count = |kind: &str| ops.iter().filter(|op| op.starts_with(kind)).count();
    assert_eq!(count("Entry"), 2 * EACH);
    // What is committed may be needed by nobody any more: then entries need it again.
    assert!((1..=slices).contains(&count("Message")));
}
