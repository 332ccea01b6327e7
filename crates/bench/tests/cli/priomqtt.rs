//! The factory cell with this very program as broker, stations and coordinator.

use std::fs;

use punctual_testbed::netns::Namespace;
use serde_json::Value;
use tempfile::tempdir;

use crate::run;

#[test]
fn the_cell_served_by_this_program_loses_nothing() {
    if Namespace::is_missing() {
        return;
    }
    let directory = tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    let run = run([
        "priomqtt",
        "--short",
        "--unpinned",
        "--only",
        "rtt",
        "--duration",
        "0.3",
        "--brokers",
        "punctual",
        "--directory",
        path,
    ]);
    // `--short` fails by itself when a message is lost, repeated or out of order.
    assert_eq!(run.code, Some(0), "{}", run.err);
    assert!(run.out.contains("(Table 3)"), "{}", run.out);
    let json = fs::read_to_string(directory.path().join("priomqtt.json")).unwrap();
    let json: Value = serde_json::from_str(&json).unwrap();
    let faults = &json["cases"][0]["runs"][0]["faults"];
    assert!(faults["expected"].as_u64().unwrap() > 0);
    assert_eq!(json["brokers"][0]["version"], env!("CARGO_PKG_VERSION"));
}

/// By TCP and by UDP, with what the brokers say about their queues. What is lost is
/// no matter here: on a machine that is busy, datagrams may be.
#[test]
fn queues_and_datagrams_are_reported() {
    if Namespace::is_missing() {
        return;
    }
    let directory = tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    let run = run([
        "priomqtt",
        "--unpinned",
        "--only",
        "queue",
        "--duration",
        "0.3",
        "--brokers",
        "punctual,punctual-udp",
        "--directory",
        path,
    ]);
    assert_eq!(run.code, Some(0), "{}", run.err);
    let json = fs::read_to_string(directory.path().join("priomqtt.json")).unwrap();
    let json: Value = serde_json::from_str(&json).unwrap();
    let cases = json["cases"].as_array().unwrap();
    // With 2 and with 5 subscribers.
    for broker in ["punctual", "punctual-udp"] {
        let of = |case: &&Value| case["case"]["broker"] == broker;
        assert_eq!(cases.iter().filter(of).count(), 2, "{broker}");
    }
    for case in cases {
        assert_eq!(case["errors"], Value::Array(Vec::new()), "{case}");
        let run = &case["runs"][0];
        assert!(run["faults"]["expected"].as_u64().unwrap() > 0, "{case}");
        assert!(run["queue"].is_object(), "{case}");
    }
}
