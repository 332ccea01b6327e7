//! Sessions of clients: where they are, when they move, and what ends with them.
//!
//! Invariant: the flows that a client receives end at the node where it is; a client without a node
//! is served as well as can be.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Manager, Place};
use crate::client::Client;
use crate::decision::Decision;
use crate::gate::Refused;
use crate::registry::RegisteredSession;

impl Manager {
    /// Registers who and where a client is. False if a newer session has its
    /// identifier.
    pub(super) fn meet(&mut self, client: &Client) -> bool {
        match self.registry.session(client) {
            RegisteredSession::Current => {}
            RegisteredSession::Older => self.end(&client.id),
            RegisteredSession::Newer => return false,
        }
        let place = self.place(client);
        let Some((before, was_at)) = self.registry.register(client, place.clone()) else {
            return true;
        };
        let moved = was_at != place || before.transport != client.transport;
        if moved || before != *client {
            self.stale.insert(client.id.clone());
        }
        if moved {
            self.moved(&client.id);
        }
        true
    }

    /// The node of a client; a star grows for it.
    fn place(&mut self, client: &Client) -> Place {
        let Client {
            id, user, address, ..
        } = client;
        let rules = &self.settings.places;
        let rule = rules
            .iter()
            .find(|rule| rule.is_about(id, user.as_deref(), *address));
        if let Some(rule) = rule {
            return Ok(rule.node.clone());
        }
        let address = address.map(|address| address.to_canonical());
        if self.map.is_star() {
            let host = match address {
                // On this machine: no link between it and the broker.
                Some(address) if address.is_loopback() => return Ok(self.settings.broker.clone()),
                Some(address) => address.to_string(),
                None => format!("client {id}"),
            };
            if !self.map.has(&host) {
                let Some(added) = Arc::make_mut(&mut self.map).add_host(&host) else {
                    return Err(format!(
                        "the network has no room for host {host} (admission.max_hosts)"
                    ));
                };
                self.gate.add_host(&added);
            }
            return Ok(host);
        }
        let by_address = address.map(|address| address.to_string());
        [Some(id.to_string()), by_address]
            .into_iter()
            .flatten()
            .find(|name| self.map.has(name))
            .ok_or_else(|| {
                format!(
                    "it is not known where client {id} is in the network; \
                     name its node in admission.places"
                )
            })
    }

    /// A client is somewhere else now: what it receives and sends takes other
    /// ways. Others keep their bounds; what does not fit is best effort.
    fn moved(&mut self, client: &Arc<str>) {
        let received = self.received.get(client).into_iter().flatten();
        let is_own = |id: &Arc<str>| {
            let record = self.registry.flow(id);
            record.is_some_and(|record| record.name.client == *client)
        };
        let received: Vec<_> = received.filter(|id| !is_own(id)).cloned().collect();
        if let Err(Refused(why)) = self.redraft(&received) {
            self.serve_no_more(client, &why);
            self.relax(received);
        } else if let Some(why) = self.homeless(client) {
            self.serve_no_more(client, &why);
        }
        for id in self.registry.flows_of(client) {
            if let Err(Refused(why)) = self.redraft(std::slice::from_ref(&id))
                && let Some(record) = self.drop_flow(&id)
            {
                let decision = Some(Decision::rejected(why));
                self.registry
                    .change_flow(&record.name, record.requirements, decision, true);
            }
        }
    }

    /// Why a client has no place in the network, if it has none.
    fn homeless(&self, client: &str) -> Option<String> {
        self.registry.client(client)?.place.clone().err()
    }

    /// Makes the subscriptions of a client best effort. Without a place in the network they are not
    /// counted in flows that are admitted meanwhile, and would not be when it has one again.
    fn serve_no_more(&mut self, client: &Arc<str>, why: &str) {
        self.touch(client);
        let known = self.registry.client(client).into_iter();
        let served = known.flat_map(|known| known.subscriptions().iter().filter(|(_, s)| s.served));
        let served: Vec<_> = served.map(|(filter, _)| filter.clone()).collect();
        for filter in served {
            if let Some(subscriber) = self.registry.subscription_mut(client, &filter) {
                subscriber.served = false;
            }
            self.registry
                .change_subscription(client, &filter, false, why.to_owned());
        }
    }

    /// Removes the flows of a client, except those made over the API, and its wishes.
    pub(super) fn give_up_flows(&mut self, client: &str) {
        let wishes: Vec<_> = self.wishes_of(client).cloned().collect();
        for wish in wishes {
            self.wishes.remove(&wish);
        }
        let mut flows = self.registry.flows_of(client);
        flows.retain(|id| self.registry.flow(id).is_some_and(|record| !record.fixed));
        let flows: Vec<&str> = flows.iter().map(|id| &**id).collect();
        self.drop_flows(&flows);
    }

    /// A session is over. What was made over the API stays.
    pub(super) fn end(&mut self, client: &str) {
        while !self.end_some(client, &mut u64::MAX.clone()) {}
    }

    /// Takes away what a session had that is over: its flows, and its subscriptions
    /// until the units are used up. True if nothing is left.
    pub(super) fn end_some(&mut self, client: &str, units: &mut u64) -> bool {
        let Some(known) = self.registry.client_mut(client) else {
            return true;
        };
        let begins = !std::mem::replace(&mut known.ending, true);
        known.client.session = 0;
        self.touch(client);
        if begins {
            self.give_up_flows(client);
        }
        let mut affected = BTreeSet::new();
        while *units > 0 {
            let known = self.registry.client(client);
            let Some((filter, _)) = known.and_then(|it| it.subscriptions().first_key_value())
            else {
                break;
            };
            let filter = filter.clone();
            self.registry.unsubscribe(client, &filter);
            let (flows, cost) = self.flows_matching(&filter);
            affected.extend(flows);
            *units = units.saturating_sub(1 + cost);
        }
        self.relax(affected.into_iter().collect());
        if let Some(known) = self.registry.client_mut(client) {
            if !known.subscriptions().is_empty() {
                return false;
            }
            known.ending = false;
        }
        self.forget_if_idle(client);
        true
    }

    /// Rejected flows of a client, as client identifier and topic.
    fn wishes_of(&self, client: &str) -> impl Iterator<Item = &(Arc<str>, Arc<str>)> {
        let first = (Arc::from(client), Arc::from(""));
        let wishes = self.wishes.range(first..).map(|(wish, _)| wish);
        wishes.take_while(move |(owner, _)| **owner == *client)
    }

    /// Removes a client that has neither flows nor subscriptions nor wishes.
    pub(super) fn forget_if_idle(&mut self, client: &str) {
        if self.wishes_of(client).next().is_none() {
            self.registry.remove_if_idle(client);
        }
    }
}
