//! From names to indices: what a document says, checked.

use std::collections::HashMap;

use super::document::{Document, FlowEntry, LinkEntry, NodeEntry};
use super::error::NetworkError;
use super::{HopIndex, LinkIndex, MAX_TIME, NodeIndex};

/// Greatest number of frames of one message.
const MAX_FRAMES: u64 = 1_000_000;

/// A node, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub id: String,
    /// Least switching delay, ns.
    pub sd_min: u64,
    /// Greatest switching delay, ns; not below the least.
    pub sd_max: u64,
    /// What replicating adds to the greatest, ns.
    pub copy_max: u64,
}

/// A link, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Its name.
    pub id: String,
    /// The sending node.
    pub from: NodeIndex,
    /// The receiving node.
    pub to: NodeIndex,
    /// Rate, bit/s; 0 if flows state their costs.
    pub rate: u64,
    /// Propagation, ns.
    pub prop: u64,
    /// Longest time that undeclared traffic holds it, ns.
    pub best_effort: u64,
    /// It ignores priorities.
    pub fifo: bool,
    /// It serves by deadline, not by priority.
    pub edf: bool,
    /// Inside a priority it serves in any order, but each flow's frames in
    /// theirs.
    pub unordered: bool,
    /// It serves messages and not frames, each when its last frame is there, and
    /// may take less than the cost.
    pub whole: bool,
}

/// A frame of a flow on a link. A flow has one hop for each link of its tree;
/// beyond its fan-out node one for each copy and link.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Hop {
    /// The link.
    pub link: LinkIndex,
    /// The hop before; none at the publisher. It has a smaller index.
    pub parent: Option<HopIndex>,
    /// Time of one frame on the link, ns; at least 1. Where messages are served
    /// whole, that of a message.
    pub cost: u64,
    /// For how many frames a message counts on the link: those of the flow, or
    /// one where messages are served whole.
    pub frames: u64,
    /// The frame was replicated at the node before the link.
    pub replicated: bool,
    /// Its priority, where it is not that of the flow.
    pub priority: Option<u64>,
}

/// A flow, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flow {
    /// Its name.
    pub id: String,
    /// Priority, the higher the more urgent.
    pub priority: u64,
    /// Least time between nominal releases, ns; at least 1.
    pub period: u64,
    /// Release jitter, ns.
    pub jitter: u64,
    /// Deadline from the nominal release, ns.
    pub deadline: u64,
    /// Frames of a message; at least 1.
    pub frames: u64,
    /// Parents come before their children.
    pub hops: Vec<Hop>,
    /// The last hop to each destination, in the order of the paths.
    pub leaves: Vec<HopIndex>,
    /// The node from which each destination has a copy of its own.
    pub fanout: Option<NodeIndex>,
}

impl Flow {
    /// The priority of its frames on the link of one of its hops.
    pub fn priority_at(&self, hop: &Hop) -> u64 {
        hop.priority.unwrap_or(self.priority)
    }

    /// The priority of the last frame to each destination, if one of them is not that
    /// of the flow; otherwise none.
    pub fn fanout_priorities(&self) -> Vec<u64> {
        let last = self.leaves.iter().map(|leaf| &self.hops[*leaf]);
        match last.clone().any(|hop| hop.priority.is_some()) {
            true => last.map(|hop| self.priority_at(hop)).collect(),
            false => Vec::new(),
        }
    }
}

/// Nodes and links, checked.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Topology {
    /// The nodes, in the order of the document.
    pub nodes: Vec<Node>,
    /// The links, in the order of the document.
    pub links: Vec<Link>,
    node_index: HashMap<String, NodeIndex>,
    link_index: HashMap<String, LinkIndex>,
}

/// A network, checked.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Network {
    /// Nodes and links.
    pub topology: Topology,
    /// Flows, in the order of the document; their names differ.
    pub flows: Vec<Flow>,
}

impl Network {
    /// Checks a document.
    ///
    /// # Errors
    /// The first entry that means nothing: a name that is unknown or given
    /// twice, a number out of range, paths that are no tree.
    pub fn new(document: &Document) -> Result<Self, NetworkError> {
        let topology = Topology::new(&document.nodes, &document.links)?;
        let mut names = HashMap::new();
        let mut flows = Vec::with_capacity(document.flows.len());
        for entry in &document.flows {
            if names.insert(entry.id.as_str(), ()).is_some() {
                return Err(twice("flows", &entry.id));
            }
            flows.push(topology.flow(entry)?);
        }
        Ok(Self { topology, flows })
    }
}

