//! Who decides: the manager of this process, or the controller of the network
//! through the requirements table.

use std::sync::Arc;
use std::time::{Duration, Instant};

use punctual_broker::AdmissionRequest;
use punctual_manager::{Change, Client, FlowView, Manager, Progress, RemoteManager, State, Work};
use punctual_model::wire::Transport;

use super::{ShardReply, Timing};

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
pub(super) enum Backend {
    /// Here, with the network that the configuration states.
    Local(Box<Manager>),
    /// The controller.
    Remote(Box<RemoteManager>),
}

impl Backend {
    /// Takes a question; what has to be worked on for it.
    pub(super) fn ask(
        &mut self,
        shard: u16,
        request: AdmissionRequest,
        transport: Transport,
    ) -> Option<Job> {
        match self {
            Self::Local(_) => Some(Job::new(shard, Work::new(request, transport))),
            Self::Remote(manager) => {
                manager.answer(shard, request, transport);
                None
            }
        }
    }

    /// A client is to have filters no more; what has to be worked on for that.
    pub(super) fn give_up(&mut self, client: Client, filters: Vec<Box<str>>) -> Option<Job> {
        match self {
            Self::Local(_) => Some(Job::new(0, Work::giving_up(client, filters))),
            Self::Remote(manager) => {
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
    ) -> (Option<Job>, Option<ShardReply>) {
        let Self::Local(manager) = self else {
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
                (None, reply.map(|reply| ShardReply { shard, reply }))
            }
        }
    }

    /// What is to be kept, if it is another one now.
    pub(super) fn changed_state(&mut self) -> Option<State> {
        match self {
            Self::Local(manager) => manager.changed_state(),
            Self::Remote(_) => None,
        }
    }

    /// Answers that were not there at once.
    pub(super) fn late_replies(&mut self) -> Vec<ShardReply> {
        match self {
            Self::Local(_) => Vec::new(),
            Self::Remote(manager) => manager
                .take_replies()
                .into_iter()
                .map(|(shard, reply)| ShardReply { shard, reply })
                .collect(),
        }
    }

    pub(super) fn take_changes(&mut self) -> Vec<Change> {
        match self {
            Self::Local(manager) => manager.take_changes(),
            Self::Remote(manager) => manager.take_changes(),
        }
    }

    /// A page of at most `most` admitted flows after the name `after`, by name, and
    /// whether more follow.
    pub(super) fn page(&self, after: Option<&str>, most: usize) -> (Vec<FlowView>, bool) {
        match self {
            Self::Local(manager) => manager.page(after, most),
            Self::Remote(manager) => manager.page(after, most),
        }
    }

    pub(super) fn view(&self, id: &str) -> Option<FlowView> {
        match self {
            Self::Local(manager) => manager.view(id),
            Self::Remote(manager) => manager.view(id),
        }
    }

    /// Flows that are admitted, that wait for room, and requests that were
    /// rejected so far.
    pub(super) fn numbers(&self) -> (u64, u64, u64) {
        match self {
            Self::Local(m) => (m.len() as u64, m.wishes() as u64, m.rejected()),
            Self::Remote(m) => (m.len() as u64, m.wishes() as u64, m.rejected()),
        }
    }
}
