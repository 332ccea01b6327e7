//! The subscriptions of one session, found by filter.
//!
//! Most sessions have few subscriptions, for which a list is smallest and fastest. From [`INDEXED`]
//! on, a table maps each filter to its position in the list, so that adding, finding and removing a
//! subscription takes constant time.

use std::hash::BuildHasher;
use std::ops::Deref;

use crate::reserved::Reserved;
use foldhash::fast::RandomState;
use hashbrown::HashTable;
use punctual_codec::packet::SubscribeOptions;
use punctual_codec::topic;

/// Number of subscriptions from which on a table is used: below it, comparing all filters is faster
/// than hashing one.
const INDEXED: usize = 32;

/// One subscription of a session.
#[derive(Debug)]
pub(crate) struct Subscription {
    pub(crate) filter: Box<str>,
    pub(crate) options: SubscribeOptions,
    pub(crate) id: u32,
    /// Whether its messages are numbered.
    pub(crate) numbered: bool,
    /// Whether messages of admitted flows are sent to it as plain ones.
    pub(crate) demoted: bool,
    /// Whether the federation was notified that messages for it are queued while its client is
    /// away.
    pub(crate) persistent: bool,
    /// Number of its replay of retained messages, as [`Replays`](super::Replays) counts them.
    pub(crate) replay: u32,
    /// The reservation of its bytes in the bound of all subscriptions.
    pub(crate) reserved: Option<Reserved>,
}

impl Subscription {
    /// Whether it makes the session a member of a shared subscription.
    pub(crate) fn is_shared(&self) -> bool {
        self.filter.starts_with(topic::SHARE_PREFIX)
    }
}

/// All subscriptions of a session, in no order, each filter once.
#[derive(Debug, Default)]
pub(crate) struct Subscriptions {
    list: Vec<Subscription>,
    places: Option<Box<Places>>,
    /// Bytes of all filters.
    bytes: usize,
}

/// The position of each filter in the list.
#[derive(Debug, Default)]
struct Places {
    table: HashTable<u32>,
    hasher: RandomState,
}

impl Deref for Subscriptions {
    type Target = [Subscription];

    fn deref(&self) -> &[Subscription] {
        &self.list
    }
}

impl Subscriptions {
    /// The subscription with that filter.
    pub(crate) fn find(&self, filter: &str) -> Option<&Subscription> {
        self.list.get(self.place(filter)?)
    }

    /// As [`Self::find`], mutable. The filter must not be changed.
    pub(crate) fn find_mut(&mut self, filter: &str) -> Option<&mut Subscription> {
        let place = self.place(filter)?;
        self.list.get_mut(place)
    }

    /// All subscriptions, mutable. Their filters must not be changed.
    pub(crate) fn iter_mut(&mut self) -> std::slice::IterMut<'_, Subscription> {
        self.list.iter_mut()
    }

    fn place(&self, filter: &str) -> Option<usize> {
        match &self.places {
            None => self.list.iter().position(|it| *it.filter == *filter),
            Some(places) => places.find(&self.list, filter),
        }
    }

    /// Bytes of all filters.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a subscription whose filter is not in the list yet.
    pub(crate) fn insert(&mut self, subscription: Subscription) {
        debug_assert!(self.find(&subscription.filter).is_none());
        self.bytes += subscription.filter.len();
        if self.list.is_empty() {
            // Most sessions have a single subscription.
            self.list.reserve_exact(1);
        }
        self.list.push(subscription);
        match &mut self.places {
            Some(places) => places.note(&self.list, self.list.len() - 1),
            None if self.list.len() >= INDEXED => {
                let mut places = Box::<Places>::default();
                for place in 0..self.list.len() {
                    places.note(&self.list, place);
                }
                self.places = Some(places);
            }
            None => {}
        }
    }

    /// Removes the subscription with that filter.
    pub(crate) fn remove(&mut self, filter: &str) -> Option<Subscription> {
        let place = self.place(filter)?;
        let last = self.list.len() - 1;
        if let Some(places) = &mut self.places {
            places.forget(&self.list, place);
            if place != last {
                // The last subscription moves to the free position.
                places.forget(&self.list, last);
            }
        }
        let removed = self.list.swap_remove(place);
        self.bytes -= removed.filter.len();
        if place != last
            && let Some(places) = &mut self.places
        {
            places.note(&self.list, place);
        }
        if self.list.is_empty() {
            *self = Self::default();
        }
        Some(removed)
    }
}

impl FromIterator<Subscription> for Subscriptions {
    fn from_iter<I: IntoIterator<Item = Subscription>>(all: I) -> Self {
        let mut subscriptions = Self::default();
        for subscription in all {
            subscriptions.insert(subscription);
        }
        subscriptions
    }
}

impl IntoIterator for Subscriptions {
    type Item = Subscription;
    type IntoIter = std::vec::IntoIter<Subscription>;

    fn into_iter(self) -> Self::IntoIter {
        self.list.into_iter()
    }
}

impl Places {
    fn hash(&self, filter: &str) -> u64 {
        self.hasher.hash_one(filter)
    }

    fn find(&self, list: &[Subscription], filter: &str) -> Option<usize> {
        let is = |place: &u32| {
            let there = list.get(*place as usize);
            there.is_some_and(|it| *it.filter == *filter)
        };
        let place = self.table.find(self.hash(filter), is)?;
        Some(*place as usize)
    }

    /// Adds the subscription at a position to the table.
    fn note(&mut self, list: &[Subscription], place: usize) {
        let hasher = &self.hasher;
        let hash = |place: usize| hasher.hash_one(&*list[place].filter);
        self.table
            .insert_unique(hash(place), place as u32, |place| hash(*place as usize));
    }

    /// Removes the subscription at a position, which is still in the list, from the table.
    fn forget(&mut self, list: &[Subscription], place: usize) {
        let hash = self.hash(&list[place].filter);
        if let Ok(entry) = self.table.find_entry(hash, |it| *it as usize == place) {
            entry.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn subscription(filter: &str) -> Subscription {
        Subscription {
            filter: filter.into(),
            options: SubscribeOptions::default(),
            id: 0,
            numbered: false,
            demoted: false,
            persistent: false,
            replay: 0,
            reserved: None,
        }
    }

    proptest! {
        /// With more and with fewer subscriptions than a table needs, the list behaves like a set.
        #[test]
        fn they_are_a_set(steps in prop::collection::vec((0u8..5, 0u32..100), 0..400)) {
            let (mut ours, mut set) = (Subscriptions::default(), BTreeSet::new());
            for (step, number) in steps {
                let filter = number.to_string();
                match step {
                    0..=2 if set.insert(filter.clone()) => ours.insert(subscription(&filter)),
                    3 => prop_assert_eq!(ours.remove(&filter).is_some(), set.remove(&filter)),
                    _ => {}
                }
                prop_assert_eq!(ours.len(), set.len());
                prop_assert_eq!(ours.find(&filter).is_some(), set.contains(&filter));
                for filter in &set {
                    prop_assert_eq!(&*ours.find(filter).unwrap().filter, &**filter);
                }
            }
        }
    }
}
