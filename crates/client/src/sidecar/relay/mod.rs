//! One local client and its session with the broker: packets from either side,
//! packets to either side, without sockets or clocks.
//!
//! Packet identifiers, acknowledgements and pings pass from end to end, so
//! that the session is the broker's and the client's, and nothing here has to
//! survive. Towards the broker everything is MQTT 5; for an earlier client the
//! packets are translated, and what such a client cannot know (Receive
//! Maximum, Server Keep Alive) is kept for it. The user properties of the
//! rules are added to publications and wills; nothing is taken away.
//!
//! Every buffer is bounded: an owner that reads only while
//! [`Relay::wants_client`] and [`Relay::wants_broker`] holds at most
//! [`BUFFER`], one read and one packet in each direction. Publications of a
//! client that knows no Receive Maximum wait in another [`HELD`] bytes.

mod from_broker;
mod from_client;

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use punctual_codec::{
    ConnAck, DecodeError, Disconnect, EncodeError, Packet, Properties, PropertyBuf, ReasonCode,
    Split, Version, split_of,
};
use punctual_model::Requirements;

use super::rules::Rules;
use crate::marking::Class;

/// Bytes waiting in one direction above which nothing more is taken.
pub(super) const BUFFER: usize = 256 * 1024;

/// Bytes of publications that wait for the broker's Receive Maximum. A client
/// that goes beyond is ended.
const HELD: usize = 4 * 1024 * 1024;

/// State that all relays share.
#[derive(Debug)]
pub(super) struct RelayContext {
    pub(super) rules: Rules,
    /// Bytes of the largest packet taken from either side.
    pub(super) max_packet: u32,
    /// Whether packets travel in datagrams: one that is lost may have been the
    /// one that defined a topic alias, so there are none.
    pub(super) datagrams: bool,
}

/// Why a relay failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RelayFailure {
    /// The client broke the protocol.
    Client(String),
    /// The client can not be served.
    Unable(String),
    /// The broker broke the protocol.
    Broker(String),
    /// The broker refused the client, or ended its connection.
    Refused(ReasonCode),
}

impl fmt::Display for RelayFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client(what) => write!(f, "the client broke the protocol: {what}"),
            Self::Unable(what) => f.write_str(what),
            Self::Broker(what) => write!(f, "the broker broke the protocol: {what}"),
            Self::Refused(reason) => write!(f, "the broker said {reason}"),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// CONNECT has not come.
    New,
    /// CONNECT is on its way; CONNACK has not come.
    Connecting,
    Up,
    /// Nothing more is taken from either side.
    Over,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Client,
    Broker,
}

/// Bytes that came, of which some have been handled.
#[derive(Debug, Default)]
struct Input {
    bytes: Vec<u8>,
    handled: usize,
}

impl Input {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.handled);
        self.handled = 0;
        self.bytes.extend_from_slice(bytes);
    }

    fn next(
        &mut self,
        max_packet: u32,
        version: Version,
    ) -> Result<Option<Range<usize>>, DecodeError> {
        let start = self.handled;
        match split_of(&self.bytes[start..], max_packet, version)? {
            Split::Incomplete { .. } => Ok(None),
            Split::Frame(frame) => {
                self.handled += frame.bytes.len();
                Ok(Some(start..self.handled))
            }
        }
    }
}

/// Packets of one class.
#[derive(Debug)]
struct Chunk {
    class: Class,
    bytes: Vec<u8>,
    sent: usize,
}

/// A client and its session.
#[derive(Debug)]
pub(super) struct Relay {
    common: Arc<RelayContext>,
    phase: Phase,
    version: Version,
    /// Whether the client is a bridge before MQTT 5.
    bridge: bool,
    client_id: String,
    from_client: Input,
    from_broker: Input,
    to_client: Vec<u8>,
    to_broker: VecDeque<Chunk>,
    to_broker_bytes: usize,
    /// What the client requires of all its messages.
    default: Requirements,
    /// Topics by the aliases of the client.
    aliases: HashMap<u16, String>,
    /// Of the broker, or the way there.
    max_packet: usize,
    /// Of the broker, for a client that does not know it.
    receive_maximum: usize,
    /// Identifiers of publications on their way, for the same.
    flying: HashSet<u16>,
    held: VecDeque<(Class, Vec<u8>)>,
    held_bytes: usize,
    /// Pings of the client without answer.
    pings: u32,
    /// How many answers come before the one to a ping of ours.
    own_ping: Option<u32>,
    /// Time between pings that the broker wants and the client does not know.
    ping_every: Option<Duration>,
    /// Silence after which the client is gone.
    patience: Option<Duration>,
    last_from_client: Duration,
    last_to_broker: Duration,
    scratch: PropertyBuf,
    /// Publications that were given requirements of the rules.
    pub(super) ruled: u64,
}

