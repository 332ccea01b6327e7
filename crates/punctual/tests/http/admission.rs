//! What is promised outlives the process.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::broker::support::Mqtt;
use crate::broker::{Broker, PATIENCE};

const CONFIG: &str = "[admission]\nenabled = true\n\
                      places = [\"client *: hosts\"]\n";

fn start(directory: &tempfile::TempDir, more: &str) -> Broker {
    let file = directory.path().join("punctual.toml");
    fs::write(&file, format!("{CONFIG}{more}")).unwrap();
    Broker::with_arguments(&["--config", file.to_str().unwrap()])
}

fn wanted(topic: &str, requirements: &str) -> Value {
    json!({"client": "press", "topic": topic, "requirements": requirements})
}

#[test]
fn with_a_store_flows_outlive_kill_9() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let more = format!("[server]\ndata = {data:?}\n");
    let broker = start(&directory, &more);
    let asked = wanted("axis/1", "deadline=9ms, period=20ms, size=64");
    let made = broker.post("/api/v1/flows", &asked);
    assert_eq!(made.status, 201);
    // Killed.
    drop(broker);
    let bound = serde_json::from_str::<Value>(&made.body).unwrap()["bound_ns"].clone();
    let broker = start(&directory, &more);
    let flow = broker.get("/api/v1/flows/axis/1@press").ok();
    assert_eq!(flow["bound_ns"], bound);
}

/// With the rest of what survives they go through a backup to another directory.
#[test]
fn flows_are_part_of_a_backup() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let stored = |name: &str| format!("[server]\ndata = {:?}\n", at(name));
    let broker = start(&directory, &stored("data"));
    let asked = wanted("axis/1", "deadline=9ms, period=20ms, size=64");
    assert_eq!(broker.post("/api/v1/flows", &asked).status, 201);
    let bound = broker.get("/api/v1/flows/axis/1@press").ok()["bound_ns"].clone();
    let store = |arguments: &[&Path]| {
        let store = std::process::Command::new(env!("CARGO_BIN_EXE_punctual"))
            .arg("store")
            .args(arguments)
            .output()
            .unwrap();
        (store.status.success(), store.stdout, store.stderr)
    };
    let mut publisher = Mqtt::connect(broker.tcp, "p", 0);
    publisher.retain("a", b"x");
    let backup = at("backup");
    // As soon as something is stored.
    let end = Instant::now() + PATIENCE;
    loop {
        let (_, lines, _) = store(&["export".as_ref(), &at("data")]);
        fs::write(&backup, &lines).unwrap();
        if String::from_utf8(lines).unwrap().contains("\"retain\"") {
            break;
        }
        assert!(Instant::now() < end, "nothing is stored");
        thread::sleep(Duration::from_millis(20));
    }
    drop(broker);

    let import = [Path::new("import"), &at("new"), &backup];
    let text = fs::read_to_string(&backup).unwrap();
    fs::write(&backup, text.replace("\"version\":1}", "\"version\":7}")).unwrap();
    let (done, _, told) = store(&import);
    let told = String::from_utf8(told).unwrap();
    assert!(!done && told.contains("has version 7"), "{told}");
    fs::write(&backup, text).unwrap();
    fs::write(at("new").join("flows.json"), "others").unwrap();
    let (done, _, told) = store(&import);
    let told = String::from_utf8(told).unwrap();
    assert!(!done && told.contains("has other flows"), "{told}");
    fs::remove_file(at("new").join("flows.json")).unwrap();
    assert!(store(&import).0);
    let broker = start(&directory, &stored("new"));
    let flow = broker.get("/api/v1/flows/axis/1@press").ok();
    assert_eq!(flow["bound_ns"], bound);
}
