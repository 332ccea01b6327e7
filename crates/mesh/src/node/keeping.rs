//! What a restart of this broker must not lose before others act on it.
//!
//! What neighbours want, and whom links lead to, is kept by the shell. Who hears where others are
//! forgets what it keeps for them, so that is told only when what those want is kept here: a
//! broker that is killed before would not know it any more, and take for nobody what was sent for
//! them. Wishes are counted: `kept <= asked <= wished`, and at most one question is open.

use std::collections::{BTreeMap, BTreeSet};

use crate::id::{BrokerId, LinkId};

/// Up to which change the shell has kept what neighbours want, and what waits for that.
#[derive(Debug, Default)]
pub(super) struct Keeping {
    /// How often neighbours wanted more, or led to more.
    wished: u64,
    /// Up to which of these changes the shell was asked whether they are kept.
    asked: u64,
    /// Up to which they are.
    kept: u64,
    /// Links of which others are to be told whom they lead to once so many changes are kept.
    to_show: BTreeMap<LinkId, u64>,
    /// What the shell was told of whom links lead to.
    leads: BTreeMap<LinkId, BTreeSet<BrokerId>>,
}

impl Keeping {
    /// A neighbour wants more. What it does not want any more may come back.
    pub(super) fn wish(&mut self) {
        self.wished += 1;
    }

    /// What is said later waits until as many are kept as there are now.
    pub(super) fn wished(&self) -> u64 {
        self.wished
    }

    pub(super) fn is_all_kept(&self) -> bool {
        self.is_kept(self.wished)
    }

    /// Whether so many are kept.
    pub(super) fn is_kept(&self, wished: u64) -> bool {
        wished <= self.kept
    }

    /// A link leads to these brokers; says whether the shell does not know.
    pub(super) fn leads(&mut self, link: LinkId, brokers: &BTreeSet<BrokerId>) -> bool {
        let before = self.leads.insert(link, brokers.clone()).unwrap_or_default();
        if !brokers.is_subset(&before) {
            self.wish();
        }
        *brokers != before
    }

    /// It did so before a restart.
    pub(super) fn recall(&mut self, link: LinkId, brokers: BTreeSet<BrokerId>) {
        self.leads.insert(link, brokers);
    }

    /// Nothing is known of a link any more.
    pub(super) fn forget(&mut self, link: LinkId) {
        self.leads.remove(&link);
    }

    /// Others may be told whom a link leads to once all of now is kept.
    pub(super) fn show_later(&mut self, link: LinkId) {
        self.to_show.insert(link, self.wished);
    }

    /// Whether they are not told yet.
    pub(super) fn is_to_show(&self, link: LinkId) -> bool {
        self.to_show.contains_key(&link)
    }

    /// Links of which that may be told now.
    pub(super) fn shown(&mut self) -> impl Iterator<Item = LinkId> {
        let kept = self.kept;
        let shown = self
            .to_show
            .extract_if(.., move |_, number| *number <= kept);
        shown.map(|(link, _)| link)
    }

    /// The number to ask the shell with, if something waits and nothing is asked.
    pub(super) fn ask(&mut self, others_wait: bool) -> Option<u64> {
        let waits = others_wait || !self.to_show.is_empty();
        let asks = waits && self.asked == self.kept;
        asks.then(|| {
            self.asked = self.wished;
            self.asked
        })
    }

    /// What was asked with that number is kept.
    pub(super) fn confirm(&mut self, number: u64) {
        self.kept = self.kept.max(number.min(self.asked));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_told_what_is_kept_and_nothing_else() {
        let mut keeping = Keeping::default();
        keeping.wish();
        keeping.show_later(LinkId(1));
        assert_eq!(keeping.shown().count(), 0);
        assert_eq!(keeping.ask(false), Some(1));
        keeping.wish();
        keeping.show_later(LinkId(2));
        assert_eq!(keeping.ask(true), None, "one question at a time");
        keeping.confirm(7);
        assert!(keeping.is_kept(1) && !keeping.is_all_kept());
        assert_eq!(keeping.shown().collect::<Vec<_>>(), [LinkId(1)]);
        assert_eq!(keeping.ask(false), Some(2));
        keeping.confirm(2);
        assert_eq!(keeping.shown().collect::<Vec<_>>(), [LinkId(2)]);
        keeping.wish();
        assert_eq!(keeping.ask(false), None, "nothing waits");
        assert_eq!(keeping.ask(true), Some(3));
    }

    #[test]
    fn whom_a_link_leads_to_is_a_wish_only_if_there_are_more() {
        let ids = |names: &str| -> BTreeSet<BrokerId> {
            let names = names.split(' ').map(|name| BrokerId::new(name).unwrap());
            names.collect()
        };
        let (mut keeping, link) = (Keeping::default(), LinkId(1));
        let mut told = |brokers: &str| {
            let is_new = keeping.leads(link, &ids(brokers));
            (is_new, keeping.wished())
        };
        assert_eq!(told("a b"), (true, 1));
        assert_eq!(told("a b"), (false, 1));
        assert_eq!(told("a"), (true, 1));
        assert_eq!(told("a b"), (true, 2));
    }
}
