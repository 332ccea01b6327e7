//! The delivery history of a session that has moved between brokers of a mesh. It prevents that the
//! session receives a message twice.
//!
//! A message may reach a session on two paths: with the session, or forwarded by its stub, and
//! directly at the broker where its subscriptions are now ([`crate::mesh::custody`]). For a limited
//! time the broker remembers the names of the messages that the session has received
//! ([`DeliveryHistory`]).

pub(crate) use crate::journal::history_log::{HistoryLog, Kind};

use std::collections::VecDeque;
use std::num::NonZeroU32;

use hashbrown::{HashMap, HashSet};

use crate::Nanos;
use crate::base::delivery::Delivery;

/// Largest number of messages that a session has received here, and whose copies from its former
/// broker are recognised.
const MAX_HISTORY: usize = 1 << 12;

/// Largest number of remembered names of messages that had passed the former broker.
const MAX_PASSED: usize = 1 << 14;
/// Largest number of remembered ranges of names that the former broker has issued.
const MAX_GIVEN: usize = 64;

/// A number from which a broker derives the first packet identifier of a session that it has since
/// `since`. A client that had two sessions, or a session at two brokers for a while, may remember
/// packet identifiers of both; with this number they hardly ever coincide.
pub(crate) fn apart(broker: &str, since: u64) -> u64 {
    punctual_model::digest(broker.bytes().chain(since.to_le_bytes()))
}

/// A packet identifier of a session that ends: that of a message with QoS 2 which its client may
/// have received.
pub(crate) type TakenUp = (u16, Option<Delivery>);

/// Messages that need not be sent to a session again.
#[derive(Debug, Default)]
pub(crate) struct KnownMessages {
    /// Names of messages that the session has received, from any broker.
    pub(crate) history: Vec<u64>,
    /// Names of messages that passed the former broker while the session was there: they are not
    /// delivered to it at another broker.
    pub(crate) passed: Vec<u64>,
    /// Ranges of names that the former broker issued while the session was there: each as the last
    /// name before the range, and the last name of it.
    pub(crate) given: Vec<[u64; 2]>,
}

/// Messages that a session has received and that may arrive again.
#[derive(Debug, Default)]
pub(crate) struct DeliveryHistory {
    /// Names of all of them.
    names: HashSet<u64, foldhash::fast::RandomState>,
    /// Names of those that were delivered at this broker, the oldest first.
    own: VecDeque<u64>,
    /// Names of messages that had passed the former broker before the session left it.
    passed: HashSet<u64, foldhash::fast::RandomState>,
    /// Ranges of names that former brokers issued while the session was there, the latest last.
    given: VecDeque<Given>,
    pub(crate) until: Nanos,
    /// The stored part of the history, for a session that survives a restart.
    pub(crate) log: Option<Box<HistoryLog>>,
}

impl DeliveryHistory {
    /// Records a message that is delivered at this broker. With `once` (QoS 2) the record also survives
    /// a restart. Returns false if the session has received the message.
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

    /// Records the name of a message that the former broker has sent, 0 for none; false if the
    /// session has received it.
    pub(crate) fn note_moved(&mut self, name: u64) -> bool {
        if name == 0 {
            return true;
        }
        if let Some(log) = &mut self.log {
            log.note(Kind::DeliveryHistory, [name]);
        }
        self.names.insert(name)
    }

    /// Whether a message had passed a former broker before the session left it: with a matching
    /// subscription, the session has received it.
    pub(crate) fn has_passed(&self, name: u64) -> bool {
        self.passed.contains(&name) || self.given.iter().any(|given| given.has(name))
    }

    /// Whether the session has received a message of that name.
    #[cfg(test)]
    pub(crate) fn has(&self, name: u64) -> bool {
        name != 0 && self.names.contains(&name)
    }

    /// The whole history, for another broker.
    pub(crate) fn known(&self) -> KnownMessages {
        KnownMessages {
            history: self.names.iter().copied().collect(),
            passed: self.passed.iter().copied().collect(),
            given: self.given.iter().map(|given| given.0).collect(),
        }
    }

    /// Adds the history that another broker has sent.
    pub(crate) fn learn(&mut self, known: &KnownMessages) {
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

/// A range of issued names: the last name before the range, and the last name of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Given([u64; 2]);

impl Given {
    fn has(self, name: u64) -> bool {
        let [after, last] = self.0;
        after < name && name <= last
    }
}

/// The position of a broker's messages when a session began there: only a later message is certain
/// to have been delivered to the session if it matched a subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Began {
    /// See [`crate::MessageNames::mark_passed`].
    pub(crate) passed: u64,
    /// Position in the log of stored names, see [`NameLog::position`].
    ///
    /// [`NameLog::position`]: crate::mesh::journal::names::NameLog::position
    pub(crate) stored: u64,
    /// Origin of the names that the broker issued at that time.
    pub(crate) origin: NonZeroU32,
    /// Number of the last name issued before.
    pub(crate) given: u32,
}

/// When the delivery history of a session is checked for expiry.
#[derive(Debug, Clone)]
pub(crate) struct HistoryExpiry {
    /// A timer that fires earlier is ignored.
    pub(crate) due: Nanos,
    pub(crate) slot: u32,
    /// Number of the session.
    pub(crate) session: u64,
}

/// Delivery histories of one shard: the state beside the sessions.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    /// Pending expiries by their number; at most one for each session.
    pub(crate) expiries: HashMap<u64, HistoryExpiry, foldhash::quality::RandomState>,
    /// Number of the last expiry.
    pub(crate) last: u64,
    /// Slots of sessions whose history has grown and is to be stored.
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
        // A message without a name is never recognised.
        assert!(history.note_moved(0) && history.note_moved(0));
        history.learn(&KnownMessages {
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
        // A name in the range, but not received by this session.
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
