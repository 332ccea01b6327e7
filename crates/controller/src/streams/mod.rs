//! Streams: packets with one header that take one path. A request consists of streams.
//!
//! With a broker between publisher and subscribers, a request has a stream to the broker and one
//! from the broker to each subscriber. Without a broker, it has one stream to all subscribers, or
//! over TCP one to each. Requests share a stream if their packets have equal headers, as those of
//! one connection have. A switch cannot tell such packets apart, so they share a path and a class,
//! which is the most urgent class of the requests; it is not lowered as long as the stream is in
//! use.
//!
//! A request's part of a stream is a *segment*. In the analysis all segments of a request are one
//! flow, from the publisher over the broker to every subscriber. Its bounds therefore depend on the
//! network and the other flows only, and not on how a deadline is divided among segments. Its
//! priority is the class of the stream to the broker, and behind the broker that of the stream to
//! each subscriber.

mod entries;
mod flow;
mod ledger;
mod router;

use std::collections::BTreeMap;
use std::net::IpAddr;

use punctual_model::network::LinkIndex;
use punctual_model::srt::{Peer, Protocol, Request};

use crate::plan::Header;
use crate::topology::{End, Topology};

pub(crate) use entries::{Compiler, PlacedEntry};
pub(crate) use ledger::{DecisionInput, Ledger, Outcome, hash};
pub(crate) use router::{PathSet, Router};

/// Name of a request: its manager and its flow.
pub(crate) type Key = (String, String);

/// The name of a request's flow in the analysis.
pub(crate) fn flow_id((manager, flow): &Key) -> String {
    format!("{manager}/{flow}")
}

/// For each protected link, the links of its detours: from the node before it to every receiver
/// beyond it.
pub(crate) type Detours = BTreeMap<LinkIndex, Vec<Vec<LinkIndex>>>;

/// Packets with one header that take one path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stream {
    pub(crate) header: Header,
    /// The port at which the packets enter the network.
    pub(crate) source: End,
    /// Class at every port, 1 to 7.
    pub(crate) class: u8,
    /// Version of the stream's path, 0 to 3.
    pub(crate) tag: u8,
    pub(crate) receivers: Vec<Receiver>,
    pub(crate) path_set: PathSet,
    /// Detours for links that may fail.
    pub(crate) detours: Detours,
    /// The requests that use the stream, and the rate and burst of each.
    pub(crate) users: BTreeMap<Key, Use>,
}

/// A request's use of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Use {
    /// Policed rate in bits per second on the wire; `burst` is in bytes.
    pub(crate) rate_bps: u64,
    pub(crate) burst_bytes: u64,
}

/// A receiver of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Receiver {
    pub(crate) peer: Peer,
    pub(crate) at: End,
    /// Ethernet address to which the destination of multicast packets is rewritten for this
    /// receiver.
    pub(crate) mac: Option<crate::plan::Mac>,
}

/// A request's part of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) header: Header,
    pub(crate) role: Role,
    pub(crate) source: End,
    pub(crate) receivers: Vec<Receiver>,
}

/// Position of a segment in its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// From the publisher to the broker, which sends `copies` copies.
    Up { copies: u64 },
    /// From the broker to a subscriber.
    Down,
    /// From the publisher to its subscribers.
    Direct,
}

/// Why a request cannot be decided yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NotReadyReason {
    /// The location of a host is unknown.
    Unknown(IpAddr),
    /// The request can never be decided, for a reason in plain words.
    Impossible(String),
}

/// Segments and hosts of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Parts {
    pub(crate) segments: Vec<Segment>,
    /// The port of the broker, if its service is on the path.
    pub(crate) broker: Option<End>,
    /// Subscribers on the broker's host, to which no packets go over the network.
    pub(crate) local: Vec<Peer>,
    /// The multicast address of the request's group.
    pub(crate) group: Option<IpAddr>,
}

impl Parts {
    /// Splits a request into segments.
    ///
    /// # Errors
    /// A host is unknown, or the request contradicts itself.
    pub(crate) fn of(
        request: &Request,
        topology: &Topology,
        group: impl FnOnce() -> Option<IpAddr>,
    ) -> Result<Self, NotReadyReason> {
        let place = |address: IpAddr| {
            let (mac, host) = topology
                .host(address)
                .ok_or(NotReadyReason::Unknown(address))?;
            let at = host.at.ok_or(NotReadyReason::Unknown(address))?;
            Ok((mac, at))
        };
        let (_, source) = place(request.publisher.address)?;
        let one = |peer: Peer, role, from: Peer, source| -> Result<Segment, NotReadyReason> {
            let (_, at) = place(peer.address)?;
            Ok(Segment {
                header: header(from, peer)?,
                role,
                source,
                receivers: vec![Receiver {
                    peer,
                    at,
                    mac: None,
                }],
            })
        };
        let mut parts = Self {
            segments: Vec::new(),
            broker: None,
            local: Vec::new(),
            group: None,
        };
        if let Some(broker) = request.broker {
            let (_, middle) = place(broker.address)?;
            parts.broker = Some(middle);
            let copies = request.subscribers.len() as u64;
            let up = Role::Up { copies };
            let publisher = request.publisher;
            parts.segments.push(one(broker, up, publisher, source)?);
            for subscriber in &request.subscribers {
                if place(subscriber.address)?.1 == middle {
                    parts.local.push(*subscriber);
                    continue;
                }
                let from = Peer {
                    protocol: subscriber.protocol,
                    address: broker.address,
                    port: None,
                };
                parts
                    .segments
                    .push(one(*subscriber, Role::Down, from, middle)?);
            }
            return Ok(parts);
        }
        if request.publisher.protocol == Protocol::Tcp {
            for subscriber in &request.subscribers {
                let publisher = request.publisher;
                parts
                    .segments
                    .push(one(*subscriber, Role::Direct, publisher, source)?);
            }
            return Ok(parts);
        }
        if request.subscribers.is_empty() {
            return Ok(parts);
        }
        let group = group().ok_or_else(|| {
            NotReadyReason::Impossible(
                "no multicast address is free; withdraw other flows first".into(),
            )
        })?;
        let mut receivers = Vec::new();
        for subscriber in &request.subscribers {
            if subscriber.protocol != Protocol::Udp {
                let problem = format!(
                    "{subscriber} does not receive what {} sends: state the same protocol",
                    request.publisher
                );
                return Err(NotReadyReason::Impossible(problem));
            }
            let (mac, at) = place(subscriber.address)?;
            receivers.push(Receiver {
                peer: *subscriber,
                at,
                mac: Some(mac),
            });
        }
        let to = Peer {
            protocol: Protocol::Udp,
            address: group,
            port: None,
        };
        parts.group = Some(group);
        parts.segments.push(Segment {
            header: header(request.publisher, to)?,
            role: Role::Direct,
            source,
            receivers,
        });
        Ok(parts)
    }
}

fn header(from: Peer, to: Peer) -> Result<Header, NotReadyReason> {
    if from.address.is_ipv4() != to.address.is_ipv4() {
        let problem = format!("{from} and {to} have addresses of different versions");
        return Err(NotReadyReason::Impossible(problem));
    }
    Ok(Header {
        protocol: to.protocol,
        source: from.address,
        source_port: from.port,
        destination: to.address,
        destination_port: to.port,
    })
}
