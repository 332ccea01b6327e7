//! Questions that are worked on in slices: how long one takes is for who asks to
//! decide, and others wait meanwhile.
//!
//! Work is counted in units, of which a filter without flows is one. What a client
//! asks is to be worked on in its order; between two slices anything else may
//! happen.

use std::sync::Arc;

use punctual_broker::{AdmissionRequest, Ask, ConnId};
use punctual_model::Requirements;
use punctual_model::wire::Transport;

use super::Manager;
use super::subscribe::Joining;
use crate::client::Client;
use crate::decision::{Reply, Verdict};
use crate::quota::Quota;
use crate::registry::RegisteredSession;
use crate::request::{Publication, Subscription};

/// Units of one slice: two decisions, or some hundreds of filters.
pub const SLICE: u64 = 2 * DECISION;
/// Units of a decision about flows.
const DECISION: u64 = 256;

/// A question that is being worked on.
#[derive(Debug)]
pub struct Work {
    client: Client,
    task: Task,
}

#[derive(Debug)]
enum Task {
    /// In one slice.
    Connected(ConnId),
    /// In one slice.
    Publish {
        topic: Arc<str>,
        requirements: Requirements,
        payload: u32,
        properties: u32,
        quota: Quota,
    },
    Subscribe {
        conn: ConnId,
        filters: Vec<Box<str>>,
        requirements: Requirements,
        joining: Joining,
    },
    /// Filters that are left.
    Unsubscribe(Vec<Box<str>>),
    /// In one slice.
    Absent,
    End {
        begun: bool,
    },
}

/// How far a question has come.
#[derive(Debug)]
pub enum Progress {
    /// It is to be worked on again.
    Left(Work),
    /// It is done; `None` was news.
    Done(Option<Reply>),
}

impl Work {
    /// A question, before anything is done. The transport is that of the listener
    /// that the asker names.
    pub fn new(request: AdmissionRequest, transport: Transport) -> Self {
        let AdmissionRequest { asker, ask } = request;
        let client = Client::asking(&asker, transport);
        let task = match ask {
            Ask::Connected { conn } => Task::Connected(conn),
            Ask::Absent => Task::Absent,
            Ask::Ended => Task::End { begun: false },
            Ask::Unsubscribed { filters } => Task::Unsubscribe(filters),
            Ask::Publish {
                topic,
                requirements,
                payload,
                properties,
                ..
            } => Task::Publish {
                topic,
                requirements,
                payload,
                properties,
                quota: asker.quota.into(),
            },
            Ask::Subscribe {
                conn,
                filters,
                requirements,
            } => Task::Subscribe {
                conn,
                filters,
                requirements,
                joining: Joining::default(),
            },
        };
        Self { client, task }
    }

    /// A client is to have these filters no more.
    pub fn giving_up(client: Client, filters: Vec<Box<str>>) -> Self {
        Self {
            client,
            task: Task::Unsubscribe(filters),
        }
    }

    /// Who asks.
    pub fn client(&self) -> &Arc<str> {
        &self.client.id
    }
}

impl Manager {
    /// Answers a question; `None` to news that need no answer. The transport is
    /// that of the listener that the asker names.
    pub fn answer(&mut self, request: AdmissionRequest, transport: Transport) -> Option<Reply> {
        let mut work = Work::new(request, transport);
        loop {
            let mut units = SLICE;
            match self.work(work, &mut units) {
                Progress::Done(reply) => return reply,
                Progress::Left(left) => work = left,
            }
        }
    }

