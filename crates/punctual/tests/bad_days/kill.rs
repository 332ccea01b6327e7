//! kill -9: whatever was acknowledged is there when the broker runs again; also with
//! a full disk, and with one that stands still.

use std::io::{Write as _, stderr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use punctual_codec::ReasonCode;

use crate::disk::{Absent, Ballast, DISK_MIB};
use crate::grip::{Disk, Grip};
use crate::load::{Load, Mortal};
use crate::small::Small;

/// Kills of a broker with one directory.
const KILLS: u32 = 10;
/// Those of a long run altogether, unless `PUNCTUAL_KILLS` says how many.
const MANY: u32 = 200;
/// Brokers of a long run that are killed side by side.
const BROKERS: u32 = 4;
/// Messages that are acknowledged before the disk has a bad day.
const BEFORE: u64 = 20;

/// Kills a broker so many times under load; how many acknowledged messages were
/// received, or `None` if this machine does not let it happen.
type Story = fn(u32, u32) -> Option<u64>;

/// Not always at the same point of what goes on.
fn pause(round: u32, story: u32, shortest: u64) {
    let point = (round + 3 * story) % 11;
    thread::sleep(Duration::from_millis(shortest + u64::from(37 * point)));
}

fn with_a_good_disk(rounds: u32, story: u32) -> Option<u64> {
    let data = tempfile::tempdir().unwrap();
    let mut broker = Mortal::start_in(data.path());
    let load = Load::start(broker.port, ReasonCode::Success);
    for round in 0..rounds {
        broker.wait();
        pause(round, story, 150);
        broker.kill();
        broker.start();
    }
    Some(load.finish())
}

/// Each time while the store is full; every other time it starts while it is, too.
fn with_a_full_disk(rounds: u32, story: u32) -> Option<u64> {
    let disk = Small::mount(DISK_MIB)?;
    let mut broker = Mortal::start_in(&disk.path().join("data"));
    broker.wait();
    let load = Load::start(broker.port, ReasonCode::QuotaExceeded);
    let mut absent = Absent::new(broker.port);
    for round in 0..rounds {
        load.wait_for(BEFORE);
        let ballast = Ballast::fill(&disk);
        absent.stuff_until_full();
        pause(round, story, 0);
        broker.kill();
        if round % 2 == 1 {
            broker.start();
            broker.wait();
            pause(round, story, 0);
            broker.kill();
        }
        drop(ballast);
        broker.start();
        broker.wait();
        absent.has_everything();
    }
    Some(load.finish())
}

/// Each time while what was written is not safe yet; every third time it becomes so at
/// the last moment.
fn with_a_disk_that_stands_still(rounds: u32, story: u32) -> Option<u64> {
    let data = tempfile::tempdir().unwrap();
    let mut broker = Mortal::start_in(data.path());
    broker.wait();
    let load = Load::start(broker.port, ReasonCode::Success);
    for round in 0..rounds {
        load.wait_for(BEFORE);
        let grip = Grip::take(broker.process(), "store", Disk::StandsStill)?;
        pause(round, story, 0);
        if round % 3 == 2 {
            drop(grip);
            broker.kill();
        } else {
            broker.kill();
            drop(grip);
        }
        broker.start();
        broker.wait();
    }
    Some(load.finish())
}

fn once(tell: Story, least: u64) {
    if let Some(count) = tell(KILLS, 0) {
        is_enough(count, least);
        println!("{KILLS} times killed, {count} acknowledged messages received");
    }
}

/// Whether so many messages were received for each kill.
fn is_enough(count: u64, least: u64) {
    assert!(
        count > least * u64::from(KILLS),
        "{count}: hardly any messages: nothing is proven"
    );
}

/// Some brokers side by side, until there were as many kills as are wanted.
fn again_and_again(tell: Story, least: u64) {
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
                    let Some(count) = tell(KILLS, story) else {
                        return;
                    };
                    is_enough(count, least);
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

#[test]
fn nothing_acknowledged_is_lost() {
    once(with_a_good_disk, 100);
}

#[test]
fn nothing_acknowledged_is_lost_with_a_full_disk() {
    once(with_a_full_disk, BEFORE);
}

#[test]
fn nothing_acknowledged_is_lost_with_a_disk_that_stands_still() {
    once(with_a_disk_that_stands_still, BEFORE);
}

#[test]
#[ignore = "takes minutes"]
fn nothing_acknowledged_is_lost_in_the_long_run() {
    again_and_again(with_a_good_disk, 100);
}

#[test]
#[ignore = "takes minutes"]
fn nothing_acknowledged_is_lost_in_the_long_run_with_a_full_disk() {
    again_and_again(with_a_full_disk, BEFORE);
}

#[test]
#[ignore = "takes minutes"]
fn nothing_acknowledged_is_lost_in_the_long_run_with_a_disk_that_stands_still() {
    again_and_again(with_a_disk_that_stands_still, BEFORE);
}
