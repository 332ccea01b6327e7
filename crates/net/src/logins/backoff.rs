//! Sources whose passwords were wrong are let wait for the next try, a little longer each time. Clients
//! of this machine never wait: they share an address, and one with an old password would have the
//! others refused.

use std::collections::{BTreeSet, HashMap};

use punctual_broker::Nanos;

use super::Source;

/// Wrong passwords of a source in a row that have no consequence.
const FREE: u32 = 3;
/// The first wait, which doubles each time.
const FIRST: Nanos = Nanos::from_millis(50);
/// The longest wait: who shares an address with somebody that guesses is to get in.
const LONGEST: Nanos = Nanos::from_secs(1);
/// How long failures are remembered after the last one.
const REMEMBERED: Nanos = Nanos::from_secs(60);
/// Sources whose failures are remembered; with more of them the one that failed longest ago is
/// forgotten.
const SOURCES: usize = 4096;

#[derive(Debug, Clone, Copy)]
struct Failing {
    count: u32,
    last: Nanos,
}

/// Failures of sources.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failing: HashMap<Source, Failing>,
    /// By the last failure.
    order: BTreeSet<(Nanos, Source)>,
}

impl Backoff {
    pub(super) fn failed(&mut self, source: Source, now: Nanos) {
        if source.is_local() {
            return;
        }
        let before = self.forget(source);
        let before = before.filter(|it| now < it.last + REMEMBERED);
        let count = before.map_or(0, |it| it.count).saturating_add(1);
        self.failing.insert(source, Failing { count, last: now });
        self.order.insert((now, source));
        // One at least, where there are too many.
        while let Some((last, oldest)) = self.order.first().copied()
            && (last + REMEMBERED <= now || self.failing.len() > SOURCES)
        {
            self.forget(oldest);
        }
    }

    pub(super) fn succeeded(&mut self, source: Source) {
        self.forget(source);
    }

    fn forget(&mut self, source: Source) -> Option<Failing> {
        let known = self.failing.remove(&source)?;
        self.order.remove(&(known.last, source));
        Some(known)
    }

    /// When the next try of a source may be made.
    pub(super) fn ready_at(&self, source: Source) -> Nanos {
        match self.failing.get(&source) {
            Some(Failing { count, last }) if *count > FREE => {
                let doubled = (count - FREE - 1).min(16);
                *last + Nanos((FIRST.0 << doubled).min(LONGEST.0))
            }
            _ => Nanos(0),
        }
    }

    /// Whether a source has to wait.
    pub(super) fn holds(&self, source: Source, now: Nanos) -> bool {
        self.ready_at(source) > now
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn source(n: u32) -> Source {
        // None of this machine.
        Source::Address(Ipv4Addr::from_bits(10 << 24 | n).into())
    }

    #[test]
    fn waits_grow_to_a_bound_and_end() {
        let mut backoff = Backoff::default();
        let now = Nanos::from_secs(100);
        let mut waits = Vec::new();
        for _ in 0..40 {
            backoff.failed(source(1), now);
            waits.push(backoff.ready_at(source(1)).0.saturating_sub(now.0));
        }
        assert_eq!(waits[..FREE as usize], [0; FREE as usize]);
        assert_eq!(waits[FREE as usize], FIRST.0);
        assert!(waits.is_sorted() && waits.last() == Some(&LONGEST.0));
        assert!(backoff.holds(source(1), now) && !backoff.holds(source(2), now));
        assert!(!backoff.holds(source(1), now + LONGEST));
        // After a while it begins again, and so it does once a password was right.
        backoff.failed(source(1), now + REMEMBERED);
        assert!(!backoff.holds(source(1), now + REMEMBERED));
        (0..10).for_each(|_| backoff.failed(source(1), now));
        backoff.succeeded(source(1));
        assert!(!backoff.holds(source(1), now) && backoff.order.is_empty());
    }

    #[test]
    fn clients_of_this_machine_never_wait() {
        let mut backoff = Backoff::default();
        let local = Source::Address(Ipv4Addr::LOCALHOST.into());
        let now = Nanos::from_secs(100);
        (0..100).for_each(|_| backoff.failed(local, now));
        assert!(!backoff.holds(local, now));
        assert_eq!(backoff.ready_at(local), Nanos(0));
    }

    #[test]
    fn the_table_is_bounded() {
        let mut backoff = Backoff::default();
        for n in 0..2 * SOURCES as u32 {
            for _ in 0..=FREE {
                backoff.failed(source(n), Nanos(u64::from(n)));
            }
        }
        assert_eq!(
            (backoff.failing.len(), backoff.order.len()),
            (SOURCES, SOURCES)
        );
        let last = 2 * SOURCES as u32 - 1;
        let now = Nanos(u64::from(last));
        assert!(backoff.holds(source(last), now) && !backoff.holds(source(0), now));
        backoff.failed(source(0), now + REMEMBERED);
        assert_eq!(backoff.failing.len(), 1);
    }
}
