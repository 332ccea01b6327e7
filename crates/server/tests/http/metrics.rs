//! The numbers, for Prometheus and as JSON.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use punctual_client::{Client, Endpoint, Event, Message, Options, QoS, Scheme};

use crate::support::{Broker, Mqtt, PATIENCE};

/// Reads the text format strictly: every family has HELP, TYPE and samples, in
/// one piece; no sample is there twice.
fn parse(text: &str) -> BTreeMap<String, f64> {
    let mut samples = BTreeMap::new();
    let mut families = HashSet::new();
    let (mut name, mut kind, mut count) = (String::new(), String::new(), 1);
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            assert!(count > 0, "{name} has no samples");
            let (family, words) = help.split_once(' ').unwrap();
            assert!(!words.is_empty());
            assert!(
                families.insert(family.to_owned()),
                "{family} is there twice"
            );
            let declared = lines.next().unwrap().strip_prefix("# TYPE ").unwrap();
            let (same, declared) = declared.split_once(' ').unwrap();
            assert_eq!(same, family);
            let known = ["counter", "gauge", "histogram"];
            assert!(known.contains(&declared), "{declared}");
            (name, kind, count) = (family.to_owned(), declared.to_owned(), 0);
            assert_eq!(kind == "counter", name.ends_with("_total"), "{name}");
            continue;
        }
        let (sample, value) = line.rsplit_once(' ').unwrap();
        let (family, labels) = sample.split_once('{').unwrap_or((sample, "}"));
        let parts = ["_bucket", "_sum", "_count"];
        let part = parts.iter().find_map(|part| family.strip_suffix(part));
        let part = part.filter(|_| kind == "histogram");
        assert_eq!(part.unwrap_or(family), name);
        assert!(labels.ends_with('}'), "{line}");
        let value: f64 = value.parse().unwrap();
        assert!(value >= 0.0, "{line}");
        assert!(
            samples.insert(sample.to_owned(), value).is_none(),
            "{sample} is there twice"
        );
        count += 1;
    }
    assert!(text.ends_with('\n') && !kind.is_empty());
    samples
}

#[test]
fn metrics_can_be_read_and_count() {
    let broker = Broker::start();
    let answer = broker.get("/metrics");
    assert_eq!(answer.status, 200);
    let kind = answer.header("content-type").unwrap();
    assert!(kind.starts_with("text/plain; version=0.0.4"), "{kind}");
    let before = parse(&answer.body);
    for name in [
        "punctual_messages_received_total{qos=\"1\"}",
        "punctual_clients_connected",
        "punctual_retained_messages",
        "punctual_disconnects_total{reason=\"administrative_action\"}",
    ] {
        assert_eq!(before.get(name).copied().unwrap_or_default(), 0.0, "{name}");
    }

    let mut client = Mqtt::connect(broker.tcp, "a", 0);
    client.subscribe("t/#");
    client.retain("x", b"12345");
    let _other = Mqtt::connect(broker.tcp, "b", 0);
    broker.delete("/api/v1/clients/b").ok();
    let after = parse(&broker.get("/metrics").body);
    for (name, value) in [
        ("punctual_shard_up{shard=\"0\"}", 1.0),
        ("punctual_shard_up{shard=\"1\"}", 1.0),
        ("punctual_messages_received_total{qos=\"0\"}", 0.0),
        ("punctual_messages_received_total{qos=\"1\"}", 1.0),
        ("punctual_payload_received_bytes_total", 5.0),
        (
            "punctual_messages_dropped_total{reason=\"queue_full\"}",
            0.0,
        ),
        (
            "punctual_messages_refused_total{reason=\"not_authorized\"}",
            0.0,
        ),
        ("punctual_connects_received_total", 2.0),
        (
            "punctual_disconnects_total{reason=\"administrative_action\"}",
            1.0,
        ),
        ("punctual_clients_connected", 1.0),
        ("punctual_sessions", 1.0),
        ("punctual_subscriptions", 1.0),
        ("punctual_retained_messages", 1.0),
        ("punctual_events_lost_total", 0.0),
    ] {
        assert_eq!(after.get(name), Some(&value), "{name}");
    }
    let version = format!(
        "punctual_build_info{{version=\"{}\"}}",
        env!("CARGO_PKG_VERSION")
    );
    assert_eq!(after.get(&version), Some(&1.0));
    let listener = format!(
        "punctual_listener_connections{{listener=\"tcp://{}\"}}",
        broker.tcp
    );
    assert!(after.contains_key(&listener));
    for name in [
        "process_resident_memory_bytes",
        "process_open_fds",
        "process_start_time_seconds",
    ] {
        assert!(after[name] > 0.0, "{name}");
    }
    for name in [
        "process_cpu_seconds_total",
        "punctual_event_loop_drift_seconds",
    ] {
        assert!(after.contains_key(name), "{name}");
    }
}

