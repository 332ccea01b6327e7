//! What must hold for any datagram: the check of the fuzz target `datagram`,
//! which `crates/udp/tests/replay.rs` also runs over the seeds.

use std::net::SocketAddr;
use std::time::Duration;

use punctual_udp::{Endpoint, EndpointConfig, Header, Path};

/// Reads the input as the header of one datagram, and then as a number of
/// datagrams from a few addresses that have proven nothing, each after a byte
/// for its address and one for its length.
pub fn datagram(data: &[u8]) {
    header(data);
    for seal in [false, true] {
        unproven(data, seal);
    }
}

/// What is read is what is written, and cutting a header makes it none.
fn header(data: &[u8]) {
    let _ = Header::signed(data);
    match Header::split(data) {
        Ok((None, rest)) => assert_eq!(rest, data),
        Ok((Some(header), packets)) => {
            assert!(data.ends_with(packets));
            let mut out = Vec::new();
            header.put(&mut out);
            let read = data.len() - packets.len();
            assert!(out.len() <= read, "writing got longer");
            out.extend_from_slice(packets);
            assert_eq!(Header::split(&out), Ok((Some(header), packets)));
            assert!(Header::split(&data[..read - 1]).is_err());
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// No cookie, no state: fewer bytes out than in, to where they came from.
fn unproven(mut data: &[u8], seal: bool) {
    let config = EndpointConfig {
        seal,
        ..EndpointConfig::default()
    };
    let mut now = Duration::from_secs(100);
    let mut endpoint = Endpoint::new(config, &[7; 32], now);
    while let [from, len, rest @ ..] = data {
        let (datagram, later) = rest.split_at(rest.len().min(usize::from(*len)));
        data = later;
        let remote = SocketAddr::from(([192, 0, 2, from % 4], 4000));
        let path = Path {
            remote,
            local: None,
        };
        endpoint.handle(path, datagram, now);
        endpoint.handle_timeout(now);
        let mut answered = 0;
        while let Some(transmit) = endpoint.poll_transmit() {
            assert_eq!(transmit.path.remote, remote);
            answered += transmit.data.len();
        }
        assert!(answered <= datagram.len(), "{answered} bytes were answered");
        assert!(endpoint.poll_event().is_none());
        assert_eq!(endpoint.open(), 0);
        now += Duration::from_millis(u64::from(*from));
    }
}
