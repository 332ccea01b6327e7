//! MQTT over TCP, with what may lie between: TLS, WebSocket and the PROXY header
//! ([`layer`](crate::layer)).
//!
//! Connections are accepted by a thread of their own ([`acceptor`]), and brought to where MQTT begins
//! by others ([`handshake`]). On its shard a socket is registered once, edge-triggered for both
//! directions; a short read or write says that the edge is used up, so at low load a message costs three
//! system calls: wait, read, write.
//!
//! Clients that sent something urgent lately are read first. Each is read at most once in a turn, and a
//! turn reads a bounded number of bytes ([`reading`]), so that what becomes urgent meanwhile waits for no
//! more than that. Where deadlines are promised, messages of admitted flows are handled one at a time.

pub(crate) mod acceptor;
pub(crate) mod handshake;
mod lingering;
mod link;
mod mail;
mod options;
mod reading;
mod unwritten;
mod writing;

use mio::Interest;
use mio::event::Event;
use mio::net::TcpStream;
use punctual_broker::{ConnId, ConnMeta, LinkLimits, Nanos, Ready, Scope};

pub(crate) use lingering::LINGER;
pub(crate) use mail::{Connection, TcpMail};
pub use options::TcpOptions;

use crate::layer::Layer;
use crate::marking::Marking;
use crate::overrun::Piece;
use crate::transport::{Context, Input, Progress, Transport, TransportKind};
use lingering::{LingeringList, LingeringSocket};
use link::{LEFT, Link};
use options::acknowledge;
use reading::{CALL, READ, Reading, Turn};

/// Tokens of lingering connections have this bit set.
const LINGERING: usize = 1 << 40;

/// The TCP connections of a shard.
pub(crate) struct Tcp {
    options: TcpOptions,
    marking: Marking,
    /// By the broker's slot. Boxed: growing the list moves one word a connection.
    links: Vec<Option<Box<Link>>>,
    lingering: LingeringList,
    /// Slots of links to read from.
    ready: Ready,
    /// Links to neighbours that were read from, and may owe an acknowledgement.
    owing: Vec<ConnId>,
    /// What links are read into.
    buffer: Box<[u8]>,
    /// Application bytes of a layered connection.
    app: Vec<u8>,
    /// What is in hand.
    reading: Option<Reading>,
    turn: Turn,
}

impl Tcp {
    /// `promises`: deadlines are promised on this shard.
    pub(crate) fn new(options: TcpOptions, marking: Marking, promises: bool) -> Self {
        Self {
            options,
            marking,
            links: Vec::new(),
            lingering: LingeringList::default(),
            ready: Ready::default(),
            owing: Vec::new(),
            buffer: vec![0; if promises { CALL } else { READ }].into_boxed_slice(),
            app: Vec::new(),
            reading: None,
            turn: Turn::default(),
        }
    }

    fn link_and_ready(&mut self, id: ConnId) -> Option<(&mut Link, &mut Ready)> {
        let link = self.links.get_mut(id.slot as usize)?.as_deref_mut()?;
        (link.id == id).then_some((link, &mut self.ready))
    }

    fn remove(&mut self, cx: &mut Context, id: ConnId) -> Option<Link> {
        let link = self.links.get_mut(id.slot as usize)?;
        let link = link.take_if(|link| link.id == id)?;
        cx.unread -= link.unread.len();
        Some(*link)
    }

    /// Takes a connection; with `link`, one to that broker.
    fn adopt(
        &mut self,
        cx: &mut Context,
        connection: Connection,
        link: Option<(Box<str>, LinkLimits)>,
        now: Nanos,
    ) {
        let Connection {
            stream,
            meta,
            layer,
            unread,
            unwritten,
            class,
            tuned,
        } = connection;
        let mut stream = TcpStream::from_std(stream);
        let listener = meta.listener;
        let id = match link {
            Some((peer, limits)) => cx.open_link(TransportKind::Tcp, *meta, &peer, limits, now),
            None => cx.open(TransportKind::Tcp, *meta, now),
        };
        let token = TransportKind::Tcp.token(id.slot as usize);
        let interest = Interest::READABLE | Interest::WRITABLE;
        if let Err(error) = cx.registry.register(&mut stream, token, interest) {
            cx.lose(id, &error.to_string(), now);
            cx.counters.closed(listener);
            return;
        }
        let slot = id.slot as usize;
        if self.links.len() <= slot {
            self.links.resize_with(slot + 1, || None);
        }
        cx.unread += unread.len();
        let refeed = !unread.is_empty();
        if !unwritten.rest().is_empty() {
            cx.connections.mark(id);
        }
        self.links[slot] = Some(Box::new(Link {
            id,
            listener,
            stream,
            layer: (!layer.is_plain()).then(|| Box::new(layer)),
            unread,
            needed: 0,
            sends_large: false,
            wire: unwritten,
            readable: refeed,
            closing: false,
            ended: false,
            blocked: false,
            paused: false,
            listed: refeed,
            again: false,
            class,
            tuned,
            arrived: now,
            owes_ack: false,
            read_at: Nanos(0),
        }));
        if refeed {
            self.ready.push(id.slot, cx.shard.need(id));
        }
    }
}

