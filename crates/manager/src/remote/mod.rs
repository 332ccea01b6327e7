//! A manager that does not decide: it asks the controller of the network, through
//! the requirements table (SRT).
//!
//! A [`RemoteManager`] gets the same events as a [`Manager`](crate::Manager). Each
//! flow is a row of the [`RequirementsTable`]; answers come later
//! ([`RemoteManager::decided`]) and become [`Change`]s and the results of SUBSCRIBEs
//! ([`RemoteManager::take_subscribed`]).
//!
//! Invariants: an answer counts for what was asked last and for nothing before;
//! a subscriber that the network has no room for is left out, and the flow asks
//! again for what it had; what was admitted stays admitted here until the
//! controller says otherwise, however long it is away. How long a question may
//! take is the table's to bound: it answers `best-effort` in time, and the
//! decision follows. Pure: no socket, clock, thread or random source.

mod answer;
mod clients;
mod join;
mod row;
#[cfg(test)]
mod tests;
mod view;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use punctual_codec::QoS;
use punctual_model::srt::{Channel, Peer, Request, State};
use punctual_model::{Answer, Requirements, Status};

use crate::client::Client;
use crate::decision::{Change, Decision, Reply, Subscribed};
use crate::demand::{Demand, Sizes};
use crate::name::FlowName;
use crate::quota::Quota;
use crate::registry::{Named, Registry};
use crate::request::{Publication, Subscription};
use crate::settings::Settings;
use answer::Waiting;
use join::{Join, Ticket};

/// The requirements table, as a manager writes it.
pub trait RequirementsTable: Send {
    /// Asks for a channel, or for another one in its place. Returns the
    /// generation that the answer will name; the answer comes to
    /// [`RemoteManager::decided`], never before this returns.
    fn ask(&mut self, request: Request) -> u64;

    /// Gives up a channel.
    fn withdraw(&mut self, flow: &str);
}

/// The two ends of a client's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoints {
    /// The client's.
    pub client: Peer,
    /// The broker's, as the client sees it.
    pub broker: Peer,
}

impl Endpoints {
    /// Whether nothing of it is on any network.
    fn is_local(&self) -> bool {
        let client = self.client.address.to_canonical();
        client.is_loopback() || client == self.broker.address.to_canonical()
    }
}

/// How a subscription is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Service {
    /// The network is being asked.
    Asked,
    /// Messages of admitted flows keep their deadlines to it.
    Served,
    /// As well as can be, for there is no room.
    BestEffort,
    /// As well as can be, for the network has not answered in time.
    Late,
}

#[derive(Debug, Clone, Copy)]
struct Subscriber {
    /// The receiver's own; only the deadline counts.
    requirements: Requirements,
    service: Service,
}

/// What a publisher asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Terms {
    requirements: Requirements,
    sizes: Sizes,
    demand: Demand,
    qos: QoS,
}

/// What has been admitted.
#[derive(Debug, Clone)]
struct Held {
    terms: Terms,
    channel: Channel,
}

/// A flow.
#[derive(Debug)]
struct Record {
    name: FlowName,
    /// As the publisher stated them last.
    stated: Requirements,
    /// What is asked for.
    terms: Terms,
    quota: Quota,
    /// The row, and its generation; `None`: nothing of it is on the network.
    row: Option<(Request, u64)>,
    /// The row has not been answered.
    open: bool,
    /// The publisher is to be answered.
    asked: bool,
    held: Option<Held>,
    /// What the publisher was notified of last.
    notified: Option<Status>,
    /// A subscriber that is in the row on trial.
    join: Option<u64>,
}

impl Named for Record {
    fn name(&self) -> &FlowName {
        &self.name
    }
}

/// See the module.
pub struct RemoteManager {
    settings: Settings,
    table: Box<dyn RequirementsTable>,
    registry: Registry<Option<Endpoints>, Subscriber, Record>,
    /// Clients by their ends.
    peers: BTreeMap<Peer, BTreeSet<Arc<str>>>,
    joins: BTreeMap<u64, Join>,
    /// Joins that wait for others to be decided.
    queue: VecDeque<u64>,
    tickets: BTreeMap<u64, Ticket>,
    /// SUBSCRIBEs of those who asked by [`RemoteManager::answer`], by the same numbers.
    waiting: BTreeMap<u64, Waiting>,
    replies: Vec<(u16, Reply)>,
    subscribed: Vec<(u64, Subscribed)>,
    /// Joins that wait may be possible now.
    unlocked: bool,
    numbered: u64,
    rejected: u64,
}

