//! Logins that wait for their turn: sources take turns, whatever each of them asks for.
//!
//! Bounds: [`WAITING`] logins and [`BYTES`] bytes of all sources, [`OF_SOURCE`] of each, and [`FEW`] of
//! one that has to wait because of its failures. A login is refused when its own source has reached
//! its bound. When all sources together have reached theirs, the queue refuses the last login of the
//! source with the most logins, or the new one if no source has more than its own.

use std::collections::{HashMap, VecDeque};

use punctual_broker::Nanos;

use super::Source;
use super::backoff::Backoff;

/// Logins that wait.
const WAITING: usize = 1024;
/// Their bytes: passwords have up to 64 KiB.
const BYTES: usize = 4 << 20;
/// Logins of one source.
const OF_SOURCE: usize = 256;
/// The same of one that has failed too often lately.
const FEW: usize = 8;

#[derive(Debug)]
struct Waiting<T> {
    login: T,
    size: usize,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Queue<T> {
    sources: HashMap<Source, VecDeque<Waiting<T>>>,
    /// Sources with logins, in the order of their turns.
    turns: VecDeque<Source>,
    waiting: usize,
    bytes: usize,
    backoff: Backoff,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self {
            sources: HashMap::new(),
            turns: VecDeque::new(),
            waiting: 0,
            bytes: 0,
            backoff: Backoff::default(),
        }
    }
}

impl<T> Queue<T> {
    /// Adds a login; returns those for which there is no room then. Those that are over do not count.
    pub(super) fn push(
        &mut self,
        source: Source,
        login: T,
        size: usize,
        is_over: impl Fn(&T) -> bool,
        now: Nanos,
    ) -> Vec<T> {
        let most = match self.backoff.holds(source, now) {
            true => FEW,
            false => OF_SOURCE,
        };
        if self.len_of(source) >= most {
            self.forget_over(source, &is_over);
        }
        if self.len_of(source) >= most {
            return vec![login];
        }
        let own = self.len_of(source) + 1;
        let mut refused = Vec::new();
        while self.waiting >= WAITING || self.bytes + size > BYTES {
            let longest = self.turns.iter().max_by_key(|other| self.len_of(**other));
            let longest = longest.copied().filter(|other| self.len_of(*other) > own);
            match longest.and_then(|longest| self.take(longest, VecDeque::pop_back)) {
                Some(last) => refused.push(last),
                None => {
                    refused.push(login);
                    return refused;
                }
            }
        }
        let queue = self.sources.entry(source).or_default();
        if queue.is_empty() {
            self.turns.push_back(source);
        }
        queue.push_back(Waiting { login, size });
        self.waiting += 1;
        self.bytes += size;
        refused
    }

    /// The next login whose source need not wait.
    pub(super) fn pop(&mut self, now: Nanos) -> Option<T> {
        for _ in 0..self.turns.len() {
            let source = self.turns.pop_front()?;
            self.turns.push_back(source);
            if !self.backoff.holds(source, now) {
                return self.take(source, VecDeque::pop_front);
            }
        }
        None
    }

    /// When [`Self::pop`] has something; `None` if nothing waits.
    pub(super) fn ready_at(&self, now: Nanos) -> Option<Nanos> {
        let ready = self.turns.iter().map(|it| self.backoff.ready_at(*it));
        ready.min().map(|at| at.max(now))
    }

    pub(super) fn failed(&mut self, source: Source, now: Nanos) {
        self.backoff.failed(source, now);
    }

    pub(super) fn succeeded(&mut self, source: Source) {
        self.backoff.succeeded(source);
    }

    fn len_of(&self, source: Source) -> usize {
        self.sources.get(&source).map_or(0, VecDeque::len)
    }

    /// Takes one of a source out, and the source if it was the last.
    fn take(
        &mut self,
        source: Source,
        which: impl FnOnce(&mut VecDeque<Waiting<T>>) -> Option<Waiting<T>>,
    ) -> Option<T> {
        let queue = self.sources.get_mut(&source)?;
        let Waiting { login, size } = which(queue)?;
        self.took(source, 1, size);
        Some(login)
    }

    /// Makes room in the queue of a source.
    fn forget_over(&mut self, source: Source, is_over: &impl Fn(&T) -> bool) {
        let Some(queue) = self.sources.get_mut(&source) else {
            return;
        };
        let (before, mut bytes) = (queue.len(), 0);
        queue.retain(|it| {
            let stays = !is_over(&it.login);
            bytes += if stays { 0 } else { it.size };
            stays
        });
        let taken = before - queue.len();
        self.took(source, taken, bytes);
    }

