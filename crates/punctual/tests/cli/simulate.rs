//! `punctual simulate`: formats, exit codes, and that its answers repeat.

use std::fs;

use serde_json::Value;
use tempfile::tempdir;

use crate::analyze::example;
use crate::{run, run_with};

#[test]
fn random_runs_repeat_and_stay_below_the_bounds() {
    let arguments = |seed: &'static str| {
        let file = example("line.toml");
        [
            "simulate".into(),
            file,
            "--runs".into(),
            "20".into(),
            "--seed".into(),
            seed.into(),
        ]
    };
    let table = run(arguments("7")).ok();
    assert!(table.starts_with("flow    path"), "{table}");
    assert!(table.contains("20 random runs from seed 7"), "{table}");
    assert!(table.contains("bound / largest response: mean"), "{table}");
    assert_eq!(table, run(arguments("7")).ok());
    assert_ne!(table, run(arguments("8")).ok());
    // The run that is named has the largest response.
    let csv = |more: &[&str]| {
        let file = example("line.toml");
        let first = ["simulate", &file, "--format", "csv", "--flow", "motor"];
        run(first.iter().chain(more)).ok()
    };
    let all = csv(&["--runs", "20", "--seed", "7"]);
    let fields: Vec<_> = all.lines().nth(1).unwrap().split(',').collect();
    let one = csv(&["--runs", "1", "--seed", fields[8]]);
    let again: Vec<_> = one.lines().nth(1).unwrap().split(',').collect();
    assert_eq!(again[4], fields[4]);
}

#[test]
fn histograms_count_every_message() {
    let file = example("line.toml");
    let table = run(["simulate", &file, "--runs", "3", "--histogram"]).ok();
    assert!(table.contains("p99.9") && table.contains("####"), "{table}");
    let json = run([
        "simulate",
        &file,
        "--runs",
        "3",
        "--histogram",
        "--format",
        "json",
    ])
    .ok();
    let answer: Value = serde_json::from_str(&json).unwrap();
    for result in answer["results"].as_array().unwrap() {
        let counts = result["histogram_ns"].as_array().unwrap();
        let sum: u64 = counts.iter().map(|pair| pair[1].as_u64().unwrap()).sum();
        assert_eq!(sum, result["messages"].as_u64().unwrap());
    }
}

#[test]
fn a_search_finds_more_and_its_scenarios_can_be_replayed() {
    let file = example("line.toml");
    let search = [
        "simulate",
        &file,
        "--search",
        "--runs",
        "300",
        "--format",
        "json",
        "--scenarios",
    ];
    let json = run(search).ok();
    let random = run(["simulate", &file, "--runs", "5", "--format", "json"]).ok();
    let directory = tempdir().unwrap();
    let found = directory.path().join("found.json");
    fs::write(&found, &json).unwrap();
    let found = found.to_str().unwrap();
    let replayed = run(["simulate", &file, "--replay", found, "--format", "json"]).ok();
    let parse = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    let (json, random, replayed) = (parse(&json), parse(&random), parse(&replayed));
    let seen = |answer: &Value, row: usize| answer["results"][row]["observed_ns"].as_u64().unwrap();
    for row in 0..3 {
        assert!(seen(&json, row) >= seen(&random, row));
        assert!(seen(&replayed, row) >= seen(&json, row));
        assert!(json["results"][row]["wcrt_ns"].as_u64().unwrap() >= seen(&replayed, row));
    }
    // What was seen stands beside the bounds.
    let table = run(["analyze", &file, "--observed", found]).ok();
    assert!(table.contains("observed"), "{table}");
}

#[test]
fn tiny_networks_are_tried_in_full() {
    let network = r#"{"nodes":[{"id":"a"},{"id":"b"},{"id":"s"},{"id":"e"}],
        "links":[{"id":"as","from":"a","to":"s","rate_bps":100000000},
                 {"id":"bs","from":"b","to":"s","rate_bps":100000000},
                 {"id":"se","from":"s","to":"e","rate_bps":100000000}],
        "flows":[{"id":"x","period_ns":1000000,"wire_bytes":1250,"paths":[["as","se"]]},
                 {"id":"y","period_ns":1000000,"wire_bytes":1250,"paths":[["bs","se"]]}]}"#;
    let csv = run_with(
        ["simulate", "-", "--exhaustive", "--format", "csv"],
        network,
    )
    .ok();
    let observed: Vec<_> = csv
        .lines()
        .skip(1)
        .map(|line| line.split(',').nth(4))
        .collect();
    assert_eq!(observed, [Some("300000"), Some("300000")], "{csv}");
    run(["simulate", &example("fig2-high.toml"), "--exhaustive"])
        .fails(2, &["behaviours on the grid", "smaller network"]);
}

#[test]
fn wrong_input_exits_with_2() {
    let file = example("line.toml");
    run(["simulate", "/no/such.toml"]).fails(2, &["/no/such.toml"]);
    run_with(["simulate", "-"], "{\"flows\":5}").fails(2, &["flows: must be a list"]);
    run(["simulate", &file, "--flow", "x"]).fails(2, &["--flow x", "no such flow"]);
    run(["simulate", &file, "--duration", "0s"]).fails(2, &["must be above 0"]);
    run(["simulate", &file, "--search", "--exhaustive"]).fails(2, &["cannot be used with"]);
    run(["simulate", &file, "--replay", &file]).fails(2, &["no results with a scenario"]);
}
