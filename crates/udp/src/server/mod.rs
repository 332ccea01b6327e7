//! The server's side: many peers behind one address.
//!
//! Datagrams go in by [`Endpoint::handle`]; [`Endpoint::poll_event`] says what
//! the broker is to do, [`Endpoint::poll_transmit`] what is to be sent. Packets
//! for the broker wait in each peer's inbox and are taken from there, so that a
//! broker that holds a publisher back holds it back here: a full inbox drops
//! datagrams unseen, and what has to arrive is repeated by its sender.
//!
//! Invariants: nothing is kept for an address before a cookie came back from
//! it (unless that is switched off), no answer to an unproven address is larger
//! than what it answers, and every peer's memory is bounded.

mod connect;
mod peer;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use punctual_codec::{Connect, Frame, PacketType, ReasonCode};
use sha2::Sha256;

use self::connect::{put_connack_refusal, put_connect, put_disconnect};
use self::peer::{Peer, Stage};
use crate::cookie::{Cookie, Cookies};
use crate::header::{Header, SessionId, Token};
use crate::packet::{are_whole, digest, frames, has_topic_alias};
use crate::{MAX_DATAGRAM_V4, MAX_DATAGRAM_V6, Transmit};

/// How long an ended connection's last words are repeated to a client that
/// missed them.
const LINGER: Duration = Duration::from_secs(5);
/// Least time between two answers to a repeated CONNECT or to a client that
/// talks to an ended connection, and between two cookies for a new address.
const ANSWER_PAUSE: Duration = Duration::from_millis(20);
/// Least time between two changes of a session's address.
const MOVE_PAUSE: Duration = Duration::from_secs(1);
/// An identical CONNECT without nonce that comes within this time is a
/// repetition.
const CONNECT_WINDOW: Duration = Duration::from_secs(5);
/// Bytes for the broker that may wait in one inbox.
const INBOX: usize = 64 << 10;
/// Class of datagrams that begin and end connections, so that many CONNECTs do not delay urgent
/// messages.
const HANDSHAKE: u8 = 2;
/// Size that every path carries, without the headers of IP and UDP (RFC 791: 576 bytes with the
/// longest headers). A forged report of a smaller one does not make datagrams smaller.
const LEAST_DATAGRAM: usize = 508;
/// Datagrams made here that may wait to be sent; repetitions beyond are left
/// for the next time.
const QUEUE: usize = 4096;

/// How an [`Endpoint`] behaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointConfig {
    /// Whether an address has to be proven by a cookie before the server stores state for it.
    /// Without, clients may begin with a bare CONNECT; only for networks without forged addresses.
    pub cookie: bool,
    /// Whether all sessions are sealed: datagrams without token are ignored.
    /// Without, that is the client's choice.
    pub seal: bool,
    /// Largest datagram to and from IPv4 addresses, in bytes.
    pub max_datagram_v4: usize,
    /// Largest datagram to and from IPv6 addresses, in bytes.
    pub max_datagram_v6: usize,
    /// Bound on connections; further ones are answered that the server is busy.
    pub max_peers: usize,
    /// Silence after which a client without keep-alive is gone.
    pub idle: Duration,
}

impl Default for EndpointConfig {
    fn default() -> Self {
        Self {
            cookie: true,
            seal: false,
            max_datagram_v4: MAX_DATAGRAM_V4,
            max_datagram_v6: MAX_DATAGRAM_V6,
            max_peers: usize::MAX,
            idle: Duration::from_secs(300),
        }
    }
}

impl EndpointConfig {
    fn max_datagram(&self, address: SocketAddr) -> usize {
        let max = match address.ip() {
            IpAddr::V4(_) => self.max_datagram_v4,
            IpAddr::V6(_) => self.max_datagram_v6,
        };
        // Room for the largest greeting without properties.
        max.max(256)
    }
}

/// The two addresses of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Path {
    /// The client's address, IPv4 ones not mapped to IPv6.
    pub remote: SocketAddr,
    /// The address of this machine that it came to, if known.
    pub local: Option<IpAddr>,
}

/// A connection of an endpoint. Never refers to another one later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PeerId {
    /// Position; reused after the connection has ended.
    pub slot: u32,
    /// Distinguishes connections with the same slot.
    pub generation: u32,
}

/// What the broker is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A new connection; its CONNECT is in the inbox.
    Opened(PeerId),
    /// Something is in the inbox.
    Received(PeerId),
    /// The connection has ended, for this reason; it is forgotten already.
    Lost(PeerId, &'static str),
    /// The connection has another address.
    Moved(PeerId, SocketAddr),
}

