//! The client's side: one connection to one server.
//!
//! It stands between an MQTT client that believes in an ordered, reliable
//! stream and a socket that has neither: whole packets go in by
//! [`Client::send`], beginning with CONNECT, and come out by
//! [`Client::received`]; datagrams come in by [`Client::handle`] and go out by
//! [`Client::poll_transmit`]. What follows CONNECT waits until CONNACK has
//! come.

use std::collections::VecDeque;
use std::time::Duration;

use punctual_codec::{Connect, Frame, PacketType, Version};

use crate::cookie::Cookie;
use crate::flow::Flow;
use crate::header::Header;
use crate::packet::{are_whole, digest, frames};
use crate::rtt::Rtt;
use crate::seal::Seal;
use crate::{MAX_DATAGRAM_V4, Side, Transmit};

/// Cookies that are tried for one connection.
const RETRIES: u32 = 8;
/// How often DISCONNECT is sent if nothing confirms it.
const GOODBYES: u32 = 4;
/// Least time between two answers to what anybody may have sent.
const PROBE_PAUSE: Duration = Duration::from_millis(50);
/// Bytes that may wait for CONNACK.
const QUEUE: usize = 1 << 20;

/// How a [`Client`] behaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientConfig {
    /// Datagrams hold MQTT packets and nothing else, for servers that know no
    /// headers. There are no cookies, no tokens and no change of address then.
    pub plain: bool,
    /// Every datagram has a token, so that only observers of the beginning of the connection could
    /// forge datagrams of either side. Costs [`Header::TOKEN_LEN`] bytes a datagram.
    pub sealed: bool,
    /// Largest datagram, in bytes.
    pub max_datagram: usize,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            plain: false,
            sealed: true,
            max_datagram: MAX_DATAGRAM_V4,
        }
    }
}

/// How far a [`Client`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientState {
    /// CONNECT was not answered yet, or not even given.
    Connecting,
    /// CONNACK has come.
    Connected,
    /// DISCONNECT is on its way.
    Closing,
    /// Nothing more will happen, for this reason.
    Closed(&'static str),
}

/// A connection from the client's side.
#[derive(Debug)]
pub struct Client {
    config: ClientConfig,
    state: ClientState,
    nonce: [u8; 8],
    cookie: Cookie,
    /// The CONNECT packet; empty before it is given.
    connect: Vec<u8>,
    retries: u32,
    hellos: u32,
    last_hello: Duration,
    next_hello: Option<Duration>,
    /// Path estimates from the greeting, before there is a flow.
    rtt: Rtt,
    flow: Flow,
    seal: Option<Seal>,
    sealed: bool,
    last_auth: Option<u64>,
    /// Packets given before CONNACK came, with their class.
    waiting: Vec<(u8, Vec<u8>)>,
    waiting_bytes: usize,
    /// DISCONNECT, while it is to be repeated, and how often it was sent.
    goodbye: Vec<u8>,
    goodbyes: u32,
    next_goodbye: Option<Duration>,
    inbox: Vec<u8>,
    replies: Vec<u8>,
    transmits: VecDeque<Transmit<()>>,
    heard: Duration,
    next_probe: Duration,
    repeated_sent: u64,
    expired: u64,
    ignored: u64,
}

impl Client {
    /// A connection to be; `nonce` has to be random and another one for each
    /// connection.
    pub fn new(config: ClientConfig, nonce: [u8; 8]) -> Self {
        Self {
            config,
            state: ClientState::Connecting,
            nonce,
            cookie: Cookie::default(),
            connect: Vec::new(),
            retries: 0,
            hellos: 0,
            last_hello: Duration::ZERO,
            next_hello: None,
            rtt: Rtt::default(),
            flow: Flow::new(Side::Client, Version::V5),
            seal: None,
            sealed: false,
            last_auth: None,
            waiting: Vec::new(),
            waiting_bytes: 0,
            goodbye: Vec::new(),
            goodbyes: 0,
            next_goodbye: None,
            inbox: Vec::new(),
            replies: Vec::new(),
            transmits: VecDeque::new(),
            heard: Duration::ZERO,
            next_probe: Duration::ZERO,
            repeated_sent: 0,
            expired: 0,
            ignored: 0,
        }
    }

    /// How far it is. After [`ClientState::Closed`] begin a new one.
    pub fn state(&self) -> ClientState {
        self.state
    }

    /// Bytes of packets that one datagram can carry; larger packets cannot be
    /// sent.
    pub fn capacity(&self) -> usize {
        let header = match (self.config.plain, self.config.sealed || self.sealed) {
            (false, true) => Header::TOKEN_LEN,
            _ => 0,
        };
        self.config.max_datagram.saturating_sub(header)
    }

