//! Paths for flows: over which links from the publisher to its receivers.
//!
//! [`choose_route`] takes the path that leaves every flow it touches the most
//! time, and only one that [`Admission`] accepts; [`paths_by_bucket_weight`] is
//! what the paper does, [`rendezvous_point`] its choice of the node at which a
//! multicast tree begins. Pure, bounded and repeatable. See `docs/analysis.md`.

mod paths;
mod selection;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::error::Error;
use std::fmt;

use punctual_model::network::{Flow, FlowEntry, LinkIndex, NetworkError, NodeIndex, Topology};

use crate::Refusal;
use crate::admission::Admission;
use crate::levels::Limits;
use crate::system::{StageId, System};

pub use paths::{
    Enumeration, MAX_PATHS, MAX_SHORTEST, MAX_STEPS, Path, WeightedPath, all_paths,
    paths_by_bucket_weight, shortest_paths,
};
use paths::{Exclusions, Map};
pub use selection::{Selection, SelectionError, choose_paths};

/// Paths that are put to [`Admission`] before the search gives up.
pub const MAX_VERIFIED: usize = 32;

/// The nodes at the ends of a flow's paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ends {
    /// The publisher.
    pub source: NodeIndex,
    /// A node that every path visits before it branches: a broker, or the
    /// rendezvous point of a multicast tree.
    pub via: Option<NodeIndex>,
    /// The destinations, in the order in which their paths are to be; no node
    /// twice.
    pub receivers: Vec<NodeIndex>,
}

/// A path that every flow's deadline allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The flow with its paths and priority, to be admitted.
    pub flow: Flow,
    /// The same as an entry of a document.
    pub entry: FlowEntry,
    /// Smallest part of its deadline that a flow which shares a link with this
    /// one has left, by the quick bounds; in millionths. Below 0 if only closer
    /// analysis showed that all are in time.
    pub score: i64,
}

/// Why there is no path for a flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoRoute {
    /// No receivers or no priorities were stated.
    Nothing,
    /// No links lead there.
    Unreachable {
        /// From this node.
        from: String,
        /// To this one.
        to: String,
    },
    /// The flow means nothing on any of the paths.
    Invalid(NetworkError),
    /// Somebody would be late on each of the paths; why on the best of them.
    Refused(Refusal),
}

impl fmt::Display for NoRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str(
                "no receivers or no priorities to choose from; state at least one of each",
            ),
            Self::Unreachable { from, to } => write!(
                f,
                "no links lead from {from:?} to {to:?} on which the flow's time is known; \
                 add links, or state wire_bytes and rates, or cost_ns"
            ),
            Self::Invalid(error) => write!(f, "{error}"),
            Self::Refused(refusal) => {
                write!(f, "no path keeps every deadline; on the best {refusal}")
            }
        }
    }
}

impl Error for NoRoute {}

/// The path and the priority for a flow that leave those it touches the most
/// time, among the `k` shortest paths (at most [`MAX_SHORTEST`]) and these
/// priorities.
///
/// A tree grows leaf by leaf, each by the path that scores best with those
/// before it. `flow` states everything but paths and priority. The paths are
/// tried on the admitted flows as they are; in the end nothing is admitted:
/// that is for the caller to do.
///
/// # Errors
/// See [`NoRoute`].
pub fn choose_route(
    admission: &mut Admission,
    flow: &FlowEntry,
    ends: &Ends,
    priorities: &[u64],
    k: usize,
) -> Result<Route, NoRoute> {
    let topology = admission.network().topology.clone();
    let mut planner = Planner {
        map: Map::new(&topology, flow),
        admission,
        flow,
        ends,
        k: k.clamp(1, MAX_SHORTEST),
        invalid: None,
    };
    let priorities: BTreeSet<u64> = priorities.iter().copied().collect();
    if ends.receivers.is_empty() || priorities.is_empty() {
        return Err(NoRoute::Nothing);
    }
    let mut routes = Vec::new();
    for priority in priorities {
        routes.extend(planner.routes(priority)?);
    }
    // The best first; of equals the shortest, then the least urgent.
    routes.sort_by_key(|plan| (std::cmp::Reverse(plan.score), plan.hops, plan.flow.priority));
    let mut refused = None;
    for plan in routes.into_iter().take(MAX_VERIFIED) {
        match planner.admission.add(vec![plan.flow.clone()]) {
            Ok(()) => {
                planner.admission.remove(&plan.flow.id);
                return Ok(Route {
                    flow: plan.flow,
                    entry: plan.entry,
                    score: plan.score,
                });
            }
            Err(refusal) => {
                refused.get_or_insert(refusal);
            }
        }
    }
    Err(match (refused, planner.invalid) {
        (Some(refusal), _) => NoRoute::Refused(refusal),
        (None, Some(error)) => NoRoute::Invalid(error),
        (None, None) => NoRoute::Nothing,
    })
}

