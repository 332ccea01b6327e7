//! How long a unit of the broker's work takes on this machine: what turns time into a
//! [`Budget`](punctual_broker::Budget).

use punctual_broker::Nanos;

/// Assumed at first, picoseconds.
const FIRST: u64 = 100_000;
/// What is learned stays between these: a slice that was interrupted by the system says nothing.
const RANGE: std::ops::RangeInclusive<u64> = 10_000..=2_000_000;
/// One slice counts for one in so many of what is known.
const MEMORY: u64 = 8;
/// Shorter slices are mostly the clock's.
const FEWEST: u64 = 32;

/// A moving average.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// Of a unit.
    picos: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self { picos: FIRST }
    }
}

impl Pace {
    /// How many units take that long.
    pub(crate) fn units(self, time: Nanos) -> u64 {
        (time.0 * 1000 / self.picos).max(1)
    }

    /// So many units took that long.
    pub(crate) fn learn(&mut self, units: u64, time: Nanos) {
        if units >= FEWEST {
            let seen = (time.0 * 1000 / units).clamp(*RANGE.start(), *RANGE.end());
            self.picos = (self.picos * (MEMORY - 1) + seen) / MEMORY;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_learned_approaches_what_is_seen_and_stays_in_range() {
        let mut pace = Pace::default();
        assert_eq!(pace.units(Nanos(100_000)), 1000);
        for _ in 0..100 {
            pace.learn(1000, Nanos(400_000));
        }
        assert!((248..=255).contains(&pace.units(Nanos(100_000))));
        // An interruption counts for little, and what is too short for nothing.
        pace.learn(1000, Nanos(1_000_000_000));
        assert!(pace.units(Nanos(100_000)) >= 120);
        let before = pace.units(Nanos(100_000));
        pace.learn(1, Nanos(1_000_000));
        assert_eq!(pace.units(Nanos(100_000)), before);
        assert_eq!(pace.units(Nanos(1)), 1);
    }
}
