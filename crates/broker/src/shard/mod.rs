//! One shard: the interface for the shell that drives it, and the handling of every packet.

mod acknowledge;
mod acknowledged;
mod admission;
pub(crate) mod capacity;
pub(crate) mod common;
pub(crate) mod connect;
pub(crate) mod deliver;
mod fanout;
mod flush;
mod inspect;
mod lifecycle;
mod plain;
mod publish;
mod redistribution;
pub(crate) mod refusal;
pub(crate) mod retain;
pub(crate) mod row;
mod run;
mod shares;
mod stated;
mod store;
mod subscribe;
mod wills;

pub use inspect::{ClientView, ScanPosition, SubscriptionView};

use std::sync::Arc;

use bytes::Bytes;
use punctual_codec::{
    Ack, Auth, DecodeError, Disconnect, Frame, Packet, PacketType, Properties, PropertyId, QoS,
    ReasonCode, Split, Subscribe, Unsubscribe, Version, split_of,
};

use crate::alarm::{Alarm, Overrun};
use crate::author::AuthorRights;
use crate::base::connection::ConnId;
use crate::base::durability::Durability;
use crate::base::name::MessageName;
use crate::directory::Directory;
use crate::egress::{Class, Egress, Rank, Scope, Shares};
use crate::hub::agenda::Agenda;
use crate::hub::outboxes::Outboxes;
use crate::hub::outlets::Outlets;
use crate::hub::sessions::Sessions;
use crate::hub::{
    Conn, ConnMeta, Event, Flow, Hub, Output, Received, Remote, RemoteMessage, State,
};
use crate::index::delivered_qos;
use crate::journal::{After, HeldAnswers, Journal};
use crate::mesh::custody::{TRY_AGAIN, WAKE};
use crate::mesh::links::Links;
use crate::mesh::shard::neighbour;
use crate::message::Messages;
use crate::overflow::Fullest;
use crate::packets::PLAIN;
use crate::publication::Promise;
use crate::ready::Need;
use crate::route::RouteCache;
use crate::sampling::Sampling;
use crate::sequence::Number;
use crate::session::{Acknowledgement, Step};
use crate::shard::publish::PublishBuffers;
use crate::slab::Slab;
use crate::sys::SysTopics;
use crate::tasks::{FLOW, SLICE, Task, Work};
use crate::timers::{Timer, Timers};
use crate::{Budget, Config, Credential, Message, Nanos, Stats};

/// Time between two copies of the counters to other threads.
const SHARE_STATS: Nanos = Nanos::from_millis(200);

/// Bytes that a connection may send in one read beside messages of admitted flows and still be read
/// with the priority of these flows: enough for some acknowledgements and pings.
const BESIDE: usize = 256;

/// Time after an urgent message during which its client is read before others, milliseconds.
const URGENT: u32 = 2000;
/// Packets of one client that are handled before other clients have their turn.
const ROW: u64 = 64;
/// Messages of a batch, passed on together, that take as long as a single message.
const IN_A_ROW: u64 = 16;
/// Units of work spent on offering messages of one client to receivers before other clients have
/// their turn.
const OFFERS: u64 = SLICE;
/// Units of work for checking whether a timer is still needed.
const STALE: u64 = 4;
/// Admitted flows that are checked for alarms at a time.
const WATCHES: usize = 32;
/// Units of work for a timer that is due.
const TIMER: u64 = 16;
/// The reason for closing a connection after a reload has removed its client's user, password or
/// certificate.
const REVOKED: &str = "the credential was revoked";
/// Units of work for updating the rights of a session.
const RIGHTS: u64 = 16;
/// Units of work for closing a connection: its session, its will, and notifying others.
const ENDING: u64 = 64;

/// The time in milliseconds, which wraps around after 49 days.
fn millis(at: Nanos) -> u32 {
    (at.0 / 1_000_000) as u32
}

/// PUBLISH packets received so far.
struct Publishes {
    all: u64,
    urgent: u64,
    /// PUBLISH packets of admitted flows.
    promised: u64,
}

impl Publishes {
    fn of(stats: &Stats) -> Self {
        Self {
            all: stats.publishes_received(),
            urgent: stats.publishes_received_urgent,
            promised: stats.flow_messages_admitted,
        }
    }
}

/// The reason why the broker closes a connection.
#[derive(Debug, Clone)]
pub(crate) struct Fail {
    /// Reason code for DISCONNECT, counted even if the client cannot be notified; `None` if the
    /// reason was counted before or the client left by itself.
    reason: Option<ReasonCode>,
    why: std::borrow::Cow<'static, str>,
}

impl Fail {
    pub(crate) fn new(reason: ReasonCode, why: impl Into<std::borrow::Cow<'static, str>>) -> Self {
        Self {
            reason: Some(reason),
            why: why.into(),
        }
    }

    pub(crate) fn silent(why: impl Into<std::borrow::Cow<'static, str>>) -> Self {
        Self {
            reason: None,
            why: why.into(),
        }
    }
}

impl From<DecodeError> for Fail {
    fn from(error: DecodeError) -> Self {
        Self::new(error.reason(), error.to_string())
    }
}

/// The next step after a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Continue with the next packet.
    Packet,
    /// Stop reading for now.
    Pause,
    /// Stop reading before this packet, which will be handled again later.
    Hold,
    /// The connection is closed.
    Closed,
    /// The connection moves to another shard, together with this packet.
    Moved,
}

/// Answer to [`crate::AuthRequest`].
#[derive(Debug, Clone)]
pub enum AuthAnswer {
    /// The client is authenticated.
    Accept {
        /// User name, if the check found a different one than the client gave.
        username: Option<Arc<str>>,
        /// Authentication Data for CONNACK or AUTH.
        data: Option<Box<[u8]>>,
        /// The credential with which the client authenticated, if that can be revoked.
        credential: Option<Arc<Credential>>,
    },
    /// Enhanced authentication goes on with this data.
    Continue {
        /// Authentication Data for AUTH.
        data: Box<[u8]>,
    },
    /// The client is refused.
    Deny {
        /// The reason code, which must be allowed in CONNACK.
        reason: ReasonCode,
    },
}

/// A broker, or one of its several shards.
#[derive(Debug)]
pub struct Shard {
    pub(crate) hub: Hub,
    routes: RouteCache,
    sys: Option<SysTopics>,
    buffers: PublishBuffers,
    /// Buffer for a batch that is rewritten for another protocol version.
    rewritten: Vec<u8>,
    /// Handles the packets of a batch one by one.
    #[cfg(test)]
    one_by_one: bool,
    /// Bytes that were searched for the extent of a batch.
    #[cfg(test)]
    measured: usize,
}

