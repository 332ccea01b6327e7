//! A relay on the device: applications that speak plain MQTT over TCP to
//! loopback get priorities, deadlines, marks and UDP towards the broker
//! without being changed.
//!
//! Each local client has its own session with the broker, over whatever
//! transport the [`Endpoint`] names. Packets pass from end to end, with MQTT 5
//! towards the broker; [`Rule`]s add requirements to publications and wills
//! that say nothing themselves. `relay` is one client's packets, without
//! sockets; this module and `peer` are the sockets, on one thread.
//!
//! If the connection to the broker breaks, the sidecar closes those of its local clients,
//! which every MQTT client can handle: it connects again, and the sidecar connects to the
//! broker again, after a pause that grows with every failure. Sessions are in the broker,
//! so no acknowledged message is lost.

mod peer;
mod relay;
mod rules;
mod translate;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use mio::net::TcpListener;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};

pub use self::rules::{Rule, Rules};

use self::peer::{Peer, Progress};
use self::relay::RelayContext;
use crate::client::Backoff;
use crate::endpoint::{Endpoint, Scheme};
use crate::transport::{self, Transport};
use crate::{Error, Version};

/// Token of the waker; listeners come after it, then two for each client.
const WAKER: Token = Token(0);

/// Bytes read at a time.
const READ: usize = 64 * 1024;

/// What a sidecar does. Start from [`Options::new`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Where local clients connect to, by TCP. Port 0 has the system choose.
    pub listen: Vec<SocketAddr>,
    /// The broker and how to reach it.
    pub broker: Endpoint,
    /// What to require of messages that say nothing, in order.
    pub rules: Rules,
    /// Pauses between attempts to reach a broker that is not there.
    pub backoff: Backoff,
    /// Local clients at a time; one more is closed at once. Default: 1000.
    pub max_clients: usize,
    /// Bytes of the largest packet from either side. Default: 16 MiB.
    pub max_packet: u32,
    /// Time for a local client to send CONNECT. Default: 10 s.
    pub connect_timeout: Duration,
}

impl Options {
    /// A plain relay from an address to a broker.
    pub fn new(listen: SocketAddr, broker: Endpoint) -> Self {
        Self {
            listen: vec![listen],
            broker,
            rules: Rules::default(),
            backoff: Backoff {
                first: Duration::from_millis(100),
                longest: Duration::from_secs(10),
            },
            max_clients: 1000,
            max_packet: 16 << 20,
            connect_timeout: Duration::from_secs(10),
        }
    }
}

/// Something that happened, for the log.
#[derive(Debug)]
#[non_exhaustive]
pub enum Notice {
    /// A client and the broker have been brought together.
    Opened {
        /// Where the client is.
        client: SocketAddr,
        /// Its identifier; empty if the broker has yet to give one.
        client_id: String,
    },
    /// A client has left, or was closed.
    Closed {
        /// Where it was.
        client: SocketAddr,
        /// Its identifier.
        client_id: String,
        /// Why, if not because it said so.
        why: Option<String>,
        /// Publications that got requirements from the rules.
        ruled: u64,
    },
    /// The broker cannot be reached, and is left alone for that time.
    Unreachable {
        /// Why not.
        error: Error,
        /// Until the next attempt.
        pause: Duration,
    },
    /// There are as many clients as may be.
    Full {
        /// The client that was refused.
        client: SocketAddr,
    },
    /// A connection could not be taken.
    Refused(io::Error),
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Opened { client, client_id } => {
                write!(f, "client {client_id:?} at {client} is connected")
            }
            Self::Closed {
                client,
                client_id,
                why,
                ruled,
            } => {
                write!(f, "client {client_id:?} at {client} has left")?;
                if let Some(why) = why {
                    write!(f, ": {why}")?;
                }
                match ruled {
                    0 => Ok(()),
                    n => write!(f, " ({n} messages got requirements)"),
                }
            }
            Self::Unreachable { error, pause } => {
                write!(f, "{error}; clients are turned away for {pause:?}")
            }
            Self::Full { client } => write!(
                f,
                "the client at {client} was turned away: there are max_clients already"
            ),
            Self::Refused(error) => write!(f, "a client could not be accepted: {error}"),
        }
    }
}

/// Ends a running [`Sidecar`] from another thread.
#[derive(Debug, Clone)]
pub struct Stopper {
    stop: Arc<AtomicBool>,
    waker: Arc<Waker>,
}

impl Stopper {
    /// Has [`Sidecar::run`] close all connections and return.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        // It fails only if the sidecar is gone already.
        let _ = self.waker.wake();
    }
}

