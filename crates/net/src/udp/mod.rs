//! MQTT over UDP: the listeners on the shard threads.
//!
//! Shard 0 reads and writes the sockets and has the [`Endpoint`]s; the state of
//! a connection's datagrams stays there. The session may live on another shard:
//! then packets travel by its mailbox, bounded in both directions
//! ([`mail`]). What is sent is chosen when it can be sent, not before: the
//! most urgent packet of all receivers, as long as the link's rate ([`Pace`])
//! and the socket of its class allow it.

mod link;
mod mail;
mod options;
mod pace;
mod peers;
mod receiving;
mod sending;
mod waiting;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use mio::event::Event;
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use punctual_broker::{Class, ConnId, ConnMeta, Credits, Nanos, Rank, Scope};
use punctual_udp::{Endpoint, EndpointConfig, Path, PeerId, Transmit};

pub(crate) use mail::{Credit, UdpMail};
pub use options::{UdpCounters, UdpOptions};

use crate::datagram::{CLASSES, ReceiveBatch, Refused, SendBatch, Sockets};
use crate::marking::Marking;
use crate::overrun::Piece;
use crate::transport::{Context, Input, Progress, Transport, TransportKind};
use link::{Links, PeerKey, Route};
use mail::QueuedPackets;
use pace::Pace;
use peers::{Home, Peers};
use receiving::Cursor;
use waiting::Waiting;

/// Datagrams taken from the broker for one listener in one turn.
const TURN: usize = 512;

/// One UDP listener of shard 0.
struct Listener {
    /// Its number among all listeners.
    index: u16,
    /// Of the first class' socket; those of the others follow.
    token: Token,
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
    queued: [VecDeque<QueuedPackets>; CLASSES],
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
    listeners: Vec<Listener>,
    links: Links,
    /// Where a turn is.
    cursor: Cursor,
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
                    TransportKind::Udp.token(at << 2 | class),
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
                token: TransportKind::Udp.token(at << 2),
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
            cursor: Cursor::default(),
            sent: SendBatch::new(),
            packets: Vec::new(),
            credit,
            short: Waiting::default(),
            earned: Credits::default(),
            counters,
        })
    }
}

impl Transport for Udp {
    type Mail = UdpMail;

    const PIECE: Piece = Piece::Udp;

    fn note(&mut self, _cx: &mut Context, number: usize, event: &Event, _now: Nanos) {
        let (at, class) = (number >> 2, number & 3);
        if let Some(listener) = self.listeners.get_mut(at) {
            listener.readable[class] |= event.is_readable() || event.is_error();
            if event.is_writable() {
                listener.unblock(class);
            }
        }
    }

    fn next_turn(&mut self, now: Nanos) -> Option<Nanos> {
        let now = since_origin(now);
        let next = self.listeners.iter_mut();
        let next = next.filter_map(|listener| listener.next_turn(now)).min()?;
        Some(Nanos(u64::try_from(next.as_nanos()).unwrap_or(u64::MAX)))
    }

    fn begin_turn(&mut self, _cx: &Context, _now: Nanos) {
        self.cursor = Cursor::default();
    }

    fn receive(&mut self, cx: &mut Context, input: Input, now: Nanos) -> Progress {
        match input {
            Input::Turn => self.receive_next(cx, now),
            Input::Promised | Input::Urgent => Progress::Done,
        }
    }

