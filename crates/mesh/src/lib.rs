//! Federation: brokers that are connected in any graph form one system.
//!
//! State machines without sockets, clocks, threads or randomness; time is an argument. [`Node`] is one
//! broker of the mesh. Its caller (the *shell*: the server, or a simulation) reports links that come up
//! and go down, messages from neighbours, subscriptions of clients and the time, and carries out the
//! [`Output`]s. A node consists of [`tree::Tree`] (the spanning tree: root, parents, and which links
//! carry messages, with the proof that these never form a cycle), [`table::Table`] (which neighbour wants
//! which topics, and what to advertise to whom) and [`rtt::Rtt`] (the cost of a link).
//! [`seen::SeenMessages`] recognises duplicates; [`wire`] defines the messages between brokers, which
//! travel on ordinary MQTT 5 connections; [`transfer`] moves sessions between brokers.
//!
//! Terms: a *link* is the connection to a neighbour; it *carries* while the tree uses it for
//! publications. A broker is *reached* while links that carry lead to it, and *away* otherwise. The
//! *core* of a broker is the part that holds its sessions (crate `punctual-broker`).
//!
//! Sources: Antonielli, distributed HiveMQ brokers in a spanning tree (thesis,
//! chapters 3 and 4: capacity, RTT cost, the three strategies); MQTT-ST; RFC 8966 and
//! IEEE 802.1D-2004 for what makes the tree safe.
#![forbid(unsafe_code)]

mod id;
mod node;
mod reach;
pub mod rtt;
pub mod seen;
mod strategy;
pub mod table;
pub mod transfer;
pub mod tree;
mod wills;
pub mod wire;

pub use id::{BrokerId, LinkId, MAX_NAME, Rank, Weights};
pub use node::{
    Dialling, Event, ForgetError, LinkStatus, Membership, Node, Output, Refusal, Settings, Status,
    WillTurn,
};
pub use strategy::Strategy;
