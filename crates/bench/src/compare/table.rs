//! The Markdown report of a comparison.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::cases::{Case, Extent, Subject};
use super::machine::Machine;
use super::peers::{BrokerProgram, FLOOR, PUNCTUAL};
use super::results::{Cell, Results};
use punctual_measure::load::{Latency, Report};

/// Input of all tables.
pub(crate) struct Comparison<'a> {
    pub(crate) machine: &'a Machine,
    pub(crate) brokers: &'a [BrokerProgram],
    pub(crate) cases: &'a [Case],
    pub(crate) results: &'a Results,
    pub(crate) extent: Extent,
    pub(crate) repetitions: u32,
}

/// Formats a value of a cell for a table.
type Value<'a> = &'a dyn Fn(&Cell) -> Option<String>;

impl Comparison<'_> {
    /// All tables.
    pub(crate) fn markdown(&self) -> String {
        let mut text = self.introduction();
        self.shares(&mut text);
        self.table(
            &mut text,
            "Delivered messages per second",
            Subject::Throughput,
            &|cell| Some(count(cell.throughput()?) + &faults(cell)),
        );
        self.table(
            &mut text,
            "CPU seconds of the broker per million delivered messages",
            Subject::Throughput,
            &|cell| {
                let cpu = cell.median(|r| r.broker?.cpu_s_per_million)?;
                Some(format!("{cpu:.3}"))
            },
        );
        self.table(
            &mut text,
            "CPU use of the generator, % of its core",
            Subject::Throughput,
            &|cell| {
                let share = cell.median(|r| Some(r.generator_cpu_share))?;
                Some(format!("{:.0}", 100.0 * share))
            },
        );
        for subject in [Subject::Throughput, Subject::Latency] {
            self.table(
                &mut text,
                match subject {
                    Subject::Latency => "System calls per delivered message at low load",
                    _ => "System calls per delivered message under load",
                },
                subject,
                &|cell| {
                    let calls = cell.median(|r| r.broker?.syscalls_per_message)?;
                    Some(format!("{calls:.3}"))
                },
            );
        }
        self.table(
            &mut text,
            "Latency at 5 000 msg/s over 20 pairs, µs from the intended send: p50 / p99 / p99.9 / max",
            Subject::Latency,
            &|cell| {
                let latency = |part: fn(&Latency) -> f64| {
                    cell.median(|r| r.latency.as_ref().map(part)).map(micros)
                };
                Some(format!(
                    "{} / {} / {} / {}{}",
                    latency(|l| l.p50_us)?,
                    latency(|l| l.p99_us)?,
                    latency(|l| l.p999_us)?,
                    latency(|l| l.max_us)?,
                    faults(cell)
                ))
            },
        );
        self.table(
            &mut text,
            "Factory cell, round trip in µs: mean ± standard deviation / p99 / p99.9",
            Subject::RoundTrip,
            &|cell| {
                let trip = |part: fn(&Latency) -> f64| {
                    cell.median(|r| r.round_trip.as_ref().map(part)).map(micros)
                };
                Some(format!(
                    "{} ± {} / {} / {}{}",
                    trip(|t| t.mean_us)?,
                    trip(|t| t.stdev_us)?,
                    trip(|t| t.p99_us)?,
                    trip(|t| t.p999_us)?,
                    faults(cell)
                ))
            },
        );
        self.memory(&mut text);
        self.failures(&mut text);
        text
    }

    fn introduction(&self) -> String {
        let machine = self.machine;
        let brokers: Vec<String> = self
            .brokers
            .iter()
            .map(|broker| {
                let note = broker
                    .peer
                    .note
                    .map_or_else(String::new, |n| format!(" ({n})"));
                format!("{} {}{note}", broker.peer.name, broker.version)
            })
            .collect();
        format!(
            "Measured {} on {} ({} cores, {:.0} GiB), Linux {}, TCP congestion control {}, \
             load average before {}: {}.\n\
             Runs per figure: {}, their median is given; each with a fresh process pinned to one core and the generator \
             on another; {} s measured after {} s of warm-up ({} s for latencies and the factory \
             cell), brokers taking turns. Q0, Q1 and Q2 are QoS levels at both ends; clients \
             speak 3.1.1 where v5 is not said; payload {} bytes where nothing else is said. At \
             most 1000 (1→1), 100 (50→1, 1→100) or 20 (50 pairs) messages per publisher are \
             undelivered at any time; W10k means 10 000, flat out as fast as the socket takes \
             it. FIFO: broker and generator under `SCHED_FIFO`.\n",
            machine.date,
            machine.cpu,
            machine.cores,
            machine.memory_gib,
            machine.kernel,
            machine.congestion_control,
            machine.load_average,
            brokers.join(", "),
            self.repetitions,
            self.extent.duration.as_secs_f64(),
            self.extent.warm_up.as_secs_f64(),
            self.extent.paced_duration.as_secs_f64(),
            self.cases.first().map_or(0, |case| case.payload),
        )
    }

    /// Throughput of every broker as a share of the floor's.
    fn shares(&self, text: &mut String) {
        let floor = |case: &Case| self.results.cell(&case.title, FLOOR)?.throughput();
        let mut rows = Vec::new();
        for case in self
            .cases
            .iter()
            .filter(|c| c.subject == Subject::Throughput)
        {
            let Some(floor) = floor(case) else { continue };
            let mut row = vec![case.title.clone(), count(floor)];
            for broker in self.brokers.iter().filter(|b| b.peer.name != FLOOR) {
                let cell = self.results.cell(&case.title, broker.peer.name);
                let share = cell.and_then(Cell::throughput).map(|rate| rate / floor);
                row.push(share.map_or_else(dash, |share| format!("{share:.3}")));
                if broker.peer.name == PUNCTUAL {
                    row.push(
                        case.target
                            .map_or_else(dash, |target| format!("≥ {target}")),
                    );
                }
            }
            rows.push(row);
        }
        let mut header = vec!["case".to_owned(), "floor, msg/s".to_owned()];
        for broker in self.brokers.iter().filter(|b| b.peer.name != FLOOR) {
            header.push(broker.peer.name.to_owned());
            if broker.peer.name == PUNCTUAL {
                header.push("target".to_owned());
            }
        }
        write_table(text, "Throughput as a share of the floor", &header, &rows);
    }

    /// One row per broker, one column per case of `subject`.
    fn table(&self, text: &mut String, title: &str, subject: Subject, value: Value<'_>) {
        let cases: Vec<&Case> = self.cases.iter().filter(|c| c.subject == subject).collect();
        let mut header = vec!["broker".to_owned()];
        header.extend(cases.iter().map(|case| case.title.clone()));
        let row = |broker: &BrokerProgram| {
            let name = broker.peer.name;
            let mut row = vec![name.to_owned()];
            row.extend(cases.iter().map(|case| {
                let cell = self.results.cell(&case.title, name);
                cell.and_then(value).unwrap_or_else(dash)
            }));
            row
        };
        let takes_part =
            |broker: &&BrokerProgram| cases.iter().any(|case| broker.peer.takes_part(case));
        let rows: Vec<Vec<String>> = self.brokers.iter().filter(takes_part).map(row).collect();
        write_table(text, title, &header, &rows);
    }

    fn memory(&self, text: &mut String) {
        let header = [
            "broker".to_owned(),
            "RSS at start, MiB".to_owned(),
            format!("RSS with {} connections, MiB", self.extent.connections),
            "bytes per connection".to_owned(),
            "connects per second".to_owned(),
            "CPU while idle, %".to_owned(),
            "largest RSS under load, MiB".to_owned(),
        ];
        let idle_case = self.cases.iter().find(|c| c.subject == Subject::Idle);
        let row = |broker: &BrokerProgram| {
            let name = broker.peer.name;
            let cell = idle_case.and_then(|case| self.results.cell(&case.title, name));
            let idle = |part: &dyn Fn(&Report) -> Option<f64>, digits: usize| {
                cell.and_then(|cell| cell.median(part))
                    .map_or_else(dash, |value| format!("{value:.digits$}"))
            };
            let mib = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64 / f64::from(1 << 20));
            let cells = self.results.cells.iter();
            let peak = cells
                .filter(|cell| cell.broker == name)
                .flat_map(|cell| &cell.reports)
                .filter_map(|report| Some(report.broker?.rss_peak))
                .max();
            vec![
                name.to_owned(),
                idle(&|r| mib(r.idle?.rss_before), 1),
                idle(&|r| mib(r.idle?.rss_after), 1),
                idle(&|r| r.idle?.bytes_per_connection, 0),
                idle(&|r| Some(r.idle?.connects_per_s), 0),
                idle(&|r| r.idle?.broker_cpu_percent, 2),
                mib(peak).map_or_else(dash, |mib| format!("{mib:.1}")),
            ]
        };
        let takes_part =
            |broker: &&BrokerProgram| idle_case.is_some_and(|c| broker.peer.takes_part(c));
        let rows: Vec<Vec<String>> = self.brokers.iter().filter(takes_part).map(row).collect();
        write_table(
            text,
            "Memory and idle connections, one subscription each",
            &header,
            &rows,
        );
    }

    /// Failed runs, grouped by broker and error.
    fn failures(&self, text: &mut String) {
        let mut failures: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
        for cell in &self.results.cells {
            for error in &cell.errors {
                let cases = failures.entry((&cell.broker, error)).or_default();
                if cases.last() != Some(&cell.case.as_str()) {
                    cases.push(&cell.case);
                }
            }
        }
        if failures.is_empty() {
            return;
        }
        text.push_str("\n### Runs that failed\n\n");
        for ((broker, error), cases) in failures {
            let _ = writeln!(text, "- {broker} ({}): {error}", cases.join(", "));
        }
    }
}

