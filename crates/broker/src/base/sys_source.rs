//! Topics below `$SYS` that the shell adds.

use std::fmt::Debug;

/// A part of the process with topics of its own below `$SYS`, beside the core. Called on
/// the thread of a shard: it must not block.
pub trait SysSource: Debug + Send + Sync {
    /// These topics, and what they say now; those that are not there any more are taken away.
    fn topics(&self) -> Vec<(String, String)>;
}
