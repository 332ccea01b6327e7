//! Broker, manager and random clients that state requirements, in virtual time.
//!
//! Clients ask with CONNECT, PUBLISH and SUBSCRIBE, move, break, come back and
//! go; flows are made and taken over the API; the broker restarts with what was
//! kept. After everything that the manager decides, an analysis from scratch
//! must find everyone in time; acknowledgements must say what was decided; and
//! what has no owner any more must be gone.
//!
//! `PUNCTUAL_SEEDS=10000` runs that many, from `PUNCTUAL_FROM` on;
//! `PUNCTUAL_SEED=7` only that one, and tells its story.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may panic; clippy knows only the tests themselves"
)]

mod desk;
mod story;

use std::sync::atomic::{AtomicU64, Ordering};

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[test]
fn what_is_promised_is_true() {
    if let Some(seed) = number("PUNCTUAL_SEED") {
        println!("{:#?}", story::run(seed, true));
        return;
    }
    let first = number("PUNCTUAL_FROM").unwrap_or(0);
    let end = first.saturating_add(number("PUNCTUAL_SEEDS").unwrap_or(300));
    let next = AtomicU64::new(first);
    let threads = std::thread::available_parallelism().map_or(2, |n| n.get());
    let mut total = story::Summary::default();
    std::thread::scope(|scope| {
        let work = || {
            let mut sum = story::Summary::default();
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= end {
                    return sum;
                }
                sum.add(&story::run(seed, false));
            }
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            match worker.join() {
                Ok(sum) => total.add(&sum),
                Err(panic) => {
                    next.store(end, Ordering::Relaxed);
                    std::panic::resume_unwind(panic);
                }
            }
        }
    });
    // That nothing happened would be no success.
    let seeds = end - first;
    assert!(total.admitted > 3 * seeds, "{total:?}");
    assert!(total.rejected > seeds / 2, "{total:?}");
    assert!(total.answers > 2 * seeds, "{total:?}");
    assert!(total.restored > seeds / 10, "{total:?}");
    assert!(total.conforming > 5 * seeds, "{total:?}");
    println!("{total:#?}");
}

/// After a restart a client that had sent every 25 ms asks for every 4 ms, which is rejected. What
/// was restored stays, and each second message is sooner than that allows.
#[test]
fn who_asks_for_more_in_vain_is_held_to_what_was_restored() {
    story::run(627_104_443, false);
}

/// A receiver has no place in the network for a while, and a flow is admitted meanwhile. When it has
/// one again, neither the flow nor what is restored of it counts the receiver.
#[test]
fn receivers_after_a_restart_are_those_before() {
    story::run(616_141_870, false);
}
