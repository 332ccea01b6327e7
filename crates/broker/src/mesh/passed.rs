//! Messages that were here before, came again from a neighbour and were passed on once
//! more, for somebody may have come to the other neighbours' side meanwhile.
//!
//! Two brokers that each keep something for a lost link would otherwise send each other
//! the same messages for as long as the links are remembered, and on a cycle of links, if
//! only for a moment, they would go round. Invariant: since nothing has changed in where
//! brokers are, a message goes to each neighbour because of this at most twice. Forgetting
//! is harmless: then it goes once more.

use hashbrown::HashMap;

use crate::base::name::MessageName;

/// Names that are remembered at most.
const MAX: usize = 1 << 16;

/// What was passed on since anything changed.
#[derive(Debug, Default)]
pub(crate) struct PassedOn {
    /// The neighbour that each came from, which did not get it; `None` if all have got it.
    names: HashMap<(u32, u32), Option<u64>, foldhash::fast::RandomState>,
}

impl PassedOn {
    /// Whether a neighbour other than `from`, by the number of its session, has not got it.
    pub(crate) fn is_due(&self, name: MessageName, from: u64) -> bool {
        let source = self.names.get(&key(name));
        source.is_none_or(|source| source.is_some_and(|source| source != from))
    }

    /// All neighbours other than `from` have got it.
    pub(crate) fn note(&mut self, name: MessageName, from: u64) {
        if self.names.len() >= MAX {
            self.changed();
        }
        let source = self.names.entry(key(name)).or_insert(Some(from));
        if *source != Some(from) {
            *source = None;
        }
    }

    /// Neighbours want something else, or lead to other brokers.
    pub(crate) fn changed(&mut self) {
        if !self.names.is_empty() {
            self.names = HashMap::default();
        }
    }
}

fn key(name: MessageName) -> (u32, u32) {
    (name.origin.get(), name.number)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    fn name(number: u32) -> MessageName {
        MessageName {
            origin: NonZeroU32::MIN,
            number,
            again: true,
            back: 0,
        }
    }

    #[test]
    fn each_neighbour_gets_it_until_something_changes() {
        let mut passed = PassedOn::default();
        assert!(passed.is_due(name(1), 7));
        passed.note(name(1), 7);
        assert!(!passed.is_due(name(1), 7));
        assert!(passed.is_due(name(2), 7));
        // The first has not got it, and the second has sent it.
        assert!(passed.is_due(name(1), 8));
        passed.note(name(1), 8);
        assert!([7, 8, 9].iter().all(|from| !passed.is_due(name(1), *from)));
        passed.changed();
        assert!(passed.is_due(name(1), 7));
    }

    #[test]
    fn memory_is_bounded() {
        let mut passed = PassedOn::default();
        for number in 0..=MAX as u32 {
            passed.note(name(number), 7);
            assert!(!passed.is_due(name(number), 7));
        }
        assert!(passed.names.len() <= MAX);
        assert!(passed.is_due(name(0), 7));
    }
}
