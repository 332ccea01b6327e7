//! Deadlines that are promised: what a shard asks about them, what it is
//! answered, and what it holds flows to.
//!
//! A flow is a publisher and a topic. The first publication that states another
//! requirement than the one before is asked about ([`Ask::Publish`]); with QoS
//! 1 or 2 the connection is not read until the answer has come, with QoS 0 it is
//! carried as well as can be. From then on a publication costs a look-up. Only
//! admitted flows come into lane 0, in the order of their arrival inside a
//! priority, which is what their bounds assume; and they are held to what they
//! declared, for the bounds of all others rest on it.

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

/// Whether and how deadlines are promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admission {
    /// Messages whose requirement is rejected are refused (0x97) instead of
    /// being carried as well as can be, unless their publisher's rights or
    /// listener say otherwise.
    pub refuse: bool,
    /// What happens to messages that come faster or are larger than declared.
    pub policing: Policing,
    /// Flows of one session, admitted or not.
    pub max_flows_per_session: usize,
    /// A client that is away for longer has no flows any more, until it comes back and publishes with
    /// its requirements.
    pub absent_after: Nanos,
    /// What bounds take for granted and the configuration does not guarantee: clients are told so
    /// with what is admitted.
    pub conditions: Conditions,
}

/// What happens to a message that is not as its flow declared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policing {
    /// It goes with the plain ones.
    #[default]
    Demote,
    /// One that comes too early waits, and its publisher with it; one that is
    /// too large goes with the plain ones.
    Shape,
    /// It is dropped; its publisher is told 0x97 where that can be said.
    Drop,
    /// Nothing, but that it is counted.
    Off,
}

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asker {
    /// Client identifier.
    pub client_id: Arc<str>,
    /// Number of the session, never used again.
    pub session: u64,
    /// User name.
    pub username: Option<Arc<str>>,
    /// Whether that is more than a claim.
    pub is_proven: bool,
    /// Peer, while connected and if it has an address.
    pub peer: Option<SocketAddr>,
    /// Address of the broker that it has connected to, while connected and if
    /// it is known.
    pub local: Option<SocketAddr>,
    /// Listener, while connected.
    pub listener: Option<u16>,
    /// What its user may have, while connected.
    pub quota: FlowQuota,
}

/// A question, or news that need no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdmissionRequest {
    /// Who asks.
    pub asker: Asker,
    /// What.
    pub ask: Ask,
}

/// What a shard asks or tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// A client has connected, and is not read until [`crate::Shard::go_on`]: by
    /// then what is kept for it is to be known.
    Connected {
        /// The connection that waits.
        conn: ConnId,
    },
    /// To be answered with [`crate::Shard::decide_flow`].
    Publish {
        /// Topic name.
        topic: Arc<str>,
        /// What is asked for.
        requirements: Requirements,
        /// Bytes of the payload.
        payload: u32,
        /// Bytes of the properties.
        properties: u32,
        /// Of the message that asks.
        qos: QoS,
    },
    /// To be answered with [`crate::Shard::decide_subscription`].
    Subscribe {
        /// The connection that waits.
        conn: ConnId,
        /// Topic filters, with share prefix.
        filters: Vec<Box<str>>,
        /// The receiver's own requirements.
        requirements: Requirements,
    },
    /// News: these filters are given up.
    Unsubscribed {
        /// Topic filters, with share prefix.
        filters: Vec<Box<str>>,
    },
    /// News: the client has been away for long, and its flows are given up.
    Absent,
    /// News: the session has ended.
    Ended,
}

/// What becomes of a flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowDecision {
    /// For the client. Rejected ones become best effort here unless messages
    /// are refused.
    pub answer: Answer,
    /// How its messages are carried; `None`: not in lane 0.
    pub grant: Option<Grant>,
}

/// What becomes of a topic filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilterVerdict {
    /// Messages of admitted flows keep their deadlines to the receiver.
    Served,
    /// They go to it with the plain messages.
    BestEffort,
    /// It is refused: 0x97.
    Refused,
}

/// What has been decided about a SUBSCRIBE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubscriptionDecision {
    /// For each filter that was asked about.
    pub verdicts: Vec<(Box<str>, FilterVerdict)>,
    /// For the client.
    pub answer: Option<Answer>,
}

/// A flow as its publisher's shard knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowInfo {
    /// `None` while nothing has been decided.
    pub answer: Option<Answer>,
    /// Messages.
    pub messages: u64,
    /// Messages that were not as declared.
    pub violations: u64,
    /// What has been seen of it since it was admitted.
    pub seen: Option<FlowSight>,
}

/// The flows of one session by topic.
pub(crate) type Flows = HashMap<Box<str>, Flow, foldhash::fast::RandomState>;

/// What has become of a flow so far, wherever its messages pass: in the broker,
/// or in a proxy before another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowState {
    /// What it is or was asked for with.
    pub requirements: Requirements,
    /// It has been asked about.
    pub pending: bool,
    /// While it is pending: what it has until then.
    pub decision: Option<FlowDecision>,
    /// Whether an acknowledgement has carried the answer.
    pub told: bool,
    /// What it has sent lately.
    pub meter: Meter,
    /// Largest sizes that were asked about.
    size: MessageSize,
}

impl FlowState {
    /// One that nobody has been asked about.
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

    /// How its messages are carried, if it is admitted.
    pub fn grant(&self) -> Option<&Grant> {
        self.decision.as_ref()?.grant.as_ref()
    }

    /// What it has been asked for with, for its messages that state nothing: what
    /// was admitted once holds for the topic, and so does what is pending.
    pub fn holds(&self) -> Option<Requirements> {
        (self.pending || self.grant().is_some()).then_some(self.requirements)
    }

    /// Whether it has to be asked about for a message of that size that asks for
    /// `wanted`: it asks for something else than before, or is larger than what
    /// was decided about.
    pub fn is_new(&self, wanted: Requirements, size: MessageSize) -> bool {
        self.requirements != wanted || !self.pending && self.size.is_outgrown_by(size, wanted.size)
    }

    /// It is asked about. A change that is rejected leaves what was admitted, so
    /// the grant stays in force until the answer comes.
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

    /// It has been decided about; whether that was asked for. `None`, and nothing
    /// done: an answer to what has been asked differently since then.
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
    /// The session of a neighbour broker that its messages go to, too: no bound covers the way there.
    pub(crate) leaves: Option<Arc<str>>,
    /// A task is to tell its publisher how that has changed.
    pub(crate) to_be_told: bool,
    pub(crate) messages: u64,
    pub(crate) violations: u64,
    /// While it is admitted.
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

    /// Lets a connection wait for the decision; false if it does already: what has no room where it
    /// goes is looked at again and again, and it is resumed once.
    pub(crate) fn lets_wait(&mut self, conn: ConnId) -> bool {
        self.waiting.replace(conn) != Some(conn)
    }

    /// An answer about it, as long as no bound covers the way of its messages to a neighbour broker.
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

    /// Watches it for as long as it is admitted.
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
