//! A network as the analysis wants it: dense, indexed, with identical flows
//! taken together.
//!
//! Flows that differ in name and deadline only have the same bounds, by
//! symmetry. They are one [`Class`] with a count; a [`Stage`] is the frame of
//! a class on a link (a hop), and a [`Port`] is a link with the stages that
//! cross it, the most urgent first.

use std::collections::HashMap;

use punctual_model::network::{Flow, Hop, Network, Topology};

/// Index of a class.
pub(crate) type ClassId = usize;
/// Index of a stage.
pub(crate) type StageId = usize;
/// Index of a port: that of its link.
pub(crate) type PortId = usize;

/// No limit is known.
pub(crate) const UNBOUNDED: u64 = u64::MAX;

/// A share of a link, in units of 2^-64, rounded up.
pub(crate) type Load = u128;
/// All of a link.
pub(crate) const FULL: Load = 1 << 64;

/// The share of a link that `work` in each `period` takes, rounded up; more
/// than all of it counts as all.
pub(crate) fn load(work: u64, period: u64) -> Load {
    (Load::from(work) << 64)
        .div_ceil(Load::from(period))
        .min(FULL)
}

/// Flows that differ in name and deadline only.
#[derive(Debug, Clone)]
pub(crate) struct Class {
    pub(crate) priority: u64,
    pub(crate) period: u64,
    pub(crate) jitter: u64,
    /// Frames of a message.
    pub(crate) frames: u64,
    /// Flows in it.
    pub(crate) count: u64,
    /// The last stage to each destination.
    pub(crate) leaves: Vec<StageId>,
}

/// The frame of a class on a link.
#[derive(Debug, Clone)]
pub(crate) struct Stage {
    pub(crate) class: ClassId,
    pub(crate) port: PortId,
    pub(crate) parent: Option<StageId>,
    pub(crate) children: Vec<StageId>,
    /// Time of one frame on the link.
    pub(crate) cost: u64,
    /// Least and greatest time from the end of transmission on the link before
    /// to the queue of this one, propagation included; 0 at the publisher.
    pub(crate) delay_min: u64,
    pub(crate) delay_max: u64,
    /// Least time from the nominal release to the queue.
    pub(crate) earliest: u64,
}

/// A link and what crosses it.
#[derive(Debug, Clone)]
pub(crate) struct Port {
    /// Longest time that undeclared traffic holds it.
    pub(crate) best_effort: u64,
    pub(crate) fifo: bool,
    pub(crate) prop: u64,
    /// The most urgent first; those of one class side by side.
    pub(crate) stages: Vec<StageId>,
    /// `lower[n]`: the longest frame among `stages[n..]`.
    lower: Vec<u64>,
}

/// The network, indexed.
#[derive(Debug, Clone)]
pub(crate) struct System {
    pub(crate) classes: Vec<Class>,
    pub(crate) stages: Vec<Stage>,
    pub(crate) ports: Vec<Port>,
    /// The class of each flow of the network.
    pub(crate) class_of: Vec<ClassId>,
    /// The ports, each after all from which frames come to it; `None` if the
    /// routes make a cycle.
    pub(crate) order: Option<Vec<PortId>>,
}

impl System {
    pub(crate) fn new(network: &Network) -> Self {
        let mut system = Self {
            classes: Vec::new(),
            stages: Vec::new(),
            ports: ports(&network.topology),
            class_of: Vec::with_capacity(network.flows.len()),
            order: None,
        };
        let mut known: HashMap<Likeness<'_>, ClassId> = HashMap::new();
        for flow in &network.flows {
            let class = *known
                .entry(Likeness::of(flow))
                .or_insert_with(|| system.add_class(flow));
            system.classes[class].count += 1;
            system.class_of.push(class);
        }
        system.set_delays(network);
        system.set_earliest();
        system.sort_ports();
        system.order = system.topological_order();
        system
    }

    /// The stages from the publisher to this one.
    pub(crate) fn path(&self, stage: StageId) -> Vec<StageId> {
        let mut path: Vec<_> =
            std::iter::successors(Some(stage), |stage| self.stages[*stage].parent).collect();
        path.reverse();
        path
    }

    /// The stages of a port that a frame of this priority has to share it
    /// with: those that are not less urgent, or all of a `fifo` port.
    pub(crate) fn level(&self, port: PortId, priority: u64) -> &[StageId] {
        let port = &self.ports[port];
        &port.stages[..self.level_size(port, priority)]
    }

    /// Longest time that a frame of lower priority, or an undeclared one,
    /// holds the port.
    pub(crate) fn blocking(&self, port: PortId, priority: u64) -> u64 {
        let port = &self.ports[port];
        let lower = port.lower[self.level_size(port, priority)];
        port.best_effort.max(lower)
    }

    fn level_size(&self, port: &Port, priority: u64) -> usize {
        if port.fifo {
            return port.stages.len();
        }
        let class = |stage: StageId| &self.classes[self.stages[stage].class];
        port.stages
            .partition_point(|stage| class(*stage).priority >= priority)
    }

