//! A flow as a row of the table, and what an answer grants.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use punctual_codec::QoS;
use punctual_model::Grant;
use punctual_model::srt::{Peer, Protocol, Request};

use super::join::Join;
use super::{Held, RemoteManager, Service, unknown};
use crate::demand::{Demand, assumed_bound};
use crate::name::FlowName;

impl RemoteManager {
    /// What is asked of the network for a flow; `None` if nothing of it is on
    /// the network.
    ///
    /// # Errors
    /// Why the network cannot be asked, in plain words.
    pub(super) fn row(&self, id: &str) -> Result<Option<Request>, String> {
        let Some(record) = self.registry.flow(id) else {
            return Ok(None);
        };
        let FlowName { client, topic, .. } = &record.name;
        let terms = &record.terms;
        let publisher = self.registry.client(client);
        let publisher = publisher.ok_or("the client is unknown")?;
        let ends = publisher.place.ok_or_else(|| unknown(client))?;
        let on_trial = record.join.and_then(|join| self.joins.get(&join));
        let local = ends.is_local();
        let mut carriages = vec![publisher.client.carriage(self.settings.mtu)];
        let mut deadline_ns = terms.demand.deadline_ns;
        let mut subscribers = BTreeSet::new();
        // What leaves the broker is known by its address.
        let mut broker = (!local).then_some(ends.broker.address);
        for (receiver, own) in self.served(topic, on_trial) {
            let Some(known) = self.registry.client(receiver) else {
                continue;
            };
            let trial = on_trial.filter(|join| join.client == *receiver);
            let at = known.place.ok_or_else(|| unknown(receiver))?;
            if !at.is_local() {
                let sends = *broker.get_or_insert(at.broker.address);
                match (sends == at.broker.address, trial) {
                    (true, _) => {}
                    // It is served as well as can be.
                    (false, None) => continue,
                    (false, Some(_)) => {
                        return Err(format!(
                            "client {receiver} has connected to {}, and messages of flow {id} \
                             leave from {sends}; connect to that",
                            at.broker.address
                        ));
                    }
                }
                subscribers.insert(at.client);
            }
            deadline_ns = deadline_ns.min(own);
            carriages.push(known.client.carriage(self.settings.mtu));
        }
        let Some(broker) = broker else {
            return Ok(None);
        };
        let frames = terms
            .demand
            .frames(carriages.into_iter(), self.settings.mtu);
        let number = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        Ok(Some(Request {
            manager: String::new(),
            flow: id.to_owned(),
            generation: 0,
            topic: topic.to_string(),
            qos: match terms.qos {
                QoS::AtMostOnce => 0,
                QoS::AtLeastOnce => 1,
                QoS::ExactlyOnce => 2,
            },
            publisher: match local {
                // On the network it is the broker that sends.
                true => Peer {
                    protocol: Protocol::Tcp,
                    address: broker,
                    port: None,
                },
                false => ends.client,
            },
            subscribers,
            broker: (!local).then_some(ends.broker),
            deadline_ns,
            period_ns: terms.demand.period_ns,
            jitter_ns: terms.demand.jitter_ns,
            size: terms.requirements.size.unwrap_or(terms.sizes.payload),
            wire_bytes: number(frames.bytes),
            frames: number(frames.count),
            priority: terms.requirements.priority,
            bandwidth: terms.requirements.bandwidth,
        }))
    }

    /// Flows with a topic that one of the filters matches, by name.
    pub(super) fn flows_matching(&self, filters: &[impl AsRef<str>]) -> BTreeSet<Arc<str>> {
        let filters = filters.iter().map(AsRef::as_ref);
        self.registry.flows_matching(filters).0
    }

    /// Who is to be served with a topic: its own deadline, ns, or the longest there
    /// is. What is on trial counts although nothing is decided.
    fn served(&self, topic: &str, trial: Option<&Join>) -> BTreeMap<&Arc<str>, u64> {
        let mut served = BTreeMap::new();
        for (known, filter, subscriber) in self.registry.subscriptions_to(topic) {
            let client = &known.client.id;
            let tried = trial.is_some_and(|it| it.client == *client && it.filter == *filter);
            if subscriber.service != Service::Served && !tried {
                continue;
            }
            let deadline = subscriber.requirements.deadline;
            let own = deadline.map_or(u64::MAX, |d| {
                u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
            });
            let least = served.entry(client).or_insert(own);
            *least = own.min(*least);
        }
        served
    }
}

/// How an admitted flow is carried here. Its messages arrive between at once and
/// its bound, which others may still let grow, after their release.
pub(super) fn grant_of(held: &Held) -> Grant {
    let Held { terms, channel } = held;
    let deadline = terms.demand.deadline_ns;
    let bound = channel.bound_ns().unwrap_or(deadline);
    let assumed = assumed_bound(bound, deadline);
    let priority = channel.queue.unwrap_or(terms.demand.priority);
    let tolerance = terms.demand.jitter_ns.saturating_add(assumed);
    terms.demand.grant(&terms.requirements, priority, tolerance)
}

/// Bits per second of a row on the wire.
pub(super) fn bandwidth(row: &Request, demand: &Demand) -> u64 {
    demand.bandwidth(row.message())
}
