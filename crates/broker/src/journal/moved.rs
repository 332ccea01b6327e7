//! A session as another broker sends it, and what becomes of it here.
//!
//! It is sent as the operations that a store would be told of it, each behind its length;
//! numbers of sessions, messages and entries become those of this broker as they are read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use punctual_codec::{PacketType, Properties, PropertySet, QoS, ReasonCode, topic};
use punctual_mesh::transfer::Record;
use punctual_store::Op;
use punctual_store::op::{Content, EntryOp, SessionOp, SubscriptionOp};

use super::messages::released;
use super::restore::{InFlight, RestoredEntry, RestoredSession, Restorer};
use super::wall::Offset;
use super::{Journal, Keeping, Reception};
use crate::base::delivery::{Delivery, Load};
use crate::base::durability::Durability;
use crate::hub::{Hub, Publication};
use crate::moves::{Had, TakenUp};
use crate::session::{Inflight, Session, Step};
use crate::{Directory, Message, Nanos};

/// What is sent as the version of MQTT: that of the client is known when it connects.
const VERSION: u8 = 5;
/// Key of names, or of what else tells messages apart, that the session has had.
const HAD: &str = "had";
/// Key of names that had passed where the session was.
const PASSED: &str = "passed";
/// Key of names that were given there meanwhile, by rows.
const GIVEN: &str = "given";
/// Bytes that are read beside what may wait in a session: what is known of it, and of each
/// message.
const ROOM: usize = 16 << 20;
/// Names of each kind that are sent with a session.
const MAX_NAMES: usize = 1 << 16;
/// Names in one operation; even, since some come in pairs.
const NAMES_AT_ONCE: usize = 1 << 10;

/// What a session need not be sent again.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// It has had them, wherever they come from.
    pub(crate) had: Vec<u64>,
    /// They passed while it was there, and come to it nowhere else.
    pub(crate) passed: Vec<u64>,
    /// Names that were given where it was while it was there: the last before each row of them, and
    /// the last of it.
    pub(crate) given: Vec<[u64; 2]>,
}

/// Appends an operation as it is sent.
fn put(out: &mut Vec<u8>, op: &Op<'_>) {
    let at = out.len();
    out.extend_from_slice(&[0; 4]);
    op.encode(out);
    // What does not fit is not of a broker with bounds.
    let length = u32::try_from(out.len() - at - 4).unwrap_or(u32::MAX);
    out[at..at + 4].copy_from_slice(&length.to_le_bytes());
}

impl Hub {
    /// The wall clock of the mesh in microseconds since 1970; 0 without a mesh.
    pub(crate) fn mesh_clock(&self) -> u64 {
        self.directory.federation().map_or(0, |mesh| mesh.clock())
    }

    /// Between this broker's clock and the wall clock, by which times are sent.
    pub(crate) fn offset(&self, now: Nanos) -> Offset {
        Offset(self.mesh_clock().saturating_mul(1000).saturating_sub(now.0))
    }
}

/// Appends who a session is, without anything that it has: a round begins with that.
pub(crate) fn put_session(out: &mut Vec<u8>, session: &Session) {
    put(
        out,
        &Op::Session(SessionOp {
            session: 1,
            client_id: &session.handle.client_id,
            user: session.username.as_deref(),
            version: VERSION,
            expiry: session.expiry,
            detached: None,
            next_packet_id: session.window.next_id(),
        }),
    );
}

/// Appends what a session has beside messages.
pub(crate) fn put_state(out: &mut Vec<u8>, session: &Session, known: &Known) {
    for subscription in session.subscriptions.iter() {
        Journal::with_subscription(session, subscription, |op| {
            put(out, &Op::Subscription(SubscriptionOp { session: 1, ..op }));
        });
    }
    for (packet_id, known) in session.incoming.iter().flat_map(|it| it.iter()) {
        put(
            out,
            &Op::Received {
                session: 1,
                packet_id: *packet_id,
                gist: known.gist,
            },
        );
    }
    let given = known.given.as_flattened();
    let all = [(HAD, &*known.had), (PASSED, &*known.passed), (GIVEN, given)];
    for (key, names) in all {
        for names in names[names.len().saturating_sub(MAX_NAMES)..].chunks(NAMES_AT_ONCE) {
            let value: Vec<u8> = names.iter().flat_map(|name| name.to_le_bytes()).collect();
            put(out, &Op::Flow { key, value: &value });
        }
    }
}

