//! The subscriptions of one session, found by filter.
//!
//! Most sessions have a few, for which a list is smallest and fastest. From [`INDEXED`] on a table
//! says where in the list each filter stands, so that adding, finding and removing one costs the
//! same however many there are.

use std::hash::BuildHasher;
use std::ops::Deref;

use crate::reserved::Reserved;
use foldhash::fast::RandomState;
use hashbrown::HashTable;
use punctual_codec::packet::SubscribeOptions;

/// Number of subscriptions from which on there is a table: below it, comparing all filters is
/// faster than hashing one.
const INDEXED: usize = 32;

/// One subscription of a session.
#[derive(Debug)]
pub(crate) struct Subscription {
    pub(crate) filter: Box<str>,
    pub(crate) options: SubscribeOptions,
    pub(crate) id: u32,
    /// Its messages are numbered.
    pub(crate) numbered: bool,
    /// Messages of admitted flows go to it with the plain ones.
    pub(crate) demoted: bool,
    /// The federation knows that it is to be sent messages also when its client is away.
    pub(crate) persistent: bool,
    /// Number of its replay of retained messages, as [`Replays`](super::Replays) counts them.
    pub(crate) replay: u32,
    /// Its bytes among those of all subscriptions.
    pub(crate) reserved: Option<Reserved>,
}

/// All subscriptions of a session, in no order, each filter once.
#[derive(Debug, Default)]
pub(crate) struct Subscriptions {
    list: Vec<Subscription>,
    places: Option<Box<Places>>,
    /// Of all filters.
    bytes: usize,
}

/// Where in the list each filter stands.
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
    /// The one with that filter.
    pub(crate) fn find(&self, filter: &str) -> Option<&Subscription> {
        self.list.get(self.place(filter)?)
    }

    /// The same, to be changed. Its filter stays what it is.
    pub(crate) fn find_mut(&mut self, filter: &str) -> Option<&mut Subscription> {
        let place = self.place(filter)?;
        self.list.get_mut(place)
    }

    /// All, to be changed. Their filters stay what they are.
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

    /// Adds one whose filter is not among them.
    pub(crate) fn insert(&mut self, subscription: Subscription) {
        debug_assert!(self.find(&subscription.filter).is_none());
        self.bytes += subscription.filter.len();
        if self.list.is_empty() {
            // Most sessions stay with one.
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

    /// Removes the one with that filter.
    pub(crate) fn remove(&mut self, filter: &str) -> Option<Subscription> {
        let place = self.place(filter)?;
        let last = self.list.len() - 1;
        if let Some(places) = &mut self.places {
            places.forget(&self.list, place);
            if place != last {
                // The last one takes its place.
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

    /// Takes in the one at a place.
    fn note(&mut self, list: &[Subscription], place: usize) {
        let hasher = &self.hasher;
        let hash = |place: usize| hasher.hash_one(&*list[place].filter);
        self.table
            .insert_unique(hash(place), place as u32, |place| hash(*place as usize));
    }

    /// Leaves out the one at a place, which is still there.
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
        /// With more and with fewer than a table takes, they agree with a set.
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
