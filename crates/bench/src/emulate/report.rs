//! The report of a run: table, HTML page, chart, JSON.

use std::fmt::Write as _;

use punctual_model::network::Document;
use punctual_report::{Bars, Chart, Group, Page, Unit, bars, document};
use punctual_sim::network::to_toml;
use serde_json::{Value, json};

use super::experiment::{Experiment, Outcome};
use super::results::{PathResult, Verdict};
use super::switching;
use crate::compare::machine::Machine;

/// Name and version of the JSON format.
const FORMAT: &str = "punctual-emulation-1";

/// The input of a report.
pub(super) struct Report<'a> {
    name: &'a str,
    experiment: &'a Experiment,
    outcome: &'a Outcome,
    machine: Machine,
}

impl<'a> Report<'a> {
    pub(super) fn new(name: &'a str, experiment: &'a Experiment, outcome: &'a Outcome) -> Self {
        Self {
            name,
            experiment,
            outcome,
            machine: Machine::read(),
        }
    }

    /// The table as text, with explanations above and below.
    pub(super) fn text(&self) -> String {
        let mut text = format!("{}\n\n", self.about());
        text.push_str(&aligned(&head(), &rows(&self.outcome.paths)));
        text.push('\n');
        for note in self.notes() {
            let _ = writeln!(text, "{note}");
        }
        text
    }

    pub(super) fn html(&self) -> String {
        let mut page = Page::new(&format!("{}, emulated", self.name));
        page.paragraph(self.about());
        for note in self.notes() {
            page.paragraph(&note);
        }
        page.charts(vec![(
            "Bounds and what was measured".to_owned(),
            self.chart(),
        )]);
        page.table(head(), rows(&self.outcome.paths));
        page.html()
    }

    /// The network file with the measured delays, and comments on the measurement.
    pub(super) fn network(&self, network: &Document) -> String {
        let mut network = network.clone();
        switching::write(&mut network, &self.outcome.switching);
        let mut text = format!("# {}\n", self.about());
        text.push_str(
            "#\n# sd_min and sd_max: from the kernel's time of a frame at the port where it came \
             to that at\n# the port where it left, one frame at a time, less and more a tenth.\n",
        );
        text.push_str("#\n# Measured from the write to the end of the path, us, without n*C:\n");
        for path in &self.outcome.paths {
            let Some(delay) = path.delay else { continue };
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "# {} {}>{}: p50 {:.1}, p99 {:.1}, p99.9 {:.1}, max {:.1}",
                path.flow,
                path.publisher,
                path.destination,
                delay.p50 as f64 / 1e3,
                delay.p99 as f64 / 1e3,
                delay.p999 as f64 / 1e3,
                delay.max as f64 / 1e3,
            );
        }
        text.push_str(&to_toml(&network));
        text
    }

    pub(super) fn plot(&self) -> String {
        document(&[(self.name.to_owned(), self.chart())])
    }

    pub(super) fn json(&self) -> Value {
        let experiment = self.experiment;
        json!({
            "format": FORMAT,
            "network": self.name,
            "machine": self.machine,
            "driver": experiment.driver.name(),
            "broker": experiment.broker.name,
            "version": experiment.broker.version,
            "manager": experiment.broker.has_manager(),
            "doubtful": self.outcome.is_doubtful(),
            "duration_s": experiment.duration.as_secs_f64(),
            "qos": experiment.qos,
            "seed": experiment.seed,
            "pinned": experiment.pinned,
            "outcome": self.outcome,
        })
    }

    fn about(&self) -> String {
        let (experiment, outcome) = (self.experiment, self.outcome);
        let order = match experiment.priorities {
            true => "eight strict priorities",
            false => "no priorities",
        };
        let manager = match experiment.broker.has_manager() {
            true => " behind punctual manager",
            false => "",
        };
        format!(
            "{}: {} hosts, {} switches ({}), {} cables with {order}, built in {} ms; \
             {} {}{manager}, QoS {}; {} s on {}, {} cores, Linux {}, load average {}.",
            self.name,
            outcome.hosts,
            outcome.switches,
            experiment.driver.name(),
            outcome.cables,
            outcome.set_up_ms,
            experiment.broker.name,
            experiment.broker.version,
            experiment.qos,
            experiment.duration.as_secs_f64(),
            self.machine.cpu,
            self.machine.cores,
            self.machine.kernel,
            self.machine.load_average,
        )
    }

    fn notes(&self) -> Vec<String> {
        notes(self.outcome)
    }

    fn chart(&self) -> Chart {
        chart(self.name, &self.outcome.paths)
    }
}

