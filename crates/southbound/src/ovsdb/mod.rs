//! A client of OVSDB: RFC 7047 with the extensions of `ovsdb-server(7)` that
//! make it fit for change: conditional monitors that resume where they were
//! (`monitor_cond_since`), and the `_Server` database, which tells a leader from
//! its followers.
//!
//! Pure: [`value`] (rows and JSON), [`operation`] (transactions), [`schema`],
//! [`frame`] (messages from bytes), [`session`] (requests and their replies),
//! [`cache`] (rows from updates). [`Client`] adds sockets, TLS and patience: it
//! reconnects by itself, to the leader if so told, and goes on from the last
//! transaction it saw. Every message, queue and wait has a bound.

pub mod cache;
mod client;
mod connect;
mod endpoint;
pub mod frame;
pub mod operation;
pub mod schema;
pub mod session;
pub mod value;

pub use client::{Client, Error, Event, Events, Options, Status, Table};
pub use endpoint::{Address, Endpoint, EndpointError, TlsOptions};