    /// Logins were taken out of the queue of a source, which is removed if it is empty now.
    fn took(&mut self, source: Source, logins: usize, bytes: usize) {
        self.waiting -= logins;
        self.bytes -= bytes;
        if self.len_of(source) == 0 {
            self.sources.remove(&source);
            self.turns.retain(|other| *other != source);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;
    use proptest::prelude::*;

    const NOW: Nanos = Nanos::from_secs(100);

    fn source(n: u8) -> Source {
        Source::Address([10, 0, 0, n].into())
    }

    fn push(queue: &mut Queue<(u8, usize)>, of: u8, n: usize) -> Vec<(u8, usize)> {
        queue.push(source(of), (of, n), 100, |_| false, NOW)
    }

    #[test]
    fn a_flood_of_one_source_does_not_keep_another_waiting() {
        let mut queue = Queue::default();
        let refused = (0..10_000).flat_map(|n| push(&mut queue, 1, n));
        assert_eq!(refused.count(), 10_000 - OF_SOURCE);
        assert!(push(&mut queue, 2, 0).is_empty());
        let first: Vec<_> = (0..2).filter_map(|_| queue.pop(NOW)).collect();
        assert!(first.contains(&(2, 0)), "{first:?}");
        // The rest of it continues in order.
        let rest: Vec<usize> = std::iter::from_fn(|| queue.pop(NOW))
            .map(|it| it.1)
            .collect();
        assert!(rest.is_sorted() && rest.len() == OF_SOURCE - 1);
        assert_eq!((queue.waiting, queue.bytes), (0, 0));
        assert!(queue.sources.is_empty() && queue.turns.is_empty());
    }

    #[test]
    fn a_full_queue_makes_room_at_the_cost_of_who_has_most() {
        let mut queue = Queue::default();
        for of in 0..4 {
            (0..OF_SOURCE).for_each(|n| assert!(push(&mut queue, of, n).is_empty()));
        }
        assert_eq!(queue.waiting, WAITING);
        let refused = push(&mut queue, 9, 0);
        assert!(
            matches!(refused[..], [(_, last)] if last == OF_SOURCE - 1),
            "{refused:?}"
        );
        assert_eq!((queue.waiting, queue.len_of(source(9))), (WAITING, 1));
        // Where all have one, the new one is refused.
        let mut queue = Queue::default();
        for n in 0..WAITING {
            let of = Source::Address(Ipv6Addr::from_bits((n as u128) << 64).into());
            assert!(queue.push(of, n, 1, |_| false, NOW).is_empty());
        }
        assert_eq!(queue.push(Source::Unknown, 7, 1, |_| false, NOW), [7]);
        // A large one takes the room of several.
        let mut queue = Queue::default();
        let small = BYTES / OF_SOURCE;
        for n in 0..OF_SOURCE {
            assert!(queue.push(source(1), n, small, |_| false, NOW).is_empty());
        }
        assert_eq!(queue.push(source(2), 0, 3 * small, |_| false, NOW).len(), 3);
    }

    #[test]
    fn those_that_are_over_make_room() {
        let mut queue = Queue::default();
        (0..OF_SOURCE).for_each(|n| assert!(push(&mut queue, 1, n).is_empty()));
        let refused = queue.push(source(1), (1, 1_000), 100, |it| it.1 < 200, NOW);
        assert!(refused.is_empty());
        assert_eq!(queue.len_of(source(1)), OF_SOURCE - 200 + 1);
        assert_eq!(queue.bytes, 100 * queue.waiting);
    }

    #[test]
    fn who_fails_waits_and_has_little_room() {
        let mut queue = Queue::default();
        (0..10).for_each(|_| queue.failed(source(1), NOW));
        let refused = (0..20).flat_map(|n| push(&mut queue, 1, n));
        assert_eq!(refused.count(), 20 - FEW);
        assert_eq!(queue.pop(NOW), None);
        push(&mut queue, 2, 0);
        assert_eq!(queue.pop(NOW), Some((2, 0)));
        assert_eq!(queue.pop(NOW), None);
        let at = queue.ready_at(NOW).expect("some wait");
        assert!(at > NOW);
        assert_eq!(queue.pop(at), Some((1, 0)));
        queue.succeeded(source(1));
        assert_eq!(queue.ready_at(NOW), Some(NOW));
    }

    proptest! {
        /// Whatever comes and goes, bounds hold and nothing is lost or answered twice.
        #[test]
        fn bounds_hold(steps in proptest::collection::vec((0..4u8, 0..6u8, 1..BYTES / 3), 0..400)) {
            let mut queue = Queue::default();
            let (mut next, mut out) = (0, std::collections::BTreeSet::new());
            for (step, of, size) in steps {
                let done = match step {
                    0 => queue.pop(NOW).into_iter().collect(),
                    1 => { queue.failed(source(of), NOW); Vec::new() }
                    _ => {
                        next += 1;
                        queue.push(source(of), next, size, |_| false, NOW)
                    }
                };
                prop_assert!(done.into_iter().all(|it| out.insert(it)));
                prop_assert!(queue.waiting <= WAITING && queue.bytes <= BYTES);
                let all = queue.sources.values().flatten();
                let (count, bytes) = all.fold((0, 0), |(n, b), it| (n + 1, b + it.size));
                prop_assert_eq!((count, bytes), (queue.waiting, queue.bytes));
                prop_assert_eq!(queue.turns.len(), queue.sources.len());
                prop_assert_eq!(out.len() + queue.waiting, next);
            }
        }
    }
}
