//! Sessions of neighbour brokers. The federation decides what each of them subscribes to.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hashbrown::HashSet;
use punctual_codec::{
    Connect, Packet, Properties, PropertyBuf, PropertyId, PropertySet, Publish, QoS, RawPublish,
    ReasonCode, Split, Version, split,
};
use smallvec::SmallVec;

use crate::base::connection::ConnId;
use crate::base::delivery::{Delivery, Load};
use crate::base::durability::Durability;
use crate::base::name::{LINK_PREFIX, LINK_TOPIC, MessageName, NAME_KEY, peer_of};
use crate::base::notes::{Notes, Packing};
use crate::egress::Class;
use crate::hub::{Alias, Conn, ConnMeta, Hub};
use crate::index::matched::{Groups, Matched, TargetList};
use crate::index::subscriber::subscriber;
use crate::index::target::Target;
use crate::journal::keeping::{Nature, Reception};
use crate::journal::{AWAITED, BEHIND, Journal};
use crate::mesh::custody::FORWARD;
use crate::mesh::federation::{KeptLink, LinkNews, Relay, Service};
use crate::mesh::hub::throttles::report_waits;
use crate::mesh::link::{Early, Entitlement, LinkState};
use crate::mesh::parked::{BlockReason, PARKED};
use crate::mesh::throttle;
use crate::message::Parts;
use crate::publication::Publication;
use crate::room::Need;
use crate::route::Route;
use crate::sequence::Number;
use crate::shard::capacity::is_congested;
use crate::shard::{Fail, Next, Shard, common};
use crate::timers::Timer;
use crate::{Message, Nanos};

/// A run from a neighbour: several publications on one topic, sent as one message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PublicationBatch<'a> {
    /// The PUBLISH packets, one after the other.
    pub(crate) bytes: &'a [u8],
    pub(crate) packing: Packing,
    pub(crate) name: MessageName,
}

/// Bytes from which a part of a run is long enough: a longer part delays urgent messages, and a
/// shorter one saves little.
pub(crate) const PACKED: usize = 4 << 10;
/// Largest size of a part of a run, in bytes, with the longest topic.
const MAX_PACKED: u32 = 128 << 10;
/// Largest number of publications of a neighbour that wait for earlier ones: the broker checks each
/// of them every [`PARKED`].
const MOST_EARLY: usize = 512;

/// Limits of a neighbour, from its CONNACK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkLimits {
    /// Messages in flight: its Receive Maximum.
    pub receive_maximum: u16,
    /// Largest packet, in bytes.
    pub max_packet: u32,
    /// Largest topic alias.
    pub topic_aliases: u16,
}

/// The kinds of PUBLISH from a neighbour.
pub(crate) enum Incoming<'a> {
    /// A message for the federation.
    Told(&'a [u8]),
    /// A message about retained messages.
    Retains(&'a [u8]),
    /// A message about remote flow control: filters on which the neighbour accepts few messages
    /// now.
    Throttles(&'a [u8]),
    /// A publication. Its name and notes have been removed from its properties.
    Named(MessageName, Notes),
}

/// Classifies a PUBLISH from a neighbour, and removes name and notes from its properties. `aliases`
/// are the topic aliases that the neighbour has defined.
pub(crate) fn incoming<'a>(
    raw: &mut RawPublish<'a>,
    aliases: &[Alias],
) -> Result<Incoming<'a>, Fail> {
    if raw.topic == common::TOPIC.as_bytes() {
        return Ok(Incoming::Retains(raw.payload));
    }
    if raw.topic == throttle::TOPIC.as_bytes() {
        return Ok(Incoming::Throttles(raw.payload));
    }
    if raw.topic.starts_with(LINK_TOPIC) && !raw.topic.starts_with(FORWARD.as_bytes()) {
        return Ok(Incoming::Told(raw.payload));
    }
    let nameless = || {
        Fail::new(
            ReasonCode::ProtocolError,
            "message of a neighbour without name",
        )
    };
    // The notes directly precede the name.
    let (mut last, mut own) = (None, 0);
    for property in raw.properties.iter() {
        if property.id == PropertyId::SubscriptionIdentifier {
            own += property.bytes.len();
        }
        last = Some(property);
    }
    let last = last.ok_or_else(nameless)?;
    if last.id != PropertyId::UserProperty {
        return Err(nameless());
    }
    let (key, value) = last.pair();
    let known = || {
        let alias = raw.properties.number(PropertyId::TopicAlias)?;
        let alias = aliases.get((alias as usize).checked_sub(1)?)?;
        alias.origin.filter(|_| raw.topic.is_empty())
    };
    let name = MessageName::parse(value.as_bytes(), known).filter(|_| key == NAME_KEY);
    let name = name.ok_or_else(nameless)?;
    let notes = match own {
        0 => Notes::default(),
        _ => Notes::read(raw.properties).ok_or_else(|| {
            Fail::new(
                ReasonCode::ProtocolError,
                "notes of a neighbour are not understood",
            )
        })?,
    };
    own += last.bytes.len();
    let bytes = raw.properties.as_bytes();
    let rest = &bytes[..bytes.len() - own];
    raw.properties = Properties::check(rest, PropertySet::PUBLISH)?;
    Ok(Incoming::Named(name, notes))
}

