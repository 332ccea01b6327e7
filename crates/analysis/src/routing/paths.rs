//! Paths through a network: all of them, and the shortest.
//!
//! A path visits no node twice. Everything here is bounded and depends on the
//! order of the links in the network only, so it can be repeated. Sources:
//! depth-first enumeration and bucket weights as in "A Scalable Real-Time
//! SDN-Based MQTT Framework for Industrial Applications", section IV-B; the k
//! shortest as in Yen (1971).

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use punctual_model::network::{Flow, FlowEntry, LinkIndex, MAX_TIME, Network, NodeIndex, Topology};

use crate::load::{FULL, Load, parts_of};

/// Paths that an enumeration gives at most.
pub const MAX_PATHS: usize = 4_096;
/// Links that an enumeration looks at before it stops.
pub const MAX_STEPS: u32 = 1 << 20;
/// Shortest paths that are looked for at most.
pub const MAX_SHORTEST: usize = 8;

/// A path and its length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path {
    /// Its links in order.
    pub links: Vec<LinkIndex>,
    /// Time of a frame from its first queue to the last bit at the end, without
    /// any other traffic and with the greatest switching delays, ns.
    pub length: u64,
}

/// All paths between two nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Enumeration {
    /// In the order in which a depth-first search meets them, the links of a
    /// node in the order of the network.
    pub paths: Vec<Vec<LinkIndex>>,
    /// These are all; false if [`MAX_PATHS`] or [`MAX_STEPS`] ended the search.
    pub complete: bool,
}

/// A path as the paper weighs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightedPath {
    /// Its links in order.
    pub links: Vec<LinkIndex>,
    /// Sum of the weights of its links, ns.
    pub weight: u64,
    /// The bucket weight of equation (1), in thousandths: from 0 to below
    /// 10 000, the more the better. 0 for the only path.
    pub bucket: u64,
}

/// Links by the node that they leave, and how long each is for a flow.
#[derive(Debug)]
pub(super) struct Map<'a> {
    pub(super) topology: &'a Topology,
    leaving: Vec<Vec<LinkIndex>>,
    /// `None`: no time is known for the flow there, so it cannot go there.
    lengths: Vec<Option<u64>>,
}

/// What a search must not use.
#[derive(Debug, Clone)]
pub(super) struct Exclusions {
    pub(super) links: Vec<bool>,
    nodes: Vec<bool>,
}

impl Exclusions {
    pub(super) fn nothing(topology: &Topology) -> Self {
        Self {
            links: vec![false; topology.links.len()],
            nodes: vec![false; topology.nodes.len()],
        }
    }
}

impl<'a> Map<'a> {
    pub(super) fn new(topology: &'a Topology, flow: &FlowEntry) -> Self {
        let mut leaving = vec![Vec::new(); topology.nodes.len()];
        for (index, link) in topology.links.iter().enumerate() {
            leaving[link.from].push(index);
        }
        let length = |link| {
            let cost = frame_time(topology, flow, link)?;
            let link = &topology.links[link];
            Some(topology.nodes[link.from].sd_max + cost + link.prop)
        };
        Self {
            topology,
            leaving,
            lengths: (0..topology.links.len()).map(length).collect(),
        }
    }

    pub(super) fn length(&self, links: &[LinkIndex]) -> u64 {
        links.iter().filter_map(|link| self.lengths[*link]).sum()
    }

    /// Lengths from a node to all others, and the link by which each is reached.
    fn tree(
        &self,
        from: NodeIndex,
        until: Option<NodeIndex>,
        closed: &Exclusions,
    ) -> Vec<Option<(u64, Option<LinkIndex>)>> {
        let mut reached: Vec<Option<(u64, Option<LinkIndex>)>> = vec![None; self.leaving.len()];
        let mut queue = BinaryHeap::from([Reverse((0_u64, 0_usize, from, None::<LinkIndex>))]);
        while let Some(Reverse((length, hops, node, over))) = queue.pop() {
            if reached[node].is_some() {
                continue;
            }
            reached[node] = Some((length, over));
            if until == Some(node) {
                break;
            }
            for link in &self.leaving[node] {
                let next = self.topology.links[*link].to;
                if closed.links[*link] || closed.nodes[next] || reached[next].is_some() {
                    continue;
                }
                if let Some(step) = self.lengths[*link] {
                    queue.push(Reverse((length + step, hops + 1, next, Some(*link))));
                }
            }
        }
        reached
    }

