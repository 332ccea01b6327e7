//! Connections that do nothing: what one costs the broker in memory, and how fast they come.
//!
//! Connections are made one after the other, each with one subscription, so that the rate is
//! that of a single client in a hurry. Afterwards they are held for the measured duration to see
//! whether idleness costs CPU time.

use std::net::TcpStream;

use super::Options;
use super::client::Handshake;
use super::report::{IdleCost, Report};
use crate::error::{Error, Result};
use crate::sys;
use crate::watch::Watch;

/// Descriptors that the rest of the process needs.
const SPARE_FILES: u64 = 64;

pub(super) fn run(options: &Options, watch: Option<Watch>) -> Result<Report> {
    let limit = sys::raise_file_limit().map_err(Error::io("cannot read the file limit"))?;
    if u64::from(options.connections) + SPARE_FILES > limit {
        return Err(Error::Config {
            field: "--connections",
            value: options.connections.to_string(),
            remedy: format!(
                "give at most {} or raise the limit of open files (ulimit -n)",
                limit.saturating_sub(SPARE_FILES)
            ),
        });
    }
    let before = watch.map(Watch::memory).transpose()?;
    let begin = sys::now_ns();
    let mut held: Vec<TcpStream> = Vec::with_capacity(options.connections as usize);
    for i in 0..options.connections {
        let (stream, _) = Handshake {
            address: options.address,
            version: options.version,
            client_id: &format!("{}idle-{i}", options.client_prefix),
            filters: &[format!("bench/idle/{i}")],
            qos: options.qos,
            persistent: false,
        }
        .run()?;
        held.push(stream);
    }
    let connected = sys::now_ns();

    let cpu_before = watch.map(Watch::cpu_ns).transpose()?;
    std::thread::sleep(options.duration);
    let cpu_after = watch.map(Watch::cpu_ns).transpose()?;
    let idle_ns = sys::now_ns() - connected;
    let after = watch.map(Watch::memory).transpose()?;

    let seconds = (connected - begin) as f64 / 1e9;
    let count = held.len() as f64;
    let cost = IdleCost {
        connections: options.connections,
        connects_per_s: count / seconds,
        bytes_per_connection: before
            .zip(after)
            .map(|(b, a)| a.anonymous.saturating_sub(b.anonymous) as f64 / count),
        rss_before: before.map(|m| m.resident),
        rss_after: after.map(|m| m.resident),
        broker_cpu_percent: cpu_before
            .zip(cpu_after)
            .map(|(b, a)| 100.0 * a.saturating_sub(b) as f64 / idle_ns as f64),
    };
    Ok(Report::of_idle(options, cost))
}
