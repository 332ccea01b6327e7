//! The experiment of the RT-MQTT paper, Fig. 3.
//!
//! The experiment consists of several emulations, with and without priorities and with different
//! phases and release jitter. The report compares the measured delays with the paper's bounds and
//! claims, and with the bounds of this project's analysis.

use std::io::Write;
use std::time::Duration;

use clap::Args;
use punctual_analysis::analyze;
use punctual_analysis::printed::{self, Floor};
use punctual_model::network::{Document, Network};
use punctual_report::{Bars, Chart, Group, Page, Unit, bars};
use punctual_sim::network::families::{self, Load};
use serde::Serialize;
use serde_json::{Value, json};

use super::broker::Kind;
use super::cores;
use super::experiment::{self, Experiment, Outcome};
use super::fabric::Driver;
use super::loss::{self, Loss};
use super::outputs::OutputArgs;
use super::rt_mqtt;
use super::tools::{self, Wanted};
use crate::arguments::seconds;
use crate::compare::machine::Machine;
use punctual_measure::{Error, Result};
use punctual_testbed::netns::Namespace;

/// Name and version of the JSON format.
const FORMAT: &str = "punctual-papers-1";

/// Options of `bench rt-mqtt`.
#[derive(Args, Debug)]
pub(crate) struct PapersArgs {
    /// Loads of the paper to measure
    #[arg(
        long,
        value_name = "LOAD",
        value_delimiter = ',',
        default_value = "low,medium,high"
    )]
    loads: Vec<String>,
    /// Runs for each load, each with different phases and release jitter
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    repeats: u64,
    /// Measured seconds per run
    #[arg(long, short, value_name = "S", default_value = "5", value_parser = seconds)]
    duration: Duration,
    /// Program of the broker
    #[arg(long, value_name = "BROKER", default_value = "mosquitto")]
    broker: Kind,
    /// Programs that generate the undeclared traffic of their kind, separated by commas; none is
    /// installed automatically. Without this option, the emulation generates all traffic itself
    #[arg(long, value_name = "TOOL", value_delimiter = ',')]
    tools: Vec<Wanted>,
    /// Percent of the packets to a broker that its host discards at random, as if damaged in
    /// transit
    #[arg(long, value_name = "PERCENT", default_value = "3", value_parser = loss::percent)]
    loss: f64,
    /// Neither pin broker and clients to cores nor give them real-time priority
    #[arg(long)]
    unpinned: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// Title of the experiment in reports.
const TITLE: &str = "RT-MQTT, Fig. 3";

/// By how many percent the paper's bounds exceed its greatest measured delays, according to its
/// text: by the trajectory and by the holistic approach.
fn claims_of(load: Load) -> [f64; 2] {
    match load {
        Load::Low => [6.3, 33.3],
        Load::Medium => [8.1, 36.1],
        Load::High => [10.7, 38.0],
    }
}

/// Results of a path over all runs of a load.
#[derive(Clone, Debug, Serialize)]
struct Row {
    flow: String,
    priority: u64,
    /// Number of links of the path.
    links: usize,
    /// Measured delays including transmission times, ns: p99 and maximum, with and without
    /// priorities.
    with: [Option<u64>; 2],
    without: [Option<u64>; 2],
    bound: Option<u64>,
    trajectory: Option<u64>,
    holistic: Option<u64>,
    /// Results of the RT-MQTT paper's formulas as printed, ns. The formulas contain errors, so
    /// these are not safe bounds.
    printed_trajectory: Option<u64>,
    printed_holistic: Option<u64>,
    deadline: u64,
}

/// Results of a load.
#[derive(Debug, Serialize)]
struct Measured {
    load: &'static str,
    rows: Vec<Row>,
    /// Runs whose results are doubtful because the machine had too little CPU time.
    doubtful: u64,
    runs: Vec<Outcome>,
    claims: [f64; 2],
}

impl PapersArgs {
    /// Runs the experiment; progress goes to standard error, the tables to `out`.
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<()> {
        Namespace::check()?;
        let loads = self.chosen()?;
        let file = self.output.results_file("rt-mqtt")?;
        let mut measured = Vec::new();
        for load in loads {
            self.measure(load, &mut measured, &|measured| {
                file.write(&self.json(measured), false)
            })?;
        }
        file.write(&self.json(&measured), true)?;
        let page = self.page(&measured);
        self.output.write(&page, out)
    }

    fn chosen(&self) -> Result<Vec<Load>> {
        let named = |name: &String| {
            let found = Load::ALL.into_iter().find(|load| load.name() == name);
            found.ok_or_else(|| Error::Config {
                field: "--loads",
                value: name.clone(),
                remedy: "choose from low, medium and high".to_owned(),
            })
        };
        self.loads.iter().map(named).collect()
    }