impl Shard {
    /// Shard number `index` of the broker that `directory` describes.
    pub fn new(directory: Arc<Directory>, index: u16, config: Arc<Config>, now: Nanos) -> Self {
        let mut timers = Timers::default();
        let sys = match config.sys_interval {
            Some(_) if index == 0 => {
                timers.arm(now, Timer::Sys);
                Some(SysTopics::new(now))
            }
            _ => None,
        };
        let mut routes = RouteCache::new(
            config.limits.topic_cache,
            config.rules.clone(),
            config.durability.rules.clone(),
            config.queue_policies.clone(),
        );
        let may_refuse = config.may_refuse();
        if config.admission.is_some() {
            routes.reserve();
        }
        Self {
            routes,
            hub: Hub {
                index,
                config,
                outlets: Outlets::default(),
                sessions: Sessions::default(),
                timers,
                messages: Messages::default(),
                stats: Stats::default(),
                outboxes: Outboxes::new(index, directory.shards()),
                links: Links::default(),
                work: Agenda::default(),
                directory,
                stats_shared: true,
                queue_full_reported: Nanos(0),
                may_refuse,
                fullest: Fullest::default(),
                urgency_reported: Nanos(0),
                journal: None,
                arrived: now,
                packet: None,
                sampling: Sampling::default(),
                author_rights: AuthorRights::default(),
            },
            sys,
            buffers: PublishBuffers::default(),
            rewritten: Vec::new(),
            #[cfg(test)]
            one_by_one: false,
            #[cfg(test)]
            measured: 0,
        }
    }

    /// Replaces the settings. New bounds apply to what arrives from now on; nothing that exists is
    /// truncated.
    pub fn set_config(&mut self, config: Arc<Config>) {
        let (durability, policies) = (&config.durability.rules, &config.queue_policies);
        self.routes.set_rules(&config.rules, durability, policies);
        self.hub.may_refuse = config.may_refuse();
        self.hub.config = config;
    }

    /// Registers an accepted connection.
    pub fn open(&mut self, meta: ConnMeta, now: Nanos) -> ConnId {
        let hub = &mut self.hub;
        let generation = hub.outlets.next_generation();
        let slot = hub.outlets.conns.insert(Conn {
            generation,
            state: State::Opening,
            version: Version::V311,
            dirty: false,
            urgent: false,
            class: Class::Normal,
            congested: false,
            slow: false,
            behind: false,
            pause_armed: false,
            problem_information: true,
            paused: 0,
            unread: false,
            session: u32::MAX,
            number: 0,
            last_received: now,
            resumed: false,
            bridge: false,
            keep_alive: 0,
            receive_max: u16::MAX,
            unreleased: 0,
            max_packet: u32::MAX,
            route: 0,
            route_allowed: false,
            durability: Durability::None,
            held: HeldAnswers::default(),
            corked: false,
            states: false,
            promised: None,
            unheard: false,
            sends_urgent: false,
            urgent_at: 0,
            link: false,
            answers_armed: false,
            alias_max: 0,
            out: Egress::default(),
            permissions: None,
            connected_at: now,
            meta: Box::new(meta.into()),
            extra: None,
        });
        hub.stats.connections_opened += 1;
        hub.stats.connections += 1;
        let timer = Timer::Connect { slot, generation };
        hub.timers.arm(now + hub.config.connect_timeout, timer);
        self.compact_timers();
        let id = ConnId { slot, generation };
        self.bound_half_open(id, now);
        id
    }

    /// Notes a new connection. If there are too many connections that have not completed CONNECT,
    /// closes the oldest of them.
    fn bound_half_open(&mut self, id: ConnId, now: Nanos) {
        let is_opening = |conns: &Slab<Conn>, id: &ConnId| {
            conns.get(id.slot).is_some_and(|conn| {
                conn.generation == id.generation && !matches!(conn.state, State::Connected)
            })
        };
        let hub = &mut self.hub;
        let max = hub.config.limits.max_half_open;
        hub.outlets.opening.push_back(id);
        let half_open = hub.stats.connections - hub.stats.clients_connected;
        let evict = half_open as usize > max;
        while let Some(oldest) = hub.outlets.opening.front().copied() {
            let opening = is_opening(&hub.outlets.conns, &oldest);
            if opening && !evict {
                break;
            }
            hub.outlets.opening.pop_front();
            if opening {
                self.fail(
                    oldest,
                    &Fail::new(
                        ReasonCode::QuotaExceeded,
                        "too many connections without CONNECT",
                    ),
                    now,
                );
                return;
            }
        }
        if hub.outlets.opening.len() > 2 * max + 1024 {
            let conns = &hub.outlets.conns;
            hub.outlets.opening.retain(|id| is_opening(conns, id));
        }
    }

    /// Notes facts that the layers below MQTT have found out about a peer since [`Self::open`]: a
    /// proven user name, or the peer's address behind a proxy.
    pub fn identify(
        &mut self,
        id: ConnId,
        identity: Option<Arc<str>>,
        peer: Option<std::net::SocketAddr>,
    ) {
        if let Some(conn) = self.hub.outlets.conn(id) {
            if let Some(identity) = identity {
                conn.meta.identify(identity);
            }
            if peer.is_some() {
                conn.meta.set_peer(peer);
            }
        }
    }

    /// Whether the client of a connection is being authenticated.
    pub fn is_proving(&self, id: ConnId) -> bool {
        let conn = self.hub.outlets.conns.get(id.slot);
        conn.is_some_and(|conn| {
            conn.generation == id.generation && matches!(conn.state, State::Authenticating(_))
        })
    }

    /// Notes the certificate with which the peer of a connection has authenticated.
    pub fn credit(&mut self, id: ConnId, credential: Option<Arc<Credential>>) {
        if let Some(conn) = self.hub.outlets.conn(id) {
            conn.meta.credit(credential);
        }
    }

    /// Bounds the size in bytes of the packets to a connection, whatever its client allows: after
    /// [`Self::open`], and again when the bound shrinks. For transports that carry no larger
    /// packets.
    pub fn bound_packets(&mut self, id: ConnId, max: usize) {
        if let Some(conn) = self.hub.outlets.conn(id) {
            let max = u32::try_from(max).unwrap_or(u32::MAX);
            conn.max_packet = conn.max_packet.min(max);
        }
    }

    /// Number of clients that are connected to this shard.
    pub fn clients_connected(&self) -> u64 {
        self.hub.stats.clients_connected
    }

    /// Handles received bytes. Whole packets are handled; the rest must be passed in again together
    /// with the bytes that follow.
    pub fn receive(&mut self, id: ConnId, data: &[u8], now: Nanos) -> Received {
        self.receive_until(id, data, false, now, now)
    }

    /// As [`Self::receive`], but only up to the first message of an admitted flow. The rest must be
    /// passed in again, even if no bytes follow, after the output caused by that message was
    /// written and after more urgent input of other connections. Handling also stops after a
    /// bounded number of packets ([`Received::more`]). The delay of the messages counts from
    /// `arrived`.
    pub fn receive_promised(
        &mut self,
        id: ConnId,
        data: &[u8],
        arrived: Nanos,
        now: Nanos,
    ) -> Received {
        self.receive_until(id, data, true, arrived, now)
    }