/// Writes a table, unless it is empty.
pub(crate) fn write_table(text: &mut String, title: &str, header: &[String], rows: &[Vec<String>]) {
    if rows.is_empty() || header.len() < 2 {
        return;
    }
    // Writing to a String cannot fail.
    let _ = write!(text, "\n### {title}\n\n| {} |\n", header.join(" | "));
    let _ = writeln!(text, "|---{}|", "|--:".repeat(header.len() - 1));
    for row in rows {
        let _ = writeln!(text, "| {} |", row.join(" | "));
    }
}

pub(crate) fn dash() -> String {
    "–".to_owned()
}

/// A rate with three significant digits: 4.13M, 131k, 950.
pub(crate) fn count(value: f64) -> String {
    match value {
        v if v >= 1e7 => format!("{:.1}M", v / 1e6),
        v if v >= 1e6 => format!("{:.2}M", v / 1e6),
        v if v >= 1e4 => format!("{:.0}k", v / 1e3),
        v if v >= 1e3 => format!("{:.1}k", v / 1e3),
        v => format!("{v:.0}"),
    }
}

/// Formats microseconds, large values as milliseconds.
fn micros(us: f64) -> String {
    if us >= 10_000.0 {
        format!("{:.1} ms", us / 1000.0)
    } else {
        format!("{us:.0}")
    }
}

