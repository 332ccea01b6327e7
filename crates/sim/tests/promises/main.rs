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

use punctual_sim::seeds;

#[test]
fn what_is_promised_is_true() {
    let all = seeds(300);
    let seeds = all.left();
    let is_told = seeds == 1;
    let mut total = story::Summary::default();
    let run = |seed| story::run(seed, is_told);
    (all.in_parallel(run).iter()).for_each(|summary| total.add(summary));
    println!("{total:#?}");
    if is_told {
        return;
    }
    // That nothing happened would be no success.
    assert!(total.admitted > 3 * seeds, "{total:?}");
    assert!(total.rejected > seeds / 2, "{total:?}");
    assert!(total.answers > 2 * seeds, "{total:?}");
    assert!(total.restored > seeds / 10, "{total:?}");
    assert!(total.conforming > 5 * seeds, "{total:?}");
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
