//! What is promised, over HTTP.

#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

#[path = "support/mod.rs"]
mod support;

use serde_json::{Value, json};

use support::{Broker, Mqtt};

const CONFIG: &str = "[admission]\nenabled = true\n\
                      places = [\"client *: hosts\"]\n";

fn start(more: &str) -> Broker {
    Broker::with(&format!("{CONFIG}{more}"))
}

fn wanted(topic: &str, requirements: &str) -> Value {
    json!({"client": "press", "topic": topic, "requirements": requirements})
}

#[test]
fn flows_are_made_shown_and_removed() {
    let broker = start("");
    let mut subscriber = Mqtt::connect(broker.tcp, "s", 0);
    subscriber.subscribe("axis/#");
    let asked = wanted("axis/1", "deadline=9ms, period=20ms, size=64");
    let prospect = broker.post("/api/v1/what-if", &asked).ok();
    assert_eq!(prospect["status"], "admitted");
    assert_eq!(prospect["changed"][0]["receivers"][0]["client"], "s");
    assert_eq!(broker.get("/api/v1/flows").ok()["flows"], json!([]));

    let made = broker.post("/api/v1/flows", &asked);
    assert_eq!(made.status, 201);
    let flow = broker.get("/api/v1/flows/axis/1@press").ok();
    assert_eq!(flow["bound_ns"], prospect["bound_ns"]);
    assert_eq!(flow["messages"], Value::Null, "nobody publishes it yet");
    assert_eq!(flow["fixed"], true);
    // Its publisher knows nothing of all this.
    let mut press = Mqtt::connect(broker.tcp, "press", 0);
    press.retain("axis/1", b"x");
    subscriber.receive();
    let flow = broker.get("/api/v1/flows/axis/1@press").ok();
    assert_eq!(
        (&flow["messages"], &flow["violations"]),
        (&1.into(), &0.into())
    );
    let observed = &flow["observed"];
    assert_eq!(
        (&observed["messages"], &observed["misses"]),
        (&1.into(), &0.into())
    );
    let longest = observed["broker_max_us"].as_u64().unwrap();
    assert!(longest > 0 && longest * 1000 < flow["bound_ns"].as_u64().unwrap());
    let histogram = observed["broker_histogram_us"].as_array().unwrap();
    assert_eq!(histogram.len(), 1, "{histogram:?}");
    assert!(histogram[0][0].as_u64().unwrap() >= longest && histogram[0][1] == 1);
    let metrics = broker.get("/metrics").body;
    for line in [
        "punctual_flows_admitted 1",
        "punctual_flow_messages_total{carried=\"admitted\"} 1",
        "punctual_flow_sent_total{flow=\"axis/1@press\"} 1",
        "punctual_flow_deadline_seconds{flow=\"axis/1@press\"} 0.009",
        "punctual_flow_misses_total{flow=\"axis/1@press\"} 0",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }

    let network = broker.get("/api/v1/network").ok();
    let links = network["links"].as_array().unwrap();
    let cpu = links.iter().find(|l| l["id"] == "broker.cpu").unwrap();
    assert_eq!(cpu["flows"], 1);
    assert!(cpu["load_percent"].as_f64().unwrap() > 0.0);

    let never = wanted("axis/2", "deadline=10us, period=20ms");
    let refused = broker.post("/api/v1/flows", &never);
    assert_eq!(refused.status, 409);
    assert!(refused.body.contains("axis/2@press"), "{}", refused.body);
    // What is said to help does.
    let tight = |deadline: &str| wanted("axis/2", &format!("deadline={deadline}, period=20ms"));
    let refused: Value = serde_json::from_str(&refused.body).unwrap();
    let remedies = refused["remedies"].as_array().unwrap();
    let longer = remedies
        .iter()
        .find_map(|remedy| remedy.as_str()?.strip_prefix("a deadline of "));
    let longer = longer.unwrap_or_else(|| panic!("{remedies:?}"));
    let prospect = broker.post("/api/v1/what-if", &tight(longer)).ok();
    assert_eq!(prospect["status"], "admitted");
    assert_eq!(prospect["remedies"], Value::Null);
    let prospect = broker.post("/api/v1/what-if", &never).ok();
    assert_eq!(prospect["remedies"], refused["remedies"]);

    let explained = broker.get("/api/v1/flows/axis/1@press/explain").ok();
    let path = &explained["paths"][0];
    assert_eq!(path["receivers"], json!(["s"]));
    let parts = path["parts"].as_array().unwrap();
    let sum: i64 = parts.iter().filter_map(|part| part["ns"].as_i64()).sum();
    assert_eq!(path["bound_ns"].as_i64(), Some(sum));
    assert!(sum <= flow["bound_ns"].as_i64().unwrap());
    assert!(parts.iter().any(|part| part["kind"] == "transmission"));
    broker.get("/api/v1/flows/nothing/explain").refused(404);

    broker.delete("/api/v1/flows/axis/1@press").ok();
    broker.delete("/api/v1/flows/axis/1@press").refused(404);
    broker.get("/api/v1/flows/axis/1@press").refused(404);
    let metrics = broker.get("/metrics").body;
    assert!(!metrics.contains("axis/1@press"), "{metrics}");
}