impl fmt::Debug for RemoteManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteManager")
            .field("flows", self.registry.flows())
            .field("joins", &self.joins)
            .finish_non_exhaustive()
    }
}

impl RemoteManager {
    /// A manager that asks through this table. The network in the settings and what
    /// belongs to it are not used: the controller knows them.
    pub fn new(settings: Settings, table: Box<dyn RequirementsTable>) -> Self {
        Self {
            settings,
            table,
            registry: Registry::default(),
            peers: BTreeMap::new(),
            joins: BTreeMap::new(),
            queue: VecDeque::new(),
            tickets: BTreeMap::new(),
            waiting: BTreeMap::new(),
            replies: Vec::new(),
            subscribed: Vec::new(),
            unlocked: false,
            numbered: 0,
            rejected: 0,
        }
    }

    /// A client has connected; its ends may be others. Flows that are kept for
    /// it are among the changes.
    pub fn connected(&mut self, client: &Client, ends: Option<Endpoints>) {
        // A client without flows and subscriptions is not registered.
        if self.registry.client(&client.id).is_none() {
            return;
        }
        let new = !self.registry.is_registered(&client.id, client.session);
        if self.meet(client, ends) && new {
            for id in self.registry.flows_of(&client.id) {
                self.notify_grant(&id);
            }
        }
        self.start_joins();
    }

    /// A client asks for a flow, or for another one in its place, with messages
    /// of that quality of service. `None`: the network is asked, and the
    /// decision is going to be among the changes.
    pub fn publish(
        &mut self,
        client: &Client,
        ends: Option<Endpoints>,
        publication: Publication<'_>,
        qos: QoS,
    ) -> Option<Decision> {
        if !self.meet(client, ends) {
            return Some(Decision::superseded());
        }
        let name = FlowName::new(&client.id, publication.topic);
        let decision = match self.admit(&name, &publication, qos) {
            Ok(decision) => decision,
            Err(why) => {
                self.rejected += 1;
                self.forget_if_idle(&client.id);
                let held = self.registry.flow(&name.id).and_then(|it| it.held.as_ref());
                Some(Decision::unchanged(why, held.map(row::grant_of)))
            }
        };
        self.start_joins();
        decision
    }

    /// A client subscribes. `Err` is the number under which the result is going
    /// to be among [`RemoteManager::take_subscribed`].
    pub fn subscribe(
        &mut self,
        client: &Client,
        ends: Option<Endpoints>,
        subscriptions: &[Subscription],
    ) -> Result<Subscribed, u64> {
        if !self.meet(client, ends) {
            return Ok(Subscribed::superseded(subscriptions.len()));
        }
        let number = self.number();
        self.tickets
            .insert(number, Ticket::new(&client.id, subscriptions));
        for (at, subscription) in subscriptions.iter().enumerate() {
            let filter = &subscription.filter;
            let subscriber = Subscriber {
                requirements: subscription.requirements,
                service: Service::Asked,
            };
            self.registry.subscribe(&client.id, filter, subscriber);
            self.join(&client.id, filter, Some((number, at)));
        }
        self.start_joins();
        match self.subscribed.pop_if(|(done, _)| *done == number) {
            Some((_, subscribed)) => Ok(subscribed),
            None => Err(number),
        }
    }

    /// A client has given up filters.
    pub fn unsubscribe(&mut self, client: &str, session: u64, filters: &[impl AsRef<str>]) {
        if !self.registry.is_registered(client, session) {
            return;
        }
        for filter in filters {
            self.registry.unsubscribe(client, filter.as_ref());
        }
        self.renew_matching(filters);
        self.forget_if_idle(client);
        self.start_joins();
    }

    /// A session has ended, and with it its flows and subscriptions.
    pub fn ended(&mut self, client: &str, session: u64) {
        if self.registry.is_registered(client, session) {
            self.end(client);
        }
        self.start_joins();
    }

    /// The client of a session has been away for long: its flows are for others.
    pub fn absent(&mut self, client: &str, session: u64) {
        if self.registry.is_registered(client, session) {
            self.give_up_flows(client);
        }
        self.start_joins();
    }

