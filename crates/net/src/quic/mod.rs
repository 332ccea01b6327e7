//! QUIC listeners on the shard threads.
//!
//! Shard 0 reads the sockets and has the endpoints of `quinn-proto`, which know
//! by its connection ID which connection a datagram is of, wherever it comes
//! from. A connection, with its keys, timers and stream, is on the shard of its
//! MQTT session: shard 0 sends datagrams there by mailbox, undecrypted, and what
//! the connection sends leaves by the shared sockets directly. Nothing else is
//! shared. Until CONNECT says where the session is, connections go round, like
//! those of TLS.
//!
//! Every bound has a name: see [`settings`], [`mail`] and [`endpoint`].
//! Sources: RFC 9000, 9001, 9002, 9221.

mod endpoint;
mod link;
mod mail;
mod options;
mod output;
mod proof;
#[cfg(any(test, fuzzing))]
pub mod rehearsal;
mod settings;
#[cfg(test)]
mod tests;
mod turn;
mod unsent;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use mio::Registry;
use punctual_broker::{ConnId, Nanos};
use quinn_proto::ConnectionEvent;

pub(crate) use mail::{QuicMail, UnderWay};
pub use options::{QuicCounters, QuicOptions};

use crate::marking::Marking;
use crate::policy::ListenerPolicy;
use crate::udp::socket::{CLASSES, ReceiveBatch, SendBatch, Sockets};
use endpoint::Listener;
use link::Link;
use mail::Key;
use output::Output;

/// Tokens of QUIC sockets have this bit set; below it listener and class.
pub(crate) const QUIC: usize = 1 << 42;

/// What a shard's thread has of QUIC.
pub(crate) struct Quic {
    /// Shard 0's.
    listeners: Vec<Listener>,
    /// The way out of each listener.
    outputs: Vec<Output>,
    links: HashMap<Key, Box<Link>>,
    /// By slot of the broker's connections.
    slots: Vec<Option<(ConnId, Key)>>,
    /// When to look at which link. Entries that another has replaced are passed
    /// over.
    timers: BinaryHeap<Reverse<(Nanos, Key)>>,
    /// Links on which something has happened.
    touched: Vec<Key>,
    /// Links that have something to send, or may have.
    ready: Vec<Key>,
    /// Bytes in `unread` buffers of all links.
    unread: usize,
    under_way: UnderWay,
    counters: Arc<QuicCounters>,
    /// Events for other shards, by shard.
    posts: Vec<Vec<(Key, ConnectionEvent)>>,
    buffer: Vec<u8>,
    received: ReceiveBatch,
    sent: SendBatch,
    /// The last words are being said: connections that have said them go.
    stopping: bool,
    next_shard: u16,
}

/// Opened sockets and their settings, for the shards.
pub(crate) struct Opened {
    sockets: Arc<Sockets>,
    options: QuicOptions,
    policy: Arc<ListenerPolicy>,
    index: u16,
}

impl Opened {
    /// Opens the sockets of a listener.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub(crate) fn open(
        address: SocketAddr,
        options: &QuicOptions,
        policy: &ListenerPolicy,
        index: u16,
        marking: &Marking,
    ) -> io::Result<Self> {
        let sockets = Sockets::open(address, options.send_buffer, marking)?;
        sockets.never_fragment()?;
        Ok(Self {
            sockets: Arc::new(sockets),
            options: options.clone(),
            policy: Arc::new(policy.clone()),
            index,
        })
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.sockets.local_addr()
    }
}