#[test]
fn flows_outlive_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let kept = directory.path().join("flows.json");
    let more = format!("file = {kept:?}\n");
    let broker = start(&more);
    let asked = wanted("axis/1", "deadline=9ms, period=20ms, size=64");
    let made = broker.post("/api/v1/flows", &asked);
    assert_eq!(made.status, 201);
    broker.stop();
    let bound = serde_json::from_str::<Value>(&made.body).unwrap()["bound_ns"].clone();
    let broker = start(&more);
    let flow = broker.get("/api/v1/flows/axis/1@press").ok();
    assert_eq!(flow["bound_ns"], bound);
}

/// `punctual store import` was stopped when all was there, and nothing was in its place yet.
#[test]
fn flows_of_an_import_that_was_stopped_are_there() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let broker = start(&format!("[server]\ndata = {:?}\n", at("data")));
    let asked = wanted("axis/1", "deadline=9ms, period=20ms, size=64");
    assert_eq!(broker.post("/api/v1/flows", &asked).status, 201);
    broker.stop();
    std::fs::create_dir(at("new")).unwrap();
    std::fs::rename(at("data"), at("new/imported")).unwrap();
    let broker = start(&format!("[server]\ndata = {:?}\n", at("new")));
    broker.get("/api/v1/flows/axis/1@press").ok();
}

#[test]
fn wrong_bodies_and_brokers_are_named() {
    let broker = Broker::start();
    let asked = wanted("a", "deadline=9ms, period=20ms");
    let error = broker.post("/api/v1/flows", &asked).refused(409);
    assert_eq!(error["field"], "admission.enabled");
    broker.get("/api/v1/network").refused(409);

    let broker = start("");
    for (body, field) in [
        (json!({"client": "c"}), Value::Null),
        (wanted("a/#", "deadline=9ms"), "topic".into()),
        (wanted("a", "deadline=soon"), "requirements".into()),
        (wanted("a", "priority=3"), "requirements".into()),
        (
            json!({"client": "", "topic": "a", "requirements": "deadline=9ms"}),
            "client".into(),
        ),
    ] {
        let error = broker.post("/api/v1/what-if", &body).refused(400);
        assert_eq!(error["field"], field, "{body}");
    }
    // What a form on a page of another site could send.
    let send = |head: &str| broker.send(&format!("{head}\r\nConnection: close\r\n\r\n{{}}"));
    let head = "POST /api/v1/flows HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2";
    send(head).refused(415);
    send(&format!("{head}\r\nContent-Type: text/plain")).refused(415);
    let large = "POST /api/v1/flows HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999";
    send(large).refused(413);
}
