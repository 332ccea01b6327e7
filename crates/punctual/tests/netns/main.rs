//! What leaves the host, seen from the other end of a cable: DSCP and
//! `SO_PRIORITY` of real packets, and their order on a slow link, in network
//! namespaces that each test makes.
//!
//! Needs root, `ip`, `tc` and `nft`; without them a test prints why and passes,
//! unless PUNCTUAL_REQUIRE_NETNS is set.

#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod broker;
mod capture;
mod mqtt;
mod network;
#[path = "../support/secret.rs"]
#[allow(dead_code, reason = "not every test speaks as a neighbour")]
mod secret;
#[path = "../support/talk.rs"]
mod talk;

mod clients;
mod marking;
mod mesh;
mod mtu;
mod order;
