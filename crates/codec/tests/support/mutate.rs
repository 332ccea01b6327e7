//! Small pseudo-random changes to bytes, as a fuzzer makes them, but the same
//! in every run.

use punctual_model::Rng;

/// `input` with one to four changes; some splice in a piece of `other`.
pub fn mutate(input: &[u8], other: &[u8], rng: &mut Rng) -> Vec<u8> {
    const TELLING: [u8; 12] = [0, 1, 2, 3, 0x7F, 0x80, 0xFF, b'/', b'+', b'#', b'$', 0x26];
    let mut data = input.to_vec();
    for _ in 0..=rng.index(4) {
        let at = rng.index(data.len());
        let telling = *rng.pick(&TELLING);
        match rng.index(7) {
            0 if !data.is_empty() => data[at] ^= 1 << rng.index(8),
            1 if !data.is_empty() => data[at] = telling,
            2 if !data.is_empty() => data[at] = data[at].wrapping_add(1),
            3 if !data.is_empty() => {
                data.remove(at);
            }
            4 => data.truncate(at),
            5 => data.insert(at, telling),
            _ => {
                let from = rng.index(other.len());
                let to = (from + 1 + rng.index(16)).min(other.len());
                data.splice(at..at, other[from.min(to)..to].iter().copied());
            }
        }
    }
    data
}
