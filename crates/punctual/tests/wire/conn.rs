//! A connection to the broker that speaks in packets and fails in words.
//!
//! Every wait has a deadline and nothing sleeps: that something is *not* sent
//! is shown by what comes next instead (a marker message, or a PINGRESP). A
//! failure prints what was expected, what came, all that was said on this
//! connection, and the end of the broker's log.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::broker::{Broker, Log};
use crate::build::{self, Connect, Level, Props, Publish, V5, first};
use crate::parse::{self, Ack, Codes, ConnAck, Message, Packet, Reason};

/// How long an answer may take, in a broker shared with a hundred tests.
const PATIENCE: Duration = Duration::from_secs(5);

/// A byte stream with a read deadline.
pub(crate) trait Stream: Read + Write + Send {
    fn set_patience(&mut self, patience: Duration) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn set_patience(&mut self, patience: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(patience))
    }
}

/// One client connection.
pub(crate) struct Conn {
    stream: Box<dyn Stream>,
    level: Level,
    unread: Vec<u8>,
    patience: Duration,
    /// The largest packet that this client said it takes, in bytes.
    limit: usize,
    next_id: u16,
    /// QoS 2 messages that were acknowledged and whose PUBREL is to come.
    releasing: Vec<u16>,
    transcript: Vec<String>,
    log: Log,
}

impl Conn {
    /// A TCP connection to the shared broker on which nothing was sent yet.
    #[track_caller]
    pub(crate) fn open(level: Level) -> Self {
        Self::open_to(Broker::shared(), level)
    }

    #[track_caller]
    pub(crate) fn open_to(broker: &Broker, level: Level) -> Self {
        let stream = TcpStream::connect(broker.tcp()).expect("connect to the broker");
        stream.set_nodelay(true).expect("set TCP_NODELAY");
        Self::over(Box::new(stream), broker, level)
    }

    /// A connection over any stream to that broker.
    pub(crate) fn over(stream: Box<dyn Stream>, broker: &Broker, level: Level) -> Self {
        Self {
            stream,
            level,
            unread: Vec::new(),
            patience: PATIENCE,
            limit: usize::MAX,
            next_id: 0x7000,
            releasing: Vec::new(),
            transcript: Vec::new(),
            log: broker.log(),
        }
    }

    /// Connects and is accepted.
    #[track_caller]
    pub(crate) fn connect(connect: &Connect) -> (Self, ConnAck) {
        Self::connect_to(Broker::shared(), connect)
    }

    #[track_caller]
    pub(crate) fn connect_to(broker: &Broker, connect: &Connect) -> (Self, ConnAck) {
        let mut conn = Self::ask(broker, connect);
        let connack = conn.connack();
        if connack.code != 0 {
            conn.fail("CONNACK 0x00", &connack);
        }
        (conn, connack)
    }

    /// Sends the CONNECT; the answer is still to be read. All packets that come
    /// have to fit the maximum packet size that it gives.
    #[track_caller]
    pub(crate) fn ask(broker: &Broker, connect: &Connect) -> Self {
        let mut conn = Self::open_to(broker, connect.level());
        if let Some(limit) = connect.limit() {
            conn.limit = limit as usize;
        }
        conn.send(connect.encode());
        conn
    }

    /// A client with a clean session under a name of its own.
    #[track_caller]
    pub(crate) fn client(level: Level) -> Self {
        Self::connect(&Connect::new(level, unique("c"))).0
    }

    pub(crate) fn level(&self) -> Level {
        self.level
    }

    /// Waits up to `seconds` for each answer from here on.
    pub(crate) fn patient(mut self, seconds: u64) -> Self {
        self.patience = Duration::from_secs(seconds);
        self
    }

    /// Puts a name at the head of this connection's transcript.
    pub(crate) fn named(mut self, name: &str) -> Self {
        self.transcript.insert(0, format!("case {name:?}"));
        self
    }

