//! The subscription table of this broker, and how both ends of a link synchronise it when the link begins
//! to carry.
//!
//! Each end sends checksums, by parts, of the filters that it takes as advertised; the other end requests
//! the parts that differ. Until all of these have arrived, the filters of the neighbour are incomplete,
//! and the brokers behind it do not count as reached.
//!
//! Invariant: at no time a topic is wanted by no filter here that is wanted by one filter before and by
//! another one after. A filter that was replaced by one that covers it may be in an earlier part than that
//! one, so no filter is removed while parts are awaited: outdated filters are listed, and removed later.
//! They are removed earlier only if the table has no room for new filters: after a filter was refused, the
//! neighbour receives all messages until its link is forgotten.

use std::collections::{BTreeMap, BTreeSet};

use super::output::Outputs;
use crate::id::LinkId;
use crate::table::{AppliedChanges, Table};
use crate::wire::{BUCKETS, Message};

/// Filters that are removed at a time once all parts have arrived.
const REMOVED_AT_A_TIME: usize = 1024;

/// The table, and the parts that are being synchronised.
#[derive(Debug)]
pub(super) struct Filters {
    pub(super) table: Table,
    /// Parts (a bit each) that were requested from neighbours and have not arrived.
    awaited: BTreeMap<LinkId, u64>,
    /// Filters in the table that a neighbour does not want any more, to be removed when no part is
    /// awaited from it.
    outdated: BTreeMap<LinkId, BTreeSet<Box<str>>>,
    /// Parts (a bit each) that neighbours have requested and were not sent yet.
    asked: BTreeMap<LinkId, u64>,
}

impl Filters {
    pub(super) fn new(max: usize) -> Self {
        Self {
            table: Table::new(max),
            awaited: BTreeMap::new(),
            outdated: BTreeMap::new(),
            asked: BTreeMap::new(),
        }
    }

    /// A link begins to carry: sends the checksums of the filters advertised on it.
    pub(super) fn activate(&mut self, link: LinkId, outputs: &mut Outputs) {
        self.table.activate(link);
        let digests = self.table.digests_told(link);
        outputs.send(link, &Message::Digest(digests));
    }

    /// A link ceases to carry. The filters of the neighbour stay, outdated ones too: the awaited parts may
    /// arrive only after the link carries again.
    pub(super) fn deactivate(&mut self, link: LinkId) {
        self.table.deactivate(link);
        self.asked.remove(&link);
    }

    /// Removes all filters of the neighbour on a link.
    pub(super) fn forget(&mut self, link: LinkId) {
        self.table.forget(link);
        self.awaited.remove(&link);
        self.outdated.remove(&link);
        self.asked.remove(&link);
    }

    /// Applies changes of a neighbour. Removals wait while parts are awaited from it.
    pub(super) fn apply(
        &mut self,
        link: LinkId,
        add: Vec<Box<str>>,
        remove: Vec<Box<str>>,
    ) -> AppliedChanges {
        if let Some(outdated) = self.outdated.get_mut(&link) {
            for filter in &add {
                outdated.remove(filter);
            }
        }
        if !self.awaited.contains_key(&link) {
            return self.table.apply(link, add, remove);
        }
        let known = remove.into_iter();
        let known = known.filter(|filter| self.table.is_wanted_by(link, filter));
        let known: Vec<Box<str>> = known.collect();
        if !known.is_empty() {
            self.outdated.entry(link).or_default().extend(known);
        }
        let mut removed = Vec::new();
        if self.table.room() < add.len()
            && let Some(outdated) = self.outdated.remove(&link)
        {
            let outdated = outdated.into_iter().collect();
            removed = self.table.apply(link, Vec::new(), outdated).removed;
        }
        let applied = self.table.apply(link, add, Vec::new());
        AppliedChanges { removed, ..applied }
    }

    /// Replaces the filters of a neighbour in one part, as [`Self::apply`] does.
    pub(super) fn replace(
        &mut self,
        link: LinkId,
        index: u8,
        filters: Vec<Box<str>>,
    ) -> AppliedChanges {
        let gone = self.table.not_among(link, index, &filters);
        self.apply(link, filters, gone)
    }

