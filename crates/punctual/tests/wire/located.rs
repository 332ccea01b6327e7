//! Where clients are: on this machine or not, behind a proxy or not, in a browser or not.

use std::io::Write as _;

use crate::broker::Broker;
use crate::build::{Connect, V5, V311};
use crate::conn::{Conn, unique};

/// Its listener is one behind a proxy, and lets clients without a user name in from this machine.
fn behind_proxy(allow_anonymous: &str) -> Option<Broker> {
    Broker::with_config(&format!(
        "[[listener]]\naddress = \"tcp://127.0.0.1:0\"\nproxy_protocol = true\n\
         allow_anonymous = {allow_anonymous}\n"
    ))
}

/// PROXY header of version 2 with that command and family.
fn version_2(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
    let head = [&b"\r\n\r\n\0\r\nQUIT\n"[..], &[0x20 | command, family, 0]].concat();
    [&head[..], &[body.len() as u8], body].concat()
}

/// Headers of remote clients, and of clients that the proxy does not tell the address of.
fn remote() -> Vec<(&'static str, Vec<u8>)> {
    let text = |text: &str| text.as_bytes().to_vec();
    let v4 = b"\xcb\x00\x71\x09\x7f\x00\x00\x01\x15\xb3\x07\x5b";
    vec![
        (
            "text, IPv4",
            text("PROXY TCP4 203.0.113.9 127.0.0.1 5555 1883\r\n"),
        ),
        (
            "text, IPv6",
            text("PROXY TCP6 2001:db8::9 ::1 5555 1883\r\n"),
        ),
        ("text, unknown", text("PROXY UNKNOWN\r\n")),
        ("IPv4", version_2(1, 0x11, v4)),
        ("unspecified", version_2(1, 0x00, &[])),
        ("Unix", version_2(1, 0x31, &[0; 216])),
    ]
}

/// Headers of clients on this machine, and of the proxy, which is there.
fn local() -> Vec<(&'static str, Vec<u8>)> {
    let text = |text: &str| text.as_bytes().to_vec();
    let v4 = b"\xcb\x00\x71\x09\x7f\x00\x00\x01\x15\xb3\x07\x5b";
    vec![
        (
            "text, IPv4",
            text("PROXY TCP4 127.0.0.1 127.0.0.1 5555 1883\r\n"),
        ),
        ("text, IPv6", text("PROXY TCP6 ::1 ::1 5555 1883\r\n")),
        ("the proxy itself", version_2(0, 0x00, &[])),
        ("the proxy itself, with addresses", version_2(0, 0x11, v4)),
    ]
}

fn open(broker: &Broker, name: &str, header: &[u8]) -> Conn {
    let mut conn = Conn::open_to(broker, V5).named(name);
    let connect = Connect::new(V5, unique("c")).encode();
    conn.send([header, &connect].concat());
    conn
}

/// Who is local is decided by what the proxy tells, also when that comes byte by byte.
#[test]
fn remote_clients_of_a_local_proxy_are_not_local() {
    let Some(broker) = behind_proxy("\"loopback\"") else {
        return;
    };
    for (name, header) in remote() {
        open(&broker, name, &header).refused(&[0x87]);
    }
    for (name, header) in local() {
        assert_eq!(open(&broker, name, &header).connack().code, 0, "{name}");
    }
    let Some(broker) = behind_proxy("true") else {
        return;
    };
    for (name, header) in remote().into_iter().chain(local()) {
        assert_eq!(open(&broker, name, &header).connack().code, 0, "{name}");
    }
}

/// What is refused is told of with the address of the client, not with that of the proxy.
#[test]
fn the_log_has_the_address_that_the_proxy_tells() {
    let Some(broker) = behind_proxy("\"loopback\"") else {
        return;
    };
    for level in [V311, V5] {
        let mut conn = Conn::open_to(&broker, level);
        let connect = Connect::new(level, unique("c")).encode();
        conn.send(
            [
                &b"PROXY TCP4 203.0.113.9 127.0.0.1 5555 1883\r\n"[..],
                &connect,
            ]
            .concat(),
        );
        conn.refused(if level == V5 { &[0x87] } else { &[5] });
    }
    broker.log().until(0, "203.0.113.9:5555");
}

/// A page from elsewhere may not open a WebSocket, nor one whose name was made to lead here; who
/// is no browser may, and so may a page from here.
#[test]
fn pages_from_elsewhere_are_not_let_in() {
    let Some(address) = Broker::shared().ws() else {
        return;
    };
    let here = format!("http://{address}");
    for (host, origin, status) in [
        (address.to_string(), None, "101"),
        (address.to_string(), Some(&*here), "101"),
        (address.to_string(), Some("https://evil.example"), "403"),
        (address.to_string(), Some("null"), "403"),
        ("evil.example".into(), Some("http://evil.example"), "403"),
    ] {
        let origin = origin.map(|origin| format!("Origin: {origin}\r\n"));
        let request = format!(
            "GET /mqtt HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Protocol: mqtt\r\n{}\r\n",
            origin.as_deref().unwrap_or_default()
        );
        let mut tcp = std::net::TcpStream::connect(address).expect("connect");
        tcp.write_all(request.as_bytes()).expect("send the request");
        let head = crate::websocket::head(&mut tcp).0;
        assert!(
            head.starts_with(&format!("http/1.1 {status} ")),
            "{origin:?}: {head}"
        );
    }
}
