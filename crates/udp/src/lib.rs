//! MQTT over UDP as two state machines without sockets, clocks or randomness:
//! an [`Endpoint`] for a server and a [`Client`].
//!
//! A datagram holds whole MQTT packets, unchanged (3.1.1 and 5.0), and may begin with one
//! [`Header`]. Before a client's address is proven by a cookie the server keeps nothing and answers
//! with no more bytes than came. Afterwards both sides repeat, with exponential backoff, packets
//! that wait for an answer (never QoS 0, and never beyond a message's lifetime), and hide
//! repetitions from the MQTT above, which sees a legal sequence of packets from which QoS 0
//! messages may be missing.
//!
//! Time is a [`Duration`] since any fixed origin. The format is described for
//! other implementations in `docs/udp.md`. Sources: PrioMQTT section 4 (same
//! packets over UDP, the application's lifetime bounds retries), RFC 6298
//! (retransmission timer), RFC 7252 section 4 (duplicates by message id), RFC
//! 9000 sections 8 and 9 (address validation, migration).
//!
//! [`Duration`]: std::time::Duration
#![forbid(unsafe_code)]

mod client;
mod cookie;
mod flow;
mod header;
mod inbound;
mod outbound;
mod pacer;
mod packet;
mod rtt;
mod seal;
mod sequence;
mod server;
mod unreliable;

pub use client::{Client, ClientConfig, ClientState};
pub use cookie::{COOKIE_LIFETIME, Cookie};
pub use header::{Header, HeaderError, SessionId, Token};
pub use pacer::Pacer;
pub use sequence::{SequenceReport, SequenceTracker, Stamp};
pub use server::{Counters, Endpoint, EndpointConfig, Event, Path, PeerId};
pub use unreliable::{are_messages, may_be_lost};

/// Largest datagram by default where the path is IPv4: an Ethernet frame
/// without the headers of IP and UDP.
pub const MAX_DATAGRAM_V4: usize = 1472;
/// Largest datagram by default where the path is IPv6.
pub const MAX_DATAGRAM_V6: usize = 1452;
/// How long a packet with the same identifier and the same content counts as
/// a repetition, if no more than [`REMEMBERED`] others came since.
pub const REPEAT_WINDOW: std::time::Duration = std::time::Duration::from_secs(60);
/// Exchanges that each side remembers to recognise repetitions.
pub const REMEMBERED: usize = 1024;

/// A datagram to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transmit<P> {
    /// Where to, and for a server from which address.
    pub path: P,
    /// Traffic class of its packets, as it was given with them. Answers that
    /// are repeated have class 0; what a server says to begin and to end
    /// connections has class 2.
    pub class: u8,
    /// Its bytes.
    pub data: Vec<u8>,
}

/// Which side of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Server,
}
