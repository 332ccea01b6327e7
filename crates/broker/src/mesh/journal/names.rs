//! Stored names of messages from neighbour brokers, so that duplicates are recognised after a
//! restart, too.
//!
//! Names are stored with the operations of their messages, in one value for each turn of the first
//! shard; the oldest values are removed. The origins in the names of messages that clients
//! published to this broker before a restart are stored as well. Values have keys of their own
//! among those of admitted flows.

use std::collections::VecDeque;
use std::num::NonZeroU32;

use punctual_store::Op;

use crate::base::name::MessageName;
use crate::journal::Journal;
use crate::mesh::federation::MessageNames;

/// Largest number of stored names.
const MAX_NAMES: usize = 1 << 16;
/// Largest number of values with names.
const MAX_VALUES: usize = 1 << 14;
/// Largest number of remembered origins: one for each start of this broker.
const MAX_ORIGINS: usize = 64;
const SEEN: &str = "mesh/seen/";
const ORIGINS: &str = "mesh/origins";
/// Bytes of a stored name.
const NAME: usize = 8;

/// The stored form of a name.
pub(crate) fn bytes(name: MessageName) -> [u8; NAME] {
    let mut bytes = [0; NAME];
    bytes[..4].copy_from_slice(&name.origin.get().to_le_bytes());
    bytes[4..].copy_from_slice(&name.number.to_le_bytes());
    bytes
}

/// The inverse of [`bytes`].
pub(crate) fn name_of(bytes: &[u8; NAME]) -> Option<MessageName> {
    let ([origin, number], _) = bytes.as_chunks() else {
        return None;
    };
    Some(MessageName {
        origin: NonZeroU32::new(u32::from_le_bytes(*origin))?,
        number: u32::from_le_bytes(*number),
        again: false,
        back: 0,
    })
}

/// The stored names of messages, and those that are to be stored.
#[derive(Debug, Default)]
pub(crate) struct NameLog {
    /// Numbers of the values, and the number of names of each.
    values: VecDeque<(u64, usize)>,
    names: usize,
    next: u64,
    /// Numbers of the values that were restored, and the result of [`MessageNames::mark_passed`]
    /// before each of them.
    restored: Vec<(u64, u64)>,
    /// Names that were added since the last call of [`Self::emit`].
    fresh: Vec<u8>,
    fresh_names: usize,
    origins: Vec<NonZeroU32>,
}

impl NameLog {
    /// Adds the name of a message of which something is stored.
    pub(crate) fn note(&mut self, name: MessageName) {
        self.fresh.extend_from_slice(&bytes(name));
        self.fresh_names += 1;
    }

    /// The origins in the names of messages that clients published to this broker before its last
    /// starts.
    pub(crate) fn origins_before(&self, own: NonZeroU32) -> Vec<NonZeroU32> {
        let origins = self.origins.iter().copied();
        origins.filter(|origin| *origin != own).collect()
    }

    /// The number of the first value that has only names that are added from now on.
    pub(crate) fn position(&self) -> u64 {
        // The next value may have names that were added before, and so counts as earlier.
        self.next + u64::from(!self.fresh.is_empty())
    }

    /// The result of [`MessageNames::mark_passed`] before the names from that [`Self::position`] on
    /// were restored; `None` if there are none.
    pub(crate) fn passed_at(&self, position: u64) -> Option<u64> {
        let at = self
            .restored
            .partition_point(|(number, _)| *number < position);
        self.restored.get(at).map(|(_, mark)| *mark)
    }

    /// Reads a value that was stored before a restart, and passes its names to the federation.
    pub(crate) fn restore(
        &mut self,
        key: &str,
        value: &[u8],
        federation: Option<&dyn MessageNames>,
    ) {
        let words = value.as_chunks().0.iter().copied().map(u32::from_le_bytes);
        if key == ORIGINS {
            self.origins = words.filter_map(NonZeroU32::new).collect();
            if let Some(federation) = federation {
                self.origins
                    .iter()
                    .for_each(|origin| federation.was_origin(*origin));
            }
            return;
        }
        let Some(Ok(number)) = key
            .strip_prefix(SEEN)
            .map(|hex| u64::from_str_radix(hex, 16))
        else {
            return;
        };
        if let Some(federation) = federation {
            self.restored.push((number, federation.mark_passed()));
        }
        for name in value.as_chunks().0 {
            if let (Some(federation), Some(name)) = (federation, name_of(name)) {
                federation.note(name);
            }
        }
        // Keys are in the order of their numbers.
        self.values.push_back((number, value.len() / NAME));
        self.names += value.len() / NAME;
        self.next = self.next.max(number + 1);
    }

