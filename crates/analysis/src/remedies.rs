//! What would help flows that are refused.
//!
//! Each remedy was tried: with it alone the flow is admitted, and of a group of
//! which all are admitted or none, all.

use std::fmt;

use punctual_model::network::{Flow, FlowEntry};

use crate::admission::Admission;
use crate::explain::{Cause, Explainer};
use crate::refusal::{Reason, shown};
use crate::routing::{Ends, choose_route};

/// Priorities that are tried.
const PRIORITIES: usize = 8;
/// Admitted flows that are tried at a lower priority.
const OTHERS: usize = 3;
/// Halvings in the search for a period.
const HALVINGS: u32 = 7;
/// Shortest paths to each destination that are tried.
const PATHS: usize = 4;

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
    /// Smaller frames: at most so many per cent of their time on the links that
    /// have a rate. What a server takes for a message stays as it is.
    Size(u64),
    /// Another path, with the same priority: the links to each destination.
    Path(Vec<Vec<String>>),
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
            Self::Path(paths) => {
                let paths: Vec<_> = paths.iter().map(|links| links.join(", ")).collect();
                write!(f, "the path {}", paths.join(" and "))
            }
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
        let remedies = self.remedies_of(std::slice::from_ref(flow)).into_iter();
        remedies.map(|(_, remedy)| remedy).collect()
    }

    /// What would help flows of which all are admitted or none, each with the
    /// index of the flow that it is for: the one that could be late, or where
    /// that is an admitted one, the first that can be helped. Nothing if they are
    /// admitted, or if changing one of them does not help. Takes some tens of
    /// decisions, for each flow that is looked at.
    pub fn remedies_of(&self, flows: &[Flow]) -> Vec<(usize, Remedy)> {
        let mut admission = self.clone();
        admission.limit_effort(EFFORT);
        let Err(refusal) = admission.add(flows.to_vec()) else {
            return Vec::new();
        };
        if refusal.reason == Reason::Taken {
            return Vec::new();
        }
        let late = flows.iter().position(|flow| flow.id == refusal.flow);
        let places = match late.filter(|_| refusal.new) {
            Some(late) => late..late + 1,
            None => 0..flows.len(),
        };
        for place in places {
            let mut trial = Trial {
                admission: admission.clone(),
                flows,
                place,
            };
            let remedies = trial.remedies();
            if !remedies.is_empty() {
                let of = |remedy| (place, remedy);
                return remedies.into_iter().map(of).collect();
            }
        }
        Vec::new()
    }
}

/// Admitted flows, and some that are refused, of which one may change.
struct Trial<'a> {
    admission: Admission,
    flows: &'a [Flow],
    place: usize,
}

