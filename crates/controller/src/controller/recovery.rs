//! Recovery after a restart of the controller: entries of an earlier run stay on the switches until
//! the controller knows whether they are needed.
//!
//! After a restart switches connect one after the other, some seconds apart, and do not report
//! links and hosts by themselves. A comparison of a switch with a plan that lacks these would
//! remove entries that forward packets, and install them again a moment later. Therefore a switch
//! that connects for the first time *arrives*: its tables are read, probes for links and hosts are
//! sent, and the switch is compared with the plan only when all arrived switches have had time to
//! report hosts, and the ports that led to other switches have links again. No request is decided
//! before flows guaranteed in an earlier run can be installed as they were. Both waits are bounded:
//! links, hosts and switches that are missing after
//! [`Intervals::recover`](crate::settings::Intervals::recover) count as removed.
//!
//! A switch that was compared once since the controller started is compared at once when it
//! connects again, and so is a switch without entries of this controller.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use punctual_model::Nanos;
use punctual_model::srt::{Channel, Request};

use super::{Controller, Link};
use crate::event::Effect;
use crate::topology::{End, Map};

/// Switches that have arrived, and when they are compared with the plan.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    /// When switches connected that were not compared since the controller started.
    arrivals: BTreeMap<u64, Nanos>,
    compared: BTreeSet<u64>,
    /// When to check again whether decisions can begin, or arrived switches be compared.
    due: Option<Nanos>,
    /// Whether hosts, links or tables were reported since the last check that the hosts and links
    /// of all guaranteed flows are known.
    is_news: bool,
}

impl Recovery {
    /// Records that a switch has connected.
    pub(super) fn arrived(&mut self, datapath: u64, now: Nanos) {
        if !self.compared.contains(&datapath) {
            self.arrivals.insert(datapath, now);
            self.due = Some(now);
        }
    }

    /// Records that a switch has disconnected. It arrives anew if it was not compared.
    pub(super) fn left(&mut self, datapath: u64) {
        self.arrivals.remove(&datapath);
    }

    /// Whether a switch whose tables were read is compared later. A switch without entries of this
    /// controller need not wait.
    pub(super) fn waits_for(&mut self, datapath: u64, is_blank: bool) -> bool {
        if is_blank && self.arrivals.remove(&datapath).is_some() {
            self.compared.insert(datapath);
        }
        self.arrivals.contains_key(&datapath)
    }

    /// Records that the tables of a waiting switch were read.
    pub(super) fn read(&mut self, now: Nanos) {
        self.is_news = true;
        self.due = Some(now);
    }

    /// Records that hosts or links were reported.
    pub(super) fn changed(&mut self) {
        self.is_news = true;
    }

    /// When the next check is due.
    pub(super) fn due(&self) -> Option<Nanos> {
        self.due
    }
}

impl Controller {
    /// When all arrived switches have had time to report links and hosts; `None` if no switch has
    /// arrived.
    fn settled(&self) -> Option<Nanos> {
        let patience = self.intervals.settle + self.intervals.probe;
        let arrivals = self.recovery.arrivals.iter();
        let each = arrivals.map(|(datapath, at)| {
            let is_read = match self.switches.get(datapath) {
                Some(Link::OpenFlow(session)) => session.is_read(),
                _ => false,
            };
            // A switch whose tables cannot be read does not delay the others.
            match is_read {
                true => *at + patience,
                false => *at + patience + self.intervals.confirm,
            }
        });
        let first = self.recovery.arrivals.values().min()?;
        Some(each.max()?.min(*first + self.intervals.recover))
    }

