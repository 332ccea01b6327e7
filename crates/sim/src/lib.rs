//! Broker and clients in virtual time, without sockets, threads or clocks.
//!
//! [`World`] is the shell of a broker: shards, links with latency and limited
//! windows, the mail between shards. [`Scenario`] runs one-line scripts for
//! directed tests. Equal seeds give equal runs.

mod rng;
mod scenario;
mod wire;
mod world;

pub use rng::Rng;
pub use scenario::Scenario;
pub use wire::{Decoder, Delivered, Incoming};
pub use world::{Authenticator, LinkId, LinkProfile, Trace, World};
