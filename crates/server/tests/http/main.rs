//! The HTTP interface, asked with raw HTTP/1.1, with raw MQTT clients on the other side. What takes a
//! process (signals, descriptors, commands) is in the tests of the binary.

#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod api;
mod auth;
mod log;
mod management;
mod metrics;
mod occupied;
#[path = "../support/mod.rs"]
mod support;
