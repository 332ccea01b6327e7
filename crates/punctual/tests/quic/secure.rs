//! Certificates and protocol names.

use std::process::Command;

use punctual_client::{Error, Message, QoS, Scheme};

use crate::broker::{Broker, PATIENCE, PUNCTUAL, connect, message, publish, subscribe};

#[test]
fn a_certificate_of_a_stranger_is_refused_with_the_remedy() {
    let broker = Broker::start("", "");
    let mut options = broker.options("c");
    options.endpoint.tls.ca_file = Some(broker.file("other.pem"));
    let error = connect(options).err().unwrap();
    assert!(matches!(error, Error::Tls(_)), "{error}");
    assert!(error.to_string().contains("CA file"), "{error}");

    let mut options = broker.options("c");
    options.endpoint.tls.server_name = Some("elsewhere".into());
    let error = connect(options.clone()).err().unwrap();
    assert!(error.to_string().contains("name"), "{error}");
    options.endpoint.tls.insecure = true;
    connect(options).unwrap();
}

#[test]
fn a_protocol_that_is_not_mqtt_is_refused() {
    let broker = Broker::start("", "");
    let mut options = broker.options("c");
    options.endpoint.tls.alpn = vec!["h3".into()];
    let error = connect(options).err().unwrap();
    assert!(error.to_string().contains("ALPN"), "{error}");
    broker.wait_for("the end", || broker.connections() == 0);
    assert_eq!(broker.metric("punctual_quic_handshakes_failed_total "), 1);
}

#[test]
fn a_client_certificate_may_be_required_and_be_the_user() {
    let more = "[auth]\nacl_file = \"DIR/acl\"\n";
    let listener = "require_client_certificate = true\nuse_identity_as_username = true";
    let broker = Broker::start_with(
        listener,
        more,
        &[("acl", "user tester\ntopic readwrite own\n")],
    );
    let error = connect(broker.options("c")).err().unwrap();
    assert!(error.to_string().contains("client certificate"), "{error}");

    let mut options = broker.options("c");
    options.endpoint.tls.cert_file = Some(broker.file("client.pem"));
    options.endpoint.tls.key_file = Some(broker.file("client.key"));
    let mut client = connect(options).unwrap();
    subscribe(&mut client, "own", QoS::AtMostOnce);
    publish(&mut client, "own", b"1", QoS::AtLeastOnce);
    assert_eq!(message(&mut client).message.payload, b"1");
}

/// New connections get the new certificate; those that exist go on.
#[test]
fn a_certificate_is_replaced_by_reloading() {
    let broker = Broker::start("", "");
    let mut before = broker.client("before");
    subscribe(&mut before, "t", QoS::AtMostOnce);
    for end in ["pem", "key"] {
        let new = broker.file(&format!("other-server.{end}"));
        std::fs::copy(new, broker.file(&format!("server.{end}"))).unwrap();
    }
    broker.signal(libc::SIGHUP);
    let mut after = None;
    broker.wait_for("the new certificate", || {
        let mut options = broker.options("after");
        options.endpoint.tls.ca_file = Some(broker.file("other.pem"));
        after = connect(options).ok();
        after.is_some()
    });
    let mut after = after.unwrap();
    publish(&mut after, "t", b"1", QoS::AtLeastOnce);
    assert_eq!(message(&mut before).message.payload, b"1");
    assert!(connect(broker.options("late")).is_err());
}

#[test]
fn tools_name_the_remedy() {
    let broker = Broker::start("", "");
    let port = broker.quic.port().to_string();
    let output = Command::new(PUNCTUAL)
        .args([
            "pub",
            "-t",
            "t",
            "-m",
            "x",
            "-h",
            "127.0.0.1",
            "-p",
            &port,
            "--quic",
        ])
        .arg("--cafile")
        .arg(broker.file("other.pem"))
        .output()
        .unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("CA file"), "{said}");
}

/// A broker with these two files as certificate and key, by QUIC and TLS.
fn broker_with(certificate: &str, key: &str) -> Broker {
    let more = "[[listener]]\naddress = \"tls://127.0.0.1:0\"\n\
                certificate = \"DIR/server.pem\"\nkey = \"DIR/server.key\"\n";
    let files = [("server.pem", certificate), ("server.key", key)];
    Broker::start_with("", more, &files)
}

/// The certificates of docs/quic.md work; that of the authority is not one for a
/// server, and who uses it like that is told.
#[test]
fn certificates_are_made_as_documented() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/quic.md");
    let page = std::fs::read_to_string(page).unwrap();
    let lines: Vec<&str> = page
        .lines()
        .filter(|line| line.starts_with("openssl "))
        .collect();
    assert_eq!(lines.len(), 3, "{lines:?}");
    let dir = tempfile::tempdir().unwrap();
    for line in lines {
        let mut shell = Command::new("sh");
        let output = shell.args(["-c", line]).current_dir(&dir).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {said}");
    }
    let file = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
    let good = broker_with(&file("server.crt"), &file("server.key"));
    let bad = broker_with(&file("ca.crt"), &file("ca.key"));
    for scheme in [Scheme::Quic, Scheme::Tls] {
        let options = |broker: &Broker| {
            let mut options = broker.options("c");
            options.endpoint.scheme = scheme;
            options.endpoint.port = broker.port(scheme);
            options.endpoint.tls.ca_file = Some(dir.path().join("ca.crt"));
            options
        };
        connect(options(&good)).unwrap();
        let error = connect(options(&bad)).err().unwrap();
        assert!(matches!(error, Error::Tls(_)), "{error}");
        let said = error.to_string();
        assert!(
            said.contains("basicConstraints=CA:FALSE"),
            "{scheme:?}: {said}"
        );
        assert!(!said.contains("OtherError"), "{said}");
    }
}

#[test]
fn a_listener_without_certificate_is_a_mistake() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("p.toml");
    for (listener, words) in [
        ("address = \"quic://*\"", "needs a certificate"),
        (
            "address = \"quic://*\"\ncertificate = \"c\"\nkey = \"k\"\nrate = \"1Mbit\"",
            "no UDP listener",
        ),
        (
            "address = \"quic://*\"\ncertificate = \"c\"\nkey = \"k\"\nproxy_protocol = true",
            "PROXY",
        ),
    ] {
        std::fs::write(&file, format!("[[listener]]\n{listener}\n")).unwrap();
        let output = Command::new(PUNCTUAL)
            .args(["config", "check"])
            .arg(&file)
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains(words), "{said}");
    }
}

/// A broker that knows nothing of a connection of its predecessor's says so, and
/// is believed because it has the same key.
#[test]
fn a_broker_that_was_replaced_says_that_connections_are_gone() {
    let mut broker = Broker::start("", "");
    let mut client = broker.client("c");
    broker.replace();
    let topic = Message::new("t", b"x".to_vec()).qos(QoS::AtLeastOnce);
    client.publish(&topic).unwrap();
    let error = loop {
        match client.next(Some(PATIENCE)) {
            Ok(event) => assert!(event.is_some(), "the end"),
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains("knows nothing"), "{error}");
    broker.client("c");
}
