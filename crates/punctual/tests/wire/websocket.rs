//! MQTT over WebSocket (section 6), with frames built by hand (RFC 6455).

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::broker::Broker;
use crate::build::{Connect, Level, Props, Publish, V5, V31, V311, pingreq, subscribe};
use crate::conn::{Conn, Stream, unique};
use crate::parse::Packet;

const CONTINUATION: u8 = 0x0;
const TEXT: u8 = 0x1;
const BINARY: u8 = 0x2;
const CLOSE: u8 = 0x8;
const PING: u8 = 0x9;
const PONG: u8 = 0xA;
const FIN: u8 = 0x80;
/// What clients mask their frames with; any value does.
const MASK: [u8; 4] = [0x12, 0xA4, 0x5C, 0xF1];

/// A WebSocket as a stream of the bytes in its binary frames. Writing makes
/// one frame for each piece of `piece` bytes.
pub(crate) struct WebSocket {
    tcp: TcpStream,
    piece: usize,
    /// Received bytes that are not yet a whole frame.
    raw: Vec<u8>,
    /// Payload of binary frames, not yet read.
    payload: Vec<u8>,
    ended: bool,
}

fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first];
    match payload.len() {
        length @ 0..=125 => bytes.push(0x80 | length as u8),
        length @ 126..=65_535 => {
            bytes.push(0x80 | 126);
            bytes.extend((length as u16).to_be_bytes());
        }
        length => {
            bytes.push(0x80 | 127);
            bytes.extend((length as u64).to_be_bytes());
        }
    }
    bytes.extend(MASK);
    bytes.extend(
        payload
            .iter()
            .zip(MASK.iter().cycle())
            .map(|(byte, mask)| byte ^ mask),
    );
    bytes
}

impl WebSocket {
    /// Upgrades a connection; writes are cut into frames of `piece` bytes.
    pub(crate) fn upgrade(mut tcp: TcpStream, piece: usize) -> Self {
        let (head, raw) = handshake(&mut tcp, "Sec-WebSocket-Protocol: mqtt\r\n");
        assert!(head.starts_with("http/1.1 101 "), "{head}");
        Self {
            tcp,
            piece,
            raw,
            payload: Vec::new(),
            ended: false,
        }
    }

    /// Takes a whole frame off the received bytes: its first byte and payload.
    fn take_frame(&mut self) -> io::Result<Option<(u8, Vec<u8>)>> {
        let raw = &self.raw;
        let (Some(&first), Some(&second)) = (raw.first(), raw.get(1)) else {
            return Ok(None);
        };
        if second & 0x80 != 0 {
            return Err(io::Error::other("a server does not mask its frames"));
        }
        let extended = match second {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        let Some(bytes) = raw.get(2..2 + extended) else {
            return Ok(None);
        };
        let length = match extended {
            0 => usize::from(second),
            _ => bytes
                .iter()
                .fold(0, |sum, byte| sum << 8 | usize::from(*byte)),
        };
        let Some(payload) = raw.get(2 + extended..2 + extended + length) else {
            return Ok(None);
        };
        let payload = payload.to_vec();
        self.raw.drain(..2 + extended + length);
        Ok(Some((first, payload)))
    }
}

impl Read for WebSocket {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.payload.is_empty() {
                let count = self.payload.len().min(to.len());
                to[..count].copy_from_slice(&self.payload[..count]);
                self.payload.drain(..count);
                return Ok(count);
            }
            if self.ended {
                return Ok(0);
            }
            match self.take_frame()? {
                Some((first, payload)) => match first & 0x0F {
                    BINARY | CONTINUATION => self.payload.extend(payload),
                    CLOSE => self.ended = true,
                    PING | PONG => {}
                    _ => {
                        return Err(io::Error::other(format!(
                            "frame {first:#04x} from a server"
                        )));
                    }
                },
                None => {
                    let mut chunk = [0; 16 * 1024];
                    match self.tcp.read(&mut chunk)? {
                        0 => self.ended = true,
                        count => self.raw.extend_from_slice(&chunk[..count]),
                    }
                }
            }
        }
    }
}

impl Write for WebSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for piece in bytes.chunks(self.piece) {
            self.tcp.write_all(&frame(FIN | BINARY, piece))?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.tcp.flush()
    }
}

impl Stream for WebSocket {
    fn set_patience(&mut self, patience: Duration) -> io::Result<()> {
        self.tcp.set_read_timeout(Some(patience))
    }
}

/// The shared broker's WebSocket listener; nothing if an external one has none.
fn listener() -> Option<TcpStream> {
    let Some(address) = Broker::shared().ws() else {
        eprintln!("skipped: no WebSocket listener");
        return None;
    };
    let tcp = TcpStream::connect(address).expect("connect to the WebSocket listener");
    tcp.set_nodelay(true).expect("set TCP_NODELAY");
    Some(tcp)
}

