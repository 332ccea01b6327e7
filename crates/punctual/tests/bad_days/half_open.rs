//! Connections that never come to a CONNECT: thousands that are silent, and
//! some that say it a byte at a time.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use crate::broker::{Broker, Setup, eventually, raise_own_limit};
use crate::client::{Pair, connect_packet, open};

/// What was asked for, and files that the test needs for other things.
const CONNECTIONS: usize = 10_000;
const RESERVE: usize = 500;
/// Memory for one of them, and for everything that does not depend on them.
const EACH: u64 = 4 << 10;
const SLACK: u64 = 16 << 20;

/// Opens connections that stop in the middle of their CONNECT, half of them
/// before it.
fn half_open(broker: &Broker, count: usize) -> Vec<TcpStream> {
    let connections = (0..count).map(|number| {
        let mut stream = open(broker);
        if number % 2 == 0 {
            let packet = connect_packet("never");
            stream
                .write_all(&packet[..number / 2 % packet.len()])
                .unwrap();
        }
        stream
    });
    connections.collect()
}

/// Thousands of connections without CONNECT keep nobody out and cost little,
/// whether the broker is told to bear them or to close the oldest.
#[test]
fn thousands_of_half_open_connections() {
    let count = CONNECTIONS.min(raise_own_limit() - RESERVE);
    println!("{count} half-open connections; the limit of open files allows no more than that");
    for bound in [1_000_000, 1_000] {
        let broker = Broker::start(Setup {
            config: &format!(
                "[server]\nconnect_timeout = \"600s\"\nmax_half_open = {bound}\n\
                 accept_rate = \"unlimited\"\n"
            ),
            ..Setup::default()
        });
        let mut early = Pair::new(&broker, "early");
        early.exchange();
        let (memory, files) = (broker.peak_memory(), broker.open_files());
        let mut connections = half_open(&broker, count);
        early.exchange();
        let mut late = Pair::new(&broker, "late");
        late.exchange();

        if bound < count {
            // Each shard bears as many; the oldest had to go.
            assert_eq!(connections[1].read(&mut [0]).unwrap(), 0);
            eventually("the others are closed", || {
                (broker.open_files() <= files + 2 + 2 * bound).then_some(())
            });
        } else {
            eventually("they are all accepted", || {
                (broker.open_files() == files + 2 + count).then_some(())
            });
        }
        early.exchange();
        let growth = broker.peak_memory() - memory;
        println!(
            "of at most {bound} each shard: {} KiB of memory more",
            growth >> 10
        );
        assert!(growth <= count as u64 * EACH + SLACK, "{growth} bytes");

        drop(connections);
        eventually("they are all closed", || {
            (broker.open_files() <= files + 2).then_some(())
        });
        late.exchange();
        Pair::new(&broker, "after").exchange();
        assert!(broker.stop());
    }
}

/// A connection that says its CONNECT a byte at a time is closed when its time
/// is over, however lively it is; others are served meanwhile.
#[test]
fn a_connect_that_never_ends() {
    let broker = Broker::start(Setup {
        config: "[server]\nconnect_timeout = \"1s\"\n",
        ..Setup::default()
    });
    let mut pair = Pair::new(&broker, "pair");
    // So long that not even a byte a millisecond gets to its end in time.
    let packet = connect_packet(&"x".repeat(60_000));
    let mut slow: Vec<TcpStream> = (0..50).map(|_| open(&broker)).collect();
    for stream in &slow {
        stream
            .set_read_timeout(Some(Duration::from_millis(1)))
            .unwrap();
    }
    let mut bytes = packet.iter();
    while !slow.is_empty() {
        let byte = bytes.next().expect("closed before the end of the packet");
        slow.retain_mut(|stream| {
            let closed = match stream
                .write_all(&[*byte])
                .and_then(|()| stream.read(&mut [0]))
            {
                Ok(0) => true,
                Ok(_) => panic!("an answer to half a CONNECT"),
                Err(error) => !matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                ),
            };
            !closed
        });
        pair.exchange();
    }
    Pair::new(&broker, "after").exchange();
}