/// The receivers of a message that is routed by the root of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reach {
    parent: Option<Arc<str>>,
    /// Whether clients of this broker receive it.
    pub(crate) clients: bool,
    up: bool,
    down: bool,
}

impl Reach {
    /// For a message from a client, or from the neighbour `peer`; `own` if a client of this broker
    /// published it.
    pub(crate) fn new(relay: Relay, peer: Option<&str>, own: bool) -> Self {
        let (clients, up, down) = match (peer, relay.parent.as_deref()) {
            (None, parent) => (true, parent.is_some(), parent.is_none()),
            (Some(_), None) => (!own, false, true),
            (Some(peer), Some(parent)) if peer == parent => (!own, false, true),
            (Some(_), Some(_)) => (false, true, false),
        };
        Self {
            parent: relay.parent,
            clients,
            up,
            down,
        }
    }

    /// Whether this broker only passes the message on towards the root.
    pub(crate) fn is_upwards(&self) -> bool {
        !self.clients && self.up
    }

    /// The matched receivers that receive the message.
    pub(crate) fn of(&self, matched: &Matched) -> Matched {
        let gets = |target: &&Target| match peer_of(&target.session.client_id) {
            None => self.clients,
            Some(peer) if Some(peer) == self.parent.as_deref() => self.up,
            Some(_) => self.down,
        };
        let all = matched
            .shards
            .iter()
            .flat_map(|(_, targets)| targets.iter());
        let groups = match self.clients {
            true => matched.groups.clone(),
            false => Groups::new(),
        };
        Matched::new(all.filter(gets).cloned().collect::<TargetList>(), groups)
            .with_crowd(matched.crowd && self.clients)
    }
}

/// Why a publication from a neighbour is blocked, and not acknowledged yet: earlier publications
/// are blocked, or a receiver has no room; `None` if it is not blocked. It waits for room in a
/// neighbour's session as long as that takes, and likewise for a client with the policy to refuse;
/// for other clients it waits only while they are congested. A publication that has to be stored
/// waits while the store fails or is full, since its publisher already has the acknowledgement and
/// cannot be refused any more; one that is not urgent waits while too many bytes are uncommitted,
/// too. `size` is that of topic, properties and payload, in bytes.
pub(crate) fn cause_to_wait(
    hub: &Hub,
    session: u32,
    topic: &[u8],
    matched: &Matched,
    nature: Nature,
    size: usize,
    (durability, urgent): (Durability, bool),
) -> Option<BlockReason> {
    let own = hub.sessions.get(session).and_then(|s| s.link.as_ref());
    let parked = own.map(|link| &link.parked).filter(|it| !it.is_empty());
    if parked.is_some_and(|parked| parked.has_topic(topic)) {
        return Some(BlockReason::Topic);
    }
    if durability > Durability::None
        && (hub.trouble_with(matched, nature).is_some()
            || !urgent && hub.is_store_behind(matched, nature))
    {
        return Some(BlockReason::Store);
    }
    let is_waited_for = |cause| parked.is_some_and(|parked| parked.has_cause(cause));
    let said = match hub.may_refuse {
        true => {
            std::str::from_utf8(topic).map_or(None, |it| hub.config.queue_policies.of_topic(it))
        }
        false => None,
    };
    let has_room = |target: &Target, need: Need| match target.session.shard == hub.index {
        true => hub.has_room(target, need),
        false => hub.may_have_room(&target.session, need),
    };
    let of_target = |target: &Target| {
        let own = target.no_local && target.session.number == nature.publisher;
        if target.qos == QoS::AtMostOnce || own {
            return None;
        }
        let need = Need {
            class: Class::Normal,
            size,
            fleeting: false,
            throttled: target.session.is_kept_back(topic, nature.retain, false),
        };
        let (shard, number) = target.key();
        let cause = match need.throttled {
            true => BlockReason::Throttle(shard, number),
            false => BlockReason::Receiver(shard, number),
        };
        let waits = is_waited_for(cause)
            || match target.session.link {
                true => !hub.has_room(target, need),
                false if hub.refuses(&target.session, said) => {
                    is_congested(target) || !has_room(target, need)
                }
                false => is_congested(target),
            };
        waits.then_some(cause)
    };
    let of_shard = |shard: u16| {
        let cause = BlockReason::Shard(shard);
        let waits = is_waited_for(cause) || shard != hub.index && hub.outboxes.is_full(shard);
        waits.then_some(cause)
    };
    let mut shards = matched.shards.iter();
    shards.find_map(|(shard, targets)| {
        of_shard(*shard).or_else(|| targets.iter().find_map(of_target))
    })
}

/// The condition that a blocked publication of a neighbour waits for.
pub(crate) enum Wait {
    Room(BlockReason),
    /// The publication before it, with this name.
    Previous(MessageName),
}

/// The message that has to arrive before a neighbour's message is delivered to clients of this
/// broker: the one before it on its topic, if that is probably still in transit.
pub(crate) fn missing(
    hub: &Hub,
    route: &Route,
    name: MessageName,
    qos: QoS,
) -> Option<MessageName> {
    // A message that a rule of this broker makes urgent does not wait, either.
    let rule = route.rule.as_ref();
    let is_urgent = rule.is_some_and(|rule| rule.urgency.class().is_urgent());
    if name.back == 0 || is_urgent || most_early(hub) == 0 || !route.has_clients() {
        return None;
    }
    let previous = route.order(|order| order.missing(name, qos))?;
    let federation = hub.directory.federation()?;
    let waits = !federation.was_here(previous)
        && federation.is_new(name, false)
        && federation.relay().is_none();
    waits.then_some(previous)
}

