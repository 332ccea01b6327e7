//! What is there to see.

use serde::Serialize;

use punctual_codec::topic;
use punctual_model::network::Network;

use super::{Client, Decision, Manager, Publication, Record};

/// An admitted flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FlowView {
    /// Its name.
    pub id: String,
    /// Publisher.
    pub client: String,
    /// Topic.
    pub topic: String,
    /// What was asked for, as in user properties.
    pub requirements: String,
    /// Priority, 7 most urgent.
    pub priority: u8,
    /// Least time between two messages, ns.
    pub period_ns: u64,
    /// Release jitter, ns.
    pub jitter_ns: u64,
    /// Deadline, ns.
    pub deadline_ns: u64,
    /// Bound with the flows admitted now: the largest of all receivers, ns.
    pub bound_ns: u64,
    /// Bits per second on the wire.
    pub bandwidth_bps: u64,
    /// Whether it was made over the API.
    pub fixed: bool,
    /// Who receives it, with a bound each.
    pub receivers: Vec<ReceiverView>,
}

/// A receiver of a flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReceiverView {
    /// Client identifier.
    pub client: String,
    /// Bound to it, ns.
    pub bound_ns: u64,
}

impl Manager {
    /// The admitted flows after the name `after`, sorted by name.
    pub fn views<'a>(&'a self, after: Option<&'a str>) -> impl Iterator<Item = FlowView> + 'a {
        let flows = self.flows.iter();
        flows
            .filter(move |(id, _)| after.is_none_or(|after| &***id > after))
            .map(|(id, record)| self.view_of(id, record))
    }

    /// An admitted flow by its name.
    pub fn view(&self, id: &str) -> Option<FlowView> {
        self.flows.get(id).map(|record| self.view_of(id, record))
    }

    /// The network with the flows that are admitted, and a link's name for each
    /// of its links.
    pub fn network(&self) -> &Network {
        self.gate.network()
    }

    /// What would become of a flow, and of whom else's bounds: nothing changes.
    /// The flows are those whose bound would be another one.
    pub fn what_if(
        &self,
        client: &Client,
        publication: Publication<'_>,
    ) -> (Decision, Vec<FlowView>) {
        let mut other = self.clone();
        let decision = other.reserve(client, publication);
        let changed = other
            .flows
            .iter()
            .filter(|(id, _)| other.gate.bounds(id) != self.gate.bounds(id))
            .map(|(id, record)| other.view_of(id, record));
        (decision, changed.collect())
    }

    /// Largest bound of the flows that a client receives by a filter, ns.
    pub(super) fn bound_to(&self, client: &str, filter: &str) -> Option<u64> {
        let (_, filter) = topic::split_share(filter);
        let flows = self.flows.iter();
        flows
            .filter(|(_, record)| topic::matches(filter, &record.topic))
            .filter_map(|(id, record)| {
                let receivers = self.receivers(id, record);
                let mut own = receivers.into_iter().filter(|r| r.client == *client);
                own.next().map(|receiver| receiver.bound_ns)
            })
            .max()
    }

    fn receivers(&self, id: &str, record: &Record) -> Vec<ReceiverView> {
        let bounds = self.gate.bounds(id);
        let remote = record.receivers.iter().zip(bounds.iter().copied());
        // They have the message when the processor is done with it, which is
        // before anyone else has.
        let worst = self.worst(id);
        let local = record.local.iter().map(|client| (client, worst));
        remote
            .chain(local)
            .map(|(client, bound_ns)| ReceiverView {
                client: client.to_string(),
                bound_ns,
            })
            .collect()
    }

    fn view_of(&self, id: &str, record: &Record) -> FlowView {
        FlowView {
            id: id.to_owned(),
            client: record.client.to_string(),
            topic: record.topic.to_string(),
            requirements: record.requirements.to_string(),
            priority: record.demand.priority,
            period_ns: record.demand.declared_period_ns,
            jitter_ns: record.demand.jitter_ns,
            deadline_ns: record.demand.deadline_ns,
            bound_ns: self.worst(id),
            bandwidth_bps: record.bandwidth,
            fixed: record.fixed,
            receivers: self.receivers(id, record),
        }
    }
}
