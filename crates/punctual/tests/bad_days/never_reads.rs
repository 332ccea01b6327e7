//! A subscriber that never reads, and a publisher that is as fast as it can.

use std::io::{Read as _, Write as _};
use std::thread;

use crate::broker::{Broker, Setup};
use crate::client::{Pair, connected, publish_packet, subscribed};

/// Messages, and bytes of each: much more than all buffers hold.
const MESSAGES: usize = 40_000;
const PAYLOAD: usize = 4_000;
/// What the broker may need for it: buffers, and messages read ahead.
const MEMORY: u64 = 32 << 20;

/// The broker's memory is bounded, the other subscriber gets every message in
/// order, and the log names who does not keep up.
#[test]
fn a_subscriber_that_never_reads() {
    let broker = Broker::start(Setup {
        config: "[queue]\nsend_buffer = \"256KiB\"\nmax_publisher_pause = \"3s\"\n",
        ..Setup::default()
    });
    let mut pair = Pair::new(&broker, "pair");
    pair.exchange();
    let _stuck = subscribed(&broker, "stuck", "flood");
    let mut reader = subscribed(&broker, "reader", "flood");
    let mut publisher = connected(&broker, "publisher");
    let memory = broker.peak_memory();

    let packet = |number: usize| {
        let mut payload = vec![b'.'; PAYLOAD];
        payload[..8].copy_from_slice(&(number as u64).to_be_bytes());
        publish_packet("flood", &payload, None)
    };
    let publishing = thread::spawn(move || {
        for number in 0..MESSAGES {
            publisher.write_all(&packet(number)).unwrap();
        }
        publisher
    });
    let mut got = vec![0; packet(0).len()];
    for number in 0..MESSAGES {
        reader.read_exact(&mut got).unwrap();
        assert!(got == packet(number), "message {number} is the next");
        if number % 4_000 == 0 {
            pair.exchange();
        }
    }
    drop(publishing.join().unwrap());
    let growth = broker.peak_memory() - memory;
    println!("{} KiB of memory more", growth >> 10);
    assert!(growth <= MEMORY, "{growth} bytes");
    let log = broker.log();
    assert!(
        log.contains("does not keep up") && log.contains("stuck"),
        "{log}"
    );
    pair.exchange();
    assert!(broker.stop());
}
