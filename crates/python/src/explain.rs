//! What bounds are made of, and what would help.

use punctual_analysis::{Explanation, Part, Remedy};
use pyo3::prelude::*;
use serde_json::Value;

use crate::network::Network;

/// A part of a bound, as a dictionary.
#[derive(Debug, IntoPyObject)]
pub(crate) struct PartRow {
    segment: usize,
    link: String,
    kind: String,
    flow: Option<String>,
    alike: Option<u64>,
    text: String,
    ns: i64,
}

/// What the bound of a flow is made of, as a dictionary.
#[derive(Debug, IntoPyObject)]
pub(crate) struct ExplanationRow {
    flow: String,
    path: usize,
    bound_ns: u64,
    deadline_ns: u64,
    parts: Vec<PartRow>,
}

/// A change that would help, as a dictionary.
#[derive(Debug, IntoPyObject)]
pub(crate) struct RemedyRow {
    kind: &'static str,
    value: Option<u64>,
    flow: Option<String>,
    paths: Option<Vec<Vec<String>>>,
    text: String,
}

/// What the tightest bound is made of; None if there is no bound.
#[pyfunction]
pub(crate) fn explain(
    py: Python<'_>,
    network: &Network,
    flow: &str,
    path: usize,
) -> PyResult<Option<ExplanationRow>> {
    network.path(flow, path)?;
    Ok(py.detach(|| {
        punctual_analysis::explain(&network.checked, flow, path).map(ExplanationRow::from)
    }))
}

impl From<Explanation> for ExplanationRow {
    fn from(explanation: Explanation) -> Self {
        Self {
            flow: explanation.flow,
            path: explanation.path,
            bound_ns: explanation.bound_ns,
            deadline_ns: explanation.deadline_ns,
            parts: explanation.parts.into_iter().map(PartRow::from).collect(),
        }
    }
}

impl From<Part> for PartRow {
    fn from(part: Part) -> Self {
        // The names of causes are those of JSON.
        let cause = serde_json::to_value(&part.cause).unwrap_or_default();
        let text = |key: &str| cause.get(key).and_then(Value::as_str).map(str::to_owned);
        Self {
            segment: part.segment,
            link: part.link,
            kind: text("kind").unwrap_or_default(),
            flow: text("flow"),
            alike: cause.get("alike").and_then(Value::as_u64),
            text: part.cause.to_string(),
            ns: part.nanos,
        }
    }
}

impl From<Remedy> for RemedyRow {
    fn from(remedy: Remedy) -> Self {
        let text = remedy.to_string();
        let row = |kind, value| Self {
            kind,
            value,
            flow: None,
            paths: None,
            text,
        };
        match remedy {
            Remedy::Deadline(nanos) => row("deadline", Some(nanos)),
            Remedy::Priority(priority) => row("priority", Some(priority)),
            Remedy::Size(percent) => row("size", Some(percent)),
            Remedy::Period(nanos) => row("period", Some(nanos)),
            Remedy::Path(paths) => Self {
                paths: Some(paths),
                ..row("path", None)
            },
            Remedy::Demote { flow, priority } => Self {
                flow: Some(flow),
                ..row("demote", Some(priority))
            },
        }
    }
}
