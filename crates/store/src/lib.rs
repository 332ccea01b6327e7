//! What a broker must not forget, and how it is kept.
//!
//! The broker's core describes changes as operations ([`op::Op`]), collects those of one
//! turn in a [`op::Batch`], and does not wait. A [`Store`] applies batches in order and
//! reports when they are durable. [`Image`] is the state that a sequence of operations
//! produces: the reference for every [`Store`].
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
pub use medium::{CommitMark, Medium, SimulatedDisk};
pub use numbers::{ByNumber, NumberHasher};
pub use op::{Batch, Op, Wall};
pub use rising::RisingMap;
pub use store::{Damage, Memory, Report, Store, StoreError, StoreStats, Tail};
pub use tentative::TentativeBatch;
#[cfg(feature = "disk")]
pub use writer::{Histogram, Outcome, Poster, Writer, WriterConfig, WriterEvent, WriterStats};