/// Appends an identifier that a client may remember.
pub(crate) fn put_taken_up(out: &mut Vec<u8>, packet_id: u16) {
    put(out, &Op::Entry(released(1, 0)));
    put(
        out,
        &Op::Inflight {
            session: 1,
            entry: 0,
            packet_id,
            step: true,
        },
    );
}

/// Appends a message in flight.
pub(crate) fn put_inflight(out: &mut Vec<u8>, inflight: Inflight<'_>, offset: Offset) {
    let entry = match inflight.delivery {
        Some(delivery) if inflight.step != Step::Comp => {
            put_delivery(out, delivery, offset);
            delivery.entry
        }
        _ => {
            let entry = inflight.entry();
            put(out, &Op::Entry(released(1, entry)));
            entry
        }
    };
    put(
        out,
        &Op::Inflight {
            session: 1,
            entry,
            packet_id: inflight.packet_id,
            step: inflight.step == Step::Comp,
        },
    );
}

/// Appends a message that waits.
pub(crate) fn put_delivery(out: &mut Vec<u8>, delivery: &Delivery, offset: Offset) {
    let message = &delivery.message;
    let stamp = offset.stamp(message.stamp).named(message.name);
    let content = Content {
        topic: message.topic(),
        properties: message.properties().as_bytes(),
        payload: message.payload(),
        publisher: 0,
        qos: message.qos as u8,
        retain: message.retain,
        expires: offset.deadline(message.expires),
        stamp: stamp.bytes(),
    };
    put(
        out,
        &Op::Message {
            message: 1,
            content,
        },
    );
    put(
        out,
        &Op::Entry(EntryOp {
            session: 1,
            entry: delivery.entry,
            message: 1,
            qos: delivery.qos as u8,
            retain: delivery.retain,
            subscription_ids: delivery.ids().into(),
            number: delivery.number.map(crate::sequence::Number::parts),
        }),
    );
}

/// Reads a message that waits, as [`put_delivery`] wrote it, or a packet identifier, as [`put_taken_up`]
/// did.
pub(crate) fn read_delivery(
    directory: &Arc<Directory>,
    bytes: &[u8],
    wall: Offset,
) -> Option<(Delivery, Option<u16>)> {
    let mut restorer = Restorer::new(directory.clone(), wall.0);
    restorer.take(&Op::Session(SessionOp {
        session: 1,
        client_id: "",
        user: None,
        version: VERSION,
        expiry: 0,
        detached: None,
        next_packet_id: 1,
    }));
    let (mut message, mut rest) = (0, bytes);
    while !rest.is_empty() {
        let (op, behind) = first_op(rest)?;
        rest = behind;
        match Op::decode(op).ok()? {
            Op::Message { content, .. } => {
                let op = message_here(directory, content)?;
                if let Op::Message { message: here, .. } = op {
                    message = here;
                }
                restorer.take(&op);
            }
            Op::Entry(entry) => {
                restorer.take(&Op::Entry(EntryOp {
                    session: 1,
                    entry: 0,
                    message,
                    ..entry
                }));
            }
            Op::Inflight {
                packet_id, step, ..
            } => {
                restorer.take(&Op::Inflight {
                    session: 1,
                    entry: 0,
                    packet_id,
                    step,
                });
            }
            _ => return None,
        }
    }
    let mut entries = restorer.finish()?.entries.into_iter();
    let entry = entries.next()?;
    let sent = entry.sent.map(|(packet_id, _)| packet_id);
    Some((entry.delivery, sent))
}