/// The candidate from which receivers are reached in the least time on
/// average, each on its shortest path without other traffic, and that average,
/// ns, rounded down. Of equals the one that is nearest to `source`, and then the
/// first; `None` if no candidate reaches all.
///
/// This is the paper's choice of a rendezvous point. It does not ask what else
/// is on the path, and how a message gets there only among equals: with two
/// receivers each node on the shortest path between them has the same average,
/// and beyond the nearest one a message would go to and fro.
pub fn rendezvous_point(
    topology: &Topology,
    flow: &FlowEntry,
    source: NodeIndex,
    candidates: &[NodeIndex],
    receivers: &[NodeIndex],
) -> Option<(NodeIndex, u64)> {
    let map = Map::new(topology, flow);
    let nodes = topology.nodes.len();
    let sum = |candidate: &NodeIndex| {
        let lengths = map.lengths_from(*candidate);
        let each = receivers.iter().map(|node| *lengths.get(*node)?);
        each.sum::<Option<u64>>()
    };
    let to = match source < nodes {
        true => map.lengths_from(source),
        false => Vec::new(),
    };
    let trunk = |candidate: NodeIndex| to.get(candidate).copied().flatten().unwrap_or(u64::MAX);
    let known = candidates.iter().filter(|candidate| **candidate < nodes);
    let ((sum, _), node) = known
        .filter_map(|candidate| Some(((sum(candidate)?, trunk(*candidate)), *candidate)))
        .min_by_key(|(key, _)| *key)?;
    Some((node, sum.checked_div(receivers.len() as u64)?))
}

/// A path without the parts between two visits of one node. So a branch of a tree that comes back to
/// the trunk leaves the trunk there.
pub fn without_loops(topology: &Topology, path: &[LinkIndex]) -> Vec<LinkIndex> {
    let links = &topology.links;
    let mut kept: Vec<LinkIndex> = Vec::with_capacity(path.len());
    for link in path {
        let Some(to) = links.get(*link).map(|link| link.to) else {
            continue;
        };
        let visited = kept.iter().position(|before| links[*before].from == to);
        match visited {
            Some(before) => kept.truncate(before),
            None => kept.push(*link),
        }
    }
    kept
}

/// A path, and how good it is.
#[derive(Debug, Clone)]
struct Plan {
    flow: Flow,
    entry: FlowEntry,
    score: i64,
    hops: usize,
}

/// Paths that grow from a common beginning.
#[derive(Debug, Clone)]
struct Tree {
    /// From the publisher to where the paths may branch.
    trunk: Vec<LinkIndex>,
    /// One for each receiver, without the trunk.
    branches: Vec<Vec<LinkIndex>>,
}

struct Planner<'a> {
    map: Map<'a>,
    admission: &'a mut Admission,
    flow: &'a FlowEntry,
    ends: &'a Ends,
    k: usize,
    invalid: Option<NetworkError>,
}

