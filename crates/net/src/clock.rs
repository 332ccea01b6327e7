//! The clock of the broker's times, shared by all threads.

use std::time::{Duration, Instant};

use punctual_broker::Nanos;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// The clock that all shards and the management side share.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    origin: Instant,
    /// Nanoseconds of the system's monotonic clock then, less a second.
    offset: u64,
}

/// Nanoseconds of the system's monotonic clock.
#[inline]
fn monotonic() -> u64 {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Monotonic);
    tv_sec as u64 * 1_000_000_000 + tv_nsec as u64
}

impl Clock {
    /// Starts at one second, so that times before the start exist.
    pub fn new() -> Self {
        let offset = monotonic() - 1_000_000_000;
        Self {
            origin: Instant::now(),
            offset,
        }
    }

    /// The same moment for libraries that count in [`Instant`].
    pub(crate) fn instant(&self, at: Nanos) -> Instant {
        self.origin + Duration::from_nanos(at.0.saturating_sub(1_000_000_000))
    }

    /// The inverse of [`Self::instant`].
    pub(crate) fn nanos(&self, at: Instant) -> Nanos {
        let since = at.saturating_duration_since(self.origin).as_nanos();
        Nanos(u64::try_from(since).map_or(u64::MAX, |since| since.saturating_add(1_000_000_000)))
    }

    /// Now. Monotonic: steps of the wall clock do not show.
    #[inline]
    pub fn now(&self) -> Nanos {
        Nanos(monotonic().saturating_sub(self.offset))
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}
