//! The table and the JSON samples of the experiment.

use std::fmt::{self, Write};

use serde::Serialize;
use serde_json::{Value, json};

use super::brokers::BrokerProgram;
use super::round::{Case, Measured};
use crate::compare::machine::Machine;

/// Measured times of all rounds of one case.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Waits {
    /// Time from the publication of the urgent message to its receipt, ns, by round.
    wait_ns: Vec<u64>,
    /// Time from the publication of the bulk to the receipt of its last message, ns, by round.
    bulk_ns: Vec<u64>,
}

impl Waits {
    pub(super) fn add(&mut self, measured: Measured) {
        self.wait_ns.push(measured.wait);
        self.bulk_ns.extend(measured.bulk);
    }
}

/// Formats median, 90th percentile and maximum in milliseconds.
impl fmt::Display for Waits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [median, p90, max] = [50, 90, 100].map(|percent| percentile(&self.wait_ns, percent));
        write!(
            f,
            "{} / {} / {}",
            milliseconds(median),
            milliseconds(p90),
            milliseconds(max)
        )
    }
}

/// The smallest of the values that at least `percent` of them do not exceed; 0 without values.
fn percentile(values: &[u64], percent: usize) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or(0)
}

fn milliseconds(ns: u64) -> String {
    let ms = ns as f64 / 1e6;
    if ms < 10.0 {
        format!("{ms:.2}")
    } else {
        format!("{ms:.1}")
    }
}

/// The input of a report.
pub(super) struct Report<'a> {
    pub(super) machine: &'a Machine,
    pub(super) rounds: u32,
    pub(super) rate: u32,
    pub(super) bulk: u32,
    pub(super) message: u32,
    pub(super) one_queue: bool,
    pub(super) super_packets: bool,
    pub(super) results: &'a [(&'a BrokerProgram, Vec<(Case, Waits)>)],
}

impl Report<'_> {
    /// The table as Markdown, with the notes that explain it.
    pub(super) fn markdown(&self) -> String {
        let mut text = String::new();
        let machine = self.machine;
        let queue = if self.one_queue {
            "one queue"
        } else {
            "Linux' default queue (three bands by priority)"
        };
        let segments = if self.super_packets {
            " that takes super-packets"
        } else {
            ""
        };
        let _ = writeln!(
            text,
            "Measured on {} by `punctual bench link`: {}, {} cores, Linux {}, load average {}. \
             A link of {} Mbit/s with {queue}{segments}, TCP with {}; {} bytes of bulk in messages of {}; the urgent \
             message has `priority` 0 and 100 bytes and is published when a tenth of the bulk has \
             arrived; {} rounds. From its publication to its receipt, ms: median / 90th percentile \
             / maximum.\n",
            machine.date,
            machine.cpu,
            machine.cores,
            machine.kernel,
            machine.load_average,
            self.rate,
            machine.congestion_control,
            self.bulk,
            self.message,
            self.rounds,
        );
        let titles = Case::ALL.map(Case::title).join(" | ");
        let _ = writeln!(text, "| broker | {titles} | the bulk itself takes |");
        let _ = writeln!(text, "|---|---|---|---|---|");
        for (broker, cases) in self.results {
            let waits: Vec<String> = cases.iter().map(|(_, waits)| waits.to_string()).collect();
            let bulk = cases.iter().find(|(case, _)| *case == Case::Same);
            let bulk = bulk.map_or(0, |(_, waits)| percentile(&waits.bulk_ns, 50));
            let _ = writeln!(
                text,
                "| **{}** {}: {} | {} | {} |",
                broker.variant.name,
                broker.version,
                broker.variant.note,
                waits.join(" | "),
                milliseconds(bulk)
            );
        }
        text
    }

    /// The whole report as JSON, every sample included.
    pub(super) fn json(&self) -> Value {
        let results = self.results.iter().map(|(broker, cases)| {
            let cases = cases.iter().map(|(case, waits)| {
                let all = json!({ "case": case.title(), "samples": waits });
                all
            });
            json!({
                "broker": broker.variant.name,
                "version": broker.version,
                "note": broker.variant.note,
                "cases": cases.collect::<Vec<_>>(),
            })
        });
        json!({
            "machine": self.machine,
            "rate_mbit_s": self.rate,
            "bulk_bytes": self.bulk,
            "message_bytes": self.message,
            "one_queue": self.one_queue,
            "super_packets": self.super_packets,
            "results": results.collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let values: Vec<u64> = (1..=50).rev().collect();
        assert_eq!(percentile(&values, 50), 25);
        assert_eq!(percentile(&values, 90), 45);
        assert_eq!(percentile(&values, 100), 50);
        assert_eq!(percentile(&[7], 50), 7);
        assert_eq!(percentile(&[], 50), 0);
    }

    #[test]
    fn waits_are_shown_in_milliseconds() {
        let mut waits = Waits::default();
        for wait in [900_000, 1_500_000, 80_000_000] {
            let bulk = Some(90_000_000);
            waits.add(Measured { wait, bulk });
        }
        assert_eq!(waits.to_string(), "1.50 / 80.0 / 80.0");
    }
}
