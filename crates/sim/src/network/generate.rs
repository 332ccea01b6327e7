//! Random networks: any seed is one, and the same for ever.
//!
//! They are small and varied, so that a search can come close to the worst case
//! of each: lines, trees, rings (whose flows depend on each other in a circle)
//! and meshes (where flows part and meet again), multicast and brokers with a
//! copy per subscriber, servers without priorities, links of several rates,
//! jitters above periods, messages of several frames, from light load to
//! overload.

use std::collections::VecDeque;

use punctual_model::network::{Document, FlowEntry, LinkEntry, Network, NodeEntry};

use punctual_model::Rng;

/// The shape of a random network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Switches in a row.
    Line,
    /// Switches in a tree.
    Tree,
    /// Switches in a circle that all flows follow in one direction.
    Ring,
    /// A tree with more links; flows take any path that visits no switch twice.
    Mesh,
    /// A tree with a broker that sends a copy to each subscriber.
    Broker,
}

impl Shape {
    /// All shapes.
    pub const ALL: [Self; 5] = [Self::Line, Self::Tree, Self::Ring, Self::Mesh, Self::Broker];
}

/// The random network of a seed. It is valid, and has at least one flow.
pub fn random(seed: u64) -> Document {
    let mut rng = Rng::new(seed);
    let shape = *rng.pick(&Shape::ALL);
    random_of(shape, rng.any())
}

/// The shape that [`random`] gives the network of a seed.
pub fn shape_of(seed: u64) -> Shape {
    *Rng::new(seed).pick(&Shape::ALL)
}

/// The random network of a shape and a seed. It is valid, and has at least one
/// flow.
pub fn random_of(shape: Shape, seed: u64) -> Document {
    let mut rng = Rng::new(seed);
    // Some draws have no path from any source to any destination.
    loop {
        let document = Generator::new(shape, rng.fork()).generate();
        if !document.flows.is_empty() && Network::new(&document).is_ok() {
            return document;
        }
    }
}

const SIZES: [u64; 6] = [84, 125, 250, 500, 1250, 1538];
const RATES: [u64; 3] = [10_000_000, 100_000_000, 1_000_000_000];

struct Generator {
    shape: Shape,
    rng: Rng,
    document: Document,
    switches: usize,
    /// For each switch: the switches to which it has links.
    neighbours: Vec<Vec<usize>>,
    /// For each host: its switch.
    hosts: Vec<usize>,
    /// Whether links have different rates.
    mixed: bool,
    /// The size of all frames, if it is the same.
    size: Option<u64>,
    /// Percentage of links with undeclared traffic.
    best_effort: u64,
    messages_of_frames: bool,
    /// By what priorities behind a broker are drawn, if they differ from those before
    /// it: apart, so that all else is as without.
    priorities: Option<Rng>,
}

impl Generator {
    fn new(shape: Shape, mut rng: Rng) -> Self {
        let mut priorities = rng.clone().fork();
        let switches = match shape {
            Shape::Ring => rng.within(3..=4),
            Shape::Mesh => rng.within(3..=5),
            _ => rng.within(1..=4),
        };
        Self {
            shape,
            document: Document::default(),
            switches: switches as usize,
            neighbours: vec![Vec::new(); switches as usize],
            hosts: Vec::new(),
            mixed: rng.chance(35),
            size: rng.chance(45).then(|| *rng.pick(&SIZES)),
            best_effort: *rng.pick(&[0, 50, 100]),
            messages_of_frames: rng.chance(25),
            priorities: priorities.chance(75).then_some(priorities),
            rng,
        }
    }

    fn generate(mut self) -> Document {
        self.nodes();
        self.connect();
        let flows = match self.rng.below(10) {
            0..3 => self.rng.within(2..=3),
            3..8 => self.rng.within(4..=7),
            _ => self.rng.within(8..=14),
        };
        let levels = self.rng.within(1..=4);
        for number in 0..flows {
            self.flow(number, levels);
        }
        self.periods();
        self.deadlines();
        self.orders();
        self.processors();
        self.document
    }

    /// Lets the processors of half of the brokers finish a message before they begin another one.
    fn processors(&mut self) {
        let whole = self.rng.chance(50);
        for link in &mut self.document.links {
            link.whole = whole && link.id == "cpu";
        }
    }

