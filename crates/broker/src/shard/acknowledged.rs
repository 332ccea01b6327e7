//! The fast path for QoS 1: batches of messages of one client on one topic, without properties, to
//! one subscriber; and batches of acknowledgements of subscribers. Decisions that are the same for
//! a whole batch are made once. Neighbours in a mesh are such publishers and subscribers, with a
//! name for each message.

use punctual_codec::{Frame, PacketType, Publish, QoS, ReasonCode};

use super::row::{self, Row};
use super::run::Run;
use super::{Next, Shard};
use crate::base::connection::ConnId;
use crate::base::delivery::Delivery;
use crate::base::durability::Durability;
use crate::base::name::MessageName;
use crate::egress::{Class, SHARE_FROM};
use crate::hub::{Hub, State};
use crate::index::target::Target;
use crate::journal::Journal;
use crate::journal::keeping::Nature;
use crate::mesh::federation::Service;
use crate::mesh::shard::links;
use crate::message::Parts;
use crate::publication::{Promise, Publication};
use crate::route::Route;
use crate::session::Step;
use crate::shard::acknowledge::pause_or_go_on;
use crate::{Nanos, order};

/// First byte of a PUBLISH with QoS 1, not retained, sent for the first time.
pub(super) const PUBLISH: u8 = Publish::first_byte(false, QoS::AtLeastOnce, false);
/// First byte of a PUBACK.
pub(super) const PUBACK: u8 = 0x40;

