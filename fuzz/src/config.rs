//! What must hold for any configuration file: the check of the fuzz target `config`, which
//! `crates/server/src/config/replay.rs` also runs over the seeds.

use std::cell::OnceCell;

use tempfile::NamedTempFile;

use super::config::{Arguments, Config};

/// Between the file and the variables of the environment.
const VARIABLES: &str = "\n=====\n";

/// Takes the input as a configuration file and, behind a line `=====`, lines `KEY=value` of the
/// environment.
pub fn config(data: &[u8]) {
    thread_local! {
        static FILE: OnceCell<NamedTempFile> = const { OnceCell::new() };
    }
    let text = String::from_utf8_lossy(data);
    let (file, variables) = text.split_once(VARIABLES).unwrap_or((&text, ""));
    // What is included is on the disk, and not part of the input.
    if file.contains("include") || file.contains('\\') {
        return;
    }
    let variables = variables.lines().filter_map(|line| line.split_once('='));
    let variables = variables.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let variables: Vec<_> = variables.collect();
    FILE.with(|it| {
        let path = it
            .get_or_init(|| NamedTempFile::new().expect("a place for a file"))
            .path();
        std::fs::write(path, file).expect("room for the file");
        let loaded = Config::load(Some(path), variables.clone(), &Arguments::default());
        let again = Config::load(Some(path), variables, &Arguments::default());
        assert_eq!(loaded, again);
        match loaded {
            Ok(config) => {
                assert!(!config.listeners.is_empty());
                assert!(config.restart_needed(&config).is_empty());
                assert_eq!(config.reloaded(&config), config);
                assert!(config.values().iter().all(|(key, _)| !key.is_empty()));
            }
            Err(problems) => assert!(problems.iter().all(|it| !it.to_string().is_empty())),
        }
    });
}
