//! Shard 0's part of a listener: the endpoint of `quinn-proto`, and what is done
//! with clients that want to connect.
//!
//! Nothing is kept for an address that is not proven beyond a bound: where
//! `retry` is set, nothing at all; elsewhere no more than [`UNPROVEN`]
//! handshakes, after which a Retry is all that an address gets before it has
//! answered it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use quinn_proto::{ConnectionHandle, Endpoint, ServerConfig};

use super::proof::Proof;
use super::{Opened, QuicOptions, settings};
use crate::acceptor::{Bucket, ListenerPolicy};
use crate::tls::TlsAcceptor;
use crate::udp::socket::CLASSES;

/// Handshakes under way with addresses that nothing proves.
pub(super) const UNPROVEN: usize = 64;

pub(super) struct Listener {
    /// Its number among all listeners.
    pub(super) index: u16,
    pub(super) options: QuicOptions,
    pub(super) endpoint: Endpoint,
    /// Sockets that may have something to read.
    pub(super) readable: [bool; CLASSES],
    /// The shard of each connection, by the endpoint's number.
    pub(super) owners: Vec<u16>,
    pub(super) unproven: Arc<AtomicUsize>,
    /// What is to prove the address of each connection, by the same number.
    proofs: Vec<Option<Proof>>,
    pub(super) bucket: Bucket,
    /// Settings of new connections, and the policy that they were made of.
    settings: (Arc<ListenerPolicy>, Arc<ServerConfig>),
}

impl Listener {
    /// # Errors
    /// The listener has no TLS that QUIC can use.
    pub(super) fn new(opened: &Opened) -> io::Result<Self> {
        let settings = made_of(&opened.policy, &opened.options)?;
        let config = settings::endpoint(tls_of(&opened.policy)?);
        Ok(Self {
            index: opened.index,
            options: opened.options.clone(),
            endpoint: Endpoint::new(Arc::new(config), Some(settings.clone()), true, None),
            readable: [false; CLASSES],
            owners: Vec::new(),
            unproven: Arc::new(AtomicUsize::new(0)),
            proofs: Vec::new(),
            bucket: Bucket::default(),
            settings: (opened.policy.clone(), settings),
        })
    }

    /// Notes what is to prove the address of a new connection, if anything is.
    pub(super) fn expect(&mut self, handle: ConnectionHandle, proof: Option<Proof>) {
        if self.proofs.len() <= handle.0 {
            self.proofs.resize_with(handle.0 + 1, || None);
        }
        self.proofs[handle.0] = proof;
    }

    /// Looks whether a connection's datagram proves its address.
    pub(super) fn look_at(&mut self, handle: ConnectionHandle, datagram: &[u8]) {
        if let Some(proof) = self.proofs.get_mut(handle.0) {
            proof.take_if(|proof| proof.is_given_by(datagram));
        }
    }

    /// The settings of connections under a policy. With one that cannot be used
    /// the last that could is.
    pub(super) fn settings(&mut self, policy: &Arc<ListenerPolicy>) -> Arc<ServerConfig> {
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
