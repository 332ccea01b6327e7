//! What a shard tells its journal, and does once that is committed.

mod gate;
mod messages;
mod restore;
mod sessions;
