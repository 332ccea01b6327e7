//! The command line of the real binary, without clients: `config`, `passwd`,
//! `completions`, `man`, reloading, and what is said about wrong input.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may panic; clippy knows only the tests themselves"
)]

mod analyze;
mod config;
mod controller;
mod killed;
mod laboratory;
mod passwd;
mod plan;
mod reload;
mod simulate;
mod store;
mod wcrt;
mod what_if;

use std::ffi::OsStr;
use std::fs;
use std::process::Command;

use punctual_testbed::{Run, plain_command};
use tempfile::tempdir;

fn command<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Command {
    let mut command = plain_command(env!("CARGO_BIN_EXE_punctual"));
    command.args(arguments);
    command
}

/// Runs the binary with nothing on standard input.
fn run<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Run {
    Run::of(&mut command(arguments))
}

/// Runs the binary with `input` on standard input.
fn run_with<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>, input: &str) -> Run {
    Run::with_input(&mut command(arguments), input)
}

#[test]
fn a_wrong_command_line_exits_with_2_and_help_with_0() {
    run(["serv"]).fails(2, &["serve"]);
    run([""; 0]).fails(2, &["Usage: punctual", "config"]);
    run(["serve", "--listen", "1883"]).fails(2, &["tcp://1883"]);
    run(["serve", "--listen", "sctp://*:1883"]).fails(2, &["tcp, tls, ws, wss, udp and quic"]);
    run(["serve", "--http", "8080"]).fails(2, &["127.0.0.1:8080"]);
    run(["serve", "--shards", "many"]).fails(2, &["auto"]);
    run(["serve", "--log-level", "loud"]).fails(2, &["debug"]);
    run(["serve", "--certificate", "c"]).fails(2, &["--listen"]);
    assert!(
        run(["--help"])
            .ok()
            .contains("MQTT that keeps its deadlines")
    );
    assert!(run(["serve", "--help"]).ok().contains("--realtime"));
    assert!(run(["--version"]).ok().starts_with("punctual "));
}

#[test]
fn serve_does_not_start_with_a_wrong_configuration() {
    run(["serve", "--shards", "0"]).fails(1, &["--shards: server.shards = 0", "from 1 to 256"]);
    run(["serve", "--listen", "tls://127.0.0.1:0"]).fails(1, &["--listen", "--certificate"]);
    run(["serve", "--config", "/no/such.toml"]).fails(1, &["/no/such.toml"]);
    let mut serve = command(["serve"]);
    serve.env("PUNCTUAL__LIMITS__MAX_SESIONS", "1");
    Run::of(&mut serve).fails(1, &["did you mean limits.max_sessions?"]);
}

#[test]
fn completions_are_printed_for_each_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(
            run(["completions", shell]).ok().contains("punctual"),
            "{shell}"
        );
    }
    run(["completions", "tcsh"]).fails(2, &["bash"]);
}

#[test]
fn manual_pages_are_written_for_each_command() {
    let directory = tempdir().unwrap();
    let man = directory.path().join("man1");
    run(["man".as_ref(), man.as_os_str()]).ok();
    for page in ["punctual", "punctual-serve", "punctual-config-check"] {
        let text = fs::read_to_string(man.join(format!("{page}.1"))).unwrap();
        assert!(text.contains(".SH SYNOPSIS"), "{page}");
    }
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    run(["man".as_ref(), file.as_os_str()]).fails(1, &["cannot be written"]);
}