/// A copy of a session that another broker sends in parts. Each part is added to the copy, and stored, when
/// it arrives.
#[derive(Debug)]
pub(crate) struct Round {
    /// Of an operation that is not complete.
    rest: Vec<u8>,
    /// Bytes that may still come.
    room: usize,
    restorer: Restorer,
    client: Arc<str>,
    /// Of the session here.
    session: u64,
    begun: bool,
    message: u64,
    entry: u64,
    /// Whether it is stored, if it survives its connection.
    has_store: bool,
    /// Of each message that is not in the copy; 0 for none.
    names: Vec<u64>,
    /// Names of messages that the session has had, until the copy is made.
    had: Option<Box<Had>>,
    /// Slot of the copy, which is made when the first message is complete, or at the end: everything
    /// else comes before.
    pub(crate) slot: Option<u32>,
    in_flight: Vec<InFlight>,
}

/// A message that came from another broker, checked, with its number here.
fn message_here<'a>(directory: &Directory, content: Content<'a>) -> Option<Op<'a>> {
    topic::validate_name(content.topic.as_bytes()).ok()?;
    Properties::check(content.properties, PropertySet::PUBLISH).ok()?;
    let message = directory.next_message.fetch_add(1, Ordering::Relaxed);
    let content = Content {
        publisher: 0,
        ..content
    };
    Some(Op::Message { message, content })
}

/// The first operation of a part, behind its length, and what follows; `None` if it is not there yet.
fn first_op(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, behind) = bytes.split_first_chunk()?;
    behind.split_at_checked(u32::from_le_bytes(*length) as usize)
}

impl Round {
    /// Of a client's session that comes from another broker.
    pub(crate) fn new(hub: &Hub, client: &Arc<str>, now: Nanos) -> Self {
        let directory = &hub.directory;
        let limits = &hub.config.limits;
        let most = limits.max_queued_bytes.saturating_mul(4);
        Self {
            rest: Vec::new(),
            room: most.saturating_add(ROOM),
            restorer: Restorer::new(directory.clone(), hub.offset(now).0),
            client: client.clone(),
            session: directory.next_number.fetch_add(1, Ordering::Relaxed),
            begun: false,
            message: 0,
            entry: 0,
            has_store: hub.journal.is_some(),
            names: Vec::new(),
            had: None,
            slot: None,
            in_flight: Vec::new(),
        }
    }

    /// Reads on; `None` if these are no operations of a session.
    fn read(&mut self, directory: &Directory, bytes: &[u8]) -> Option<()> {
        self.room = self.room.checked_sub(bytes.len())?;
        let mut rest = std::mem::take(&mut self.rest);
        rest.extend_from_slice(bytes);
        let mut left = &rest[..];
        while let Some((op, behind)) = first_op(left) {
            self.take(directory, &Op::decode(op).ok()?)?;
            left = behind;
        }
        let taken = rest.len() - left.len();
        rest.drain(..taken);
        self.rest = rest;
        Some(())
    }

    fn take(&mut self, directory: &Directory, op: &Op<'_>) -> Option<()> {
        let session = self.session;
        let op = match *op {
            Op::Session(op) if !self.begun && op.client_id == &*self.client => {
                self.begun = true;
                let had = self.had.insert(Box::default());
                if self.has_store && op.expiry > 0 {
                    had.log = Some(Box::default());
                }
                Op::Session(SessionOp { session, ..op })
            }
            _ if !self.begun => return None,
            Op::Subscription(op) if self.slot.is_none() => {
                Op::Subscription(SubscriptionOp { session, ..op })
            }
            Op::Received {
                packet_id, gist, ..
            } if self.slot.is_none() => Op::Received {
                session,
                packet_id,
                gist,
            },
            Op::Message { content, .. } => {
                let name = super::wall::StoredStamp::name(content.stamp);
                self.names.push(name);
                let op = message_here(directory, content)?;
                if let Op::Message { message, .. } = op {
                    self.message = message;
                }
                op
            }
            Op::Entry(op) => {
                // Its content came right before it, if there is one.
                let message = if op.message == 0 { 0 } else { self.message };
                if op.message == 0 {
                    self.names.push(0);
                }
                self.entry = match self.has_store {
                    true => directory.next_entry.fetch_add(1, Ordering::Relaxed),
                    false => 0,
                };
                Op::Entry(EntryOp {
                    session,
                    entry: self.entry,
                    message,
                    ..op
                })
            }
            Op::Inflight {
                packet_id, step, ..
            } => Op::Inflight {
                session,
                entry: self.entry,
                packet_id,
                step,
            },
            Op::Flow { key, value } => {
                let names = value.as_chunks().0.iter().copied().map(u64::from_le_bytes);
                let mut known = Known::default();
                match key {
                    HAD => known.had.extend(names),
                    PASSED => known.passed.extend(names),
                    GIVEN => {
                        let names: Vec<u64> = names.collect();
                        known.given.extend(names.as_chunks().0);
                    }
                    // Another key says nothing here.
                    _ => {}
                }
                self.had.as_mut()?.learn(&known);
                return Some(());
            }
            _ => return None,
        };
        self.restorer.take(&op);
        Some(())
    }
}

