//! A station's connection to the broker: TCP, or MQTT over UDP.
//!
//! Both transports send and receive complete packets. This file implements TCP; `punctual-udp`
//! makes the datagrams, because it defines their format. After subscribing, a station sends and
//! receives QoS 0 only, so it needs neither retransmissions nor timers.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use punctual_udp::{Client, ClientConfig, ClientState};
use serde::{Deserialize, Serialize};

use super::talk::Assignment;
use crate::sys;
use punctual_measure::io::{FlushOutcome, Outbox, ReadOutcome, Tail};
use punctual_measure::load::client::Handshake;
use punctual_measure::wire::{self, Frame, Version, kind};
use punctual_measure::{Error, Result};

/// All stations use MQTT 5: MQTT 3.1.1 has no user properties to carry a priority.
pub(crate) const VERSION: Version = Version::V5;

/// Longest wait for CONNACK and SUBACK over UDP.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval at which timers are served while an answer is awaited.
const ANSWER_POLL: Duration = Duration::from_millis(50);

/// Requested size of the receive buffer, for datagrams that arrive while the station is busy,
/// bytes.
const RECEIVE_BUFFER: usize = 4 * 1024 * 1024;

/// Size of the largest possible datagram, bytes.
const LONGEST_DATAGRAM: usize = 65_536;

/// Transport below MQTT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Transport {
    Tcp,
    Udp,
}

/// A connection whose MQTT handshake is complete.
pub(crate) enum Link {
    Tcp(Tcp),
    Udp(Box<Udp>),
}

pub(crate) struct Tcp {
    stream: TcpStream,
    tail: Tail,
    out: Outbox,
}

pub(crate) struct Udp {
    socket: UdpSocket,
    client: Client,
    /// Packets not yet passed to `client`.
    staged: Vec<u8>,
    /// A datagram that the socket could not accept yet.
    stuck: Option<Vec<u8>>,
    datagram: Vec<u8>,
}

impl Link {
    /// Connects to the broker and subscribes.
    pub(crate) fn connect(assignment: &Assignment, filters: &[String]) -> Result<Self> {
        let context = |what: &str| format!("{what} (client {})", assignment.name);
        match assignment.transport {
            Transport::Tcp => {
                let (stream, _) = Handshake {
                    address: assignment.broker,
                    version: VERSION,
                    client_id: &assignment.name,
                    filters,
                    qos: 0,
                    persistent: false,
                }
                .run()?;
                sys::mark(&stream, assignment.dscp)
                    .map_err(Error::io(context("cannot mark a socket")))?;
                Ok(Self::Tcp(Tcp {
                    stream,
                    tail: Tail::default(),
                    out: Outbox::default(),
                }))
            }
            Transport::Udp => Udp::connect(assignment, filters).map(|udp| Self::Udp(Box::new(udp))),
        }
    }

    pub(crate) fn fd(&self) -> RawFd {
        match self {
            Self::Tcp(tcp) => tcp.stream.as_raw_fd(),
            Self::Udp(udp) => udp.socket.as_raw_fd(),
        }
    }

    /// Reads once into `shared`. The caller returns the bytes of an incomplete packet with
    /// [`Link::keep`].
    pub(crate) fn read(&mut self, shared: &mut [u8]) -> ReadOutcome {
        match self {
            Self::Tcp(tcp) => tcp.tail.read(&tcp.stream, shared),
            Self::Udp(udp) => udp.read(shared),
        }
    }

    pub(crate) fn keep(&mut self, rest: &[u8]) {
        match self {
            Self::Tcp(tcp) => tcp.tail.keep(rest),
            // Datagrams contain complete packets only.
            Self::Udp(_) => {}
        }
    }

    /// The buffer to which packets are appended.
    pub(crate) fn buffer(&mut self) -> &mut Vec<u8> {
        match self {
            Self::Tcp(tcp) => tcp.out.buffer(),
            Self::Udp(udp) => &mut udp.staged,
        }
    }

    /// Passes the appended packets to the kernel.
    pub(crate) fn flush(&mut self) -> FlushOutcome {
        match self {
            Self::Tcp(tcp) => tcp.out.flush(&tcp.stream),
            Self::Udp(udp) => udp.flush(),
        }
    }

    /// Whether appended packets have not been passed to the kernel yet.
    pub(crate) fn is_pending(&self) -> bool {
        match self {
            Self::Tcp(tcp) => tcp.out.pending() > 0,
            Self::Udp(udp) => !udp.staged.is_empty() || udp.stuck.is_some(),
        }
    }
}

