//! Many seeds of random clients against the model.
//!
//! `PUNCTUAL_SEEDS=100000` runs that many, from `PUNCTUAL_FROM` on;
//! `PUNCTUAL_SEED=7` only that one.

#[path = "support/parallel.rs"]
mod parallel;

use punctual_sim::{random, seeds};

#[test]
fn the_broker_agrees_with_the_model() {
    let run = |seed| random::run(seed).unwrap_or_else(|why| panic!("{why}"));
    if let [summary] = &parallel::each(seeds(300), run)[..] {
        println!("{summary:#?}");
    }
}
