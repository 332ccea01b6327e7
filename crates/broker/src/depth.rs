//! Queue depth: a histogram of the number of waiting messages when one is added.
//!
//! One bucket for each count up to 16, then four for each doubling, so a
//! percentile is at most a quarter above the true one. Fixed size, no
//! allocation.

/// Counts up to this have a bucket of their own.
const EXACT: u64 = 16;
/// Buckets for each doubling above.
const SUB: usize = 4;
/// Counts above 2^LAST are in the last bucket.
const LAST: u32 = 20;
const BUCKETS: usize = EXACT as usize + SUB * (LAST - EXACT.ilog2()) as usize + 1;

/// The number of waiting messages, each time that one was added, including that one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Depth {
    /// Number of messages that were added.
    pub count: u64,
    /// Sum of the numbers of waiting messages.
    pub sum: u64,
    /// The largest number that ever waited. Shards do not reach theirs at the same time, so the sum
    /// over several shards is an upper bound.
    pub max: u64,
    buckets: [u64; BUCKETS],
}

impl Default for Depth {
    fn default() -> Self {
        Self {
            count: 0,
            sum: 0,
            max: 0,
            buckets: [0; BUCKETS],
        }
    }
}

#[inline]
fn bucket(depth: u64) -> usize {
    if depth <= EXACT {
        return depth.saturating_sub(1) as usize;
    }
    // Bounds are inclusive: 17 to 20, 21 to 24, ..., 33 to 40.
    let depth = depth - 1;
    let octave = depth.ilog2();
    let sub = (depth >> (octave - 2)) as usize & (SUB - 1);
    let doublings = (octave - EXACT.ilog2()) as usize;
    (EXACT as usize + SUB * doublings + sub).min(BUCKETS - 1)
}

/// The largest depth of a bucket; of the last one there is none.
fn upper(bucket: usize) -> u64 {
    let Some(above) = bucket.checked_sub(EXACT as usize) else {
        return bucket as u64 + 1;
    };
    let (doublings, sub) = (above / SUB, (above % SUB) as u64);
    (SUB as u64 + sub + 1) << (doublings + 2)
}

impl Depth {
    /// Counts a message, including which `depth` messages wait.
    #[inline]
    pub fn record(&mut self, depth: u64) {
        self.count += 1;
        self.sum += depth;
        self.max = self.max.max(depth);
        self.buckets[bucket(depth)] += 1;
    }

    /// Adds the counts of another shard.
    pub fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.sum += other.sum;
        self.max += other.max;
        for (own, other) in self.buckets.iter_mut().zip(&other.buckets) {
            *own += other;
        }
    }

    /// Number of messages that were added at a depth of at most a bound, for ascending bounds.
    pub fn cumulative(&self) -> impl Iterator<Item = (u64, u64)> {
        let mut sum = 0;
        let bounded = self.buckets[..BUCKETS - 1].iter().enumerate();
        bounded.map(move |(at, count)| {
            sum += count;
            (upper(at), sum)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_depth_is_in_the_bucket_that_ends_not_far_above(depth in 1..1u64 << LAST) {
            let at = bucket(depth);
            prop_assert!(at < BUCKETS - 1);
            prop_assert!(depth <= upper(at) && upper(at) <= depth + depth / 4);
            prop_assert!(at == 0 || upper(at - 1) < depth);
        }

        #[test]
        fn counts_add_up(depths in proptest::collection::vec(1..5_000_000u64, 1..100)) {
            let mut depth = Depth::default();
            for &waiting in &depths {
                depth.record(waiting);
            }
            let mut twice = depth.clone();
            twice.add(&depth);
            let small = depths.iter().filter(|d| **d <= 1 << LAST).count() as u64;
            let counted = |of: &Depth| of.cumulative().last().map(|(_, count)| count);
            prop_assert_eq!(counted(&depth), Some(small));
            prop_assert_eq!(counted(&twice), Some(2 * small));
            prop_assert_eq!(depth.max, depths.iter().copied().max().unwrap_or(0));
            prop_assert_eq!(twice.count, 2 * depths.len() as u64);
        }
    }

    #[test]
    fn small_depths_are_exact() {
        let mut depth = Depth::default();
        for waiting in [1, 1, 3] {
            depth.record(waiting);
        }
        let first: Vec<_> = depth.cumulative().take(4).collect();
        assert_eq!(first, [(1, 2), (2, 2), (3, 3), (4, 3)]);
        assert_eq!((depth.sum, depth.max), (5, 3));
    }
}