    /// As [`Self::receive_promised`] for one packet in a buffer of its own. A message with a large
    /// payload keeps a reference to that buffer: nothing is copied.
    pub fn receive_whole(
        &mut self,
        id: ConnId,
        packet: &Bytes,
        arrived: Nanos,
        now: Nanos,
    ) -> Received {
        self.hub.packet = Some(packet.clone());
        let received = self.receive_until(id, packet, true, arrived, now);
        self.hub.packet = None;
        received
    }

    /// Whether deadlines may be guaranteed, and clients are therefore read in the order of
    /// [`Self::need`].
    #[inline]
    pub fn promises(&self) -> bool {
        self.hub.config.admission.is_some()
    }

    /// The priority with which a connection with received bytes must be read.
    pub fn need(&self, id: ConnId) -> Need {
        match self.hub.outlets.conns.get(id.slot) {
            Some(conn) if conn.generation == id.generation => match conn.promised {
                Some(priority) => Need::Promised(priority),
                None if conn.sends_urgent => Need::Urgent,
                None => Need::Plain,
            },
            _ => Need::Plain,
        }
    }

    /// Whether other clients have their turn: after [`ROW`] packets of one client, or [`OFFERS`]
    /// offers to receivers since the count was `offered`.
    #[inline]
    fn is_turn_over(&self, packets: u64, offered: u64) -> bool {
        packets >= ROW || self.hub.work.offered - offered >= OFFERS
    }

