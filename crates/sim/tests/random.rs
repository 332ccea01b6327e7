//! Many seeds of random clients against the model.
//!
//! `PUNCTUAL_SEEDS=100000` runs that many, from `PUNCTUAL_FROM` on;
//! `PUNCTUAL_SEED=7` only that one.

use std::sync::atomic::{AtomicU64, Ordering};

use punctual_sim::random;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[test]
fn the_broker_agrees_with_the_model() {
    if let Some(seed) = number("PUNCTUAL_SEED") {
        match random::run(seed) {
            Ok(summary) => println!("{summary:#?}"),
            Err(why) => panic!("{why}"),
        }
        return;
    }
    let seeds = number("PUNCTUAL_SEEDS").unwrap_or(300);
    let first = number("PUNCTUAL_FROM").unwrap_or(0);
    let end = first.saturating_add(seeds);
    let next = AtomicU64::new(first);
    let threads = std::thread::available_parallelism().map_or(2, |n| n.get());
    let failures: Vec<String> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    loop {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        if seed >= end {
                            return None;
                        }
                        if let Err(why) = random::run(seed) {
                            next.store(end, Ordering::Relaxed);
                            return Some(why);
                        }
                    }
                })
            })
            .collect();
        workers
            .into_iter()
            .filter_map(|worker| worker.join().expect("a run panicked"))
            .collect()
    });
    if let Some(why) = failures.first() {
        panic!("{why}");
    }
}