impl Hub {
    /// Adds the next part of a session to its copy; `None` if it does not encode a part of a session, or
    /// if there is no room for it.
    pub(crate) fn read_part(&mut self, round: &mut Round, bytes: &[u8], now: Nanos) -> Option<()> {
        round.read(&self.directory, bytes)?;
        if round.restorer.has_messages() {
            let more = round.restorer.take_so_far(round.message)?;
            self.add_part(round, more, now)?;
        }
        Some(())
    }

    /// Completes the copy of a session after its last part; returns its slot. `None` if something is
    /// missing.
    pub(crate) fn end_parts(&mut self, round: &mut Round, now: Nanos) -> Option<u32> {
        let more = round.restorer.take_all()?;
        self.add_part(round, more, now)?;
        let is_whole = round.rest.is_empty() && round.names.is_empty();
        let slot = round.slot.filter(|_| is_whole)?;
        self.set_in_flight(slot, std::mem::take(&mut round.in_flight));
        if let (Some(journal), Some(session)) = (&self.journal, self.sessions.get_mut(slot)) {
            session.created = journal.latest();
        }
        Some(slot)
    }

    fn add_part(&mut self, round: &mut Round, mut more: RestoredSession, now: Nanos) -> Option<()> {
        let entries = std::mem::take(&mut more.entries);
        if entries.len() > round.names.len() {
            return None;
        }
        let slot = match round.slot {
            Some(slot) => slot,
            None => self.begin_copy(round, more, now)?,
        };
        if let Some(had) = self.sessions.get_mut(slot)?.had.as_mut() {
            for name in round.names.drain(..entries.len()) {
                had.note_moved(name);
            }
        }
        self.had_more(slot);
        if let (Some(journal), Some(session)) = (&mut self.journal, self.sessions.get(slot))
            && session.durable
        {
            for entry in &entries {
                journal.keep_entry(session.handle.number, entry);
            }
        }
        let in_flight = self.add_to_copy(slot, entries, now);
        round.in_flight.extend(in_flight);
        Some(())
    }

    /// Makes the copy of a session, with everything except messages.
    fn begin_copy(
        &mut self,
        round: &mut Round,
        restored: RestoredSession,
        now: Nanos,
    ) -> Option<u32> {
        let durable = self.journal.is_some() && restored.expiry > 0;
        let slot = self.park_copy(restored, durable, self.offset(now), now)?;
        round.slot = Some(slot);
        self.sessions.get_mut(slot)?.had = round.had.take();
        self.store_session(slot, now);
        self.set_record(slot, Record::Incomplete);
        if let (Some(journal), Some(session)) = (&mut self.journal, self.sessions.get(slot))
            && durable
        {
            for subscription in session.subscriptions.iter() {
                journal.subscription(session, subscription);
            }
            for (packet_id, known) in session.incoming.iter().flat_map(|it| it.iter()) {
                journal.emit(&Op::Received {
                    session: session.handle.number,
                    packet_id: *packet_id,
                    gist: known.gist,
                });
            }
        }
        Some(slot)
    }

