//! `punctual controller` without a network: its interface, and what it is told.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};

use punctual_measure::http_get;
use serde_json::Value;

use crate::{command, run};

const NETWORK: &str = "../../examples/networks/line.toml";

/// A controller without its table, ended with the test.
struct Controller(Child);

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn every_path_that_is_described_is_there() {
    let directory = tempfile::tempdir().unwrap();
    let nowhere = format!("unix:{}", directory.path().join("socket").display());
    let mut process = command([
        "controller",
        "--driver",
        "openflow",
        "--listen",
        "127.0.0.1:0",
        "--http",
        "127.0.0.1:0",
        "--ovsdb",
        &nowhere,
    ])
    .stderr(Stdio::piped())
    .spawn()
    .unwrap();
    let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
    let _controller = Controller(process);
    let address = lines
        .by_ref()
        .map_while(Result::ok)
        .find_map(|line| line.split("http://").nth(1)?.trim().parse().ok())
        .unwrap();
    std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
    let document: Value =
        serde_json::from_str(&http_get(address, "/api/v1/openapi.json").unwrap()).unwrap();
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.len() >= 7);
    for path in paths.keys() {
        // What answers no path at all says only that.
        let answer = http_get(address, path);
        let expected = match path.as_str() {
            "/readyz" => "database of requirements is away",
            "/api/v1/controller/explain" => "it is missing",
            _ => {
                assert!(answer.is_ok(), "{path}: {answer:?}");
                continue;
            }
        };
        let error = answer.unwrap_err().to_string();
        assert!(error.contains(expected), "{path}: {error}");
    }
    assert!(http_get(address, "/api/v1/controller/nothing").is_err());
}

#[test]
fn what_a_driver_needs_is_named() {
    run(["controller", "--driver", "sim", "--http", "off"]).fails(1, &["--network", "switches"]);
    run(["controller", "--driver", "file", "--network", NETWORK]).fails(2, &["--output"]);
    run(["controller", "--dry-run"]).fails(2, &["--network"]);
    run(["controller", "--switch", "core"]).fails(2, &["--switch", "NAME=DATAPATH"]);
    run(["controller", "--broker-times", "1us"]).fails(2, &["--broker-times", "three"]);
    let tags = [
        "controller",
        "--driver",
        "linux",
        "--network",
        NETWORK,
        "--tags",
    ];
    run(tags).fails(1, &["--tags", "DSCP"]);
    run(["controller", "--realtime=99"]).fails(2, &["--realtime", "1..=98"]);
    let host = "--host=motor=10.0.0.1";
    let arguments = ["controller", "--driver", "sim", "--network", NETWORK, host];
    run(arguments).fails(1, &["--network", "receiver", "name it as a --host"]);
}
