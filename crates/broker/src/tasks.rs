//! Tasks: work whose length clients or neighbours determine, and that is therefore done in slices:
//! between two of them other connections are read from and written to.
//!
//! A connection, a session, a flow, a publisher and an ended session have at most one task of a
//! kind, a session that moved has one for each transfer whose messages are not freed yet, and the
//! other kinds have one task, so the number of connections, sessions, transfers and flows bounds
//! the queue. Tasks take turns; one whose connection or session is gone ends when its turn comes.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::base::connection::ConnId;
use crate::filter_request::FilterRequest;
use crate::mesh::custody::Discarded;
use crate::remains::Remains;

/// Units of work that one task may do before the next task has its turn.
pub(crate) const SLICE: u64 = 512;

/// Units of work for adding or removing a subscription: in the session, the index, the federation
/// and the store.
pub(crate) const FILTER: u64 = 16;

/// Units of work for ending a flow: in the session, and among the watched flows.
pub(crate) const FLOW: u64 = 64;

/// Number of bytes whose copy takes as long as a unit of work.
pub(crate) const COPY: usize = 2 << 10;

/// Bytes of SUBSCRIBE and UNSUBSCRIBE packets that may wait for their next slice. Beyond it,
/// further packets of more than one slice are not taken from their connections.
const MOST_BYTES: usize = 16 << 20;

/// The kind of a piece of work, for measurements of its duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Due timers: keep-alive, expiry, wills, `$SYS` topics and the like.
    Timers,
    /// Filters of SUBSCRIBE or UNSUBSCRIBE.
    Filters,
    /// Looking up retained messages for new subscriptions.
    Retained,
    /// Updating the rights of clients after these were loaded again.
    Rights,
    /// Removing the remains of ended sessions.
    Remains,
    /// Delivering messages to crowds of clients.
    FanOut,
}

/// A task that continues with its next slice.
#[derive(Debug)]
pub(crate) enum Task {
    /// SUBSCRIBE or UNSUBSCRIBE with many filters.
    Filters(Box<FilterRequest>),
    /// Retained messages are looked up for new subscriptions of a session.
    Replay { slot: u32, session: u64 },
    /// Updates the rights of sessions, from [`crate::hub::agenda::Agenda::rights_from`] on.
    Access,
    /// Retained messages may have expired.
    Expire,
    /// Messages of admitted flows were late: alarms about flows after that name are raised.
    Alarms { after: Option<Arc<str>> },
    /// Timers that are not needed any more are removed.
    Compact,
    /// `$SYS` topics are published.
    Sys,
    /// The publisher of a flow is notified of its current state.
    Tell { slot: u32, topic: Box<str> },
    /// The remains of an ended session.
    Remains(Box<Remains>),
    /// Messages that moved to another broker, or that have no receiver any more.
    Discard(Box<Discarded>),
    /// The messages of a publisher are delivered to crowds, by the number of its session.
    FanOut { publisher: u64 },
}

impl Task {
    pub(crate) fn kind(&self) -> Work {
        match self {
            Self::Filters(_) => Work::Filters,
            Self::Replay { .. } => Work::Retained,
            Self::Access => Work::Rights,
            Self::Expire | Self::Sys | Self::Compact | Self::Alarms { .. } | Self::Tell { .. } => {
                Work::Timers
            }
            Self::Remains(_) | Self::Discard(_) => Work::Remains,
            Self::FanOut { .. } => Work::FanOut,
        }
    }
}

/// The client for which work is done, and its filter.
pub(crate) type Subject = (Option<Arc<str>>, Option<Box<str>>);

/// Tasks in the order of their turns.
#[derive(Debug, Default)]
pub(crate) struct Tasks {
    tasks: VecDeque<Task>,
    /// Bytes of the packets among them.
    bytes: usize,
    /// Connections whose next packet waits for capacity.
    waiting: Vec<ConnId>,
}

impl Tasks {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Adds a task, which has its turn after all others.
    pub(crate) fn push(&mut self, task: Task) {
        if let Task::Filters(request) = &task {
            self.bytes += request.bytes();
        }
        self.tasks.push_back(task);
    }

    /// Takes the task whose turn it is.
    pub(crate) fn pop(&mut self) -> Option<Task> {
        let task = self.tasks.pop_front();
        if let Some(Task::Filters(request)) = &task {
            self.bytes -= request.bytes();
        }
        task
    }

    /// Whether a packet of that length may wait here. If not, [`Self::take_waiting`] returns its
    /// connection later.
    pub(crate) fn takes(&mut self, conn: ConnId, bytes: usize) -> bool {
        // A single packet is always accepted, whatever its length.
        let takes = self.bytes == 0 || self.bytes + bytes <= MOST_BYTES;
        if !takes {
            self.waiting.push(conn);
        }
        takes
    }

    /// Connections whose next packet may be tried again, once there is capacity.
    pub(crate) fn take_waiting(&mut self) -> Vec<ConnId> {
        match self.bytes <= MOST_BYTES / 2 {
            true => std::mem::take(&mut self.waiting),
            false => Vec::new(),
        }
    }
}
