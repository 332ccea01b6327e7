//! What persistent sessions await, as bytes.

use super::{KEEPS, Reader, WireError, Writer};
use crate::id::BrokerId;

/// What sessions of a broker's clients that outlive their connection await.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lasting {
    /// Which broker's.
    pub of: BrokerId,
    /// Instead of all told before.
    pub all: bool,
    /// The next message goes on with that.
    pub more: bool,
    /// Awaited from now on; or kept for, with [`KEEPS`] before the broker's name.
    pub add: Vec<Box<str>>,
    /// Not awaited any more.
    pub remove: Vec<Box<str>>,
}

/// Whether it stands for a broker that messages are kept for.
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

    pub(super) fn lasting(&mut self, told: &Lasting) {
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

    pub(super) fn lasting(&mut self) -> Result<Lasting, WireError> {
        let of = self.id()?;
        let flags = self.byte()?;
        if flags & !3 != 0 {
            return Err(WireError::Field("flags"));
        }
        Ok(Lasting {
            of,
            all: flags & 1 != 0,
            more: flags & 2 != 0,
            add: self.filters_and(is_broker)?,
            remove: self.filters_and(is_broker)?,
        })
    }
}