    /// Length of the shortest path to each node, if there is one.
    pub(super) fn lengths_from(&self, from: NodeIndex) -> Vec<Option<u64>> {
        let reached = self.tree(from, None, &Exclusions::nothing(self.topology));
        reached
            .into_iter()
            .map(|reached| reached.map(|(length, _)| length))
            .collect()
    }

    fn shortest(&self, from: NodeIndex, to: NodeIndex, closed: &Exclusions) -> Option<Path> {
        let reached = self.tree(from, Some(to), closed);
        let (length, _) = reached[to]?;
        let mut links = Vec::new();
        let mut node = to;
        while let Some((_, Some(link))) = reached[node] {
            links.push(link);
            node = self.topology.links[link].from;
        }
        links.reverse();
        Some(Path { links, length })
    }

    /// Up to `k` shortest paths, the shortest first.
    pub(super) fn k_shortest(
        &self,
        from: NodeIndex,
        to: NodeIndex,
        k: usize,
        closed: &Exclusions,
    ) -> Vec<Path> {
        let mut found: Vec<Path> = Vec::new();
        let mut candidates: BTreeSet<(u64, usize, Vec<LinkIndex>)> = BTreeSet::new();
        let mut next = self.shortest(from, to, closed);
        while let Some(path) = next {
            if found.len() + 1 >= k.min(MAX_SHORTEST) {
                found.push(path);
                break;
            }
            self.spurs(from, to, &path, &found, closed, &mut candidates);
            found.push(path);
            next = candidates
                .pop_first()
                .map(|(length, _, links)| Path { links, length });
        }
        found
    }

    /// The shortest paths that leave the last one at each of its nodes for a
    /// link that no path found so far takes there.
    fn spurs(
        &self,
        from: NodeIndex,
        to: NodeIndex,
        last: &Path,
        found: &[Path],
        closed: &Exclusions,
        candidates: &mut BTreeSet<(u64, usize, Vec<LinkIndex>)>,
    ) {
        let mut closed = closed.clone();
        let mut node = from;
        for (place, link) in last.links.iter().enumerate() {
            let root = &last.links[..place];
            let mut here = closed.clone();
            here.links[*link] = true;
            for other in found.iter().filter(|other| other.links.starts_with(root)) {
                if let Some(link) = other.links.get(place) {
                    here.links[*link] = true;
                }
            }
            if let Some(spur) = self.shortest(node, to, &here) {
                let links = [root, &spur.links].concat();
                candidates.insert((self.length(&links), links.len(), links));
            }
            closed.nodes[node] = true;
            node = self.topology.links[*link].to;
        }
    }
}

/// Time of one frame of a flow on a link, ns; `None` if neither the flow nor
/// its size and the link's rate say.
fn frame_time(topology: &Topology, flow: &FlowEntry, link: LinkIndex) -> Option<u64> {
    let link = &topology.links[link];
    let nanos = match flow.cost_ns.get(&link.id) {
        Some(cost) => u128::from(*cost),
        None if link.rate > 0 => {
            let bits = u128::from(flow.wire_bytes?) * 8_000_000_000;
            bits.div_ceil(u128::from(link.rate))
        }
        None => return None,
    };
    u64::try_from(nanos).ok().filter(|nanos| *nanos <= MAX_TIME)
}

/// Up to `k` shortest paths for a flow, at most [`MAX_SHORTEST`], the shortest
/// first; of equally long ones that with fewer links. Empty if there is none,
/// and if both ends are one node.
pub fn shortest_paths(
    topology: &Topology,
    flow: &FlowEntry,
    from: NodeIndex,
    to: NodeIndex,
    k: usize,
) -> Vec<Path> {
    let nodes = topology.nodes.len();
    if from == to || from >= nodes || to >= nodes || k == 0 {
        return Vec::new();
    }
    Map::new(topology, flow).k_shortest(from, to, k, &Exclusions::nothing(topology))
}