    /// Measures a load, and calls `keep` with the results so far after each run.
    fn measure(
        &self,
        load: Load,
        all: &mut Vec<Measured>,
        keep: &dyn Fn(&[Measured]) -> Result<()>,
    ) -> Result<()> {
        let network = checked(load.name(), &families::fig2(load))?;
        let mut background = rt_mqtt::background();
        tools::assign(&self.tools, &mut background)?;
        let at = all.len();
        all.push(Measured {
            load: load.name(),
            rows: Vec::new(),
            doubtful: 0,
            runs: Vec::new(),
            claims: claims_of(load),
        });
        for priorities in [true, false] {
            for seed in 1..=self.repeats {
                let experiment = Experiment {
                    driver: Driver::Linux,
                    broker: self.broker.find()?,
                    warm_up: Duration::from_secs(1),
                    duration: self.duration,
                    qos: 1,
                    priorities,
                    background: background.clone(),
                    seed,
                    loss: Loss::of_percent(self.loss),
                    switching: false,
                    pinned: !self.unpinned && cores() > 1,
                };
                let outcome = experiment::run(&network, &experiment)?;
                let worst = outcome.paths.iter().filter_map(|path| path.worst()).max();
                eprintln!(
                    "{} {}, {}, run {seed}: at most {:.0} us, idle {:.0} %",
                    TITLE,
                    load.name(),
                    if priorities {
                        "priorities"
                    } else {
                        "no priorities"
                    },
                    worst.unwrap_or(0) as f64 / 1e3,
                    outcome
                        .processors
                        .map_or(f64::NAN, |processors| processors.idle)
                );
                let measured = &mut all[at];
                measured.doubtful += u64::from(outcome.is_doubtful());
                measured.runs.push(outcome);
                measured.rows = rows(&network, &measured.runs);
                keep(all)?;
            }
        }
        Ok(())
    }

    fn page(&self, measured: &[Measured]) -> Page {
        let machine = Machine::read();
        let mut page = Page::new(TITLE);
        page.paragraph(format!(
            "Measured on {} by `punctual bench rt-mqtt`: {}, {} cores, Linux {}, load average {}. {} runs \
             of {} s for each load with and without priorities. From the write to the kernel's time \
             at the broker, with the transmission time of each link of the path, which the emulation \
             does not have; µs.",
            machine.date,
            machine.cpu,
            machine.cores,
            machine.kernel,
            machine.load_average,
            self.repeats,
            self.duration.as_secs_f64(),
        ));
        page.table(
            [
                "load",
                "trajectory above measured: the paper, at most",
                "ours",
                "holistic above measured: the paper, at most",
                "ours",
                "above our bound",
                "p99 with priorities / without",
                "runs on a machine too busy",
            ]
            .map(str::to_owned)
            .to_vec(),
            measured.iter().map(claims).collect(),
        );
        if self.loss > 0.0 {
            let runs = measured.iter().map(|m| (m.load, &m.runs[..]));
            rt_mqtt::losses(&mut page, self.loss, runs);
        }
        for load in measured {
            page.heading(&format!("Load {}", load.load));
            page.charts(vec![(format!("Load {}", load.load), chart(load))]);
            page.table(head(), load.rows.iter().map(Row::cells).collect());
        }
        page
    }

    fn json(&self, measured: &[Measured]) -> Value {
        json!({
            "format": FORMAT,
            "experiment": TITLE,
            "machine": Machine::read(),
            "duration_s": self.duration.as_secs_f64(),
            "loads": measured,
        })
    }
}

pub(super) fn checked(name: &str, document: &Document) -> Result<Network> {
    Network::new(document).map_err(|error| Error::Config {
        field: "network",
        value: name.to_owned(),
        remedy: error.to_string(),
    })
}

