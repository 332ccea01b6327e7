//! The order in which connections are read.
//!
//! Connections with received bytes wait here in the order in which these were noticed: those that
//! send messages of admitted flows by priority, then those that recently sent urgent messages, then
//! all others. The delay bounds given to clients depend on this order: among admitted flows the
//! most urgent comes first, and nothing is assumed about the order of equally urgent ones
//! (`docs/admission.md`).

use std::collections::VecDeque;

/// The priority with which a connection is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// The connection sends messages of admitted flows, with this priority, 0..=7: before all less
    /// urgent ones, one message at a time.
    Promised(u8),
    /// The connection recently sent an urgent message: before the others of a turn.
    Urgent,
    /// After all those.
    Plain,
}

/// Slots of connections with received bytes.
#[derive(Debug, Default)]
pub struct Ready {
    /// By priority.
    promised: [VecDeque<u32>; 8],
    /// Number of connections in these queues.
    promises: usize,
    urgent: VecDeque<u32>,
    plain: VecDeque<u32>,
}

impl Ready {
    /// Adds a connection with received bytes that is not in here.
    pub fn push(&mut self, slot: u32, need: Need) {
        match need {
            Need::Promised(priority) => {
                self.promised[usize::from(priority.min(7))].push_back(slot);
                self.promises += 1;
            }
            Need::Urgent => self.urgent.push_back(slot),
            Need::Plain => self.plain.push_back(slot),
        }
    }

    /// Takes the most urgent connection that sends messages of admitted flows.
    pub fn pop_promised(&mut self) -> Option<u32> {
        let mut levels = self.promised.iter_mut().rev();
        let first = levels.find_map(VecDeque::pop_front)?;
        self.promises -= 1;
        Some(first)
    }

    /// Whether [`Self::pop_promised`] has a connection to return.
    #[inline]
    pub fn has_promised(&self) -> bool {
        self.promises > 0
    }

    /// Takes a connection that recently sent an urgent message.
    pub fn pop_urgent(&mut self) -> Option<u32> {
        self.urgent.pop_front()
    }

    /// Takes one of the other connections.
    pub fn pop_plain(&mut self) -> Option<u32> {
        self.plain.pop_front()
    }

    /// Number of connections that recently sent an urgent message.
    #[inline]
    pub fn urgent(&self) -> usize {
        self.urgent.len()
    }

    /// Number of other connections.
    #[inline]
    pub fn plain(&self) -> usize {
        self.plain.len()
    }

    /// Whether no connection waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.urgent.is_empty() && self.plain.is_empty() && !self.has_promised()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_urgent_is_first_and_equals_keep_their_order() {
        let mut ready = Ready::default();
        assert!(ready.is_empty());
        for (slot, need) in [
            (1, Need::Plain),
            (2, Need::Promised(3)),
            (3, Need::Urgent),
            (4, Need::Promised(7)),
            (5, Need::Promised(3)),
            (6, Need::Promised(0)),
            (7, Need::Plain),
        ] {
            ready.push(slot, need);
        }
        assert_eq!((ready.urgent(), ready.plain()), (1, 2));
        let promised: Vec<u32> = std::iter::from_fn(|| ready.pop_promised()).collect();
        assert_eq!(promised, [4, 2, 5, 6]);
        assert_eq!((ready.pop_urgent(), ready.pop_urgent()), (Some(3), None));
        assert!(!ready.is_empty());
        assert_eq!([ready.pop_plain(), ready.pop_plain()], [Some(1), Some(7)]);
        assert!(ready.is_empty());
    }
}