impl Trial<'_> {
    fn remedies(&mut self) -> Vec<Remedy> {
        let remedies = [
            self.deadline(),
            self.priority(),
            self.size(),
            self.period(),
            self.path(),
            self.demote(),
        ];
        remedies.into_iter().flatten().collect()
    }

    fn flow(&self) -> &Flow {
        &self.flows[self.place]
    }

    /// All flows, with this one in the place of the one that may change.
    fn all(&self, flow: Flow) -> Vec<Flow> {
        let mut all = self.flows.to_vec();
        all[self.place] = flow;
        all
    }

    /// What is seen of the admitted flows with others, if these are admitted;
    /// nothing is changed.
    fn see<T>(&mut self, flows: Vec<Flow>, see: impl FnOnce(&Admission) -> T) -> Option<T> {
        let ids: Vec<_> = flows.iter().map(|flow| flow.id.clone()).collect();
        self.admission.add(flows).ok()?;
        let seen = see(&self.admission);
        for id in ids {
            self.admission.remove(&id);
        }
        Some(seen)
    }

    fn with(&mut self, change: impl FnOnce(&mut Flow)) -> bool {
        let mut flow = self.flow().clone();
        change(&mut flow);
        self.see(self.all(flow), |_| ()).is_some()
    }

    /// The bound of the flow if it could be as late as it liked; or less where a
    /// shorter deadline makes it more urgent, or is decided about by other limits.
    fn deadline(&mut self) -> Option<Remedy> {
        let mut patient = self.flow().clone();
        patient.deadline = u64::MAX;
        let id = patient.id.clone();
        let all = self.all(patient);
        let bounds = self.see(all, |admission| admission.guarantees(&[&id], EFFORT).pop())?;
        let bound = bounds?
            .into_iter()
            .max()
            .filter(|bound| *bound < u64::MAX && *bound > self.flow().deadline)?;
        if !self.with(|flow| flow.deadline = bound) {
            return None;
        }
        let (mut low, mut high) = (self.flow().deadline, bound);
        let mut middle = high - 1;
        while low < middle {
            if self.with(|flow| flow.deadline = middle) {
                high = middle;
            } else {
                low = middle;
            }
            middle = low.midpoint(high);
        }
        Some(Remedy::Deadline(high))
    }

    fn priority(&mut self) -> Option<Remedy> {
        let own = self.flow().priority;
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
        let links = &self.admission.network().topology.links;
        let hops = self.flow().hops.iter();
        let has_rate: Vec<bool> = hops.map(|hop| links[hop.link].rate > 0).collect();
        if !has_rate.contains(&true) {
            return None;
        }
        let shrink = |percent: u64| {
            let has_rate = &has_rate;
            move |flow: &mut Flow| {
                let hops = flow.hops.iter_mut().zip(has_rate);
                for (hop, _) in hops.filter(|(_, has_rate)| **has_rate) {
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
        let own = self.flow().period;
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

    /// Another of the shortest paths, with all else as it is.
    fn path(&mut self) -> Option<Remedy> {
        let (entry, ends) = self.elsewhere()?;
        let others: Vec<Flow> = {
            let all = self.flows.iter().enumerate();
            let others = all.filter(|(place, _)| *place != self.place);
            others.map(|(_, flow)| flow.clone()).collect()
        };
        let mut admission = self.admission.clone();
        admission.add(others).ok()?;
        let priorities = [self.flow().priority];
        let route = choose_route(&mut admission, &entry, &ends, &priorities, PATHS).ok()?;
        let admitted = self.see(self.all(route.flow), |_| ()).is_some();
        admitted.then_some(Remedy::Path(route.entry.paths))
    }

    /// The flow without its paths, and where it begins and ends. Its size is that
    /// of its times on the links, rounded up.
    fn elsewhere(&self) -> Option<(FlowEntry, Ends)> {
        let flow = self.flow();
        let topology = &self.admission.network().topology;
        let link = |hop: usize| &topology.links[flow.hops[hop].link];
        let bytes = flow.hops.iter().map(|hop| {
            let bits = u128::from(hop.cost) * u128::from(topology.links[hop.link].rate);
            u64::try_from(bits / 8_000_000_000).unwrap_or(u64::MAX)
        });
        let name = |node: usize| topology.nodes[node].id.clone();
        let costs = flow.hops.iter();
        let costs = costs.map(|hop| (topology.links[hop.link].id.clone(), hop.cost));
        let entry = FlowEntry {
            id: flow.id.clone(),
            prio: flow.priority,
            period_ns: flow.period,
            jitter_ns: flow.jitter,
            deadline_ns: Some(flow.deadline),
            wire_bytes: Some(bytes.max().filter(|bytes| *bytes > 0)?),
            frames: Some(flow.frames),
            cost_ns: costs.collect(),
            fanout_node: flow.fanout.map(name),
            fanout_prio: flow.fanout_priorities(),
            ..FlowEntry::default()
        };
        let ends = Ends {
            source: link(0).from,
            via: flow.fanout,
            receivers: flow.leaves.iter().map(|leaf| link(*leaf).to).collect(),
        };
        Some((entry, ends))
    }

    /// One of the flows that hold it up most goes beside it, or behind it.
    fn demote(&mut self) -> Option<Remedy> {
        let own = self.flow().priority;
        // Finding the flow that delays it most takes an analysis.
        if !self.admission.may_analyse_all() {
            return None;
        }
        let mut network = self.admission.network().clone();
        let place = network.flows.len() + self.place;
        network.flows.extend_from_slice(self.flows);
        let explainer = Explainer::new(&network);
        let mut weights: Vec<(i64, String)> = Vec::new();
        for path in 0..self.flow().leaves.len() {
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
            // It may be one of the refused ones.
            let Some(known) = flows.iter().find(|flow| flow.id == name) else {
                continue;
            };
            let mut other = known.clone();
            let lower = [Some(own), own.checked_sub(1)].into_iter().flatten();
            for priority in lower.filter(|lower| *lower < known.priority) {
                other.priority = priority;
                let mut trial = self.admission.clone();
                trial.remove(&name);
                let mut all = self.flows.to_vec();
                all.push(other.clone());
                if trial.add(all).is_ok() {
                    return Some(Remedy::Demote {
                        flow: name,
                        priority,
                    });
                }
            }
            tried.push(name);
        }
        None
    }
}
