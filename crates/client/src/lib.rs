//! MQTT client library for MQTT 3.1, 3.1.1 and 5.0.
//!
//! [`proto`] is the protocol: a state machine that knows no sockets and no
//! clocks. Bytes and the time go in, bytes and [`Event`]s come out, so it can
//! be driven by any transport and any runtime, and tested in virtual time.
//! The rest of the crate is a thin blocking shell around it.

mod error;
mod message;
pub mod proto;

pub use error::{Error, Farewell};
pub use message::{Delivery, Message};
pub use proto::{Config, Connected, Core, Event, Token};
