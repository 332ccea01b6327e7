//! An ordered map in pages of at most 64 entries: a B+ tree.
//!
//! A page is one piece of memory, and a search in it has no branch instructions that depend on the
//! keys. So a processor that does several lookups one after the other waits for the memory of many
//! of them at once. Full pages are divided, and adjacent pages that have become small are merged: a
//! change moves at most two pages of each level.

use std::slice;

use smallvec::SmallVec;

/// Maximum number of entries of a page. A change copies at most as many at each level.
const PAGE: usize = 64;
/// Maximum number of entries of two adjacent pages that are merged, so that the result is not
/// divided again soon.
const TOGETHER: usize = PAGE / 4 * 3;

/// The map.
#[derive(Debug)]
pub(super) enum Pages<K, V> {
    /// Entries, in order.
    Leaf(Vec<(K, V)>),
    /// Pages of one level in order, none of them empty, each with the least key that belongs there.
    /// All keys below that of the second page belong to the first, whose own key has no meaning.
    Inner(Vec<Lower<K, V>>),
}

/// A page with the least key that belongs there.
type Lower<K, V> = (K, Pages<K, V>);

impl<K, V> Default for Pages<K, V> {
    fn default() -> Self {
        Self::Leaf(Vec::new())
    }
}

impl<K: Copy + Ord, V: Copy> Pages<K, V> {
    /// A map of two different keys.
    pub(super) fn pair(one: (K, V), two: (K, V)) -> Self {
        Self::Leaf(if one.0 < two.0 {
            vec![one, two]
        } else {
            vec![two, one]
        })
    }

    /// The value of a key.
    #[inline]
    pub(super) fn get(&self, key: K) -> Option<V> {
        let mut page = self;
        loop {
            match page {
                Self::Leaf(entries) => {
                    let at = end_of(entries, key).checked_sub(1)?;
                    let (found, value) = entries.get(at)?;
                    return (*found == key).then_some(*value);
                }
                Self::Inner(pages) => page = &pages.get(place(pages, key))?.1,
            }
        }
    }

    /// Adds an entry, or replaces it.
    pub(super) fn set(&mut self, key: K, value: V) {
        if let Some(upper) = self.add(key, value) {
            let lower = (upper.0, std::mem::take(self));
            *self = Self::Inner(vec![lower, upper]);
        }
    }

    /// As [`Self::set`]; returns the entries that must become a page of their own.
    fn add(&mut self, key: K, value: V) -> Option<(K, Self)> {
        match self {
            Self::Leaf(entries) => {
                let at = end_of(entries, key);
                if let Some((_, old)) = entries[..at].last_mut().filter(|(last, _)| *last == key) {
                    *old = value;
                    return None;
                }
                let upper = insert(entries, at, (key, value))?;
                Some((upper.first()?.0, Self::Leaf(upper)))
            }
            Self::Inner(pages) => {
                let at = place(pages, key);
                let more = pages.get_mut(at)?.1.add(key, value)?;
                let upper = insert(pages, at + 1, more)?;
                Some((upper.first()?.0, Self::Inner(upper)))
            }
        }
    }

    /// Removes an entry, if it exists.
    pub(super) fn remove(&mut self, key: K) {
        self.take(key);
        while let Self::Inner(pages) = self
            && pages.len() <= 1
        {
            *self = pages.pop().map(|(_, page)| page).unwrap_or_default();
        }
    }

    fn take(&mut self, key: K) {
        match self {
            Self::Leaf(entries) => {
                if let Ok(at) = entries.binary_search_by_key(&key, |(key, _)| *key) {
                    entries.remove(at);
                    if entries.len() <= entries.capacity() / 4 {
                        entries.shrink_to(entries.len() * 2);
                    }
                }
            }
            Self::Inner(pages) => {
                let at = place(pages, key);
                if let Some((_, page)) = pages.get_mut(at) {
                    page.take(key);
                }
                tidy(pages, at);
            }
        }
    }

    /// Number of entries of the uppermost page.
    fn len(&self) -> usize {
        match self {
            Self::Leaf(entries) => entries.len(),
            Self::Inner(pages) => pages.len(),
        }
    }