impl Topology {
    /// Checks nodes and links.
    ///
    /// # Errors
    /// As for [`Network::new`].
    pub fn new(nodes: &[NodeEntry], links: &[LinkEntry]) -> Result<Self, NetworkError> {
        let mut topology = Self::default();
        topology.extend(nodes, links)?;
        Ok(topology)
    }

    /// Adds nodes and links after those that are there, whose numbers stay.
    ///
    /// # Errors
    /// As for [`Network::new`]; the entries before the invalid one have been added then.
    pub fn extend(&mut self, nodes: &[NodeEntry], links: &[LinkEntry]) -> Result<(), NetworkError> {
        for entry in nodes {
            self.add_node(entry)?;
        }
        for entry in links {
            self.add_link(entry)?;
        }
        Ok(())
    }

    /// The node of that name.
    pub fn node(&self, id: &str) -> Option<NodeIndex> {
        self.node_index.get(id).copied()
    }

    /// The link of that name.
    pub fn link(&self, id: &str) -> Option<LinkIndex> {
        self.link_index.get(id).copied()
    }

    fn add_node(&mut self, entry: &NodeEntry) -> Result<(), NetworkError> {
        let place = |field: &str| format!("nodes {:?}: {field}", entry.id);
        let sd_max = entry.sd_max_ns.unwrap_or(entry.sd_min_ns);
        limited(entry.sd_min_ns, || place("sd_min_ns"))?;
        limited(sd_max, || place("sd_max_ns"))?;
        limited(entry.copy_max_ns, || place("copy_max_ns"))?;
        if sd_max < entry.sd_min_ns {
            let problem = format!("{sd_max} is below sd_min_ns {}", entry.sd_min_ns);
            return Err(NetworkError::new(place("sd_max_ns"), problem));
        }
        let index = self.nodes.len();
        if self.node_index.insert(entry.id.clone(), index).is_some() {
            return Err(twice("nodes", &entry.id));
        }
        self.nodes.push(Node {
            id: entry.id.clone(),
            sd_min: entry.sd_min_ns,
            sd_max,
            copy_max: entry.copy_max_ns,
        });
        Ok(())
    }

    fn add_link(&mut self, entry: &LinkEntry) -> Result<(), NetworkError> {
        let place = |field: &str| format!("links {:?}: {field}", entry.id);
        let end = |field: &str, id: &str| {
            let problem = || format!("{id:?} is not among the nodes; add it or correct the name");
            self.node(id)
                .ok_or_else(|| NetworkError::new(place(field), problem()))
        };
        let from = end("from", &entry.from)?;
        let to = end("to", &entry.to)?;
        limited(entry.prop_ns, || place("prop_ns"))?;
        let rate = entry.rate_bps.unwrap_or(0);
        let best_effort = match (entry.be_ns, entry.be_bytes) {
            (Some(_), Some(_)) => {
                let problem = "and be_ns are both stated; leave one out";
                return Err(NetworkError::new(place("be_bytes"), problem));
            }
            (Some(nanos), None) => limited(nanos, || place("be_ns"))?,
            (None, Some(0)) | (None, None) => 0,
            (None, Some(bytes)) => transmission(bytes, rate, || place("be_bytes"))?,
        };
        if entry.fifo && entry.edf {
            let problem = "and fifo are both stated; leave one out";
            return Err(NetworkError::new(place("edf"), problem));
        }
        if entry.unordered && (entry.fifo || entry.edf) {
            let problem = "goes by priority, and fifo or edf is stated; leave one out";
            return Err(NetworkError::new(place("unordered"), problem));
        }
        let index = self.links.len();
        if self.link_index.insert(entry.id.clone(), index).is_some() {
            return Err(twice("links", &entry.id));
        }
        self.links.push(Link {
            id: entry.id.clone(),
            from,
            to,
            rate,
            prop: entry.prop_ns,
            best_effort,
            fifo: entry.fifo,
            edf: entry.edf,
            unordered: entry.unordered,
            whole: entry.whole,
        });
        Ok(())
    }