impl Shard {
    /// Delivers the publications with QoS 1 at the start of `data` that have the topic of the
    /// publisher's last one and no properties, if one session of this shard is their only receiver.
    /// `None` leaves the first to [`Self::publish_packet`], which makes all decisions that this
    /// function relies on, and makes the refusals. The loop shares one publication, the order on
    /// the topic and the names among all messages of the batch.
    #[expect(
        clippy::too_many_lines,
        reason = "one loop shares a publication, the order and the names among the messages of a run"
    )]
    pub(super) fn publish_acknowledged(
        &mut self,
        id: ConnId,
        first: Frame<'_>,
        data: &[u8],
        now: Nanos,
    ) -> Option<Run> {
        #[cfg(test)]
        if self.one_by_one {
            return None;
        }
        let Self { hub, routes, .. } = self;
        let conn = hub.outlets.conns.get(id.slot)?;
        let is_plain = matches!(conn.state, State::Connected)
            && conn.route_allowed
            && !conn.states
            && hub.config.maximum_qos > 0;
        if !is_plain {
            return None;
        }
        let (publisher, route) = (conn.number, conn.route);
        let mut row = Row::of(first, conn.v5(), conn.link)?;
        let known = row.topic(conn.aliases_in())?;
        let before = row.origin;
        if row.alias.is_some() && before.is_none() {
            return None;
        }
        if routes.find(known, route, &hub.directory) != Some(route) {
            return None;
        }
        let route = routes.get(route);
        let topic = route.topic().as_bytes();
        let target = only_receiver(hub, route, publisher)?;
        if !row.named && hub.service() != Service::Full {
            return None;
        }
        let durability = route.durability.unwrap_or(conn.durability);
        // A message of a neighbour is never refused; it has to wait.
        let refuses = hub.refuses(&target.session, route.queue_full);
        let promise = match (refuses, row.named) {
            (false, _) => Promise::None,
            (true, false) => Promise::Due,
            // It was checked above that the queue has capacity.
            (true, true) => Promise::Made,
        };
        let (from, directory) = (conn.session, hub.directory.clone());
        let parts = Parts {
            topic,
            properties: &[],
            expiry: None,
            payload: &[],
            shared: None,
        };
        let mut publication = Publication {
            qos: QoS::AtLeastOnce,
            promise,
            keeping: hub.keeping(durability, true),
            queue_full: route.queue_full,
            sole: true,
            ..Publication::plain(parts, publisher)
        };
        let to_link = target.session.link;
        let stream = match row.named || !to_link {
            true => None,
            false => order::stream(QoS::AtLeastOnce, Class::Normal, false),
        };
        if let Some(stream) = stream {
            publication.follows = route.order(|order| order.last_given(stream));
        }
        // The key of the last message, while the order of the topic does not include it yet; or 0.
        let mut heard = 0u64;
        let hear = |key| {
            if let (Some(name), false) = (MessageName::from_key(key), to_link) {
                route.order_mut(|order| order.hear(name, QoS::AtLeastOnce));
            }
        };
        // Such a message needs no lookup until it is acknowledged.
        let is_alone = durability == Durability::Batched
            && target.ids().is_empty()
            && !target.numbered
            && !row.named;
        let alone = is_alone.then_some(id);
        publication.keeping.alone = alone;
        let max = hub.config.limits.max_packet_size as usize;
        let mut run = Run {
            messages: 0,
            bytes: 0,
            next: Next::Packet,
        };
        let mut payloads = 0;
        while let Some(packet) = row.packet(&data[run.bytes..])
            && packet.len <= max
            && packet.payload.len() < SHARE_FROM
        {
            publication.parts.payload = packet.payload;
            if let (Some(name), Some(_)) = (packet.name, row.origin) {
                // Messages that are not handled here come next, and have the same origin.
                row.origin = Some(name.origin);
            }
            if let (Some(name), Some(federation)) = (packet.name, directory.federation()) {
                // The message is not refused after this point: each noted message is delivered.
                let comes_next =
                    name.back > 0 && name.key() == heard.wrapping_add(name.back.into());
                if !comes_next {
                    hear(std::mem::take(&mut heard));
                }
                if directory.is_own_will(name)
                    || !comes_next && links::missing(hub, route, name, QoS::AtLeastOnce).is_some()
                    || has_to_wait(hub, route, from, &publication, durability)
                    || !federation.note_new(name)
                {
                    break;
                }
                publication.name = Some(name.into());
            }
            let number = match target.numbered {
                true => publication.named(&directory),
                false => None,
            };
            let receiver = hub.deliver_acknowledged(
                &mut publication,
                target,
                QoS::AtLeastOnce,
                false,
                number,
                now,
            );
            hub.release(std::mem::take(&mut publication.reserved));
            if publication.promise == Promise::Refused {
                break;
            }
            if let (Some(_), Some(given)) = (stream, publication.name) {
                publication.follows = given.parts().1;
            }
            run.messages += 1;
            run.bytes += packet.len;
            payloads += packet.payload.len();
            if let Some(receiver) = receiver.filter(|_| !row.named) {
                hub.wait_for(id, receiver);
            }
            if let Some(name) = packet.name {
                heard = name.key();
            }
            answer(hub, id, &packet, &mut publication, (durability, alone));
            run.next = pause_or_go_on(hub, id);
            if run.next != Next::Packet {
                break;
            }
            publication.promise = promise;
            publication.message = None;
            publication.name = None;
        }
        if let (Some(stream), true) = (stream, publication.follows > 0) {
            route.order_mut(|order| order.give(stream, publication.follows));
        }
        hear(heard);
        if let (Some(alias), Some(origin)) = (row.alias, row.origin)
            && before != row.origin
            && let Some(conn) = hub.outlets.conns.get_mut(id.slot)
        {
            conn.note_origin(alias, origin);
        }
        hub.stats.publishes_received_qos1 += run.messages;
        hub.stats.publish_bytes_received += payloads as u64;
        (run.messages > 0).then_some(run)
    }

    /// Handles the acknowledgements of messages with QoS 1 at the start of `data` that have neither
    /// reason nor properties, and sends messages that waited for window capacity. Returns the
    /// number of acknowledgements, of four bytes each.
    pub(super) fn complete_acknowledged(&mut self, id: ConnId, data: &[u8], now: Nanos) -> usize {
        #[cfg(test)]
        if self.one_by_one {
            return 0;
        }
        let hub = &mut self.hub;
        let Some(conn) = hub.outlets.conns.get(id.slot) else {
            return 0;
        };
        let slot = conn.session;
        if !matches!(conn.state, State::Connected) {
            return 0;
        }
        let Some(session) = hub.sessions.get_mut(slot) else {
            return 0;
        };
        let (mut count, mut done) = (0, 0);
        for packet in data.as_chunks::<4>().0 {
            let [PUBACK, 2, high, low] = *packet else {
                break;
            };
            let packet_id = u16::from_be_bytes([high, low]);
            if packet_id == 0 {
                break;
            }
            let messages = &mut hub.messages;
            let give_back = |it: Delivery| messages.give_back(it.message);
            let window = &mut session.window;
            if let Some(entry) = window.advance_with(packet_id, Step::Ack, Step::Done, give_back) {
                Journal::done(&mut hub.journal, session, entry);
                done += 1;
            } else if window.waits_for_more(packet_id) {
                // This is a protocol error, which is reported where packets are handled one by one.
                break;
            }
            // An unknown identifier is ignored: the acknowledgement may be late, for a message of
            // an earlier connection.
            count += 1;
        }
        if done > 0 {
            hub.stats.inflight_messages -= done;
            if Hub::has_backlog(session) {
                hub.pump(slot, now);
                hub.check_relief(id.slot);
            }
        }
        count
    }
}