    /// Works on a question until it is done or the units are used up: a filter or
    /// a decision may take more than are left.
    pub fn work(&mut self, work: Work, units: &mut u64) -> Progress {
        let Work { client, task } = work;
        let asks = !matches!(task, Task::Unsubscribe(_) | Task::Absent | Task::End { .. });
        while asks && self.registry.session(&client) == RegisteredSession::Older {
            if is_spent(units) {
                return Progress::Left(Work { client, task });
            }
            self.end_slice(&client.id, units);
        }
        match task {
            Task::Connected(conn) => {
                spend(units, DECISION);
                self.connected(&client);
                Progress::Done(Some(Reply::GoOn { conn }))
            }
            Task::Publish {
                topic,
                requirements,
                payload,
                properties,
                quota,
            } => {
                spend(units, DECISION);
                let publication = Publication {
                    topic: &topic,
                    requirements,
                    payload,
                    properties,
                    quota,
                };
                let decision = self.publish(&client, publication);
                Progress::Done(Some(Reply::Flow {
                    client,
                    topic,
                    requirements,
                    decision,
                }))
            }
            Task::Subscribe {
                conn,
                filters,
                requirements,
                joining,
            } => self.join_some(client, conn, filters, requirements, joining, units),
            Task::Unsubscribe(mut filters) => {
                while !filters.is_empty() {
                    if is_spent(units) {
                        let task = Task::Unsubscribe(filters);
                        return Progress::Left(Work { client, task });
                    }
                    // With one decision as many filters as take as long.
                    let mut left = DECISION;
                    let mut these = filters.iter().map(|filter| &**filter).rev();
                    self.unsubscribe_some(&client.id, client.session, &mut these, &mut left);
                    let others = these.len();
                    filters.truncate(others);
                    spend(units, 2 * DECISION - left);
                }
                Progress::Done(None)
            }
            Task::Absent => {
                spend(units, DECISION);
                self.absent(&client.id, client.session);
                Progress::Done(None)
            }
            Task::End { begun } => {
                if !begun && !self.registry.is_registered(&client.id, client.session) {
                    return Progress::Done(None);
                }
                while !self.end_slice(&client.id, units) {
                    if is_spent(units) {
                        let task = Task::End { begun: true };
                        return Progress::Left(Work { client, task });
                    }
                }
                Progress::Done(None)
            }
        }
    }

    fn join_some(
        &mut self,
        client: Client,
        conn: ConnId,
        filters: Vec<Box<str>>,
        requirements: Requirements,
        mut joining: Joining,
        units: &mut u64,
    ) -> Progress {
        // Whoever had nothing may have been forgotten since the last slice.
        let is_met = self.meet(&client);
        if !is_met {
            joining.verdicts.resize(filters.len(), Verdict::BestEffort);
        }
        while let Some(filter) = filters.get(joining.verdicts.len()) {
            if is_spent(units) {
                let task = Task::Subscribe {
                    conn,
                    filters,
                    requirements,
                    joining,
                };
                return Progress::Left(Work { client, task });
            }
            let subscription = Subscription {
                filter: (&**filter).into(),
                requirements,
            };
            let cost = self.subscribe_one(&client.id, &subscription, &mut joining);
            spend(units, cost.unwrap_or(DECISION));
        }
        let mut subscribed = self.joined(&client.id, joining);
        if !is_met {
            subscribed.answer = None;
        }
        let reply = Reply::subscription(conn, client, filters, subscribed);
        Progress::Done(Some(reply))
    }

    /// Ends some of what was restored after a restart and nobody has come back
    /// for, after the client that was `reached`. True if that is all.
    pub fn give_up_some(&mut self, reached: &mut Option<Arc<str>>, units: &mut u64) -> bool {
        while !is_spent(units) {
            let next = self.registry.clients_after(reached.as_deref()).next();
            let Some((client, session)) = next.map(|it| (it.client.id.clone(), it.client.session))
            else {
                return true;
            };
            spend(units, 1);
            if session != 0 || self.end_slice(&client, units) {
                *reached = Some(client);
            }
        }
        false
    }

    /// Ends a session by as much as one decision is about. True if nothing is
    /// left of it.
    fn end_slice(&mut self, client: &str, units: &mut u64) -> bool {
        let mut left = DECISION;
        let is_all = self.end_some(client, &mut left);
        spend(units, 2 * DECISION - left);
        is_all
    }
}

fn spend(units: &mut u64, how_many: u64) {
    *units = units.saturating_sub(how_many);
}

fn is_spent(units: &u64) -> bool {
    *units == 0
}
