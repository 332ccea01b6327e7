//! Remote flow control: filters on which a neighbour accepts few messages, because a receiver
//! behind it has no room for more.
//!
//! The broker does the same for clients whose policy is to refuse (`overflow.rs`): while the queue
//! of a client is nearly full, the broker sends the filters of that client to all neighbours. A
//! message from a neighbour that finds no room in the queue is blocked until there is room.
//!
//! A broker whose queue for one neighbour fills up sends the filters of that neighbour to the other
//! ones (`$mesh/throttle`). These hold back their messages for the broker on the filters, apart from
//! the rest of its queue, and send them in a second window of the same size; other messages
//! overtake. At most half of a queue may be held back. When that half is full, a broker sends the
//! filters on to its own neighbours, and refuses publications of its clients on them, and no
//! others. When there is room again, all held-back messages return to the queue.
//!
//! Why that is enough:
//!
//! * **Other messages do not wait.** Held-back messages count neither in the window of the rest nor
//!   in its half of the queue. Messages that were in flight when the filters arrived count as held
//!   back, too, and are blocked at a receiver without room (`parked.rs`), where they take no room
//!   from others.
//! * **No deadlock.** Held-back messages in flight wait for room like all messages in flight. Since
//!   nothing else blocks them, they go on as soon as the full receiver has room.
//! * **Order.** The waiting messages of one topic are either all held back or all in the queue, in
//!   order: a message on a topic with held-back messages is held back as well, and the queued
//!   messages on the filters move as a whole when the filters arrive. A retained message is held
//!   back whatever its topic, since it goes to all brokers, and is sent only when nothing older is
//!   in the queue.
//! * **Bounds.** With held-back messages a queue holds half as much again, and a window twice as
//!   much. There are at most `MOST` filters: a longer list is replaced by the first levels of its
//!   filters and `#`.
//! * **A restart** or a new connection begins without filters: all messages are in the queue, in
//!   the order of arrival.
//!
//! A neighbour that does not know the protocol ignores the filters: its messages are blocked where
//! there is no room for them, until its window is full.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use punctual_codec::topic;
use smallvec::{SmallVec, smallvec};

/// Topic of the messages of flow control. Each has all filters, and a length in front of each
/// filter.
pub(crate) const TOPIC: &str = "$mesh/throttle";
/// Largest number of filters in a message, and of their bytes.
const MOST: usize = 512;
const MOST_BYTES: usize = 32 << 10;
/// Largest number of levels of a filter that replaces longer ones.
const LEVELS: usize = 8;
/// Fill level of a queue, in eighths, from which neighbours are notified,
pub(crate) const HIGH: usize = 6;
/// until the level falls below this one.
pub(crate) const LOW: usize = 5;

/// A set of filters, as a tree of topic levels.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    below: HashMap<Box<str>, Self, RandomState>,
    /// Whether a filter ends at this level.
    ends: bool,
    /// Whether a filter ends with `#` below this level.
    all: bool,
}

impl Throttle {
    pub(crate) fn new(filters: &[Box<str>]) -> Self {
        let mut root = Self::default();
        for filter in filters {
            let (path, all) = match filter.strip_suffix('#') {
                Some(path) => (path.strip_suffix('/'), true),
                None => (Some(&**filter), false),
            };
            let mut at = &mut root;
            for level in path.into_iter().flat_map(|path| path.split('/')) {
                at = at.below.entry(level.into()).or_default();
            }
            match all {
                true => at.all = true,
                false => at.ends = true,
            }
        }
        root
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.below.is_empty() && !self.all
    }

    /// Whether a topic matches one of the filters.
    pub(crate) fn has(&self, topic: &str) -> bool {
        // A topic that begins with $ does not match a filter that begins with a wildcard
        // [MQTT-4.7.2-1].
        match topic.starts_with('$') {
            true => {
                let (first, rest) = next(topic);
                let below = self.below.get(first);
                below.is_some_and(|below| below.has_levels(rest))
            }
            false => self.has_levels(Some(topic)),
        }
    }

    fn has_levels(&self, rest: Option<&str>) -> bool {
        let mut ways: SmallVec<[_; 8]> = smallvec![(self, rest)];
        while let Some((at, rest)) = ways.pop() {
            let Some(rest) = rest.filter(|_| !at.all) else {
                if at.all || at.ends {
                    return true;
                }
                continue;
            };
            let (first, rest) = next(rest);
            let below = [first, "+"].map(|level| at.below.get(level));
            ways.extend(below.into_iter().flatten().map(|below| (below, rest)));
        }
        false
    }
}

