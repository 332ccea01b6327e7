//! The check of the fuzz target `layer` on a stable toolchain: over its seeds,
//! over changes of single bytes, cuts and joints of them, and over any bytes.
#![allow(clippy::unwrap_used, reason = "tests may unwrap")]

#[path = "../../../fuzz/src/layer.rs"]
#[allow(unreachable_pub, reason = "there it is part of a program")]
mod checks;
#[path = "../../../fuzz/seeds.rs"]
mod seeds;

use proptest::prelude::*;
use seeds::seeds;

#[test]
fn seeds_and_what_is_close_to_them() {
    let seeds = seeds("layer");
    for (_, seed) in &seeds {
        checks::layer(seed);
        for at in 0..seed.len() {
            checks::layer(&seed[..at]);
            for value in [0, 1, 0x7F, 0x80, 0xFF, seed[at] ^ 1] {
                let mut changed = seed.clone();
                changed[at] = value;
                checks::layer(&changed);
            }
        }
        for (_, other) in &seeds {
            checks::layer(&[&seed[..], &other[1..]].concat());
        }
    }
}

proptest! {
    #[test]
    fn any_bytes(data in proptest::collection::vec(any::<u8>(), 0..200)) {
        checks::layer(&data);
    }
}
