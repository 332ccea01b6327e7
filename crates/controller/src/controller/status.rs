//! The controller's status for users.

use crate::streams::flow_id;
use punctual_analysis::{Explanation, explain};
use serde::Serialize;

use super::{Controller, Link};
use crate::monitor::Usage;
use crate::plan::QUEUES;
use crate::topology::{End, Host};

/// Status of the controller, its switches, links, hosts and requests.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Status {
    /// Whether requests are being decided.
    pub deciding: bool,
    /// The switches.
    pub switches: Vec<SwitchStatus>,
    /// Links that leave switches, with their utilisation.
    pub links: Vec<LinkStatus>,
    /// The hosts.
    pub hosts: Vec<HostStatus>,
    /// Number of requests.
    pub requests: usize,
    /// Number of admitted requests.
    pub admitted: usize,
    /// Number of requests that wait for information, such as the location of a host.
    pub waiting: usize,
    /// Number of requests that lost their guarantee.
    pub lost: usize,
    /// Flows without a detour, by cable.
    pub uncovered: Vec<UncoveredFlows>,
    /// Whether every cable was analysed since the last change.
    pub covered_completely: bool,
}

/// Status of a switch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SwitchStatus {
    /// Its name.
    pub name: String,
    /// Its datapath identifier.
    pub datapath: u64,
    /// Whether it is connected.
    pub connected: bool,
    /// Whether the switch is known to conform to its plan.
    pub reconciled: bool,
    /// Number of flow entries on the switch.
    pub entries: usize,
}

/// Status of a link that leaves a switch.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LinkStatus {
    /// Its name.
    pub name: String,
    /// The port at which the link leaves the switch.
    pub from: End,
    /// Whether the link can carry frames.
    pub up: bool,
    /// Share of the link's rate that is reserved for guaranteed flows, from 0 to 1.
    pub guaranteed: f64,
    /// Measured utilisation; `None` before counters were read.
    pub used: Option<Usage>,
    /// Measured utilisation of each queue, the least urgent first.
    pub queues: Vec<Option<Usage>>,
}

/// Status of a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HostStatus {
    /// Its Ethernet address.
    pub mac: crate::plan::Mac,
    /// Name, address and location of the host.
    #[serde(flatten)]
    pub host: Host,
}

/// Flows without a detour: they lose their guarantee when the cable fails, until a new path is
/// found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UncoveredFlows {
    /// The link in one direction of the cable.
    pub link: String,
    /// Manager and flow of each request, the least important first: lower classes first, within a
    /// class the latest request first.
    pub flows: Vec<(String, String)>,
}

impl Controller {
    /// Status of the controller, its switches, links, hosts and requests.
    pub fn status(&self) -> Status {
        let switches = self
            .topology
            .switches
            .iter()
            .map(|(datapath, switch)| SwitchStatus {
                name: switch.name.clone(),
                datapath: *datapath,
                connected: switch.connected,
                reconciled: match self.switches.get(datapath) {
                    Some(Link::OpenFlow(session)) => session.is_ready(),
                    Some(Link::Plans(told)) => *told,
                    None => false,
                },
                entries: self
                    .plan
                    .switches
                    .get(&switch.name)
                    .map_or(0, |plan| plan.entries.len()),
            });
        let guaranteed = self.ledger.admission().loads();
        let links = (0..self.map.model().links.len()).filter_map(|link| {
            let from = self.map.ends(link)?.out?;
            let queue = |queue| self.monitor.of_queue(from, queue);
            Some(LinkStatus {
                name: self.map.link_name(link).to_owned(),
                from,
                up: self.map.is_up(link),
                guaranteed: guaranteed.get(link).copied().unwrap_or(0) as f64 / 1e6,
                used: self.monitor.of_port(from),
                queues: (0..u32::from(QUEUES)).map(queue).collect(),
            })
        });
        let hosts = self.topology.hosts.iter();
        let hosts = hosts.map(|(mac, host)| HostStatus {
            mac: *mac,
            host: host.clone(),
        });
        let uncovered = self
            .protection
            .uncovered
            .iter()
            .filter(|(_, flows)| !flows.is_empty());
        let uncovered = uncovered.map(|(cable, flows)| UncoveredFlows {
            link: self.map.link_name(cable.0).to_owned(),
            flows: flows.clone(),
        });
        Status {
            deciding: self.begun,
            switches: switches.collect(),
            links: links.collect(),
            hosts: hosts.collect(),
            requests: self.ledger.flows.len(),
            admitted: self
                .ledger
                .flows
                .values()
                .filter(|held| held.granted.is_some())
                .count(),
            waiting: self.waiting.len(),
            lost: self.lost.len(),
            uncovered: uncovered.collect(),
            covered_completely: self.protection.is_complete(),
        }
    }

    /// The components of the bounds of an admitted flow, for each of its parts and each
    /// destination. Empty if the flow is not admitted. Takes as long as an analysis of the whole
    /// network.
    pub fn explain(&self, manager: &str, flow: &str) -> Vec<Explanation> {
        let key = (manager.to_owned(), flow.to_owned());
        let granted = self
            .ledger
            .flows
            .get(&key)
            .and_then(|held| held.granted.as_ref());
        let network = self.ledger.admission().network();
        let id = flow_id(&key);
        let paths = granted.iter().flat_map(|granted| 0..granted.bounds.len());
        paths
            .map_while(|path| explain(network, &id, path))
            .collect()
    }
}
