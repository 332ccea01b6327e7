//! `punctual analyze`: worst-case response times of the flows of a network.
//!
//! Exit codes: 0 every deadline is kept, 1 one may be missed, 2 there is no
//! answer, for the input is wrong or a file cannot be read or written. With
//! `--wcrt` (the contract for machines) an answer is 0, whatever it says.

mod explain;
mod load;
mod method;
mod observed;
mod page;
mod plan;
pub(super) mod study;
mod sweep;
pub(super) mod table;
pub(super) mod what_if;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use punctual_analysis::contract;
use punctual_model::network::Network;
use punctual_report::document;
use serde::Serialize;

use self::explain::Explained;
use self::method::Method;
use self::observed::Observed;
use self::plan::{Outcome, Plan, Planned};
use self::study::Study;
use self::sweep::{Sweep, Swept};
use self::what_if::{Change, Decision, WhatIf};
use super::input::{self, Input};
use super::{Failure, complain, print};

/// Arguments of `punctual analyze`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The network, JSON or TOML; - is standard input. The exit code is 0 if
    /// every deadline is kept, 1 if one may be missed, and 2 if the input is
    /// wrong.
    #[arg(required_unless_present = "wcrt")]
    file: Option<PathBuf>,
    /// Show what these methods say. The verdict rests on the tightest that is safe.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "METHOD")]
    #[arg(default_values_t = Method::USUAL)]
    method: Vec<Method>,
    /// How to print.
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    /// Responses that were seen, to stand beside the bounds: JSON or CSV with
    /// flow, path and observed_ns.
    #[arg(long, value_name = "FILE")]
    observed: Option<PathBuf>,
    /// Show what the bounds of this flow are made of.
    #[arg(long, value_name = "FLOW", conflicts_with_all = ["sweep", "what_if", "plot", "observed"])]
    explain: Option<String>,
    /// Answer for these changes, one after the other, and show the bounds that
    /// change: add=FILE (a flow or several, all or none), remove=ID, or a FILE
    /// with a list of changes as for admit.
    #[arg(long, value_name = "CHANGE", conflicts_with = "sweep")]
    what_if: Vec<Change>,
    /// Repeat the analysis while this changes, on all cores, and show how many
    /// deadlines are kept.
    #[arg(long, value_enum)]
    sweep: Option<Sweep>,
    /// First and last value of the sweep: percent, or a number of flows
    /// [default: 10 200, or 1 and all flows].
    #[arg(long, num_args = 2, value_names = ["FROM", "TO"], requires = "sweep")]
    range: Option<Vec<u64>>,
    /// Points of the sweep.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    steps: u64,
    #[command(flatten)]
    plan: Plan,
    /// Write the charts (bounds, slack, loads, map) to an SVG file.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Read a network as JSON from standard input and write the bounds as JSON
    /// to standard output. The exit code is 0 if there is an answer, whatever
    /// it says, and 2 if the input is wrong.
    #[arg(long, conflicts_with_all = ["file", "method", "format", "observed", "plot", "what_if", "sweep", "explain", "Plan"])]
    wcrt: bool,
}

/// How to print a study.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Columns, for people.
    Table,
    /// JSON.
    Json,
    /// Comma-separated values.
    Csv,
    /// A page with charts that needs nothing else.
    Html,
}

pub(super) fn run(arguments: &Arguments) -> ExitCode {
    code(execute(arguments))
}

fn execute(arguments: &Arguments) -> Result<bool, Failure> {
    let Some(file) = &arguments.file else {
        print_json(&input::read_stdin(contract::analyze_json)?)?;
        return Ok(true);
    };
    let Planned { network, remarks } = match arguments.plan.read(file)? {
        Outcome::Planned(planned) => planned,
        Outcome::Impossible(why) => {
            complain(&format_args!("punctual: {why}"));
            return Ok(false);
        }
    };
    if let Some(sweep) = arguments.sweep {
        return swept(arguments, sweep, &network);
    }
    if let Some(flow) = &arguments.explain {
        return explained(arguments, flow, &network);
    }
    let what_if = match arguments.what_if.as_slice() {
        [] => None,
        changes => Some(WhatIf::new(network.clone(), changes)?),
    };
    let network = what_if
        .as_ref()
        .map_or(network, |what_if| what_if.after.clone());
    let observed = match &arguments.observed {
        Some(file) => Some(Observed::read(&Input::read(file)?)?),
        None => None,
    };
    let mut study = Study::new(network, &arguments.method, observed.as_ref());
    study.planned = remarks;
    match (arguments.format, &what_if) {
        (Format::Table, None) => print(&table::text(&study))?,
        (Format::Table, Some(what_if)) => print(&what_if.text(&study))?,
        (Format::Json, None) => print_json(&table::json(&study))?,
        (Format::Json, Some(what_if)) => print_json(&what_if.extend(table::json(&study)))?,
        (Format::Csv, _) => print(&table::csv(&study))?,
        (Format::Html, _) => print(&page::html(&study, &title(file)))?,
    }
    if let Some(file) = &arguments.plot {
        write(file, &document(&page::charts(&study)))?;
    }
    let mut decisions = what_if.iter().flat_map(|what_if| &what_if.decisions);
    Ok(study.is_schedulable() && decisions.all(Decision::is_accepted))
}

fn explained(arguments: &Arguments, flow: &str, network: &Network) -> Result<bool, Failure> {
    let explained = Explained::new(network, flow)?;
    match arguments.format {
        Format::Table => print(&explained.text())?,
        Format::Json => print_json(&explained.json())?,
        Format::Csv => print(&explained.csv())?,
        Format::Html => return Err("--format html: an explanation has none; use table".into()),
    }
    Ok(explained.is_schedulable())
}

fn swept(arguments: &Arguments, sweep: Sweep, network: &Network) -> Result<bool, Failure> {
    let range = match arguments.range.as_deref() {
        Some([from, to]) if from == &0 || from > to => {
            let problem = "the first must be at least 1 and not above the last";
            return Err(format!("--range {from} {to}: {problem}").into());
        }
        Some([from, to]) => (*from, *to),
        _ => sweep.range(network),
    };
    let swept = Swept::new(sweep, network, range, arguments.steps);
    match arguments.format {
        Format::Table => print(&swept.text())?,
        Format::Csv => print(&swept.csv())?,
        Format::Json => print_json(&swept.json())?,
        Format::Html => return Err("--format html: a sweep has none; use --plot".into()),
    }
    if let Some(file) = &arguments.plot {
        write(file, &document(&swept.charts()))?;
    }
    Ok(swept.is_schedulable())
}

/// The network that a file declares.
pub(super) fn read(file: &Path) -> Result<Network, Failure> {
    let input = Input::read(file)?;
    Network::new(&input.document()?).map_err(|error| input.blame(&error))
}

/// A file's name without its place and kind.
fn title(file: &Path) -> String {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    if stem == "-" {
        "a network".into()
    } else {
        stem.into_owned()
    }
}

fn write(file: &Path, text: &str) -> Result<(), Failure> {
    fs::write(file, text)
        .map_err(|error| format!("{} cannot be written: {error}", file.display()).into())
}

/// What an answer is as an exit code.
pub(super) fn code(answer: Result<bool, Failure>) -> ExitCode {
    match answer {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            complain(&format_args!("punctual: {error}"));
            ExitCode::from(2)
        }
    }
}

/// Prints a value as one line of JSON.
pub(super) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    print(&format!("{}\n", serde_json::to_string(value)?))
}
