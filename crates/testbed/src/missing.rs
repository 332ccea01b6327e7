//! What a test needs and may not have.

use std::fmt;
use std::path::PathBuf;

/// For tests that end here because of `why`: says so.
///
/// # Panics
/// If the environment has the variable `require`, which is set where everything is installed.
pub fn skip(require: &str, why: impl fmt::Display) {
    assert!(
        std::env::var_os(require).is_none(),
        "{require} is set, but {why}"
    );
    eprintln!("skipped: {why}");
}

/// Where a program is: in `PATH`, or where Debian has servers.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain([PathBuf::from("/usr/sbin")])
        .map(|directory| directory.join(name))
        .find(|candidate| candidate.is_file())
}
