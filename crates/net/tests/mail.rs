//! Whatever is posted to a shard is handled, however its turns fall.

#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod support;

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use punctual_net::{Server, UdpOptions};

/// How long anything may take before a test fails.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longer than a turn handles mail.
const LONG: Duration = Duration::from_millis(3);

/// The wake-up for what comes while mail is left from an earlier turn is used up by the turn that
/// handles that.
#[test]
fn mail_that_comes_while_some_is_left_is_not_forgotten() {
    let mut options = support::options(UdpOptions::default());
    // Nothing else wakes it.
    options.broker.sys_interval = None;
    let server = Server::start(options).unwrap();
    let handle = server.handle();
    let (release, released) = channel::<()>();
    let (done, ran) = channel();
    // So that the next two are taken together.
    handle.call(0, move |_, _| {
        let _ = released.recv();
    });
    let again = handle.clone();
    handle.call(0, move |_, _| {
        let began = Instant::now();
        while began.elapsed() < LONG {
            std::hint::spin_loop();
        }
        again.call(0, move |_, _| {
            let _ = done.send(());
        });
    });
    handle.call(0, |_, _| {});
    drop(release);
    ran.recv_timeout(PATIENCE).unwrap();
    server.shut_down();
}
