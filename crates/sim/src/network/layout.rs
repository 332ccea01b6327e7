//! A network in dense tables, made once and walked millions of times.

use punctual_model::network::{Flow, Hop, Link, Network, Topology};

/// The number that stands for no hop and no frame.
pub(super) const NONE: u32 = u32::MAX;

/// The tables of a network that the engine needs. The hops of all flows are numbered: first those of flow 0
/// in their order, then those of flow 1, and so on.
#[derive(Debug, Clone)]
pub struct Layout {
    pub(super) hops: Vec<HopRow>,
    /// The next hops of each hop, for one hop after the other.
    pub(super) children: Vec<u32>,
    pub(super) links: Vec<LinkRow>,
    pub(super) flows: Vec<FlowRow>,
    pub(super) queues: usize,
    pub(super) words: usize,
    pub(super) pairs: usize,
}

/// A hop: the frames of a flow on a link.
#[derive(Debug, Clone)]
pub(super) struct HopRow {
    pub(super) cost: u64,
    /// The least and the greatest delay at the node before the link, without propagation, ns.
    pub(super) delay: (u64, u64),
    pub(super) link: u32,
    /// The number of the queue among all queues, which is also its bit in the words of the link.
    pub(super) queue: u32,
    pub(super) level: u32,
    pub(super) flow: u32,
    pub(super) parent: u32,
    /// The pair of input and output link; frames of one pair keep their order. At its source each flow is a
    /// pair of its own.
    pub(super) pair: u32,
    pub(super) children: (u32, u32),
    pub(super) leaf: bool,
    /// Whether the link finishes a message before it begins another one.
    pub(super) whole: bool,
    /// If the queue is ordered by due time: how long after its arrival a frame is due, ns.
    pub(super) deadline: Option<u64>,
}

#[derive(Debug, Clone)]
pub(super) struct LinkRow {
    pub(super) prop: u64,
    pub(super) best_effort: u64,
    /// Queue of its lowest level, first word of its bits, number of words.
    pub(super) first_queue: u32,
    pub(super) first_word: u32,
    pub(super) words: u32,
}

#[derive(Debug, Clone)]
pub(super) struct FlowRow {
    pub(super) period: u64,
    pub(super) jitter: u64,
    pub(super) frames: u32,
    pub(super) first_hop: u32,
    pub(super) hop_count: u32,
    /// The first hops of the flow, at its source.
    pub(super) roots: Vec<u32>,
    /// The last hop of each path of the flow.
    pub(super) leaves: Vec<u32>,
}

impl Layout {
    /// Makes the tables of a network.
    pub fn new(network: &Network) -> Self {
        let topology = &network.topology;
        let mut levels: Vec<Vec<u64>> = vec![Vec::new(); topology.links.len()];
        for flow in &network.flows {
            for hop in &flow.hops {
                levels[hop.link].push(priority(topology, hop, flow));
            }
        }
        let (mut queues, mut words) = (0, 0);
        let mut links = Vec::with_capacity(levels.len());
        for (link, levels) in topology.links.iter().zip(&mut levels) {
            levels.sort_unstable();
            levels.dedup();
            let own_words = levels.len().div_ceil(64);
            links.push(LinkRow {
                prop: link.prop,
                best_effort: link.best_effort,
                first_queue: queues as u32,
                first_word: words as u32,
                words: own_words as u32,
            });
            queues += levels.len();
            words += own_words;
        }
        let mut layout = Self {
            hops: Vec::new(),
            children: Vec::new(),
            links,
            flows: Vec::new(),
            queues,
            words,
            pairs: 0,
        };
        let mut pairs = std::collections::HashMap::new();
        for (index, flow) in network.flows.iter().enumerate() {
            let first_hop = layout.hops.len() as u32;
            let mut roots = Vec::new();
            for (number, hop) in flow.hops.iter().enumerate() {
                let priority = priority(topology, hop, flow);
                let level = levels[hop.link].partition_point(|level| *level < priority) as u32;
                let node = &topology.nodes[topology.links[hop.link].from];
                let copy = if hop.replicated { node.copy_max } else { 0 };
                let before = hop.parent.map(|parent| flow.hops[parent].link);
                // Flows at their source have different numbers here.
                let from = before.ok_or(index);
                let next = pairs.len() as u32;
                let pair = *pairs.entry((from, hop.link)).or_insert(next);
                let start = layout.children.len() as u32;
                let parent_of = |child: &Hop| child.parent == Some(number);
                for (child, _) in flow.hops.iter().enumerate().filter(|(_, h)| parent_of(h)) {
                    layout.children.push(first_hop + child as u32);
                }
                if hop.parent.is_none() {
                    roots.push(first_hop + number as u32);
                }
                layout.hops.push(HopRow {
                    cost: hop.cost,
                    delay: match hop.parent {
                        None => (0, 0),
                        Some(_) => (node.sd_min, node.sd_max + copy),
                    },
                    link: hop.link as u32,
                    queue: layout.links[hop.link].first_queue + level,
                    level,
                    flow: index as u32,
                    parent: hop.parent.map_or(NONE, |parent| first_hop + parent as u32),
                    pair,
                    children: (start, layout.children.len() as u32),
                    leaf: flow.leaves.contains(&number),
                    whole: topology.links[hop.link].whole,
                    deadline: patience(&topology.links[hop.link], flow, index),
                });
            }
            layout.flows.push(FlowRow {
                period: flow.period,
                jitter: flow.jitter,
                frames: u32::try_from(flow.frames).unwrap_or(u32::MAX),
                first_hop,
                hop_count: flow.hops.len() as u32,
                roots,
                leaves: flow
                    .leaves
                    .iter()
                    .map(|leaf| first_hop + *leaf as u32)
                    .collect(),
            });
        }
        layout.pairs = pairs.len();
        layout
    }

    /// The number of hops of all flows.
    pub fn hop_count(&self) -> usize {
        self.hops.len()
    }

    /// The number of the last hop to a destination.
    pub fn leaf(&self, flow: usize, path: usize) -> usize {
        self.flows[flow].leaves[path] as usize
    }

    /// The hops to a destination, from the source on.
    pub(super) fn path(&self, flow: usize, path: usize) -> Vec<u32> {
        let mut hops = Vec::new();
        let mut hop = self.flows[flow].leaves[path];
        while hop != NONE {
            hops.push(hop);
            hop = self.hops[hop as usize].parent;
        }
        hops.reverse();
        hops
    }
}

/// How long after its arrival a frame is due, ns, if the queue of the link is not in the order of arrival.
/// At links that may serve in any order, each flow is served after all that stand before it in the network.
fn patience(link: &Link, flow: &Flow, index: usize) -> Option<u64> {
    match (link.edf, link.unordered) {
        (true, _) => Some(flow.deadline),
        (_, true) => Some((index as u64).saturating_mul(1 << 50)),
        _ => None,
    }
}

/// The priority of a flow on a link; the same for all flows if the link ignores priorities.
fn priority(topology: &Topology, hop: &Hop, flow: &Flow) -> u64 {
    let link = &topology.links[hop.link];
    if link.fifo || link.edf {
        0
    } else {
        flow.priority_at(hop)
    }
}
