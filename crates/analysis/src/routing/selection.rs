//! Paths for the flows of a document that state where from and where to.
//!
//! One flow after the other, in the order of the document, each beside all
//! that have paths and those before it.

use std::error::Error;
use std::fmt;

use punctual_model::network::{
    Document, FlowEntry, LinkIndex, Network, NetworkError, NodeIndex, Topology,
};

use super::{
    Ends, MAX_SHORTEST, NoRoute, choose_route, paths_by_bucket_weight, rendezvous_point,
    without_loops,
};
use crate::admission::Admission;

/// How paths are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Selection {
    /// By [`choose_route`]: the paths that leave every flow the most time, and
    /// none late.
    Admission,
    /// As in the paper: by [`paths_by_bucket_weight`], to several destinations
    /// over their [`rendezvous_point`]. Deadlines are not considered.
    Paper,
}

/// Why there are no paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SelectionError {
    /// The flow for which none was found; empty if nothing is wrong with a
    /// single one.
    pub flow: String,
    /// Why.
    pub why: NoRoute,
}

impl fmt::Display for SelectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.why {
            NoRoute::Invalid(error) => write!(f, "{error}"),
            why => write!(f, "flows {:?}: {why}", self.flow),
        }
    }
}

impl Error for SelectionError {}

impl From<NetworkError> for SelectionError {
    fn from(error: NetworkError) -> Self {
        Self {
            flow: String::new(),
            why: NoRoute::Invalid(error),
        }
    }
}

/// Chooses paths for the flows of a document that have none, and anew for those
/// named in `again`, whose ends are those of their paths unless they are stated.
/// The paths are written into the document. Returns the indices of these flows.
///
/// A path passes `via`, or else the node at which the flow fans out.
///
/// # Errors
/// What is wrong with the document, or why a flow cannot get there; the
/// document is as it was.
pub fn choose_paths(
    document: &mut Document,
    again: &[String],
    selection: Selection,
) -> Result<Vec<usize>, SelectionError> {
    let known = |id: &String| document.flows.iter().any(|flow| flow.id == *id);
    if let Some(unknown) = again.iter().find(|id| !known(id)) {
        let problem = "is not among the flows; add it or correct the name";
        return Err(NetworkError::new(format!("flows {unknown:?}"), problem).into());
    }
    let (wanting, settled): (Vec<usize>, Vec<usize>) =
        (0..document.flows.len()).partition(|index| wants_paths(&document.flows[*index], again));
    if wanting.is_empty() {
        return Ok(wanting);
    }
    let settled = Document {
        flows: settled
            .into_iter()
            .map(|index| document.flows[index].clone())
            .collect(),
        nodes: document.nodes.clone(),
        links: document.links.clone(),
    };
    let mut admission = Admission::new(Network::new(&settled)?);
    let mut chosen = Vec::with_capacity(wanting.len());
    for index in &wanting {
        let entry = &document.flows[*index];
        let stuck = |why| SelectionError {
            flow: entry.id.clone(),
            why,
        };
        let ends = ends(&admission.network().topology, entry)?;
        let entry = match selection {
            Selection::Admission => {
                let route = choose_route(&mut admission, entry, &ends, &[entry.prio], MAX_SHORTEST)
                    .map_err(stuck)?;
                let added = admission.add(vec![route.flow]);
                added.map_err(|refusal| stuck(NoRoute::Refused(refusal)))?;
                route.entry
            }
            Selection::Paper => {
                let mut network = admission.network().clone();
                let entry = by_weight(&network, entry, &ends).map_err(stuck)?;
                network.flows.push(network.topology.flow(&entry)?);
                // Admitted whether or not they are late.
                admission = Admission::new(network);
                entry
            }
        };
        chosen.push(entry.paths);
    }
    for (index, paths) in wanting.iter().zip(chosen) {
        document.flows[*index].paths = paths;
    }
    Ok(wanting)
}

fn wants_paths(entry: &FlowEntry, again: &[String]) -> bool {
    again.contains(&entry.id) || entry.paths.is_empty() && entry.from.is_some()
}

