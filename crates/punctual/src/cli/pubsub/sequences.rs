//! What was lost, reordered or doubled, by the numbers that messages carry:
//! those of `pub --sequence`, or the broker's for `sub --sequence`.

use std::collections::HashMap;

use punctual_client::{SequenceReport, SequenceTracker, Stamp};

/// Sequences followed; further ones are not.
const FOLLOWED: usize = 1000;

/// Sequences by topic and source.
#[derive(Default)]
pub(super) struct Sequences(HashMap<(String, u32), SequenceTracker>);

impl Sequences {
    /// Takes in the number of a message; returns how many messages before it
    /// are found missing.
    pub(super) fn record(&mut self, topic: &str, stamp: Stamp) -> u64 {
        let key = (topic.to_owned(), stamp.source);
        if self.0.len() >= FOLLOWED && !self.0.contains_key(&key) {
            return 0;
        }
        let tracker = self.0.entry(key).or_default();
        let before = tracker.report().lost;
        tracker.receive(stamp.number);
        tracker.report().lost.saturating_sub(before)
    }

    /// All of them together; `None` if no message had a number.
    pub(super) fn report(&self) -> Option<SequenceReport> {
        let reports = self.0.values().map(SequenceTracker::report);
        reports.reduce(|a, b| SequenceReport {
            received: a.received + b.received,
            lost: a.lost + b.lost,
            reordered: a.reordered + b.reordered,
            doubled: a.doubled + b.doubled,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_and_sources_are_told_apart() {
        let mut sequences = Sequences::default();
        assert_eq!(sequences.report(), None);
        let mut record = |topic, source, number| sequences.record(topic, Stamp { source, number });
        assert_eq!(record("a", 1, 0), 0);
        assert_eq!(record("b", 1, 7), 0);
        assert_eq!(record("a", 2, 9), 0);
        assert_eq!(record("a", 1, 4), 3);
        assert_eq!(record("a", 1, 2), 0);
        assert_eq!(record("a", 1, 2), 0);
        let expected = SequenceReport {
            received: 5,
            lost: 2,
            reordered: 1,
            doubled: 1,
        };
        assert_eq!(sequences.report(), Some(expected));
    }
}
