//! A list by numbers that rise: what comes has the highest, and what goes is usually
//! near the front.
//!
//! Invariant: the first place is taken, and at most half of the places, and a few,
//! are not.

use std::collections::VecDeque;

/// Places without a value that are of no account.
const FEW: usize = 64;

/// Values by their numbers.
#[derive(Debug)]
pub(super) struct Numbered<V> {
    places: VecDeque<(u64, Option<V>)>,
    /// Places with a value.
    len: usize,
}

impl<V> Default for Numbered<V> {
    fn default() -> Self {
        Self {
            places: VecDeque::new(),
            len: 0,
        }
    }
}

impl<V> Numbered<V> {
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends a value; its number is higher than all before it.
    pub(super) fn push(&mut self, number: u64, value: V) {
        debug_assert!(self.places.back().is_none_or(|last| last.0 < number));
        self.places.push_back((number, Some(value)));
        self.len += 1;
    }

    pub(super) fn get(&self, number: u64) -> Option<&V> {
        let at = self.find(number)?;
        self.places[at].1.as_ref()
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut V> {
        let at = self.find(number)?;
        self.places[at].1.as_mut()
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<V> {
        let at = self.find(number)?;
        let value = self.places[at].1.take()?;
        self.len -= 1;
        self.tidy();
        Some(value)
    }

    /// Removes values from the front as long as they are such; returns how many.
    pub(super) fn pop_while(&mut self, mut is_such: impl FnMut(&V) -> bool) -> u32 {
        let mut popped = 0;
        while let Some((_, Some(_))) = self
            .places
            .pop_front_if(|(_, value)| value.as_ref().is_none_or(&mut is_such))
        {
            popped += 1;
            self.len -= 1;
            self.tidy();
        }
        popped
    }

    /// In their order, with their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &V)> {
        let places = self.places.iter();
        places.filter_map(|(number, value)| Some((*number, value.as_ref()?)))
    }

    /// Places with and without a value.
    #[cfg(test)]
    pub(in crate::journal) fn places(&self) -> usize {
        self.places.len()
    }

    fn find(&self, number: u64) -> Option<usize> {
        let (first, last) = (self.places.front()?.0, self.places.back()?.0);
        if number < first || number > last {
            return None;
        }
        // Without gaps it is there, with gaps before it.
        let most = usize::try_from(number - first).unwrap_or(usize::MAX);
        let most = most.min(self.places.len() - 1);
        if self.places[most].0 == number {
            return Some(most);
        }
        self.places
            .binary_search_by_key(&number, |place| place.0)
            .ok()
    }

    fn tidy(&mut self) {
        while self
            .places
            .pop_front_if(|(_, value)| value.is_none())
            .is_some()
        {}
        if self.places.len() > 2 * self.len + FEW {
            self.places.retain(|(_, value)| value.is_some());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_map(steps in proptest::collection::vec((0..4, 1u64..4, 0u64..80), 0..400)) {
            let (mut map, mut numbered, mut last) = (BTreeMap::new(), Numbered::default(), 0);
            for (kind, gap, number) in steps {
                match kind {
                    0 | 1 => {
                        last += gap;
                        map.insert(last, last);
                        numbered.push(last, last);
                    }
                    2 => prop_assert_eq!(numbered.remove(number), map.remove(&number)),
                    _ => {
                        let gone = map.iter().take_while(|(_, it)| **it < number / 4).count();
                        prop_assert_eq!(numbered.pop_while(|it| *it < number / 4), gone as u32);
                        map = map.split_off(&(number / 4));
                    }
                }
                prop_assert_eq!(numbered.get(number), map.get(&number));
                prop_assert_eq!(numbered.get_mut(number), map.get_mut(&number));
                prop_assert_eq!(numbered.is_empty(), map.is_empty());
                prop_assert!(numbered.iter().eq(map.iter().map(|(number, it)| (*number, it))));
                prop_assert!(numbered.places.len() <= 2 * map.len() + FEW);
            }
        }
    }
}