/// The only receiver of a route's messages, if it is a session of this shard that takes a batch of
/// them: plain, with QoS above 0, and not as a member of a shared subscription.
fn only_receiver<'r>(hub: &Hub, route: &'r Route, publisher: u64) -> Option<&'r Target> {
    let matched = &route.matched;
    let [(shard, targets)] = &*matched.shards else {
        return None;
    };
    let [target] = &**targets else {
        return None;
    };
    let own = target.no_local && publisher == target.session.number;
    if *shard != hub.index
        || !matched.groups.is_empty()
        || matched.crowd
        || route.rule.is_some()
        || target.qos == QoS::AtMostOnce
        || target.numbered && !target.session.link
        || own
    {
        return None;
    }
    let session = hub.session_of(target)?;
    let is_plain = session.classes & (1 << Class::Normal as u8) != 0 && session.history.is_none();
    let federation = hub.directory.federation();
    let is_relayed = federation.is_some_and(|federation| federation.relay().is_some());
    let journal = hub.journal.as_ref();
    let in_trouble = journal.is_some_and(|it| it.trouble().is_some());
    (is_plain && !is_relayed && !in_trouble).then_some(target)
}

/// Whether a publication of the neighbour with session `from` has to wait.
fn has_to_wait(
    hub: &Hub,
    route: &Route,
    from: u32,
    publication: &Publication<'_>,
    durability: Durability,
) -> bool {
    let topic = publication.parts.topic;
    let nature = Nature {
        qos: QoS::AtLeastOnce,
        retain: false,
        publisher: publication.publisher,
        relayed: false,
    };
    let size = topic.len() + publication.parts.payload.len();
    let promise = (durability, false);
    links::cause_to_wait(hub, from, topic, &route.matched, nature, size, promise).is_some()
}

/// Answers the publisher of a message of a batch, and resets the publication for the next message.
#[inline]
fn answer(
    hub: &mut Hub,
    id: ConnId,
    packet: &row::Packet<'_>,
    publication: &mut Publication<'_>,
    (durability, alone): (Durability, Option<ConnId>),
) {
    if hub.journal.is_none() {
        return hub.send_ack_late(id.slot, PacketType::PubAck, packet.id, ReasonCode::Success);
    }
    answer_once_stored(hub, id, packet, publication, (durability, alone));
}

