//! Connections of clients and neighbour brokers, as other parts name them.

/// A connection of one shard. Never refers to another connection later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConnId {
    /// Position; reused after the connection is closed.
    pub slot: u32,
    /// Distinguishes connections with the same slot.
    pub generation: u32,
}

impl ConnId {
    /// One number for both; the inverse of [`Self::from_number`].
    pub fn number(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }

    /// The connection with that number.
    pub fn from_number(number: u64) -> Self {
        Self {
            slot: number as u32,
            generation: (number >> 32) as u32,
        }
    }
}

/// The peers that may connect at a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Admits {
    /// Clients, and neighbour brokers.
    #[default]
    All,
    /// Clients only.
    Clients,
    /// Neighbour brokers only.
    Brokers,
}