    fn mail(&mut self, cx: &mut Context, mail: UdpMail, now: Nanos) -> Option<UdpMail> {
        match mail {
            UdpMail::Open {
                remote,
                meta,
                packets,
                capacity,
            } => {
                let conn = cx.open(TransportKind::Udp, *meta, now);
                cx.shard.bound_packets(conn, capacity);
                let route = Route::Forwarded {
                    remote,
                    unread: packets,
                    capacity,
                };
                self.links.insert(conn, route);
                self.feed_forwarded(cx, conn, now);
            }
            UdpMail::Packets { remote, packets } => {
                if let Some(conn) = self.links.through(remote) {
                    if let Some(link) = self.links.get_mut(conn)
                        && let Route::Forwarded { unread, .. } = &mut link.route
                    {
                        unread.extend_from_slice(&packets);
                    }
                    self.feed_forwarded(cx, conn, now);
                }
            }
            UdpMail::Lost { remote, why } => {
                if let Some(conn) = self.links.through(remote) {
                    cx.shard.closed(conn, why, now);
                }
            }
            UdpMail::Moved { remote, to } => {
                if let Some(conn) = self.links.through(remote) {
                    cx.shard.identify(conn, None, Some(to));
                }
            }
            UdpMail::Narrowed { remote, capacity } => {
                if let Some(conn) = self.links.through(remote) {
                    cx.shard.bound_packets(conn, capacity);
                    if let Some(link) = self.links.get_mut(conn)
                        && let Route::Forwarded { capacity: of, .. } = &mut link.route
                    {
                        *of = capacity;
                    }
                }
            }
            UdpMail::Room => {}
            UdpMail::Taken { remote, bytes } => {
                let listener = self.listeners.get_mut(remote.listener)?;
                if let Some(Home::Remote { under_way, .. }) = listener.peers.get_mut(remote.peer) {
                    *under_way = under_way.saturating_sub(bytes);
                }
                self.feed(cx, remote.listener, remote.peer, now);
            }
            UdpMail::Send { from, list } => {
                for queued in list {
                    let class = usize::from(queued.class).min(CLASSES - 1);
                    match self.listeners.get_mut(queued.remote.listener) {
                        Some(listener) => listener.queued[class].push_back(queued),
                        None => {
                            self.credit.give_back(from, queued.packets.len());
                        }
                    }
                }
            }
            UdpMail::Rehome {
                remote,
                shard,
                meta,
                packets,
            } => self.settle(cx, remote, shard, meta, packets),
        }
        None
    }

    fn resume(&mut self, cx: &mut Context, conn: ConnId, now: Nanos) {
        match self.links.get(conn).map(|link| &link.route) {
            Some(Route::Local { listener, peer }) => {
                let (listener, peer) = (*listener, *peer);
                self.feed(cx, listener, peer, now);
            }
            Some(Route::Forwarded { .. }) => self.feed_forwarded(cx, conn, now),
            None => {}
        }
    }

    fn hand_over(
        &mut self,
        cx: &mut Context,
        conn: ConnId,
        shard: u16,
        meta: Box<ConnMeta>,
        _now: Nanos,
    ) {
        match self.links.remove(conn) {
            Some(Route::Local { listener: at, peer }) => {
                self.listeners[at].waiting.set(conn.slot, None);
                let packets = self.listeners[at].endpoint.inbox(peer).to_vec();
                let endpoint = &mut self.listeners[at].endpoint;
                endpoint.consumed(peer, packets.len());
                let remote = PeerKey { listener: at, peer };
                self.settle(cx, remote, shard, meta, packets);
            }
            Some(Route::Forwarded { remote, unread, .. }) => {
                self.short.set(conn.slot, None);
                let mail = UdpMail::Rehome {
                    remote,
                    shard,
                    meta,
                    packets: unread,
                };
                cx.post(0, mail);
            }
            None => {}
        }
    }

    fn close(&mut self, cx: &mut Context, conn: ConnId, tail: Vec<u8>, now: Nanos) {
        match self.links.remove(conn) {
            Some(Route::Local { listener, peer }) => {
                let listener = &mut self.listeners[listener];
                listener.waiting.set(conn.slot, None);
                listener.peers.remove(peer);
                listener.endpoint.close(peer, &tail, since_origin(now));
                cx.counters.closed(listener.index);
            }
            Some(Route::Forwarded { remote, .. }) => {
                self.short.set(conn.slot, None);
                let from = cx.index;
                self.credit.use_up(from, tail.len());
                let last = QueuedPackets {
                    remote,
                    class: Class::Bulk as u8,
                    rank: Rank::CONTROL,
                    from,
                    packets: tail,
                    last: true,
                };
                let list = vec![last];
                cx.post(0, UdpMail::Send { from, list });
            }
            None => {}
        }
    }

    fn send(&mut self, cx: &mut Context, conn: ConnId, _scope: Scope, _now: Nanos) {
        let Some(link) = self.links.get(conn) else {
            return;
        };
        let waiting = match link.route {
            Route::Local { listener, .. } => match self.listeners.get_mut(listener) {
                Some(listener) => &mut listener.waiting,
                None => return,
            },
            Route::Forwarded { .. } => &mut self.short,
        };
        waiting.set(conn.slot, cx.shard.rank(conn));
    }

    fn flush(&mut self, cx: &mut Context, _scope: Scope, now: Nanos) {
        self.flush_listeners(cx, now);
        if !self.short.is_empty() {
            self.flush_forwarded(cx, now);
        }
    }
}

/// Time as the endpoints count it.
fn since_origin(now: Nanos) -> Duration {
    Duration::from_nanos(now.0)
}
