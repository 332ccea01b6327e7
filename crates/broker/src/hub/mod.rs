//! Connections, sessions and delivery of one shard: everything that needs no
//! routing decision. [`crate::Shard`] adds routing and the packets' meaning.

mod aliases;
mod api;
pub(crate) mod brakes;
pub(crate) mod conn;
mod custody;
mod deliver;
mod fence;
mod flushes;
mod had;
mod origin;
mod overflow;
mod pressure;
mod pump;
mod room;
mod stored;
mod subject;

pub(crate) use aliases::Alias;
pub(crate) use api::Remote;
pub use api::{
    AuthRequest, ClientInfo, ConnMeta, Event, Flow, Output, Received, RemoteMessage,
    SubscriptionInfo, Waits,
};
pub(crate) use conn::{Authenticating, Awaited, Conn, State};
pub(crate) use deliver::put_publish;
pub(crate) use fence::Fences;
pub(crate) use origin::Origin;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use punctual_codec::{Disconnect, Packet, PacketType, PropertyBuf, PropertyId, ReasonCode};

use crate::author::AuthorRights;
use crate::base::connection::ConnId;
use crate::custody::Custody;
use crate::directory::Directory;
use crate::egress::{Dropped, Pool, Rank, Scope, Shared};
use crate::fanouts::FanOuts;
use crate::federation::Packing;
use crate::flush::Flush;
use crate::journal::Journal;
use crate::message::Messages;
use crate::moves::Moves;
use crate::overflow::Fullest;
use crate::passed::PassedOn;
use crate::sampling::Sampling;
use crate::session::{Names, Session, Step, Will, first_step};
use crate::slab::Slab;
use crate::tasks::{Subject, Tasks};
use crate::timers::{Timer, Timers};
use crate::{Config, Nanos, Stats};

/// Messages to one other shard before publishers are held back.
const OUTBOX: usize = 8192;
/// Bytes of them.
const OUTBOX_BYTES: usize = 1 << 20;

/// For so long acknowledgements to a neighbour wait for company: longer than the message takes
/// over many brokers, so that they go between two messages rather than beside one; no client
/// notices, nor TCP, which acknowledges by itself after 40 ms.
const LATE: Nanos = Nanos::from_millis(5);
/// The same of a broker with a store: shorter than a commit, as neighbours have one, too, and need not
/// store what is acknowledged before.
const LATE_BESIDE_STORE: Nanos = Nanos(250_000);
/// Bytes of them that do not wait; also as many as a quarter of what a neighbour may
/// have in flight takes, at four bytes each.
const TOGETHER: usize = 4 << 10;

/// Messages on their way to one other shard.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    pub(crate) messages: Vec<RemoteMessage>,
    /// Those that are urgent, which are not to wait for the others.
    pub(crate) urgent: Vec<RemoteMessage>,
    /// Of both.
    bytes: usize,
    /// Publishers that wait until the messages are taken.
    waiters: Vec<ConnId>,
    /// Whether the last fence that this shard has asked for is among the messages.
    asks: bool,
}

impl Outbox {
    fn is_full(&self) -> bool {
        self.messages.len() + self.urgent.len() >= OUTBOX || self.bytes >= OUTBOX_BYTES
    }
}

