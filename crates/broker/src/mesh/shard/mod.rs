//! Methods of a shard for links and for sessions that move.

mod changes;
mod forwarding;
mod history;
pub(crate) mod links;
pub(crate) mod neighbour;
mod parts;
pub(crate) mod replica;
mod throttles;
mod transfers;
