//! Who has one of the places for connections, and who makes room.
//!
//! A place is free, or that of a connection in one of three states: fresh (no request has come whole
//! yet), busy (a request is being answered) and idle (it waits for the next request). A connection
//! for which there is no place takes that of the one that has been idle for longest; then of one that
//! has been fresh for too long, then of one that has been busy for too long. Where its source has no
//! place left, it is one of the same source; where no place at all is left, one of the source that
//! has most.
//!
//! What is too long for a fresh one gets less while a connection waits for its place, down to nothing;
//! and it is nothing at once where as many of the source wait as may. So a request that comes is
//! answered however many connections there are on which none comes, and a connection is closed without
//! a place only while all that could make room are busy.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::Bounds;
use crate::http::authorization::Source;

/// All places of an interface.
#[derive(Clone)]
pub(super) struct Places(Arc<Shared>);

struct Shared {
    table: Mutex<Table>,
    /// Wakes those that wait for a place.
    changed: Notify,
}

/// What a connection does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Fresh,
    Busy,
    Idle,
}

#[derive(Debug)]
struct Entry {
    source: Source,
    state: State,
    /// When it came to be so.
    since: Instant,
    answers: u32,
    evict: Arc<Notify>,
}

#[derive(Debug)]
struct Table {
    entries: BTreeMap<u64, Entry>,
    next: u64,
    /// Connections without a place, by source.
    waiting: HashMap<Source, usize>,
    most: usize,
    per_source: usize,
    most_waiting: usize,
    slow: Duration,
    answers: u32,
}

/// The place of a connection; free again when this is dropped.
pub(super) struct Place {
    places: Places,
    number: u64,
    evict: Arc<Notify>,
}

impl Places {
    pub(super) fn new(bounds: &Bounds) -> Self {
        Self(Arc::new(Shared {
            table: Mutex::new(Table {
                entries: BTreeMap::new(),
                next: 0,
                waiting: HashMap::new(),
                most: bounds.connections,
                per_source: bounds.per_source,
                most_waiting: bounds.waiting.div_ceil(2),
                slow: bounds.slow,
                answers: bounds.answers,
            }),
            changed: Notify::new(),
        }))
    }

    /// A place for a connection of that source, as soon as there is one; `None` if too many of the
    /// source wait already, and all that have a place are busy.
    pub(super) async fn enter(&self, source: Source) -> Option<Place> {
        let slow = self.table().slow;
        if let Some(place) = self.take(source, slow) {
            return Some(place);
        }
        let Some(_waiting) = Waiting::start(self, source) else {
            return self.take(source, Duration::ZERO);
        };
        let start = Instant::now();
        loop {
            // The age of others changes without anybody saying so.
            let step = slow / 8;
            let changed = self.0.changed.notified();
            if let Some(place) = self.take(source, slow.saturating_sub(start.elapsed())) {
                return Some(place);
            }
            let _ = tokio::time::timeout(step, changed).await;
        }
    }

    /// A place, if there is one now, or a fresh connection of that age makes room.
    fn take(&self, source: Source, fresh: Duration) -> Option<Place> {
        let (number, evict) = self.table().admit(source, fresh, Instant::now())?;
        Some(Place {
            places: self.clone(),
            number,
            evict,
        })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts a connection that waits.
struct Waiting<'a> {
    places: &'a Places,
    source: Source,
}

impl<'a> Waiting<'a> {
    fn start(places: &'a Places, source: Source) -> Option<Self> {
        let mut table = places.table();
        let most = table.most_waiting;
        let waiting = table.waiting.entry(source).or_default();
        if *waiting >= most {
            return None;
        }
        *waiting += 1;
        Some(Self { places, source })
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut table = self.places.table();
        if let Some(waiting) = table.waiting.get_mut(&self.source) {
            *waiting -= 1;
            if *waiting == 0 {
                table.waiting.remove(&self.source);
            }
        }
    }
}

impl Place {
    /// A request has come.
    pub(super) fn begin(&self) {
        self.places
            .table()
            .set(self.number, State::Busy, Instant::now());
    }

    /// It is answered; whether the connection is to end with that.
    pub(super) fn end(&self) -> bool {
        let ends = self.places.table().answered(self.number, Instant::now());
        self.places.0.changed.notify_waiters();
        ends
    }

