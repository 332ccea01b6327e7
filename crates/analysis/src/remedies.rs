//! What would help a flow that is refused.
//!
//! Each remedy was tried: with it alone the flow is admitted.

use std::fmt;

use punctual_model::network::Flow;

use crate::admission::Admission;
use crate::explain::{Cause, Explainer};
use crate::refusal::shown;

/// Priorities that are tried.
const PRIORITIES: usize = 8;
/// Admitted flows that are tried at a lower priority.
const OTHERS: usize = 3;
/// Halvings in the search for a size or a period.
const HALVINGS: u32 = 7;

/// Streams that each trial may look at: a trial is given up sooner than a
/// decision.
const EFFORT: u64 = 1 << 20;

/// A change with which a refused flow is admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remedy {
    /// A longer deadline, ns; the shortest that will do, or in a network that
    /// takes more than a trial to analyse, the shortest by the quick bounds.
    Deadline(u64),
    /// Another priority for it, with the same deadline; the nearest that will
    /// do.
    Priority(u64),
    /// Smaller frames: at most so many per cent of their time on the links.
    Size(u64),
    /// A longer period, ns.
    Period(u64),
    /// A lower priority for an admitted flow, with which that keeps its
    /// deadline, too.
    Demote {
        /// The admitted flow.
        flow: String,
        /// Its new priority.
        priority: u64,
    },
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = |nanos: &u64| shown(*nanos);
        match self {
            Self::Deadline(nanos) => write!(f, "a deadline of {}", time(nanos)),
            Self::Priority(priority) => write!(f, "priority {priority}"),
            Self::Size(percent) => write!(f, "frames of at most {percent} % of the size"),
            Self::Period(nanos) => write!(f, "a period of {}", time(nanos)),
            Self::Demote { flow, priority } => {
                write!(f, "priority {priority} for the admitted flow {flow}")
            }
        }
    }
}

impl Admission {
    /// What would help a flow that is refused; nothing if it is not, or if
    /// nothing does that was tried. Takes some tens of decisions.
    pub fn remedies(&self, flow: &Flow) -> Vec<Remedy> {
        let mut admission = self.clone();
        admission.limit_effort(EFFORT);
        let mut trial = Trial { admission, flow };
        if trial.admits(flow.clone()) {
            return Vec::new();
        }
        let remedies = [
            trial.deadline(),
            trial.priority(),
            trial.size(),
            trial.period(),
            trial.demote(),
        ];
        remedies.into_iter().flatten().collect()
    }
}

/// Admitted flows, and one that is refused.
struct Trial<'a> {
    admission: Admission,
    flow: &'a Flow,
}

impl Trial<'_> {
    /// Whether a flow would be admitted; nothing is changed.
    fn admits(&mut self, flow: Flow) -> bool {
        let id = flow.id.clone();
        let admitted = self.admission.add(vec![flow]).is_ok();
        if admitted {
            self.admission.remove(&id);
        }
        admitted
    }

    fn with(&mut self, change: impl FnOnce(&mut Flow)) -> bool {
        let mut flow = self.flow.clone();
        change(&mut flow);
        self.admits(flow)
    }

    /// The bound of the flow if it could be as late as it liked.
    fn deadline(&mut self) -> Option<Remedy> {
        let mut patient = self.flow.clone();
        patient.deadline = u64::MAX;
        self.admission.add(vec![patient]).ok()?;
        let bounds = self.admission.promises(&[&self.flow.id], EFFORT).pop();
        self.admission.remove(&self.flow.id);
        let bound = bounds?
            .into_iter()
            .max()
            .filter(|bound| *bound < u64::MAX)?;
        let admitted = self.with(|flow| flow.deadline = bound);
        admitted.then_some(Remedy::Deadline(bound))
    }

    fn priority(&mut self) -> Option<Remedy> {
        let own = self.flow.priority;
        let flows = self.admission.network().flows.iter();
        let mut others: Vec<u64> = flows
            .flat_map(|flow| [flow.priority, flow.priority.saturating_add(1)])
            .filter(|priority| *priority != own)
            .collect();
        others.sort_unstable_by_key(|priority| (priority.abs_diff(own), *priority));
        others.dedup();
        let mut others = others.into_iter().take(PRIORITIES);
        let found = others.find(|priority| self.with(|flow| flow.priority = *priority));
        found.map(Remedy::Priority)
    }

    /// The greatest per cent that is admitted.
    fn size(&mut self) -> Option<Remedy> {
        let shrink = |percent: u64| {
            move |flow: &mut Flow| {
                for hop in &mut flow.hops {
                    let cost = u128::from(hop.cost) * u128::from(percent) / 100;
                    hop.cost = u64::try_from(cost).unwrap_or(hop.cost).max(1);
                }
            }
        };
        if !self.with(shrink(1)) {
            return None;
        }
        let (mut low, mut high) = (1, 100);
        while high - low > 1 {
            let middle = u64::midpoint(low, high);
            if self.with(shrink(middle)) {
                low = middle;
            } else {
                high = middle;
            }
        }
        Some(Remedy::Size(low))
    }

    /// A short one that is admitted, of up to sixteen times the period.
    fn period(&mut self) -> Option<Remedy> {
        let own = self.flow.period;
        let mut high = own.checked_mul(16)?;
        if !self.with(|flow| flow.period = high) {
            return None;
        }
        let mut low = own;
        for _ in 0..HALVINGS {
            let middle = low.midpoint(high);
            if self.with(|flow| flow.period = middle) {
                high = middle;
            } else {
                low = middle;
            }
        }
        Some(Remedy::Period(high))
    }

    /// One of the flows that hold it up most goes behind it.
    fn demote(&mut self) -> Option<Remedy> {
        let lower = self.flow.priority.checked_sub(1)?;
        // Who holds it up most takes an analysis to say.
        if !self.admission.may_analyse_all() {
            return None;
        }
        let mut network = self.admission.network().clone();
        let place = network.flows.len();
        network.flows.push(self.flow.clone());
        let explainer = Explainer::new(&network);
        let mut weights: Vec<(i64, String)> = Vec::new();
        for path in 0..self.flow.leaves.len() {
            for part in explainer.explain(place, path)?.parts {
                if let Cause::Higher { flow, .. } | Cause::Same { flow, .. } = part.cause {
                    weights.push((part.nanos, flow));
                }
            }
        }
        weights.sort_unstable_by(|a, b| b.cmp(a));
        let mut tried = Vec::new();
        for (_, name) in weights {
            if tried.contains(&name) {
                continue;
            }
            if tried.len() == OTHERS {
                break;
            }
            let flows = &self.admission.network().flows;
            let mut other = flows.iter().find(|flow| flow.id == name)?.clone();
            other.priority = lower;
            let mut trial = self.admission.clone();
            trial.remove(&name);
            if trial.add(vec![other, self.flow.clone()]).is_ok() {
                return Some(Remedy::Demote {
                    flow: name,
                    priority: lower,
                });
            }
            tried.push(name);
        }
        None
    }
}
