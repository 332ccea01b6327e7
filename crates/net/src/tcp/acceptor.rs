//! The thread that accepts connections: throttled, bounded, and away from the
//! shards, so that a storm of connections or a lack of file descriptors does
//! not touch messages that are under way.
//!
//! Clients leave the last file descriptors to everything else, so that the HTTP
//! interface answers, links are made and files are opened when clients have all others.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd as _, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mio::net::TcpListener;
use mio::{Events, Poll, Token};
use punctual_broker::Nanos;
use punctual_broker::lock::read;

use super::handshake::{Newcomer, Reception};
use super::{Connection, TcpMail};
use crate::bucket::Bucket;
use crate::clock::Clock;
use crate::counters::Counters;
use crate::mailbox::{Mail, Mailbox, WAKE};
use crate::shared::Shared;

/// Pause after the system refused another file descriptor.
const EXHAUSTED: Nanos = Nanos::from_millis(100);
/// File descriptors that are left to others than clients, at most: the HTTP interface may have
/// 128 connections.
const RESERVED: u64 = 192;
/// Time between two lines in the log about that.
const REPORT_INTERVAL: Nanos = Nanos::from_secs(10);
/// Connections accepted from one listener in one turn.
const BATCH: usize = 64;
/// Random numbers that are fetched at once.
const NONCES: usize = 64;

pub(crate) struct Acceptor {
    pub(crate) poll: Poll,
    /// By number of the listener; `None` for those that are not TCP.
    pub(crate) listeners: Vec<Option<TcpListener>>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) mailboxes: Arc<[Mailbox]>,
    /// At least one.
    pub(crate) receptions: Vec<Reception>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) clock: Clock,
    /// By number of the listener: the address of its connections here, if it is the same for all.
    pub(crate) locals: Vec<Option<SocketAddr>>,
    pub(crate) nonces: Nonces,
    /// Connections for the first shard that were accepted and not posted yet.
    pub(crate) posted: Vec<Mail>,
    pub(crate) descriptors: Descriptors,
    /// Was accepted and has to wait for a descriptor below the bound.
    pub(crate) held: Option<HeldConnection>,
}

/// A connection that was accepted when clients had as many descriptors as they may have.
pub(crate) struct HeldConnection {
    listener: usize,
    stream: TcpStream,
    peer: SocketAddr,
}

/// Which file descriptors clients may have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Descriptors {
    /// Of the process.
    limit: u64,
}

impl Descriptors {
    /// Of a process that may have so many.
    pub(crate) fn new(limit: u64) -> Self {
        Self { limit }
    }

    /// Clients have those below this one. The system gives the lowest that is free, so the
    /// number of a new one says that all below it are in use.
    fn bound(self) -> u64 {
        self.limit - RESERVED.min(self.limit / 4)
    }

    /// Whether a client may have this one.
    fn allow(self, descriptor: RawFd) -> bool {
        u64::try_from(descriptor).is_ok_and(|it| it < self.bound())
    }
}

impl Acceptor {
    pub(crate) fn run(mut self) {
        let mut events = Events::with_capacity(64);
        let mut ready = vec![false; self.listeners.len()];
        let mut tokens = Bucket::default();
        let mut exhaustion = Exhaustion::default();
        let mut wait = None;
        let mut next_reception = 0;
        while !self.shared.stop.load(Ordering::Acquire) {
            match self.poll.poll(&mut events, wait) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                    tracing::error!(%error, "waiting for connections failed");
                    return;
                }
                _ => {}
            }
            for event in &events {
                if event.token() != WAKE {
                    ready[event.token().0] = true;
                }
            }
            wait = None;
            if let Some(held) = self.held.take()
                && let Err(held) = self.admit_held(held, &mut next_reception)
            {
                self.held = Some(held);
                wait = Some(Duration::from_nanos(EXHAUSTED.0));
                continue;
            }
            for (at, ready) in ready.iter_mut().enumerate() {
                for _ in 0..BATCH {
                    if !*ready {
                        break;
                    }
                    if let Some(pause) = self.must_wait(&mut tokens) {
                        wait = Some(pause);
                        break;
                    }
                    let Some(listener) = &self.listeners[at] else {
                        break;
                    };
                    match listener.accept() {
                        Ok((stream, peer)) => {
                            tokens.take();
                            let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
                            let stream = TcpStream::from(stream);
                            if self.descriptors.allow(stream.as_raw_fd()) {
                                self.admit(at, stream, peer, &mut next_reception);
                                continue;
                            }
                            self.held = Some(HeldConnection {
                                listener: at,
                                stream,
                                peer,
                            });
                            self.say_exhausted(&mut exhaustion, self.clients_have_all());
                            wait = Some(Duration::from_nanos(EXHAUSTED.0));
                            break;
                        }
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                            *ready = false;
                            if exhaustion.ends() {
                                tracing::info!("connections are accepted again");
                            }
                        }
                        Err(error) if is_exhaustion(&error) => {
                            self.say_exhausted(&mut exhaustion, error.to_string());
                            wait = Some(Duration::from_nanos(EXHAUSTED.0));
                            break;
                        }
                        // The peer gave up meanwhile.
                        Err(_) => {
                            self.counters.accept_errors.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
                self.mailboxes[0].post_all(&mut self.posted);
                if self.held.is_some() {
                    break;
                }
                if *ready && wait.is_none() {
                    wait = Some(Duration::ZERO);
                }
            }
        }
    }

