//! What leaves by a link of a known rate.
//!
//! The link has a little to do ahead, so that it does not stand still until the shard wakes
//! up. Half of that is for what is as urgent as the most urgent of late: less urgent messages
//! leave it, so that there is room at once for the next urgent one.

use std::time::Duration;

use punctual_broker::{Level, Rank};
use punctual_udp::Pacer;

/// Bytes of a full frame on the wire.
const FRAME: usize = 1550;
/// Bytes that the link may have ahead: two full frames, for the time that waking up takes.
const BURST: usize = 2 * FRAME;
/// For so long room is kept for messages as urgent as one that was sent.
const LATELY: Duration = Duration::from_secs(10);

/// Lets datagrams go by the rate of a link and by what is in them.
#[derive(Debug)]
pub(super) struct Pace {
    pacer: Pacer,
    /// The most urgent level of those sent lately, and when that was.
    foremost: Option<(Level, Duration)>,
}

impl Pace {
    /// For a link of `rate` bits a second.
    pub(super) fn new(rate: u64) -> Self {
        Self {
            pacer: Pacer::new(rate, BURST),
            foremost: None,
        }
    }

    /// When a datagram may go in which this is the most urgent; `now` if at once.
    pub(super) fn next(&self, rank: Rank, now: Duration) -> Duration {
        let kept = match rank == Rank::CONTROL || self.is_foremost(rank.level(), now) {
            true => 0,
            false => FRAME,
        };
        self.pacer.next(now, kept)
    }

    /// Notes what was taken to be sent.
    pub(super) fn taken(&mut self, rank: Rank, now: Duration) {
        if rank != Rank::CONTROL && self.is_foremost(rank.level(), now) {
            self.foremost = Some((rank.level(), now));
        }
    }

    /// Notes that a datagram of `len` bytes was sent.
    pub(super) fn sent(&mut self, len: usize, ipv6: bool, now: Duration) {
        self.pacer.sent(len, ipv6, now);
    }

    /// Whether nothing more urgent was sent lately.
    fn is_foremost(&self, level: Level, now: Duration) -> bool {
        self.foremost
            .is_none_or(|(top, at)| level <= top || now.saturating_sub(at) > LATELY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use punctual_broker::{Class, Discipline, Nanos, Policy, Urgency};

    const RATE: u64 = 100_000_000;
    /// Bytes of a datagram whose frame takes 123 us at that rate.
    const FULL: usize = 1472;

    fn priority(value: u64) -> Rank {
        Rank {
            class: Class::Priority,
            key: value,
        }
    }

    const NORMAL: Rank = Rank {
        class: Class::Normal,
        key: 0,
    };

    /// Sends at once as often as that may be; returns how often that was.
    fn send(pace: &mut Pace, rank: Rank, now: Duration) -> usize {
        let mut count = 0;
        while pace.next(rank, now) == now {
            pace.taken(rank, now);
            pace.sent(FULL, false, now);
            count += 1;
        }
        count
    }

    #[test]
    fn what_is_alone_has_all_of_the_burst() {
        for rank in [NORMAL, priority(7)] {
            let mut pace = Pace::new(RATE);
            assert_eq!(send(&mut pace, rank, Duration::from_secs(1)), 3);
            assert_eq!(send(&mut pace, rank, Duration::from_secs(2)), 3);
        }
    }

    #[test]
    fn there_is_room_for_what_is_more_urgent() {
        for (urgent, others) in [(priority(1), priority(2)), (priority(9), NORMAL)] {
            let mut pace = Pace::new(RATE);
            let mut now = Duration::from_secs(1);
            pace.taken(urgent, now);
            pace.sent(FULL, false, now);
            for _ in 0..5 {
                // The others take what they may have, again and again.
                for _ in 0..20 {
                    now = pace.next(others, now);
                    send(&mut pace, others, now);
                }
                assert_eq!(pace.next(urgent, now), now);
                assert_eq!(pace.next(Rank::CONTROL, now), now);
                assert!(pace.next(others, now) > now);
                pace.taken(urgent, now);
                pace.sent(FULL, false, now);
            }
            // It does not come any more.
            now += LATELY + Duration::from_secs(1);
            assert_eq!(send(&mut pace, others, now), 3);
        }
    }

    #[test]
    fn control_packets_keep_no_room() {
        let mut pace = Pace::new(RATE);
        let now = Duration::from_secs(1);
        pace.taken(Rank::CONTROL, now);
        assert_eq!(send(&mut pace, NORMAL, now), 3);
    }

    #[test]
    fn deadlines_alone_are_one_level() {
        let urgency = |rt_priority, deadline| Urgency {
            rt_priority,
            deadline,
            ..Urgency::default()
        };
        let deadline = urgency(None, Some(Nanos::from_millis(5)));
        let edf = |at| Discipline::Edf.rank(&deadline, Nanos::from_millis(at));
        assert_eq!(edf(1).level(), edf(100).level());
        let fixed = |priority, at| {
            let stated = urgency(Some(priority), deadline.deadline);
            Discipline::FixedPriority.rank(&stated, Nanos::from_millis(at))
        };
        assert_eq!(fixed(6, 1).level(), fixed(6, 100).level());
        assert!(fixed(6, 100).level() < fixed(5, 1).level());
        assert!(fixed(0, 1).level() < priority(0).level());
        assert!(priority(u64::MAX).level() < NORMAL.level());
    }
}
