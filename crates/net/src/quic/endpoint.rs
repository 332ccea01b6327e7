//! Shard 0's part of a listener: the endpoint of `quinn-proto`, and what is done
//! with clients that want to connect.
//!
//! Nothing is kept for an address that is not proven beyond a bound: where
//! `retry` is set, nothing at all; elsewhere no more than [`UNPROVEN`]
//! handshakes, after which a Retry is all that an address gets before it has
//! answered it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use bytes::BytesMut;
use punctual_broker::Nanos;
use punctual_udp::Path;
use quinn_proto::{
    ConnectionHandle, DatagramEvent, Endpoint, EndpointEvent, Incoming, ServerConfig, Transmit,
};

use super::link::{Link, UnprovenGuard};
use super::proof::Proof;
use super::{Opened, QuicOptions, settings};
use crate::bucket::Bucket;
use crate::datagram::CLASSES;
use crate::policy::ListenerPolicy;
use crate::tls::TlsAcceptor;

/// Handshakes under way with addresses that nothing proves.
pub(super) const UNPROVEN: usize = 64;

pub(super) struct Listener {
    /// Its number among all listeners.
    pub(super) index: u16,
    options: QuicOptions,
    endpoint: Endpoint,
    /// Sockets that may have something to read.
    pub(super) readable: [bool; CLASSES],
    /// The shard of each connection, by the endpoint's number.
    pub(super) owners: Vec<u16>,
    unproven: Arc<AtomicUsize>,
    /// What is to prove the address of each connection, by the same number.
    proofs: Vec<Option<Proof>>,
    bucket: Bucket,
    /// Settings of new connections, and the policy that they were made of.
    settings: (Arc<ListenerPolicy>, Arc<ServerConfig>),
}

/// The state of the shard by which a new connection is accepted or not.
pub(super) struct Room<F> {
    /// The process stops, or is behind: the client is to ask again, later.
    pub(super) busy: bool,
    /// New connections per second; 0: any.
    pub(super) rate: u32,
    /// Whether there are as many connections as there may be; asked only where it matters.
    pub(super) is_full: F,
}

/// What becomes of a client that wants to connect. What is to be sent is in the buffer for answers.
pub(super) enum Decision {
    /// It is asked to prove its address.
    Retried(Transmit),
    /// It gets no answer, and will ask again in a second or so.
    Ignored,
    Refused(Transmit),
    /// What it began with is not the beginning of a connection.
    Failed(Option<Transmit>),
    Accepted(ConnectionHandle, Box<Link>),
}

impl Listener {
    /// # Errors
    /// The listener has no TLS that QUIC can use.
    pub(super) fn new(opened: &Opened) -> io::Result<Self> {
        Self::with(opened.index, &opened.options, &opened.policy, None)
    }

