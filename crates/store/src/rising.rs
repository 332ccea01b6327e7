//! A list ordered by rising numbers, such as those of the entries of a session: new items
//! have the highest number, and removed ones are usually near the front.
//!
//! Invariant: the first and the last place are taken, and at most half of the places
//! between them, and a few, are not.

use std::collections::VecDeque;

/// Places without a value that are of no account.
const FEW: usize = 16;

/// Values by numbers that usually rise: a map whose new keys are its highest and whose
/// removed keys are near its front, for which both cost O(1), and O(log n) where there
/// are gaps.
#[derive(Debug, Clone)]
pub struct RisingMap<V> {
    list: VecDeque<(u64, Option<V>)>,
    len: usize,
    /// Places for which there is memory when it is empty, at most.
    spare: usize,
}

impl<V> Default for RisingMap<V> {
    fn default() -> Self {
        Self {
            list: VecDeque::new(),
            len: 0,
            spare: FEW,
        }
    }
}

impl<V: PartialEq> PartialEq for RisingMap<V> {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl<V: Eq> Eq for RisingMap<V> {}

impl<V> RisingMap<V> {
    /// An empty one that has memory for so many at most while it is empty again; others have
    /// for a few.
    pub fn with_spare(spare: usize) -> Self {
        Self {
            spare,
            ..Self::default()
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The place of a number, or where it would be.
    fn find(&self, number: u64) -> Result<usize, usize> {
        let (Some((first, _)), Some((last, _))) = (self.list.front(), self.list.back()) else {
            return Err(0);
        };
        if number < *first {
            return Err(0);
        }
        if number > *last {
            return Err(self.list.len());
        }
        // Without gaps it is there, with gaps before it.
        let most = usize::try_from(number - first).unwrap_or(usize::MAX);
        let most = most.min(self.list.len() - 1);
        if self.list[most].0 == number {
            return Ok(most);
        }
        self.list.binary_search_by_key(&number, |place| place.0)
    }

    pub(crate) fn contains(&self, number: u64) -> bool {
        self.get(number).is_some()
    }

    /// The value of a number.
    pub fn get(&self, number: u64) -> Option<&V> {
        let at = self.find(number).ok()?;
        self.list[at].1.as_ref()
    }

    /// The value of a number, to be changed.
    pub fn get_mut(&mut self, number: u64) -> Option<&mut V> {
        let at = self.find(number).ok()?;
        self.list[at].1.as_mut()
    }

    /// Gives a number a value, and returns the one that it had. O(n) if it is neither
    /// known nor the highest.
    pub fn insert(&mut self, number: u64, value: V) -> Option<V> {
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

    /// Takes the value of a number away.
    pub fn remove(&mut self, number: u64) -> Option<V> {
        self.remove_if(number, |_| true)
    }

    /// The same if it is such.
    pub fn remove_if(&mut self, number: u64, is_such: impl FnOnce(&V) -> bool) -> Option<V> {
        let at = self.find(number).ok()?;
        let place = &mut self.list[at].1;
        if !place.as_ref().is_some_and(is_such) {
            return None;
        }
        let old = place.take();
        self.len -= 1;
        self.tidy();
        old
    }

    /// Takes values from the front as long as they are such; returns how many.
    pub fn pop_while(&mut self, mut is_such: impl FnMut(&V) -> bool) -> usize {
        let before = self.len;
        while let Some((_, Some(_))) = self
            .list
            .pop_front_if(|(_, value)| value.as_ref().is_some_and(&mut is_such))
        {
            self.len -= 1;
            self.tidy();
        }
        before - self.len
    }

    fn tidy(&mut self) {
        while self.list.front().is_some_and(|place| place.1.is_none()) {
            self.list.pop_front();
        }
        while self.list.back().is_some_and(|place| place.1.is_none()) {
            self.list.pop_back();
        }
        if self.list.len() > 2 * self.len + FEW {
            self.list.retain(|place| place.1.is_some());
        }
        if self.list.is_empty() && self.list.capacity() > self.spare {
            // Many sessions have nothing most of the time.
            self.list = VecDeque::new();
        }
    }

    /// In their order, with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &V)> {
        let places = self.list.iter();
        places.filter_map(|(number, value)| Some((*number, value.as_ref()?)))
    }

    /// From that number on, in their order, to be changed.
    pub fn iter_mut_from(&mut self, number: u64) -> impl Iterator<Item = (u64, &mut V)> {
        let (Ok(at) | Err(at)) = self.find(number);
        let places = self.list.range_mut(at..);
        places.filter_map(|(number, value)| Some((*number, value.as_mut()?)))
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
        fn it_is_a_map(steps in proptest::collection::vec((0..5, 0u64..40), 0..200)) {
            let (mut map, mut rising) = (BTreeMap::new(), RisingMap::default());
            for (at, (kind, number)) in steps.into_iter().enumerate() {
                // As it is meant, and anywhere.
                let highest = map.last_key_value().map_or(0, |(last, _)| last + 1 + number / 10);
                match kind {
                    0 => prop_assert_eq!(rising.insert(highest, at), map.insert(highest, at)),
                    1 => prop_assert_eq!(rising.insert(number, at), map.insert(number, at)),
                    2 => prop_assert_eq!(rising.remove(number), map.remove(&number)),
                    3 => {
                        let is_such = |it: &usize| it & 1 == 0;
                        let such = map.get(&number).is_some_and(is_such);
                        let removed = such.then(|| map.remove(&number)).flatten();
                        prop_assert_eq!(rising.remove_if(number, is_such), removed);
                    }
                    _ => {
                        let is_such = |it: &usize| it & 3 > 0;
                        let before = map.len();
                        while map.first_entry().is_some_and(|first| is_such(first.get())) {
                            map.pop_first();
                        }
                        prop_assert_eq!(rising.pop_while(is_such), before - map.len());
                    }
                }
                prop_assert_eq!(rising.len(), map.len());
                prop_assert_eq!(rising.is_empty(), map.is_empty());
                prop_assert_eq!(rising.get(number), map.get(&number));
                prop_assert_eq!(rising.contains(number), map.contains_key(&number));
                prop_assert_eq!(rising.get_mut(number), map.get_mut(&number));
                prop_assert!(rising.iter().eq(map.iter().map(|(number, value)| (*number, value))));
                let from: Vec<_> = rising.iter_mut_from(number).map(|(it, at)| (it, *at)).collect();
                prop_assert!(map.range(number..).map(|(it, at)| (*it, *at)).eq(from));
                prop_assert!(rising.list.len() <= 2 * map.len() + FEW);
            }
        }
    }
}