/// A transport that a helper thread has opened for a client, or could not.
struct OpenedTransport {
    client: u64,
    transport: Result<Box<dyn Transport>, Error>,
}

/// A sidecar that listens.
pub struct Sidecar {
    options: Options,
    common: Arc<RelayContext>,
    poll: Poll,
    listeners: Vec<TcpListener>,
    stop: Stopper,
    opened: Receiver<OpenedTransport>,
    opener: Sender<OpenedTransport>,
    peers: HashMap<u64, Peer>,
    /// When which client has something to do.
    timers: BTreeSet<(Instant, u64)>,
    next_peer: u64,
    /// Failures to reach the broker since the last success.
    failures: u32,
    retry_at: Instant,
    epoch: Instant,
    buffer: Box<[u8]>,
}

impl Sidecar {
    /// Opens the sockets for local clients. Nothing is sent to the broker
    /// before the first of them has come.
    ///
    /// # Errors
    /// `Unheard` for an address that cannot be listened on, `Lost` if the
    /// system gives no file descriptors.
    pub fn bind(options: Options) -> Result<Self, Error> {
        let poll = Poll::new().map_err(Error::Lost)?;
        let waker = Waker::new(poll.registry(), WAKER).map_err(Error::Lost)?;
        let mut listeners = Vec::new();
        for (at, address) in options.listen.iter().enumerate() {
            let unheard = |source| Error::Unheard {
                endpoint: format!("tcp://{address}"),
                source,
            };
            let mut listener = TcpListener::bind(*address).map_err(unheard)?;
            poll.registry()
                .register(&mut listener, Token(1 + at), Interest::READABLE)
                .map_err(unheard)?;
            listeners.push(listener);
        }
        let (opener, opened) = channel();
        let now = Instant::now();
        Ok(Self {
            common: Arc::new(RelayContext {
                rules: options.rules.clone(),
                max_packet: options.max_packet,
                datagrams: options.broker.scheme == Scheme::Udp,
            }),
            options,
            poll,
            listeners,
            stop: Stopper {
                stop: Arc::new(AtomicBool::new(false)),
                waker: Arc::new(waker),
            },
            opened,
            opener,
            peers: HashMap::new(),
            timers: BTreeSet::new(),
            next_peer: 0,
            failures: 0,
            retry_at: now,
            epoch: now,
            buffer: vec![0; READ].into_boxed_slice(),
        })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// Those of the system.
    pub fn local_addrs(&self) -> io::Result<Vec<SocketAddr>> {
        self.listeners.iter().map(TcpListener::local_addr).collect()
    }

    /// Something to end it with.
    pub fn stopper(&self) -> Stopper {
        self.stop.clone()
    }

    /// Relays until it is [stopped](Stopper), and reports what happens.
    ///
    /// # Errors
    /// `Lost` if the system does not let it wait for sockets.
    pub fn run(&mut self, mut report: impl FnMut(Notice)) -> Result<(), Error> {
        let mut events = Events::with_capacity(256);
        let mut ready: Vec<u64> = Vec::new();
        loop {
            let timeout = match ready.is_empty() {
                true => self
                    .timers
                    .first()
                    .map(|(at, _)| at.saturating_duration_since(Instant::now())),
                false => Some(Duration::ZERO),
            };
            match self.poll.poll(&mut events, timeout) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                    return Err(Error::Lost(error));
                }
                _ => {}
            }
            for event in &events {
                match event.token().0 {
                    0 => {}
                    at if at <= self.listeners.len() => {
                        self.accept(at - 1, &mut ready, &mut report);
                    }
                    at => ready.push(((at - 1 - self.listeners.len()) / 2) as u64),
                }
            }
            if self.stop.stop.load(Ordering::Relaxed) {
                self.close(&mut report);
                return Ok(());
            }
            while let Ok(opened) = self.opened.try_recv() {
                ready.extend(self.attach(opened, &mut report));
            }
            let now = Instant::now();
            while let Some(&(at, id)) = self.timers.first()
                && at <= now
            {
                self.timers.remove(&(at, id));
                if let Some(peer) = self.peers.get_mut(&id) {
                    peer.timer = None;
                    ready.push(id);
                }
            }
            ready.sort_unstable();
            ready.dedup();
            let round = std::mem::take(&mut ready);
            for id in round {
                if self.serve(id, &mut report) {
                    ready.push(id);
                }
            }
        }
    }

    fn accept(&mut self, at: usize, ready: &mut Vec<u64>, report: &mut impl FnMut(Notice)) {
        loop {
            let (mut stream, client) = match self.listeners[at].accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return report(Notice::Refused(error)),
            };
            if self.peers.len() >= self.options.max_clients {
                report(Notice::Full { client });
                continue;
            }
            let id = self.next_peer;
            self.next_peer += 1;
            let interest = Interest::READABLE | Interest::WRITABLE;
            let registered = stream.set_nodelay(true).and_then(|()| {
                let token = Token(1 + self.listeners.len() + 2 * id as usize);
                self.poll.registry().register(&mut stream, token, interest)
            });
            if let Err(error) = registered {
                report(Notice::Refused(error));
                continue;
            }
            let patience = Instant::now() + self.options.connect_timeout;
            let peer = Peer::new(stream, client, Arc::clone(&self.common), patience);
            self.peers.insert(id, peer);
            ready.push(id);
        }
    }

    /// Gives a client the way to the broker that was opened for it.
    fn attach(&mut self, opened: OpenedTransport, report: &mut impl FnMut(Notice)) -> Option<u64> {
        let id = opened.client;
        let registered = opened.transport.and_then(|transport| {
            let token = Token(2 + self.listeners.len() + 2 * id as usize);
            let interest = Interest::READABLE | Interest::WRITABLE;
            let descriptor = transport.as_fd().as_raw_fd();
            let registry = self.poll.registry();
            registry
                .register(&mut SourceFd(&descriptor), token, interest)
                .map_err(Error::Lost)?;
            Ok(transport)
        });
        let transport = match registered {
            Ok(transport) => {
                self.failures = 0;
                Some(transport)
            }
            Err(error) => {
                let pause = self.options.backoff.pause(self.failures);
                self.failures += 1;
                self.retry_at = Instant::now() + pause;
                report(Notice::Unreachable { error, pause });
                None
            }
        };
        // The client may have left meanwhile.
        let peer = self.peers.get_mut(&id)?;
        match transport {
            Some(transport) => {
                peer.attach(transport);
                report(Notice::Opened {
                    client: peer.address,
                    client_id: peer.relay.client_id().to_owned(),
                });
            }
            None => peer.refuse("the broker cannot be reached"),
        }
        Some(id)
    }

    /// Moves what there is to move for a client; whether there may be more.
    fn serve(&mut self, id: u64, report: &mut impl FnMut(Notice)) -> bool {
        let Some(peer) = self.peers.get_mut(&id) else {
            return false;
        };
        let progress = peer.serve(&mut self.buffer, self.epoch);
        match progress {
            Progress::Gone => {
                if let Some(timer) = peer.timer {
                    self.timers.remove(&(timer, id));
                }
                if let Some(peer) = self.peers.remove(&id) {
                    report(peer.closed());
                }
                return false;
            }
            Progress::WantsTransport => {
                if Instant::now() < self.retry_at {
                    peer.refuse("the broker cannot be reached");
                    return true;
                }
                peer.opening = true;
                if let Err(error) = self.open(id) {
                    report(Notice::Refused(error));
                    if let Some(peer) = self.peers.get_mut(&id) {
                        peer.refuse("there is no thread to reach the broker with");
                    }
                    return true;
                }
            }
            Progress::More => return true,
            Progress::Idle => {}
        }
        self.arm(id);
        false
    }

    /// Has a thread open a transport: name look-up and handshakes block.
    fn open(&self, client: u64) -> io::Result<()> {
        let endpoint = self.options.broker.clone();
        let (opener, waker) = (self.opener.clone(), Arc::clone(&self.stop.waker));
        let thread = std::thread::Builder::new().name("open".into());
        let thread = thread.spawn(move || {
            let transport = transport::open(&endpoint, Version::V5);
            // It fails only if the sidecar is gone.
            let _ = opener.send(OpenedTransport { client, transport });
            let _ = waker.wake();
        });
        thread.map(drop)
    }

    /// Sets a client's timer, if it is to go off earlier than it would. Later
    /// is left to when it goes off, since deadlines move with every packet.
    fn arm(&mut self, id: u64) {
        let Some(peer) = self.peers.get_mut(&id) else {
            return;
        };
        let Some(at) = peer.timeout(self.epoch) else {
            return;
        };
        match peer.timer {
            Some(timer) if timer <= at => return,
            Some(timer) => {
                self.timers.remove(&(timer, id));
            }
            None => {}
        }
        peer.timer = Some(at);
        self.timers.insert((at, id));
    }

    /// Ends all connections: for the broker as if the clients had vanished,
    /// since they did not say that they leave.
    fn close(&mut self, report: &mut impl FnMut(Notice)) {
        for (_, mut peer) in self.peers.drain() {
            peer.relay.shut_down();
            peer.serve(&mut self.buffer, self.epoch);
            report(peer.closed());
        }
        self.timers.clear();
    }
}
