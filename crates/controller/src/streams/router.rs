//! Paths for streams: from the port where packets enter, over switches, to the
//! ports of the receivers.
//!
//! Paths are computed between switches only, and cached for each pair until a link is added or
//! removed, because a host has one link. A stream to several receivers goes first to a rendezvous
//! point, the switch with the smallest average delay to all receivers, and branches there. A branch
//! that would return to a switch of the trunk leaves the trunk at that switch instead: no switch is
//! passed twice, and so no cable in both directions.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use punctual_analysis::{
    Admission, paths_by_bucket_weight, rendezvous_point, shortest_paths, without_loops,
};
use punctual_model::network::{
    FlowEntry, LinkEntry, LinkIndex, NodeEntry, NodeIndex, Topology as Model,
};

use super::Receiver;
use crate::settings::Routing;
use crate::topology::{End, Map};

/// Most pairs of switches whose paths are cached.
const MAX_REMEMBERED: usize = 100_000;

/// A path to each receiver, beginning with the link of the sending host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct PathSet {
    /// Paths in the order of the receivers; the path of a receiver at the sender's own port is
    /// empty.
    pub(crate) paths: Vec<Vec<LinkIndex>>,
    /// The last switch that all paths have in common.
    pub(crate) rendezvous: Option<u64>,
}

/// A query for paths.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PathQuery<'a> {
    pub(crate) source: End,
    pub(crate) receivers: &'a [Receiver],
    /// Size and period of the flow, which determine the weights of links.
    pub(crate) flow: &'a FlowEntry,
    /// Most paths that are examined.
    pub(crate) paths: usize,
}

/// Finds paths.
#[derive(Debug, Clone, Default)]
pub(crate) struct Router {
    routing: Routing,
    /// Switches, and the links between them that are up.
    fabric: Model,
    /// Index of each link of the fabric in the whole network.
    whole: Vec<LinkIndex>,
    node: BTreeMap<u64, NodeIndex>,
    datapaths: Vec<u64>,
    /// Datapath identifiers by node of the whole network.
    switches: HashMap<NodeIndex, u64>,
    remembered: HashMap<(NodeIndex, NodeIndex, usize), Vec<Vec<LinkIndex>>>,
}

impl Router {
    pub(crate) fn new(routing: Routing) -> Self {
        Self {
            routing,
            ..Self::default()
        }
    }

    /// Rebuilds the fabric after links were added or removed.
    pub(crate) fn update(&mut self, map: &Map) {
        self.remembered.clear();
        self.whole.clear();
        self.node.clear();
        self.datapaths.clear();
        self.switches.clear();
        let model = map.model();
        let mut nodes = Vec::new();
        let mut index = HashMap::new();
        for (datapath, node) in map.switch_nodes() {
            self.switches.insert(node, datapath);
            let Some(node) = model.nodes.get(node) else {
                continue;
            };
            index.insert(node.id.as_str(), nodes.len());
            self.node.insert(datapath, nodes.len());
            self.datapaths.push(datapath);
            nodes.push(NodeEntry {
                id: node.id.clone(),
                sd_min_ns: node.sd_min,
                sd_max_ns: Some(node.sd_max),
                copy_max_ns: node.copy_max,
            });
        }
        let mut links = Vec::new();
        for (place, link) in model.links.iter().enumerate() {
            let (from, to) = (&model.nodes[link.from].id, &model.nodes[link.to].id);
            if map.is_up(place)
                && index.contains_key(from.as_str())
                && index.contains_key(to.as_str())
            {
                links.push(LinkEntry {
                    id: link.id.clone(),
                    from: from.clone(),
                    to: to.clone(),
                    rate_bps: Some(link.rate),
                    prop_ns: link.prop,
                    ..LinkEntry::default()
                });
                self.whole.push(place);
            }
        }
        // Nodes and links were validated as a part of the whole network.
        self.fabric = Model::new(&nodes, &links).unwrap_or_default();
    }

