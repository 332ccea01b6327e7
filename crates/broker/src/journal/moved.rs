//! A session as another broker sends it, and what becomes of it here.
//!
//! It is sent as the operations that a store would be told of it, each behind its length;
//! numbers of sessions, messages and entries become those of this broker as they are read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use punctual_codec::{PacketType, Properties, PropertySet, QoS, ReasonCode, topic};
use punctual_store::Op;
use punctual_store::op::{Content, EntryOp, SessionOp, SubscriptionOp};

use super::messages::released;
use super::restore::{RestoredSession, Restorer};
use super::wall::Offset;
use super::{Durability, Journal, Keeping, Reception};
use crate::hub::{Hub, Publication};
use crate::moves::TakenUp;
use crate::session::{Delivery, Inflight, Load, Session, Step};
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
        let names = &names[names.len().saturating_sub(MAX_NAMES)..];
        let value: Vec<u8> = names.iter().flat_map(|name| name.to_le_bytes()).collect();
        put(out, &Op::Flow { key, value: &value });
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

/// A round that is being read.
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
    durable: bool,
    /// Of each message; 0 for none.
    names: Vec<u64>,
    known: Known,
}

/// A round that was read.
#[derive(Debug)]
pub(crate) struct Moved {
    session: RestoredSession,
    /// Of each message; 0 for none.
    names: Vec<u64>,
    known: Known,
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
            durable: hub.journal.is_some(),
            names: Vec::new(),
            known: Known::default(),
        }
    }

    /// Reads on; `None` if these are no operations of a session.
    pub(crate) fn read(&mut self, directory: &Directory, bytes: &[u8]) -> Option<()> {
        self.room = self.room.checked_sub(bytes.len())?;
        let mut rest = std::mem::take(&mut self.rest);
        rest.extend_from_slice(bytes);
        let mut left = &rest[..];
        while let Some((op, behind)) = first_op(left) {
            self.take(directory, &Op::decode(op).ok()?)?;
            left = behind;
        }
        self.rest = left.to_vec();
        Some(())
    }

    fn take(&mut self, directory: &Directory, op: &Op<'_>) -> Option<()> {
        let session = self.session;
        let op = match *op {
            Op::Session(op) if !self.begun && op.client_id == &*self.client => {
                self.begun = true;
                Op::Session(SessionOp { session, ..op })
            }
            _ if !self.begun => return None,
            Op::Subscription(op) => Op::Subscription(SubscriptionOp { session, ..op }),
            Op::Received {
                packet_id, gist, ..
            } => Op::Received {
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
                self.entry = match self.durable {
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
                match key {
                    HAD => self.known.had.extend(names),
                    PASSED => self.known.passed.extend(names),
                    GIVEN => {
                        let names: Vec<u64> = names.collect();
                        self.known.given.extend(names.as_chunks().0);
                    }
                    // Another key says nothing here.
                    _ => {}
                }
                return Some(());
            }
            _ => return None,
        };
        self.restorer.take(&op);
        Some(())
    }

    /// All of it was read; `None` if something is missing.
    pub(crate) fn finish(self) -> Option<Moved> {
        let session = self.restorer.finish()?;
        let whole = self.rest.is_empty() && session.entries.len() == self.names.len();
        whole.then_some(Moved {
            session,
            names: self.names,
            known: self.known,
        })
    }
}

impl Hub {
    /// Stores all that a session has.
    fn store_all(&mut self, slot: u32) {
        let (Some(journal), Some(session)) = (&mut self.journal, self.sessions.get_mut(slot))
        else {
            return;
        };
        if !session.durable {
            return;
        }
        journal.began(session);
        for subscription in session.subscriptions.iter() {
            journal.subscription(session, subscription);
        }
        let number = session.handle.number;
        for inflight in session.window.unfinished() {
            let Some(delivery) = inflight.delivery else {
                continue;
            };
            let step = inflight.step == Step::Comp;
            if step {
                journal.emit(&Op::Entry(released(number, delivery.entry)));
            } else {
                journal.keep_moved(number, delivery);
            }
            journal.emit(&Op::Inflight {
                session: number,
                entry: delivery.entry,
                packet_id: inflight.packet_id,
                step,
            });
        }
        for delivery in session.queue.iter() {
            if delivery.qos != QoS::AtMostOnce {
                journal.keep_moved(number, delivery);
            }
        }
        for (packet_id, known) in session.incoming.iter().flat_map(|it| it.iter()) {
            journal.emit(&Op::Received {
                session: number,
                packet_id: *packet_id,
                gist: known.gist,
            });
        }
        let ticket = journal.latest();
        for known in session
            .incoming
            .iter_mut()
            .flat_map(|incoming| incoming.values_mut())
        {
            (known.ticket, known.stored) = (ticket, true);
        }
        session.created = ticket;
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

    /// Makes a copy of a session that came, and stores it.
    pub(crate) fn place_copy(&mut self, moved: Moved, now: Nanos) -> Option<u32> {
        let Moved {
            session,
            names,
            known,
        } = moved;
        let durable = self.journal.is_some() && session.expiry > 0;
        let slot = self.park_copy(session, durable, self.offset(now), now)?;
        let session = self.sessions.get_mut(slot)?;
        session.had.get_or_insert_default();
        self.store_had(slot);
        if let Some(had) = self.sessions.get_mut(slot).and_then(|it| it.had.as_mut()) {
            for name in names {
                had.note_moved(name);
            }
            had.learn(&known);
        }
        self.had_more(slot);
        self.store_session(slot, now);
        self.store_all(slot);
        Some(slot)
    }
}

impl Journal {
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
