//! The experiments of the papers: Fig. 3 of the RT-MQTT paper, and Figs. 16 to 18 of the MRT-MQTT
//! paper as far as they stay inside an edge network.
//!
//! Each is a few emulations, with and without priorities, several times with other phases and
//! release jitter; what was measured stands beside the papers' bounds and claims and ours. Sets
//! of flows that no link can carry are not emulated but put to the admission, which says why
//! not.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use punctual_analysis::printed::{self, Floor};
use punctual_analysis::{Admission, analyze};
use punctual_model::network::{Document, Network};
use punctual_report::{Bars, Chart, Group, Page, Unit, bars};
use punctual_sim::network::families::{self, Load};
use serde::Serialize;
use serde_json::{Value, json};

use super::background::{self, Background};
use super::broker::Kind;
use super::cores;
use super::experiment::{self, Experiment, Outcome};
use super::fabric::Driver;
use super::layout::Layout;
use super::loss::{self, Loss};
use super::rt_mqtt;
use super::tools::{self, Wanted};
use crate::arguments::seconds;
use crate::compare::document;
use crate::compare::machine::Machine;
use crate::results_file::{ResultsFile, replace};
use punctual_measure::{Error, Result};
use punctual_testbed::netns::Namespace;

/// Name and version of the JSON format.
const FORMAT: &str = "punctual-papers-1";

/// Options of `bench rt-mqtt` and `bench mrt-mqtt`.
#[derive(Args, Debug)]
pub(crate) struct PapersArgs {
    /// Loads to measure
    #[arg(
        long,
        value_name = "LOAD",
        value_delimiter = ',',
        default_value = "low,medium,high"
    )]
    loads: Vec<String>,
    /// Runs of each load, each with other phases and release jitter
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    repeats: u64,
    /// Seconds measured in each run
    #[arg(long, short, value_name = "S", default_value = "5", value_parser = seconds)]
    duration: Duration,
    /// The broker
    #[arg(long, value_name = "BROKER", default_value = "mosquitto")]
    broker: Kind,
    /// Programs that make the undeclared traffic of their kind, several with commas; nothing is
    /// installed. Without it this program makes all
    #[arg(long, value_name = "TOOL", value_delimiter = ',')]
    tools: Vec<Wanted>,
    /// Percent of the packets to a broker that its host discards, at random: damaged on the way
    /// [default: that of the paper, 3 for rt-mqtt and 0 for mrt-mqtt]
    #[arg(long, value_name = "PERCENT", value_parser = loss::percent)]
    loss: Option<f64>,
    /// Neither pin broker and clients to cores nor put them before other programs
    #[arg(long)]
    unpinned: bool,
    /// Markdown file whose generated part is replaced
    #[arg(long, value_name = "FILE")]
    document: Option<PathBuf>,
    /// File for the results as a page with charts
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// File for all results as JSON, written after each run [default: target/bench/rt-mqtt.json or
    /// mrt-mqtt.json]
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// One of the two experiments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Paper {
    /// Fig. 3 of "End-to-End Response Time Analysis for RT-MQTT".
    RtMqtt,
    /// Figs. 16 to 18 of "A Scalable Real-Time SDN-Based MQTT Framework".
    MrtMqtt,
}

