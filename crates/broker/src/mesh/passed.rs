//! Messages that were here before, arrived again from a neighbour and were passed on once more,
//! since a broker may have joined behind the other neighbours meanwhile.
//!
//! Without this record, two brokers that each keep messages for a lost link would send each other
//! the same messages for as long as the links are remembered, and on a cycle of links, even a
//! short-lived one, the messages would circulate. Invariant: while the topology does not change, a
//! message is passed on to each neighbour for this reason at most twice. To forget a name is
//! harmless: then its message is passed on once more.

use hashbrown::HashMap;

use crate::base::name::MessageName;

/// Largest number of remembered names.
const MAX: usize = 1 << 16;

/// Messages that were passed on since the last change.
#[derive(Debug, Default)]
pub(crate) struct PassedOn {
    /// By name: the neighbour that sent the message, to which it was not passed on; `None` if all
    /// neighbours have received it.
    names: HashMap<(u32, u32), Option<u64>, foldhash::fast::RandomState>,
}

impl PassedOn {
    /// Whether a neighbour other than `from`, the number of a session, has not received the
    /// message.
    pub(crate) fn is_due(&self, name: MessageName, from: u64) -> bool {
        let source = self.names.get(&key(name));
        source.is_none_or(|source| source.is_some_and(|source| source != from))
    }

    /// Records that all neighbours other than `from` have received the message.
    pub(crate) fn note(&mut self, name: MessageName, from: u64) {
        if self.names.len() >= MAX {
            self.changed();
        }
        let source = self.names.entry(key(name)).or_insert(Some(from));
        if *source != Some(from) {
            *source = None;
        }
    }

    /// Forgets all names: neighbours have new filters, or lead to other brokers.
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
        // Neighbour 7 has not received it, and neighbour 8 has sent it.
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