    /// In one of five networks, lets some links serve by deadline: the processor of the broker, if there is one,
    /// and some others.
    fn deadlines(&mut self) {
        if !self.rng.chance(20) {
            return;
        }
        for link in &mut self.document.links {
            let likely = if link.id == "cpu" { 90 } else { 20 };
            link.edf = self.rng.chance(likely) && !link.fifo;
        }
        for flow in &mut self.document.flows {
            let tenths = self.rng.within(1..=30);
            flow.deadline_ns = Some((flow.period_ns / 10).saturating_mul(tenths).max(1));
        }
    }

    /// In one of five networks, lets some links serve messages of equal priority in any order.
    fn orders(&mut self) {
        if !self.rng.chance(20) {
            return;
        }
        for link in &mut self.document.links {
            let likely = if link.id == "cpu" { 90 } else { 20 };
            link.unordered = self.rng.chance(likely) && !link.fifo && !link.edf;
        }
    }

    fn nodes(&mut self) {
        // None, a part of a frame, or many frames.
        let spread = *self.rng.pick(&[
            0, 0, 0, 3_000, 3_000, 3_000, 50_000, 50_000, 50_000, 400_000,
        ]);
        for number in 0..self.switches {
            let least = *self.rng.pick(&[0, 0, 5_000, 20_000]);
            self.document.nodes.push(NodeEntry {
                id: format!("s{number}"),
                sd_min_ns: least,
                sd_max_ns: Some(least + self.rng.below(spread + 1)),
                copy_max_ns: *self.rng.pick(&[0, 0, 10_000, 150_000]),
            });
        }
        let hosts = self.rng.within(2..=6);
        for number in 0..hosts {
            self.hosts
                .push(self.rng.below(self.switches as u64) as usize);
            self.document.nodes.push(NodeEntry {
                id: format!("h{number}"),
                ..NodeEntry::default()
            });
        }
        if self.shape == Shape::Broker {
            for id in ["bi", "bo"] {
                self.document.nodes.push(NodeEntry {
                    id: id.to_owned(),
                    sd_max_ns: Some(*self.rng.pick(&[0, 0, 2_000])),
                    copy_max_ns: *self.rng.pick(&[0, 0, 5_000, 40_000]),
                    ..NodeEntry::default()
                });
            }
            self.document.links.push(LinkEntry {
                id: "cpu".to_owned(),
                from: "bi".to_owned(),
                to: "bo".to_owned(),
                be_ns: self.rng.chance(60).then(|| 1 + self.rng.below(60_000)),
                fifo: self.rng.chance(50),
                ..LinkEntry::default()
            });
        }
    }

    fn connect(&mut self) {
        for switch in 1..self.switches {
            let other = match self.shape {
                Shape::Line | Shape::Ring => switch - 1,
                _ => self.rng.below(switch as u64) as usize,
            };
            self.neighbours[other].push(switch);
            if self.shape != Shape::Ring {
                self.neighbours[switch].push(other);
            }
        }
        match self.shape {
            Shape::Ring => self.neighbours[self.switches - 1].push(0),
            Shape::Mesh => {
                for _ in 0..self.rng.within(1..=3) {
                    let a = self.rng.below(self.switches as u64) as usize;
                    let b = self.rng.below(self.switches as u64) as usize;
                    if a != b && !self.neighbours[a].contains(&b) {
                        self.neighbours[a].push(b);
                        self.neighbours[b].push(a);
                    }
                }
            }
            _ => {}
        }
    }

    /// Returns the name of the link between two nodes, and adds the link if it does not exist.
    fn link(&mut self, from: &str, to: &str) -> String {
        let id = format!("{from}>{to}");
        if self.document.links.iter().any(|link| link.id == id) {
            return id;
        }
        let rate = if self.mixed {
            *self.rng.pick(&RATES)
        } else {
            RATES[1]
        };
        let best_effort = self.rng.chance(self.best_effort);
        self.document.links.push(LinkEntry {
            id: id.clone(),
            from: from.to_owned(),
            to: to.to_owned(),
            rate_bps: Some(rate),
            prop_ns: *self.rng.pick(&[0, 0, 500]),
            be_bytes: (best_effort).then(|| *self.rng.pick(&SIZES)),
            fifo: self.rng.chance(4),
            ..LinkEntry::default()
        });
        id
    }

