//! WebSocket: the upgrade, frames of every kind, and a foreign client (tungstenite).

use proptest::prelude::*;
use punctual_net::layer::{
    FrameError, Layer, LayerConfig, LayerError, MAX_UPGRADE_BYTES, Origins, UpgradeError,
    WebSocketOptions,
};
use tungstenite::handshake::client::generate_request;
use tungstenite::protocol::Role;
use tungstenite::{Message, WebSocket};

use crate::support::{Fed, Memory, config, feed};

pub(crate) const CONTINUATION: u8 = 0x0;
pub(crate) const TEXT: u8 = 0x1;
pub(crate) const BINARY: u8 = 0x2;
pub(crate) const CLOSE: u8 = 0x8;
pub(crate) const PING: u8 = 0x9;
pub(crate) const PONG: u8 = 0xa;
pub(crate) const FIN: u8 = 0x80;

/// The request of RFC 6455 section 1.2, with our subprotocol.
pub(crate) const REQUEST: &str = "GET /mqtt HTTP/1.1\r\n\
    Host: server.example.com\r\n\
    Upgrade: websocket\r\n\
    Connection: Upgrade\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
    Sec-WebSocket-Protocol: mqtt\r\n\
    Sec-WebSocket-Version: 13\r\n\r\n";

const ANSWER: &str = "HTTP/1.1 101 Switching Protocols\r\n\
    Upgrade: websocket\r\n\
    Connection: Upgrade\r\n\
    Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\
    Sec-WebSocket-Protocol: mqtt\r\n\r\n";

fn listener(options: WebSocketOptions) -> Layer {
    let config = LayerConfig {
        websocket: Some(options),
        ..LayerConfig::default()
    };
    config.accept().unwrap()
}

fn any_path() -> Layer {
    listener(WebSocketOptions::default())
}

fn only_path(path: &str) -> Layer {
    listener(WebSocketOptions {
        path: Some(path.into()),
        ..WebSocketOptions::default()
    })
}

/// A layer with the upgrade behind it.
fn upgraded() -> Layer {
    let mut layer = any_path();
    let fed = feed(&mut layer, REQUEST.as_bytes(), usize::MAX);
    assert_eq!((fed.error, layer.established()), (None, true));
    layer
}

