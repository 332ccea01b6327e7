//! Broker, manager and random clients that declare requirements, in virtual time.
//!
//! Clients request admission with CONNECT, PUBLISH and SUBSCRIBE, change hosts, lose connections,
//! return and leave; flows are created and deleted over the API; the broker restarts with its
//! stored state. After every decision of the manager, all flows must meet their deadlines in an
//! analysis from scratch; acknowledgements must contain the decisions; and flows without an owner
//! must be gone.
//!
//! `PUNCTUAL_SEEDS=10000` runs that many seeds, from `PUNCTUAL_FROM` on; `PUNCTUAL_SEED=7` runs
//! only that one, and prints its events.

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
    // Runs in which nothing happened must not count as a success.
    assert!(total.admitted > 3 * seeds, "{total:?}");
    assert!(total.rejected > seeds / 2, "{total:?}");
    assert!(total.answers > 2 * seeds, "{total:?}");
    assert!(total.restored > seeds / 10, "{total:?}");
    assert!(total.conforming > 5 * seeds, "{total:?}");
}

/// After a restart a client with an admitted period of 25 ms requests a period of 4 ms, which is
/// rejected. The restored flow stays, and every second message of the client violates its period.
#[test]
fn who_asks_for_more_in_vain_is_held_to_what_was_restored() {
    story::run(627_104_443, false);
}

/// A receiver is not in the network for some time, and a flow is admitted meanwhile. When the
/// receiver is in the network again, neither the flow nor its restored copy includes the receiver.
#[test]
fn receivers_after_a_restart_are_those_before() {
    story::run(616_141_870, false);
}