    /// Number of packets that were retransmitted so far.
    pub fn repeated(&self) -> u64 {
        self.repeated_sent
    }

    /// Messages given up so far because their lifetime was over.
    pub fn expired(&self) -> u64 {
        self.expired
    }

    /// Datagrams that were not for this connection, or forged, so far.
    pub fn ignored(&self) -> u64 {
        self.ignored
    }

    /// Smoothed round-trip time, once something was measured.
    pub fn rtt(&self) -> Option<Duration> {
        self.flow.outbound.rtt.smoothed()
    }

    /// Sends whole packets of one class, the first of all being CONNECT. A
    /// packet that no datagram can carry is answered as failed if MQTT has an
    /// answer to it, and dropped if not.
    ///
    /// # Errors
    /// More than 1 MiB waits for CONNACK; nothing is taken then.
    pub fn send(&mut self, packets: &[u8], class: u8, now: Duration) -> Result<(), QueueFull> {
        if self.waiting_bytes + packets.len() > QUEUE && self.state == ClientState::Connecting {
            return Err(QueueFull);
        }
        let mut at = 0;
        let mut run = 0..0;
        for frame in frames(packets, usize::MAX) {
            let range = at..at + frame.bytes.len();
            at = range.end;
            let goes = self.sending(&frame, class, now);
            if goes && run.end == range.start {
                run.end = range.end;
            } else {
                self.put_datagrams(&packets[run], class, false);
                run = if goes { range } else { at..at };
            }
        }
        self.put_datagrams(&packets[run], class, false);
        Ok(())
    }

    /// Takes note of one packet: whether it is to be sent now, as it is.
    fn sending(&mut self, frame: &Frame<'_>, class: u8, now: Duration) -> bool {
        if frame.kind == PacketType::Connect && self.connect.is_empty() {
            self.connect = frame.bytes.to_vec();
            let version = Connect::peek_version(frame.body).unwrap_or(Version::V5);
            self.flow = Flow::new(Side::Client, version);
            self.hello(now);
            return false;
        }
        match self.state {
            ClientState::Closing | ClientState::Closed(_) => return false,
            ClientState::Connecting if frame.kind == PacketType::Disconnect => {
                // There is no peer to notify.
                self.state = ClientState::Closed("disconnected before CONNACK");
                self.next_hello = None;
                return false;
            }
            ClientState::Connecting if frame.kind != PacketType::Auth => {
                self.waiting.push((class, frame.bytes.to_vec()));
                self.waiting_bytes += frame.bytes.len();
                return false;
            }
            _ => {}
        }
        if frame.bytes.len() > self.capacity() {
            self.flow.unsendable(frame, &mut self.inbox);
            return false;
        }
        if frame.kind == PacketType::Disconnect {
            self.goodbye = frame.bytes.to_vec();
            self.state = ClientState::Closing;
            self.say_goodbye(now);
            return false;
        }
        self.flow.sending(frame, class, now);
        true
    }

    /// Packets from the server, in a legal order. What was handled is to be
    /// [taken](Self::take_received).
    pub fn received(&self) -> &[u8] {
        &self.inbox
    }

    /// The first `n` bytes of [`Self::received`] were handled.
    pub fn take_received(&mut self, n: usize) {
        self.inbox.drain(..n.min(self.inbox.len()));
    }

    /// Takes in a datagram from the server's address.
    pub fn handle(&mut self, datagram: &[u8], now: Duration) {
        match Header::split(datagram) {
            Ok((None, packets)) => {
                let expected = match self.state {
                    ClientState::Connecting => self.config.plain && !self.connect.is_empty(),
                    ClientState::Closed(_) => false,
                    _ => !self.sealed,
                };
                if expected {
                    self.packets(packets, now);
                } else {
                    self.ignored += 1;
                }
            }
            Ok((Some(Header::Retry { nonce, cookie }), _)) => self.retry(nonce, cookie, now),
            Ok((
                Some(Header::Welcome {
                    sealed,
                    nonce,
                    id,
                    key,
                }),
                packets,
            )) if nonce == self.nonce => {
                if self.state != ClientState::Connecting || self.connect.is_empty() {
                    return;
                }
                if id != 0 && self.seal.as_ref().is_none_or(|seal| seal.id != id) {
                    self.seal = Some(Seal::new(id, key, Side::Client));
                    self.sealed = sealed;
                }
                self.packets(packets, now);
            }
            Ok((Some(Header::Token(token)), packets)) => {
                let known = self
                    .seal
                    .as_mut()
                    .is_some_and(|seal| seal.id == token.id && seal.open(&token, datagram, now));
                if known && !matches!(self.state, ClientState::Closed(_)) {
                    self.packets(packets, now);
                } else {
                    self.ignored += 1;
                }
            }
            Ok((Some(Header::Reset { id, counter }), _)) => self.reset(id, counter, now),
            _ => self.ignored += 1,
        }
    }

