//! What is logged of a store that cannot be written, or is full: that it is so, every
//! minute how much it concerns, and that it is over.
//!
//! Invariant: however many batches fail, there is a line for each change and one
//! for each [`EVERY`]. A store that is full takes what has been accepted before: that
//! is no sign of room.

use std::fmt::{self, Display};
use std::time::{Duration, Instant};

use punctual_store::StoreError;

/// Between two lines that say the same.
const EVERY: Duration = Duration::from_secs(60);

/// Whether the store can be written.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    failing: Option<Failing>,
    /// Whether it is full.
    full: bool,
}

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
    /// It takes what has been accepted, and nothing else.
    Full(StoreError),
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
        let Some(failing) = &mut self.failing else {
            self.failing = Some(Failing {
                batches: 1,
                ..Failing::new(error, now)
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

    /// Since `now` it takes nothing that grows, with a reason, or does again.
    pub(super) fn full(&mut self, why: Option<&StoreError>, now: Instant) -> Option<Line> {
        self.full = why.is_some();
        match why {
            None => self.committed(now),
            Some(why) => {
                let failing = self.failing.get_or_insert_with(|| Failing::new(why, now));
                failing.error = why.clone();
                Some(match why {
                    StoreError::Full { .. } => Line::Full(why.clone()),
                    _ => Line::Fails(why.clone()),
                })
            }
        }
    }

    /// A batch was committed at `now`.
    pub(super) fn committed(&mut self, now: Instant) -> Option<Line> {
        let failing = self.failing.take_if(|_| !self.full)?;
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
        (StoreError::Lost(_), StoreError::Lost(_)) => true,
        _ => false,
    }
}

impl Failing {
    fn new(why: &StoreError, now: Instant) -> Self {
        Self {
            since: now,
            said: now,
            error: why.clone(),
            batches: 0,
        }
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
            Self::Full(why) => write!(
                f,
                "{why}: what has to be stored is refused, but what was accepted before, and what gives room back"
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
            Self::Works { lasted, batches } => {
                let lasted = lasted.as_secs_f64();
                write!(f, "the store can be written again after {lasted:.1} s")?;
                match batches {
                    0 => Ok(()),
                    batches => write!(f, "; batches that failed: {batches}"),
                }
            }
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
        // What is committed while it is full is no sign of room.
        assert_eq!(trouble.full(Some(&full(9)), now), Some(Line::Full(full(9))));
        assert_eq!(trouble.committed(now), None);
        let later = now + Duration::from_secs(3);
        let works = Line::Works {
            lasted: Duration::from_secs(3),
            batches: 0,
        };
        assert_eq!(trouble.full(None, later), Some(works));
    }
}