    /// Appends the content of the next page of its level, which begins at the key `first`.
    fn append(&mut self, first: K, next: Self) {
        match (self, next) {
            (Self::Leaf(entries), Self::Leaf(mut more)) => {
                entries.reserve_exact(more.len());
                entries.append(&mut more);
            }
            (Self::Inner(pages), Self::Inner(mut more)) => {
                // This page was the first, whose key has no meaning; now its key is needed.
                if let Some((key, _)) = more.first_mut() {
                    *key = first;
                }
                pages.reserve_exact(more.len());
                pages.append(&mut more);
            }
            _ => debug_assert!(false, "pages of one level are of one kind"),
        }
    }

    /// The entry, if there is exactly one.
    pub(super) fn sole(&self) -> Option<(K, V)> {
        match self {
            Self::Leaf(entries) => match entries[..] {
                [sole] => Some(sole),
                _ => None,
            },
            Self::Inner(_) => None,
        }
    }

    /// The entries in order, from a key on or all.
    pub(super) fn range(&self, from: Option<K>) -> Range<'_, K, V> {
        let mut above = SmallVec::new();
        let mut page = self;
        loop {
            match page {
                Self::Leaf(entries) => {
                    let at = from.map_or(0, |from| entries.partition_point(|(key, _)| *key < from));
                    let entries = entries[at..].iter();
                    return Range { entries, above };
                }
                Self::Inner(pages) => {
                    let at = from.map_or(0, |from| place(pages, from));
                    let Some(((_, first), rest)) = pages[at..].split_first() else {
                        let entries = [].iter();
                        return Range { entries, above };
                    };
                    above.push(rest.iter());
                    page = first;
                }
            }
        }
    }
}

/// Number of entries with keys up to this one.
#[inline]
fn end_of<K: Copy + Ord, T>(entries: &[(K, T)], key: K) -> usize {
    entries.partition_point(|(other, _)| *other <= key)
}

/// The position of the page to which a key belongs.
#[inline]
fn place<K: Copy + Ord, T>(pages: &[(K, T)], key: K) -> usize {
    end_of(pages.get(1..).unwrap_or_default(), key)
}

/// Inserts into a page; if the page is full, divides it and returns the upper part.
fn insert<T>(page: &mut Vec<T>, at: usize, new: T) -> Option<Vec<T>> {
    let len = page.len();
    if len < PAGE {
        if len == page.capacity() {
            page.reserve_exact((len / 2).clamp(1, PAGE - len));
        }
        page.insert(at, new);
        return None;
    }
    // Ascending insertions leave full pages behind.
    let cut = if at == PAGE { PAGE } else { PAGE / 2 };
    let mut upper = Vec::with_capacity(if at == PAGE { PAGE / 4 } else { TOGETHER });
    upper.extend(page.drain(cut..));
    page.shrink_to(TOGETHER.max(cut));
    match at.checked_sub(cut) {
        Some(at) => upper.insert(at, new),
        None => page.insert(at, new),
    }
    Some(upper)
}

/// After a removal from a page: removes the page if it is empty, or merges it with an adjacent page
/// if both have become small.
fn tidy<K: Copy + Ord, V: Copy>(pages: &mut Vec<Lower<K, V>>, at: usize) {
    let len = |pages: &[Lower<K, V>], at: usize| pages.get(at).map(|(_, page)| page.len());
    match len(pages, at) {
        None => return,
        Some(0) => {
            pages.remove(at);
            return;
        }
        Some(_) => {}
    }
    for lower in [at.saturating_sub(1), at] {
        let (Some(one), Some(two)) = (len(pages, lower), len(pages, lower + 1)) else {
            continue;
        };
        if one + two <= TOGETHER {
            let (first, upper) = pages.remove(lower + 1);
            pages[lower].1.append(first, upper);
            return;
        }
    }
}

/// Iterator over the entries of a range, in ascending order of keys.
#[derive(Debug, Clone)]
pub(super) struct Range<'a, K, V> {
    /// The remaining entries of a page.
    entries: slice::Iter<'a, (K, V)>,
    /// The remaining pages, the lowest level last.
    above: SmallVec<[slice::Iter<'a, Lower<K, V>>; 2]>,
}