    /// Waits until somebody else has the place.
    pub(super) async fn evicted(&self) {
        self.evict.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.table().entries.remove(&self.number);
        self.places.0.changed.notify_waiters();
    }
}

impl Table {
    /// Gives a place to a connection, if there is one, or somebody makes room: of the fresh ones, those
    /// of the age `fresh`.
    fn admit(
        &mut self,
        source: Source,
        fresh: Duration,
        now: Instant,
    ) -> Option<(u64, Arc<Notify>)> {
        let own = self.of(source);
        if own >= self.per_source {
            self.evict(source, fresh, now)?;
        } else if self.entries.len() >= self.most {
            let mut all: Vec<Source> = self.entries.values().map(|entry| entry.source).collect();
            all.sort_unstable();
            let runs = all.chunk_by(|a, b| a == b);
            let largest = runs.max_by_key(|run| run.len())?;
            self.evict(largest[0], fresh, now)?;
        }
        let evict = Arc::new(Notify::new());
        let entry = Entry {
            source,
            state: State::Fresh,
            since: now,
            answers: 0,
            evict: evict.clone(),
        };
        let number = self.next;
        self.next += 1;
        self.entries.insert(number, entry);
        Some((number, evict))
    }

    fn of(&self, source: Source) -> usize {
        let entries = self.entries.values();
        entries.filter(|entry| entry.source == source).count()
    }

    /// Takes the place of a connection of that source, if one can be spared.
    fn evict(&mut self, source: Source, fresh: Duration, now: Instant) -> Option<()> {
        let longest = |state, age: Duration| {
            let entries = self.entries.iter();
            entries
                .filter(|(_, entry)| entry.source == source && entry.state == state)
                .filter(|(_, entry)| now.saturating_duration_since(entry.since) >= age)
                .min_by_key(|(_, entry)| entry.since)
                .map(|(number, _)| *number)
        };
        let number = longest(State::Idle, Duration::ZERO)
            .or_else(|| longest(State::Fresh, fresh))
            .or_else(|| longest(State::Busy, self.slow))?;
        let entry = self.entries.remove(&number)?;
        entry.evict.notify_one();
        Some(())
    }

    fn set(&mut self, number: u64, state: State, now: Instant) {
        // It has none any more once it was evicted.
        if let Some(entry) = self.entries.get_mut(&number) {
            entry.state = state;
            entry.since = now;
        }
    }

