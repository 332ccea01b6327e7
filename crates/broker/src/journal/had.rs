//! What sessions that came from other brokers have had ([`crate::moves::Had`]), so that it
//! is recognised after a restart, too.
//!
//! It is stored in the turn in which a session gets it, in values under keys of their own among
//! those of admitted flows. What a session brings along is stored once. What comes to it here by
//! itself is stored if it comes with QoS 2: names gather in a value, which is written again until
//! it is full, and the oldest values are given up. All of it goes when it is not needed any more,
//! or with the session. What had been at the broker when a session began there it has not had: a value
//! says how far that was. Another one says what the session is where sessions move.

use std::collections::VecDeque;
use std::num::NonZeroU32;

use punctual_mesh::transfer::Record;
use punctual_store::Op;

use super::{Journal, Known};
use crate::hub::Hub;
use crate::moves::Had;
use crate::session::{Session, Stored};

/// Keys begin with this; the number of the session follows, and that of the value.
const PREFIX: &str = "mesh/had/";
/// Instead of the number of a value: what had been here when a session began to be here, as [`crate::moves::Began`].
const BEGAN: &str = "began";
/// The same: what it is where sessions move, as [`Record`].
const CUSTODY: &str = "custody";
/// Names in a value that is not written again.
const FULL: usize = 64;
/// Names in any value.
const MOST: usize = 1 << 12;
/// Names that came by themselves and are stored at least.
const MAX_OWN: usize = 1 << 12;

/// What names are of, as the first byte of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// What the session has had, wherever it comes from.
    Had,
    /// What came here by itself.
    Own,
    /// What had passed where the session was.
    Passed,
    /// Names that were given there, as the last before each row of them and the last of it.
    Given,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Had, Self::Own, Self::Passed, Self::Given];
}

/// What of it is stored, and what is to be.
#[derive(Debug, Default)]
pub(crate) struct HadLog {
    fresh: [Vec<u64>; Kind::ALL.len()],
    /// It is listed among those with something fresh.
    listed: bool,
    /// Number of the next value.
    next: u32,
    /// Values with what came by itself, and how many names each has.
    own: VecDeque<(u32, usize)>,
    own_names: usize,
    /// Names of the last of them, unless it is full.
    open: Vec<u64>,
    /// Other values.
    others: Vec<u32>,
}

