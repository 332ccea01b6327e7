//! Random clients, compared with a model, over many seeds.
//!
//! `PUNCTUAL_SEEDS=100000` runs that many seeds, from `PUNCTUAL_FROM` on; `PUNCTUAL_SEED=7` runs
//! only that one.

use punctual_sim::{random, seeds};

#[test]
fn the_broker_agrees_with_the_model() {
    let run = |seed| random::run(seed).unwrap_or_else(|why| panic!("{why}"));
    if let [summary] = &seeds(300).in_parallel(run)[..] {
        println!("{summary:#?}");
    }
}
