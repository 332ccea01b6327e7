//! A table by numbers that rise by one, such as those of messages.
//!
//! Numbers near each other are kept near each other: reading a log, and a
//! broker at work, go through them nearly in order, and a table of a million
//! elsewhere costs a miss of every cache for each.

use std::hash::{BuildHasherDefault, Hasher};

use hashbrown::HashMap;

/// Numbers that are kept together; a power of two, and half of what a table looks
/// at together, so that runs which meet have room.
const RUN: u64 = 8;

/// A table by the broker's own numbers.
pub type ByNumber<V> = HashMap<u64, V, BuildHasherDefault<NumberHasher>>;

/// Hashes a number, of several the last. Runs of numbers are scattered, so that no pattern in
/// which numbers stay can crowd a part of the table.
#[derive(Debug, Clone, Copy, Default)]
pub struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(self.0.rotate_left(8) ^ u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        // The low bits say where, the high ones tell apart what is there.
        let run = mix(number / RUN);
        let within = number % RUN;
        let place = run & !(RUN - 1) | within;
        self.0 = place ^ within << 57;
    }
}

/// Mixes a number well (the finaliser of SplitMix64).
pub(crate) fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use std::hash::BuildHasher;

    use super::*;

    fn hash(number: u64) -> u64 {
        BuildHasherDefault::<NumberHasher>::default().hash_one(number)
    }

    #[test]
    fn neighbours_stay_together_and_differ() {
        for first in [0, RUN * 1000] {
            let run: Vec<u64> = (first..first + RUN).map(hash).collect();
            for (within, hash) in (0..).zip(&run) {
                assert_eq!(hash & 0xFFFF_FFFF, (run[0] & 0xFFFF_FFFF) + within);
            }
            let mut tags: Vec<u64> = run.iter().map(|hash| hash >> 57).collect();
            tags.sort_unstable();
            tags.dedup();
            assert_eq!(tags.len() as u64, RUN);
        }
    }

    #[test]
    fn no_stride_crowds_a_part_of_the_table() {
        const PARTS: u64 = 64;
        for stride in [1, 8, 64, 1000, 1 << 10, 1 << 20] {
            let mut parts = [0u32; PARTS as usize];
            for n in 0..PARTS * 1024 {
                parts[((hash(n * stride) >> 4) % PARTS) as usize] += 1;
            }
            let most = parts.iter().max();
            assert!(most < Some(&1536), "stride {stride}: {parts:?}");
        }
    }
}
