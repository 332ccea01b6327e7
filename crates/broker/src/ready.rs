//! Which connection is read next.
//!
//! Connections that have something wait here in the order in which that was seen:
//! those that send messages of admitted flows by priority, then who sent something
//! urgent lately, then all others. The bounds that are told to clients rest on
//! this order: among admitted flows the most urgent comes first, and nothing is
//! assumed about the order of those that are as urgent (`docs/admission.md`).

use std::collections::VecDeque;

/// How soon a connection is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// It sends messages of admitted flows, with this priority, 0..=7: before all
    /// that is less urgent, one message at a time.
    Promised(u8),
    /// It sent something urgent lately: before the others of a turn.
    Urgent,
    /// After all that.
    Plain,
}

/// Slots of connections that have something to be read.
#[derive(Debug, Default)]
pub struct Ready {
    /// By priority.
    promised: [VecDeque<u32>; 8],
    /// How many of these there are.
    promises: usize,
    urgent: VecDeque<u32>,
    plain: VecDeque<u32>,
}

impl Ready {
    /// A connection has something, and is not in here.
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

    /// The most urgent of those that send messages of admitted flows.
    pub fn pop_promised(&mut self) -> Option<u32> {
        let mut levels = self.promised.iter_mut().rev();
        let first = levels.find_map(VecDeque::pop_front)?;
        self.promises -= 1;
        Some(first)
    }

    /// Whether [`Self::pop_promised`] has one.
    #[inline]
    pub fn has_promised(&self) -> bool {
        self.promises > 0
    }

    /// One that sent something urgent lately.
    pub fn pop_urgent(&mut self) -> Option<u32> {
        self.urgent.pop_front()
    }

    /// One of the others.
    pub fn pop_plain(&mut self) -> Option<u32> {
        self.plain.pop_front()
    }

    /// How many sent something urgent lately.
    #[inline]
    pub fn urgent(&self) -> usize {
        self.urgent.len()
    }

    /// How many others there are.
    #[inline]
    pub fn plain(&self) -> usize {
        self.plain.len()
    }

    /// Whether none is in here.
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
