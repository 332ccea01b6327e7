//! What would be if flows came or went: answers, and the bounds that change.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use punctual_analysis::{Admission, Bounds, Remedy, analyze};
use punctual_model::network::{FlowEntry, Network, NetworkError};
use serde_json::{Value, json};

use super::study::Study;
use super::table::{Unit, aligned};
use crate::cli::Failure;
use crate::cli::input::Input;

/// A change as it is typed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    /// `add=FILE`: the flow or flows in a file, all or none.
    Add(PathBuf),
    /// `remove=ID`.
    Remove(String),
    /// `FILE`: a list of changes as `admit` has it.
    Sequence(PathBuf),
}

impl FromStr for Change {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some(("add", file)) => Ok(Self::Add(file.into())),
            Some(("remove", id)) => Ok(Self::Remove(id.into())),
            Some((other, _)) if !Path::new(text).exists() => Err(format!(
                "{other} is no change; write add=FILE, remove=ID or FILE"
            )),
            _ => Ok(Self::Sequence(text.into())),
        }
    }
}

/// What became of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) struct Decision {
    op: &'static str,
    id: String,
    /// Why not.
    refusal: Option<String>,
    /// With what it would be made.
    remedies: Vec<String>,
}

impl Decision {
    /// The change was made.
    pub(in crate::cli) fn is_accepted(&self) -> bool {
        self.refusal.is_none()
    }

    fn json(&self) -> Value {
        json!({
            "op": self.op,
            "id": self.id,
            "accepted": self.is_accepted(),
            "reason": self.refusal,
            "remedies": self.remedies,
        })
    }

    /// A line for people.
    pub(in crate::cli) fn text(&self) -> String {
        let (op, id) = (self.op, &self.id);
        match &self.refusal {
            None => format!("accepted  {op:6}  {id}\n"),
            Some(why) => {
                let remedies = match self.remedies.as_slice() {
                    [] => String::new(),
                    all => format!("                  it would do with {}\n", all.join(", or ")),
                };
                format!("refused   {op:6}  {id}: {why}\n{remedies}")
            }
        }
    }
}

/// A network before and after the changes that were accepted.
#[derive(Debug)]
pub(super) struct WhatIf {
    pub(super) decisions: Vec<Decision>,
    before: Network,
    bounds_before: Bounds,
    /// The network with the changes.
    pub(super) after: Network,
}

impl WhatIf {
    /// Makes the changes, one after the other.
    pub(super) fn new(network: Network, changes: &[Change]) -> Result<Self, Failure> {
        let (before, bounds_before) = (network.clone(), analyze(&network));
        let mut admission = Admission::new(network);
        let mut decisions = Vec::new();
        for change in changes {
            match change {
                Change::Add(file) => {
                    let input = Input::read(file)?;
                    decisions.push(add(&mut admission, flows(input.value()?), &input)?);
                }
                Change::Remove(id) => decisions.push(remove(&mut admission, id)),
                Change::Sequence(file) => {
                    let input = Input::read(file)?;
                    let mut value = input.value()?;
                    let ops = value.get_mut("ops").map(Value::take).unwrap_or(value);
                    decisions.extend(decide(&mut admission, ops, &input)?);
                }
            }
        }
        Ok(Self {
            decisions,
            before,
            bounds_before,
            after: admission.network().clone(),
        })
    }

    /// The bound that a flow had, if it was there: of a path.
    fn before(&self, flow: &str, path: usize) -> Option<Option<u64>> {
        let index = self
            .before
            .flows
            .iter()
            .position(|known| known.id == flow)?;
        let bounds = self.bounds_before.flows[index].get(path)?;
        Some(bounds.best)
    }