#[derive(Debug)]
pub(crate) struct Hub {
    pub(crate) index: u16,
    pub(crate) directory: Arc<Directory>,
    pub(crate) config: Arc<Config>,
    pub(crate) conns: Slab<Conn>,
    pub(crate) sessions: Slab<Session>,
    /// Connections in the order they were opened, those gone or connected since
    /// included.
    pub(crate) opening: VecDeque<ConnId>,
    pub(crate) names: Names,
    pub(crate) timers: Timers,
    pub(crate) outputs: Vec<Output>,
    pub(crate) dirty: Vec<ConnId>,
    /// Connections with something urgent to say.
    pub(crate) urgent: Vec<ConnId>,
    /// Reused to put them in order.
    pub(crate) ranked: Vec<(Rank, usize, ConnId)>,
    /// Reused for messages that [`crate::egress::Egress::plan`] dropped.
    pub(crate) dropped: Vec<Dropped>,
    pub(crate) pool: Pool,
    /// Urgent messages that wait once for several connections.
    pub(crate) shared: Shared,
    pub(crate) messages: Messages,
    pub(crate) stats: Stats,
    pub(crate) outboxes: Vec<Outbox>,
    pub(crate) fences: Fences,
    /// There may be something urgent in one of them.
    pub(crate) posts_urgent: bool,
    /// Publishers that wait for congested receivers of other shards.
    pub(crate) remote_waiters: Vec<ConnId>,
    pub(crate) next_generation: u32,
    pub(crate) next_epoch: u64,
    pub(crate) stats_shared: bool,
    /// What waits on links is looked at again.
    pub(crate) unparking: bool,
    /// And that does not wait any more for what came before it.
    pub(crate) ripe: bool,
    /// Slots of the sessions of neighbours.
    pub(crate) neighbours: Vec<u32>,
    /// It is looked soon at how full their queues are.
    pub(crate) brakes_armed: bool,
    /// What neighbours sent again and others got because of that.
    pub(crate) passed_on: PassedOn,
    /// What [`crate::Shard::link_flush`] was asked and has not answered.
    pub(crate) flushes: Vec<Flush>,
    /// What [`crate::Shard::link_keep`] was asked last, and the ticket that it waits for.
    pub(crate) wishes: Option<(u64, u64)>,
    /// A neighbour's run is taken apart: for those who do not take it as it is.
    pub(crate) unpacking: Option<Packing>,
    pub(crate) queue_full_reported: Nanos,
    /// Whether a publication may be refused because the queue of a client is full.
    pub(crate) may_refuse: bool,
    /// Who makes room where all sessions together have too much.
    pub(crate) fullest: Fullest,
    pub(crate) urgency_reported: Nanos,
    pub(crate) moves: Moves,
    /// In a mesh, if sessions move there.
    pub(crate) custody: Option<Box<Custody>>,
    /// With a store.
    pub(crate) journal: Option<Box<Journal>>,
    /// When the bytes that are handled came to this machine, as far as that is known.
    pub(crate) arrived: Nanos,
    /// The buffer of the packet that is handled, if it has one of its own.
    pub(crate) packet: Option<Bytes>,
    /// Work that continues with its next slice.
    pub(crate) tasks: Tasks,
    /// Messages on their way to very many clients.
    pub(crate) fanouts: FanOuts,
    /// Units of work of offering messages to receivers, ever.
    pub(crate) offered: u64,
    /// The next piece of work is a task, even if timers are due.
    pub(crate) tasks_next: bool,
    /// Times messages by samples.
    pub(crate) sampling: Sampling,
    /// Whom the last slice of a task was for.
    pub(crate) worked_for: Subject,
    /// While sessions are given their rights anew: the slot of the next one.
    pub(crate) rights_from: Option<u32>,
    /// Of publishers of retained messages.
    pub(crate) author_rights: AuthorRights,
    /// A task removes retained messages that have expired.
    pub(crate) expires: bool,
}

impl Hub {
    #[inline]
    pub(crate) fn conn(&mut self, id: ConnId) -> Option<&mut Conn> {
        self.conns
            .get_mut(id.slot)
            .filter(|conn| conn.generation == id.generation)
    }

    /// Slot of the session with that client identifier.
    pub(crate) fn session_named(&self, client_id: &str) -> Option<u32> {
        self.names.find(&self.sessions, client_id)
    }

    #[inline]
    pub(crate) fn mark_dirty(conn: &mut Conn, slot: u32, dirty: &mut Vec<ConnId>) {
        if !conn.dirty {
            conn.dirty = true;
            dirty.push(ConnId {
                slot,
                generation: conn.generation,
            });
        }
    }

    /// Notes that a connection has something that goes before plain messages.
    #[inline]
    pub(crate) fn mark_urgent(conn: &mut Conn, slot: u32, urgent: &mut Vec<ConnId>) {
        if !conn.urgent {
            conn.urgent = true;
            urgent.push(ConnId {
                slot,
                generation: conn.generation,
            });
        }
    }

