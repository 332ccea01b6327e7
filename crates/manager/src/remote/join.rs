//! Subscribers that come to flows which are there: each is tried alone, so that
//! one that does not fit does not keep out others.
//!
//! A join is a client and a filter. All flows that the filter matches ask again
//! with the client among their receivers; if one is refused, all of them go back
//! to what they had, and the client is served as well as can be. Joins that
//! touch a flow on which another one is being tried wait for it.

use std::collections::BTreeSet;
use std::sync::Arc;

use punctual_model::srt::{Channel, State};

use super::{RemoteManager, Service};
use crate::decision::{Change, Subscribed, Verdict};
use crate::request::Subscription;

/// A subscriber on trial.
#[derive(Debug)]
pub(super) struct Join {
    pub(super) client: Arc<str>,
    pub(super) filter: Arc<str>,
    /// The SUBSCRIBE that waits, and which of its filters this is.
    ticket: Option<(u64, usize)>,
    /// What the client believes, where no SUBSCRIBE waits.
    believes_served: bool,
    /// Flows on which it is being tried.
    tried: BTreeSet<Arc<str>>,
    /// Flows that have not been answered.
    waiting: BTreeSet<Arc<str>>,
    failure: Option<Failure>,
}

#[derive(Debug, Clone)]
struct Failure {
    why: String,
    /// Nothing was decided.
    late: bool,
}

/// A SUBSCRIBE that waits.
#[derive(Debug)]
pub(super) struct Ticket {
    client: Arc<str>,
    filters: Vec<(Arc<str>, Option<Verdict>)>,
    /// How many have not been decided about.
    open: usize,
    reasons: Vec<String>,
}

impl Ticket {
    pub(super) fn new(client: &Arc<str>, subscriptions: &[Subscription]) -> Self {
        Self {
            client: client.clone(),
            filters: subscriptions
                .iter()
                .map(|s| (s.filter.clone(), None))
                .collect(),
            open: subscriptions.len(),
            reasons: Vec::new(),
        }
    }
}

impl RemoteManager {
    /// A client is to be served with what a filter matches.
    pub(super) fn join(
        &mut self,
        client: &Arc<str>,
        filter: &Arc<str>,
        ticket: Option<(u64, usize)>,
    ) {
        let number = self.number();
        let service = self.subscriber(client, filter);
        let before = service.map(|service| std::mem::replace(service, Service::Asked));
        let believes_served = before == Some(Service::Served);
        self.joins.insert(
            number,
            Join {
                client: client.clone(),
                filter: filter.clone(),
                ticket,
                believes_served,
                tried: BTreeSet::new(),
                waiting: BTreeSet::new(),
                failure: None,
            },
        );
        self.queue.push_back(number);
        self.unlocked = true;
    }

    /// Tries those that touch no flow on which another one is being tried.
    pub(super) fn start_joins(&mut self) {
        while std::mem::take(&mut self.unlocked) {
            for number in std::mem::take(&mut self.queue) {
                if !self.start(number) {
                    self.queue.push_back(number);
                }
            }
        }
    }

    /// Whether it has been begun.
    fn start(&mut self, number: u64) -> bool {
        let join = self.joins.get(&number);
        let known = join.and_then(|join| self.clients.get(&join.client));
        if let Some(known) = known.filter(|known| known.ends.is_none()) {
            let why = super::unknown(&known.client.id);
            self.fails(number, Failure { why, late: false });
            self.conclude_join(number);
            return true;
        }
        let flows = self.without(number);
        let busy = |id: &Arc<str>| self.flows.get(id).is_some_and(|r| r.join.is_some());
        if flows.iter().any(busy) {
            return false;
        }
        self.ask_for(number, flows);
        true
    }

    /// Flows that the filter of a join matches and that do not go to its client
    /// yet.
    fn without(&self, number: u64) -> Vec<Arc<str>> {
        let Some(join) = self.joins.get(&number) else {
            return Vec::new();
        };
        let known = self.clients.get(&join.client);
        let ends = known.and_then(|known| known.ends);
        if ends.is_some_and(|ends| ends.is_local()) {
            return Vec::new();
        }
        let goes_there = |id: &Arc<str>| {
            let row = self.flows.get(id).and_then(|record| record.row.as_ref());
            row.zip(ends)
                .is_some_and(|((row, _), ends)| row.subscribers.contains(&ends.client))
        };
        let flows = self.flows_matching(&[&join.filter]).into_iter();
        flows.filter(|id| !goes_there(id)).collect()
    }

    fn ask_for(&mut self, number: u64, flows: Vec<Arc<str>>) {
        for id in flows {
            if let Some(record) = self.flows.get_mut(&id) {
                record.join = Some(number);
                if let Some(join) = self.joins.get_mut(&number) {
                    join.tried.insert(id.clone());
                }
            }
            match self.row(&id) {
                Ok(Some(row)) => self.write(&id, row),
                Ok(None) => {}
                Err(why) => self.fails(number, Failure { why, late: false }),
            }
            let open = self.flows.get(&id).is_some_and(|record| record.open);
            if let Some(join) = self.joins.get_mut(&number)
                && open
                && join.failure.is_none()
            {
                join.waiting.insert(id);
            }
        }
        self.conclude_join(number);
    }

    fn fails(&mut self, number: u64, failure: Failure) {
        if let Some(join) = self.joins.get_mut(&number) {
            join.failure.get_or_insert(failure);
        }
    }

