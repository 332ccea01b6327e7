//! Everything a controller says to the network: the database with the
//! requirements table (SRT) that it shares with managers, connections to
//! switches, and drivers that carry out plans.
//!
//! Each part is split in two: what is said, as pure functions and state
//! machines, and the sockets. Nothing here decides anything; plans come from
//! `punctual-controller` as data.
#![forbid(unsafe_code)]

pub mod linux;
pub mod local;
pub mod openflow;
pub mod ovsdb;
pub mod service;
pub mod srt;
pub mod tls;
