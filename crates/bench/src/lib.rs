//! Benchmarks of MQTT brokers: an open-loop load generator, a floor to compare with, the
//! comparison of several brokers in one run, and in network namespaces the experiments of the
//! PrioMQTT paper and of urgent messages behind bulk on a slow link.
//!
//! The generator and the floor share their own few lines of MQTT and nothing with the broker's
//! codec, so that the yardstick does not bend with what it measures. Linux only (epoll, CPU
//! clocks of other processes, tracepoints).

mod blocking;
mod cli;
mod compare;
mod durability;
mod emulate;
mod error;
mod federation;
mod floor;
mod http;
mod io;
mod link;
mod load;
pub mod netns;
mod packets;
mod priomqtt;
mod process;
mod prometheus;
mod sys;
mod syscalls;
mod watch;
mod wire;

pub use cli::{BenchArgs, FloorArgs, LoadArgs};
pub use compare::CompareArgs;
pub use durability::DurabilityArgs;
pub use emulate::{EmulateArgs, PapersArgs, RecoveryArgs};
pub use error::{Error, Result};
pub use federation::FederationArgs;
pub use floor::{Floor, HIGH_WATER};
pub use http::http_get;
pub use link::LinkArgs;
pub use load::{
    BrokerCost, IdleCost, LARGEST_PAYLOAD, LEAST_PAYLOAD, Latency, Options, Pace, Report, Scenario,
    run,
};
pub use priomqtt::PriomqttArgs;
pub use prometheus::{Distribution, Samples};
pub use wire::Version;
