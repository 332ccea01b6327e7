//! The journal: operations for a store, emitted while packets are handled, and packets that must
//! not be sent before their operations are committed.
//!
//! A shard never waits for a store. Its shell takes the operations of a turn as one [`Operations`]
//! with a rising ticket ([`crate::Shard::take_operations`]) and reports which tickets are committed
//! ([`crate::Shard::committed`]). Until then the *gate* holds acknowledgements to publishers,
//! answers to SUBSCRIBE and CONNECT of sessions that survive, and PUBLISH and PUBREL of QoS 2
//! messages to them: a packet identifier that a client has seen must not be assigned to another
//! message after a crash. All other packets are sent at once.
//!
//! Operations of messages stay in the shard for a limited time ([`kept`]): if all receivers
//! acknowledge a message meanwhile, its operations are never handed over, and its publisher need
//! not wait.
//!
//! Invariant: every message that was acknowledged to a client is in the operations of a committed
//! batch, or needs none any more; answers of one kind to a client are sent in the order in which
//! they were made. Without a store there is no journal, and each check of it is one branch.

pub(crate) mod answers;
pub(crate) mod content;
pub(crate) mod gate;
pub(crate) mod history_log;
pub(crate) mod keeping;
mod kept;
pub(crate) mod messages;
pub(crate) mod restore;
pub(crate) mod sessions;
pub(crate) mod wall;

pub(crate) use answers::{After, HeldAnswers};
pub use restore::{RestoredSession, Restorer};
pub(crate) use sessions::{AWAITED, BEHIND};

use std::collections::VecDeque;

use gate::Held;
use hashbrown::HashSet;
use kept::PendingOperations;
use punctual_codec::QoS;
use punctual_store::{Batch, Op};
use wall::Offset;

use crate::Nanos;
use crate::base::connection::ConnId;
use crate::base::durability::StoreTrouble;

/// Number of waiting acknowledgements to one client from which the broker stops reading from it.
pub(crate) const HELD: usize = 4096;

/// Operations that were emitted between two calls of
/// [`crate::Shard::take_operations`].
#[derive(Debug)]
pub struct Operations {
    /// Rises with each [`Operations`] of a shard.
    pub ticket: u64,
    /// The operations, in the order in which they were emitted.
    pub batch: Batch,
    /// Whether the batch is to be committed without waiting for further ones.
    pub sync: bool,
    /// How long the first operation has waited in the shard.
    pub waited: Nanos,
}

/// Operations that were handed over and are not committed.
#[derive(Debug)]
struct Outstanding {
    ticket: u64,
    /// The last of the following tickets whose operations were all withdrawn; they are committed
    /// with this one.
    covers: u64,
    bytes: usize,
    since: Nanos,
}

/// Operations and held packets of one shard.
#[derive(Debug)]
pub(crate) struct Journal {
    pub(crate) kept: PendingOperations,
    /// Whether the next operations must not wait for acknowledgements of receivers.
    hurry: bool,
    sync: bool,
    /// Whether no operations wait any more, since the shard ends.
    ending: bool,
    /// Whether the origin in the names of this broker's messages was emitted.
    pub(crate) knows_origin: bool,
    pub(crate) committed: u64,
    outstanding: VecDeque<Outstanding>,
    /// Bytes of all outstanding operations.
    outstanding_bytes: usize,
    pub(crate) gate: VecDeque<Held>,
    /// Connections with waiting answers; some may have ended.
    pub(crate) answering: Vec<ConnId>,
    /// Length of `answering` beyond which ended connections are removed from it.
    pub(crate) most_answering: usize,
    /// Publishers that wait for commits.
    pub(crate) waiters: Vec<ConnId>,
    /// Finished entries of sessions of this shard that other shards have emitted: the shard, and
    /// the numbers of session and entry.
    pub(crate) elsewhere: Vec<(u16, [u64; 2])>,
    /// The trouble of the last commit, if that failed.
    pub(crate) failed: Option<StoreTrouble>,
    /// Why the store accepts only operations that were emitted already; `None` if it has room.
    pub(crate) full: Option<StoreTrouble>,
    /// Topics whose retained message changed while the store failed or was full.
    pub(crate) stale_topics: HashSet<Box<str>, foldhash::fast::RandomState>,
    /// Slots of sessions that changed while the store failed.
    pub(crate) stale_sessions: Vec<u32>,
    pub(crate) offset: Offset,
}

impl Journal {
    /// Ticket of all that was committed before the start.
    pub(crate) const BEFORE: u64 = 1;

