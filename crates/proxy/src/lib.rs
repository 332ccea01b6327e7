//! The real-time network manager as a transparent proxy before any MQTT broker.
//!
//! A [`Proxy`] stands between the connections of clients and those to a broker.
//! What it is told ([`Proxy::open`], [`Proxy::client_sent`],
//! [`Proxy::broker_sent`], [`Proxy::closed`], [`Proxy::tick`]) leads to bytes
//! for both sides and to questions for whoever admits flows
//! ([`Proxy::take_asks`]), who answers with [`Proxy::decide_flow`],
//! [`Proxy::decide_subscription`] and [`Proxy::decide_receiver`]. Requirements
//! are read from CONNECT, PUBLISH and SUBSCRIBE of MQTT 5, and from rules for
//! everything else; the acknowledgement waits until they are decided, no longer
//! than [`Config::decision_timeout`], and carries the answer.
//!
//! Invariants: what asks for nothing passes byte for byte and in order, in both
//! directions, and so does what is not MQTT; payloads are never kept; whatever
//! waits has a bound. Pure: no socket, clock, thread or random source.
//!
//! Sources: RT-MQTT's network manager; OASIS MQTT 5.0 and 3.1.1.
#![forbid(unsafe_code)]

mod cut;
mod down;
mod flows;
mod hello;
mod proxy;
mod relay;
#[cfg(test)]
mod tests;
mod up;

pub use proxy::{Config, Proxy, Stats};
