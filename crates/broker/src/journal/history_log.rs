//! Stored delivery history of a session, in values under keys of their own.

use std::collections::VecDeque;

use punctual_store::Op;

use crate::journal::Journal;

/// Prefix of the keys; the number of the session follows, and the number of the value.
pub(crate) const PREFIX: &str = "mesh/had/";

/// Number of names from which a value is full, and not written again.
pub(crate) const FULL: usize = 64;

/// Largest number of names in a value.
const MOST: usize = 1 << 12;

/// Least number of stored names of messages that were delivered at this broker.
pub(crate) const MAX_OWN: usize = 1 << 12;

/// The kind of the names in a value, as its first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Messages that the session has received, from any broker.
    DeliveryHistory,
    /// Messages that were delivered at this broker.
    Own,
    /// Messages that had passed the session's former broker.
    Passed,
    /// Ranges of names that the former broker issued, each as the last name before the range and
    /// the last name of it.
    Given,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] = [Self::DeliveryHistory, Self::Own, Self::Passed, Self::Given];
}

/// The stored names of a session, and those that are to be stored.
#[derive(Debug, Default)]
pub(crate) struct HistoryLog {
    fresh: [Vec<u64>; Kind::ALL.len()],
    /// Whether the session is listed as one with names to store.
    listed: bool,
    /// Number of the next value.
    pub(crate) next: u32,
    /// Values with messages that were delivered at this broker, and the number of names of each.
    pub(crate) own: VecDeque<(u32, usize)>,
    pub(crate) own_names: usize,
    /// Names of the last one of these values, unless it is full.
    open: Vec<u64>,
    /// Numbers of the values of other kinds.
    pub(crate) others: Vec<u32>,
}

impl HistoryLog {
    /// Adds names that are to be stored.
    pub(crate) fn note(&mut self, kind: Kind, names: impl IntoIterator<Item = u64>) {
        self.fresh[kind as usize].extend(names);
    }

    /// Whether the session has to be listed as one with names to store; true once until the next
    /// [`Self::emit`].
    pub(crate) fn is_to_be_listed(&mut self) -> bool {
        let fresh = self.fresh.iter().any(|names| !names.is_empty());
        fresh && !std::mem::replace(&mut self.listed, true)
    }

    /// Emits the names that were added since the last call, and the removal of the oldest values.
    pub(crate) fn emit(&mut self, journal: &mut Journal, session: u64) {
        self.listed = false;
        for kind in [Kind::DeliveryHistory, Kind::Passed, Kind::Given] {
            for names in std::mem::take(&mut self.fresh[kind as usize]).chunks(MOST) {
                put(journal, session, self.next, kind, names);
                self.others.push(self.next);
                self.next += 1;
            }
        }
        let fresh = std::mem::take(&mut self.fresh[Kind::Own as usize]);
        if fresh.is_empty() {
            return;
        }
        if self.open.is_empty() {
            self.own.push_back((self.next, 0));
            self.next += 1;
        }
        self.own_names += fresh.len();
        self.open.extend(fresh);
        if let Some((number, names)) = self.own.back_mut() {
            *names = self.open.len();
            put(journal, session, *number, Kind::Own, &self.open);
        }
        if self.open.len() >= FULL {
            self.open.clear();
        }
        while let Some((number, names)) = self
            .own
            .pop_front_if(|(_, names)| self.own_names - *names >= MAX_OWN)
        {
            self.own_names -= names;
            let key = key(session, number);
            journal.emit(&Op::FlowGone { key: &key });
        }
    }

    /// Emits the removal of all values.
    pub(crate) fn end(self, journal: &mut Journal, session: u64) {
        let own = self.own.into_iter().map(|(number, _)| number);
        for number in own.chain(self.others) {
            let key = key(session, number);
            journal.emit(&Op::FlowGone { key: &key });
        }
    }
}

fn key(session: u64, number: u32) -> String {
    format!("{PREFIX}{session:016x}/{number:08x}")
}

fn put(journal: &mut Journal, session: u64, number: u32, kind: Kind, names: &[u64]) {
    let mut value = vec![kind as u8];
    value.extend(names.iter().flat_map(|name| name.to_le_bytes()));
    let key = key(session, number);
    journal.emit(&Op::Flow {
        key: &key,
        value: &value,
    });
}
