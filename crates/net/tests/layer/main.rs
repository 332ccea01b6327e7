//! The layers between socket and MQTT, driven from memory: every test plays the peer, feeds bytes
//! in any split and looks at what comes out. No sockets, no clock but that of certificates.

#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod files;
mod hostile;
mod memory;
mod proxy;
mod secure;
mod support;
mod tls;
mod websocket;
