//! `punctual-bench`: comparison of MQTT brokers in one run, experiments of published papers, and
//! networks emulated in network namespaces with a real broker.
//!
//! The load generator and the floor (a reference forwarder) are in [`punctual_measure`]. Linux
//! only.

mod arguments;
mod blocking;
mod cli;
mod compare;
mod durability;
mod emulate;
mod federation;
mod link;
mod neighbours;
mod packets;
mod priomqtt;
mod process;
mod results_file;
mod scale;
mod sys;

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    cli::Cli::parse().run(&mut std::io::stdout().lock())
}
