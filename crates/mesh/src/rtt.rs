//! Cost of a link: its smoothed round-trip time, with hysteresis, so that the tree does not follow noise.
//!
//! Smoothing is that of RFC 6298 (an eighth of each sample, and a quarter of each deviation). The time
//! that the tree uses changes only when the smoothed value has left a band around it. The band is at
//! least as wide as the mean deviation of samples, which on a busy machine is many times the value.

use punctual_model::Nanos;

/// Number of samples before the first cost is used.
const FIRST: u32 = 3;

/// Round-trip time of one link.
#[derive(Debug, Clone, Default)]
pub struct Rtt {
    smoothed: Option<u64>,
    /// Mean deviation of samples from that.
    deviation: u64,
    samples: u32,
    used: Option<u64>,
}

impl Rtt {
    /// Adds a sample. Returns whether [`Self::used`] changed: after the first three samples, and when the
    /// smoothed time leaves the band around it, of `per_cent` or of the mean deviation, whichever is
    /// wider.
    pub fn sample(&mut self, rtt: Nanos, per_cent: u32) -> bool {
        if let (Some(before), true) = (self.smoothed, self.samples >= FIRST) {
            let deviation = before.abs_diff(rtt.0);
            self.deviation = self.deviation - self.deviation / 4 + deviation / 4;
        }
        let smoothed = match self.smoothed {
            None => rtt.0,
            // The first samples include connecting and starting: the least is the most accurate.
            Some(before) if self.samples < FIRST => before.min(rtt.0),
            Some(before) => before - before / 8 + rtt.0 / 8,
        };
        self.smoothed = Some(smoothed);
        self.samples = self.samples.saturating_add(1);
        if self.samples < FIRST {
            return false;
        }
        let outside = self.used.is_none_or(|used| {
            let band = used / 100 * u64::from(per_cent);
            smoothed.abs_diff(used) > band.max(self.deviation)
        });
        if outside {
            self.used = Some(smoothed);
        }
        outside
    }

    /// Smoothed round-trip time, if there was a sample.
    pub fn smoothed(&self) -> Option<Nanos> {
        self.smoothed.map(Nanos)
    }

    /// The round-trip time for [`cost`]; `None` before the third sample.
    pub fn used(&self) -> Option<Nanos> {
        self.used.map(Nanos)
    }
}

/// Cost of a link in microseconds, from 1 to [`MAX_COST`]: the round-trip time times the operator's
/// `weight` (clamped to 0.001 to 1000; below 1 attracts traffic), plus `hop` for the broker at its end.
pub fn cost(rtt: Nanos, weight: f64, hop: Nanos) -> u64 {
    let micros = (rtt.0 as f64 / 1e3 * weight.clamp(1e-3, 1e3)) as u64;
    micros.saturating_add(hop.0 / 1000).clamp(1, MAX_COST)
}

/// The highest cost of a link in microseconds: a bit more than an hour.
pub const MAX_COST: u64 = 1 << 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_does_not_move_what_is_used() {
        let mut rtt = Rtt::default();
        let mut changes = 0;
        for i in 0..1000u64 {
            changes += u32::from(rtt.sample(Nanos(1_000_000 + i * 7919 % 400 * 1000), 25));
        }
        assert_eq!(changes, 1);
        assert_eq!(rtt.used(), Some(Nanos(1_000_000)));
        // A way that became slower for good is noticed.
        for _ in 0..50 {
            rtt.sample(Nanos(5_000_000), 25);
        }
        assert!(rtt.used().is_some_and(|used| used.0 > 3_900_000));
        assert!(rtt.smoothed().is_some_and(|s| s.0 > 4_900_000));
    }

    #[test]
    fn the_noise_of_a_busy_machine_moves_nothing() {
        let mut rtt = Rtt::default();
        let mut changes = 0;
        for i in 0..1000u64 {
            // A thread that waits for its turn now and then, for up to a fifth of a second.
            let waits = i % 3 == 2 && i > 5;
            let extra = if waits { i * 7919 % 200 * 1_000_000 } else { 0 };
            changes += u32::from(rtt.sample(Nanos(200_000 + extra), 25));
        }
        assert!(changes <= 3, "{changes}");
        // When it is quiet again, that is noticed.
        for _ in 0..100 {
            rtt.sample(Nanos(200_000), 25);
        }
        assert!(rtt.used().is_some_and(|used| used.0 < 300_000));
    }

    #[test]
    fn the_first_samples_count_for_little() {
        let mut rtt = Rtt::default();
        assert!(!rtt.sample(Nanos(90_000_000), 25));
        assert!(!rtt.sample(Nanos(2_000_000), 25));
        assert!(rtt.sample(Nanos(3_000_000), 25));
        assert_eq!(rtt.used(), Some(Nanos(2_000_000)));
    }

    #[test]
    fn costs_are_positive_and_bounded() {
        assert_eq!(cost(Nanos(0), 1.0, Nanos(0)), 1);
        assert_eq!(cost(Nanos::MAX, 1.0, Nanos::MAX), MAX_COST);
        assert_eq!(cost(Nanos(1_800_000), 1.0, Nanos(100_000)), 1900);
        assert_eq!(cost(Nanos(1_800_000), 0.5, Nanos(100_000)), 1000);
    }
}
