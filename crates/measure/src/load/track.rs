//! Checks the sequence numbers that one receiver gets from one publisher.
//!
//! In order is one comparison. A jump ahead leaves a gap; a number from a gap that comes later
//! was reordered; a number that comes again is a duplicate. Gaps are kept as intervals, at most
//! `MAX_GAPS`: when a broker drops more bursts than that, the oldest gap is given up (its
//! messages stay counted as lost, and would count as duplicates if they came after all).

use std::collections::BTreeMap;

/// Most gaps remembered per receiver and publisher.
const MAX_GAPS: usize = 65_536;

/// What a received sequence number was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// New, and no later one came before it.
    InOrder,
    /// New, but a later one came before it.
    OutOfOrder,
    /// Seen before.
    Duplicate,
}

/// The state of one flow: publisher to receiver.
#[derive(Debug, Default)]
pub struct Track {
    /// One above the highest number seen.
    next: u64,
    /// Distinct messages received.
    unique: u64,
    out_of_order: u64,
    duplicates: u64,
    /// Numbers below `next` not seen: first to one above the last.
    gaps: BTreeMap<u64, u64>,
}

impl Track {
    /// One above the highest number seen: what a window may count as delivered.
    #[inline]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Messages that came, each counted once.
    pub fn unique(&self) -> u64 {
        self.unique
    }

    /// Messages that came after a later one.
    pub fn out_of_order(&self) -> u64 {
        self.out_of_order
    }

    /// Messages that came again.
    pub fn duplicates(&self) -> u64 {
        self.duplicates
    }

    /// Takes the next received number.
    #[inline]
    pub fn receive(&mut self, seq: u64) -> Verdict {
        if seq == self.next {
            self.next += 1;
            self.unique += 1;
            return Verdict::InOrder;
        }
        self.receive_unexpected(seq)
    }

    #[cold]
    fn receive_unexpected(&mut self, seq: u64) -> Verdict {
        if seq > self.next {
            if self.gaps.len() == MAX_GAPS {
                self.gaps.pop_first();
            }
            self.gaps.insert(self.next, seq);
            self.next = seq + 1;
            self.unique += 1;
            return Verdict::InOrder;
        }
        let gap = self.gaps.range(..=seq).next_back().map(|(&a, &b)| (a, b));
        let Some((first, end)) = gap.filter(|&(_, end)| seq < end) else {
            self.duplicates += 1;
            return Verdict::Duplicate;
        };
        self.gaps.remove(&first);
        if first < seq {
            self.gaps.insert(first, seq);
        }
        if seq + 1 < end {
            self.gaps.insert(seq + 1, end);
        }
        self.unique += 1;
        self.out_of_order += 1;
        Verdict::OutOfOrder
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn feed(track: &mut Track, numbers: &[u64]) -> Vec<Verdict> {
        numbers.iter().map(|&n| track.receive(n)).collect()
    }

    #[test]
    fn in_order_is_in_order() {
        let mut track = Track::default();
        feed(&mut track, &[0, 1, 2, 3]);
        assert_eq!(
            (track.unique(), track.out_of_order(), track.duplicates()),
            (4, 0, 0)
        );
        assert_eq!(track.next(), 4);
    }

    #[test]
    fn a_gap_filled_later_is_reordering_and_twice_is_a_duplicate() {
        use Verdict::{Duplicate, InOrder, OutOfOrder};
        let mut track = Track::default();
        let verdicts = feed(&mut track, &[0, 4, 2, 2, 1, 3, 0, 4, 5]);
        assert_eq!(
            verdicts,
            [
                InOrder, InOrder, OutOfOrder, Duplicate, OutOfOrder, OutOfOrder, Duplicate,
                Duplicate, InOrder
            ]
        );
        assert_eq!(track.unique(), 6);
        assert!(track.gaps.is_empty());
    }

    #[test]
    fn gaps_are_bounded() {
        let mut track = Track::default();
        for i in 0..2 * MAX_GAPS as u64 {
            track.receive(2 * i + 1);
        }
        assert_eq!(track.gaps.len(), MAX_GAPS);
        assert_eq!(track.unique(), 2 * MAX_GAPS as u64);
    }

    proptest! {
        #[test]
        fn agrees_with_a_set(numbers in proptest::collection::vec(0u64..40, 0..200)) {
            let mut track = Track::default();
            let mut seen = HashSet::new();
            let mut highest = None;
            for &n in &numbers {
                let expected = if !seen.insert(n) {
                    Verdict::Duplicate
                } else if highest.is_some_and(|h| n < h) {
                    Verdict::OutOfOrder
                } else {
                    Verdict::InOrder
                };
                highest = highest.max(Some(n));
                prop_assert_eq!(track.receive(n), expected);
            }
            prop_assert_eq!(track.unique(), seen.len() as u64);
        }
    }
}
