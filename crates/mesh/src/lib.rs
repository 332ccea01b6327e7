//! Federation: brokers that are connected in any graph form one system.
//!
//! State machines without sockets, clocks, threads or randomness; time is an
//! argument. [`Node`] is one broker of the mesh: its shell tells it of links that come
//! up and go down, of messages from neighbours, of subscriptions of its clients and
//! of time, and does what [`Output`]s say. It is made of [`tree::Tree`] (root,
//! parents, which links carry messages; the argument why they never form a circle is
//! there), [`table::Table`] (who wants which topics, and what to tell whom) and
//! [`rtt::Rtt`] (what a link costs). [`seen::Seen`] recognises messages that were here
//! before; [`wire`] is what brokers say to each other, and how it travels on ordinary
//! MQTT 5 connections.
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
    Dialling, Event, LinkStatus, Membership, Node, NotForgotten, Output, Refusal, Settings, Status,
    WillTurn,
};
pub use strategy::Strategy;