    /// Sends bytes as they are. That the server has closed already is not an
    /// error here: what it said is still to be read.
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let bytes = bytes.as_ref();
        self.transcript.push(format!("sent {}", hex(bytes)));
        if let Err(error) = self
            .stream
            .write_all(bytes)
            .and_then(|()| self.stream.flush())
        {
            self.transcript.push(format!("sending failed: {error}"));
        }
    }

    /// The next packet, or nothing if the server closed the connection.
    /// PUBREL for a message given to [`acknowledge`](Self::acknowledge) is
    /// answered on the way.
    #[track_caller]
    pub(crate) fn next_or_end(&mut self) -> Option<Packet> {
        loop {
            match self.read_packet() {
                Some(Packet::Ack(ack)) if self.releases(&ack) => {
                    self.send(build::ack(first::PUBCOMP, ack.id));
                }
                packet => return packet,
            }
        }
    }

    fn releases(&mut self, ack: &Ack) -> bool {
        let place = self.releasing.iter().position(|id| *id == ack.id);
        match place {
            Some(place) if ack.kind == first::PUBREL => {
                self.releasing.swap_remove(place);
                true
            }
            _ => false,
        }
    }

    #[track_caller]
    fn read_packet(&mut self) -> Option<Packet> {
        let deadline = Instant::now() + self.patience;
        loop {
            match parse::take(self.level, &self.unread) {
                Ok(Some((packet, size))) => {
                    let bytes: Vec<u8> = self.unread.drain(..size).collect();
                    self.transcript.push(format!("got  {}", hex(&bytes)));
                    if size > self.limit {
                        let expected = format!("at most {} bytes [MQTT-3.1.2-24]", self.limit);
                        self.fail(&expected, &size);
                    }
                    return Some(packet);
                }
                Ok(None) => {}
                Err(why) => {
                    let bytes = hex(&self.unread);
                    self.transcript.push(format!("got  {bytes}"));
                    self.fail("a well-formed packet", &why);
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.fail("a packet or the end of the connection", &"nothing");
            }
            self.stream
                .set_patience(left)
                .expect("set the read deadline");
            let mut chunk = [0; 16 * 1024];
            match self.stream.read(&mut chunk) {
                Ok(0) => return self.ended(),
                Ok(count) => self.unread.extend_from_slice(&chunk[..count]),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {}
                    _ => return self.ended(),
                },
            }
        }
    }

    #[track_caller]
    fn ended(&mut self) -> Option<Packet> {
        if !self.unread.is_empty() {
            let rest = hex(&self.unread);
            self.fail("whole packets before the end", &rest);
        }
        self.transcript
            .push("got  the end of the connection".into());
        None
    }

    #[track_caller]
    pub(crate) fn next(&mut self) -> Packet {
        self.next_or_end()
            .unwrap_or_else(|| self.fail("a packet", &"the end of the connection"))
    }

    #[track_caller]
    pub(crate) fn connack(&mut self) -> ConnAck {
        match self.next() {
            Packet::ConnAck(connack) => connack,
            other => self.fail("CONNACK", &other),
        }
    }

    /// The next packet is a PUBLISH.
    #[track_caller]
    pub(crate) fn message(&mut self) -> Message {
        match self.next() {
            Packet::Publish(message) => message,
            other => self.fail("PUBLISH", &other),
        }
    }

    /// The payloads of the messages before the one with this payload, sorted.
    #[track_caller]
    pub(crate) fn payloads_before(&mut self, end: &str) -> Vec<String> {
        let mut payloads = Vec::new();
        loop {
            match self.message().text() {
                text if text == end => break,
                text => payloads.push(text),
            }
        }
        payloads.sort();
        payloads
    }

    /// The next packet is a PUBLISH on this topic with this payload.
    #[track_caller]
    pub(crate) fn expect(&mut self, topic: &str, payload: impl AsRef<[u8]>) -> Message {
        let payload = payload.as_ref();
        let message = self.message();
        if message.topic != topic || message.payload != payload {
            let expected = format!("PUBLISH {topic} {:?}", String::from_utf8_lossy(payload));
            let got = format!("{} {:?}", message.topic, message.text());
            self.fail(&expected, &got);
        }
        message
    }

    /// The next packet is PUBACK, PUBREC, PUBREL or PUBCOMP with this id.
    #[track_caller]
    pub(crate) fn ack(&mut self, kind: u8, id: u16) -> Ack {
        match self.next() {
            Packet::Ack(ack) if ack.kind == kind && ack.id == id => ack,
            other => self.fail(&format!("packet {kind:#04x} with identifier {id}"), &other),
        }
    }

    #[track_caller]
    pub(crate) fn suback(&mut self, id: u16) -> Codes {
        match self.next() {
            Packet::SubAck(codes) if codes.id == id => codes,
            other => self.fail(&format!("SUBACK with identifier {id}"), &other),
        }
    }

    #[track_caller]
    pub(crate) fn unsuback(&mut self, id: u16) -> Codes {
        match self.next() {
            Packet::UnsubAck(codes) if codes.id == id => codes,
            other => self.fail(&format!("UNSUBACK with identifier {id}"), &other),
        }
    }

    /// The server closes the connection without another packet.
    #[track_caller]
    pub(crate) fn closed(&mut self) {
        if let Some(packet) = self.next_or_end() {
            self.fail("the end of the connection", &packet);
        }
    }

    /// The server's reaction to an error on an established connection: in 5.0
    /// a DISCONNECT with one of `codes` and the end, before 5.0 only the end.
    #[track_caller]
    pub(crate) fn error(&mut self, codes: &[u8]) -> Option<Reason> {
        if self.level != V5 {
            self.closed();
            return None;
        }
        let expected = format!("DISCONNECT with one of {codes:02x?}");
        match self.next_or_end() {
            Some(Packet::Disconnect(reason)) if codes.contains(&reason.code) || lenient() => {
                self.closed();
                Some(reason)
            }
            None if lenient() => None,
            Some(other) => self.fail(&expected, &other),
            None => self.fail(&expected, &"the end of the connection"),
        }
    }

    /// The server ends the connection with that reason, after messages that may come before.
    #[track_caller]
    pub(crate) fn dismissed(&mut self, code: u8) {
        loop {
            match self.next_or_end() {
                Some(Packet::Publish(_)) => {}
                Some(Packet::Disconnect(reason)) if reason.code == code => return self.closed(),
                other => self.fail(&format!("DISCONNECT with {code:02x}"), &other),
            }
        }
    }

    /// The server's reaction to a bad CONNECT: a CONNACK with one of `codes`
    /// and the end; no codes: the end without a word.
    #[track_caller]
    pub(crate) fn refused(&mut self, codes: &[u8]) {
        if !codes.is_empty() {
            let connack = match self.next_or_end() {
                Some(Packet::ConnAck(connack)) => connack,
                None if lenient() => return,
                other => self.fail("CONNACK", &other),
            };
            let refusal = lenient() && connack.code != 0;
            if !refusal && !codes.contains(&connack.code) {
                self.fail(&format!("CONNACK with one of {codes:02x?}"), &connack);
            }
        }
        self.closed();
    }

    /// The server's reaction to what may not even be MQTT: the end, perhaps
    /// behind one CONNACK of any level that refuses.
    #[track_caller]
    pub(crate) fn rejected(&mut self) {
        let bytes = self.rest();
        let refusal = match bytes[..] {
            [] => true,
            [first::CONNACK, 2, 0, code] => code != 0,
            [first::CONNACK, length, 0, code, ..] => {
                usize::from(length) + 2 == bytes.len() && code >= 0x80
            }
            _ => false,
        };
        if !refusal {
            self.fail("the end, or one CONNACK that refuses", &hex(&bytes));
        }
    }

    /// All bytes up to the end of the connection.
    #[track_caller]
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        self.stream
            .set_patience(self.patience)
            .expect("set the read deadline");
        let mut bytes = std::mem::take(&mut self.unread);
        loop {
            let mut chunk = [0; 16 * 1024];
            match self.stream.read(&mut chunk) {
                Ok(0) => break,
                Ok(count) => bytes.extend_from_slice(&chunk[..count]),
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => {}
                    ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                        self.fail("the end of the connection", &hex(&bytes));
                    }
                    _ => break,
                },
            }
        }
        self.transcript
            .push(format!("got  {} and the end", hex(&bytes)));
        bytes
    }

    /// A packet identifier not used before on this connection.
    pub(crate) fn fresh_id(&mut self) -> u16 {
        self.next_id += 1;
        self.next_id
    }

    /// Subscribes to one filter and returns the code granted.
    #[track_caller]
    pub(crate) fn subscribe(&mut self, filter: &str, options: u8) -> u8 {
        let id = self.fresh_id();
        let level = self.level;
        self.send(build::subscribe(
            level,
            id,
            &Props::new(),
            &[(filter, options)],
        ));
        match self.suback(id).codes[..] {
            [code] => code,
            ref codes => self.fail("one code in SUBACK", &codes),
        }
    }

    /// Publishes without properties and completes the handshake of that QoS.
    #[track_caller]
    pub(crate) fn publish(&mut self, topic: &str, payload: impl AsRef<[u8]>, qos: u8) {
        self.send_publish(Publish::new(self.level, topic, payload), qos);
    }

    /// Publishes a retained message.
    #[track_caller]
    pub(crate) fn retain(&mut self, topic: &str, payload: impl AsRef<[u8]>, qos: u8) {
        self.send_publish(Publish::new(self.level, topic, payload).retain(), qos);
    }

    /// Publishes at that QoS under a fresh identifier and completes the
    /// handshake.
    #[track_caller]
    pub(crate) fn send_publish(&mut self, publish: Publish, qos: u8) {
        let id = self.fresh_id();
        self.send(publish.qos(qos, id).encode());
        match qos {
            0 => {}
            1 => self.success(first::PUBACK, id),
            _ => {
                self.success(first::PUBREC, id);
                self.send(build::ack(first::PUBREL, id));
                self.success(first::PUBCOMP, id);
            }
        }
    }

    #[track_caller]
    fn success(&mut self, kind: u8, id: u16) {
        let ack = self.ack(kind, id);
        if ack.code >= 0x80 {
            self.fail("a success code", &ack);
        }
    }

    /// Acknowledges a received message. A QoS 2 exchange completes when its
    /// PUBREL comes by.
    pub(crate) fn acknowledge(&mut self, message: &Message) {
        match message.qos {
            0 => {}
            1 => self.send(build::ack(first::PUBACK, message.id)),
            _ => {
                self.send(build::ack(first::PUBREC, message.id));
                self.releasing.push(message.id);
            }
        }
    }

    /// PINGREQ, and PINGRESP is the next packet: nothing else was on its way.
    #[track_caller]
    pub(crate) fn ping(&mut self) {
        self.send(build::pingreq());
        match self.next() {
            Packet::PingResp => {}
            other => self.fail("PINGRESP", &other),
        }
    }

    /// Says a normal goodbye and sees the server close.
    #[track_caller]
    pub(crate) fn disconnect(mut self) {
        self.send(build::disconnect());
        self.closed();
    }

    /// Panics with what was expected; what was said follows from [`Drop`].
    #[track_caller]
    pub(crate) fn fail(&self, expected: &str, got: &dyn std::fmt::Debug) -> ! {
        panic!(
            "{:?}: expected {expected}\n     got {got:?}\nthe broker's log ends:\n{}",
            self.level,
            self.log.tail(),
        );
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("said on a {:?} connection:", self.level);
            for line in &self.transcript {
                eprintln!("  {line}");
            }
        }
    }
}

/// Whether to ask only for what the specification requires of every server:
/// on an error it has to close, but the packet that says why is its choice.
/// Ours makes that choice, so this is for comparing with other brokers.
fn lenient() -> bool {
    std::env::var_os("PUNCTUAL_TEST_LENIENT").is_some()
}

/// A name that no other test uses, made of letters and digits only and short
/// enough for every server to take it as client identifier.
pub(crate) fn unique(prefix: &str) -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{prefix}{:x}n{number}", std::process::id())
}

/// The first bytes of a packet, readable.
fn hex(bytes: &[u8]) -> String {
    const SHOWN: usize = 96;
    let shown: Vec<String> = bytes
        .iter()
        .take(SHOWN)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let text: String = bytes
        .iter()
        .take(SHOWN)
        .map(|byte| {
            if (0x20..0x7F).contains(byte) {
                char::from(*byte)
            } else {
                '.'
            }
        })
        .collect();
    let more = match bytes.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} bytes more"),
    };
    format!("{} |{text}|{more}", shown.join(" "))
}
