//! How much of each port and queue is used, from counters that are looked at now
//! and then.
//!
//! A share is an exponentially weighted average: a sample counts 1 − e^(−t/w),
//! where t is the time since the last one and w the window. One average is kept
//! for each port and queue that is there, so there are as many as those.

use std::collections::BTreeMap;

use punctual_model::Nanos;
use serde::Serialize;

use crate::topology::End;

/// Queues of all ports of which averages are kept.
const MAX_METERS: usize = 200_000;

/// Measured use of a port or a queue. What the switch does not count is left out.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Usage {
    /// Sent, bits per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_bps: Option<f64>,
    /// The same as a share of the port's rate, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
    /// Packets that were dropped since the counters began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dropped: Option<u64>,
}

/// Counters of a port or a queue, as a switch states them: all ones for those that it does not have
/// (OpenFlow 1.3.5, 7.3.5.6).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counters {
    pub(crate) bytes: u64,
    pub(crate) dropped: u64,
}

/// The value of a counter that the switch has.
fn counted(value: u64) -> Option<u64> {
    (value != u64::MAX).then_some(value)
}

#[derive(Debug, Clone, Copy)]
struct Meter {
    bytes: Option<u64>,
    at: Nanos,
    usage: Usage,
}

/// Averages of all ports and queues.
#[derive(Debug, Clone)]
pub(crate) struct Monitor {
    window: Nanos,
    ports: BTreeMap<End, Meter>,
    queues: BTreeMap<(End, u32), Meter>,
}

impl Monitor {
    pub(crate) fn new(window: Nanos) -> Self {
        Self {
            window,
            ports: BTreeMap::new(),
            queues: BTreeMap::new(),
        }
    }

    /// Counters of a port of this rate.
    pub(crate) fn port(&mut self, end: End, counters: Counters, rate: u64, now: Nanos) {
        sample(&mut self.ports, end, counters, (rate, self.window), now);
    }

    /// Counters of a queue of a port of this rate.
    pub(crate) fn queue(
        &mut self,
        end: End,
        queue: u32,
        counters: Counters,
        rate: u64,
        now: Nanos,
    ) {
        let key = (end, queue);
        sample(&mut self.queues, key, counters, (rate, self.window), now);
    }

    /// The switch begins to count anew, or is gone.
    pub(crate) fn forget(&mut self, datapath: u64) {
        self.ports.retain(|end, _| end.datapath != datapath);
        self.queues.retain(|(end, _), _| end.datapath != datapath);
    }

    pub(crate) fn of_port(&self, end: End) -> Option<Usage> {
        self.ports.get(&end).map(|meter| meter.usage)
    }

    pub(crate) fn of_queue(&self, end: End, queue: u32) -> Option<Usage> {
        self.queues.get(&(end, queue)).map(|meter| meter.usage)
    }
}

fn sample<K: Ord>(
    meters: &mut BTreeMap<K, Meter>,
    key: K,
    counters: Counters,
    (rate, window): (u64, Nanos),
    now: Nanos,
) {
    let (bytes, dropped) = (counted(counters.bytes), counted(counters.dropped));
    let full = meters.len() >= MAX_METERS;
    let first = Meter {
        bytes,
        at: now,
        usage: Usage {
            rate_bps: bytes.map(|_| 0.0),
            dropped,
            share: None,
        },
    };
    let meter = match meters.entry(key) {
        std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
        std::collections::btree_map::Entry::Vacant(_) if full => return,
        std::collections::btree_map::Entry::Vacant(entry) => {
            entry.insert(first);
            return;
        }
    };
    let passed = (now - meter.at).0 as f64 / 1e9;
    if passed <= 0.0 {
        return;
    }
    let both = bytes.zip(meter.bytes);
    // A counter that went back began anew.
    if let Some(sent) = both.and_then(|(now, before)| now.checked_sub(before)) {
        let sample = sent as f64 * 8.0 / passed;
        let weight = 1.0 - (-passed / (window.0.max(1) as f64 / 1e9)).exp();
        let before = meter.usage.rate_bps.unwrap_or(0.0);
        meter.usage.rate_bps = Some(before + weight * (sample - before));
    }
    let known = meter.usage.rate_bps.filter(|_| rate > 0);
    meter.usage.share = known.map(|bps| bps / rate as f64);
    meter.usage.dropped = dropped;
    (meter.bytes, meter.at) = (bytes, now);
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: End = End {
        datapath: 1,
        port: 2,
    };

    fn counters(bytes: u64, dropped: u64) -> Counters {
        Counters { bytes, dropped }
    }

    #[test]
    fn a_steady_rate_is_found() {
        let mut monitor = Monitor::new(Nanos::from_secs(5));
        // 1 MB/s on a link of 100 Mbit/s.
        for second in 0..60 {
            let counters = counters(second * 1_000_000, 3);
            monitor.port(END, counters, 100_000_000, Nanos::from_secs(second));
        }
        let usage = monitor.of_port(END).unwrap();
        assert!((usage.rate_bps.unwrap() - 8e6).abs() < 100.0, "{usage:?}");
        assert!((usage.share.unwrap() - 0.08).abs() < 1e-5, "{usage:?}");
        assert_eq!(usage.dropped, Some(3));
        // Nothing for one window: 1/e is left.
        let same = counters(59_000_000, 3);
        monitor.port(END, same, 100_000_000, Nanos::from_secs(64));
        let rest = monitor.of_port(END).unwrap().rate_bps.unwrap();
        assert!((rest / 8e6 - (-1.0_f64).exp()).abs() < 1e-4, "{rest}");
    }

    #[test]
    fn counters_that_begin_anew_do_no_harm() {
        let mut monitor = Monitor::new(Nanos::from_secs(1));
        monitor.queue(END, 7, counters(1_000_000, 0), 0, Nanos::from_secs(1));
        monitor.queue(END, 7, counters(10, 0), 0, Nanos::from_secs(2));
        let nothing = Usage {
            rate_bps: Some(0.0),
            share: None,
            dropped: Some(0),
        };
        assert_eq!(monitor.of_queue(END, 7), Some(nothing));
        monitor.queue(END, 7, counters(10, 0), 0, Nanos::from_secs(2));
        monitor.forget(1);
        assert_eq!(monitor.of_queue(END, 7), None);
    }

    /// Userspace Open vSwitch does not count what a queue drops.
    #[test]
    fn what_a_switch_does_not_count_is_left_out() {
        let mut monitor = Monitor::new(Nanos::from_secs(1));
        for second in 0..3 {
            let all_ones = counters(second * 1000, u64::MAX);
            monitor.queue(END, 7, all_ones, 1_000_000, Nanos::from_secs(second));
            let nothing = counters(u64::MAX, u64::MAX);
            monitor.port(END, nothing, 1_000_000, Nanos::from_secs(second));
        }
        let queue = serde_json::to_value(monitor.of_queue(END, 7)).unwrap();
        assert!(queue["rate_bps"].as_f64().unwrap() > 0.0, "{queue}");
        assert_eq!(queue.get("dropped"), None, "{queue}");
        let port = serde_json::to_value(monitor.of_port(END)).unwrap();
        assert_eq!(port, serde_json::json!({}));
    }
}