    /// Path sets for a stream in addition to the admitted flows, the best first; empty if a
    /// receiver is unreachable.
    pub(crate) fn path_sets(
        &mut self,
        map: &Map,
        admission: &Admission,
        wanted: PathQuery<'_>,
    ) -> Vec<PathSet> {
        match wanted.receivers {
            [] => Vec::new(),
            [receiver] => {
                let paths = self.unicast(map, admission, wanted, receiver.at);
                let path_set = |path| PathSet {
                    paths: vec![path],
                    rendezvous: None,
                };
                paths.into_iter().map(path_set).collect()
            }
            receivers => self.trees(map, wanted, receivers),
        }
    }

    fn unicast(
        &mut self,
        map: &Map,
        admission: &Admission,
        wanted: PathQuery<'_>,
        to: End,
    ) -> Vec<Vec<LinkIndex>> {
        if wanted.source == to {
            return vec![Vec::new()];
        }
        let Some((first, last)) = access(map, wanted.source, to) else {
            return Vec::new();
        };
        if self.routing == Routing::Paper {
            let links = &map.model().links;
            let (from, to) = (links[first].from, links[last].to);
            let best = paths_by_bucket_weight(admission.network(), wanted.flow, from, to)
                .into_iter()
                .next();
            return best.into_iter().map(|path| path.links).collect();
        }
        let between = self.between(
            wanted.source.datapath,
            to.datapath,
            wanted.flow,
            wanted.paths,
        );
        let mut paths: Vec<Vec<LinkIndex>> = between
            .iter()
            .map(|links| [&[first], links.as_slice(), &[last]].concat())
            .collect();
        if paths.len() > 1 {
            // Weight of a link: time of a frame at the rate that is not reserved.
            let links = &map.model().links;
            let nodes = &map.model().nodes;
            let loads = admission.loads();
            let weight = |path: &Vec<LinkIndex>| {
                let each = path.iter().map(|link| {
                    let taken = loads.get(*link).copied().unwrap_or(0);
                    let left = 1_000_000_u64.saturating_sub(taken).max(1);
                    let link = &links[*link];
                    let bits = u128::from(wanted.flow.wire_bytes.unwrap_or(1538)) * 8_000_000_000;
                    let time = bits / u128::from(link.rate.max(1)) * 1_000_000 / u128::from(left);
                    time + u128::from(nodes[link.from].sd_max + link.prop)
                });
                each.sum::<u128>()
            };
            paths.sort_by_cached_key(weight);
        }
        paths
    }

    /// Paths between two switches as links of the whole network, the shortest first.
    fn between(&mut self, from: u64, to: u64, flow: &FlowEntry, k: usize) -> Vec<Vec<LinkIndex>> {
        if from == to {
            return vec![Vec::new()];
        }
        let (Some(a), Some(b)) = (self.node.get(&from), self.node.get(&to)) else {
            return Vec::new();
        };
        if let Some(known) = self.remembered.get(&(*a, *b, k)) {
            return known.clone();
        }
        let found = shortest_paths(&self.fabric, &reference(flow), *a, *b, k).into_iter();
        let whole = |links: Vec<LinkIndex>| links.iter().map(|link| self.whole[*link]).collect();
        let found: Vec<Vec<LinkIndex>> = found.map(|path| whole(path.links)).collect();
        if self.remembered.len() < MAX_REMEMBERED {
            self.remembered.insert((*a, *b, k), found.clone());
        }
        found
    }

