//! The manager as the HTTP interface sees it: views, explanations, analyses of a copy.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use punctual_analysis::Remedy;
use punctual_model::network::Network;

use super::{Manager, Record, worst};
use crate::client::Client;
use crate::decision::Decision;
use crate::demand::{Demand, Sizes};
use crate::name::FlowName;
use crate::request::Publication;
use crate::view::{ExplanationView, FlowView, PartView, ReceiverView};

impl Manager {
    /// The first `most` admitted flows after the name `after`, sorted by name.
    pub fn views(&self, after: Option<&str>, most: usize) -> Vec<FlowView> {
        let flows = self.registry.flows_after(after).take(most);
        self.views_of(&flows.collect::<Vec<_>>())
    }

    fn views_of(&self, flows: &[&Record]) -> Vec<FlowView> {
        let ids: Vec<&str> = flows.iter().map(|record| &*record.name.id).collect();
        let bounds = self.gate.bounds(&ids);
        let views = flows.iter().zip(bounds);
        views.map(|(record, bounds)| record.view(&bounds)).collect()
    }

    /// As [`views`](Self::views), and whether more follow: fewer where they have
    /// very many receivers.
    pub fn page(&self, after: Option<&str>, most: usize) -> (Vec<FlowView>, bool) {
        let receivers = |record: &Record| Some(record.receivers.len() + record.local.len());
        let (page, more) = self.registry.page(after, most, receivers);
        (self.views_of(&page), more)
    }

    /// What is needed to say what becomes of a flow of a client on a topic, or of
    /// what it is made, and nothing else: to be analysed while this manager goes
    /// on.
    pub fn excerpt(&self, client: &str, topic: &str) -> Self {
        Self {
            settings: self.settings.clone(),
            map: self.map.clone(),
            gate: self.gate.clone(),
            registry: self.registry.excerpt(client, topic),
            received: BTreeMap::new(),
            wishes: BTreeMap::new(),
            released: None,
            saved: BTreeMap::new(),
            stale: BTreeSet::new(),
            dirty: false,
            rejected: 0,
        }
    }

    /// Publisher and topic of an admitted flow.
    pub fn about(&self, id: &str) -> Option<(&str, &str)> {
        let name = &self.registry.flow(id)?.name;
        Some((&name.client, &name.topic))
    }

    /// An admitted flow by its name.
    pub fn view(&self, id: &str) -> Option<FlowView> {
        let bounds = self.gate.bounds(&[id]).concat();
        self.registry.flow(id).map(|record| record.view(&bounds))
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
        let flows = other.registry.flows();
        let ids: Vec<&str> = flows.keys().map(|id| &**id).collect();
        let (before, after) = (self.gate.bounds(&ids), other.gate.bounds(&ids));
        let flows = flows.values().zip(before).zip(&after);
        let changed = flows
            .filter(|((_, before), after)| before != *after)
            .map(|((record, _), after)| record.view(after));
        (decision, changed.collect())
    }

    /// What would help a flow that is rejected, in words: each is a change with
    /// which it would be admitted. Ways are those of the network, and not among
    /// them. Takes some tens of decisions; nothing changes.
    pub fn remedies(&self, client: &Client, publication: Publication<'_>) -> Vec<String> {
        let mut other = self.clone();
        let known = other.registry.client(&client.id);
        let known = known.map_or_else(|| client.clone(), |known| known.client.clone());
        if !other.meet(&known) {
            return Vec::new();
        }
        let name = FlowName::new(&client.id, publication.topic);
        let before = other.registry.flow(&name.id);
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
        let record = self.registry.flow(id)?;
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

    /// Largest bound to a client of those of these flows that it receives, ns.
    pub(super) fn bound_to(&self, client: &str, flows: BTreeSet<Arc<str>>) -> Option<u64> {
        let received = self.received.get(client)?;
        let flows: Vec<_> = flows.intersection(received).collect();
        let ids: Vec<&str> = flows.iter().map(|id| &***id).collect();
        let bounds = self.gate.bounds(&ids);
        let to = ids.iter().zip(&bounds);
        to.filter_map(|(id, bounds)| self.registry.flow(id)?.bound_to(client, bounds))
            .max()
    }
}

impl Record {
    /// Whether a client receives it.
    pub(super) fn goes_to(&self, client: &str) -> bool {
        self.path_to(client).is_some() || self.is_local(client)
    }

    fn path_to(&self, client: &str) -> Option<usize> {
        let path = self
            .receivers
            .binary_search_by(|other| (**other).cmp(client));
        path.ok()
    }

    fn is_local(&self, client: &str) -> bool {
        self.local
            .binary_search_by(|other| (**other).cmp(client))
            .is_ok()
    }

    /// The bound to a client that receives it.
    fn bound_to(&self, client: &str, bounds: &[u64]) -> Option<u64> {
        match self.path_to(client) {
            Some(path) => bounds.get(path).copied(),
            None => self.is_local(client).then(|| worst(bounds)),
        }
    }

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

    fn view(&self, bounds: &[u64]) -> FlowView {
        let receiver = |(client, bound_ns): (&str, u64)| ReceiverView {
            client: client.to_owned(),
            bound_ns,
        };
        FlowView {
            id: self.name.id.to_string(),
            client: self.name.client.to_string(),
            topic: self.name.topic.to_string(),
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