/// How many publications of one neighbour may wait for earlier ones: at most half of Receive
/// Maximum, as the earlier ones may come on the same link and need the rest of it.
fn most_early(hub: &Hub) -> usize {
    MOST_EARLY.min(usize::from(hub.config.limits.receive_maximum) / 2)
}

/// Blocks a publication of a neighbour until [`Shard::unpark`] finds that there is room for it, or
/// that the publication before it has arrived.
pub(crate) fn park(
    hub: &mut Hub,
    id: ConnId,
    topic: &[u8],
    raw: &RawPublish<'_>,
    (name, notes): (Option<MessageName>, &Notes),
    wait: Wait,
    now: Nanos,
) -> Result<Next, Fail> {
    // The neighbour may redefine the topic alias while the publication waits.
    let mut properties = Vec::new();
    for property in raw.properties.iter() {
        if property.id != PropertyId::TopicAlias {
            properties.extend_from_slice(property.bytes);
        }
    }
    if !notes.is_empty() {
        let mut ids = PropertyBuf::new();
        for id in &*notes.ids() {
            ids.push_number(PropertyId::SubscriptionIdentifier, *id);
        }
        properties.extend_from_slice(ids.as_properties().as_bytes());
    }
    if let Some(name) = name {
        Number::from(name).encode(&mut properties);
    }
    let publish = Publish {
        dup: false,
        qos: raw.qos,
        retain: raw.retain,
        topic: punctual_codec::topic::validate_name(topic)?,
        packet_id: raw.packet_id,
        properties: Properties::check(&properties, PropertySet::PUBLISH)?,
        payload: raw.payload,
    };
    let mut packet = Vec::new();
    let encoded = Packet::Publish(publish).encode(Version::V5, &mut packet);
    // Twice Receive Maximum: under flow control the neighbour has a second window of that size.
    let most = 2 * usize::from(hub.config.limits.receive_maximum);
    let most_early = most_early(hub);
    let patience = hub.move_times().patience();
    let Some(conn) = hub.outlets.conns.get(id.slot) else {
        return Ok(Next::Closed);
    };
    let session = hub.sessions.get_mut(conn.session);
    let Some(link) = session.and_then(|session| session.link.as_mut()) else {
        return Ok(Next::Packet);
    };
    let (waiting, waits) = (link.parked.len() + link.early.len(), link.waits());
    if waiting >= most || encoded.is_err() {
        return Err(Fail::new(
            ReasonCode::ReceiveMaximumExceeded,
            "more messages that are not acknowledged than Receive Maximum",
        ));
    }
    let is_full = matches!(
        wait,
        Wait::Room(BlockReason::Receiver(..) | BlockReason::Throttle(..))
    );
    match wait {
        Wait::Room(cause) => {
            link.parked.park(cause, topic, packet.into());
            hub.stats.publishes_parked += u64::from(!hub.links.unparking);
        }
        Wait::Previous(previous) => {
            if link.early.len() >= most_early {
                link.early.iter_mut().for_each(|early| early.until = now);
            }
            link.early.push_back(Early {
                previous,
                until: now + patience,
                packet: packet.into(),
            });
            hub.stats.publishes_early += 1;
        }
    }
    if is_full {
        hub.look_at_throttles(now);
    }
    if waiting == 0 && !hub.links.unparking {
        if !waits {
            report_waits(hub, id, true);
        }
        let ConnId { slot, generation } = id;
        hub.timers
            .arm(now + PARKED, Timer::Parked { slot, generation });
    }
    Ok(Next::Packet)
}

impl Shard {
    /// Registers a connection that this broker has opened to the neighbour `peer`, after CONNACK.
    /// From now on the shard treats the neighbour as if it had connected to this broker, and both
    /// ends act as servers.
    pub fn open_link(
        &mut self,
        meta: ConnMeta,
        peer: &str,
        limits: LinkLimits,
        now: Nanos,
    ) -> ConnId {
        let id = self.open(meta, now);
        if let Some(conn) = self.hub.outlets.conn(id) {
            conn.version = Version::V5;
            conn.link = true;
        }
        let client_id = format!("{LINK_PREFIX}{peer}");
        let mut properties = PropertyBuf::new();
        for (property, value) in [
            (
                PropertyId::ReceiveMaximum,
                u32::from(limits.receive_maximum),
            ),
            (PropertyId::MaximumPacketSize, limits.max_packet),
            (
                PropertyId::TopicAliasMaximum,
                u32::from(limits.topic_aliases),
            ),
        ] {
            properties.push_number(property, value);
        }
        let connect = Connect {
            version: Version::V5,
            clean_start: false,
            keep_alive: 0,
            properties: properties.as_properties(),
            client_id: &client_id,
            will: None,
            username: None,
            password: None,
        };
        self.accept_link(id, &connect, now);
        id
    }