/// Notes on the run that explain or restrict the table.
pub(super) fn notes(outcome: &Outcome) -> Vec<String> {
    let mut notes = vec![format!(
        "Delays are from the write to the kernel's time of the last frame; `+n*C` is what the \
         links take to transmit it and the emulation does not. {} messages, {} acknowledged, \
         {} received by subscribers, {} repeated by TCP.",
        outcome.written, outcome.acknowledged, outcome.received, outcome.repeated
    )];
    if let Some(promised) = outcome.promised {
        notes.push(format!(
            "The manager promised {promised} flows their deadlines."
        ));
    }
    if !outcome.background.is_empty() {
        let all = outcome.background.iter();
        let all: Vec<String> = all
            .map(|(asked, rate, tool)| {
                let by = tool.map_or_else(String::new, |tool| format!(" by {tool}"));
                format!("{asked}{by} ({:.1} Mbit/s came)", *rate as f64 / 1e6)
            })
            .collect();
        notes.push(format!("Undeclared traffic: {}.", all.join(", ")));
    }
    if !outcome.switching.is_empty() {
        let all = outcome.switching.iter().map(|switch| {
            let (least, delays) = (switch.least as f64 / 1e3, switch.delays);
            let [median, p99, max] = [delays.p50, delays.p99, delays.max].map(|ns| ns as f64 / 1e3);
            format!(
                "{} {least:.1} / {median:.1} / {p99:.1} / {max:.1}",
                switch.switch
            )
        });
        notes.push(format!(
            "Switches, from port to port, us, least / median / p99 / greatest: {}.",
            all.collect::<Vec<_>>().join(", ")
        ));
    }
    if let Some(lateness) = outcome.lateness {
        notes.push(format!(
            "Messages were written late by {:.0} us at p99 and {:.0} us at most; that is no part \
             of the delays. {} came later than their flow declares.",
            lateness.p99_us, lateness.max_us, outcome.late
        ));
    }
    if let Some(processors) = outcome.processors {
        notes.push(format!(
            "The processors were idle {:.0} % of the time, and {:.1} % was stolen.",
            processors.idle, processors.stolen
        ));
    }
    if outcome.is_doubtful() {
        notes.push(
            "**The machine was too busy:** programs waited for a processor or published later \
             than declared, and the delays are not the network's."
                .to_owned(),
        );
    }
    if outcome.missed > 0 {
        notes.push(format!(
            "The capture missed {} packets: messages are missing that may have arrived.",
            outcome.missed
        ));
    }
    if outcome.relayed > 0 {
        notes.push(format!(
            "Flows to several brokers went to groups, once for all, without acknowledgements to \
             publishers; {} datagrams were passed on to brokers.",
            outcome.relayed
        ));
    }
    if outcome.withheld > 0 {
        notes.push(format!(
            "{} copies of messages were not written, because what was due before them still waited.",
            outcome.withheld
        ));
    }
    notes
}

fn head() -> Vec<String> {
    [
        "flow", "prio", "from", "to", "seen", "p50 us", "p99", "p99.9", "max", "+n*C", "bound",
        "holistic", "deadline", "verdict",
    ]
    .map(str::to_owned)
    .to_vec()
}

fn rows(paths: &[PathResult]) -> Vec<Vec<String>> {
    let micro = |ns: u64| format!("{:.0}", ns as f64 / 1e3);
    let maybe = |ns: Option<u64>| ns.map_or_else(|| "-".to_owned(), micro);
    let row = |path: &PathResult| {
        let delay = |of: fn(super::results::Delays) -> u64| maybe(path.delay.map(of));
        vec![
            path.flow.clone(),
            path.priority.to_string(),
            path.publisher.clone(),
            path.destination.clone(),
            path.seen.to_string(),
            delay(|delay| delay.p50),
            delay(|delay| delay.p99),
            delay(|delay| delay.p999),
            delay(|delay| delay.max),
            micro(path.serialization),
            maybe(path.bound),
            maybe(path.holistic),
            micro(path.deadline),
            words(path.verdict).to_owned(),
        ]
    };
    paths.iter().map(row).collect()
}

fn words(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Kept => "kept",
        Verdict::KeptAtP999 => "kept at p99.9",
        Verdict::Above => "ABOVE",
        Verdict::NoBound => "no bound",
        Verdict::NothingSeen => "nothing seen",
    }
}

/// Chart of measured delays and of the bounds by both approaches. Deadlines are left out: they
/// would need a much larger scale.
pub(super) fn chart(title: &str, paths: &[PathResult]) -> Chart {
    let micro = |ns: Option<u64>| ns.map(|ns| ns as f64 / 1e3);
    let group = |path: &PathResult| Group {
        name: match path.destination == path.broker {
            true => path.flow.clone(),
            false => format!("{} {}", path.flow, path.destination),
        },
        values: vec![
            micro(path.delay.map(|delay| delay.p50 + path.serialization)),
            micro(path.worst()),
            micro(path.trajectory),
            micro(path.holistic),
        ],
        mark: micro(path.bound),
    };
    bars(&Bars {
        title: title.to_owned(),
        series: ["median + n*C", "max + n*C", "trajectory", "holistic"]
            .map(str::to_owned)
            .to_vec(),
        mark: "tightest bound".to_owned(),
        unit: Unit::Micros,
        groups: paths.iter().map(group).collect(),
    })
}

/// Formats columns: the first one left-aligned, the others right-aligned.
fn aligned(head: &[String], rows: &[Vec<String>]) -> String {
    let all = || std::iter::once(head).chain(rows.iter().map(Vec::as_slice));
    let widths: Vec<usize> = (0..head.len())
        .map(|column| {
            all()
                .map(|row| row[column].chars().count())
                .max()
                .unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    for row in all() {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            // Writing to a string cannot fail.
            let _ = match column {
                0 => write!(line, "{cell:<width$}"),
                _ => write!(line, "  {cell:>width$}"),
            };
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}
