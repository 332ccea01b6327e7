//! `punctual simulate`: what a network can do, beside what it cannot.
//!
//! Runs random behaviours of a network, looks for bad ones, or tries all of a
//! tiny network, and prints the largest responses beside the bounds. Exit
//! codes: 0, 1 if a response is above its bound (which would be a fault of the
//! bound), 2 if the input is wrong.

mod report;
mod run;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use punctual_analysis::analyze;
use punctual_model::network::Network;
use punctual_model::parse_duration;

use self::report::{Report, Row};
use self::run::Seen;
use super::analyze::study::route;
use super::analyze::{self as analysis, code, print_json};
use super::input::Input;
use super::{Failure, print};

/// Arguments of `punctual simulate`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The network, JSON or TOML; - is standard input.
    file: PathBuf,
    /// What everything is drawn from: the same seed gives the same answer. Run
    /// k has the seed plus k.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Behaviours to run: random ones [default: 100], or for each flow and path
    /// of a search [default: 2000].
    #[arg(long, value_name = "NUMBER", conflicts_with_all = ["exhaustive", "replay"])]
    runs: Option<u64>,
    /// How long messages are sent in a random behaviour, in virtual time.
    #[arg(long, default_value = "1s", value_parser = duration)]
    duration: Duration,
    /// Look for the worst behaviour of each flow and path.
    #[arg(long, conflicts_with_all = ["exhaustive", "replay", "duration"])]
    search: bool,
    /// Try every behaviour of a tiny network on a grid.
    #[arg(long, conflicts_with_all = ["replay", "duration"])]
    exhaustive: bool,
    /// Run the scenarios again that `--scenarios` wrote.
    #[arg(long, value_name = "FILE", conflicts_with = "duration")]
    replay: Option<PathBuf>,
    /// Distance of the points of the grid [default: a sixteenth of the span].
    #[arg(long, value_parser = duration, requires = "exhaustive")]
    step: Option<Duration>,
    /// How far from the first flow the others begin at most [default: the
    /// largest bound].
    #[arg(long, value_parser = duration, requires = "exhaustive")]
    span: Option<Duration>,
    /// Messages of each flow on the grid.
    #[arg(long, default_value_t = 1, requires = "exhaustive")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    messages: u32,
    /// Only this flow; repeatable. All others are there all the same.
    #[arg(long, value_name = "NAME")]
    flow: Vec<String>,
    /// How to print.
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    /// Count how often each response was seen, in random behaviours.
    #[arg(long, conflicts_with_all = ["search", "exhaustive", "replay"])]
    histogram: bool,
    /// With --format json: add the scenario that had the largest response.
    #[arg(long)]
    scenarios: bool,
}

/// How to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Columns, for people.
    Table,
    /// JSON.
    Json,
    /// Comma-separated values.
    Csv,
}

fn duration(text: &str) -> Result<Duration, String> {
    match parse_duration(text.as_bytes()) {
        Ok(duration) if duration.is_zero() => Err("must be above 0".into()),
        Ok(duration) => Ok(duration),
        Err(remedy) => Err(remedy.into_owned()),
    }
}

pub(super) fn run(arguments: &Arguments) -> ExitCode {
    code(execute(arguments))
}

fn execute(arguments: &Arguments) -> Result<bool, Failure> {
    let network = analysis::read(&arguments.file)?;
    let paths = chosen(&network, &arguments.flow)?;
    let bounds = analyze(&network);
    let bound = |(flow, path): (usize, usize)| bounds.flows[flow][path].best;
    let (seed, runs) = (arguments.seed, arguments.runs);
    let (seen, story): (Vec<Seen>, String) = if let Some(file) = &arguments.replay {
        run::replay(&network, &paths, &Input::read(file)?)?
    } else if arguments.exhaustive {
        let largest = paths.iter().filter_map(|path| bound(*path)).max();
        let periods = network.flows.iter().map(|flow| flow.period);
        let span = arguments
            .span
            .map_or_else(|| largest.or(periods.max()).unwrap_or(1), nanos);
        let step = arguments.step.map_or((span / 16).max(1), nanos);
        run::exhaustive(&network, &paths, span, step, arguments.messages)?
    } else if arguments.search {
        run::search(&network, &paths, seed, runs.unwrap_or(2000))
    } else {
        run::random(
            &network,
            &paths,
            seed,
            runs.unwrap_or(100),
            nanos(arguments.duration),
            arguments.histogram,
        )
    };
    let rows = paths.iter().zip(seen).map(|((flow, path), seen)| Row {
        flow: network.flows[*flow].id.clone(),
        path: *path,
        route: route(
            &network,
            &network.flows[*flow],
            network.flows[*flow].leaves[*path],
        ),
        priority: network.flows[*flow].priority,
        deadline: network.flows[*flow].deadline,
        bound: bound((*flow, *path)),
        seen,
    });
    let report = Report {
        rows: rows.collect(),
        story,
    };
    match arguments.format {
        Format::Table => print(&report.text())?,
        Format::Csv => print(&report.csv())?,
        Format::Json => print_json(&report.json(arguments.scenarios))?,
    }
    Ok(!report.is_refuted())
}

/// Flows and paths by index, all or those of the named flows.
fn chosen(network: &Network, names: &[String]) -> Result<Vec<(usize, usize)>, Failure> {
    for name in names {
        if !network.flows.iter().any(|flow| flow.id == *name) {
            return Err(format!("--flow {name}: the network has no such flow").into());
        }
    }
    let flows = network.flows.iter().enumerate();
    let flows = flows.filter(|(_, flow)| names.is_empty() || names.contains(&flow.id));
    Ok(flows
        .flat_map(|(index, flow)| (0..flow.leaves.len()).map(move |path| (index, path)))
        .collect())
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
