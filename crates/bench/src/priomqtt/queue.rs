//! Changes of the broker's own statistics of its egress queue during a run.
//!
//! Source: `/metrics` of Punctual. Values that a broker does not report are left out of the report.

use serde::Serialize;

use punctual_measure::Result;
use punctual_measure::{Distribution, Samples};

/// Histograms of the time from a message's arrival in the egress queue to its departure, each with
/// its label: class of traffic, or PrioMQTT priority.
const WAITS: [(&str, &str); 2] = [
    ("class", "punctual_egress_wait_seconds"),
    ("priority", "punctual_egress_priority_wait_seconds"),
];

/// Histogram of the queue length, messages, when a message is added, that message included.
const DEPTH: &str = "punctual_egress_depth_messages";

/// Largest length that the queue has reached, messages.
const DEPTH_MAX: &str = "punctual_egress_depth_messages_max";

/// Statistics of the broker at the start and at the end of the measurement.
#[derive(Debug)]
pub(crate) struct QueueWatch {
    before: Option<Samples>,
    after: Option<Samples>,
}

/// Waiting times in the broker's queue, and lengths of the queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct QueueReport {
    pub(crate) waits: Vec<Wait>,
    /// Median queue length, messages, when a message is added, that message included.
    pub(crate) median_entries: Option<f64>,
    /// Largest queue length, messages, including the warm-up.
    pub(crate) max_entries: Option<f64>,
}

/// Waiting times of one group of messages.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Wait {
    /// The group, such as `priority 1` or `class normal`.
    pub(crate) of: String,
    pub(crate) messages: f64,
    pub(crate) mean_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
}

impl QueueWatch {
    /// Starts with the present content of `/metrics`, if it can be read.
    pub(crate) fn begin(metrics: Result<Result<String>>) -> Self {
        Self {
            before: read(metrics),
            after: None,
        }
    }

    /// Ends with a later content of `/metrics`.
    pub(crate) fn end(&mut self, metrics: Result<Result<String>>) {
        self.after = read(metrics);
    }

    /// The difference of both readings; `None` if the broker has no such statistics.
    pub(crate) fn report(self) -> Option<QueueReport> {
        let (before, after) = (self.before?, self.after?);
        let between = |name: &str, labels: &[(&str, &str)]| -> Option<Distribution> {
            let now = after.distribution(name, labels)?;
            Some(match before.distribution(name, labels) {
                Some(earlier) => now.since(&earlier),
                None => now,
            })
        };
        let mut waits = Vec::new();
        for (label, name) in WAITS {
            for value in after.label_values(&format!("{name}_count"), label) {
                let waited = between(name, &[(label, value)]);
                waits.extend(waited.and_then(|w| Wait::new(format!("{label} {value}"), &w)));
            }
        }
        let depth = between(DEPTH, &[]);
        let report = QueueReport {
            waits,
            median_entries: depth.and_then(|depth| depth.quantile(0.5)),
            max_entries: after.sum(DEPTH_MAX, &[]),
        };
        (report != QueueReport::default()).then_some(report)
    }
}

impl Wait {
    fn new(of: String, waited: &Distribution) -> Option<Self> {
        Some(Self {
            of,
            messages: waited.count,
            mean_us: 1e6 * waited.mean()?,
            p50_us: 1e6 * waited.quantile(0.5)?,
            p99_us: 1e6 * waited.quantile(0.99)?,
        })
    }
}

fn read(metrics: Result<Result<String>>) -> Option<Samples> {
    Some(Samples::parse(&metrics.ok()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(fast: u32, slow: u32) -> Result<Result<String>> {
        let all = fast + slow;
        let mut text = String::new();
        for (label, name) in WAITS {
            for line in [
                format!("{name}_bucket{{{label}=\"1\",le=\"0.0001\"}} {fast}\n"),
                format!("{name}_bucket{{{label}=\"1\",le=\"+Inf\"}} {all}\n"),
                format!(
                    "{name}_sum{{{label}=\"1\"}} {}\n",
                    f64::from(all) / 10_000.0
                ),
                format!("{name}_count{{{label}=\"1\"}} {all}\n"),
                format!("{name}_count{{{label}=\"2\"}} 0\n{name}_sum{{{label}=\"2\"}} 0\n"),
            ] {
                text.push_str(&line);
            }
        }
        Ok(Ok(format!("{text}{DEPTH_MAX} 9\n")))
    }

    #[test]
    fn only_what_came_in_between_counts() {
        let mut watch = QueueWatch::begin(metrics(10, 10));
        watch.end(metrics(20, 10));
        let report = watch.report().unwrap();
        let [class, priority] = &report.waits[..] else {
            panic!("{report:?}");
        };
        assert_eq!((class.of.as_str(), class.messages), ("class 1", 10.0));
        assert_eq!(priority.of, "priority 1");
        assert!((priority.mean_us - 100.0).abs() < 1e-6, "{report:?}");
        assert!(priority.p99_us <= 100.0, "{report:?}");
        assert_eq!(
            (report.median_entries, report.max_entries),
            (None, Some(9.0))
        );
    }

    #[test]
    fn a_broker_without_these_numbers_has_no_report() {
        let mut watch = QueueWatch::begin(Ok(Ok("up 1\n".to_owned())));
        watch.end(Ok(Ok("up 1\n".to_owned())));
        assert_eq!(watch.report(), None);
    }
}
