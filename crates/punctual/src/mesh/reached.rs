//! Which brokers the tree leads to: who is not reached any more when a mesh falls apart, and who is
//! when its parts are one again.

use std::collections::{BTreeMap, BTreeSet};

use punctual_mesh::{BrokerId, LinkId};
use punctual_model::Nanos;

/// What is otherwise for so long is no matter of a tree that heals.
const CALM: Nanos = Nanos::from_secs(1);
/// Names in a line of the log.
const NAMED: usize = 20;

/// Brokers behind the links that carry messages.
#[derive(Debug, Default)]
pub(super) struct Reached {
    /// What links led to last.
    behind: BTreeMap<LinkId, BTreeSet<BrokerId>>,
    carry: BTreeSet<LinkId>,
    now: BTreeSet<BrokerId>,
    changed: Nanos,
    told: BTreeSet<BrokerId>,
}

impl Reached {
    /// A link leads to these, its neighbour among them.
    pub(super) fn lead(&mut self, link: LinkId, brokers: &[BrokerId], now: Nanos) {
        self.behind.insert(link, brokers.iter().cloned().collect());
        self.change(now);
    }

    /// A link carries messages from now on, or does not any more.
    pub(super) fn carry(&mut self, link: LinkId, carries: bool, now: Nanos) {
        match carries {
            true => self.carry.insert(link),
            false => self.carry.remove(&link),
        };
        self.change(now);
    }

    fn change(&mut self, now: Nanos) {
        let behind = self.carry.iter().filter_map(|link| self.behind.get(link));
        let all: BTreeSet<BrokerId> = behind.flatten().cloned().collect();
        if all != self.now {
            (self.now, self.changed) = (all, now);
        }
    }

    /// Others that are reached now.
    pub(super) fn brokers(&self) -> &BTreeSet<BrokerId> {
        &self.now
    }

    /// What the log is to say, if there is something that lasts: who is gone, and who came.
    pub(super) fn news(&mut self, now: Nanos) -> [Option<String>; 2] {
        if self.now == self.told || now - self.changed < CALM {
            return [None, None];
        }
        let count = self.now.len() + 1;
        let gone = names(self.told.difference(&self.now));
        let came = names(self.now.difference(&self.told));
        self.told.clone_from(&self.now);
        [
            gone.map(|gone| format!("not reached any more: {gone}; brokers in this part: {count}")),
            came.map(|came| format!("reached: {came}; brokers: {count}")),
        ]
    }
}

/// The first of them, and how many more there are.
fn names<'a>(brokers: impl Iterator<Item = &'a BrokerId>) -> Option<String> {
    let all: Vec<&str> = brokers.map(BrokerId::as_str).collect();
    let (first, more) = all.split_at(all.len().min(NAMED));
    let first = first.join(", ");
    match (all.len(), more.len()) {
        (0, _) => None,
        (_, 0) => Some(first),
        (_, more) => Some(format!("{first} and {more} more")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(names: &[&str]) -> Vec<BrokerId> {
        names.iter().map(|id| BrokerId::new(id).unwrap()).collect()
    }

    fn at(millis: u64) -> Nanos {
        Nanos::from_millis(millis)
    }

    #[test]
    fn what_lasts_is_told_once() {
        let mut reached = Reached::default();
        reached.carry(LinkId(0), true, at(0));
        reached.lead(LinkId(0), &ids(&["b", "c"]), at(10));
        reached.carry(LinkId(1), true, at(20));
        reached.lead(LinkId(1), &ids(&["d"]), at(20));
        assert_eq!(reached.news(at(1000)), [None, None]);
        let came = "reached: b, c, d; brokers: 4".to_owned();
        assert_eq!(reached.news(at(1020)), [None, Some(came)]);
        assert_eq!(reached.news(at(5000)), [None, None]);
        // Those behind one link come back behind the other before that is news.
        reached.carry(LinkId(0), false, at(5000));
        assert_eq!(reached.brokers().iter().count(), 1);
        reached.lead(LinkId(1), &ids(&["b", "c", "d"]), at(5900));
        assert_eq!(reached.news(at(6000)), [None, None]);
        assert_eq!(reached.news(at(9000)), [None, None]);
        reached.lead(LinkId(1), &ids(&["d", "e"]), at(10_000));
        let gone = "not reached any more: b, c; brokers in this part: 3".to_owned();
        let came = "reached: e; brokers: 3".to_owned();
        assert_eq!(reached.news(at(11_000)), [Some(gone), Some(came)]);
    }

    #[test]
    fn a_line_names_some_of_many() {
        let all: Vec<String> = (10..35).map(|n| n.to_string()).collect();
        let all: Vec<BrokerId> = all.iter().map(|id| BrokerId::new(id).unwrap()).collect();
        let text = names(all.iter()).unwrap();
        assert!(
            text.starts_with("10, 11, ") && text.ends_with("28, 29 and 5 more"),
            "{text}"
        );
        assert_eq!(names([].iter()), None);
    }
}
