//! The state: clients, subscriptions, flows; and what every event does to it.

#[cfg(test)]
mod consistent;
mod draft;
mod state;
mod view;
mod work;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;
use std::time::Duration;

use punctual_analysis::Reason;
use punctual_model::network::{Flow, NetworkError};
use punctual_model::{Grant, Requirements, Status, implied_deadline};

use crate::client::Client;
use crate::decision::{Change, Decision, Subscribed, Verdict};
use crate::demand::{Demand, Sizes, assumed_bound};
use crate::gate::{Gate, Refused};
use crate::map::Map;
use crate::name::{FlowName, flow_id};
use crate::quota::{Need, Owner, Quota, check_share};
use crate::registry::{Named, RegisteredSession, Registry};
use crate::request::{Publication, Subscription};
use crate::settings::Settings;
use draft::Draft;
pub use state::{SavedClient, SavedFlow, SavedSubscription, State, StateError};
pub use work::{Progress, SLICE, Work};

/// Looks at a tree of topics that cost as much as a filter otherwise does.
const LOOKS: u64 = 64;

#[derive(Debug, Clone, Copy)]
struct Subscriber {
    /// The receiver's own; only the deadline counts.
    requirements: Requirements,
    served: bool,
    /// The receiver's own deadline counts.
    with_deadline: bool,
}

/// The node of a client; or why it has none, in plain words.
type Place = Result<String, String>;

/// A flow that is admitted.
#[derive(Debug, Clone)]
struct Record {
    name: FlowName,
    requirements: Requirements,
    sizes: Sizes,
    demand: Demand,
    /// Bits per second on the wire.
    bandwidth: u64,
    grant: Grant,
    /// The bound that the grant's tolerance allows for, ns.
    assumed: u64,
    /// As the analysis has it.
    admitted: Arc<Flow>,
    /// Those with paths of their own, in the order of the paths and of their names.
    receivers: Arc<[Arc<str>]>,
    /// Those that are served without a link, in the order of their names.
    local: Arc<[Arc<str>]>,
    /// Made over the API, not by the client.
    fixed: bool,
}

impl Named for Record {
    fn name(&self) -> &FlowName {
        &self.name
    }
}

/// What is asked for with a flow. A rejected one is kept, to be looked at again
/// when there is room.
#[derive(Debug, Clone, Copy)]
struct Request {
    requirements: Requirements,
    sizes: Sizes,
    quota: Quota,
    /// The priority that it had, where it states none.
    priority: Option<u8>,
}

/// What has been decided about filters of a SUBSCRIBE.
#[derive(Debug, Clone, Default)]
struct Joining {
    verdicts: Vec<Verdict>,
    reasons: Vec<String>,
    /// Flows that the filters match.
    flows: BTreeSet<Arc<str>>,
}

/// See the crate.
#[derive(Debug, Clone)]
pub struct Manager {
    settings: Arc<Settings>,
    map: Arc<Map>,
    gate: Gate,
    /// With the flows that are admitted.
    registry: Registry<Place, Subscriber, Record>,
    /// Admitted flows by who receives them.
    received: BTreeMap<Arc<str>, BTreeSet<Arc<str>>>,
    wishes: BTreeMap<(Arc<str>, Arc<str>), Request>,
    /// Something has gone, and the wishes after this one have not been looked
    /// at since.
    released: Option<(Arc<str>, Arc<str>)>,
    /// What is to be kept, as it was when it was last asked for.
    saved: BTreeMap<Arc<str>, Arc<SavedClient>>,
    /// Clients of whom that may be another one now.
    stale: BTreeSet<Arc<str>>,
    /// What is to be kept has changed since it was last asked for.
    dirty: bool,
    rejected: u64,
}

