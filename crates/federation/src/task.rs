//! Tasks of shards.

use punctual_broker::{Nanos, Shard};

/// A task that a shard runs between two packets of clients. The argument is the present time.
pub type ShardTask = Box<dyn FnOnce(&mut Shard, Nanos) + Send>;

/// The shards of a broker.
pub trait Shards {
    /// Has a shard run a task, after all tasks that it was given before. A shell without threads may
    /// run it at once.
    fn call(&mut self, shard: u16, task: ShardTask);
}
