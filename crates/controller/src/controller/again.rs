//! Repeated decisions on refused requests.
//!
//! A refused request may be admissible when another one is withdrawn or reduced, or when a link or
//! a host appears. Then refused requests are decided again in the background, one after the other
//! with a pause after each, so that a table full of refused requests costs no more than a few.
//! Every queued request has its turn before any has a second one. At each probe interval, ARP
//! probes are sent for some of the hosts that requests wait for.

use std::collections::{BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Bound;

use punctual_model::Nanos;
use punctual_model::srt::Request;
use punctual_openflow::{Action, Message, PacketOut, PortNo};

use super::{Controller, Link};
use crate::event::Effect;
use crate::plan::Mac;
use crate::streams::Key;
use crate::topology::arp;

/// Pause between the repeated decisions on two refused requests.
const PAUSE: Nanos = Nanos::from_millis(50);
/// Most hosts that are probed by ARP between two probes of links.
const MAX_ASKED: usize = 32;
/// Sender address of ARP probes: a locally administered address that no host has, with `PUNC` in
/// ASCII.
pub(super) const ASKER: Mac = Mac([0x02, 0x00, 0x50, 0x55, 0x4e, 0x43]);

/// Refused requests, and the queue of those to be decided again.
#[derive(Debug, Default)]
pub(super) struct RetryQueue {
    refused: BTreeSet<Key>,
    /// Requests in the order of their turns; some may have been admitted or
    /// withdrawn meanwhile.
    queue: VecDeque<Key>,
    due: Option<Nanos>,
    /// The host that was probed last.
    asked: Option<Ipv4Addr>,
    /// Number of hosts that were probed since the last probe of links.
    asks: usize,
}

impl RetryQueue {
    /// When [`next`](Self::next) will return a request.
    pub(super) fn due(&self) -> Option<Nanos> {
        self.due
    }

    /// Adds a refused request.
    pub(super) fn refused(&mut self, key: Key) {
        self.refused.insert(key);
    }

    /// Removes a request that is admitted or withdrawn.
    pub(super) fn forget(&mut self, key: &Key) {
        self.refused.remove(key);
    }

    /// Takes the next request from the queue, if one is due.
    pub(super) fn next(&mut self, now: Nanos) -> Option<Key> {
        if self.due.is_none_or(|due| due > now) {
            return None;
        }
        let mut queue = std::iter::from_fn(|| self.queue.pop_front());
        let next = queue.find(|key| self.refused.contains(key));
        self.due = (!self.queue.is_empty()).then_some(now + PAUSE);
        next
    }
}

impl Controller {
    /// Queues refused requests that may be admissible now behind those already queued, the most
    /// important first.
    pub(super) fn try_again(&mut self, now: Nanos) {
        if !self.begun || self.again.refused.is_empty() {
            return;
        }
        let queued: BTreeSet<&Key> = self.again.queue.iter().collect();
        let new = self
            .again
            .refused
            .iter()
            .filter(|key| !queued.contains(key));
        let new = self.ledger.by_importance(new.cloned().collect::<Vec<_>>());
        self.again.queue.extend(new);
        self.again.due.get_or_insert(now + PAUSE);
    }

    /// Sends ARP probes for unknown hosts of undecided requests, at most [`MAX_ASKED`] in turn.
    pub(super) fn ask_hosts(&mut self, effects: &mut Vec<Effect>) {
        self.again.asks = 0;
        let unknown = |address: &Ipv4Addr| self.is_unknown(*address);
        let unknown: BTreeSet<Ipv4Addr> = match self.begun {
            true => {
                let keys = self.waiting.iter().chain(&self.lost);
                let held = keys.filter_map(|key| self.ledger.flows.get(key));
                held.flat_map(|held| hosts(&held.request))
                    .filter(unknown)
                    .collect()
            }
            // All hosts of requests have to be located before decisions begin.
            false => {
                let held = self.ledger.flows.values();
                held.flat_map(|held| hosts(&held.request))
                    .filter(unknown)
                    .collect()
            }
        };
        let from = self.again.asked.map_or(Bound::Unbounded, Bound::Excluded);
        let turn = unknown.range((from, Bound::Unbounded)).chain(&unknown);
        for address in turn.take(unknown.len().min(MAX_ASKED)) {
            self.ask(*address, effects);
        }
    }

    /// Sends ARP probes for the unknown hosts of a new request.
    pub(super) fn ask_for(&mut self, key: &Key, effects: &mut Vec<Effect>) {
        let Some(held) = self.ledger.flows.get(key) else {
            return;
        };
        let all: Vec<Ipv4Addr> = hosts(&held.request).collect();
        for address in all {
            if self.is_unknown(address) {
                self.ask(address, effects);
            }
        }
    }

    fn is_unknown(&self, address: Ipv4Addr) -> bool {
        let host = self.topology.host(address.into());
        host.is_none_or(|(_, host)| host.at.is_none())
    }

    /// Sends an ARP probe for a host by every port that leads to hosts.
    fn ask(&mut self, address: Ipv4Addr, effects: &mut Vec<Effect>) {
        if self.again.asks >= MAX_ASKED {
            return;
        }
        self.again.asks += 1;
        self.again.asked = Some(address);
        for (datapath, link) in &mut self.switches {
            let (Link::OpenFlow(session), Some(switch)) =
                (link, self.topology.switches.get(datapath))
            else {
                continue;
            };
            let ports = switch.ports.iter();
            let edge = ports.filter(|(_, port)| port.edge && port.works());
            let out: Vec<Action> = edge
                .map(|(number, _)| Action::output(PortNo(*number)))
                .collect();
            if out.is_empty() {
                continue;
            }
            effects.push(Effect::Send {
                datapath: *datapath,
                xid: session.xid(),
                message: Message::PacketOut(PacketOut::new(out, arp::probe(ASKER, address))),
            });
        }
    }
}

/// The hosts of a request that can be probed by ARP: those with a unicast IPv4 address.
fn hosts(request: &Request) -> impl Iterator<Item = Ipv4Addr> + '_ {
    let peers = [&request.publisher].into_iter();
    let peers = peers.chain(&request.broker).chain(&request.subscribers);
    peers.filter_map(|peer| match peer.address {
        IpAddr::V4(address) if !address.is_multicast() && !address.is_unspecified() => {
            Some(address)
        }
        _ => None,
    })
}