impl<K: Copy, V: Copy> Iterator for Range<'_, K, V> {
    type Item = (K, V);

    #[inline]
    fn next(&mut self) -> Option<(K, V)> {
        loop {
            if let Some(entry) = self.entries.next() {
                return Some(*entry);
            }
            match self.above.last_mut()?.next() {
                None => drop(self.above.pop()),
                Some((_, Pages::Leaf(entries))) => self.entries = entries.iter(),
                Some((_, Pages::Inner(pages))) => self.above.push(pages.iter()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    type Map = Pages<u16, u16>;

    /// Checks that all keys are in the page to which they belong, no page is empty, and all leaves
    /// have the same depth, which is returned.
    fn check(page: &Map, least: Option<u16>, end: Option<u16>) -> usize {
        let belongs =
            |key: u16| least.is_none_or(|least| least <= key) && end.is_none_or(|end| key < end);
        assert!(page.len() <= PAGE);
        match page {
            Pages::Leaf(entries) => {
                assert!(entries.is_sorted_by(|(one, _), (two, _)| one < two));
                assert!(entries.iter().all(|(key, _)| belongs(*key)));
                assert!(entries.capacity() <= (4 * entries.len()).max(PAGE));
                0
            }
            Pages::Inner(pages) => {
                assert!(pages[1..].is_sorted_by(|(one, _), (two, _)| one < two));
                let mut depths = (0..pages.len()).map(|at| {
                    let least = if at == 0 { least } else { Some(pages[at].0) };
                    let end = pages.get(at + 1).map(|(key, _)| *key).or(end);
                    assert_ne!(pages[at].1.len(), 0);
                    check(&pages[at].1, least, end)
                });
                let depth = depths.next().unwrap();
                assert!(depths.all(|other| other == depth));
                depth + 1
            }
        }
    }

    fn leaves(page: &Map) -> usize {
        match page {
            Pages::Leaf(_) => 1,
            Pages::Inner(pages) => pages.iter().map(|(_, page)| leaves(page)).sum(),
        }
    }

    #[derive(Debug, Clone, Copy)]
    enum Change {
        Set(u16),
        Remove(u16),
        /// Keys one after the other.
        SetRun(u16, u16),
        RemoveRun(u16, u16),
    }

    fn changes() -> impl Strategy<Value = Change> {
        let key = || 0..12_000u16;
        prop_oneof![
            2 => key().prop_map(Change::Set),
            2 => key().prop_map(Change::Remove),
            4 => (key(), 0..3000u16).prop_map(|(from, n)| Change::SetRun(from, n)),
            3 => (key(), 0..3000u16).prop_map(|(from, n)| Change::RemoveRun(from, n)),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

        /// Whatever is added and removed, in whatever order, the map has the content of a plain
        /// map, and iterates from any key.
        #[test]
        fn is_as_a_plain_map(
            changes in prop::collection::vec((changes(), prop::sample::select(vec![1u16, 7, 4999])), 1..20),
            asked in prop::collection::vec(0..16_000u16, 50),
        ) {
            let (mut map, mut model) = (Map::default(), BTreeMap::new());
            for (value, (change, step)) in (0..).zip(&changes) {
                let (from, n) = match *change {
                    Change::Set(from) | Change::Remove(from) => (from, 1),
                    Change::SetRun(from, n) | Change::RemoveRun(from, n) => (from, n),
                };
                for at in 0..u32::from(n) {
                    let key = ((u32::from(from) + at * u32::from(*step)) % 16_000) as u16;
                    if let Change::Set(_) | Change::SetRun(..) = change {
                        map.set(key, value);
                        model.insert(key, value);
                    } else {
                        map.remove(key);
                        model.remove(&key);
                    }
                }
                check(&map, None, None);
                prop_assert!(leaves(&map) <= 1 + model.len() * 2 / (TOGETHER / 2));
                for key in &asked {
                    prop_assert_eq!(map.get(*key), model.get(key).copied());
                    // Some pages are enough here; all of them are visited below.
                    let from = model.range(key..).map(|(key, value)| (*key, *value)).take(4 * PAGE);
                    prop_assert!(map.range(Some(*key)).take(4 * PAGE).eq(from));
                }
                let all = model.iter().map(|(key, value)| (*key, *value));
                prop_assert!(map.range(None).eq(all));
                let sole = (model.len() == 1).then(|| model.first_key_value());
                let sole = sole.flatten().map(|(key, value)| (*key, *value));
                prop_assert_eq!(map.sole(), sole);
            }
            let keys: Vec<u16> = model.keys().copied().collect();
            for key in keys {
                map.remove(key);
            }
            prop_assert!(matches!(&map, Pages::Leaf(entries) if entries.is_empty()));
        }
    }

    /// Ascending insertions fill the pages, so the tree has few levels.
    #[test]
    fn keys_in_order_leave_full_pages() {
        let mut map = Map::default();
        for key in 0..64_000 {
            map.set(key, key);
        }
        assert_eq!(leaves(&map), 1000);
        assert_eq!(check(&map, None, None), 2);
    }
}
