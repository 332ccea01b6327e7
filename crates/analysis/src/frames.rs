//! A network as its frames: one for each hop of each flow, and by link.
//!
//! For the methods that stand beside the analysis (network calculus, the
//! papers' formulas): they look at few flows, so none are taken together.

use std::collections::HashMap;

use punctual_model::network::{Flow, LinkIndex, Network};

use crate::order::topological;

/// Index of a frame.
pub(crate) type FrameId = usize;

/// The frame of a flow on a link.
#[derive(Debug, Clone)]
pub(crate) struct Frame {
    /// Index of the flow.
    pub(crate) flow: usize,
    /// The link.
    pub(crate) link: LinkIndex,
    /// Its priority there.
    pub(crate) priority: u64,
    /// The frame on the link before.
    pub(crate) parent: Option<FrameId>,
    /// The frames on the links after.
    pub(crate) children: Vec<FrameId>,
    /// Time of one frame on the link, ns; of a message where these are served
    /// whole.
    pub(crate) cost: u64,
    /// For how many frames a message counts here.
    pub(crate) count: u64,
    /// Greatest switching delay before the link, copying included.
    pub(crate) own_delay: u64,
    /// Least and greatest time from the end of transmission on the link before
    /// to the queue of this one, propagation and frames ahead included.
    pub(crate) delay_min: u64,
    pub(crate) delay_max: u64,
    /// Least time from the nominal release to the queue.
    pub(crate) earliest: u64,
}

/// All frames of a network.
#[derive(Debug)]
pub(crate) struct Frames<'a> {
    pub(crate) network: &'a Network,
    /// All frames, each parent before its children.
    pub(crate) all: Vec<Frame>,
    /// The frames on each link, the most urgent first.
    pub(crate) on_link: Vec<Vec<FrameId>>,
    /// For each flow its last frame to each destination.
    pub(crate) leaves: Vec<Vec<FrameId>>,
}

impl<'a> Frames<'a> {
    pub(crate) fn new(network: &'a Network) -> Self {
        let topology = &network.topology;
        let mut frames = Self {
            network,
            all: Vec::new(),
            on_link: vec![Vec::new(); topology.links.len()],
            leaves: Vec::with_capacity(network.flows.len()),
        };
        for (index, flow) in network.flows.iter().enumerate() {
            frames.add(index, flow);
        }
        frames.set_delays();
        for on_link in &mut frames.on_link {
            on_link.sort_by_key(|frame| std::cmp::Reverse(frames.all[*frame].priority));
        }
        frames
    }

    fn add(&mut self, index: usize, flow: &Flow) {
        let first = self.all.len();
        let topology = &self.network.topology;
        for hop in &flow.hops {
            let id = self.all.len();
            let parent = hop.parent.map(|parent| first + parent);
            let node = &topology.nodes[topology.links[hop.link].from];
            let copy = if hop.replicated { node.copy_max } else { 0 };
            if let Some(parent) = parent {
                self.all[parent].children.push(id);
            }
            self.all.push(Frame {
                flow: index,
                link: hop.link,
                priority: flow.priority_at(hop),
                parent,
                children: Vec::new(),
                cost: hop.cost,
                count: hop.frames,
                own_delay: node.sd_max + copy,
                delay_min: 0,
                delay_max: 0,
                earliest: 0,
            });
            self.on_link[hop.link].push(id);
        }
        self.leaves
            .push(flow.leaves.iter().map(|leaf| first + leaf).collect());
    }

    /// A frame may have to wait for one ahead of it that is switched slowly:
    /// they keep their order.
    fn set_delays(&mut self) {
        let topology = &self.network.topology;
        let mut slowest: HashMap<(LinkIndex, LinkIndex), u64> = HashMap::new();
        for frame in &self.all {
            if let Some(parent) = frame.parent {
                let slowest_here = slowest.entry((self.all[parent].link, frame.link));
                let slowest_here = slowest_here.or_default();
                *slowest_here = (*slowest_here).max(frame.own_delay);
            }
        }
        for id in 0..self.all.len() {
            let Some(parent) = self.all[id].parent else {
                continue;
            };
            let before = &self.all[parent];
            let link = before.link;
            // Where messages are served whole they may take less than the cost,
            // and begin when their last frame has come.
            let least = if topology.links[link].whole {
                0
            } else {
                before.cost
            };
            let frames = match topology.links[self.all[id].link].whole {
                true => before.count,
                false => 1,
            };
            let ended = before.earliest.saturating_add(least.saturating_mul(frames));
            let prop = topology.links[link].prop;
            let held = slowest
                .get(&(link, self.all[id].link))
                .map_or(0, |slowest| slowest.saturating_sub(least));
            let frame = &mut self.all[id];
            frame.delay_min = prop + topology.nodes[topology.links[frame.link].from].sd_min;
            frame.delay_max = prop + frame.own_delay.max(held);
            frame.earliest = ended.saturating_add(frame.delay_min);
        }
    }

    pub(crate) fn flow(&self, frame: FrameId) -> &'a Flow {
        &self.network.flows[self.all[frame].flow]
    }

    /// Time of a whole message on the frame's link, ns.
    pub(crate) fn work(&self, frame: FrameId) -> u64 {
        self.all[frame].cost.saturating_mul(self.all[frame].count)
    }

    /// The frames from the publisher to this one.
    pub(crate) fn path(&self, frame: FrameId) -> Vec<FrameId> {
        let parent = |frame: &FrameId| self.all[*frame].parent;
        let mut path: Vec<_> = std::iter::successors(Some(frame), parent).collect();
        path.reverse();
        path
    }

    /// The links, each after all from which frames come to it; where routes
    /// make a cycle, its links come last and in no order, and the second value
    /// is false.
    pub(crate) fn order(&self) -> (Vec<LinkIndex>, bool) {
        let steps = self.all.iter().filter_map(|frame| {
            let parent = frame.parent?;
            Some((self.all[parent].link, frame.link))
        });
        topological(self.on_link.len(), steps)
    }
}
