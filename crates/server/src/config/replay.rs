//! The check of the fuzz target `config` on a stable toolchain: over its seeds, over changes of
//! single bytes, cuts and joints of them, and over any bytes.

use proptest::prelude::*;

use crate::config;
use crate::seeds::seeds;

#[path = "../../../../fuzz/src/config.rs"]
#[allow(unreachable_pub, reason = "there it is part of a program")]
mod checks;

#[test]
fn seeds_and_what_is_close_to_them() {
    let seeds = seeds("config");
    for (_, seed) in &seeds {
        checks::config(seed);
        for at in 0..seed.len() {
            for value in *b"\n[\"=9" {
                let mut changed = seed.clone();
                changed[at] = value;
                checks::config(&changed);
            }
        }
        for (_, other) in &seeds {
            checks::config(&[&seed[..], &other[..]].concat());
        }
    }
}

proptest! {
    #[test]
    fn any_bytes(data in proptest::collection::vec(any::<u8>(), 0..200)) {
        checks::config(&data);
    }
}