    /// A journal; `wall` is the wall-clock time at the zero of the broker's clock, in nanoseconds
    /// since 1970.
    pub(crate) fn new(wall: u64) -> Self {
        Self {
            kept: PendingOperations::new(Self::BEFORE + 1),
            hurry: false,
            sync: false,
            ending: false,
            knows_origin: false,
            committed: Self::BEFORE,
            outstanding: VecDeque::new(),
            outstanding_bytes: 0,
            gate: VecDeque::new(),
            answering: Vec::new(),
            most_answering: 0,
            waiters: Vec::new(),
            elsewhere: Vec::new(),
            failed: None,
            full: None,
            stale_topics: HashSet::default(),
            stale_sessions: Vec::new(),
            offset: Offset(wall),
        }
    }

    pub(crate) fn has_operations(&self) -> bool {
        self.kept.has_some()
    }

    /// Whether an operation was emitted since the last call of [`Self::take`].
    pub(crate) fn has_begun(&self) -> bool {
        self.kept.has_begun()
    }

    /// Number of operations and light messages recorded since the start. A step that leaves it as it
    /// is stores nothing.
    pub(crate) fn recorded(&self) -> u64 {
        self.kept.recorded()
    }

    /// Takes the operations to commit now; `None` if there are none. Tickets whose operations were
    /// all withdrawn count as committed with the ones before them.
    pub(crate) fn take(&mut self, patience: Nanos, now: Nanos) -> Option<Operations> {
        let all = std::mem::take(&mut self.hurry) || self.ending || self.is_failing();
        let taken = self.kept.take(now, patience, all, self.offset)?;
        let sync = std::mem::take(&mut self.sync);
        let bytes = taken.batch.as_bytes().len();
        if taken.batch.is_empty() {
            match self.outstanding.back_mut() {
                Some(last) => last.covers = taken.ticket,
                None => self.committed = taken.ticket,
            }
            return None;
        }
        self.outstanding.push_back(Outstanding {
            ticket: taken.ticket,
            covers: taken.ticket,
            bytes,
            since: now,
        });
        self.outstanding_bytes += bytes;
        Some(Operations {
            ticket: taken.ticket,
            batch: taken.batch,
            sync,
            waited: now - taken.since,
        })
    }

    /// When [`Self::take`] is to be called again for operations that stay in the shard now.
    pub(crate) fn due(&self) -> Option<Nanos> {
        self.kept.due()
    }

    /// Sets the present time.
    #[inline]
    pub(crate) fn see(&mut self, now: Nanos) {
        self.kept.see(now);
    }

    /// From now on no operations wait for acknowledgements of receivers.
    pub(crate) fn end(&mut self) {
        self.ending = true;
    }

    /// Why new messages and sessions cannot be stored now.
    pub(crate) fn trouble(&self) -> Option<StoreTrouble> {
        self.failed.or(self.full)
    }

    /// Whether commits fail at the moment.
    pub(crate) fn is_failing(&self) -> bool {
        self.failed.is_some()
    }

    /// Ticket of the operation that was emitted last.
    pub(crate) fn latest(&self) -> u64 {
        self.kept.latest()
    }

    /// The same ticket; the next [`Self::take`] hands over everything up to it.
    pub(crate) fn settle(&mut self) -> u64 {
        let ticket = self.latest();
        self.hurry |= self.kept.has(ticket);
        ticket
    }

    pub(crate) fn is_committed(&self, ticket: u64) -> bool {
        ticket <= self.committed
    }

    /// Bytes of all operations that are not committed.
    pub(crate) fn uncommitted(&self) -> usize {
        self.outstanding_bytes + self.kept.bytes()
    }

    /// Emits an operation; returns its place in the chunk of this turn.
    pub(crate) fn emit(&mut self, op: &Op<'_>) -> Option<usize> {
        self.hurry |= match op {
            // The PUBLISH of a QoS 2 message waits for its entry.
            Op::Entry(entry) => entry.qos == QoS::ExactlyOnce as u8,
            Op::Message { .. } | Op::Sent { .. } | Op::Done { .. } => false,
            _ => true,
        };
        self.kept.emit(op)
    }

    /// Notes that everything up to `ticket` is committed. The caller opens the gate.
    pub(crate) fn commit(&mut self, ticket: u64, now: Nanos) {
        self.committed = self.committed.max(ticket);
        self.failed = None;
        while let Some(first) = self.outstanding.pop_front_if(|it| it.ticket <= ticket) {
            self.outstanding_bytes -= first.bytes;
            self.committed = self.committed.max(first.covers);
            let took = now - first.since;
            self.kept.committed(self.committed, took);
        }
    }
}
