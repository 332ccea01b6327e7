//! What a broker must not forget, and how it is kept.
//!
//! The broker's core says what changes as operations ([`op::Op`]), collects
//! those of one turn in a [`op::Batch`], and goes on; whoever keeps them
//! applies batches in order and says when they are safe. [`Image`] is the state
//! that operations mean: the reference for every [`Store`].
//!
//! Invariant: after a crash a store hands over the state after some prefix of
//! the groups that it was given, and that prefix includes every group that it
//! has confirmed.
#![forbid(unsafe_code)]

#[cfg(test)]
mod arbitrary;
#[cfg(feature = "disk")]
mod files;
mod image;
mod log;
mod medium;
mod numbers;
pub mod op;
mod rising;
#[cfg(test)]
mod script;
mod store;
mod tentative;
#[cfg(feature = "disk")]
mod writer;

#[cfg(feature = "disk")]
pub use files::Files;
pub use image::Image;
pub use log::{Log, LogConfig, Start};
pub use medium::{CommitMark, Medium, Simulated};
pub use numbers::{ByNumber, NumberHasher};
pub use op::{Batch, Op, Wall};
pub use rising::Rising;
pub use store::{Damage, Memory, Report, Store, StoreError, StoreStats, Tail};
pub use tentative::Tentative;
#[cfg(feature = "disk")]
pub use writer::{Histogram, Outcome, Poster, Told, Writer, WriterConfig, WriterStats};
