//! What is being worked on in slices: clients have turns, and what one asks waits
//! for what it asked before.
//!
//! Invariant: a client that is busy has one question in turns, and the others in
//! their order behind it; a client that is not has none.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Questions that are not done.
#[derive(Debug)]
pub(super) struct Agenda<Q> {
    turns: VecDeque<(Arc<str>, Q)>,
    behind: HashMap<Arc<str>, VecDeque<Q>>,
}

impl<Q> Default for Agenda<Q> {
    fn default() -> Self {
        Self {
            turns: VecDeque::new(),
            behind: HashMap::new(),
        }
    }
}

impl<Q> Agenda<Q> {
    /// Whether nothing is left to do.
    pub(super) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// Takes a question of a client that is busy; gives back that of another one,
    /// which may be worked on at once.
    pub(super) fn put_behind(&mut self, client: &str, question: Q) -> Option<Q> {
        match self.behind.get_mut(client) {
            Some(behind) => {
                behind.push_back(question);
                None
            }
            None => Some(question),
        }
    }

    /// Some of a question is left: its client is busy, and others have their turns
    /// first.
    pub(super) fn put_last(&mut self, client: Arc<str>, question: Q) {
        self.behind.entry(client.clone()).or_default();
        self.turns.push_back((client, question));
    }

    /// Whose turn it is.
    pub(super) fn take(&mut self) -> Option<(Arc<str>, Q)> {
        self.turns.pop_front()
    }

    /// A question that had a turn is done: the next of its client has one.
    pub(super) fn done(&mut self, client: Arc<str>) {
        let behind = self.behind.get_mut(&client);
        match behind.and_then(VecDeque::pop_front) {
            Some(next) => self.turns.push_back((client, next)),
            None => {
                self.behind.remove(&client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_have_turns_and_their_questions_stay_in_order() {
        let mut agenda = Agenda::default();
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        assert_eq!(agenda.put_behind("a", 1), Some(1), "it is not busy");
        agenda.put_last(a.clone(), 1);
        assert_eq!(agenda.put_behind("a", 2), None);
        assert_eq!(agenda.put_behind("a", 3), None);
        assert_eq!(agenda.put_behind("b", 10), Some(10));
        agenda.put_last(b.clone(), 10);
        let mut seen = Vec::new();
        while let Some((client, question)) = agenda.take() {
            seen.push(question);
            // The first question takes three slices.
            if question == 1 && seen.len() < 4 {
                agenda.put_last(client, question);
            } else {
                agenda.done(client);
            }
        }
        assert_eq!(seen, [1, 10, 1, 1, 2, 3]);
        assert!(agenda.is_empty());
        assert_eq!(agenda.put_behind("a", 4), Some(4));
        assert!(agenda.behind.is_empty());
    }
}
