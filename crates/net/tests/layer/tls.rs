//! TLS between a rustls client and the layer.

use punctual_net::layer::{ClientAddress, LayerError, PeerInfo};
use punctual_net::tls::{
    ClientAuthority, ClientCertificates, MinimumTls, TlsAcceptor, TlsServerOptions,
};
use rcgen::{SerialNumber, date_time_ymd};
use rustls::{AlertDescription, CertificateError, Error, HandshakeKind, PeerIncompatible};

use crate::support::{Pki, TlsClient, accept, feed};

#[test]
fn bytes_pass_both_ways_in_any_split() {
    let pki = Pki::new();
    let acceptor = pki.server(ClientCertificates::Ignored);
    let config = pki.client(None);
    let message: Vec<u8> = (0..100_000_u32).map(|n| (n % 251) as u8).collect();
    for step in [1, 2, 7, 100, 4095, 4096, 4097, 20_000, usize::MAX] {
        let mut layer = accept(&acceptor);
        let mut client = TlsClient::new(&config);
        assert!(!layer.established());
        client.talk(&mut layer, step).unwrap();
        assert!(layer.established());
        assert!(!layer.is_plain());

        client.send(&message);
        client.talk(&mut layer, step).unwrap();
        assert_eq!(client.delivered, message, "step {step}");

        let mut wire = Vec::new();
        layer.send(&message, &mut wire).unwrap();
        layer.send(b"", &mut wire).unwrap();
        layer.send(b"end", &mut wire).unwrap();
        client.input(&wire).unwrap();
        assert_eq!(client.received.len(), message.len() + 3);
        assert!(client.received.starts_with(&message) && client.received.ends_with(b"end"));
    }
}

#[test]
fn both_versions_are_spoken_and_told() {
    let pki = Pki::new();
    let acceptor = pki.server(ClientCertificates::Ignored);
    for (version, name, cipher) in [
        (&rustls::version::TLS12, "TLSv1.2", "TLS_ECDHE_ECDSA_"),
        (&rustls::version::TLS13, "TLSv1.3", "TLS_AES_"),
    ] {
        let mut layer = accept(&acceptor);
        let mut client = TlsClient::new(&pki.client_of(&[version], None));
        client.talk(&mut layer, usize::MAX).unwrap();
        let peer = layer.peer();
        assert_eq!(peer.tls_version.as_deref(), Some(name));
        assert_eq!(peer.server_name.as_deref(), Some("localhost"));
        assert!(peer.cipher.unwrap().starts_with(cipher));
        assert_eq!(
            (peer.common_name, peer.subject, peer.client),
            (None, None, ClientAddress::Socket)
        );
    }
}

#[test]
fn a_minimum_of_1_3_refuses_1_2() {
    let pki = Pki::new();
    let acceptor = TlsAcceptor::load(&TlsServerOptions {
        minimum: MinimumTls::V1_3,
        ..pki.server_options()
    })
    .unwrap();
    let mut layer = accept(&acceptor);
    let mut client = TlsClient::new(&pki.client_of(&[&rustls::version::TLS12], None));
    let error = client.talk(&mut layer, usize::MAX).unwrap_err();
    assert_eq!(
        error,
        LayerError::Tls(Error::PeerIncompatible(
            PeerIncompatible::Tls12NotOfferedOrEnabled
        ))
    );
    assert_eq!(error.label(), "tls");

    let mut client = TlsClient::new(&pki.client(None));
    client.talk(&mut accept(&acceptor), usize::MAX).unwrap();
}

/// Lengths of the records in `wire`.
fn records(mut wire: &[u8]) -> Vec<usize> {
    let mut lengths = Vec::new();
    while let Some((header, rest)) = wire.split_first_chunk::<5>() {
        let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
        lengths.push(length);
        wire = &rest[length..];
    }
    lengths
}

/// What encryption adds to the content of a record at most (RFC 5246 section 6.2.3).
const OVERHEAD: usize = 64;

#[test]
fn records_are_no_larger_than_configured() {
    let pki = Pki::new();
    let acceptor = TlsAcceptor::load(&TlsServerOptions {
        max_record: 512,
        ..pki.server_options()
    })
    .unwrap();
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let mut layer = accept(&acceptor);
        let mut client = TlsClient::new(&pki.client_of(&[version], None));
        let handshake = client.talk(&mut layer, usize::MAX).unwrap();
        let mut wire = handshake.wire;
        layer.send(&[7; 100_000], &mut wire).unwrap();
        let largest = records(&wire).into_iter().max().unwrap();
        assert!((512..=512 + OVERHEAD).contains(&largest), "{largest}");
    }
}

