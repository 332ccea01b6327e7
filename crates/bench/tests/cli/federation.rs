//! `punctual bench federation` with this very program as the brokers. What is asserted does not
//! depend on time: who got what, and on which way it went.

use std::fs;

use punctual_testbed::netns::Namespace;
use serde_json::Value;
use tempfile::tempdir;

use crate::emulate::{mosquitto_is_missing, turn};
use crate::run;

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