/// Formats the shares of lost and reordered messages, unless both are zero.
fn faults(cell: &Cell) -> String {
    let (lost, out_of_order) = cell.faults();
    let mut faults = Vec::new();
    for (share, what) in [(lost, "loss"), (out_of_order, "out of order")] {
        if share > 0.0 {
            faults.push(format!("{what} {:.2} %", 100.0 * share));
        }
    }
    if faults.is_empty() {
        String::new()
    } else {
        format!(" ({})", faults.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::super::cases;
    use super::super::peers::PEERS;
    use super::*;
    use punctual_measure::load::{Options, Scenario};
    use std::time::Duration;

    fn floor_and_punctual() -> Vec<BrokerProgram> {
        PEERS
            .iter()
            .filter(|peer| [FLOOR, PUNCTUAL].contains(&peer.name))
            .map(|peer| BrokerProgram::for_test(*peer))
            .collect()
    }

    #[test]
    fn shares_are_of_the_floor_and_beside_their_targets() {
        let cases = cases::cases(true, 64);
        let options = Options::new(Scenario::Rate, ([127, 0, 0, 1], 1).into());
        let report = |delivered_per_s, lost| Report {
            delivered_per_s,
            lost,
            expected: 1000,
            ..Report::empty(&options)
        };
        let mut results = Results::default();
        results.add("1→1 Q0", FLOOR, Ok(report(4e6, 0)));
        results.add("1→1 Q0", PUNCTUAL, Ok(report(3e6, 10)));
        for case in ["50→1 Q0", "idle"] {
            results.add(case, PUNCTUAL, Err("it ended".to_owned()));
        }
        let machine = Machine::read();
        let text = Comparison {
            machine: &machine,
            brokers: &floor_and_punctual(),
            cases: &cases,
            results: &results,
            extent: Extent {
                duration: Duration::from_secs(3),
                paced_duration: Duration::from_secs(10),
                warm_up: Duration::from_secs(1),
                syscalls: Duration::ZERO,
                connections: 10,
            },
            repetitions: 1,
        }
        .markdown();
        for line in [
            "| case | floor, msg/s | punctual | target |",
            "|---|--:|--:|--:|",
            "| 1→1 Q0 | 4.00M | 0.750 | ≥ 0.75 |",
            "| punctual | 3.00M (loss 1.00 %) | – | – | – | – |",
            "- punctual (50→1 Q0, idle): it ended",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
    }

    #[test]
    fn numbers_have_three_digits_or_so() {
        for (value, text) in [
            (11_539_592.0, "11.5M"),
            (4_130_000.0, "4.13M"),
            (131_400.0, "131k"),
            (9_300.0, "9.3k"),
            (950.0, "950"),
        ] {
            assert_eq!(count(value), text);
        }
        assert_eq!(micros(84.4), "84");
        assert_eq!(micros(40_300.0), "40.3 ms");
    }
}