    /// Checks a flow against these nodes and links.
    ///
    /// # Errors
    /// As for [`Network::new`]; whether the name is free is for the caller to
    /// know.
    pub fn flow(&self, entry: &FlowEntry) -> Result<Flow, NetworkError> {
        let place = |field: &str| format!("flows {:?}: {field}", entry.id);
        if entry.period_ns == 0 {
            let problem = "0 is no period; the least is 1";
            return Err(NetworkError::new(place("period_ns"), problem));
        }
        limited(entry.period_ns, || place("period_ns"))?;
        limited(entry.jitter_ns, || place("jitter_ns"))?;
        let frames = entry.frames.unwrap_or(1);
        if frames == 0 || frames > MAX_FRAMES {
            let problem = format!("{frames} must be from 1 to {MAX_FRAMES}");
            return Err(NetworkError::new(place("frames"), problem));
        }
        for link in entry.cost_ns.keys() {
            self.known_link(link, || place("cost_ns"))?;
        }
        let paths = self.paths(entry)?;
        let fanout = self.fanout(entry, &paths)?;
        let (hops, leaves) = self.tree(entry, &paths, fanout)?;
        Ok(Flow {
            id: entry.id.clone(),
            priority: entry.prio,
            period: entry.period_ns,
            jitter: entry.jitter_ns,
            deadline: entry.deadline_ns.unwrap_or(entry.period_ns),
            frames,
            hops,
            leaves,
            fanout,
        })
    }

    fn known_link(
        &self,
        id: &str,
        place: impl FnOnce() -> String,
    ) -> Result<LinkIndex, NetworkError> {
        let problem = || format!("{id:?} is not among the links; add it or correct the name");
        self.link(id)
            .ok_or_else(|| NetworkError::new(place(), problem()))
    }

    /// The paths as links: connected, no link twice, all from one node, and
    /// every link has one predecessor.
    fn paths(&self, entry: &FlowEntry) -> Result<Vec<Vec<LinkIndex>>, NetworkError> {
        let place = |index: usize| format!("flows {:?}: paths[{index}]", entry.id);
        if entry.paths.is_empty() {
            let problem = "is empty; state the links to at least one destination, or from and to \
                           and have them chosen";
            return Err(NetworkError::new(
                format!("flows {:?}: paths", entry.id),
                problem,
            ));
        }
        let mut paths = Vec::with_capacity(entry.paths.len());
        let mut before: HashMap<LinkIndex, Option<LinkIndex>> = HashMap::new();
        let mut source = None;
        for (index, names) in entry.paths.iter().enumerate() {
            let fail = |problem: String| Err(NetworkError::new(place(index), problem));
            let mut path: Vec<LinkIndex> = Vec::with_capacity(names.len());
            for name in names {
                let link = self.known_link(name, || place(index))?;
                let last = path.last().copied();
                if let Some(last) = last
                    && self.links[last].to != self.links[link].from
                {
                    let end = &self.nodes[self.links[last].to].id;
                    return fail(format!(
                        "{name:?} does not start at {end:?}, where the link before it ends"
                    ));
                }
                if path.contains(&link) {
                    return fail(format!("{name:?} is visited twice"));
                }
                if *before.entry(link).or_insert(last) != last {
                    return fail(format!(
                        "{name:?} has another predecessor here than in a path before; the paths must be a tree"
                    ));
                }
                path.push(link);
            }
            let Some(first) = path.first() else {
                return fail("is empty; state its links".into());
            };
            let from = self.links[*first].from;
            if *source.get_or_insert(from) != from {
                let (this, other) = (&self.nodes[from].id, &self.nodes[source.unwrap_or(from)].id);
                return fail(format!(
                    "starts at {this:?}, and another path at {other:?}; a flow has one publisher"
                ));
            }
            paths.push(path);
        }
        Ok(paths)
    }

    /// The fan-out node: every path leaves it once or ends there, and until there
    /// they are one.
    fn fanout(
        &self,
        entry: &FlowEntry,
        paths: &[Vec<LinkIndex>],
    ) -> Result<Option<NodeIndex>, NetworkError> {
        let problem = match (&entry.fanout_node, entry.fanout_prio.len()) {
            (_, 0) => None,
            (None, _) => {
                Some("is stated without fanout_node; state that, too, or leave it out".to_owned())
            }
            (Some(_), stated) => (stated != paths.len()).then(|| {
                let paths = paths.len();
                format!("has {stated} priorities for {paths} paths; state one for each, or none")
            }),
        };
        if let Some(problem) = problem {
            let place = format!("flows {:?}: fanout_prio", entry.id);
            return Err(NetworkError::new(place, problem));
        }
        let Some(id) = &entry.fanout_node else {
            return Ok(None);
        };
        let fail = |problem: String| {
            Err(NetworkError::new(
                format!("flows {:?}: fanout_node", entry.id),
                problem,
            ))
        };
        let Some(node) = self.node(id) else {
            return fail(format!(
                "{id:?} is not among the nodes; add it or correct the name"
            ));
        };
        for (index, path) in paths.iter().enumerate() {
            let times = path
                .iter()
                .filter(|link| self.links[**link].from == node)
                .count();
            let ends = path.last().is_some_and(|last| self.links[*last].to == node);
            if times != 1 && !(times == 0 && ends) {
                return fail(format!(
                    "paths[{index}] leaves {id:?} {times} times; each path must leave it once, or end there"
                ));
            }
            if self.shared(path, node) != self.shared(&paths[0], node) {
                return fail(format!(
                    "paths[{index}] comes to {id:?} another way than paths[0]; before it there is one frame"
                ));
            }
        }
        Ok(Some(node))
    }