    /// The table has an answer.
    pub fn decided(&mut self, channel: Channel) {
        let id: Arc<str> = channel.flow.as_str().into();
        let Some(record) = self.registry.flow_mut(&id) else {
            return;
        };
        let current = record.row.as_ref().map(|(_, generation)| *generation);
        if channel.state == State::Pending || current != Some(channel.generation) {
            return;
        }
        let was_open = std::mem::take(&mut record.open);
        match record.join {
            Some(join) if was_open => self.tried(&id, join, channel),
            _ => self.conclude(&id, channel),
        }
        self.start_joins();
    }

    /// What happened to others since the last call, and what was decided since.
    pub fn take_changes(&mut self) -> Vec<Change> {
        self.registry.take_changes()
    }

    /// What became of SUBSCRIBEs, by their numbers.
    pub fn take_subscribed(&mut self) -> Vec<(u64, Subscribed)> {
        std::mem::take(&mut self.subscribed)
    }

    /// Number of admitted flows.
    pub fn len(&self) -> usize {
        let flows = self.registry.flows().values();
        flows.filter(|record| record.held.is_some()).count()
    }

    /// Whether no flow is admitted.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Flows that are asked for and not admitted.
    pub fn wishes(&self) -> usize {
        self.registry.flows().len() - self.len()
    }

    /// Requests that were rejected, since the start.
    pub fn rejected(&self) -> u64 {
        self.rejected
    }

    fn number(&mut self) -> u64 {
        self.numbered += 1;
        self.numbered
    }

    /// Takes down what a publisher asks for; `None` if the network has to say.
    fn admit(
        &mut self,
        name: &FlowName,
        publication: &Publication<'_>,
        qos: QoS,
    ) -> Result<Option<Decision>, String> {
        let id = &name.id;
        let known = self.registry.flow(id);
        let known_sizes = known.map(|known| (known.terms.sizes, known.terms.requirements.size));
        let sizes = Sizes::of(publication, known_sizes);
        let demand = Demand::new(&publication.requirements, sizes, &self.settings)?;
        let terms = Terms {
            requirements: publication.requirements,
            sizes,
            demand,
            qos,
        };
        let most = self.settings.max_flows;
        self.registry.check_capacity(id, most)?;
        if known.is_none() {
            self.registry.insert(Record {
                name: name.clone(),
                stated: publication.requirements,
                terms,
                quota: publication.quota,
                row: None,
                open: false,
                asked: false,
                held: None,
                notified: None,
                join: None,
            });
        }
        let Some(record) = self.registry.flow_mut(id) else {
            return Ok(None);
        };
        let before = (record.terms, record.quota);
        (record.terms, record.quota) = (terms, publication.quota);
        record.stated = publication.requirements;
        let row = self.row(id).and_then(|row| {
            let own = row.as_ref().map(|row| row::bandwidth(row, &terms.demand));
            self.check_quota(name, own.unwrap_or(0))?;
            Ok(row)
        });
        let row = match row {
            Ok(row) => row,
            Err(why) => {
                let fresh = self.registry.flow(id).is_some_and(|r| r.row.is_none());
                if fresh {
                    self.registry.remove(id);
                } else if let Some(record) = self.registry.flow_mut(id) {
                    (record.terms, record.quota) = before;
                }
                return Err(why);
            }
        };
        let Some(row) = row else {
            self.off_the_network(id);
            let decision = self.registry.flow_mut(id).map(|record| {
                record.notified = Some(Status::BestEffort);
                best_effort(LOCAL, None)
            });
            return Ok(decision);
        };
        self.write(id, row);
        let Some(record) = self.registry.flow_mut(id) else {
            return Ok(None);
        };
        record.asked = record.open;
        if record.open {
            return Ok(None);
        }
        // It is as it was, and so is the answer.
        Ok(record.held.as_ref().map(|held| decision(record, held)))
    }

    /// Asks for a flow as it is now, unless that is asked for already.
    fn write(&mut self, id: &str, row: Request) {
        let Some(record) = self.registry.flow_mut(id) else {
            return;
        };
        let same = |known: &(Request, u64)| known.0.same_demand(&row);
        let answered = record.open || record.held.is_some();
        if answered && record.row.as_ref().is_some_and(same) {
            return;
        }
        let generation = self.table.ask(row.clone());
        record.row = Some((row, generation));
        record.open = true;
    }

    /// The receivers of the flows with a topic that one of these filters matches are others.
    fn renew_matching(&mut self, filters: &[impl AsRef<str>]) {
        for id in self.flows_matching(filters) {
            self.renew(&id);
        }
    }

