//! The client's side of the protocol without sockets or clocks.
//!
//! A [`Core`] is one session. Its owner makes connections and tells it:
//! [`Core::connect`] when there is a transport, [`Core::receive`] what came
//! in, [`Core::connection_lost`] when it is gone. It takes [`Core::output`] to
//! the transport, asks [`Core::poll`] for events until there is none, and
//! calls [`Core::tick`] at [`Core::timeout`]. Times are durations since any
//! fixed moment of a clock that never goes back.
//!
//! Invariants: input is decoded only when polled, so an owner that polls until
//! `None` before it reads on never holds more than one packet and one read;
//! a message counts as received when `poll` has returned it. Session state
//! survives connections: a message with QoS 1 reaches the server at least
//! once, with QoS 2 exactly once, as long as the server keeps the session.
//!
//! Source: OASIS MQTT 5.0 sections 3 and 4; for 3.1.1 the same less what it
//! does not have.

mod alias;
mod config;
mod core;
mod event;
mod flight;
mod inbound;
mod limits;
mod outbound;
mod packets;

pub use self::config::Config;
pub use self::core::Core;
pub use self::event::{Connected, Event, Token};
pub use self::outbound::OUTPUT_LIMIT;
