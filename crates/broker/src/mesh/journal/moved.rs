//! The encoded form of a session in a transfer, and the copy that this broker makes of it.
//!
//! A session is sent as store operations, each behind its length; numbers of sessions, messages and
//! entries are replaced by numbers of the receiving broker as they are read.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use punctual_codec::{Properties, PropertySet, QoS, topic};
use punctual_store::Op;
use punctual_store::op::{Content, EntryOp, SessionOp, SubscriptionOp};

use crate::base::delivery::Delivery;
use crate::base::durability::Durability;
use crate::journal::Journal;
use crate::journal::content::released;
use crate::journal::keeping::{Keeping, Reception};
use crate::journal::restore::{InFlight, RestoredEntry, Restorer};
use crate::journal::wall::Offset;
use crate::mesh::moves::{DeliveryHistory, KnownMessages};
use crate::publication::Publication;
use crate::session::{Inflight, Session, Step};
use crate::{Directory, Message, Nanos};

/// The MQTT version in a transferred session: the version of the client is known only when it
/// connects.
const VERSION: u8 = 5;
/// Key of the names of messages that the session has received.
const HISTORY: &str = "had";
/// Key of the names of messages that had passed the session's former broker.
const PASSED: &str = "passed";
/// Key of the ranges of names that the former broker issued while the session was there.
const GIVEN: &str = "given";
/// Bytes of a transferred session that are accepted beside its queued messages: for its state, and
/// for the records of each message.
const ROOM: usize = 16 << 20;
/// Largest number of names of each kind that are sent with a session.
const MAX_NAMES: usize = 1 << 16;
/// Largest number of names in one operation; even, since ranges are pairs.
const NAMES_AT_ONCE: usize = 1 << 10;

/// Appends the encoded form of an operation.
fn put(out: &mut Vec<u8>, op: &Op<'_>) {
    let at = out.len();
    out.extend_from_slice(&[0; 4]);
    op.encode(out);
    // An operation that exceeds the length field exceeds the bounds of a broker.
    let length = u32::try_from(out.len() - at - 4).unwrap_or(u32::MAX);
    out[at..at + 4].copy_from_slice(&length.to_le_bytes());
}

/// Appends the identity of a session, with which a [`Round`] begins.
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

/// Appends the state of a session beside its messages.
pub(crate) fn put_state(out: &mut Vec<u8>, session: &Session, known: &KnownMessages) {
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
    let all = [
        (HISTORY, &*known.history),
        (PASSED, &*known.passed),
        (GIVEN, given),
    ];
    for (key, names) in all {
        for names in names[names.len().saturating_sub(MAX_NAMES)..].chunks(NAMES_AT_ONCE) {
            let value: Vec<u8> = names.iter().flat_map(|name| name.to_le_bytes()).collect();
            put(out, &Op::Flow { key, value: &value });
        }
    }
}

/// Appends a packet identifier that a client may remember.
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

/// Appends a queued message.
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

/// Reads a queued message that [`put_delivery`] wrote, or a packet identifier that [`put_taken_up`]
/// wrote.
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

/// A copy of a session that another broker sends in parts. Each part is added to the copy, and
/// stored, when it arrives.
#[derive(Debug)]
pub(crate) struct Round {
    /// Bytes of an incomplete operation.
    pub(crate) rest: Vec<u8>,
    /// Number of bytes that are still accepted.
    room: usize,
    pub(crate) restorer: Restorer,
    client: Arc<str>,
    /// Number of the session on this broker.
    session: u64,
    begun: bool,
    pub(crate) message: u64,
    entry: u64,
    /// Whether this broker has a store; then a session that survives its connection is stored.
    has_store: bool,
    /// Name of each message that is not in the copy yet; 0 for none.
    pub(crate) names: Vec<u64>,
    /// Delivery history of the session, until the copy is made.
    pub(crate) history: Option<Box<DeliveryHistory>>,
    /// Slot of the copy, which is made when the first message is complete, or at the end:
    /// everything else comes before.
    pub(crate) slot: Option<u32>,
    pub(crate) in_flight: Vec<InFlight>,
}

/// Checks a message from another broker, and assigns it a number of this broker.
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

/// The first operation, which is behind its length, and the bytes that follow; `None` if it is
/// incomplete.
fn first_op(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, behind) = bytes.split_first_chunk()?;
    behind.split_at_checked(u32::from_le_bytes(*length) as usize)
}

impl Round {
    /// Begins to read a client's session from another broker. `offset` is that of the mesh's wall
    /// clock; `most` is the largest number of bytes of its messages.
    pub(crate) fn new(
        directory: &Arc<Directory>,
        client: &Arc<str>,
        offset: Offset,
        most: usize,
        has_store: bool,
    ) -> Self {
        Self {
            rest: Vec::new(),
            room: most.saturating_add(ROOM),
            restorer: Restorer::new(directory.clone(), offset.0),
            client: client.clone(),
            session: directory.next_number.fetch_add(1, Ordering::Relaxed),
            begun: false,
            message: 0,
            entry: 0,
            has_store,
            names: Vec::new(),
            history: None,
            slot: None,
            in_flight: Vec::new(),
        }
    }

    /// Reads further bytes; `None` if they are not operations of a session, or too many.
    pub(crate) fn read(&mut self, directory: &Directory, bytes: &[u8]) -> Option<()> {
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
                let history = self.history.insert(Box::default());
                if self.has_store && op.expiry > 0 {
                    history.log = Some(Box::default());
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
                let name = crate::journal::wall::StoredStamp::name(content.stamp);
                self.names.push(name);
                let op = message_here(directory, content)?;
                if let Op::Message { message, .. } = op {
                    self.message = message;
                }
                op
            }
            Op::Entry(op) => {
                // The content of an entry, if there is one, directly precedes it.
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
                let mut known = KnownMessages::default();
                match key {
                    HISTORY => known.history.extend(names),
                    PASSED => known.passed.extend(names),
                    GIVEN => {
                        let names: Vec<u64> = names.collect();
                        known.given.extend(names.as_chunks().0);
                    }
                    // Unknown keys are ignored.
                    _ => {}
                }
                self.history.as_mut()?.learn(&known);
                return Some(());
            }
            _ => return None,
        };
        self.restorer.take(&op);
        Some(())
    }
}

impl Journal {
    /// Emits a message of a copy, in flight or queued.
    pub(crate) fn keep_entry(&mut self, session: u64, entry: &RestoredEntry) {
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
    pub(crate) fn keep_moved(&mut self, session: u64, delivery: &Delivery) {
        let message: &Arc<Message> = &delivery.message;
        let mut publication = Publication::from_message(message, Nanos(0));
        publication.keeping = Keeping {
            durability: Durability::Batched,
            message: message.stored,
            ..Keeping::NOT
        };
        self.write(&mut publication);
        // The other broker will drop the message, so it is committed here in any case.
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