    pub(crate) fn epoch(&mut self) -> u64 {
        self.next_epoch += 1;
        self.next_epoch
    }

    /// Appends a packet to what a connection is sent. A packet larger than the
    /// client accepts is left out [MQTT-3.1.2-24]: then it is false.
    pub(crate) fn send(&mut self, slot: u32, packet: &Packet<'_>) -> bool {
        let Some(conn) = self.conns.get_mut(slot) else {
            return true;
        };
        let (version, max) = (conn.version, conn.max_packet as usize);
        let stats = &mut self.stats;
        let mut fits = true;
        conn.out.control(&mut self.pool, |buffer| {
            let before = buffer.len();
            if packet.encode(version, buffer).is_err() || buffer.len() - before > max {
                buffer.truncate(before);
                fits = false;
            } else {
                stats.packets_sent += 1;
            }
        });
        Self::mark_dirty(conn, slot, &mut self.dirty);
        fits
    }

    /// Appends an acknowledgement.
    #[inline]
    pub(crate) fn send_ack(
        &mut self,
        slot: u32,
        kind: PacketType,
        packet_id: u16,
        reason: ReasonCode,
    ) {
        if let Some(conn) = self.conns.get_mut(slot) {
            conn.put_ack(&mut self.pool, kind, packet_id, reason);
            self.stats.packets_sent += 1;
            Self::mark_dirty(conn, slot, &mut self.dirty);
        }
    }

    /// The same, but that a PUBACK for a neighbour waits up to [`LATE`] for what else
    /// goes there. No client waits for it, and whoever is sent the message meanwhile,
    /// here or behind this broker, may need the processor.
    #[inline]
    pub(crate) fn send_ack_late(
        &mut self,
        slot: u32,
        kind: PacketType,
        packet_id: u16,
        reason: ReasonCode,
    ) {
        let Some(conn) = self.conns.get_mut(slot) else {
            return;
        };
        conn.put_ack(&mut self.pool, kind, packet_id, reason);
        self.stats.packets_sent += 1;
        let together = TOGETHER.min(self.config.limits.receive_maximum.into());
        let waits = conn.link && kind == PacketType::PubAck && conn.out.backlog() < together;
        if !waits {
            Self::mark_dirty(conn, slot, &mut self.dirty);
        } else if !conn.answers_armed && !conn.dirty {
            conn.answers_armed = true;
            let generation = conn.generation;
            let timer = Timer::Answers { slot, generation };
            let late = match self.journal {
                Some(_) => LATE_BESIDE_STORE,
                None => LATE,
            };
            self.timers.arm(conn.last_received + late, timer);
        }
    }
    /// Lets acknowledgements to a neighbour go.
    pub(crate) fn send_answers(&mut self, id: ConnId) {
        if let Some(conn) = self
            .conns
            .get_mut(id.slot)
            .filter(|conn| conn.generation == id.generation)
        {
            conn.answers_armed = false;
            if conn.out.backlog() > 0 {
                Self::mark_dirty(conn, id.slot, &mut self.dirty);
            }
        }
    }

    /// Whether no more should be posted to another shard now.
    pub(crate) fn is_outbox_full(&self, shard: u16) -> bool {
        self.outboxes[usize::from(shard)].is_full()
    }

    /// Queues a message for another shard; false if its outbox is full now.
    pub(crate) fn post(&mut self, shard: u16, message: Remote) -> bool {
        let outbox = &mut self.outboxes[usize::from(shard)];
        let message = RemoteMessage(message);
        outbox.bytes += message.size();
        match message.rank().class.is_urgent() {
            true => {
                outbox.urgent.push(message);
                self.posts_urgent = true;
            }
            false => outbox.messages.push(message),
        }
        !outbox.is_full()
    }

