//! The seeds of a fuzz target, for its replay by a test of the crate that it is about.

use std::fs;
use std::path::Path;

/// Names and contents, in the order of the names.
pub(super) fn seeds(target: &str) -> Vec<(String, Vec<u8>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/seeds")
        .join(target);
    let mut seeds: Vec<_> = fs::read_dir(&directory)
        .unwrap_or_else(|error| panic!("{}: {error}", directory.display()))
        .map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (name, fs::read(path).unwrap())
        })
        .collect();
    assert!(!seeds.is_empty(), "no seeds in {}", directory.display());
    seeds.sort();
    seeds
}