    /// A flow with a subscriber on trial has been answered.
    pub(super) fn tried(&mut self, id: &Arc<str>, number: u64, channel: Channel) {
        match channel.state {
            State::Admitted => self.conclude(id, channel),
            state => {
                let failure = Failure {
                    why: channel.reason,
                    late: state != State::Rejected,
                };
                self.fails(number, failure);
            }
        }
        if let Some(join) = self.joins.get_mut(&number) {
            join.waiting.remove(id);
        }
        self.conclude_join(number);
    }

    /// A flow on which a subscriber is being tried is not asked for any more.
    pub(super) fn settle(&mut self, number: u64, id: &Arc<str>) {
        if let Some(join) = self.joins.get_mut(&number) {
            join.waiting.remove(id);
        }
        self.conclude_join(number);
    }

    /// Endpoints a join when nothing is open, or as soon as it has failed.
    fn conclude_join(&mut self, number: u64) {
        let Some(join) = self.joins.get(&number) else {
            return;
        };
        if join.failure.is_none() {
            if !join.waiting.is_empty() {
                return;
            }
            let (client, filter) = (join.client.clone(), join.filter.clone());
            // Flows that have come meanwhile; unless it has given up.
            let more = self.without(number);
            let busy = more.iter().any(|id| {
                let join = self.flows.get(id).and_then(|record| record.join);
                join.is_some_and(|join| join != number)
            });
            let stays = self.subscriber(&client, &filter).is_some();
            if stays && !more.is_empty() {
                if busy {
                    let join = self.joins.get_mut(&number);
                    let tried = join.map(|join| std::mem::take(&mut join.tried));
                    self.release(number, tried.unwrap_or_default());
                    self.queue.push_back(number);
                    self.unlocked = true;
                } else {
                    self.ask_for(number, more);
                }
                return;
            }
        }
        let Some(join) = self.joins.remove(&number) else {
            return;
        };
        let served = join.failure.is_none();
        if let Some(service) = self.subscriber(&join.client, &join.filter) {
            *service = match &join.failure {
                None => Service::Served,
                Some(failure) if failure.late => Service::Late,
                Some(_) => Service::BestEffort,
            };
        }
        let tried = self.release(number, join.tried);
        // A flow whose question is open would be asked again as it is.
        for id in tried {
            self.renew(&id);
        }
        match join.ticket {
            Some(ticket) => self.stamp(ticket, join.failure.map(|failure| failure.why)),
            None if served != join.believes_served => {
                let session = self.clients.get(&join.client);
                self.changes.push(Change::Subscription {
                    client: join.client.clone(),
                    session: session.map_or(0, |known| known.client.session),
                    filter: join.filter,
                    served,
                    reason: join.failure.map(|failure| failure.why).unwrap_or_default(),
                });
            }
            None => {}
        }
        self.unlocked = true;
    }

    /// The flows on which a join was tried are free for others.
    fn release(&mut self, number: u64, mut tried: BTreeSet<Arc<str>>) -> BTreeSet<Arc<str>> {
        tried.retain(|id| {
            let record = self.flows.get_mut(id);
            let join = record.map(|record| &mut record.join);
            join.is_some_and(|join| join.take_if(|join| *join == number).is_some())
        });
        tried
    }

    /// One filter of a SUBSCRIBE has been decided about.
    fn stamp(&mut self, (number, at): (u64, usize), failure: Option<String>) {
        let Some(ticket) = self.tickets.get_mut(&number) else {
            return;
        };
        let verdict = match failure {
            None => Verdict::Served,
            Some(_) => Verdict::BestEffort,
        };
        ticket.reasons.extend(failure);
        if let Some((_, known)) = ticket.filters.get_mut(at) {
            ticket.open -= usize::from(known.is_none());
            *known = Some(verdict);
        }
        if ticket.open > 0 {
            return;
        }
        let Some(ticket) = self.tickets.remove(&number) else {
            return;
        };
        let verdicts = ticket.filters.iter().filter_map(|(_, verdict)| *verdict);
        let verdicts = verdicts.collect();
        let filters: Vec<_> = ticket.filters.iter().map(|(filter, _)| filter).collect();
        let bound = self.bound_to(&ticket.client, &filters);
        let subscribed = Subscribed::of(verdicts, &ticket.reasons, bound);
        self.subscribed.push((number, subscribed));
    }

    /// The controller is there again: those it did not decide about in time.
    pub(super) fn retry(&mut self, id: &Arc<str>) {
        let Some(topic) = self.flows.get(id).map(|record| record.topic.clone()) else {
            return;
        };
        let having = self.subscribers.of_topic(&topic).into_iter();
        let is_late = |(client, filter): &&(Arc<str>, Arc<str>)| {
            let known = self.clients.get(client);
            let subscriber = known.and_then(|known| known.subscriptions.get(filter));
            subscriber.is_some_and(|subscriber| subscriber.service == Service::Late)
        };
        let late: BTreeSet<_> = having.filter(is_late).cloned().collect();
        for (client, filter) in late {
            self.join(&client, &filter, None);
        }
    }

    fn subscriber(&mut self, client: &str, filter: &Arc<str>) -> Option<&mut Service> {
        let known = self.clients.get_mut(client)?;
        let own = known.subscriptions.get_mut(filter)?;
        Some(&mut own.service)
    }
}
