//! What is stored of what a session has had, in values under keys of their own.

use std::collections::VecDeque;

use punctual_store::Op;

use crate::journal::Journal;

/// Keys begin with this; the number of the session follows, and that of the value.
pub(crate) const PREFIX: &str = "mesh/had/";

/// Names in a value that is not written again.
pub(crate) const FULL: usize = 64;

/// Names in any value.
const MOST: usize = 1 << 12;

/// Names that came by themselves and are stored at least.
pub(crate) const MAX_OWN: usize = 1 << 12;

/// What names are of, as the first byte of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// What the session has had, wherever it comes from.
    DeliveryHistory,
    /// What came here by itself.
    Own,
    /// What had passed where the session was.
    Passed,
    /// Names that were given there, as the last before each row of them and the last of it.
    Given,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] = [Self::DeliveryHistory, Self::Own, Self::Passed, Self::Given];
}

/// What of it is stored, and what is to be.
#[derive(Debug, Default)]
pub(crate) struct HistoryLog {
    fresh: [Vec<u64>; Kind::ALL.len()],
    /// It is listed among those with something fresh.
    listed: bool,
    /// Number of the next value.
    pub(crate) next: u32,
    /// Values with what came by itself, and how many names each has.
    pub(crate) own: VecDeque<(u32, usize)>,
    pub(crate) own_names: usize,
    /// Names of the last of them, unless it is full.
    open: Vec<u64>,
    /// Other values.
    pub(crate) others: Vec<u32>,
}

impl HistoryLog {
    /// Notes names that are to be stored.
    pub(crate) fn note(&mut self, kind: Kind, names: impl IntoIterator<Item = u64>) {
        self.fresh[kind as usize].extend(names);
    }

    /// Whether it has to be listed among those with something fresh, once.
    pub(crate) fn is_to_be_listed(&mut self) -> bool {
        let fresh = self.fresh.iter().any(|names| !names.is_empty());
        fresh && !std::mem::replace(&mut self.listed, true)
    }

    /// Emits what was noted since the last time, and which values are given up.
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

    /// Emits that nothing of it is needed any more.
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
