//! Everything that knows that a broker may be one of a mesh: links to neighbours, names of messages,
//! shared subscriptions and retained messages across brokers, and sessions that move.
//!
//! [`federation`] is the seam to whoever keeps the tree and the tables. The values stand in this
//! directory; what a [`Hub`](crate::hub::Hub) and a [`Shard`](crate::Shard) do with them in `hub` and
//! `shard`, and what is stored of them in `journal`. Other parts of the broker call these from one
//! place for each event.

pub mod brake;
pub(crate) mod custody;
pub(crate) mod federation;
pub(crate) mod hub;
pub(crate) mod journal;
pub(crate) mod link;
pub(crate) mod links;
pub(crate) mod moves;
pub(crate) mod parked;
pub(crate) mod passed;
pub(crate) mod shard;
