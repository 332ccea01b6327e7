//! The HTTP interface of the real binary, where it takes a process: signals, descriptors, privileges, and
//! the commands that ask it. All else is in the tests of `punctual-server`.

#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod admission;
mod auth;
#[allow(
    dead_code,
    reason = "the tests of the mesh and of bridges need more of it"
)]
mod broker;
mod descriptors;
mod realtime;
mod top;
