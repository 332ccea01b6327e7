//! The interface as a whole: health, configuration, description, refusals, end.

use std::io::Read as _;
use std::net::TcpStream;

use serde_json::Value;

use crate::support::{Broker, Mqtt, PATIENCE};

#[test]
fn a_running_broker_is_alive_and_ready() {
    let broker = Broker::start();
    assert_eq!(broker.get("/healthz").ok()["status"], "ok");
    assert_eq!(broker.get("/readyz").ok()["status"], "ready");
    // A request of a load balancer, and one of a client that stays connected.
    let answer = broker.send("GET /readyz HTTP/1.0\r\n\r\n");
    assert_eq!(answer.status, 200);
    let two = "GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned()
        + "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let mut stream = TcpStream::connect(broker.http).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    std::io::Write::write_all(&mut stream, two.as_bytes()).unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 2, "{answers}");
}

#[test]
fn the_configuration_in_force_is_shown_and_follows_a_reload() {
    let broker = Broker::with("limits.max_sessions = 5\nlimits.topic_cache = 20\n");
    let config = broker.get("/api/v1/config").ok();
    assert_eq!(config["values"]["limits.max_sessions"], "5");
    assert_eq!(config["values"]["server.http"], "\"127.0.0.1:0\"");
    assert_eq!(config["restart_needed"], serde_json::json!([]));
    broker.reload("limits.max_sessions = 6\nlimits.topic_cache = 30\n");
    let config = broker.get("/api/v1/config").ok();
    assert_eq!(config["values"]["limits.max_sessions"], "6");
    assert_eq!(config["values"]["limits.topic_cache"], "20");
    assert_eq!(
        config["restart_needed"],
        serde_json::json!(["limits.topic_cache"])
    );
}

#[test]
fn every_path_allows_the_methods_that_are_described() {
    let broker = Broker::start();
    let document = broker.get("/api/v1/openapi.json").ok();
    assert_eq!(document["openapi"], "3.1.0");
    for (path, operations) in document["paths"].as_object().unwrap() {
        let concrete = path.replace("{id}", "x").replace("{topic}", "x/y");
        let answer = broker.request("PUT", &concrete);
        answer.refused(405);
        let mut allowed: Vec<_> = answer.header("allow").unwrap().split(',').collect();
        allowed.sort_unstable();
        let methods = operations.as_object().unwrap().keys();
        let mut described: Vec<_> = methods.filter(|key| *key != "parameters").collect();
        described.sort_unstable();
        let described = described
            .into_iter()
            .flat_map(|method| match method.as_str() {
                "get" => vec!["GET", "HEAD"],
                "delete" => vec!["DELETE"],
                "post" => vec!["POST"],
                other => panic!("{other} is not expected"),
            });
        assert_eq!(allowed, described.collect::<Vec<_>>(), "{path}");
    }
}

/// Every `$ref` of the description leads somewhere.
#[test]
fn the_description_is_complete() {
    fn check(node: &Value, document: &Value) {
        if let Some(reference) = node.get("$ref") {
            let pointer = reference.as_str().unwrap().strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{pointer}");
        }
        match node {
            Value::Object(map) => map.values().for_each(|child| check(child, document)),
            Value::Array(list) => list.iter().for_each(|child| check(child, document)),
            _ => {}
        }
    }
    let broker = Broker::start();
    let document = broker.get("/api/v1/openapi.json").ok();
    check(&document, &document);
    // The fields of what is shown are those that are described.
    let mut client = Mqtt::connect(broker.tcp, "a", 0);
    client.subscribe("x");
    client.retain("y", b"z");
    for (path, schema) in [
        ("/api/v1/clients/a", "Client"),
        ("/api/v1/retained/y", "Retained"),
        ("/api/v1/stats", "Stats"),
        ("/api/v1/config", "Config"),
    ] {
        let shown = broker.get(path).ok();
        let described = &document["components"]["schemas"][schema]["properties"];
        // What is shown only in some cases is said to be absent in the others.
        let optional = |field: &Value| {
            let description = field["description"].as_str();
            description.is_some_and(|text| text.contains("absent without"))
        };
        let described = described.as_object().unwrap();
        let described = described
            .iter()
            .filter(|(key, field)| !shown[*key].is_null() || !optional(field))
            .map(|(key, _)| key);
        let shown: Vec<&String> = shown.as_object().unwrap().keys().collect();
        assert_eq!(shown, described.collect::<Vec<_>>(), "{schema}");
    }
}

