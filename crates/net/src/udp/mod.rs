//! UDP listeners on the shard threads.
//!
//! Shard 0 reads and writes the sockets and has the [`Endpoint`]s; the state of
//! a connection's datagrams stays there. The session may live on another shard:
//! then packets travel by its mailbox, bounded in both directions
//! ([`remote`]). What is sent is chosen when it can be sent, not before: the
//! most urgent packet of all receivers, as long as the link's rate ([`Pace`])
//! and the socket of its class allow it.

mod link;
mod options;
mod pace;
mod peers;
mod remote;
pub(crate) mod socket;
mod turn;
mod waiting;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use punctual_broker::{ConnId, Credits, Nanos, Shard};
use punctual_udp::{Endpoint, EndpointConfig, Path, PeerId, Transmit};

pub use options::{UdpCounters, UdpOptions};
pub(crate) use remote::{Credit, UdpMail};

use crate::marking::Marking;
use link::{Links, Way};
use pace::Pace;
use peers::Peers;
use remote::Queued;
use socket::{CLASSES, ReceiveBatch, Refused, SendBatch, Sockets};
use waiting::Waiting;

/// Tokens of UDP sockets have this bit set; below it listener and class.
pub(crate) const UDP: usize = 1 << 41;
/// Datagrams taken from the broker for one listener in one turn.
const TURN: usize = 512;

/// One UDP listener of shard 0.
pub(crate) struct Listener {
    /// Its number among all listeners.
    index: u16,
    /// Of the first class' socket.
    token: usize,
    /// The shard's.
    registry: Registry,
    sockets: Sockets,
    endpoint: Endpoint,
    pace: Option<Pace>,
    /// Sockets that may have something to read.
    readable: [bool; CLASSES],
    /// Sockets that take no more for now.
    blocked: [bool; CLASSES],
    /// Datagrams to send, by class.
    outgoing: [VecDeque<Transmit<Path>>; CLASSES],
    /// Of these, so many at the front were let through by the pacer.
    passed: [usize; CLASSES],
    /// Receivers that wait to be sent something.
    waiting: Waiting,
    /// What the classes have earned, over all receivers.
    credits: Credits,
    /// Bytes of a datagram, at most.
    largest: usize,
    /// Connections by peer.
    peers: Peers,
    /// What other shards want to send, by class.
    queued: [VecDeque<Queued>; CLASSES],
    /// The last datagram was from another shard.
    others_last: bool,
    /// Peers of other shards that have ended, and bytes of other shards that
    /// were taken, by shard; for the worker to tell.
    ended: Vec<PeerId>,
    taken: Vec<(u16, usize)>,
    refused: Refused,
    /// Peers of other shards whose paths take less than was thought, and how much;
    /// for the worker to tell.
    narrowed: Vec<(u16, PeerId, usize)>,
}

/// What a shard's thread has of UDP: listeners on shard 0, ways to them on
/// the others.
pub(crate) struct Udp {
    pub(crate) listeners: Vec<Listener>,
    links: Links,
    received: ReceiveBatch,
    sent: SendBatch,
    packets: Vec<u8>,
    /// Bytes that the other shards have handed to shard 0, by shard.
    credit: Credit,
    /// Connections of this shard whose packets wait for credit, and what their
    /// classes have earned.
    short: Waiting,
    earned: Credits,
    counters: Arc<UdpCounters>,
}

/// Opened sockets, to be given to shard 0.
pub(crate) struct Opened {
    sockets: Sockets,
    options: UdpOptions,
    index: u16,
    max_connections: usize,
}

impl Opened {
    /// Opens the sockets of a listener.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub(crate) fn open(
        address: SocketAddr,
        options: &UdpOptions,
        index: u16,
        max_connections: usize,
        marking: &Marking,
    ) -> io::Result<Self> {
        let sockets = Sockets::open(address, options.send_buffer, marking)?;
        sockets.refuse_fragments()?;
        Ok(Self {
            sockets,
            options: options.clone(),
            index,
            max_connections,
        })
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.sockets.local_addr()
    }
}

