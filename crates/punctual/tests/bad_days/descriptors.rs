//! The system gives no more file descriptors.

use std::io::Write as _;
use std::net::TcpStream;

use crate::broker::{Broker, Setup, eventually};
use crate::client::{Pair, connect_packet, expect, open};

/// Open files that the broker may have, and those of them that clients may.
const FILES: u64 = 100;
const OF_CLIENTS: u64 = 75;
/// What the log says then, and when it is over.
const REFUSED: &str = "a connection cannot be accepted";
const OVER: &str = "connections are accepted again";

/// Clients that are connected notice nothing; who comes waits, and is served
/// when there are descriptors again. The log says both, and not again and again.
#[test]
fn no_more_descriptors() {
    let broker = Broker::start(Setup {
        descriptors: Some(FILES),
        ..Setup::default()
    });
    let mut pair = Pair::new(&broker, "early");
    pair.exchange();
    let files = broker.open_files();
    for round in 1..=2 {
        let others: Vec<TcpStream> = (0..2 * FILES).map(|_| open(&broker)).collect();
        let mut waiting = open(&broker);
        waiting.write_all(&connect_packet("waiting")).unwrap();
        eventually("it is at its limit", || {
            (broker.open_files() as u64 >= OF_CLIENTS).then_some(())
        });
        eventually("it says so", || {
            broker.log().contains(REFUSED).then_some(())
        });
        for _ in 0..100 {
            pair.exchange();
        }

        drop(others);
        expect(&mut waiting, &[0x20, 2, 0, 0]);
        Pair::new(&broker, "new").exchange();
        pair.exchange();
        drop(waiting);
        eventually("all others are gone", || {
            (broker.open_files() <= files).then_some(())
        });
        eventually("it says that it is over", || {
            broker.log().contains(OVER).then_some(())
        });
        let lines = |text| broker.log().matches(text).count();
        assert!(
            lines(REFUSED) <= round && lines(OVER) <= round,
            "{}",
            broker.log()
        );
    }
    assert!(broker.stop());
}
