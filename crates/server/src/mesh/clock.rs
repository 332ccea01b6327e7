//! The time of day, by which brokers of a mesh agree which retained message or session is the newest.

use std::time::{SystemTime, UNIX_EPOCH};

/// Microseconds since 1970; 0 if the clock shows an earlier time.
pub(super) fn wall_clock() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as u64)
}
