//! Keeps a sender at the rate of its link, so that queues build where they are
//! ordered by urgency and not below.
//!
//! A token bucket in time: what was sent is known by when the link is done
//! with it. The bucket holds one burst, which has to cover the time from
//! waking up to sending.

use std::time::Duration;

/// Bytes that Ethernet, IPv4 and UDP add to a datagram on the wire: preamble,
/// header, checksum and gap of a frame (38), IP (20) and UDP (8).
const OVERHEAD_V4: usize = 66;
/// The same with IPv6.
const OVERHEAD_V6: usize = 86;

/// Paces datagrams to a link's rate.
#[derive(Debug, Clone)]
pub struct Pacer {
    /// Nanoseconds that one byte takes on the link, times 2^16.
    byte_time: u64,
    burst: Duration,
    /// When the link is done with what was sent.
    busy_until: Duration,
}

impl Pacer {
    /// A pacer for a link of `rate` bits a second (at least 1), that may send
    /// `burst` bytes at once.
    pub fn new(rate: u64, burst: usize) -> Self {
        // Rounded up, here and below: rather slower than faster.
        let byte_time = (u128::from(8_000_000_000u64) << 16).div_ceil(u128::from(rate.max(1)));
        let mut pacer = Self {
            byte_time: u64::try_from(byte_time).unwrap_or(u64::MAX),
            burst: Duration::ZERO,
            busy_until: Duration::ZERO,
        };
        pacer.burst = pacer.time(burst);
        pacer
    }

    fn time(&self, bytes: usize) -> Duration {
        let nanos = (u128::from(self.byte_time) * bytes as u128).div_ceil(1 << 16);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// When the next datagram may be sent, `now` if at once, so that before it `kept` bytes
    /// of the burst are left for others.
    #[inline]
    pub fn next(&self, now: Duration, kept: usize) -> Duration {
        let burst = self.burst.saturating_sub(self.time(kept));
        now.max(self.busy_until.saturating_sub(burst))
    }

    /// Notes that a datagram of `len` bytes was sent.
    pub fn sent(&mut self, len: usize, ipv6: bool, now: Duration) {
        let overhead = if ipv6 { OVERHEAD_V6 } else { OVERHEAD_V4 };
        self.busy_until = self.busy_until.max(now) + self.time(len + overhead);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Over any time no more is sent than the link carries in it and what is left of one
        /// burst, and a datagram; and the link is kept busy.
        #[test]
        fn keeps_the_rate(
            rate in 1_000_000..10_000_000_000u64,
            sizes in proptest::collection::vec(20..1472usize, 2..200),
            delays in proptest::collection::vec(0..20_000u64, 200),
            kept in 0..4000usize,
        ) {
            let burst = 3000;
            let mut pacer = Pacer::new(rate, burst);
            let mut now = Duration::from_secs(1);
            let start = now;
            let mut bytes = 0;
            for (size, delay) in sizes.iter().zip(delays) {
                // The thread wakes up a little late.
                now = pacer.next(now, kept) + Duration::from_nanos(delay);
                prop_assert_eq!(pacer.next(now, kept), now);
                pacer.sent(*size, false, now);
                bytes += size + OVERHEAD_V4;
                let carried = (now - start).as_nanos() * u128::from(rate) / 8_000_000_000;
                prop_assert!(bytes as u128 <= carried +
                    (burst.saturating_sub(kept) + 1472 + 2 * OVERHEAD_V4) as u128 + 3);
            }
        }
    }

    #[test]
    fn a_full_frame_at_100_mbit() {
        let mut pacer = Pacer::new(100_000_000, 0);
        let now = Duration::from_secs(1);
        pacer.sent(1472, false, now);
        // 1538 bytes of 80 ns.
        assert_eq!(pacer.next(now, 0), now + Duration::from_nanos(123_040));
        assert_eq!(Pacer::new(0, 0).next(now, 0), now);
    }
}
