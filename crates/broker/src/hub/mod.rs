//! Connections, sessions and delivery of one shard: everything that needs no routing decision.
//! [`crate::Shard`] adds routing and the handling of packets.

pub(crate) mod agenda;
mod aliases;
mod api;
pub(crate) mod conn;
mod deliver;
mod fence;
mod flushes;
mod origin;
pub(crate) mod outbox;
pub(crate) mod outboxes;
pub(crate) mod outlets;
mod overflow;
mod pressure;
mod pump;
mod room;
pub(crate) mod sessions;
mod stored;
mod subject;

pub(crate) use agenda::Agenda;
pub(crate) use aliases::Alias;
pub(crate) use api::Remote;
pub use api::{
    AuthRequest, ClientInfo, ConnMeta, Event, Flow, Output, Received, RemoteMessage,
    SubscriptionInfo, Waits,
};
pub(crate) use conn::{Authenticating, Awaited, Conn, State};
pub(crate) use deliver::put_publish;
pub(crate) use origin::Origin;
pub(crate) use outboxes::Outboxes;
pub(crate) use outlets::Outlets;
pub(crate) use sessions::Sessions;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use punctual_codec::{Disconnect, Packet, PacketType, PropertyBuf, PropertyId, ReasonCode};

use crate::author::AuthorRights;
use crate::base::connection::ConnId;
use crate::directory::Directory;
use crate::egress::{Dropped, Scope};
use crate::journal::Journal;
use crate::mesh::links::Links;
use crate::message::Messages;
use crate::overflow::Fullest;
use crate::sampling::Sampling;
use crate::session::{Step, Will, first_step};
use crate::timers::{Timer, Timers};
use crate::{Config, Nanos, Stats};

/// Longest time for which acknowledgements to a neighbour wait for further bytes: longer than a
/// message takes over many brokers, so that they are sent between two messages rather than with
/// one. Clients do not notice it, nor does TCP, which acknowledges by itself after 40 ms.
const LATE: Nanos = Nanos::from_millis(5);
/// As [`LATE`], for a broker with a store. It is shorter than a commit: a neighbour with a store
/// need not store a message that is acknowledged before the commit.
const LATE_BESIDE_STORE: Nanos = Nanos(250_000);
/// Number of unsent bytes from which acknowledgements do not wait. Likewise from as many bytes as
/// Receive Maximum: a quarter of the neighbour's window, at four bytes for an acknowledgement.
const TOGETHER: usize = 4 << 10;

#[derive(Debug)]
pub(crate) struct Hub {
    pub(crate) index: u16,
    pub(crate) directory: Arc<Directory>,
    pub(crate) config: Arc<Config>,
    pub(crate) outlets: Outlets,
    pub(crate) sessions: Sessions,
    pub(crate) timers: Timers,
    pub(crate) messages: Messages,
    pub(crate) stats: Stats,
    pub(crate) outboxes: Outboxes,
    pub(crate) links: Links,
    pub(crate) work: Agenda,
    pub(crate) stats_shared: bool,
    pub(crate) queue_full_reported: Nanos,
    /// Whether a publication may be refused because the queue of a client is full.
    pub(crate) may_refuse: bool,
    /// The session that makes room when all sessions together exceed their bound.
    pub(crate) fullest: Fullest,
    pub(crate) urgency_reported: Nanos,
    /// `None` without a store.
    pub(crate) journal: Option<Box<Journal>>,
    /// When the bytes that are being handled arrived at this machine; the present time if the
    /// transport does not report that.
    pub(crate) arrived: Nanos,
    /// The buffer of the packet that is being handled, if it has one of its own.
    pub(crate) packet: Option<Bytes>,
    /// Measures the times of sampled messages.
    pub(crate) sampling: Sampling,
    /// Rights of publishers of retained messages.
    pub(crate) author_rights: AuthorRights,
}

impl Hub {
    /// Appends a packet to the send buffer of a connection. Omits a packet larger than the client
    /// accepts [MQTT-3.1.2-24], and returns false.
    pub(crate) fn send(&mut self, slot: u32, packet: &Packet<'_>) -> bool {
        let Some(conn) = self.outlets.conns.get_mut(slot) else {
            return true;
        };
        let (version, max) = (conn.version, conn.max_packet as usize);
        let stats = &mut self.stats;
        let mut fits = true;
        conn.out.control(&mut self.outlets.pool, |buffer| {
            let before = buffer.len();
            if packet.encode(version, buffer).is_err() || buffer.len() - before > max {
                buffer.truncate(before);
                fits = false;
            } else {
                stats.packets_sent += 1;
            }
        });
        Outlets::mark_dirty(conn, slot, &mut self.outlets.dirty);
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
        if let Some(conn) = self.outlets.conns.get_mut(slot) {
            conn.put_ack(&mut self.outlets.pool, kind, packet_id, reason);
            self.stats.packets_sent += 1;
            Outlets::mark_dirty(conn, slot, &mut self.outlets.dirty);
        }
    }

