//! Pieces of work that took longer than they may: counted by kind, so that a bound which is not kept
//! has a cause that can be named.

use std::sync::atomic::{AtomicU64, Ordering};

use punctual_broker::{Nanos, Work};

/// What a shard's thread does in pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece {
    /// Mail: connections, messages of other shards, questions of the management side.
    Mail,
    /// Bytes of a client, with all that its packets have others be sent.
    Read,
    /// Datagrams.
    Udp,
    /// Datagrams of QUIC.
    Quic,
    /// Writing to a client.
    Write,
    /// What the broker does in slices.
    Work(Work),
}

/// Least time between two reports of one kind.
const REPORT_INTERVAL: Nanos = Nanos::from_secs(60);
/// Number of kinds.
const KINDS: usize = 11;

impl Piece {
    /// Every kind, in the order of [`Overruns`].
    pub const ALL: [Self; KINDS] = [
        Self::Mail,
        Self::Read,
        Self::Udp,
        Self::Quic,
        Self::Write,
        Self::Work(Work::Timers),
        Self::Work(Work::Filters),
        Self::Work(Work::Retained),
        Self::Work(Work::Rights),
        Self::Work(Work::Remains),
        Self::Work(Work::FanOut),
    ];

    /// Its name in metrics and the log.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mail => "mail",
            Self::Read => "read",
            Self::Udp => "udp",
            Self::Quic => "quic",
            Self::Write => "write",
            Self::Work(Work::Timers) => "timers",
            Self::Work(Work::Filters) => "filters",
            Self::Work(Work::Retained) => "retained_lookup",
            Self::Work(Work::Rights) => "rights",
            Self::Work(Work::Remains) => "session_end",
            Self::Work(Work::FanOut) => "fan_out",
        }
    }

    const fn index(self) -> usize {
        match self {
            Self::Mail => 0,
            Self::Read => 1,
            Self::Udp => 2,
            Self::Quic => 3,
            Self::Write => 4,
            Self::Work(Work::Timers) => 5,
            Self::Work(Work::Filters) => 6,
            Self::Work(Work::Retained) => 7,
            Self::Work(Work::Rights) => 8,
            Self::Work(Work::Remains) => 9,
            Self::Work(Work::FanOut) => 10,
        }
    }
}

/// How often pieces took too long, and the longest, by kind.
#[derive(Debug, Default)]
pub struct Overruns {
    counts: [AtomicU64; KINDS],
    longest: [AtomicU64; KINDS],
    units: [AtomicU64; KINDS],
}

impl Overruns {
    /// A piece took that long, and might have taken `limit`. Whether that was too long.
    #[inline]
    pub(crate) fn note(&self, piece: Piece, took: Nanos, limit: Nanos) -> bool {
        let at = piece.index();
        if took.0 > self.longest[at].load(Ordering::Relaxed) {
            self.longest[at].fetch_max(took.0, Ordering::Relaxed);
        }
        let is_over = took > limit;
        if is_over {
            self.counts[at].fetch_add(1, Ordering::Relaxed);
        }
        is_over
    }

    /// A piece took so many units of the broker's work.
    #[inline]
    pub(crate) fn note_units(&self, piece: Piece, units: u64) {
        let most = &self.units[piece.index()];
        if units > most.load(Ordering::Relaxed) {
            most.fetch_max(units, Ordering::Relaxed);
        }
    }

    /// Most units of the broker's work that a piece of that kind took; 0 where they are not counted.
    #[must_use]
    pub fn most_units(&self, piece: Piece) -> u64 {
        self.units[piece.index()].load(Ordering::Relaxed)
    }

    /// How many pieces of that kind took too long.
    #[must_use]
    pub fn count(&self, piece: Piece) -> u64 {
        self.counts[piece.index()].load(Ordering::Relaxed)
    }

    /// The longest of that kind.
    #[must_use]
    pub fn longest(&self, piece: Piece) -> Nanos {
        Nanos(self.longest[piece.index()].load(Ordering::Relaxed))
    }
}

/// When a thread has reported pieces that took too long, by kind.
#[derive(Debug, Default)]
pub(crate) struct Reports([Nanos; KINDS]);

impl Reports {
    /// Whether another one is to be reported, which then is taken to be.
    pub(crate) fn is_due(&mut self, piece: Piece, now: Nanos) -> bool {
        let last = &mut self.0[piece.index()];
        let is_due = *last == Nanos(0) || now >= *last + REPORT_INTERVAL;
        if is_due {
            *last = now;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_kind_has_a_name_and_a_place_of_its_own() {
        let names: BTreeSet<&str> = Piece::ALL.map(Piece::name).into();
        assert_eq!(names.len(), KINDS);
        for (at, piece) in Piece::ALL.into_iter().enumerate() {
            assert_eq!(piece.index(), at);
        }
    }

    #[test]
    fn each_kind_is_reported_once_a_minute() {
        let mut reports = Reports::default();
        let now = Nanos::from_secs(1);
        assert!(reports.is_due(Piece::Read, now) && reports.is_due(Piece::Mail, now));
        assert!(!reports.is_due(Piece::Read, now + Nanos::from_secs(59)));
        assert!(reports.is_due(Piece::Read, now + REPORT_INTERVAL));
    }

    #[test]
    fn pieces_are_counted_that_took_longer_than_they_may() {
        let overruns = Overruns::default();
        assert!(!overruns.note(Piece::Read, Nanos(100), Nanos(100)));
        assert!(overruns.note(Piece::Read, Nanos(300), Nanos(100)));
        assert!(overruns.note(Piece::Read, Nanos(200), Nanos(100)));
        assert_eq!(overruns.count(Piece::Read), 2);
        assert_eq!(overruns.longest(Piece::Read), Nanos(300));
        assert_eq!(overruns.count(Piece::Mail), 0);
    }
}
