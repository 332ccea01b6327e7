//! Deadlines of one shard: a heap with lazy deletion. An entry that no longer
//! applies is recognised by its owner when it fires; when such entries prevail
//! the heap is rebuilt, so it stays proportional to what is alive.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::Nanos;

/// What a deadline is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// A connection has not completed CONNECT.
    Connect { slot: u32, generation: u32 },
    /// A connection may have been silent for too long.
    KeepAlive { slot: u32, generation: u32 },
    /// A receiver has held back its publishers for long enough.
    Pause { slot: u32, generation: u32 },
    /// What a neighbour has sent may have room now.
    Parked { slot: u32, generation: u32 },
    /// Neighbours may have to be told of what only little is taken here.
    Brakes,
    /// Neighbours may have acknowledged what was queued for them.
    Flushes,
    /// What a neighbour has sent is acknowledged at last.
    Answers { slot: u32, generation: u32 },
    /// A publisher that came too early may go on.
    Shape { slot: u32, generation: u32 },
    /// A disconnected session ends.
    SessionExpiry { slot: u32, epoch: u64 },
    /// A will is due.
    Will { slot: u32, epoch: u64 },
    /// Queued messages of a disconnected session may have expired.
    Sweep { slot: u32, epoch: u64 },
    /// Something is to be done for a session that moves.
    Errand { id: u64 },
    /// `$SYS` topics are due.
    Sys,
    /// Statistics are to be shared; retained messages may have expired.
    Housekeeping,
}

/// A queue of timers.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Nanos, Timer)>>,
}

impl Timers {
    pub(crate) fn arm(&mut self, at: Nanos, timer: Timer) {
        if at < Nanos::MAX {
            self.heap.push(Reverse((at, timer)));
        }
    }

    #[inline]
    pub(crate) fn next(&self) -> Option<Nanos> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

    #[inline]
    pub(crate) fn pop_due(&mut self, now: Nanos) -> Option<Timer> {
        match self.heap.peek() {
            Some(Reverse((at, _))) if *at <= now => {
                self.heap.pop().map(|Reverse((_, timer))| timer)
            }
            _ => None,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }

    pub(crate) fn retain(&mut self, mut alive: impl FnMut(Nanos, &Timer) -> bool) {
        self.heap.retain(|Reverse((at, timer))| alive(*at, timer));
    }
}
