//! Benchmarks of MQTT brokers: an open-loop load generator, a floor to compare with, and the
//! comparison of several brokers in one run.
//!
//! The generator and the floor share their own few lines of MQTT and nothing with the broker's
//! codec, so that the yardstick does not bend with what it measures. Linux only (epoll, CPU
//! clocks of other processes, tracepoints).

mod cli;
mod compare;
mod error;
mod floor;
mod io;
mod load;
pub mod netns;
mod sys;
mod syscalls;
mod watch;
mod wire;

pub use cli::{BenchCommand, FloorArgs, LoadArgs};
pub use compare::CompareArgs;
pub use error::{Error, Result};
pub use floor::{Floor, HIGH_WATER};
pub use load::{
    BrokerCost, IdleCost, LARGEST_PAYLOAD, LEAST_PAYLOAD, Latency, Options, Pace, Report, Scenario,
    run,
};
pub use wire::Version;
