//! Policing: whether publishers observe their declared period and size.
//!
//! The virtual scheduling form of the generic cell rate algorithm (ITU-T I.371,
//! annex A): a [`Meter`] keeps the nominal time of the next message, and a
//! message conforms that comes no more than the grant's tolerance before it.
//! What arrives a period apart, delayed by no more than the tolerance, always
//! conforms; more than that never gets through. Times are nanoseconds of any
//! clock that never goes back.

use crate::answer::Grant;

/// The meter of one flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Meter {
    /// Nominal time of the next message, at the earliest.
    next_ns: u64,
}

/// Whether a message is as its flow declared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conformity {
    /// It is.
    Conforms,
    /// Its payload is larger than declared.
    TooLarge,
    /// It is too early, and would conform at this time, ns.
    TooEarly(u64),
}

impl Meter {
    /// Judges a message with `payload` bytes that arrives now.
    pub fn judge(&self, grant: &Grant, payload: u32, now_ns: u64) -> Conformity {
        if grant.max_payload.is_some_and(|most| payload > most) {
            return Conformity::TooLarge;
        }
        let earliest = self.next_ns.saturating_sub(grant.tolerance_ns);
        match now_ns < earliest {
            true => Conformity::TooEarly(earliest),
            false => Conformity::Conforms,
        }
    }

    /// Counts a packet of `packet` bytes that conforms.
    pub fn spend(&mut self, grant: &Grant, packet: usize, now_ns: u64) {
        let by_rate = grant.bandwidth.map_or(0, |rate| {
            let bits = packet as u128 * 8 * 1_000_000_000;
            u64::try_from(bits / u128::from(rate.max(1))).unwrap_or(u64::MAX)
        });
        let apart = grant.period_ns.max(by_rate);
        self.next_ns = self.next_ns.max(now_ns).saturating_add(apart);
    }

    /// The flow has another grant now: if its period is shorter, it counts from the
    /// last message on, which has arrived, however early it was for the old one.
    pub fn change(&mut self, from: &Grant, to: &Grant, now_ns: u64) {
        let shorter = from.period_ns.saturating_sub(to.period_ns);
        if shorter > 0 {
            let last = now_ns.saturating_add(to.period_ns);
            self.next_ns = self.next_ns.saturating_sub(shorter).min(last);
        }
    }
}

/// Bytes of a message that bear on its frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MessageSize {
    /// Payload.
    pub payload: u32,
    /// Properties that are forwarded.
    pub properties: u32,
}

impl MessageSize {
    /// The larger of both, each by itself.
    pub fn max(self, other: Self) -> Self {
        Self {
            payload: self.payload.max(other.payload),
            properties: self.properties.max(other.properties),
        }
    }

