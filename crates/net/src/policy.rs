//! How connections are treated from when they are accepted to CONNECT, by listener and for all.
//! Everything here is replaced when the configuration is read again.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

use punctual_broker::lock::{read, write};
use punctual_broker::{Admits, Config, ConnMeta, Credential, Nanos};

use crate::anonymous::Anonymous;
use crate::layer::{ClientAddress, LayerConfig};

/// Which part of a client certificate is the user name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Identity {
    /// None: clients say who they are.
    #[default]
    None,
    /// The common name.
    CommonName,
    /// The whole subject.
    Subject,
}

/// How connections of one listener are treated. Replaced on reload.
#[derive(Debug, Clone)]
pub struct ListenerPolicy {
    /// Protocols between socket and MQTT.
    pub layer: LayerConfig,
    /// What of a client certificate is the user name.
    pub identity: Identity,
    /// Which clients without user name are let in.
    pub anonymous: Anonymous,
    /// Whether who names a user has to show its password: otherwise the name is a claim, and clients
    /// are let in as those without one.
    pub checks_passwords: bool,
    /// What all have that are let in and prove nothing. One for the sockets of a listener.
    pub unproven: Arc<Credential>,
    /// Whether messages whose requirement is rejected are refused; `None`: as
    /// the broker's configuration says.
    pub refuse: Option<bool>,
    /// Which peers the listener admits: clients, neighbour brokers, or both.
    pub admits: Admits,
    /// Connections of this listener at the same time; others are closed.
    pub max_connections: usize,
}

impl ListenerPolicy {
    /// What the broker learns of a new connection from `peer`, where no proxy says more.
    pub(crate) fn meta(
        &self,
        listener: u16,
        peer: SocketAddr,
        local: Option<SocketAddr>,
        nonce: [u8; 16],
    ) -> ConnMeta {
        ConnMeta {
            peer: Some(peer),
            local,
            listener,
            allow_anonymous: self.anonymous.lets_in(peer.ip(), ClientAddress::Socket),
            identity: None,
            credential: None,
            unproven: Some(self.unproven.clone()),
            nonce,
            refuse: self.refuse,
        }
    }

    /// Takes over from `old`. Clients that have proven nothing stay if as many of them are let in now;
    /// otherwise all of them have to connect again.
    pub(crate) fn succeed(&mut self, old: &Self) {
        let lets_in_fewer = self.anonymous < old.anonymous;
        if lets_in_fewer || self.checks_passwords && !old.checks_passwords {
            old.unproven.revoke();
        } else {
            self.unproven = old.unproven.clone();
        }
    }
}

/// Bounds on accepting. Replaced on reload.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AcceptPolicy {
    /// Connections of all listeners at the same time; others are closed.
    pub max_connections: usize,
    /// New connections per second, all listeners together; further ones wait
    /// in the kernel's backlog. 0: any.
    pub rate: u32,
    /// While a shard's loop takes longer than this for one turn, new
    /// connections wait.
    pub max_drift: Nanos,
}

/// How connections of each listener are treated now.
#[derive(Debug)]
pub(crate) struct Policies(RwLock<Vec<Arc<ListenerPolicy>>>);

impl Policies {
    /// In the order of the listeners.
    pub(crate) fn new(policies: impl Iterator<Item = ListenerPolicy>) -> Self {
        Self(RwLock::new(policies.map(Arc::new).collect()))
    }

    /// That of a listener.
    pub(crate) fn of(&self, listener: u16) -> Arc<ListenerPolicy> {
        read(&self.0)[usize::from(listener)].clone()
    }

    /// Replaces them: as many, in the same order.
    pub(crate) fn replace(&self, policies: Vec<ListenerPolicy>) {
        let mut current = write(&self.0);
        for (current, mut policy) in current.iter_mut().zip(policies) {
            policy.succeed(current);
            *current = Arc::new(policy);
        }
    }
}

/// Bounds on handshakes. Replaced on reload.
#[derive(Debug)]
pub(crate) struct HandshakeLimits {
    /// Nanoseconds that one may take.
    timeout: AtomicU64,
    /// How many may be under way, for each thread.
    under_way: AtomicU64,
}

impl HandshakeLimits {
    pub(crate) fn new(config: &Config) -> Self {
        let limits = Self {
            timeout: AtomicU64::new(0),
            under_way: AtomicU64::new(0),
        };
        limits.set(config);
        limits
    }

    pub(crate) fn set(&self, config: &Config) {
        let under_way = config.limits.max_half_open.max(1) as u64;
        self.timeout
            .store(config.connect_timeout.0, Ordering::Relaxed);
        self.under_way.store(under_way, Ordering::Relaxed);
    }

    /// How long one may take.
    pub(crate) fn timeout(&self) -> Nanos {
        Nanos(self.timeout.load(Ordering::Relaxed))
    }

    /// How many may be under way, for each thread.
    pub(crate) fn under_way(&self) -> u64 {
        self.under_way.load(Ordering::Relaxed)
    }
}
