//! The manager's side of the desk: what the shards of a broker, or the proxy
//! before another one, ask, and what they are answered.
//!
//! Whoever carries questions hands them over in their order, tells the
//! [changes](Manager::take_changes) first, for who has connected goes on when it
//! has its flows, and then the answers.

use std::net::SocketAddr;
use std::sync::Arc;

use punctual_broker::{
    AdmissionRequest, Asker, ConnId, FilterVerdict, FlowDecision, FlowQuota, SubscriptionDecision,
};
use punctual_model::Requirements;
use punctual_model::wire::Transport;

use crate::{Client, Decision, Manager, Progress, Quota, SLICE, Verdict, Work};

/// An answer for who asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// What is kept for a client that has connected is among the changes.
    GoOn {
        /// The connection that waits.
        conn: ConnId,
    },
    /// What becomes of a flow.
    Flow {
        /// The publisher.
        client: Client,
        /// Its topic.
        topic: Arc<str>,
        /// What was asked for.
        requirements: Requirements,
        /// The decision.
        decision: Decision,
    },
    /// What becomes of a SUBSCRIBE.
    Subscription {
        /// The connection that waits.
        conn: ConnId,
        /// The receiver.
        client: Client,
        /// The decision.
        decision: SubscriptionDecision,
    },
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
}

impl Client {
    pub(crate) fn asking(asker: &Asker, transport: Transport) -> Self {
        Self {
            id: asker.client_id.clone(),
            session: asker.session,
            user: asker.username.clone(),
            is_proven: asker.is_proven,
            address: asker.peer.as_ref().map(SocketAddr::ip),
            transport,
        }
    }
}

impl From<FlowQuota> for Quota {
    fn from(quota: FlowQuota) -> Self {
        Self {
            max_flows: quota.max_flows,
            max_bandwidth: quota.max_bandwidth,
        }
    }
}

impl From<Verdict> for FilterVerdict {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Served => Self::Served,
            Verdict::BestEffort => Self::BestEffort,
            Verdict::Refused => Self::Refused,
        }
    }
}

impl From<Decision> for FlowDecision {
    fn from(decision: Decision) -> Self {
        Self {
            answer: decision.answer,
            grant: decision.grant,
        }
    }
}
