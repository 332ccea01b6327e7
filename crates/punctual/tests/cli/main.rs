//! The command line of the real binary, without clients: `config`, `passwd`,
//! `completions`, `man`, reloading, and what is said about wrong input.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may panic; clippy knows only the tests themselves"
)]

mod analyze;
mod config;
mod controller;
mod durability;
mod emulate;
mod federation;
mod killed;
mod passwd;
mod plan;
mod priomqtt;
mod reload;
mod simulate;
mod store;
mod wcrt;
mod what_if;

use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use tempfile::tempdir;

/// What a run of the binary left.
struct Run {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Run {
    /// Fails the test unless the binary succeeded in silence on standard error.
    #[track_caller]
    fn ok(self) -> String {
        assert_eq!(
            (self.code, self.err.as_str()),
            (Some(0), ""),
            "{}",
            self.out
        );
        self.out
    }

    /// Fails the test unless the binary failed with `code` and said `words`.
    #[track_caller]
    fn fails(self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{}{}", self.out, self.err);
        assert_eq!(self.out, "");
        for word in words {
            assert!(self.err.contains(word), "{word:?} is not in: {}", self.err);
        }
        assert!(!self.err.contains("panicked"), "{}", self.err);
    }
}

fn command<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_punctual"));
    command.args(arguments);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("PUNCTUAL") {
            command.env_remove(name);
        }
    }
    command
}

fn finish(output: Output) -> Run {
    Run {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Runs the binary with nothing on standard input.
fn run<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Run {
    finish(command(arguments).stdin(Stdio::null()).output().unwrap())
}

/// Runs the binary with `input` on standard input.
fn run_with<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>, input: &str) -> Run {
    let mut child = command(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // The binary may be done before it reads; the pipe is broken then.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    finish(child.wait_with_output().unwrap())
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
    let output = command(["serve"])
        .env("PUNCTUAL__LIMITS__MAX_SESIONS", "1")
        .output();
    finish(output.unwrap()).fails(1, &["did you mean limits.max_sessions?"]);
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
