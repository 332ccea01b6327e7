//! The registry: which clients there are, what they subscribe to, and which flows they publish.
//!
//! Both managers keep one: [`Manager`](crate::Manager), which decides itself, and
//! [`RemoteManager`](crate::RemoteManager), which asks the controller of the network. They differ in
//! what they keep of each client (`P`, its place in the network), of each subscription (`S`) and of
//! each flow (`F`). Changes that concern another client than the one that asks are collected here,
//! because they name that client's session.
//!
//! Invariant: the indices agree with what they are made from. A flow is found under its topic and
//! under its publisher as long as it is registered, and a subscription under its filter as long as
//! its client has it. A session that is older than the registered one changes nothing.
//!
//! Bounds: flows, `admission.max_flows` ([`Registry::check_capacity`]); clients, one for each session
//! of the broker and one for each flow made over the HTTP API; subscriptions, those that the broker
//! keeps for its sessions; changes, what one event causes, for the caller takes them after each.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use punctual_model::Requirements;

use crate::client::Client;
use crate::decision::{Change, Decision};
use crate::levels::{Levels, plain};
use crate::name::FlowName;
use crate::quota::Owner;
use crate::view::PageCapacity;

/// What is kept of a flow: it has a name.
pub(crate) trait Named {
    fn name(&self) -> &FlowName;
}

/// A client, with what belongs to it.
#[derive(Debug, Clone)]
pub(crate) struct Registration<P, S> {
    pub(crate) client: Client,
    /// Where it is in the network.
    pub(crate) place: P,
    /// By their filters.
    subscriptions: BTreeMap<Arc<str>, S>,
    /// Identifiers of the flows that it publishes.
    flows: BTreeSet<Arc<str>>,
    /// Its session has ended, and not everything of it has been removed.
    pub(crate) ending: bool,
}

impl<P, S> Registration<P, S> {
    fn new(client: Client, place: P) -> Self {
        Self {
            client,
            place,
            subscriptions: BTreeMap::new(),
            flows: BTreeSet::new(),
            ending: false,
        }
    }

    /// Its subscriptions, by their filters.
    pub(crate) fn subscriptions(&self) -> &BTreeMap<Arc<str>, S> {
        &self.subscriptions
    }

    /// Identifiers of the flows that it publishes.
    pub(crate) fn flows(&self) -> &BTreeSet<Arc<str>> {
        &self.flows
    }

    fn is_idle(&self) -> bool {
        self.flows.is_empty() && self.subscriptions.is_empty()
    }
}

/// How the registered session of a client relates to the one that asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RegisteredSession {
    /// There is none, or it is the same one.
    Current,
    /// It is over, and is to be removed before anything of the one that asks is registered.
    Older,
    /// The one that asks is over.
    Newer,
}

/// See the module.
#[derive(Debug, Clone)]
pub(crate) struct Registry<P, S, F> {
    clients: BTreeMap<Arc<str>, Registration<P, S>>,
    flows: BTreeMap<Arc<str>, F>,
    /// Clients and their filters, by these filters without share prefix.
    subscribers: Levels<(Arc<str>, Arc<str>)>,
    /// Identifiers of flows, by topic.
    topics: Levels<Arc<str>>,
    changes: Vec<Change>,
}

impl<P, S, F> Default for Registry<P, S, F> {
    fn default() -> Self {
        Self {
            clients: BTreeMap::new(),
            flows: BTreeMap::new(),
            subscribers: Levels::default(),
            topics: Levels::default(),
            changes: Vec::new(),
        }
    }
}

impl<P, S, F: Named> Registry<P, S, F> {
    /// A client that is registered.
    pub(crate) fn client(&self, id: &str) -> Option<&Registration<P, S>> {
        self.clients.get(id)
    }

    /// The same, to be changed.
    pub(crate) fn client_mut(&mut self, id: &str) -> Option<&mut Registration<P, S>> {
        self.clients.get_mut(id)
    }

    /// Clients after the identifier `after`, by identifier.
    pub(crate) fn clients_after(
        &self,
        after: Option<&str>,
    ) -> impl Iterator<Item = &Registration<P, S>> {
        let from = after.map_or(Unbounded, Excluded);
        let clients = self.clients.range::<str, _>((from, Unbounded));
        clients.map(|(_, registration)| registration)
    }

    /// How the registered session of a client relates to the one that asks.
    pub(crate) fn session(&self, client: &Client) -> RegisteredSession {
        let Some(known) = self.clients.get(&client.id) else {
            return RegisteredSession::Current;
        };
        match (known.client.session, client.session) {
            _ if known.ending => RegisteredSession::Older,
            (0, _) | (_, 0) => RegisteredSession::Current,
            (old, new) if old == new => RegisteredSession::Current,
            (old, new) if new < old => RegisteredSession::Newer,
            _ => RegisteredSession::Older,
        }
    }

    /// Whether that session of a client is registered.
    pub(crate) fn is_registered(&self, client: &str, session: u64) -> bool {
        let known = self.clients.get(client);
        known.is_some_and(|known| known.client.session == session)
    }

