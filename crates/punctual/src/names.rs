//! The names that users, scripts and files rely on, as `public-names.txt` lists them.

use std::fs;
use std::path::Path;

use punctual_testbed::{assert_names, command_names};

use punctual_server::{config, http};

use crate::cli;

/// Where metrics are written: their names are the texts of these files that begin like one.
const METRICS: &str = "../server/src/http";

#[test]
fn public_names_are_those_that_are_listed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut names = command_names(&cli::command());
    names.extend(config::key_names().map(|name| format!("configuration {name}")));
    let api: serde_json::Value = serde_json::from_str(http::OPENAPI).unwrap();
    for (path, methods) in api["paths"].as_object().unwrap() {
        let methods = methods.as_object().unwrap().keys();
        let methods = methods.filter(|method| *method != "parameters");
        names.extend(methods.map(|method| format!("HTTP {} {path}", method.to_uppercase())));
    }
    metrics(&root.join(METRICS), &mut names);
    assert_names(&root.join("public-names.txt"), names);
}

fn metrics(directory: &Path, names: &mut Vec<String>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            metrics(&path, names);
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        // Tests are at the end, and name what there is not, too.
        let text = text.split("#[cfg(test)]").next().unwrap();
        let quoted = text.split('"').skip(1).step_by(2);
        let is_metric = |name: &&str| {
            (name.starts_with("punctual_") || name.starts_with("process_"))
                && name
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
        };
        if path.file_name().is_some_and(|name| name != "tests.rs") {
            names.extend(
                quoted
                    .filter(is_metric)
                    .map(|name| format!("metric {name}")),
            );
        }
    }
}
