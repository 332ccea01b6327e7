//! What a shard does for links and for sessions that move.

mod brakes;
mod had;
pub(crate) mod links;
pub(crate) mod neighbour;
pub(crate) mod replica;
mod transfers;
