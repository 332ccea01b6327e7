//! The MQTT server as a state machine: sessions, routing, flow control,
//! retained messages, wills. No socket, clock, thread or random source.
//!
//! A [`Shard`] owns connections and sessions. Its shell reports events ([`Shard::open`],
//! [`Shard::receive`], [`Shard::sent`], [`Shard::closed`], [`Shard::tick`], [`Shard::remote`]) and
//! collects the output: bytes to write by connection ([`Shard::take_dirty`], [`Shard::pending`]),
//! [`Output`]s, and messages for other shards ([`Shard::take_outbox`]). Shards of one broker share
//! a [`Directory`].
//!
//! Invariants: every queue and buffer has a bound named in [`Limits`]; a message is acknowledged
//! only when each of its receivers has capacity for it, or the policy allows dropping it, in which
//! case it is counted (`overflow`).
//!
//! Source: OASIS MQTT 5.0 and 3.1.1; statement numbers in brackets are those of
//! MQTT 5.0.
#![forbid(unsafe_code)]

mod access;
mod admission;
mod alarm;
pub mod answers;
mod author;
mod base;
mod budget;
mod config;
mod depth;
mod directory;
mod egress;
mod fanouts;
mod filter_request;
mod flush;
mod hub;
mod identifiers;
mod index;
mod journal;
pub mod lock;
mod mesh;
mod message;
mod order;
mod overflow;
mod packets;
mod publication;
mod ready;
mod remains;
mod reserved;
mod retained;
mod room;
mod route;
mod sampling;
mod sequence;
mod session;
mod shard;
mod slab;
mod stats;
mod sys;
mod tasks;
mod timers;
pub mod urgency;
mod wait;
mod watch;

pub use access::{AccessControl, Credential, FlowQuota, Permissions};
pub use admission::{
    Admission, AdmissionRequest, Ask, Asker, FilterVerdict, FlowDecision, FlowInfo, FlowState,
    Policing, SubscriptionDecision,
};
pub use alarm::{Alarm, Overrun};
pub use base::connection::{Admits, ConnId};
pub use base::durability::{Durability, DurabilityPolicy, DurabilityRule, StoreTrouble};
pub use base::name::{LINK_PREFIX, LINK_TOPIC, MessageName, SECRET_USER};
pub use base::queue_full::{QueueFull, QueuePolicies, SessionPolicy, TopicPolicy};
pub use base::sys_source::SysSource;
pub use base::version::version_at;
pub use budget::Budget;
pub use config::{Config, Limits};
pub use depth::Depth;
pub use directory::{Directory, Totals};
pub use egress::{
    Bound, Class, Credits, Discipline, Edf, Enqueue, Fifo, FixedPriority, Heads, Lane, LaneLimits,
    Level, Overflow, Policy, Rank, Scope, Shares, Stamp, Urgency,
};
pub use hub::{
    AuthRequest, ClientInfo, ConnMeta, Event, Flow, Output, Received, RemoteMessage,
    SubscriptionInfo, Waits,
};
pub use identifiers::{ClientIds, SEPARATOR};
pub use journal::{Operations, RestoredSession, Restorer};
pub use mesh::federation::MoveTimes;
pub use mesh::federation::{
    Federation, Interest, KeptLink, LINKED_ALREADY, LinkNews, MessageNames, Newcomer, Relay,
    Service, SessionTransfers, Unwelcome, WillRecord,
};
pub use mesh::shard::links::LinkLimits;
pub use mesh::throttle;
pub use message::Message;
pub use punctual_model::Nanos;
pub use ready::{Need, Ready};
pub use retained::RetainedCursor;
pub use shard::{AuthAnswer, ClientView, ScanPosition, Shard, SubscriptionView};
pub use stats::{ClassStats, Stats};
pub use tasks::Work;
pub use urgency::{Excess, UrgencyRights, UrgencyRule};
pub use wait::Wait;
pub use watch::{FlowSight, Missed};
