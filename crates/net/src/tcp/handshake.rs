//! Threads that bring connections to the point where MQTT begins: PROXY header, TLS handshake,
//! WebSocket upgrade.
//!
//! A signature takes up to a millisecond, and anybody who can connect can ask for one. So
//! handshakes are not done where messages are carried: a shard gets a connection when all layers
//! are established, with the bytes that came after them.
//!
//! Bounds: [`WAITING`] connections from the acceptor, `max_half_open` handshakes under way (the
//! oldest is given up for the next), `connect_timeout` for each, [`READS`] reads before another
//! has its turn.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token, Waker};
use punctual_broker::{ConnMeta, Event, Nanos};

use super::lingering::{LINGER, LingeringSocket};
use super::unwritten::WriteBuffer;
use super::{Connection, TcpMail};
use crate::clock::Clock;
use crate::counters::Counters;
use crate::layer::{Layer, LayerError, Received};
use crate::mailbox::{Mailbox, WAKE};
use crate::policy::{Identity, ListenerPolicy};
use crate::shared::Shared;

/// Connections that may wait to be taken by a thread; further ones are closed.
const WAITING: usize = 4096;
/// Bytes that are read at a time.
const READ: usize = 16 << 10;
/// Reads of one connection in a row.
const READS: usize = 4;

/// A connection before its handshakes.
pub(crate) struct Newcomer {
    pub(crate) stream: std::net::TcpStream,
    pub(crate) meta: Box<ConnMeta>,
    pub(crate) layer: Layer,
    /// How it is treated.
    pub(crate) policy: Arc<ListenerPolicy>,
}

/// A thread that does handshakes, as the acceptor sees it.
pub(crate) struct Reception {
    newcomers: SyncSender<Newcomer>,
    waker: Arc<Waker>,
}

impl Reception {
    /// Hands a connection in. False if too many wait.
    pub(crate) fn admit(&self, newcomer: Newcomer) -> bool {
        if self.newcomers.try_send(newcomer).is_err() {
            return false;
        }
        // It fails only with the thread gone, and the server with it.
        let _ = self.waker.wake();
        true
    }
}

impl Drop for Reception {
    fn drop(&mut self) {
        let _ = self.waker.wake();
    }
}

/// What the threads share with others.
#[derive(Clone)]
pub(crate) struct HandshakeContext {
    pub(crate) shared: Arc<Shared>,
    pub(crate) mailboxes: Arc<[Mailbox]>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) events: SyncSender<Event>,
    pub(crate) clock: Clock,
}

/// A handshake that is under way.
struct UnderWay {
    stream: TcpStream,
    meta: Box<ConnMeta>,
    layer: Layer,
    policy: Arc<ListenerPolicy>,
    /// Bytes for the peer that were not written.
    wire: WriteBuffer,
    until: Nanos,
}

/// What has become of a handshake.
enum Progress {
    /// More has to come.
    Waiting,
    /// More is there already.
    Ready,
    /// Done, with these application bytes.
    Established(Vec<u8>),
    /// The peer broke a protocol.
    Broken(LayerError),
    /// The connection is lost.
    Lost(String),
}

/// One thread.
struct Handshakes {
    poll: Poll,
    /// Kept: with its last handle a wake-up would be lost that was not seen yet.
    _waker: Arc<Waker>,
    newcomers: Receiver<Newcomer>,
    around: HandshakeContext,
    /// By token, which only grows: the first is the oldest.
    under_way: BTreeMap<usize, UnderWay>,
    next: usize,
    /// Those that have more to be read.
    ready: VecDeque<usize>,
    buffer: Box<[u8]>,
}

/// Starts a thread. It ends with its [`Reception`], once `shared.stop` is set.
///
/// # Errors
/// The system refuses a thread or epoll.
pub(crate) fn start(
    number: usize,
    around: HandshakeContext,
) -> io::Result<(Reception, JoinHandle<()>)> {
    let poll = Poll::new()?;
    let waker = Arc::new(Waker::new(poll.registry(), WAKE)?);
    let (sender, newcomers) = sync_channel(WAITING);
    let handshakes = Handshakes {
        poll,
        _waker: waker.clone(),
        newcomers,
        around,
        under_way: BTreeMap::new(),
        next: 0,
        ready: VecDeque::new(),
        buffer: vec![0; READ].into_boxed_slice(),
    };
    let thread = std::thread::Builder::new()
        .name(format!("handshakes-{number}"))
        .spawn(move || handshakes.run())?;
    let reception = Reception {
        newcomers: sender,
        waker,
    };
    Ok((reception, thread))
}

