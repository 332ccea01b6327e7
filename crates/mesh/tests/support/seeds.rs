//! Which seeds a simulation is run with.

/// `few` from 0 on, as many as `PUNCTUAL_SEEDS` says, or only `PUNCTUAL_SEED`.
pub(super) fn seeds(few: u64) -> std::ops::Range<u64> {
    let number = |key| {
        std::env::var(key)
            .ok()
            .and_then(|value| value.parse::<u64>().ok())
    };
    if let Some(seed) = number("PUNCTUAL_SEED") {
        return seed..seed + 1;
    }
    0..number("PUNCTUAL_SEEDS").unwrap_or(few)
}
