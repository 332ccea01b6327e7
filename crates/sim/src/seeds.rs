//! Which seeds a simulation is run with, by variables of the environment: `PUNCTUAL_SEED` names
//! the only one, `PUNCTUAL_SEEDS` says how many there are and `PUNCTUAL_FROM` the first of them.

use std::ops::Range;

/// Those that the environment says; otherwise `few`, from 0 on.
pub fn seeds(few: u64) -> Range<u64> {
    let (first, count) = match variable("PUNCTUAL_SEED") {
        Some(seed) => (seed, 1),
        None => (
            variable("PUNCTUAL_FROM").unwrap_or(0),
            variable("PUNCTUAL_SEEDS").unwrap_or(few),
        ),
    };
    first..first.saturating_add(count)
}

/// Whether the seeds were chosen from outside: in few others something may never happen that the
/// fixed ones are known to bring about.
pub fn are_seeds_chosen() -> bool {
    let keys = ["PUNCTUAL_SEED", "PUNCTUAL_FROM"];
    keys.iter().any(|key| variable(key).is_some())
}

/// How many lines a failure tells of what led to it: `PUNCTUAL_TRACE`.
pub fn trace_lines() -> Option<usize> {
    variable("PUNCTUAL_TRACE").map(|lines| lines as usize)
}

fn variable(key: &str) -> Option<u64> {
    std::env::var(key).ok()?.parse().ok()
}