    /// Lets a connection in that was held, if there is a descriptor for it now.
    fn admit_held(
        &mut self,
        held: HeldConnection,
        next_reception: &mut usize,
    ) -> Result<(), HeldConnection> {
        // The copy has the lowest descriptor that is free.
        let copy = held.stream.try_clone();
        let copy = copy
            .ok()
            .filter(|it| self.descriptors.allow(it.as_raw_fd()));
        let Some(stream) = copy else {
            return Err(held);
        };
        let HeldConnection { listener, peer, .. } = held;
        self.admit(listener, stream, peer, next_reception);
        self.mailboxes[0].post_all(&mut self.posted);
        Ok(())
    }

    /// Counts a connection that has to wait, and says so now and then.
    fn say_exhausted(&self, exhaustion: &mut Exhaustion, error: String) {
        self.counters.accept_errors.fetch_add(1, Ordering::Relaxed);
        if exhaustion.begins(self.clock.now()) {
            tracing::warn!(
                %error,
                "a connection cannot be accepted; it waits. Raise the limit of open files \
                 (LimitNOFILE, ulimit -n)"
            );
        }
    }

    fn clients_have_all(&self) -> String {
        let Descriptors { limit } = self.descriptors;
        let bound = self.descriptors.bound();
        format!(
            "{bound} of {limit} file descriptors are in use; the others are for the HTTP \
             interface, links and files"
        )
    }

    /// How long accepting has to pause now, if it has to.
    fn must_wait(&self, tokens: &mut Bucket) -> Option<Duration> {
        let policy = *read(&self.shared.accept);
        if self.counters.drift.load(Ordering::Relaxed) > policy.max_drift.0 {
            self.counters.accept_delays.fetch_add(1, Ordering::Relaxed);
            return Some(Duration::from_millis(50));
        }
        tokens.wait(policy.rate, self.clock.now())
    }