    /// Chooses what a connection is to be written next, and forgets what may
    /// not be sent any more.
    #[inline]
    pub(crate) fn plan(&mut self, slot: u32, scope: Scope, now: Nanos) {
        let Some(conn) = self.conns.get_mut(slot) else {
            return;
        };
        let encoding = conn.encoding();
        let session = conn.session;
        conn.out.plan(
            scope,
            encoding,
            &self.config.shares,
            &mut self.shared.seat(slot),
            &mut self.pool,
            &mut self.stats,
            &mut self.dropped,
            now,
        );
        if self.dropped.is_empty() {
            return;
        }
        for Dropped { packet_id, qos } in self.dropped.drain(..) {
            if let Some(session) = self.sessions.get_mut(session)
                && let Some(entry) = session
                    .window
                    .advance(packet_id, first_step(qos), Step::Done)
            {
                self.stats.inflight_messages -= 1;
                Journal::done(&mut self.journal, session, entry);
            }
        }
        if self.sessions.get(session).is_some_and(Self::has_backlog) {
            self.pump(session, now);
        }
    }

    /// Forgets a connection and asks the shell to close it after what was
    /// still to be written; but for urgent messages if its peer is `gone`. The
    /// session is left to the caller.
    pub(crate) fn drop_conn(&mut self, slot: u32, gone: bool, now: Nanos) {
        let Some(mut conn) = self.conns.remove(slot) else {
            return;
        };
        self.stats.connections -= 1;
        if gone {
            let seat = &mut self.shared.seat(slot);
            conn.out.drop_urgent(seat, &mut self.pool, &mut self.stats);
        }
        let mut tail = conn.out.take_all(
            conn.encoding(),
            &self.config.shares,
            &mut self.shared.seat(slot),
            &mut self.pool,
            &mut self.stats,
            now,
        );
        if conn.corked {
            tail.clear();
        }
        if let Some(extra) = &conn.extra {
            tail.extend_from_slice(&extra.farewell);
        }
        let id = ConnId {
            slot,
            generation: conn.generation,
        };
        self.outputs.push(Output::Close { conn: id, tail });
        let waiters = conn.take_waiters();
        self.resume(waiters);
        if conn.congested {
            if let Some(session) = self.sessions.get(conn.session) {
                session.handle.congested.store(false, Ordering::Release);
            }
            self.tell_relief();
        }
    }

    /// Makes DISCONNECT with a reason the last packet of a connection that is
    /// about to be dropped, if the client's protocol has that.
    pub(crate) fn send_disconnect(&mut self, slot: u32, reason: ReasonCode, why: &str) {
        let Some(conn) = self.conns.get(slot) else {
            return;
        };
        // Not before CONNACK, which may wait for a commit [MQTT-3.14.0-1].
        if !conn.v5() || conn.corked {
            return;
        }
        let mut properties = PropertyBuf::new();
        if !why.is_empty() && why.len() + 16 < conn.max_packet as usize {
            let _ = properties.push_data(PropertyId::ReasonString, why.as_bytes());
        }
        let disconnect = Disconnect {
            reason,
            properties: properties.as_properties(),
        };
        let (version, max) = (conn.version, conn.max_packet as usize);
        let mut farewell = Vec::new();
        let encoded = Packet::Disconnect(disconnect).encode(version, &mut farewell);
        if let Some(conn) = self.conns.get_mut(slot)
            && encoded.is_ok()
            && farewell.len() <= max
        {
            conn.extra().farewell = farewell;
            self.stats.packets_sent += 1;
        }
    }

    /// Detaches and returns the will if it is to be published now; arms its
    /// delay otherwise.
    pub(crate) fn will_of(&mut self, session_slot: u32, now: Nanos) -> Option<Box<Will>> {
        let session = self.sessions.get_mut(session_slot)?;
        let will = session.will.as_mut()?;
        let delay = will.delay.min(session.expiry);
        if delay == 0 {
            return self.take_will(session_slot);
        }
        let due = now + Nanos::from_secs(u64::from(delay));
        will.due = Some(due);
        let timer = Timer::Will {
            slot: session_slot,
            epoch: session.epoch,
        };
        self.timers.arm(due, timer);
        self.store_will(session_slot);
        // The session may end earlier than was told.
        self.tell_will(session_slot);
        None
    }

    /// Copies the gauges into the counters.
    pub(crate) fn refresh_gauges(&mut self) {
        self.stats.sessions = self.sessions.len() as u64;
    }
}
