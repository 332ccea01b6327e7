//! Timers of one shard: a heap with lazy deletion. The owner of an entry that no longer applies
//! recognises it when it fires; when such entries prevail the heap is rebuilt, so its size stays
//! proportional to the number of connections and sessions.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::Nanos;

/// The purpose of a timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// A connection has not completed CONNECT.
    Connect { slot: u32, generation: u32 },
    /// A connection may have been silent for too long.
    KeepAlive { slot: u32, generation: u32 },
    /// A receiver has paused its publishers for the maximum time.
    Pause { slot: u32, generation: u32 },
    /// There may be capacity now for blocked publications of a neighbour.
    Parked { slot: u32, generation: u32 },
    /// Neighbours may have to be notified of topics under remote flow control.
    Throttles,
    /// Neighbours may have acknowledged the messages queued for them.
    Flushes,
    /// Delayed acknowledgements to a neighbour are due.
    Answers { slot: u32, generation: u32 },
    /// A publisher that came too early may go on.
    Shape { slot: u32, generation: u32 },
    /// A disconnected session ends.
    SessionExpiry { slot: u32, epoch: u64 },
    /// A disconnected session gives up its flows.
    Absent { slot: u32, epoch: u64 },
    /// A will is due.
    Will { slot: u32, epoch: u64 },
    /// Queued messages of a disconnected session may have expired.
    Sweep { slot: u32, epoch: u64 },
    /// A session may forget its delivery history.
    HistoryExpiry { id: u64 },
    /// A timer of [`crate::mesh::custody`].
    Transfer { id: u64 },
    /// `$SYS` topics are due.
    Sys,
    /// Statistics are to be shared; retained messages may have expired.
    Housekeeping,
}

/// A queue of timers.
///
/// Timers are not disarmed: those that are not needed any more are skipped when they are due. To
/// bound their number, the queue is checked from time to time, a few timers at a time
/// ([`Self::begin_compaction`]).
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Nanos, Timer)>>,
    /// Timers that are still to be checked, during a compaction.
    unchecked: BinaryHeap<Reverse<(Nanos, Timer)>>,
}

impl Timers {
    pub(crate) fn arm(&mut self, at: Nanos, timer: Timer) {
        if at < Nanos::MAX {
            self.heap.push(Reverse((at, timer)));
        }
    }

    #[inline]
    pub(crate) fn next(&self) -> Option<Nanos> {
        let next = self.heap.peek().map(|Reverse((at, _))| *at);
        // Mostly empty.
        match self.unchecked.peek() {
            None => next,
            Some(Reverse((at, _))) => Some(next.map_or(*at, |next| next.min(*at))),
        }
    }

    #[inline]
    pub(crate) fn pop_due(&mut self, now: Nanos) -> Option<Timer> {
        for heap in [&mut self.unchecked, &mut self.heap] {
            if let Some(Reverse((at, _))) = heap.peek()
                && *at <= now
            {
                return heap.pop().map(|Reverse((_, timer))| timer);
            }
        }
        None
    }

    pub(crate) fn len(&self) -> usize {
        self.heap.len() + self.unchecked.len()
    }

    /// Begins a compaction of the queue; false if one is in progress.
    pub(crate) fn begin_compaction(&mut self) -> bool {
        let begins = self.unchecked.is_empty();
        if begins {
            std::mem::swap(&mut self.heap, &mut self.unchecked);
        }
        begins
    }

    /// Looks at the next timer and drops it unless it is `alive`. False if there are no more.
    pub(crate) fn check_next(&mut self, alive: impl FnOnce(Nanos, &Timer) -> bool) -> bool {
        let Some(Reverse((at, timer))) = self.unchecked.pop() else {
            // Its memory is as much as the queue ever took.
            self.unchecked = BinaryHeap::new();
            return false;
        };
        if alive(at, &timer) {
            self.heap.push(Reverse((at, timer)));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sweep(slot: u32) -> Timer {
        Timer::Sweep { slot, epoch: 1 }
    }

    #[test]
    fn timers_are_due_in_their_order_while_the_queue_is_gone_through() {
        let mut timers = Timers::default();
        for slot in 0..100 {
            timers.arm(Nanos(u64::from(slot)), sweep(slot));
        }
        assert!(timers.begin_compaction());
        assert!(!timers.begin_compaction());
        for _ in 0..50 {
            let is_even =
                |_, timer: &Timer| matches!(timer, Timer::Sweep { slot, .. } if slot % 2 == 0);
            assert!(timers.check_next(is_even));
        }
        timers.arm(Nanos(7), sweep(1000));
        assert_eq!(timers.len(), 76);
        assert_eq!(timers.next(), Some(Nanos(0)));
        let mut due = 0;
        while timers.pop_due(Nanos(49)).is_some() {
            due += 1;
        }
        assert_eq!((due, timers.len()), (26, 50));
        assert_eq!(timers.next(), Some(Nanos(50)));
        while timers.check_next(|_, _| false) {}
        assert_eq!((timers.len(), timers.next()), (0, None));
        assert!(timers.begin_compaction());
    }
}
