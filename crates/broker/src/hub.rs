//! Connections, sessions and delivery of one shard: everything that needs no
//! routing decision. [`crate::Shard`] adds routing and the packets' meaning.
//!
//! Back-pressure: a receiver whose unsent bytes or queue pass a high mark is
//! *congested*; whoever publishes to it stops being read until it has caught
//! up, or for `max_publisher_pause`. A receiver that has not caught up by then
//! is *slow*: from then on its QoS 0 messages are dropped above the mark and
//! nobody waits for it, until it has drained.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hashbrown::HashMap;
use punctual_codec::{
    Ack, Disconnect, Packet, PacketType, PropertyBuf, PropertyId, QoS, ReasonCode, Version,
};

use crate::access::Permissions;
use crate::directory::Directory;
use crate::index::delivered_qos;
use crate::message::{Form, Parts};
use crate::outbuf::{OutBuf, Pool};
use crate::route::Target;
use crate::session::{Delivery, Names, Session, Step, Will};
use crate::shard::Extent;
use crate::slab::Slab;
use crate::timers::{Timer, Timers};
use crate::{Config, Message, Nanos, QueueFull, Stats};

/// Messages to one other shard before publishers are held back.
const OUTBOX: usize = 8192;
/// Bytes of them.
const OUTBOX_BYTES: usize = 1 << 20;
/// Retained messages fetched for a subscription at once.
const REPLAY_BATCH: usize = 256;

/// A connection of one shard. Never refers to another connection later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConnId {
    /// Position; reused after the connection is closed.
    pub slot: u32,
    /// Distinguishes connections with the same slot.
    pub generation: u32,
}

/// What the shell knows of a connection when it is opened.
#[derive(Debug, Clone)]
pub struct ConnMeta {
    /// Peer, if it has an address.
    pub peer: Option<SocketAddr>,
    /// Which listener accepted it.
    pub listener: u16,
    /// Whether a client without user name is let in.
    pub allow_anonymous: bool,
    /// User name proven below MQTT, for example by a client certificate.
    pub identity: Option<Arc<str>>,
    /// Unpredictable; the client identifier is made of it if none is given.
    pub nonce: [u8; 16],
}

/// How a connection is to be treated after [`crate::Shard::receive`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// Read on.
    Read,
    /// Stop reading until [`Output::Resume`]; then hand in the bytes that were
    /// not consumed again.
    Pause,
    /// The connection is gone for the shard; an [`Output::Close`] says more.
    Closed,
}

/// Result of [`crate::Shard::receive`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// Bytes consumed. The rest is the start of a packet, or waits.
    pub consumed: usize,
    /// Size of the packet that is incomplete, if known: a hint for buffers.
    pub needed: usize,
    /// What to do next.
    pub flow: Flow,
}

/// What a shell is asked to do.
#[derive(Debug)]
pub enum Output {
    /// Write `tail` if possible, then close. The shard has forgotten the
    /// connection already.
    Close {
        /// Which.
        conn: ConnId,
        /// What was still to be written.
        tail: Vec<u8>,
    },
    /// Read again from a connection that was paused.
    Resume(ConnId),
    /// Move the connection, with all unconsumed bytes, to another shard.
    Handover {
        /// Which; forgotten by this shard.
        conn: ConnId,
        /// To which shard.
        shard: u16,
        /// What it was opened with.
        meta: Box<ConnMeta>,
    },
    /// Check a user name and password, or continue an enhanced
    /// authentication, and answer with [`crate::Shard::authenticated`].
    Authenticate(Box<AuthRequest>),
    /// Something for the log.
    Event(Event),
}

/// A client that wants to prove who it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthRequest {
    /// Which connection.
    pub conn: ConnId,
    /// Listener it came by.
    pub listener: u16,
    /// Client identifier.
    pub client_id: Arc<str>,
    /// User name, if given.
    pub username: Option<Arc<str>>,
    /// Password, if given.
    pub password: Option<Box<[u8]>>,
    /// Enhanced authentication: method and data.
    pub method: Option<(Box<str>, Box<[u8]>)>,
    /// Whether an authenticated client does it again.
    pub again: bool,
}

/// Something worth a line in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A client connected.
    Connected {
        /// Client identifier.
        client_id: Arc<str>,
        /// Peer address.
        peer: Option<SocketAddr>,
        /// Protocol version.
        version: Version,
        /// User name.
        username: Option<Arc<str>>,
    },
    /// A client is gone.
    Disconnected {
        /// Client identifier.
        client_id: Arc<str>,
        /// Why, in words.
        reason: String,
    },
    /// A connection ended before a client was connected.
    Refused {
        /// Peer address.
        peer: Option<SocketAddr>,
        /// Why, in words.
        reason: String,
    },
    /// A receiver does not keep up.
    SlowConsumer {
        /// Client identifier.
        client_id: Arc<str>,
        /// Bytes that wait in its buffer.
        buffered: usize,
        /// Messages that wait in its queue.
        queued: usize,
    },
    /// Publications are refused because this session's queue is full.
    QueueFull {
        /// Client identifier.
        client_id: Arc<str>,
        /// Messages that wait.
        queued: usize,
    },
}

