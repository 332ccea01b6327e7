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
use punctual_model::{Answer, Grant, Requirements};

use crate::Nanos;
use crate::access::FlowQuota;
use crate::hub::ConnId;

/// Whether and how deadlines are promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admission {
    /// Messages whose requirement is rejected are refused (0x97) instead of
    /// being carried as well as can be.
    pub refuse: bool,
    /// What happens to messages that come faster or are larger than declared.
    pub policing: Policing,
    /// Flows of one session, admitted or not.
    pub max_flows_per_session: usize,
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
    /// Peer, while connected and if it has an address.
    pub peer: Option<SocketAddr>,
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
}

/// The flows of one session by topic.
pub(crate) type Flows = HashMap<Box<str>, Flow, foldhash::fast::RandomState>;

/// A flow, decided or not.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) requirements: Requirements,
    /// It has been asked about.
    pub(crate) pending: bool,
    /// While it is pending: what it has until then.
    pub(crate) decision: Option<FlowDecision>,
    /// Largest sizes that were asked about.
    pub(crate) payload: u32,
    pub(crate) properties: u32,
    /// Whether an acknowledgement has carried the answer.
    pub(crate) told: bool,
    /// The connection that waits for the decision.
    pub(crate) waiting: Option<ConnId>,
    /// Nominal time of the next message, at the earliest.
    next: Nanos,
    pub(crate) messages: u64,
    pub(crate) violations: u64,
}

/// Whether a message is as its flow declared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Conformity {
    Conforms,
    TooLarge,
    /// Until when it would have to wait.
    TooEarly(Nanos),
}

impl Flow {
    pub(crate) fn new(requirements: Requirements) -> Self {
        Self {
            requirements,
            pending: false,
            decision: None,
            payload: 0,
            properties: 0,
            told: false,
            waiting: None,
            next: Nanos(0),
            messages: 0,
            violations: 0,
        }
    }

    pub(crate) fn grant(&self) -> Option<&Grant> {
        self.decision.as_ref()?.grant.as_ref()
    }

    /// Whether a message is larger than what was decided about, and may be.
    pub(crate) fn outgrown(&self, payload: u32, properties: u32) -> bool {
        let declared = self.requirements.size;
        properties > self.properties
            || declared.is_none() && payload > self.payload
            || declared.is_some_and(|most| payload > self.payload && payload <= most)
    }

    /// Judges a message that arrives now (the virtual scheduling form of the
    /// generic cell rate algorithm, ITU-T I.371 annex A): a period apart, none
    /// by more than the tolerance too early.
    pub(crate) fn judge(&self, grant: &Grant, payload: u32, now: Nanos) -> Conformity {
        if grant.max_payload.is_some_and(|most| payload > most) {
            return Conformity::TooLarge;
        }
        let earliest = Nanos(self.next.0.saturating_sub(grant.tolerance_ns));
        match now < earliest {
            true => Conformity::TooEarly(earliest),
            false => Conformity::Conforms,
        }
    }

    /// Counts a message of `packet` bytes that conforms.
    pub(crate) fn spend(&mut self, packet: usize, now: Nanos) {
        let Some(grant) = self.decision.as_ref().and_then(|d| d.grant) else {
            return;
        };
        let by_rate = grant.bandwidth.map_or(0, |rate| {
            let bits = packet as u128 * 8 * 1_000_000_000;
            u64::try_from(bits / u128::from(rate.max(1))).unwrap_or(u64::MAX)
        });
        self.next = self.next.max(now) + Nanos(grant.period_ns.max(by_rate));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn flow(period_ns: u64, tolerance_ns: u64) -> Flow {
        let mut flow = Flow::new(Requirements::NONE);
        flow.decision = Some(FlowDecision {
            answer: Answer::default(),
            grant: Some(Grant {
                priority: 7,
                period_ns,
                tolerance_ns,
                bandwidth: None,
                max_payload: Some(10),
                max_packet: 100,
            }),
        });
        flow
    }

    fn offer(flow: &mut Flow, now: u64) -> bool {
        let grant = *flow.grant().unwrap();
        let conforms = flow.judge(&grant, 1, Nanos(now)) == Conformity::Conforms;
        if conforms {
            flow.spend(50, Nanos(now));
        }
        conforms
    }

    #[test]
    fn a_burst_is_as_large_as_the_tolerance_allows() {
        let mut strict = flow(100, 0);
        assert!(offer(&mut strict, 1000));
        assert!(!offer(&mut strict, 1099));
        assert!(offer(&mut strict, 1100));
        // 1 + ceil(250 / 100) less one: the third period is not complete.
        let mut loose = flow(100, 250);
        let burst = (0..10).filter(|_| offer(&mut loose, 1000)).count();
        assert_eq!(burst, 3);
    }

    #[test]
    fn the_rate_counts_bytes() {
        let mut flow = flow(1, 0);
        if let Some(grant) = flow.decision.as_mut().and_then(|d| d.grant.as_mut()) {
            grant.bandwidth = Some(400_000_000);
        }
        assert!(offer(&mut flow, 1000));
        // 50 bytes take 1000 ns.
        assert!(!offer(&mut flow, 1999));
        assert!(offer(&mut flow, 2000));
    }

    #[test]
    fn larger_than_declared_is_a_violation_and_otherwise_asked_about() {
        let mut flow = flow(100, 0);
        let grant = *flow.grant().unwrap();
        assert_eq!(flow.judge(&grant, 11, Nanos(0)), Conformity::TooLarge);
        (flow.payload, flow.properties) = (5, 3);
        assert!(flow.outgrown(6, 3) && flow.outgrown(5, 4) && !flow.outgrown(5, 3));
        flow.requirements.size = Some(8);
        assert!(flow.outgrown(8, 3) && !flow.outgrown(9, 3));
    }

    proptest! {
        /// Whoever sends a period apart, with no more jitter than allowed for,
        /// always conforms; and nobody gets more through than that.
        #[test]
        fn conforming_publishers_are_never_disturbed(
            period in 1..1000_u64,
            tolerance in 0..3000_u64,
            delays in proptest::collection::vec(0..=1000_u64, 1..50),
        ) {
            let mut honest = flow(period, tolerance);
            for (n, delay) in delays.iter().enumerate() {
                let nominal = 10_000 + n as u64 * period;
                let before = (0..n).map(|m| 10_000 + m as u64 * period + delays[m] * tolerance / 1000);
                // In order: no message overtakes the one before.
                let arrival = before.max().unwrap_or(0).max(nominal + delay * tolerance / 1000);
                prop_assert!(offer(&mut honest, arrival));
            }
            let mut greedy = flow(period, tolerance);
            let window = 5 * period;
            let through = (0..window).filter(|at| offer(&mut greedy, 10_000 + at)).count() as u64;
            prop_assert!(through <= (window + tolerance).div_ceil(period));
        }
    }
}
