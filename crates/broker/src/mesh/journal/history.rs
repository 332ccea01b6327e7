//! Stored delivery histories of sessions that came from other brokers
//! ([`crate::mesh::moves::DeliveryHistory`]), so that duplicates are recognised after a restart,
//! too.
//!
//! A name is stored in the turn in which the session receives the message, in values under keys of
//! their own among those of admitted flows. The history that a session brings along is stored once.
//! Names of messages that are delivered at this broker are stored for QoS 2: they gather in a
//! value, which is written again until it is full, and the oldest values are removed. All values
//! are removed when the history expires, or with the session. Two further values have the position
//! of the broker's messages at which the session began there, and the transfer record of the
//! session.

use std::num::NonZeroU32;

use punctual_mesh::transfer::Record;

use crate::journal::history_log::{Kind, PREFIX};
use crate::mesh::moves::{DeliveryHistory, KnownMessages};

/// Word instead of the number of a value: the position at which a session began on this broker, as
/// [`crate::mesh::moves::Began`].
pub(crate) const BEGAN: &str = "began";
/// Word instead of the number of a value: the transfer record of a session, as [`Record`].
pub(crate) const CUSTODY: &str = "custody";

pub(crate) fn word_key(session: u64, word: &str) -> String {
    format!("{PREFIX}{session:016x}/{word}")
}

/// The stored history and records of one session.
#[derive(Debug, Default)]
pub(crate) struct Restored {
    pub(crate) history: Option<Box<DeliveryHistory>>,
    /// The position at which the session began on this broker: `stored`, `origin`, and `given` of
    /// [`crate::mesh::moves::Began`].
    pub(crate) began: Option<(u64, NonZeroU32, u32)>,
    pub(crate) custody: Option<Record>,
}

/// Reads the value that [`Journal::began`](crate::journal::Journal::began) wrote.
fn began(value: &[u8]) -> Option<(u64, NonZeroU32, u32)> {
    let (stored, rest) = value.split_first_chunk()?;
    let (origin, given) = rest.split_first_chunk()?;
    let origin = NonZeroU32::new(u32::from_le_bytes(*origin))?;
    let given = u32::from_le_bytes(given.try_into().ok()?);
    Some((u64::from_le_bytes(*stored), origin, given))
}

/// Splits the key of a value into the number of its session, and the number of the value or a word;
/// `None` for other keys.
pub(crate) fn parse(key: &str) -> Option<(u64, &str)> {
    let (session, number) = key.strip_prefix(PREFIX)?.split_once('/')?;
    Some((u64::from_str_radix(session, 16).ok()?, number))
}

impl Restored {
    /// Reads a value; the store returns values in the order of their numbers.
    pub(crate) fn take(&mut self, number: &str, value: &[u8]) {
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
        let history = self.history.get_or_insert_default();
        let mut log = history.log.take().unwrap_or_default();
        log.next = log.next.max(number.saturating_add(1));
        match kind {
            Kind::Own => {
                log.own.push_back((number, names.len()));
                log.own_names += names.len();
                names.iter().for_each(|name| {
                    history.note(*name, false);
                });
            }
            _ => {
                log.others.push(number);
                let mut known = KnownMessages::default();
                match kind {
                    Kind::Passed => known.passed = names,
                    Kind::Given => known.given = names.as_chunks().0.to_vec(),
                    Kind::DeliveryHistory | Kind::Own => known.history = names,
                }
                history.learn(&known);
            }
        }
        history.log = Some(log);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use punctual_store::{Memory, Store};

    use punctual_store::Op;

    use super::*;
    use crate::Nanos;
    use crate::journal::Journal;
    use crate::journal::history_log::{FULL, MAX_OWN};

    /// The histories that a store returns, by session.
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
        let mut history = DeliveryHistory::default();
        history.log = Some(Box::default());
        for name in [1, 2] {
            assert!(history.note_moved(name));
        }
        history.learn(&KnownMessages {
            history: vec![3],
            passed: vec![4],
            given: vec![[5 << 32, 5 << 32 | 6]],
        });
        let mut name = 1000;
        for turn in 0..2000 {
            for _ in 0..turn % 9 {
                name += 1;
                assert!(history.note(name, name % 10 != 0));
            }
            if turn % 500 == 401 {
                // The history continues after a restart.
                commit(&mut store, |journal| {
                    history.log.as_mut().unwrap().emit(journal, 7);
                });
                let back = restored(&mut store).remove(&7).unwrap();
                history = *back.history.unwrap();
            } else if history.log.as_mut().unwrap().is_to_be_listed() {
                commit(&mut store, |journal| {
                    history.log.as_mut().unwrap().emit(journal, 7);
                });
            }
        }
        let all = restored(&mut store);
        assert_eq!(all.keys().copied().collect::<Vec<u64>>(), [7]);
        let back = all.into_values().next().unwrap().history.unwrap();
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
        assert!(back.history.is_none() && back.began.is_none() && back.custody.is_none());
    }
}