/// What an endpoint has counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Datagrams received.
    pub received: u64,
    /// Bytes received, without headers of UDP and below.
    pub received_bytes: u64,
    /// Datagrams given out for sending.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Cookies sent instead of an answer.
    pub retries: u64,
    /// Datagrams with a bad header, or that are not whole packets.
    pub malformed: u64,
    /// Datagrams without connection.
    pub unknown: u64,
    /// Datagrams whose token is forged, replayed or missing.
    pub unproven: u64,
    /// Cookies that had opened a connection before.
    pub replayed_cookies: u64,
    /// Packets that were repeated by clients, or strays.
    pub repeated_received: u64,
    /// Packets that were repeated to clients.
    pub repeated_sent: u64,
    /// Messages given up because their lifetime was over.
    pub expired: u64,
    /// Packets too large for a datagram: not sent, or refused.
    pub too_large: u64,
    /// Times that a path took only smaller datagrams than were sent to it.
    pub narrowed: u64,
    /// Datagrams dropped because the broker holds the client back.
    pub inbox_full: u64,
    /// Connections refused because there are as many as there may be.
    pub refused: u64,
    /// Changes of address.
    pub moves: u64,
}

/// MQTT over UDP behind one port.
#[derive(Debug)]
pub struct Endpoint {
    config: EndpointConfig,
    cookies: Cookies,
    /// Makes identifiers and keys of sessions.
    secret: Hmac<Sha256>,
    made: u64,
    peers: Vec<Option<Box<Peer>>>,
    free: Vec<u32>,
    open: usize,
    generation: u32,
    by_address: HashMap<SocketAddr, u32>,
    /// Whose datagram without header came last: compared before looked up.
    last: u32,
    by_id: HashMap<SessionId, u32>,
    timers: BTreeSet<(Duration, u32)>,
    events: VecDeque<Event>,
    transmits: VecDeque<Transmit<Path>>,
    spare: Vec<Vec<u8>>,
    replies: Vec<u8>,
    counters: Counters,
}

impl Endpoint {
    /// An endpoint; `seed` has to be random and secret.
    pub fn new(config: EndpointConfig, seed: &[u8; 32], now: Duration) -> Self {
        let derive = |purpose: &[u8]| -> [u8; 32] {
            let mut mac = keyed(seed);
            mac.update(purpose);
            mac.finalize().into_bytes().into()
        };
        Self {
            config,
            cookies: Cookies::new(derive(b"punctual udp cookies"), now),
            secret: keyed(&derive(b"punctual udp sessions")),
            made: 0,
            peers: Vec::new(),
            free: Vec::new(),
            open: 0,
            generation: 0,
            by_address: HashMap::new(),
            last: 0,
            by_id: HashMap::new(),
            timers: BTreeSet::new(),
            events: VecDeque::new(),
            transmits: VecDeque::new(),
            spare: Vec::new(),
            replies: Vec::new(),
            counters: Counters::default(),
        }
    }

    /// Replaces the settings; they apply to later datagrams.
    pub fn set_config(&mut self, config: EndpointConfig) {
        self.config = config;
    }

    /// What was counted since the start.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Connections, without those that have ended and linger.
    pub fn open(&self) -> usize {
        self.open
    }

    /// Takes in a datagram.
    pub fn handle(&mut self, path: Path, datagram: &[u8], now: Duration) {
        self.counters.received += 1;
        self.counters.received_bytes += datagram.len() as u64;
        match Header::split(datagram) {
            Ok((None, packets)) => self.bare(path, packets, now),
            Ok((Some(hello @ Header::Hello { .. }), packets)) => {
                self.hello(path, hello, packets, datagram.len(), now);
            }
            Ok((Some(Header::Token(token)), packets)) => {
                self.token(path, &token, None, datagram, packets, now);
            }
            Ok((Some(Header::Move(token, cookie)), packets)) => {
                self.token(path, &token, Some(&cookie), datagram, packets, now);
            }
            Ok((Some(_), _)) | Err(_) => self.counters.malformed += 1,
        }
    }

