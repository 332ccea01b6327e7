//! `punctual bench durability`, briefly: that it runs, and what it found where that is no figure.

use std::fs;

use serde_json::Value;
use tempfile::tempdir;

use super::run;

#[test]
fn what_was_acknowledged_is_there_after_kills_and_restarts() {
    let place = tempdir().unwrap();
    let path = |name: &str| place.path().join(name).display().to_string();
    let (json, html) = (path("out.json"), path("out.html"));
    let run = run([
        "durability",
        "--experiments",
        "throughput,restart,loss",
        "--systems",
        "none,batched",
        "--case",
        "1→1",
        "--repeat",
        "1",
        "--duration",
        "0.4",
        "--sessions",
        "20",
        "--messages",
        "500",
        "--broker-core",
        "0",
        "--generator-core",
        "0",
        "--directory",
        &path("bench"),
        "--data",
        &path("stores"),
        "--json",
        &json,
        "--html",
        &html,
    ]);
    assert_eq!(run.code, Some(0), "{}", run.err);
    for heading in ["Goals", "Messages per second", "Restart", "What kill -9"] {
        assert!(run.out.contains(heading), "{heading}: {}", run.out);
    }
    assert!(fs::read_to_string(html).unwrap().contains("<table"));
    let result: Value = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    let batched = &result["losses"][1];
    assert_eq!(batched["system"], "batched");
    assert_eq!(batched["loss"]["lost"], 0, "{batched}");
    assert!(
        batched["loss"]["acknowledged"].as_u64() > Some(0),
        "{batched}"
    );
    let restarts = result["restarts"].as_array().unwrap();
    assert_eq!(restarts.len(), 3);
    assert_eq!(restarts[2]["looked_at"], 20);
    assert_eq!(restarts[2]["missing"], 0);
    assert_eq!(fs::read_dir(path("stores")).unwrap().count(), 0);
}