impl Manager {
    /// A manager of that network.
    ///
    /// # Errors
    /// What is wrong with the network or the settings, or that the network's
    /// own flows do not keep their deadlines.
    pub fn new(mut settings: Settings) -> Result<Self, NetworkError> {
        let (mut map, network) = Map::new(&settings)?;
        // It is in the map.
        settings.network = None;
        let mut gate =
            Gate::new(network).map_err(|Refused(why)| NetworkError::new("flows", why))?;
        for rule in &settings.places {
            if !map.is_star() && !map.has(&rule.node) {
                let problem = "is not among the nodes; add it or correct the name";
                let place = format!("place {:?}: {:?}", rule.to_string(), rule.node);
                return Err(NetworkError::new(place, problem));
            }
        }
        if map.is_star() {
            // Found while nobody waits for it.
            for rule in &settings.places {
                if !map.has(&rule.node)
                    && let Some(host) = map.add_host(&rule.node)
                {
                    gate.add_host(&host);
                }
            }
        }
        Ok(Self {
            settings: Arc::new(settings),
            map: Arc::new(map),
            gate,
            registry: Registry::default(),
            received: BTreeMap::new(),
            wishes: BTreeMap::new(),
            released: None,
            saved: BTreeMap::new(),
            stale: BTreeSet::new(),
            dirty: false,
            rejected: 0,
        })
    }

    /// A client has connected; where it is may have changed. Flows that are
    /// kept for it are among the changes.
    pub fn connected(&mut self, client: &Client) {
        // A client without flows and subscriptions is not registered.
        if self.registry.client(&client.id).is_none() {
            return;
        }
        let new = !self.registry.is_registered(&client.id, client.session);
        if self.meet(client) && new {
            let flows = self.registry.flows_of(&client.id);
            let bounds = self.bounds(&flows);
            for (id, bound) in flows.iter().zip(bounds) {
                self.tell_flow(id, bound, false);
            }
        }
    }

    /// A client asks for a flow, or for another one in its place.
    pub fn publish(&mut self, client: &Client, publication: Publication<'_>) -> Decision {
        self.publish_with(client, publication, None)
    }

    /// As [`publish`](Self::publish), for a flow that had this priority.
    fn publish_with(
        &mut self,
        client: &Client,
        publication: Publication<'_>,
        priority: Option<u8>,
    ) -> Decision {
        if !self.meet(client) {
            return Decision::superseded();
        }
        let Publication {
            topic,
            requirements,
            quota,
            ..
        } = publication;
        let name = FlowName::new(&client.id, topic);
        let known = self.registry.flow(&name.id);
        let known_sizes = known.map(|known| (known.sizes, known.requirements.size));
        let sizes = Sizes::of(&publication, known_sizes);
        let request = Request {
            requirements,
            sizes,
            quota,
            priority,
        };
        let wish = (name.client.clone(), name.topic.clone());
        match self.admit(&name, &request) {
            Ok(bound) => {
                self.wishes.remove(&wish);
                self.decision(&name.id, bound)
            }
            Err(why) => {
                self.rejected += 1;
                if self.wishes.len() < self.settings.max_flows {
                    self.wishes.insert(wish, request);
                }
                let known = self.registry.flow(&name.id);
                Decision::unchanged(why, known.map(|known| known.grant))
            }
        }
    }

    /// A client subscribes.
    pub fn subscribe(&mut self, client: &Client, subscriptions: &[Subscription]) -> Subscribed {
        if !self.meet(client) {
            return Subscribed::superseded(subscriptions.len());
        }
        let mut joining = Joining::default();
        for subscription in subscriptions {
            self.subscribe_one(&client.id, subscription, &mut joining);
        }
        self.joined(&client.id, joining)
    }

    /// What becomes of a SUBSCRIBE of which each filter has been decided about.
    fn joined(&self, client: &str, joining: Joining) -> Subscribed {
        let Joining {
            verdicts,
            reasons,
            flows,
        } = joining;
        let bound = self.bound_to(client, flows);
        Subscribed::of(verdicts, &reasons, bound)
    }

    /// A client has given up filters.
    pub fn unsubscribe(&mut self, client: &str, session: u64, filters: &[impl AsRef<str>]) {
        let mut filters = filters.iter().map(AsRef::as_ref);
        self.unsubscribe_some(client, session, &mut filters, &mut u64::MAX.clone());
    }

