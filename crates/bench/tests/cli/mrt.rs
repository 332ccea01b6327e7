//! The experiment of the MRT-MQTT paper, as far as it does not depend on how fast the machine is.

use std::fs;
use std::process::Stdio;

use punctual_testbed::netns::Namespace;
use serde_json::Value;
use tempfile::tempdir;

use crate::emulate::{emulate, mosquitto_is_missing, paths, turn, wait_for};
use crate::{command, run};

/// A case that takes little of a machine.
const SMALL: [&str; 11] = [
    "mrt-mqtt",
    "--loads",
    "low",
    "--repeats",
    "1",
    "--duration",
    "1",
    "--plain",
    "2",
    "--tools",
    "none",
];

fn cases(results: &Value) -> &Vec<Value> {
    results["cases"].as_array().unwrap()
}

/// Bytes of the publishers' packets on a link.
fn carried(case: &Value, link: &str) -> f64 {
    case["links"][link]["declared"].as_f64().unwrap()
}

#[test]
fn groups_reach_every_broker_with_one_copy_on_each_link() {
    if Namespace::is_missing() || mosquitto_is_missing() {
        return;
    }
    let _turn = turn();
    let directory = tempdir().unwrap();
    let json = directory.path().join("results.json");
    let json = json.to_str().unwrap();
    let run = run([&SMALL[..], &["--json", json]].concat());
    // 1 is a check of delays that did not pass on a busy machine.
    assert!(matches!(run.code, Some(0 | 1)), "{}{}", run.out, run.err);
    let results: Value = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    let [mqtt, dm, mrt] = &cases(&results)[..] else {
        panic!("{}", run.out);
    };
    for case in [mqtt, dm, mrt] {
        assert_eq!(case["paths"], serde_json::json!([120, 120]));
        assert_eq!(case["withheld"], 0);
        for row in case["rows"].as_array().unwrap() {
            assert_eq!(row["written"], row["seen"], "{row}");
        }
        // The relays passed every datagram of a group on to their brokers.
        let count = |name: &str| case[name].as_u64().unwrap();
        let copies = match case["series"].as_str().unwrap() {
            "mqtt" => 0,
            "dm-mqtt" => 2,
            _ => 3,
        };
        assert_eq!(count("relayed"), copies * count("written"));
        assert!(count("received") > 0);
    }
    // Three copies, two and one leave the publishers' hosts; two, one and one the edge network.
    let [access, trunk] =
        ["h1>s1", "s1>s4"].map(|link| [mqtt, dm, mrt].map(|of| carried(of, link)));
    let close = |share: f64, to: f64| (share / to - 1.0).abs() < 0.1;
    assert!(close(access[1] / access[0], 2.0 / 3.0), "{access:?}");
    assert!(close(access[2] / access[0], 1.0 / 3.0), "{access:?}");
    assert!(close(trunk[1] / trunk[0], 0.5), "{trunk:?}");
    assert!(close(trunk[2] / trunk[0], 0.5), "{trunk:?}");
    // Nobody takes the ways that are spare.
    for case in [mqtt, dm, mrt] {
        for link in ["s1>s6", "s7>s2", "s5>s8", "s8>s3", "s4>s1"] {
            assert!(carried(case, link) < 1.0, "{link}");
        }
    }
    let admission = results["admission"].as_array().unwrap();
    let of = |setting: &str| {
        admission
            .iter()
            .find(|of| of["setting"] == setting)
            .unwrap()
    };
    assert_eq!(of("low, A publishing")["refused"], Value::Null);
    assert_eq!(
        of("low, A, B and C publishing, periods scaled")["refused"],
        Value::Null
    );
    for words in [
        "pass: low, A publishing, every path was measured",
        "our generator",
    ] {
        assert!(run.out.contains(words), "{}", run.out);
    }
}

#[test]
fn what_was_finished_is_there_when_the_experiment_is_killed() {
    if Namespace::is_missing() || mosquitto_is_missing() {
        return;
    }
    let _turn = turn();
    let directory = tempdir().unwrap();
    let json = directory.path().join("results.json");
    let mut child = command([&SMALL[..], &["--json", json.to_str().unwrap()]].concat())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let text = wait_for("a finished case", || fs::read_to_string(&json).ok());
    child.kill().unwrap();
    child.wait().unwrap();
    let results: Value = serde_json::from_str(&text).unwrap();
    let first = &cases(&results)[0];
    assert_eq!(first["series"], "mqtt");
    assert!(first["written"].as_u64().unwrap() > 0);
}

#[test]
fn an_emulated_flow_to_several_brokers_goes_to_all_of_them() {
    if Namespace::is_missing() {
        return;
    }
    let _turn = turn();
    let options = ["--duration", "1", "--background", "none"];
    let results = emulate("fig15-low", &options);
    assert_eq!(paths(&results).len(), 120);
    for path in paths(&results) {
        assert!(path["seen"].as_u64().unwrap() > 30, "{path}");
    }
    // Each datagram has come to three brokers, and from them to their subscribers.
    let outcome = &results["outcome"];
    let count = |name: &str| outcome[name].as_u64().unwrap();
    assert_eq!(count("relayed"), 3 * count("written"));
    assert!(count("received") > 0);
}

#[test]
fn options_that_make_no_sense_are_refused() {
    for (option, value) in [("--loads", "huge"), ("--series", "zmq"), ("--plain", "61")] {
        run(["mrt-mqtt", option, value]).fails(2, &[option, value]);
    }
}
