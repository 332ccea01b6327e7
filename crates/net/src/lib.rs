//! Sockets, TLS, WebSocket and shard threads around the broker.
//!
//! One thread per shard with an epoll of its own; a connection stays on its
//! shard, and nothing is shared on the way of a message but the directory's
//! counters and one mailbox per shard. Accepting, handshakes, password checks
//! and the log have threads of their own, so that none of them makes a message wait.

mod acceptor;
mod alarm;
mod anonymous;
mod certificates;
pub mod footprint;
mod handshake;
pub mod huge_pages;
pub mod layer;
mod lingering;
mod load;
mod logins;
mod mailbox;
pub mod marking;
mod outgoing;
mod overrun;
mod pace;
mod quic;
pub mod realtime;
mod rest;
mod server;
mod tcp;
pub mod tls;
mod udp;
mod unwritten;
mod worker;

pub use acceptor::{AcceptPolicy, ListenerPolicy};
pub use anonymous::Anonymous;
pub use mailbox::{Identity, StoreNews};
pub use outgoing::{Outgoing, TlsConnector};
pub use overrun::{Overruns, Piece};
#[cfg(any(test, fuzzing))]
pub use quic::rehearsal;
pub use quic::{QuicCounters, QuicOptions};
pub use server::{
    AdmissionDesk, Authenticator, Counters, Handle, ListenerOptions, Recover, Server,
    ServerOptions, StartError, StoreDesk, StoreOptions,
};
pub use tcp::TcpOptions;
pub use udp::{UdpCounters, UdpOptions};
pub use worker::Clock;
