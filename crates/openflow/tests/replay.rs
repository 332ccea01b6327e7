//! The check of the fuzz target `openflow` on a stable toolchain: over its seeds, which are what
//! Open vSwitch 3.1 sends and takes, over changes of single bytes, cuts and joints of them, and
//! over any bytes.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

#[path = "../../../fuzz/src/openflow.rs"]
#[allow(unreachable_pub, reason = "there it is part of a program")]
mod checks;
#[path = "../../../fuzz/seeds.rs"]
mod seeds;

use proptest::prelude::*;
use punctual_openflow::{Envelope, split};
use seeds::seeds;

/// The bytes that a live switch sent come out again.
#[test]
fn golden_bytes_are_written_as_they_were_read() {
    for (name, bytes) in seeds("openflow") {
        let mut rest = &bytes[..];
        while let Some(frame) = split(rest, u16::MAX).unwrap() {
            let envelope = Envelope::decode(frame).unwrap();
            assert_eq!(envelope.to_bytes().unwrap(), frame, "{name}: {envelope:?}");
            rest = &rest[frame.len()..];
        }
        assert!(rest.is_empty(), "{name}");
    }
}

#[test]
fn seeds_and_what_is_close_to_them() {
    for (_, seed) in &seeds("openflow") {
        checks::openflow(seed);
        // Of long lists the first items say it all.
        for at in 0..seed.len().min(400) {
            checks::openflow(&seed[..at]);
            for value in [0, 1, 0x7f, 0x80, 0xff, seed[at] ^ 1] {
                let mut changed = seed.clone();
                changed[at] = value;
                checks::openflow(&changed);
            }
        }
    }
}

#[test]
fn conversations_of_seeds() {
    let all: Vec<_> = seeds("openflow")
        .into_iter()
        .flat_map(|(_, seed)| seed)
        .collect();
    checks::openflow(&all);
}

proptest! {
    #[test]
    fn any_bytes(mut data in proptest::collection::vec(any::<u8>(), 0..300), marked: bool) {
        if marked && data.len() > 8 {
            (data[0], data[1]) = (4, data[1] % 30);
            let length = (data.len() as u16).to_be_bytes();
            data[2..4].copy_from_slice(&length);
        }
        checks::openflow(&data);
    }
}
