//! `realtime.busy_poll`: a shard's thread that has had an event does not sleep.
//!
//! A real server; what its thread does is what the kernel says of it.

#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod support;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use punctual_net::realtime::RealtimeOptions;
use punctual_net::{Server, UdpOptions};

/// How long anything may take before a test fails.
const PATIENCE: Duration = Duration::from_secs(60);
/// Packets that are answered.
const ROUNDS: usize = 50;
/// How often it is looked whether the thread sleeps, after each of them.
const LOOKS: usize = 100;

/// A server with one shard at an ordinary priority, and the identifier of its thread.
fn server(busy_poll: Duration) -> (Server, libc::pid_t) {
    let mut options = support::options(UdpOptions::default());
    options.broker.sys_interval = None;
    options.realtime = Some(RealtimeOptions {
        // No such priority: refused to everybody, so that the test never starves others.
        priority: 100,
        pin: false,
        heap: 0,
        busy_poll,
        cpu_latency: None,
    });
    let server = Server::start(options).unwrap();
    let (tell, told) = channel();
    server.handle().call(0, move |_, _| {
        // SAFETY: takes no arguments.
        let _ = tell.send(unsafe { libc::gettid() });
    });
    let thread = told.recv_timeout(PATIENCE).unwrap();
    (server, thread)
}

/// Whether the thread sleeps until something wakes it.
fn sleeps(thread: libc::pid_t) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
    let (_, state) = stat.rsplit_once(") ").unwrap();
    state.starts_with('S')
}

fn connect(server: &Server) -> TcpStream {
    let mut client = TcpStream::connect(server.addresses()[1]).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.set_nodelay(true).unwrap();
    client
        .write_all(b"\x10\x0d\0\x04MQTT\x04\x02\0\0\0\x01c")
        .unwrap();
    client.read_exact(&mut [0; 4]).unwrap();
    client
}

fn ping(client: &mut TcpStream) {
    client.write_all(&[0xC0, 0]).unwrap();
    client.read_exact(&mut [0; 2]).unwrap();
}

#[test]
fn without_busy_polling_a_shard_sleeps_after_each_event() {
    let (server, thread) = server(Duration::ZERO);
    let mut client = connect(&server);
    for _ in 0..ROUNDS {
        ping(&mut client);
        let begin = Instant::now();
        while !sleeps(thread) {
            assert!(begin.elapsed() < PATIENCE, "the thread never sleeps");
            std::thread::yield_now();
        }
    }
}

#[test]
fn with_busy_polling_a_shard_looks_for_the_next_event_without_sleeping() {
    let (server, thread) = server(Duration::from_secs(3600));
    let mut client = connect(&server);
    let mut asleep = 0;
    for _ in 0..ROUNDS {
        ping(&mut client);
        for _ in 0..LOOKS {
            asleep += usize::from(sleeps(thread));
            std::thread::yield_now();
        }
    }
    // A lock that another thread holds for a moment.
    assert!(asleep < ROUNDS, "asleep {asleep} times");
}
