//! A listener and its connections without sockets, shards and broker, in a time that the caller
//! makes: for tests, and for the fuzz target `quic`.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use punctual_broker::{Admits, Nanos};
use punctual_udp::Path;
use quinn_proto::crypto::Keys;
use quinn_proto::{ConnectionHandle, ConnectionId, DatagramEvent};

use super::endpoint::{Decision, Listener, Room, UNPROVEN};
use super::link::Link;
use super::{QuicCounters, QuicOptions, settings};
use crate::anonymous::Anonymous;
use crate::layer::LayerConfig;
use crate::policy::{Identity, ListenerPolicy};
use crate::tls::TlsAcceptor;

/// Version 1 of QUIC (RFC 9000).
const VERSION: u32 = 1;
/// Handshakes that may be under way with addresses that nothing proves.
pub const MOST_UNPROVEN: usize = UNPROVEN;

/// A datagram to an address.
pub type Sent = (SocketAddr, Vec<u8>);

/// A listener that is fed by hand.
pub struct Rehearsal {
    listener: Listener,
    policy: Arc<ListenerPolicy>,
    links: BTreeMap<usize, (ConnectionHandle, Box<Link>)>,
    counters: QuicCounters,
    start: Instant,
    /// Since the start.
    now: Duration,
}

impl Rehearsal {
    /// With or without a Retry before every connection.
    ///
    /// # Errors
    /// QUIC cannot be used with this TLS.
    pub fn new(tls: TlsAcceptor, retry: bool) -> io::Result<Self> {
        let options = QuicOptions {
            retry,
            ..QuicOptions::default()
        };
        let policy = Arc::new(ListenerPolicy {
            layer: LayerConfig {
                tls: Some(tls),
                ..LayerConfig::default()
            },
            identity: Identity::None,
            anonymous: Anonymous::Local,
            checks_passwords: false,
            unproven: Arc::default(),
            refuse: None,
            admits: Admits::default(),
            max_connections: usize::MAX,
        });
        Ok(Self {
            listener: Listener::with(0, &options, &policy, Some([7; 32]))?,
            policy,
            links: BTreeMap::new(),
            counters: QuicCounters::default(),
            start: Instant::now(),
            now: Duration::ZERO,
        })
    }

    /// Takes a datagram; what is sent then.
    pub fn receive(&mut self, from: SocketAddr, datagram: &[u8]) -> Vec<Sent> {
        let (mut sent, mut answer) = (Vec::new(), Vec::new());
        let path = Path {
            remote: from,
            local: None,
        };
        let instant = self.start + self.now;
        let event = self.listener.handle(instant, path, datagram, &mut answer);
        let transmit = match event {
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                if let Some((_, link)) = self.links.get_mut(&handle.0) {
                    link.connection.handle_event(event);
                }
                None
            }
            Some(DatagramEvent::Response(transmit)) => Some(transmit),
            Some(DatagramEvent::NewConnection(incoming)) => {
                let room = Room {
                    busy: false,
                    rate: 0,
                    is_full: || false,
                };
                let times = (Nanos(self.now.as_nanos() as u64), instant);
                let policy = self.policy.clone();
                let listener = &mut self.listener;
                match listener.decide(incoming, &policy, room, times, &mut answer) {
                    Decision::Retried(transmit) | Decision::Refused(transmit) => Some(transmit),
                    Decision::Ignored => None,
                    Decision::Failed(response) => response,
                    Decision::Accepted(handle, link) => {
                        self.links.insert(handle.0, (handle, link));
                        None
                    }
                }
            }
            None => None,
        };
        if let Some(transmit) = transmit {
            answer.truncate(transmit.size);
            sent.push((transmit.destination, answer));
        }
        self.settle(&mut sent);
        sent
    }

    /// Lets time pass, timer by timer; what is sent meanwhile.
    pub fn pass(&mut self, time: Duration) -> Vec<Sent> {
        let (mut sent, end) = (Vec::new(), self.now + time);
        loop {
            let links = self.links.values_mut();
            let due = links.filter_map(|(_, link)| link.connection.poll_timeout());
            let due = due.min().map(|at| at.duration_since(self.start));
            let Some(due) = due.filter(|due| *due <= end) else {
                break;
            };
            self.now = self.now.max(due);
            for (_, link) in self.links.values_mut() {
                link.connection.handle_timeout(self.start + self.now);
            }
            self.settle(&mut sent);
        }
        self.now = end;
        sent
    }

    /// Connections, also those that are not established.
    pub fn connections(&self) -> usize {
        self.links.len().max(self.listener.open_connections())
    }

    /// The keys of what a client sends first to the connection ID that it chose, and of the answer.
    pub fn initial_keys(&self, destination: &[u8]) -> Option<Keys> {
        let tls = self.policy.layer.tls.as_ref()?;
        let config = settings::server(tls, &QuicOptions::default()).ok()?;
        let destination = ConnectionId::new(destination);
        config.crypto.initial_keys(VERSION, &destination).ok()
    }

    /// What the shards do after something has happened: events, then datagrams.
    fn settle(&mut self, sent: &mut Vec<Sent>) {
        let now = self.start + self.now;
        let mut gone = Vec::new();
        for (key, (handle, link)) in &mut self.links {
            link.happened(now, &self.counters);
            while let Some(event) = link.connection.poll_endpoint_events() {
                if event.is_drained() {
                    gone.push(*key);
                }
                if let Some(answer) = self.listener.handle_event(*handle, event) {
                    link.connection.handle_event(answer);
                }
            }
            let mut data = Vec::new();
            while let Some(transmit) = link.transmit(now, &mut data) {
                data.truncate(transmit.size);
                sent.push((transmit.destination, std::mem::take(&mut data)));
            }
        }
        for key in gone {
            self.links.remove(&key);
        }
    }
}
