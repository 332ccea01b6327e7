//! What the log says of the brokers that the tree leads to: who is not reached any more when a mesh
//! falls apart, and who is when its parts are one again.

use std::collections::BTreeSet;

use punctual_mesh::BrokerId;
use punctual_model::Nanos;

/// What is otherwise for so long is no matter of a tree that heals.
const CALM: Nanos = Nanos::from_secs(1);
/// Names in a line of the log.
const NAMED: usize = 20;

/// Other brokers that were reached.
#[derive(Debug, Default)]
pub(super) struct Reached {
    /// When [`Self::news`] was asked last.
    last: BTreeSet<BrokerId>,
    changed: Nanos,
    told: BTreeSet<BrokerId>,
}

impl Reached {
    /// What the log is to say, if there is something that lasts: who is gone, and who came. These
    /// are reached now.
    pub(super) fn news(&mut self, reached: &BTreeSet<BrokerId>, now: Nanos) -> [Option<String>; 2] {
        if *reached != self.last {
            (self.last, self.changed) = (reached.clone(), now);
        }
        if self.last == self.told || now - self.changed < CALM {
            return [None, None];
        }
        let count = self.last.len() + 1;
        let gone = names(self.told.difference(&self.last));
        let came = names(self.last.difference(&self.told));
        self.told.clone_from(&self.last);
        [
            gone.map(|gone| format!("not reached any more: {gone}; brokers in this part: {count}")),
            came.map(|came| format!("reached: {came}; brokers: {count}")),
        ]
    }
}

/// The first of them, and how many more there are.
pub(super) fn names<'a>(brokers: impl Iterator<Item = &'a BrokerId>) -> Option<String> {
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

    fn ids(names: &str) -> BTreeSet<BrokerId> {
        let names = names.split_whitespace();
        names.map(|id| BrokerId::new(id).unwrap()).collect()
    }

    #[test]
    fn what_lasts_is_told_once() {
        let mut reached = Reached::default();
        let mut news = |brokers: &str, millis: u64| {
            let [gone, came] = reached.news(&ids(brokers), Nanos::from_millis(millis));
            [gone, came].map(Option::unwrap_or_default)
        };
        assert_eq!(news("b c", 10), ["", ""]);
        assert_eq!(news("b c d", 20), ["", ""]);
        assert_eq!(news("b c d", 1000), ["", ""]);
        assert_eq!(news("b c d", 1020), ["", "reached: b, c, d; brokers: 4"]);
        assert_eq!(news("b c d", 5000), ["", ""]);
        // Those behind one link come back behind the other before that is news.
        assert_eq!(news("d", 5000), ["", ""]);
        assert_eq!(news("b c d", 5900), ["", ""]);
        assert_eq!(news("b c d", 9000), ["", ""]);
        assert_eq!(news("d e", 10_000), ["", ""]);
        let gone = "not reached any more: b, c; brokers in this part: 3";
        assert_eq!(news("d e", 11_000), [gone, "reached: e; brokers: 3"]);
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
