//! What the bounds of a flow are made of.

use std::fmt::Write as _;

use punctual_analysis::{Explanation, explain};
use punctual_model::network::Network;
use serde_json::{Value, json};

use super::study::route;
use super::table::{Unit, aligned, quoted};
use crate::cli::Failure;

/// Name and version of the JSON format.
const FORMAT: &str = "punctual-explanation-1";

/// A flow's bounds, part by part.
#[derive(Debug)]
pub(super) struct Explained {
    flow: String,
    /// For each destination its route, and the parts if there is a bound.
    paths: Vec<(String, Option<Explanation>)>,
}

impl Explained {
    pub(super) fn new(network: &Network, id: &str) -> Result<Self, Failure> {
        let flow = network.flows.iter().find(|flow| flow.id == id);
        let flow = flow.ok_or_else(|| {
            format!("--explain {id:?}: is not among the flows; take a name from the first column")
        })?;
        let leaves = flow.leaves.iter().enumerate();
        let path = |(path, leaf): (usize, &usize)| {
            (route(network, flow, *leaf), explain(network, id, path))
        };
        Ok(Self {
            flow: id.to_owned(),
            paths: leaves.map(path).collect(),
        })
    }

    /// Every destination has a bound that is at most the deadline.
    pub(super) fn is_schedulable(&self) -> bool {
        let kept = |explanation: &Explanation| explanation.bound_ns <= explanation.deadline_ns;
        self.paths
            .iter()
            .all(|(_, explanation)| explanation.as_ref().is_some_and(kept))
    }

    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for (index, (route, explanation)) in self.paths.iter().enumerate() {
            let newline = if index == 0 { "" } else { "\n" };
            let Some(explanation) = explanation else {
                let _ = writeln!(text, "{newline}{} {route}: no bound", self.flow);
                continue;
            };
            let unit = Unit::for_times([explanation.bound_ns, explanation.deadline_ns].iter());
            let _ = writeln!(
                text,
                "{newline}{} {route}: at most {} {}, deadline {} {}",
                self.flow,
                unit.text(explanation.bound_ns),
                unit.name,
                unit.text(explanation.deadline_ns),
                unit.name
            );
            let head = [unit.name, "part", "link", "cause"].map(String::from);
            let parts = explanation.parts.iter();
            let rows: Vec<_> = parts
                .map(|part| {
                    vec![
                        unit.text(part.nanos),
                        (part.segment + 1).to_string(),
                        part.link.clone(),
                        part.cause.to_string(),
                    ]
                })
                .collect();
            text.push_str(&aligned(&head, &rows));
        }
        text
    }

    pub(super) fn csv(&self) -> String {
        let mut text = String::from("flow,path,segment,link,cause,ns\n");
        for explanation in self
            .paths
            .iter()
            .filter_map(|(_, explanation)| explanation.as_ref())
        {
            for part in &explanation.parts {
                let _ = writeln!(
                    text,
                    "{},{},{},{},{},{}",
                    quoted(&explanation.flow),
                    explanation.path,
                    part.segment,
                    quoted(&part.link),
                    quoted(&part.cause.to_string()),
                    part.nanos
                );
            }
        }
        text
    }

    pub(super) fn json(&self) -> Value {
        let path = |(index, (route, explanation)): (usize, &(String, Option<Explanation>))| {
            let parts = explanation
                .iter()
                .flat_map(|explanation| &explanation.parts);
            let parts: Vec<_> = parts
                .map(|part| {
                    json!({
                        "segment": part.segment,
                        "link": part.link,
                        "cause": part.cause.to_string(),
                        "ns": part.nanos,
                    })
                })
                .collect();
            json!({
                "path": index,
                "route": route,
                "wcrt_ns": explanation.as_ref().map(|explanation| explanation.bound_ns),
                "deadline_ns": explanation.as_ref().map(|explanation| explanation.deadline_ns),
                "parts": parts,
            })
        };
        let paths: Vec<_> = self.paths.iter().enumerate().map(path).collect();
        json!({"format": FORMAT, "flow": self.flow, "paths": paths})
    }
}