    /// The part of a path before a node.
    fn shared<'a>(&self, path: &'a [LinkIndex], node: NodeIndex) -> &'a [LinkIndex] {
        let leaves = path.iter().position(|link| self.links[*link].from == node);
        &path[..leaves.unwrap_or(path.len())]
    }

    fn tree(
        &self,
        entry: &FlowEntry,
        paths: &[Vec<LinkIndex>],
        fanout: Option<NodeIndex>,
    ) -> Result<(Vec<Hop>, Vec<HopIndex>), NetworkError> {
        let mut hops: Vec<Hop> = Vec::new();
        let mut leaves = Vec::with_capacity(paths.len());
        let mut hop_of: HashMap<LinkIndex, HopIndex> = HashMap::new();
        for (index, path) in paths.iter().enumerate() {
            let shared = fanout.map_or(path.len(), |node| self.shared(path, node).len());
            let mut parent = None;
            for (position, link) in path.iter().enumerate() {
                let known = hop_of.get(link).filter(|_| position < shared);
                let hop =
                    match known {
                        Some(hop) => *hop,
                        None => {
                            hops.push(Hop {
                                link: *link,
                                parent,
                                cost: self.cost(entry, *link)?,
                                frames: match self.links[*link].whole {
                                    true => 1,
                                    false => entry.frames.unwrap_or(1),
                                },
                                replicated: position == shared,
                                priority: entry.fanout_prio.get(index).copied().filter(
                                    |priority| position >= shared && *priority != entry.prio,
                                ),
                            });
                            if position < shared {
                                hop_of.insert(*link, hops.len() - 1);
                            }
                            hops.len() - 1
                        }
                    };
                parent = Some(hop);
            }
            leaves.extend(parent);
        }
        // Multicast: whoever leaves a node with a sibling.
        let mut children = vec![0_usize; hops.len()];
        for hop in &hops {
            if let Some(parent) = hop.parent {
                children[parent] += 1;
            }
        }
        for hop in &mut hops {
            hop.replicated |= hop.parent.is_some_and(|parent| children[parent] > 1);
        }
        Ok((hops, leaves))
    }

    fn cost(&self, entry: &FlowEntry, link: LinkIndex) -> Result<u64, NetworkError> {
        let id = &self.links[link].id;
        if let Some(cost) = entry.cost_ns.get(id) {
            let place = || format!("flows {:?}: cost_ns {id:?}", entry.id);
            if *cost == 0 {
                return Err(NetworkError::new(place(), "0 is no cost; the least is 1"));
            }
            return limited(*cost, place);
        }
        let place = || format!("flows {:?}: wire_bytes", entry.id);
        match entry.wire_bytes {
            Some(0) => Err(NetworkError::new(place(), "0 is no frame; the least is 1")),
            Some(bytes) if self.links[link].rate > 0 => {
                transmission(bytes, self.links[link].rate, place)
            }
            _ => {
                let problem = format!(
                    "no time is known on link {id:?}; state wire_bytes and its rate_bps, or cost_ns there"
                );
                Err(NetworkError::new(format!("flows {:?}", entry.id), problem))
            }
        }
    }
}

/// Time of that many bytes at a rate, rounded up to whole nanoseconds.
fn transmission(
    bytes: u64,
    rate: u64,
    place: impl FnOnce() -> String,
) -> Result<u64, NetworkError> {
    if rate == 0 {
        let problem = "needs a rate; state rate_bps, or a time instead of a size";
        return Err(NetworkError::new(place(), problem));
    }
    let nanos = (u128::from(bytes) * 8_000_000_000).div_ceil(u128::from(rate));
    limited(u64::try_from(nanos).unwrap_or(u64::MAX), place)
}

fn limited(nanos: u64, place: impl FnOnce() -> String) -> Result<u64, NetworkError> {
    if nanos > MAX_TIME {
        let problem = format!("{nanos} ns is too long; the most is {MAX_TIME} ns");
        return Err(NetworkError::new(place(), problem));
    }
    Ok(nanos)
}

fn twice(list: &str, id: &str) -> NetworkError {
    NetworkError::new(
        format!("{list} {id:?}"),
        "is there twice; names must differ",
    )
}
