//! What is to outlive the process: operations for a store, emitted while
//! packets are handled, and packets that may not leave before their operations
//! are committed.
//!
//! A shard never waits for a store. Its shell takes the operations of a turn as
//! one [`Operations`] with a rising ticket ([`crate::Shard::take_operations`]) and
//! says which tickets are committed ([`crate::Shard::committed`]). Until then
//! the *gate* holds acknowledgements to publishers, answers to SUBSCRIBE and
//! CONNECT of sessions that survive, and PUBLISH and PUBREL of QoS 2 messages to
//! them: a packet identifier that a client has seen must not be given to another
//! message after a crash. Everything else goes its way at once.
//!
//! Operations of messages stay in the shard for a while ([`kept`]): those of one that
//! its receivers acknowledge meanwhile are never handed over, and its publisher need
//! not wait.
//!
//! Invariant: what a client was told is safe is in the operations of a committed
//! batch, or needs none any more; answers of one kind to a client leave in the order
//! in which they came. Without a store there is no journal, and each of these
//! questions is one branch.

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
use kept::Kept;
use punctual_codec::QoS;
use punctual_store::{Batch, Op};
use wall::Offset;

use crate::Nanos;
use crate::base::connection::ConnId;
use crate::base::durability::StoreTrouble;

/// Acknowledgements to one client that may wait before it is not read any more.
pub(crate) const HELD: usize = 4096;

/// Operations that were emitted between two calls of
/// [`crate::Shard::take_operations`].
#[derive(Debug)]
pub struct Operations {
    /// Rises with each of a shard.
    pub ticket: u64,
    /// In the order in which they happened.
    pub batch: Batch,
    /// Whether it is to be committed without waiting for more.
    pub sync: bool,
    /// How long the first of them has waited in the shard.
    pub waited: Nanos,
}

/// What was handed over and is not committed.
#[derive(Debug)]
struct Outstanding {
    ticket: u64,
    /// The last of the tickets of which nothing is left that follow it.
    covers: u64,
    bytes: usize,
    since: Nanos,
}

/// Operations and held packets of one shard.
#[derive(Debug)]
pub(crate) struct Journal {
    pub(crate) kept: Kept,
    /// Something is not to wait for acknowledgements of receivers.
    hurry: bool,
    sync: bool,
    /// Nothing is to wait any more.
    ending: bool,
    pub(crate) committed: u64,
    outstanding: VecDeque<Outstanding>,
    /// Bytes of all of them.
    outstanding_bytes: usize,
    pub(crate) gate: VecDeque<Held>,
    /// Connections with answers that wait, and perhaps some that have ended.
    pub(crate) answering: Vec<ConnId>,
    /// So many of these are looked through for those that have ended.
    pub(crate) most_answering: usize,
    /// Publishers that wait for commits.
    pub(crate) waiters: Vec<ConnId>,
    /// Shards, and sessions of this one with entries that those have emitted, which are
    /// done with.
    pub(crate) elsewhere: Vec<(u16, [u64; 2])>,
    /// Since a commit failed, until one succeeds.
    pub(crate) failed: Option<StoreTrouble>,
    /// Why the store has room only for what was emitted already, if it has no more.
    pub(crate) full: Option<StoreTrouble>,
    /// Topics whose retained message changed while nothing could be stored.
    pub(crate) stale_topics: HashSet<Box<str>, foldhash::fast::RandomState>,
    /// Slots of sessions that changed meanwhile.
    pub(crate) stale_sessions: Vec<u32>,
    pub(crate) offset: Offset,
}

impl Journal {
    /// Of what was committed before the start.
    pub(crate) const BEFORE: u64 = 1;

    /// With the wall clock's time at the zero of the broker's clock, in
    /// nanoseconds since 1970.
    pub(crate) fn new(wall: u64) -> Self {
        Self {
            kept: Kept::new(Self::BEFORE + 1),
            hurry: false,
            sync: false,
            ending: false,
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

    /// Whether something was emitted since the last call of [`Self::take`].
    pub(crate) fn has_begun(&self) -> bool {
        self.kept.has_begun()
    }

    /// Number of operations emitted since the start. What does not change it stores nothing.
    pub(crate) fn emitted(&self) -> u64 {
        self.kept.emitted()
    }

    /// What is to be committed now. What need not be any more is committed with it.
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

    /// When [`Self::take`] has something that it has not yet.
    pub(crate) fn due(&self) -> Option<Nanos> {
        self.kept.due()
    }

    /// Time passes.
    #[inline]
    pub(crate) fn see(&mut self, now: Nanos) {
        self.kept.see(now);
    }

    /// From now on nothing waits for acknowledgements of receivers.
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

    /// Of the operation that was emitted last.
    pub(crate) fn latest(&self) -> u64 {
        self.kept.latest()
    }

    /// The same, and nothing that was emitted stays here.
    pub(crate) fn settle(&mut self) -> u64 {
        let ticket = self.latest();
        self.hurry |= self.kept.has(ticket);
        ticket
    }

    pub(crate) fn is_committed(&self, ticket: u64) -> bool {
        ticket <= self.committed
    }

    /// Bytes that are not committed.
    pub(crate) fn uncommitted(&self) -> usize {
        self.outstanding_bytes + self.kept.bytes()
    }

    /// Emits an operation; returns its place in the chunk of this turn.
    pub(crate) fn emit(&mut self, op: &Op<'_>) -> Option<usize> {
        self.hurry |= match op {
            // PUBLISH waits for it.
            Op::Entry(entry) => entry.qos == QoS::ExactlyOnce as u8,
            Op::Message { .. } | Op::Sent { .. } | Op::Done { .. } => false,
            _ => true,
        };
        self.kept.emit(op)
    }

    /// Everything up to that ticket is committed; the gate is the caller's.
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
