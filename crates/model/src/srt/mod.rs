//! The system real-time requirements table (SRT): what managers ask of the
//! network for flows, and what the controller answers.
//!
//! A manager writes [`Request`]s, and the controller answers each with a [`Channel`]; a
//! [`Manager`] row shows that a manager is alive. A row is identified by its manager and
//! its flow. Every change of a request gives it a higher generation, and a channel names
//! the generation that it answers, so that an answer to an earlier request is never taken
//! for one to the present request. The database accepts every row that passed
//! [`Request::check`] or [`Channel::check`]: both enforce the same ranges.
//!
//! Source: the tables of RT-MQTT and MRT-MQTT (requirements, source,
//! destinations, broker; path), with what a controller has to know in addition.

mod channel;
mod peer;
mod request;

pub use channel::{Channel, Manager, State};
pub use peer::{Peer, Protocol};
pub use request::{Request, SrtError};

/// Longest name of a manager, characters.
pub const MAX_MANAGER: usize = 64;
/// Longest name of a flow, characters: a topic, a client identifier, and what
/// stands between them.
pub const MAX_FLOW: usize = 131_072;
/// Longest topic, characters.
pub const MAX_TOPIC: usize = 65_535;
/// Most subscribers of a request.
pub const MAX_SUBSCRIBERS: usize = 1024;
/// Longest reason of a channel, characters.
pub const MAX_REASON: usize = 1024;
/// Greatest number of the table, generations and rates included: databases
/// count with signed 64 bits.
pub const MAX_INTEGER: u64 = i64::MAX as u64;
/// Most frames of a message.
pub const MAX_FRAMES: u32 = 262_144;
/// Largest application message, bytes: MQTT's largest packet.
pub const MAX_SIZE: u32 = 268_435_455;
/// Bytes that a frame has at least and at most on the wire, with preamble,
/// check sequence and gap; the largest are jumbo frames.
pub const WIRE_BYTES: std::ops::RangeInclusive<u32> = 84..=9_038;
