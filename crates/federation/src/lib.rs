//! A broker as a member of a mesh, without sockets, threads and clocks.
//!
//! [`punctual_mesh::Node`] decides what happens in the tree of brokers, the shards of
//! [`punctual_broker`] hold sessions and queues. This crate connects the two:
//!
//! * Shards call the [`Port`] ([`punctual_broker::Federation`]). It answers questions itself, such
//!   as whether a message was here before, and reports the other calls as [`ShardEvent`].
//! * The [`Member`] passes these events to the node, and turns the node's outputs into
//!   [tasks](ShardTask) of shards.
//!
//! A shell moves events and tasks between threads, opens connections and writes the log. There are
//! two: `punctual-server`, with a thread for the member, and the simulation in this crate's tests,
//! in which everything happens in one thread in virtual time.
#![forbid(unsafe_code)]

mod event;
mod member;
mod port;
mod task;

pub use event::{DropCause, DroppedMessages, LinkEvent, ShardEvent};
pub use member::{Member, Notice};
pub use port::Port;
pub use task::{ShardTask, Shards};