/// The first level of a topic, and what follows it.
fn next(topic: &str) -> (&str, Option<&str>) {
    match topic.split_once('/') {
        Some((first, rest)) => (first, Some(rest)),
        None => (topic, None),
    }
}

/// A sorted list of at most [`MOST`] filters that match all that these match; the same filters if
/// they are few enough.
pub(crate) fn gist<'a>(filters: impl Iterator<Item = &'a str> + Clone) -> Vec<Box<str>> {
    gist_of(filters, MOST)
}

/// Like [`gist`], with at most `most` filters.
fn gist_of<'a>(filters: impl Iterator<Item = &'a str> + Clone, most: usize) -> Vec<Box<str>> {
    let first = |levels| cut(filters.clone(), levels, most);
    let all = first(usize::MAX).or_else(|| (1..=LEVELS).rev().find_map(first));
    match all {
        Some(all) => all.into_iter().collect(),
        None => vec!["#".into()],
    }
}

/// The filters, cut to `levels` levels and `#`; `None` if there are more than `most`.
fn cut<'a>(
    filters: impl Iterator<Item = &'a str>,
    levels: usize,
    most: usize,
) -> Option<BTreeSet<Box<str>>> {
    let (mut all, mut bytes) = (BTreeSet::new(), 0);
    for filter in filters {
        let end = filter.match_indices('/').nth(levels.wrapping_sub(1));
        let cut: Box<str> = match end {
            Some((end, _)) => format!("{}/#", &filter[..end]).into(),
            None => filter.into(),
        };
        bytes += cut.len();
        if !all.insert(cut) {
            continue;
        }
        if all.len() > most || bytes > MOST_BYTES {
            return None;
        }
    }
    Some(all)
}

/// Largest number of clients with lists of their own, and of filters of each.
const MOST_FULL: usize = 64;
const MOST_OF_ONE: usize = 32;
/// Largest number of filters of one client that are examined: a client with more stands for the
/// filter `#`.
const MOST_LOOKED_AT: usize = 1024;

/// The clients of a broker for which messages are refused because their queues are nearly full, by
/// the number of the session, and their filters.
#[derive(Debug, Default)]
pub(crate) struct FullClients {
    clients: BTreeMap<u64, Arc<[Box<str>]>>,
    /// Number of further clients, which have no lists of their own.
    others: usize,
    /// The list for all further clients, once there was one.
    all: Option<Arc<[Box<str>]>>,
}

impl FullClients {
    /// Adds a client with these filters, whose queue has become nearly full. `number` is that of
    /// its session.
    pub(crate) fn add<'a>(
        &mut self,
        number: u64,
        filters: impl ExactSizeIterator<Item = &'a str> + Clone,
    ) {
        if self.clients.len() >= MOST_FULL {
            self.others += 1;
            self.all.get_or_insert_with(|| Arc::new(["#".into()]));
            return;
        }
        let gist = match filters.len() <= MOST_LOOKED_AT {
            true => gist_of(filters, MOST_OF_ONE),
            false => vec!["#".into()],
        };
        self.clients.insert(number, gist.into());
    }

    /// Removes a client whose queue is not full any more.
    pub(crate) fn remove(&mut self, number: u64) {
        if self.clients.remove(&number).is_none() {
            self.others -= 1;
        }
    }

    /// Lists of filters to send to neighbours, one for each client. A list stays the same object as
    /// long as it does not change.
    pub(crate) fn parts(&self) -> Vec<Arc<[Box<str>]>> {
        let others = self.all.iter().filter(|_| self.others > 0);
        let parts = self.clients.values().chain(others);
        parts.filter(|part| !part.is_empty()).cloned().collect()
    }
}

/// Encodes filters for a message to a neighbour, which [`parse`] reads.
pub fn encode(filters: &[Box<str>]) -> Vec<u8> {
    let mut out = Vec::new();
    for filter in filters {
        // Filters are at most as long as topics.
        out.extend_from_slice(&(filter.len() as u16).to_be_bytes());
        out.extend_from_slice(filter.as_bytes());
    }
    out
}

