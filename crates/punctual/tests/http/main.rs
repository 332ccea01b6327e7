//! The HTTP interface of the real binary, asked with raw HTTP/1.1, with raw
//! MQTT clients on the other side.

#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod admission;
mod api;
mod auth;
mod broker;
mod descriptors;
mod management;
mod metrics;
mod mqtt;
mod occupied;
mod top;
