//! Batches ("runs"): publications with QoS 0 on one topic that were received together, delivered
//! with one copy for each receiver, however many messages they are.
//!
//! A receiver gets the packets as received, or encoded for the other protocol version. Whether all
//! receivers accept a batch is decided before its length is measured, so that no byte is measured
//! twice: all measured packets are delivered as a batch, except for a single message.

use punctual_codec::{Frame, ReasonCode, Split, split};
use smallvec::SmallVec;

use super::{Fail, Next, Shard};
use crate::Nanos;
use crate::base::connection::ConnId;
use crate::base::notes::Packing;
use crate::hub::{Hub, State};
use crate::index::target::Target;
use crate::mesh::shard::links::{self, PublicationBatch};
use crate::packets::{PLAIN, Packets, rewrite};
use crate::route::Route;
use crate::shard::acknowledge::pause_or_go_on;
use crate::tasks::COPY;

/// Maximum number of bytes of one batch, and so the amount by which a receiver's bound may be
/// exceeded.
const RUN: usize = 64 << 10;
/// Maximum number of bytes that are copied to all receivers of a batch, shared by the receivers.
const COPIES: usize = 512 << 10;
/// Minimum of each receiver's share of [`COPIES`], in bytes.
const SHORT_RUN: usize = 2 << 10;

/// Consecutive publications that were delivered together.
pub(super) struct Run {
    pub(super) messages: u64,
    pub(super) bytes: usize,
    pub(super) next: Next,
}

/// Bytes and messages of each part of a batch; neighbours get a part as one message.
type Parted = SmallVec<[(usize, u64); RUN / links::PACKED]>;

impl Shard {
    /// Delivers the plain publications (QoS 0, not retained, no properties) at the start of `data`
    /// that have the topic of the publisher's last one, if there are several and every receiver can
    /// accept them as a batch. `None` leaves the first to [`Self::publish_packet`], which makes all
    /// decisions that this function relies on.
    ///
    /// A route whose receivers do not accept batches is stored in `declined`, and is not checked
    /// again as long as it is.
    #[inline]
    pub(super) fn publish_run(
        &mut self,
        id: ConnId,
        first: Frame<'_>,
        data: &[u8],
        declined: &mut u64,
        now: Nanos,
    ) -> Option<Run> {
        #[cfg(test)]
        if self.one_by_one {
            return None;
        }
        let Self {
            hub,
            routes,
            rewritten,
            ..
        } = self;
        let conn = hub.outlets.conns.get(id.slot)?;
        if !matches!(conn.state, State::Connected)
            || !conn.route_allowed
            || conn.states
            || conn.link
            || conn.route == *declined
        {
            return None;
        }
        let v5 = conn.v5();
        let [high, low, rest @ ..] = first.body else {
            return None;
        };
        let topic = rest.get(..usize::from(u16::from_be_bytes([*high, *low])))?;
        let head = 2 + topic.len() + usize::from(v5);
        let prefix = first.body.get(..head)?;
        if (v5 && prefix[head - 1] != 0) || !first.is_minimal() {
            return None;
        }
        let (route, publisher) = (conn.route, conn.number);
        // The first message on another topic is delivered alone.
        if !routes.confirm(topic, route, &hub.directory) {
            return None;
        }
        let entry = routes.get(route);
        let mut only = None;
        let targets = receivers(entry, hub.index, &mut only);
        // The largest packet that every receiver accepts, and whether one uses the other version.
        let (mut most, mut rewrites) = (hub.config.limits.max_packet_size, false);
        let mut neighbours: SmallVec<[&Target; 4]> = SmallVec::new();
        let takes = |target| match hub.takes_packets(target, v5) {
            Some(taking) => {
                most = most.min(taking.most);
                rewrites |= taking.other_version;
                true
            }
            None => {
                neighbours.push(target);
                hub.takes_runs(target)
            }
        };
        let Some(targets) = targets.filter(|targets| targets.iter().all(takes)) else {
            *declined = route;
            return None;
        };
        if first.bytes.len() > most as usize {
            return None;
        }
        let mut run = Extent {
            bytes: first.bytes.len(),
            messages: 1,
            payload: first.body.len() - head,
            longest: first.bytes.len(),
        };
        let all = (COPIES / targets.len().max(1)).clamp(SHORT_RUN, RUN);
        let mut parts = Parted::new();
        let mut before = (0, 0);
        while run.bytes < all {
            run.extend(data, prefix, most, all.min(before.0 + links::PACKED));
            if run.bytes == before.0 {
                break;
            }
            parts.push((run.bytes - before.0, run.messages - before.1));
            before = (run.bytes, run.messages);
        }
        #[cfg(test)]
        {
            self.measured += run.bytes;
        }
        if run.messages == 1 {
            return None;
        }
        let bytes = &data[..run.bytes];
        if rewrites {
            rewrite(bytes, 2 + topic.len(), v5, rewritten);
        }
        let packets = Packets {
            v5,
            received: bytes,
            rewritten,
            messages: run.messages,
            payload: run.payload,
        };
        let clients = targets.iter().filter(|target| !target.session.link);
        deliver_packets(hub, id, &packets, clients, publisher, now);
        if !neighbours.is_empty() {
            let packing = Packing { v5 };
            hub.pack(id, topic, (bytes, &parts, packing), &neighbours, now);
        }
        Some(Run {
            messages: run.messages,
            bytes: run.bytes,
            next: pause_or_go_on(hub, id),
        })
    }

