//! Sources that showed wrong credentials: each pauses longer with every further failure.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::Source;

/// Failures without a pause.
const FREE: u32 = 5;
/// The first pause, doubled with every failure, and the longest.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);
/// Time without failures after which all is forgotten.
const FORGOTTEN: Duration = Duration::from_secs(600);
/// Sources that are remembered; past it the one that failed longest ago is forgotten.
const SOURCES: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Failures(HashMap<Source, Entry>);

#[derive(Debug)]
struct Entry {
    count: u32,
    last: Instant,
}

impl Entry {
    fn until(&self) -> Option<Instant> {
        let beyond = self.count.checked_sub(FREE + 1)?;
        let pause = FIRST.saturating_mul(1 << beyond.min(16)).min(LONGEST);
        Some(self.last + pause)
    }
}

impl Failures {
    /// How long the source has to wait still, if it does.
    pub(super) fn pause(&self, source: Source, now: Instant) -> Option<Duration> {
        let until = self.0.get(&source)?.until()?;
        until.checked_duration_since(now).filter(|it| !it.is_zero())
    }

    /// Counts a failure; the pause that follows.
    pub(super) fn add(&mut self, source: Source, now: Instant) -> Option<Duration> {
        if !self.0.contains_key(&source) && self.0.len() >= SOURCES {
            let oldest = self.0.iter().min_by_key(|(_, entry)| entry.last);
            if let Some(oldest) = oldest.map(|(source, _)| *source) {
                self.0.remove(&oldest);
            }
        }
        let entry = self.0.entry(source).or_insert(Entry {
            count: 0,
            last: now,
        });
        if now.saturating_duration_since(entry.last) > FORGOTTEN {
            entry.count = 0;
        }
        entry.count = entry.count.saturating_add(1);
        entry.last = now;
        self.pause(source, now)
    }

    /// It has shown the right ones.
    pub(super) fn forget(&mut self, source: Source) {
        self.0.remove(&source);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_bound_and_are_forgotten() {
        let mut failures = Failures::default();
        let (one, other) = (Source::User(1), Source::User(2));
        let mut now = Instant::now();
        for _ in 0..FREE {
            assert_eq!(failures.add(one, now), None);
        }
        let mut expected = FIRST;
        for _ in 0..40 {
            assert_eq!(failures.add(one, now), Some(expected));
            assert_eq!(failures.pause(other, now), None);
            now += expected;
            assert_eq!(failures.pause(one, now), None);
            expected = (expected * 2).min(LONGEST);
        }
        now += FORGOTTEN + FIRST;
        assert_eq!(failures.add(one, now), None);
        failures.forget(one);
        assert_eq!(failures.0.len(), 0);
    }

    #[test]
    fn only_so_many_sources_are_remembered() {
        let mut failures = Failures::default();
        let start = Instant::now();
        for user in 0..SOURCES as u32 + 10 {
            failures.add(
                Source::User(user),
                start + Duration::from_millis(user.into()),
            );
        }
        assert_eq!(failures.0.len(), SOURCES);
        assert!(!failures.0.contains_key(&Source::User(9)));
        assert!(failures.0.contains_key(&Source::User(10)));
    }
}