impl Udp {
    /// For one shard; `opened` is empty for all but the first.
    ///
    /// # Errors
    /// The system has no random numbers, or no place in epoll.
    pub(crate) fn new(
        opened: Vec<Opened>,
        registry: &Registry,
        credit: Credit,
        counters: Arc<UdpCounters>,
        now: Nanos,
    ) -> io::Result<Self> {
        let mut listeners = Vec::new();
        for (at, opened) in opened.into_iter().enumerate() {
            for class in 0..CLASSES {
                let fd = opened.sockets.of(class).as_raw_fd();
                registry.register(
                    &mut SourceFd(&fd),
                    Token(UDP | at << 2 | class),
                    Interest::READABLE,
                )?;
            }
            let mut seed = [0; 32];
            getrandom::fill(&mut seed).map_err(io::Error::other)?;
            let options = opened.options;
            let defaults = EndpointConfig::default();
            let config = EndpointConfig {
                cookie: options.cookie,
                seal: options.seal,
                max_datagram_v4: options.max_datagram.unwrap_or(defaults.max_datagram_v4),
                max_datagram_v6: options.max_datagram.unwrap_or(defaults.max_datagram_v6),
                max_peers: opened.max_connections,
                idle: since_origin(options.idle),
            };
            let largest = config.max_datagram_v4.max(config.max_datagram_v6);
            listeners.push(Listener {
                index: opened.index,
                token: UDP | at << 2,
                registry: registry.try_clone()?,
                sockets: opened.sockets,
                endpoint: Endpoint::new(config, &seed, since_origin(now)),
                pace: options.rate.map(Pace::new),
                readable: [false; CLASSES],
                blocked: [false; CLASSES],
                outgoing: Default::default(),
                waiting: Waiting::default(),
                credits: Credits::default(),
                largest,
                others_last: false,
                peers: Peers::default(),
                queued: Default::default(),
                passed: [0; CLASSES],
                ended: Vec::new(),
                taken: Vec::new(),
                refused: Refused::default(),
                narrowed: Vec::new(),
            });
        }
        Ok(Self {
            received: ReceiveBatch::new(!listeners.is_empty()),
            listeners,
            links: Links::default(),
            sent: SendBatch::new(),
            packets: Vec::new(),
            credit,
            short: Waiting::default(),
            earned: Credits::default(),
            counters,
        })
    }

    /// Notes what epoll says about a socket.
    pub(crate) fn note(&mut self, token: usize, readable: bool, writable: bool) {
        let (at, class) = ((token & !UDP) >> 2, token & 3);
        if let Some(listener) = self.listeners.get_mut(at) {
            listener.readable[class] |= readable;
            if writable {
                listener.unblock(class);
            }
        }
    }

    /// When the next turn is due; `now` if at once.
    pub(crate) fn next_turn(&mut self, now: Nanos) -> Option<Nanos> {
        let now = since_origin(now);
        let of = |listener: &mut Listener| {
            if listener.readable.contains(&true) || listener.endpoint.has_transmits() {
                return Some(now);
            }
            let sendable = (0..CLASSES).any(|class| {
                let to_send = !listener.outgoing[class].is_empty()
                    || !listener.queued[class].is_empty()
                    || listener.waiting.has(class);
                to_send && !listener.blocked[class]
            });
            let paced = sendable.then(|| listener.next_send(now));
            [paced, listener.endpoint.next_timeout()]
                .into_iter()
                .flatten()
                .min()
        };
        let next = self.listeners.iter_mut().filter_map(of).min()?;
        Some(Nanos(u64::try_from(next.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// A connection got something to be sent.
    pub(crate) fn wants_to_send(&mut self, shard: &mut Shard, conn: ConnId) {
        let Some(link) = self.links.get(conn) else {
            return;
        };
        match link.way {
            Way::Here { listener, .. } => {
                if let Some(listener) = self.listeners.get_mut(listener) {
                    listener.waiting.set(conn.slot, shard.rank(conn));
                }
            }
            Way::Through { .. } => self.short.set(conn.slot, shard.rank(conn)),
        }
    }
}

/// Time as the endpoints count it.
fn since_origin(now: Nanos) -> Duration {
    Duration::from_nanos(now.0)
}
