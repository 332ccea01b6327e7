//! A broker in the process of a test, and what asks it: raw HTTP/1.1 and raw MQTT 5.
#![allow(dead_code, unused_imports, reason = "no test needs all of it")]

mod broker;
mod interface;
mod mqtt;

use std::time::Duration;

pub(crate) use self::broker::{Broker, config, load};
pub(crate) use self::interface::{Answer, Interface};
pub(crate) use self::mqtt::Mqtt;

/// How long anything may take before a test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