    #[expect(
        clippy::too_many_lines,
        reason = "one loop over the packets of a read: each kind changes the same counters and may end it"
    )]
    fn receive_until(
        &mut self,
        id: ConnId,
        data: &[u8],
        promised: bool,
        arrived: Nanos,
        now: Nanos,
    ) -> Received {
        self.hub.arrived = arrived;
        self.hub.sampling.read(arrived, now);
        let mut received = Received {
            consumed: 0,
            needed: 0,
            flow: Flow::Closed,
            promised: false,
            more: false,
        };
        let mut units = 0;
        let offered = self.hub.work.offered;
        let before = Publishes::of(&self.hub.stats);
        if let Some(journal) = &mut self.hub.journal {
            journal.see(now);
        }
        let limits = &self.hub.config.limits;
        let (max_packet, max_connect) = (limits.max_packet_size, limits.max_connect_size);
        let send_buffer = limits.send_buffer;
        let conn = self.hub.outlets.conns.get_mut(id.slot);
        let Some(mut conn) = conn.filter(|conn| conn.generation == id.generation) else {
            return received;
        };
        // Only whole packets count as signs of life; the end of this function restores the time.
        let heard = match std::mem::take(&mut conn.resumed) {
            true => now,
            false => conn.last_received,
        };
        conn.last_received = now;
        if conn.unheard && !data.is_empty() && matches!(conn.state, State::Connected) {
            conn.unheard = false;
            let slot = conn.session;
            let told = conn.extra.as_ref().map_or(0, |extra| extra.told_dropped);
            let session = self.hub.sessions.get_mut(slot);
            if let Some(losses) = session.and_then(|session| session.losses.as_mut()) {
                losses.tell(told);
            }
            self.hub.is_known_to_client(slot, now);
            match self.hub.outlets.conns.get_mut(id.slot) {
                Some(same) => conn = same,
                None => return received,
            }
        }
        // A neighbour is read even if it does not read: otherwise both ends could wait for each
        // other. The window bounds the bytes that are sent to a neighbour.
        if conn.paused > 0 || !conn.link && Hub::check_unread(conn, send_buffer) {
            received.flow = Flow::Pause;
            return received;
        }
        let mut connected = matches!(conn.state, State::Connected);
        let mut version = conn.version;
        let mut max = match connected {
            true => max_packet,
            false => max_connect.min(max_packet),
        };
        let mut packets = 0;
        // A route whose receivers do not accept batches.
        let mut declined = 0;
        loop {
            match split_of(&data[received.consumed..], max, version) {
                Ok(Split::Frame(frame)) => {
                    let rest = &data[received.consumed..];
                    let run = match frame.first {
                        PLAIN => {
                            // A single packet is no batch.
                            let run = match frame.bytes.len() == rest.len() {
                                true => None,
                                false => self.publish_run(id, frame, rest, &mut declined, now),
                            };
                            run.or_else(|| self.publish_plain(id, frame, now))
                        }
                        acknowledged::PUBLISH => self.publish_acknowledged(id, frame, rest, now),
                        _ => None,
                    };
                    if let Some(run) = run {
                        packets += run.messages;
                        received.consumed += run.bytes;
                        units += 1 + run.messages / IN_A_ROW;
                        if run.next == Next::Packet {
                            let is_over = self.is_turn_over(units, offered);
                            received.more = promised && is_over;
                            if received.more {
                                received.flow = Flow::Read;
                                break;
                            }
                            continue;
                        }
                        received.flow = Flow::Pause;
                        break;
                    }
                    if frame.first == acknowledged::PUBACK {
                        let count = self.complete_acknowledged(id, rest, now);
                        if count > 0 {
                            packets += count as u64;
                            received.consumed += 4 * count;
                            continue;
                        }
                    }
                    packets += 1;
                    let next = match self.packet(id, frame, now) {
                        Ok(next) => next,
                        Err(fail) => {
                            self.fail(id, &fail, now);
                            Next::Closed
                        }
                    };
                    match next {
                        Next::Moved => break,
                        Next::Hold => {
                            packets -= 1;
                            received.flow = Flow::Pause;
                            break;
                        }
                        _ => {}
                    }
                    received.consumed += frame.bytes.len();
                    max = max_packet;
                    if !connected {
                        connected = true;
                        version = self
                            .hub
                            .outlets
                            .conn(id)
                            .map_or(version, |conn| conn.version);
                    }
                    received.promised = self.hub.stats.flow_messages_admitted != before.promised;
                    match next {
                        Next::Packet if received.promised && promised => {
                            received.flow = Flow::Read;
                            break;
                        }
                        Next::Packet => {
                            units += 1;
                            let is_over = self.is_turn_over(units, offered);
                            received.more = promised && is_over;
                            if received.more {
                                received.flow = Flow::Read;
                                break;
                            }
                        }
                        Next::Pause => {
                            received.flow = Flow::Pause;
                            break;
                        }
                        Next::Closed | Next::Moved | Next::Hold => break,
                    }
                }
                Ok(Split::Incomplete { total }) => {
                    received.needed = total.unwrap_or(0);
                    received.flow = Flow::Read;
                    break;
                }
                Err(error) => {
                    self.fail(id, &error.into(), now);
                    break;
                }
            }
        }
        received.more &= received.consumed < data.len();
        self.hub.sampling.disarm();
        self.hub.stats.packets_received += packets;
        self.hub.stats.bytes_received += received.consumed as u64;
        let came = Publishes::of(&self.hub.stats);
        if let Some(conn) = self.hub.outlets.conn(id) {
            if received.consumed == 0 && received.flow == Flow::Read {
                conn.last_received = heard;
            }
            if came.urgent != before.urgent {
                (conn.sends_urgent, conn.urgent_at) = (true, millis(now));
            } else if conn.sends_urgent {
                conn.sends_urgent = millis(now).wrapping_sub(conn.urgent_at) <= URGENT;
            }
            // A client that sends much beside its admitted flows loses their priority.
            let plain = came.all - before.all > came.promised - before.promised;
            if plain || !received.promised && received.consumed > BESIDE {
                conn.promised = None;
            }
        }
        self.hub.let_needless_go();
        self.share_stats_soon(now);
        received
    }

    pub(super) fn share_stats_soon(&mut self, now: Nanos) {
        if self.hub.stats_shared {
            self.hub.stats_shared = false;
            self.hub.timers.arm(now + SHARE_STATS, Timer::Housekeeping);
        }
    }

    #[inline(always)]
    fn packet(&mut self, id: ConnId, frame: Frame<'_>, now: Nanos) -> Result<Next, Fail> {
        let Some(conn) = self.hub.outlets.conns.get_mut(id.slot) else {
            return Ok(Next::Closed);
        };
        if matches!(conn.state, State::Connected) && frame.kind == PacketType::Publish {
            return self.publish_packet(id, frame, now);
        }
        self.other_packet(id, frame, now)
    }

    #[inline(never)]
    fn other_packet(&mut self, id: ConnId, frame: Frame<'_>, now: Nanos) -> Result<Next, Fail> {
        let Some(conn) = self.hub.outlets.conns.get_mut(id.slot) else {
            return Ok(Next::Closed);
        };
        match conn.state {
            State::Connected => {}
            State::Opening => return self.first_packet(id, frame, now),
            State::Authenticating(_) => return self.auth_packet(id, frame),
            State::Awaiting(_) => return Ok(Next::Hold),
        }
        let version = conn.version;
        if version.is_v5() && !frame.is_minimal() {
            return Err(DecodeError::Malformed("remaining length").into());
        }
        let body = frame.body;
        match frame.kind {
            PacketType::PubAck => {
                let ack = Ack::decode(frame.kind, body, version)?;
                self.acknowledge(id, ack.packet_id, Acknowledgement::PubAck, now)?;
            }
            PacketType::PubRec => {
                let ack = Ack::decode(frame.kind, body, version)?;
                self.pubrec(id, ack, now)?;
            }
            PacketType::PubRel => {
                let ack = Ack::decode(frame.kind, body, version)?;
                self.pubrel(id, ack);
            }
            PacketType::PubComp => {
                let ack = Ack::decode(frame.kind, body, version)?;
                self.acknowledge(id, ack.packet_id, Acknowledgement::PubComp, now)?;
            }
            PacketType::Subscribe => {
                return self.subscribe(id, &Subscribe::decode(body, version)?, now);
            }
            PacketType::Unsubscribe => {
                return self.unsubscribe(id, &Unsubscribe::decode(body, version)?, now);
            }
            PacketType::PingReq => {
                if !body.is_empty() {
                    return Err(DecodeError::Malformed("PINGREQ with a body").into());
                }
                self.hub.send(id.slot, &Packet::PingResp);
            }
            PacketType::Disconnect => {
                let disconnect = Disconnect::decode(body, version)?;
                self.disconnect_packet(id, disconnect, now)?;
                return Ok(Next::Closed);
            }
            PacketType::Auth => self.auth_again(id, &Auth::decode(body, version)?)?,
            PacketType::Connect => {
                return Err(Fail::new(ReasonCode::ProtocolError, "second CONNECT"));
            }
            PacketType::ConnAck
            | PacketType::SubAck
            | PacketType::UnsubAck
            | PacketType::PingResp
            | PacketType::Publish => {
                return Err(Fail::new(
                    ReasonCode::ProtocolError,
                    "packet type that only servers send",
                ));
            }
        }
        Ok(Next::Packet)
    }

    /// Handles a receiver's acknowledgement of a message. Returns the step for which the session
    /// then waits, with the number of its entry in the store (0 for none); `None` if no message
    /// with that packet identifier was sent on this connection: the acknowledgement may be late,
    /// for a message of an earlier connection.
    #[inline]
    fn acknowledge(
        &mut self,
        id: ConnId,
        packet_id: u16,
        ack: Acknowledgement,
        now: Nanos,
    ) -> Result<Option<(Step, u64)>, Fail> {
        let hub = &mut self.hub;
        let Some(slot) = hub.outlets.conns.get(id.slot).map(|conn| conn.session) else {
            return Ok(None);
        };
        let Some(session) = hub.sessions.get_mut(slot) else {
            return Ok(None);
        };
        let taken = session.window.acknowledge(packet_id, ack);
        if let Ok(Some((Step::Done, entry))) = taken {
            Journal::done(&mut hub.journal, session, entry);
            hub.stats.inflight_messages -= 1;
            if Hub::has_backlog(session) {
                hub.pump(slot, now);
                hub.check_relief(id.slot);
            }
        }
        taken.map_err(|wrong| Fail::new(ReasonCode::ProtocolError, wrong.to_string()))
    }

    fn pubrec(&mut self, id: ConnId, ack: Ack<'_>, now: Nanos) -> Result<(), Fail> {
        let kind = match ack.reason.is_error() {
            // The receiver refuses the message, which ends the handshake.
            true => Acknowledgement::Refusal,
            false => Acknowledgement::PubRec,
        };
        let taken = self.acknowledge(id, ack.packet_id, kind, now)?;
        let waits = matches!(taken, Some((Step::Comp, _)));
        if kind == Acknowledgement::Refusal && !waits {
            return Ok(());
        }
        let hub = &mut self.hub;
        let Some(conn) = hub.outlets.conns.get(id.slot) else {
            return Ok(());
        };
        let (slot, v5) = (conn.session, conn.v5());
        let Some(session) = hub.sessions.get_mut(slot) else {
            return Ok(());
        };
        let reason = if waits || !v5 {
            ReasonCode::Success
        } else {
            ReasonCode::PacketIdentifierNotFound
        };
        let after = match &mut hub.journal {
            Some(journal) => journal.step(session, taken.map_or(0, |(_, entry)| entry)),
            None => None,
        };
        let after = after.map(After::ticket);
        hub.answer(id.slot, PacketType::PubRel, ack.packet_id, reason, after);
        Ok(())
    }

    fn pubrel(&mut self, id: ConnId, ack: Ack<'_>) {
        let hub = &mut self.hub;
        let Some(conn) = hub.outlets.conns.get(id.slot) else {
            return;
        };
        let (slot, v5) = (conn.session, conn.v5());
        let after = hub.forget_received(slot, ack.packet_id);
        let known = after.is_some();
        if known && let Some(conn) = hub.outlets.conns.get_mut(id.slot) {
            conn.unreleased = conn.unreleased.saturating_sub(1);
        }
        let reason = if known || !v5 {
            ReasonCode::Success
        } else {
            ReasonCode::PacketIdentifierNotFound
        };
        let after = after.map(After::ticket);
        hub.answer(id.slot, PacketType::PubComp, ack.packet_id, reason, after);
    }

    /// Notes that `n` bytes were written, counted from the start of [`Self::pending`]. Returns
    /// whether more bytes may be pending.
    #[inline]
    pub fn sent(&mut self, id: ConnId, n: usize, now: Nanos) -> bool {
        let hub = &mut self.hub;
        let Some(conn) = hub.outlets.conns.get_mut(id.slot) else {
            return false;
        };
        if conn.generation != id.generation {
            return false;
        }
        conn.out.advance(
            n,
            &hub.config.shares,
            &mut hub.outlets.pool,
            &mut hub.stats,
            now,
        );
        hub.stats.bytes_sent += n as u64;
        if let Some((class, took)) = hub.sampling.written(id, n, now) {
            hub.stats.class(class).passage.record(took);
        }
        self.after_sending(id, now);
        let conn = self.hub.outlets.conns.get(id.slot);
        conn.is_some_and(|conn| !conn.out.is_empty())
    }

    /// Continues after bytes of a connection were written, which gives its buffer new capacity.
    #[inline]
    fn after_sending(&mut self, id: ConnId, now: Nanos) {
        let hub = &mut self.hub;
        let Some(conn) = hub.outlets.conns.get_mut(id.slot) else {
            return;
        };
        let (session, under_pressure) = (conn.session, conn.congested || conn.slow);
        let unread = conn.unread;
        let waits = hub.sessions.get(session).is_some_and(Hub::has_backlog);
        conn.behind = conn.out.backlog() > 0 || conn.behind && waits;
        if waits {
            hub.pump(session, now);
        }
        if under_pressure {
            hub.check_relief(id.slot);
        }
        if unread {
            hub.has_read(id, now);
        }
    }

    /// The bytes that wait to be written to a connection, in the order of transmission: fills in
    /// the first slices and returns how many. The order of messages that can still be overtaken is
    /// chosen again with every call.
    #[inline]
    pub fn pending<'a>(
        &'a mut self,
        id: ConnId,
        scope: Scope,
        now: Nanos,
        slices: &mut [std::io::IoSlice<'a>],
    ) -> usize {
        let hub = &mut self.hub;
        hub.plan(id.slot, scope, now);
        match hub.outlets.conns.get(id.slot) {
            Some(conn) if conn.generation == id.generation && !conn.corked => {
                hub.sampling.about_to_write(id, || conn.out.len());
                conn.out.slices(scope, slices)
            }
            _ => 0,
        }
    }

    /// The most urgent class of which a connection was sent a message, at least normal; bulk if the
    /// connection takes nothing else. It never becomes less urgent.
    #[inline]
    pub fn class(&self, id: ConnId) -> Class {
        match self.hub.outlets.conns.get(id.slot) {
            Some(conn) if conn.generation == id.generation => conn.class,
            _ => Class::Normal,
        }
    }

    /// Whether the connection leads to another broker of the mesh.
    #[inline]
    pub fn is_link(&self, id: ConnId) -> bool {
        let conn = self.hub.outlets.conns.get(id.slot);
        conn.is_some_and(|conn| conn.generation == id.generation && conn.link)
    }

    /// The minimum shares of the lanes in the bytes sent to one receiver, and in the bytes sent by
    /// a transport that serves several receivers in turn ([`Credits`](crate::Credits)).
    pub fn shares(&self) -> Shares {
        self.hub.config.shares
    }

    /// The rank of the next message that a connection will be sent; `None` if nothing waits.
    pub fn rank(&mut self, id: ConnId) -> Option<Rank> {
        self.hub
            .outlets
            .conn(id)
            .filter(|conn| !conn.corked)?
            .out
            .rank()
    }

    /// For transports that carry datagrams: moves whole packets, together at
    /// most `max` bytes and messages of one class only, to the end of `out`.
    /// Returns the class; `None` if nothing waits. [`Self::sent`] is not called
    /// for them. A packet above `max` is dropped and counted.
    pub fn next_packets(
        &mut self,
        id: ConnId,
        max: usize,
        out: &mut Vec<u8>,
        now: Nanos,
    ) -> Option<Class> {
        let from = out.len();
        loop {
            self.hub.outlets.conn(id).filter(|conn| !conn.corked)?;
            self.hub.plan(id.slot, Scope::All, now);
            let hub = &mut self.hub;
            let conn = hub.outlets.conns.get_mut(id.slot)?;
            let (shares, pool) = (&hub.config.shares, &mut hub.outlets.pool);
            let class = conn
                .out
                .next_packets(max, out, shares, pool, &mut hub.stats, now);
            if class.is_none() && !conn.out.is_empty() {
                continue;
            }
            let n = (out.len() - from) as u64;
            hub.stats.bytes_sent += n;
            self.after_sending(id, now);
            return class;
        }
    }

    /// Moves the connections for which urgent output was queued since the last call to the end of
    /// `list`, the most urgent first.
    pub fn take_urgent(&mut self, list: &mut Vec<ConnId>) {
        let hub = &mut self.hub;
        for id in hub.outlets.urgent.drain(..) {
            if let Some(conn) = hub.outlets.conns.get_mut(id.slot)
                && conn.generation == id.generation
            {
                conn.urgent = false;
                if !conn.corked
                    && let Some(rank) = conn.out.rank()
                {
                    hub.outlets
                        .ranked
                        .push((rank, hub.outlets.ranked.len(), id));
                }
            }
        }
        // In the order of arrival among equals.
        hub.outlets
            .ranked
            .sort_unstable_by_key(|(rank, arrival, _)| (*rank, *arrival));
        list.extend(hub.outlets.ranked.drain(..).map(|(_, _, id)| id));
    }

    /// Whether [`Self::take_urgent`] has a connection to return.
    #[inline]
    pub fn has_urgent(&self) -> bool {
        !self.hub.outlets.urgent.is_empty()
    }

    /// Moves the connections for which output was queued since the last call to the end of `list`.
    #[inline]
    pub fn take_dirty(&mut self, list: &mut Vec<ConnId>) {
        for id in &self.hub.outlets.dirty {
            if let Some(conn) = self.hub.outlets.conns.get_mut(id.slot)
                && conn.generation == id.generation
            {
                conn.dirty = false;
            }
        }
        list.append(&mut self.hub.outlets.dirty);
    }

    /// Whether [`Self::take_dirty`] has a connection to return.
    #[inline]
    pub fn has_dirty(&self) -> bool {
        !self.hub.outlets.dirty.is_empty()
    }

    /// Moves the outputs, which the caller must carry out, to the end of `list`.
    pub fn take_outputs(&mut self, list: &mut Vec<Output>) {
        list.append(&mut self.hub.outlets.outputs);
    }

    /// Whether [`Self::take_outputs`] has an output to return.
    #[inline]
    pub fn has_outputs(&self) -> bool {
        !self.hub.outlets.outputs.is_empty()
    }

    /// Moves the messages for another shard to `list`, urgent ones first; the caller must pass them
    /// in order to [`Self::remote`] of that shard. Publishers that waited for this may continue.
    pub fn take_outbox(&mut self, shard: u16, list: &mut Vec<RemoteMessage>) {
        self.hub.take_outbox(shard, list);
    }

    /// As [`Self::take_outbox`], for urgent messages only.
    pub fn take_urgent_outbox(&mut self, shard: u16, list: &mut Vec<RemoteMessage>) {
        self.hub.take_urgent_outbox(shard, list);
    }

    /// Whether [`Self::take_urgent_outbox`] may have new messages since the last call of this
    /// function.
    #[inline]
    pub fn posts_urgent(&mut self) -> bool {
        std::mem::take(&mut self.hub.outboxes.posts_urgent)
    }

    /// Whether [`Self::take_outbox`] has a message for that shard.
    #[inline]
    pub fn has_outbox(&self, shard: u16) -> bool {
        let outbox = &self.hub.outboxes.list[usize::from(shard)];
        !outbox.messages.is_empty() || !outbox.urgent.is_empty()
    }

    /// Handles messages from another shard.
    pub fn remote(&mut self, messages: impl Iterator<Item = RemoteMessage>, now: Nanos) {
        for RemoteMessage(message) in messages {
            match message {
                Remote::Publish {
                    message,
                    targets,
                    promised,
                    entries,
                    name,
                    from,
                } => {
                    for (at, target) in targets.iter().enumerate() {
                        let entry = entries.as_ref().map_or(0, |entries| entries[at]);
                        let known = (entry, from, name);
                        self.deliver_remote(&message, target, promised, known, now);
                    }
                }
                Remote::Share {
                    message,
                    target,
                    promised,
                    entry,
                    from,
                } => {
                    let known = (entry, from, None);
                    self.deliver_remote(&message, &target, promised, known, now);
                }
                Remote::Done { entries } => self.hub.done_elsewhere(&entries),
                Remote::Fence { from, number } => {
                    let passed = Remote::Passed {
                        from: self.hub.index,
                        number,
                    };
                    let _ = self.hub.outboxes.post(from, passed);
                }
                Remote::Passed { from, number } => self.hub.fence_answered(from, number),
                Remote::Relief => {
                    let waiters = std::mem::take(&mut self.hub.outboxes.remote_waiters);
                    self.hub.resume(waiters);
                }
            }
        }
        self.share_stats_soon(now);
    }

    /// The time at which [`Self::work`] and the end of a turn are due next.
    #[inline]
    pub fn next_timeout(&self) -> Option<Nanos> {
        let hub = &self.hub;
        if !hub.work.tasks.is_empty() {
            return Some(Nanos(0));
        }
        let stored = hub.journal.as_ref().and_then(|journal| journal.due());
        hub.timers.next().into_iter().chain(stored).min()
    }

    /// Advances the time: runs all due timers and all waiting tasks.
    pub fn tick(&mut self, now: Nanos) {
        while self.work(now, &mut Budget::unlimited()).is_some() {}
    }

    /// Advances the time and does one piece of waiting work: runs due timers, or one slice of one
    /// task, alternately if there are both. Returns the kind of work; `None` if there was none. A
    /// piece takes no more than the budget, except for work that cannot be divided.
    pub fn work(&mut self, now: Nanos, budget: &mut Budget) -> Option<Work> {
        let hub = &mut self.hub;
        let is_due = hub.timers.next().is_some_and(|at| at <= now);
        let timely = is_due && (hub.work.tasks.is_empty() || !hub.work.tasks_next);
        hub.work.tasks_next = timely;
        let mut slice = Budget::new(SLICE.min(budget.left()));
        if timely {
            while !slice.is_spent()
                && let Some(timer) = self.hub.timers.pop_due(now)
            {
                slice.spend(TIMER);
                self.fire(timer, now);
            }
            budget.spend(slice.spent());
            return Some(Work::Timers);
        }
        let task = hub.work.tasks.pop()?;
        let kind = task.kind();
        self.hub.work.worked_for = self.hub.subject_of(&task);
        self.run_slice(task, &mut slice, now);
        budget.spend(slice.spent());
        Some(kind)
    }

    /// Whether a timer is due or a task waits for [`Self::work`].
    #[inline]
    pub fn has_work(&self, now: Nanos) -> bool {
        !self.hub.work.tasks.is_empty() || self.hub.timers.next().is_some_and(|at| at <= now)
    }

    /// Number of tasks that wait for their next slice.
    pub fn tasks(&self) -> usize {
        self.hub.work.tasks.len()
    }

    /// Runs a slice of a task, which is queued again if it is not finished.
    fn run_slice(&mut self, task: Task, budget: &mut Budget, now: Nanos) {
        match task {
            Task::Filters(request) => {
                self.continue_filters(request, budget, now);
                self.share_stats_soon(now);
            }
            Task::Replay {
                slot,
                session: number,
            } => {
                let session = self.hub.sessions.get_mut(slot);
                if let Some(session) = session.filter(|it| it.handle.number == number) {
                    session.replay_waits = false;
                    self.hub.pump_within(slot, budget, now);
                    self.share_stats_soon(now);
                }
            }
            Task::Access => self.give_rights(budget, now),
            Task::Expire => self.expire_retained(budget, now),
            Task::Compact => self.continue_compaction(budget),
            Task::Sys => self.continue_sys(budget, now),
            Task::Alarms { after } => self.raise_alarms(after, budget, now),
            Task::Tell { slot, topic } => {
                budget.spend(TIMER);
                self.notify_flow_publisher(slot, &topic, now);
            }
            Task::Remains(remains) => self.clear_away(*remains, budget, now),
            Task::Discard(mut discarded) => {
                if discarded.free(budget) {
                    self.hub.work.tasks.push(Task::Discard(discarded));
                }
            }
            Task::FanOut { publisher } => self.continue_fan_out(publisher, budget, now),
        }
    }

    /// Removes retained messages that have expired.
    fn expire_retained(&mut self, budget: &mut Budget, now: Nanos) {
        let hub = &mut self.hub;
        let expired = hub.directory.retained_mut().expire(now, budget);
        hub.stats.dropped_expired += expired as u64;
        hub.work.expires = budget.is_spent();
        if hub.work.expires {
            hub.work.tasks.push(Task::Expire);
        }
        if expired > 0 {
            self.share_stats_soon(now);
        }
    }

    /// Rights of clients may have changed, and credentials may have been revoked. A task updates
    /// the rights of one session after the other, and disconnects clients whose credentials were
    /// revoked. If that task runs already, it starts again with the first session.
    pub fn access_changed(&mut self) {
        self.hub.author_rights.forget();
        if self.hub.work.rights_from.replace(0).is_none() {
            self.hub.work.tasks.push(Task::Access);
        }
    }

    /// Updates the rights of the next sessions.
    fn give_rights(&mut self, budget: &mut Budget, now: Nanos) {
        let mut slot = self.hub.work.rights_from.unwrap_or(0);
        while slot < self.hub.sessions.places() {
            if budget.is_spent() {
                self.hub.work.rights_from = Some(slot);
                return self.hub.work.tasks.push(Task::Access);
            }
            budget.spend(1);
            if self.hub.sessions.get(slot).is_some() {
                budget.spend(RIGHTS);
                self.give_rights_to(slot, budget, now);
            }
            slot += 1;
        }
        self.hub.work.rights_from = None;
        self.hub.directory.generations.bump_all();
    }

    /// Updates the rights of a session, or disconnects its client.
    fn give_rights_to(&mut self, slot: u32, budget: &mut Budget, now: Nanos) {
        let hub = &mut self.hub;
        let Some(session) = hub.sessions.get(slot) else {
            return;
        };
        let conn = session
            .conn
            .and_then(|conn| Some((conn, hub.outlets.conns.get_mut(conn)?)));
        let ended = conn.as_ref().and_then(|(conn, it)| {
            let why = match it.meta.is_revoked() {
                true => REVOKED,
                false => {
                    neighbour::check_rights(&hub.directory, session, it.meta.listener).err()?
                }
            };
            Some((*conn, why))
        });
        if let Some((conn, why)) = ended {
            budget.spend(ENDING);
            self.dismiss(conn, ReasonCode::NotAuthorized, why);
            self.end_connection(conn, why, true, now);
            return;
        }
        // A neighbour broker has all rights.
        let permissions = match session.handle.link {
            true => None,
            false => hub.directory.permissions(
                session.listener,
                session.username.as_deref(),
                &session.handle.client_id,
            ),
        };
        session.handle.set_permissions(permissions.clone());
        if let Some((_, conn)) = conn {
            conn.permissions = permissions;
            conn.route = 0;
        }
    }

    /// The counters of this shard, with current gauges.
    pub fn stats(&mut self) -> &Stats {
        self.hub.refresh_gauges();
        &self.hub.stats
    }

    /// Number of armed timers.
    pub fn timers(&self) -> usize {
        self.hub.timers.len()
    }

    /// Number of open connections, including those before CONNECT.
    pub fn connections(&self) -> usize {
        self.hub.outlets.conns.len()
    }

    /// Unsent bytes of a connection.
    pub fn buffered(&self, id: ConnId) -> usize {
        match self.hub.outlets.conns.get(id.slot) {
            Some(conn) if conn.generation == id.generation => conn.out.len(),
            _ => 0,
        }
    }

    fn compact_timers(&mut self) {
        let hub = &mut self.hub;
        let alive = hub.outlets.conns.len() + hub.sessions.len();
        if hub.timers.len() < 4 * alive + 4096 {
            return;
        }
        if hub.timers.begin_compaction() {
            hub.work.tasks.push(Task::Compact);
        }
    }

    /// Continues removing timers that are not needed any more.
    fn continue_compaction(&mut self, budget: &mut Budget) {
        let hub = &mut self.hub;
        let (conns, sessions, moves) = (&hub.outlets.conns, &hub.sessions, &hub.links.moves);
        let custody = hub.links.custody.as_ref();
        let alive = |at: Nanos, timer: &Timer| match *timer {
            Timer::Connect { slot, generation } => conns.get(slot).is_some_and(|c| {
                c.generation == generation && !matches!(c.state, State::Connected)
            }),
            Timer::KeepAlive { slot, generation }
            | Timer::Pause { slot, generation }
            | Timer::Parked { slot, generation }
            | Timer::Answers { slot, generation }
            | Timer::Shape { slot, generation } => {
                conns.get(slot).is_some_and(|c| c.generation == generation)
            }
            Timer::SessionExpiry { slot, epoch }
            | Timer::Absent { slot, epoch }
            | Timer::Will { slot, epoch } => sessions.get(slot).is_some_and(|s| s.epoch == epoch),
            Timer::Sweep { slot, epoch } => sessions
                .get(slot)
                .is_some_and(|s| s.epoch == epoch && s.sweep_at == at),
            Timer::HistoryExpiry { id } => moves.expiries.get(&id).is_some_and(|it| it.due == at),
            Timer::Transfer { id } => {
                let is_own = [WAKE, TRY_AGAIN].contains(&id);
                is_own || custody.is_some_and(|it| it.timers.contains_key(&id))
            }
            Timer::Throttles | Timer::Flushes | Timer::Sys | Timer::Housekeeping => true,
        };
        while !budget.is_spent() {
            budget.spend(STALE);
            if !hub.timers.check_next(alive) {
                return;
            }
        }
        hub.work.tasks.push(Task::Compact);
    }

    fn fire(&mut self, timer: Timer, now: Nanos) {
        match timer {
            Timer::Connect { slot, generation } => {
                let id = ConnId { slot, generation };
                if self
                    .hub
                    .outlets
                    .conn(id)
                    .is_some_and(|conn| !matches!(conn.state, State::Connected))
                {
                    let fail = Fail::new(ReasonCode::MaximumConnectTime, "no CONNECT in time");
                    self.fail(id, &fail, now);
                }
            }
            Timer::KeepAlive { slot, generation } => {
                let id = ConnId { slot, generation };
                let Some(conn) = self.hub.outlets.conn(id) else {
                    return;
                };
                // A client whose connection is not read cannot show that it is alive.
                if conn.paused > u32::from(conn.unread) || conn.resumed {
                    conn.resumed = false;
                    conn.last_received = now;
                }
                let due = conn.last_received + conn.patience();
                if due > now {
                    self.hub.timers.arm(due, timer);
                } else {
                    let fail = Fail::new(ReasonCode::KeepAliveTimeout, "keep alive timed out");
                    self.fail(id, &fail, now);
                }
            }
            Timer::Pause { slot, generation } => {
                if self.hub.outlets.conn(ConnId { slot, generation }).is_some() {
                    self.hub.pause_over(slot, now);
                }
            }
            Timer::Shape { slot, generation } => {
                self.hub.resume(vec![ConnId { slot, generation }]);
            }
            Timer::SessionExpiry { slot, epoch } => self.session_expired(slot, epoch, now),
            Timer::Absent { slot, epoch } => self.publisher_is_absent(slot, epoch, now),
            Timer::Will { slot, epoch } => self.will_due(slot, epoch, now),
            Timer::Sweep { slot, epoch } => self.sweep(slot, epoch, now),
            Timer::Parked { slot, generation } => {
                self.unpark(ConnId { slot, generation }, now);
            }
            Timer::Answers { slot, generation } => {
                self.hub.send_answers(ConnId { slot, generation });
            }
            Timer::Throttles => self.hub.send_throttles(now),
            Timer::Flushes => self.hub.flushes_are_due(now),
            Timer::HistoryExpiry { id } => self.expire_history(id, now),
            Timer::Transfer { id } => self.transfer_is_due(id, now),
            Timer::Sys => self.publish_sys(now),
            Timer::Housekeeping => {
                let hub = &mut self.hub;
                if hub.index == 0 && !std::mem::replace(&mut hub.work.expires, true) {
                    hub.work.tasks.push(Task::Expire);
                }
                if hub.index == 0 && hub.directory.watches.take_raised() {
                    hub.work.tasks.push(Task::Alarms { after: None });
                }
                hub.stats_shared = true;
                hub.refresh_gauges();
                hub.directory.share_stats(hub.index, &hub.stats);
                self.compact_timers();
            }
        }
    }

    fn sweep(&mut self, slot: u32, epoch: u64, now: Nanos) {
        let hub = &mut self.hub;
        // Of several timers, only the one for the current sweep time counts; if each were armed
        // again, their number would grow without bound.
        let Some(session) = hub
            .sessions
            .get_mut(slot)
            .filter(|s| s.epoch == epoch && s.sweep_at <= now)
        else {
            return;
        };
        let (queue, number) = (&mut session.queue, session.handle.number);
        let durable = session.durable;
        let (gone, next) = queue.sweep(now, |entry| {
            if let Some(journal) = &mut hub.journal
                && durable
                && entry != 0
            {
                journal.dropped(number, entry);
            }
        });
        session.share_queue_len();
        session.sweep_at = Nanos::MAX;
        let was_full = session.is_full;
        if session.sweep_by(next) {
            let timer = Timer::Sweep { slot, epoch };
            hub.timers.arm(session.sweep_at, timer);
        }
        hub.forget_queued(&gone);
        hub.stats.dropped_expired += gone.total() as u64;
        for (class, messages) in hub.stats.classes.iter_mut().zip(gone.messages) {
            class.dropped_expired += messages as u64;
        }
        if was_full {
            hub.look_how_full(slot);
        }
    }

    fn publish_sys(&mut self, now: Nanos) {
        let Some(interval) = self.hub.config.sys_interval else {
            return;
        };
        self.hub.timers.arm(now + interval, Timer::Sys);
        self.hub.refresh_gauges();
        self.hub
            .directory
            .share_stats(self.hub.index, &self.hub.stats);
        if let Some(sys) = &mut self.sys {
            let was_amid = sys.is_amid();
            sys.begin(&self.hub.directory, &self.hub.config, now);
            if !was_amid {
                self.hub.work.tasks.push(Task::Sys);
            }
        }
    }

    /// Checks the next admitted flows for late messages.
    fn raise_alarms(&mut self, after: Option<Arc<str>>, budget: &mut Budget, now: Nanos) {
        let directory = self.hub.directory.clone();
        let mut last = after;
        while !budget.is_spent() {
            let watches = directory.watches.after(last.as_deref(), WATCHES);
            if watches.is_empty() {
                return;
            }
            for watch in watches {
                if budget.is_spent() {
                    break;
                }
                budget.spend(1);
                if let Some(missed) = watch.alarm(now) {
                    budget.spend(TIMER);
                    self.alarm(Alarm::Missed(missed), now);
                }
                if watch.is_over() {
                    budget.spend(FLOW);
                    directory.watches.forget(&watch);
                }
                last = Some(watch.name().clone());
            }
        }
        self.hub.work.tasks.push(Task::Alarms { after: last });
    }

    /// Reports that a piece of work took longer than the bounds assume. The work was done for the
    /// given connection, or was the last piece of [`Self::work`].
    pub fn overran(&mut self, work: &'static str, took: Nanos, conn: Option<ConnId>, now: Nanos) {
        let hub = &mut self.hub;
        let slot = conn.and_then(|conn| Some(hub.outlets.conn(conn)?.session));
        let session = slot.and_then(|slot| hub.sessions.get(slot));
        let (client, filter) = match session {
            Some(session) => (Some(session.handle.client_id.clone()), None),
            None => std::mem::take(&mut hub.work.worked_for),
        };
        let overrun = Overrun {
            work,
            took,
            client,
            filter,
        };
        self.alarm(Alarm::Overrun(overrun), now);
    }

    /// Raises an alarm.
    fn alarm(&mut self, alarm: Alarm, now: Nanos) {
        let message = Message::new(
            alarm.topic().as_bytes(),
            Properties::EMPTY,
            alarm.to_string().as_bytes(),
            QoS::AtMostOnce,
            false,
            now,
            0,
        );
        let hub = &mut self.hub;
        hub.outlets
            .outputs
            .push(Output::Event(Event::Alarm(alarm.clone())));
        hub.directory.alarms.add(alarm, now);
        self.publish_message(&message, Durability::None, now);
    }

    /// Continues publishing `$SYS` topics.
    fn continue_sys(&mut self, budget: &mut Budget, now: Nanos) {
        let Some(mut sys) = self.sys.take() else {
            return;
        };
        while let Some(message) = sys.next(&self.hub.directory, budget, now) {
            self.publish_message(&message, Durability::None, now);
        }
        if sys.is_amid() {
            self.hub.work.tasks.push(Task::Sys);
        }
        self.sys = Some(sys);
    }

    fn deliver_remote(
        &mut self,
        message: &Arc<Message>,
        target: &crate::index::target::Target,
        promised: bool,
        (entry, from, name): (u64, u16, Option<Number>),
        now: Nanos,
    ) {
        let hub = &mut self.hub;
        hub.came(entry, delivered_qos(message.qos, target.qos), from);
        let mut publication = crate::publication::Publication::from_message(message, now);
        publication.queue_full = hub.config.queue_policies.of_topic(message.topic());
        publication.keeping.entry = entry;
        let known = MessageName::from_key(message.name).map(Number::from);
        publication.name = name.or(known);
        let ended = hub.session_of(target).is_none();
        let successor = ended.then(|| hub.successor(target, message.topic()));
        let successor = successor.flatten();
        if promised {
            publication.promise = Promise::Made;
        }
        if promised && message.qos.min(target.qos) != QoS::AtMostOnce {
            publication.reserved = message.size();
            hub.give_back(&target.session, message.size());
            hub.stats.dropped_session_ended += u64::from(ended && successor.is_none());
        }
        match successor {
            // The successor has its own queue position and journal entry.
            Some(successor) => {
                let mut publication = crate::publication::Publication::from_message(message, now);
                publication.name = name.or(known);
                let _ = hub.deliver(&mut publication, &successor, now);
            }
            None => drop(hub.deliver(&mut publication, target, now)),
        }
        hub.release(publication.reserved);
        // The receiver did not keep the message after all.
        if publication.keeping.entry != 0
            && let Some(journal) = &mut hub.journal
        {
            journal.dropped(target.session.number, publication.keeping.entry);
        }
    }

    /// Authentication Method and Data of an AUTH packet.
    fn auth_fields(auth: &Auth<'_>) -> Result<(Box<str>, Box<[u8]>), Fail> {
        let method = auth
            .properties
            .text(PropertyId::AuthenticationMethod)
            .ok_or(Fail::new(
                ReasonCode::ProtocolError,
                "AUTH without Authentication Method",
            ))?;
        let data = auth
            .properties
            .data(PropertyId::AuthenticationData)
            .unwrap_or_default();
        Ok((method.into(), data.into()))
    }
}
