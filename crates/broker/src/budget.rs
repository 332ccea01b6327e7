//! How much work may be done before others have their turn.
//!
//! This crate has no clock, so work is counted in units: a node of a tree visited, a subscription
//! made or ended, a message offered to a receiver, a KiB copied. One unit is a fraction of a
//! microsecond; the shell measures how long it takes on its machine, and gives as many units as fit
//! into the time that a slice may take.

/// Units of work that are left. Work that cannot be divided may overdraw it, by that piece alone.
#[derive(Debug)]
pub struct Budget {
    given: u64,
    spent: u64,
}

impl Budget {
    /// So many units.
    #[must_use]
    pub fn new(units: u64) -> Self {
        Self {
            given: units,
            spent: 0,
        }
    }

    /// As much as there is to do: for the start of a broker, its end, and tests.
    #[must_use]
    pub fn unlimited() -> Self {
        Self::new(u64::MAX)
    }

    /// Takes `units` out.
    pub fn spend(&mut self, units: u64) {
        self.spent = self.spent.saturating_add(units);
    }

    /// Nothing is left: what remains to be done waits for another slice.
    #[must_use]
    pub fn is_spent(&self) -> bool {
        self.spent >= self.given
    }

    /// Units that are left.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.given.saturating_sub(self.spent)
    }

    /// Units that were taken out, those included by which it was overdrawn.
    #[must_use]
    pub fn spent(&self) -> u64 {
        self.spent
    }
}