impl Planner<'_> {
    /// The paths with a priority: for each trunk the tree that grew best, with
    /// every last branch.
    fn routes(&mut self, priority: u64) -> Result<Vec<Plan>, NoRoute> {
        let mut routes = Vec::new();
        for trunk in self.trunks()? {
            let mut tree = Tree {
                trunk,
                branches: Vec::new(),
            };
            let last = self.ends.receivers.len() - 1;
            for (index, receiver) in self.ends.receivers.iter().enumerate() {
                let mut plans = Vec::new();
                for branch in self.branches(&tree, *receiver)? {
                    let mut grown = tree.clone();
                    grown.branches.push(branch);
                    if let Some(plan) = self.plan(&grown, priority) {
                        plans.push((plan, grown));
                    }
                }
                if index == last {
                    routes.extend(plans.into_iter().map(|(plan, _)| plan));
                    break;
                }
                // Of equals the first, which is the shortest.
                let best = plans.into_iter().rev().max_by_key(|(plan, _)| plan.score);
                match best {
                    Some((_, grown)) => tree = grown,
                    None => break,
                }
            }
        }
        Ok(routes)
    }

    fn trunks(&self) -> Result<Vec<Vec<LinkIndex>>, NoRoute> {
        let Some(via) = self.ends.via.filter(|via| *via != self.ends.source) else {
            return Ok(vec![Vec::new()]);
        };
        self.paths(
            self.ends.source,
            via,
            &Exclusions::nothing(self.map.topology),
        )
    }

    /// Paths to a receiver that follow the tree up to some node and never come
    /// back to it.
    fn branches(&self, tree: &Tree, receiver: NodeIndex) -> Result<Vec<Vec<LinkIndex>>, NoRoute> {
        let topology = self.map.topology;
        let root = self.ends.via.unwrap_or(self.ends.source);
        let links: BTreeSet<LinkIndex> = tree.branches.iter().flatten().copied().collect();
        let heads = links.iter().map(|link| topology.links[*link].to);
        let nodes: BTreeSet<NodeIndex> = heads.chain([root]).collect();
        let mut closed = Exclusions::nothing(topology);
        for (index, link) in topology.links.iter().enumerate() {
            closed.links[index] = tree.trunk.contains(&index)
                || (nodes.contains(&link.to) && !links.contains(&index));
        }
        self.paths(root, receiver, &closed)
    }

    fn paths(
        &self,
        from: NodeIndex,
        to: NodeIndex,
        closed: &Exclusions,
    ) -> Result<Vec<Vec<LinkIndex>>, NoRoute> {
        let nodes = &self.map.topology.nodes;
        let name = |node: NodeIndex| nodes.get(node).map(|node| node.id.clone());
        let paths = match from != to && from < nodes.len() && to < nodes.len() {
            true => self.map.k_shortest(from, to, self.k, closed),
            false => Vec::new(),
        };
        if paths.is_empty() {
            return Err(NoRoute::Unreachable {
                from: name(from).unwrap_or_default(),
                to: name(to).unwrap_or_default(),
            });
        }
        Ok(paths.into_iter().map(|path| path.links).collect())
    }

    fn plan(&mut self, tree: &Tree, priority: u64) -> Option<Plan> {
        let links = &self.map.topology.links;
        let named = |branch: &Vec<LinkIndex>| {
            let all = tree.trunk.iter().chain(branch);
            all.map(|link| links[*link].id.clone()).collect()
        };
        let entry = FlowEntry {
            prio: priority,
            paths: tree.branches.iter().map(named).collect(),
            ..self.flow.clone()
        };
        match self.map.topology.flow(&entry) {
            Ok(flow) => Some(Plan {
                score: self.admission.try_with(&flow, least_left),
                hops: flow.hops.len(),
                flow,
                entry,
            }),
            Err(error) => {
                self.invalid.get_or_insert(error);
                None
            }
        }
    }
}

/// Smallest part of its deadline that is left to a flow at the ports of these
/// stages, in millionths.
fn least_left(system: &System, stages: &[StageId], limits: &Limits) -> i64 {
    let ports: BTreeSet<_> = stages
        .iter()
        .map(|stage| system.stages[*stage].port)
        .collect();
    let touched = ports.iter().flat_map(|port| &system.ports[*port].stages);
    let classes: BTreeSet<_> = touched.map(|stage| system.stages[*stage].class).collect();
    let left = |class: usize| {
        let class = &system.classes[class];
        let each = class.leaves.iter().map(|leaf| {
            let prop = system.ports[system.stages[*leaf].port].prop;
            let end = i128::from(limits.end[*leaf].saturating_add(prop));
            let deadline = i128::from(class.deadline);
            (deadline - end) * 1_000_000 / deadline.max(1)
        });
        each.min()
    };
    let least = classes.into_iter().filter_map(left).min().unwrap_or(0);
    i64::try_from(least).unwrap_or(i64::MIN)
}
