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

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use punctual_codec::QoS;
use punctual_model::srt::{Channel, Peer, Request, State};
use punctual_model::{Answer, Requirements, Status};

use crate::client::Client;
use crate::decision::{Change, Decision, Reply, Subscribed, Verdict};
use crate::demand::{Demand, Sizes};
use crate::levels::{Levels, plain};
use crate::name::flow_id;
use crate::quota::Quota;
use crate::request::{Publication, Subscription};
use crate::settings::Settings;
use answer::Waiting;
use join::{Join, Ticket};

/// The requirements table, as a manager writes it.
pub trait RequirementsTable: Send {
    /// Asks for a channel, or for another one in its place. Returns the
    /// generation that the answer will name; the answer is told to
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

#[derive(Debug)]
struct Known {
    client: Client,
    ends: Option<Endpoints>,
    /// By their filters.
    subscriptions: BTreeMap<Arc<str>, Subscriber>,
    /// Identifiers of its flows.
    flows: BTreeSet<Arc<str>>,
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
    client: Arc<str>,
    topic: Arc<str>,
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
    /// What the publisher was told last.
    told: Option<Status>,
    /// A subscriber that is in the row on trial.
    join: Option<u64>,
}

/// See the module.
pub struct RemoteManager {
    settings: Settings,
    table: Box<dyn RequirementsTable>,
    clients: BTreeMap<Arc<str>, Known>,
    flows: BTreeMap<Arc<str>, Record>,
    /// Clients and filters that they have, by these filters.
    subscribers: Levels<(Arc<str>, Arc<str>)>,
    /// Flows by their topics.
    topics: Levels<Arc<str>>,
    /// Clients by their ends.
    peers: BTreeMap<Peer, BTreeSet<Arc<str>>>,
    changes: Vec<Change>,
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
            .field("clients", &self.clients.len())
            .field("flows", &self.flows)
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
            clients: BTreeMap::new(),
            flows: BTreeMap::new(),
            subscribers: Levels::default(),
            topics: Levels::default(),
            peers: BTreeMap::new(),
            changes: Vec::new(),
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
        let new = match self.clients.get(&client.id) {
            // Nobody is kept in mind without reason.
            None => return,
            Some(known) => known.client.session != client.session,
        };
        if self.meet(client, ends) && new {
            let flows = self.clients.get(&client.id).map(|k| k.flows.clone());
            for id in flows.into_iter().flatten() {
                self.tell_grant(&id);
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
            return Some(Decision::rejected(
                "a newer session has this client identifier".into(),
            ));
        }
        let id = flow_id(publication.topic, &client.id);
        let decision = match self.admit(&id, client, &publication, qos) {
            Ok(decision) => decision,
            Err(why) => {
                self.rejected += 1;
                self.forget_if_idle(&client.id);
                let held = self.flows.get(&id).and_then(|record| record.held.as_ref());
                Some(still_held(why, held))
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
            return Ok(Subscribed {
                verdicts: vec![Verdict::BestEffort; subscriptions.len()],
                answer: None,
            });
        }
        let number = self.number();
        self.tickets
            .insert(number, Ticket::new(&client.id, subscriptions));
        for (at, subscription) in subscriptions.iter().enumerate() {
            let Some(known) = self.clients.get_mut(&client.id) else {
                break;
            };
            let filter = &subscription.filter;
            let subscriber = Subscriber {
                requirements: subscription.requirements,
                service: Service::Asked,
            };
            known.subscriptions.insert(filter.clone(), subscriber);
            let value = (client.id.clone(), filter.clone());
            self.subscribers.insert(plain(filter), value);
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
        let Some((id, known)) = self.clients.get_key_value(client) else {
            return;
        };
        if known.client.session != session {
            return;
        }
        let id = id.clone();
        for filter in filters {
            let known = self.clients.get_mut(&id);
            let gone = known.and_then(|it| it.subscriptions.remove_entry(filter.as_ref()));
            if let Some((filter, _)) = gone {
                self.forget_filter(&id, filter);
            }
        }
        for id in self.flows_matching(filters) {
            self.renew(&id);
        }
        self.forget_if_idle(client);
        self.start_joins();
    }

    /// A session has ended, and with it its flows and subscriptions.
    pub fn ended(&mut self, client: &str, session: u64) {
        let known = self.clients.get(client);
        if known.is_some_and(|known| known.client.session == session) {
            self.end(client);
        }
        self.start_joins();
    }

    /// The client of a session has been away for long: its flows are for others.
    pub fn absent(&mut self, client: &str, session: u64) {
        let known = self.clients.get(client);
        if known.is_some_and(|known| known.client.session == session) {
            self.give_up_flows(client);
        }
        self.start_joins();
    }

    /// The table has an answer.
    pub fn decided(&mut self, channel: Channel) {
        let id: Arc<str> = channel.flow.as_str().into();
        let Some(record) = self.flows.get_mut(&id) else {
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

    fn forget_flow(&mut self, id: &Arc<str>) -> Option<Record> {
        let record = self.flows.remove(id)?;
        self.topics.remove(&record.topic, id);
        Some(record)
    }

    /// A client has a filter no more.
    fn forget_filter(&mut self, client: &Arc<str>, filter: Arc<str>) {
        let name = plain(&filter).to_owned();
        self.subscribers.remove(&name, &(client.clone(), filter));
    }

    /// What happened to others since the last call, and what was decided since.
    pub fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// What became of SUBSCRIBEs, by their numbers.
    pub fn take_subscribed(&mut self) -> Vec<(u64, Subscribed)> {
        std::mem::take(&mut self.subscribed)
    }

    /// Number of admitted flows.
    pub fn len(&self) -> usize {
        let flows = self.flows.values();
        flows.filter(|record| record.held.is_some()).count()
    }

    /// Whether no flow is admitted.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Flows that are asked for and not admitted.
    pub fn wishes(&self) -> usize {
        self.flows.len() - self.len()
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
        id: &Arc<str>,
        client: &Client,
        publication: &Publication<'_>,
        qos: QoS,
    ) -> Result<Option<Decision>, String> {
        let known = self.flows.get(id);
        let known_sizes = known.map(|known| (known.terms.sizes, known.terms.requirements.size));
        let sizes = Sizes::of(publication, known_sizes);
        let demand = Demand::new(&publication.requirements, sizes, &self.settings)?;
        let terms = Terms {
            requirements: publication.requirements,
            sizes,
            demand,
            qos,
        };
        if known.is_none() && self.flows.len() >= self.settings.max_flows {
            return Err(format!(
                "there are {} flows, as many as there may be (admission.max_flows)",
                self.flows.len()
            ));
        }
        if known.is_none() {
            self.topics.insert(publication.topic, id.clone());
        }
        let record = self.flows.entry(id.clone()).or_insert_with(|| Record {
            client: client.id.clone(),
            topic: publication.topic.into(),
            stated: publication.requirements,
            terms,
            quota: publication.quota,
            row: None,
            open: false,
            asked: false,
            held: None,
            told: None,
            join: None,
        });
        let before = (record.terms, record.quota);
        (record.terms, record.quota) = (terms, publication.quota);
        record.stated = publication.requirements;
        let row = self.row(id).and_then(|row| {
            let own = row.as_ref().map(|row| row::bandwidth(row, &terms.demand));
            self.check_quota(id, own.unwrap_or(0))?;
            Ok(row)
        });
        let row = match row {
            Ok(row) => row,
            Err(why) => {
                let fresh = self.flows.get(id).is_some_and(|r| r.row.is_none());
                if fresh {
                    self.forget_flow(id);
                } else if let Some(record) = self.flows.get_mut(id) {
                    (record.terms, record.quota) = before;
                }
                return Err(why);
            }
        };
        if let Some(known) = self.clients.get_mut(&client.id) {
            known.flows.insert(id.clone());
        }
        let Some(row) = row else {
            self.off_the_network(id);
            let decision = self.flows.get_mut(id).map(|record| {
                record.told = Some(Status::BestEffort);
                best_effort(LOCAL, None)
            });
            return Ok(decision);
        };
        self.write(id, row);
        let Some(record) = self.flows.get_mut(id) else {
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
        let Some(record) = self.flows.get_mut(id) else {
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
        let Some(record) = self.flows.get_mut(id) else {
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
        if let Some(join) = self.flows.get_mut(id).and_then(|r| r.join.take()) {
            self.settle(join, id);
        }
        self.tell(id, decision, true);
    }

    /// The network has decided about a flow, and about nobody on trial.
    fn conclude(&mut self, id: &Arc<str>, channel: Channel) {
        let Some(record) = self.flows.get_mut(id) else {
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
                self.tell(id, decision, false);
                self.retry(id);
            }
            State::Rejected => {
                self.rejected += 1;
                let why = channel.reason;
                match record.held.take() {
                    // The publisher's change was rejected: it is to have what it had.
                    Some(held) if held.terms != record.terms => {
                        let decision = still_held(why, Some(&held));
                        record.terms = held.terms;
                        // Until that is answered it has what it had.
                        record.held = Some(held);
                        self.tell(id, decision, false);
                        self.renew(id);
                    }
                    lost => {
                        // Also to one that was told of a rejection before.
                        if lost.is_some() {
                            record.told = None;
                        }
                        self.tell(id, Decision::rejected(why), false);
                    }
                }
            }
            State::BestEffort => {
                // Not decided in time: what it had it has as long as it asks
                // for nothing else.
                let grant = record.held.as_ref().map(row::grant_of);
                if record.asked || record.held.is_none() {
                    self.tell(id, best_effort(&channel.reason, grant), false);
                }
            }
            State::Failed => {
                record.held = None;
                self.tell(id, best_effort(&channel.reason, None), false);
            }
            State::Pending => {}
        }
    }

    /// Tells a publisher what became of its flow: as the answer that it waits
    /// for, or because it is another one now.
    fn tell(&mut self, id: &Arc<str>, decision: Decision, only_news: bool) {
        let Some(record) = self.flows.get_mut(id) else {
            return;
        };
        let status = decision.answer.status;
        let asked = std::mem::take(&mut record.asked);
        let news = record.told != status;
        record.told = status;
        if only_news && !news && !asked {
            return;
        }
        let session = self.clients.get(&record.client);
        self.changes.push(Change::Flow {
            client: record.client.clone(),
            session: session.map_or(0, |known| known.client.session),
            topic: record.topic.clone(),
            requirements: record.stated,
            decision: Some(decision),
            tell: news && !asked,
        });
    }

    /// Tells how a flow that is admitted is carried, to whoever has it anew.
    fn tell_grant(&mut self, id: &Arc<str>) {
        if let Some(record) = self.flows.get(id)
            && let Some(held) = &record.held
        {
            let decision = decision(record, held);
            self.tell(id, decision, false);
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

/// A rejection of a change.
fn still_held(why: String, held: Option<&Held>) -> Decision {
    let mut decision = Decision::rejected(why);
    if let Some(held) = held
        && let Some(reason) = &mut decision.answer.reason
    {
        reason.push_str("; what was admitted before stays");
        decision.grant = Some(row::grant_of(held));
    }
    decision
}

fn decision(record: &Record, held: &Held) -> Decision {
    let bound = held.channel.bound_ns().map(Duration::from_nanos);
    Decision {
        answer: Answer {
            status: Some(Status::Admitted),
            conditions: punctual_model::Conditions::NONE,
            bound,
            reason: None,
            flow: Some(flow_id(&record.topic, &record.client).to_string()),
        },
        grant: Some(row::grant_of(held)),
    }
}
