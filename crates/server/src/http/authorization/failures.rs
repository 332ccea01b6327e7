//! Who showed wrong credentials: each pauses longer with every further failure.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::{Peer, Source};

/// Failures without a pause.
const FREE: u32 = 5;
/// The first pause, doubled with every failure, and the longest.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);
/// Time without failures after which all is forgotten.
const FORGOTTEN: Duration = Duration::from_secs(600);
/// Suspects that are remembered; past it the one that failed longest ago is forgotten.
const SUSPECTS: usize = 1024;

/// Whose failures are counted together: those of a source. Everybody of this machine has its loopback
/// as source, so there they are counted for each user, lest one program with an old password locks all
/// out; those for names without a role are counted as one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Suspect {
    source: Source,
    user: Option<Box<str>>,
}

impl Suspect {
    /// `user` is the name that was given, if it is one that has a role.
    pub(super) fn new(peer: Peer, user: Option<&str>) -> Self {
        let source = peer.source();
        let user = user.filter(|_| source == Source::Loopback);
        Self {
            source,
            user: user.map(Into::into),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Failures(HashMap<Suspect, Entry>);

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
    /// How long the suspect has to wait still, if it does.
    pub(super) fn pause(&self, suspect: &Suspect, now: Instant) -> Option<Duration> {
        let until = self.0.get(suspect)?.until()?;
        until.checked_duration_since(now).filter(|it| !it.is_zero())
    }

    /// Counts a failure; the pause that follows.
    pub(super) fn add(&mut self, suspect: Suspect, now: Instant) -> Option<Duration> {
        if !self.0.contains_key(&suspect) && self.0.len() >= SUSPECTS {
            let oldest = self.0.iter().min_by_key(|(_, entry)| entry.last);
            if let Some(oldest) = oldest.map(|(suspect, _)| suspect.clone()) {
                self.0.remove(&oldest);
            }
        }
        let entry = self.0.entry(suspect.clone()).or_insert(Entry {
            count: 0,
            last: now,
        });
        if now.saturating_duration_since(entry.last) > FORGOTTEN {
            entry.count = 0;
        }
        entry.count = entry.count.saturating_add(1);
        entry.last = now;
        self.pause(&suspect, now)
    }

    /// It has shown the right ones.
    pub(super) fn forget(&mut self, suspect: &Suspect) {
        self.0.remove(suspect);
    }

    /// Number of counted failures of a suspect.
    #[cfg(test)]
    pub(super) fn count(&self, suspect: &Suspect) -> u32 {
        self.0.get(suspect).map_or(0, |entry| entry.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suspect(user: u32) -> Suspect {
        Suspect::new(Peer::Process(user), None)
    }

    #[test]
    fn pauses_double_up_to_a_bound_and_are_forgotten() {
        let mut failures = Failures::default();
        let (one, other) = (suspect(1), suspect(2));
        let mut now = Instant::now();
        for _ in 0..FREE {
            assert_eq!(failures.add(one.clone(), now), None);
        }
        let mut expected = FIRST;
        for _ in 0..40 {
            assert_eq!(failures.add(one.clone(), now), Some(expected));
            assert_eq!(failures.pause(&other, now), None);
            now += expected;
            assert_eq!(failures.pause(&one, now), None);
            expected = (expected * 2).min(LONGEST);
        }
        now += FORGOTTEN + FIRST;
        assert_eq!(failures.add(one.clone(), now), None);
        failures.forget(&one);
        assert_eq!(failures.0.len(), 0);
    }

    #[test]
    fn only_so_many_sources_are_remembered() {
        let mut failures = Failures::default();
        let start = Instant::now();
        for user in 0..SUSPECTS as u32 + 10 {
            failures.add(suspect(user), start + Duration::from_millis(user.into()));
        }
        assert_eq!(failures.0.len(), SUSPECTS);
        assert!(!failures.0.contains_key(&suspect(9)));
        assert!(failures.0.contains_key(&suspect(10)));
    }
}
