//! What a message, a flow or a client asks of the network, as MQTT 5 user
//! properties and as typed values; in [`network`] the network itself, and in
//! [`srt`] what managers and the controller of a network tell each other. With them
//! the values that all crates share: [`Nanos`], [`digest`], and [`Rng`] for simulations.
//!
//! [`Requirements`] are stated by clients, [`Answer`] is the broker's response. Both are
//! exact: durations are whole nanoseconds, rates whole bits per second, and a text that
//! would have to be rounded is refused. A value that is accepted is in range; one that is
//! not is answered with an error that names the key, the value and the remedy. Nothing
//! allocates unless there is an error or text is made.
//!
//! Sources: `priority` is the message priority of PrioMQTT (low is urgent);
//! deadline, period and priority are the attributes of RT-MQTT (high is
//! urgent, a bare number is milliseconds).
#![forbid(unsafe_code)]

mod answer;
mod bands;
mod digest;
mod error;
mod instant;
pub mod network;
mod policing;
mod requirements;
mod rng;
mod source;
pub mod srt;
mod time;
mod units;
pub mod wire;

pub use answer::{Answer, Condition, Conditions, Grant, Status};
pub use bands::{deadline_monotonic, implied_deadline, shortest_deadline};
pub use digest::digest;
pub use error::RequirementError;
pub use instant::{LAST_INSTANT, MOST_AHEAD, VERSIONS_SINCE, latest_instant};
pub use policing::{Conformity, MessageSize, Meter};
pub use requirements::{
    CLASSES_KEY, DELIVERY_KEY, Late, MAX_PRIORITY, Requirements, SEQUENCE_KEY, is_requirement_key,
};
pub use rng::Rng;
pub use source::source_address;
pub use time::Nanos;
pub use units::{format_bandwidth, format_duration, parse_bandwidth, parse_duration};
