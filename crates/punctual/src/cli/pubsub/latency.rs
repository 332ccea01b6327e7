//! `--latency`: the time from publishing to receipt.
//!
//! `pub --latency` puts the time of sending into a user property; `sub
//! --latency` subtracts it from the time of receipt. Both read CLOCK_REALTIME,
//! so both ends must share a clock, or have theirs synchronised much better
//! than the times that are to be measured.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use hdrhistogram::Histogram;
use punctual_client::{Delivery, Message, RealTimeProperties as _};

use super::sequences::Sequences;

/// The user property: nanoseconds since 1970 in decimal digits.
pub(super) const PROPERTY: &str = "punctual-time";

/// Longest latency told apart from longer ones, in nanoseconds: an hour.
const LONGEST: u64 = 3_600_000_000_000;

/// Significant digits of what is printed.
const DIGITS: u8 = 3;

/// CLOCK_REALTIME in nanoseconds since 1970; 0 before.
pub(super) fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}

/// The latencies seen.
pub(super) struct Latencies {
    histogram: Histogram<u64>,
    /// Messages without a time.
    without: u64,
    /// Messages from the future: the clocks differ.
    early: u64,
    /// Messages with a deadline, and those that came after it.
    deadlines: u64,
    late: u64,
    /// Of `pub --sequence`.
    sequences: Sequences,
}

impl Latencies {
    pub(super) fn new() -> Result<Self, String> {
        let histogram = Histogram::new_with_bounds(1, LONGEST, DIGITS);
        Ok(Self {
            histogram: histogram.map_err(|error| error.to_string())?,
            without: 0,
            early: 0,
            deadlines: 0,
            late: 0,
            sequences: Sequences::default(),
        })
    }

    /// Counts a message that was received at `now`.
    pub(super) fn record(&mut self, delivery: &Delivery, now: u64) {
        if let Some(stamp) = delivery.sequence() {
            self.sequences.record(&delivery.message.topic, stamp);
        }
        match sent_at(&delivery.message) {
            None => self.without += 1,
            Some(sent) if sent > now => self.early += 1,
            Some(sent) => {
                self.histogram.saturating_record((now - sent).max(1));
                let requirements = delivery.message.properties.requirements();
                if let Some(deadline) = requirements.ok().and_then(|r| r.deadline) {
                    self.deadlines += 1;
                    self.late += u64::from(u128::from(now - sent) > deadline.as_nanos());
                }
            }
        }
    }

    /// All that is known so far, in one line.
    pub(super) fn line(&self) -> String {
        let mut line = format!("{} messages", self.histogram.len());
        if !self.histogram.is_empty() {
            for (name, quantile) in [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)] {
                let value = self.histogram.value_at_quantile(quantile);
                let _ = write!(line, "  {name} {}", duration(value));
            }
            let _ = write!(line, "  max {}", duration(self.histogram.max()));
        }
        if self.deadlines > 0 {
            let _ = write!(line, "  late {} of {}", self.late, self.deadlines);
        }
        if let Some(report) = self.sequences.report() {
            let _ = write!(
                line,
                "  lost {}  reordered {}  doubled {}",
                report.lost, report.reordered, report.doubled
            );
        }
        if self.without > 0 {
            let _ = write!(line, "  without time {}", self.without);
        }
        if self.early > 0 {
            let _ = write!(line, "  from the future {}: the clocks differ", self.early);
        }
        line
    }
}

/// Nanoseconds from sending to `now`; `None` without a time, or one that is to
/// come.
pub(super) fn elapsed(message: &Message, now: u64) -> Option<u64> {
    now.checked_sub(sent_at(message)?)
}

fn sent_at(message: &Message) -> Option<u64> {
    let properties = message.properties.as_properties();
    let (_, value) = properties.user().find(|(name, _)| *name == PROPERTY)?;
    value.parse().ok()
}

/// A duration with a unit and the digits the histogram can vouch for.
fn duration(nanos: u64) -> String {
    let text = match nanos {
        0..1_000 => return format!("{nanos} ns"),
        1_000..1_000_000 => (nanos as f64 / 1e3, "us"),
        1_000_000..1_000_000_000 => (nanos as f64 / 1e6, "ms"),
        _ => (Duration::from_nanos(nanos).as_secs_f64(), "s"),
    };
    let (value, unit) = text;
    let decimals = match value {
        ..10.0 => 2,
        ..100.0 => 1,
        _ => 0,
    };
    format!("{value:.decimals$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use punctual_client::Stamp;

    fn sent(property: Option<&str>) -> Delivery {
        let mut message = Message::new("t", "");
        if let Some(value) = property {
            message.properties.push_user(PROPERTY, value).unwrap();
        }
        Delivery {
            message,
            dup: false,
            packet_id: 0,
            received: Duration::ZERO,
        }
    }

    #[test]
    fn sequences_are_followed() {
        let mut latencies = Latencies::new().unwrap();
        for number in [0, 1, 4, 3, 4] {
            let mut delivery = sent(Some("1000"));
            let stamp = Stamp { source: 7, number };
            delivery.message = delivery.message.sequence(stamp);
            latencies.record(&delivery, 2_000);
        }
        let line = latencies.line();
        let end = "  lost 1  reordered 1  doubled 1";
        assert!(line.ends_with(end), "{line}");
    }

    #[test]
    fn deadlines_are_counted() {
        let mut latencies = Latencies::new().unwrap();
        let mut delivery = sent(Some("1000"));
        delivery.message = delivery.message.deadline(Duration::from_micros(5));
        latencies.record(&delivery, 1_000 + 5_000);
        latencies.record(&delivery, 1_000 + 5_001);
        latencies.record(&sent(Some("1000")), 1_000 + 9_000);
        let line = latencies.line();
        assert!(line.ends_with("  late 1 of 2"), "{line}");
    }

    #[test]
    fn latencies_are_counted() {
        let mut latencies = Latencies::new().unwrap();
        assert_eq!(latencies.line(), "0 messages");
        for i in 0..98 {
            latencies.record(&sent(Some("1000")), 1_000 + 10_000 + i);
        }
        latencies.record(&sent(Some("1000")), 1_000 + 2_000_000);
        latencies.record(&sent(Some("1000")), 1_000 + 3_000_000_000);
        latencies.record(&sent(None), 5);
        latencies.record(&sent(Some("x")), 5);
        latencies.record(&sent(Some("1000")), 999);
        assert_eq!(
            latencies.line(),
            "100 messages  p50 10.1 us  p99 2.00 ms  p99.9 3.00 s  max 3.00 s  \
             without time 2  from the future 1: the clocks differ"
        );
    }
}
