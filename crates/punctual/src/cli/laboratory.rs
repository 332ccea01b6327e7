//! `punctual bench` and `punctual emulate`: they start `punctual-bench`, a program of its own, so
//! that a broker in use does not carry its laboratory.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::Args;

use super::complain;

/// The program that is started.
const PROGRAM: &str = "punctual-bench";
/// Names the broker that `punctual-bench` measures.
const BROKER_VARIABLE: &str = "PUNCTUAL_BIN";
/// Exit code where it cannot be started: that of a shell which does not find a command.
const NOT_FOUND: u8 = 127;

/// Everything behind the word belongs to `punctual-bench`.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub(super) struct Arguments {
    /// Options and arguments for `punctual-bench`; --help prints them
    #[arg(
        value_name = "ARGUMENTS",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    arguments: Vec<OsString>,
}

/// Becomes `punctual-bench` with `words` before the arguments. Returns only if that fails.
pub(super) fn run(words: &[&str], arguments: &Arguments) -> ExitCode {
    let own = env::current_exe().ok();
    let beside = own.as_deref().and_then(Path::parent);
    let Some(program) = find(beside, env::var_os("PATH").as_deref()) else {
        complain(&format_args!(
            "punctual: {PROGRAM} is not installed: it is neither beside this program nor in PATH. \
             Build it from punctual's sources with `cargo build --release --package {PROGRAM}`"
        ));
        return NOT_FOUND.into();
    };
    let mut command = Command::new(&program);
    command.args(words).args(&arguments.arguments);
    if let Some(own) = own.filter(|_| env::var_os(BROKER_VARIABLE).is_none()) {
        command.env(BROKER_VARIABLE, own);
    }
    let error = command.exec();
    let program = program.display();
    complain(&format_args!(
        "punctual: {program} cannot be started: {error}"
    ));
    NOT_FOUND.into()
}

/// Looks beside this program, then in the directories of `path`.
fn find(beside: Option<&Path>, path: Option<&OsStr>) -> Option<PathBuf> {
    let directories = path.into_iter().flat_map(env::split_paths);
    beside
        .map(Path::to_owned)
        .into_iter()
        .chain(directories)
        .map(|directory| directory.join(PROGRAM))
        .find(|candidate| candidate.is_file())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::tempdir;

    use super::*;

    #[test]
    fn the_program_beside_this_one_comes_before_those_in_path() {
        let [beside, first, second] = [(); 3].map(|()| tempdir().unwrap());
        let path = env::join_paths([first.path(), second.path()]).unwrap();
        let found = || find(Some(beside.path()), Some(&path));
        assert_eq!(found(), None);
        for directory in [&second, &first, &beside] {
            let program = directory.path().join(PROGRAM);
            fs::write(&program, "").unwrap();
            assert_eq!(found(), Some(program));
        }
        assert_eq!(find(None, None), None);
    }
}
