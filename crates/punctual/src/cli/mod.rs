//! The command line: what can be typed, and where it leads.

mod access;
mod admit;
mod analyze;
mod calibrate;
mod config;
mod controller;
mod generate;
mod input;
mod laboratory;
mod manager;
mod mesh;
mod passwd;
mod pubsub;
mod serve;
mod sidecar;
mod simulate;
mod store;
mod top;

use std::error::Error;
use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use punctual_server::escape::{visible_lines, visible_text};
use punctual_server::panics;

/// Why a command failed, in words for its user.
pub(crate) type Failure = Box<dyn Error + Send + Sync>;

/// MQTT that keeps its deadlines.
#[derive(Debug, Parser)]
#[command(name = "punctual", version, max_term_width = 100)]
#[command(subcommand_required = true, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the broker. Works without any argument.
    Serve(serve::Arguments),
    /// Publish messages, with the flags of mosquitto_pub.
    Pub(Box<pubsub::PubArguments>),
    /// Subscribe to topics and print messages, with the flags of mosquitto_sub.
    Sub(Box<pubsub::SubArguments>),
    /// Give priorities, deadlines and UDP to MQTT clients that cannot be
    /// changed.
    Sidecar(sidecar::Arguments),
    /// Promise deadlines before another broker: a transparent proxy.
    Manager(Box<manager::Arguments>),
    /// Add, change and remove users in a password file.
    Passwd(passwd::Arguments),
    /// Look into the directory in which a broker keeps what must survive it.
    #[command(subcommand)]
    Store(store::Command),
    /// Bound the worst-case response times of the flows of a network.
    Analyze(analyze::Arguments),
    /// Answer whether flows can be added to a network so that all keep their
    /// deadlines.
    Admit(admit::Arguments),
    /// Simulate a network, and look for its worst responses.
    Simulate(simulate::Arguments),
    /// Build a network on this machine (Linux, root), with broker and clients,
    /// and compare its delays with the bounds. Takes `punctual-bench`.
    Emulate(laboratory::Arguments),
    /// Control a network of OpenFlow switches: find ways for requested flows,
    /// promise deadlines, reserve.
    Controller(Box<controller::Arguments>),
    /// Look at and change the mesh of a running broker.
    #[command(subcommand)]
    Mesh(mesh::Command),
    /// Measure what the broker costs on this machine, for the analysis of a
    /// network.
    Calibrate(calibrate::Arguments),
    /// Watch a running broker.
    Top(top::Arguments),
    /// Measure brokers, and repeat the experiments of the papers. Takes
    /// `punctual-bench`.
    Bench(laboratory::Arguments),
    /// Check, print and import configurations.
    #[command(subcommand)]
    Config(config::Command),
    /// Print the completions for a shell.
    Completions(generate::Completions),
    /// Write the manual pages into a directory.
    Man(generate::Man),
}

impl Command {
    /// Whether it runs until it is told to stop, for others.
    fn serves(&self) -> bool {
        match self {
            Self::Serve(_) | Self::Sidecar(_) | Self::Manager(_) => true,
            Self::Controller(arguments) => arguments.serves(),
            _ => false,
        }
    }
}

/// Runs the command that was typed.
pub(crate) fn run() -> ExitCode {
    let command = Cli::parse().command;
    if command.serves() {
        panics::abort();
    }
    let result = match command {
        Command::Serve(arguments) => serve::run(arguments),
        Command::Pub(arguments) => return pubsub::publish(&arguments),
        Command::Sub(arguments) => return pubsub::subscribe(&arguments),
        Command::Sidecar(arguments) => sidecar::run(&arguments),
        Command::Manager(arguments) => manager::run(*arguments),
        Command::Passwd(arguments) => passwd::run(&arguments),
        Command::Store(command) => store::run(command),
        Command::Analyze(arguments) => return analyze::run(&arguments),
        Command::Admit(arguments) => return admit::run(&arguments),
        Command::Simulate(arguments) => return simulate::run(&arguments),
        Command::Emulate(arguments) => return laboratory::run(&["emulate"], &arguments),
        Command::Controller(arguments) => controller::run(*arguments),
        Command::Mesh(command) => mesh::run(&command),
        Command::Calibrate(arguments) => calibrate::run(&arguments),
        Command::Config(command) => config::run(command),
        Command::Top(arguments) => top::run(&arguments),
        Command::Bench(arguments) => return laboratory::run(&[], &arguments),
        Command::Completions(arguments) => generate::completions(&arguments),
        Command::Man(arguments) => generate::man(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format_args!("punctual: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// What can be typed.
#[cfg(test)]
pub(crate) fn command() -> clap::Command {
    use clap::CommandFactory as _;
    Cli::command()
}

/// Prints to standard output, on a terminal without what would command it: names that clients and
/// neighbours have chosen may be in it. A reader that has gone (`| head`) is no failure.
fn print(text: &str) -> Result<(), Failure> {
    match io::stdout().is_terminal() {
        true => write(&visible_text(text)),
        false => write(text),
    }
}

/// Writes to standard output what may command a terminal.
fn write(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(format!("standard output cannot be written: {error}").into())
        }
        _ => Ok(()),
    }
}

/// Prints a line to standard error, where it can be. Words of brokers and clients may be in it.
fn complain(text: &dyn Display) {
    let text = text.to_string();
    let _ = writeln!(io::stderr().lock(), "{}", visible_lines(&text));
}
