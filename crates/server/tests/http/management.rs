//! Clients, subscriptions and retained messages: listed, shown, ended, removed.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::log::Log;
use crate::support::{Broker, Mqtt, PATIENCE};

/// The texts with that key of a list.
fn each<'a>(list: &'a Value, key: &str) -> Vec<&'a str> {
    let entries = list.as_array().unwrap().iter();
    entries.map(|entry| entry[key].as_str().unwrap()).collect()
}

/// A text as it stands in a URL.
fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

#[test]
fn clients_are_listed_in_the_order_of_their_identifiers_page_by_page() {
    let broker = Broker::start();
    let ids = ["b", "a", "c/ü d", "e", "B"];
    let _clients: Vec<Mqtt> = ids
        .iter()
        .map(|id| Mqtt::connect(broker.tcp, id, 0))
        .collect();
    Mqtt::connect(broker.tcp, "away", 3600).disconnect();

    let all = broker.get("/api/v1/clients").ok();
    let sorted = ["B", "a", "away", "b", "c/ü d", "e"];
    assert_eq!(each(&all["clients"], "client_id"), sorted);
    assert_eq!(all["next"], Value::Null);

    let mut seen = Vec::new();
    let mut path = "/api/v1/clients?limit=2".to_owned();
    loop {
        let page = broker.get(&path).ok();
        let ids = each(&page["clients"], "client_id");
        assert_eq!(ids.len(), 2);
        seen.extend(ids.into_iter().map(str::to_owned));
        let Some(next) = page["next"].as_str() else {
            break;
        };
        path = format!("/api/v1/clients?limit=2&after={}", encoded(next));
    }
    assert_eq!(seen, sorted);

    let away = broker.get("/api/v1/clients?connected=false").ok();
    assert_eq!(each(&away["clients"], "client_id"), ["away"]);
    let here = broker.get("/api/v1/clients?connected=true&after=a").ok();
    assert_eq!(each(&here["clients"], "client_id"), ["b", "c/ü d", "e"]);
}

#[test]
fn a_client_is_shown_with_what_is_known_about_it() {
    let broker = Broker::start();
    let mut client = Mqtt::connect(broker.tcp, "c/ü d", u32::MAX);
    client.subscribe("x");
    let path = format!("/api/v1/clients/{}", encoded("c/ü d"));
    let shown = broker.get(&path).ok();
    assert_eq!(shown["client_id"], "c/ü d");
    assert_eq!(shown["connected"], true);
    assert_eq!(shown["protocol"], "5.0");
    assert_eq!(shown["listener"], format!("tcp://{}", broker.tcp));
    assert_eq!(shown["keep_alive_seconds"], 60);
    // As long as sessions may stay (limits.max_session_expiry).
    assert_eq!(shown["session_expiry_seconds"], 7 * 86_400);
    assert_eq!(shown["dropped"], 0);
    assert_eq!(shown["subscriptions"], 1);
    assert!(shown["address"].as_str().unwrap().starts_with("127.0.0.1:"));
    client.disconnect();
    let shown = broker.get(&path).ok();
    assert_eq!(shown["connected"], false);
    for key in ["address", "listener", "protocol", "connected_seconds"] {
        assert_eq!(shown[key], Value::Null, "{key}");
    }
    let error = broker.get("/api/v1/clients/nobody").refused(404);
    assert_eq!(
        (&error["field"], &error["value"]),
        (&json!("client_id"), &json!("nobody"))
    );
}

#[test]
fn a_client_is_disconnected_and_its_session_ended_if_asked_to() {
    let log = Log::of_all();
    let broker = Broker::start();
    let mut transient = Mqtt::connect(broker.tcp, "transient", 0);
    let ended = broker.delete("/api/v1/clients/transient").ok();
    assert_eq!(ended, json!({"disconnected": true, "session_ended": true}));
    // DISCONNECT, Administrative action.
    let (first, body) = transient.receive();
    assert_eq!((first, body[0]), (0xE0, 0x98));
    assert!(transient.is_closed());
    broker.delete("/api/v1/clients/transient").refused(404);

    let mut lasting = Mqtt::connect(broker.tcp, "lasting", 3600);
    let ended = broker.delete("/api/v1/clients/lasting").ok();
    assert_eq!(ended, json!({"disconnected": true, "session_ended": false}));
    assert_eq!(lasting.receive().0, 0xE0);
    let ended = broker.delete("/api/v1/clients/lasting").ok();
    assert_eq!(
        ended,
        json!({"disconnected": false, "session_ended": false})
    );
    let ended = broker.delete("/api/v1/clients/lasting?session=true").ok();
    assert_eq!(ended, json!({"disconnected": false, "session_ended": true}));
    broker.get("/api/v1/clients/lasting").refused(404);

    let mut both = Mqtt::connect(broker.tcp, "both", 3600);
    let ended = broker.delete("/api/v1/clients/both?session=true").ok();
    assert_eq!(ended, json!({"disconnected": true, "session_ended": true}));
    assert_eq!(both.receive().0, 0xE0);
    log.logged(&["client ended over HTTP", "both"]);
}