    /// Whether decisions can begin: all requests are known, the tables of switches were read, and
    /// the hosts and links of guaranteed flows are known again, or the time limit for that has
    /// passed.
    pub(super) fn is_recovered(&mut self, now: Nanos, effects: &mut Vec<Effect>) -> bool {
        let Some(since) = self.synchronised else {
            self.recovery.due = None;
            return false;
        };
        // Switches that take plans cannot be read, and report links and hosts at once.
        let mut links = self.switches.values();
        let asks = links.any(|link| matches!(link, Link::OpenFlow(_)));
        let patience = match asks || self.switches.is_empty() {
            true => self.intervals.settle + self.intervals.probe,
            false => Nanos(0),
        };
        let settled = (since + patience).max(self.settled().unwrap_or(Nanos(0)));
        let bound = since + self.intervals.recover;
        if now >= bound {
            return true;
        }
        if now < settled {
            self.recovery.due = Some(settled.min(bound));
            return false;
        }
        self.recovery.due = Some(bound);
        std::mem::take(&mut self.recovery.is_news)
            && !self.topology.lacks_links()
            && self.has_guaranteed(effects)
    }

    /// Whether the hosts and links of all guaranteed flows are known.
    fn has_guaranteed(&mut self, effects: &mut Vec<Effect>) -> bool {
        if self.ledger.guaranteed().next().is_none() {
            return true;
        }
        self.recall_hosts();
        self.renew_map(effects);
        let is_located = |address: IpAddr| {
            address.is_multicast() || address.is_unspecified() || { self.topology.host(address) }
                .is_some_and(|(_, host)| host.at.is_some())
        };
        let is_there = |(request, channel): (&Request, &Channel)| {
            let peers = [&request.publisher].into_iter();
            let mut peers = peers.chain(&request.broker).chain(&request.subscribers);
            let mut names = channel.paths.values().flatten();
            peers.all(|peer| is_located(peer.address))
                && names.all(|name| Map::is_service_name(name) || self.map.is_up_named(name))
        };
        self.ledger.guaranteed().all(is_there)
    }

    /// Compares switches that arrived after decisions began.
    pub(super) fn join(&mut self, now: Nanos, effects: &mut Vec<Effect>) {
        let settled = self.settled();
        if let Some(settled) = settled.filter(|settled| *settled > now) {
            self.recovery.due = Some(settled);
            return;
        }
        // Neighbouring switches may connect later.
        let first = self.recovery.arrivals.values().min().copied();
        let bound = first.map_or(now, |at| at + self.intervals.recover);
        if self.topology.lacks_links() && now < bound {
            self.recovery.due = Some(bound.min(now + self.intervals.probe));
            return;
        }
        self.recall_hosts();
        self.renew_map(effects);
        self.renew_base(effects);
        let again = self.waiting.iter().chain(&self.lost).cloned().collect();
        self.decide(again, now, effects);
        self.try_again(now);
        self.protect_anew(now);
        let arrived: Vec<u64> = self.recovery.arrivals.keys().copied().collect();
        for datapath in arrived {
            self.reconcile(datapath, effects);
        }
        self.took_in(now);
    }

    /// Removes compared switches from the arrivals; the others are compared when their tables are
    /// read.
    pub(super) fn took_in(&mut self, now: Nanos) {
        let Recovery {
            arrivals, compared, ..
        } = &mut self.recovery;
        let switches = &self.switches;
        arrivals.retain(|datapath, _| {
            let is_compared = match switches.get(datapath) {
                Some(Link::OpenFlow(session)) => session.is_ready(),
                _ => true,
            };
            if is_compared {
                compared.insert(*datapath);
            }
            !is_compared
        });
        let settled = self.settled();
        // A switch whose tables are not read yet sets this time when they are.
        self.recovery.due = settled.filter(|at| *at > now);
    }

    /// Restores the locations of hosts from the entries of an earlier run until a host is seen
    /// elsewhere, so that its flows are not removed before it sends a packet.
    pub(super) fn recall_hosts(&mut self) {
        let mut addresses = Vec::new();
        for (datapath, link) in &self.switches {
            let Link::OpenFlow(session) = link else {
                continue;
            };
            for resident in session.residents() {
                let at = End {
                    datapath: *datapath,
                    port: resident.port,
                };
                match resident.mac {
                    Some(mac) => self.topology.recall(mac, resident.address, at),
                    None => addresses.extend(resident.address.map(|address| (address, at))),
                }
            }
        }
        // An address can be assigned to a host only if it is the only host at the port.
        for (address, at) in addresses {
            if let Some(mac) = self.topology.only_host_at(at) {
                self.topology.recall(mac, Some(address), at);
            }
        }
    }
}
