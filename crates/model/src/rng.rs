//! Random numbers of a seed, for simulations and tests: the same on every machine
//! and in every version, so that a seed in a bug report means the same for ever.
//! They are no secret: whoever sees one can tell those that follow.
//!
//! SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number
//! generators", OOPSLA 2014.

/// A generator of random numbers.
#[derive(Debug, Clone)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// The generator of `seed`.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Any number.
    pub fn any(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 if that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.any()) * u128::from(bound)) >> 64) as u64
    }

    /// An index of `len` items; 0 if there are none.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// A number in `range`, both ends included.
    pub fn within(&mut self, range: std::ops::RangeInclusive<u64>) -> u64 {
        let (low, high) = (*range.start(), *range.end());
        low + self.below(high.saturating_sub(low).saturating_add(1))
    }

    /// True `per_cent` times of a hundred.
    pub fn chance(&mut self, per_cent: u64) -> bool {
        self.below(100) < per_cent
    }

    /// One of `items`, which is not empty.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.index(items.len())]
    }

    /// A generator whose numbers do not depend on how many are drawn from this one.
    pub fn fork(&mut self) -> Self {
        Self::new(self.any())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stays_in_range_and_repeats() {
        let (mut a, mut b) = (Rng::new(7), Rng::new(7));
        for bound in 1..2000 {
            let n = a.below(bound);
            assert!(n < bound);
            assert_eq!(n, b.below(bound));
        }
        // Published values for seed 1234567.
        let mut known = Rng::new(1_234_567);
        assert_eq!(known.any(), 6_457_827_717_110_365_317);
        assert_eq!(known.any(), 3_203_168_211_198_807_973);
    }
}
