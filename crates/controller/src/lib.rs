//! From requests for real-time flows to what every switch has to do.
//!
//! A controller learns what there is (switches, links, hosts), finds paths for
//! requested flows, admits those whose deadlines are proven, lays their paths on
//! the switches without losing or doubling a packet, and lays them anew when
//! something fails. It is a state machine: events and the time go in, effects
//! come out; it has no socket, no clock and no thread.
//!
//! Sources: section IV and V of "A Scalable Real-Time SDN-Based MQTT Framework
//! for Industrial Applications"; OpenFlow 1.3.5; Reitblatt et al.,
//! "Abstractions for network update" (SIGCOMM 2012). See `docs/controller.md`.
#![forbid(unsafe_code)]

mod base;
mod controller;
mod event;
mod monitor;
mod openflow;
pub mod plan;
mod settings;
mod streams;
mod topology;
mod updates;

pub use controller::{
    Controller, HostStatus, LinkStatus, Status, SwitchStatus, UncoveredFlows, port_state,
};
pub use event::{Change, Effect, Event, Notice, SwitchProtocol};
pub use monitor::Usage;
pub use openflow::openflow_messages;
pub use settings::{Defaults, Intervals, KnownHost, Policing, Routing, Service, Settings};
pub use topology::{End, Host, PortState};