    /// Like [`Self::send_ack`], but a PUBACK for a neighbour waits up to [`LATE`] for further
    /// packets to it. No client waits for the PUBACK, while deliveries of the message, on this
    /// broker and behind it, may need the processor.
    #[inline]
    pub(crate) fn send_ack_late(
        &mut self,
        slot: u32,
        kind: PacketType,
        packet_id: u16,
        reason: ReasonCode,
    ) {
        let Some(conn) = self.outlets.conns.get_mut(slot) else {
            return;
        };
        conn.put_ack(&mut self.outlets.pool, kind, packet_id, reason);
        self.stats.packets_sent += 1;
        let together = TOGETHER.min(self.config.limits.receive_maximum.into());
        let waits = conn.link && kind == PacketType::PubAck && conn.out.backlog() < together;
        if !waits {
            Outlets::mark_dirty(conn, slot, &mut self.outlets.dirty);
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
    /// Sends the acknowledgements to a neighbour that have waited.
    pub(crate) fn send_answers(&mut self, id: ConnId) {
        if let Some(conn) = self
            .outlets
            .conns
            .get_mut(id.slot)
            .filter(|conn| conn.generation == id.generation)
        {
            conn.answers_armed = false;
            if conn.out.backlog() > 0 {
                Outlets::mark_dirty(conn, id.slot, &mut self.outlets.dirty);
            }
        }
    }

    /// Chooses the next bytes to write to a connection, and drops messages that must not be sent
    /// any more.
    #[inline]
    pub(crate) fn plan(&mut self, slot: u32, scope: Scope, now: Nanos) {
        let Some(conn) = self.outlets.conns.get_mut(slot) else {
            return;
        };
        let encoding = conn.encoding();
        let session = conn.session;
        conn.out.plan(
            scope,
            encoding,
            &self.config.shares,
            &mut self.outlets.shared.seat(slot),
            &mut self.outlets.pool,
            &mut self.stats,
            &mut self.outlets.dropped,
            now,
        );
        if self.outlets.dropped.is_empty() {
            return;
        }
        for Dropped { packet_id, qos } in self.outlets.dropped.drain(..) {
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

    /// Removes a connection and asks the shell to close it after the remaining bytes are written;
    /// drops urgent messages if its peer is `gone`. The caller handles the session.
    pub(crate) fn drop_conn(&mut self, slot: u32, gone: bool, now: Nanos) {
        let Some(mut conn) = self.outlets.conns.remove(slot) else {
            return;
        };
        self.stats.connections -= 1;
        if gone {
            let seat = &mut self.outlets.shared.seat(slot);
            conn.out
                .drop_urgent(seat, &mut self.outlets.pool, &mut self.stats);
        }
        let mut tail = conn.out.take_all(
            conn.encoding(),
            &self.config.shares,
            &mut self.outlets.shared.seat(slot),
            &mut self.outlets.pool,
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
        self.outlets.outputs.push(Output::Close { conn: id, tail });
        let waiters = conn.take_waiters();
        self.resume(waiters);
        if conn.congested {
            if let Some(session) = self.sessions.get(conn.session) {
                session.handle.congested.store(false, Ordering::Release);
            }
            self.notify_shards_of_relief();
        }
    }

    /// Makes DISCONNECT with a reason the last packet of a connection that is about to be dropped,
    /// if the client uses MQTT 5.
    pub(crate) fn send_disconnect(&mut self, slot: u32, reason: ReasonCode, why: &str) {
        let Some(conn) = self.outlets.conns.get(slot) else {
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
        if let Some(conn) = self.outlets.conns.get_mut(slot)
            && encoded.is_ok()
            && farewell.len() <= max
        {
            conn.extra().farewell = farewell;
            self.stats.packets_sent += 1;
        }
    }

    /// Removes and returns the will if it is to be published now; otherwise arms the timer of its
    /// delay.
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
        // The session may end earlier than was reported to the federation.
        self.send_will_to_federation(session_slot);
        None
    }

    /// Copies the gauges into the counters.
    pub(crate) fn refresh_gauges(&mut self) {
        self.stats.sessions = self.sessions.len() as u64;
    }
}
