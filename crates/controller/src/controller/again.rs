//! Requests that are decided again.
//!
//! Retries of refused requests. A refused request may be admitted when another
//! one is withdrawn or reduced, or when a link or a host appears. Then refused
//! requests are decided again, one after the other in the background, with a
//! pause after each, so that a table full of refused requests costs no more than
//! a few. Each one that is due has its turn before any has a second one. Hosts
//! that requests wait for are probed, some at each interval.

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

/// After one refused request was decided again, the next waits for so long.
const PAUSE: Nanos = Nanos::from_millis(50);
/// Hosts that are asked for at most between two probes of links.
const MAX_ASKED: usize = 32;
/// Sender address of ARP probes: locally administered, no host's own, and `PUNC`
/// in ASCII.
pub(super) const ASKER: Mac = Mac([0x02, 0x00, 0x50, 0x55, 0x4e, 0x43]);

/// Refused requests, and which of them are to be decided again.
#[derive(Debug, Default)]
pub(super) struct RetryQueue {
    refused: BTreeSet<Key>,
    /// Requests in the order of their turns; some may have been admitted or
    /// withdrawn meanwhile.
    queue: VecDeque<Key>,
    due: Option<Nanos>,
    /// The host that was asked for last.
    asked: Option<Ipv4Addr>,
    /// Asked for since the last probe of links.
    asks: usize,
}

impl RetryQueue {
    /// When [`next`](Self::next) has something.
    pub(super) fn due(&self) -> Option<Nanos> {
        self.due
    }

    /// A request was refused.
    pub(super) fn refused(&mut self, key: Key) {
        self.refused.insert(key);
    }

    /// A request is not refused, or is no more.
    pub(super) fn forget(&mut self, key: &Key) {
        self.refused.remove(key);
    }

    /// The request whose turn it is.
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
    /// Refused requests may be admissible now: queues them, the most important
    /// first, behind those already queued.
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

    /// Asks for hosts of requests that cannot be decided without them, in turns.
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
            // They shall be known when decisions begin.
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

    /// Asks for the hosts of a request that has just come.
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

    /// Asks for a host at every port that leads to hosts.
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

/// The hosts of a request that can be asked for.
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