    fn answered(&mut self, number: u64, now: Instant) -> bool {
        self.set(number, State::Idle, now);
        let is_full = 2 * self.entries.len() > self.most;
        match self.entries.get_mut(&number) {
            None => true,
            Some(entry) => {
                entry.answers = entry.answers.saturating_add(1);
                is_full && entry.answers >= self.answers
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Source = Source::User(1);
    const OTHER: Source = Source::User(2);
    const SLOW: Duration = Duration::from_secs(2);

    fn table() -> Table {
        let bounds = Bounds {
            connections: 4,
            per_source: 2,
            slow: SLOW,
            answers: 3,
            ..Bounds::default()
        };
        let places = Places::new(&bounds);
        let shared = Arc::try_unwrap(places.0).ok().unwrap();
        shared.table.into_inner().unwrap()
    }

    /// Whether the connection has its place still.
    fn has(table: &Table, number: u64) -> bool {
        table.entries.contains_key(&number)
    }

    #[test]
    fn who_was_idle_for_longest_makes_room_within_its_source() {
        let mut table = table();
        let start = Instant::now();
        let (a, _) = table.admit(ONE, SLOW, start).unwrap();
        let (b, _) = table.admit(ONE, SLOW, start).unwrap();
        let (c, _) = table.admit(OTHER, SLOW, start).unwrap();
        for (number, millis) in [(c, 1), (b, 2), (a, 3)] {
            assert!(!table.answered(number, start + Duration::from_millis(millis)));
        }
        let (d, _) = table.admit(ONE, SLOW, start + SLOW).unwrap();
        assert_eq!(
            [a, b, c, d].map(|n| has(&table, n)),
            [true, false, true, true]
        );
        // What comes of it afterwards changes nothing.
        assert!(table.answered(b, start + SLOW));
        assert!(!has(&table, b));
    }

    #[test]
    fn new_and_busy_connections_are_spared_until_they_are_slow() {
        let mut table = table();
        let start = Instant::now();
        let (fresh, _) = table.admit(ONE, SLOW, start).unwrap();
        let (busy, _) = table.admit(ONE, SLOW, start).unwrap();
        table.set(busy, State::Busy, start);
        assert!(table.admit(ONE, SLOW, start + SLOW / 2).is_none());
        assert!(table.admit(OTHER, SLOW, start + SLOW / 2).is_some());
        let (next, _) = table.admit(ONE, SLOW, start + SLOW).unwrap();
        assert!(!has(&table, fresh));
        table.admit(ONE, SLOW, start + SLOW).unwrap();
        assert!(!has(&table, busy));
        assert!(has(&table, next));
    }

    /// The oldest first, and never one that is busy.
    #[test]
    fn fresh_connections_make_room_at_once_if_it_is_asked_for() {
        let mut table = table();
        let start = Instant::now();
        let later = start + Duration::from_millis(1);
        let (first, _) = table.admit(ONE, SLOW, start).unwrap();
        let (second, _) = table.admit(ONE, SLOW, later).unwrap();
        assert!(table.admit(ONE, SLOW, later).is_none());
        let (third, _) = table.admit(ONE, Duration::ZERO, later).unwrap();
        assert_eq!(
            [first, second, third].map(|n| has(&table, n)),
            [false, true, true]
        );
        for number in [second, third] {
            table.set(number, State::Busy, later);
        }
        assert!(table.admit(ONE, Duration::ZERO, later).is_none());
    }

    /// Otherwise it would be closed, a health check as well as those that hold the places.
    #[tokio::test]
    async fn who_comes_while_as_many_wait_as_may_takes_the_place_of_a_fresh_one() {
        let bounds = Bounds {
            connections: 2,
            per_source: 1,
            waiting: 2,
            slow: Duration::from_secs(3600),
            ..Bounds::default()
        };
        let places = Places::new(&bounds);
        let first = places.enter(ONE).await.unwrap();
        let waiting = tokio::spawn({
            let places = places.clone();
            async move { places.enter(ONE).await.is_some() }
        });
        tokio::task::yield_now().await;
        // One waits, so the next one is not to.
        let second = places.enter(ONE).await.unwrap();
        first.evicted().await;
        second.begin();
        assert!(places.enter(ONE).await.is_none());
        drop(second);
        assert!(waiting.await.unwrap());
    }

    /// More connections come than can be waited for: who waits is not passed by for ever.
    #[tokio::test]
    async fn who_has_waited_for_long_takes_the_place_of_one_that_came_after_it() {
        let bounds = Bounds {
            connections: 2,
            per_source: 1,
            waiting: 2,
            slow: Duration::from_millis(80),
            ..Bounds::default()
        };
        let places = Places::new(&bounds);
        let mut last = places.enter(ONE).await;
        let waiting = tokio::spawn({
            let places = places.clone();
            async move { places.enter(ONE).await.is_some() }
        });
        while !waiting.is_finished() {
            tokio::task::yield_now().await;
            // Always the newest of all, so none is ever fresh for too long.
            if let Some(next) = places.enter(ONE).await {
                last.replace(next);
            }
        }
        assert!(waiting.await.unwrap());
    }

    #[test]
    fn where_nothing_is_left_the_source_with_most_makes_room() {
        let mut table = table();
        table.per_source = 3;
        let start = Instant::now();
        let ones = [(); 3].map(|()| table.admit(ONE, SLOW, start).unwrap().0);
        let (other, _) = table.admit(OTHER, SLOW, start).unwrap();
        for number in ones {
            table.answered(number, start + SLOW);
        }
        table.answered(other, start);
        let third = Source::User(3);
        assert!(table.admit(third, SLOW, start + SLOW).is_some());
        assert!(has(&table, other));
        assert_eq!(table.of(ONE), 2);
    }

    #[test]
    fn many_answers_end_a_connection_only_while_places_are_scarce() {
        let mut table = table();
        let now = Instant::now();
        let (a, _) = table.admit(ONE, SLOW, now).unwrap();
        for _ in 0..10 {
            assert!(!table.answered(a, now));
        }
        table.admit(ONE, SLOW, now).unwrap();
        assert!(!table.answered(a, now));
        table.admit(OTHER, SLOW, now).unwrap();
        assert!(table.answered(a, now));
    }
}
