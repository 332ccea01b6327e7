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
use crate::decision::{Subscribed, Verdict};
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
        let known = join.and_then(|join| self.registry.client(&join.client));
        if let Some(known) = known.filter(|known| known.place.is_none()) {
            let why = super::unknown(&known.client.id);
            self.fails(number, Failure { why, late: false });
            self.conclude_join(number);
            return true;
        }
        let flows = self.without(number);
        let busy = |id: &Arc<str>| self.registry.flow(id).is_some_and(|r| r.join.is_some());
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
        let known = self.registry.client(&join.client);
        let ends = known.and_then(|known| known.place);
        if ends.is_some_and(|ends| ends.is_local()) {
            return Vec::new();
        }
        let goes_there = |id: &Arc<str>| {
            let row = self
                .registry
                .flow(id)
                .and_then(|record| record.row.as_ref());
            row.zip(ends)
                .is_some_and(|((row, _), ends)| row.subscribers.contains(&ends.client))
        };
        let flows = self.flows_matching(&[&join.filter]).into_iter();
        flows.filter(|id| !goes_there(id)).collect()
    }

    fn ask_for(&mut self, number: u64, flows: Vec<Arc<str>>) {
        for id in flows {
            if let Some(record) = self.registry.flow_mut(&id) {
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
            let open = self.registry.flow(&id).is_some_and(|record| record.open);
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
                let join = self.registry.flow(id).and_then(|record| record.join);
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
                let reason = join.failure.map(|failure| failure.why).unwrap_or_default();
                self.registry
                    .change_subscription(&join.client, &join.filter, served, reason);
            }
            None => {}
        }
        self.unlocked = true;
    }

    /// The flows on which a join was tried are free for others.
    fn release(&mut self, number: u64, mut tried: BTreeSet<Arc<str>>) -> BTreeSet<Arc<str>> {
        tried.retain(|id| {
            let record = self.registry.flow_mut(id);
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
        let Some(record) = self.registry.flow(id) else {
            return;
        };
        let subscriptions = self.registry.subscriptions_to(&record.name.topic);
        let late = subscriptions.filter(|(_, _, it)| it.service == Service::Late);
        let late = late.map(|(known, filter, _)| (known.client.id.clone(), filter.clone()));
        let late: BTreeSet<_> = late.collect();
        for (client, filter) in late {
            self.join(&client, &filter, None);
        }
    }

    /// Largest bound of the admitted flows that a client receives by filters, ns.
    fn bound_to(&self, client: &str, filters: &[&Arc<str>]) -> Option<u64> {
        let peer = self.registry.client(client)?.place?.client;
        let flows = self.flows_matching(filters).into_iter();
        flows
            .filter_map(|id| self.registry.flow(&id)?.held.as_ref())
            .filter_map(|held| held.channel.bounds_ns.get(&peer).copied())
            .max()
    }

    fn subscriber(&mut self, client: &str, filter: &Arc<str>) -> Option<&mut Service> {
        let own = self.registry.subscription_mut(client, filter)?;
        Some(&mut own.service)
    }
}
