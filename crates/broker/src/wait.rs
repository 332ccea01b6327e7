//! Waiting times of messages: count, sum, maximum and a histogram.
//!
//! Eight buckets for each doubling, so a percentile is at most 12.5 % above
//! the true one. Fixed size, no allocation.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::Nanos;

/// Waiting times below 2^FIRST ns share buckets of equal width.
const FIRST: u32 = 7;
/// Times from 2^LAST ns (17 s) on are counted in the last bucket.
const LAST: u32 = 34;
/// Buckets for each doubling.
const SUB: usize = 8;
const BUCKETS: usize = SUB * (LAST - FIRST + 1) as usize;

/// Waiting times of messages.
#[derive(Debug, PartialEq, Eq)]
pub struct Wait {
    /// Number of messages.
    pub count: u64,
    /// Sum of their times in nanoseconds.
    pub sum: u64,
    /// Longest.
    pub max: Nanos,
    buckets: Box<[u32; BUCKETS]>,
}

impl Clone for Wait {
    fn clone(&self) -> Self {
        Self {
            buckets: self.buckets.clone(),
            ..*self
        }
    }

    /// Copies without allocation, for values that are copied repeatedly.
    fn clone_from(&mut self, other: &Self) {
        (self.count, self.sum, self.max) = (other.count, other.sum, other.max);
        *self.buckets = *other.buckets;
    }
}

impl Default for Wait {
    fn default() -> Self {
        Self {
            count: 0,
            sum: 0,
            max: Nanos(0),
            buckets: Box::new([0; BUCKETS]),
        }
    }
}

#[inline]
fn bucket(nanos: u64) -> usize {
    if nanos >> FIRST == 0 {
        return (nanos >> (FIRST - 3)) as usize;
    }
    let octave = nanos.ilog2();
    let sub = (nanos >> (octave - 3)) as usize & (SUB - 1);
    (SUB * (octave - FIRST + 1) as usize + sub).min(BUCKETS - 1)
}

/// Times in a bucket are below this, except for the last.
fn upper(bucket: usize) -> u64 {
    let (octave, sub) = ((bucket / SUB) as u32, (bucket % SUB) as u64);
    if octave == 0 {
        (sub + 1) << (FIRST - 3)
    } else {
        (SUB as u64 + sub + 1) << (octave + FIRST - 1 - 3)
    }
}

/// Waiting times that several threads record.
#[derive(Debug)]
pub(crate) struct SharedWait {
    sum: AtomicU64,
    max: AtomicU64,
    buckets: Box<[AtomicU64; BUCKETS]>,
}

impl Default for SharedWait {
    fn default() -> Self {
        Self {
            sum: AtomicU64::new(0),
            max: AtomicU64::new(0),
            buckets: Box::new([const { AtomicU64::new(0) }; BUCKETS]),
        }
    }
}

impl SharedWait {
    /// Counts a time.
    #[inline]
    pub(crate) fn record(&self, wait: Nanos) {
        self.sum.fetch_add(wait.0, Ordering::Relaxed);
        self.max.fetch_max(wait.0, Ordering::Relaxed);
        self.buckets[bucket(wait.0)].fetch_add(1, Ordering::Relaxed);
    }

    /// The recorded times; concurrent records may be included in part.
    pub(crate) fn read(&self) -> Wait {
        let mut wait = Wait {
            sum: self.sum.load(Ordering::Relaxed),
            max: Nanos(self.max.load(Ordering::Relaxed)),
            ..Wait::default()
        };
        for (own, shared) in wait.buckets.iter_mut().zip(self.buckets.iter()) {
            let count = shared.load(Ordering::Relaxed);
            wait.count += count;
            *own = u32::try_from(count).unwrap_or(u32::MAX);
        }
        wait
    }
}

impl Wait {
    /// Counts a time.
    #[inline]
    pub fn record(&mut self, wait: Nanos) {
        self.count += 1;
        self.sum = self.sum.saturating_add(wait.0);
        self.max = self.max.max(wait);
        let bucket = &mut self.buckets[bucket(wait.0)];
        *bucket = bucket.saturating_add(1);
    }

    /// Adds the times of another histogram.
    pub fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.sum = self.sum.saturating_add(other.sum);
        self.max = self.max.max(other.max);
        for (own, other) in self.buckets.iter_mut().zip(other.buckets.iter()) {
            *own = own.saturating_add(*other);
        }
    }

    /// Mean; 0 without messages.
    pub fn mean(&self) -> Nanos {
        Nanos(self.sum.checked_div(self.count).unwrap_or(0))
    }

    /// A time that `per_mille` thousandths of the messages did not exceed: not
    /// below the true one, and at most an eighth above it.
    pub fn percentile(&self, per_mille: u64) -> Nanos {
        let mut left = (self.count * per_mille).div_ceil(1000).max(1);
        for (at, count) in self.buckets.iter().enumerate() {
            let count = u64::from(*count);
            if count >= left && at < BUCKETS - 1 {
                return Nanos(upper(at)).min(self.max);
            }
            left = left.saturating_sub(count);
        }
        self.max
    }

    /// Messages that waited for less than a bound, for ascending bounds.
    pub fn cumulative(&self) -> impl Iterator<Item = (Nanos, u64)> {
        let mut below = 0;
        let ends = self.buckets.chunks(SUB).enumerate();
        ends.map(move |(octave, counts)| {
            below += counts.iter().map(|count| u64::from(*count)).sum::<u64>();
            (Nanos(upper(octave * SUB + SUB - 1)), below)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn percentiles_are_at_most_an_eighth_too_high(
            mut times in proptest::collection::vec(0..1u64 << 33, 1..200),
            per_mille in 1..=1000u64,
        ) {
            let mut wait = Wait::default();
            let shared = SharedWait::default();
            for time in &times {
                wait.record(Nanos(*time));
                shared.record(Nanos(*time));
            }
            prop_assert_eq!(&shared.read(), &wait);
            times.sort_unstable();
            let rank = (times.len() as u64 * per_mille).div_ceil(1000) as usize;
            let exact = times[rank - 1];
            let found = wait.percentile(per_mille).0;
            prop_assert!(exact <= found && found <= exact + exact / 8 + 16, "{exact} {found}");
            prop_assert_eq!(wait.mean().0, times.iter().sum::<u64>() / times.len() as u64);
            let all = wait.cumulative().last().map(|(_, count)| count);
            prop_assert_eq!(all, Some(times.len() as u64));
        }

        #[test]
        fn buckets_hold_what_they_say(nanos in 0..1u64 << 34) {
            let at = bucket(nanos);
            prop_assert!(nanos < upper(at));
            prop_assert!(at == 0 || upper(at - 1) <= nanos);
        }
    }

    #[test]
    fn very_long_times_are_counted() {
        let mut wait = Wait::default();
        wait.record(Nanos::MAX);
        assert_eq!(wait.percentile(500), Nanos::MAX);
        assert_eq!(wait.cumulative().last().map(|(_, n)| n), Some(1));
    }
}
