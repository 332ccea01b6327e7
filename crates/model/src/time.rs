//! Time, as passed by the caller.

use std::ops::{Add, Sub};

/// Nanoseconds since an arbitrary origin that never changes while a
/// program runs. A duration is the difference of two; nothing here reads a clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Nanos(pub u64);

impl Nanos {
    /// Later than every other time.
    pub const MAX: Self = Self(u64::MAX);

    /// Whole seconds as a duration; saturates.
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000_000_000))
    }

    /// Whole milliseconds as a duration; saturates.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Whole seconds, rounded down.
    pub const fn as_secs(self) -> u64 {
        self.0 / 1_000_000_000
    }

    /// Whole seconds, rounded up.
    pub const fn as_secs_ceil(self) -> u64 {
        self.0.div_ceil(1_000_000_000)
    }
}

impl Add for Nanos {
    type Output = Self;

    /// Saturates at [`Nanos::MAX`].
    #[inline]
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Sub for Nanos {
    type Output = Self;

    /// Saturates at zero, so that a clock that steps back does no harm.
    #[inline]
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}
