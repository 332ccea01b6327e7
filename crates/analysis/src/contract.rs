//! The contract for machines: JSON in, JSON out (WCRT.md section 10).
//!
//! `analyze` takes a network and gives the bounds of all flows; `admit` takes
//! a network whose flows are admitted, and a list of changes, and says yes or
//! no to each; what a decision's usual effort does not decide is refused. Unknown
//! keys are ignored.

use punctual_model::network::{Document, FlowEntry, Network, NetworkError};
use serde::Serialize;
use serde_json::Value;

use crate::admission::Admission;
use crate::bounds::{Bounds, analyze};

/// Name and version of the result's format.
pub const FORMAT: &str = "wcrt-result-1";

/// Streams of other flows that the bounds in the end may look at: some tens of
/// seconds. Beyond it they are quick ones.
const EFFORT_OF_BOUNDS: u64 = 1 << 30;

/// The bounds of a network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// [`FORMAT`].
    pub format: &'static str,
    /// Every bound exists and is at most its deadline.
    pub schedulable: bool,
    /// One for each flow and path.
    pub results: Vec<Row>,
}

/// The bounds of a flow to one destination.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Row {
    /// The flow's name.
    pub flow: String,
    /// Index of the path.
    pub path: usize,
    /// The tightest safe bound, ns; none if there is no limit or none was
    /// found.
    pub wcrt_ns: Option<u64>,
    /// The bound exists and is at most the deadline.
    pub schedulable: bool,
    /// The holistic bound, ns.
    pub ha_ns: Option<u64>,
    /// The trajectory bound, ns; none if the path as a whole has none.
    pub ta_ns: Option<u64>,
}

/// Answers to a list of changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Decisions {
    /// One for each change, in order.
    pub decisions: Vec<Decision>,
    /// The bounds of the flows that are admitted in the end. Where the network is
    /// too large to be analysed, the quick bounds by which most decisions are
    /// made, which are safe and looser, and no trajectory bound.
    pub results: Vec<Row>,
}

/// An answer to a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Decision {
    /// It was made.
    pub accepted: bool,
}

impl Report {
    /// The bounds of a network, in the order of its flows and paths.
    pub fn new(network: &Network, bounds: &Bounds) -> Self {
        let results: Vec<_> = network
            .flows
            .iter()
            .zip(&bounds.flows)
            .flat_map(|(flow, bounds)| {
                bounds.iter().enumerate().map(|(path, bounds)| Row {
                    flow: flow.id.clone(),
                    path,
                    wcrt_ns: bounds.best,
                    schedulable: bounds.best.is_some_and(|bound| bound <= flow.deadline),
                    ha_ns: bounds.holistic,
                    ta_ns: bounds.trajectory,
                })
            })
            .collect();
        Self {
            format: FORMAT,
            schedulable: results.iter().all(|row| row.schedulable),
            results,
        }
    }
}

/// Bounds of a network that is given as JSON.
///
/// # Errors
/// The entry and field that means nothing, the value and the remedy.
pub fn analyze_json(text: &str) -> Result<Report, NetworkError> {
    let network = Network::new(&Document::from_json(text)?)?;
    Ok(Report::new(&network, &analyze(&network)))
}

/// A change of the set of admitted flows.
#[derive(Debug, Clone)]
enum Change {
    Add(Box<FlowEntry>),
    Remove(String),
}

/// Answers to the changes in a sequence that is given as JSON.
///
/// # Errors
/// As for [`analyze_json`]; a flow that means nothing is an error, too, and
/// not an answer.
pub fn admit_json(text: &str) -> Result<Decisions, NetworkError> {
    let mut value: Value = serde_json::from_str(text)
        .map_err(|error| NetworkError::new("", format!("is not JSON: {error}")))?;
    let take = |value: &mut Value, key: &str| value.get_mut(key).map(Value::take);
    let network = take(&mut value, "network").ok_or_else(|| {
        NetworkError::new(
            "network",
            "is missing; state nodes, links and admitted flows",
        )
    })?;
    let changes = match take(&mut value, "ops") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(ops)) => ops
            .into_iter()
            .enumerate()
            .map(change)
            .collect::<Result<_, _>>()?,
        Some(other) => {
            return Err(NetworkError::new(
                "ops",
                format!("must be a list, not {other}"),
            ));
        }
    };
    let mut admission = Admission::new(Network::new(&Document::from_json_value(network)?)?);
    let mut decisions = Vec::with_capacity(changes.len());
    for change in changes {
        let accepted = match change {
            Change::Add(entry) => {
                let flow = admission.network().topology.flow(&entry)?;
                admission.add(vec![flow]).is_ok()
            }
            Change::Remove(id) => {
                admission.remove(&id);
                true
            }
        };
        decisions.push(Decision { accepted });
    }
    let bounds = admission.all_bounds(EFFORT_OF_BOUNDS);
    let results = Report::new(admission.network(), &bounds).results;
    Ok(Decisions { decisions, results })
}

fn change((index, mut value): (usize, Value)) -> Result<Change, NetworkError> {
    let fail = |field: &str, problem: &str| {
        Err(NetworkError::new(format!("ops[{index}]: {field}"), problem))
    };
    match value.get("op").and_then(Value::as_str) {
        Some("add") => match value.get_mut("flow").map(Value::take) {
            Some(flow) => {
                FlowEntry::from_json_value(flow).map(|entry| Change::Add(Box::new(entry)))
            }
            None => fail("flow", "is missing; state the flow to add"),
        },
        Some("remove") => match value.get("id").and_then(Value::as_str) {
            Some(id) => Ok(Change::Remove(id.into())),
            None => fail("id", "is missing; state the name of the flow to remove"),
        },
        _ => fail("op", "must be \"add\" or \"remove\""),
    }
}
