//! `punctual analyze`: worst-case response times of the flows of a network.
//!
//! Exit codes: 0 every deadline is kept, 1 one may be missed, 2 there is no
//! answer, for the input is wrong or a file cannot be read or written. With
//! `--wcrt` (the contract for machines) an answer is 0, whatever it says.

use std::process::ExitCode;

use clap::Args;
use punctual_analysis::contract;
use serde::Serialize;

use super::{Failure, complain, input, print};

/// Arguments of `punctual analyze`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Read a network as JSON from standard input and write the bounds as JSON
    /// to standard output. The exit code is 0 if there is an answer, whatever
    /// it says, and 2 if the input is wrong.
    #[arg(long, required = true)]
    wcrt: bool,
}

pub(super) fn run(arguments: &Arguments) -> ExitCode {
    code(execute(arguments))
}

fn execute(Arguments { wcrt: _ }: &Arguments) -> Result<bool, Failure> {
    let report = contract::analyze_json(&input::stdin()?)?;
    print_json(&report)?;
    Ok(true)
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
