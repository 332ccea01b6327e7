//! MQTT client library for MQTT 3.1, 3.1.1 and 5.0, over TCP, TLS, WebSocket,
//! WebSocket over TLS, UDP and QUIC.
//!
//! [`proto`] is the protocol: a state machine that knows no sockets and no
//! clocks. Bytes and the time go in, bytes and [`Event`]s come out, so it can
//! be driven by any transport and any runtime, and tested in virtual time.
//! [`Client`] is a thin blocking shell around it, [`aio::Client`] (feature
//! `tokio`) one for tokio.
//!
//! Messages may have requirements, which a broker that knows them honours all
//! the way to the subscriber: see [`Message::priority`], [`Message::deadline`]
//! and [`RealTimeProperties`].
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

#[cfg(feature = "tokio")]
pub mod aio;
mod client;
mod driver;
pub mod endpoint;
mod error;
mod marking;
mod message;
pub mod proto;
mod realtime;
pub mod sidecar;
pub mod transport;

pub use client::{Backoff, Client, Options, Waker};
pub use endpoint::{Endpoint, Scheme, TlsOptions, TlsVersion, Url};
pub use error::{Error, Farewell};
pub use marking::{Class, Mark, Marking};
pub use message::{Delivery, Message};
pub use proto::{Config, Connected, Core, Event, Token};
pub use punctual_codec::{
    Properties, PropertyBuf, PropertyId, QoS, ReasonCode, SubscribeOptions, Version,
};
pub use punctual_model::{Answer, Late, RequirementError, Requirements, Status};
pub use punctual_udp::{SequenceReport, SequenceTracker, Stamp};
pub use realtime::RealTimeProperties;