    /// The answers, then the bounds that differ from before.
    pub(super) fn text(&self, study: &Study) -> String {
        let mut text: String = self.decisions.iter().map(Decision::text).collect();
        let unit = Unit::of(study);
        let time = |name: &str| format!("{name} {}", unit.name);
        let mut rows = Vec::new();
        for row in &study.rows {
            let before = self.before(&row.flow, row.path);
            if before == Some(row.bound) {
                continue;
            }
            rows.push(vec![
                row.flow.clone(),
                row.route.clone(),
                unit.maybe(before.flatten()),
                unit.maybe(row.bound),
                unit.text(row.deadline),
                unit.maybe(row.slack()),
                row.verdict().text().into(),
            ]);
        }
        if !rows.is_empty() {
            let head = [
                "flow".into(),
                "path".into(),
                time("before"),
                time("after"),
                time("deadline"),
                time("slack"),
                "verdict".into(),
            ];
            text.push('\n');
            text.push_str(&aligned(&head, &rows));
        }
        text.push('\n');
        for remark in study.remarks() {
            text.push_str(&remark);
            text.push('\n');
        }
        text.push_str(&study.summary());
        text.push('\n');
        text
    }

    /// What a study is as JSON, with the answers and the bounds from before.
    pub(super) fn extend(&self, mut study: Value) -> Value {
        study["decisions"] = self.decisions.iter().map(Decision::json).collect();
        if let Some(rows) = study["results"].as_array_mut() {
            for row in rows {
                let path = row["path"]
                    .as_u64()
                    .and_then(|path| usize::try_from(path).ok());
                let before = match (row["flow"].as_str(), path) {
                    (Some(flow), Some(path)) => self.before(flow, path).flatten(),
                    _ => None,
                };
                row["before_ns"] = json!(before);
            }
        }
        study
    }
}

/// Makes a list of changes, one after the other.
pub(in crate::cli) fn decide(
    admission: &mut Admission,
    ops: Value,
    input: &Input,
) -> Result<Vec<Decision>, Failure> {
    let wrong = |field: String, problem: &str| input.blame(&NetworkError::new(field, problem));
    let Value::Array(ops) = ops else {
        return Err(wrong("ops".into(), "must be a list of changes"));
    };
    let decide = |(index, mut op): (usize, Value)| match (op["op"].as_str(), op["id"].as_str()) {
        (Some("add"), _) => add(admission, vec![op["flow"].take()], input),
        (Some("remove"), Some(id)) => Ok(remove(admission, id)),
        (Some("remove"), None) => Err(wrong(
            format!("ops[{index}]: id"),
            "is missing; state the flow to remove",
        )),
        _ => Err(wrong(
            format!("ops[{index}]: op"),
            "must be \"add\" or \"remove\"",
        )),
    };
    ops.into_iter().enumerate().map(decide).collect()
}

/// Adds flows, all or none.
fn add(admission: &mut Admission, flows: Vec<Value>, input: &Input) -> Result<Decision, Failure> {
    let topology = &admission.network().topology;
    let read = |flow| topology.flow(&FlowEntry::from_json_value(flow)?);
    let flows = flows.into_iter().map(read).collect::<Result<Vec<_>, _>>();
    let flows = flows.map_err(|error| input.blame(&error))?;
    let ids: Vec<_> = flows.iter().map(|flow| flow.id.clone()).collect();
    let refusal = admission.add(flows.clone()).err();
    let remedies = match &refusal {
        Some(_) => admission.remedies_of(&flows),
        None => Vec::new(),
    };
    let remedy = |(place, remedy): &(usize, Remedy)| match flows.len() {
        1 => remedy.to_string(),
        _ => format!("for {}: {remedy}", flows[*place].id),
    };
    Ok(Decision {
        op: "add",
        id: ids.join(", "),
        refusal: refusal.map(|refusal| refusal.to_string()),
        remedies: remedies.iter().map(remedy).collect(),
    })
}

/// A flow that is not there is taken out already.
fn remove(admission: &mut Admission, id: &str) -> Decision {
    admission.remove(id);
    Decision {
        op: "remove",
        id: id.to_owned(),
        refusal: None,
        remedies: Vec::new(),
    }
}

/// The flows of a network, or a flow alone.
fn flows(mut value: Value) -> Vec<Value> {
    match value.get_mut("flows").map(Value::take) {
        Some(Value::Array(flows)) => flows,
        Some(other) => vec![other],
        None => vec![value],
    }
}