    /// Passes a neighbour's batch on unchanged, and to clients in one piece; unpacks it for
    /// receivers that do not accept that.
    pub(super) fn publish_packed(
        &mut self,
        id: ConnId,
        route: u64,
        packed: PublicationBatch<'_>,
        now: Nanos,
    ) -> Result<Next, Fail> {
        let Self {
            hub,
            routes,
            rewritten,
            ..
        } = self;
        let PublicationBatch {
            bytes,
            packing,
            name,
        } = packed;
        let entry = routes.get(route);
        let topic = entry.topic().as_bytes();
        let v5 = packing.v5;
        let extent = Extent::of(bytes, topic, v5, hub.config.limits.max_packet_size);
        let extent = extent.ok_or_else(not_a_run)?;
        let federation = hub.directory.federation();
        if federation.is_some_and(|federation| !federation.is_new(name, true)) {
            hub.stats.publishes_recognised += extent.messages;
            return Ok(pause_or_go_on(hub, id));
        }
        let matched = &entry.matched;
        let (mut together, mut here) = (
            entry.rule.is_none() && matched.groups.is_empty() && !matched.crowd,
            &[][..],
        );
        for (shard, targets) in &matched.shards {
            match *shard == hub.index {
                true => here = targets,
                false => together = false,
            }
        }
        let mut neighbours: SmallVec<[&Target; 4]> = SmallVec::new();
        let mut clients: SmallVec<[&Target; 8]> = SmallVec::new();
        for target in here {
            match hub.takes_runs(target) {
                true => neighbours.push(target),
                false => clients.push(target),
            }
        }
        let mut rewrites = false;
        let takes = |target: &&Target| {
            hub.takes_packets(target, v5).is_some_and(|taking| {
                rewrites |= taking.other_version;
                extent.longest <= taking.most as usize
            })
        };
        together &= clients.iter().all(takes);
        let told = links::taking_runs(packing, &neighbours);
        hub.pass_packed(id, topic, packed, extent.messages, &told, now);
        if let Some(federation) = hub.directory.federation() {
            federation.note(name);
        }
        if together {
            let publisher = hub.outlets.conns.get(id.slot).map_or(0, |conn| conn.number);
            if rewrites {
                rewrite(bytes, 2 + topic.len(), v5, rewritten);
            }
            let packets = Packets {
                v5,
                received: bytes,
                rewritten,
                messages: extent.messages,
                payload: extent.payload,
            };
            deliver_packets(hub, id, &packets, clients, publisher, now);
            return Ok(pause_or_go_on(hub, id));
        }
        drop((neighbours, clients));
        self.hub.links.unpacking = Some(packing);
        let mut rest = bytes;
        let mut result = Ok(Next::Packet);
        while let (Ok(Next::Packet | Next::Pause), Ok(Split::Frame(frame))) =
            (&result, split(rest, u32::MAX))
        {
            rest = &rest[frame.bytes.len()..];
            result = self.publish_packet(id, frame, now);
        }
        self.hub.links.unpacking = None;
        result
    }
}

