//! Runs the check of the fuzz target `network` on a stable toolchain: with its seed inputs, with
//! single bytes of them changed, and with truncated ones.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests may unwrap")]

#[path = "../../../fuzz/src/network.rs"]
#[allow(unreachable_pub, reason = "there it is part of a program")]
mod checks;
#[path = "../../../fuzz/seeds.rs"]
mod seeds;

use seeds::seeds;

#[test]
fn seeds_and_what_is_close_to_them() {
    for (_, seed) in seeds("network") {
        checks::network(&seed);
        for at in 0..seed.len() {
            for value in [b'0', b'9', b'"', b'[', b'}', b'\\', seed[at] ^ 1] {
                let mut changed = seed.clone();
                changed[at] = value;
                checks::network(&changed);
            }
            let mut cut = seed.clone();
            cut.remove(at);
            checks::network(&cut);
        }
    }
}
