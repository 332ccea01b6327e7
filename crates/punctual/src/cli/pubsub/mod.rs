//! `punctual pub` and `punctual sub`: mosquitto_pub's and mosquitto_sub's
//! flags with the same meaning. docs/pub-sub.md lists where they differ.

mod connection;
mod exit;
mod format;
mod json;
mod latency;
mod lines;
mod property;
mod publish;
mod requirements;
mod sequences;
mod session;
mod subscribe;

pub(super) use publish::{Arguments as PubArguments, run as publish};
pub(super) use subscribe::{Arguments as SubArguments, run as subscribe};