    fn admit(
        &mut self,
        listener: usize,
        stream: TcpStream,
        peer: SocketAddr,
        next_reception: &mut usize,
    ) {
        let policy = self.shared.policies.of(listener as u16);
        let accept = *read(&self.shared.accept);
        let here = self.counters.per_listener[listener].load(Ordering::Relaxed);
        if here >= policy.max_connections
            || self.counters.open.load(Ordering::Relaxed) >= accept.max_connections
        {
            self.counters
                .connections_refused
                .fetch_add(1, Ordering::Relaxed);
            return;
        }
        let layer = match policy.layer.accept() {
            Ok(layer) => layer,
            Err(error) => {
                tracing::warn!(%error, "a connection cannot be set up");
                return;
            }
        };
        let Some(nonce) = self.nonces.next() else {
            tracing::error!("the system has no random numbers; a connection is refused");
            return;
        };
        let local = self.locals[listener].or_else(|| stream.local_addr().ok());
        let mut meta = policy.meta(listener as u16, peer, local, nonce);
        // If a proxy is to tell where the client is, that is not known yet.
        meta.allow_anonymous &= !policy.layer.proxy;
        self.counters.opened(listener as u16);
        let (listener, meta) = (meta.listener, Box::new(meta));
        if layer.is_plain() {
            // Sessions are placed from there.
            let connection = Connection::new(stream, meta, layer);
            self.posted
                .push(TcpMail::Connection(Box::new(connection)).into());
            return;
        }
        *next_reception = (*next_reception + 1) % self.receptions.len();
        let newcomer = Newcomer {
            stream,
            meta,
            layer,
            policy,
        };
        if !self.receptions[*next_reception].admit(newcomer) {
            self.counters.closed(listener);
            self.counters
                .connections_refused
                .fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The address that connections of a listener have here, unless it takes them at any.
pub(crate) fn fixed_address(listener: Option<&TcpListener>) -> Option<SocketAddr> {
    let address = listener?.local_addr().ok()?;
    (!address.ip().to_canonical().is_unspecified()).then_some(address)
}

/// Random numbers for connections, fetched from the system for many at once.
pub(crate) struct Nonces {
    fetched: [[u8; 16]; NONCES],
    /// How many of these are not given yet, from the front.
    left: usize,
}

impl Default for Nonces {
    fn default() -> Self {
        Self {
            fetched: [[0; 16]; NONCES],
            left: 0,
        }
    }
}

impl Nonces {
    /// One that was never given before; nothing of it stays here. `None` if the system has none.
    fn next(&mut self) -> Option<[u8; 16]> {
        if self.left == 0 {
            getrandom::fill(self.fetched.as_flattened_mut()).ok()?;
            self.left = NONCES;
        }
        self.left -= 1;
        Some(std::mem::take(&mut self.fetched[self.left]))
    }
}

fn is_exhaustion(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM)
    )
}

/// Registers listeners with their index as token.
pub(crate) fn register(poll: &Poll, listeners: &mut [Option<TcpListener>]) -> io::Result<()> {
    for (at, listener) in listeners.iter_mut().enumerate() {
        if let Some(listener) = listener {
            poll.registry()
                .register(listener, Token(at), mio::Interest::READABLE)?;
        }
    }
    Ok(())
}

/// Whether the log says that the system gives no more file descriptors.
#[derive(Debug, Default)]
struct Exhaustion {
    /// Whether the last thing that the log said is that it began.
    said: bool,
    /// When that was said last.
    at: Option<Nanos>,
}

impl Exhaustion {
    /// Whether to say that connections have to wait.
    fn begins(&mut self, now: Nanos) -> bool {
        let say = self.at.is_none_or(|at| now - at >= REPORT_INTERVAL);
        if say {
            (self.said, self.at) = (true, Some(now));
        }
        say
    }

    /// Whether to say that nobody waits any more.
    fn ends(&mut self) -> bool {
        std::mem::take(&mut self.said)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_leave_descriptors_to_others() {
        for (limit, bound) in [(4, 3), (100, 75), (1024, 832), (1_000_000, 999_808)] {
            let descriptors = Descriptors::new(limit);
            assert!(
                descriptors.allow(bound - 1) && !descriptors.allow(bound),
                "{limit}"
            );
        }
    }

    #[test]
    fn exhaustion_is_said_now_and_then() {
        let mut exhaustion = Exhaustion::default();
        let start = Nanos::from_secs(100);
        assert!(!exhaustion.ends());
        assert!(exhaustion.begins(start));
        assert!(!exhaustion.begins(start + Nanos::from_secs(9)));
        assert!(exhaustion.ends() && !exhaustion.ends());
        assert!(!exhaustion.begins(start + Nanos::from_secs(9)));
        assert!(!exhaustion.ends());
        assert!(exhaustion.begins(start + Nanos::from_secs(10)));
        assert!(exhaustion.ends());
    }

    #[test]
    fn no_random_number_is_given_twice() {
        let mut nonces = Nonces::default();
        let mut given = std::collections::HashSet::new();
        for _ in 0..2 * NONCES + 1 {
            let nonce = nonces.next().unwrap();
            assert!(given.insert(nonce));
            assert!(!nonces.fetched.contains(&nonce), "it is wiped");
        }
    }

    #[test]
    fn connections_have_the_address_of_their_listener_unless_that_is_any() {
        for (address, is_fixed) in [("127.0.0.1:0", true), ("0.0.0.0:0", false)] {
            let listener = TcpListener::bind(address.parse().unwrap()).unwrap();
            let port = listener.local_addr().unwrap().port();
            let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
            let fixed = fixed_address(Some(&listener));
            assert_eq!(fixed, is_fixed.then(|| client.peer_addr().unwrap()));
        }
        assert_eq!(fixed_address(None), None);
    }
}