/// The worst values of each path over all runs.
fn rows(network: &Network, runs: &[Outcome]) -> Vec<Row> {
    let bounds = analyze(network).flows;
    let printed_trajectory = printed::trajectory(network, Floor::AsPrinted);
    let printed_holistic = printed::holistic(network);
    let Some(first) = runs.first() else {
        return Vec::new();
    };
    let row = |(index, path): (usize, &super::results::PathResult)| {
        let of = |priorities: bool| {
            let runs = runs.iter().filter(move |run| run.priorities == priorities);
            let paths = runs.filter_map(move |run| run.paths.get(index));
            let p99 = |path: &super::results::PathResult| {
                path.delay.map(|delay| delay.p99 + path.serialization)
            };
            [
                paths.clone().filter_map(p99).max(),
                paths.filter_map(|path| path.worst()).max(),
            ]
        };
        let flow = network.flows.iter().position(|flow| flow.id == path.flow);
        let printed =
            |all: &[Vec<Option<u64>>]| -> Option<u64> { *all.get(flow?)?.get(path.path)? };
        let of_path = flow.and_then(|flow| bounds.get(flow)?.get(path.path));
        let hops = flow.map_or(0, |flow| {
            let flow = &network.flows[flow];
            let leaf = flow.leaves.get(path.path).copied();
            std::iter::successors(leaf, |hop| flow.hops[*hop].parent).count()
        });
        Row {
            flow: path.flow.clone(),
            priority: path.priority,
            links: hops,
            with: of(true),
            without: of(false),
            bound: of_path.and_then(|bounds| bounds.best),
            trajectory: of_path.and_then(|bounds| bounds.trajectory),
            holistic: of_path.and_then(|bounds| bounds.holistic),
            printed_trajectory: printed(&printed_trajectory),
            printed_holistic: printed(&printed_holistic),
            deadline: path.deadline,
        }
    };
    first.paths.iter().enumerate().map(row).collect()
}

fn micro(ns: Option<u64>) -> String {
    ns.map_or_else(|| "-".to_owned(), |ns| format!("{:.0}", ns as f64 / 1e3))
}

fn head() -> Vec<String> {
    [
        "flow",
        "priority",
        "links",
        "p99",
        "max",
        "p99 without priorities",
        "max without",
        "our bound",
        "trajectory",
        "holistic",
        "trajectory as printed",
        "holistic as printed",
        "deadline",
    ]
    .map(str::to_owned)
    .to_vec()
}

impl Row {
    fn cells(&self) -> Vec<String> {
        let mut cells = vec![
            self.flow.clone(),
            self.priority.to_string(),
            self.links.to_string(),
        ];
        let times = [
            self.with[0],
            self.with[1],
            self.without[0],
            self.without[1],
            self.bound,
            self.trajectory,
            self.holistic,
            self.printed_trajectory,
            self.printed_holistic,
            Some(self.deadline),
        ];
        cells.extend(times.map(micro));
        cells
    }

    /// By how many percent a bound exceeds the greatest measured delay.
    fn above(&self, bound: Option<u64>) -> Option<f64> {
        let measured = self.with[1]?;
        Some((bound? as f64 / measured.max(1) as f64 - 1.0) * 100.0)
    }
}

/// The paper's claims beside the measured results.
fn claims(load: &Measured) -> Vec<String> {
    let range = |bound: fn(&Row) -> Option<u64>| {
        let all: Vec<f64> = load
            .rows
            .iter()
            .filter_map(|row| row.above(bound(row)))
            .collect();
        let least = all.iter().copied().fold(f64::INFINITY, f64::min);
        let most = all.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        match all.is_empty() {
            true => "-".to_owned(),
            false => format!("{least:.0} to {most:.0} %"),
        }
    };
    let above = load
        .rows
        .iter()
        .filter(|row| row.with[1] > row.bound && row.bound.is_some());
    let p99 = |of: fn(&Row) -> Option<u64>| micro(load.rows.iter().filter_map(of).max());
    vec![
        load.load.to_owned(),
        format!("+{} %", load.claims[0]),
        range(|row| row.trajectory),
        format!("+{} %", load.claims[1]),
        range(|row| row.holistic),
        format!("{} of {} paths", above.count(), load.rows.len()),
        format!("{} / {}", p99(|row| row.with[0]), p99(|row| row.without[0])),
        format!("{} of {}", load.doubtful, load.runs.len()),
    ]
}

fn chart(load: &Measured) -> Chart {
    let micro = |ns: Option<u64>| ns.map(|ns| ns as f64 / 1e3);
    let group = |row: &Row| Group {
        name: row.flow.clone(),
        values: vec![
            micro(row.with[1]),
            micro(row.without[1]),
            micro(row.trajectory),
            micro(row.holistic),
        ],
        mark: micro(row.bound),
    };
    bars(&Bars {
        title: format!("Load {}", load.load),
        series: ["measured", "without priorities", "trajectory", "holistic"]
            .map(str::to_owned)
            .to_vec(),
        mark: "tightest bound".to_owned(),
        unit: Unit::Micros,
        groups: load.rows.iter().map(group).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_above_by_a_share_of_what_was_measured() {
        let row = Row {
            flow: "m1".to_owned(),
            priority: 7,
            links: 4,
            with: [Some(900), Some(1000)],
            without: [None; 2],
            bound: None,
            trajectory: None,
            holistic: None,
            printed_trajectory: None,
            printed_holistic: None,
            deadline: 1,
        };
        assert_eq!(row.above(Some(1500)), Some(50.0));
        assert_eq!(row.above(None), None);
    }
}
