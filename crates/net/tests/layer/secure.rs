//! All layers on one another: PROXY header, TLS, WebSocket.

use punctual_net::layer::{
    ClientAddress, FrameError, Layer, LayerConfig, LayerError, WebSocketOptions,
};
use punctual_net::tls::{ClientCertificates, TlsAcceptor};

use crate::proxy::{LOCAL, PROXY, version_2};
use crate::support::{Pki, TlsClient, feed};
use crate::websocket::{BINARY, CLOSE, FIN, PING, REQUEST, TEXT, frame};

fn secure(acceptor: &TlsAcceptor, proxy: bool) -> Layer {
    let config = LayerConfig {
        proxy,
        tls: Some(acceptor.clone()),
        websocket: Some(WebSocketOptions::default()),
    };
    config.accept().unwrap()
}

/// Layer and client after both handshakes.
fn connected(pki: &Pki, step: usize) -> (Layer, TlsClient) {
    let mut layer = secure(&pki.server(ClientCertificates::Ignored), false);
    let mut client = TlsClient::new(&pki.client(None));
    client.talk(&mut layer, step).unwrap();
    assert!(!layer.established(), "only TLS is");
    client.send(REQUEST.as_bytes());
    client.talk(&mut layer, step).unwrap();
    assert!(layer.established() && !layer.is_plain());
    assert!(client.received.starts_with(b"HTTP/1.1 101 "));
    client.received.clear();
    (layer, client)
}

#[test]
fn frames_pass_both_ways_in_any_split() {
    let pki = Pki::new();
    let message: Vec<u8> = (0..50_000_u32).map(|n| (n % 253) as u8).collect();
    for step in [1, 33, 4096, usize::MAX] {
        let (mut layer, mut client) = connected(&pki, step);
        client.send(&frame(BINARY, &message[..20_000], [1, 2, 3, 4]));
        client.send(&frame(FIN | PING, b"there?", [0; 4]));
        client.send(&frame(FIN, &message[20_000..], [5, 6, 7, 8]));
        client.talk(&mut layer, step).unwrap();
        assert_eq!(client.delivered, message);
        assert_eq!(client.received, b"\x8a\x06there?");

        for length in [1, 16_380, 16_384, 50_000] {
            let mut wire = Vec::new();
            client.received.clear();
            layer.send(&message[..length], &mut wire).unwrap();
            client.input(&wire).unwrap();
            assert!(client.received.ends_with(&message[..length]));
            let header = client.received.len() - length;
            assert_eq!(header, if length < 126 { 2 } else { 4 });
        }
    }
}

#[test]
fn goodbye_passes_both_layers() {
    let pki = Pki::new();
    let (mut layer, mut client) = connected(&pki, usize::MAX);
    let mut wire = Vec::new();
    layer.close(&mut wire);
    layer.close(&mut wire);
    client.input(&wire).unwrap();
    assert_eq!(client.received, b"\x88\x02\x03\xe8");
    let state = client.connection.process_new_packets().unwrap();
    assert!(state.peer_has_closed());

    let (mut layer, mut client) = connected(&pki, usize::MAX);
    client.send(&frame(FIN | BINARY, b"last", [9; 4]));
    client.send(&frame(FIN | CLOSE, b"", [9; 4]));
    client.send(&frame(FIN | BINARY, b"never", [9; 4]));
    let fed = client.talk(&mut layer, usize::MAX).unwrap();
    assert!(fed.ended);
    assert_eq!(client.delivered, b"last");
    assert_eq!(client.received, b"\x88\x02\x03\xe8");
    let mut wire = Vec::new();
    layer.close(&mut wire);
    client.input(&wire).unwrap();
    let state = client.connection.process_new_packets().unwrap();
    assert!(state.peer_has_closed());

    // TLS may end without a word from WebSocket.
    let (mut layer, mut client) = connected(&pki, usize::MAX);
    client.connection.send_close_notify();
    assert!(client.talk(&mut layer, usize::MAX).unwrap().ended);
}

#[test]
fn answers_to_violations_are_encrypted() {
    let pki = Pki::new();
    let (mut layer, mut client) = connected(&pki, usize::MAX);
    client.send(&frame(FIN | TEXT, b"text", [9; 4]));
    let error = client.talk(&mut layer, usize::MAX).unwrap_err();
    assert_eq!(error, LayerError::Frame(FrameError::Text));
    assert_eq!(client.received, b"\x88\x02\x03\xeb");
    let state = client.connection.process_new_packets().unwrap();
    assert!(state.peer_has_closed());
    let mut wire = Vec::new();
    assert_eq!(layer.send(b"x", &mut wire), Err(LayerError::NotEstablished));
    layer.close(&mut wire);
    assert!(wire.is_empty());

    let mut layer = secure(&pki.server(ClientCertificates::Ignored), false);
    let mut client = TlsClient::new(&pki.client(None));
    client.talk(&mut layer, usize::MAX).unwrap();
    client.send(b"\x10\x0c\0\x04MQTT");
    let error = client.talk(&mut layer, usize::MAX).unwrap_err();
    assert_eq!(error.label(), "websocket-upgrade");
    assert!(client.received.starts_with(b"HTTP/1.1 400 "));
}

#[test]
fn our_tls_goes_before_what_the_proxy_claims() {
    let pki = Pki::new();
    pki.issue("robot-7", |_| {});
    let acceptor = pki.server(ClientCertificates::Required(pki.authority()));
    let claim = b"\x20\0\x0f\x07\0\0\0\0\x22\0\x07forgery";
    let addresses = b"\xc0\x00\x02\x07\xc6\x33\x64\x01\xc3\x50\x07\x5b";
    for (header, address) in [
        (
            version_2(PROXY, 0x11, &[addresses, claim]),
            ClientAddress::Told("192.0.2.7:50000".parse().unwrap()),
        ),
        (version_2(LOCAL, 0x00, &[]), ClientAddress::Socket),
    ] {
        let mut layer = secure(&acceptor, true);
        let mut client = TlsClient::new(&pki.client(Some("robot-7")));
        let first = [header, client.output()].concat();
        let fed = feed(&mut layer, &first, 11);
        client.input(&fed.wire).unwrap();
        client.send(REQUEST.as_bytes());
        client.talk(&mut layer, 11).unwrap();
        assert!(layer.established());
        let peer = layer.peer();
        assert_eq!(peer.client, address);
        assert_eq!(peer.common_name.as_deref(), Some("robot-7"));
        assert_eq!(peer.subject.as_deref(), Some("CN=robot-7"));
    }
}