    /// Says CONNECT, with what cookie there is.
    fn hello(&mut self, now: Duration) {
        let mut data = Vec::new();
        if !self.config.plain {
            Header::Hello {
                sealed: self.config.sealed,
                nonce: self.nonce,
                cookie: self.cookie,
            }
            .put(&mut data);
        }
        data.extend_from_slice(&self.connect);
        self.hellos += 1;
        self.last_hello = now;
        self.next_hello = Some(now + self.rtt.timeout(self.hellos));
        self.transmit(0, data);
    }

    fn retry(&mut self, nonce: [u8; 8], cookie: Cookie, now: Duration) {
        match (&self.state, &self.seal) {
            (ClientState::Connecting, _)
                if nonce == self.nonce
                    && cookie != self.cookie
                    && self.retries < RETRIES
                    && !self.connect.is_empty() =>
            {
                if self.hellos == 1 {
                    self.rtt.sample(now.saturating_sub(self.last_hello));
                }
                self.retries += 1;
                self.cookie = cookie;
                self.hellos = 0;
                self.hello(now);
            }
            (ClientState::Connected, Some(seal)) if nonce == seal.id.to_be_bytes() => {
                if now >= self.next_probe {
                    self.next_probe = now + PROBE_PAUSE;
                    self.probe(Some(cookie));
                }
            }
            _ => self.ignored += 1,
        }
    }

    /// Proves identity and address to the server.
    fn probe(&mut self, cookie: Option<Cookie>) {
        const PINGREQ: [u8; 2] = [0xC0, 0];
        let Some(seal) = &mut self.seal else {
            return;
        };
        let mut data = Vec::new();
        match cookie {
            Some(cookie) => Header::Move(seal.next(), cookie).put(&mut data),
            None => Header::Token(seal.next()).put(&mut data),
        }
        data.extend_from_slice(&PINGREQ);
        seal.sign(&mut data);
        self.transmit(0, data);
    }

    fn reset(&mut self, id: u64, counter: u64, now: Duration) {
        let Some(seal) = &self.seal else {
            self.ignored += 1;
            return;
        };
        // Only this side knows the last packet sent.
        let ours = id == seal.id && counter <= seal.sent() && counter + 64 > seal.sent();
        match self.state {
            ClientState::Closing if ours => {
                self.state = ClientState::Closed("disconnected");
                self.next_goodbye = None;
            }
            ClientState::Connecting | ClientState::Connected if ours => {
                self.state = ClientState::Closed("the server does not know the session");
            }
            ClientState::Connected if id == 0 && !self.sealed && now >= self.next_probe => {
                self.next_probe = now + PROBE_PAUSE;
                self.probe(None);
            }
            _ => self.ignored += 1,
        }
    }

    fn packets(&mut self, packets: &[u8], now: Duration) {
        if !are_whole(packets) {
            self.ignored += 1;
            return;
        }
        self.heard = now;
        self.replies.clear();
        for frame in frames(packets, packets.len()) {
            if frame.kind == PacketType::ConnAck {
                if self.state != ClientState::Connecting {
                    continue;
                }
                self.inbox.extend_from_slice(frame.bytes);
                self.greeted(now);
                self.flow.outbound.settle_auth();
                if frame.body.get(1) == Some(&0) {
                    self.state = ClientState::Connected;
                } else {
                    self.state = ClientState::Closed("the server refused CONNECT");
                    return;
                }
                continue;
            }
            if frame.kind == PacketType::Auth {
                // Servers repeat it when we repeat what it answers.
                let digest = Some(digest(&frame));
                if self.last_auth == digest {
                    continue;
                }
                self.last_auth = digest;
                self.greeted(now);
                self.flow.outbound.settle_auth();
                self.inbox.extend_from_slice(frame.bytes);
                continue;
            }
            if self.state == ClientState::Connecting {
                // CONNACK was lost, or is late; this will come again, or be
                // missed as QoS 0 may.
                continue;
            }
            self.flow
                .receive(&frame, now, &mut self.inbox, &mut self.replies);
            if frame.kind == PacketType::Disconnect {
                self.state = ClientState::Closed("the server ended the connection");
            }
        }
        let replies = std::mem::take(&mut self.replies);
        self.put_datagrams(&replies, 0, false);
        self.replies = replies;
        if self.state == ClientState::Connected && !self.waiting.is_empty() {
            self.waiting_bytes = 0;
            for (class, packets) in std::mem::take(&mut self.waiting) {
                // Cannot be full: nothing waits any more.
                let _ = self.send(&packets, class, now);
            }
        }
    }