/// Without a word of it in the log nobody finds out why a device is not there.
#[test]
fn refused_clients_are_named_in_the_log() {
    let directory = tempfile::tempdir().unwrap();
    let passwords = directory.path().join("passwords");
    std::fs::write(&passwords, "").unwrap();
    let log = Log::of_all();
    let broker = Broker::with(&format!("[auth]\npassword_file = {passwords:?}\n"));
    let mut stream = TcpStream::connect(broker.tcp).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let connect = b"\x10\x19\x00\x04MQTT\x04\xC2\x00\x00\x00\x05press\x00\x03abc\x00\x01x";
    stream.write_all(connect).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, [0x20, 2, 0, 4]);
    log.logged(&[
        "client refused: ",
        "Bad User Name or Password",
        "client=\"press\"",
        "user=\"abc\"",
        "peer=127.0.0.1:",
    ]);
}

#[test]
fn subscriptions_are_listed_by_client_filter_and_topic() {
    let broker = Broker::start();
    let subscriptions = [
        ("b", "a/b"),
        ("b", "#"),
        ("a", "a/+"),
        ("a", "$share/g/a/b"),
        ("a", "z"),
    ];
    let mut clients = ["a", "b"].map(|id| (id, Mqtt::connect(broker.tcp, id, 0)));
    for (id, filter) in subscriptions {
        let client = clients.iter_mut().find(|(other, _)| *other == id);
        client.unwrap().1.subscribe(filter);
    }
    let listed = |query: &str| -> Vec<(String, String)> {
        let page = broker.get(&format!("/api/v1/subscriptions{query}")).ok();
        let entries = page["subscriptions"].as_array().unwrap().iter();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        entries
            .map(|entry| (text(&entry["client_id"]), text(&entry["filter"])))
            .collect()
    };
    let pairs = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        pairs
            .iter()
            .map(|(a, b)| ((*a).to_owned(), (*b).to_owned()))
            .collect()
    };
    let mut sorted = subscriptions;
    sorted.sort_unstable();
    assert_eq!(listed(""), pairs(&sorted));
    assert_eq!(listed("?client=b"), pairs(&[("b", "#"), ("b", "a/b")]));
    assert_eq!(listed("?client=nobody"), pairs(&[]));
    assert_eq!(listed("?filter=a/+"), pairs(&[("a", "a/+")]));
    assert_eq!(
        listed("?topic=a/b"),
        pairs(&[
            ("a", "$share/g/a/b"),
            ("a", "a/+"),
            ("b", "#"),
            ("b", "a/b")
        ])
    );
    assert_eq!(
        listed("?topic=a/b&client=a&filter=a/%2B"),
        pairs(&[("a", "a/+")])
    );

    let mut seen = Vec::new();
    let mut after = String::new();
    for _ in 0..3 {
        seen.extend(listed(&format!("?limit=2{after}")));
        let page = broker
            .get(&format!("/api/v1/subscriptions?limit=2{after}"))
            .ok();
        if let Some(next) = page["next"].as_str() {
            after = format!("&after={next}");
        }
    }
    assert_eq!(seen, pairs(&sorted));

    let page = broker.get("/api/v1/subscriptions?client=a&filter=z").ok();
    assert_eq!(
        page["subscriptions"][0],
        json!({
            "client_id": "a", "filter": "z", "qos": 1, "no_local": false,
            "retain_as_published": false, "subscription_id": null
        })
    );
}