impl Relay {
    pub(super) fn new(common: Arc<RelayContext>) -> Self {
        Self {
            common,
            phase: Phase::New,
            version: Version::V5,
            bridge: false,
            client_id: String::new(),
            from_client: Input::default(),
            from_broker: Input::default(),
            to_client: Vec::new(),
            to_broker: VecDeque::new(),
            to_broker_bytes: 0,
            default: Requirements::NONE,
            aliases: HashMap::new(),
            max_packet: usize::MAX,
            receive_maximum: usize::MAX,
            flying: HashSet::new(),
            held: VecDeque::new(),
            held_bytes: 0,
            pings: 0,
            own_ping: None,
            ping_every: None,
            patience: None,
            last_from_client: Duration::ZERO,
            last_to_broker: Duration::ZERO,
            scratch: PropertyBuf::new(),
            ruled: 0,
        }
    }

    /// The identifier that the client gave, or was given by the broker.
    pub(super) fn client_id(&self) -> &str {
        &self.client_id
    }

    /// Whether CONNECT has not come.
    pub(super) fn is_new(&self) -> bool {
        self.phase == Phase::New
    }

    /// Whether CONNECT has come and a transport is needed.
    pub(super) fn wants_transport(&self) -> bool {
        self.phase == Phase::Connecting
    }

    /// The way to the broker carries no packets of more than that many bytes.
    pub(super) fn carry(&mut self, most: usize) {
        self.max_packet = self.max_packet.min(most);
    }

    /// Whether no more input is taken, and only buffered output is to be sent.
    pub(super) fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// Whether to read from the client.
    pub(super) fn wants_client(&self) -> bool {
        let unhandled = self.from_client.bytes.len() - self.from_client.handled;
        match self.phase {
            Phase::New => true,
            // Packets before CONNACK stay unread.
            Phase::Connecting => unhandled < BUFFER,
            Phase::Up => self.to_broker_bytes < BUFFER,
            Phase::Over => false,
        }
    }

    /// Whether to read from the broker.
    pub(super) fn wants_broker(&self) -> bool {
        self.phase != Phase::Over && self.to_client.len() < BUFFER
    }

    /// Bytes for the client.
    pub(super) fn to_client(&self) -> &[u8] {
        &self.to_client
    }

    /// The first `n` bytes have been sent.
    pub(super) fn client_took(&mut self, n: usize) {
        self.to_client.drain(..n.min(self.to_client.len()));
    }

    /// The next packets for the broker, all of one class.
    pub(super) fn to_broker(&self) -> Option<(Class, &[u8])> {
        let chunk = self.to_broker.front()?;
        Some((chunk.class, &chunk.bytes[chunk.sent..]))
    }

    /// The first `n` bytes of these have been sent.
    pub(super) fn broker_took(&mut self, n: usize) {
        let Some(chunk) = self.to_broker.front_mut() else {
            return;
        };
        chunk.sent += n;
        self.to_broker_bytes = self.to_broker_bytes.saturating_sub(n);
        if chunk.sent >= chunk.bytes.len() {
            self.to_broker.pop_front();
        }
    }

    /// Bytes came from the client.
    pub(super) fn receive_client(
        &mut self,
        bytes: &[u8],
        now: Duration,
    ) -> Result<(), RelayFailure> {
        self.from_client.push(bytes);
        self.last_from_client = now;
        self.advance(now)
    }

    /// Bytes came from the broker.
    pub(super) fn receive_broker(
        &mut self,
        bytes: &[u8],
        now: Duration,
    ) -> Result<(), RelayFailure> {
        self.from_broker.push(bytes);
        self.drain(Side::Broker, now)?;
        // CONNACK lets the client's packets in.
        self.advance(now)
    }

