//! MQTT client library for MQTT 3.1, 3.1.1 and 5.0, over TCP, TLS, WebSocket
//! and WebSocket over TLS.
//!
//! [`proto`] is the protocol: a state machine that knows no sockets and no
//! clocks. Bytes and the time go in, bytes and [`Event`]s come out, so it can
//! be driven by any transport and any runtime, and tested in virtual time.
//! [`Client`] is a thin blocking shell around it.
//!
//! ```no_run
//! use punctual_client::{Client, Event, Message, Options, QoS, ReasonCode, SubscribeOptions};
//!
//! # fn main() -> Result<(), punctual_client::Error> {
//! let (mut client, _) = Client::connect(Options::default())?;
//! client.subscribe(&[("answer", SubscribeOptions::default())], &Default::default())?;
//! client.publish(&Message::new("question", "6 * 7?").qos(QoS::AtLeastOnce))?;
//! while let Some(event) = client.next(None)? {
//!     if let Event::Message(delivery) = event {
//!         println!("{}", String::from_utf8_lossy(&delivery.message.payload));
//!         break;
//!     }
//! }
//! client.disconnect(ReasonCode::Success, &Default::default())
//! # }
//! ```

mod client;
pub mod endpoint;
mod error;
mod message;
pub mod proto;
pub mod transport;

pub use client::{Backoff, Client, Options, Waker};
pub use endpoint::{Endpoint, Scheme, TlsOptions, TlsVersion, Url};
pub use error::{Error, Farewell};
pub use message::{Delivery, Message};
pub use proto::{Config, Connected, Core, Event, Token};
pub use punctual_codec::{
    Properties, PropertyBuf, PropertyId, QoS, ReasonCode, SubscribeOptions, Version,
};