/// A message from one shard to another.
#[derive(Debug)]
pub struct RemoteMessage(pub(crate) Remote);

#[derive(Debug)]
pub(crate) enum Remote {
    /// Deliver to these; with `promised`, places are reserved for those with
    /// QoS above 0.
    Publish {
        message: Arc<Message>,
        targets: Arc<[Target]>,
        promised: bool,
    },
    /// Deliver to the one member of a shared subscription that was chosen.
    Share {
        message: Arc<Message>,
        target: Target,
        promised: bool,
    },
    /// A congested receiver has caught up, or nobody waits for it any more.
    Relief,
}

/// What is known about a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientInfo {
    /// Client identifier.
    pub client_id: Arc<str>,
    /// User name.
    pub username: Option<Arc<str>>,
    /// Peer address, while connected.
    pub peer: Option<SocketAddr>,
    /// Protocol version, while connected.
    pub version: Option<Version>,
    /// Listener, while connected.
    pub listener: Option<u16>,
    /// Whether it is connected.
    pub connected: bool,
    /// When it connected.
    pub connected_at: Nanos,
    /// Keep alive in seconds, while connected; 0 for none.
    pub keep_alive: u16,
    /// Seconds its session outlives the connection; `u32::MAX` for ever.
    pub session_expiry: u32,
    /// Subscriptions.
    pub subscriptions: usize,
    /// Messages that wait.
    pub queued_messages: usize,
    /// Their bytes.
    pub queued_bytes: usize,
    /// Messages in flight.
    pub inflight: usize,
    /// Bytes that wait to be written.
    pub buffered: usize,
    /// Whether it counts as slow.
    pub slow: bool,
    /// Shard that owns it.
    pub shard: u16,
}

/// A subscription of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubscriptionInfo {
    /// Client identifier.
    pub client_id: Arc<str>,
    /// Topic filter, with share prefix.
    pub filter: Box<str>,
    /// Granted QoS.
    pub qos: u8,
    /// No Local.
    pub no_local: bool,
    /// Retain As Published.
    pub retain_as_published: bool,
    /// Subscription identifier; 0 for none.
    pub id: u32,
}

/// Topic aliases the broker has defined to a client.
pub(crate) type AliasMap = HashMap<Box<[u8]>, u16, foldhash::fast::RandomState>;

/// How far a connection is.
#[derive(Debug)]
pub(crate) enum State {
    /// Nothing but a CONNECT is accepted.
    Opening,
    /// The body of CONNECT waits for an answer from outside.
    Authenticating(Box<[u8]>),
    /// A session is attached.
    Connected,
}

#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) generation: u32,
    pub(crate) state: State,
    pub(crate) version: Version,
    pub(crate) dirty: bool,
    pub(crate) congested: bool,
    pub(crate) slow: bool,
    /// When the current congestion has lasted for long enough, and whether a
    /// timer looks after that.
    pub(crate) congested_until: Nanos,
    pub(crate) pause_armed: bool,
    /// Whether reason strings may be sent with everything.
    pub(crate) problem_information: bool,
    /// Receivers (and other reasons) that hold this publisher back.
    pub(crate) paused: u32,
    /// Whether one of the reasons is that it does not read what it is sent.
    pub(crate) unread: bool,
    pub(crate) session: u32,
    /// Number of the session, as publisher of messages.
    pub(crate) number: u64,
    pub(crate) last_received: Nanos,
    /// Silence after which it is gone; 0 for never.
    pub(crate) patience: Nanos,
    pub(crate) keep_alive: u16,
    pub(crate) receive_max: u16,
    pub(crate) max_packet: u32,
    /// Route of the last publication, and whether it was allowed.
    pub(crate) route: u64,
    pub(crate) route_allowed: bool,
    pub(crate) alias_max: u16,
    pub(crate) out: OutBuf,
    pub(crate) permissions: Option<Arc<dyn Permissions>>,
    pub(crate) connected_at: Nanos,
    pub(crate) meta: Box<ConnMeta>,
    /// What few connections have.
    pub(crate) extra: Option<Box<Extra>>,
}

/// What few connections have; made when needed.
#[derive(Debug, Default)]
pub(crate) struct Extra {
    pub(crate) aliases_in: Vec<Box<[u8]>>,
    pub(crate) aliases_out: AliasMap,
    /// Publishers that wait for this receiver.
    pub(crate) waiters: Vec<ConnId>,
    /// Enhanced authentication method in use.
    pub(crate) auth_method: Option<Box<str>>,
    /// Whether an authentication after CONNECT is under way.
    pub(crate) authenticating_again: bool,
}

