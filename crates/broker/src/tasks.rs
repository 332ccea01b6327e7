//! Work that somebody outside decides the length of, and that is therefore done in slices: between
//! two of them others are read from and written to.
//!
//! A connection, a session, a flow, a publisher and an ended session have at most one task of a kind, a
//! session that moved has one for each transfer whose messages are not freed yet, and the other kinds
//! have one task, so the number of connections, sessions, transfers and flows bounds the queue. Tasks take
//! turns; one whose connection or session is gone ends when its turn comes.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::base::connection::ConnId;
use crate::filter_request::FilterRequest;
use crate::mesh::custody::Discarded;
use crate::remains::Remains;

/// Units that one task has before the next one has its turn.
pub(crate) const SLICE: u64 = 512;

/// Units of work of adding or removing a subscription: in the session, the index, the federation and
/// the store.
pub(crate) const FILTER: u64 = 16;

/// Units of work of ending a flow: in the session, and among those that are watched.
pub(crate) const FLOW: u64 = 64;

/// Bytes whose copy takes as long as a unit of work.
pub(crate) const COPY: usize = 2 << 10;

/// Bytes of SUBSCRIBE and UNSUBSCRIBE packets that wait for their next slice. While there are as
/// many, further packets of more than one slice are not taken from their connections.
const MOST_BYTES: usize = 16 << 20;

/// What a piece of work was, for those who measure how long it took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// What was due: keep-alive, expiry, wills, `$SYS` topics and the like.
    Timers,
    /// Filters of SUBSCRIBE or UNSUBSCRIBE.
    Filters,
    /// Looking up retained messages for new subscriptions.
    Retained,
    /// Giving clients their rights after these were read again.
    Rights,
    /// Clearing away what sessions have left that have ended.
    Remains,
    /// Giving messages to very many clients.
    FanOut,
}

/// Something that goes on with its next slice.
#[derive(Debug)]
pub(crate) enum Task {
    /// SUBSCRIBE or UNSUBSCRIBE with many filters.
    Filters(Box<FilterRequest>),
    /// Retained messages are looked up for new subscriptions of a session.
    Replay { slot: u32, session: u64 },
    /// Sessions are given their rights anew, from [`crate::hub::Hub::rights_from`] on.
    Access,
    /// Retained messages may have expired.
    Expire,
    /// Messages of admitted flows were late: alarms about flows after that name are raised.
    Alarms { after: Option<Arc<str>> },
    /// Timers that are not needed any more are removed.
    Compact,
    /// `$SYS` topics are published.
    Sys,
    /// The publisher of a flow is told what holds for it now.
    Tell { slot: u32, topic: Box<str> },
    /// What a session has left that has ended.
    Remains(Box<Remains>),
    /// Messages that moved to another broker, or that nobody wants any more.
    Discard(Box<Discarded>),
    /// The messages of a publisher are given to crowds, by the number of its session.
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

/// The client that work is done for, and its filter.
pub(crate) type Subject = (Option<Arc<str>>, Option<Box<str>>);

/// Tasks in the order of their turns.
#[derive(Debug, Default)]
pub(crate) struct Tasks {
    tasks: VecDeque<Task>,
    /// Of the packets among them.
    bytes: usize,
    /// Connections whose next packet waits for room.
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

    /// Adds one, to have its turn after all others.
    pub(crate) fn push(&mut self, task: Task) {
        if let Task::Filters(request) = &task {
            self.bytes += request.bytes();
        }
        self.tasks.push_back(task);
    }

    /// Takes the one whose turn it is.
    pub(crate) fn pop(&mut self) -> Option<Task> {
        let task = self.tasks.pop_front();
        if let Some(Task::Filters(request)) = &task {
            self.bytes -= request.bytes();
        }
        task
    }

    /// Whether a packet of that length may wait here. If not, its connection is told of later, by
    /// [`Self::take_waiting`].
    pub(crate) fn takes(&mut self, conn: ConnId, bytes: usize) -> bool {
        // One is always taken, whatever its length.
        let takes = self.bytes == 0 || self.bytes + bytes <= MOST_BYTES;
        if !takes {
            self.waiting.push(conn);
        }
        takes
    }

    /// Connections whose next packet may be tried again, once there is room.
    pub(crate) fn take_waiting(&mut self) -> Vec<ConnId> {
        match self.bytes <= MOST_BYTES / 2 {
            true => std::mem::take(&mut self.waiting),
            false => Vec::new(),
        }
    }
}
