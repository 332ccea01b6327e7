//! How busy a shard's thread is, for placing sessions, and how late its loop
//! ("drift"), as the signal of overload.

use std::sync::atomic::Ordering;

use punctual_broker::{Directory, Nanos};

use crate::counters::Counters;

/// Time between two reports.
const LOAD_PERIOD: Nanos = Nanos::from_millis(50);

/// How busy the thread is, and how late its loop.
#[derive(Default)]
pub(crate) struct Load {
    turn_started: Nanos,
    busy: u64,
    idle: u64,
    longest_turn: u64,
}

impl Load {
    pub(crate) fn idle_until(&mut self, now: Nanos) {
        self.idle += (now - self.turn_started).0;
        self.turn_started = now;
    }

    pub(crate) fn busy_until(
        &mut self,
        now: Nanos,
        directory: &Directory,
        counters: &Counters,
        index: u16,
    ) {
        if self.turn_started == Nanos(0) {
            self.turn_started = now;
            return;
        }
        let turn = (now - self.turn_started).0;
        self.busy += turn;
        self.longest_turn = self.longest_turn.max(turn);
        self.turn_started = now;
        let total = self.busy + self.idle;
        if total >= LOAD_PERIOD.0 {
            directory.set_load(index, (self.busy * 1000 / total) as u32);
            counters.drift.store(self.longest_turn, Ordering::Relaxed);
            counters
                .max_drift
                .fetch_max(self.longest_turn, Ordering::Relaxed);
            (self.busy, self.idle, self.longest_turn) = (0, 0, 0);
        }
    }
}
