//! The factory cell in network namespaces with the floor in the broker's place: everything comes
//! once and in order, and the report has it. No assertion is about time.

use std::env;
use std::fs;
use std::process::Command;

use punctual_testbed::netns::Namespace;
use serde_json::Value;

#[test]
fn the_cell_loses_nothing_and_is_reported() {
    if Namespace::is_missing() {
        return;
    }
    let directory = env::temp_dir().join(format!("punctual-priomqtt-{}", std::process::id()));
    let output = Command::new(env!("CARGO_BIN_EXE_punctual-bench"))
        .args([
            "priomqtt",
            "--short",
            "--brokers",
            "floor",
            "--only",
            "rtt,bulk",
        ])
        .args([
            "--duration",
            "0.3",
            "--payloads",
            "100",
            "--unpinned",
            "--directory",
        ])
        .arg(&directory)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    // `--short` fails by itself when a message is lost, repeated or out of order.
    assert!(output.status.success(), "{said}");
    let tables = String::from_utf8(output.stdout).unwrap();
    for heading in [
        "## Round trips with 100 B",
        "## The highest priority beside",
    ] {
        assert!(tables.contains(heading), "{tables}");
    }

    let json = fs::read_to_string(directory.join("priomqtt.json")).unwrap();
    let json: Value = serde_json::from_str(&json).unwrap();
    let cases = json["cases"].as_array().unwrap();
    let experiments: Vec<&str> = cases
        .iter()
        .map(|case| case["case"]["experiment"].as_str().unwrap())
        .collect();
    assert_eq!(experiments, ["round-trip", "idle", "bulk"]);
    for case in cases {
        let run = &case["runs"][0];
        let couples = run["couples"].as_array().unwrap();
        assert_eq!(couples.len(), 4);
        let mut sent = 0;
        for couple in couples {
            // The controller has answered every message of every module.
            assert_eq!(couple["sent"][0], couple["sent"][1], "{couple}");
            assert!(couple["round_trip"]["count"].as_u64().unwrap() > 0);
            sent += couple["sent"][0].as_u64().unwrap();
        }
        // Two topics for each couple, two subscribers for each topic.
        assert_eq!(run["faults"]["expected"].as_u64().unwrap(), 4 * sent);
        assert_eq!(run["faults"]["lost"], 0);
        let bulk = &run["bulk"]["delivered_mbit_per_s"];
        let has_bulk = case["case"]["experiment"] == "bulk";
        assert_eq!(bulk.as_f64().is_some_and(|rate| rate > 0.0), has_bulk);
    }
    let html = fs::read_to_string(directory.join("priomqtt.html")).unwrap();
    assert!(html.contains("<svg"), "{html}");
    fs::remove_dir_all(directory).unwrap();
}

#[test]
fn an_unknown_broker_is_named_with_the_choice() {
    if Namespace::is_missing() {
        return;
    }
    let output = Command::new(env!("CARGO_BIN_EXE_punctual-bench"))
        .args(["priomqtt", "--short", "--brokers", "rabbit"])
        .args(["--directory", &env::temp_dir().to_string_lossy()])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(said.contains("--brokers = rabbit: choose from "), "{said}");
    assert!(said.contains(" punctual,"), "{said}");
}