impl Handshakes {
    fn run(mut self) {
        let mut events = Events::with_capacity(256);
        while !self.around.shared.stop.load(Ordering::Acquire) {
            let timeout = self.timeout();
            match self.poll.poll(&mut events, timeout) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                    tracing::error!(%error, "waiting for handshakes failed");
                    break;
                }
                _ => {}
            }
            while let Ok(newcomer) = self.newcomers.try_recv() {
                self.begin(newcomer);
            }
            let due = events.iter().filter(|event| event.token() != WAKE);
            self.ready.extend(due.map(|event| event.token().0));
            for _ in 0..self.ready.len() {
                if let Some(token) = self.ready.pop_front() {
                    self.go_on(token);
                }
            }
            self.give_up_late();
        }
        for one in self.under_way.values() {
            self.forget(one);
        }
    }

    /// How long nothing is due.
    fn timeout(&self) -> Option<Duration> {
        if !self.ready.is_empty() {
            return Some(Duration::ZERO);
        }
        let (_, oldest) = self.under_way.first_key_value()?;
        let left = oldest.until - self.around.clock.now();
        // Rounded up: epoll counts in milliseconds.
        Some(Duration::from_nanos(left.0) + Duration::from_millis(1))
    }

    fn begin(&mut self, newcomer: Newcomer) {
        let limits = &self.around.shared.handshakes;
        let timeout = limits.timeout();
        if self.under_way.len() as u64 >= limits.under_way()
            && let Some((_, oldest)) = self.under_way.pop_first()
        {
            self.fail(oldest, "too many connections without CONNECT".into());
        }
        let mut one = UnderWay {
            stream: TcpStream::from_std(newcomer.stream),
            meta: newcomer.meta,
            layer: newcomer.layer,
            policy: newcomer.policy,
            wire: WriteBuffer::default(),
            until: self.around.clock.now() + timeout,
        };
        let token = self.next;
        self.next += 1;
        let interest = Interest::READABLE | Interest::WRITABLE;
        let registry = self.poll.registry();
        match registry.register(&mut one.stream, Token(token), interest) {
            Ok(()) => {
                self.under_way.insert(token, one);
            }
            Err(error) => self.fail(one, error.to_string()),
        }
    }

    /// Reads what one has sent, answers, and hands it to a shard if that was all.
    fn go_on(&mut self, token: usize) {
        // An event may come for one that is done.
        let Some(one) = self.under_way.get_mut(&token) else {
            return;
        };
        let progress = one.go_on(&mut self.buffer);
        match progress {
            Progress::Waiting => {}
            Progress::Ready => self.ready.push_back(token),
            Progress::Established(app) => {
                if let Some(one) = self.under_way.remove(&token) {
                    self.hand_over(one, app);
                }
            }
            Progress::Broken(error) => {
                let errors = &self.around.counters.layer_errors;
                errors.fetch_add(1, Ordering::Relaxed);
                self.end(token, error.to_string());
            }
            Progress::Lost(why) => self.end(token, why),
        }
    }

    fn hand_over(&self, mut one: UnderWay, unread: Vec<u8>) {
        if let Err(error) = self.poll.registry().deregister(&mut one.stream) {
            self.fail(one, error.to_string());
            return;
        }
        let peer = one.layer.peer();
        if let Some(socket) = one.meta.peer {
            // Not before: it is the proxy's until its header has come.
            one.meta.allow_anonymous = one.policy.anonymous.lets_in(socket.ip(), peer.client);
            one.meta.peer = Some(peer.client.known(socket));
        }
        one.meta.identity = match one.policy.identity {
            Identity::None => None,
            Identity::CommonName => peer.common_name.map(Into::into),
            Identity::Subject => peer.subject.map(Into::into),
        };
        let shared = &self.around.shared;
        let chain = one.layer.certificates();
        one.meta.credential =
            shared
                .certificates
                .hold(one.meta.listener, chain, &one.policy, &shared.policies);
        let connection = Connection {
            unread,
            unwritten: one.wire,
            ..Connection::new(one.stream.into(), one.meta, one.layer)
        };
        // Sessions are placed from there.
        self.around.mailboxes[0].post(TcpMail::Connection(Box::new(connection)).into());
    }

    fn give_up_late(&mut self) {
        let now = self.around.clock.now();
        while let Some(oldest) = self.under_way.first_entry()
            && oldest.get().until <= now
        {
            let oldest = oldest.remove();
            self.fail(oldest, "no CONNECT within server.connect_timeout".into());
        }
    }

    fn end(&mut self, token: usize, why: String) {
        if let Some(one) = self.under_way.remove(&token) {
            self.fail(one, why);
        }
    }

    /// Closes one after its last bytes.
    fn fail(&self, mut one: UnderWay, why: String) {
        self.forget(&one);
        one.layer.close(one.wire.end());
        // Few bytes on a connection that has hardly been used: what does not fit, nobody reads.
        let until = self.around.clock.now() + LINGER;
        LingeringSocket::new(one.stream, one.wire, false, until).write();
        let client = one.layer.client_address();
        let event = Event::Refused {
            peer: one.meta.peer.map(|socket| client.known(socket)),
            reason: why,
        };
        if self.around.events.try_send(event).is_err() {
            self.around
                .counters
                .events_lost
                .fetch_add(1, Ordering::Relaxed);
        }
    }

    fn forget(&self, one: &UnderWay) {
        self.around.counters.closed(one.meta.listener);
    }
}

impl UnderWay {
    fn go_on(&mut self, buffer: &mut [u8]) -> Progress {
        let mut app = Vec::new();
        for _ in 0..READS {
            if let Err(error) = self.wire.write_to(&mut self.stream) {
                return Progress::Lost(error.to_string());
            }
            let n = match self.stream.read(buffer) {
                Ok(0) => return Progress::Lost("connection closed by peer".into()),
                Ok(n) => n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Progress::Waiting;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Progress::Lost(error.to_string()),
            };
            match self.layer.received(&buffer[..n], &mut app, self.wire.end()) {
                // Also one that has said goodbye: what came before is handled.
                Ok(_) if self.layer.established() => {
                    return match self.wire.write_to(&mut self.stream) {
                        Ok(()) => Progress::Established(app),
                        Err(error) => Progress::Lost(error.to_string()),
                    };
                }
                Ok(Received::Open) => {}
                Ok(Received::Ended) => return Progress::Lost("connection closed by peer".into()),
                Err(error) => return Progress::Broken(error),
            }
        }
        Progress::Ready
    }
}
