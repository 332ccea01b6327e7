//! Operations that a shard emits to its journal, and steps that it performs once they are
//! committed.

mod gate;
mod messages;
mod restore;
mod sessions;