    /// Starts or stops the delivery of messages to a neighbour. While it is stopped, messages are
    /// queued. When it starts, both brokers compare their retained messages.
    pub fn link_carry(&mut self, peer: &str, carries: bool, now: Nanos) {
        let Some(slot) = self.link_session(peer) else {
            return;
        };
        self.link_reached();
        let hub = &mut self.hub;
        hub.look_at_throttles(now);
        let by_root = hub.by_root();
        let Some(session) = hub.sessions.get_mut(slot) else {
            return;
        };
        session.end_hold(now);
        let Some(link) = &mut session.link else {
            return;
        };
        let generations = &hub.directory.generations;
        session.handle.carries.store(carries, Ordering::Release);
        if carries {
            session.handle.set_away(false);
            let subscriber = subscriber(&session.handle, by_root);
            let mut index = hub.directory.index_mut();
            index.subscribe(common::TOPIC, subscriber, generations);
        } else {
            let mut index = hub.directory.index_mut();
            index.unsubscribe(common::TOPIC, &session.handle, generations);
            session.replays.clear();
            link.has.clear();
        }
        let Some(conn) = session
            .conn
            .and_then(|conn| hub.outlets.conns.get_mut(conn))
        else {
            return;
        };
        match (carries, link.held) {
            (true, Some(max)) => {
                (conn.receive_max, link.held) = (max, None);
                hub.pump(slot, now);
                self.compare_retained(slot);
            }
            (false, None) => (conn.receive_max, link.held) = (0, Some(conn.receive_max)),
            _ => {}
        }
    }

    /// Holds messages for a neighbour that are published from now on, while this broker forwards
    /// copies of older messages that other brokers have stored for it; or ends that. Urgent
    /// messages, messages with QoS 0 and messages that expire are not held. Held messages take a
    /// quarter of the queue at most.
    pub fn link_hold(&mut self, peer: &str, holds: bool, now: Nanos) {
        let Some(slot) = self.link_session(peer) else {
            return;
        };
        if !holds {
            self.hub.end_hold(slot, now);
            self.hub.pump(slot, now);
        } else if let Some(session) = self.hub.sessions.get(slot)
            && session.conn.is_some()
        {
            session.handle.set_holds(true);
        }
    }

    /// Changes the filters of the messages that are sent to a neighbour; adds filters before it
    /// removes others.
    pub fn link_interest(&mut self, peer: &str, add: &[Box<str>], remove: &[Box<str>]) {
        let Some(slot) = self.link_session(peer) else {
            return;
        };
        let hub = &mut self.hub;
        let by_root = hub.by_root();
        let Some(session) = hub.sessions.get_mut(slot) else {
            return;
        };
        let Some(link) = &mut session.link else {
            return;
        };
        let mut index = hub.directory.index_mut();
        let mut changed = Vec::new();
        for filter in add {
            if link.filters.insert(filter.clone()) {
                let subscriber = subscriber(&session.handle, by_root);
                index.subscribe(filter, subscriber, &hub.directory.generations);
                changed.push((filter, true));
            }
        }
        for filter in remove {
            if link.filters.remove(filter) {
                index.unsubscribe(filter, &session.handle, &hub.directory.generations);
                changed.push((filter, false));
            }
        }
        drop(index);
        if link.full.is_some() && !changed.is_empty() {
            link.full = Some(link.gist());
        }
        let wants_more = changed.iter().any(|(_, wanted)| *wanted);
        for (filter, wanted) in changed {
            hub.store_wish(slot, filter, wanted);
        }
        if wants_more {
            self.link_reached();
        }
    }

    /// Calls [`crate::Interest::wishes_kept`] with `number` once the interest of all neighbours so
    /// far is committed, or at once without a store. A later call replaces one that has not been
    /// answered.
    pub fn link_keep(&mut self, number: u64) {
        let journal = self.hub.journal.as_mut();
        let ticket = journal.map_or(0, |journal| journal.settle());
        self.hub.links.wishes = Some((ticket, number));
        self.hub.notify_kept_wishes();
    }

    /// Neighbours lead to brokers that they did not lead to before. A message that was here before
    /// has to be passed on again if a neighbour sends it again.
    pub fn link_reached(&mut self) {
        self.hub.links.passed_on.changed();
    }

    /// Neighbours with a session on this broker, and their interest; after a restart that is the
    /// stored interest.
    pub fn links(&self) -> Vec<KeptLink> {
        let sessions = self.hub.sessions.iter().filter_map(|(_, session)| {
            let link = session.link.as_ref()?;
            let members = link.members.iter().flat_map(|(filter, brokers)| {
                let brokers = brokers.iter();
                brokers.map(|broker| (String::from(&**broker), filter.clone()))
            });
            let awaited = link.awaited.iter().flat_map(|(filter, brokers)| {
                let brokers = brokers.iter();
                brokers.map(|broker| (String::from(&**broker), filter.clone()))
            });
            Some(KeptLink {
                peer: peer_of(&session.handle.client_id)?.to_owned(),
                filters: link.filters.iter().cloned().collect(),
                members: members.chain(awaited).collect(),
                behind: link.behind.iter().map(ToString::to_string).collect(),
            })
        });
        sessions.collect()
    }

    /// Replaces the brokers behind a neighbour where a shared subscription has members. They are
    /// stored, so that [`Self::links`] returns them after a restart.
    pub fn link_behind(&mut self, peer: &str, filter: &str, brokers: &[&str]) {
        let Some(slot) = self.link_session(peer) else {
            return;
        };
        let session = self.hub.sessions.get_mut(slot);
        if let Some(link) = session.and_then(|session| session.link.as_mut()) {
            match brokers {
                [] => link.members.remove(filter),
                _ => {
                    let brokers = brokers.iter().map(|broker| (*broker).into());
                    link.members.insert(filter.into(), brokers.collect())
                }
            };
            self.hub.store_members(slot, filter, brokers);
        }
    }

