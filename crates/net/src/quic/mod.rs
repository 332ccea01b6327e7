//! MQTT over QUIC: the listeners on the shard threads.
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
mod homes;
mod link;
mod mail;
mod options;
mod output;
mod proof;
mod receiving;
#[cfg(any(test, fuzzing))]
pub mod rehearsal;
mod sending;
mod settings;
#[cfg(test)]
mod tests;
mod unsent;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use mio::Registry;
use mio::event::Event;
use punctual_broker::{ConnId, ConnMeta, Nanos, Scope};
use quinn_proto::{ConnectionEvent, Incoming};

pub(crate) use mail::{QuicMail, UnderWay};
pub use options::{QuicCounters, QuicOptions};

use crate::datagram::{CLASSES, ReceiveBatch, SendBatch, Sockets};
use crate::marking::Marking;
use crate::overrun::Piece;
use crate::policy::ListenerPolicy;
use crate::tcp::LINGER;
use crate::transport::{Context, Input, Progress, Transport};
use endpoint::Listener;
use link::Link;
use mail::Key;
use output::Output;
use receiving::Stage;

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
    touched: VecDeque<Key>,
    /// Of these, those that have their turn.
    handling: VecDeque<Key>,
    /// Links that have something to send, or may have.
    ready: Vec<Key>,
    /// Where a turn is, and when it began.
    stage: Stage,
    turn_began: Nanos,
    /// Datagrams that were read and not handled yet.
    arrived: VecDeque<(Key, ConnectionEvent)>,
    /// Clients that want to connect, by listener.
    incoming: VecDeque<(usize, Incoming)>,
    under_way: UnderWay,
    counters: Arc<QuicCounters>,
    /// Events for other shards, by shard.
    posts: Vec<VecDeque<(Key, ConnectionEvent)>>,
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
            touched: VecDeque::new(),
            handling: VecDeque::new(),
            ready: Vec::new(),
            stage: Stage::FIRST,
            turn_began: Nanos(0),
            arrived: VecDeque::new(),
            incoming: VecDeque::new(),
            under_way,
            counters,
            posts: (0..shards).map(|_| VecDeque::new()).collect(),
            buffer: Vec::new(),
            received: ReceiveBatch::new(reads && !opened.is_empty()),
            sent: SendBatch::new(),
            stopping: false,
            next_shard: 0,
        })
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
            self.touched.push_back(key);
        }
    }
}

impl Transport for Quic {
    type Mail = QuicMail;

    const PIECE: Piece = Piece::Quic;

    fn note(&mut self, cx: &mut Context, number: usize, event: &Event, _now: Nanos) {
        let (at, class) = (number >> 2, number & 3);
        if let Some(listener) = self.listeners.get_mut(at) {
            listener.readable[class] |= event.is_readable() || event.is_error();
        }
        if event.is_writable()
            && let Some(output) = self.outputs.get_mut(at)
        {
            output.unblock(class, &cx.registry);
            for key in std::mem::take(&mut output.waiting) {
                self.send_for(key);
            }
        }
    }

    fn next_turn(&mut self, now: Nanos) -> Option<Nanos> {
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

    fn begin_turn(&mut self, cx: &Context, _now: Nanos) {
        if !self.outputs.is_empty() {
            self.stage = Stage::FIRST;
            // Mail may have taken long.
            self.turn_began = cx.clock.now();
        }
    }

    fn receive(&mut self, cx: &mut Context, input: Input, _now: Nanos) -> Progress {
        match input {
            Input::Turn if !self.outputs.is_empty() => self.receive_next(cx),
            _ => Progress::Done,
        }
    }

    fn mail(&mut self, cx: &mut Context, mail: QuicMail, now: Nanos) -> Option<QuicMail> {
        match mail {
            QuicMail::Open { key, meta, link } => self.open(cx, key, *meta, link, now),
            QuicMail::Events(mut events) => {
                let (key, event) = events.pop_front()?;
                self.under_way.take(cx.index, 1);
                self.event(cx, key, event);
                return (!events.is_empty()).then_some(QuicMail::Events(events));
            }
            QuicMail::Endpoint(key, event) => self.for_endpoint(cx, key, event),
            QuicMail::Return { key, event, from } => {
                let listener = self.listeners.get(key.listener);
                let owner = listener.and_then(|l| l.owners.get(key.handle.0)).copied();
                match owner {
                    Some(owner) if owner == cx.index => self.event(cx, key, event),
                    // Where it came from it was not wanted: the connection has ended.
                    Some(owner) if owner != from => {
                        cx.post(owner, QuicMail::Events([(key, event)].into()));
                    }
                    _ => {}
                }
            }
            QuicMail::Rehome {
                key,
                shard,
                meta,
                link,
            } => self.rehome(cx, key, shard, meta, link, now),
        }
        None
    }

    fn mail_piece(mail: &QuicMail) -> Piece {
        match mail {
            QuicMail::Events(_) => Piece::Quic,
            _ => Piece::Mail,
        }
    }

    fn resume(&mut self, _cx: &mut Context, conn: ConnId, _now: Nanos) {
        if let Some(key) = self.key(conn)
            && let Some(link) = self.links.get_mut(&key)
        {
            link.paused = false;
            self.touch(key);
        }
    }

    fn hand_over(
        &mut self,
        cx: &mut Context,
        conn: ConnId,
        shard: u16,
        meta: Box<ConnMeta>,
        now: Nanos,
    ) {
        let Some(key) = self.key(conn) else {
            return;
        };
        self.forget(conn);
        let Some(mut link) = self.links.remove(&key) else {
            return;
        };
        cx.unread -= link.unread.len();
        link.conn = None;
        if cx.index == 0 {
            self.rehome(cx, key, shard, meta, link, now);
        } else {
            let mail = QuicMail::Rehome {
                key,
                shard,
                meta,
                link,
            };
            cx.post(0, mail);
        }
    }

    fn close(&mut self, cx: &mut Context, conn: ConnId, tail: Vec<u8>, now: Nanos) {
        let Some(key) = self.key(conn) else {
            return;
        };
        self.forget(conn);
        if let Some(link) = self.links.get_mut(&key) {
            cx.unread -= link.unread.len();
            cx.counters.closed(link.listener);
            link.close(tail, now + LINGER, cx.clock.instant(now));
            self.send_for(key);
        }
    }

    fn send(&mut self, _cx: &mut Context, conn: ConnId, _scope: Scope, _now: Nanos) {
        if let Some(key) = self.key(conn) {
            self.send_for(key);
        }
    }

    fn flush(&mut self, cx: &mut Context, scope: Scope, now: Nanos) {
        if !self.outputs.is_empty() {
            self.flush_links(cx, scope, now);
        }
    }

    fn stop(&mut self) {
        self.stopping = true;
    }

    /// Whether nothing more has to be said, or brought to other shards.
    fn is_idle(&self) -> bool {
        let quiet = |listener: &Listener| listener.open_connections() == 0;
        self.links.is_empty() && self.listeners.iter().all(quiet)
    }
}

/// The number of a class' socket.
fn class_number(class: punctual_broker::Class) -> usize {
    (class as usize).min(CLASSES - 1)
}