    /// Removes some outdated filters of a neighbour from which no part is awaited; `None` if there are
    /// none.
    pub(super) fn remove_outdated(&mut self) -> Option<(LinkId, AppliedChanges)> {
        let awaited = &self.awaited;
        let mut ready = self.outdated.iter_mut();
        let (link, outdated) = ready.find(|(link, _)| !awaited.contains_key(link))?;
        let link = *link;
        let some = std::iter::from_fn(|| outdated.pop_first());
        let some = some.take(REMOVED_AT_A_TIME).collect();
        if outdated.is_empty() {
            self.outdated.remove(&link);
        }
        Some((link, self.table.apply(link, Vec::new(), some)))
    }

    /// Compares the checksums of a neighbour with the filters known of it, and requests the parts that
    /// differ. Returns whether there are none.
    pub(super) fn compare(
        &mut self,
        link: LinkId,
        theirs: &[u64; BUCKETS],
        outputs: &mut Outputs,
    ) -> bool {
        let ours = self.table.digests_wanted_by(link);
        let differ = (0..BUCKETS).filter(|i| theirs[*i] != ours[*i]);
        let bits = differ.fold(0, |bits, i| bits | 1 << i);
        // The parts that they are in differ.
        self.outdated.remove(&link);
        match bits {
            0 => drop(self.awaited.remove(&link)),
            _ => {
                self.awaited.insert(link, bits);
                outputs.send(link, &Message::Want(bits));
            }
        }
        bits == 0
    }

    /// The neighbour on a link requests these parts.
    pub(super) fn say_again(&mut self, link: LinkId, bits: u64) {
        *self.asked.entry(link).or_default() |= bits;
    }

    /// Sends one requested part; returns whether there are more. Parts are sent one by one, so that a
    /// large table does not keep the broker from its other work.
    pub(super) fn say_next_part(&mut self, outputs: &mut Outputs) -> bool {
        if let Some(mut asked) = self.asked.first_entry() {
            let (link, bits) = (*asked.key(), *asked.get());
            let index = bits.trailing_zeros() as u8;
            match bits & bits.wrapping_sub(1) {
                0 => drop(asked.remove()),
                rest => *asked.get_mut() = rest,
            }
            if bits != 0 {
                let filters = self.table.told(link, index);
                outputs.send(link, &Message::Bucket { index, filters });
            }
        }
        !self.asked.is_empty()
    }

    /// A requested part has arrived; returns whether it was the last one.
    pub(super) fn part_came(&mut self, link: LinkId, index: u8) -> bool {
        let Some(awaited) = self.awaited.get_mut(&link) else {
            return false;
        };
        *awaited &= !(1 << index);
        let is_last = *awaited == 0;
        if is_last {
            self.awaited.remove(&link);
        }
        is_last
    }
}

#[cfg(test)]
mod tests {
    use punctual_model::Nanos;

    use super::*;
    use crate::id::BrokerId;
    use crate::node::{Node, Settings};
    use crate::strategy::Strategy;
    use crate::table::digest;
    use crate::wire::{Open, VERSIONS};

    const NOW: Nanos = Nanos::from_secs(1);
    const HERE: LinkId = LinkId(0);
    const THERE: LinkId = LinkId(1);

    fn part_of(filter: &str) -> u64 {
        digest(filter) >> 58
    }

    /// A filter that covers "a/b" in a later part than that one, or in an earlier one.
    fn covering(is_later: bool) -> Box<str> {
        let covering = ["#", "+/#", "a/#", "+/b", "a/+", "+/+"].into_iter();
        let mut fitting = covering.filter(|it| (part_of(it) > part_of("a/b")) == is_later);
        fitting.next().unwrap().into()
    }

    #[test]
    fn a_topic_is_wanted_at_all_times_while_another_filter_takes_over() {
        for is_later in [false, true] {
            let (mut ours, mut theirs) = (Filters::new(100), Filters::new(100));
            let (mut outputs, covering) = (Outputs::default(), covering(is_later));
            ours.apply(THERE, vec!["a/b".into(), "old".into()], Vec::new());
            theirs.table.subscribe(&covering);
            while !theirs.table.changes().is_empty() {}
            theirs.activate(HERE, &mut outputs);
            while !theirs.table.changes().is_empty() {}
            let is_wanted = |ours: &Filters, topic| ours.table.receivers(topic).1 == [THERE];
            let digests = theirs.table.digests_told(HERE);
            assert!(!ours.compare(THERE, &digests, &mut outputs));
            let bits = ours.awaited[&THERE];
            for index in (0..64).filter(|index| bits & 1 << index != 0) {
                assert!(is_wanted(&ours, "a/b"), "{covering}, before {index}");
                // It goes as a change beside the parts.
                ours.apply(THERE, Vec::new(), vec!["old".into(), "unknown".into()]);
                ours.replace(THERE, index, theirs.table.told(HERE, index));
                assert!(is_wanted(&ours, "a/b"), "{covering}, after {index}");
                ours.part_came(THERE, index);
            }
            while ours.remove_outdated().is_some() {
                assert!(is_wanted(&ours, "a/b"), "{covering}");
            }
            assert_eq!(*ours.table.wanted_by(THERE), [covering]);
        }
    }

