//! `punctual emulate`: a network file as a network.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use punctual_bench::EmulateArgs;
use punctual_model::network::Document;
use punctual_sim::network::families::{self, Load};

use super::input::Input;
use super::{Failure, complain};

/// Options of `emulate`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The network (JSON or TOML, as for `analyze`); - reads standard input. With --load fig2 or
    /// fig15, a network of the papers
    #[arg(value_name = "NETWORK")]
    file: PathBuf,
    /// How many publishers of a paper's network are at work
    #[arg(long, value_name = "LOAD")]
    load: Option<LoadName>,
    #[command(flatten)]
    options: EmulateArgs,
}

/// [`Load`] on the command line.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum LoadName {
    Low,
    Medium,
    High,
}

impl From<LoadName> for Load {
    fn from(name: LoadName) -> Self {
        match name {
            LoadName::Low => Self::Low,
            LoadName::Medium => Self::Medium,
            LoadName::High => Self::High,
        }
    }
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
    let (name, document) = match arguments.load {
        Some(load) => paper(&arguments.file, load.into())?,
        None => {
            let input = Input::read(&arguments.file)?;
            let stem = arguments.file.file_stem();
            let name = stem.map_or_else(
                || input.place().to_owned(),
                |stem| stem.to_string_lossy().into_owned(),
            );
            (name, input.document()?)
        }
    };
    let out = &mut io::stdout().lock();
    Ok(arguments.options.run(&name, &document, true, out)?)
}

/// A network of the papers.
fn paper(name: &Path, load: Load) -> Result<(String, Document), Failure> {
    let document = match name.to_str() {
        Some("fig2") => families::fig2(load),
        Some("fig15") => families::fig15(load, false),
        _ => {
            let name = name.display();
            return Err(format!("--load: {name} has none; it is for fig2 and fig15").into());
        }
    };
    Ok((format!("{}-{}", name.display(), load.name()), document))
}
