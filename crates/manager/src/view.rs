//! What the HTTP interface shows of flows.

use punctual_analysis::{Cause, Part};
use serde::Serialize;

/// An admitted flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FlowView {
    /// Its name.
    pub id: String,
    /// Publisher.
    pub client: String,
    /// Topic.
    pub topic: String,
    /// What was asked for, as in user properties.
    pub requirements: String,
    /// Priority, 7 most urgent.
    pub priority: u8,
    /// Least time between two messages, ns.
    pub period_ns: u64,
    /// Release jitter, ns.
    pub jitter_ns: u64,
    /// Deadline, ns.
    pub deadline_ns: u64,
    /// Bound with the flows admitted now: the largest of all receivers, ns.
    pub bound_ns: u64,
    /// Bits per second on the wire.
    pub bandwidth_bps: u64,
    /// Whether it was made over the API.
    pub fixed: bool,
    /// Who receives it, with a bound each.
    pub receivers: Vec<ReceiverView>,
}

/// A receiver of a flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReceiverView {
    /// Client identifier.
    pub client: String,
    /// Bound to it, ns.
    pub bound_ns: u64,
}

/// What the bound of a flow to a receiver is made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExplanationView {
    /// Client identifiers; several only where they are at the broker.
    pub receivers: Vec<String>,
    /// The best bound, ns: not more than what was guaranteed, which may have been
    /// looked at less closely.
    pub bound_ns: u64,
    /// In the order of the way; their sum is the bound.
    pub parts: Vec<PartView>,
}

/// A part of a bound.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PartView {
    /// The link.
    pub link: String,
    /// What takes the time, for machines.
    #[serde(flatten)]
    pub cause: Cause,
    /// The same in words.
    pub text: String,
    /// How long, ns; negative where it takes away.
    pub ns: i64,
}

impl From<Part> for PartView {
    fn from(part: Part) -> Self {
        Self {
            link: part.link,
            text: part.cause.to_string(),
            cause: part.cause,
            ns: part.nanos,
        }
    }
}

/// Receivers that a page of flows may have together.
const RECEIVERS: usize = 10_000;

/// What a page of flows still takes.
#[derive(Debug)]
pub(crate) struct PageCapacity {
    flows: usize,
    receivers: usize,
    begun: bool,
}

impl PageCapacity {
    pub(crate) fn new(flows: usize) -> Self {
        Self {
            flows,
            receivers: RECEIVERS,
            begun: false,
        }
    }

    /// Whether a flow with so many receivers has room; the first one has it whatever
    /// its size.
    pub(crate) fn takes(&mut self, receivers: usize) -> bool {
        let fits = self.flows > 0 && (!self.begun || receivers <= self.receivers);
        self.flows -= usize::from(fits);
        self.receivers = self.receivers.saturating_sub(receivers);
        self.begun = true;
        fits
    }
}
