//! When a machine did not run what was most urgent: a virtual machine whose host took a processor away,
//! firmware, an interrupt, or a kernel that finishes something first.
//!
//! Like Linux' `osnoise` and `hwnoise` tracers, a thread that nothing else on its core may hold up looks
//! at the clock again and again. What was timed meanwhile says nothing about the programs that were.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crate::sys;
use crate::{Error, Result};

/// How often the clock is looked at, ns.
const PERIOD: u64 = 250_000;
/// From this on a look that comes too late is a gap, ns.
const LATE: u64 = 100_000;
/// Priority of the watching threads under `SCHED_FIFO`: the highest.
const FIFO: u8 = 99;
/// Gaps that are kept of one core; further ones are counted.
const GAPS: usize = 100_000;

/// A time in which a core did not run its most urgent thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// When it did for the last time before, ns on `CLOCK_MONOTONIC`.
    pub from: u64,
    /// When it did again, ns.
    pub to: u64,
    /// How much of that was too long, ns.
    pub lost: u64,
}

/// Gaps of all cores that were watched.
#[derive(Clone, Debug, Default)]
pub struct Gaps {
    /// By their end.
    found: Vec<Gap>,
    /// Those that were not kept for want of room.
    further: u64,
}

impl Gaps {
    /// Their number.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.found.len() as u64 + self.further
    }

    /// How much was lost in the longest, ns.
    #[must_use]
    pub fn longest(&self) -> u64 {
        self.found.iter().map(|gap| gap.lost).max().unwrap_or(0)
    }

    /// Whether something that took from one instant to another, ns, met a gap. If there were more than
    /// are kept, later ones are not known.
    #[must_use]
    pub fn met(&self, from: u64, to: u64) -> bool {
        let first = self.found.partition_point(|gap| gap.to < from);
        self.found[first..].iter().any(|gap| gap.from <= to)
    }

    /// How much was lost, ns, in gaps that something met that took from one instant to another. What
    /// was lost on two cores at once counts once.
    #[must_use]
    pub fn lost(&self, from: u64, to: u64) -> u64 {
        let first = self.found.partition_point(|gap| gap.to < from);
        // Of gaps that overlap: the end of the last, and the most that one of them lost.
        let (mut sum, mut until, mut most) = (0, 0, 0);
        for gap in self.found[first..].iter().filter(|gap| gap.from <= to) {
            if gap.from > until {
                sum += most;
                most = 0;
            }
            until = until.max(gap.to);
            most = gap.lost.max(most);
        }
        sum + most
    }

    fn add(&mut self, other: Self) {
        self.found.extend(other.found);
        self.found.sort_unstable_by_key(|gap| gap.to);
        self.further += other.further;
    }
}

/// Threads that look for gaps.
#[derive(Debug)]
pub struct Watcher {
    ends: Arc<AtomicBool>,
    threads: Vec<JoinHandle<io::Result<Gaps>>>,
}

impl Watcher {
    /// Begins to watch these cores. Takes the right to use `SCHED_FIFO`.
    #[must_use]
    pub fn start(cores: &[usize]) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let threads = cores.iter().map(|core| {
            let (core, ends) = (*core, ends.clone());
            std::thread::spawn(move || watch(core, &ends))
        });
        let threads = threads.collect();
        Self { ends, threads }
    }

    /// Ends it.
    ///
    /// # Errors
    /// A core does not exist, or the right is missing.
    pub fn end(self) -> Result<Gaps> {
        self.ends.store(true, Ordering::Relaxed);
        let mut all = Gaps::default();
        for thread in self.threads {
            let ended = |_| io::Error::other("the thread ended");
            let watched = thread.join().map_err(ended).flatten();
            all.add(watched.map_err(Error::io("cannot watch for noise"))?);
        }
        Ok(all)
    }
}

fn watch(core: usize, ends: &AtomicBool) -> io::Result<Gaps> {
    sys::pin_to_core(core)?;
    sys::set_least_timer_slack();
    sys::set_fifo(FIFO)?;
    let mut gaps = Gaps {
        found: Vec::with_capacity(GAPS),
        further: 0,
    };
    let mut before = sys::now_ns();
    while !ends.load(Ordering::Relaxed) {
        let due = before + PERIOD;
        sys::sleep_until(due)?;
        let now = sys::now_ns();
        let lost = now.saturating_sub(due);
        if lost > LATE {
            match gaps.found.len() < GAPS {
                true => gaps.found.push(Gap {
                    from: before,
                    to: now,
                    lost,
                }),
                false => gaps.further += 1,
            }
        }
        before = now;
    }
    Ok(gaps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_took_place_during_a_gap_has_met_it() {
        let gap = |from, to| Gap {
            from,
            to,
            lost: to - from,
        };
        let mut gaps = Gaps::default();
        for found in [vec![gap(15, 55)], vec![gap(10, 20), gap(50, 60)]] {
            gaps.add(Gaps { found, further: 0 });
        }
        let met: Vec<_> = [(0, 9), (0, 10), (12, 13), (56, 70), (60, 61), (61, 70)]
            .map(|(from, to)| gaps.met(from, to))
            .into();
        assert_eq!(met, [false, true, true, true, true, false]);
        assert_eq!((gaps.count(), gaps.longest()), (3, 40));
        assert!(!Gaps::default().met(0, u64::MAX));
        // The gap of 40 overlaps both others.
        assert_eq!(gaps.lost(0, 100), 40);
        assert_eq!(gaps.lost(0, 10), 10);
        assert_eq!(gaps.lost(61, 100), 0);
    }
}
