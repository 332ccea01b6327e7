//! `punctual bench federation` with this very program as the brokers. What is asserted does not
//! depend on time: who got what, and on which way it went.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use punctual_testbed::Run;
use punctual_testbed::netns::Namespace;
use serde_json::Value;
use tempfile::tempdir;

use crate::emulate::{mosquitto_is_missing, turn};
use crate::{command, run};

#[test]
fn the_experiments_lose_nothing_and_messages_stay_where_they_are_wanted() {
    if Namespace::is_missing() {
        return;
    }
    let _turn = turn();
    let directory = tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let (json, html, logs) = (path("results.json"), path("page.html"), path("logs"));
    let experiments = ["--only", "traffic", "--topologies", "star"];
    let small = ["--publishes", "50", "--quiet", "0.5"];
    let files = ["--json", &json, "--html", &html, "--directory", &logs];
    let run = run([&["federation"], &experiments[..], &small, &files].concat());
    assert_eq!(run.code, Some(0), "{}", run.err);
    let results: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(results["complete"], true);
    let outcomes = results["outcomes"].as_array().unwrap();
    let of = |system: &str, locality: &str| {
        let is =
            |outcome: &&Value| outcome["system"] == *system && outcome["locality"] == *locality;
        outcomes.iter().find(is).unwrap()
    };
    let bytes = |system: &str, locality: &str| of(system, locality)["bytes"].as_u64().unwrap();
    let ways = ["subscription-table", "flooding", "root-relay"];
    for system in ways {
        for (locality, expected) in [("100 %", 50), ("0 %", 50), ("n %", 250)] {
            let outcome = of(system, locality);
            assert_eq!(outcome["received"], expected, "{outcome}");
            assert_eq!(outcome["lost"], 0, "{outcome}");
            assert_eq!(outcome["duplicates"], 0, "{outcome}");
            let told = outcome["advertised"].as_u64().unwrap();
            assert!(told == 0 || system == "subscription-table", "{outcome}");
            // All bytes are those of the intervals, and each broker has its processor time.
            let traffic = outcome["usage"]["traffic"].as_array().unwrap();
            let sum: u64 = traffic.iter().map(|of| of["bytes"].as_u64().unwrap()).sum();
            assert_eq!(outcome["bytes"], sum, "{outcome}");
            assert!(traffic.len() > 1, "{outcome}");
            assert_eq!(outcome["usage"]["cpu"].as_array().unwrap().len(), 5);
        }
    }
    // By the root they cross every cable, wherever they are wanted.
    for locality in ["100 %", "0 %"] {
        let [table, root] = [ways[0], ways[2]].map(|system| bytes(system, locality));
        assert!(table < root, "{locality}: {table} and {root} bytes");
    }
    assert!(bytes("subscription-table", "100 %") < bytes("flooding", "100 %"));
    if !mosquitto_is_missing() {
        assert!(bytes("mosquitto-bridges", "100 %") > 0);
    }
    // As tables, and as a page with pictures.
    assert!(
        run.out.contains("| star | root-relay | n % | 50 |"),
        "{}",
        run.out
    );
    assert!(fs::read_to_string(&html).unwrap().contains("<svg"));
}

#[test]
fn without_rabbitmq_the_cluster_is_left_out_and_everybody_is_told() {
    if Namespace::is_missing() {
        return;
    }
    let _turn = turn();
    let directory = tempdir().unwrap();
    let logs = directory.path().display().to_string();
    let mut command = command([
        "federation",
        "--only",
        "traffic",
        "--topologies",
        "cluster",
        "--directory",
        &logs,
    ]);
    let run = Run::of(command.env("RABBITMQ_BIN", "/no/such/rabbitmq-server"));
    assert_eq!(run.code, Some(0), "{}", run.err);
    assert!(
        run.err
            .contains("THE CLUSTER WAS NOT MEASURED: RABBITMQ_BIN"),
        "{}",
        run.err
    );
    assert!(run.out.contains("## Left out"), "{}", run.out);
    let json = fs::read_to_string(directory.path().join("results.json")).unwrap();
    let results: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(results["left_out"].as_array().unwrap().len(), 1);
}

#[test]
fn what_was_finished_outlives_a_kill() {
    if Namespace::is_missing() {
        return;
    }
    let _turn = turn();
    let directory = tempdir().unwrap();
    let logs = directory.path().display().to_string();
    let mut child = command([
        "federation",
        "--only",
        "traffic",
        "--topologies",
        "star",
        "--publishes",
        "50",
        "--quiet",
        "0.1",
        "--directory",
        &logs,
    ])
    .stdout(Stdio::null())
    .stderr(Stdio::piped())
    .spawn()
    .unwrap();
    // The second experiment of a system begins when the first one is finished.
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut systems = lines.map(Result::unwrap).filter_map(|line| {
        let rest = line.strip_prefix("star, ")?;
        Some(rest.strip_suffix(", 0 %, 50 publications")?.to_owned())
    });
    let system = systems.next().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let json = fs::read_to_string(directory.path().join("results.json")).unwrap();
    let results: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(results["complete"], false);
    let system = system.replace(' ', "-");
    let outcomes = results["outcomes"].as_array().unwrap();
    let mut finished = outcomes.iter().filter(|of| of["system"] == *system);
    let outcome = finished.next().unwrap();
    assert_eq!(outcome["locality"], "100 %");
    assert!(outcome["bytes"].as_u64().unwrap() > 0, "{outcome}");
    assert!(finished.next().is_none(), "{results}");
}
