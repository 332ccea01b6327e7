//! The calendar: events by time, those of one time in the order they came.

/// Something that will happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) time: u64,
    /// Number of the event: later events have larger ones.
    pub(super) order: u32,
    /// What, in two bits, and to which link, flow or frame.
    pub(super) what: u32,
}

/// A heap with four children to a node: half as deep as a binary one, and the
/// children of a node share a line of the cache.
#[derive(Debug, Default)]
pub(super) struct Heap {
    events: Vec<Event>,
}

impl Heap {
    pub(super) fn clear(&mut self) {
        self.events.clear();
    }

    pub(super) fn next_time(&self) -> Option<u64> {
        self.events.first().map(|event| event.time)
    }

    #[inline]
    pub(super) fn push(&mut self, event: Event) {
        let mut at = self.events.len();
        self.events.push(event);
        while at > 0 {
            let parent = (at - 1) / 4;
            if self.events[parent].time <= event.time {
                break;
            }
            self.events[at] = self.events[parent];
            at = parent;
        }
        self.events[at] = event;
    }

    #[inline]
    pub(super) fn pop(&mut self) -> Option<Event> {
        let top = *self.events.first()?;
        let last = self.events.pop()?;
        let length = self.events.len();
        if length > 0 {
            let mut at = 0;
            loop {
                let first = 4 * at + 1;
                if first >= length {
                    break;
                }
                let end = (first + 4).min(length);
                let mut least = first;
                for child in first + 1..end {
                    if self.events[child].time < self.events[least].time {
                        least = child;
                    }
                }
                if last.time <= self.events[least].time {
                    break;
                }
                self.events[at] = self.events[least];
                at = least;
            }
            self.events[at] = last;
        }
        Some(top)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rng;

    #[test]
    fn gives_back_in_order_of_time() {
        let mut rng = Rng::new(1);
        let mut heap = Heap::default();
        let mut expected = Vec::new();
        for order in 0..500 {
            let time = rng.below(200);
            heap.push(Event {
                time,
                order,
                what: 0,
            });
            expected.push(time);
            if rng.chance(30) {
                let least = expected.iter().copied().min().unwrap();
                let at = expected.iter().position(|time| *time == least).unwrap();
                expected.swap_remove(at);
                assert_eq!(heap.next_time(), Some(least));
                assert_eq!(heap.pop().unwrap().time, least);
            }
        }
        expected.sort_unstable();
        let rest: Vec<_> = std::iter::from_fn(|| heap.pop()).map(|e| e.time).collect();
        assert_eq!(rest, expected);
    }
}
