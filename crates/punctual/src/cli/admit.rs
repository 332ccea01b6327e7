//! `punctual admit`: which changes of a network's flows keep every deadline.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use punctual_analysis::contract::{self, Report};
use punctual_analysis::{Admission, analyze};
use punctual_model::network::{Document, Network, NetworkError};
use serde_json::Value;

use super::analyze::what_if::{Decision, decide};
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
        print_json(&input::read_stdin(contract::admit_json)?)?;
        return Ok(true);
    };
    let input = Input::read(file)?;
    let mut value = input.value()?;
    let mut take = |key: &str| value.get_mut(key).map(Value::take);
    let missing = |key| NetworkError::new(key, "is missing; an object has network and ops");
    let network = take("network").ok_or_else(|| input.blame(&missing("network")))?;
    let ops = take("ops").ok_or_else(|| input.blame(&missing("ops")))?;
    let network = Document::from_json_value(network).and_then(|document| Network::new(&document));
    let mut admission = Admission::new(network.map_err(|error| input.blame(&error))?);
    let decisions = decide(&mut admission, ops, &input)?;
    print(&text(&decisions, admission.network()))?;
    Ok(decisions.iter().all(Decision::is_accepted))
}

/// One line for each change, and what is admitted in the end.
fn text(decisions: &[Decision], network: &Network) -> String {
    let mut text: String = decisions.iter().map(Decision::text).collect();
    let rows = Report::new(network, &analyze(network)).results;
    let flows = network.flows.len();
    text.push_str(&match rows.iter().filter(|row| !row.schedulable).count() {
        0 => format!("{flows} flows keep their deadlines\n"),
        late => format!(
            "{late} of {} bounds are above their deadlines\n",
            rows.len()
        ),
    });
    text
}