    fn add_class(&mut self, flow: &Flow) -> ClassId {
        let id = self.classes.len();
        let first = self.stages.len();
        for (index, hop) in flow.hops.iter().enumerate() {
            let parent = hop.parent.map(|parent| first + parent);
            if let Some(parent) = parent {
                self.stages[parent].children.push(first + index);
            }
            self.stages.push(Stage {
                class: id,
                port: hop.link,
                parent,
                children: Vec::new(),
                cost: hop.cost,
                delay_min: 0,
                delay_max: 0,
                earliest: 0,
            });
            self.ports[hop.link].stages.push(first + index);
        }
        self.classes.push(Class {
            priority: flow.priority,
            period: flow.period,
            jitter: flow.jitter,
            frames: flow.frames,
            count: 0,
            leaves: flow.leaves.iter().map(|leaf| first + leaf).collect(),
        });
        id
    }

    /// Switching delays. Frames with the same way through a node keep their
    /// order, so a slow one (a replica) also holds the one behind it: by its
    /// own delay, less the time that the one behind takes to be received.
    fn set_delays(&mut self, network: &Network) {
        let nodes = &network.topology.nodes;
        let links = &network.topology.links;
        let mut own = vec![0; self.stages.len()];
        let mut slowest: HashMap<(PortId, PortId), u64> = HashMap::new();
        let mut filled = vec![false; self.classes.len()];
        let mut first = 0;
        for (flow, class) in network.flows.iter().zip(&self.class_of) {
            if std::mem::replace(&mut filled[*class], true) {
                continue;
            }
            for (index, hop) in flow.hops.iter().enumerate() {
                let Some(parent) = hop.parent else { continue };
                let before = &flow.hops[parent];
                let node = &nodes[links[hop.link].from];
                let copy = if hop.replicated { node.copy_max } else { 0 };
                own[first + index] = node.sd_max + copy;
                let way = slowest.entry((before.link, hop.link)).or_default();
                *way = (*way).max(node.sd_max + copy);
            }
            first += flow.hops.len();
        }
        for (index, own) in own.into_iter().enumerate() {
            let Some(parent) = self.stages[index].parent else {
                continue;
            };
            let (from, to) = (self.stages[parent].port, self.stages[index].port);
            let prop = links[from].prop;
            let slowest = slowest.get(&(from, to)).copied().unwrap_or(0);
            let held = slowest.saturating_sub(self.stages[parent].cost);
            let stage = &mut self.stages[index];
            stage.delay_min = prop + nodes[links[to].from].sd_min;
            stage.delay_max = prop + own.max(held);
        }
    }

    fn set_earliest(&mut self) {
        for index in 0..self.stages.len() {
            if let Some(parent) = self.stages[index].parent {
                let before = &self.stages[parent];
                let ended = before.earliest + before.cost;
                self.stages[index].earliest = ended + self.stages[index].delay_min;
            }
        }
    }

    fn sort_ports(&mut self) {
        for port in &mut self.ports {
            let key = |stage: &StageId| {
                let class = self.stages[*stage].class;
                (
                    std::cmp::Reverse(self.classes[class].priority),
                    class,
                    *stage,
                )
            };
            port.stages.sort_unstable_by_key(key);
            port.lower = vec![0; port.stages.len() + 1];
            for (index, stage) in port.stages.iter().enumerate().rev() {
                port.lower[index] = port.lower[index + 1].max(self.stages[*stage].cost);
            }
        }
    }

    fn topological_order(&self) -> Option<Vec<PortId>> {
        let mut after: Vec<Vec<PortId>> = vec![Vec::new(); self.ports.len()];
        for stage in &self.stages {
            if let Some(parent) = stage.parent {
                after[self.stages[parent].port].push(stage.port);
            }
        }
        let mut before = vec![0_usize; self.ports.len()];
        for next in &mut after {
            next.sort_unstable();
            next.dedup();
            for port in next {
                before[*port] += 1;
            }
        }
        let mut order: Vec<PortId> = (0..before.len())
            .filter(|port| before[*port] == 0)
            .collect();
        let mut done = 0;
        while let Some(port) = order.get(done) {
            for next in &after[*port] {
                before[*next] -= 1;
                if before[*next] == 0 {
                    order.push(*next);
                }
            }
            done += 1;
        }
        (order.len() == self.ports.len()).then_some(order)
    }
}

fn ports(topology: &Topology) -> Vec<Port> {
    let port = |link: &punctual_model::network::Link| Port {
        best_effort: link.best_effort,
        fifo: link.fifo,
        prop: link.prop,
        stages: Vec::new(),
        lower: Vec::new(),
    };
    topology.links.iter().map(port).collect()
}

/// What makes flows alike.
#[derive(PartialEq, Eq, Hash)]
struct Likeness<'a> {
    numbers: [u64; 4],
    hops: &'a [Hop],
    leaves: &'a [usize],
}

impl<'a> Likeness<'a> {
    fn of(flow: &'a Flow) -> Self {
        Self {
            numbers: [flow.priority, flow.period, flow.jitter, flow.frames],
            hops: &flow.hops,
            leaves: &flow.leaves,
        }
    }
}
