//! A flow as the analysis sees it: its paths, frames and costs.

use std::collections::BTreeMap;
use std::sync::Arc;

use punctual_model::network::{Flow, FlowEntry};
use punctual_model::wire::Frames;

use super::Manager;
use crate::demand::Demand;
use crate::name::FlowName;

/// A flow that may be admitted, and to whom it goes.
#[derive(Debug, Clone)]
pub(super) struct Draft {
    pub(super) flow: Flow,
    /// Those with paths of their own, in the order of the paths.
    pub(super) receivers: Vec<Arc<str>>,
    /// Those at the broker.
    pub(super) local: Vec<Arc<str>>,
    /// Least time to the broker, ns.
    least: u64,
    frame_bytes: u64,
}

impl Draft {
    /// Bits per second on the wire.
    pub(super) fn bandwidth(&self, demand: &Demand) -> u64 {
        demand.bandwidth(Frames {
            count: self.flow.frames,
            bytes: self.frame_bytes,
        })
    }

    /// By how much messages may arrive at the broker too early, if they are at
    /// the destination within `bound`: they are at the broker between `least`
    /// and that after their nominal release.
    pub(super) fn tolerance(&self, bound: u64) -> u64 {
        bound.saturating_sub(self.least)
    }
}

impl Manager {
    /// The flow of a publisher and a topic to everyone who is subscribed.
    ///
    /// # Errors
    /// Why it has no path, in plain words.
    pub(super) fn draft(
        &self,
        name: &FlowName,
        demand: &Demand,
        with_deadlines: bool,
    ) -> Result<Draft, String> {
        let FlowName { id, client, topic } = name;
        let publisher = self.registry.client(client);
        let publisher = publisher.ok_or("the client is unknown")?;
        let node = publisher.place.as_ref().map_err(String::clone)?;
        let up = self.up(node)?;
        let mut carriages = vec![publisher.client.carriage(self.settings.mtu)];
        let (mut receivers, mut local, mut paths) = (Vec::new(), Vec::new(), Vec::new());
        let mut deadline = demand.deadline_ns;
        let mut copies = 0;
        for (receiver, (served, own)) in self.receivers(topic) {
            let Some(known) = self.registry.client(receiver) else {
                continue;
            };
            copies += 1;
            let (true, Ok(node)) = (served, &known.place) else {
                continue;
            };
            if let Some(own) = own.filter(|_| with_deadlines) {
                deadline = deadline.min(own);
            }
            carriages.push(known.client.carriage(self.settings.mtu));
            if *node == self.settings.broker {
                local.push(receiver.clone());
                continue;
            }
            let down = self.map.down_to(node).ok_or_else(|| {
                format!("no way leads from the broker to {node}, where client {receiver} is")
            })?;
            paths.push([&up[..], &down[..]].concat());
            receivers.push(receiver.clone());
        }
        let mtu = self.settings.mtu;
        let frames = demand.frames(carriages.into_iter(), mtu);
        let service = self.settings.service;
        let cost = service
            .receive_ns
            .saturating_add(service.send_ns.saturating_mul(copies))
            .max(1);
        let servers = &self.map.servers;
        let entry = FlowEntry {
            id: id.to_string(),
            prio: demand.priority.into(),
            period_ns: demand.period_ns,
            jitter_ns: demand.jitter_ns,
            deadline_ns: Some(deadline),
            wire_bytes: Some(frames.bytes),
            frames: Some(frames.count),
            fanout_node: (!paths.is_empty()).then(|| self.settings.broker.clone()),
            paths: match paths.is_empty() {
                true => vec![up.clone()],
                false => paths,
            },
            cost_ns: servers
                .iter()
                .map(|server| (server.clone(), cost))
                .collect(),
            ..FlowEntry::default()
        };
        let flow = self
            .map
            .topology
            .flow(&entry)
            .map_err(|error| error.to_string())?;
        let before_server = up.len() - servers.len();
        let least = flow
            .hops
            .iter()
            .take(before_server)
            .map(|hop| hop.cost)
            .sum();
        Ok(Draft {
            flow,
            receivers,
            local,
            least,
            frame_bytes: frames.bytes,
        })
    }

    fn up(&self, node: &str) -> Result<Vec<String>, String> {
        if node == self.settings.broker {
            return Ok(self.map.servers.clone());
        }
        self.map
            .up_from(node)
            .ok_or_else(|| format!("no way leads from {node} to the broker"))
    }

    /// Who receives a topic: whether deadlines are kept to it, and its own, ns.
    fn receivers(&self, topic: &str) -> BTreeMap<&Arc<str>, (bool, Option<u64>)> {
        let mut receivers = BTreeMap::new();
        for (known, _, subscriber) in self.registry.subscriptions_to(topic) {
            let receiver = receivers.entry(&known.client.id);
            let (served, deadline) = receiver.or_insert((false, None));
            *served |= subscriber.served;
            let own = subscriber
                .requirements
                .deadline
                .filter(|_| subscriber.served && subscriber.with_deadline);
            if let Some(own) = own {
                let own = u64::try_from(own.as_nanos()).unwrap_or(u64::MAX);
                *deadline = Some(deadline.map_or(own, |known: u64| known.min(own)));
            }
        }
        receivers
    }
}
