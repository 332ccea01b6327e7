//! Sockets, TLS, WebSocket and shard threads around the broker.
//!
//! One thread per shard with an epoll of its own; a connection stays on its
//! shard, and nothing is shared on the way of a message but the directory's
//! counters and one mailbox per shard. Accepting, handshakes, password checks
//! and the log have threads of their own, so that none of them makes a message wait.

mod alarm;
mod anonymous;
mod bucket;
mod certificates;
mod clock;
mod counters;
mod datagram;
pub mod footprint;
pub mod huge_pages;
pub mod layer;
mod load;
mod logins;
mod mailbox;
pub mod marking;
mod outgoing;
mod overrun;
mod pace;
mod policy;
mod quic;
pub mod realtime;
mod rest;
mod server;
mod services;
mod shared;
mod tcp;
pub mod tls;
mod transport;
mod udp;
mod worker;

pub use anonymous::Anonymous;
pub use clock::Clock;
pub use counters::Counters;
pub use outgoing::{Outgoing, TlsConnector};
pub use overrun::{Overruns, Piece};
pub use policy::{AcceptPolicy, Identity, ListenerPolicy};
#[cfg(any(test, fuzzing))]
pub use quic::rehearsal;
pub use quic::{QuicCounters, QuicOptions};
pub use server::{Handle, ListenerOptions, Server, ServerOptions, StartError};
pub use services::{AdmissionDesk, Authenticator, Recover, StoreDesk, StoreNews, StoreOptions};
pub use tcp::TcpOptions;
pub use udp::{UdpCounters, UdpOptions};
