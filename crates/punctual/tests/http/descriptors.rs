//! Clients have all the file descriptors that they may have.

use std::net::TcpStream;

use crate::broker::Broker;

/// Files that the broker may have open.
const FILES: u64 = 160;

/// Whoever asks whether the broker lives would restart it, and all clients would come again.
#[test]
fn probes_are_answered_when_clients_use_up_the_descriptors() {
    let broker = Broker::with_descriptors(FILES);
    let clients: Vec<TcpStream> = (0..2 * FILES)
        .map(|_| TcpStream::connect(broker.tcp).unwrap())
        .collect();
    let why = broker.logged("a connection cannot be accepted");
    assert!(
        why.contains("120 of 160 file descriptors are in use"),
        "{why}"
    );
    for _ in 0..20 {
        for path in ["/healthz", "/readyz", "/metrics"] {
            assert_eq!(broker.get(path).status, 200, "{path}");
        }
    }
    drop(clients);
    broker.logged("connections are accepted again");
}
