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

/// Measured use of a port or a queue.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Usage {
    /// Sent, bits per second.
    pub rate_bps: f64,
    /// The same as a share of the port's rate, if that is known.
    pub share: Option<f64>,
    /// Packets that were dropped since the counters began.
    pub dropped: u64,
}

#[derive(Debug, Clone, Copy)]
struct Meter {
    bytes: u64,
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
    pub(crate) fn port(&mut self, end: End, bytes: u64, dropped: u64, rate: u64, now: Nanos) {
        let window = self.window;
        sample(&mut self.ports, end, bytes, dropped, rate, window, now);
    }

    /// Counters of a queue of a port of this rate.
    pub(crate) fn queue(
        &mut self,
        end: End,
        queue: u32,
        bytes: u64,
        dropped: u64,
        rate: u64,
        now: Nanos,
    ) {
        let window = self.window;
        sample(
            &mut self.queues,
            (end, queue),
            bytes,
            dropped,
            rate,
            window,
            now,
        );
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
    bytes: u64,
    dropped: u64,
    rate: u64,
    window: Nanos,
    now: Nanos,
) {
    let full = meters.len() >= MAX_METERS;
    let first = Meter {
        bytes,
        at: now,
        usage: Usage {
            dropped,
            ..Usage::default()
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
    // A counter that went back began anew.
    if let Some(sent) = bytes.checked_sub(meter.bytes) {
        let sample = sent as f64 * 8.0 / passed;
        let weight = 1.0 - (-passed / (window.0.max(1) as f64 / 1e9)).exp();
        meter.usage.rate_bps += weight * (sample - meter.usage.rate_bps);
    }
    meter.usage.share = (rate > 0).then(|| meter.usage.rate_bps / rate as f64);
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

    #[test]
    fn a_steady_rate_is_found() {
        let mut monitor = Monitor::new(Nanos::from_secs(5));
        // 1 MB/s on a link of 100 Mbit/s.
        for second in 0..60 {
            monitor.port(
                END,
                second * 1_000_000,
                3,
                100_000_000,
                Nanos::from_secs(second),
            );
        }
        let usage = monitor.of_port(END).unwrap();
        assert!((usage.rate_bps - 8e6).abs() < 100.0, "{usage:?}");
        assert!((usage.share.unwrap() - 0.08).abs() < 1e-5, "{usage:?}");
        assert_eq!(usage.dropped, 3);
        // Nothing for one window: 1/e is left.
        monitor.port(END, 59_000_000, 3, 100_000_000, Nanos::from_secs(64));
        let rest = monitor.of_port(END).unwrap().rate_bps;
        assert!((rest / 8e6 - (-1.0_f64).exp()).abs() < 1e-4, "{rest}");
    }

    #[test]
    fn counters_that_begin_anew_do_no_harm() {
        let mut monitor = Monitor::new(Nanos::from_secs(1));
        monitor.queue(END, 7, 1_000_000, 0, 0, Nanos::from_secs(1));
        monitor.queue(END, 7, 10, 0, 0, Nanos::from_secs(2));
        assert_eq!(monitor.of_queue(END, 7), Some(Usage::default()));
        monitor.queue(END, 7, 10, 0, 0, Nanos::from_secs(2));
        monitor.forget(1);
        assert_eq!(monitor.of_queue(END, 7), None);
    }
}