/// Asks for the upgrade, offering `protocols`, and returns the head of the
/// response in lower case, with what came behind it.
fn handshake(tcp: &mut TcpStream, protocols: &str) -> (String, Vec<u8>) {
    let request = format!(
        "GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n\
         Connection: keep-alive, Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         Sec-WebSocket-Version: 13\r\n{protocols}\r\n"
    );
    tcp.write_all(request.as_bytes()).expect("send the request");
    head(tcp)
}

/// The head of a response in lower case, with what came behind it.
pub(crate) fn head(tcp: &mut TcpStream) -> (String, Vec<u8>) {
    tcp.set_read_timeout(Some(Duration::from_secs(5)))
        .expect("set the read deadline");
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let rest = bytes.split_off(end + 4);
            return (String::from_utf8_lossy(&bytes).to_lowercase(), rest);
        }
        let mut chunk = [0; 4096];
        match tcp.read(&mut chunk).expect("the response") {
            0 => return (String::from_utf8_lossy(&bytes).to_lowercase(), Vec::new()),
            count => bytes.extend_from_slice(&chunk[..count]),
        }
    }
}

/// An open WebSocket whose writes are cut into frames of `piece` bytes.
fn open(piece: usize) -> Option<WebSocket> {
    Some(WebSocket::upgrade(listener()?, piece))
}

/// An accepted client over WebSocket.
fn client(level: Level, piece: usize) -> Option<Conn> {
    let socket = open(piece)?;
    let mut conn = Conn::over(Box::new(socket), Broker::shared(), level);
    conn.send(Connect::new(level, unique("c")).encode());
    assert_eq!(conn.connack().code, 0);
    Some(conn)
}

/// [MQTT-6.0.0-4] [3.1.1 MQTT-6.0.0-4] The server selects the subprotocol
/// `mqtt`, also among others, and proves that it read the key.
#[test]
fn the_subprotocol_is_mqtt() {
    for offer in ["mqtt", "chat, mqtt", "mqtt,chat"] {
        let Some(mut tcp) = listener() else {
            return;
        };
        let (head, _) = handshake(&mut tcp, &format!("Sec-WebSocket-Protocol: {offer}\r\n"));
        assert!(head.starts_with("http/1.1 101 "), "{head}");
        assert!(head.contains("sec-websocket-protocol: mqtt\r\n"), "{head}");
        assert!(
            head.contains("sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=\r\n"),
            "{head}"
        );
        assert!(head.contains("upgrade: websocket\r\n"), "{head}");
        assert!(!head.contains("sec-websocket-extensions"), "{head}");
    }
}

/// [MQTT-6.0.0-4] [MQTT-6.0.0-3] [3.1.1 MQTT-6.0.0-3] [3.1.1 MQTT-6.0.0-4] A
/// client that does not offer `mqtt` is never told of another subprotocol.
#[test]
fn no_other_subprotocol_is_selected() {
    for offer in ["Sec-WebSocket-Protocol: chat\r\n", ""] {
        let Some(mut tcp) = listener() else {
            return;
        };
        let (head, _) = handshake(&mut tcp, offer);
        assert!(!head.contains("sec-websocket-protocol: chat"), "{head}");
    }
}

/// [MQTT-6.0.0-1] [MQTT-4.2.0-1] [3.1.1 MQTT-6.0.0-1] Clients of all levels are
/// served in binary frames.
#[test]
fn clients_are_served_in_binary_frames() {
    for level in [V31, V311, V5] {
        let Some(mut conn) = client(level, usize::MAX) else {
            return;
        };
        let topic = unique("t");
        conn.subscribe(&topic, 2);
        let mut publisher = Conn::client(level);
        for size in [0, 1, 100, 126, 65_530, 65_536, 200_000] {
            let payload = vec![b'x'; size];
            publisher.publish(&topic, &payload, 1);
            let message = conn.message();
            assert!(message.payload == payload, "{size} bytes arrived altered");
            conn.acknowledge(&message);
        }
        conn.disconnect();
    }
}

/// [MQTT-6.0.0-2] [3.1.1 MQTT-6.0.0-2] Frames and packets need not agree: one
/// packet in many frames, many in one frame, and both at once.
#[test]
fn packets_need_not_align_with_frames() {
    for level in [V311, V5] {
        let topic = unique("t");
        let mut bytes = subscribe(level, 1, &Props::new(), &[(&topic, 0)]);
        for number in 0..5 {
            bytes.extend(Publish::new(level, &topic, number.to_string()).encode());
        }
        for piece in [1, 3, 10, bytes.len()] {
            let Some(mut conn) = client(level, piece) else {
                return;
            };
            conn.send(&bytes);
            conn.suback(1);
            for number in 0..5 {
                conn.expect(&topic, number.to_string());
            }
            conn.ping();
        }
    }
}

