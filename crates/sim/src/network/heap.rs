//! The calendar: events by time, those of one time in the order they came.

/// An event in the future.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) time: u64,
    /// Number of the event: later events have larger ones.
    pub(super) order: u32,
    /// The kind of event in the first bit, and the number of the link, flow or frame in the others.
    pub(super) what: u32,
}

/// A heap with four children to a node: half as deep as a binary one, and the
/// children of a node share a line of the cache.
///
/// Most events that happen bring about one other. So the place of one that was
/// taken out stays free until the next is put in or taken out: a new one begins
/// there, and one that happens soon has not far to go.
#[derive(Debug, Default)]
pub(super) struct Heap {
    events: Vec<Event>,
    /// Whether the first place is free.
    free: bool,
}

impl Heap {
    pub(super) fn clear(&mut self) {
        self.events.clear();
        self.free = false;
    }

    /// When the next event happens; `u64::MAX` if none does.
    #[inline]
    pub(super) fn next_time(&self) -> u64 {
        let time = |events: &[Event]| events.iter().map(|event| event.time).min();
        let first = match self.events.as_slice() {
            [_, a, b, c, d, ..] if self.free => Some(a.time.min(b.time).min(c.time.min(d.time))),
            [_, rest @ ..] if self.free => time(rest),
            events => events.first().map(|event| event.time),
        };
        first.unwrap_or(u64::MAX)
    }

    #[inline]
    pub(super) fn push(&mut self, event: Event) {
        if std::mem::take(&mut self.free) {
            self.sink(event);
            return;
        }
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
        if self.free {
            let last = self.events.pop()?;
            self.free = false;
            if !self.events.is_empty() {
                self.sink(last);
            }
        }
        let top = *self.events.first()?;
        self.free = true;
        Some(top)
    }

    /// Puts an event into the first place, and down from there.
    #[inline]
    fn sink(&mut self, event: Event) {
        let length = self.events.len();
        let mut at = 0;
        loop {
            let first = 4 * at + 1;
            if first >= length {
                break;
            }
            let least = first + least(&self.events[first..(first + 4).min(length)]);
            if event.time <= self.events[least].time {
                break;
            }
            self.events[at] = self.events[least];
            at = least;
        }
        self.events[at] = event;
    }
}

/// The place of the earliest of up to four events. Which one it is cannot be
/// foreseen, so this does without branches.
#[inline]
fn least(events: &[Event]) -> usize {
    if let [a, b, c, d] = events {
        let left = usize::from(b.time < a.time);
        let right = 2 + usize::from(d.time < c.time);
        let is_right = c.time.min(d.time) < a.time.min(b.time);
        return if is_right { right } else { left };
    }
    let mut least = 0;
    for (at, event) in events.iter().enumerate() {
        if event.time < events[least].time {
            least = at;
        }
    }
    least
}

#[cfg(test)]
mod tests {
    use super::*;
    use punctual_model::Rng;

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
                assert_eq!(heap.next_time(), least);
                assert_eq!(heap.pop().unwrap().time, least);
                let next = expected.iter().copied().min().unwrap_or(u64::MAX);
                assert_eq!(heap.next_time(), next);
            }
        }
        expected.sort_unstable();
        let rest: Vec<_> = std::iter::from_fn(|| heap.pop()).map(|e| e.time).collect();
        assert_eq!(rest, expected);
    }
}