    /// Replaces the brokers that a neighbour leads to, itself among them. They are stored, so that
    /// [`Self::links`] returns them after a restart.
    pub fn link_leads(&mut self, peer: &str, brokers: &[&str]) {
        let Some(slot) = self.link_session(peer) else {
            return;
        };
        let session = self.hub.sessions.get_mut(slot);
        if let Some(link) = session.and_then(|session| session.link.as_mut()) {
            let before = std::mem::take(&mut link.behind);
            link.behind = brokers.iter().map(|broker| (*broker).into()).collect();
            self.hub.store_members(slot, BEHIND, brokers);
            self.hub.lead_forwarded(slot, &before);
        }
    }

    /// Changes the filters on which persistent sessions await messages at a broker that a neighbour
    /// leads to. They are stored, so that [`Self::links`] returns them after a restart.
    pub fn link_lasting(
        &mut self,
        peer: &str,
        broker: &str,
        add: &[Box<str>],
        remove: &[Box<str>],
    ) {
        let Some(slot) = self.link_session(peer) else {
            return;
        };
        let (add, remove) = (add.iter(), remove.iter());
        let changes = add.map(|it| (it, true)).chain(remove.map(|it| (it, false)));
        for (filter, awaited) in changes {
            let session = self.hub.sessions.get_mut(slot);
            let Some(link) = session.and_then(|session| session.link.as_mut()) else {
                return;
            };
            let brokers = link.awaited.entry(filter.clone()).or_default();
            let known = brokers.iter().position(|known| **known == *broker);
            match (known, awaited) {
                (None, true) => brokers.push(broker.into()),
                (Some(at), false) => drop(brokers.swap_remove(at)),
                _ => continue,
            }
            self.hub.store_awaited(slot, filter);
        }
    }

    /// Brokers behind a neighbour have been away for long. Until the neighbour carries messages
    /// again, publishers are neither held back nor refused for want of room in its queue.
    pub fn link_narrow(&mut self, peer: &str) {
        if let Some(slot) = self.link_session(peer)
            && let Some(session) = self.hub.sessions.get(slot)
        {
            session.handle.set_away(true);
        }
    }

    /// Drops the queued messages of a neighbour that match none of its present filters. Returns how
    /// many messages were dropped.
    pub fn link_trim(&mut self, peer: &str) -> u64 {
        let Some(slot) = self.link_session(peer) else {
            return 0;
        };
        let hub = &mut self.hub;
        let Some(session) = hub.sessions.get_mut(slot) else {
            return 0;
        };
        let (handle, directory) = (session.handle.clone(), hub.directory.clone());
        let wants = |topic: &str| {
            let (_, matched) = directory.lookup(topic, 0);
            let mut targets = matched.targets();
            targets.any(|target| Arc::ptr_eq(&target.session, &handle))
        };
        // Messages on one topic often follow each other.
        let mut last: Option<(Box<str>, bool)> = None;
        let stays = |message: &Message| {
            if let Some((topic, stays)) = &last
                && **topic == *message.topic()
            {
                return *stays;
            }
            let stays = wants(message.topic());
            last = Some((message.topic().into(), stays));
            stays
        };
        let mut queue = std::mem::take(&mut session.queue);
        let mut done = Vec::new();
        let gone = queue.retain(stays, |entry| done.push(entry));
        session.queue = queue;
        session.share_queue_len();
        for entry in done {
            Journal::done(&mut hub.journal, session, entry);
        }
        hub.forget_queued(&gone);
        let dropped = gone.total() as u64;
        hub.stats.dropped_session_ended += dropped;
        dropped
    }

    /// Retries the blocked publications of a neighbour: checks whether there is room for them now,
    /// and whether the publications before them have arrived.
    pub(crate) fn unpark(&mut self, id: ConnId, now: Nanos) {
        let Some(slot) = self.hub.outlets.conn(id).map(|conn| conn.session) else {
            return;
        };
        let Some(link) = self.hub.link_state(slot) else {
            return;
        };
        let waiting = link.parked.take();
        self.hub.links.unparking = true;
        let mut failed = None;
        for waiting in waiting {
            let Some(link) = self.hub.link_state(slot) else {
                break;
            };
            let Some(waiting) = link.parked.keep_behind(waiting) else {
                continue;
            };
            let Ok(Split::Frame(frame)) = split(&waiting.packet, u32::MAX) else {
                continue;
            };
            match self.publish_packet(id, frame, now) {
                Ok(Next::Hold) => {
                    if let Some(link) = self.hub.link_state(slot) {
                        link.parked.keep_topic(waiting);
                    }
                }
                Ok(_) => {}
                Err(fail) => {
                    failed = Some(fail);
                    break;
                }
            }
        }
        if failed.is_none() {
            failed = self.unpark_early(id, slot, now).err();
        }
        self.hub.links.unparking = false;
        if let Some(fail) = failed {
            self.fail(id, &fail, now);
            return;
        }
        let link = self.hub.link_state(slot);
        let is_over = |link: &LinkState| link.parked.is_empty() && link.early.is_empty();
        if link.as_deref().is_none_or(is_over) {
            if link.is_none_or(|link| !link.waits()) {
                report_waits(&self.hub, id, false);
            }
            return;
        }
        let ConnId { slot, generation } = id;
        let timer = Timer::Parked { slot, generation };
        self.hub.timers.arm(now + PARKED, timer);
    }

