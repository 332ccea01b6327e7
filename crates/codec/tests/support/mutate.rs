//! Small pseudo-random changes to bytes, as a fuzzer makes them, but the same
//! in every run.

/// A xorshift generator; enough to stir bytes.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed ^ 0x9E37_79B9_7F4A_7C15)
    }

    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n.max(1) as u64) as usize
    }
}

/// `input` with one to four changes; some splice in a piece of `other`.
pub fn mutate(input: &[u8], other: &[u8], random: &mut Random) -> Vec<u8> {
    const TELLING: [u8; 12] = [0, 1, 2, 3, 0x7F, 0x80, 0xFF, b'/', b'+', b'#', b'$', 0x26];
    let mut data = input.to_vec();
    for _ in 0..=random.below(4) {
        let at = random.below(data.len());
        let telling = TELLING[random.below(TELLING.len())];
        match random.below(7) {
            0 if !data.is_empty() => data[at] ^= 1 << random.below(8),
            1 if !data.is_empty() => data[at] = telling,
            2 if !data.is_empty() => data[at] = data[at].wrapping_add(1),
            3 if !data.is_empty() => {
                data.remove(at);
            }
            4 => data.truncate(at),
            5 => data.insert(at, telling),
            _ => {
                let from = random.below(other.len());
                let to = (from + 1 + random.below(16)).min(other.len());
                data.splice(at..at, other[from.min(to)..to].iter().copied());
            }
        }
    }
    data
}