    /// Whether a flow that was decided about with these sizes is to be decided
    /// anew for a `message`: it is larger, and not larger than the flow
    /// `declared` (then it is a violation).
    pub fn is_outgrown_by(self, message: Self, declared: Option<u32>) -> bool {
        message.properties > self.properties
            || message.payload > self.payload && declared.is_none_or(|most| message.payload <= most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn grant(period_ns: u64, tolerance_ns: u64) -> Grant {
        Grant {
            priority: 7,
            period_ns,
            tolerance_ns,
            bandwidth: None,
            max_payload: Some(10),
            max_packet: 100,
        }
    }

    fn offer(meter: &mut Meter, grant: &Grant, now_ns: u64) -> bool {
        let conforms = meter.judge(grant, 1, now_ns) == Conformity::Conforms;
        if conforms {
            meter.spend(grant, 50, now_ns);
        }
        conforms
    }

    #[test]
    fn a_burst_is_as_large_as_the_tolerance_allows() {
        let (mut meter, strict) = (Meter::default(), grant(100, 0));
        assert!(offer(&mut meter, &strict, 1000));
        assert!(!offer(&mut meter, &strict, 1099));
        assert!(offer(&mut meter, &strict, 1100));
        // 1 + ceil(250 / 100) less one: the third period is not complete.
        let (mut meter, loose) = (Meter::default(), grant(100, 250));
        let burst = (0..10).filter(|_| offer(&mut meter, &loose, 1000)).count();
        assert_eq!(burst, 3);
    }

    #[test]
    fn a_shorter_period_counts_from_the_last_message() {
        let (mut meter, slow, fast) = (Meter::default(), grant(100, 0), grant(40, 0));
        assert!(offer(&mut meter, &slow, 1000));
        meter.change(&slow, &fast, 1010);
        assert!(!offer(&mut meter, &fast, 1039));
        assert!(offer(&mut meter, &fast, 1040));
        meter.change(&fast, &slow, 1040);
        assert!(offer(&mut meter, &slow, 1080));
        assert!(!offer(&mut meter, &slow, 1179));
    }

    /// A change is rejected at first: what was admitted before takes messages early until the tolerance
    /// is used up, and they do not count against what is admitted later.
    #[test]
    fn who_sends_as_is_admitted_since_is_not_too_early_for_what_was_before() {
        let (mut meter, slow, fast) = (Meter::default(), grant(100, 90), grant(20, 10));
        let times = (1000..=1120).step_by(20);
        let conform = times.filter(|at| offer(&mut meter, &slow, *at)).count();
        assert_eq!(conform, 3);
        meter.change(&slow, &fast, 1130);
        assert!(
            (1140..2000)
                .step_by(20)
                .all(|at| offer(&mut meter, &fast, at))
        );
        // It has no more than is its own.
        assert!(!offer(&mut meter, &fast, 1981));
    }

    #[test]
    fn the_rate_counts_bytes() {
        let mut meter = Meter::default();
        let grant = Grant {
            bandwidth: Some(400_000_000),
            ..grant(1, 0)
        };
        assert!(offer(&mut meter, &grant, 1000));
        // 50 bytes take 1000 ns.
        assert!(!offer(&mut meter, &grant, 1999));
        assert!(offer(&mut meter, &grant, 2000));
    }

    #[test]
    fn larger_than_declared_is_a_violation_and_otherwise_asked_about() {
        let judged = Meter::default().judge(&grant(100, 0), 11, 0);
        assert_eq!(judged, Conformity::TooLarge);
        let size = |payload, properties| MessageSize {
            payload,
            properties,
        };
        let known = size(5, 3);
        assert!(known.is_outgrown_by(size(6, 3), None));
        assert!(known.is_outgrown_by(size(5, 4), None));
        assert!(!known.is_outgrown_by(size(5, 3), None));
        assert!(known.is_outgrown_by(size(8, 3), Some(8)));
        assert!(!known.is_outgrown_by(size(9, 3), Some(8)));
        assert_eq!(known.max(size(1, 7)), size(5, 7));
    }

    proptest! {
        /// Whoever sends a period apart, with no more jitter than allowed for,
        /// always conforms; and nobody gets more through than that.
        #[test]
        fn conforming_publishers_are_never_disturbed(
            period in 1..1000_u64,
            tolerance in 0..3000_u64,
            delays in proptest::collection::vec(0..=1000_u64, 1..50),
        ) {
            let grant = grant(period, tolerance);
            let mut honest = Meter::default();
            for (n, delay) in delays.iter().enumerate() {
                let nominal = 10_000 + n as u64 * period;
                let before = (0..n).map(|m| 10_000 + m as u64 * period + delays[m] * tolerance / 1000);
                // In order: no message overtakes the one before.
                let arrival = before.max().unwrap_or(0).max(nominal + delay * tolerance / 1000);
                prop_assert!(offer(&mut honest, &grant, arrival));
            }
            let mut greedy = Meter::default();
            let window = 5 * period;
            let through = (0..window).filter(|at| offer(&mut greedy, &grant, 10_000 + at)).count();
            prop_assert!(through as u64 <= (window + tolerance).div_ceil(period));
        }
    }
}
