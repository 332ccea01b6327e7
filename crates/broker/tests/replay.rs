//! The check of the fuzz target `throttle` on a stable toolchain: over its seeds, over changes of single
//! bytes and cuts of them, and over any bytes.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

#[path = "../../../fuzz/src/throttle.rs"]
#[allow(unreachable_pub, reason = "there it is part of a program")]
mod checks;
#[path = "../../../fuzz/seeds.rs"]
mod seeds;

use proptest::prelude::*;
use punctual_broker::throttle;
use seeds::seeds;

#[test]
fn seeds_and_what_is_close_to_them() {
    for (name, seed) in seeds("throttle") {
        assert!(throttle::parse(&seed).is_some(), "{name} is read");
        for at in 0..seed.len() {
            checks::throttle(&seed[..at]);
            for value in [0, 1, b'#', b'+', b'/', 0x7f, 0x80, 0xff, seed[at] ^ 1] {
                let mut changed = seed.clone();
                changed[at] = value;
                checks::throttle(&changed);
            }
        }
    }
}

proptest! {
    #[test]
    fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
        checks::throttle(&bytes);
    }
}
