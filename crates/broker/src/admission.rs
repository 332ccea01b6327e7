//! Admission of flows with guaranteed deadlines: the requests of a shard, the decisions, and the
//! policing of flows.
//!
//! A flow is a publisher and a topic. The first publication whose requirement differs from the one
//! before causes a request ([`Ask::Publish`]); with QoS 1 or 2 the connection is not read until the
//! decision has arrived, with QoS 0 the message is carried by best effort. From then on a
//! publication costs a lookup. Only messages of admitted flows enter lane 0, in the order of their
//! arrival inside a priority, as their bounds assume; and flows are held to their declarations, on
//! which the bounds of all others depend.

use std::net::SocketAddr;
use std::sync::Arc;

use hashbrown::HashMap;
use punctual_codec::QoS;
use punctual_model::{Answer, Conditions, Grant, MessageSize, Meter, Requirements, Status};

use crate::Nanos;
use crate::access::FlowQuota;
use crate::answers::best_effort;
use crate::base::connection::ConnId;
use crate::base::name::peer_of;
use crate::watch::{FlowSight, Watched, Watches};

/// Settings of the admission of flows with guaranteed deadlines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admission {
    /// Messages whose requirement is rejected are refused (0x97) instead of being carried by best
    /// effort, unless their publisher's rights or listener state otherwise.
    pub refuse: bool,
    /// The policy for messages that arrive faster or are larger than declared.
    pub policing: Policing,
    /// Flows of one session, admitted or not.
    pub max_flows_per_session: usize,
    /// Time after which an absent client loses its flows, until it comes back and publishes with
    /// its requirements.
    pub absent_after: Nanos,
    /// Conditions that the bounds assume and the configuration does not guarantee: clients are
    /// notified of these with each admission.
    pub conditions: Conditions,
}

/// The policy for a message that does not conform to its declared flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policing {
    /// It is sent with the plain messages.
    #[default]
    Demote,
    /// A message that arrives too early waits, and so does its publisher; one that is too large is
    /// sent with the plain messages.
    Shape,
    /// It is dropped; its publisher gets 0x97 where the protocol allows it.
    Drop,
    /// It is only counted.
    Off,
}

/// The client on whose behalf a request is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asker {
    /// Client identifier.
    pub client_id: Arc<str>,
    /// Number of the session, never used again.
    pub session: u64,
    /// User name.
    pub username: Option<Arc<str>>,
    /// Whether the user name is authenticated.
    pub is_proven: bool,
    /// Peer, while connected and if it has an address.
    pub peer: Option<SocketAddr>,
    /// Address of the broker to which the client is connected, if it is known.
    pub local: Option<SocketAddr>,
    /// Listener, while connected.
    pub listener: Option<u16>,
    /// The quota of its user, while connected.
    pub quota: FlowQuota,
}

/// A request to the admission service, or a notification that needs no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdmissionRequest {
    /// The client that makes the request.
    pub asker: Asker,
    /// The request or notification.
    pub ask: Ask,
}

/// A request or notification of a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// A client has connected, and is not read until [`crate::Shard::go_on`] is called, when the
    /// reservations that are kept for it must be known.
    Connected {
        /// The connection that waits.
        conn: ConnId,
    },
    /// A publication with new requirements. Must be answered with [`crate::Shard::decide_flow`].
    Publish {
        /// Topic name.
        topic: Arc<str>,
        /// The requirements of the flow.
        requirements: Requirements,
        /// Bytes of the payload.
        payload: u32,
        /// Bytes of the properties.
        properties: u32,
        /// QoS of the message that causes the request.
        qos: QoS,
    },
    /// A SUBSCRIBE. Must be answered with [`crate::Shard::decide_subscription`].
    Subscribe {
        /// The connection that waits.
        conn: ConnId,
        /// Topic filters, with share prefix.
        filters: Vec<Box<str>>,
        /// The receiver's own requirements.
        requirements: Requirements,
    },
    /// Notification: these filters are given up.
    Unsubscribed {
        /// Topic filters, with share prefix.
        filters: Vec<Box<str>>,
    },
    /// Notification: the client has been away for long, and its flows are given up.
    Absent,
    /// Notification: the session has ended.
    Ended,
}

/// The decision about a flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowDecision {
    /// The answer to the client. A rejection becomes best effort here unless messages are refused.
    pub answer: Answer,
    /// The grant by which its messages are carried; `None`: not in lane 0.
    pub grant: Option<Grant>,
}

/// The verdict about a topic filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilterVerdict {
    /// Messages of admitted flows keep their deadlines to the receiver.
    Served,
    /// Messages of admitted flows are sent to the receiver with the plain messages.
    BestEffort,
    /// The subscription is refused: 0x97.
    Refused,
}

/// The decision about a SUBSCRIBE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubscriptionDecision {
    /// The verdict for each requested filter.
    pub verdicts: Vec<(Box<str>, FilterVerdict)>,
    /// The answer to the client.
    pub answer: Option<Answer>,
}

/// A flow as its publisher's shard knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowInfo {
    /// `None` while nothing has been decided.
    pub answer: Option<Answer>,
    /// Number of messages.
    pub messages: u64,
    /// Number of messages that did not conform to the declaration.
    pub violations: u64,
    /// Statistics of the flow since it was admitted.
    pub seen: Option<FlowSight>,
}

/// The flows of one session by topic.
pub(crate) type Flows = HashMap<Box<str>, Flow, foldhash::fast::RandomState>;

