//! Bad days of the real binary: what a machine and its network do to a broker
//! in production. Whatever it is, the broker stays up, says what it did, serves
//! those who are not concerned, and needs no more memory than it says.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a failing unwrap is a failing test, and figures are worth a line"
)]

mod broker;
mod client;
mod grip;
mod load;
#[path = "../support/secret.rs"]
#[allow(dead_code, reason = "other tests are brokers themselves")]
mod secret;
#[path = "../../../store/tests/support/small.rs"]
mod small;

mod clock;
mod descriptors;
mod disk;
mod half_open;
mod kill;
mod log;
mod mesh;
mod never_reads;
