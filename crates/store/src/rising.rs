//! A list by numbers that rise, as those of the entries of a session do: what comes
//! has the highest number, and what goes is usually the first.
//!
//! Invariant: the first and the last place are taken, and at most half of the places
//! between them, and a few, are not.

use std::collections::VecDeque;

/// Places without a value that are of no account.
const FEW: usize = 16;

/// Values by their numbers.
#[derive(Debug, Clone)]
pub(crate) struct Rising<V> {
    list: VecDeque<(u64, Option<V>)>,
    len: usize,
}

impl<V> Default for Rising<V> {
    fn default() -> Self {
        Self {
            list: VecDeque::new(),
            len: 0,
        }
    }
}

impl<V: PartialEq> PartialEq for Rising<V> {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl<V: Eq> Eq for Rising<V> {}

impl<V> Rising<V> {
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The place of a number, or where it would be.
    fn find(&self, number: u64) -> Result<usize, usize> {
        match (self.list.front(), self.list.back()) {
            (Some((first, _)), _) if *first == number => Ok(0),
            (_, Some((last, _))) if *last < number => Err(self.list.len()),
            _ => self.list.binary_search_by_key(&number, |place| place.0),
        }
    }

    pub(crate) fn contains(&self, number: u64) -> bool {
        self.get(number).is_some()
    }

    pub(crate) fn get(&self, number: u64) -> Option<&V> {
        let at = self.find(number).ok()?;
        self.list[at].1.as_ref()
    }

    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut V> {
        let at = self.find(number).ok()?;
        self.list[at].1.as_mut()
    }

    /// Returns the value that it had.
    pub(crate) fn insert(&mut self, number: u64, value: V) -> Option<V> {
        let old = match self.find(number) {
            Ok(at) => self.list[at].1.replace(value),
            Err(at) if at == self.list.len() => {
                self.list.push_back((number, Some(value)));
                None
            }
            Err(at) => {
                self.list.insert(at, (number, Some(value)));
                None
            }
        };
        self.len += usize::from(old.is_none());
        old
    }

    pub(crate) fn remove(&mut self, number: u64) -> Option<V> {
        let at = self.find(number).ok()?;
        let old = self.list[at].1.take()?;
        self.len -= 1;
        while self.list.front().is_some_and(|place| place.1.is_none()) {
            self.list.pop_front();
        }
        while self.list.back().is_some_and(|place| place.1.is_none()) {
            self.list.pop_back();
        }
        if self.list.len() > 2 * self.len + FEW {
            self.list.retain(|place| place.1.is_some());
        }
        if self.list.is_empty() && self.list.capacity() > FEW {
            // Many sessions have nothing most of the time.
            self.list = VecDeque::new();
        }
        Some(old)
    }

    /// In their order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &V)> {
        let places = self.list.iter();
        places.filter_map(|(number, value)| Some((*number, value.as_ref()?)))
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_map(steps in proptest::collection::vec((any::<bool>(), 0u64..40), 0..200)) {
            let (mut map, mut rising) = (BTreeMap::new(), Rising::default());
            for (at, (insert, number)) in steps.into_iter().enumerate() {
                match insert {
                    true => prop_assert_eq!(rising.insert(number, at), map.insert(number, at)),
                    false => prop_assert_eq!(rising.remove(number), map.remove(&number)),
                }
                prop_assert_eq!(rising.len(), map.len());
                prop_assert_eq!(rising.get(number), map.get(&number));
                prop_assert_eq!(rising.contains(number), map.contains_key(&number));
                prop_assert_eq!(rising.get_mut(number), map.get_mut(&number));
                prop_assert!(rising.iter().eq(map.iter().map(|(number, value)| (*number, value))));
                prop_assert!(rising.list.len() <= 2 * map.len() + FEW);
            }
        }
    }
}
