//! Networks: nodes, directed links and the flows that cross them.
//!
//! A [`Document`] is what a file says, in JSON for machines and in TOML for people;
//! [`Network`] is the same, checked: every name is resolved to an index, every cost is
//! computed, and the paths of every flow are a tree of [`Hop`]s. Invalid input gives an
//! error that names the entry, the value and the remedy; a `Network` is always valid. All
//! times are whole nanoseconds.
//!
//! Links are output ports with one transmitter each: non-preemptive, strict
//! priority, first come first served inside a priority.

mod document;
mod error;
mod resolve;
#[cfg(test)]
mod tests;

pub use document::{Document, FlowEntry, Format, LinkEntry, NodeEntry};
pub use error::NetworkError;
pub use resolve::{Flow, Hop, Link, Network, Node, Topology};

/// Index of a node in [`Topology::nodes`].
pub type NodeIndex = usize;
/// Index of a link in [`Topology::links`].
pub type LinkIndex = usize;
/// Index of a hop in [`Flow::hops`].
pub type HopIndex = usize;

/// Longest time that a network may state, in nanoseconds: about eleven days.
/// Sums of such times never reach the end of 64 bits.
pub const MAX_TIME: u64 = 1_000_000_000_000_000;
