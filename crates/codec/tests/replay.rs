//! The fuzz targets' checks on a stable toolchain: over their seeds and over
//! pseudo-random mutations of them. Deterministic: a failure names the seed, and
//! repeats.

#![allow(clippy::unwrap_used, reason = "tests may unwrap")]

mod support;

#[path = "../../../fuzz/src/lib.rs"]
#[allow(unreachable_pub, reason = "there it is a library")]
mod checks;

use std::fs;
use std::path::PathBuf;

use support::golden::golden;
use support::hex;

/// Mutations of each input.
const ROUNDS: u64 = 1000;

/// A xorshift generator; enough to stir bytes.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

/// One to four small changes, as libFuzzer makes them.
fn mutate(input: &[u8], other: &[u8], random: &mut Random) -> Vec<u8> {
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

fn seeds(target: &str) -> Vec<(String, Vec<u8>)> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/seeds")
        .join(target);
    let mut seeds: Vec<_> = fs::read_dir(&dir)
        .unwrap_or_else(|e| panic!("{}: {e}", dir.display()))
        .map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (name, fs::read(path).unwrap())
        })
        .collect();
    assert!(!seeds.is_empty(), "no seeds in {}", dir.display());
    seeds.sort();
    seeds
}

fn replay(inputs: &[(String, Vec<u8>)], check: fn(&[u8])) {
    for (i, (name, input)) in inputs.iter().enumerate() {
        let run = |data: &[u8], what: &str| {
            if std::panic::catch_unwind(|| check(data)).is_err() {
                panic!("{name}, {what}: {data:02x?}");
            }
        };
        run(input, "unchanged");
        let mut random = Random(0x9E37_79B9_7F4A_7C15 ^ (i as u64) << 32);
        for round in 0..ROUNDS {
            let other = &inputs[random.below(inputs.len())].1;
            run(
                &mutate(input, other, &mut random),
                &format!("mutation {round}"),
            );
        }
    }
}

/// The golden packets are the seeds of `decode`, in files for the fuzzer.
#[test]
fn golden_packets_are_seeds() {
    let seeds = seeds("decode");
    for case in golden() {
        let seed = seeds.iter().find(|(name, _)| name == case.name);
        assert_eq!(
            seed.map(|(_, bytes)| bytes),
            Some(&hex(case.hex)),
            "fuzz/seeds/decode/{}",
            case.name
        );
    }
}

#[test]
fn decode() {
    let mut inputs = seeds("decode");
    // Also without remaining length, as the target's second reading wants it.
    inputs.extend(seeds("decode").into_iter().map(|(name, mut packet)| {
        packet.remove(1);
        (format!("{name} without length"), packet)
    }));
    replay(&inputs, checks::decode);
}

#[test]
fn stream() {
    replay(&seeds("stream"), checks::stream);
}

#[test]
fn properties() {
    replay(&seeds("properties"), checks::properties);
}

#[test]
fn topic() {
    replay(&seeds("topic"), checks::topic);
}
