//! What measures an MQTT broker: an open-loop load generator, a floor to compare with, and a
//! reader of its metrics. `punctual calibrate` and `punctual top` are made of it, and so are the
//! benchmarks.
//!
//! The generator and the floor share their own few lines of MQTT and nothing with the broker's
//! codec, so that the yardstick does not bend with what it measures. Linux only (epoll, CPU
//! clocks of other processes, tracepoints).

mod error;
mod floor;
mod http;
pub mod io;
pub mod load;
pub mod noise;
mod prometheus;
pub mod sys;
pub mod syscalls;
pub mod watch;
pub mod wire;

pub use error::{Error, Result};
pub use floor::{Floor, HIGH_WATER};
pub use http::{Answer, Api, HttpPlace, http_get};
pub use load::{
    BrokerCost, IdleCost, LARGEST_PAYLOAD, LEAST_PAYLOAD, Latency, Options, Pace, Report, Scenario,
    run,
};
pub use prometheus::{Distribution, Samples};
pub use wire::Version;
