//! All code that depends on a mesh of brokers: links to neighbours, names of messages, shared
//! subscriptions and retained messages across brokers, and sessions that move.
//!
//! [`federation`] is the interface to the federation, which maintains the tree and the subscription
//! tables. The types are in this directory, the methods of [`Hub`](crate::hub::Hub) and
//! [`Shard`](crate::Shard) on them in `hub` and `shard`, and their stored forms in `journal`. Other
//! parts of the broker call these from one place for each event.

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
pub mod throttle;