    /// Takes filters away until the units are used up.
    fn unsubscribe_some<'a>(
        &mut self,
        client: &str,
        session: u64,
        filters: &mut impl Iterator<Item = &'a str>,
        units: &mut u64,
    ) {
        let is_this = self.registry.is_registered(client, session);
        let mut affected = BTreeSet::new();
        let mut any = false;
        while *units > 0
            && let Some(filter) = filters.next()
        {
            *units = units.saturating_sub(1);
            if is_this && self.registry.unsubscribe(client, filter).is_some() {
                any = true;
                let (flows, cost) = self.flows_matching(filter);
                affected.extend(flows);
                *units = units.saturating_sub(cost);
            }
        }
        if any {
            self.touch(client);
            self.relax(affected.into_iter().collect());
            self.forget_if_idle(client);
        }
    }

    /// A session has ended, and with it its flows and subscriptions.
    pub fn ended(&mut self, client: &str, session: u64) {
        if self.registry.is_registered(client, session) {
            self.end(client);
        }
    }

    /// The client of a session has been away for long: its flows are for others. It has them again
    /// when it publishes with its requirements, if there is room.
    pub fn absent(&mut self, client: &str, session: u64) {
        if self.registry.is_registered(client, session) {
            self.give_up_flows(client);
        }
    }

    /// Removes the flows of a client, except those made over the API, and its wishes.
    fn give_up_flows(&mut self, client: &str) {
        let wishes: Vec<_> = self.wishes_of(client).cloned().collect();
        for wish in wishes {
            self.wishes.remove(&wish);
        }
        let mut flows = self.registry.flows_of(client);
        flows.retain(|id| self.registry.flow(id).is_some_and(|record| !record.fixed));
        let flows: Vec<&str> = flows.iter().map(|id| &**id).collect();
        self.drop_flows(&flows);
    }

    /// Ends what was restored after a restart and nobody has come back for,
    /// except what was made over the API.
    pub fn give_up_restored(&mut self) {
        let mut reached = None;
        let mut units = u64::MAX;
        while !self.give_up_some(&mut reached, &mut units) {}
    }

    /// Looks again at what was rejected, if something has gone since then: at
    /// most `most` flows, and at the others with the next calls. Who is admitted
    /// now is among the changes.
    pub fn reconsider(&mut self, most: usize) {
        let Some(reached) = self.released.take() else {
            return;
        };
        let left = self.wishes.range((Excluded(reached), Unbounded));
        let next: Vec<_> = left.take(most).map(|(k, w)| (k.clone(), *w)).collect();
        if next.len() == most {
            self.released = next.last().map(|(wish, _)| wish.clone());
        }
        for (wish, request) in next {
            let name = FlowName::new(&wish.0, &wish.1);
            if let Ok(bound) = self.admit(&name, &request) {
                self.wishes.remove(&wish);
                self.tell_flow(&name.id, bound, true);
            }
        }
    }

    /// Makes a flow for a client that cannot state it. It stays until it is
    /// removed.
    pub fn reserve(&mut self, client: &Client, publication: Publication<'_>) -> Decision {
        self.reserve_with(client, publication, None)
    }

    /// As [`reserve`](Self::reserve), for a flow that had this priority.
    fn reserve_with(
        &mut self,
        client: &Client,
        publication: Publication<'_>,
        priority: Option<u8>,
    ) -> Decision {
        let known = self.registry.client(&client.id);
        let known = known.map(|known| known.client.clone());
        let decision = self.publish_with(known.as_ref().unwrap_or(client), publication, priority);
        let id = flow_id(publication.topic, &client.id);
        self.wishes
            .remove(&(client.id.clone(), Arc::from(publication.topic)));
        if decision.answer.status == Some(Status::Admitted)
            && let Some(record) = self.registry.flow_mut(&id)
        {
            record.fixed = true;
            self.tell(&id, decision.clone(), true);
        }
        self.forget_if_idle(&client.id);
        decision
    }

    /// Removes a flow by its name. False if there is none.
    pub fn remove(&mut self, id: &str) -> bool {
        let Some(record) = self.drop_flow(id) else {
            return false;
        };
        self.registry
            .change_flow(&record.name, record.requirements, None, true);
        self.forget_if_idle(&record.name.client);
        true
    }

    /// What happened to others since the last call.
    pub fn take_changes(&mut self) -> Vec<Change> {
        self.registry.take_changes()
    }

    /// Number of admitted flows.
    pub fn len(&self) -> usize {
        self.registry.flows().len()
    }

    /// Whether no flow is admitted.
    pub fn is_empty(&self) -> bool {
        self.registry.flows().is_empty()
    }

    /// Requests that were rejected, since the start.
    pub fn rejected(&self) -> u64 {
        self.rejected
    }

    /// Flows that were rejected and are looked at again when others go.
    pub fn wishes(&self) -> usize {
        self.wishes.len()
    }

    /// Registers who and where a client is. False if a newer session has its
    /// identifier.
    fn meet(&mut self, client: &Client) -> bool {
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
    fn place(&mut self, client: &Client) -> Result<String, String> {
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

    /// Admits a flow; its bound.
    fn admit(&mut self, name: &FlowName, request: &Request) -> Result<u64, String> {
        let mut demand = Demand::new(&request.requirements, request.sizes, &self.settings)?;
        let most = self.settings.max_flows;
        self.registry.check_capacity(&name.id, most)?;
        let draft = self.draft(name, &demand, true)?;
        let receivers = draft.receivers.len() + draft.local.len();
        let need = Need {
            bandwidth: draft.bandwidth(&demand),
            ..self.need(receivers, &demand, &request.requirements)
        };
        self.check_quota(name, need, request.quota)?;
        // Without what receivers ask for beyond the publisher.
        let plain = match draft.flow.deadline < demand.deadline_ns {
            true => Some(self.draft(name, &demand, false)?),
            false => None,
        };
        if request.requirements.priority.is_none() {
            let (least, most) = self.settings.priorities;
            let had = request.priority.filter(|had| (least..=most).contains(had));
            demand.priority = had.unwrap_or(demand.priority);
        }
        let own_deadlines_count = plain.is_some();
        let mut first = None;
        for (attempt, mut draft) in [Some(draft), plain].into_iter().flatten().enumerate() {
            let let_in = self.let_in(name, request, demand.priority, &mut draft.flow);
            match let_in {
                Ok(priority) => {
                    demand.priority = priority;
                    let bound = self.accept(name, request, demand, draft);
                    if own_deadlines_count && attempt == 1 {
                        self.no_own_deadline(&name.id, &name.topic);
                    }
                    return Ok(bound);
                }
                Err(Refused(why)) => first = first.or(Some(why)),
            }
        }
        Err(first.unwrap_or_default())
    }

    /// Lets a flow in, in the place of what it was. If it states no priority
    /// and somebody would be late with this one, it gets the nearest with which
    /// nobody is: a higher one while it is late itself, a lower one while others
    /// are. Beyond where that changes there is none, for a flow's bound does not
    /// grow with its priority, and those of others do not shrink.
    fn let_in(
        &mut self,
        name: &FlowName,
        request: &Request,
        mut priority: u8,
        flow: &mut Flow,
    ) -> Result<u8, Refused> {
        let is_known = self.registry.flow(&name.id).is_some();
        let out: &[&str] = if is_known { &[&name.id] } else { &[] };
        let (least, most) = self.settings.priorities;
        let mut first = None;
        let mut up = None;
        loop {
            flow.priority = priority.into();
            let refusal = match self.gate.try_replace(out, vec![flow.clone()]) {
                Ok(()) => return Ok(priority),
                Err(refusal) => refusal,
            };
            let own = refusal.new;
            // Of a link without time somebody has no bound in any order.
            let stop = request.requirements.priority.is_some()
                || refusal.hopeless
                || matches!(refusal.reason, Reason::Overload { .. } | Reason::Taken)
                || *up.get_or_insert(own) != own;
            if first.is_none() {
                first = Some(self.gate.refused(&refusal, out, std::slice::from_ref(flow)));
            }
            let next = match own {
                true => priority.checked_add(1).filter(|next| *next <= most),
                false => priority.checked_sub(1).filter(|next| *next >= least),
            };
            match next {
                Some(next) if !stop => priority = next,
                _ => break,
            }
        }
        Err(first.unwrap_or_else(|| Refused(String::new())))
    }

    /// Receivers of a topic whose own deadline cannot be kept are told so.
    fn no_own_deadline(&mut self, id: &str, topic: &str) {
        let subscriptions = self.registry.subscriptions_to(topic);
        let with_own =
            subscriptions.filter(|(_, _, s)| s.requirements.deadline.is_some() && s.with_deadline);
        let with_own = with_own.map(|(known, filter, _)| (known.client.id.clone(), filter.clone()));
        let with_own: BTreeSet<(Arc<str>, Arc<str>)> = with_own.collect();
        for (client, filter) in with_own {
            let Some(subscriber) = self.registry.subscription_mut(&client, &filter) else {
                continue;
            };
            subscriber.with_deadline = false;
            let served = subscriber.served;
            let reason = format!("flow {id} cannot keep the receiver's own deadline");
            self.registry
                .change_subscription(&client, &filter, served, reason);
            self.touch(&client);
        }
    }

    /// What a flow to so many receivers needs, but for its bandwidth.
    fn need(&self, receivers: usize, demand: &Demand, stated: &Requirements) -> Need {
        let service = self.settings.service;
        let copies = service.send_ns.saturating_mul(receivers as u64);
        let implied = stated.priority.map_or(u64::MAX, implied_deadline);
        Need {
            bandwidth: 0,
            cost_ns: service.receive_ns.saturating_add(copies),
            period_ns: demand.period_ns.max(1),
            window_ns: demand.deadline_ns.min(implied),
        }
    }

    /// Whether the owner of a flow may have it beside its others. Without rights of its own it has
    /// the share of any other, so that nobody takes what there is for all.
    fn check_quota(&self, asking: &FlowName, need: Need, quota: Quota) -> Result<(), String> {
        let has_share = quota == Quota::default();
        let quota = Quota {
            max_flows: quota.max_flows.or(Some(self.settings.max_user_flows)),
            ..quota
        };
        let owner = match has_share {
            true => Owner::of,
            false => Owner::named,
        };
        let Some((own, others)) = self.registry.owner_of(asking, owner) else {
            return Ok(());
        };
        let mut needs = vec![need];
        needs.extend(others.map(|record| {
            let receivers = record.receivers.len() + record.local.len();
            Need {
                bandwidth: record.bandwidth,
                ..self.need(receivers, &record.demand, &record.requirements)
            }
        }));
        let bandwidth = needs
            .iter()
            .fold(0, |sum: u64, need| sum.saturating_add(need.bandwidth));
        quota.check(own, needs.len() as u64, bandwidth)?;
        let share = u64::from(self.settings.max_user_load);
        if has_share && share < 100 {
            check_share(own, &mut needs, share)?;
        }
        Ok(())
    }

    /// Notes a flow that the gate has let in; its bound.
    fn accept(&mut self, name: &FlowName, request: &Request, demand: Demand, draft: Draft) -> u64 {
        let Request {
            requirements,
            sizes,
            ..
        } = *request;
        let bound = worst(&self.gate.bounds(&[&name.id]).concat());
        let assumed = assumed_bound(self.quick_bound(&name.id), draft.flow.deadline);
        let grant = demand.grant(&requirements, demand.priority, draft.tolerance(assumed));
        let known = self.registry.flow(&name.id);
        let fixed = known.is_some_and(|known| known.fixed);
        let record = Record {
            name: name.clone(),
            requirements,
            sizes,
            demand,
            bandwidth: draft.bandwidth(&demand),
            grant,
            assumed,
            admitted: Arc::new(draft.flow),
            receivers: draft.receivers.into(),
            local: draft.local.into(),
            fixed,
        };
        for receiver in record.receivers.iter().chain(&*record.local) {
            add_to(&mut self.received, receiver, &name.id);
        }
        if let Some(before) = self.registry.insert(record) {
            self.no_longer_received(&name.id, &before.receivers, &before.local);
        }
        self.touch(&name.client);
        self.widen();
        bound
    }

    /// Flows whose bound may have grown beyond what they are policed with are
    /// policed with more. It is about everybody, so it goes by quick bounds.
    fn widen(&mut self) {
        let flows = self.registry.flows();
        let ids: Vec<&str> = flows.keys().map(|id| &**id).collect();
        let bounds = self.gate.quick_bounds(&ids);
        let bounds = flows.iter().zip(bounds);
        let wider: Vec<(Arc<str>, u64)> = bounds
            .filter(|((_, record), bound)| *bound > record.assumed)
            .map(|((id, _), bound)| (id.clone(), bound))
            .collect();
        for (id, bound) in wider {
            if let Some(record) = self.registry.flow_mut(&id) {
                let assumed = assumed_bound(bound, record.demand.deadline_ns);
                record.grant.tolerance_ns += assumed - record.assumed;
                record.assumed = assumed;
            }
            self.tell_flow(&id, bound, false);
        }
    }

    fn quick_bound(&self, id: &str) -> u64 {
        self.gate.quick_bounds(&[id]).next().unwrap_or(0)
    }

    /// Largest bound of each of these flows over its destinations, ns.
    fn bounds(&self, ids: &[impl AsRef<str>]) -> Vec<u64> {
        let ids: Vec<&str> = ids.iter().map(AsRef::as_ref).collect();
        self.gate
            .bounds(&ids)
            .iter()
            .map(|each| worst(each))
            .collect()
    }

    /// Decides about a filter of a SUBSCRIBE. What that cost, if no flows had to be
    /// drawn up anew for it.
    fn subscribe_one(
        &mut self,
        client: &Arc<str>,
        subscription: &Subscription,
        joining: &mut Joining,
    ) -> Option<u64> {
        let (affected, cost) = self.flows_matching(&subscription.filter);
        let (verdict, reason) = self.decide_subscription(client, subscription, &affected);
        joining.verdicts.push(verdict);
        joining.reasons.extend(reason);
        let cost = affected.is_empty().then_some(1 + cost);
        joining.flows.extend(affected);
        cost
    }

    fn decide_subscription(
        &mut self,
        client: &Arc<str>,
        subscription: &Subscription,
        affected: &[Arc<str>],
    ) -> (Verdict, Option<String>) {
        let filter = &subscription.filter;
        let Some(known) = self.registry.client(client) else {
            return (Verdict::BestEffort, None);
        };
        let before = known.subscriptions().get(filter).copied();
        let homeless = known.place.clone().err();
        let mut subscriber = Subscriber {
            requirements: subscription.requirements,
            served: homeless.is_none(),
            with_deadline: true,
        };
        self.registry.subscribe(client, filter, subscriber);
        self.touch(client);
        let mut reason = match self.redraft(affected) {
            Ok(()) => match homeless {
                Some(why) if !affected.is_empty() => return (Verdict::BestEffort, Some(why)),
                _ => return (Verdict::Served, None),
            },
            Err(Refused(why)) => why,
        };
        let mut retry = |subscriber: Subscriber| {
            self.registry.subscribe(client, filter, subscriber);
            self.redraft(affected)
        };
        if subscription.requirements.deadline.is_some() {
            subscriber.with_deadline = false;
            if retry(subscriber).is_ok() {
                reason.push_str("; the publisher's deadline is kept, not the receiver's own");
                return (Verdict::BestEffort, Some(reason));
            }
        }
        subscriber.served = false;
        if retry(subscriber).is_ok() {
            return (Verdict::BestEffort, Some(reason));
        }
        match before {
            Some(before) => self.registry.subscribe(client, filter, before),
            None => {
                self.registry.unsubscribe(client, filter);
            }
        }
        (Verdict::Refused, Some(reason))
    }

    /// Admits flows as they are now in the place of what they were, all or
    /// none.
    fn redraft(&mut self, ids: &[Arc<str>]) -> Result<(), Refused> {
        let mut drafts = Vec::with_capacity(ids.len());
        for id in ids {
            let Some(record) = self.registry.flow(id) else {
                continue;
            };
            let draft = self
                .draft(&record.name, &record.demand, true)
                .map_err(Refused)?;
            drafts.push((id.clone(), draft));
        }
        if drafts
            .iter()
            .all(|(id, draft)| self.is_same(id, &draft.flow))
        {
            return Ok(());
        }
        let names: Vec<&str> = drafts.iter().map(|(id, _)| &**id).collect();
        let flows: Vec<Flow> = drafts.iter().map(|(_, draft)| draft.flow.clone()).collect();
        self.gate.replace(&names, flows)?;
        let mut policed_anew = Vec::new();
        for (id, draft) in drafts {
            if let Some(record) = self.registry.flow_mut(&id) {
                record.bandwidth = draft.bandwidth(&record.demand);
                // The publisher may be nearer than it was.
                let tolerance = draft.tolerance(record.assumed);
                if std::mem::replace(&mut record.grant.tolerance_ns, tolerance) != tolerance {
                    policed_anew.push(id.clone());
                }
                record.admitted = Arc::new(draft.flow);
                for receiver in draft.receivers.iter().chain(&draft.local) {
                    add_to(&mut self.received, receiver, &id);
                }
                let receivers = std::mem::replace(&mut record.receivers, draft.receivers.into());
                let local = std::mem::replace(&mut record.local, draft.local.into());
                self.no_longer_received(&id, &receivers, &local);
            }
        }
        self.widen();
        for id in policed_anew {
            self.tell_flow(&id, self.quick_bound(&id), false);
        }
        Ok(())
    }

    /// Whether a flow is admitted exactly as it is.
    fn is_same(&self, id: &str, flow: &Flow) -> bool {
        let record = self.registry.flow(id);
        record.is_some_and(|record| *record.admitted == *flow)
    }

    /// A flow went to these receivers; which of them are none any more is noted.
    fn no_longer_received(&mut self, id: &str, receivers: &[Arc<str>], local: &[Arc<str>]) {
        for receiver in receivers.iter().chain(local) {
            let stays = self
                .registry
                .flow(id)
                .is_some_and(|it| it.goes_to(receiver));
            if !stays && let Some(flows) = self.received.get_mut(receiver) {
                flows.remove(id);
                if flows.is_empty() {
                    self.received.remove(receiver);
                }
            }
        }
    }

    /// Takes from flows what they no longer need. That cannot be refused; were
    /// it, they would keep what they have.
    fn relax(&mut self, ids: Vec<Arc<str>>) {
        self.released = Some(<(Arc<str>, Arc<str>)>::default());
        let _ = self.redraft(&ids);
    }

    fn drop_flow(&mut self, id: &str) -> Option<Record> {
        self.drop_flows(&[id]).pop()
    }

    /// Drops flows: together that is much less work than one after the other.
    fn drop_flows(&mut self, ids: &[&str]) -> Vec<Record> {
        let mut dropped = Vec::with_capacity(ids.len());
        for id in ids {
            let Some(record) = self.registry.remove(id) else {
                continue;
            };
            self.no_longer_received(id, &record.receivers, &record.local);
            self.touch(&record.name.client);
            dropped.push(record);
        }
        if !dropped.is_empty() {
            let _ = self.gate.replace(ids, Vec::new());
            self.released = Some(<(Arc<str>, Arc<str>)>::default());
        }
        dropped
    }

    /// A session is over. What was made over the API stays.
    fn end(&mut self, client: &str) {
        while !self.end_some(client, &mut u64::MAX.clone()) {}
    }

    /// Takes away what a session had that is over: its flows, and its subscriptions
    /// until the units are used up. True if nothing is left.
    fn end_some(&mut self, client: &str, units: &mut u64) -> bool {
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

    /// What is to be kept of a client has changed.
    fn touch(&mut self, client: &str) {
        self.dirty = true;
        if !self.stale.contains(client) {
            self.stale.insert(client.into());
        }
    }

    /// The rejected flows of a client.
    fn wishes_of(&self, client: &str) -> impl Iterator<Item = &(Arc<str>, Arc<str>)> {
        let first = (Arc::from(client), Arc::from(""));
        let wishes = self.wishes.range(first..).map(|(wish, _)| wish);
        wishes.take_while(move |(owner, _)| **owner == *client)
    }

    /// Removes a client that has neither flows nor subscriptions nor wishes.
    fn forget_if_idle(&mut self, client: &str) {
        if self.wishes_of(client).next().is_none() {
            self.registry.remove_if_idle(client);
        }
    }

    /// Flows with topics that a filter matches, by name; and what it cost to find
    /// them, in units of a filter that needs but a few looks.
    fn flows_matching(&self, filter: &str) -> (Vec<Arc<str>>, u64) {
        let (flows, looks) = self.registry.flows_matching([filter]);
        (flows.into_iter().collect(), looks / LOOKS)
    }

    fn decision(&self, id: &str, bound: u64) -> Decision {
        let grant = self.registry.flow(id).map(|record| record.grant);
        Decision::admitted(id, Some(Duration::from_nanos(bound)), grant)
    }

    fn tell_flow(&mut self, id: &str, bound: u64, tell: bool) {
        self.tell(id, self.decision(id, bound), tell);
    }

    fn tell(&mut self, id: &str, decision: Decision, tell: bool) {
        if let Some(record) = self.registry.flow(id) {
            let (name, requirements) = (record.name.clone(), record.requirements);
            self.registry
                .change_flow(&name, requirements, Some(decision), tell);
        }
    }
}

/// Notes that a client receives a flow.
fn add_to(received: &mut BTreeMap<Arc<str>, BTreeSet<Arc<str>>>, client: &Arc<str>, id: &Arc<str>) {
    let flows = received.entry(client.clone()).or_default();
    flows.insert(id.clone());
}

/// The largest of the bounds to a flow's destinations.
fn worst(bounds: &[u64]) -> u64 {
    bounds.iter().copied().max().unwrap_or(0)
}
