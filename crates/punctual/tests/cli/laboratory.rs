//! `punctual bench` and `punctual emulate` start a program of its own, or say how to get it.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use punctual_testbed::{Run, plain_command};
use tempfile::tempdir;

/// A copy of the binary in a directory of its own, where `punctual-bench` is not.
#[test]
fn without_the_laboratory_the_remedy_is_told() {
    let directory = tempdir().unwrap();
    let program = directory.path().join("punctual");
    fs::copy(env!("CARGO_BIN_EXE_punctual"), &program).unwrap();
    for words in [["bench", "load"], ["emulate", "--help"]] {
        let mut command = plain_command(program.to_str().unwrap());
        command.args(words).env("PATH", directory.path());
        Run::of(&mut command).fails(127, &["punctual-bench is not installed", "cargo build"]);
    }
}

/// The program in PATH gets the arguments as they were typed, and the broker to measure.
#[test]
fn the_laboratory_in_path_gets_all_arguments() {
    let [directory, path] = [(); 2].map(|()| tempdir().unwrap());
    let program = directory.path().join("punctual");
    fs::copy(env!("CARGO_BIN_EXE_punctual"), &program).unwrap();
    let laboratory = path.path().join("punctual-bench");
    fs::write(
        &laboratory,
        "#!/bin/sh\necho \"$PUNCTUAL_BIN $*\"; exit 3\n",
    )
    .unwrap();
    fs::set_permissions(&laboratory, fs::Permissions::from_mode(0o755)).unwrap();
    let broker = program.display();
    for (typed, told) in [
        (&["bench", "load", "1-1", "--help"][..], "load 1-1 --help"),
        (&["emulate", "-d", "3", "-"], "emulate -d 3 -"),
    ] {
        let mut command = plain_command(program.to_str().unwrap());
        command.args(typed).env("PATH", path.path());
        let run = Run::of(&mut command);
        assert_eq!((run.code, run.err.as_str()), (Some(3), ""));
        assert_eq!(run.out, format!("{broker} {told}\n"));
    }
}