/// The receivers of a route if all are on that shard and each gets every message. `only` is storage
/// for the only member of a shared subscription, which gets every message.
fn receivers<'a>(
    route: &'a Route,
    shard: u16,
    only: &'a mut Option<Target>,
) -> Option<&'a [Target]> {
    let topic = route.topic().as_bytes();
    match (&*route.matched.shards, &*route.matched.groups) {
        _ if route.rule.is_some() || route.matched.crowd => None,
        ([], []) => Some(&[]),
        ([(home, targets)], []) if *home == shard => Some(targets),
        ([], [group]) => {
            let takes = |it: &Target| it.session.shard == shard && it.session.may_receive(topic);
            *only = group.only_member().filter(takes);
            only.as_ref().map(std::slice::from_ref)
        }
        _ => None,
    }
}

/// Counts a batch and delivers it to clients. Its publisher is paused for clients that do not keep
/// up.
fn deliver_packets<'a>(
    hub: &mut Hub,
    id: ConnId,
    packets: &Packets<'_>,
    clients: impl IntoIterator<Item = &'a Target>,
    publisher: u64,
    now: Nanos,
) {
    hub.stats.publishes_received_qos0 += packets.messages;
    hub.stats.publish_bytes_received += packets.payload as u64;
    let copied = (packets.received.len() / COPY) as u64;
    for target in clients {
        hub.work.offered += 1 + copied;
        if let Some(receiver) = hub.deliver_run(packets, target, publisher, now) {
            hub.wait_for(id, receiver);
        }
    }
}

pub(super) fn not_a_run() -> Fail {
    Fail::new(ReasonCode::ProtocolError, "a neighbour's run is not one")
}

/// The extent of a batch of publications.
struct Extent {
    bytes: usize,
    messages: u64,
    payload: usize,
    /// Largest packet.
    longest: usize,
}

impl Extent {
    /// The extent of packets on a topic without properties that fill `data`. `None` if `data`
    /// contains anything else.
    fn of(data: &[u8], topic: &[u8], v5: bool, max: u32) -> Option<Self> {
        let mut prefix: SmallVec<[u8; 128]> = SmallVec::new();
        prefix.extend_from_slice(&u16::try_from(topic.len()).ok()?.to_be_bytes());
        prefix.extend_from_slice(topic);
        prefix.extend(v5.then_some(0));
        let mut run = Self {
            bytes: 0,
            messages: 0,
            payload: 0,
            longest: 0,
        };
        run.extend(data, &prefix, max, RUN);
        (run.bytes == data.len() && run.messages > 0).then_some(run)
    }

    /// Extends the batch by the following packets of `data`, up to the one that reaches `end`
    /// bytes, that begin like the first: same topic, and `prefix` again. Packets whose length needs
    /// more than two bytes are left to the general code.
    #[inline]
    fn extend(&mut self, data: &[u8], prefix: &[u8], max: u32, end: usize) {
        while self.bytes < end {
            let (len, header) = match data[self.bytes..] {
                [PLAIN, len, ..] if len < 0x80 => (usize::from(len), 2),
                [PLAIN, low, high, ..] if high < 0x80 && high != 0 => {
                    (usize::from(low & 0x7F) | usize::from(high) << 7, 3)
                }
                _ => return,
            };
            let start = self.bytes + header;
            let Some(body) = data.get(start..start + len) else {
                return;
            };
            if !begins_with(body, prefix) || header + len > max as usize {
                return;
            }
            self.bytes = start + len;
            self.messages += 1;
            self.payload += len - prefix.len();
            self.longest = self.longest.max(header + len);
        }
    }
}

