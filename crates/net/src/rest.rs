//! Rests of a thread with real-time priority that always has something to do.
//!
//! Linux stops threads under SCHED_FIFO for the rest of the second once they have run for 950 ms of it
//! (`kernel.sched_rt_runtime_us`, sched(7)): for 50 ms nobody is served, whatever is urgent. Who sleeps
//! for a little more than that part of the time, a moment now and then, is never stopped.

use punctual_broker::Nanos;

/// One part of rest for so many of work: 7.7 % of the time, where the system asks for 5 %.
const WORK: u64 = 12;
/// How long a rest takes; an urgent message may have to wait for it.
pub(crate) const REST: Nanos = Nanos(80_000);
/// Idle time that counts for later work, at most.
const CREDIT: i64 = 20_000_000;

/// How much rest is due.
#[derive(Debug)]
pub(crate) struct Rest {
    /// Nanoseconds of rest that are due; below zero: that there was too much.
    due: i64,
    /// Until when work and idle time are counted.
    counted: Nanos,
}

impl Rest {
    /// Of a thread that begins.
    pub(crate) fn new(now: Nanos) -> Self {
        Self {
            due: 0,
            counted: now,
        }
    }

    /// The thread has worked until now.
    pub(crate) fn worked(&mut self, now: Nanos) {
        self.due += ((now - self.counted).0 / WORK) as i64;
        self.counted = now;
    }

    /// The thread has slept until now.
    pub(crate) fn slept(&mut self, now: Nanos) {
        self.due = (self.due - (now - self.counted).0 as i64).max(-CREDIT);
        self.counted = now;
    }

    /// Whether it has to rest for [`REST`].
    pub(crate) fn is_due(&self) -> bool {
        self.due >= REST.0 as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Works all the time that it may; how much it has rested of a second.
    #[test]
    fn who_always_works_rests_for_more_than_a_twentieth_of_the_time() {
        let mut rest = Rest::new(Nanos(0));
        let (mut now, mut rested) = (Nanos(0), 0);
        while now < Nanos::from_secs(1) {
            now = now + Nanos(100_000);
            rest.worked(now);
            if rest.is_due() {
                now = now + REST;
                rest.slept(now);
                rested += REST.0;
            }
        }
        assert!((60_000_000..80_000_000).contains(&rested), "{rested}");
    }

    #[test]
    fn idle_time_counts_for_a_while() {
        let mut rest = Rest::new(Nanos(0));
        rest.slept(Nanos::from_secs(10));
        rest.worked(Nanos::from_secs(10) + Nanos::from_millis(200));
        assert!(!rest.is_due());
        rest.worked(Nanos::from_secs(10) + Nanos::from_millis(300));
        assert!(rest.is_due());
    }
}
