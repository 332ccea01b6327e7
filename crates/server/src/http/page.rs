//! One page of a sorted list that is found in no order: the smallest entries
//! after a given one, as many as fit into the page's bounds.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of the entries of a page, as far as clients choose them; the first
/// entry is taken whatever its size.
pub(super) const PAGE_BYTES: usize = 4 << 20;

/// Place of an entry in the list: client identifier, then topic filter, which
/// is empty for the client itself.
pub(super) type Key = (Arc<str>, Box<str>);

/// A page.
pub(super) struct Page<T> {
    after: Option<Key>,
    limit: usize,
    entries: BTreeMap<Key, (T, usize)>,
    bytes: usize,
    /// The first entry that was removed because of others.
    end: Option<Key>,
    /// Whether entries follow that have no room.
    more: bool,
}

impl<T> Page<T> {
    /// An empty page of at most `limit` entries that begins after `after`.
    pub(super) fn new(after: Option<Key>, limit: usize) -> Self {
        Self {
            after,
            limit,
            entries: BTreeMap::new(),
            bytes: 0,
            end: None,
            more: false,
        }
    }

    /// Whether an entry with that key belongs to the page, as far as is known.
    pub(super) fn wants(&mut self, client_id: &str, filter: &str) -> bool {
        let key = (client_id, filter);
        let is_before = |at: &Key| key < (&*at.0, &*at.1);
        if let Some(after) = &self.after
            && (is_before(after) || key == (&*after.0, &*after.1))
        {
            return false;
        }
        let full = self.entries.len() >= self.limit;
        let last = self.entries.last_key_value().map(|(last, _)| last);
        let fits = self.end.as_ref().is_none_or(is_before) && (!full || last.is_none_or(is_before));
        self.more |= !fits;
        fits
    }

    /// Adds an entry that the page wants, and removes what has no room then.
    pub(super) fn add(&mut self, key: Key, entry: T) {
        let bytes = key.0.len() + key.1.len();
        self.bytes += bytes;
        self.entries.insert(key, (entry, bytes));
        while self.entries.len() > self.limit || (self.bytes > PAGE_BYTES && self.entries.len() > 1)
        {
            if let Some((key, (_, bytes))) = self.entries.pop_last() {
                self.bytes -= bytes;
                self.end = Some(key);
                self.more = true;
            }
        }
    }

    /// The entries, and the key of the last one if more follow.
    pub(super) fn finish(self) -> (Vec<T>, Option<Key>) {
        let last = self.entries.last_key_value().map(|(key, _)| key.clone());
        let next = last.filter(|_| self.more);
        let entries = self.entries.into_values().map(|(entry, _)| entry);
        (entries.collect(), next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(page: &mut Page<String>, ids: &[&str]) {
        for id in ids {
            if page.wants(id, "") {
                page.add(((*id).into(), "".into()), (*id).to_owned());
            }
        }
    }

    #[test]
    fn pages_follow_each_other_without_gap() {
        let ids = ["d", "a", "c", "e", "b", "é", "a/b"];
        let mut after = None;
        let mut seen = Vec::new();
        loop {
            let mut page = Page::new(after, 2);
            fill(&mut page, &ids);
            let (entries, next) = page.finish();
            assert!((1..=2).contains(&entries.len()));
            seen.extend(entries);
            after = next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(seen, ["a", "a/b", "b", "c", "d", "e", "é"]);
    }

    /// A full page and a page that ends the list look the same otherwise.
    #[test]
    fn the_last_page_says_that_it_is_the_last() {
        let mut page = Page::new(None, 2);
        fill(&mut page, &["b", "a"]);
        assert_eq!(page.finish().1, None);
        let mut page = Page::new(None, 2);
        fill(&mut page, &["b", "a", "c"]);
        assert_eq!(page.finish().1, Some(("b".into(), "".into())));
    }

    #[test]
    fn large_entries_end_a_page_early() {
        let large = |first: &str| first.to_owned() + &"x".repeat(PAGE_BYTES / 2);
        let ids = [large("b"), large("c"), large("a")];
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        let mut page = Page::new(None, 100);
        fill(&mut page, &ids);
        // What came after a removed entry is not put in its place.
        fill(&mut page, &["d"]);
        let (entries, next) = page.finish();
        assert_eq!(entries.len(), 1);
        assert!(next.is_some_and(|(id, _)| id.starts_with('a')));
    }
}
