//! Events in virtual time, the next one first. Events of one time happen in the order in
//! which they were scheduled, so that a run depends on nothing but its seed.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use punctual_model::Nanos;

/// Events that are to happen, by time.
#[derive(Debug)]
pub struct Queue<E, T = Nanos> {
    events: BinaryHeap<Scheduled<E, T>>,
    /// Events scheduled so far.
    count: u64,
}

#[derive(Debug)]
struct Scheduled<E, T> {
    at: T,
    number: u64,
    event: E,
}

impl<E, T: Copy + Ord> Queue<E, T> {
    /// Without events.
    pub fn new() -> Self {
        Self {
            events: BinaryHeap::new(),
            count: 0,
        }
    }

    /// Adds an event that happens at a time.
    pub fn schedule(&mut self, at: T, event: E) {
        self.count += 1;
        self.events.push(Scheduled {
            at,
            number: self.count,
            event,
        });
    }

    /// When the next event happens, if there is one.
    pub fn next_time(&self) -> Option<T> {
        self.events.peek().map(|next| next.at)
    }

    /// Takes the next event, if it happens at `until` at the latest, and says when it happens.
    pub fn pop(&mut self, until: T) -> Option<(T, E)> {
        self.next_time().filter(|at| *at <= until)?;
        let next = self.events.pop()?;
        Some((next.at, next.event))
    }

    /// Whether there are no events.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Drops those events that are not to be kept.
    pub fn retain(&mut self, mut keep: impl FnMut(&E) -> bool) {
        self.events.retain(|scheduled| keep(&scheduled.event));
    }

    /// Drops all events.
    pub fn clear(&mut self) {
        self.events.clear();
    }
}

impl<E, T: Copy + Ord> Default for Queue<E, T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<E, T: Ord> PartialEq for Scheduled<E, T> {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl<E, T: Ord> Eq for Scheduled<E, T> {}

impl<E, T: Ord> PartialOrd for Scheduled<E, T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E, T: Ord> Ord for Scheduled<E, T> {
    /// The earliest is the greatest, as `BinaryHeap` wants it.
    fn cmp(&self, other: &Self) -> Ordering {
        (&other.at, other.number).cmp(&(&self.at, self.number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_happen_by_time_and_those_of_one_time_in_their_order() {
        let mut queue = Queue::new();
        for (at, event) in [(3, 'a'), (1, 'b'), (3, 'c'), (2, 'd'), (1, 'e')] {
            queue.schedule(Nanos(at), event);
        }
        let mut order = String::new();
        while let Some((at, event)) = queue.pop(Nanos(2)) {
            assert!(at <= Nanos(2));
            order.push(event);
        }
        assert_eq!(order, "bed");
        assert_eq!(queue.next_time(), Some(Nanos(3)));
        order.extend(std::iter::from_fn(|| queue.pop(Nanos::MAX)).map(|(_, event)| event));
        assert_eq!(order, "bedac");
        assert!(queue.is_empty());
    }
}
