//! The check of the fuzz target `store` on a stable toolchain: over its seeds,
//! over changes of single bytes and cuts of them, and over any bytes.
#![allow(clippy::unwrap_used, reason = "tests may unwrap")]

#[path = "../../../fuzz/src/store.rs"]
#[allow(unreachable_pub, reason = "there it is part of a program")]
mod checks;
#[path = "../../../fuzz/seeds.rs"]
mod seeds;

use proptest::prelude::*;
use seeds::seeds;

#[test]
fn seeds_and_what_is_close_to_them() {
    for (_, seed) in seeds("store") {
        checks::store(&seed);
        for at in 0..seed.len() {
            // Segments begin with much that is not used.
            if seed[at] == 0 && seed.len() > 1000 && at % 64 != 0 {
                continue;
            }
            checks::store(&seed[..at]);
            for value in [0, 0x80, seed[at] ^ 1] {
                let mut changed = seed.clone();
                changed[at] = value;
                checks::store(&changed);
            }
        }
    }
}

proptest! {
    #[test]
    fn any_bytes(data in proptest::collection::vec(any::<u8>(), 0..200)) {
        checks::store(&data);
    }
}