    /// What the endpoint draws at random follows from `seed`, if there is one.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(super) fn with(
        index: u16,
        options: &QuicOptions,
        policy: &Arc<ListenerPolicy>,
        seed: Option<[u8; 32]>,
    ) -> io::Result<Self> {
        let settings = made_of(policy, options)?;
        let config = settings::endpoint(tls_of(policy)?);
        Ok(Self {
            index,
            options: options.clone(),
            endpoint: Endpoint::new(Arc::new(config), Some(settings.clone()), true, seed),
            readable: [false; CLASSES],
            owners: Vec::new(),
            unproven: Arc::new(AtomicUsize::new(0)),
            proofs: Vec::new(),
            bucket: Bucket::default(),
            settings: (policy.clone(), settings),
        })
    }

    /// Looks at a datagram. An answer to it is written to `answer`. Nothing comes of what is none of
    /// QUIC, and of what is sent for a connection by anybody but its client.
    pub(super) fn handle(
        &mut self,
        now: Instant,
        path: Path,
        datagram: &[u8],
        answer: &mut Vec<u8>,
    ) -> Option<DatagramEvent> {
        let data = BytesMut::from(datagram);
        let (remote, local) = (path.remote, path.local);
        let event = self.endpoint.handle(now, remote, local, None, data, answer);
        event.filter(|event| match event {
            DatagramEvent::ConnectionEvent(handle, _) => self.belongs(*handle, remote, datagram),
            _ => true,
        })
    }

    /// Lets the endpoint know what a connection says; what the endpoint says to that.
    pub(super) fn handle_event(
        &mut self,
        handle: ConnectionHandle,
        event: EndpointEvent,
    ) -> Option<quinn_proto::ConnectionEvent> {
        self.endpoint.handle_event(handle, event)
    }

    /// Connections that the endpoint knows.
    pub(super) fn open_connections(&self) -> usize {
        self.endpoint.open_connections()
    }

    /// Decides about a client that wants to connect, at once: until then the endpoint keeps what it
    /// sends. `now` and `instant` are the same time.
    pub(super) fn decide(
        &mut self,
        incoming: Incoming,
        policy: &Arc<ListenerPolicy>,
        room: Room<impl FnOnce() -> bool>,
        (now, instant): (Nanos, Instant),
        answer: &mut Vec<u8>,
    ) -> Decision {
        let proven = incoming.remote_address_validated();
        let under_way = self.unproven.load(Ordering::Relaxed);
        if !proven && (self.options.retry || under_way >= UNPROVEN) && incoming.may_retry() {
            let retried = self.endpoint.retry(incoming, answer);
            return retried.map_or(Decision::Ignored, Decision::Retried);
        }
        if room.busy || self.bucket.wait(room.rate, now).is_some() {
            self.endpoint.ignore(incoming);
            return Decision::Ignored;
        }
        self.bucket.take();
        if (room.is_full)() {
            return Decision::Refused(self.endpoint.refuse(incoming, answer));
        }
        let settings = self.settings(policy);
        let from = incoming.remote_address();
        let proof = (!proven).then(|| Proof::new(from, *incoming.orig_dst_cid()));
        let accepted = self
            .endpoint
            .accept(incoming, instant, answer, Some(settings));
        let (handle, connection) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => return Decision::Failed(error.response),
        };
        let unproven = (!proven).then(|| UnprovenGuard::new(&self.unproven));
        let mut link = Link::new(self.index, connection, Some(policy.clone()), unproven);
        if let Some(proof) = &proof {
            link.limit(proof.flag());
        }
        self.expect(handle, proof);
        Decision::Accepted(handle, Box::new(link))
    }

    /// Notes what is to prove the address of a new connection, if anything is.
    fn expect(&mut self, handle: ConnectionHandle, proof: Option<Proof>) {
        if self.proofs.len() <= handle.0 {
            self.proofs.resize_with(handle.0 + 1, || None);
        }
        self.proofs[handle.0] = proof;
    }

    /// Whether a datagram may be one of the connection's client: until its address is proven, only
    /// what comes from there, or proves it.
    fn belongs(&mut self, handle: ConnectionHandle, remote: SocketAddr, datagram: &[u8]) -> bool {
        let Some(proof) = self.proofs.get_mut(handle.0) else {
            return true;
        };
        proof.take_if(|proof| proof.is_given_by(datagram));
        proof.as_ref().is_none_or(|proof| proof.is_from(remote))
    }

    /// The settings of connections under a policy. With one that cannot be used
    /// the last that could is.
    fn settings(&mut self, policy: &Arc<ListenerPolicy>) -> Arc<ServerConfig> {
        if !Arc::ptr_eq(policy, &self.settings.0) {
            match made_of(policy, &self.options) {
                Ok(settings) => self.settings = (policy.clone(), settings),
                Err(error) => {
                    tracing::warn!(%error, "a QUIC listener goes on with its old certificate");
                    self.settings.0 = policy.clone();
                }
            }
        }
        self.settings.1.clone()
    }
}

fn made_of(policy: &ListenerPolicy, options: &QuicOptions) -> io::Result<Arc<ServerConfig>> {
    let settings = settings::server(tls_of(policy)?, options).map_err(io::Error::other)?;
    Ok(Arc::new(settings))
}

fn tls_of(policy: &ListenerPolicy) -> io::Result<&TlsAcceptor> {
    let needed = || io::Error::other("a QUIC listener needs a certificate");
    policy.layer.tls.as_ref().ok_or_else(needed)
}