    /// Emits the origin in the names of messages that clients publish to this broker, once for each
    /// journal: before a shard stores a message, and whichever shard does so first.
    pub(crate) fn emit_origin(&mut self, journal: &mut Journal, origin: NonZeroU32) {
        if std::mem::replace(&mut journal.knows_origin, true) {
            return;
        }
        if self.origins.last() != Some(&origin) {
            let first = (self.origins.len() + 1).saturating_sub(MAX_ORIGINS);
            self.origins.drain(..first);
            self.origins.push(origin);
        }
        let origins = self.origins.iter();
        let value: Vec<u8> = origins.flat_map(|it| it.get().to_le_bytes()).collect();
        journal.emit(&Op::Flow {
            key: ORIGINS,
            value: &value,
        });
    }

    /// Emits the names that were added since the last call, and the removal of the oldest values.
    pub(crate) fn emit(&mut self, journal: &mut Journal) {
        if self.fresh.is_empty() {
            return;
        }
        journal.emit(&Op::Flow {
            key: &key(self.next),
            value: &self.fresh,
        });
        self.values.push_back((self.next, self.fresh_names));
        self.names += self.fresh_names;
        self.next += 1;
        self.fresh.clear();
        self.fresh_names = 0;
        while (self.names > MAX_NAMES || self.values.len() > MAX_VALUES)
            && let Some((number, names)) = self.values.pop_front()
        {
            self.names -= names;
            journal.emit(&Op::FlowGone { key: &key(number) });
        }
    }
}

fn key(number: u64) -> String {
    format!("{SEEN}{number:016x}")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Mutex;

    use punctual_store::{Memory, Store};

    use super::*;
    use crate::Nanos;

    #[derive(Debug, Default)]
    struct Recorder {
        names: Mutex<Vec<u32>>,
        origins: Mutex<Vec<u32>>,
    }

    impl MessageNames for Recorder {
        fn origin(&self) -> NonZeroU32 {
            NonZeroU32::MIN
        }
        fn is_new(&self, _: MessageName, _: bool) -> bool {
            true
        }
        fn clock(&self) -> u64 {
            0
        }
        fn note(&self, name: MessageName) {
            self.names.lock().unwrap().push(name.number);
        }
        fn was_origin(&self, origin: NonZeroU32) {
            self.origins.lock().unwrap().push(origin.get());
        }
    }

    fn restart(store: &mut Memory) -> (NameLog, Recorder) {
        let (mut log, told) = (NameLog::default(), Recorder::default());
        store
            .recover(&mut |op| {
                if let Op::Flow { key, value } = op {
                    log.restore(key, value, Some(&told));
                }
            })
            .unwrap();
        (log, told)
    }

    #[test]
    fn names_survive_and_the_oldest_are_given_up() {
        let mut store = Memory::default();
        let mut number = 0;
        for start in 1..=3 {
            let (mut log, told) = restart(&mut store);
            let known: BTreeSet<u32> = told.names.into_inner().unwrap().into_iter().collect();
            assert!(known.len() <= MAX_NAMES);
            let last = u32::min(number, MAX_NAMES as u32 / 2);
            assert!((number - last + 1..=number).all(|number| known.contains(&number)));
            assert_eq!(
                told.origins.into_inner().unwrap(),
                (1..start).collect::<Vec<_>>()
            );
            let mut journal = Journal::new(0);
            for turn in 0..20_000 {
                for _ in 0..turn % 9 {
                    number += 1;
                    log.note(MessageName {
                        origin: NonZeroU32::MIN,
                        number,
                        again: false,
                        back: 0,
                    });
                }
                log.emit_origin(&mut journal, NonZeroU32::new(start).unwrap());
                log.emit(&mut journal);
            }
            store
                .commit(&journal.take(Nanos(0), Nanos(0)).unwrap().batch)
                .unwrap();
        }
    }
}
