//! The check of the fuzz target `admission` on a stable toolchain: over its seeds,
//! over changes of single bytes, cuts and joints of them, and over any bytes.
#![allow(clippy::unwrap_used, reason = "tests may")]

#[path = "../../../fuzz/src/admission.rs"]
#[allow(unreachable_pub, reason = "there it is part of a program")]
mod checks;
#[path = "../../../fuzz/seeds.rs"]
mod seeds;

use proptest::prelude::*;
use seeds::seeds;

#[test]
fn seeds_and_what_is_close_to_them() {
    let seeds = seeds("admission");
    for (_, seed) in &seeds {
        checks::admission(seed);
        for at in 0..seed.len() {
            for value in *b"\n =9.s" {
                let mut changed = seed.clone();
                changed[at] = value;
                checks::admission(&changed);
            }
        }
        for (_, other) in &seeds {
            checks::admission(&[&seed[..], &other[..]].concat());
        }
    }
}

proptest! {
    #[test]
    fn any_bytes(data in proptest::collection::vec(any::<u8>(), 0..200)) {
        checks::admission(&data);
    }
}
