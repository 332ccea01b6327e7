//! Handshakes are done on threads of their own, bounded in number and time, and what comes after
//! them reaches the broker.

#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod support;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::time::Duration;

use punctual_broker::{Event, Nanos};
use punctual_net::layer::{LayerConfig, WebSocketOptions};
use punctual_net::{Server, UdpOptions};

/// How long anything may take before a test fails.
const PATIENCE: Duration = Duration::from_secs(30);

/// Of a WebSocket client (RFC 6455, 1.2).
const UPGRADE: &[u8] = b"GET / HTTP/1.1\r\nHost: broker\r\nUpgrade: websocket\r\n\
    Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n";

/// A masked binary frame with CONNECT of MQTT 3.1.1, client identifier `c`.
const CONNECT: &[u8] = b"\x82\x8f\0\0\0\0\x10\x0d\0\x04MQTT\x04\x02\0\0\0\x01c";

fn server(connect_timeout: Nanos) -> Server {
    let mut options = support::options(UdpOptions::default());
    for listener in &mut options.listeners {
        listener.policy.layer = LayerConfig {
            websocket: Some(WebSocketOptions::default()),
            ..LayerConfig::default()
        };
    }
    options.broker.connect_timeout = connect_timeout;
    options.broker.limits.max_half_open = 2;
    Server::start(options).unwrap()
}

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.addresses()[1]).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Reads until what was read ends so.
fn read_until(stream: &mut TcpStream, end: &[u8]) -> Vec<u8> {
    let (mut bytes, mut byte) = (Vec::new(), [0]);
    while !bytes.ends_with(end) {
        stream.read_exact(&mut byte).unwrap();
        bytes.push(byte[0]);
    }
    bytes
}

/// Waits until the server has closed the connection.
fn assert_closed(stream: &mut TcpStream) {
    let mut answer = [0; 1024];
    while let Ok(1..) = stream.read(&mut answer) {}
}

#[test]
fn what_follows_a_handshake_at_once_reaches_the_broker() {
    let server = server(Nanos::from_secs(60));
    for parts in [1, 2, UPGRADE.len()] {
        let mut client = connect(&server);
        let bytes = [UPGRADE, CONNECT].concat();
        for part in bytes.chunks(bytes.len().div_ceil(parts)) {
            client.write_all(part).unwrap();
        }
        let answer = read_until(&mut client, b"\r\n\r\n");
        assert!(answer.starts_with(b"HTTP/1.1 101 "));
        let mut frame = [0; 6];
        client.read_exact(&mut frame).unwrap();
        assert_eq!(frame, *b"\x82\x04\x20\x02\0\0", "CONNACK, accepted");
    }
    server.shut_down();
}

#[test]
fn the_oldest_of_too_many_handshakes_is_given_up() {
    let mut server = server(Nanos::from_secs(60));
    let events = server.take_events().unwrap();
    let mut clients: Vec<_> = (0..3)
        .map(|_| {
            let mut client = connect(&server);
            client.write_all(&UPGRADE[..9]).unwrap();
            client
        })
        .collect();
    assert_closed(&mut clients[0]);
    let reason = events.iter().find_map(|event| match event {
        Event::Refused { reason, .. } => Some(reason),
        _ => None,
    });
    assert_eq!(
        reason.as_deref(),
        Some("too many connections without CONNECT")
    );
    for client in &mut clients[1..] {
        client.write_all(&UPGRADE[9..]).unwrap();
        read_until(client, b"\r\n\r\n");
    }
    server.shut_down();
}

#[test]
fn a_handshake_that_takes_too_long_is_given_up() {
    let server = server(Nanos::from_millis(100));
    let mut client = connect(&server);
    client.write_all(&UPGRADE[..9]).unwrap();
    assert_closed(&mut client);
    assert_eq!(server.counters().layer_errors.load(Ordering::Relaxed), 0);
    server.shut_down();
}

#[test]
fn what_is_no_handshake_is_answered_and_counted() {
    let server = server(Nanos::from_secs(60));
    let mut client = connect(&server);
    client.write_all(b"POST / HTTP/1.1\r\n\r\n").unwrap();
    let answer = read_until(&mut client, b"\r\n\r\n");
    assert!(answer.starts_with(b"HTTP/1.1 405 "), "{answer:?}");
    assert_closed(&mut client);
    let counters = server.counters();
    assert_eq!(counters.layer_errors.load(Ordering::Relaxed), 1);
    while counters.open.load(Ordering::Relaxed) > 0 {
        std::thread::yield_now();
    }
    server.shut_down();
}
