//! Runs the check of the fuzz target `mesh` on a stable toolchain: with its seed inputs, with
//! single bytes of them changed, with truncated ones, and with random bytes.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

#[path = "../../../fuzz/src/mesh.rs"]
#[allow(unreachable_pub, reason = "there it is part of a program")]
mod checks;
#[path = "../../../fuzz/seeds.rs"]
mod seeds;

use proptest::prelude::*;
use punctual_mesh::wire::Message;
use seeds::seeds;

#[test]
fn seeds_and_what_is_close_to_them() {
    for (name, seed) in seeds("mesh") {
        assert!(Message::decode(&seed).is_ok(), "{name} is a message");
        checks::mesh(&seed);
        for at in 0..seed.len() {
            checks::mesh(&seed[..at]);
            for value in [0, 1, 2, 0x7f, 0x80, 0xff, seed[at] ^ 1] {
                let mut changed = seed.clone();
                changed[at] = value;
                checks::mesh(&changed);
            }
        }
    }
}

proptest! {
    #[test]
    fn any_bytes(kind in 0..28u8, bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
        checks::mesh(&[&[kind], &bytes[..]].concat());
    }
}