/// Where a flow goes: as stated, or as its paths do.
fn ends(topology: &Topology, entry: &FlowEntry) -> Result<Ends, NetworkError> {
    let wrong = |field: &str, problem: String| {
        NetworkError::new(format!("flows {:?}: {field}", entry.id), problem)
    };
    let node = |field: &str, id: &String| {
        let problem = || format!("{id:?} is not among the nodes; add it or correct the name");
        topology.node(id).ok_or_else(|| wrong(field, problem()))
    };
    let link = |link: &String| {
        let problem = || format!("{link:?} is not among the links; add it or correct the name");
        let index = topology.link(link);
        index
            .map(|index| &topology.links[index])
            .ok_or_else(|| wrong("paths", problem()))
    };
    let missing = |field| wrong(field, "is missing; state the node, or paths".into());
    let source = match (
        &entry.from,
        entry.paths.first().and_then(|path| path.first()),
    ) {
        (Some(from), _) => node("from", from)?,
        (None, Some(first)) => link(first)?.from,
        (None, None) => return Err(missing("from")),
    };
    let receivers: Vec<NodeIndex> = match entry.to.as_slice() {
        [] => {
            let last = entry.paths.iter().filter_map(|path| path.last());
            last.map(|last| Ok(link(last)?.to))
                .collect::<Result<_, _>>()?
        }
        to => to
            .iter()
            .map(|id| node("to", id))
            .collect::<Result<_, _>>()?,
    };
    if receivers.is_empty() {
        return Err(missing("to"));
    }
    for (index, receiver) in receivers.iter().enumerate() {
        let id = &topology.nodes[*receiver].id;
        if receivers[..index].contains(receiver) {
            return Err(wrong("to", format!("{id:?} is named twice")));
        }
        if *receiver == source {
            return Err(wrong("to", format!("{id:?} is the publisher's own node")));
        }
    }
    let via = entry.via.as_ref().map(|id| node("via", id));
    let fanout = || entry.fanout_node.as_ref().map(|id| node("fanout_node", id));
    Ok(Ends {
        source,
        via: via.or_else(fanout).transpose()?,
        receivers,
    })
}

/// The paths that the paper takes: those of the least weight that are a tree
/// together.
fn by_weight(network: &Network, entry: &FlowEntry, ends: &Ends) -> Result<FlowEntry, NoRoute> {
    let topology = &network.topology;
    let unreachable = |from: NodeIndex, to: NodeIndex| NoRoute::Unreachable {
        from: topology.nodes[from].id.clone(),
        to: topology.nodes[to].id.clone(),
    };
    let via = match (ends.via, ends.receivers.as_slice()) {
        (Some(via), _) => Some(via),
        (None, [_]) => None,
        (None, [first, ..]) => {
            let inner = |node: &NodeIndex| *node != ends.source && !ends.receivers.contains(node);
            let candidates: Vec<_> = (0..topology.nodes.len()).filter(inner).collect();
            let point =
                rendezvous_point(topology, entry, ends.source, &candidates, &ends.receivers);
            Some(point.ok_or_else(|| unreachable(ends.source, *first))?.0)
        }
        (None, []) => return Err(NoRoute::Nothing),
    };
    let paths = |from, to| -> Vec<Vec<LinkIndex>> {
        let paths = paths_by_bucket_weight(network, entry, from, to);
        paths.into_iter().map(|path| path.links).collect()
    };
    let root = via.unwrap_or(ends.source);
    let trunks = match via.filter(|via| *via != ends.source) {
        Some(via) => paths(ends.source, via),
        None => vec![Vec::new()],
    };
    let branches: Vec<_> = ends.receivers.iter().map(|to| paths(root, *to)).collect();
    if trunks.is_empty() {
        return Err(unreachable(ends.source, root));
    }
    if let Some(nowhere) = branches.iter().position(Vec::is_empty) {
        return Err(unreachable(root, ends.receivers[nowhere]));
    }
    let mut invalid = None;
    for trunk in &trunks {
        let mut grown = FlowEntry {
            paths: Vec::new(),
            ..entry.clone()
        };
        for branches in &branches {
            let fitting = branches.iter().find_map(|branch| {
                let links = without_loops(topology, &[trunk.as_slice(), branch].concat());
                let names = links.iter().map(|link| topology.links[*link].id.clone());
                let names = names.collect();
                let mut longer = grown.clone();
                longer.paths.push(names);
                let checked = topology.flow(&longer);
                checked
                    .map(|_| longer)
                    .map_err(|error| invalid.get_or_insert(error).clone())
                    .ok()
            });
            match fitting {
                Some(longer) => grown = longer,
                None => break,
            }
        }
        if grown.paths.len() == branches.len() {
            return Ok(grown);
        }
    }
    Err(invalid.map_or(NoRoute::Nothing, NoRoute::Invalid))
}
