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
//! Invariant: what a client was told is safe is in the operations of a committed
//! batch; packets of the gate leave in the order in which they came. Without a
//! store there is no journal, and each of these questions is one branch.

mod gate;
mod messages;
mod names;
mod restore;
mod sessions;
mod wall;

pub use restore::{RestoredSession, Restorer};

pub(crate) use gate::HeldAnswers;
pub(crate) use messages::{Flight, Keeping, Reception};
pub(crate) use names::NameLog;

use std::collections::VecDeque;

use hashbrown::HashSet;
use punctual_store::{Batch, Op};

use crate::hub::ConnId;
use gate::Held;
use wall::Offset;

/// Acknowledgements to one client that may wait before it is not read any more.
const HELD: u32 = 4096;

/// What is promised about a message or a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Durability {
    /// It lives as long as the process.
    None,
    /// It is acknowledged when the group that it is committed with is on disk.
    #[default]
    Batched,
    /// The same, and no group waits for more to come.
    Sync,
}

/// Durability of the topics that match a filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DurabilityRule {
    /// Topic filter.
    pub filter: String,
    /// What is promised about messages on these topics.
    pub durability: Durability,
}

/// What is promised about what; without a store, nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DurabilityPolicy {
    /// Where nothing else is said.
    pub default: Durability,
    /// Of what comes by a listener, by its number: sessions made there, and
    /// messages published there.
    pub listeners: Vec<Option<Durability>>,
    /// Of messages by topic, whatever the listener; the first that matches
    /// counts.
    pub rules: Vec<DurabilityRule>,
    /// Bytes of one shard that may wait for their commit before its publishers
    /// of such messages are held back; those of urgent ones from twice as much
    /// on. As this is also what an acknowledgement may find ahead of it, it
    /// should not be more than one group.
    pub max_uncommitted: usize,
}

impl Default for DurabilityPolicy {
    fn default() -> Self {
        Self {
            default: Durability::default(),
            listeners: Vec::new(),
            rules: Vec::new(),
            max_uncommitted: 1 << 20,
        }
    }
}

impl DurabilityPolicy {
    /// Of what comes by that listener.
    pub(crate) fn of_listener(&self, listener: u16) -> Durability {
        let own = self.listeners.get(usize::from(listener)).copied().flatten();
        own.unwrap_or(self.default)
    }
}

/// What a rule says about the messages of a topic.
pub(crate) fn of_topic(rules: &[DurabilityRule], topic: &str) -> Option<Durability> {
    let mut rules = rules.iter();
    rules
        .find(|rule| punctual_codec::topic::matches(&rule.filter, topic))
        .map(|rule| rule.durability)
}

/// Why nothing can be made durable at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreTrouble {
    /// There is no space for more.
    Full,
    /// It cannot be written.
    Failed,
}

impl StoreTrouble {
    /// For a reason string.
    pub(crate) fn why(self) -> &'static str {
        match self {
            Self::Full => "the store is full",
            Self::Failed => "the store cannot be written",
        }
    }
}

/// Operations that were emitted between two calls of
/// [`crate::Shard::take_operations`].
#[derive(Debug)]
pub struct Operations {
    /// Rises by one with each of a shard.
    pub ticket: u64,
    /// In the order in which they happened.
    pub batch: Batch,
    /// Whether it is to be committed without waiting for more.
    pub sync: bool,
}

/// Operations and held packets of one shard.
#[derive(Debug)]
pub(crate) struct Journal {
    batch: Batch,
    sync: bool,
    /// Of `batch`.
    ticket: u64,
    committed: u64,
    /// Batches that were taken and are not committed, with their bytes.
    outstanding: VecDeque<(u64, usize)>,
    /// Bytes of all of them.
    outstanding_bytes: usize,
    gate: VecDeque<Held>,
    /// Publishers that wait for commits.
    waiters: Vec<ConnId>,
    /// Since a commit failed, until one succeeds.
    failed: Option<StoreTrouble>,
    /// Topics whose retained message changed while nothing could be stored.
    stale_topics: HashSet<Box<str>, foldhash::fast::RandomState>,
    /// Slots of sessions that changed meanwhile.
    stale_sessions: Vec<u32>,
    offset: Offset,
}

impl Journal {
    /// Of what was committed before the start.
    const BEFORE: u64 = 1;

    /// With the wall clock's time at the zero of the broker's clock, in
    /// nanoseconds since 1970.
    pub(crate) fn new(wall: u64) -> Self {
        Self {
            batch: Batch::new(),
            sync: false,
            ticket: Self::BEFORE + 1,
            committed: Self::BEFORE,
            outstanding: VecDeque::new(),
            outstanding_bytes: 0,
            gate: VecDeque::new(),
            waiters: Vec::new(),
            failed: None,
            stale_topics: HashSet::default(),
            stale_sessions: Vec::new(),
            offset: Offset(wall),
        }
    }

    pub(crate) fn has_operations(&self) -> bool {
        !self.batch.is_empty()
    }

    pub(crate) fn take(&mut self) -> Option<Operations> {
        if self.batch.is_empty() {
            return None;
        }
        let ticket = self.ticket;
        self.ticket += 1;
        let bytes = self.batch.as_bytes().len();
        self.outstanding.push_back((ticket, bytes));
        self.outstanding_bytes += bytes;
        Some(Operations {
            ticket,
            batch: std::mem::take(&mut self.batch),
            sync: std::mem::take(&mut self.sync),
        })
    }

    /// Why new messages and sessions cannot be stored now.
    pub(crate) fn trouble(&self) -> Option<StoreTrouble> {
        self.failed
    }

    /// Whether commits fail at the moment.
    pub(crate) fn is_failing(&self) -> bool {
        self.failed.is_some()
    }

    /// Of the operation that was emitted last.
    pub(crate) fn latest(&self) -> u64 {
        self.ticket - u64::from(self.batch.is_empty())
    }

    pub(crate) fn is_committed(&self, ticket: u64) -> bool {
        ticket <= self.committed
    }

    /// Packets that are held.
    pub(crate) fn held(&self) -> usize {
        self.gate.len()
    }

    /// Bytes that are not committed.
    pub(crate) fn uncommitted(&self) -> usize {
        self.outstanding_bytes + self.batch.as_bytes().len()
    }

    fn emit(&mut self, op: &Op<'_>) {
        self.batch.push(op);
    }

    /// Everything up to that ticket is committed; the gate is the caller's.
    fn commit(&mut self, ticket: u64) {
        self.committed = self.committed.max(ticket);
        self.failed = None;
        while let Some((first, bytes)) = self.outstanding.front()
            && *first <= ticket
        {
            self.outstanding_bytes -= bytes;
            self.outstanding.pop_front();
        }
    }
}