    /// Takes the publications that wait for an earlier one, if that is here now or they have waited
    /// long enough.
    fn unpark_early(&mut self, id: ConnId, session: u32, now: Nanos) -> Result<(), Fail> {
        let link = self.hub.link_state(session);
        let mut waiting = link.map_or_else(VecDeque::new, |link| std::mem::take(&mut link.early));
        // Each may wait for one before or behind it in the queue.
        let (mut at, mut taken_some) = (0, false);
        let mut result = Ok(());
        loop {
            let Some(next) = waiting.get(at) else {
                if !std::mem::take(&mut taken_some) {
                    break;
                }
                at = 0;
                continue;
            };
            let is_ripe = next.until <= now;
            let federation = self.hub.directory.federation();
            if !is_ripe && !federation.is_some_and(|it| it.was_here(next.previous)) {
                at += 1;
                continue;
            }
            let Ok(Split::Frame(frame)) = split(&next.packet, u32::MAX) else {
                break;
            };
            self.hub.links.ripe = is_ripe;
            let taken = self.publish_packet(id, frame, now);
            self.hub.links.ripe = false;
            match taken {
                Ok(Next::Hold) => at += 1,
                Ok(_) => {
                    waiting.remove(at);
                    taken_some = true;
                }
                Err(fail) => {
                    result = Err(fail);
                    break;
                }
            }
        }
        if let Some(link) = self.hub.link_state(session) {
            waiting.append(&mut link.early);
            link.early = waiting;
        }
        result
    }

    /// Copies the messages that are queued for one neighbour, or in flight to it, into the queue of
    /// another one, even beyond its limits: they have been acknowledged. With `moves`, they are
    /// removed from the first neighbour's session.
    pub fn link_copy(&mut self, from: &str, to: &str, moves: bool, now: Nanos) {
        let (Some(from), Some(to)) = (self.link_session(from), self.link_session(to)) else {
            return;
        };
        let hub = &mut self.hub;
        let Some(session) = hub.sessions.get(from) else {
            return;
        };
        let kept: Vec<Delivery> = session
            .window
            .unacknowledged()
            .chain(session.queue.iter())
            .map(|delivery| Delivery {
                number: delivery.number.map(Number::again),
                ..delivery.clone()
            })
            .collect();
        for delivery in &kept {
            Journal::insist(&mut hub.journal, delivery.entry);
        }
        let Some(session) = hub.sessions.get_mut(to) else {
            return;
        };
        // A copy that is already in flight may have passed a broker before the present receivers
        // were there, so it does not count.
        let copies = session.window.unsent().chain(session.queue.iter());
        let mut copies: HashSet<Number> = copies
            .filter_map(|delivery| delivery.number.filter(|number| number.is_again()))
            .collect();
        for mut delivery in kept {
            if delivery.number.is_some_and(|number| !copies.insert(number)) {
                continue;
            }
            let load = Load::of(&delivery.message);
            delivery.entry = match delivery.qos {
                QoS::AtMostOnce => 0,
                qos => Journal::keep_retained(
                    &mut hub.journal,
                    &hub.directory,
                    &delivery.message,
                    session,
                    Reception {
                        qos,
                        retain: delivery.retain,
                        number: delivery.number,
                        subscription_ids: delivery.ids(),
                    },
                    moves,
                ),
            };
            session.enqueue(delivery, now);
            hub.stats.queued(&load);
            hub.directory
                .queued_bytes
                .fetch_add(load.bytes, Ordering::Relaxed);
        }
        session.share_queue_len();
        if moves {
            hub.give_up_window(from);
            hub.give_up_queue(from);
        }
        hub.pump(to, now);
    }

    /// Drops all messages for a neighbour, and removes its interest until it subscribes again.
    /// Returns how many messages were queued for it or in flight; they are counted as dropped.
    pub fn link_forget(&mut self, peer: &str, now: Nanos) -> u64 {
        let Some(slot) = self.link_session(peer) else {
            return 0;
        };
        let hub = &mut self.hub;
        let in_flight = hub.give_up_window(slot);
        hub.stats.dropped_session_ended += in_flight;
        let Some(session) = hub.sessions.get_mut(slot) else {
            return 0;
        };
        if session.conn.is_none() {
            let queued = session.queue.len() as u64;
            self.end_session(slot, now);
            return in_flight + queued;
        }
        if let Some(link) = &mut session.link {
            let filters = std::mem::take(&mut link.filters);
            let behind = std::mem::take(&mut link.behind);
            let mut index = hub.directory.index_mut();
            for filter in &filters {
                index.unsubscribe(filter, &session.handle, &hub.directory.generations);
            }
            drop(index);
            hub.lead_forwarded(slot, &behind);
            for filter in &filters {
                hub.store_wish(slot, filter, false);
            }
            hub.store_members(slot, BEHIND, &[]);
            hub.forget_awaited(slot);
        }
        let queued = hub.give_up_queue(slot);
        hub.stats.dropped_session_ended += queued;
        in_flight + queued
    }