    /// Handles packets of the client that waited for room.
    pub(super) fn advance(&mut self, now: Duration) -> Result<(), RelayFailure> {
        self.drain(Side::Client, now)
    }

    /// The client is gone without a word: the broker publishes its Will.
    pub(super) fn client_gone(&mut self) {
        if matches!(self.phase, Phase::Connecting | Phase::Up) {
            self.put_disconnect(ReasonCode::DisconnectWithWill);
        }
        self.phase = Phase::Over;
    }

    /// The relay itself ends.
    pub(super) fn shut_down(&mut self) {
        self.disconnect_client(ReasonCode::ServerShuttingDown);
        self.client_gone();
    }

    /// There is no connection to the broker, or it was lost.
    pub(super) fn broker_gone(&mut self) {
        let mut out = std::mem::take(&mut self.to_client);
        let v5 = self.version.is_v5();
        // Where the protocol has no words, closing says it all.
        let _ = match self.phase {
            Phase::Connecting => ConnAck {
                session_present: false,
                reason: ReasonCode::ServerUnavailable,
                properties: Properties::EMPTY,
            }
            .encode(self.version, &mut out),
            Phase::Up if v5 => Disconnect {
                reason: ReasonCode::UnspecifiedError,
                properties: Properties::EMPTY,
            }
            .encode(self.version, &mut out),
            _ => Ok(()),
        };
        self.to_client = out;
        self.to_broker.clear();
        self.to_broker_bytes = 0;
        self.phase = Phase::Over;
    }