    /// A datagram without header: known by its address.
    fn bare(&mut self, path: Path, packets: &[u8], now: Duration) {
        if !are_whole(packets) {
            self.counters.malformed += 1;
            return;
        }
        let connect = connect_of(packets);
        let slot = self.at_address(path.remote);
        let peer = slot.and_then(|slot| Some((slot, self.peers.get_mut(slot as usize)?.as_mut()?)));
        if let (Some((slot, peer)), None) = (&peer, &connect) {
            if peer.sealed {
                self.counters.unproven += 1;
            } else if peer.stage == Stage::Ended {
                let slot = *slot;
                self.last_words(slot, None, packets.len(), now);
            } else {
                let slot = *slot;
                self.receive(slot, packets, packets.len(), None, now);
            }
            return;
        }
        let Some(connect) = connect else {
            self.counters.unknown += 1;
            self.reset(path, 0, 0, packets.len());
            return;
        };
        if self.config.cookie || self.config.seal {
            // A session that is there stays what it is: anybody may have
            // sent this.
            self.retry(path, [0; 8], packets.len(), now);
            return;
        }
        if let Some((slot, peer)) = peer
            && peer.stage != Stage::Ended
            && peer.nonce.is_none()
            && peer.connect_digest == digest(&connect)
            && now.saturating_sub(peer.connect_heard) < CONNECT_WINDOW
        {
            peer.connect_heard = now;
            self.repeat_greeting(slot, now);
            return;
        }
        self.accept(path, false, None, &connect, packets, now);
    }

    /// The connection with a client at that address.
    #[inline]
    fn at_address(&mut self, address: SocketAddr) -> Option<u32> {
        let last = self.peers.get(self.last as usize).and_then(Option::as_ref);
        if last.is_some_and(|peer| peer.path.remote == address) {
            return Some(self.last);
        }
        let slot = *self.by_address.get(&address)?;
        self.last = slot;
        Some(slot)
    }

    /// A datagram of `len` bytes that begins with Hello.
    fn hello(&mut self, path: Path, hello: Header, packets: &[u8], len: usize, now: Duration) {
        let Header::Hello {
            sealed,
            nonce,
            cookie,
        } = hello
        else {
            return;
        };
        let Some(connect) = connect_of(packets).filter(|_| are_whole(packets)) else {
            self.counters.malformed += 1;
            return;
        };
        let proven = self.cookies.check(&cookie, path.remote, &nonce, now);
        if self.config.cookie && !proven {
            self.retry(path, nonce, len, now);
            return;
        }
        let known = self.by_address.get(&path.remote).copied();
        let peer = known.and_then(|slot| Some((slot, self.peers.get(slot as usize)?.as_ref()?)));
        if let Some((slot, peer)) = peer
            && peer.nonce == Some(nonce)
        {
            if peer.stage == Stage::Ended {
                self.last_words(slot, None, len, now);
            } else {
                self.repeat_greeting(slot, now);
            }
            return;
        }
        if proven && !self.cookies.spend(&cookie) {
            self.counters.replayed_cookies += 1;
            self.retry(path, nonce, len, now);
            return;
        }
        self.accept(path, sealed, Some(nonce), &connect, packets, now);
        let slot = self.by_address.get(&path.remote).copied();
        if let Some(peer) = slot.and_then(|slot| self.peers.get_mut(slot as usize)?.as_mut()) {
            peer.proven |= proven;
        }
    }

