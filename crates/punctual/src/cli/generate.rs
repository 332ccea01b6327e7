//! Shell completions and manual pages, made from the command line's declaration.

use std::fs;
use std::path::PathBuf;

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use super::{Cli, Failure, print};

/// Arguments of `punctual completions`.
#[derive(Debug, Args)]
pub(super) struct Completions {
    /// The shell. With bash: punctual completions bash > /etc/bash_completion.d/punctual
    shell: Shell,
}

/// Arguments of `punctual man`.
#[derive(Debug, Args)]
pub(super) struct Man {
    /// The directory, for example /usr/local/share/man/man1. It is made where it
    /// does not exist.
    directory: PathBuf,
}

pub(super) fn completions(arguments: &Completions) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(
        arguments.shell,
        &mut Cli::command(),
        "punctual",
        &mut script,
    );
    print(&String::from_utf8(script)?)
}

pub(super) fn man(arguments: &Man) -> Result<(), Failure> {
    let directory = &arguments.directory;
    fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), directory))
        .map_err(|error| {
            let place = directory.display();
            format!("manual pages cannot be written to {place}: {error}").into()
        })
}
