//! The `punctual` command: an MQTT broker and the tools around it.
//!
//! Exit codes: 0 done, 1 it failed (standard error says why), 2 the command
//! line is wrong. `pub` and `sub` have the codes of mosquitto's tools beside
//! these (docs/pub-sub.md); `analyze` and `admit` answer no with 1 and refuse
//! wrong input with 2.
#![forbid(unsafe_code)]

mod cli;
#[cfg(test)]
mod names;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run()
}