    /// A client whose address is as good as proven wants to connect.
    fn accept(
        &mut self,
        path: Path,
        sealed: bool,
        nonce: Option<[u8; 8]>,
        connect: &Frame<'_>,
        packets: &[u8],
        now: Duration,
    ) {
        let max = self.config.max_datagram(path.remote);
        if packets.len() > max {
            self.counters.too_large += 1;
            return;
        }
        if self.open >= self.config.max_peers {
            self.counters.refused += 1;
            let mut data = self.buffer();
            if let Some(nonce) = nonce {
                let (id, key) = (0, [0; 16]);
                Header::Welcome {
                    sealed: false,
                    nonce,
                    id,
                    key,
                }
                .put(&mut data);
            }
            let version = Connect::peek_version(connect.body);
            put_connack_refusal(version, ReasonCode::ServerBusy, &mut data);
            if data.len() <= packets.len() + nonce.map_or(0, |_| Header::HELLO_LEN) {
                self.transmit(path, HANDSHAKE, data);
            }
            return;
        }
        // What was at this address is gone, and must not say goodbye to the
        // one that comes after it.
        if let Some(old) = self.by_address.get(&path.remote).copied() {
            self.lose(old, "its address has begun a new connection");
        }
        let (id, key) = self.new_session();
        self.generation = self.generation.wrapping_add(1);
        let sealed = nonce.is_some() && (sealed || self.config.seal);
        let mut peer = Peer::new(path, self.generation, sealed, nonce, connect, now);
        if nonce.is_some() {
            peer.seal(id, key);
        }
        let capacity = max - if sealed { Header::TOKEN_LEN } else { 0 };
        peer.capacity = capacity;
        put_connect(connect, capacity, &mut peer.inbox);
        let idle = peer.keep_alive == 0;
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.peers.push(None);
                (self.peers.len() - 1) as u32
            }
        };
        if idle {
            peer.idle_at = Some(now + self.config.idle);
        }
        let peer_id = PeerId {
            slot,
            generation: self.generation,
        };
        self.peers[slot as usize] = Some(Box::new(peer));
        self.open += 1;
        self.by_address.insert(path.remote, slot);
        if nonce.is_some() {
            self.by_id.insert(id, slot);
        }
        self.events.push_back(Event::Opened(peer_id));
        let rest = &packets[connect.bytes.len()..];
        if !rest.is_empty() {
            self.receive(slot, rest, packets.len(), None, now);
        }
        self.arm(slot);
    }

    /// A datagram with a token, and with the cookie of a new address if the
    /// client answers our asking for it.
    fn token(
        &mut self,
        path: Path,
        token: &Token,
        cookie: Option<&Cookie>,
        datagram: &[u8],
        packets: &[u8],
        now: Duration,
    ) {
        let Some(slot) = self.by_id.get(&token.id).copied() else {
            self.counters.unknown += 1;
            self.reset(path, token.id, token.counter, datagram.len());
            return;
        };
        let Some(peer) = self.peers.get_mut(slot as usize).and_then(Option::as_mut) else {
            return;
        };
        let Some(seal) = peer.seal.as_mut() else {
            return;
        };
        if !seal.open(token, datagram, now) {
            self.counters.unproven += 1;
            return;
        }
        let newest = seal.is_newest(token);
        if peer.stage == Stage::Ended {
            if path.remote == peer.path.remote {
                self.last_words(slot, Some(token.counter), datagram.len(), now);
            } else {
                self.reset(path, token.id, token.counter, datagram.len());
            }
            return;
        }
        if path.remote == peer.path.remote {
            peer.path.local = path.local;
        } else if newest {
            self.elsewhere(slot, path, token, cookie, datagram.len(), now);
        } else {
            // An attacker may have delayed it, to send it from this address.
            self.counters.unproven += 1;
            return;
        }
        if !are_whole(packets) {
            self.counters.malformed += 1;
            return;
        }
        self.receive(slot, packets, datagram.len(), Some(token.counter), now);
    }

    /// A session's newest datagram came from another address: answers go
    /// there once a cookie has come back from there.
    fn elsewhere(
        &mut self,
        slot: u32,
        path: Path,
        token: &Token,
        cookie: Option<&Cookie>,
        len: usize,
        now: Duration,
    ) {
        let nonce = token.id.to_be_bytes();
        let proven = cookie.is_some_and(|c| self.cookies.check(c, path.remote, &nonce, now));
        let taken = self.by_address.contains_key(&path.remote);
        let Some(peer) = self.peers.get_mut(slot as usize).and_then(Option::as_mut) else {
            return;
        };
        if !proven {
            if now >= peer.next_cookie {
                peer.next_cookie = now + ANSWER_PAUSE;
                self.retry(path, nonce, len, now);
            }
            return;
        }
        if now < peer.next_move || taken {
            return;
        }
        peer.next_move = now + MOVE_PAUSE;
        let generation = peer.generation;
        let old = std::mem::replace(&mut peer.path, path);
        let family = peer.path.remote;
        self.by_address.remove(&old.remote);
        self.by_address.insert(path.remote, slot);
        self.counters.moves += 1;
        let max = self.config.max_datagram(family);
        if let Some(peer) = self.peers.get_mut(slot as usize).and_then(Option::as_mut) {
            let header = if peer.sealed { Header::TOKEN_LEN } else { 0 };
            peer.capacity = peer.capacity.min(max - header);
        }
        let id = PeerId { slot, generation };
        self.events.push_back(Event::Moved(id, path.remote));
    }

    /// Whole packets of a connection. `len` is the size of their datagram.
    fn receive(
        &mut self,
        slot: u32,
        packets: &[u8],
        len: usize,
        counter: Option<u64>,
        now: Duration,
    ) {
        let Some(peer) = self.peers.get_mut(slot as usize).and_then(Option::as_mut) else {
            return;
        };
        let max = self.config.max_datagram(peer.path.remote);
        peer.heard = now;
        peer.last_counter = counter;
        if len > max {
            self.counters.too_large += 1;
            self.refuse(
                slot,
                ReasonCode::PacketTooLarge,
                "datagram is larger than max_datagram",
                now,
            );
            return;
        }
        if peer.inbox.len() > INBOX {
            self.counters.inbox_full += 1;
            return;
        }
        let before = peer.inbox.len();
        self.replies.clear();
        let mut greeting = false;
        let mut alias = false;
        for frame in frames(packets, max) {
            match frame.kind {
                PacketType::Publish if has_topic_alias(&frame, peer.flow.version()) => {
                    alias = true;
                    break;
                }
                // Before CONNACK the answer to AUTH is a greeting.
                PacketType::Auth if peer.stage == Stage::Opening => {
                    let new = peer
                        .flow
                        .receive(&frame, now, &mut peer.inbox, &mut self.replies);
                    self.replies.clear();
                    greeting |= !new;
                    self.counters.repeated_received += u64::from(!new);
                }
                _ => {
                    let new = peer
                        .flow
                        .receive(&frame, now, &mut peer.inbox, &mut self.replies);
                    self.counters.repeated_received += u64::from(!new);
                }
            }
        }
        let (id, opening) = (peer.id(slot), peer.stage == Stage::Opening);
        if peer.inbox.len() > before && before == 0 {
            self.events.push_back(Event::Received(id));
        }
        if greeting {
            self.repeat_greeting(slot, now);
        }
        if opening {
            self.replies.clear();
        }
        if !self.replies.is_empty() {
            let replies = std::mem::take(&mut self.replies);
            self.put_datagrams(slot, &replies, 0);
            self.replies = replies;
        }
        if alias {
            let why = "topic aliases are not available over UDP";
            self.refuse(slot, ReasonCode::TopicAliasInvalid, why, now);
            return;
        }
        self.arm(slot);
    }

    /// Ends a connection with a DISCONNECT of our own.
    fn refuse(&mut self, slot: u32, reason: ReasonCode, why: &'static str, now: Duration) {
        let Some(peer) = self.peers.get_mut(slot as usize).and_then(Option::as_mut) else {
            return;
        };
        let id = peer.id(slot);
        let mut tail = Vec::new();
        if peer.stage == Stage::Connected {
            put_disconnect(peer.flow.version(), reason, why, &mut tail);
        }
        self.close(id, &tail, now);
        self.events.push_back(Event::Lost(id, why));
    }

    /// Packets for the broker; empty for a connection that is gone.
    pub fn inbox(&self, id: PeerId) -> &[u8] {
        self.peer(id).map_or(&[], |peer| &peer.inbox)
    }

    /// The broker has taken the first `n` bytes of the inbox.
    pub fn consumed(&mut self, id: PeerId, n: usize) {
        if let Some(peer) = self.peer_mut(id) {
            peer.inbox.drain(..n.min(peer.inbox.len()));
        }
    }

    /// A connection's address; `None` once it has ended.
    pub fn path(&self, id: PeerId) -> Option<Path> {
        self.peer(id).map(|peer| peer.path)
    }

    /// Bytes of packets that one datagram to that connection can carry.
    pub fn capacity(&self, id: PeerId) -> usize {
        self.peer(id).map_or(0, |peer| peer.capacity)
    }

    /// The path to an address takes no datagrams above `max` bytes: those to it are
    /// smaller from now on, but never smaller than every path has to take. Returns
    /// the connection if that is new.
    pub fn narrow(&mut self, address: SocketAddr, max: usize) -> Option<PeerId> {
        let slot = *self.by_address.get(&address)?;
        let peer = self.peers.get_mut(slot as usize)?.as_mut()?;
        let header = if peer.sealed { Header::TOKEN_LEN } else { 0 };
        let capacity = max.max(LEAST_DATAGRAM) - header;
        if capacity >= peer.capacity {
            return None;
        }
        peer.capacity = capacity;
        self.counters.narrowed += 1;
        let generation = peer.generation;
        Some(PeerId { slot, generation })
    }

    /// Sends whole packets from the broker, all of one class, in as few
    /// datagrams as hold them. A packet that no datagram can hold is dropped,
    /// counted, and acknowledged to the broker as failed if it asks for that.
    pub fn send(&mut self, id: PeerId, packets: &[u8], class: u8, now: Duration) {
        let Some(peer) = self.peer_mut(id) else {
            return;
        };
        let capacity = peer.capacity;
        let before = peer.inbox.len();
        let (mut too_large, mut greeting) = (0, false);
        // What does not go out as it is; almost always nothing.
        let mut skipped: Vec<Range<usize>> = Vec::new();
        let mut at = 0;
        for frame in frames(packets, usize::MAX) {
            let range = at..at + frame.bytes.len();
            at = range.end;
            if range.len() > capacity {
                too_large += 1;
                peer.flow.unsendable(&frame, &mut peer.inbox);
                skipped.push(range);
            } else if peer.stage == Stage::Opening
                && matches!(frame.kind, PacketType::ConnAck | PacketType::Auth)
            {
                peer.greet(&frame);
                greeting = true;
                skipped.push(range);
            } else if peer.stage == Stage::Opening {
                // Nothing goes before CONNACK [MQTT-3.2.0-1], least of all to an address that
                // has proven nothing.
                skipped.push(range);
            } else {
                peer.flow.sending(&frame, class, now);
            }
        }
        let received = peer.inbox.len() > before && before == 0;
        self.counters.too_large += too_large;
        if received {
            self.events.push_back(Event::Received(id));
        }
        if greeting {
            self.send_greeting(id.slot);
        }
        let mut from = 0;
        for range in skipped {
            self.put_datagrams(id.slot, &packets[from..range.start], class);
            from = range.end;
        }
        self.put_datagrams(id.slot, &packets[from..at], class);
        self.arm(id.slot);
    }

    /// Refuses a connection that has just been opened.
    pub fn reject(&mut self, id: PeerId, reason: ReasonCode, now: Duration) {
        let Some(peer) = self.peer(id) else {
            return;
        };
        let mut connack = Vec::new();
        put_connack_refusal(Some(peer.flow.version()), reason, &mut connack);
        self.close(id, &connack, now);
    }

    /// The broker has ended a connection; `tail` are its last packets.
    pub fn close(&mut self, id: PeerId, tail: &[u8], now: Duration) {
        if self.peer(id).is_none() {
            return;
        }
        let refusal = frames(tail, usize::MAX).next();
        if refusal.is_some_and(|frame| frame.kind == PacketType::ConnAck) {
            self.send(id, tail, HANDSHAKE, now);
        } else if !tail.is_empty() {
            self.put_datagrams(id.slot, tail, HANDSHAKE);
        }
        let Some(peer) = self.peer_mut(id) else {
            return;
        };
        peer.stage = Stage::Ended;
        peer.inbox = Vec::new();
        peer.idle_at = None;
        peer.linger = Some(now + LINGER);
        peer.tail = frames(tail, usize::MAX)
            .find(|frame| frame.kind == PacketType::Disconnect)
            .map_or_else(Box::default, |frame| frame.bytes.into());
        let goodbye = peer.last_counter.filter(|_| tail.is_empty());
        let (path, session) = (peer.path, peer.seal.as_ref().map(|seal| seal.id));
        self.open -= 1;
        if let (Some(counter), Some(session)) = (goodbye, session) {
            // The answer to DISCONNECT, which MQTT has none for.
            self.reset(path, session, counter, Header::RESET_LEN);
        }
        self.arm(id.slot);
    }

    /// Answers a client that has not heard that its connection has ended.
    fn last_words(&mut self, slot: u32, counter: Option<u64>, len: usize, now: Duration) {
        let Some(peer) = self.peers.get_mut(slot as usize).and_then(Option::as_mut) else {
            return;
        };
        if now < peer.next_answer {
            return;
        }
        peer.next_answer = now + ANSWER_PAUSE;
        let (path, session) = (peer.path, peer.seal.as_ref().map(|seal| seal.id));
        if !peer.greeting.is_empty() && !peer.was_connected {
            if peer.proven || peer.greeting.len() <= len {
                self.send_greeting(slot);
            }
        } else if !peer.tail.is_empty() {
            let tail = std::mem::take(&mut peer.tail);
            self.put_datagrams(slot, &tail, HANDSHAKE);
            if let Some(peer) = self.peers.get_mut(slot as usize).and_then(Option::as_mut) {
                peer.tail = tail;
            }
        } else if let (Some(counter), Some(session)) = (counter, session) {
            self.reset(path, session, counter, len);
        } else {
            self.reset(path, 0, 0, len);
        }
    }

    /// Next time that [`Self::handle_timeout`] has something to do.
    pub fn next_timeout(&self) -> Option<Duration> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Does what is due: repeats, gives up, forgets.
    pub fn handle_timeout(&mut self, now: Duration) {
        while let Some(&(at, slot)) = self.timers.first()
            && at <= now
        {
            self.timers.pop_first();
            let crowded = self.transmits.len() >= QUEUE;
            let Some(peer) = self.peers.get_mut(slot as usize).and_then(Option::as_mut) else {
                continue;
            };
            peer.armed = None;
            if peer.linger.is_some_and(|until| until <= now) {
                self.forget(slot);
                continue;
            }
            if peer.idle_at.is_some_and(|at| at <= now) {
                let idle = self.config.idle;
                if now.saturating_sub(peer.heard) >= idle {
                    self.lose(slot, "silent for too long, without keep-alive");
                    continue;
                }
                peer.idle_at = Some(peer.heard + idle);
            }
            if crowded {
                // Sending is stuck; there is time.
                peer.armed = Some(now + ANSWER_PAUSE);
                self.timers.insert((now + ANSWER_PAUSE, slot));
                continue;
            }
            let before = peer.inbox.len();
            let mut again: Vec<(u8, Vec<u8>)> = Vec::new();
            let heard = peer.heard;
            let Peer { flow, inbox, .. } = &mut **peer;
            let repeated = flow.repeat(heard, now, inbox, |packet, class| {
                match again.iter_mut().find(|(other, _)| *other == class) {
                    Some((_, packets)) => packets.extend_from_slice(packet),
                    None => again.push((class, packet.to_vec())),
                }
            });
            let received = peer.inbox.len() > before && before == 0;
            let id = peer.id(slot);
            self.counters.repeated_sent += repeated.packets;
            self.counters.expired += repeated.expired;
            if received {
                self.events.push_back(Event::Received(id));
            }
            for (class, packets) in again {
                self.put_datagrams(slot, &packets, class);
            }
            if repeated.gone {
                self.lose(slot, "does not answer");
                continue;
            }
            self.arm(slot);
        }
    }

    /// What the broker is to do next.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The next datagram to send. Give its buffer back with
    /// [`Self::recycle`].
    pub fn poll_transmit(&mut self) -> Option<Transmit<Path>> {
        let transmit = self.transmits.pop_front()?;
        self.counters.sent += 1;
        self.counters.sent_bytes += transmit.data.len() as u64;
        Some(transmit)
    }

    /// Whether [`Self::poll_transmit`] has something.
    pub fn has_transmits(&self) -> bool {
        !self.transmits.is_empty()
    }

    /// Takes a sent datagram's buffer, to use it again.
    pub fn recycle(&mut self, mut data: Vec<u8>) {
        if self.spare.len() < 64 {
            data.clear();
            self.spare.push(data);
        }
    }

    fn peer(&self, id: PeerId) -> Option<&Peer> {
        let peer = self.peers.get(id.slot as usize)?.as_deref()?;
        (peer.generation == id.generation && peer.stage != Stage::Ended).then_some(peer)
    }

    fn peer_mut(&mut self, id: PeerId) -> Option<&mut Peer> {
        let peer = self.peers.get_mut(id.slot as usize)?.as_deref_mut()?;
        (peer.generation == id.generation && peer.stage != Stage::Ended).then_some(peer)
    }

    fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    fn transmit(&mut self, path: Path, class: u8, data: Vec<u8>) {
        self.transmits.push_back(Transmit { path, class, data });
    }

    fn retry(&mut self, path: Path, nonce: [u8; 8], len: usize, now: Duration) {
        if len < Header::RETRY_LEN {
            return;
        }
        self.counters.retries += 1;
        let cookie = self.cookies.make(path.remote, &nonce, now);
        let mut data = self.buffer();
        Header::Retry { nonce, cookie }.put(&mut data);
        self.transmit(path, HANDSHAKE, data);
    }

    fn reset(&mut self, path: Path, id: SessionId, counter: u64, len: usize) {
        if len < Header::RESET_LEN {
            return;
        }
        let mut data = self.buffer();
        Header::Reset { id, counter }.put(&mut data);
        self.transmit(path, HANDSHAKE, data);
    }

    /// Answers a repeated CONNECT (or AUTH) as the first was answered, if it
    /// was.
    fn repeat_greeting(&mut self, slot: u32, now: Duration) {
        self.counters.repeated_received += 1;
        let Some(peer) = self.peers.get_mut(slot as usize).and_then(Option::as_mut) else {
            return;
        };
        peer.heard = now;
        if !peer.greeting.is_empty() && now >= peer.next_answer {
            peer.next_answer = now + ANSWER_PAUSE;
            self.send_greeting(slot);
        }
    }

    fn send_greeting(&mut self, slot: u32) {
        let mut data = self.buffer();
        let Some(peer) = self.peers.get_mut(slot as usize).and_then(Option::as_mut) else {
            return;
        };
        data.extend_from_slice(&peer.greeting);
        let path = peer.path;
        self.transmit(path, HANDSHAKE, data);
    }

    /// Puts packets into datagrams to a connection, with a token if it is
    /// sealed.
    fn put_datagrams(&mut self, slot: u32, packets: &[u8], class: u8) {
        let mut rest = packets;
        while !rest.is_empty() {
            let mut data = self.buffer();
            let Some(peer) = self.peers.get_mut(slot as usize).and_then(Option::as_mut) else {
                return;
            };
            let mut len = 0;
            if rest.len() <= peer.capacity {
                len = rest.len();
            } else {
                for frame in frames(rest, usize::MAX) {
                    if len > 0 && len + frame.bytes.len() > peer.capacity {
                        break;
                    }
                    len += frame.bytes.len();
                }
            }
            if len == 0 {
                return;
            }
            let (now, later) = rest.split_at(len);
            rest = later;
            let path = peer.path;
            match peer.seal.as_mut().filter(|_| peer.sealed) {
                Some(seal) => {
                    Header::Token(seal.next()).put(&mut data);
                    data.extend_from_slice(now);
                    seal.sign(&mut data);
                }
                None => data.extend_from_slice(now),
            }
            self.transmit(path, class, data);
        }
    }

    fn new_session(&mut self) -> (SessionId, [u8; 16]) {
        loop {
            self.made += 1;
            let mut mac = self.secret.clone();
            mac.update(&self.made.to_be_bytes());
            let bytes: [u8; 32] = mac.finalize().into_bytes().into();
            let (mut id, mut key) = ([0; 8], [0; 16]);
            id.copy_from_slice(&bytes[..8]);
            key.copy_from_slice(&bytes[8..24]);
            let id = u64::from_be_bytes(id);
            if id != 0 && !self.by_id.contains_key(&id) {
                return (id, key);
            }
        }
    }

    /// Ends a connection that the broker does not know to have ended.
    fn lose(&mut self, slot: u32, why: &'static str) {
        let Some(peer) = self.peers.get(slot as usize).and_then(Option::as_ref) else {
            return;
        };
        let id = peer.id(slot);
        if peer.stage != Stage::Ended {
            self.open -= 1;
            self.events.push_back(Event::Lost(id, why));
        }
        self.forget(slot);
    }

    fn forget(&mut self, slot: u32) {
        let Some(peer) = self.peers.get_mut(slot as usize).and_then(Option::take) else {
            return;
        };
        if let Some(at) = peer.armed {
            self.timers.remove(&(at, slot));
        }
        if self.by_address.get(&peer.path.remote) == Some(&slot) {
            self.by_address.remove(&peer.path.remote);
        }
        if let Some(seal) = &peer.seal {
            self.by_id.remove(&seal.id);
        }
        self.free.push(slot);
    }

    /// Sets a peer's timer to what is due first.
    fn arm(&mut self, slot: u32) {
        let Some(peer) = self.peers.get_mut(slot as usize).and_then(Option::as_mut) else {
            return;
        };
        let repeat = match peer.stage {
            Stage::Ended => None,
            _ => peer.flow.outbound.timeout(),
        };
        let due = [repeat, peer.idle_at, peer.linger]
            .into_iter()
            .flatten()
            .min();
        if due == peer.armed {
            return;
        }
        if let Some(at) = peer.armed {
            self.timers.remove(&(at, slot));
        }
        if let Some(at) = due {
            self.timers.insert((at, slot));
        }
        peer.armed = due;
    }
}

/// The CONNECT that packets begin with, if they do.
#[inline]
fn connect_of(packets: &[u8]) -> Option<Frame<'_>> {
    // Almost nothing does; that shows in the first byte.
    if packets.first()? >> 4 != PacketType::Connect as u8 {
        return None;
    }
    frames(packets, packets.len()).next()
}

fn keyed(key: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).expect("HMAC takes keys of any length")
}

#[cfg(test)]
mod tests;
