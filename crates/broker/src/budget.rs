//! Budgets of work: the amount that may be done before other connections have their turn.
//!
//! This crate has no clock, so work is counted in units: a node of a tree visited, a subscription
//! made or ended, a message offered to a receiver, 2 KiB copied. One unit is a fraction of a
//! microsecond; the shell measures how long it takes on its machine, and gives as many units as fit
//! into the time that a slice may take.

/// The remaining units of work. Work that cannot be divided may exceed the budget, by that piece
/// alone.
#[derive(Debug)]
pub struct Budget {
    given: u64,
    spent: u64,
}

impl Budget {
    /// A budget of `units`.
    #[must_use]
    pub fn new(units: u64) -> Self {
        Self {
            given: units,
            spent: 0,
        }
    }

    /// An unlimited budget: for the start of a broker, its end, and tests.
    #[must_use]
    pub fn unlimited() -> Self {
        Self::new(u64::MAX)
    }

    /// Takes `units` out.
    pub fn spend(&mut self, units: u64) {
        self.spent = self.spent.saturating_add(units);
    }

    /// Whether the budget is spent: the remaining work waits for another slice.
    #[must_use]
    pub fn is_spent(&self) -> bool {
        self.spent >= self.given
    }

    /// Number of remaining units.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.given.saturating_sub(self.spent)
    }

    /// Number of spent units, including those beyond the budget.
    #[must_use]
    pub fn spent(&self) -> u64 {
        self.spent
    }
}