/// All paths between two nodes, by a depth-first search.
pub fn all_paths(topology: &Topology, from: NodeIndex, to: NodeIndex) -> Enumeration {
    let mut all = Enumeration {
        paths: Vec::new(),
        complete: true,
    };
    let nodes = topology.nodes.len();
    if from == to || from >= nodes || to >= nodes {
        return all;
    }
    let mut leaving = vec![Vec::new(); nodes];
    for (index, link) in topology.links.iter().enumerate() {
        leaving[link.from].push(index);
    }
    let mut on_path = vec![false; nodes];
    on_path[from] = true;
    let mut links: Vec<LinkIndex> = Vec::new();
    // For each node of the path, the links that were looked at.
    let mut looked = vec![0_usize];
    let mut left = MAX_STEPS;
    while let Some(at) = looked.last_mut() {
        let node = links.last().map_or(from, |link| topology.links[*link].to);
        let Some(link) = leaving[node].get(*at).copied() else {
            on_path[node] = false;
            links.pop();
            looked.pop();
            continue;
        };
        *at += 1;
        match left.checked_sub(1) {
            Some(rest) if all.paths.len() < MAX_PATHS => left = rest,
            _ => {
                all.complete = false;
                break;
            }
        }
        let next = topology.links[link].to;
        if next == to {
            all.paths.push([links.as_slice(), &[link]].concat());
        } else if !on_path[next] {
            on_path[next] = true;
            links.push(link);
            looked.push(0);
        }
    }
    all
}

/// The paths of a flow between two nodes as the paper selects them, the best
/// first: all paths, weighed by equation (1).
///
/// The paper combines delay and available bandwidth into the weight of a link
/// and does not say how. Here it is the time of a frame at the rate that the
/// declared flows leave, with propagation and the greatest switching delay; a
/// link that they fill is no path. The selection knows neither deadlines nor
/// other flows' bounds: see [`choose_route`](crate::choose_route) for one that
/// does.
pub fn paths_by_bucket_weight(
    network: &Network,
    flow: &FlowEntry,
    from: NodeIndex,
    to: NodeIndex,
) -> Vec<WeightedPath> {
    let topology = &network.topology;
    let taken = loads(topology, &network.flows);
    let weight = |link: &LinkIndex| {
        let free = FULL.checked_sub(taken[*link]).filter(|free| *free > 0)?;
        let cost = u128::from(frame_time(topology, flow, *link)?);
        let link = &topology.links[*link];
        // Shares of 2^-48, lest it overflows.
        let stretched = (cost << 48).div_ceil((free >> 16).max(1));
        let fixed = topology.nodes[link.from].sd_max + link.prop;
        u64::try_from(stretched).ok()?.checked_add(fixed)
    };
    let weigh = |links: Vec<LinkIndex>| {
        let weights = links.iter().map(weight);
        let weight = weights.collect::<Option<Vec<_>>>()?.into_iter();
        let weight = weight.fold(0, u64::saturating_add);
        Some(WeightedPath {
            links,
            weight,
            bucket: 0,
        })
    };
    let paths = all_paths(topology, from, to).paths.into_iter();
    let mut paths: Vec<_> = paths.filter_map(weigh).collect();
    let sum: u128 = paths.iter().map(|path| u128::from(path.weight)).sum();
    for path in &mut paths {
        let share = (u128::from(path.weight) * 10_000).div_ceil(sum.max(1));
        path.bucket = 10_000 - u64::try_from(share).unwrap_or(10_000).min(10_000);
    }
    paths.sort_by(|a, b| {
        let key = |path: &WeightedPath| (path.weight, path.links.len());
        key(a).cmp(&key(b)).then_with(|| a.links.cmp(&b.links))
    });
    paths
}

/// Share of each link that flows take.
fn loads(topology: &Topology, flows: &[Flow]) -> Vec<Load> {
    let mut loads = vec![0; topology.links.len()];
    for flow in flows {
        for (link, part) in parts_of(flow) {
            let taken: &mut Load = &mut loads[link];
            *taken = taken.saturating_add(part);
        }
    }
    loads
}