    /// The switches on a path between two of them: the shortest one, in a mesh any.
    fn way(&mut self, from: usize, to: usize) -> Option<Vec<usize>> {
        if self.shape == Shape::Mesh {
            return self.wander(vec![from], to);
        }
        let mut before = vec![None; self.switches];
        let mut queue = VecDeque::from([from]);
        while let Some(at) = queue.pop_front() {
            for next in &self.neighbours[at] {
                if *next != from && before[*next].is_none() {
                    before[*next] = Some(at);
                    queue.push_back(*next);
                }
            }
        }
        let mut way = vec![to];
        while let Some(last) = way.last()
            && *last != from
        {
            way.push(before[*last]?);
        }
        way.reverse();
        Some(way)
    }

    fn wander(&mut self, way: Vec<usize>, to: usize) -> Option<Vec<usize>> {
        let at = *way.last()?;
        if at == to {
            return Some(way);
        }
        let mut next = self.neighbours[at].clone();
        while !next.is_empty() {
            let pick = self.rng.below(next.len() as u64) as usize;
            let switch = next.swap_remove(pick);
            if way.contains(&switch) {
                continue;
            }
            let mut longer = way.clone();
            longer.push(switch);
            if let Some(found) = self.wander(longer, to) {
                return Some(found);
            }
        }
        None
    }

    /// The links on a path between two nodes, each of which is given with its switch.
    fn path(&mut self, from: (&str, usize), to: (&str, usize)) -> Option<Vec<String>> {
        let way = self.way(from.1, to.1)?;
        let mut nodes = vec![from.0.to_owned()];
        nodes.extend(way.iter().map(|switch| format!("s{switch}")));
        nodes.push(to.0.to_owned());
        Some(
            nodes
                .windows(2)
                .map(|pair| self.link(&pair[0], &pair[1]))
                .collect(),
        )
    }

    fn flow(&mut self, number: u64, levels: u64) {
        let hosts = self.hosts.len() as u64;
        let source = self.rng.below(hosts) as usize;
        let destinations = match self.rng.below(10) {
            0..6 => 1,
            6..9 => 2,
            _ => 3,
        };
        let through_broker = self.shape == Shape::Broker && self.rng.chance(75);
        let mut receivers: Vec<usize> = Vec::new();
        for _ in 0..destinations {
            let receiver = self.rng.below(hosts) as usize;
            if receiver != source && !receivers.contains(&receiver) {
                receivers.push(receiver);
            }
        }
        let from = format!("h{source}");
        let from = (from.as_str(), self.hosts[source]);
        let mut paths = Vec::new();
        for receiver in receivers {
            let to = format!("h{receiver}");
            let to = (to.as_str(), self.hosts[receiver]);
            let path = if through_broker {
                let Some(mut path) = self.path(from, ("bi", 0)) else {
                    continue;
                };
                path.push("cpu".to_owned());
                let Some(rest) = self.path(("bo", 0), to) else {
                    continue;
                };
                path.extend(rest);
                path
            } else {
                let Some(path) = self.path(from, to) else {
                    continue;
                };
                path
            };
            // A flow is a tree: every link has one predecessor.
            let mut tree = paths.clone();
            tree.push(path);
            if is_tree(&tree) {
                paths = tree;
            }
        }
        if paths.is_empty() {
            return;
        }
        let size = match self.size {
            Some(size) => size,
            None => *self.rng.pick(&SIZES),
        };
        let mut flow = FlowEntry {
            id: format!("f{number}"),
            prio: self.rng.below(levels),
            wire_bytes: Some(size),
            paths,
            ..FlowEntry::default()
        };
        if self.messages_of_frames && self.rng.chance(35) {
            flow.frames = Some(self.rng.within(2..=4));
        }
        if through_broker {
            let cost = 1 + self.rng.below(40_000);
            flow.cost_ns.insert("cpu".to_owned(), cost);
            if self.rng.chance(75) {
                flow.fanout_node = Some("bo".to_owned());
                if let Some(rng) = &mut self.priorities
                    && rng.chance(75)
                {
                    flow.fanout_prio = flow.paths.iter().map(|_| rng.below(levels)).collect();
                }
            }
        }
        self.document.flows.push(flow);
    }