impl Conn {
    #[inline]
    pub(crate) fn v5(&self) -> bool {
        self.version.is_v5()
    }

    pub(crate) fn extra(&mut self) -> &mut Extra {
        self.extra.get_or_insert_default()
    }

    fn take_waiters(&mut self) -> Vec<ConnId> {
        match &mut self.extra {
            Some(extra) => std::mem::take(&mut extra.waiters),
            None => Vec::new(),
        }
    }

    pub(crate) fn auth_method(&self) -> Option<&str> {
        self.extra.as_ref()?.auth_method.as_deref()
    }

    pub(crate) fn authenticating_again(&self) -> bool {
        self.extra.as_ref().is_some_and(|e| e.authenticating_again)
    }
}

/// A publication on its way through the shard.
#[derive(Debug)]
pub(crate) struct Publication<'a> {
    pub(crate) parts: Parts<'a>,
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    pub(crate) publisher: u64,
    /// The packet as received, if a receiver with QoS 0 and the same protocol
    /// can have it as it is; and whether it is MQTT 5.
    pub(crate) frame: Option<(&'a [u8], bool)>,
    pub(crate) expires: Nanos,
    /// Whether there is room for it wherever its QoS is above 0.
    pub(crate) promised: bool,
    /// Made when someone has to keep the message.
    pub(crate) message: Option<Arc<Message>>,
}

impl Publication<'_> {
    pub(crate) fn from_message(message: &Arc<Message>, now: Nanos) -> Publication<'_> {
        Publication {
            parts: message.parts(now),
            qos: message.qos,
            retain: message.retain,
            publisher: message.publisher,
            frame: None,
            expires: message.expires,
            promised: false,
            message: Some(message.clone()),
        }
    }

    pub(crate) fn message(&mut self) -> Arc<Message> {
        let Self {
            parts,
            qos,
            retain,
            publisher,
            expires,
            message,
            ..
        } = self;
        message
            .get_or_insert_with(|| Message::from_parts(parts, *qos, *retain, *expires, *publisher))
            .clone()
    }

    pub(crate) fn size(&self) -> usize {
        self.parts.topic.len() + self.parts.properties.len() + self.parts.payload.len()
    }
}

/// Messages on their way to one other shard.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    pub(crate) messages: Vec<RemoteMessage>,
    bytes: usize,
    /// Publishers that wait until the messages are taken.
    waiters: Vec<ConnId>,
}

#[derive(Debug)]
pub(crate) struct Hub {
    pub(crate) index: u16,
    pub(crate) directory: Arc<Directory>,
    pub(crate) config: Arc<Config>,
    pub(crate) conns: Slab<Conn>,
    pub(crate) sessions: Slab<Session>,
    pub(crate) names: Names,
    pub(crate) timers: Timers,
    pub(crate) outputs: Vec<Output>,
    pub(crate) dirty: Vec<ConnId>,
    pub(crate) pool: Pool,
    pub(crate) stats: Stats,
    pub(crate) outboxes: Vec<Outbox>,
    /// Publishers that wait for congested receivers of other shards.
    pub(crate) remote_waiters: Vec<ConnId>,
    pub(crate) next_generation: u32,
    pub(crate) next_epoch: u64,
    pub(crate) stats_shared: bool,
    pub(crate) queue_full_reported: Nanos,
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

    pub(crate) fn epoch(&mut self) -> u64 {
        self.next_epoch += 1;
        self.next_epoch
    }

