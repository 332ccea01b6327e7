//! Admitted flows, as the HTTP interface shows them.

use std::collections::BTreeSet;

use punctual_model::srt::Peer;

use super::row::grant_of;
use super::{Record, RemoteManager};
use crate::view::{FlowView, ReceiverView};

impl RemoteManager {
    /// A page of at most `most` admitted flows after the name `after`, by name, and
    /// whether more follow: fewer where they have very many receivers.
    pub fn page(&self, after: Option<&str>, most: usize) -> (Vec<FlowView>, bool) {
        let receivers = |record: &Record| Some(record.held.as_ref()?.channel.bounds_ns.len());
        let (page, more) = self.registry.page(after, most, receivers);
        let views = page.into_iter().filter_map(|record| self.view_of(record));
        (views.collect(), more)
    }

    /// An admitted flow by its name.
    pub fn view(&self, id: &str) -> Option<FlowView> {
        self.view_of(self.registry.flow(id)?)
    }

    fn view_of(&self, record: &Record) -> Option<FlowView> {
        let (name, held) = (&record.name, record.held.as_ref()?);
        let channel = &held.channel;
        let demand = &held.terms.demand;
        Some(FlowView {
            id: name.id.to_string(),
            client: name.client.to_string(),
            topic: name.topic.to_string(),
            requirements: held.terms.requirements.to_string(),
            priority: grant_of(held).priority,
            period_ns: demand.declared_period_ns,
            jitter_ns: demand.jitter_ns,
            deadline_ns: demand.deadline_ns,
            bound_ns: channel.bound_ns().unwrap_or(0),
            bandwidth_bps: record.bandwidth(),
            fixed: false,
            receivers: channel
                .bounds_ns
                .iter()
                .map(|(peer, bound)| ReceiverView {
                    client: self.client_at(peer),
                    bound_ns: *bound,
                })
                .collect(),
        })
    }

    /// The client at an end, or the end where it is not known any more.
    fn client_at(&self, peer: &Peer) -> String {
        let client = self.peers.get(peer).and_then(BTreeSet::first);
        client.map_or_else(|| peer.to_string(), |client| client.to_string())
    }
}