    /// Registers who a client is and where. Returns what was registered before.
    pub(crate) fn register(&mut self, client: &Client, place: P) -> Option<(Client, P)> {
        match self.clients.get_mut(&client.id) {
            Some(known) => {
                let before = std::mem::replace(&mut known.client, client.clone());
                Some((before, std::mem::replace(&mut known.place, place)))
            }
            None => {
                let registration = Registration::new(client.clone(), place);
                self.clients.insert(client.id.clone(), registration);
                None
            }
        }
    }

    /// Removes a client that has neither flows nor subscriptions.
    pub(crate) fn remove_if_idle(&mut self, client: &str) -> Option<Registration<P, S>> {
        match self.clients.get(client)?.is_idle() {
            true => self.clients.remove(client),
            false => None,
        }
    }

    /// Gives a client that is registered a subscription, in the place of the one with that filter.
    pub(crate) fn subscribe(&mut self, client: &Arc<str>, filter: &Arc<str>, subscription: S) {
        if let Some(known) = self.clients.get_mut(client) {
            known.subscriptions.insert(filter.clone(), subscription);
            let value = (client.clone(), filter.clone());
            self.subscribers.insert(plain(filter), value);
        }
    }

    /// Removes a subscription; `None` if there is none.
    pub(crate) fn unsubscribe(&mut self, client: &str, filter: &str) -> Option<S> {
        let known = self.clients.get_mut(client)?;
        let (filter, subscription) = known.subscriptions.remove_entry(filter)?;
        let value = (known.client.id.clone(), filter);
        self.subscribers.remove(plain(&value.1), &value);
        Some(subscription)
    }

    /// A subscription of a client.
    pub(crate) fn subscription_mut(&mut self, client: &str, filter: &str) -> Option<&mut S> {
        self.clients.get_mut(client)?.subscriptions.get_mut(filter)
    }

    /// Subscriptions with a filter that matches a topic, with their clients and filters, in no
    /// particular order.
    pub(crate) fn subscriptions_to(
        &self,
        topic: &str,
    ) -> impl Iterator<Item = (&Registration<P, S>, &Arc<str>, &S)> {
        let found = self.subscribers.of_topic(topic).into_iter();
        found.filter_map(move |(client, filter)| {
            let known = self.clients.get(client)?;
            Some((known, filter, known.subscriptions.get(filter)?))
        })
    }

    /// Whether there may be one more flow, unless this one is registered already.
    ///
    /// # Errors
    /// There are as many as there may be, in plain words.
    pub(crate) fn check_capacity(&self, id: &str, most: usize) -> Result<(), String> {
        if self.flows.len() >= most && !self.flows.contains_key(id) {
            return Err(format!(
                "there are {} flows, as many as there may be (admission.max_flows)",
                self.flows.len()
            ));
        }
        Ok(())
    }

    /// Registers a flow of a client that is registered. Returns the flow of that name that it
    /// replaces.
    pub(crate) fn insert(&mut self, flow: F) -> Option<F> {
        let FlowName { id, client, topic } = flow.name().clone();
        self.topics.insert(&topic, id.clone());
        if let Some(known) = self.clients.get_mut(&client) {
            known.flows.insert(id.clone());
        }
        self.flows.insert(id, flow)
    }

    /// Removes a flow by its identifier.
    pub(crate) fn remove(&mut self, id: &str) -> Option<F> {
        let flow = self.flows.remove(id)?;
        let FlowName { id, client, topic } = flow.name();
        self.topics.remove(topic, id);
        if let Some(known) = self.clients.get_mut(client) {
            known.flows.remove(id);
        }
        Some(flow)
    }

    /// A flow by its identifier.
    pub(crate) fn flow(&self, id: &str) -> Option<&F> {
        self.flows.get(id)
    }

    /// The same, to be changed, but for its name.
    pub(crate) fn flow_mut(&mut self, id: &str) -> Option<&mut F> {
        self.flows.get_mut(id)
    }

    /// All flows, by identifier.
    pub(crate) fn flows(&self) -> &BTreeMap<Arc<str>, F> {
        &self.flows
    }

    /// Flows after the identifier `after`, by identifier.
    pub(crate) fn flows_after(&self, after: Option<&str>) -> impl Iterator<Item = &F> {
        let from = after.map_or(Unbounded, Excluded);
        let flows = self.flows.range::<str, _>((from, Unbounded));
        flows.map(|(_, flow)| flow)
    }

    /// Identifiers of the flows that a client publishes.
    pub(crate) fn flows_of(&self, client: &str) -> Vec<Arc<str>> {
        let known = self.clients.get(client).into_iter();
        known
            .flat_map(|known| known.flows.iter().cloned())
            .collect()
    }