    #[test]
    fn a_link_that_ceases_to_carry_amid_the_parts_loses_no_topic() {
        let (mut filters, mut outputs) = (Filters::new(100), Outputs::default());
        filters.apply(HERE, vec!["a/b".into()], Vec::new());
        assert!(!filters.compare(HERE, &[1; BUCKETS], &mut outputs));
        filters.deactivate(HERE);
        let index = part_of("a/b") as u8;
        filters.replace(HERE, index, Vec::new());
        filters.apply(HERE, Vec::new(), vec!["a/b".into()]);
        assert_eq!(filters.remove_outdated(), None);
        assert_eq!(filters.table.receivers("a/b").1, [HERE]);
        filters.forget(HERE);
        assert!(filters.awaited.is_empty() && filters.outdated.is_empty());
    }

    #[test]
    fn what_is_outdated_makes_room_where_there_is_none() {
        let (mut filters, mut outputs) = (Filters::new(4), Outputs::default());
        let some = |names: [&str; 3]| names.map(Box::from).to_vec();
        filters.apply(HERE, some(["a", "b", "c"]), Vec::new());
        assert!(!filters.compare(HERE, &[1; BUCKETS], &mut outputs));
        filters.apply(HERE, Vec::new(), some(["a", "b", "c"]));
        let applied = filters.apply(HERE, some(["d", "e", "f"]), Vec::new());
        assert_eq!(applied.added, some(["d", "e", "f"]));
        assert_eq!(applied.removed, some(["a", "b", "c"]));
        assert!(!applied.overflows && !filters.table.is_overflown(HERE));
    }

    #[test]
    fn what_is_wanted_again_is_not_removed() {
        let (mut filters, mut outputs) = (Filters::new(100), Outputs::default());
        filters.apply(HERE, vec!["a".into(), "b".into()], Vec::new());
        let differing = [1; BUCKETS];
        assert!(!filters.compare(HERE, &differing, &mut outputs));
        filters.apply(HERE, Vec::new(), vec!["a".into(), "b".into()]);
        filters.apply(HERE, vec!["a".into()], Vec::new());
        assert_eq!(filters.remove_outdated(), None);
        for index in 0..BUCKETS as u8 {
            filters.part_came(HERE, index);
        }
        let (link, applied) = filters.remove_outdated().unwrap();
        assert_eq!((link, applied.removed), (HERE, vec!["b".into()]));
        assert_eq!(filters.remove_outdated(), None);
        assert_eq!(*filters.table.wanted_by(HERE), ["a".into()]);
    }

    #[test]
    fn what_is_outdated_is_removed_without_another_event() {
        let id = |name| BrokerId::new(name).unwrap();
        let mut node = Node::new(Settings::new(id("own"), 1, 5), NOW);
        let open = Open {
            versions: (*VERSIONS.start(), *VERSIONS.end()),
            id: id("other"),
            instance: 1,
            strategy: Strategy::SubscriptionTable,
            dialled: true,
        };
        let link = node.link_up(&open, 1.0, NOW).unwrap();
        let receive = |node: &mut Node, message: Message| {
            node.receive(link, &message.encode(), NOW).unwrap();
        };
        let add = (0..3000).map(|n| format!("f/{n}").into()).collect();
        let remove = Vec::new();
        receive(&mut node, Message::Filters { add, remove });
        receive(&mut node, Message::Digest(Box::new([1; BUCKETS])));
        for index in 0..BUCKETS as u8 {
            let filters = Vec::new();
            receive(&mut node, Message::Bucket { index, filters });
        }
        assert!(node.status().links[0].filters > 0);
        for _ in 0..8 {
            if node.next_timeout() <= NOW {
                node.tick(NOW);
            }
        }
        assert_eq!(node.status().links[0].filters, 0);
    }
}