/// The same where there is a store.
fn answer_once_stored(
    hub: &mut Hub,
    id: ConnId,
    packet: &row::Packet<'_>,
    publication: &mut Publication<'_>,
    (durability, alone): (Durability, Option<ConnId>),
) {
    let keeping = &mut publication.keeping;
    if let Some(name) = packet.name {
        if keeping.awaited {
            hub.directory.names().note(name);
        }
        // The name of the message must survive a restart, too.
        keeping.firm = true;
    }
    if keeping.awaited {
        hub.pace(id, Class::Normal);
    }
    match publication.keeping.light {
        0 => {
            let after = hub.after(&publication.keeping);
            let (kind, reason) = (PacketType::PubAck, ReasonCode::Success);
            hub.answer(id.slot, kind, packet.id, reason, after);
        }
        entry => hub.hold_light(id.slot, packet.id, entry),
    }
    publication.keeping = hub.keeping(durability, true);
    publication.keeping.alone = alone;
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::io::IoSlice;
    use std::sync::Arc;

    use proptest::collection::vec;
    use proptest::prelude::*;
    use punctual_codec::{
        Connect, PacketType, Properties, PropertyBuf, PropertyId, Publish, RawPublish, Split,
        Subscribe, SubscribeOptions, Version, split,
    };
    use punctual_store::{Memory, Store as _};

    use super::*;
    use crate::base::queue_full::QueueFull;
    use crate::{Config, ConnMeta, Directory, Flow, Output, Scope};

    /// Two subscribers that get "a" alone, one that gets "b" with QoS 0, and two
    /// of different protocol versions that get "c".
    const SUBSCRIPTIONS: [(usize, &str, QoS); 6] = [
        (0, "a", QoS::AtLeastOnce),
        (1, "a/2", QoS::ExactlyOnce),
        (0, "b", QoS::AtMostOnce),
        (0, "c", QoS::AtLeastOnce),
        (1, "c", QoS::AtLeastOnce),
        (2, "own", QoS::AtLeastOnce),
    ];
    const TOPICS: [&str; 6] = ["a", "a/2", "b", "c", "own", "nobody"];
    const SUBSCRIBERS: usize = 3;

    #[derive(Debug, Clone)]
    enum Step {
        /// A client publishes several messages on a topic, each with a payload of a given length.
        Publish(usize, usize, usize, Vec<(u8, usize)>),
        /// A subscriber acknowledges a number of its oldest messages, and one that it was not sent.
        Acknowledge(usize, usize, bool),
        /// A client reads at most the given number of bytes.
        Read(usize, usize),
        /// The store writes.
        Commit,
    }

    fn step() -> impl Strategy<Value = Step> {
        let packets = vec((0u8..8, 0usize..200), 1..30);
        prop_oneof![
            4 => (0usize..4, 0..TOPICS.len(), 0usize..5, packets)
                .prop_map(|(who, topic, style, packets)| Step::Publish(who, topic, style, packets)),
            3 => (0..SUBSCRIBERS, 0usize..40, any::<bool>())
                .prop_map(|(who, count, more)| Step::Acknowledge(who, count, more)),
            3 => (0usize..4, 0usize..4000).prop_map(|(who, most)| Step::Read(who, most)),
            1 => Just(Step::Commit),
        ]
    }

    /// Clients of a shard: subscribers first, the last of which also publishes.
    struct Rig {
        shard: Shard,
        /// Whether a client had to wait.
        paused: bool,
        /// Number of messages that clients sent.
        messages: u32,
        store: Option<Memory>,
        now: Nanos,
        clients: Vec<Client>,
    }

    struct Client {
        id: ConnId,
        version: Version,
        open: bool,
        /// Bytes of the client that the shard has not consumed.
        unsent: Vec<u8>,
        /// All bytes sent to the client, and how many of them were searched for packets.
        got: Vec<u8>,
        seen: usize,
        unacknowledged: Vec<u16>,
        next_id: u16,
        /// The last message number that the client received of a publisher, by topic and QoS.
        last: HashMap<(u8, Vec<u8>, QoS), u32>,
        /// Whether a number was not higher than the one before.
        disordered: bool,
    }

    impl Rig {
        fn new(config: &Config, one_by_one: bool, stored: bool, persistent: bool) -> Self {
            let now = Nanos::from_secs(1);
            let mut shard = Shard::new(Directory::new(1), 0, Arc::new(config.clone()), now);
            shard.one_by_one = one_by_one;
            let store = stored.then(|| {
                shard.attach_store(1_700_000_000_000_000_000);
                Memory::default()
            });
            let mut rig = Self {
                shard,
                paused: false,
                messages: 0,
                store,
                now,
                clients: Vec::new(),
            };
            for n in 0..SUBSCRIBERS + 2 {
                rig.connect(n, persistent);
            }
            for (n, filter, qos) in SUBSCRIPTIONS {
                let options = SubscribeOptions {
                    qos,
                    no_local: n == 2 && rig.clients[n].version.is_v5(),
                    ..SubscribeOptions::default()
                };
                let mut bytes = Vec::new();
                let version = rig.clients[n].version;
                let filters = [(filter, options)];
                Subscribe::put(9, Properties::EMPTY, &filters, version, &mut bytes).unwrap();
                rig.send(n, &bytes);
                rig.commit();
                rig.read(n, usize::MAX);
            }
            rig
        }

        fn connect(&mut self, n: usize, persistent: bool) {
            let meta = ConnMeta {
                allow_anonymous: true,
                nonce: [7; 16],
                ..ConnMeta::default()
            };
            let version = match n % 2 {
                0 => Version::V5,
                _ => Version::V311,
            };
            let id = self.shard.open(meta, self.now);
            let mut properties = PropertyBuf::new();
            if version.is_v5() {
                properties.push_number(PropertyId::ReceiveMaximum, 5);
                if n == 0 {
                    properties.push_number(PropertyId::MaximumPacketSize, 140);
                }
                if persistent {
                    properties.push_number(PropertyId::SessionExpiryInterval, 100);
                }
            }
            let client_id = format!("client-{n}");
            let connect = Connect {
                version,
                clean_start: !persistent,
                keep_alive: 0,
                client_id: &client_id,
                will: None,
                username: None,
                password: None,
                properties: properties.as_properties(),
            };
            let mut bytes = Vec::new();
            connect.encode(&mut bytes).unwrap();
            self.clients.push(Client {
                id,
                version,
                open: true,
                unsent: Vec::new(),
                got: Vec::new(),
                seen: 0,
                unacknowledged: Vec::new(),
                next_id: 1,
                last: HashMap::new(),
                disordered: false,
            });
            self.send(n, &bytes);
            self.commit();
            self.read(n, usize::MAX);
        }

        fn commit(&mut self) {
            if let Some(store) = &mut self.store {
                for _ in 0..9 {
                    if let Some(operations) = self.shard.take_operations(self.now) {
                        store.commit(&operations.batch).unwrap();
                        self.shard.committed(operations.ticket, self.now);
                    }
                }
            }
        }

        /// Sends bytes of a client, as far as the shard consumes them.
        fn send(&mut self, n: usize, bytes: &[u8]) {
            let client = &mut self.clients[n];
            client.unsent.extend_from_slice(bytes);
            if client.open {
                let received = self.shard.receive(client.id, &client.unsent, self.now);
                client.unsent.drain(..received.consumed);
                client.open = received.flow != Flow::Closed;
                self.paused |= received.flow == Flow::Pause;
            }
        }

        fn read(&mut self, n: usize, most: usize) {
            let client = &mut self.clients[n];
            let mut slices = [IoSlice::new(&[]); 8];
            let filled = self
                .shard
                .pending(client.id, Scope::All, self.now, &mut slices);
            let all: Vec<u8> = slices[..filled].iter().flat_map(|it| it.to_vec()).collect();
            let taken = all.len().min(most);
            client.got.extend_from_slice(&all[..taken]);
            self.shard.sent(client.id, taken, self.now);
            while let Ok(Split::Frame(frame)) = split(&client.got[client.seen..], u32::MAX) {
                client.seen += frame.bytes.len();
                if frame.kind == PacketType::Publish {
                    let raw = RawPublish::decode(frame.first, frame.body, client.version);
                    let raw = raw.unwrap();
                    if raw.qos != QoS::AtMostOnce {
                        client.unacknowledged.push(raw.packet_id);
                    }
                    let (publisher, rest) = raw.payload.split_first().unwrap();
                    let number = u32::from_be_bytes(rest[..4].try_into().unwrap());
                    let of = (*publisher, raw.topic.to_vec(), raw.qos);
                    let last = client.last.insert(of, number);
                    client.disordered |= last >= Some(number);
                }
            }
        }

        fn take(&mut self, step: &Step) {
            self.now = self.now + Nanos(1000);
            match step {
                Step::Publish(who, topic, style, packets) => {
                    let n = SUBSCRIBERS - 1 + who % 3;
                    let mut bytes = Vec::new();
                    for (kind, len) in packets {
                        let client = &mut self.clients[n];
                        let mut properties = PropertyBuf::new();
                        if *style == 3 && client.version.is_v5() {
                            properties.push_user("unit", "mm").unwrap();
                        }
                        let mut payload = vec![n as u8];
                        payload.extend(self.messages.to_be_bytes());
                        payload.resize(5 + len, *kind);
                        self.messages += 1;
                        let publish = Publish {
                            dup: *kind == 7 && *style != 4,
                            qos: match (*style, *kind) {
                                (2, 0) | (4, _) => QoS::AtMostOnce,
                                _ => QoS::AtLeastOnce,
                            },
                            retain: *style == 1 && *kind == 6,
                            topic: TOPICS[*topic],
                            packet_id: client.next_id,
                            properties: properties.as_properties(),
                            payload: &payload,
                        };
                        client.next_id = client.next_id % 1000 + 1;
                        publish.encode(client.version, &mut bytes).unwrap();
                    }
                    self.send(n, &bytes);
                }
                Step::Acknowledge(n, count, more) => {
                    let client = &mut self.clients[*n];
                    let count = (*count).min(client.unacknowledged.len());
                    let mut bytes = Vec::new();
                    for id in client.unacknowledged.drain(..count) {
                        bytes.extend([PUBACK, 2]);
                        bytes.extend(id.to_be_bytes());
                    }
                    if *more {
                        bytes.extend([PUBACK, 2, 0xFF, 0xF0]);
                    }
                    self.send(*n, &bytes);
                }
                Step::Read(n, most) => self.read(*n, *most),
                Step::Commit => self.commit(),
            }
            self.shard.tick(self.now);
            let mut outputs: Vec<Output> = Vec::new();
            self.shard.take_outputs(&mut outputs);
            for output in outputs {
                if let Output::Resume(id) = output
                    && let Some(n) = self.clients.iter().position(|client| client.id == id)
                {
                    self.send(n, &[]);
                }
            }
        }

        fn end(&mut self) {
            for _ in 0..400 {
                for n in 0..self.clients.len() {
                    self.take(&Step::Read(n, usize::MAX));
                    if n < SUBSCRIBERS {
                        self.take(&Step::Acknowledge(n, usize::MAX, false));
                    }
                }
                self.take(&Step::Commit);
            }
        }
    }

    proptest! {
        /// Whichever client sends a batch and whatever ends it: every client gets the same bytes as
        /// if each packet were handled alone. A client that had to wait may continue at another
        /// moment; other clients still receive in the same order.
        #[test]
        fn a_row_is_what_its_packets_are(
            steps in vec(step(), 1..60),
            queue_full in 0..3,
            queued in prop::sample::select(vec![3usize, 40, 1000]),
            send_buffer in prop::sample::select(vec![300usize, 3000, 100_000]),
            stored in any::<bool>(),
            persistent in any::<bool>(),
        ) {
            let mut config = Config {
                sys_interval: None,
                queue_full: match queue_full {
                    0 => QueueFull::Refuse,
                    1 => QueueFull::DropOldest,
                    _ => QueueFull::DropNew,
                },
                ..Config::default()
            };
            config.limits.max_queued_messages = queued;
            config.limits.send_buffer = send_buffer;
            let mut rows = Rig::new(&config, false, stored, persistent);
            let mut single = Rig::new(&config, true, stored, persistent);
            for step in &steps {
                rows.take(step);
                single.take(step);
            }
            rows.end();
            single.end();
            for client in &rows.clients {
                prop_assert!(client.unsent.is_empty() || !client.open);
                prop_assert!(!client.disordered);
            }
            if rows.paused || single.paused {
                return Ok(());
            }
            for (rows, single) in rows.clients.iter().zip(&single.clients) {
                prop_assert_eq!(rows.open, single.open);
                prop_assert!(rows.got == single.got);
            }
            let (rows, single) = (rows.shard.stats(), single.shard.stats());
            prop_assert_eq!(rows, single);
        }
    }
}
