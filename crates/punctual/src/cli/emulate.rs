//! `punctual emulate`: a network file as a network.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use punctual_bench::EmulateArgs;

use super::input::Input;
use super::{Failure, complain};

/// Options of `emulate`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The network (JSON or TOML, as for `analyze`); - reads standard input
    #[arg(value_name = "NETWORK")]
    file: PathBuf,
    #[command(flatten)]
    options: EmulateArgs,
}

/// Exit code if the network was emulated and a bound was not kept.
const NOT_KEPT: u8 = 1;
/// Exit code if it was not emulated.
const FAILED: u8 = 2;

/// Emulates the network.
pub(super) fn run(arguments: &Arguments) -> ExitCode {
    match emulate(arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => NOT_KEPT.into(),
        Err(error) => {
            complain(&format_args!("punctual: {error}"));
            FAILED.into()
        }
    }
}

fn emulate(arguments: &Arguments) -> Result<bool, Failure> {
    let input = Input::read(&arguments.file)?;
    let name = arguments.file.file_stem().map_or_else(
        || input.place().to_owned(),
        |stem| stem.to_string_lossy().into_owned(),
    );
    let document = input.document()?;
    let out = &mut io::stdout().lock();
    Ok(arguments.options.run(&name, &document, true, out)?)
}
