//! Topics below `$SYS` that the shell adds.

use std::fmt::Debug;

/// A part of the process with topics of its own below `$SYS`, beside the core. Called on
/// the thread of a shard: it must not block.
pub trait SysSource: Debug + Send + Sync {
    /// The topics with their current payloads; topics that are missing since the last call are
    /// removed.
    fn topics(&self) -> Vec<(String, String)>;
}