    /// Chooses periods, so that the busiest link has a random load, and jitters.
    fn periods(&mut self) {
        for flow in &mut self.document.flows {
            flow.period_ns = 1_000;
        }
        let Ok(network) = Network::new(&self.document) else {
            self.document.flows.clear();
            return;
        };
        let similar = self.rng.chance(40);
        let flows = self.document.flows.len();
        let weights: Vec<u64> = (0..flows)
            .map(|_| {
                if similar {
                    self.rng.within(90..=110)
                } else {
                    self.rng.within(20..=400)
                }
            })
            .collect();
        // Work by link if periods were the weights.
        let mut work = vec![0_u128; network.topology.links.len()];
        for (flow, weight) in network.flows.iter().zip(&weights) {
            for hop in &flow.hops {
                let cost = u128::from(hop.cost) * u128::from(hop.frames);
                work[hop.link] += cost * 1_000 / u128::from(*weight);
            }
        }
        let busiest = work.into_iter().max().unwrap_or(1).max(1);
        let load = match self.rng.below(12) {
            0..5 => self.rng.within(10..=50),
            5..9 => self.rng.within(50..=85),
            9..11 => self.rng.within(85..=98),
            _ => self.rng.within(99..=110),
        };
        let late = self.rng.below(4);
        for (flow, weight) in self.document.flows.iter_mut().zip(&weights) {
            let period = busiest * u128::from(*weight) * 100 / (1_000 * u128::from(load));
            flow.period_ns = u64::try_from(period)
                .unwrap_or(u64::MAX)
                .clamp(1_000, 1 << 40);
            flow.jitter_ns = match late {
                0 => 0,
                1 => self.rng.below(flow.period_ns / 10 + 1),
                2 => self.rng.below(flow.period_ns),
                _ => self.rng.below(3 * flow.period_ns),
            };
            flow.deadline_ns = Some(flow.period_ns);
        }
    }
}

/// Whether each link has only one predecessor on all paths, and no path contains a link twice.
fn is_tree(paths: &[Vec<String>]) -> bool {
    let mut before: Vec<(&str, Option<&str>)> = Vec::new();
    for path in paths {
        let mut last = None;
        let mut own: Vec<&str> = Vec::new();
        for link in path {
            if own.contains(&link.as_str()) {
                return false;
            }
            own.push(link);
            match before.iter().find(|(known, _)| known == link) {
                Some((_, known)) if *known != last => return false,
                Some(_) => {}
                None => before.push((link, last)),
            }
            last = Some(link.as_str());
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_repeat_and_shapes_have_what_they_are_for() {
        assert_eq!(random(5), random(5));
        assert_ne!(random(5), random(6));
        let mut rng = Rng::new(5);
        rng.any();
        assert_eq!(random_of(shape_of(5), rng.any()), random(5));
        let all: Vec<_> = (0..400).map(random).collect();
        let count = |f: &dyn Fn(&Document) -> bool| all.iter().filter(|d| f(d)).count();
        let flows = |f: fn(&FlowEntry) -> bool| count(&|d| d.flows.iter().any(f));
        assert!(flows(|f| f.paths.len() > 1 && f.fanout_node.is_none()) > 40);
        assert!(flows(|f| f.paths.len() > 1 && f.fanout_node.is_some()) > 20);
        assert!(flows(|f| f.fanout_prio.iter().any(|prio| *prio != f.prio)) > 10);
        assert!(flows(|f| f.jitter_ns > f.period_ns) > 40);
        assert!(flows(|f| f.frames.is_some()) > 40);
        assert!(flows(|f| f.paths[0].len() >= 5) > 40);
        assert!(count(&|d| d.links.iter().any(|l| l.fifo)) > 40);
        assert!(count(&|d| d.links.iter().any(|l| l.unordered)) > 40);
        assert!(count(&|d| d.links.iter().any(|l| l.whole)) > 20);
        assert!(count(&|d| d.links.iter().any(|l| l.rate_bps != d.links[1].rate_bps)) > 40);
    }
}
