//! Broker and clients in virtual time, without sockets, threads or clocks.
//!
//! Simulations consist of the same parts, those in the tests of other crates too. [`Queue`]
//! holds the events of virtual time. [`VirtualNetwork`] is the clock, with connections that delay
//! and break, and edges that are cut. [`SimulatedBroker`] is the core of a broker with the
//! connections that its shards serve, and [`SimulatedStore`] what survives its crashes.
//!
//! [`World`] is one broker with its clients: links with latency and limited windows, a store, the
//! mail between shards. [`Scenario`] runs one-line scripts for
//! directed tests. [`random`] lets random clients do random things and checks
//! all that they see against [`model`], a naive second opinion on what MQTT
//! means. [`network`] is about networks of links instead, and [`stage`] puts a real
//! broker into one. A seed determines everything; a failing seed is a bug report.
#![forbid(unsafe_code)]

mod broker;
mod connection;
pub mod model;
pub mod network;
mod queue;
pub mod random;
mod scenario;
mod seeds;
mod simulated_store;
pub mod stage;
mod virtual_network;
mod wire;
mod world;

pub use broker::{Reading, ShardConn, ShardEffect, SimulatedBroker, take_pending};
pub use connection::Edge;
pub use queue::Queue;
pub use scenario::Scenario;
pub use seeds::{Seeds, are_seeds_chosen, seeds, seeds_from, trace_lines};
pub use simulated_store::{CommitEnd, Commits, SimulatedStore, StoreNews, WALL};
pub use virtual_network::{Dialled, NetworkEvent, Socket, VirtualNetwork};
pub use wire::{Blob, Decoder, Delivered, Incoming};
pub use world::{Authenticator, LinkId, LinkProfile, ShardCall, Trace, World};
