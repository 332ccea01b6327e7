//! Broker and clients in virtual time, without sockets, threads or clocks.
//!
//! [`Queue`] holds the events of virtual time and [`Connection`] is one in a network that
//! delays and breaks; all simulated networks are made of these, those of other crates' tests
//! too. [`World`] is the shell of a broker: shards, links with latency and limited
//! windows, the mail between shards. [`Scenario`] runs one-line scripts for
//! directed tests. [`random`] lets random clients do random things and checks
//! all that they see against [`model`], a naive second opinion on what MQTT
//! means. [`network`] is about networks of links instead, and [`stage`] puts a real
//! broker into one. A seed determines everything; a failing seed is a bug report.
#![forbid(unsafe_code)]

mod connection;
mod keeper;
pub mod model;
pub mod network;
mod queue;
pub mod random;
mod scenario;
mod seeds;
mod shard;
pub mod stage;
mod wire;
mod world;

pub use connection::{Connection, Edge};
pub use queue::Queue;
pub use scenario::Scenario;
pub use seeds::{are_seeds_chosen, seeds, trace_lines};
pub use shard::take_pending;
pub use wire::{Blob, Decoder, Delivered, Incoming};
pub use world::{Authenticator, LinkId, LinkProfile, ShardCall, Trace, World};