#[test]
fn records_are_no_larger_than_a_client_asks_for() {
    let pki = Pki::new();
    let acceptor = pki.server(ClientCertificates::Ignored);
    for (extension, limit) in [(&[0, 1, 0, 1, 1][..], 512), (&[0, 28, 0, 2, 1, 1], 256)] {
        let client = &mut TlsClient::new(&pki.client_of(&[&rustls::version::TLS12], None));
        let hello = with_extension(&client.output(), extension);
        for step in [1, 100, usize::MAX] {
            let mut layer = accept(&acceptor);
            let fed = feed(&mut layer, &hello, step);
            assert_eq!(fed.error, None);
            let lengths = records(&fed.wire);
            assert_eq!(lengths.iter().max(), Some(&limit), "{lengths:?}");
        }
        let fed = feed(&mut accept(&acceptor), &client_hello(&pki), usize::MAX);
        assert!(records(&fed.wire).into_iter().max() > Some(limit));
    }
}

fn client_hello(pki: &Pki) -> Vec<u8> {
    TlsClient::new(&pki.client_of(&[&rustls::version::TLS12], None)).output()
}

/// A ClientHello in one record with another extension at its end.
fn with_extension(hello: &[u8], extension: &[u8]) -> Vec<u8> {
    let mut hello = hello.to_vec();
    hello.extend(extension);
    let added = extension.len() as u16;
    let add = |hello: &mut Vec<u8>, at: usize| {
        let length = u16::from_be_bytes([hello[at], hello[at + 1]]) + added;
        hello[at..at + 2].copy_from_slice(&length.to_be_bytes());
    };
    add(&mut hello, 3);
    add(&mut hello, 7);
    // Record and message headers, version, random, session, suites, compression.
    let mut at = 5 + 4 + 2 + 32;
    at += 1 + usize::from(hello[at]);
    at += 2 + usize::from(u16::from_be_bytes([hello[at], hello[at + 1]]));
    at += 1 + usize::from(hello[at]);
    add(&mut hello, at);
    hello
}

#[test]
fn names_for_alpn_are_tolerated() {
    let pki = Pki::new();
    let acceptor = pki.server(ClientCertificates::Ignored);
    for names in [&["mqtt"][..], &["http/1.1"], &["x-amzn-mqtt-ca", "mqtt"]] {
        let mut config = (*pki.client(None)).clone();
        config.alpn_protocols = names.iter().map(|name| name.as_bytes().to_vec()).collect();
        let mut layer = accept(&acceptor);
        TlsClient::new(&config.into())
            .talk(&mut layer, usize::MAX)
            .unwrap();
        assert!(layer.established(), "{names:?}");
    }
}

#[test]
fn a_client_certificate_names_the_client() {
    let pki = Pki::new();
    pki.issue("robot-7", |params| {
        params
            .distinguished_name
            .push(rcgen::DnType::OrganizationName, "Factory, East");
    });
    for clients in [
        ClientCertificates::Required(pki.authority()),
        ClientCertificates::Optional(pki.authority()),
    ] {
        let acceptor = pki.server(clients);
        let mut layer = accept(&acceptor);
        TlsClient::new(&pki.client(Some("robot-7")))
            .talk(&mut layer, 50)
            .unwrap();
        let peer = layer.peer();
        assert_eq!(peer.common_name.as_deref(), Some("robot-7"));
        assert_eq!(
            peer.subject.as_deref(),
            Some("O=Factory\\, East,CN=robot-7")
        );
    }
}

#[test]
fn an_ignored_client_certificate_names_nobody() {
    let pki = Pki::new();
    pki.issue("robot-7", |_| {});
    let acceptor = pki.server(ClientCertificates::Ignored);
    let mut layer = accept(&acceptor);
    TlsClient::new(&pki.client(Some("robot-7")))
        .talk(&mut layer, usize::MAX)
        .unwrap();
    assert_eq!(layer.peer().common_name, None);
}

#[test]
fn a_client_without_certificate_is_refused_only_where_one_is_required() {
    let pki = Pki::new();
    let optional = pki.server(ClientCertificates::Optional(pki.authority()));
    let mut layer = accept(&optional);
    TlsClient::new(&pki.client(None))
        .talk(&mut layer, usize::MAX)
        .unwrap();
    assert!(layer.established());
    assert_eq!(layer.peer().subject, None);

    let required = pki.server(ClientCertificates::Required(pki.authority()));
    let mut layer = accept(&required);
    let mut client = TlsClient::new(&pki.client(None));
    let error = client.talk(&mut layer, usize::MAX).unwrap_err();
    assert_eq!(error, LayerError::Tls(Error::NoCertificatesPresented));
    assert_eq!(error.label(), "tls-client-certificate");
    assert!(!layer.established());
    assert_eq!(layer.peer().subject, None);
}

