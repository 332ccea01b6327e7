//! What shards are asked to do.

use punctual_broker::{Nanos, Shard};

/// Something for a shard to do between two packets of clients. It takes the present time.
pub type ShardTask = Box<dyn FnOnce(&mut Shard, Nanos) + Send>;

/// The shards of a broker.
pub trait Shards {
    /// Has a shard do something, after everything that it was given before. A shell without
    /// threads may do it at once.
    fn call(&mut self, shard: u16, task: ShardTask);
}
