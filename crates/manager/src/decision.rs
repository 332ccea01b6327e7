//! What is answered: decisions about flows and subscriptions, and the changes that
//! follow from them for others.

use std::sync::Arc;
use std::time::Duration;

use punctual_broker::{ConnId, FilterVerdict, FlowDecision, SubscriptionDecision};
use punctual_model::{Answer, Conditions, Grant, Requirements, Status};

use crate::client::Client;

/// What became of a flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// For the client. The status is `Admitted` or `Rejected`; whoever carries
    /// rejected messages says best effort.
    pub answer: Answer,
    /// How its messages are to be carried. A flow whose change was rejected
    /// keeps what it had.
    pub grant: Option<Grant>,
}

impl Decision {
    /// An admission, with the largest bound to a receiver.
    pub(crate) fn admitted(flow: &str, bound: Option<Duration>, grant: Option<Grant>) -> Self {
        Self {
            answer: Answer {
                status: Some(Status::Admitted),
                bound,
                conditions: Conditions::NONE,
                reason: None,
                flow: Some(flow.to_owned()),
            },
            grant,
        }
    }

    /// A rejection of a change, which leaves what was admitted before with this grant, if anything
    /// was.
    pub(crate) fn unchanged(mut why: String, grant: Option<Grant>) -> Self {
        if grant.is_some() {
            why.push_str("; what was admitted before stays");
        }
        Self {
            grant,
            ..Self::rejected(why)
        }
    }

    /// A rejection of what a session asks that is over.
    pub(crate) fn superseded() -> Self {
        Self::rejected("a newer session has this client identifier".into())
    }

    /// A rejection.
    pub(crate) fn rejected(why: String) -> Self {
        Self {
            answer: Answer {
                status: Some(Status::Rejected),
                reason: Some(why),
                ..Answer::default()
            },
            grant: None,
        }
    }
}

/// What becomes of a subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Messages of admitted flows keep their deadlines to this receiver.
    Served,
    /// It receives, as well as can be.
    BestEffort,
    /// Even that would make an admitted flow late.
    Refused,
}

/// What becomes of a SUBSCRIBE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscribed {
    /// For each filter.
    pub verdicts: Vec<Verdict>,
    /// For the client; `None` if there is nothing to say.
    pub answer: Option<Answer>,
}

impl Subscribed {
    /// What so many filters of a session become that is over.
    pub(crate) fn superseded(filters: usize) -> Self {
        Self {
            verdicts: vec![Verdict::BestEffort; filters],
            answer: None,
        }
    }

    /// With what was decided about each filter, why, and the largest bound of
    /// what the client receives by them, ns.
    pub(crate) fn of(verdicts: Vec<Verdict>, reasons: &[String], bound: Option<u64>) -> Self {
        let worst = |verdict| verdicts.contains(&verdict);
        let status = if worst(Verdict::Refused) {
            Some(Status::Rejected)
        } else if worst(Verdict::BestEffort) {
            Some(Status::BestEffort)
        } else {
            bound.map(|_| Status::Admitted)
        };
        let answer = status.map(|status| Answer {
            status: Some(status),
            bound: bound
                .filter(|_| status == Status::Admitted)
                .map(Duration::from_nanos),
            conditions: Conditions::NONE,
            reason: (!reasons.is_empty()).then(|| reasons.join("; ")),
            flow: None,
        });
        Self { verdicts, answer }
    }
}

/// What an event means for someone else than who caused it.
#[allow(clippy::large_enum_variant, reason = "few are made, and none is kept")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A flow is carried in another way.
    Flow {
        /// Its publisher.
        client: Arc<str>,
        /// The session; 0 for any.
        session: u64,
        /// Its topic.
        topic: Arc<str>,
        /// What it was asked for with.
        requirements: Requirements,
        /// How; `None`: there is no such flow any more.
        decision: Option<Decision>,
        /// Whether the publisher is to be notified.
        notify: bool,
    },
    /// A receiver is served in another way.
    Subscription {
        /// The receiver.
        client: Arc<str>,
        /// The session.
        session: u64,
        /// Its filter.
        filter: Arc<str>,
        /// Whether messages of admitted flows keep their deadlines to it.
        served: bool,
        /// Why; empty: it has what it asked for.
        reason: String,
    },
}

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

impl Reply {
    /// With what becomes of each of the filters.
    pub(crate) fn subscription(
        conn: ConnId,
        client: Client,
        filters: Vec<Box<str>>,
        subscribed: Subscribed,
    ) -> Self {
        let verdicts = subscribed.verdicts.into_iter().map(FilterVerdict::from);
        let decision = SubscriptionDecision {
            verdicts: filters.into_iter().zip(verdicts).collect(),
            answer: subscribed.answer,
        };
        Self::Subscription {
            conn,
            client,
            decision,
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