    /// Identifiers of the flows with a topic that one of these filters matches, and how many nodes of
    /// the tree of topics were looked at.
    pub(crate) fn flows_matching<'a>(
        &self,
        filters: impl IntoIterator<Item = &'a str>,
    ) -> (BTreeSet<Arc<str>>, u64) {
        let (mut flows, mut looks) = (BTreeSet::new(), 0);
        for filter in filters {
            let (found, cost) = self.topics.search(plain(filter));
            flows.extend(found.into_iter().cloned());
            looks += cost;
        }
        (flows, looks)
    }

    /// Whose quota a flow needs, and the other flows of that owner.
    pub(crate) fn owner_of<'a>(
        &'a self,
        asking: &'a FlowName,
        owner: impl Fn(&'a Client) -> Owner<'a> + 'a,
    ) -> Option<(Owner<'a>, impl Iterator<Item = &'a F>)> {
        let owner = move |client: &str| Some(owner(&self.clients.get(client)?.client));
        let own = owner(&asking.client)?;
        let others = self.flows.values().filter(move |flow| {
            let name = flow.name();
            name.id != asking.id && owner(&name.client) == Some(own)
        });
        Some((own, others))
    }

    /// A page of at most `most` flows after the identifier `after`, by identifier, and whether more
    /// follow: fewer where they have very many receivers. `receivers` says how many a flow has, and
    /// `None` of one that is not shown.
    pub(crate) fn page(
        &self,
        after: Option<&str>,
        most: usize,
        receivers: impl Fn(&F) -> Option<usize>,
    ) -> (Vec<&F>, bool) {
        let mut capacity = PageCapacity::new(most);
        let mut page = Vec::new();
        for flow in self.flows_after(after) {
            match receivers(flow) {
                Some(receivers) if capacity.takes(receivers) => page.push(flow),
                Some(_) => return (page, true),
                None => {}
            }
        }
        (page, false)
    }

    /// The publisher of a flow is to carry it in another way, or not any more (`None`). With `notify`
    /// it is also sent a notification.
    pub(crate) fn change_flow(
        &mut self,
        name: &FlowName,
        requirements: Requirements,
        decision: Option<Decision>,
        notify: bool,
    ) {
        let session = self.session_of(&name.client);
        self.changes.push(Change::Flow {
            client: name.client.clone(),
            session,
            topic: name.topic.clone(),
            requirements,
            decision,
            notify,
        });
    }

    /// A subscription is served in another way, for that reason.
    pub(crate) fn change_subscription(
        &mut self,
        client: &Arc<str>,
        filter: &Arc<str>,
        served: bool,
        reason: String,
    ) {
        let session = self.session_of(client);
        self.changes.push(Change::Subscription {
            client: client.clone(),
            session,
            filter: filter.clone(),
            served,
            reason,
        });
    }

    fn session_of(&self, client: &str) -> u64 {
        let known = self.clients.get(client);
        known.map_or(0, |known| known.client.session)
    }

    /// The changes since the last call.
    pub(crate) fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }
}

impl<P: Clone, S: Clone, F: Named + Clone> Registry<P, S, F> {
    /// All flows, and of clients the publisher `client` and those that receive `topic`: what a
    /// decision about a flow of this client on this topic needs. Flows are found by their identifiers
    /// only.
    pub(crate) fn excerpt(&self, client: &str, topic: &str) -> Self {
        let mut excerpt = Self {
            flows: self.flows.clone(),
            ..Self::default()
        };
        let mut copy = |known: &Registration<P, S>| {
            let mut other = Registration::new(known.client.clone(), known.place.clone());
            other.ending = known.ending;
            let id = known.client.id.clone();
            excerpt.clients.entry(id).or_insert(other);
        };
        if let Some(known) = self.clients.get(client) {
            copy(known);
        }
        for (known, _, _) in self.subscriptions_to(topic) {
            copy(known);
        }
        for (known, filter, subscription) in self.subscriptions_to(topic) {
            excerpt.subscribe(&known.client.id, filter, subscription.clone());
        }
        excerpt
    }
}

#[cfg(test)]
impl<P, S, F: Named> Registry<P, S, F> {
    /// Panics unless look-ups find what a search of everything finds.
    pub(crate) fn assert_consistent(&self) {
        let mut filters = BTreeSet::new();
        for (id, known) in &self.clients {
            assert_eq!(*id, known.client.id);
            let own = known.subscriptions.keys();
            filters.extend(own.map(|filter| (id.clone(), filter.clone())));
            let flows = self.flows.values().map(Named::name);
            let flows = flows.filter(|name| name.client == *id);
            let flows: BTreeSet<_> = flows.map(|name| name.id.clone()).collect();
            assert_eq!(known.flows, flows, "{id}");
        }
        for (id, flow) in &self.flows {
            let name = flow.name();
            assert_eq!(*id, name.id);
            assert!(self.clients.contains_key(&name.client), "{id}");
            let matches = |f: &str| punctual_codec::topic::matches(plain(f), &name.topic);
            let expected: BTreeSet<_> = filters.iter().filter(|(_, f)| matches(f)).collect();
            let found = self.subscribers.of_topic(&name.topic).into_iter();
            assert_eq!(found.collect::<BTreeSet<_>>(), expected, "{}", name.topic);
            assert!(self.topics.search(&name.topic).0.contains(&id), "{id}");
        }
        assert_eq!(self.topics.search("#").0.len(), self.flows.len());
    }
}