    /// Sends a message of the federation to a neighbour, before all queued messages.
    pub fn link_send(&mut self, conn: ConnId, topic: &str, payload: &[u8]) {
        if self.hub.outlets.conn(conn).is_some_and(|conn| conn.link) {
            self.hub.tell(conn.slot, topic, payload);
        }
    }

    /// Ends a connection to a neighbour. Its session stays.
    pub fn link_close(&mut self, conn: ConnId, why: &str, now: Nanos) {
        if self.hub.outlets.conn(conn).is_some_and(|conn| conn.link) {
            let fail = Fail::new(ReasonCode::AdministrativeAction, why.to_owned());
            self.fail(conn, &fail, now);
        }
    }

    /// Notifies the federation that a link is up, and prepares the session of the neighbour.
    pub(crate) fn link_is_up(&mut self, id: ConnId, slot: u32, entitlement: Entitlement) {
        let hub = &mut self.hub;
        let (Some(conn), Some(session)) = (
            hub.outlets.conns.get_mut(id.slot),
            hub.sessions.get_mut(slot),
        ) else {
            return;
        };
        conn.link = true;
        let link = session.link.get_or_insert_default();
        link.entitlement = entitlement;
        if !hub.links.neighbours.contains(&slot) {
            hub.links.neighbours.push(slot);
        }
        link.held = Some(std::mem::take(&mut conn.receive_max));
        if let (Some(federation), Some(peer)) = (
            hub.directory.federation(),
            peer_of(&session.handle.client_id),
        ) {
            let dialled = entitlement == Entitlement::Dialled;
            federation.link(id, peer, LinkNews::Up { dialled });
        }
    }

    pub(crate) fn link_session(&self, peer: &str) -> Option<u32> {
        self.hub.sessions.named(&format!("{LINK_PREFIX}{peer}"))
    }

    /// Removes the subscriptions of a neighbour's session.
    pub(crate) fn end_link(&mut self, slot: u32) {
        let hub = &mut self.hub;
        let Some(session) = hub.sessions.get_mut(slot) else {
            return;
        };
        if let Some(link) = session.link.take() {
            hub.links.neighbours.retain(|neighbour| *neighbour != slot);
            let mut index = hub.directory.index_mut();
            index.unsubscribe(common::TOPIC, &session.handle, &hub.directory.generations);
            for broker in &link.behind {
                let filter = format!("{FORWARD}{broker}");
                index.unsubscribe(&filter, &session.handle, &hub.directory.generations);
            }
            for filter in &link.filters {
                index.unsubscribe(filter, &session.handle, &hub.directory.generations);
            }
        }
    }
}

impl Hub {
    /// Subscribes a neighbour to the messages that stubs forward to the brokers behind it, and
    /// unsubscribes it for brokers that it no longer leads to.
    fn lead_forwarded(&mut self, slot: u32, before: &[Box<str>]) {
        let by_root = self.by_root();
        let Some(session) = self.sessions.get(slot) else {
            return;
        };
        let Some(link) = &session.link else {
            return;
        };
        let generations = &self.directory.generations;
        let mut index = self.directory.index_mut();
        let filter = |broker: &str| format!("{FORWARD}{broker}");
        for gone in before.iter().filter(|it| !link.behind.contains(it)) {
            index.unsubscribe(&filter(gone), &session.handle, generations);
        }
        for new in link.behind.iter().filter(|it| !before.contains(it)) {
            let subscriber = subscriber(&session.handle, by_root);
            index.subscribe(&filter(new), subscriber, generations);
        }
    }

    /// Ends [`Shard::link_hold`] for the neighbour of that session.
    pub(crate) fn end_hold(&mut self, slot: u32, now: Nanos) {
        if let Some(session) = self.sessions.get_mut(slot)
            && session.end_hold(now)
        {
            for flush in &mut self.links.flushes {
                flush.renew(slot, now);
            }
            self.look_at_throttles(now);
        }
    }

    /// The link state of a session; `None` if it is not the session of a neighbour.
    fn link_state(&mut self, session: u32) -> Option<&mut LinkState> {
        self.sessions.get_mut(session)?.link.as_deref_mut()
    }

    /// Notifies the federation once the interest of neighbours is committed, see
    /// [`Shard::link_keep`].
    pub(crate) fn notify_kept_wishes(&mut self) {
        if let Some((_, number)) = self.links.wishes.take_if(|(ticket, _)| {
            let journal = self.journal.as_ref();
            journal.is_none_or(|journal| journal.is_committed(*ticket))
        }) && let Some(federation) = self.directory.federation()
        {
            federation.wishes_kept(number);
        }
    }

    /// Removes the filters on which persistent sessions behind a neighbour await messages.
    fn forget_awaited(&mut self, slot: u32) {
        let session = self.sessions.get_mut(slot);
        let Some(link) = session.and_then(|session| session.link.as_mut()) else {
            return;
        };
        let awaited = std::mem::take(&mut link.awaited);
        for filter in awaited.into_keys() {
            self.store_awaited(slot, &filter);
        }
    }

