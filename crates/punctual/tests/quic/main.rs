//! MQTT over QUIC with the real binary and the client library, on loopback.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may panic; clippy knows only the tests themselves"
)]

mod broker;
mod figures;
mod hostile;
mod messages;
mod moves;
mod secure;