impl Quic {
    /// For shard number `shard` of `shards`.
    ///
    /// # Errors
    /// The listener has no usable TLS, or the system no place in epoll.
    pub(crate) fn new(
        opened: &[Opened],
        shard: u16,
        shards: u16,
        registry: &Registry,
        under_way: UnderWay,
        counters: Arc<QuicCounters>,
    ) -> io::Result<Self> {
        let reads = shard == 0;
        let outputs = opened.iter().enumerate();
        let outputs = outputs
            .map(|(at, opened)| Output::new(opened.sockets.clone(), at, reads, registry))
            .collect::<io::Result<_>>()?;
        let listeners = opened.iter().filter(|_| reads);
        Ok(Self {
            listeners: listeners.map(Listener::new).collect::<io::Result<_>>()?,
            outputs,
            links: HashMap::new(),
            slots: Vec::new(),
            timers: BinaryHeap::new(),
            touched: Vec::new(),
            ready: Vec::new(),
            unread: 0,
            under_way,
            counters,
            posts: (0..shards).map(|_| Vec::new()).collect(),
            buffer: Vec::new(),
            received: ReceiveBatch::new(reads && !opened.is_empty()),
            sent: SendBatch::new(),
            stopping: false,
            next_shard: 0,
        })
    }

    /// Whether it has that connection of the broker's.
    #[inline]
    pub(crate) fn has(&self, conn: ConnId) -> bool {
        self.key(conn).is_some()
    }

    #[inline]
    fn key(&self, conn: ConnId) -> Option<Key> {
        let (id, key) = (*self.slots.get(conn.slot as usize)?)?;
        (id == conn).then_some(key)
    }

    fn forget(&mut self, conn: ConnId) {
        if let Some(slot) = self.slots.get_mut(conn.slot as usize) {
            slot.take_if(|(id, _)| *id == conn);
        }
    }

    /// Notes what epoll says about a socket.
    pub(crate) fn note(&mut self, token: usize, readable: bool, writable: bool, on: &Registry) {
        let (at, class) = ((token & !QUIC) >> 2, token & 3);
        if let Some(listener) = self.listeners.get_mut(at) {
            listener.readable[class] |= readable;
        }
        if writable && let Some(output) = self.outputs.get_mut(at) {
            output.unblock(class, on);
            for key in output.waiting.drain(..) {
                if let Some(link) = self.links.get_mut(&key)
                    && !link.ready
                {
                    link.ready = true;
                    self.ready.push(key);
                }
            }
        }
    }

    /// When the next turn is due; `now` if at once.
    pub(crate) fn next_turn(&mut self, now: Nanos) -> Option<Nanos> {
        let readable = |listener: &Listener| listener.readable.contains(&true);
        if !self.touched.is_empty()
            || !self.ready.is_empty()
            || self.listeners.iter().any(readable)
            || self.outputs.iter().any(Output::can_send)
        {
            return Some(now);
        }
        while let Some(Reverse((at, key))) = self.timers.peek() {
            if self.links.get(key).is_some_and(|link| link.armed == *at) {
                return Some(*at);
            }
            self.timers.pop();
        }
        None
    }

    /// Whether there is no listener, and so nothing to be done.
    #[inline]
    pub(crate) fn is_off(&self) -> bool {
        self.outputs.is_empty()
    }

    /// A connection got something to be sent.
    pub(crate) fn wants_to_send(&mut self, conn: ConnId) {
        if let Some(key) = self.key(conn) {
            self.send_for(key);
        }
    }

    fn send_for(&mut self, key: Key) {
        if let Some(link) = self.links.get_mut(&key)
            && !link.ready
        {
            link.ready = true;
            self.ready.push(key);
        }
    }

    fn touch(&mut self, key: Key) {
        if let Some(link) = self.links.get_mut(&key)
            && !link.touched
        {
            link.touched = true;
            self.touched.push(key);
        }
    }

    /// From now on connections go once they have said their last words.
    pub(crate) fn stop(&mut self) {
        self.stopping = true;
    }

    /// Whether nothing more has to be said, or brought to other shards.
    pub(crate) fn is_idle(&self) -> bool {
        let quiet = |listener: &Listener| listener.open_connections() == 0;
        self.links.is_empty() && self.listeners.iter().all(quiet)
    }
}

/// The number of a class' socket.
fn class_number(class: punctual_broker::Class) -> usize {
    (class as usize).min(CLASSES - 1)
}
