//! Messages with a single receiver: a session of this shard, with QoS 1. Nearly all of them are
//! finished before they would be handed over, so their operations are encoded only when they are.
//!
//! Invariant: the operations handed over are the same, and at the same place, as if the messages
//! had been emitted like others.

use std::sync::Arc;

use punctual_codec::QoS;
use punctual_store::op::{EntryOp, Ids};
use punctual_store::{Batch, Op};

use super::{Done, PendingOperations};
use crate::base::connection::ConnId;
use crate::journal::content::with_content;
use crate::journal::wall::Offset;
use crate::publication::Publication;
use crate::{Message, Nanos};

/// Approximate bytes of the operations of a message beside its topic, properties and payload: those
/// of content, entry and packet identifier.
const AROUND: usize = 96;

/// A message with its only entry, and its packet identifier if it was sent at once.
#[derive(Debug)]
pub(in crate::journal) struct Light {
    pub(in crate::journal) session: u64,
    /// The packet identifier with which the message is sent at once; 0 if it is queued.
    pub(in crate::journal) packet_id: u16,
    pub(in crate::journal) publisher: ConnId,
    pub(in crate::journal) message: Arc<Message>,
}

/// A recorded message.
#[derive(Debug)]
pub(super) struct LightRecord {
    /// `None` if the message was handed over.
    what: Option<Light>,
    publisher: ConnId,
    at: Nanos,
    /// Ticket of its chunk, and its place there.
    pub(super) ticket: u64,
    place: usize,
    /// Ticket and place of the operation with its packet identifier, if the message was sent later.
    pub(super) sent: Option<(u64, usize)>,
    /// Whether it is handed over, and its publisher waits for the commit, even if its session
    /// finishes it.
    pub(super) insisted: bool,
}

impl Light {
    fn bytes(&self) -> usize {
        self.message.size() + AROUND
    }

    fn put(&self, entry: u64, batch: &mut Batch, offset: Offset) {
        let message = self.message.stored;
        let publication = Publication::from_message(&self.message, Nanos(0));
        with_content(&publication, offset, |content| {
            batch.push(&Op::Message { message, content });
        });
        batch.push(&Op::Entry(EntryOp {
            session: self.session,
            entry,
            message,
            qos: QoS::AtLeastOnce as u8,
            retain: false,
            subscription_ids: Ids::NONE,
            number: None,
        }));
        if self.packet_id != 0 {
            batch.push(&Op::Sent {
                session: self.session,
                entry,
                packet_id: self.packet_id,
            });
        }
    }
}

impl PendingOperations {
    /// Records a message and its only entry, whose number is the highest so far.
    pub(in crate::journal) fn keep_light(&mut self, entry: u64, what: Light) {
        self.begin();
        let bytes = what.bytes();
        self.bytes += bytes;
        self.open.light_bytes += bytes;
        if self.open.light == 0 {
            self.open.first_light = entry;
        }
        self.open.light += 1;
        let known = LightRecord {
            publisher: what.publisher,
            what: Some(what),
            at: self.now,
            ticket: self.open.ticket,
            place: self.open.ops.end(),
            sent: None,
            insisted: false,
        };
        self.lights.insert(entry, known);
    }

    /// Whether the message with that entry has to survive.
    pub(in crate::journal) fn has_light(&self, entry: u64) -> bool {
        self.lights.get(entry).is_some()
    }

    /// A session has finished an entry; `None` if the entry is not one of a [`Light`].
    pub(super) fn light_done(&mut self, entry: u64) -> Option<Done> {
        if self.lights.is_empty() {
            return None;
        }
        // An insisted entry counts as one that was committed.
        let LightRecord {
            what,
            publisher,
            at,
            ticket,
            sent,
            ..
        } = self.lights.remove_if(entry, |known| !known.insisted)?;
        self.habits.answered(self.now - at, self.patience);
        self.free(publisher);
        let Some(what) = what else {
            return Some(Done::Stored);
        };
        let bytes = what.bytes();
        if let Some(chunk) = self.chunk_mut(ticket) {
            chunk.light -= 1;
            chunk.light_bytes -= bytes;
            self.bytes -= bytes;
        }
        if let Some((ticket, place)) = sent {
            self.withdraw(ticket, Some(place));
        }
        Some(Done::Needless)
    }
}

impl super::Chunk {
    /// The operations of the chunk that were not withdrawn, with those of its messages in `lights`.
    pub(super) fn hand_over(
        self,
        lights: &mut punctual_store::RisingMap<LightRecord>,
        offset: Offset,
    ) -> Batch {
        if self.light == 0 {
            return self.ops.into_batch();
        }
        let own = lights.iter_mut_from(self.first_light);
        let own = own
            .take_while(|(_, known)| known.ticket == self.ticket)
            .filter_map(|(entry, known)| Some((known.place, (entry, known.what.take()?))));
        self.ops.into_batch_with(own, |batch, (entry, what)| {
            what.put(entry, batch, offset);
        })
    }
}
