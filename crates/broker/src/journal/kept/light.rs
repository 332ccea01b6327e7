//! Messages that one session of this shard receives with QoS 1, and nobody else. Nearly
//! all of them are done with before they would be handed over, so their operations are
//! not even made before.
//!
//! Invariant: what is handed over is what would have been if they had been emitted like
//! others, at the same place.

use std::sync::Arc;

use punctual_codec::QoS;
use punctual_store::op::{EntryOp, Ids};
use punctual_store::{Batch, Op};

use super::{Done, Kept};
use crate::base::connection::ConnId;
use crate::journal::content::with_content;
use crate::journal::wall::Offset;
use crate::publication::Publication;
use crate::{Message, Nanos};

/// Bytes of the records of a message, of its entry and of its packet identifier beside
/// those of its topic, properties and payload, roughly.
const AROUND: usize = 96;

/// A message, its only entry, and perhaps its packet identifier.
#[derive(Debug)]
pub(in crate::journal) struct Light {
    pub(in crate::journal) session: u64,
    /// With which it is sent at once; 0 if it waits.
    pub(in crate::journal) packet_id: u16,
    pub(in crate::journal) publisher: ConnId,
    pub(in crate::journal) message: Arc<Message>,
}

/// One that was kept.
#[derive(Debug)]
pub(super) struct Known {
    /// `None` if it was handed over.
    what: Option<Light>,
    publisher: ConnId,
    at: Nanos,
    /// Chunk, and its place there.
    pub(super) ticket: u64,
    place: usize,
    /// Where its packet identifier was said, if that was later.
    pub(super) sent: Option<(u64, usize)>,
    /// It is handed over, and its publisher waits for that, whatever its session says.
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

impl Kept {
    /// Keeps a message and its only entry, whose number is the highest.
    pub(in crate::journal) fn keep_light(&mut self, entry: u64, what: Light) {
        self.begin();
        let bytes = what.bytes();
        self.bytes += bytes;
        self.open.light_bytes += bytes;
        if self.open.light == 0 {
            self.open.first_light = entry;
        }
        self.open.light += 1;
        let known = Known {
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

    /// Whether that message has to survive.
    pub(in crate::journal) fn has_light(&self, entry: u64) -> bool {
        self.lights.get(entry).is_some()
    }

    /// A session has done with an entry; `None` if it is none of these.
    pub(super) fn light_done(&mut self, entry: u64) -> Option<Done> {
        if self.lights.is_empty() {
            return None;
        }
        // What is insisted on is one like others then, that was committed.
        let Known {
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
    /// What is left of it, with the messages of `lights` that are its.
    pub(super) fn hand_over(
        self,
        lights: &mut punctual_store::RisingMap<Known>,
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