#[test]
fn what_is_stored_is_counted() {
    let data = tempfile::tempdir().unwrap();
    let broker = Broker::with(&format!("server.data = {:?}\n", data.path()));
    let mut kept = Mqtt::connect(broker.tcp, "kept", 100);
    kept.subscribe("t/#");
    kept.disconnect();
    let mut publisher = Mqtt::connect(broker.tcp, "p", 0);
    publisher.retain("t/a", b"12345");
    // What was acknowledged is safe, and was counted before.
    publisher.retain("t/b", b"12345");
    let metrics = parse(&broker.get("/metrics").body);
    let store = broker.get("/api/v1/store").ok();
    let same = [
        ("failing", None, 0.0),
        ("damages", Some("damages"), 0.0),
        ("failures_total", Some("failures"), 0.0),
        ("sessions", Some("sessions"), 1.0),
        ("entries", Some("entries"), 2.0),
        ("retained_messages", Some("retained"), 2.0),
        ("pauses_total", None, 0.0),
    ];
    for (name, field, value) in same {
        let found = metrics[&format!("punctual_store_{name}")];
        assert_eq!(found, value, "{name}");
        if let Some(field) = field {
            assert_eq!(store[field].as_f64(), Some(value), "{field}");
        }
    }
    assert!(store["failing"].is_null() && store["damaged"] == serde_json::json!([]));
    assert_eq!(store["messages"], 2);
    for name in ["live_bytes", "disk_bytes", "written_bytes"] {
        assert!(store[name].as_u64() > Some(0), "{name}");
    }
    for name in ["live_bytes", "disk_bytes", "written_bytes_total"] {
        assert!(metrics[&format!("punctual_store_{name}")] > 0.0, "{name}");
    }
    assert!(store["moved_bytes"].is_number());
    assert!(metrics.contains_key("punctual_store_moved_bytes_total"));
    for name in ["waiting_bytes", "waiting_seconds"] {
        assert!(metrics.contains_key(&format!("punctual_store_{name}")));
        assert!(store[name].is_number(), "{name}");
    }
    for name in ["commit_seconds", "wait_seconds", "group_bytes"] {
        let count = metrics[&format!("punctual_store_{name}_count")];
        assert!(count >= 1.0, "{name}");
        assert!(
            metrics[&format!("punctual_store_{name}_sum")] > 0.0,
            "{name}"
        );
    }
    for name in ["commit_seconds", "wait_seconds"] {
        assert!(store[name]["p99"].as_f64() > Some(0.0), "{name}");
    }
    assert!(store["commits"].as_u64() > Some(0));
    assert!(store["operations"].as_u64() >= store["written_operations"].as_u64());
    // Without one there is nothing to tell.
    let without = Broker::start();
    assert!(
        !without
            .get("/metrics")
            .body
            .contains("punctual_store_live_bytes")
    );
    assert_eq!(without.get("/api/v1/store").status, 409);
}

#[test]
fn the_same_numbers_are_there_as_json() {
    let broker = Broker::start();
    let mut client = Mqtt::connect(broker.tcp, "a", 0);
    client.retain("x", b"12345");
    let stats = broker.get("/api/v1/stats").ok();
    assert_eq!(stats["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(stats["shards"], serde_json::json!([true, true]));
    assert_eq!(stats["broker"]["publishes_received_qos1"], 1);
    assert_eq!(stats["broker"]["clients_connected"], 1);
    assert_eq!(stats["retained"]["messages"], 1);
    assert_eq!(stats["network"]["listeners"][0]["connections"], 1);
    broker.delete("/api/v1/clients/a").ok();
    let stats = broker.get("/api/v1/stats").ok();
    assert_eq!(stats["disconnects"]["administrative_action"], 1);
}

#[test]
fn messages_are_counted_by_class() {
    let broker = Broker::start();
    let mut awake = Mqtt::connect(broker.tcp, "awake", 0);
    awake.subscribe("t");
    let mut asleep = Mqtt::connect(broker.tcp, "asleep", 3600);
    asleep.subscribe("t");
    asleep.disconnect();
    let mut endpoint = Endpoint::new(Scheme::Tcp, "127.0.0.1");
    endpoint.port = broker.tcp.port();
    let (mut publisher, _) = Client::connect(Options {
        endpoint,
        ..Options::default()
    })
    .unwrap();
    let message = || Message::new("t", "x").qos(QoS::AtLeastOnce);
    let urgent = [
        message().priority(3),
        message().deadline(Duration::from_secs(10)),
    ];
    for message in urgent.into_iter().chain([message()]) {
        publisher.publish(&message).unwrap();
        let published = |event| matches!(event, Some(Event::Published { .. }));
        while !published(publisher.next(Some(PATIENCE)).unwrap()) {}
        assert_eq!(awake.receive().0 >> 4, 3);
    }
    let metrics = parse(&broker.get("/metrics").body);
    for class in ["realtime", "priority", "normal", "bulk"] {
        let one = if class == "bulk" { 0.0 } else { 1.0 };
        let urgent = if class == "normal" { 0.0 } else { one };
        for (name, labels, value) in [
            ("punctual_egress_sent_total", "", one),
            ("punctual_egress_queued_messages", "", one),
            ("punctual_egress_waiting_messages", "", 0.0),
            ("punctual_egress_wait_seconds_count", "", urgent),
            ("punctual_egress_held_seconds_count", "", 0.0),
            ("punctual_egress_depth_messages_count", "", urgent),
            ("punctual_egress_depth_messages_max", "", urgent),
            ("punctual_egress_dropped_total", ",reason=\"full\"", 0.0),
            ("punctual_egress_dropped_total", ",reason=\"late\"", 0.0),
            ("punctual_egress_dropped_total", ",reason=\"expired\"", 0.0),
            ("punctual_egress_dropped_total", ",reason=\"queue\"", 0.0),
            ("punctual_deadline_misses_total", "", 0.0),
        ] {
            let name = format!("{name}{{class=\"{class}\"{labels}}}");
            assert_eq!(metrics.get(&name), Some(&value), "{name}");
        }
    }
    let by_value = "punctual_egress_priority_wait_seconds_count{priority=\"3\"}";
    assert_eq!(metrics.get(by_value), Some(&1.0));
}