    /// CONNECT was answered.
    fn greeted(&mut self, now: Duration) {
        if self.next_hello.take().is_some() {
            if self.hellos == 1 {
                self.rtt.sample(now.saturating_sub(self.last_hello));
            }
            self.flow.outbound.rtt = self.rtt.clone();
        }
    }

    fn say_goodbye(&mut self, now: Duration) {
        let goodbye = std::mem::take(&mut self.goodbye);
        self.put_datagrams(&goodbye, 0, true);
        self.goodbye = goodbye;
        self.goodbyes += 1;
        if self.seal.is_none() {
            self.state = ClientState::Closed("disconnected");
        } else {
            self.next_goodbye = Some(now + self.flow.outbound.rtt.timeout(self.goodbyes));
        }
    }

    /// When [`Self::handle_timeout`] has something to do.
    pub fn next_timeout(&self) -> Option<Duration> {
        let repeat = match self.state {
            ClientState::Connected => self.flow.outbound.timeout(),
            ClientState::Connecting if self.seal.is_some() => self.flow.outbound.timeout(),
            _ => None,
        };
        let hello = self
            .next_hello
            .filter(|_| self.state == ClientState::Connecting);
        [hello, self.next_goodbye, repeat]
            .into_iter()
            .flatten()
            .min()
    }

    /// Does timed work: repeats unanswered packets. CONNECT is repeated until the layer above gives
    /// up.
    pub fn handle_timeout(&mut self, now: Duration) {
        if self.state == ClientState::Connecting && self.next_hello.is_some_and(|at| at <= now) {
            self.hello(now);
        }
        if self.next_goodbye.is_some_and(|at| at <= now) {
            if self.goodbyes < GOODBYES {
                self.say_goodbye(now);
            } else {
                self.next_goodbye = None;
                self.state = ClientState::Closed("disconnected, unconfirmed");
            }
        }
        if !matches!(self.state, ClientState::Connected | ClientState::Connecting) {
            return;
        }
        let mut again: Vec<(u8, Vec<u8>)> = Vec::new();
        let repeated =
            self.flow.repeat(
                self.heard,
                now,
                &mut self.inbox,
                |packet, class| match again.iter_mut().find(|(other, _)| *other == class) {
                    Some((_, packets)) => packets.extend_from_slice(packet),
                    None => again.push((class, packet.to_vec())),
                },
            );
        self.repeated_sent += repeated.packets;
        self.expired += repeated.expired;
        for (class, packets) in again {
            // With a token: silence may mean that our address has changed.
            self.put_datagrams(&packets, class, true);
        }
        if repeated.gone {
            self.state = ClientState::Closed("the server does not answer");
        }
    }

    /// The next datagram to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit<()>> {
        self.transmits.pop_front()
    }

    fn transmit(&mut self, class: u8, data: Vec<u8>) {
        self.transmits.push_back(Transmit {
            path: (),
            class,
            data,
        });
    }

    /// Puts packets into datagrams, with a token if the session is sealed or
    /// the server is to know whose they are.
    fn put_datagrams(&mut self, packets: &[u8], class: u8, token: bool) {
        let mut rest = packets;
        while let Some(first) = frames(rest, usize::MAX).next() {
            // Pings show the server where we are, should our address change.
            let ping = first.kind == PacketType::PingReq && self.seal.is_some();
            let mut signed = self.sealed || ((token || ping) && self.seal.is_some());
            let header = if signed { Header::TOKEN_LEN } else { 0 };
            let room = self.config.max_datagram.saturating_sub(header);
            let mut len = 0;
            for frame in frames(rest, usize::MAX) {
                let apart = frame.kind == PacketType::PingReq && !self.sealed;
                if len > 0 && (apart || len + frame.bytes.len() > room) {
                    break;
                }
                len += frame.bytes.len();
                if apart {
                    break;
                }
            }
            signed &= self.sealed || len <= room;
            let (now, later) = rest.split_at(len);
            rest = later;
            let mut data = Vec::with_capacity(len + Header::TOKEN_LEN);
            match &mut self.seal {
                Some(seal) if signed => {
                    Header::Token(seal.next()).put(&mut data);
                    data.extend_from_slice(now);
                    seal.sign(&mut data);
                }
                _ => data.extend_from_slice(now),
            }
            self.transmit(class, data);
        }
    }
}

/// Too much waits for CONNACK; see [`Client::send`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueFull;

impl std::fmt::Display for QueueFull {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("more than 1 MiB waits for the server's CONNACK")
    }
}

impl std::error::Error for QueueFull {}
