//! The command line of the real binary, with the broker that was built beside it: `cargo test
//! --workspace` does so; before `cargo test -p punctual-bench` run `cargo build -p punctual`.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may panic; clippy knows only the tests themselves"
)]

mod cell;
mod durability;
mod emulate;
mod federation;
mod mrt;
mod neighbours;
mod priomqtt;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use punctual_testbed::{Run, plain_command};

const PROGRAM: &str = env!("CARGO_BIN_EXE_punctual-bench");

/// The broker beside `punctual-bench`.
fn broker() -> PathBuf {
    let broker = Path::new(PROGRAM).with_file_name("punctual");
    assert!(
        broker.is_file(),
        "{} is missing: run `cargo build -p punctual` first",
        broker.display()
    );
    broker
}

/// `punctual-bench`, which finds the broker beside it.
fn command<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Command {
    broker();
    let mut command = plain_command(PROGRAM);
    command.args(arguments);
    command
}

/// Runs the binary with nothing on standard input.
fn run<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Run {
    Run::of(&mut command(arguments))
}

#[test]
fn a_wrong_command_line_exits_with_2_and_help_with_0() {
    run(["lode"]).fails(2, &["load"]);
    run(["emulate", "/no/such.toml"]).fails(2, &["/no/such.toml cannot be read"]);
    run(["emulate", "fig3", "--load", "low"]).fails(2, &["--load = fig3", "fig2 and fig15"]);
    run(["load", "1-1", "--payload", "1"]).fails(1, &["--payload = 1"]);
    run(["neighbours", "--only", "all"]).fails(1, &["--only = all", "million"]);
    run(["neighbours", "--units", "--realtime"]).fails(2, &["--realtime"]);
    run(["scale", "--only", "all"]).fails(1, &["--only = all", "shared-1000"]);
    run(["scale", "--sizes", "10^9"]).fails(2, &["such as 1000 or 10^3"]);
    run(["scale", "--patience", "1"]).fails(1, &["--patience = 1"]);
    assert!(run(["--help"]).ok().contains("PUNCTUAL_BIN"));
    assert!(run(["--version"]).ok().starts_with("punctual-bench "));
}
