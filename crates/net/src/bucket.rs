//! The rate of new connections.

use std::time::Duration;

use punctual_broker::Nanos;

/// A token bucket that holds one second's worth.
#[derive(Debug, Default)]
pub(crate) struct Bucket {
    tokens: f64,
    last: Nanos,
}

impl Bucket {
    /// How long the next one has to wait, if it has to.
    pub(crate) fn wait(&mut self, rate: u32, now: Nanos) -> Option<Duration> {
        if rate == 0 {
            self.tokens = 1.0;
            return None;
        }
        let rate = f64::from(rate);
        let elapsed = (now - self.last).0 as f64 / 1e9;
        self.tokens = (self.tokens + elapsed * rate).min(rate);
        self.last = now;
        (self.tokens < 1.0).then(|| Duration::from_secs_f64((1.0 - self.tokens) / rate))
    }

    /// One passes.
    pub(crate) fn take(&mut self) {
        self.tokens -= 1.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bucket_holds_one_second() {
        let mut bucket = Bucket::default();
        let mut now = Nanos::from_secs(100);
        let mut taken = 0;
        while bucket.wait(10, now).is_none() {
            bucket.take();
            taken += 1;
        }
        assert_eq!(taken, 10);
        let wait = bucket.wait(10, now).unwrap();
        assert!(wait <= Duration::from_millis(101), "{wait:?}");
        now = now + Nanos(wait.as_nanos() as u64 + 1_000_000);
        assert_eq!(bucket.wait(10, now), None);
        assert_eq!(bucket.wait(0, now), None);
    }
}
