//! The check of the fuzz target `http` on a stable toolchain: over its seeds, over changes of single
//! bytes, cuts and joints of them, and over any bytes.

use proptest::prelude::*;

use super::query::{Name, Query};
use super::{body, guard};
use crate::seeds::seeds;

#[path = "../../../../fuzz/src/http.rs"]
#[allow(unreachable_pub, reason = "there it is part of a program")]
mod checks;

#[test]
fn seeds_and_what_is_close_to_them() {
    let seeds = seeds("http");
    for (_, seed) in &seeds {
        checks::http(seed);
        for at in 0..seed.len() {
            checks::http(&seed[..at]);
            for value in *b"\n :{\"\x00" {
                let mut changed = seed.clone();
                changed[at] = value;
                checks::http(&changed);
            }
        }
        for (_, other) in &seeds {
            checks::http(&[&seed[..], &other[..]].concat());
        }
    }
}

proptest! {
    #[test]
    fn any_bytes(data in proptest::collection::vec(any::<u8>(), 0..200)) {
        checks::http(&data);
    }
}
