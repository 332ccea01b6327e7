//! Which instants that another broker states can be true. Instants are microseconds since 1970.

/// Instants of which it is certain that they are in the future: versions of retained messages end
/// there, in 2091.
pub const LAST_INSTANT: u64 = VERSIONS_SINCE + (1 << 51) - 1;

/// From here on versions of retained messages count: the beginning of 2020.
pub const VERSIONS_SINCE: u64 = 1_577_836_800_000_000;

/// A clock that is before this was not set since the machine started: the beginning of 2025.
const SET_SINCE: u64 = 1_735_689_600_000_000;

/// How far an instant that another broker states may be ahead of this broker's clock: a day, so that a
/// clock that shows local time does no harm.
pub const MOST_AHEAD: u64 = 24 * 3600 * 1_000_000;

/// The last instant that another broker may state, by this broker's clock. One that was not set
/// says nothing about others.
pub fn latest_instant(clock: u64) -> u64 {
    match clock {
        ..SET_SINCE => LAST_INSTANT,
        _ => clock.saturating_add(MOST_AHEAD).min(LAST_INSTANT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_may_be_a_day_ahead_of_a_clock_that_was_set() {
        for clock in [0, SET_SINCE - 1, LAST_INSTANT, u64::MAX] {
            assert_eq!(latest_instant(clock), LAST_INSTANT, "{clock}");
        }
        let now = SET_SINCE + 5;
        assert_eq!(latest_instant(now), now + MOST_AHEAD);
    }
}