impl HadLog {
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
    fn emit(&mut self, journal: &mut Journal, session: u64) {
        self.listed = false;
        for kind in [Kind::Had, Kind::Passed, Kind::Given] {
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
    fn end(self, journal: &mut Journal, session: u64) {
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

fn word_key(session: u64, word: &str) -> String {
    format!("{PREFIX}{session:016x}/{word}")
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

/// What a store has of it, of one session.
#[derive(Debug, Default)]
pub(super) struct Restored {
    pub(super) had: Option<Box<Had>>,
    /// What had been here when it began to be here: `stored`, `origin`, and `given` of
    /// [`crate::moves::Began`].
    pub(super) began: Option<(u64, NonZeroU32, u32)>,
    pub(super) custody: Option<Record>,
}

/// Reads what [`Journal::began`] wrote.
fn began(value: &[u8]) -> Option<(u64, NonZeroU32, u32)> {
    let (stored, rest) = value.split_first_chunk()?;
    let (origin, given) = rest.split_first_chunk()?;
    let origin = NonZeroU32::new(u32::from_le_bytes(*origin))?;
    let given = u32::from_le_bytes(given.try_into().ok()?);
    Some((u64::from_le_bytes(*stored), origin, given))
}

/// Whose a value is, and its number or what is instead of that; `None` if it is something else.
pub(super) fn parse(key: &str) -> Option<(u64, &str)> {
    let (session, number) = key.strip_prefix(PREFIX)?.split_once('/')?;
    Some((u64::from_str_radix(session, 16).ok()?, number))
}

impl Restored {
    /// Takes a value; they come in the order of their numbers.
    pub(super) fn take(&mut self, number: &str, value: &[u8]) {
        match number {
            BEGAN => self.began = began(value),
            CUSTODY => self.custody = Record::decode(value).ok(),
            _ => self.take_names(number, value),
        }
    }

    fn take_names(&mut self, number: &str, value: &[u8]) {
        let kind = value
            .first()
            .and_then(|kind| Kind::ALL.get(usize::from(*kind)));
        let (Ok(number), Some(kind)) = (u32::from_str_radix(number, 16), kind) else {
            return;
        };
        let names = value[1..].as_chunks().0.iter().copied();
        let names: Vec<u64> = names.map(u64::from_le_bytes).collect();
        let had = self.had.get_or_insert_default();
        let mut log = had.log.take().unwrap_or_default();
        log.next = log.next.max(number.saturating_add(1));
        match kind {
            Kind::Own => {
                log.own.push_back((number, names.len()));
                log.own_names += names.len();
                names.iter().for_each(|name| {
                    had.note(*name, false);
                });
            }
            _ => {
                log.others.push(number);
                let mut known = Known::default();
                match kind {
                    Kind::Passed => known.passed = names,
                    Kind::Given => known.given = names.as_chunks().0.to_vec(),
                    Kind::Had | Kind::Own => known.had = names,
                }
                had.learn(&known);
            }
        }
        had.log = Some(log);
    }
}

/// Removes from the store the instant at which a session began on this broker: it is not valid any more.
pub(super) fn forget_began(journal: &mut Option<Box<Journal>>, session: &Session) {
    if let Some(journal) = journal {
        let key = word_key(session.handle.number, BEGAN);
        journal.emit(&Op::FlowGone { key: &key });
    }
}

impl Journal {
    /// Nothing of this is stored any more of a session that ends, or does not survive.
    pub(super) fn end_had(&mut self, session: &mut Session) {
        let number = session.handle.number;
        if let Some(log) = session.had.as_mut().and_then(|had| had.log.take()) {
            log.end(self, number);
        }
        let began = session.began.as_mut().map(|it| &mut it.is_stored);
        let custody = session.custody.as_mut().map(|it| &mut it.is_stored);
        for (word, stored) in [(BEGAN, began), (CUSTODY, custody)] {
            if stored.is_some_and(std::mem::take) {
                let key = word_key(number, word);
                self.emit(&Op::FlowGone { key: &key });
            }
        }
    }

    /// Emits what had been here when a session began to be here, unless the store knows that.
    pub(super) fn began(&mut self, session: &mut Session) {
        let Some(began) = session.began.as_mut().filter(|it| !it.is_stored) else {
            return;
        };
        began.is_stored = true;
        let began = began.value;
        let mut value = began.stored.to_le_bytes().to_vec();
        value.extend_from_slice(&began.origin.get().to_le_bytes());
        value.extend_from_slice(&began.given.to_le_bytes());
        self.emit(&Op::Flow {
            key: &word_key(session.handle.number, BEGAN),
            value: &value,
        });
    }
}

impl Hub {
    /// From now on it is known of what passes here whether a session has queued it.
    pub(crate) fn begin_here(&mut self, slot: u32) {
        let Some(session) = self.sessions.get_mut(slot) else {
            return;
        };
        session.set_began(self.directory.begins().map(Stored::new));
        if let Some(journal) = self.journal.as_mut().filter(|_| session.durable) {
            journal.began(session);
        }
    }

    /// Emits what a session is where sessions move, unless the store knows that.
    pub(crate) fn store_custody(&mut self, slot: u32) {
        if let (Some(journal), Some(session)) = (&mut self.journal, self.sessions.get_mut(slot))
            && session.durable
            && let Some(custody) = session.custody.as_mut().filter(|it| !it.is_stored)
        {
            custody.is_stored = true;
            let key = &word_key(session.handle.number, CUSTODY);
            let value = &custody.value.encode();
            journal.emit(&Op::Flow { key, value });
        }
    }

    /// What a session has had is to be stored from now on, if the session survives.
    pub(crate) fn store_had(&mut self, slot: u32) {
        if let Some(session) = self.sessions.get_mut(slot)
            && session.durable
            && self.journal.is_some()
            && let Some(had) = &mut session.had
        {
            had.log.get_or_insert_default();
        }
    }

    /// Something was noted in that of a session.
    pub(crate) fn had_more(&mut self, slot: u32) {
        let session = self.sessions.get_mut(slot);
        let log = session.and_then(|session| session.had.as_mut()?.log.as_mut());
        if log.is_some_and(|log| log.is_to_be_listed()) {
            self.moves.had_more.push(slot);
        }
    }

    /// Emits what sessions have had since the last time.
    pub(crate) fn emit_had(&mut self) {
        let Some(journal) = &mut self.journal else {
            return;
        };
        for slot in self.moves.had_more.drain(..) {
            if let Some(session) = self.sessions.get_mut(slot)
                && let Some(log) = session.had.as_mut().and_then(|had| had.log.as_mut())
            {
                log.emit(journal, session.handle.number);
            }
        }
    }

    /// What a session has had is not needed any more; returns it.
    pub(crate) fn take_had(&mut self, slot: u32) -> Option<Box<Had>> {
        let session = self.sessions.get_mut(slot)?;
        let mut had = session.had.take()?;
        if let (Some(log), Some(journal)) = (had.log.take(), &mut self.journal) {
            log.end(journal, session.handle.number);
        }
        Some(had)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use punctual_store::{Memory, Store};

    use super::*;
    use crate::Nanos;

    /// What a store tells of sessions.
    fn restored(store: &mut Memory) -> BTreeMap<u64, Restored> {
        let mut all: BTreeMap<u64, Restored> = BTreeMap::new();
        let recovered = store.recover(&mut |op| {
            if let Op::Flow { key, value } = op {
                let (session, number) = parse(key).unwrap();
                all.entry(session).or_default().take(number, value);
            }
        });
        recovered.unwrap();
        all
    }

    fn commit(store: &mut Memory, say: impl FnOnce(&mut Journal)) {
        let mut journal = Journal::new(0);
        say(&mut journal);
        let operations = journal.take(Nanos(0), Nanos(0)).unwrap();
        store.commit(&operations.batch).unwrap();
    }

    #[test]
    fn what_was_had_survives_until_it_is_given_up() {
        let mut store = Memory::default();
        let mut had = Had::default();
        had.log = Some(Box::default());
        for name in [1, 2] {
            assert!(had.note_moved(name));
        }
        had.learn(&Known {
            had: vec![3],
            passed: vec![4],
            given: vec![[5 << 32, 5 << 32 | 6]],
        });
        let mut name = 1000;
        for turn in 0..2000 {
            for _ in 0..turn % 9 {
                name += 1;
                assert!(had.note(name, name % 10 != 0));
            }
            if turn % 500 == 401 {
                // After a restart it goes on.
                commit(&mut store, |journal| {
                    had.log.as_mut().unwrap().emit(journal, 7);
                });
                let back = restored(&mut store).remove(&7).unwrap();
                had = *back.had.unwrap();
            } else if had.log.as_mut().unwrap().is_to_be_listed() {
                commit(&mut store, |journal| {
                    had.log.as_mut().unwrap().emit(journal, 7);
                });
            }
        }
        let all = restored(&mut store);
        assert_eq!(all.keys().copied().collect::<Vec<u64>>(), [7]);
        let back = all.into_values().next().unwrap().had.unwrap();
        assert!([1, 2, 3].iter().all(|name| back.has(*name)));
        let mut again = back;
        assert!(!again.note(4, true) && !again.note(5 << 32 | 6, true));
        let last = name - MAX_OWN as u64;
        assert!((last..=name).all(|name| again.has(name) == (name % 10 != 0)));
        let log = again.log.take().unwrap();
        assert!(log.own_names < MAX_OWN + 2 * FULL, "{}", log.own_names);
        commit(&mut store, |journal| log.end(journal, 7));
        assert!(restored(&mut store).is_empty());
    }

    #[test]
    fn a_word_of_a_later_version_says_nothing() {
        let mut back = Restored::default();
        back.take("later", &[0; 9]);
        assert!(back.had.is_none() && back.began.is_none() && back.custody.is_none());
    }
}
