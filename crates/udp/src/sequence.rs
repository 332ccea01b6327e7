//! Numbers by which a receiver knows what it has missed.
//!
//! QoS 0 over UDP may be lost, overtaken or doubled. A publisher that wants its
//! receivers to know numbers the messages of each topic and says so in the
//! user property `rt-sequence`: `SOURCE/NUMBER`, where SOURCE is drawn at
//! random when the publisher starts and NUMBER counts from 0. Brokers forward
//! it unchanged; a receiver keeps one [`SequenceTracker`] for each topic and
//! source.

use std::fmt;

/// How far behind the newest number a message may be and still be distinguished from a duplicate.
const WINDOW: u64 = 128;

/// The value of `rt-sequence`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stamp {
    /// Drawn at random when the publisher starts.
    pub source: u32,
    /// Counts the messages of one topic, from 0.
    pub number: u64,
}

impl Stamp {
    /// Name of the user property.
    pub const KEY: &'static str = "rt-sequence";

    /// Reads a value; `None` if it is none.
    pub fn parse(value: &str) -> Option<Self> {
        let (source, number) = value.split_once('/')?;
        let digits = |text: &str| text.bytes().all(|b| b.is_ascii_hexdigit());
        if source.len() > 8 || !digits(source) || !number.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        Some(Self {
            source: u32::from_str_radix(source, 16).ok()?,
            number: number.parse().ok()?,
        })
    }
}

/// As it travels: eight hexadecimal digits, a slash, a decimal number.
impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}/{}", self.source, self.number)
    }
}

/// What has become of one source's messages so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SequenceReport {
    /// Different messages received.
    pub received: u64,
    /// Messages that are missing. One that comes late is taken back from
    /// these.
    pub lost: u64,
    /// Messages that came after one that was sent later.
    pub reordered: u64,
    /// Duplicate messages, and messages so late that they cannot be distinguished from duplicates.
    pub doubled: u64,
}

/// Follows the numbers of one source. The first one seen counts as the
/// beginning: what was published before the subscription is not missed.
#[derive(Debug, Clone, Default)]
pub struct SequenceTracker {
    /// The first number, the highest one, and which of the 128 up to it came
    /// (bit `n`: highest - n).
    state: Option<(u64, u64, u128)>,
    report: SequenceReport,
}

impl SequenceTracker {
    /// Takes in the number of a message: true if it is new.
    pub fn receive(&mut self, number: u64) -> bool {
        let Some((first, highest, seen)) = &mut self.state else {
            self.state = Some((number, number, 1));
            self.report.received = 1;
            return true;
        };
        if number > *highest {
            let step = number - *highest;
            *seen = if step < WINDOW { *seen << step | 1 } else { 1 };
            *highest = number;
            self.report.lost += step - 1;
            self.report.received += 1;
            return true;
        }
        let age = *highest - number;
        if age >= WINDOW || *seen >> age & 1 == 1 {
            self.report.doubled += 1;
            return false;
        }
        *seen |= 1 << age;
        self.report.received += 1;
        self.report.reordered += 1;
        // Before the first one that came, nothing counts as lost.
        if number > *first {
            self.report.lost -= 1;
        }
        true
    }

    /// What has become of the messages.
    pub fn report(&self) -> SequenceReport {
        self.report
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    proptest! {
        /// Against a plain model: within the window, everything is exact.
        #[test]
        fn agrees_with_a_model(numbers in proptest::collection::vec(1000..1100u64, 1..300)) {
            let mut tracker = SequenceTracker::default();
            let mut seen = HashSet::new();
            let (mut reordered, mut doubled) = (0, 0);
            for (n, number) in numbers.iter().enumerate() {
                let new = seen.insert(*number);
                prop_assert_eq!(tracker.receive(*number), new);
                doubled += u64::from(!new);
                let highest = numbers[..n].iter().max();
                reordered += u64::from(new && highest.is_some_and(|h| h > number));
            }
            let first = numbers[0];
            let highest = *numbers.iter().max().unwrap();
            let came = seen.iter().filter(|n| **n >= first).count() as u64;
            prop_assert_eq!(
                tracker.report(),
                SequenceReport {
                    received: seen.len() as u64,
                    lost: highest - first + 1 - came,
                    reordered,
                    doubled,
                }
            );
        }

        #[test]
        fn stamps_survive(source: u32, number: u64, text in "\\PC{0,24}") {
            let stamp = Stamp { source, number };
            prop_assert_eq!(Stamp::parse(&stamp.to_string()), Some(stamp));
            if let Some(stamp) = Stamp::parse(&text) {
                prop_assert_eq!(Stamp::parse(&stamp.to_string()), Some(stamp));
            }
        }
    }

    #[test]
    fn a_gap_wider_than_the_window() {
        let mut tracker = SequenceTracker::default();
        assert!(tracker.receive(0));
        assert!(tracker.receive(1000));
        assert!(
            !tracker.receive(1),
            "too late to be told from a doubled one"
        );
        let report = tracker.report();
        assert_eq!((report.received, report.lost, report.doubled), (2, 999, 1));
    }

    #[test]
    fn what_is_no_stamp() {
        for text in [
            "",
            "/",
            "1",
            "x/1",
            "1/x",
            "1/-1",
            "1/",
            "/1",
            "+1/1",
            "123456789/1",
            "1/+1",
        ] {
            assert_eq!(Stamp::parse(text), None, "{text}");
        }
    }
}
