//! kill -9: whatever was acknowledged is there when the broker runs again.

use std::io::{Write as _, stderr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use punctual_codec::ReasonCode;

use crate::load::{Load, Mortal};

/// Kills of a broker with one directory.
const KILLS: u32 = 10;
/// Those of a long run altogether, unless `PUNCTUAL_KILLS` says how many.
const MANY: u32 = 200;
/// Brokers of a long run that are killed side by side.
const BROKERS: u32 = 4;

/// Kills a broker again and again under load; how many acknowledged messages were
/// received.
fn survives(rounds: u32, story: u32) -> u64 {
    let data = tempfile::tempdir().unwrap();
    let mut broker = Mortal::start_in(data.path());
    let load = Load::start(broker.port, ReasonCode::Success);
    for round in 0..rounds {
        broker.wait();
        // Not always at the same point of what goes on.
        let point = (round + 3 * story) % 11;
        thread::sleep(Duration::from_millis(u64::from(150 + 37 * point)));
        broker.kill();
        broker.start();
    }
    let count = load.finish();
    assert!(
        count > 100 * u64::from(rounds),
        "{count}: hardly any messages: nothing is proven"
    );
    count
}

#[test]
fn nothing_acknowledged_is_lost() {
    let count = survives(KILLS, 0);
    println!("{KILLS} times killed, {count} acknowledged messages received");
}

#[test]
#[ignore = "takes minutes"]
fn nothing_acknowledged_is_lost_in_the_long_run() {
    let kills = std::env::var("PUNCTUAL_KILLS").ok();
    let kills: u32 = kills.map_or(MANY, |kills| kills.parse().unwrap());
    let stories = kills.div_ceil(KILLS);
    let (next, done, begun) = (AtomicU32::new(0), AtomicU32::new(0), Instant::now());
    thread::scope(|scope| {
        for _ in 0..BROKERS {
            scope.spawn(|| {
                loop {
                    let story = next.fetch_add(1, Ordering::Relaxed);
                    if story >= stories {
                        return;
                    }
                    let count = survives(KILLS, story);
                    let done = done.fetch_add(KILLS, Ordering::Relaxed) + KILLS;
                    // Also where a test's own output is kept back.
                    let _ = writeln!(
                        stderr(),
                        "{done} of {} kills in {} s: nothing of {count} messages was lost in the last {KILLS}",
                        stories * KILLS,
                        begun.elapsed().as_secs(),
                    );
                }
            });
        }
    });
}
