//! What is logged of a store that cannot be written: that it is so, every minute
//! how much it concerns, and that it is over.
//!
//! Invariant: however many batches fail, there is a line for each change and one
//! for each [`EVERY`].

use std::fmt::{self, Display};
use std::time::{Duration, Instant};

use punctual_store::StoreError;

/// Between two lines that say the same.
const EVERY: Duration = Duration::from_secs(60);

/// Whether the store can be written.
#[derive(Debug, Default)]
pub(super) struct Trouble(Option<Failing>);

#[derive(Debug)]
struct Failing {
    since: Instant,
    said: Instant,
    error: StoreError,
    /// Batches that failed.
    batches: u64,
}

/// A line for the log.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// It cannot be written.
    Fails(StoreError),
    /// It still cannot.
    StillFails {
        why: StoreError,
        lasts: Duration,
        batches: u64,
    },
    /// It can again.
    Works { lasted: Duration, batches: u64 },
}

impl Trouble {
    /// A batch failed at `now`.
    pub(super) fn failed(&mut self, error: &StoreError, now: Instant) -> Option<Line> {
        let Some(failing) = &mut self.0 else {
            self.0 = Some(Failing {
                since: now,
                said: now,
                error: error.clone(),
                batches: 1,
            });
            return Some(Line::Fails(error.clone()));
        };
        failing.batches += 1;
        if failing.error != *error && !same_kind(&failing.error, error) {
            failing.error = error.clone();
            failing.said = now;
            return Some(Line::Fails(error.clone()));
        }
        if now.saturating_duration_since(failing.said) < EVERY {
            return None;
        }
        failing.said = now;
        Some(Line::StillFails {
            why: error.clone(),
            lasts: now.saturating_duration_since(failing.since),
            batches: failing.batches,
        })
    }

    /// A batch was committed at `now`.
    pub(super) fn committed(&mut self, now: Instant) -> Option<Line> {
        let failing = self.0.take()?;
        Some(Line::Works {
            lasted: now.saturating_duration_since(failing.since),
            batches: failing.batches,
        })
    }
}

/// How much is needed, and of which segment, changes all the time.
fn same_kind(one: &StoreError, other: &StoreError) -> bool {
    match (one, other) {
        (StoreError::Full { what, .. }, StoreError::Full { what: it, .. }) => what == it,
        (StoreError::Io { kind, .. }, StoreError::Io { kind: it, .. }) => kind == it,
        _ => false,
    }
}

impl Line {
    /// Says it.
    pub(super) fn log(&self) {
        match self {
            Self::Works { .. } => tracing::info!("{self}"),
            _ => tracing::error!("{self}"),
        }
    }
}

impl Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fails(why) => write!(
                f,
                "the store cannot be written: {why}; it is tried again, and what has to be stored is refused"
            ),
            Self::StillFails {
                why,
                lasts,
                batches,
            } => write!(
                f,
                "the store still cannot be written after {} s: {why}; batches that failed: {batches}",
                lasts.as_secs()
            ),
            Self::Works { lasted, batches } => write!(
                f,
                "the store can be written again after {:.1} s; batches that failed: {batches}",
                lasted.as_secs_f64()
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full(needed: u64) -> StoreError {
        StoreError::Full {
            what: "the disk",
            needed,
        }
    }

    #[test]
    fn there_is_a_line_for_each_change_and_each_minute() {
        let (mut trouble, start) = (Trouble::default(), Instant::now());
        assert_eq!(trouble.committed(start), None);
        assert_eq!(trouble.failed(&full(1), start), Some(Line::Fails(full(1))));
        let mut lines = Vec::new();
        for ms in (0..150_000).step_by(100) {
            let now = start + Duration::from_millis(ms);
            lines.extend(trouble.failed(&full(ms), now));
        }
        let still = |seconds: u64| Line::StillFails {
            why: full(seconds * 1000),
            lasts: Duration::from_secs(seconds),
            batches: seconds * 10 + 2,
        };
        assert_eq!(lines, [still(60), still(120)]);
        let broken = StoreError::Io {
            what: "segment 1 cannot be written".into(),
            kind: std::io::ErrorKind::Other,
            message: "broken".into(),
        };
        let now = start + Duration::from_secs(150);
        assert_eq!(
            trouble.failed(&broken, now),
            Some(Line::Fails(broken.clone()))
        );
        assert_eq!(trouble.failed(&broken, now), None);
        let works = Line::Works {
            lasted: Duration::from_secs(150),
            batches: 1503,
        };
        assert_eq!(trouble.committed(now), Some(works));
        assert_eq!(trouble.committed(now), None);
    }
}
