//! Counts and latencies of a run.
//!
//! Latencies go into HDR histograms (three significant digits, 1 ns to 100 s). Messages of one
//! batch that carry the same time are recorded together, which keeps the histogram out of the
//! generator's profile. A latency belongs to the measured interval when the message was *sent*
//! (or was meant to be sent) in it, however late it arrives.

use std::ops::Range;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::sys;

/// Longest latency that is told apart, in nanoseconds.
const LONGEST_NS: u64 = 100_000_000_000;

/// Percentiles of a distribution of times, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// Number of values.
    pub count: u64,
    /// Arithmetic mean, µs.
    pub mean_us: f64,
    /// Standard deviation, µs.
    pub stdev_us: f64,
    /// Median, µs.
    pub p50_us: f64,
    /// 99th percentile, µs.
    pub p99_us: f64,
    /// 99.9th percentile, µs.
    pub p999_us: f64,
    /// Largest value, µs.
    pub max_us: f64,
}

/// Values recorded one by one or in runs.
pub struct Recorder {
    histogram: Histogram<u64>,
    /// The last value and how often it came since it was last written to the histogram.
    run: (u64, u64),
}

impl Default for Recorder {
    fn default() -> Self {
        #[expect(clippy::unwrap_used, reason = "the bounds are constants and valid")]
        let histogram = Histogram::new_with_bounds(1, LONGEST_NS, 3).unwrap();
        Self {
            histogram,
            run: (0, 0),
        }
    }
}

impl Recorder {
    /// Takes a value in, ns.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        if ns == self.run.0 {
            self.run.1 += 1;
        } else {
            self.write_run();
            self.run = (ns, 1);
        }
    }

    fn write_run(&mut self) {
        let (ns, count) = self.run;
        if count > 0 {
            self.histogram.saturating_record_n(ns.max(1), count);
        }
        self.run.1 = 0;
    }

    /// Every value that was recorded (nanoseconds, within the histogram's precision) with its
    /// count, ascending.
    pub fn buckets(&mut self) -> Vec<(u64, u64)> {
        self.write_run();
        let recorded = self.histogram.iter_recorded();
        recorded
            .map(|bucket| (bucket.value_iterated_to(), bucket.count_at_value()))
            .collect()
    }

    /// Records what another recorder's [`Recorder::buckets`] say.
    pub fn add(&mut self, buckets: &[(u64, u64)]) {
        for &(ns, count) in buckets {
            self.histogram.saturating_record_n(ns.max(1), count);
        }
    }

    /// What was recorded; `None` if nothing was.
    pub fn summary(&mut self) -> Option<Latency> {
        self.write_run();
        let h = &self.histogram;
        let us = |ns: u64| ns as f64 / 1000.0;
        (!h.is_empty()).then(|| Latency {
            count: h.len(),
            mean_us: h.mean() / 1000.0,
            stdev_us: h.stdev() / 1000.0,
            p50_us: us(h.value_at_quantile(0.5)),
            p99_us: us(h.value_at_quantile(0.99)),
            p999_us: us(h.value_at_quantile(0.999)),
            max_us: us(h.max()),
        })
    }
}

/// Everything counted while messages arrive.
pub struct Meter {
    /// Send times whose latencies count.
    pub interval: Range<u64>,
    /// From sending to receipt.
    pub latency: Recorder,
    /// When messages of the interval were sent and received, of the first ones.
    pub times: Vec<(u64, u64)>,
    /// Of how many that is kept.
    pub keep: usize,
    /// Factory: (TD - TA) - (TC - TB).
    pub round_trip: Recorder,
    /// From a publication to the end of its acknowledgement, where that is asked for.
    pub acks: Recorder,
    /// Publications acknowledged in the interval.
    pub acknowledged: u64,
    /// Distinct messages received by someone who was to receive them.
    pub delivered: u64,
    /// Messages that no one asked for or that carry no stamp.
    pub strays: u64,
    /// Publications that the broker refused with a reason code.
    pub refused: u64,
    /// When the last message arrived.
    pub last_arrival: u64,
}

impl Default for Meter {
    fn default() -> Self {
        Self {
            interval: 0..0,
            latency: Recorder::default(),
            times: Vec::new(),
            keep: 0,
            round_trip: Recorder::default(),
            acks: Recorder::default(),
            acknowledged: 0,
            delivered: 0,
            strays: 0,
            refused: 0,
            last_arrival: 0,
        }
    }
}

impl Meter {
    /// A message that was sent at `sent` has arrived.
    #[inline]
    pub fn arrival(&mut self, now: u64, sent: u64) {
        if self.interval.contains(&sent) {
            self.latency.record(now.saturating_sub(sent));
            if self.times.len() < self.keep {
                self.times.push((sent, now));
            }
        }
    }

    /// A publication that was sent at `sent` is acknowledged now.
    pub fn acknowledged(&mut self, sent: u64) {
        let now = sys::now_ns();
        self.acknowledged += u64::from(self.interval.contains(&now));
        if self.interval.contains(&sent) {
            self.acks.record(now.saturating_sub(sent));
        }
    }

    /// A round trip that began at `sent` and was held for so long at its turning point, ns.
    pub fn round_trip(&mut self, now: u64, sent: u64, held: u64) {
        if self.interval.contains(&sent) {
            self.round_trip
                .record(now.saturating_sub(sent).saturating_sub(held));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_known_values() {
        let mut recorder = Recorder::default();
        assert_eq!(recorder.summary(), None);
        for us in 1..=1000u64 {
            recorder.record(us * 1000);
        }
        let summary = recorder.summary().unwrap();
        let near = |value: f64, expected: f64| (value - expected).abs() / expected < 0.002;
        assert_eq!(summary.count, 1000);
        assert!(near(summary.mean_us, 500.5), "{summary:?}");
        assert!(near(summary.p50_us, 500.0), "{summary:?}");
        assert!(near(summary.p99_us, 990.0), "{summary:?}");
        assert!(near(summary.p999_us, 999.0), "{summary:?}");
        assert!(near(summary.max_us, 1000.0), "{summary:?}");
    }

    #[test]
    fn buckets_carry_a_distribution_from_one_recorder_to_another() {
        let mut first = Recorder::default();
        for us in 1..=1000u64 {
            first.record(us * us * 100);
        }
        let mut second = Recorder::default();
        second.add(&first.buckets());
        assert_eq!(second.buckets(), first.buckets());
        let (first, second) = (first.summary().unwrap(), second.summary().unwrap());
        assert_eq!((first.count, first.p99_us), (second.count, second.p99_us));
    }

    #[test]
    fn runs_count_every_value() {
        let mut recorder = Recorder::default();
        for ns in [5, 5, 5, 7, 5, 0, 0] {
            recorder.record(ns);
        }
        assert_eq!(recorder.summary().unwrap().count, 7);
    }

    #[test]
    fn only_messages_sent_in_the_interval_count() {
        let mut meter = Meter {
            interval: 100..200,
            keep: 1,
            ..Meter::default()
        };
        meter.arrival(250, 99);
        meter.arrival(250, 100);
        meter.arrival(9_000, 199);
        meter.arrival(250, 200);
        assert_eq!(meter.latency.summary().unwrap().count, 2);
        assert_eq!(meter.times, [(100, 250)]);
    }
}
