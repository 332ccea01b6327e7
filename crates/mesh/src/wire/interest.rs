//! Messages about persistent interest, see `node::interest`.

use super::{KEEPS, Reader, WireError, Writer};
use crate::id::BrokerId;

/// Changes of the filters of persistent sessions at one broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterestUpdate {
    /// The broker with these sessions.
    pub of: BrokerId,
    /// Whether this replaces everything sent before.
    pub all: bool,
    /// Whether the next message continues the list.
    pub more: bool,
    /// Added filters; or, as [`KEEPS`] followed by a name, brokers for which messages are queued there.
    pub add: Vec<Box<str>>,
    /// Removed filters.
    pub remove: Vec<Box<str>>,
}

/// Whether a filter stands for a broker for which messages are queued.
fn is_broker(filter: &str) -> bool {
    let id = filter.strip_prefix(KEEPS);
    id.is_some_and(|id| BrokerId::new(id).is_some())
}

impl Writer {
    pub(super) fn sums(&mut self, sums: &[(BrokerId, u64)]) {
        self.number(sums.len() as u64);
        for (id, sum) in sums {
            self.id(id);
            self.0.extend_from_slice(&sum.to_be_bytes());
        }
    }

    pub(super) fn interest(&mut self, told: &InterestUpdate) {
        self.id(&told.of);
        self.byte(u8::from(told.all) | u8::from(told.more) << 1);
        self.filters(&told.add);
        self.filters(&told.remove);
    }
}

impl Reader<'_> {
    pub(super) fn sums(&mut self) -> Result<Vec<(BrokerId, u64)>, WireError> {
        let count = self.count(10)?;
        (0..count)
            .map(|_| Ok((self.id()?, self.fixed()?)))
            .collect()
    }

    pub(super) fn interest(&mut self) -> Result<InterestUpdate, WireError> {
        let of = self.id()?;
        let flags = self.byte()?;
        if flags & !3 != 0 {
            return Err(WireError::Field("flags"));
        }
        Ok(InterestUpdate {
            of,
            all: flags & 1 != 0,
            more: flags & 2 != 0,
            add: self.filters_and(is_broker)?,
            remove: self.filters_and(is_broker)?,
        })
    }
}