    /// Releases what a client may have got with QoS 2 in another session, which ends: it would take
    /// another message with that identifier for the same one.
    pub(crate) fn take_up(&mut self, slot: u32, taken_up: Vec<TakenUp>) {
        for (packet_id, delivery) in taken_up {
            let Some(session) = self.sessions.get_mut(slot) else {
                return;
            };
            let number = session.handle.number;
            let entry = match session.durable && self.journal.is_some() {
                true => self.directory.next_entry.fetch_add(1, Ordering::Relaxed),
                false => 0,
            };
            let delivery = delivery.filter(|_| entry > 0);
            let stored = delivery.is_some();
            let delivery = delivery.map(|delivery| Delivery { entry, ..delivery });
            let conn = session.conn;
            let Some(tell) = session.window.take_up(packet_id, delivery, conn.is_some()) else {
                continue;
            };
            self.stats.inflight_messages += 1;
            if let Some(journal) = self.journal.as_mut().filter(|_| stored) {
                journal.emit(&Op::Entry(released(number, entry)));
                journal.emit(&Op::Inflight {
                    session: number,
                    entry,
                    packet_id,
                    step: true,
                });
            }
            if let Some(conn) = conn.filter(|_| tell) {
                let (kind, reason) = (PacketType::PubRel, ReasonCode::Success);
                self.answer(conn, kind, packet_id, reason, None);
            }
        }
    }

    /// Adds messages to those that wait for a session, but for what it has had.
    pub(crate) fn append_own(&mut self, slot: u32, deliveries: Vec<Delivery>, now: Nanos) {
        if let Some(session) = self.sessions.get_mut(slot) {
            session.had.get_or_insert_default();
            self.store_had(slot);
        }
        let Some(session) = self.sessions.get_mut(slot) else {
            return;
        };
        let Some(had) = &mut session.had else {
            return;
        };
        let is_stored = session.durable;
        let number = |next: &AtomicU64| match is_stored {
            true => next.fetch_add(1, Ordering::Relaxed),
            false => 0,
        };
        let mut load = Load::default();
        for delivery in deliveries {
            if !had.note_moved(delivery.message.name) {
                continue;
            }
            let message = delivery
                .message
                .stored_as(number(&self.directory.next_message));
            let delivery = Delivery {
                entry: number(&self.directory.next_entry),
                message,
                ..delivery
            };
            if let Some(journal) = &mut self.journal
                && is_stored
                && delivery.qos != QoS::AtMostOnce
            {
                journal.keep_moved(session.handle.number, &delivery);
            }
            load.add(&delivery.message);
            session.queue.push(delivery, now);
        }
        session.share_queue_len();
        self.note_queued(&load);
        self.had_more(slot);
        self.pump(slot, now);
    }
}

impl Journal {
    /// Emits what a copy has, in flight or waiting.
    fn keep_entry(&mut self, session: u64, entry: &RestoredEntry) {
        let RestoredEntry { delivery, sent } = entry;
        match sent {
            Some((_, true)) => {
                self.emit(&Op::Entry(released(session, delivery.entry)));
            }
            None if delivery.qos == QoS::AtMostOnce => {}
            Some((_, false)) | None => self.keep_moved(session, delivery),
        }
        if let Some((packet_id, step)) = *sent {
            self.emit(&Op::Inflight {
                session,
                entry: delivery.entry,
                packet_id,
                step,
            });
        }
    }

    /// Emits a message with the entry that a session has for it.
    fn keep_moved(&mut self, session: u64, delivery: &Delivery) {
        let message: &Arc<Message> = &delivery.message;
        let mut publication = Publication::from_message(message, Nanos(0));
        publication.keeping = Keeping {
            durability: Durability::Batched,
            message: message.stored,
            ..Keeping::NOT
        };
        self.write(&mut publication);
        // Whatever becomes of it here, it is forgotten where it was.
        self.make_firm(&mut publication);
        let reception = Reception {
            qos: delivery.qos,
            retain: delivery.retain,
            number: delivery.number,
            subscription_ids: delivery.ids(),
        };
        self.emit_entry(session, delivery.entry, message.stored, reception);
    }
}