impl Paper {
    fn title(self) -> &'static str {
        match self {
            Self::RtMqtt => "RT-MQTT, Fig. 3",
            Self::MrtMqtt => "MRT-MQTT, Figs. 16 to 18, inside edge network A",
        }
    }

    /// What repeats it.
    fn command(self) -> &'static str {
        match self {
            Self::RtMqtt => "rt-mqtt",
            Self::MrtMqtt => "mrt-mqtt",
        }
    }

    fn network(self, load: Load) -> Document {
        match self {
            Self::RtMqtt => families::fig2(load),
            Self::MrtMqtt => families::fig15(load, false),
        }
    }

    /// What the paper says by how much its bounds are above what it measured at most, percent:
    /// by the trajectory and by the holistic approach.
    fn claims(self, load: Load) -> [f64; 2] {
        match (self, load) {
            (Self::RtMqtt, Load::Low) => [6.3, 33.3],
            (Self::RtMqtt, Load::Medium) => [8.1, 36.1],
            (Self::RtMqtt, Load::High) => [10.7, 38.0],
            (Self::MrtMqtt, Load::Low) => [7.3, 32.7],
            (Self::MrtMqtt, Load::Medium) => [8.5, 34.9],
            (Self::MrtMqtt, Load::High) => [9.7, 36.8],
        }
    }

    /// The paper's error rate, percent. The second paper names none.
    fn loss(self) -> f64 {
        match self {
            Self::RtMqtt => 3.0,
            Self::MrtMqtt => 0.0,
        }
    }

    /// What the paper has beside its declared flows.
    fn background(self, layout: &Layout) -> Vec<Background> {
        match self {
            Self::RtMqtt => rt_mqtt::background(),
            Self::MrtMqtt => background::usual(layout),
        }
    }

    /// Sets of flows of the paper that cannot be carried as printed.
    fn impossible(self) -> Vec<(&'static str, Document)> {
        match self {
            Self::RtMqtt => Vec::new(),
            Self::MrtMqtt => vec![
                (
                    "Medium, all three edge networks publishing",
                    families::fig15(Load::Medium, true),
                ),
                (
                    "High, all three edge networks publishing",
                    families::fig15(Load::High, true),
                ),
            ],
        }
    }
}

/// A path over all runs of a load.
#[derive(Clone, Debug, Serialize)]
struct Row {
    flow: String,
    priority: u64,
    /// Links that it crosses.
    links: usize,
    /// Measured with transmission times, ns: p99 and maximum, with and without priorities.
    with: [Option<u64>; 2],
    without: [Option<u64>; 2],
    bound: Option<u64>,
    trajectory: Option<u64>,
    holistic: Option<u64>,
    /// The RT-MQTT paper's formulas, errors included: no bounds.
    printed_trajectory: Option<u64>,
    printed_holistic: Option<u64>,
    deadline: u64,
}

/// A load.
#[derive(Debug, Serialize)]
struct Measured {
    load: &'static str,
    rows: Vec<Row>,
    /// Runs in which the machine was too busy.
    doubtful: u64,
    runs: Vec<Outcome>,
    claims: [f64; 2],
}

/// A set of flows and what the admission says of it.
#[derive(Debug, Serialize)]
struct Refused {
    what: &'static str,
    flows: usize,
    /// Why not; `None` if all can be admitted.
    reason: Option<String>,
}

impl PapersArgs {
    /// Runs the experiment; progress goes to standard error, the tables to `out`.
    pub(crate) fn run(&self, paper: Paper, out: &mut dyn Write) -> Result<()> {
        Namespace::check()?;
        let loads = self.chosen()?;
        let refused: Vec<_> = paper
            .impossible()
            .into_iter()
            .map(|(what, document)| admission(what, &document))
            .collect::<Result<_>>()?;
        let name = format!("{}.json", paper.command());
        let file = ResultsFile::new(self.json.as_deref(), "target/bench".as_ref(), &name)?;
        let mut measured = Vec::new();
        for load in loads {
            self.measure(paper, load, &mut measured, &|measured| {
                file.write(&self.json(paper, measured, &refused), false)
            })?;
        }
        file.write(&self.json(paper, &measured, &refused), true)?;
        let page = self.page(paper, &measured, &refused);
        let markdown = page.markdown();
        writeln!(out, "{markdown}").map_err(Error::io("cannot write the tables"))?;
        if let Some(path) = &self.document {
            document::update(path, &markdown)?;
        }
        self.html
            .as_deref()
            .map_or(Ok(()), |path| replace(path, &page.html()))
    }

