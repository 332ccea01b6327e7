//! The fuzz targets' checks on a stable toolchain: over their seeds and over
//! pseudo-random mutations of them. Deterministic: a failure names the seed, and
//! repeats.

#![allow(clippy::unwrap_used, reason = "tests may unwrap")]

mod support;

#[path = "../../../fuzz/src/lib.rs"]
#[allow(unreachable_pub, reason = "there it is a library")]
mod checks;
#[path = "../../../fuzz/seeds.rs"]
mod seeds;

use proptest::collection::vec;
use proptest::prelude::*;
use punctual_model::Rng;
use seeds::seeds;
use support::golden::golden;
use support::mutate::mutate;
use support::{config, hex};

/// Mutations of each input.
const ROUNDS: u64 = 1000;

fn replay(inputs: &[(String, Vec<u8>)], check: fn(&[u8])) {
    for (i, (name, input)) in inputs.iter().enumerate() {
        let run = |data: &[u8], what: &str| {
            if std::panic::catch_unwind(|| check(data)).is_err() {
                panic!("{name}, {what}: {data:02x?}");
            }
        };
        run(input, "unchanged");
        let mut rng = Rng::new((i as u64) << 32);
        for round in 0..ROUNDS {
            let other = &rng.pick(inputs).1;
            run(
                &mutate(input, other, &mut rng),
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

proptest! {
    #![proptest_config(config(2000))]

    #[test]
    fn arbitrary_bytes(data in vec(any::<u8>(), 0..80)) {
        checks::decode(&data);
        checks::stream(&data);
        checks::properties(&data);
        checks::topic(&data);
    }
}

#[test]
fn properties() {
    replay(&seeds("properties"), checks::properties);
}

#[test]
fn topic() {
    replay(&seeds("topic"), checks::topic);
}