impl Transport for Tcp {
    type Mail = TcpMail;

    const PIECE: Piece = Piece::Read;

    fn note(&mut self, cx: &mut Context, number: usize, event: &Event, now: Nanos) {
        if number & LINGERING != 0 {
            self.lingering.write(number & !LINGERING);
            return;
        }
        let Some(link) = self.links.get_mut(number).and_then(Option::as_deref_mut) else {
            return;
        };
        // Nothing that comes can be read while it is paused; else what came before the
        // error counts, a DISCONNECT above all, and reading ends with the error.
        if event.is_error() && link.paused {
            let why = match link.stream.take_error() {
                Ok(Some(error)) => error.to_string(),
                _ => "connection error".to_owned(),
            };
            cx.lose(link.id, &why, now);
            return;
        }
        let closing = event.is_read_closed() || event.is_error();
        link.closing |= closing;
        if link.gives_up(&cx.shard) {
            cx.lose(link.id, LEFT, now);
            return;
        }
        if event.is_readable() || closing {
            if !link.readable {
                link.arrived = cx.asked_before;
            }
            link.readable = true;
            link.list(&mut self.ready, &cx.shard);
        }
        if event.is_writable() && link.blocked {
            link.blocked = false;
            cx.connections.mark(link.id);
        }
    }

    fn next_turn(&mut self, now: Nanos) -> Option<Nanos> {
        match self.ready.is_empty() {
            true => self.lingering.next_check(),
            false => Some(now),
        }
    }

    #[inline]
    fn waiting(&self, input: Input) -> usize {
        match input {
            Input::Promised => usize::from(self.ready.has_promised()),
            Input::Urgent => self.ready.urgent(),
            Input::Turn => self.ready.plain(),
        }
    }

    fn begin_turn(&mut self, _cx: &Context, now: Nanos) {
        self.turn = Turn::new(&self.ready, now);
    }

    #[inline]
    fn receive(&mut self, cx: &mut Context, input: Input, now: Nanos) -> Progress {
        self.read(cx, input, now)
    }

    fn set_aside(&mut self, cx: &mut Context, now: Nanos) {
        if let Some(mut reading) = self.reading.take() {
            self.put_back(cx, &mut reading, true, now);
        }
    }

    fn mail(&mut self, cx: &mut Context, mail: TcpMail, now: Nanos) -> Option<TcpMail> {
        match mail {
            TcpMail::Connection(connection) => self.adopt(cx, *connection, None, now),
            TcpMail::Link(connection, peer, limits) => {
                self.adopt(cx, *connection, Some((peer, limits)), now);
            }
        }
        None
    }

    fn resume(&mut self, cx: &mut Context, conn: ConnId, now: Nanos) {
        if let Some((link, ready)) = self.link_and_ready(conn) {
            link.paused = false;
            // Nothing is promised for the time in which it was not read.
            link.arrived = now;
            if link.readable || !link.unread.is_empty() {
                link.list(ready, &cx.shard);
            }
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
        let Some(mut link) = self.remove(cx, conn) else {
            return;
        };
        let _ = cx.registry.deregister(&mut link.stream);
        let connection = Connection {
            stream: link.stream.into(),
            meta,
            layer: link.layer.map_or_else(Layer::plain, |layer| *layer),
            unread: link.unread,
            unwritten: link.wire,
            class: link.class,
            tuned: link.tuned,
        };
        cx.post(shard, TcpMail::Connection(Box::new(connection)));
    }

    /// At once if the last bytes fit.
    fn close(&mut self, cx: &mut Context, conn: ConnId, tail: Vec<u8>, now: Nanos) {
        let Some(mut link) = self.remove(cx, conn) else {
            return;
        };
        cx.counters.closed(link.listener);
        let mut bytes = link.wire;
        match &mut link.layer {
            None if tail.is_empty() => {}
            None => bytes.end().extend_from_slice(&tail),
            Some(layer) => {
                // A peer that has closed its layer gets nothing more.
                let _ = layer.send(&tail, bytes.end());
                layer.close(bytes.end());
            }
        }
        let mut lingering = LingeringSocket::new(link.stream, bytes, link.ended, now + LINGER);
        if lingering.write() {
            return;
        }
        let at = self.lingering.place();
        let token = TransportKind::Tcp.token(LINGERING | at);
        let stream = &mut lingering.stream;
        let registered = cx.registry.reregister(stream, token, Interest::WRITABLE);
        if registered.is_ok() {
            self.lingering.put(at, lingering);
        }
    }

    #[inline]
    fn send(&mut self, cx: &mut Context, conn: ConnId, scope: Scope, now: Nanos) {
        self.write(cx, conn, scope, now);
    }

    /// Has what came from neighbours acknowledged, now that it has been passed on.
    fn end_turn(&mut self, _cx: &mut Context, now: Nanos) {
        let mut owing = std::mem::take(&mut self.owing);
        for id in owing.drain(..) {
            if let Some((link, _)) = self.link_and_ready(id)
                && std::mem::take(&mut link.owes_ack)
            {
                acknowledge(&link.stream);
            }
        }
        self.owing = owing;
        self.lingering.drop_late(now);
    }

    fn is_idle(&self) -> bool {
        self.lingering.is_empty()
    }
}
