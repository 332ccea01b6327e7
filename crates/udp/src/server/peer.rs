//! What an endpoint keeps of one connection.

use std::time::Duration;

use punctual_codec::{Connect, Frame, PacketType, ReasonCode, Version};

use super::connect::{put_connack, put_connack_refusal};
use super::{Path, PeerId};
use crate::Side;
use crate::flow::Flow;
use crate::header::{Header, SessionId};
use crate::packet::digest;
use crate::seal::Seal;

/// How far a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// CONNECT is with the broker.
    Opening,
    /// CONNACK was sent.
    Connected,
    /// The broker knows it no more; its last words may have to be repeated.
    Ended,
}

#[derive(Debug)]
pub(super) struct Peer {
    pub(super) generation: u32,
    pub(super) path: Path,
    pub(super) stage: Stage,
    /// Whether CONNACK let the client in.
    pub(super) was_connected: bool,
    /// Whether datagrams without token are ignored.
    pub(super) sealed: bool,
    /// Whether a cookie has come back from its first address.
    pub(super) proven: bool,
    /// Of the client's Hello; a bare CONNECT has none.
    pub(super) nonce: Option<[u8; 8]>,
    /// Exactly for clients that said Hello.
    pub(super) seal: Option<Seal>,
    pub(super) flow: Flow,
    pub(super) inbox: Vec<u8>,
    /// The datagram with CONNACK, or with AUTH before it, to be repeated.
    pub(super) greeting: Vec<u8>,
    /// The DISCONNECT that ended the connection.
    pub(super) tail: Box<[u8]>,
    pub(super) connect_digest: u64,
    pub(super) connect_heard: Duration,
    pub(super) keep_alive: u16,
    /// Bytes of packets in one datagram.
    pub(super) capacity: usize,
    pub(super) heard: Duration,
    /// Counter of the token that the last datagram had.
    pub(super) last_counter: Option<u64>,
    pub(super) next_answer: Duration,
    pub(super) next_cookie: Duration,
    pub(super) next_move: Duration,
    /// When to look whether it is silent for too long.
    pub(super) idle_at: Option<Duration>,
    /// When to forget an ended connection.
    pub(super) linger: Option<Duration>,
    /// Its place among the timers.
    pub(super) armed: Option<Duration>,
}

impl Peer {
    pub(super) fn new(
        path: Path,
        generation: u32,
        sealed: bool,
        nonce: Option<[u8; 8]>,
        connect: &Frame<'_>,
        now: Duration,
    ) -> Self {
        let decoded = Connect::decode(connect.body).ok();
        // One that does not decode is refused by the broker.
        let version = decoded.map_or(Version::V311, |connect| connect.version);
        Self {
            generation,
            path,
            stage: Stage::Opening,
            was_connected: false,
            proven: false,
            sealed,
            nonce,
            seal: None,
            flow: Flow::new(Side::Server, version),
            inbox: Vec::new(),
            greeting: Vec::new(),
            tail: Box::default(),
            connect_digest: digest(connect),
            connect_heard: now,
            keep_alive: decoded.map_or(0, |connect| connect.keep_alive),
            capacity: 0,
            heard: now,
            last_counter: None,
            next_answer: now,
            next_cookie: now,
            next_move: now,
            idle_at: None,
            linger: None,
            armed: None,
        }
    }

    pub(super) fn id(&self, slot: u32) -> PeerId {
        PeerId {
            slot,
            generation: self.generation,
        }
    }

    pub(super) fn seal(&mut self, id: SessionId, key: [u8; 16]) {
        self.seal = Some(Seal::new(id, key, Side::Server));
    }

    /// Makes the datagram that answers CONNECT from CONNACK, or from AUTH.
    pub(super) fn greet(&mut self, frame: &Frame<'_>) {
        self.greeting.clear();
        if let (Some(seal), Some(nonce)) = (&self.seal, self.nonce) {
            Header::Welcome {
                sealed: self.sealed,
                nonce,
                id: seal.id,
                key: seal.key,
            }
            .put(&mut self.greeting);
        }
        let version = self.flow.version();
        let refusal = frame.body.get(1).copied().filter(|code| *code != 0);
        if frame.kind == PacketType::ConnAck {
            match refusal.and_then(ReasonCode::from_byte) {
                // What explains it would be more than came from an address that anybody may
                // have written there.
                Some(reason) if version.is_v5() && !self.proven => {
                    put_connack_refusal(Some(version), reason, &mut self.greeting);
                }
                _ => put_connack(frame, version, self.capacity, &mut self.greeting),
            }
            if refusal.is_none() {
                self.stage = Stage::Connected;
                self.was_connected = true;
            }
        } else {
            self.greeting.extend_from_slice(frame.bytes);
        }
    }
}