#[test]
fn retained_messages_are_listed_shown_and_removed() {
    let log = Log::of_all();
    let broker = Broker::start();
    let mut client = Mqtt::connect(broker.tcp, "a", 0);
    for (topic, payload) in [
        ("x/b", &b"two"[..]),
        ("x/a", b"one"),
        ("x/c/d", b"\xff\x00"),
        ("/x//y", b"slashes"),
        ("ü b", b"words"),
    ] {
        client.retain(topic, payload);
    }
    let topics = |query: &str| -> Vec<String> {
        let page = broker.get(&format!("/api/v1/retained{query}")).ok();
        each(&page["messages"], "topic")
            .into_iter()
            .map(str::to_owned)
            .collect()
    };
    assert_eq!(topics(""), ["/x//y", "x/a", "x/b", "x/c/d", "ü b"]);
    assert_eq!(topics("?filter=x/+"), ["x/a", "x/b"]);
    assert_eq!(topics("?filter=x/a"), ["x/a"]);
    assert_eq!(topics("?filter=x/a&after=x/a"), [""; 0]);
    assert_eq!(topics("?filter=x/%23&after=x/a"), ["x/b", "x/c/d"]);
    let page = broker.get("/api/v1/retained?filter=x/%23&limit=2").ok();
    assert_eq!(page["next"], "x/b");
    assert_eq!(
        page["messages"][0],
        json!({
            "topic": "x/a", "qos": 1, "payload_bytes": 3, "payload": "b25l",
            "text": "one", "expires_seconds": null
        })
    );
    let page = broker
        .get("/api/v1/retained?filter=x/%23&limit=2&after=x/b")
        .ok();
    assert_eq!(page["next"], Value::Null);

    let binary = broker.get("/api/v1/retained/x/c/d").ok();
    assert_eq!(
        (&binary["payload"], &binary["text"]),
        (&json!("/wA="), &Value::Null)
    );
    assert_eq!(
        broker.get("/api/v1/retained/%C3%BC%20b").ok()["text"],
        "words"
    );
    assert_eq!(
        broker.delete("/api/v1/retained//x//y").ok(),
        json!({"topic": "/x//y"})
    );
    log.logged(&["retained message removed over HTTP", "/x//y"]);
    broker.delete("/api/v1/retained//x//y").refused(404);
    broker.get("/api/v1/retained//x//y").refused(404);
    assert_eq!(topics(""), ["x/a", "x/b", "x/c/d", "ü b"]);

    broker.delete("/api/v1/retained/x/+").refused(400);
    broker
        .delete("/api/v1/retained/%24SYS/broker/version")
        .refused(403);
    broker
        .get("/api/v1/retained?filter=%24share/g/x")
        .refused(400);
}

/// More than a shard looks at in one step.
#[test]
fn long_lists_are_complete() {
    let broker = Broker::start();
    let mut subscriber = Mqtt::connect(broker.tcp, "subscriber", 0);
    for n in 0..300 {
        subscriber.subscribe(&format!("t/{n:03}"));
    }
    for n in 0..300 {
        Mqtt::connect(broker.tcp, &format!("c{n:03}"), 3600).disconnect();
    }
    let clients = broker
        .get("/api/v1/clients?limit=1000&connected=false")
        .ok();
    let expected: Vec<String> = (0..300).map(|n| format!("c{n:03}")).collect();
    assert_eq!(each(&clients["clients"], "client_id"), expected);
    let expected: Vec<String> = (0..300).map(|n| format!("t/{n:03}")).collect();
    for query in ["", "&client=subscriber"] {
        let page = broker
            .get(&format!("/api/v1/subscriptions?limit=1000{query}"))
            .ok();
        assert_eq!(each(&page["subscriptions"], "filter"), expected);
        assert_eq!(page["next"], Value::Null);
    }
}

/// 1 MiB and one byte.
#[test]
fn large_retained_payloads_are_left_out() {
    let broker = Broker::start();
    let mut client = Mqtt::connect(broker.tcp, "a", 0);
    client.retain("large", &vec![b'x'; (1 << 20) + 1]);
    client.retain("full", &vec![b'x'; 1 << 20]);
    let large = broker.get("/api/v1/retained/large").ok();
    assert_eq!(large["payload_bytes"], (1 << 20) + 1);
    assert_eq!(
        (&large["payload"], &large["text"]),
        (&Value::Null, &Value::Null)
    );
    let full = broker.get("/api/v1/retained/full").ok();
    assert_eq!(full["text"].as_str().map(str::len), Some(1 << 20));
}
