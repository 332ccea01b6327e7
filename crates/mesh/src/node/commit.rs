//! Which interest of neighbours is committed: durable here, so that a restart does not lose it.
//!
//! The shell stores the filters of neighbours and the brokers that links lead to. A broker that learns
//! that others are reached elsewhere drops the messages queued for them. So this broker advertises that
//! it reaches a broker only when the filters of that broker are durable here. If it advertised earlier
//! and were killed, it would restart without them, and find no receiver for the messages. Changes are
//! numbered: `committed <= asked <= noted`, and at most one request to the shell is open.

use std::collections::{BTreeMap, BTreeSet};

use crate::id::{BrokerId, LinkId};

/// Up to which change the interest of neighbours is durable, and what waits for that.
#[derive(Debug, Default)]
pub(super) struct InterestCommit {
    /// Number of the last change: a neighbour added filters, or leads to more brokers.
    noted: u64,
    /// Last change of which the shell was asked to report that it is durable.
    asked: u64,
    /// Last change that is durable.
    committed: u64,
    /// Links whose brokers are advertised once the change with this number is durable.
    to_show: BTreeMap<LinkId, u64>,
    /// The brokers behind links, as last reported to the shell.
    leads: BTreeMap<LinkId, BTreeSet<BrokerId>>,
}

impl InterestCommit {
    /// Numbers a change. Removals are not counted: a removed filter may come back after a restart.
    pub(super) fn note_change(&mut self) {
        self.noted += 1;
    }

    /// Number of the last change.
    pub(super) fn noted(&self) -> u64 {
        self.noted
    }

    pub(super) fn is_all_committed(&self) -> bool {
        self.is_committed(self.noted)
    }

    /// Whether the change with this number is durable.
    pub(super) fn is_committed(&self, noted: u64) -> bool {
        noted <= self.committed
    }

    /// Sets the brokers behind a link; returns whether that is news to the shell.
    pub(super) fn leads(&mut self, link: LinkId, brokers: &BTreeSet<BrokerId>) -> bool {
        let before = self.leads.insert(link, brokers.clone()).unwrap_or_default();
        if !brokers.is_subset(&before) {
            self.note_change();
        }
        *brokers != before
    }

    /// Restores the brokers behind a link after a restart.
    pub(super) fn recall(&mut self, link: LinkId, brokers: BTreeSet<BrokerId>) {
        self.leads.insert(link, brokers);
    }

    /// Forgets a link.
    pub(super) fn forget(&mut self, link: LinkId) {
        self.leads.remove(&link);
    }

    /// Advertises the brokers behind a link once all changes so far are durable.
    pub(super) fn show_later(&mut self, link: LinkId) {
        self.to_show.insert(link, self.noted);
    }

    /// Whether the brokers behind a link are not advertised yet.
    pub(super) fn is_to_show(&self, link: LinkId) -> bool {
        self.to_show.contains_key(&link)
    }

    /// Takes the links whose brokers may be advertised now.
    pub(super) fn shown(&mut self) -> impl Iterator<Item = LinkId> {
        let committed = self.committed;
        let shown = self
            .to_show
            .extract_if(.., move |_, number| *number <= committed);
        shown.map(|(link, _)| link)
    }

    /// The number for [`super::Output::CommitInterest`], if something waits and no request is open.
    pub(super) fn ask(&mut self, others_wait: bool) -> Option<u64> {
        let waits = others_wait || !self.to_show.is_empty();
        let asks = waits && self.asked == self.committed;
        asks.then(|| {
            self.asked = self.noted;
            self.asked
        })
    }

    /// All changes up to this number are durable.
    pub(super) fn confirm(&mut self, number: u64) {
        self.committed = self.committed.max(number.min(self.asked));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_told_what_is_kept_and_nothing_else() {
        let mut commit = InterestCommit::default();
        commit.note_change();
        commit.show_later(LinkId(1));
        assert_eq!(commit.shown().count(), 0);
        assert_eq!(commit.ask(false), Some(1));
        commit.note_change();
        commit.show_later(LinkId(2));
        assert_eq!(commit.ask(true), None, "one question at a time");
        commit.confirm(7);
        assert!(commit.is_committed(1) && !commit.is_all_committed());
        assert_eq!(commit.shown().collect::<Vec<_>>(), [LinkId(1)]);
        assert_eq!(commit.ask(false), Some(2));
        commit.confirm(2);
        assert_eq!(commit.shown().collect::<Vec<_>>(), [LinkId(2)]);
        commit.note_change();
        assert_eq!(commit.ask(false), None, "nothing waits");
        assert_eq!(commit.ask(true), Some(3));
    }

    #[test]
    fn whom_a_link_leads_to_is_a_wish_only_if_there_are_more() {
        let ids = |names: &str| -> BTreeSet<BrokerId> {
            let names = names.split(' ').map(|name| BrokerId::new(name).unwrap());
            names.collect()
        };
        let (mut commit, link) = (InterestCommit::default(), LinkId(1));
        let mut told = |brokers: &str| {
            let is_new = commit.leads(link, &ids(brokers));
            (is_new, commit.noted())
        };
        assert_eq!(told("a b"), (true, 1));
        assert_eq!(told("a b"), (false, 1));
        assert_eq!(told("a"), (true, 1));
        assert_eq!(told("a b"), (true, 2));
    }
}