/// A frame as a client sends it; `first` holds flags and opcode.
pub(crate) fn frame(first: u8, payload: &[u8], mask: [u8; 4]) -> Vec<u8> {
    let mut frame = vec![first];
    match payload.len() {
        length @ 0..=125 => frame.push(0x80 | length as u8),
        length @ 126..=0xffff => {
            frame.push(0x80 | 126);
            frame.extend_from_slice(&(length as u16).to_be_bytes());
        }
        length => {
            frame.push(0x80 | 127);
            frame.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    frame.extend_from_slice(&mask);
    frame.extend(payload.iter().zip(mask.iter().cycle()).map(|(p, m)| p ^ m));
    frame
}

const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

fn close_frame(code: u16) -> Vec<u8> {
    let [high, low] = code.to_be_bytes();
    vec![FIN | CLOSE, 2, high, low]
}

#[test]
fn the_upgrade_of_the_rfc_is_answered_as_in_the_rfc() {
    for step in [1, 3, 100, usize::MAX] {
        let mut layer = any_path();
        let fed = feed(&mut layer, REQUEST.as_bytes(), step);
        assert_eq!(fed.error, None);
        assert_eq!(String::from_utf8(fed.wire).unwrap(), ANSWER);
        assert!(layer.established() && !layer.is_plain());
    }
}

#[test]
fn bytes_right_after_the_request_are_frames() {
    let mut bytes = REQUEST.as_bytes().to_vec();
    bytes.extend(frame(FIN | BINARY, b"MQTT", MASK));
    for step in [1, 5, usize::MAX] {
        let fed = feed(&mut any_path(), &bytes, step);
        assert_eq!((fed.error, &fed.app[..]), (None, &b"MQTT"[..]));
    }
}

#[test]
fn header_names_and_tokens_have_no_case() {
    let request = "GET / HTTP/1.1\r\nHOST: x\r\nupgrade: WebSocket\r\n\
        CONNECTION: keep-alive, UPGRADE\r\nsec-websocket-key:dGhlIHNhbXBsZSBub25jZQ==\r\n\
        sec-websocket-protocol: mqttv3.1 ,mqtt\r\nSEC-WEBSOCKET-VERSION: 13\r\n\r\n";
    let fed = feed(&mut any_path(), request.as_bytes(), usize::MAX);
    assert_eq!(fed.error, None);
    assert_eq!(String::from_utf8(fed.wire).unwrap(), ANSWER);
}

/// The status line and the error for a request.
fn refused(layer: &mut Layer, request: &str) -> (String, UpgradeError) {
    let fed = feed(layer, request.as_bytes(), 100);
    let Some(LayerError::Upgrade(error)) = fed.error else {
        panic!("{request:?} was not refused: {fed:?}");
    };
    let answer = String::from_utf8(fed.wire).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(
        head.contains(&format!("Content-Length: {}", body.len())),
        "{answer}"
    );
    assert!(!layer.established());
    // Nothing is taken or said any more.
    let after = feed(layer, request.as_bytes(), 100);
    assert!(after.error.is_none() && after.wire.is_empty() && after.app.is_empty());
    let mut wire = Vec::new();
    layer.close(&mut wire);
    assert!(wire.is_empty());
    (head.to_owned(), error)
}

#[test]
fn the_listener_may_name_a_path() {
    for target in ["/mqtt", "/mqtt?room=4", "http://server.example.com/mqtt"] {
        let request = REQUEST.replacen("/mqtt", target, 1);
        let fed = feed(&mut only_path("/mqtt"), request.as_bytes(), usize::MAX);
        assert_eq!(fed.error, None, "{target}");
    }
    for target in [
        "/",
        "/mqtt/",
        "/MQTT",
        "/?/mqtt",
        "http://server.example.com",
    ] {
        let request = REQUEST.replacen("/mqtt", target, 1);
        let (head, error) = refused(&mut only_path("/mqtt"), &request);
        assert_eq!(error, UpgradeError::Path, "{target}");
        assert!(head.starts_with("HTTP/1.1 404 "), "{head}");
        let fed = feed(&mut any_path(), request.as_bytes(), usize::MAX);
        assert_eq!(fed.error, None, "{target}");
    }
}

#[test]
fn the_listener_may_name_origins() {
    let origins = |origin: &str| {
        listener(WebSocketOptions {
            origins: Origins {
                listed: [origin.to_owned()].into(),
                names: false,
            },
            ..WebSocketOptions::default()
        })
    };
    let page = REQUEST.replace("Upgrade:", "Origin: http://example.com\r\nUpgrade:");
    let fed = feed(&mut origins("http://EXAMPLE.com"), page.as_bytes(), 9);
    assert_eq!(fed.error, None);
    let mut factory = origins("https://factory.example");
    let fed = feed(&mut factory, REQUEST.as_bytes(), 9);
    assert_eq!(fed.error, None, "no browser");
    let twice = page.replace("Origin:", "Origin: https://factory.example\r\nOrigin:");
    for request in [&page, &twice] {
        let (head, error) = refused(&mut origins("https://factory.example"), request);
        assert!(head.starts_with("HTTP/1.1 403 "), "{head}");
        assert!(matches!(error, UpgradeError::Origin(_)));
    }
}

#[test]
fn pages_from_elsewhere_are_refused_unless_they_are_listed() {
    let page = |host: &str, origin: &str| {
        let request = REQUEST.replace("server.example.com", host);
        request.replace("Upgrade:", &format!("Origin: {origin}\r\nUpgrade:"))
    };
    for (host, origin) in [
        ("127.0.0.1:8083", "https://evil.example"),
        ("rebound.evil.example:8083", "https://evil.example"),
        // A name that was made to lead here after the page was loaded.
        (
            "rebound.evil.example:8083",
            "http://rebound.evil.example:8083",
        ),
        ("127.0.0.1:8083", "null"),
    ] {
        let (head, error) = refused(&mut any_path(), &page(host, origin));
        assert!(head.starts_with("HTTP/1.1 403 "), "{head}");
        assert!(error.to_string().contains("websocket_origins"), "{error}");
    }
    for (host, origin) in [
        ("127.0.0.1:8083", "http://127.0.0.1:8083"),
        ("localhost:8083", "http://localhost:8083"),
    ] {
        let fed = feed(&mut any_path(), page(host, origin).as_bytes(), 9);
        assert_eq!(fed.error, None, "{origin}");
    }
}

#[test]
fn requests_that_are_no_upgrade_are_refused_with_the_right_status() {
    let without = |header: &str| {
        let start = REQUEST.find(header).unwrap();
        let end = start + REQUEST[start..].find("\r\n").unwrap() + 2;
        REQUEST[..start].to_owned() + &REQUEST[end..]
    };
    let many = REQUEST.replace("Host:", &("X: y\r\n".repeat(64) + "Host:"));
    for (request, status, expected) in [
        (without("Upgrade:"), "426 ", UpgradeError::NotUpgrade),
        (without("Connection:"), "426 ", UpgradeError::NotUpgrade),
        (
            REQUEST.replace("13\r\n", "8\r\n"),
            "426 ",
            UpgradeError::NotUpgrade,
        ),
        (
            REQUEST.replace("HTTP/1.1", "HTTP/1.0"),
            "426 ",
            UpgradeError::NotUpgrade,
        ),
        (
            "GET / HTTP/1.1\r\nHost: x\r\n\r\n".into(),
            "426 ",
            UpgradeError::NotUpgrade,
        ),
        (REQUEST.replace("GET", "POST"), "405 ", UpgradeError::Method),
        (without("Sec-WebSocket-Key:"), "400 ", UpgradeError::Key),
        (REQUEST.replace("dGhl", ""), "400 ", UpgradeError::Key),
        (REQUEST.replace("dGhl", "d*hl"), "400 ", UpgradeError::Key),
        (
            without("Sec-WebSocket-Protocol:"),
            "400 ",
            UpgradeError::Subprotocol,
        ),
        (
            REQUEST.replace(": mqtt\r", ": soap, wamp\r"),
            "400 ",
            UpgradeError::Subprotocol,
        ),
        (
            REQUEST.replace(": mqtt\r", ": MQTT\r"),
            "400 ",
            UpgradeError::Subprotocol,
        ),
        (
            REQUEST.replace("Host:", "Ho st:"),
            "400 ",
            UpgradeError::NotHttp,
        ),
        (
            REQUEST.replace("HTTP/1.1", "HTTP/2"),
            "400 ",
            UpgradeError::NotHttp,
        ),
        (many, "431 ", UpgradeError::TooLong),
    ] {
        let (head, error) = refused(&mut any_path(), &request);
        assert_eq!(error, expected, "{request}");
        let wanted = format!("HTTP/1.1 {status}");
        assert!(head.starts_with(&wanted), "{request} got {head}");
        assert_eq!(head.contains("Sec-WebSocket-Version: 13"), status == "426 ");
        assert_eq!(head.contains("Allow: GET"), status == "405 ");
    }
}

#[test]
fn a_long_request_is_cut_off() {
    let padding = |bytes: usize| {
        let request = REQUEST.replace("Host:", "X-Padding: \r\nHost:");
        let missing = bytes - request.len();
        request.replace(
            "X-Padding: ",
            &format!("X-Padding: {}", "x".repeat(missing)),
        )
    };
    let fits = padding(MAX_UPGRADE_BYTES);
    assert_eq!(fits.len(), MAX_UPGRADE_BYTES);
    assert_eq!(feed(&mut any_path(), fits.as_bytes(), 1000).error, None);
    let (head, error) = refused(&mut any_path(), &padding(MAX_UPGRADE_BYTES + 1));
    assert_eq!(error, UpgradeError::TooLong);
    assert!(head.starts_with("HTTP/1.1 431 "));
}

#[test]
fn other_protocols_are_refused_at_their_first_byte() {
    for bytes in [
        &b"\x10\x0c\0\x04MQTT"[..],
        b"\x16\x03\x01",
        b"\xff",
        b"\r\n",
    ] {
        let fed = feed(&mut any_path(), bytes, 1);
        assert_eq!(fed.error, Some(LayerError::Upgrade(UpgradeError::NotHttp)));
        assert!(fed.wire.starts_with(b"HTTP/1.1 400 "));
    }
}

/// RFC 6455 section 5.7.
#[test]
fn the_examples_of_the_rfc() {
    // "A single-frame masked text message", made binary.
    let hello = b"\x82\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58";
    assert_eq!(feed(&mut upgraded(), hello, 1).app, b"Hello");
    // "A fragmented unmasked text message", masked and made binary.
    let mut parts = frame(BINARY, b"Hel", MASK);
    parts.extend(frame(FIN | CONTINUATION, b"lo", MASK));
    assert_eq!(feed(&mut upgraded(), &parts, 1).app, b"Hello");
    // "Unmasked Ping request and masked Ping response", with the roles changed.
    let fed = feed(
        &mut upgraded(),
        b"\x89\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58",
        1,
    );
    assert_eq!(fed.wire, b"\x8a\x05Hello");
    // "256 bytes" and "64KiB binary message in a single unmasked frame".
    let mut wire = Vec::new();
    upgraded().send(&[7; 256], &mut wire).unwrap();
    assert_eq!(
        (&wire[..4], wire.len()),
        (&b"\x82\x7e\x01\x00"[..], 4 + 256)
    );
    let mut wire = Vec::new();
    upgraded().send(&[7; 65536], &mut wire).unwrap();
    assert_eq!(&wire[..10], b"\x82\x7f\0\0\0\0\0\x01\0\0");
    assert_eq!(wire.len(), 10 + 65536);
}

#[test]
fn each_send_makes_one_frame() {
    let mut layer = upgraded();
    let mut wire = Vec::new();
    for length in [1, 125, 126, 65535] {
        wire.clear();
        layer.send(&vec![9; length], &mut wire).unwrap();
        let header = if length < 126 { 2 } else { 4 };
        assert_eq!(wire.len(), header + length);
        assert!(wire[header..].iter().all(|byte| *byte == 9));
    }
    wire.clear();
    layer.send(b"", &mut wire).unwrap();
    assert!(wire.is_empty());
}

#[test]
fn nothing_is_sent_before_the_upgrade() {
    let mut layer = any_path();
    let mut wire = Vec::new();
    assert_eq!(layer.send(b"x", &mut wire), Err(LayerError::NotEstablished));
    layer.close(&mut wire);
    assert!(wire.is_empty());
}

/// Feeds an upgraded layer one byte at a time.
fn after_upgrade(bytes: &[u8]) -> Fed {
    let fed = feed(&mut upgraded(), bytes, 1);
    let whole = feed(&mut upgraded(), bytes, usize::MAX);
    assert_eq!((&fed.app, &fed.wire), (&whole.app, &whole.wire));
    assert_eq!((&fed.error, fed.ended), (&whole.error, whole.ended));
    fed
}

#[test]
fn violations_close_with_the_right_code() {
    let in_message = frame(BINARY, b"begin", MASK);
    let after = |more: &[u8]| [&in_message[..], more].concat();
    let header = |first: u8, second: u8, length: &[u8]| [&[first, second], length, &MASK].concat();
    for (bytes, expected, code) in [
        // [MQTT-6.0.0-1]
        (frame(FIN | TEXT, b"text", MASK), FrameError::Text, 1003),
        (frame(TEXT, b"te", MASK), FrameError::Text, 1003),
        (b"\x82\x05Hello".to_vec(), FrameError::Unmasked, 1002),
        (b"\x82\x00".to_vec(), FrameError::Unmasked, 1002),
        (b"\x89\x00".to_vec(), FrameError::Unmasked, 1002),
        (
            frame(FIN | 0x40 | BINARY, b"", MASK),
            FrameError::ReservedBits,
            1002,
        ),
        (
            frame(FIN | 0x20 | BINARY, b"", MASK),
            FrameError::ReservedBits,
            1002,
        ),
        (
            frame(FIN | 0x10 | PING, b"", MASK),
            FrameError::ReservedBits,
            1002,
        ),
        (
            frame(FIN | 0x3, b"", MASK),
            FrameError::ReservedOpcode(3),
            1002,
        ),
        (
            frame(FIN | 0xf, b"", MASK),
            FrameError::ReservedOpcode(15),
            1002,
        ),
        (
            frame(FIN | CONTINUATION, b"", MASK),
            FrameError::Continuation,
            1002,
        ),
        (
            after(&frame(FIN | BINARY, b"", MASK)),
            FrameError::Continuation,
            1002,
        ),
        (after(&frame(FIN | TEXT, b"", MASK)), FrameError::Text, 1003),
        (frame(PING, b"", MASK), FrameError::Control, 1002),
        (frame(CLOSE, b"", MASK), FrameError::Control, 1002),
        (
            frame(FIN | PING, &[0; 126], MASK),
            FrameError::Control,
            1002,
        ),
        (
            frame(FIN | PONG, &[0; 70_000], MASK),
            FrameError::Control,
            1002,
        ),
        (header(0x82, 0xfe, b"\0\x7d"), FrameError::Length, 1002),
        (
            header(0x82, 0xff, b"\0\0\0\0\0\0\xff\xff"),
            FrameError::Length,
            1002,
        ),
        (
            header(0x82, 0xff, b"\x80\0\0\0\0\0\0\0"),
            FrameError::Length,
            1002,
        ),
        (
            frame(FIN | CLOSE, b"\x03", MASK),
            FrameError::CloseCode,
            1002,
        ),
        (
            frame(FIN | CLOSE, b"\x03\xee", MASK),
            FrameError::CloseCode,
            1002,
        ),
        (
            frame(FIN | CLOSE, b"\0\0", MASK),
            FrameError::CloseCode,
            1002,
        ),
        (
            frame(FIN | CLOSE, b"\xff\xff", MASK),
            FrameError::CloseCode,
            1002,
        ),
        (
            frame(FIN | CLOSE, b"\x03\xe8\xff", MASK),
            FrameError::CloseReason,
            1007,
        ),
    ] {
        let fed = after_upgrade(&bytes);
        assert_eq!(fed.error, Some(LayerError::Frame(expected)), "{bytes:x?}");
        assert_eq!(fed.wire, close_frame(code), "{expected}");
    }
}

#[test]
fn what_came_before_a_violation_is_delivered_and_nothing_after() {
    let mut layer = upgraded();
    let bytes = [
        frame(FIN | BINARY, b"good", MASK),
        frame(FIN | TEXT, b"bad", MASK),
        frame(FIN | BINARY, b"late", MASK),
    ]
    .concat();
    let fed = feed(&mut layer, &bytes, usize::MAX);
    assert_eq!(fed.app, b"good");
    let fed = feed(&mut layer, &frame(FIN | BINARY, b"later", MASK), usize::MAX);
    assert!(fed.app.is_empty() && fed.wire.is_empty() && fed.error.is_none());
    let mut wire = Vec::new();
    assert_eq!(layer.send(b"x", &mut wire), Err(LayerError::NotEstablished));
    layer.close(&mut wire);
    assert!(wire.is_empty(), "one close frame is enough");
}

#[test]
fn the_peer_may_close() {
    for (payload, code) in [
        (&b""[..], 1000),
        (b"\x03\xe8", 1000),
        (b"\x03\xe9going away", 1001),
        (b"\x0f\xa0", 4000),
    ] {
        let bytes = [
            frame(FIN | BINARY, b"last", MASK),
            frame(FIN | CLOSE, payload, MASK),
            frame(FIN | BINARY, b"never", MASK),
        ]
        .concat();
        let fed = after_upgrade(&bytes);
        assert_eq!((fed.ended, fed.error), (true, None));
        assert_eq!(fed.app, b"last");
        assert_eq!(fed.wire, close_frame(code));
    }
}

#[test]
fn we_may_close() {
    let mut layer = upgraded();
    let mut wire = Vec::new();
    layer.close(&mut wire);
    layer.close(&mut wire);
    assert_eq!(wire, close_frame(1000));
    assert_eq!(layer.send(b"x", &mut wire), Err(LayerError::NotEstablished));
    let fed = feed(&mut layer, &frame(FIN | BINARY, b"late", MASK), usize::MAX);
    assert!(fed.app.is_empty());
}

#[test]
fn control_frames_come_in_the_middle_of_messages() {
    let bytes = [
        frame(BINARY, b"one ", MASK),
        frame(FIN | PING, b"first", MASK),
        frame(CONTINUATION, b"two ", [1, 2, 3, 4]),
        frame(FIN | PONG, b"unasked", MASK),
        frame(FIN | PING, &[5; 125], MASK),
        frame(CONTINUATION, b"", MASK),
        frame(FIN | CONTINUATION, b"three", MASK),
        frame(FIN | BINARY, b"", MASK),
        frame(FIN | PING, b"", [0; 4]),
    ]
    .concat();
    let fed = after_upgrade(&bytes);
    assert_eq!(fed.app, b"one two three");
    assert_eq!(
        fed.wire,
        [&b"\x8a\x05first"[..], b"\x8a\x7d", &[5; 125], b"\x8a\x00"].concat()
    );
}

#[derive(Debug, Clone)]
struct Part {
    payload: Vec<u8>,
    mask: [u8; 4],
    last: bool,
    ping: Option<Vec<u8>>,
}

fn part() -> impl Strategy<Value = Part> {
    let length = prop_oneof![4 => 0..300_usize, 1 => 65_530..65_545_usize];
    let ping = proptest::option::weighted(0.3, proptest::collection::vec(any::<u8>(), 0..=125));
    (length, any::<[u8; 4]>(), any::<bool>(), any::<u8>(), ping).prop_map(
        |(length, mask, last, seed, ping)| Part {
            payload: (0..length).map(|n| seed.wrapping_add(n as u8)).collect(),
            mask,
            last,
            ping,
        },
    )
}

proptest! {
    #![proptest_config(config(200))]

    /// Whatever the frames, fragments, masks and splits: the same application bytes.
    #[test]
    fn frames_are_only_a_wrapping(
        parts in proptest::collection::vec(part(), 0..20),
        steps in proptest::collection::vec(1..2000_usize, 1..20),
    ) {
        let mut bytes = REQUEST.as_bytes().to_vec();
        let (mut app, mut pongs) = (Vec::<u8>::new(), Vec::new());
        let mut in_message = false;
        for part in &parts {
            if let Some(ping) = &part.ping {
                bytes.extend(frame(FIN | PING, ping, part.mask));
                pongs.extend([FIN | PONG, ping.len() as u8]);
                pongs.extend(ping);
            }
            let opcode = if in_message { CONTINUATION } else { BINARY };
            let fin = if part.last { FIN } else { 0 };
            bytes.extend(frame(fin | opcode, &part.payload, part.mask));
            app.extend(&part.payload);
            in_message = !part.last;
        }
        let mut layer = any_path();
        let (mut got, mut wire) = (Vec::new(), Vec::new());
        let mut rest = &bytes[..];
        for step in steps.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (now, later) = rest.split_at(rest.len().min(*step));
            rest = later;
            let before = got.len();
            prop_assert!(layer.received(now, &mut got, &mut wire).is_ok());
            prop_assert!(got.len() - before <= now.len());
        }
        prop_assert_eq!(got, app);
        prop_assert_eq!(&wire[..ANSWER.len()], ANSWER.as_bytes());
        prop_assert_eq!(&wire[ANSWER.len()..], &pongs[..]);
    }
}

/// A foreign implementation on the other side.
#[test]
fn tungstenite_understands_us() {
    use tungstenite::client::IntoClientRequest;

    let mut request = "ws://localhost/mqtt".into_client_request().unwrap();
    let protocol = "mqtt".parse().unwrap();
    request
        .headers_mut()
        .insert("Sec-WebSocket-Protocol", protocol);
    let (request, key) = generate_request(request).unwrap();
    let mut layer = any_path();
    let answer = String::from_utf8(feed(&mut layer, &request, 10).wire).unwrap();
    let accept = tungstenite::handshake::derive_accept_key(key.as_bytes());
    assert!(answer.contains(&accept), "{answer}");

    let mut client = WebSocket::from_raw_socket(Memory::default(), Role::Client, None);
    let long = vec![3; 100_000];
    client.send(Message::binary(b"short".to_vec())).unwrap();
    client
        .send(Message::Ping(b"there?".to_vec().into()))
        .unwrap();
    client.send(Message::binary(long.clone())).unwrap();
    let sent = std::mem::take(&mut client.get_mut().sent);
    let fed = feed(&mut layer, &sent, 999);
    assert_eq!((fed.app.len(), fed.error), (5 + long.len(), None));

    client.get_mut().to_read.extend(fed.wire);
    let mut wire = Vec::new();
    layer.send(b"reply", &mut wire).unwrap();
    layer.send(&long, &mut wire).unwrap();
    layer.close(&mut wire);
    client.get_mut().to_read.extend(wire);
    assert_eq!(
        client.read().unwrap(),
        Message::Pong(b"there?".to_vec().into())
    );
    assert_eq!(client.read().unwrap(), Message::binary(b"reply".to_vec()));
    assert_eq!(client.read().unwrap(), Message::binary(long));
    let Message::Close(Some(close)) = client.read().unwrap() else {
        panic!("no close frame");
    };
    assert_eq!(u16::from(close.code), 1000);

    // It says goodbye first.
    let mut layer = upgraded();
    let mut client = WebSocket::from_raw_socket(Memory::default(), Role::Client, None);
    client.close(None).unwrap();
    let fed = feed(&mut layer, &client.get_ref().sent, 1);
    assert!(fed.ended);
    client.get_mut().to_read.extend(fed.wire);
    assert!(matches!(client.read(), Ok(Message::Close(_))));
}
