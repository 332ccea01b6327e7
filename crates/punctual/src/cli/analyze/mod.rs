//! `punctual analyze`: worst-case response times of the flows of a network.
//!
//! Exit codes: 0 every deadline is kept, 1 one may be missed, 2 there is no
//! answer, for the input is wrong or a file cannot be read or written. With
//! `--wcrt` (the contract for machines) an answer is 0, whatever it says.

mod load;
mod method;
mod observed;
mod page;
pub(super) mod study;
pub(super) mod table;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use punctual_analysis::contract;
use punctual_model::network::Network;
use punctual_report::document;
use serde::Serialize;

use self::method::Method;
use self::observed::Observed;
use self::study::Study;
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
    /// Write the pictures (bounds, slack, loads, map) to an SVG file.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Read a network as JSON from standard input and write the bounds as JSON
    /// to standard output. The exit code is 0 if there is an answer, whatever
    /// it says, and 2 if the input is wrong.
    #[arg(long, conflicts_with_all = ["file", "method", "format", "observed", "plot"])]
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
    /// A page with pictures that needs nothing else.
    Html,
}

pub(super) fn run(arguments: &Arguments) -> ExitCode {
    code(execute(arguments))
}

fn execute(arguments: &Arguments) -> Result<bool, Failure> {
    let Some(file) = &arguments.file else {
        print_json(&contract::analyze_json(&input::stdin()?)?)?;
        return Ok(true);
    };
    let network = read(file)?;
    let observed = match &arguments.observed {
        Some(file) => Some(Observed::read(&Input::read(file)?)?),
        None => None,
    };
    let study = Study::new(network, &arguments.method, observed.as_ref());
    match arguments.format {
        Format::Table => print(&table::text(&study))?,
        Format::Csv => print(&table::csv(&study))?,
        Format::Json => print_json(&table::json(&study))?,
        Format::Html => print(&page::html(&study, &title(file)))?,
    }
    if let Some(file) = &arguments.plot {
        write(file, &document(&page::pictures(&study)))?;
    }
    Ok(study.is_schedulable())
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
