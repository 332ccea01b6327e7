//! The manager that decides itself: its state, and what each event does to it.
//!
//! Events are decided one after the other; what they are about is in `session` (clients),
//! `subscribe` (their subscriptions) and `admit` (their flows).
//!
//! Bounds: the registry's; rejected requests, `admission.max_flows`.

mod admit;
#[cfg(test)]
mod consistent;
mod draft;
mod session;
mod state;
mod subscribe;
mod view;
mod work;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;
use std::time::Duration;

use punctual_model::network::{Flow, NetworkError};
use punctual_model::{Grant, Requirements, Status};

use self::subscribe::Joining;
use crate::client::Client;
use crate::decision::{Change, Decision, Subscribed};
use crate::demand::{Demand, Sizes};
use crate::gate::{Gate, Refused};
use crate::map::Map;
use crate::name::{FlowName, flow_id};
use crate::quota::Quota;
use crate::registry::{Named, Registry};
use crate::request::{Publication, Subscription};
use crate::settings::Settings;
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
                self.notify_flow(id, bound, false);
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

    /// A client has given up filters.
    pub fn unsubscribe(&mut self, client: &str, session: u64, filters: &[impl AsRef<str>]) {
        let mut filters = filters.iter().map(AsRef::as_ref);
        self.unsubscribe_some(client, session, &mut filters, &mut u64::MAX.clone());
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
                self.notify_flow(&name.id, bound, true);
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
            self.notify(&id, decision.clone(), true);
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

    /// Largest bound of each of these flows over its destinations, ns.
    fn bounds(&self, ids: &[impl AsRef<str>]) -> Vec<u64> {
        let ids: Vec<&str> = ids.iter().map(AsRef::as_ref).collect();
        self.gate
            .bounds(&ids)
            .iter()
            .map(|each| worst(each))
            .collect()
    }

    /// What is to be kept of a client has changed.
    fn touch(&mut self, client: &str) {
        self.dirty = true;
        if !self.stale.contains(client) {
            self.stale.insert(client.into());
        }
    }

    fn decision(&self, id: &str, bound: u64) -> Decision {
        let grant = self.registry.flow(id).map(|record| record.grant);
        Decision::admitted(id, Some(Duration::from_nanos(bound)), grant)
    }

    fn notify_flow(&mut self, id: &str, bound: u64, notify: bool) {
        self.notify(id, self.decision(id, bound), notify);
    }

    fn notify(&mut self, id: &str, decision: Decision, notify: bool) {
        if let Some(record) = self.registry.flow(id) {
            let (name, requirements) = (record.name.clone(), record.requirements);
            self.registry
                .change_flow(&name, requirements, Some(decision), notify);
        }
    }
}

/// The largest of the bounds to a flow's destinations.
fn worst(bounds: &[u64]) -> u64 {
    bounds.iter().copied().max().unwrap_or(0)
}
