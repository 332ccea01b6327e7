//! `punctual config`: check, print and import configurations.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use punctual_server::config::{self, Config};

use super::{Failure, complain, print, serve};

/// Commands of `punctual config`.
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Check a configuration file and the files that it names. Prints every
    /// mistake and exits with code 1 if there is one.
    Check(File),
    /// Print the configuration with every key, its default and what it means.
    Default(Default),
    /// Translate a mosquitto.conf to TOML, on standard output. Lines that have
    /// no counterpart are listed with the reason on standard error, and at the
    /// end of the output. Exits with code 1 if one of them keeps clients out, or
    /// from topics.
    Import(Mosquitto),
    /// Print the values that are in force with a file and the environment.
    Show(OptionalFile),
}

/// A configuration file.
#[derive(Debug, Args)]
pub(super) struct File {
    /// The configuration file (TOML).
    file: PathBuf,
}

/// A configuration file, or none.
#[derive(Debug, Args)]
pub(super) struct OptionalFile {
    /// The configuration file (TOML) [default: none].
    file: Option<PathBuf>,
}

/// Mosquitto's configuration.
#[derive(Debug, Args)]
pub(super) struct Mosquitto {
    /// The file, for example /etc/mosquitto/mosquitto.conf. Its include_dir is
    /// read too.
    file: PathBuf,
}

/// How to print the defaults.
#[derive(Debug, Args)]
pub(super) struct Default {
    /// Print the reference as Markdown instead of a file to start from.
    #[arg(long)]
    markdown: bool,
}

pub(super) fn run(command: Command) -> Result<(), Failure> {
    let none = config::Arguments::default();
    match command {
        Command::Check(File { file }) => {
            let config = Config::load(Some(&file), serve::variables(), &none)?;
            for warning in config::check_files(&config)? {
                complain(&format_args!("warning: {warning}"));
            }
            print(&format!("{} is correct\n", file.display()))
        }
        Command::Default(Default { markdown: true }) => print(&config::markdown()),
        Command::Default(Default { markdown: false }) => print(&config::toml()),
        Command::Import(Mosquitto { file }) => {
            let imported = config::import(&file)?;
            for note in &imported.notes {
                complain(note);
            }
            print(&imported.toml)?;
            let lost = imported.notes.iter().filter(|it| it.is_lost_protection());
            let lost: Vec<String> = lost.map(|note| format!("\n  {note}")).collect();
            match lost.is_empty() {
                true => Ok(()),
                false => Err(format!(
                    "what keeps clients out, or from topics, was not taken over:{}\n\
                     replace it before you use the output",
                    lost.concat()
                )
                .into()),
            }
        }
        Command::Show(OptionalFile { file }) => {
            let config = Config::load(file.as_deref(), serve::variables(), &none)?;
            let lines = config.values().into_iter();
            let text: String = lines
                .map(|(key, value)| format!("{key} = {value}\n"))
                .collect();
            print(&text)
        }
    }
}