    /// Appends a packet to what a connection is sent. A packet larger than the
    /// client accepts is left out [MQTT-3.1.2-24].
    pub(crate) fn send(&mut self, slot: u32, packet: &Packet<'_>) {
        let Some(conn) = self.conns.get_mut(slot) else {
            return;
        };
        let buffer = conn.out.tail(&mut self.pool);
        let before = buffer.len();
        if packet.encode(conn.version, buffer).is_err()
            || buffer.len() - before > conn.max_packet as usize
        {
            buffer.truncate(before);
        } else {
            self.stats.packets_sent += 1;
        }
        Self::mark_dirty(conn, slot, &mut self.dirty);
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
            let ack = Ack::new(packet_id, reason);
            // An acknowledgement without properties always fits.
            let _ = ack.encode(kind, conn.version, conn.out.tail(&mut self.pool));
            self.stats.packets_sent += 1;
            Self::mark_dirty(conn, slot, &mut self.dirty);
        }
    }

    /// Delivers to one local subscriber. Returns the receiver's connection if
    /// its publishers should hold back.
    #[inline]
    pub(crate) fn deliver(
        &mut self,
        publication: &mut Publication<'_>,
        target: &Target,
        now: Nanos,
    ) -> Option<u32> {
        if target.no_local && publication.publisher == target.session.number {
            return None;
        }
        let session = self.sessions.get_mut(target.slot)?;
        if !Arc::ptr_eq(&session.handle, &target.session) {
            return None;
        }
        let qos = delivered_qos(publication.qos, target.qos);
        let retain = publication.retain && target.retain_as_published;
        if qos != QoS::AtMostOnce {
            return self.deliver_acknowledged(publication, target, qos, retain, now);
        }
        let Some(slot) = session.conn else {
            if self.config.queue_qos0_offline {
                self.enqueue(publication, target, qos, retain, now);
            } else {
                self.stats.dropped_offline += 1;
            }
            return None;
        };
        if session.queue.has_qos0() {
            return self.enqueue(publication, target, qos, retain, now);
        }
        let conn = self.conns.get_mut(slot)?;
        let high = self.config.limits.send_buffer;
        if conn.slow && conn.out.len() >= high {
            self.stats.dropped_slow_consumer += 1;
            return None;
        }
        let sent = match publication.frame {
            Some((frame, v5))
                if v5 == conn.version.is_v5()
                    && !retain
                    && target.subscription_ids.is_none()
                    && conn.alias_max == 0
                    && frame.len() <= conn.max_packet as usize =>
            {
                conn.out.tail(&mut self.pool).extend_from_slice(frame);
                true
            }
            _ => put_publish(
                conn,
                &mut self.pool,
                &publication.parts,
                Form {
                    v5: conn.version.is_v5(),
                    dup: false,
                    qos,
                    retain,
                    packet_id: 0,
                    subscription_ids: target.ids(),
                    alias: None,
                },
            ),
        };
        if !sent {
            self.stats.dropped_too_large += 1;
            return None;
        }
        self.stats.packets_sent += 1;
        self.stats.publishes_sent_qos0 += 1;
        self.stats.publish_bytes_sent += publication.parts.payload.len() as u64;
        let full = conn.out.len() >= high;
        Self::mark_dirty(conn, slot, &mut self.dirty);
        if full {
            self.congest(slot, now);
            return Some(slot);
        }
        None
    }

    /// Whether a subscriber gets plain publications as they were received.
    #[inline]
    pub(crate) fn takes_verbatim(&self, target: &Target, v5: bool, run: &Extent) -> bool {
        if target.subscription_ids.is_some() {
            return false;
        }
        let Some(session) = self.session_of(target) else {
            return true;
        };
        match session.conn {
            None => !self.config.queue_qos0_offline,
            Some(_) if session.queue.has_qos0() => false,
            Some(slot) => self.conns.get(slot).is_none_or(|conn| {
                conn.v5() == v5 && conn.alias_max == 0 && run.longest <= conn.max_packet as usize
            }),
        }
    }

    /// Delivers a run of plain publications to a local subscriber that takes
    /// them as received. Returns like [`Self::deliver`].
    #[inline]
    pub(crate) fn deliver_run(
        &mut self,
        bytes: &[u8],
        run: &Extent,
        target: &Target,
        publisher: u64,
        now: Nanos,
    ) -> Option<u32> {
        if target.no_local && publisher == target.session.number {
            return None;
        }
        let Some(slot) = self.session_of(target)?.conn else {
            self.stats.dropped_offline += run.messages;
            return None;
        };
        let conn = self.conns.get_mut(slot)?;
        let high = self.config.limits.send_buffer;
        if conn.slow && conn.out.len() >= high {
            self.stats.dropped_slow_consumer += run.messages;
            return None;
        }
        conn.out.tail(&mut self.pool).extend_from_slice(bytes);
        self.stats.packets_sent += run.messages;
        self.stats.publishes_sent_qos0 += run.messages;
        self.stats.publish_bytes_sent += run.payload as u64;
        let full = conn.out.len() >= high;
        Self::mark_dirty(conn, slot, &mut self.dirty);
        if full {
            self.congest(slot, now);
            return Some(slot);
        }
        None
    }

    /// Delivers with QoS 1 or 2: sends at once if the window allows and
    /// nothing waits, queues otherwise. Room was checked before.
    fn deliver_acknowledged(
        &mut self,
        publication: &mut Publication<'_>,
        target: &Target,
        qos: QoS,
        retain: bool,
        now: Nanos,
    ) -> Option<u32> {
        let at_once = self.sends_at_once(self.sessions.get(target.slot)?);
        let session = self.sessions.get_mut(target.slot)?;
        if at_once
            && let Some(slot) = session.conn
            && let Some(conn) = self.conns.get_mut(slot)
        {
            let delivery = (!session.is_transient()).then(|| Delivery {
                message: publication.message(),
                subscription_ids: target.subscription_ids.clone(),
                qos,
                retain,
            });
            let packet_id = session.window.push(qos, delivery);
            let form = Form {
                v5: conn.version.is_v5(),
                dup: false,
                qos,
                retain,
                packet_id,
                subscription_ids: target.ids(),
                alias: None,
            };
            if put_publish(conn, &mut self.pool, &publication.parts, form) {
                self.stats.packets_sent += 1;
                count_publish(&mut self.stats, qos, publication.parts.payload.len());
                self.stats.inflight_messages += 1;
                Self::mark_dirty(conn, slot, &mut self.dirty);
            } else {
                let first = first_step(qos);
                session.window.advance(packet_id, first, Step::Done);
                self.stats.dropped_too_large += 1;
            }
            return None;
        }
        self.enqueue(publication, target, qos, retain, now)
    }

    /// Puts a message into a session's queue, by the policy if that is full.
    /// Returns the receiver's connection if its publishers should hold back.
    fn enqueue(
        &mut self,
        publication: &mut Publication<'_>,
        target: &Target,
        qos: QoS,
        retain: bool,
        now: Nanos,
    ) -> Option<u32> {
        let size = publication.size();
        let promised = publication.promised && qos != QoS::AtMostOnce;
        if !promised && !self.has_room(target, size, 0, &mut 0) {
            match self.config.queue_full {
                QueueFull::DropOldest => {
                    while !self.has_room(target, size, 0, &mut 0)
                        && let Some(session) = self.sessions.get_mut(target.slot)
                        && let Some(oldest) = session.queue.pop()
                    {
                        self.forget_queued(1, oldest.message.size());
                        self.stats.dropped_queue_full += 1;
                    }
                    if !self.has_room(target, size, 0, &mut 0) {
                        self.stats.dropped_queue_full += 1;
                        self.sessions.get(target.slot)?.share_queue_len();
                        return None;
                    }
                }
                QueueFull::DropNew => {
                    self.stats.dropped_queue_full += 1;
                    return None;
                }
                // The publisher was told beforehand; what comes here is a will
                // or another message nobody waits for an answer to.
                QueueFull::Refuse => {
                    self.stats.dropped_queue_full += 1;
                    return None;
                }
                QueueFull::Disconnect => {
                    self.stats.dropped_queue_full += 1;
                    self.end_overflowing(target.slot, now);
                    return None;
                }
            }
        }
        let delivery = Delivery {
            message: publication.message(),
            subscription_ids: target.subscription_ids.clone(),
            qos,
            retain,
        };
        let expires = delivery.message.expires;
        let session = self.sessions.get_mut(target.slot)?;
        session.queue.push(delivery);
        session.share_queue_len();
        self.stats.queued_messages += 1;
        self.stats.queued_bytes += size as u64;
        self.directory
            .queued_bytes
            .fetch_add(size, Ordering::Relaxed);
        if session.conn.is_none() && session.sweep_by(expires) {
            let timer = Timer::Sweep {
                slot: target.slot,
                epoch: session.epoch,
            };
            self.timers.arm(session.sweep_at, timer);
        }
        let slot = session.conn?;
        let half = self.config.limits.max_queued_messages / 2;
        if session.queue.len() >= half.max(1)
            || session.queue.bytes() >= self.config.limits.max_queued_bytes / 2
        {
            self.congest(slot, now);
            return Some(slot);
        }
        None
    }

    /// The policy `disconnect`: the session's next timer ends it, because its
    /// subscriptions are in use by the caller right now.
    fn end_overflowing(&mut self, slot: u32, now: Nanos) {
        if let Some(session) = self.sessions.get_mut(slot) {
            session.expiry = 0;
            let timer = Timer::SessionExpiry {
                slot,
                epoch: session.epoch,
            };
            self.timers.arm(now, timer);
        }
    }

    /// Corrects the totals for messages that left a queue.
    pub(crate) fn forget_queued(&mut self, messages: usize, bytes: usize) {
        self.stats.queued_messages -= messages as u64;
        self.stats.queued_bytes -= bytes as u64;
        self.directory
            .queued_bytes
            .fetch_sub(bytes, Ordering::Relaxed);
    }

    fn congest(&mut self, slot: u32, now: Nanos) {
        let Some(conn) = self.conns.get_mut(slot) else {
            return;
        };
        if conn.congested || conn.slow {
            return;
        }
        conn.congested = true;
        conn.congested_until = now + self.config.max_publisher_pause;
        self.stats.publisher_pauses += 1;
        if !conn.pause_armed {
            conn.pause_armed = true;
            let timer = Timer::Pause {
                slot,
                generation: conn.generation,
            };
            self.timers.arm(conn.congested_until, timer);
        }
        if let Some(session) = self.sessions.get(conn.session) {
            session.handle.congested.store(true, Ordering::Release);
        }
    }

    /// Makes a publisher wait for a congested local receiver.
    pub(crate) fn wait_for(&mut self, publisher: ConnId, receiver: u32) {
        let Some(conn) = self.conns.get_mut(receiver) else {
            return;
        };
        if conn.slow || conn.extra().waiters.contains(&publisher) {
            return;
        }
        conn.extra().waiters.push(publisher);
        if let Some(conn) = self.conn(publisher) {
            conn.paused += 1;
        }
    }

    /// Makes a publisher wait for a congested receiver of another shard. That
    /// shard tells everyone when one of its receivers is relieved.
    pub(crate) fn wait_for_remote(&mut self, publisher: ConnId) {
        if !self.remote_waiters.contains(&publisher) {
            self.remote_waiters.push(publisher);
            if let Some(conn) = self.conn(publisher) {
                conn.paused += 1;
            }
        }
    }

    /// Makes a publisher wait until another shard takes its messages.
    pub(crate) fn wait_for_outbox(&mut self, publisher: ConnId, shard: u16) {
        let waiters = &mut self.outboxes[usize::from(shard)].waiters;
        if !waiters.contains(&publisher) {
            waiters.push(publisher);
            if let Some(conn) = self.conn(publisher) {
                conn.paused += 1;
            }
        }
    }

    /// Moves the messages for another shard to the end of `list`.
    pub(crate) fn take_outbox(&mut self, shard: u16, list: &mut Vec<RemoteMessage>) {
        let outbox = &mut self.outboxes[usize::from(shard)];
        list.append(&mut outbox.messages);
        outbox.bytes = 0;
        let waiters = std::mem::take(&mut outbox.waiters);
        self.resume(waiters);
    }

    /// Lets publishers go on.
    pub(crate) fn resume(&mut self, waiters: Vec<ConnId>) {
        for waiter in waiters {
            if let Some(conn) = self.conn(waiter) {
                conn.paused = conn.paused.saturating_sub(1);
                if conn.paused == 0 {
                    self.outputs.push(Output::Resume(waiter));
                }
            }
        }
    }

    fn relieve(&mut self, slot: u32) {
        let Some(conn) = self.conns.get_mut(slot) else {
            return;
        };
        conn.congested = false;
        let waiters = conn.take_waiters();
        if let Some(session) = self.sessions.get(conn.session) {
            session.handle.congested.store(false, Ordering::Release);
        }
        self.resume(waiters);
        self.tell_relief();
    }

    /// Lets the publishers of other shards go on.
    fn tell_relief(&mut self) {
        for (shard, outbox) in self.outboxes.iter_mut().enumerate() {
            if shard != usize::from(self.index) {
                outbox.messages.push(RemoteMessage(Remote::Relief));
            }
        }
    }

    /// A receiver has perhaps held its publishers back for as long as it may.
    pub(crate) fn pause_over(&mut self, slot: u32, now: Nanos) {
        let Some(conn) = self.conns.get_mut(slot) else {
            return;
        };
        conn.pause_armed = false;
        if !conn.congested {
            return;
        }
        if now < conn.congested_until {
            // The timer was armed for a congestion that ended.
            conn.pause_armed = true;
            let timer = Timer::Pause {
                slot,
                generation: conn.generation,
            };
            self.timers.arm(conn.congested_until, timer);
            return;
        }
        conn.slow = true;
        self.stats.slow_consumers += 1;
        let buffered = conn.out.len();
        if let Some(session) = self.sessions.get(conn.session) {
            self.outputs.push(Output::Event(Event::SlowConsumer {
                client_id: session.handle.client_id.clone(),
                buffered,
                queued: session.queue.len(),
            }));
        }
        self.relieve(slot);
    }

    /// Whether a client has so much to read that nothing more is read from it
    /// until it has read half of that.
    #[inline]
    pub(crate) fn check_unread(conn: &mut Conn, limit: usize) -> bool {
        if conn.out.len() < limit {
            return false;
        }
        conn.unread = true;
        conn.paused += 1;
        true
    }

    /// Lets a client go on that has read enough.
    pub(crate) fn has_read(&mut self, id: ConnId, now: Nanos) {
        let limit = self.config.limits.send_buffer;
        let Some(conn) = self.conn(id) else {
            return;
        };
        // It is alive, although its packets are not looked at.
        conn.last_received = now;
        if conn.out.len() <= limit / 2 {
            conn.unread = false;
            self.resume(vec![id]);
        }
    }

    /// Ends congestion and slowness of a receiver that has caught up.
    #[inline]
    pub(crate) fn check_relief(&mut self, slot: u32) {
        let Some(conn) = self.conns.get_mut(slot) else {
            return;
        };
        if !conn.congested && !conn.slow {
            return;
        }
        let limits = &self.config.limits;
        let drained = conn.out.len() <= limits.send_buffer / 2
            && self.sessions.get(conn.session).is_none_or(|session| {
                session.queue.len() <= limits.max_queued_messages / 4
                    && session.queue.bytes() <= limits.max_queued_bytes / 4
            });
        if drained {
            conn.slow = false;
            if conn.congested {
                self.relieve(slot);
            }
        }
    }

    /// Sends what a session's window and its connection's buffer allow: first
    /// what has to be sent again, then retained messages for new
    /// subscriptions, then what waits.
    pub(crate) fn pump(&mut self, session_slot: u32, now: Nanos) {
        let Some(session) = self.sessions.get_mut(session_slot) else {
            return;
        };
        let Some(slot) = session.conn else {
            return;
        };
        let Some(conn) = self.conns.get_mut(slot) else {
            return;
        };
        let limit = self.config.limits.send_buffer;
        let mut sent = false;
        while session.window.is_rewound() && conn.out.len() < limit {
            let Some(entry) = session.window.next_resend(conn.receive_max) else {
                break;
            };
            sent = true;
            self.stats.packets_sent += 1;
            match (&entry.delivery, entry.step) {
                (Some(delivery), Step::Ack | Step::Rec) => {
                    let form = Form {
                        v5: conn.version.is_v5(),
                        dup: true,
                        qos: delivery.qos,
                        retain: delivery.retain,
                        packet_id: entry.packet_id,
                        subscription_ids: delivery.subscription_ids.as_deref().unwrap_or(&[]),
                        alias: None,
                    };
                    let parts = delivery.message.parts(now);
                    if put_publish(conn, &mut self.pool, &parts, form) {
                        self.stats.publishes_resent += 1;
                    } else {
                        let (id, step) = (entry.packet_id, entry.step);
                        session.window.advance(id, step, Step::Done);
                        self.stats.inflight_messages -= 1;
                        self.stats.dropped_too_large += 1;
                    }
                }
                (_, _) => {
                    let ack = Ack::new(entry.packet_id, ReasonCode::Success);
                    let buffer = conn.out.tail(&mut self.pool);
                    let _ = ack.encode(PacketType::PubRel, conn.version, buffer);
                }
            }
        }
        while conn.out.len() < limit {
            let Some(replay) = session.replays.front_mut() else {
                break;
            };
            if replay.ready.is_empty() {
                if replay.complete {
                    session.replays.pop_front();
                    continue;
                }
                let retained = self.directory.retained();
                let piece = retained.scan(&replay.filter, &replay.from, REPLAY_BATCH, now);
                drop(retained);
                replay.ready = piece.messages.into();
                match piece.next {
                    Some(next) => replay.from = next,
                    None => replay.complete = true,
                }
                // A long search without a hit goes on after other work.
                if replay.ready.is_empty() && !replay.complete {
                    let timer = Timer::Replay {
                        slot: session_slot,
                        epoch: session.epoch,
                    };
                    self.timers.arm(now, timer);
                    break;
                }
                continue;
            }
            let Some(message) = replay.ready.front() else {
                break;
            };
            let qos = delivered_qos(message.qos, replay.qos);
            if qos != QoS::AtMostOnce && !session.window.has_room(conn.receive_max) {
                break;
            }
            let Some(message) = replay.ready.pop_front() else {
                break;
            };
            let allowed = conn
                .permissions
                .as_ref()
                .is_none_or(|p| p.may_receive(message.topic()));
            let own = replay.no_local && message.publisher == session.handle.number;
            // One that was replaced since it was fetched would come after its
            // successor, which was delivered when it was published.
            if !allowed
                || own
                || message.is_expired(now)
                || !self.directory.retained().is_current(&message)
            {
                continue;
            }
            let ids: Option<Arc<[u32]>> = (replay.id != 0).then(|| Arc::from([replay.id]));
            let delivery = Delivery {
                message,
                subscription_ids: ids,
                qos,
                retain: true,
            };
            sent |= send_delivery(
                delivery,
                &mut session.window,
                session.expiry == 0,
                conn,
                &mut self.pool,
                &mut self.stats,
                now,
            );
        }
        let (mut taken, mut taken_bytes) = (0, 0);
        if session.replays.is_empty() {
            while let Some(next) = session.queue.front()
                && conn.out.len() < limit
                && (next.qos == QoS::AtMostOnce || session.window.has_room(conn.receive_max))
            {
                let Some(delivery) = session.queue.pop() else {
                    break;
                };
                taken += 1;
                taken_bytes += delivery.message.size();
                if delivery.message.is_expired(now) {
                    self.stats.dropped_expired += 1;
                    continue;
                }
                sent |= send_delivery(
                    delivery,
                    &mut session.window,
                    session.expiry == 0,
                    conn,
                    &mut self.pool,
                    &mut self.stats,
                    now,
                );
            }
        }
        if taken > 0 {
            session.share_queue_len();
        }
        if sent {
            Self::mark_dirty(conn, slot, &mut self.dirty);
        }
        if taken > 0 {
            self.forget_queued(taken, taken_bytes);
        }
    }

    /// Whether a session has something that [`Self::pump`] could send.
    #[inline]
    pub(crate) fn has_backlog(session: &Session) -> bool {
        !session.queue.is_empty() || !session.replays.is_empty() || session.window.is_rewound()
    }

    /// Queues a message for another shard; false if its outbox is full now.
    pub(crate) fn post(&mut self, shard: u16, message: Remote) -> bool {
        let outbox = &mut self.outboxes[usize::from(shard)];
        outbox.bytes += match &message {
            Remote::Publish { message, .. } | Remote::Share { message, .. } => message.size(),
            Remote::Relief => 0,
        };
        outbox.messages.push(RemoteMessage(message));
        outbox.messages.len() < OUTBOX && outbox.bytes < OUTBOX_BYTES
    }

    /// Forgets a connection and asks the shell to close it after what was
    /// still to be written. The session is left to the caller.
    pub(crate) fn drop_conn(&mut self, slot: u32) {
        let Some(mut conn) = self.conns.remove(slot) else {
            return;
        };
        self.stats.connections -= 1;
        let mut tail = Vec::with_capacity(conn.out.len());
        while !conn.out.is_empty() {
            let mut slices = [std::io::IoSlice::new(&[]); 16];
            let filled = conn.out.slices(&mut slices);
            let before = tail.len();
            for slice in &slices[..filled] {
                tail.extend_from_slice(slice);
            }
            let n = tail.len() - before;
            conn.out.advance(n, &mut self.pool);
        }
        conn.out.release(&mut self.pool);
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

    /// Sends DISCONNECT with a reason, if the client's protocol has that.
    pub(crate) fn send_disconnect(&mut self, slot: u32, reason: ReasonCode, why: &str) {
        let Some(conn) = self.conns.get(slot) else {
            return;
        };
        if !conn.v5() {
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
        self.send(slot, &Packet::Disconnect(disconnect));
    }

    /// Detaches and returns the will if it is to be published now; arms its
    /// delay otherwise.
    pub(crate) fn will_of(&mut self, session_slot: u32, now: Nanos) -> Option<Box<Will>> {
        let session = self.sessions.get_mut(session_slot)?;
        let delay = session.will.as_ref()?.delay.min(session.expiry);
        if delay == 0 {
            return session.will.take();
        }
        let timer = Timer::Will {
            slot: session_slot,
            epoch: session.epoch,
        };
        self.timers
            .arm(now + Nanos::from_secs(u64::from(delay)), timer);
        None
    }

    /// Copies the gauges into the counters.
    pub(crate) fn refresh_gauges(&mut self) {
        self.stats.sessions = self.sessions.len() as u64;
    }
}

pub(crate) fn first_step(qos: QoS) -> Step {
    if qos == QoS::ExactlyOnce {
        Step::Rec
    } else {
        Step::Ack
    }
}

#[inline]
fn count_publish(stats: &mut Stats, qos: QoS, payload: usize) {
    match qos {
        QoS::AtMostOnce => stats.publishes_sent_qos0 += 1,
        QoS::AtLeastOnce => stats.publishes_sent_qos1 += 1,
        QoS::ExactlyOnce => stats.publishes_sent_qos2 += 1,
    }
    stats.publish_bytes_sent += payload as u64;
}

/// Appends a PUBLISH, with a topic alias if the client takes them; false if it
/// is too large for the client.
#[inline]
fn put_publish(conn: &mut Conn, pool: &mut Pool, parts: &Parts<'_>, mut form: Form<'_>) -> bool {
    if conn.alias_max > 0 {
        let aliases = &mut conn.extra.get_or_insert_default().aliases_out;
        match aliases.get(parts.topic) {
            Some(alias) => form.alias = Some((*alias, true)),
            None if aliases.len() < usize::from(conn.alias_max) => {
                let alias = aliases.len() as u16 + 1;
                form.alias = Some((alias, false));
                let sent = parts.put(&form, conn.max_packet, &mut conn.out, pool);
                if sent {
                    aliases.insert(parts.topic.into(), alias);
                }
                return sent;
            }
            None => {}
        }
    }
    parts.put(&form, conn.max_packet, &mut conn.out, pool)
}

/// Sends a message that was queued or retained; false if it was dropped.
fn send_delivery(
    delivery: Delivery,
    window: &mut crate::session::Window,
    transient: bool,
    conn: &mut Conn,
    pool: &mut Pool,
    stats: &mut Stats,
    now: Nanos,
) -> bool {
    let qos = delivery.qos;
    let message = delivery.message.clone();
    let (retain, ids) = (delivery.retain, delivery.subscription_ids.clone());
    let packet_id = if qos == QoS::AtMostOnce {
        0
    } else {
        window.push(qos, (!transient).then_some(delivery))
    };
    let form = Form {
        v5: conn.version.is_v5(),
        dup: false,
        qos,
        retain,
        packet_id,
        subscription_ids: ids.as_deref().unwrap_or(&[]),
        alias: None,
    };
    if put_publish(conn, pool, &message.parts(now), form) {
        stats.packets_sent += 1;
        count_publish(stats, qos, message.payload().len());
        stats.inflight_messages += u64::from(qos != QoS::AtMostOnce);
        true
    } else {
        if qos != QoS::AtMostOnce {
            window.advance(packet_id, first_step(qos), Step::Done);
        }
        stats.dropped_too_large += 1;
        false
    }
}
