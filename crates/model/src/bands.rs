//! Conversion between priorities and deadlines, where only one of them is stated:
//! deadline monotonic, in fixed bands, so that the priority of a flow does not change
//! when others are added.

/// Deadlines up to which a message without `rt-priority` has priority 7, 6, ...
/// in nanoseconds.
const BANDS: [u64; 7] = [
    1_000_000,
    3_000_000,
    10_000_000,
    30_000_000,
    100_000_000,
    300_000_000,
    1_000_000_000,
];

/// Priority 0..=7 that stands for a relative deadline in nanoseconds where none
/// is stated.
pub fn deadline_monotonic(deadline: u64) -> u8 {
    7 - BANDS.partition_point(|band| *band < deadline) as u8
}

/// Relative deadline in nanoseconds that stands for an `rt-priority` where none
/// is stated: the longest that has this priority by [`deadline_monotonic`].
pub fn implied_deadline(priority: u8) -> u64 {
    let band = usize::from(7 - priority.min(7));
    BANDS.get(band).copied().unwrap_or(10 * BANDS[6])
}

/// Shortest relative deadline in nanoseconds that has at most this priority by
/// [`deadline_monotonic`]; 0 for 7, which any has.
pub fn shortest_deadline(priority: u8) -> u64 {
    let higher = 6_u8.checked_sub(priority).map(usize::from);
    let band = higher.and_then(|band| BANDS.get(band));
    band.map_or(0, |band| band + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shorter_deadlines_imply_higher_priorities() {
        let bands = [1, 2, 9, 30, 99, 200, 1000, 5000].map(|millis| millis * 1_000_000);
        assert_eq!(bands.map(deadline_monotonic), [7, 6, 5, 4, 3, 2, 1, 0]);
        for priority in 0..=7 {
            assert_eq!(deadline_monotonic(implied_deadline(priority)), priority);
            let shortest = shortest_deadline(priority);
            assert_eq!(deadline_monotonic(shortest), priority);
            assert!(priority == 7 || deadline_monotonic(shortest - 1) == priority + 1);
        }
    }
}
