//! Who decides: the manager of this process, or the controller of the network
//! through the requirements table.

use std::sync::Arc;
use std::time::{Duration, Instant};

use punctual_broker::AdmissionRequest;
use punctual_manager::{Change, Client, FlowView, Manager, Progress, RemoteManager, State, Work};
use punctual_model::wire::Transport;

use super::{Letter, Timing};

/// A question that is being worked on.
pub(super) struct Job {
    shard: u16,
    work: Work,
    /// How long so far.
    took: Duration,
}

impl Job {
    fn new(shard: u16, work: Work) -> Self {
        Self {
            shard,
            work,
            took: Duration::ZERO,
        }
    }

    /// Who asks.
    pub(super) fn client(&self) -> &Arc<str> {
        self.work.client()
    }
}

/// Whoever decides.
pub(super) enum Desk {
    /// Here, with the network that the configuration states.
    Own(Box<Manager>),
    /// The controller.
    Network(Box<RemoteManager>),
}

impl Desk {
    /// Takes a question; what has to be worked on for it.
    pub(super) fn ask(
        &mut self,
        shard: u16,
        request: AdmissionRequest,
        transport: Transport,
    ) -> Option<Job> {
        match self {
            Self::Own(_) => Some(Job::new(shard, Work::new(request, transport))),
            Self::Network(manager) => {
                manager.answer(shard, request, transport);
                None
            }
        }
    }

    /// A client is to have filters no more; what has to be worked on for that.
    pub(super) fn give_up(&mut self, client: Client, filters: Vec<Box<str>>) -> Option<Job> {
        match self {
            Self::Own(_) => Some(Job::new(0, Work::giving_up(client, filters))),
            Self::Network(manager) => {
                manager.unsubscribe(&client.id, client.session, &filters);
                None
            }
        }
    }

    /// Works on a question; what is left of it, or its answer if it has one.
    pub(super) fn work(
        &mut self,
        job: Job,
        units: &mut u64,
        timing: &Timing,
    ) -> (Option<Job>, Option<Letter>) {
        let Self::Own(manager) = self else {
            return (None, None);
        };
        let Job { shard, work, took } = job;
        let began = Instant::now();
        let progress = manager.work(work, units);
        let took = took + began.elapsed();
        match progress {
            Progress::Left(work) => (Some(Job { shard, work, took }), None),
            Progress::Done(reply) => {
                timing.add(took);
                (None, reply.map(|reply| Letter { shard, reply }))
            }
        }
    }

    /// What is to be kept, if it is another one now.
    pub(super) fn changed_state(&mut self) -> Option<State> {
        match self {
            Self::Own(manager) => manager.changed_state(),
            Self::Network(_) => None,
        }
    }

    /// Answers that were not there at once.
    pub(super) fn late_letters(&mut self) -> Vec<Letter> {
        match self {
            Self::Own(_) => Vec::new(),
            Self::Network(manager) => manager
                .take_replies()
                .into_iter()
                .map(|(shard, reply)| Letter { shard, reply })
                .collect(),
        }
    }

    pub(super) fn take_changes(&mut self) -> Vec<Change> {
        match self {
            Self::Own(manager) => manager.take_changes(),
            Self::Network(manager) => manager.take_changes(),
        }
    }

    /// A page of at most `most` admitted flows after the name `after`, by name, and
    /// whether more follow.
    pub(super) fn page(&self, after: Option<&str>, most: usize) -> (Vec<FlowView>, bool) {
        match self {
            Self::Own(manager) => manager.page(after, most),
            Self::Network(manager) => manager.page(after, most),
        }
    }

    pub(super) fn view(&self, id: &str) -> Option<FlowView> {
        match self {
            Self::Own(manager) => manager.view(id),
            Self::Network(manager) => manager.view(id),
        }
    }

    /// Flows that are admitted, that wait for room, and requests that were
    /// rejected so far.
    pub(super) fn numbers(&self) -> (u64, u64, u64) {
        match self {
            Self::Own(m) => (m.len() as u64, m.wishes() as u64, m.rejected()),
            Self::Network(m) => (m.len() as u64, m.wishes() as u64, m.rejected()),
        }
    }
}
