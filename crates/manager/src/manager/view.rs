//! What is there to see.

use std::ops::Bound::{Excluded, Unbounded};

use serde::Serialize;

use punctual_analysis::{Cause, Part, Remedy};
use punctual_codec::topic;
use punctual_model::network::Network;

use super::{Client, Decision, Manager, Name, Publication, Record, Subscription, worst};
use crate::demand::{Demand, Sizes};

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

/// What the bound of a flow to a receiver is made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExplanationView {
    /// Client identifiers; several only where they are at the broker.
    pub receivers: Vec<String>,
    /// The best bound, ns: not more than what was promised, which may have been
    /// looked at less closely.
    pub bound_ns: u64,
    /// In the order of the way; their sum is the bound.
    pub parts: Vec<PartView>,
}

/// A part of a bound.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PartView {
    /// The link.
    pub link: String,
    /// What takes the time, for machines.
    #[serde(flatten)]
    pub cause: Cause,
    /// The same in words.
    pub text: String,
    /// How long, ns; negative where it takes away.
    pub ns: i64,
}

impl From<Part> for PartView {
    fn from(part: Part) -> Self {
        Self {
            link: part.link,
            text: part.cause.to_string(),
            cause: part.cause,
            ns: part.nanos,
        }
    }
}

impl Manager {
    /// The first `most` admitted flows after the name `after`, sorted by name.
    pub fn views(&self, after: Option<&str>, most: usize) -> Vec<FlowView> {
        let from = after.map_or(Unbounded, Excluded);
        let flows: Vec<_> = self
            .flows
            .range::<str, _>((from, Unbounded))
            .take(most)
            .collect();
        let ids: Vec<&str> = flows.iter().map(|(id, _)| &***id).collect();
        let bounds = self.gate.bounds(&ids);
        let views = flows.into_iter().zip(bounds);
        views
            .map(|((id, record), bounds)| record.view(id, &bounds))
            .collect()
    }

    /// An admitted flow by its name.
    pub fn view(&self, id: &str) -> Option<FlowView> {
        let bounds = self.gate.bounds(&[id]).concat();
        self.flows.get(id).map(|record| record.view(id, &bounds))
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
        let ids: Vec<&str> = other.flows.keys().map(|id| &**id).collect();
        let (before, after) = (self.gate.bounds(&ids), other.gate.bounds(&ids));
        let flows = other.flows.iter().zip(before).zip(&after);
        let changed = flows
            .filter(|((_, before), after)| before != *after)
            .map(|(((id, record), _), after)| record.view(id, after));
        (decision, changed.collect())
    }

    /// What would help a flow that is rejected, in words: each is a change with
    /// which it would be admitted. Ways are those of the network, and not among
    /// them. Takes some tens of decisions; nothing changes.
    pub fn remedies(&self, client: &Client, publication: Publication<'_>) -> Vec<String> {
        let mut other = self.clone();
        let known = other.clients.get(&client.id);
        let known = known.map_or_else(|| client.clone(), |known| known.client.clone());
        if !other.meet(&known) {
            return Vec::new();
        }
        let name = Name::new(&client.id, publication.topic);
        let before = other.flows.get(&name.id);
        let before = before.map(|known| (known.sizes, known.requirements.size));
        let sizes = Sizes::of(&publication, before);
        let draft = Demand::new(&publication.requirements, sizes, &other.settings)
            .and_then(|demand| other.draft(&name, &demand, true));
        let Ok(draft) = draft else {
            return Vec::new();
        };
        let remedies = other.gate.remedies(&draft.flow).into_iter();
        let possible = remedies.filter(|remedy| !matches!(remedy, Remedy::Path(_)));
        possible.map(|remedy| remedy.to_string()).collect()
    }

    /// What the bounds of an admitted flow are made of; `None` if there is none of
    /// that name, or if the network takes too long to analyse.
    pub fn explain(&self, id: &str) -> Option<Vec<ExplanationView>> {
        let record = self.flows.get(id)?;
        let paths = self.gate.explain(id)?;
        let to = |path: usize| match record.receivers.get(path) {
            Some(client) => vec![client.to_string()],
            // It ends at the broker.
            None => record
                .local
                .iter()
                .map(|client| client.to_string())
                .collect(),
        };
        let views = paths.into_iter().map(|explanation| ExplanationView {
            receivers: to(explanation.path),
            bound_ns: explanation.bound_ns,
            parts: explanation.parts.into_iter().map(PartView::from).collect(),
        });
        Some(views.collect())
    }

    /// Largest bound of the flows that a client receives by these filters, ns.
    pub(super) fn bound_to(&self, client: &str, by: &[Subscription]) -> Option<u64> {
        let of = |record: &Record| {
            let filters = by.iter().map(|s| topic::split_share(&s.filter).1);
            let mut receivers = record.receivers.iter().chain(&record.local);
            receivers.any(|receiver| **receiver == *client) && { filters }
                .any(|filter| topic::matches(filter, &record.topic))
        };
        let flows: Vec<_> = self.flows.iter().filter(|(_, record)| of(record)).collect();
        let ids: Vec<&str> = flows.iter().map(|(id, _)| &***id).collect();
        let bounds = self.gate.bounds(&ids);
        let to = flows.iter().zip(&bounds);
        let to = to.flat_map(|((_, record), bounds)| record.bounds_to(bounds));
        to.filter(|(receiver, _)| *receiver == client)
            .map(|(_, bound)| bound)
            .max()
    }
}

impl Record {
    /// Who receives it, with the bound to each of them.
    fn bounds_to<'a>(&'a self, bounds: &'a [u64]) -> impl Iterator<Item = (&'a str, u64)> {
        let remote = self.receivers.iter().zip(bounds.iter().copied());
        // They have the message when the processor is done with it, which is
        // before anyone else has.
        let worst = worst(bounds);
        let local = self.local.iter().map(move |client| (client, worst));
        remote
            .chain(local)
            .map(|(client, bound)| (&**client, bound))
    }

    fn view(&self, id: &str, bounds: &[u64]) -> FlowView {
        let receiver = |(client, bound_ns): (&str, u64)| ReceiverView {
            client: client.to_owned(),
            bound_ns,
        };
        FlowView {
            id: id.to_owned(),
            client: self.client.to_string(),
            topic: self.topic.to_string(),
            requirements: self.requirements.to_string(),
            priority: self.demand.priority,
            period_ns: self.demand.declared_period_ns,
            jitter_ns: self.demand.jitter_ns,
            deadline_ns: self.demand.deadline_ns,
            bound_ns: worst(bounds),
            bandwidth_bps: self.bandwidth,
            fixed: self.fixed,
            receivers: self.bounds_to(bounds).map(receiver).collect(),
        }
    }
}