/// The state of a flow, wherever its messages pass: in the broker, or in a proxy before another
/// one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowState {
    /// The requirements of the last request.
    pub requirements: Requirements,
    /// Whether a request is pending.
    pub pending: bool,
    /// The decision; while a request is pending, the one in force until then.
    pub decision: Option<FlowDecision>,
    /// Whether an acknowledgement has carried the answer.
    pub told: bool,
    /// The meter of its recent messages.
    pub meter: Meter,
    /// Largest sizes that were requested.
    size: MessageSize,
}

impl FlowState {
    /// A flow for which no admission was requested.
    pub fn new(requirements: Requirements) -> Self {
        Self {
            requirements,
            pending: false,
            decision: None,
            told: false,
            meter: Meter::default(),
            size: MessageSize::default(),
        }
    }

    /// The grant by which its messages are carried, if it is admitted.
    pub fn grant(&self) -> Option<&Grant> {
        self.decision.as_ref()?.grant.as_ref()
    }

    /// The requirements that hold for messages of the flow that state none: an admission holds for
    /// the topic, and so does a pending request.
    pub fn holds(&self) -> Option<Requirements> {
        (self.pending || self.grant().is_some()).then_some(self.requirements)
    }

    /// Whether a message of that size with the requirements `wanted` needs a new request: its
    /// requirements differ from those before, or it is larger than the decision covers.
    pub fn is_new(&self, wanted: Requirements, size: MessageSize) -> bool {
        self.requirements != wanted || !self.pending && self.size.is_outgrown_by(size, wanted.size)
    }

    /// Makes a request. A change that is rejected leaves the earlier admission, so the grant stays
    /// in force until the decision arrives.
    pub fn ask(&mut self, topic: &str, wanted: Requirements, size: MessageSize, qos: QoS) -> Ask {
        let before = self.decision.take().and_then(|decision| decision.grant);
        self.decision = before.map(|grant| FlowDecision {
            answer: Answer::default(),
            grant: Some(grant),
        });
        self.pending = true;
        self.told = false;
        self.requirements = wanted;
        self.size = self.size.max(size);
        Ask::Publish {
            topic: topic.into(),
            requirements: wanted,
            payload: self.size.payload,
            properties: self.size.properties,
            qos,
        }
    }

    /// Applies a decision; returns whether it was requested. `None`, without effect, if the
    /// decision is for requirements that have changed since.
    pub fn decide(
        &mut self,
        requirements: Requirements,
        decision: FlowDecision,
        now: Nanos,
    ) -> Option<bool> {
        if self.requirements != requirements && self.pending {
            return None;
        }
        self.requirements = requirements;
        if let (Some(from), Some(to)) = (self.grant().copied(), &decision.grant) {
            self.meter.change(&from, to, now.0);
        }
        self.decision = Some(decision);
        Some(std::mem::take(&mut self.pending))
    }

    /// The answer that no acknowledgement has carried yet.
    pub fn untold(&self) -> Option<&Answer> {
        let answer = &self.decision.as_ref()?.answer;
        (!self.told && *answer != Answer::default()).then_some(answer)
    }

    /// The answer, if the flow was rejected.
    pub fn rejection(&self) -> Option<&Answer> {
        let answer = &self.decision.as_ref()?.answer;
        (answer.status == Some(Status::Rejected)).then_some(answer)
    }
}

/// A flow of a session.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) state: FlowState,
    /// The connection that waits for the decision.
    pub(crate) waiting: Option<ConnId>,
    /// The session of a neighbour broker to which its messages are sent, too: no bound covers the
    /// path there.
    pub(crate) leaves: Option<Arc<str>>,
    /// Whether a task will notify its publisher of a change of that.
    pub(crate) to_be_told: bool,
    pub(crate) messages: u64,
    pub(crate) violations: u64,
    /// The watch, while the flow is admitted.
    pub(crate) watch: Option<Watched>,
}

impl Flow {
    pub(crate) fn new(requirements: Requirements) -> Self {
        Self {
            state: FlowState::new(requirements),
            waiting: None,
            leaves: None,
            to_be_told: false,
            messages: 0,
            violations: 0,
            watch: None,
        }
    }

    /// Makes a connection wait for the decision; false if it waits already: a message that waits
    /// for queue capacity is handled repeatedly, and the connection is resumed once.
    pub(crate) fn lets_wait(&mut self, conn: ConnId) -> bool {
        self.waiting.replace(conn) != Some(conn)
    }

    /// The answer, adjusted where no bound covers the path of the flow's messages to a neighbour
    /// broker.
    pub(crate) fn as_promised(&self, answer: &Answer) -> Answer {
        match &self.leaves {
            Some(peer) if answer.status == Some(Status::Admitted) => Answer {
                flow: answer.flow.clone(),
                ..best_effort(format!(
                    "its messages go over the mesh to {}, too, and no bound covers the way there; \
                     receivers here are served within {:?}",
                    peer_of(peer).unwrap_or(peer),
                    answer.bound.unwrap_or_default()
                ))
            },
            _ => answer.clone(),
        }
    }

    /// Watches the flow for as long as it is admitted.
    pub(crate) fn watch(&mut self, watches: &Watches, name: impl FnOnce() -> String) {
        let decided = self.state.decision.as_ref();
        let decided = decided.filter(|d| d.grant.is_some());
        let Some(decision) = decided else {
            self.watch = None;
            return;
        };
        let nanos = |duration: std::time::Duration| {
            Nanos(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
        };
        let bound = decision.answer.bound.map(nanos);
        let asked = &self.state.requirements;
        let deadline = asked.deadline.or(asked.period);
        let own = || decision.answer.flow.clone().unwrap_or_else(name);
        let watch = self.watch.take().unwrap_or_else(|| watches.begin(&own()));
        watch.promise(bound, deadline.map(nanos));
        self.watch = Some(watch);
    }
}