/// [MQTT-6.0.0-2] [3.1.1 MQTT-6.0.0-2] A fragmented message, empty frames, and
/// control frames in between, are one stream of bytes.
#[test]
fn fragments_and_control_frames_are_understood() {
    let Some(mut socket) = open(usize::MAX) else {
        return;
    };
    let connect = Connect::new(V5, unique("c")).encode();
    let mut bytes = frame(FIN | BINARY, &[]);
    bytes.extend(frame(BINARY, &connect[..5]));
    bytes.extend(frame(FIN | PING, b"are you there"));
    bytes.extend(frame(CONTINUATION, &connect[5..9]));
    bytes.extend(frame(CONTINUATION, &[]));
    bytes.extend(frame(FIN | CONTINUATION, &connect[9..]));
    bytes.extend(frame(FIN | PONG, b""));
    socket.tcp.write_all(&bytes).expect("send the frames");
    let mut conn = Conn::over(Box::new(socket), Broker::shared(), V5);
    assert_eq!(conn.connack().code, 0);
    conn.ping();
}

/// Each ping of the WebSocket itself is answered with a pong that carries its
/// bytes (RFC 6455, section 5.5.3).
#[test]
fn websocket_pings_are_answered() {
    let Some(mut socket) = open(usize::MAX) else {
        return;
    };
    socket
        .tcp
        .write_all(&frame(FIN | PING, b"echo"))
        .expect("send a ping");
    loop {
        if let Some((first, payload)) = socket.take_frame().expect("a frame") {
            assert_eq!((first, &payload[..]), (FIN | PONG, &b"echo"[..]));
            return;
        }
        let mut chunk = [0; 256];
        let count = socket.tcp.read(&mut chunk).expect("an answer in time");
        assert_ne!(count, 0, "the connection ended");
        socket.raw.extend_from_slice(&chunk[..count]);
    }
}

/// [MQTT-6.0.0-1] [3.1.1 MQTT-6.0.0-1] A text frame closes the connection,
/// before CONNECT and after it.
#[test]
fn a_text_frame_closes() {
    for connected in [false, true] {
        let Some(mut socket) = open(usize::MAX) else {
            return;
        };
        let mut bytes = Vec::new();
        if connected {
            bytes.extend(frame(FIN | BINARY, &Connect::new(V5, unique("c")).encode()));
        }
        bytes.extend(frame(FIN | TEXT, &pingreq()));
        socket.tcp.write_all(&bytes).expect("send the frames");
        let mut conn = Conn::over(Box::new(socket), Broker::shared(), V5);
        loop {
            match conn.next_or_end() {
                Some(Packet::ConnAck(_) | Packet::Disconnect(_)) if connected => {}
                None => break,
                Some(other) => conn.fail("the end of the connection", &other),
            }
        }
    }
}

/// Frames that RFC 6455 forbids close the connection: unmasked, with reserved
/// bits or opcodes, a continuation of nothing, a long control frame.
#[test]
fn forbidden_frames_close() {
    let connect = Connect::new(V5, "c").encode();
    let mut unmasked = vec![FIN | BINARY, connect.len() as u8];
    unmasked.extend(&connect);
    let frames = [
        ("unmasked", unmasked),
        ("reserved bit", frame(FIN | 0x40 | BINARY, &connect)),
        ("reserved opcode", frame(FIN | 0x3, &connect)),
        (
            "continuation of nothing",
            frame(FIN | CONTINUATION, &connect),
        ),
        ("ping in pieces", frame(PING, b"p")),
        ("long ping", frame(FIN | PING, &[b'p'; 126])),
    ];
    for (name, bytes) in frames {
        let Some(mut socket) = open(usize::MAX) else {
            return;
        };
        socket.tcp.write_all(&bytes).expect("send the frame");
        let mut conn = Conn::over(Box::new(socket), Broker::shared(), V5).named(name);
        conn.closed();
    }
    Conn::client(V5).ping();
}

/// A request that is no WebSocket upgrade gets an HTTP error, not MQTT.
#[test]
fn a_request_that_is_no_upgrade_is_refused() {
    for request in [
        "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "POST /mqtt HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n",
        "nonsense\r\n\r\n",
    ] {
        let Some(mut tcp) = listener() else {
            return;
        };
        tcp.set_read_timeout(Some(Duration::from_secs(5)))
            .expect("set the read deadline");
        tcp.write_all(request.as_bytes()).expect("send the request");
        let mut answer = Vec::new();
        let mut chunk = [0; 4096];
        while answer.len() < 12 {
            match tcp.read(&mut chunk) {
                Ok(0) => break,
                Ok(count) => answer.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => break,
                Err(error) => panic!("neither an answer nor the end: {error}"),
            }
        }
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1."),
            "{answer}"
        );
    }
}

/// Closing frames are answered with a closing frame or the end.
#[test]
fn a_closing_frame_ends_the_connection() {
    let Some(mut socket) = open(usize::MAX) else {
        return;
    };
    let code = 1000u16.to_be_bytes();
    socket
        .tcp
        .write_all(&frame(FIN | CLOSE, &code))
        .expect("send the frame");
    Conn::over(Box::new(socket), Broker::shared(), V5).closed();
}