#[test]
fn wrong_parameters_are_named_with_value_and_remedy() {
    let broker = Broker::start();
    for (path, field, value) in [
        ("/api/v1/clients?limit=0", "limit", "0"),
        ("/api/v1/clients?limit=1001", "limit", "1001"),
        ("/api/v1/clients?limit=many", "limit", "many"),
        ("/api/v1/clients?connected=1", "connected", "1"),
        ("/api/v1/clients?limits=5", "limits", "5"),
        ("/api/v1/clients?limit=5&limit=6", "limit", "6"),
        ("/api/v1/clients/x?session=true", "session", "true"),
        ("/api/v1/subscriptions?filter=a%23", "filter", "a#"),
        ("/api/v1/subscriptions?topic=a/+", "topic", "a/+"),
        ("/api/v1/subscriptions?after=nowhere", "after", "nowhere"),
        ("/api/v1/retained?filter=", "filter", ""),
        ("/api/v1/retained/a%00b", "topic", "a\0b"),
        ("/api/v1/stats?pretty=1", "pretty", "1"),
        ("/metrics?x=y", "x", "y"),
        ("/healthz?x=y", "x", "y"),
        ("/api/v1/clients/%FF", "path", "/api/v1/clients/%FF"),
    ] {
        let error = broker.get(path).refused(400);
        assert_eq!(
            (&error["field"], &error["value"]),
            (&field.into(), &value.into()),
            "{path}"
        );
    }
    broker
        .delete("/api/v1/clients/x?session=perhaps")
        .refused(400);
    for path in [
        "/",
        "/api/v1",
        "/api/v1/retained/",
        "/api/v1/clients/",
        "/healthz/",
        "/../x",
    ] {
        broker.get(path).refused(404);
    }
    broker.request("POST", "/healthz").refused(405);
    broker.request("OPTIONS", "/api/v1/clients").refused(405);
}

#[test]
fn other_names_and_bodies_are_refused() {
    let broker = Broker::start();
    let send = |head: &str| broker.send(&format!("{head}\r\nConnection: close\r\n\r\n"));
    for host in ["evil.example", "127.0.0.1.evil.example:80", ""] {
        let error = send(&format!(
            "DELETE /api/v1/clients/x HTTP/1.1\r\nHost: {host}"
        ));
        assert_eq!(error.refused(421)["value"], host);
    }
    send("GET http://evil.example/healthz HTTP/1.1\r\nHost: localhost").refused(421);
    send("GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: localhost").refused(400);
    send("GET /healthz HTTP/1.1").refused(400);
    send("DELETE /api/v1/clients/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2").refused(413);
    send("GET /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked").refused(413);
    for host in ["localhost", "LOCALHOST:80", "[::1]:8080", "192.0.2.1"] {
        send(&format!("GET /healthz HTTP/1.1\r\nHost: {host}")).ok();
    }
}

#[test]
fn configured_names_are_let_in() {
    let broker = Broker::with("server.http_names = [\"broker.example\"]\n");
    let get = |host: &str| {
        broker.send(&format!(
            "GET /healthz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        ))
    };
    get("Broker.example:8080").ok();
    get("other.example").refused(421);
}

#[test]
fn the_interface_ends_with_the_broker() {
    let broker = Broker::start();
    let mut idle = TcpStream::connect(broker.http).unwrap();
    idle.set_read_timeout(Some(PATIENCE)).unwrap();
    // Answered, so that the connection before it is accepted too.
    broker.get("/readyz").ok();
    broker.stop();
    assert_eq!(idle.read(&mut [0]).unwrap(), 0);
    assert!(TcpStream::connect(broker.http).is_err());
}
