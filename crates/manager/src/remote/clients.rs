//! Clients of the remote manager: where they are, and what ends with their sessions.

use std::sync::Arc;

use punctual_model::srt::Peer;

use super::row::bandwidth;
use super::{Endpoints, Record, RemoteManager, Service};
use crate::client::Client;
use crate::name::FlowName;
use crate::quota::{Owner, Quota};
use crate::registry::RegisteredSession;

impl RemoteManager {
    /// Registers who and where a client is. False if a newer session has its
    /// identifier.
    pub(super) fn meet(&mut self, client: &Client, ends: Option<Endpoints>) -> bool {
        match self.registry.session(client) {
            RegisteredSession::Current => {}
            RegisteredSession::Older => self.end(&client.id),
            RegisteredSession::Newer => return false,
        }
        // Where it was counts until it is somewhere else.
        let known = self.registry.client(&client.id);
        let ends = ends.or(known.and_then(|known| known.place));
        let before = self.registry.register(client, ends);
        if let Some(ends) = ends {
            let clients = self.peers.entry(ends.client).or_default();
            clients.insert(client.id.clone());
        }
        if let Some((_, before)) = before
            && before != ends
        {
            if let Some(before) = before {
                self.is_no_longer_at(&client.id, before.client, ends);
            }
            self.moved(&client.id);
        }
        true
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
        let Some(known) = self.registry.client(client) else {
            return;
        };
        let subscriptions = known.subscriptions().iter();
        let filters: Vec<Arc<str>> = subscriptions
            .filter(|(_, subscriber)| subscriber.service == Service::Served)
            .map(|(filter, _)| filter.clone())
            .collect();
        for id in self.registry.flows_of(client) {
            self.renew(&id);
        }
        for filter in filters {
            self.join(client, &filter, None);
        }
    }

    /// A session has ended.
    pub(super) fn end(&mut self, client: &str) {
        if let Some(known) = self.registry.client_mut(client) {
            known.client.session = 0;
        }
        self.give_up_flows(client);
        let known = self.registry.client(client).into_iter();
        let filters = known.flat_map(|known| known.subscriptions().keys().cloned());
        let filters: Vec<Arc<str>> = filters.collect();
        for filter in &filters {
            self.registry.unsubscribe(client, filter);
        }
        self.renew_matching(&filters);
        self.forget_if_idle(client);
    }

    /// Removes the flows of a client.
    pub(super) fn give_up_flows(&mut self, client: &str) {
        for id in self.registry.flows_of(client) {
            self.off_the_network(&id);
            if let Some(record) = self.registry.remove(&id)
                && let Some(join) = record.join
            {
                self.settle(join, &id);
            }
        }
    }

    /// Removes a client that has neither flows nor subscriptions.
    pub(super) fn forget_if_idle(&mut self, client: &str) {
        if let Some(known) = self.registry.remove_if_idle(client)
            && let Some(ends) = known.place
        {
            self.is_no_longer_at(client, ends.client, None);
        }
    }

    /// Whether the owner of a flow may have it beside its others. `own` is its
    /// bandwidth, bit/s.
    pub(super) fn check_quota(&self, name: &FlowName, own: u64) -> Result<(), String> {
        let Some(asking) = self.registry.flow(&name.id) else {
            return Ok(());
        };
        // Of many flows most have no limits to be counted for.
        if asking.quota == Quota::default() {
            return Ok(());
        }
        let Some((owner, others)) = self.registry.owner_of(name, Owner::named) else {
            return Ok(());
        };
        let (flows, sum) = others.fold((1_u64, own), |(flows, sum), record| {
            (flows + 1, sum.saturating_add(record.bandwidth()))
        });
        asking.quota.check(owner, flows, sum)
    }
}

impl Record {
    /// Bits per second on the wire.
    pub(super) fn bandwidth(&self) -> u64 {
        let row = self.row.as_ref();
        row.map_or(0, |(row, _)| bandwidth(row, &self.terms.demand))
    }
}