    fn loss_of(&self, paper: Paper) -> f64 {
        self.loss.unwrap_or_else(|| paper.loss())
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

    /// Adds a load, and calls `keep` with all of them after each run.
    fn measure(
        &self,
        paper: Paper,
        load: Load,
        all: &mut Vec<Measured>,
        keep: &dyn Fn(&[Measured]) -> Result<()>,
    ) -> Result<()> {
        let network = checked(load.name(), &paper.network(load))?;
        let mut background = paper.background(&Layout::new(&network)?);
        tools::assign(&self.tools, &mut background)?;
        let at = all.len();
        all.push(Measured {
            load: load.name(),
            rows: Vec::new(),
            doubtful: 0,
            runs: Vec::new(),
            claims: paper.claims(load),
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
                    loss: Loss::of_percent(self.loss_of(paper)),
                    switching: false,
                    pinned: !self.unpinned && cores() > 1,
                };
                let outcome = experiment::run(&network, &experiment)?;
                let worst = outcome.paths.iter().filter_map(|path| path.worst()).max();
                eprintln!(
                    "{} {}, {}, run {seed}: at most {:.0} us, idle {:.0} %",
                    paper.title(),
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

    fn page(&self, paper: Paper, measured: &[Measured], refused: &[Refused]) -> Page {
        let machine = Machine::read();
        let mut page = Page::new(paper.title());
        page.paragraph(format!(
            "Measured on {} by `punctual bench {}`: {}, {} cores, Linux {}, load average {}. {} runs \
             of {} s for each load with and without priorities. From the write to the kernel's time \
             at the broker, with the transmission time of each link of the path, which the emulation \
             does not have; µs.",
            machine.date,
            paper.command(),
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
        if self.loss_of(paper) > 0.0 {
            rt_mqtt::losses(
                &mut page,
                self.loss_of(paper),
                measured.iter().map(|m| (m.load, &m.runs[..])),
            );
        }
        for refused in refused {
            page.paragraph(match &refused.reason {
                Some(reason) => format!(
                    "**{}** ({} flows): refused. {reason}.",
                    refused.what, refused.flows
                ),
                None => format!("**{}** ({} flows): admitted.", refused.what, refused.flows),
            });
        }
        for load in measured {
            page.heading(&format!("Load {}", load.load));
            page.charts(vec![(format!("Load {}", load.load), chart(load))]);
            page.table(head(), load.rows.iter().map(Row::cells).collect());
        }
        page
    }

    fn json(&self, paper: Paper, measured: &[Measured], refused: &[Refused]) -> Value {
        json!({
            "format": FORMAT,
            "experiment": paper.title(),
            "machine": Machine::read(),
            "duration_s": self.duration.as_secs_f64(),
            "loads": measured,
            "refused": refused,
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

/// Asks the admission for all flows at once.
fn admission(what: &'static str, document: &Document) -> Result<Refused> {
    let network = checked(what, document)?;
    let flows = network.flows.clone();
    let count = flows.len();
    let mut admission = Admission::new(Network {
        flows: Vec::new(),
        ..network
    });
    let reason = admission
        .add(flows)
        .err()
        .map(|refusal| refusal.to_string());
    Ok(Refused {
        what,
        flows: count,
        reason,
    })
}

/// Each path with the worst of all runs.
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

    /// By how much a bound is above the greatest delay, percent.
    fn above(&self, bound: Option<u64>) -> Option<f64> {
        let measured = self.with[1]?;
        Some((bound? as f64 / measured.max(1) as f64 - 1.0) * 100.0)
    }
}

/// The paper's claims beside what came out.
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
    fn what_cannot_be_carried_is_refused_with_the_link() {
        for (what, document) in Paper::MrtMqtt.impossible() {
            let refused = admission(what, &document).unwrap();
            let reason = refused.reason.unwrap();
            assert!(reason.contains("loaded"), "{what}: {reason}");
        }
    }

    #[test]
    fn what_the_papers_show_can_be_admitted_at_low_and_high() {
        for load in [Load::Low, Load::High] {
            let document = Paper::RtMqtt.network(load);
            assert_eq!(admission("", &document).unwrap().reason, None);
        }
    }

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