    /// The receivers of a flow, or their ends, are others.
    fn renew(&mut self, id: &Arc<str>) {
        match self.row(id) {
            Ok(Some(row)) => self.write(id, row),
            Ok(None) => {
                self.off_the_network(id);
                self.conclude_without(id, best_effort(LOCAL, None));
            }
            Err(why) => {
                self.off_the_network(id);
                self.conclude_without(id, Decision::rejected(why));
            }
        }
    }

    /// The network is not asked for a flow any more.
    fn off_the_network(&mut self, id: &str) {
        let Some(record) = self.registry.flow_mut(id) else {
            return;
        };
        record.open = false;
        record.held = None;
        if record.row.take().is_some() {
            self.table.withdraw(id);
        }
    }

    /// A flow has nothing, for a reason that the network does not know.
    fn conclude_without(&mut self, id: &Arc<str>, decision: Decision) {
        if let Some(join) = self.registry.flow_mut(id).and_then(|r| r.join.take()) {
            self.settle(join, id);
        }
        self.notify(id, decision, true);
    }

    /// The network has decided about a flow, and about nobody on trial.
    fn conclude(&mut self, id: &Arc<str>, channel: Channel) {
        let Some(record) = self.registry.flow_mut(id) else {
            return;
        };
        match channel.state {
            State::Admitted => {
                let held = Held {
                    terms: record.terms,
                    channel,
                };
                let decision = decision(record, &held);
                record.held = Some(held);
                self.notify(id, decision, false);
                self.retry(id);
            }
            State::Rejected => {
                self.rejected += 1;
                let why = channel.reason;
                match record.held.take() {
                    // The publisher's change was rejected: it is to have what it had.
                    Some(held) if held.terms != record.terms => {
                        let decision = Decision::unchanged(why, Some(row::grant_of(&held)));
                        record.terms = held.terms;
                        // Until that is answered it has what it had.
                        record.held = Some(held);
                        self.notify(id, decision, false);
                        self.renew(id);
                    }
                    lost => {
                        // Also to one that was notified of a rejection before.
                        if lost.is_some() {
                            record.notified = None;
                        }
                        self.notify(id, Decision::rejected(why), false);
                    }
                }
            }
            State::BestEffort => {
                // Not decided in time: what it had it has as long as it asks
                // for nothing else.
                let grant = record.held.as_ref().map(row::grant_of);
                if record.asked || record.held.is_none() {
                    self.notify(id, best_effort(&channel.reason, grant), false);
                }
            }
            State::Failed => {
                record.held = None;
                self.notify(id, best_effort(&channel.reason, None), false);
            }
            State::Pending => {}
        }
    }

    /// Notifies a publisher of what became of its flow: as the answer that it waits
    /// for, or because it is another one now.
    fn notify(&mut self, id: &Arc<str>, decision: Decision, only_news: bool) {
        let Some(record) = self.registry.flow_mut(id) else {
            return;
        };
        let status = decision.answer.status;
        let asked = std::mem::take(&mut record.asked);
        let news = record.notified != status;
        record.notified = status;
        if only_news && !news && !asked {
            return;
        }
        let (name, stated) = (record.name.clone(), record.stated);
        self.registry
            .change_flow(&name, stated, Some(decision), news && !asked);
    }

    /// Notifies how a flow that is admitted is carried, to whoever has it anew.
    fn notify_grant(&mut self, id: &Arc<str>) {
        if let Some(record) = self.registry.flow(id)
            && let Some(held) = &record.held
        {
            let decision = decision(record, held);
            self.notify(id, decision, false);
        }
    }
}

fn unknown(client: &str) -> String {
    format!("the address of client {client} is not known, and the network asks for it")
}

/// Why a flow is not asked for.
const LOCAL: &str =
    "publisher and receivers are on the broker's machine, and its part is not promised";

fn best_effort(why: &str, grant: Option<punctual_model::Grant>) -> Decision {
    Decision {
        answer: Answer {
            status: Some(Status::BestEffort),
            reason: Some(why.to_owned()),
            ..Answer::default()
        },
        grant,
    }
}

fn decision(record: &Record, held: &Held) -> Decision {
    let bound = held.channel.bound_ns().map(Duration::from_nanos);
    Decision::admitted(&record.name.id, bound, Some(row::grant_of(held)))
}