/// The error that the layer has for this client, where certificates are required.
fn refusal(pki: &Pki, authority: ClientAuthority, client: &str) -> Option<CertificateError> {
    let acceptor = pki.server(ClientCertificates::Required(authority));
    let mut layer = accept(&acceptor);
    match TlsClient::new(&pki.client(Some(client))).talk(&mut layer, usize::MAX) {
        Ok(_) => None,
        Err(LayerError::Tls(Error::InvalidCertificate(error))) => {
            assert_eq!(layer.peer().common_name, None);
            Some(error)
        }
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn client_certificates_of_another_authority_or_time_are_refused() {
    let pki = Pki::new();
    pki.issue("valid", |_| {});
    pki.issue("expired", |params| {
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(2002, 1, 1);
    });
    pki.issue("future", |params| {
        params.not_before = date_time_ymd(4000, 1, 1);
        params.not_after = date_time_ymd(4001, 1, 1);
    });
    let stranger = Pki::new();
    let of_stranger = ClientAuthority {
        ca: stranger.path("ca.pem"),
        crl: None,
    };
    assert_eq!(refusal(&pki, pki.authority(), "valid"), None);
    assert!(matches!(
        refusal(&pki, pki.authority(), "expired"),
        Some(CertificateError::ExpiredContext { .. })
    ));
    assert!(matches!(
        refusal(&pki, pki.authority(), "future"),
        Some(CertificateError::NotValidYetContext { .. })
    ));
    assert!(matches!(
        refusal(&pki, of_stranger, "valid"),
        Some(CertificateError::UnknownIssuer | CertificateError::BadSignature)
    ));
    // A certificate for servers only.
    assert!(matches!(
        refusal(&pki, pki.authority(), "server"),
        Some(CertificateError::InvalidPurposeContext { .. })
    ));
}

#[test]
fn revoked_client_certificates_are_refused() {
    let pki = Pki::new();
    pki.issue("good", |params| {
        params.serial_number = Some(SerialNumber::from(7_u64));
    });
    pki.issue("bad", |params| {
        params.serial_number = Some(SerialNumber::from(8_u64));
    });
    let with_list = |crl| ClientAuthority {
        crl: Some(crl),
        ..pki.authority()
    };
    let list = pki.revoke(&[8], 4000);
    assert_eq!(refusal(&pki, with_list(list.clone()), "good"), None);
    assert_eq!(
        refusal(&pki, with_list(list), "bad"),
        Some(CertificateError::Revoked)
    );
    let expired = pki.revoke(&[8], 2025);
    assert!(matches!(
        refusal(&pki, with_list(expired), "good"),
        Some(CertificateError::ExpiredRevocationListContext { .. })
    ));
    // The list of another authority says nothing about our clients.
    let other = Pki::named("Other CA");
    assert_eq!(
        refusal(&pki, with_list(other.revoke(&[], 4000)), "good"),
        Some(CertificateError::UnknownRevocationStatus)
    );
}

#[test]
fn a_client_that_does_not_trust_us_is_counted_apart() {
    let pki = Pki::new();
    let acceptor = pki.server(ClientCertificates::Ignored);
    let config = Pki::named("Other CA").client(None);
    let error = TlsClient::new(&config)
        .talk(&mut accept(&acceptor), usize::MAX)
        .unwrap_err();
    assert_eq!(
        error,
        LayerError::Tls(Error::AlertReceived(AlertDescription::UnknownCA))
    );
    assert_eq!(error.label(), "tls-alert");
}

#[test]
fn sessions_are_resumed_until_the_reload() {
    let pki = Pki::new();
    pki.issue("robot-7", |_| {});
    let acceptor = pki.server(ClientCertificates::Required(pki.authority()));
    let reloaded = pki.server(ClientCertificates::Required(pki.authority()));
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let config = pki.client_of(&[version], Some("robot-7"));
        let connect = |acceptor: &TlsAcceptor| -> (Option<HandshakeKind>, PeerInfo) {
            let mut layer = accept(acceptor);
            let mut client = TlsClient::new(&config);
            client.talk(&mut layer, usize::MAX).unwrap();
            (client.connection.handshake_kind(), layer.peer())
        };
        assert_eq!(connect(&acceptor).0, Some(HandshakeKind::Full));
        let (kind, peer) = connect(&acceptor);
        assert_eq!(kind, Some(HandshakeKind::Resumed));
        assert_eq!(peer.common_name.as_deref(), Some("robot-7"));
        assert_eq!(connect(&reloaded).0, Some(HandshakeKind::Full));
    }
}

#[test]
fn connections_outlive_the_acceptor() {
    let pki = Pki::new();
    let acceptor = pki.server(ClientCertificates::Ignored);
    let mut layer = accept(&acceptor);
    let mut client = TlsClient::new(&pki.client(None));
    client.talk(&mut layer, usize::MAX).unwrap();
    drop(acceptor);
    client.send(b"still here");
    assert_eq!(client.talk(&mut layer, 3).unwrap().app, b"still here");
}

#[test]
fn goodbye_from_either_side() {
    let pki = Pki::new();
    let acceptor = pki.server(ClientCertificates::Ignored);
    let config = pki.client(None);

    let mut layer = accept(&acceptor);
    let mut client = TlsClient::new(&config);
    client.talk(&mut layer, usize::MAX).unwrap();
    client.send(b"last words");
    client.connection.send_close_notify();
    let fed = client.talk(&mut layer, usize::MAX).unwrap();
    assert!(fed.ended);
    assert_eq!(fed.app, b"last words");

    let mut layer = accept(&acceptor);
    let mut client = TlsClient::new(&config);
    client.talk(&mut layer, usize::MAX).unwrap();
    let mut wire = Vec::new();
    layer.send(b"last words", &mut wire).unwrap();
    layer.close(&mut wire);
    let length = wire.len();
    layer.close(&mut wire);
    assert_eq!(wire.len(), length, "one goodbye is enough");
    assert_eq!(
        layer.send(b"more", &mut wire),
        Err(LayerError::NotEstablished)
    );
    client.input(&wire).unwrap();
    assert_eq!(client.received, b"last words");
    // What the client still says is not taken.
    client.send(b"more");
    assert_eq!(client.talk(&mut layer, usize::MAX).unwrap().app, b"");
}

#[test]
fn nothing_is_sent_before_the_handshake() {
    let pki = Pki::new();
    let acceptor = pki.server(ClientCertificates::Ignored);
    let mut layer = accept(&acceptor);
    let mut wire = Vec::new();
    assert_eq!(
        layer.send(b"early", &mut wire),
        Err(LayerError::NotEstablished)
    );
    assert!(wire.is_empty());
}

#[test]
fn plain_mqtt_is_told_apart() {
    let pki = Pki::new();
    let acceptor = pki.server(ClientCertificates::Ignored);
    let connect = b"\x10\x0c\0\x04MQTT\x04\x02\0\x3c\0\0";
    let fed = feed(&mut accept(&acceptor), connect, usize::MAX);
    assert_eq!(fed.error, Some(LayerError::NotTls { first: 0x10 }));
    assert!(fed.wire.is_empty() && fed.app.is_empty());
}

#[test]
fn garbage_after_the_first_byte_is_answered_with_an_alert() {
    let pki = Pki::new();
    let acceptor = pki.server(ClientCertificates::Ignored);
    let mut layer = accept(&acceptor);
    let fed = feed(&mut layer, &[22; 64], 1);
    assert!(matches!(fed.error, Some(LayerError::Tls(_))), "{fed:?}");
    assert_eq!(fed.wire.first(), Some(&21), "an alert record");
    // Dead from now on, without another error or byte.
    let fed = feed(&mut layer, &[22; 64], 1);
    assert_eq!((fed.error, fed.wire.len()), (None, 0));
}

#[test]
fn a_changed_record_is_refused() {
    let pki = Pki::new();
    let acceptor = pki.server(ClientCertificates::Ignored);
    let mut layer = accept(&acceptor);
    let mut client = TlsClient::new(&pki.client(None));
    client.talk(&mut layer, usize::MAX).unwrap();
    client.send(b"secret");
    let mut record = client.output();
    *record.last_mut().unwrap() ^= 1;
    let fed = feed(&mut layer, &record, usize::MAX);
    assert_eq!(fed.error, Some(LayerError::Tls(Error::DecryptError)));
    assert!(fed.app.is_empty());
    assert_eq!(
        client.input(&fed.wire),
        Err(Error::AlertReceived(AlertDescription::BadRecordMac))
    );
    let mut wire = Vec::new();
    assert_eq!(
        layer.send(b"more", &mut wire),
        Err(LayerError::NotEstablished)
    );
    layer.close(&mut wire);
    assert!(wire.is_empty());
}