/// Whether `data` begins with `prefix`, compared by words: for the few bytes of a topic the call of
/// `memcmp` takes as long as the comparison.
#[inline]
fn begins_with(data: &[u8], prefix: &[u8]) -> bool {
    let Some(data) = data.get(..prefix.len()) else {
        return false;
    };
    let (words, rest) = data.as_chunks::<8>();
    let (others, other) = prefix.as_chunks::<8>();
    let are =
        |(one, two): (&[u8; 8], &[u8; 8])| u64::from_ne_bytes(*one) == u64::from_ne_bytes(*two);
    words.iter().zip(others).all(are)
        && match (data.last_chunk::<8>(), prefix.last_chunk::<8>()) {
            // These words overlap those already compared.
            (Some(one), Some(two)) => are((one, two)),
            _ => rest.iter().zip(other).all(|(one, two)| one == two),
        }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::sync::Arc;

    use punctual_codec::{
        Connect, Properties, PropertyBuf, PropertyId, Publish, QoS, Subscribe, SubscribeOptions,
        Unsubscribe, Version,
    };

    use super::*;
    use crate::{Config, ConnMeta, Directory, Scope};

    /// A shard with one publisher.
    struct Rig {
        shard: Shard,
        publisher: ConnId,
        now: Nanos,
    }

    impl Rig {
        fn new(version: Version) -> Self {
            let now = Nanos::from_secs(1);
            let config = Config {
                sys_interval: None,
                ..Config::default()
            };
            let shard = Shard::new(Directory::new(1), 0, Arc::new(config), now);
            let mut rig = Self {
                shard,
                publisher: ConnId {
                    slot: 0,
                    generation: 0,
                },
                now,
            };
            rig.publisher = rig.connect("publisher", version, Properties::EMPTY);
            rig
        }

        fn connect(
            &mut self,
            client_id: &str,
            version: Version,
            properties: Properties<'_>,
        ) -> ConnId {
            let meta = ConnMeta {
                allow_anonymous: true,
                ..ConnMeta::default()
            };
            let connect = Connect {
                version,
                clean_start: true,
                keep_alive: 0,
                client_id,
                will: None,
                username: None,
                password: None,
                properties,
            };
            let id = self.shard.open(meta, self.now);
            let mut bytes = Vec::new();
            connect.encode(&mut bytes).unwrap();
            self.shard.receive(id, &bytes, self.now);
            self.written(id);
            id
        }

        fn subscribe(&mut self, id: ConnId, filter: &str, version: Version) {
            let filters = [(filter, SubscribeOptions::default())];
            let mut bytes = Vec::new();
            Subscribe::put(9, Properties::EMPTY, &filters, version, &mut bytes).unwrap();
            self.shard.receive(id, &bytes, self.now);
            self.written(id);
        }

        fn unsubscribe(&mut self, id: ConnId, filter: &str, version: Version) {
            let mut bytes = Vec::new();
            Unsubscribe::put(9, Properties::EMPTY, &[filter], version, &mut bytes).unwrap();
            self.shard.receive(id, &bytes, self.now);
            self.written(id);
        }

        /// The bytes sent to a client.
        fn written(&mut self, id: ConnId) -> Vec<u8> {
            let mut slices = [IoSlice::new(&[]); 8];
            let filled = self.shard.pending(id, Scope::All, self.now, &mut slices);
            let all: Vec<u8> = slices[..filled].iter().flat_map(|it| it.to_vec()).collect();
            self.shard.sent(id, all.len(), self.now);
            all
        }

        /// Receives the publisher's bytes; returns the number of bytes that were searched for a
        /// batch.
        fn measure(&mut self, bytes: &[u8]) -> usize {
            let before = self.shard.measured;
            let received = self.shard.receive(self.publisher, bytes, self.now);
            assert_eq!(received.consumed, bytes.len());
            self.shard.measured - before
        }
    }

    fn publications(topic: &str, lengths: &[usize], version: Version) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (at, length) in lengths.iter().enumerate() {
            let publish = Publish {
                dup: false,
                qos: QoS::AtMostOnce,
                retain: false,
                topic,
                packet_id: 0,
                properties: Properties::EMPTY,
                payload: &vec![at as u8; *length],
            };
            publish.encode(version, &mut bytes).unwrap();
        }
        bytes
    }

    const VERSIONS: [Version; 2] = [Version::V311, Version::V5];

    /// Payloads around the lengths where one more byte of properties makes the remaining length
    /// one byte longer.
    #[test]
    fn a_rewritten_run_is_encoded_in_the_other_version() {
        let lengths: Vec<usize> = (0..6)
            .chain(118..132)
            .chain(16_370..16_390)
            .chain([70_000])
            .collect();
        for (version, other) in [VERSIONS, [Version::V5, Version::V311]].map(|it| (it[0], it[1])) {
            let bytes = publications("a/b", &lengths, version);
            let mut rewritten = vec![1, 2, 3];
            rewrite(&bytes, 2 + 3, version.is_v5(), &mut rewritten);
            assert!(rewritten == publications("a/b", &lengths, other));
        }
    }

    /// Whatever receivers accept, each byte is examined once.
    #[test]
    fn a_run_is_measured_once() {
        let small = vec![0; 10_000];
        for version in VERSIONS {
            for other in VERSIONS {
                let mut rig = Rig::new(version);
                let nothing = Properties::EMPTY;
                let one = rig.connect("one", version, nothing);
                let two = rig.connect("two", other, nothing);
                rig.subscribe(one, "t", version);
                rig.subscribe(two, "t", other);
                let bytes = publications("t", &small, version);
                rig.measure(&bytes[..bytes.len() / 10_000]);
                assert_eq!(rig.measure(&bytes), bytes.len(), "{version:?} to {other:?}");
                assert!(
                    rig.written(two)
                        .ends_with(&publications("t", &small, other))
                );

                // A member of a shared subscription gets some of them.
                rig.subscribe(one, "$share/group/t", version);
                assert_eq!(rig.measure(&bytes), 0, "{version:?} to {other:?}");
            }
        }
    }

    #[test]
    fn the_only_member_of_a_shared_subscription_takes_runs() {
        let small = vec![0; 100];
        for version in VERSIONS {
            for other in VERSIONS {
                let mut rig = Rig::new(version);
                let one = rig.connect("one", other, Properties::EMPTY);
                let two = rig.connect("two", other, Properties::EMPTY);
                rig.subscribe(one, "$share/group/t", other);
                let bytes = publications("t", &small, version);
                rig.measure(&bytes[..bytes.len() / 100]);
                rig.written(one);
                assert_eq!(rig.measure(&bytes), bytes.len(), "{version:?} to {other:?}");
                assert!(rig.written(one) == publications("t", &small, other));

                rig.subscribe(two, "$share/group/t", other);
                assert_eq!(rig.measure(&bytes), 0, "{version:?} to {other:?}");
                let half = publications("t", &small[..50], other).len();
                assert_eq!([one, two].map(|it| rig.written(it).len()), [half; 2]);

                // A member must have the right to read the message.
                rig.unsubscribe(two, "$share/group/t", other);
                let hub = &rig.shard.hub;
                let session = hub
                    .sessions
                    .get(hub.outlets.conns.get(one.slot).unwrap().session);
                session.unwrap().handle.end();
                assert_eq!(rig.measure(&bytes), 0);
                assert!(rig.written(one).is_empty());
            }
        }
    }

    /// Another topic, or a packet that a receiver does not accept, ends a batch and begins none.
    #[test]
    fn what_ends_a_run_is_measured_alone() {
        let version = Version::V5;
        let mut rig = Rig::new(version);
        let mut properties = PropertyBuf::new();
        properties.push_number(PropertyId::MaximumPacketSize, 200);
        let one = rig.connect("one", version, properties.as_properties());
        rig.subscribe(one, "#", version);
        let lengths: Vec<usize> = (0..4000)
            .map(|at| [1, 300][usize::from(at % 4 == 3)])
            .collect();
        let bytes = publications("t", &lengths, version);
        rig.measure(&publications("t", &[1], version));
        assert!(rig.measure(&bytes) <= bytes.len());

        let mut aliases = PropertyBuf::new();
        aliases.push_number(PropertyId::TopicAliasMaximum, 3);
        let two = rig.connect("two", version, aliases.as_properties());
        rig.subscribe(two, "t", version);
        assert_eq!(rig.measure(&bytes), 0);
        assert!(rig.measure(&publications("u", &[1; 100], version)) > 0);

        let mut bytes = Vec::new();
        for _ in 0..1000 {
            bytes.extend(publications("u", &[1], version));
            bytes.extend(publications("v", &[1], version));
        }
        assert!(rig.measure(&bytes) <= bytes.len());
    }
}