impl Udp {
    fn connect(assignment: &Assignment, filters: &[String]) -> Result<Self> {
        let name = &assignment.name;
        let context = |what: &str| format!("{what} (client {name}, UDP)");
        let open = || {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            socket.connect(assignment.broker)?;
            socket.set_read_timeout(Some(ANSWER_POLL))?;
            sys::mark(&socket, assignment.dscp)?;
            sys::ask_receive_buffer(&socket, RECEIVE_BUFFER)?;
            Ok(socket)
        };
        let socket = open().map_err(Error::io(context("cannot open a socket")))?;
        let mut nonce = [0; 8];
        getrandom::fill(&mut nonce)
            .map_err(|e| Error::io(context("no random bytes"))(std::io::Error::other(e)))?;
        let mut udp = Self {
            socket,
            client: Client::new(ClientConfig::default(), nonce),
            staged: Vec::new(),
            stuck: None,
            datagram: vec![0; LONGEST_DATAGRAM],
        };
        let refused = |what: String| Error::Broker {
            client: name.clone(),
            what,
        };
        wire::put_connect(&mut udp.staged, VERSION, name);
        let body = udp.exchange(kind::CONNACK).map_err(refused)?;
        match wire::connack(&body, VERSION) {
            Some(connack) if connack.code == 0 => {}
            other => return Err(refused(format!("refused the connection: {other:02x?}"))),
        }
        if !filters.is_empty() {
            wire::put_subscribe(&mut udp.staged, VERSION, 1, filters, 0);
            let body = udp.exchange(kind::SUBACK).map_err(refused)?;
            let granted = body.len().checked_sub(filters.len());
            let granted = granted.and_then(|at| body.get(at..)).unwrap_or(&[]);
            if granted.is_empty() || granted.iter().any(|&code| code != 0) {
                return Err(refused(format!("granted {granted:02x?} at QoS 0")));
            }
        }
        udp.socket
            .set_nonblocking(true)
            .map_err(Error::io(context("cannot set a socket non-blocking")))?;
        Ok(udp)
    }

    /// Sends the staged packets and waits for a packet of type `expected`; returns its body.
    fn exchange(&mut self, expected: u8) -> std::result::Result<Vec<u8>, String> {
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        let mut shared = vec![0; LONGEST_DATAGRAM];
        while Instant::now() < deadline {
            if self.flush() == FlushOutcome::Closed {
                return Err(self.why_closed());
            }
            let len = match self.read(&mut shared) {
                ReadOutcome::Bytes(len) => len,
                ReadOutcome::Nothing => 0,
                ReadOutcome::Closed => return Err(self.why_closed()),
            };
            let mut rest = &shared[..len];
            while let Frame::Packet { first, body, end } = wire::frame(rest) {
                if first >> 4 == expected {
                    return Ok(rest[body..end].to_vec());
                }
                rest = &rest[end..];
            }
            self.client.handle_timeout(now());
        }
        Err("did not answer over UDP".to_owned())
    }

    fn why_closed(&self) -> String {
        match self.client.state() {
            ClientState::Closed(why) => format!("is gone: {why}"),
            _ => "cannot be reached over UDP".to_owned(),
        }
    }

    fn read(&mut self, shared: &mut [u8]) -> ReadOutcome {
        match self.socket.recv(&mut self.datagram) {
            Ok(len) => self.client.handle(&self.datagram[..len], now()),
            Err(e) if is_nothing(e.kind()) => return ReadOutcome::Nothing,
            Err(_) => return ReadOutcome::Closed,
        }
        if let ClientState::Closed(_) = self.client.state() {
            return ReadOutcome::Closed;
        }
        let received = self.client.received();
        let len = received.len();
        let Some(place) = shared.get_mut(..len) else {
            return ReadOutcome::Closed;
        };
        place.copy_from_slice(received);
        self.client.take_received(len);
        if len == 0 {
            ReadOutcome::Nothing
        } else {
            ReadOutcome::Bytes(len)
        }
    }

    fn flush(&mut self) -> FlushOutcome {
        if !self.staged.is_empty() {
            let sent = self.client.send(&self.staged, 0, now());
            self.staged.clear();
            if sent.is_err() {
                return FlushOutcome::Closed;
            }
        }
        loop {
            let next = self.stuck.take();
            let next = next.or_else(|| Some(self.client.poll_transmit()?.data));
            let Some(datagram) = next else {
                return FlushOutcome::All;
            };
            match self.socket.send(&datagram) {
                Ok(_) => {}
                Err(e) if is_nothing(e.kind()) => {
                    self.stuck = Some(datagram);
                    return FlushOutcome::Blocked;
                }
                Err(_) => return FlushOutcome::Closed,
            }
        }
    }
}

fn is_nothing(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::TimedOut
    )
}

/// The time in the form that `punctual-udp` uses.
fn now() -> Duration {
    Duration::from_nanos(sys::now_ns())
}