    /// Trees over the best rendezvous points, and one tree that branches wherever the shortest
    /// paths do; sorted by the time to the farthest receiver without other traffic, then by the
    /// number of links. With the paper's method, trees are in the order of their rendezvous points.
    fn trees(&mut self, map: &Map, wanted: PathQuery<'_>, receivers: &[Receiver]) -> Vec<PathSet> {
        let flow = reference(wanted.flow);
        let Some(source) = self.node.get(&wanted.source.datapath).copied() else {
            return Vec::new();
        };
        let far = receivers
            .iter()
            .filter_map(|receiver| self.node.get(&receiver.at.datapath));
        let mut far: Vec<NodeIndex> = far.copied().collect();
        far.sort_unstable();
        far.dedup();
        let mut candidates: Vec<NodeIndex> = self.node.values().copied().collect();
        let mut points = Vec::new();
        while points.len() + 1 < wanted.paths.max(2) {
            let point = rendezvous_point(&self.fabric, &flow, source, &candidates, &far);
            let Some((point, _)) = point else {
                break;
            };
            candidates.retain(|candidate| *candidate != point);
            points.push(self.datapaths[point]);
        }
        points.push(wanted.source.datapath);
        let mut trees: Vec<PathSet> = Vec::new();
        for point in points {
            let tree = self.tree(map, wanted, receivers, point);
            trees.extend(tree.filter(|tree| !trees.contains(tree)));
        }
        if self.routing != Routing::Paper {
            trees.sort_by_cached_key(|tree| {
                let links: BTreeSet<&LinkIndex> = tree.paths.iter().flatten().collect();
                (self.delay(map, wanted.flow, tree), links.len())
            });
        }
        trees
    }

    /// The time in ns by which trees are compared, without other traffic: to the farthest receiver,
    /// or, with the paper's method, the mean over all receivers.
    pub(crate) fn delay(&self, map: &Map, flow: &FlowEntry, tree: &PathSet) -> u64 {
        let bytes = flow.wire_bytes.unwrap_or(1538);
        let times = tree.paths.iter().map(|path| idle_time(map, bytes, path));
        let delay = match self.routing {
            Routing::Paper => times.sum::<u128>() / tree.paths.len().max(1) as u128,
            _ => times.max().unwrap_or(0),
        };
        u64::try_from(delay).unwrap_or(u64::MAX)
    }

    fn tree(
        &mut self,
        map: &Map,
        wanted: PathQuery<'_>,
        receivers: &[Receiver],
        point: u64,
    ) -> Option<PathSet> {
        let trunk = self
            .between(wanted.source.datapath, point, wanted.flow, 1)
            .into_iter()
            .next()?;
        let mut paths = Vec::with_capacity(receivers.len());
        for receiver in receivers {
            if receiver.at == wanted.source {
                paths.push(Vec::new());
                continue;
            }
            let (first, last) = access(map, wanted.source, receiver.at)?;
            let branch = self
                .between(point, receiver.at.datapath, wanted.flow, 1)
                .into_iter()
                .next()?;
            let links = [trunk.as_slice(), &branch].concat();
            let links = without_loops(map.model(), &links);
            paths.push([&[first], links.as_slice(), &[last]].concat());
        }
        let mut others = paths.iter().filter(|path| !path.is_empty());
        let mut common = others.next().map_or(&[][..], Vec::as_slice);
        for path in others {
            let both = common.iter().zip(path);
            let length = both.take_while(|(one, other)| one == other).count();
            common = &common[..length];
        }
        let links = &map.model().links;
        let mut common = common.iter().rev();
        let rendezvous = common.find_map(|link| self.switches.get(&links[*link].to));
        Some(PathSet {
            rendezvous: rendezvous.copied().or(Some(wanted.source.datapath)),
            paths,
        })
    }
}

/// The time in ns of a frame of `bytes` on a path without other traffic.
fn idle_time(map: &Map, bytes: u64, path: &[LinkIndex]) -> u128 {
    let model = map.model();
    let bits = u128::from(bytes) * 8_000_000_000;
    let each = path.iter().filter_map(|link| {
        let link = model.links.get(*link)?;
        let node = model.nodes.get(link.from)?;
        Some(bits / u128::from(link.rate.max(1)) + u128::from(node.sd_max + link.prop))
    });
    each.sum()
}

/// The link from the host at `source` and the link to the host at `to`, if both are up.
fn access(map: &Map, source: End, to: End) -> Option<(LinkIndex, LinkIndex)> {
    let (first, _) = map.access_links(source)?;
    let (_, last) = map.access_links(to)?;
    (map.is_up(first) && map.is_up(last)).then_some((first, last))
}

/// Paths between switches are computed for full-sized frames, whatever the flow's size, so that
/// they can be cached.
fn reference(flow: &FlowEntry) -> FlowEntry {
    FlowEntry {
        wire_bytes: Some(1538),
        ..flow.clone()
    }
}
