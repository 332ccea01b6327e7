//! `analyze --what-if` and `--sweep`, and `calibrate`: what would be, and what
//! the broker costs here.

use std::fs;

use serde_json::{Value, json};
use tempfile::tempdir;

use crate::analyze::example;
use crate::run;

#[test]
fn changes_are_answered_and_what_they_move_is_shown() {
    let directory = tempdir().unwrap();
    let flow = directory.path().join("flow.toml");
    fs::write(
        &flow,
        "id = 'new'\nprio = 7\nperiod = '10ms'\njitter = '400us'\nwire_bytes = 1538\n\
         paths = [['h1>s1', 's1>s8', 's8>s7', 's7>h49']]\n",
    )
    .unwrap();
    let add = format!("add={}", flow.display());
    let file = example("fig2-high.toml");
    let text = run([
        "analyze",
        "--what-if",
        &add,
        "--what-if",
        "remove=m47",
        &file,
    ])
    .ok();
    assert!(
        text.starts_with("accepted  add     new\naccepted  remove  m47\n\nflow  path"),
        "{text}"
    );
    let row = |flow: &str| {
        let line = text
            .lines()
            .find(|line| line.split(' ').next() == Some(flow));
        line.map(|line| {
            line.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
    };
    let new = row("new").unwrap();
    assert_eq!(
        (new[2].as_str(), new.last().unwrap().as_str()),
        ("-", "ok"),
        "{text}"
    );
    let m1 = row("m1").unwrap();
    assert_eq!(m1[2], "1.740");
    assert!(m1[3].parse::<f64>().unwrap() > 1.74, "{text}");
    assert_eq!(row("m47"), None);
    assert!(text.contains("42 flows to 42 destinations"), "{text}");

    let json = run(["analyze", "--format", "json", "--what-if", &add, &file]).ok();
    let value: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(value["decisions"][0]["accepted"], true);
    assert_eq!(value["results"][0]["before_ns"], 1_740_400);
    assert_eq!(value["results"][42]["before_ns"], Value::Null);
}

#[test]
fn a_change_that_is_refused_says_why_and_changes_nothing() {
    let directory = tempdir().unwrap();
    let changes = directory.path().join("changes.json");
    let flow = json!({"id": "new", "prio": 1, "period_ns": 10_000_000, "deadline_ns": 2_500_000, "wire_bytes": 1538,
                      "paths": [["h1>s1", "s1>s8", "s8>s7", "s7>h49"]]});
    fs::write(
        &changes,
        json!({"ops": [{"op": "add", "flow": flow}]}).to_string(),
    )
    .unwrap();
    let file = example("fig2-high.toml");
    let refused = run(["analyze", "--what-if", changes.to_str().unwrap(), &file]);
    assert_eq!((refused.code, refused.err.as_str()), (Some(1), ""));
    assert!(
        refused.out.starts_with("refused   add     new: "),
        "{}",
        refused.out
    );
    assert!(
        refused
            .out
            .contains("42 flows to 42 destinations: every deadline is kept")
    );
    let helps = "\n                  it would do with a deadline of 6119us, or priority 6\n";
    assert!(refused.out.contains(helps), "{}", refused.out);

    fs::write(&changes, "[{\"op\": \"paint\"}]").unwrap();
    run(["analyze", "--what-if", changes.to_str().unwrap(), &file])
        .fails(2, &["changes.json: ops[0]: op: must be"]);
    run(["analyze", "--what-if", "paint=blue", &file])
        .fails(2, &["paint is no change", "add=FILE"]);
}

#[test]
fn a_sweep_has_a_row_per_point() {
    let directory = tempdir().unwrap();
    let plot = directory.path().join("sweep.svg");
    let file = example("fig2-high.toml");
    let sweep = |kind: &str, format: &str| {
        let plot = plot.to_str().unwrap();
        run([
            "analyze", "--sweep", kind, "--range", "10", "100", "--steps", "4", "--format", format,
            "--plot", plot, &file,
        ])
    };
    let csv = sweep("deadline", "csv");
    assert_eq!(
        (csv.code, csv.err.as_str()),
        (Some(1), ""),
        "no bar without a terminal"
    );
    let kept: Vec<_> = csv
        .out
        .lines()
        .map(|line| line.split(',').nth(2).unwrap())
        .collect();
    assert_eq!(
        (kept[0], kept[1], kept[4], kept.len()),
        ("kept", "0", "42", 5),
        "{}",
        csv.out
    );
    assert!(fs::read_to_string(&plot).unwrap().contains("100</text>"));

    let value: Value = serde_json::from_str(&sweep("load", "json").out).unwrap();
    assert_eq!(value["points"][3]["load_percent"], 100);
    assert_eq!(value["points"][3]["kept"], 42);
    let table = run(["analyze", "--sweep", "flows", "--steps", "3", &file]).ok();
    assert!(table.starts_with("flows  destinations  kept"), "{table}");
    assert_eq!(table.lines().count(), 4);

    run(["analyze", "--sweep", "load", "--range", "9", "3", &file]).fails(2, &["--range 9 3"]);
}

#[test]
fn calibrate_fills_in_what_the_broker_costs() {
    let directory = tempdir().unwrap();
    let output = directory.path().join("measured.toml");
    let quick = [
        "--seconds",
        "0.2",
        "--sizes",
        "64,1538",
        "--subscribers",
        "1,2",
        "--rate",
        "200",
    ];
    let cell = example("factory-cell.toml");
    let place = [
        "--network",
        &cell,
        "--link",
        "broker",
        "-o",
        output.to_str().unwrap(),
    ];
    let done = run(["calibrate"].into_iter().chain(quick).chain(place));
    assert_eq!(done.code, Some(0), "{}", done.err);
    assert_eq!(done.out, "");
    assert!(done.err.contains("statistical, not hard"), "{}", done.err);

    let text = fs::read_to_string(&output).unwrap();
    assert!(
        text.starts_with("# Broker stage measured by punctual "),
        "{text}"
    );
    assert!(text.contains("\n# STATISTICAL, NOT HARD: "), "{text}");
    let study = run(["analyze", "--format", "json", output.to_str().unwrap()]);
    assert!(matches!(study.code, Some(0 | 1)), "{}", study.err);
    let value: Value = serde_json::from_str(&study.out).unwrap();
    assert_eq!(value["results"].as_array().unwrap().len(), 16);

    let place = ["--network", &cell, "--link", "x"];
    run(["calibrate"].into_iter().chain(place)).fails(1, &["\"x\" is not among the links"]);
    run(["calibrate", "--link", "broker"]).fails(2, &["--network"]);
    run(["calibrate", "--sizes", "1"]).fails(1, &["--sizes 1: give"]);
    run(["calibrate", "--seconds", "0"]).fails(1, &["--seconds 0: give"]);
}
