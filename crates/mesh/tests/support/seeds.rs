//! Which seeds a simulation is run with.

/// `few`, or as many as `PUNCTUAL_SEEDS` says, from 0 or `PUNCTUAL_FROM` on; or only
/// `PUNCTUAL_SEED`.
pub(super) fn seeds(few: u64) -> std::ops::Range<u64> {
    let number = |key| {
        std::env::var(key)
            .ok()
            .and_then(|value| value.parse::<u64>().ok())
    };
    if let Some(seed) = number("PUNCTUAL_SEED") {
        return seed..seed + 1;
    }
    let from = number("PUNCTUAL_FROM").unwrap_or(0);
    from..from + number("PUNCTUAL_SEEDS").unwrap_or(few)
}
