//! What a session that has moved between brokers of a mesh has had, so that it gets nothing twice.
//!
//! A message may come to a session on two ways: with the session, or forwarded by the stub of it, and by
//! itself, where its subscriptions are now ([`crate::mesh::custody`]). For a while it is remembered what the
//! session has got, by what that is called ([`DeliveryHistory`]).

pub(crate) use crate::journal::history_log::{HistoryLog, Kind};

use std::collections::VecDeque;
use std::num::NonZeroU32;

use hashbrown::{HashMap, HashSet};

use crate::Nanos;
use crate::base::delivery::Delivery;

/// Messages that a session has got here and that are recognised when they come from where it
/// was.
const MAX_HISTORY: usize = 1 << 12;

/// Names of what had passed elsewhere that are remembered.
const MAX_PASSED: usize = 1 << 14;
/// Rows of names that were given elsewhere that are remembered.
const MAX_GIVEN: usize = 64;

/// By which number packet identifiers that a broker of a mesh gives in a session that it has since
/// then are apart from others. A client that was given two sessions, or one that was at two brokers
/// for a while, remembers identifiers of both; they are hardly ever the same ones.
pub(crate) fn apart(broker: &str, since: u64) -> u64 {
    punctual_model::digest(broker.bytes().chain(since.to_le_bytes()))
}

/// A packet identifier of a session that ends, of a message with QoS 2 that its client may
/// have.
pub(crate) type TakenUp = (u16, Option<Delivery>);

/// What a session need not be sent again.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// It has had them, wherever they come from.
    pub(crate) history: Vec<u64>,
    /// They passed while it was there, and come to it nowhere else.
    pub(crate) passed: Vec<u64>,
    /// Names that were given where it was while it was there: the last before each row of them, and
    /// the last of it.
    pub(crate) given: Vec<[u64; 2]>,
}

/// What a session has got that may come again.
#[derive(Debug, Default)]
pub(crate) struct DeliveryHistory {
    /// Names of all.
    names: HashSet<u64, foldhash::fast::RandomState>,
    /// Those that came here by themselves, the oldest first.
    own: VecDeque<u64>,
    /// What had passed where the session was, before that left.
    passed: HashSet<u64, foldhash::fast::RandomState>,
    /// Names that were given where the session was while it was there, the latest last.
    given: VecDeque<Given>,
    pub(crate) until: Nanos,
    /// What of it is stored, for a session that survives.
    pub(crate) log: Option<Box<HistoryLog>>,
}

impl DeliveryHistory {
    /// Notes something that comes here by itself, with QoS 2 if it is to come `once` after a
    /// restart, too; false if the session has had it.
    pub(crate) fn note(&mut self, name: u64, once: bool) -> bool {
        let given = self.given.iter().any(|given| given.has(name));
        if self.passed.contains(&name) || given || !self.names.insert(name) {
            return false;
        }
        if self.own.len() >= MAX_HISTORY
            && let Some(oldest) = self.own.pop_front()
        {
            self.names.remove(&oldest);
        }
        self.own.push_back(name);
        if let Some(log) = self.log.as_mut().filter(|_| once) {
            log.note(Kind::Own, [name]);
        }
        true
    }

    /// Notes the name of a message that comes from where the session was, 0 for none; false if the
    /// session has had it.
    pub(crate) fn note_moved(&mut self, name: u64) -> bool {
        if name == 0 {
            return true;
        }
        if let Some(log) = &mut self.log {
            log.note(Kind::DeliveryHistory, [name]);
        }
        self.names.insert(name)
    }

    /// Whether that had passed where the session was, before it left: if the session wanted it, it had it.
    pub(crate) fn has_passed(&self, name: u64) -> bool {
        self.passed.contains(&name) || self.given.iter().any(|given| given.has(name))
    }

    /// Whether it had something of that name.
    #[cfg(test)]
    pub(crate) fn has(&self, name: u64) -> bool {
        name != 0 && self.names.contains(&name)
    }

    /// All of it, for another broker.
    pub(crate) fn known(&self) -> Known {
        Known {
            history: self.names.iter().copied().collect(),
            passed: self.passed.iter().copied().collect(),
            given: self.given.iter().map(|given| given.0).collect(),
        }
    }

    /// What was known elsewhere.
    pub(crate) fn learn(&mut self, known: &Known) {
        self.names.extend(&known.history);
        let room = MAX_PASSED.saturating_sub(self.passed.len());
        // The latest come last.
        let passed = known.passed.iter().rev().take(room);
        self.passed.extend(passed.clone());
        if let Some(log) = &mut self.log {
            log.note(Kind::DeliveryHistory, known.history.iter().copied());
            log.note(Kind::Passed, passed.copied());
            log.note(Kind::Given, known.given.iter().flatten().copied());
        }
        for given in known.given.iter().copied().map(Given) {
            if self.given.contains(&given) {
                continue;
            }
            if self.given.len() >= MAX_GIVEN {
                self.given.pop_front();
            }
            self.given.push_back(given);
        }
    }
}

/// Names that were given in a row: the last before them, and the last of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Given([u64; 2]);

impl Given {
    fn has(self, name: u64) -> bool {
        let [after, last] = self.0;
        after < name && name <= last
    }
}

/// What had been at a broker when a session began to be there: only of what comes after that is it
/// known that the session has had it if it wanted it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Began {
    /// See [`crate::MessageNames::mark_passed`].
    pub(crate) passed: u64,
    /// Since when what passed is stored, see [`NameLog::position`].
    ///
    /// [`NameLog::position`]: crate::journal::NameLog::position
    pub(crate) stored: u64,
    /// Of the names that were given there then.
    pub(crate) origin: NonZeroU32,
    /// Number in the last of them.
    pub(crate) given: u32,
}

/// When a session is looked at that remembers what it has had.
#[derive(Debug, Clone)]
pub(crate) struct HistoryExpiry {
    /// A timer that comes earlier is void.
    pub(crate) due: Nanos,
    pub(crate) slot: u32,
    /// Number of the session.
    pub(crate) session: u64,
}

/// All of one shard but what is with its sessions.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    /// One at most for each session, by numbers.
    pub(crate) expiries: HashMap<u64, HistoryExpiry, foldhash::quality::RandomState>,
    /// Number of the last one.
    pub(crate) last: u64,
    /// Slots of sessions that have had something that is to be stored.
    pub(crate) history_grew: Vec<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_session_has_had_is_recognised() {
        let mut history = DeliveryHistory::default();
        assert!(history.note(1, true) && !history.note(1, true));
        assert!(!history.note_moved(1));
        assert!(history.note_moved(2) && !history.note_moved(2) && !history.note(2, true));
        // What has no name is never recognised.
        assert!(history.note_moved(0) && history.note_moved(0));
        history.learn(&Known {
            history: vec![20],
            passed: vec![10],
            given: vec![[5 << 32 | 3, 5 << 32 | 7]],
        });
        assert!(
            history.note(5 << 32 | 3, true),
            "given before the session was there"
        );
        assert!(!history.note(20, true) && !history.note_moved(20));
        assert!(
            !history.note(10, true)
                && !history.note(5 << 32 | 7, true)
                && history.note(5 << 32 | 8, true)
        );
        // It passed elsewhere, but was not there for this session.
        assert!(history.note_moved(5 << 32 | 6));
        for name in 100..100 + 2 * MAX_HISTORY as u64 {
            history.note(name, true);
        }
        assert!(history.names.len() <= MAX_HISTORY + 6);
        assert!(
            !history.note_moved(2),
            "what came from there is not forgotten"
        );
    }
}
