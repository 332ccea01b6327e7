//! What a shard tells its journal, and does once that is committed.

mod gate;
mod had;
mod messages;
mod parts;
mod restore;
mod sessions;