/// Reads the filters that [`encode`] wrote: at most 512 valid filters, of at most
/// [`topic::MAX_LEVELS`] levels each; `None` for anything else.
pub fn parse(mut bytes: &[u8]) -> Option<Vec<Box<str>>> {
    let mut filters = Vec::new();
    while let Some((len, rest)) = bytes.split_first_chunk() {
        let (filter, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*len)))?;
        let filter = std::str::from_utf8(filter).ok()?;
        topic::validate_filter(filter).ok()?;
        if filters.len() == MOST || topic::levels(filter) > topic::MAX_LEVELS {
            return None;
        }
        filters.push(filter.into());
        bytes = rest;
    }
    bytes.is_empty().then_some(filters)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(last: &'static [&'static str]) -> impl Strategy<Value = String> {
        let level = prop::sample::select(vec!["a", "b", "", "+"]);
        let levels = prop::collection::vec(level, 0..4);
        (levels, prop::sample::select(last)).prop_map(|(mut levels, last)| {
            levels.push(last);
            levels.join("/")
        })
    }

    proptest! {
        #[test]
        fn a_topic_is_found_where_a_filter_matches(
            filters in prop::collection::vec(words(&["a", "b", "+", "#", "$a"]), 0..5),
            topic in words(&["a", "b", "$a"]),
            dollar: bool,
        ) {
            let topic = topic.replace('+', "c");
            let topic = if dollar { format!("${topic}") } else { topic };
            let filters: Vec<Box<str>> = filters.iter().map(|it| it.as_str().into()).collect();
            let filters: Vec<_> =
                filters.into_iter().filter(|it| topic::validate_filter(it).is_ok()).collect();
            prop_assume!(topic::validate_name(topic.as_bytes()).is_ok());
            let throttle = Throttle::new(&filters);
            let matches = filters.iter().any(|filter| topic::matches(filter, &topic));
            prop_assert_eq!(throttle.has(&topic), matches, "{:?} {}", filters, topic);
            prop_assert_eq!(throttle.is_empty(), filters.is_empty());
            prop_assert_eq!(parse(&encode(&filters)), Some(filters));
        }
    }

    #[test]
    fn many_filters_become_few_that_match_the_same_and_more() {
        let few: Vec<Box<str>> = vec!["a/b".into(), "c/#".into()];
        assert_eq!(gist(few.iter().rev().map(|it| &**it)), few);
        let many: Vec<String> = (0..4000).map(|n| format!("x/{}/{n}/+", n % 3)).collect();
        let some = gist(many.iter().map(String::as_str));
        let expected: Vec<Box<str>> = vec!["x/0/#".into(), "x/1/#".into(), "x/2/#".into()];
        assert_eq!(some, expected);
        let all: Vec<String> = (0..4000).map(|n| format!("{n}/a")).collect();
        assert_eq!(gist(all.iter().map(String::as_str)), ["#".into()]);
    }

    #[test]
    fn however_many_clients_are_full_few_filters_stand_for_them() {
        let mut full = FullClients::default();
        let deep: Vec<String> = (0..100).map(|n| format!("a/{}/{n}", n % 7)).collect();
        let many: Vec<String> = (0..5000).map(|n| n.to_string()).collect();
        full.add(1, deep.iter().map(String::as_str));
        full.add(2, many.iter().map(String::as_str));
        full.add(3, [].into_iter());
        assert_eq!(full.parts().len(), 2);
        assert_eq!(full.parts()[0].len(), 7);
        assert_eq!(*full.parts()[1], ["#".into()]);
        for number in 4..1000 {
            full.add(number, ["b"].into_iter());
        }
        assert_eq!(full.parts().len(), MOST_FULL);
        assert!(full.parts().iter().any(|part| **part == ["#".into()]));
        for number in 1..1000 {
            full.remove(number);
        }
        assert!(full.parts().is_empty());
        assert_eq!(full.others, 0);
    }

    #[test]
    fn what_is_no_list_of_filters_is_refused() {
        for bytes in [&b"\0"[..], b"\0\x02a", b"\0\x03a#b", b"\0\0", b"\0\x01\xFF"] {
            assert_eq!(parse(bytes), None, "{bytes:?}");
        }
        let many = vec!["a".into(); MOST + 1];
        assert_eq!(parse(&encode(&many)), None);
        let deep = |levels: usize| [Box::from("a/".repeat(levels - 1) + "a")];
        assert_eq!(parse(&encode(&deep(topic::MAX_LEVELS + 1))), None);
        assert!(parse(&encode(&deep(topic::MAX_LEVELS))).is_some());
    }

    #[test]
    fn a_topic_may_have_more_levels_than_filters() {
        let deep = "+/".repeat(topic::MAX_LEVELS - 1) + "#";
        let throttle = Throttle::new(&[deep.into()]);
        assert!(throttle.has(&"/".repeat(60_000)));
        assert!(!throttle.has(&"/".repeat(100)));
    }
}
