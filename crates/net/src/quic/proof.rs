//! Whether a new connection's address is proven, and how much it may be sent until then.
//!
//! Without a Retry anybody may have written the address of an Initial packet there. Such an
//! address is sent three times what has come from it at most (RFC 9000 section 8.1). quinn-proto
//! keeps to that up to a last datagram, which may go beyond; here not even that does. And it counts
//! what comes for a connection from anywhere; here it does not get what comes from elsewhere, which
//! nobody may do before the handshake is confirmed (section 9).

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use quinn_proto::{ConnectionId, ConnectionStats};

/// The least that a datagram with a client's first Initial packet has; shorter ones are ignored
/// (RFC 9000 section 14.1).
const FIRST: u64 = 1200;
/// The most that a datagram to a path has of which nothing is known yet.
const DATAGRAM: u64 = 1200;
const FACTOR: u64 = 3;

/// What shows that the client is where its datagrams say: it uses a connection ID that the server
/// has chosen, which was sent there alone.
#[derive(Debug)]
pub(super) struct Proof {
    /// Where the first datagram came from, as it says.
    from: SocketAddr,
    /// The connection ID that the client chose for the server.
    first: ConnectionId,
    proven: Arc<AtomicBool>,
}

impl Proof {
    pub(super) fn new(from: SocketAddr, first: ConnectionId) -> Self {
        Self {
            from,
            first,
            proven: Arc::default(),
        }
    }

    /// Set once the address is proven.
    pub(super) fn flag(&self) -> Arc<AtomicBool> {
        self.proven.clone()
    }

    /// Whether what comes from there may be the client's.
    pub(super) fn is_from(&self, remote: SocketAddr) -> bool {
        self.from == remote
    }

    /// Looks at a datagram of the connection; true if it proves the address.
    pub(super) fn is_given_by(&self, datagram: &[u8]) -> bool {
        let proven = destination(datagram, self.first.len()).is_some_and(|id| *id != *self.first);
        if proven {
            self.proven.store(true, Ordering::Relaxed);
        }
        proven
    }
}

/// The Destination Connection ID of a datagram's first packet (RFC 8999 section 5), of `short`
/// bytes where the packet does not say how long it is.
fn destination(datagram: &[u8], short: usize) -> Option<&[u8]> {
    match datagram {
        [first, _, _, _, _, length, rest @ ..] if first & 0x80 != 0 => {
            rest.get(..usize::from(*length))
        }
        [_, rest @ ..] => rest.get(..short),
        [] => None,
    }
}

/// Whether another datagram may go to an address that nothing proves.
pub(super) fn may_send(stats: &ConnectionStats) -> bool {
    // The first datagram is not counted there.
    let received = FIRST.saturating_add(stats.udp_rx.bytes);
    stats.udp_tx.bytes.saturating_add(DATAGRAM) <= received.saturating_mul(FACTOR)
}
