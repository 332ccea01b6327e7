//! `punctual admit`: which changes of a network's flows keep every deadline.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use punctual_analysis::contract::{self, Decisions};
use serde_json::Value;

use super::analyze::{code, print_json};
use super::input::{self, Input};
use super::{Failure, print};

/// Arguments of `punctual admit`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// A network with admitted flows and a list of changes, JSON or TOML: {
    /// "network": {..}, "ops": [{"op": "add", "flow": {..}}, {"op": "remove",
    /// "id": ".."}] }; - is standard input. The exit code is 0 if every change
    /// is accepted, 1 if one is refused, and 2 if the input is wrong.
    #[arg(required_unless_present = "wcrt")]
    file: Option<PathBuf>,
    /// Read JSON from standard input and write JSON to standard output. The
    /// exit code is 0 if there is an answer, whatever it says, and 2 if the
    /// input is wrong.
    #[arg(long, conflicts_with = "file")]
    wcrt: bool,
}

pub(super) fn run(arguments: &Arguments) -> ExitCode {
    code(execute(arguments))
}

/// True if every change was made, or if the answer is for a machine.
fn execute(arguments: &Arguments) -> Result<bool, Failure> {
    let Some(file) = &arguments.file else {
        print_json(&contract::admit_json(&input::stdin()?)?)?;
        return Ok(true);
    };
    let input = Input::read(file)?;
    let value = input.value()?;
    let decisions =
        contract::admit_json(&value.to_string()).map_err(|error| input.blame(&error))?;
    print(&text(&value, &decisions))?;
    Ok(decisions.decisions.iter().all(|decision| decision.accepted))
}

/// One line for each change, and what is admitted in the end.
fn text(value: &Value, decisions: &Decisions) -> String {
    let none = Vec::new();
    let changes = value["ops"].as_array().unwrap_or(&none);
    let lines = changes.iter().zip(&decisions.decisions);
    let mut text: String = lines
        .map(|(change, decision)| {
            let (name, id) = match change["op"].as_str() {
                Some("add") => ("add", &change["flow"]["id"]),
                _ => ("remove", &change["id"]),
            };
            let answer = if decision.accepted {
                "accepted"
            } else {
                "refused"
            };
            format!(
                "{answer:8}  {name:6}  {}\n",
                id.as_str().unwrap_or_default()
            )
        })
        .collect();
    let mut flows: Vec<_> = decisions.results.iter().map(|row| &row.flow).collect();
    flows.dedup();
    let late = decisions.results.iter().filter(|row| !row.schedulable);
    text.push_str(&match late.count() {
        0 => format!("{} flows keep their deadlines\n", flows.len()),
        count => format!(
            "{count} of {} bounds are above their deadlines: the network was so before\n",
            decisions.results.len()
        ),
    });
    text
}