    /// Stores the brokers behind a neighbour at which persistent sessions await messages on a
    /// filter.
    fn store_awaited(&mut self, slot: u32, filter: &str) {
        let session = self.sessions.get_mut(slot);
        let Some(link) = session.and_then(|session| session.link.as_mut()) else {
            return;
        };
        let brokers = match link.awaited.get(filter) {
            Some(brokers) if brokers.is_empty() => link.awaited.remove(filter),
            brokers => brokers.cloned(),
        };
        let brokers = brokers.unwrap_or_default();
        let brokers: Vec<&str> = brokers.iter().map(|broker| &**broker).collect();
        let key = format!("{AWAITED}{filter}");
        // With a filter of nearly the greatest length the key is too long to be stored.
        if key.len() <= usize::from(u16::MAX) {
            self.store_members(slot, &key, &brokers);
        }
    }

    /// The service that this broker offers to clients now.
    pub(crate) fn service(&self) -> Service {
        let federation = self.directory.federation();
        federation.map_or(Service::Full, |federation| federation.service())
    }

    /// Whether all messages are routed by the root of the tree.
    pub(crate) fn by_root(&self) -> bool {
        let federation = self.directory.federation();
        federation.is_some_and(|federation| federation.relay().is_some())
    }

    /// Sends a message of this broker to the neighbour on a connection, as a PUBLISH with QoS 0.
    pub(crate) fn tell(&mut self, conn: u32, topic: &str, payload: &[u8]) {
        let publish = Publish {
            dup: false,
            qos: QoS::AtMostOnce,
            retain: false,
            topic,
            packet_id: 0,
            properties: Properties::default(),
            payload,
        };
        self.send(conn, &Packet::Publish(publish));
    }

    /// Whether a receiver is a neighbour that accepts a run as one message now.
    pub(crate) fn takes_runs(&self, target: &Target) -> bool {
        if !target.session.link {
            return false;
        }
        let Some(session) = self.session_of(target) else {
            return false;
        };
        let ready = |conn: &Conn| conn.receive_max > 0 && conn.max_packet >= MAX_PACKED;
        let conn = session.conn.and_then(|conn| self.outlets.conns.get(conn));
        !session.queue.has_qos0() && conn.is_some_and(ready) && !self.by_root()
    }

    /// Sends a run of plain publications of a client on a topic to neighbours, in several messages:
    /// urgent messages may be sent between them.
    pub(crate) fn pack(
        &mut self,
        publisher: ConnId,
        topic: &[u8],
        (mut bytes, parts, packing): (&[u8], &[(usize, u64)], Packing),
        neighbours: &[&Target],
        now: Nanos,
    ) {
        let neighbours = taking_runs(packing, neighbours);
        for (len, messages) in parts {
            let Some((part, rest)) = bytes.split_at_checked(*len) else {
                return;
            };
            let Some(name) = self.directory.new_name() else {
                return;
            };
            let packed = PublicationBatch {
                bytes: part,
                packing,
                name,
            };
            self.pass_packed(publisher, topic, packed, *messages, &neighbours, now);
            bytes = rest;
        }
    }

    /// Sends a part of a run under its name to neighbours. `neighbours` come from [`taking_runs`].
    pub(crate) fn pass_packed(
        &mut self,
        publisher: ConnId,
        topic: &[u8],
        packed: PublicationBatch<'_>,
        messages: u64,
        neighbours: &[Target],
        now: Nanos,
    ) {
        let parts = Parts {
            topic,
            properties: &[],
            expiry: None,
            payload: packed.bytes,
            shared: None,
        };
        let number = self
            .outlets
            .conns
            .get(publisher.slot)
            .map_or(0, |conn| conn.number);
        let mut publication = Publication {
            name: Some(packed.name.into()),
            ..Publication::plain(parts, number)
        };
        for target in neighbours {
            let sent = self.stats.publishes_sent_qos0;
            if let Some(receiver) = self.deliver(&mut publication, target, now) {
                self.wait_for(publisher, receiver);
            }
            if self.stats.publishes_sent_qos0 > sent {
                self.stats.publishes_sent_qos0 += messages - 1;
            }
        }
    }

    /// Drops the messages in flight of a session; returns their number.
    fn give_up_window(&mut self, slot: u32) -> u64 {
        let Some(session) = self.sessions.get_mut(slot) else {
            return 0;
        };
        let given_up = session.window.give_up();
        for entry in &given_up {
            Journal::done(&mut self.journal, session, *entry);
            self.stats.inflight_messages -= 1;
        }
        given_up.len() as u64
    }

    /// Drops the queued messages of a session; returns their number.
    fn give_up_queue(&mut self, slot: u32) -> u64 {
        let Some(session) = self.sessions.get_mut(slot) else {
            return 0;
        };
        let queue = std::mem::take(&mut session.queue);
        session.share_queue_len();
        for delivery in queue.iter() {
            Journal::done(&mut self.journal, session, delivery.entry);
        }
        let gone = queue.load();
        self.forget_queued(&gone);
        gone.total() as u64
    }
}

/// The neighbours as targets with notes that mark a message as a run.
pub(crate) fn taking_runs(packing: Packing, neighbours: &[&Target]) -> SmallVec<[Target; 2]> {
    if neighbours.is_empty() {
        return SmallVec::new();
    }
    let ids = Notes::packed(packing).ids();
    let told = neighbours.iter().map(|neighbour| Target {
        subscription_ids: Some(ids.clone()),
        ..(*neighbour).clone()
    });
    told.collect()
}
