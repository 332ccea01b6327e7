//! Who is there, what belongs to whom, and what there is to see.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use punctual_model::srt::Peer;

use super::row::{bandwidth, grant_of};
use super::{Endpoints, Known, Record, RemoteManager, Service};
use crate::client::Client;
use crate::quota::{Owner, Quota};
use crate::view::{FlowView, PageCapacity, ReceiverView};

impl RemoteManager {
    /// Notes who and where a client is. False if a newer session has its
    /// identifier.
    pub(super) fn meet(&mut self, client: &Client, ends: Option<Endpoints>) -> bool {
        if let Some(known) = self.clients.get(&client.id) {
            let (old, new) = (known.client.session, client.session);
            if old != 0 && new != 0 && old != new {
                if new < old {
                    return false;
                }
                self.end(&client.id);
            }
        }
        let known = self
            .clients
            .entry(client.id.clone())
            .or_insert_with(|| Known {
                client: client.clone(),
                ends,
                subscriptions: BTreeMap::new(),
                flows: BTreeSet::new(),
            });
        known.client = client.clone();
        // Where it was counts until it is somewhere else.
        let ends = ends.or(known.ends);
        let before = std::mem::replace(&mut known.ends, ends);
        if let Some(ends) = ends {
            self.is_at(&client.id, ends.client);
        }
        if before != ends {
            if let Some(before) = before {
                self.is_no_longer_at(&client.id, before.client, ends);
            }
            self.moved(&client.id);
        }
        true
    }

    fn is_at(&mut self, client: &Arc<str>, peer: Peer) {
        let clients = self.peers.entry(peer).or_default();
        clients.insert(client.clone());
    }

    /// A client's end was `peer`, and is one of `ends`.
    fn is_no_longer_at(&mut self, client: &str, peer: Peer, ends: Option<Endpoints>) {
        let stays = ends.is_some_and(|ends| ends.client == peer);
        if !stays && let Some(clients) = self.peers.get_mut(&peer) {
            clients.remove(client);
            if clients.is_empty() {
                self.peers.remove(&peer);
            }
        }
    }

    /// A client is somewhere else now, perhaps only at another port.
    fn moved(&mut self, client: &Arc<str>) {
        let Some(known) = self.clients.get(client) else {
            return;
        };
        let served = known.subscriptions.iter();
        let filters: Vec<Arc<str>> = served
            .filter(|(_, subscriber)| subscriber.service == Service::Served)
            .map(|(filter, _)| filter.clone())
            .collect();
        for id in known.flows.clone() {
            self.renew(&id);
        }
        for filter in filters {
            self.join(client, &filter, None);
        }
    }

    /// A session is over.
    pub(super) fn end(&mut self, client: &str) {
        let Some(known) = self.clients.get_mut(client) else {
            return;
        };
        let client = known.client.id.clone();
        known.client.session = 0;
        self.give_up_flows(&client);
        let Some(known) = self.clients.get_mut(&client) else {
            return;
        };
        let subscriptions = std::mem::take(&mut known.subscriptions);
        let filters: Vec<_> = subscriptions.into_keys().collect();
        for filter in &filters {
            self.forget_filter(&client, filter.clone());
        }
        for id in self.flows_matching(&filters) {
            self.renew(&id);
        }
        self.forget_if_idle(&client);
    }

    /// Takes away the flows of a client.
    pub(super) fn give_up_flows(&mut self, client: &str) {
        let Some(known) = self.clients.get_mut(client) else {
            return;
        };
        for id in &std::mem::take(&mut known.flows) {
            self.off_the_network(id);
            if let Some(record) = self.forget_flow(id)
                && let Some(join) = record.join
            {
                self.settle(join, id);
            }
        }
    }

    /// Clients that have nothing are not kept in mind.
    pub(super) fn forget_if_idle(&mut self, client: &str) {
        let idle = self
            .clients
            .get(client)
            .is_some_and(|known| known.flows.is_empty() && known.subscriptions.is_empty());
        if idle
            && let Some(known) = self.clients.remove(client)
            && let Some(ends) = known.ends
        {
            self.is_no_longer_at(client, ends.client, None);
        }
    }

    /// Whether the owner of a flow may have it beside its others.
    pub(super) fn check_quota(&self, id: &str, own: u64) -> Result<(), String> {
        let Some(asking) = self.flows.get(id) else {
            return Ok(());
        };
        // Of many flows most have no limits to be counted for.
        if asking.quota == Quota::default() {
            return Ok(());
        }
        let owner = |client: &str| Some(Owner::named(&self.clients.get(client)?.client));
        let Some(name) = owner(&asking.client) else {
            return Ok(());
        };
        let (mut flows, mut sum) = (1_u64, own);
        for (other, record) in &self.flows {
            if **other != *id && owner(&record.client) == Some(name) {
                flows += 1;
                sum = sum.saturating_add(record.bandwidth());
            }
        }
        asking.quota.check(name, flows, sum)
    }

    /// The flows that are admitted, after the name `after`, sorted by name.
    pub fn views<'a>(&'a self, after: Option<&'a str>) -> impl Iterator<Item = FlowView> + 'a {
        let start = after.map_or(Unbounded, Excluded);
        let flows = self.flows.range::<str, _>((start, Unbounded));
        flows.filter_map(|(id, record)| self.view_of(id, record))
    }

    /// At most `most` of them, and whether more follow: fewer where they have very
    /// many receivers.
    pub fn page(&self, after: Option<&str>, most: usize) -> (Vec<FlowView>, bool) {
        let start = after.map_or(Unbounded, Excluded);
        let held = |record: &Record| Some(record.held.as_ref()?.channel.bounds_ns.len());
        let mut capacity = PageCapacity::new(most);
        let mut page = Vec::new();
        for (id, record) in self.flows.range::<str, _>((start, Unbounded)) {
            match held(record) {
                Some(receivers) if capacity.takes(receivers) => {
                    page.extend(self.view_of(id, record));
                }
                Some(_) => return (page, true),
                None => {}
            }
        }
        (page, false)
    }

    /// An admitted flow by its name.
    pub fn view(&self, id: &str) -> Option<FlowView> {
        self.view_of(id, self.flows.get(id)?)
    }

    fn view_of(&self, id: &str, record: &Record) -> Option<FlowView> {
        let held = record.held.as_ref()?;
        let channel = &held.channel;
        let demand = &held.terms.demand;
        Some(FlowView {
            id: id.to_owned(),
            client: record.client.to_string(),
            topic: record.topic.to_string(),
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

    /// Largest bound of the admitted flows that a client receives by filters, ns.
    pub(super) fn bound_to(&self, client: &str, filters: &[&Arc<str>]) -> Option<u64> {
        let peer = self.clients.get(client)?.ends?.client;
        let flows = self.flows_matching(filters).into_iter();
        flows
            .filter_map(|id| self.flows.get(&id)?.held.as_ref())
            .filter_map(|held| held.channel.bounds_ns.get(&peer).copied())
            .max()
    }
}

impl Record {
    /// Bits per second on the wire.
    fn bandwidth(&self) -> u64 {
        let row = self.row.as_ref();
        row.map_or(0, |(row, _)| bandwidth(row, &self.terms.demand))
    }
}
