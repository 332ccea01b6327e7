//! Round-trip time and retransmission timeout, as in RFC 6298.
//!
//! The constants differ from those of the RFC, which has bulk over the Internet
//! in mind: the timeout begins at 200 ms instead of 1 s, goes down to 10 ms,
//! because a repetition that comes after the deadline is of no use, and up to
//! 4 s. Backoff is exponential as there, so that a path that is slower than
//! this is not flooded.

use std::time::Duration;

/// Timeout before anything was measured.
const INITIAL: Duration = Duration::from_millis(200);
const MINIMUM: Duration = Duration::from_millis(10);
/// The longest pause between two transmissions. [`crate::REPEAT_WINDOW`] has to
/// be many times as long, so that no run of losses makes a repetition look
/// new.
const MAXIMUM: Duration = Duration::from_secs(4);
/// Doublings after which the pause is the longest in any case.
const DOUBLINGS: u32 = 10;

/// Estimates of one path.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rtt {
    smoothed: Option<Duration>,
    variation: Duration,
}

impl Rtt {
    /// Takes in a measurement of something that was sent once (Karn).
    pub(crate) fn sample(&mut self, rtt: Duration) {
        match self.smoothed {
            None => {
                self.smoothed = Some(rtt);
                self.variation = rtt / 2;
            }
            Some(smoothed) => {
                let difference = smoothed.abs_diff(rtt);
                self.variation = (self.variation * 3 + difference) / 4;
                self.smoothed = Some((smoothed * 7 + rtt) / 8);
            }
        }
    }

    /// Smoothed round-trip time, once something was measured.
    pub(crate) fn smoothed(&self) -> Option<Duration> {
        self.smoothed
    }

    /// How long to wait for an answer after the `n`-th transmission, from 1.
    pub(crate) fn timeout(&self, n: u32) -> Duration {
        let base = match self.smoothed {
            None => INITIAL,
            Some(smoothed) => (smoothed + self.variation * 4).max(MINIMUM),
        };
        let doublings = n.saturating_sub(1).min(DOUBLINGS);
        (base * (1 << doublings)).min(MAXIMUM)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_the_formulas() {
        let ms = Duration::from_millis;
        let mut rtt = Rtt::default();
        assert_eq!(rtt.timeout(1), INITIAL);
        rtt.sample(ms(100));
        assert_eq!(rtt.smoothed(), Some(ms(100)));
        assert_eq!(rtt.timeout(1), ms(300), "SRTT + 4 * R/2");
        rtt.sample(ms(180));
        assert_eq!(rtt.smoothed(), Some(ms(110)));
        // RTTVAR = 3/4 * 50 + 1/4 * 80 = 57.5
        assert_eq!(rtt.timeout(1), ms(340));
    }

    #[test]
    fn backs_off_to_a_bound() {
        let mut rtt = Rtt::default();
        rtt.sample(Duration::from_micros(100));
        assert_eq!(rtt.timeout(1), MINIMUM);
        assert_eq!(rtt.timeout(2), MINIMUM * 2);
        assert_eq!(rtt.timeout(5), MINIMUM * 16);
        assert_eq!(rtt.timeout(60), MAXIMUM);
        assert_eq!(Rtt::default().timeout(u32::MAX), MAXIMUM);
    }
}