    /// When [`tick`](Self::tick) has something to do.
    pub(super) fn timeout(&self) -> Option<Duration> {
        if self.phase != Phase::Up {
            return None;
        }
        let ping = self
            .ping_every
            .filter(|_| self.own_ping.is_none())
            .map(|every| self.last_to_broker + every);
        let gone = self
            .patience
            .filter(|_| self.wants_client())
            .map(|patience| self.last_from_client + patience);
        match (ping, gone) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Does timed work.
    pub(super) fn tick(&mut self, now: Duration) -> Result<(), RelayFailure> {
        if self.phase != Phase::Up {
            return Ok(());
        }
        let due =
            |since: Duration, after: Option<Duration>| after.is_some_and(|t| now >= since + t);
        // The silence of a side that is not being read means nothing.
        if self.wants_client() && due(self.last_from_client, self.patience) {
            self.client_gone();
            return Err(RelayFailure::Client(
                "it was silent for longer than it may be".into(),
            ));
        }
        if self.own_ping.is_none() && due(self.last_to_broker, self.ping_every) {
            self.own_ping = Some(self.pings);
            self.put(
                Class::Normal,
                |out| Packet::PingReq.encode(Version::V5, out),
                now,
            )?;
        }
        Ok(())
    }

    fn drain(&mut self, from: Side, now: Duration) -> Result<(), RelayFailure> {
        loop {
            let takes = match (from, self.phase) {
                (_, Phase::Over) => false,
                // The broker's limits are not known; AUTH has none.
                (Side::Client, Phase::Connecting) => {
                    let next = self.from_client.bytes.get(self.from_client.handled);
                    self.version.is_v5() && next.is_some_and(|first| first >> 4 == 15)
                }
                (Side::Client, _) => self.to_broker_bytes < BUFFER,
                // Data is bounded by the reads, and an answer must not wait.
                (Side::Broker, _) => true,
            };
            if !takes {
                return Ok(());
            }
            let max_packet = self.common.max_packet;
            let (input, version) = match from {
                Side::Client => (&mut self.from_client, self.version),
                Side::Broker => (&mut self.from_broker, Version::V5),
            };
            let range = match input.next(max_packet, version) {
                Ok(Some(range)) => range,
                Ok(None) => return Ok(()),
                Err(error) => return Err(self.misbehaved(from, &error)),
            };
            // The buffer is lent out while its packet is handled; the handlers
            // never touch it.
            let bytes = std::mem::take(&mut input.bytes);
            let result = self.on_frame(from, &bytes[range], now);
            match from {
                Side::Client => self.from_client.bytes = bytes,
                Side::Broker => self.from_broker.bytes = bytes,
            }
            if result.is_err() && self.phase != Phase::Over {
                self.client_gone();
            }
            result?;
        }
    }

    fn misbehaved(&mut self, from: Side, error: &DecodeError) -> RelayFailure {
        match from {
            Side::Client => {
                self.disconnect_client(error.reason());
                self.client_gone();
                RelayFailure::Client(error.to_string())
            }
            Side::Broker => {
                self.disconnect_client(ReasonCode::UnspecifiedError);
                if self.phase == Phase::Up {
                    self.put_disconnect(error.reason());
                }
                self.phase = Phase::Over;
                RelayFailure::Broker(error.to_string())
            }
        }
    }

    /// The client cannot be served any longer.
    fn unable(&mut self, reason: ReasonCode, why: String) -> RelayFailure {
        self.disconnect_client(reason);
        self.client_gone();
        RelayFailure::Unable(why)
    }

    /// Says why the connection ends, where the client understands it.
    fn disconnect_client(&mut self, reason: ReasonCode) {
        if self.version.is_v5() && self.phase == Phase::Up {
            let disconnect = Disconnect {
                reason,
                properties: Properties::EMPTY,
            };
            let _ = disconnect.encode(self.version, &mut self.to_client);
        }
    }

    fn put_disconnect(&mut self, reason: ReasonCode) {
        let disconnect = Disconnect {
            reason,
            properties: Properties::EMPTY,
        };
        let now = self.last_to_broker;
        let put = |out: &mut Vec<u8>| disconnect.encode(Version::V5, out);
        // Four bytes are never too long.
        let _ = self.put(Class::Normal, put, now);
    }

    /// Appends a packet for the broker.
    fn put(
        &mut self,
        class: Class,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<(), EncodeError>,
        now: Duration,
    ) -> Result<(), RelayFailure> {
        if self
            .to_broker
            .back()
            .is_none_or(|chunk| chunk.class != class)
        {
            self.to_broker.push_back(Chunk {
                class,
                bytes: Vec::new(),
                sent: 0,
            });
        }
        let Some(chunk) = self.to_broker.back_mut() else {
            return Ok(());
        };
        let before = chunk.bytes.len();
        let result = encode(&mut chunk.bytes);
        self.to_broker_bytes += chunk.bytes.len() - before;
        self.last_to_broker = now;
        result.map_err(|error| RelayFailure::Unable(error.to_string()))
    }

    fn put_bytes(&mut self, class: Class, bytes: &[u8], now: Duration) -> Result<(), RelayFailure> {
        let put = |out: &mut Vec<u8>| {
            out.extend_from_slice(bytes);
            Ok(())
        };
        self.put(class, put, now)
    }

    fn on_frame(&mut self, from: Side, bytes: &[u8], now: Duration) -> Result<(), RelayFailure> {
        let Ok(Split::Frame(frame)) = split_of(bytes, u32::MAX, self.version) else {
            return Ok(());
        };
        let result = match (from, self.phase) {
            (Side::Client, Phase::New) => self.on_connect(frame, now),
            (Side::Client, _) => self.on_client(frame, now),
            (Side::Broker, Phase::Connecting) => self.on_connack(frame),
            (Side::Broker, _) => self.on_broker(frame, now),
        };
        result.map_err(|stop| match stop {
            Stop::Ended(ended) => ended,
            Stop::Decode(error) => self.misbehaved(from, &error),
        })
    }
}

/// Why a packet is the last.
#[derive(Debug)]
enum Stop {
    Ended(RelayFailure),
    Decode(DecodeError),
}

impl From<RelayFailure> for Stop {
    fn from(ended: RelayFailure) -> Self {
        Self::Ended(ended)
    }
}

impl From<DecodeError> for Stop {
    fn from(error: DecodeError) -> Self {
        Self::Decode(error)
    }
}

fn encoded(result: Result<(), EncodeError>) -> Result<(), Stop> {
    result.map_err(|error| Stop::Ended(RelayFailure::Unable(error.to_string())))
}

#[cfg(test)]
mod tests;
