//! kill -9: whatever was acknowledged is there when the broker runs again.

use std::thread;
use std::time::Duration;

use punctual_codec::ReasonCode;

use crate::load::{Load, Mortal};

fn survives(rounds: u32) {
    let data = tempfile::tempdir().unwrap();
    let mut broker = Mortal::start_in(data.path());
    let load = Load::start(broker.port, ReasonCode::Success);
    for round in 0..rounds {
        broker.wait();
        // Not always at the same point of what goes on.
        thread::sleep(Duration::from_millis(u64::from(150 + 37 * (round % 11))));
        broker.kill();
        broker.start();
    }
    let count = load.finish();
    println!("{rounds} times killed, {count} acknowledged messages received");
    assert!(
        count > 100 * u64::from(rounds),
        "hardly any messages: nothing is proven"
    );
}

#[test]
fn nothing_acknowledged_is_lost() {
    survives(10);
}

#[test]
#[ignore = "takes minutes"]
fn nothing_acknowledged_is_lost_in_the_long_run() {
    survives(200);
}
