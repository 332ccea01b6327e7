//! Connections from switches: version negotiation, what a switch is, our role,
//! signs of life; then messages in both directions.
//!
//! [`Session`] is pure: bytes and the time in, bytes and [`SessionEvent`] out.
//! [`Switches`] listens, with or without TLS, and runs a session for each
//! connection. Every buffer has a bound: a switch that does not take what is
//! sent to it is disconnected, and brought up to date when it comes back; one
//! that sends more than is processed is not read meanwhile.
//!
//! Source: OpenFlow 1.3.5, sections 6.3 and 7.1.

mod listener;
mod session;

pub use listener::{ListenOptions, Sender, SwitchEvent, Switches};
pub use session::{Session, SessionError, SessionEvent};
