//! A network as the analysis wants it: dense, indexed, with identical flows
//! taken together.
//!
//! Flows that differ in name only have the same bounds, by symmetry. They are
//! one [`Class`] with a count; a [`Stage`] is the frame of a class on a link
//! (a hop), and a [`Port`] is a link with the stages that cross it, the most
//! urgent first. Classes come and go; what depends on them is kept up to date.

use std::collections::HashMap;
use std::ops::Range;

use punctual_model::network::{Flow, Hop, Topology};

pub(crate) use crate::load::{FULL, Load, load};
use crate::order::topological;

/// Index of a class.
pub(crate) type ClassId = usize;
/// Index of a stage.
pub(crate) type StageId = usize;
/// Index of a port: that of its link.
pub(crate) type PortId = usize;

/// No limit is known.
pub(crate) const UNBOUNDED: u64 = u64::MAX;

/// Flows that differ in name only.
#[derive(Debug, Clone)]
pub(crate) struct Class {
    pub(crate) priority: u64,
    pub(crate) period: u64,
    pub(crate) jitter: u64,
    pub(crate) deadline: u64,
    /// Frames of a message.
    pub(crate) frames: u64,
    /// Flows in it; none if its place is free.
    pub(crate) count: u64,
    /// Its stages, parents before children.
    pub(crate) stages: Vec<StageId>,
    /// The last stage to each destination.
    pub(crate) leaves: Vec<StageId>,
}

/// The frame of a class on a link.
#[derive(Debug, Clone)]
pub(crate) struct Stage {
    pub(crate) class: ClassId,
    pub(crate) port: PortId,
    pub(crate) priority: u64,
    pub(crate) parent: Option<StageId>,
    pub(crate) children: Vec<StageId>,
    /// Time of one frame on the link; of a message where these are served whole.
    pub(crate) cost: u64,
    /// For how many frames a message counts here.
    pub(crate) frames: u64,
    /// Share of the link that one flow of the class takes.
    pub(crate) share: Load,
    /// Least and greatest time from the end of transmission on the link before
    /// to the queue of this one, propagation included; 0 at the publisher.
    pub(crate) delay_min: u64,
    pub(crate) delay_max: u64,
    /// Least time from the nominal release to the queue.
    pub(crate) earliest: u64,
    /// The frame was replicated at the node before.
    replicated: bool,
}

impl Stage {
    /// Time of a message on the link.
    pub(crate) fn message(&self) -> u64 {
        self.cost.saturating_mul(self.frames)
    }
}

/// What the bounds by levels ask of a stage, in one line of the cache.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Brief {
    pub(crate) priority: u64,
    pub(crate) period: u64,
    /// Of a message of every flow of the class; [`UNBOUNDED`] if that is more
    /// than can be counted.
    pub(crate) work: u64,
    /// Share of the link, in units of 2^-48, rounded up.
    pub(crate) load: u64,
    pub(crate) earliest: u64,
    pub(crate) delay_max: u64,
    pub(crate) port: u32,
    /// The only child; [`NONE`] or [`MANY`] otherwise.
    pub(crate) child: u32,
}

/// No child.
pub(crate) const NONE: u32 = u32::MAX;
/// More than one child.
pub(crate) const MANY: u32 = u32::MAX - 1;
/// All of a link, as a [`Brief`] counts it.
pub(crate) const FULL_BRIEF: u64 = 1 << 48;

/// A link and what crosses it.
#[derive(Debug, Clone)]
pub(crate) struct Port {
    /// Longest time that undeclared traffic holds it.
    pub(crate) best_effort: u64,
    pub(crate) fifo: bool,
    /// It serves by deadline.
    pub(crate) edf: bool,
    /// It serves by priority, and equals in any order.
    pub(crate) unordered: bool,
    /// It serves messages and not frames, and may take less than their cost.
    pub(crate) whole: bool,
    pub(crate) prop: u64,
    /// Switching at the node before the link.
    sd_min: u64,
    sd_max: u64,
    copy_max: u64,
    /// The most urgent first.
    pub(crate) stages: Vec<StageId>,
    /// `lower[n]`: the longest frame among `stages[n..]`.
    lower: Vec<u64>,
    /// `blocking[n]`: longest time for which something else holds it when
    /// something of `stages[..n]` comes and nothing of these is there.
    blocking: Vec<u64>,
}

impl Port {
    fn new(topology: &Topology, link: PortId) -> Self {
        let link = &topology.links[link];
        let node = &topology.nodes[link.from];
        Self {
            best_effort: link.best_effort,
            fifo: link.fifo,
            edf: link.edf,
            unordered: link.unordered,
            whole: link.whole,
            prop: link.prop,
            sd_min: node.sd_min,
            sd_max: node.sd_max,
            copy_max: node.copy_max,
            stages: Vec::new(),
            lower: vec![0],
            blocking: vec![link.best_effort],
        }
    }

    /// Whether it serves by priority.
    pub(crate) fn has_priorities(&self) -> bool {
        !self.fifo && !self.edf
    }
}

/// The frames that go from one link to another: they keep their order.
#[derive(Debug, Clone, Copy, Default)]
struct PortPair {
    stages: usize,
    replicated: usize,
}

/// The network, indexed.
#[derive(Debug, Clone)]
pub(crate) struct System {
    pub(crate) classes: Vec<Class>,
    pub(crate) stages: Vec<Stage>,
    /// One for each stage.
    pub(crate) briefs: Vec<Brief>,
    pub(crate) ports: Vec<Port>,
    /// The ports, each after all from which frames come to it; those of a cycle and
    /// behind it come last.
    pub(crate) order: Vec<PortId>,
    /// The routes make no cycle.
    pub(crate) acyclic: bool,
    known: HashMap<Likeness, ClassId>,
    pairs: HashMap<(PortId, PortId), PortPair>,
    free_classes: Vec<ClassId>,
    free_stages: Vec<StageId>,
}

impl System {
    /// Links without flows.
    pub(crate) fn empty(topology: &Topology) -> Self {
        let ports: Vec<_> = (0..topology.links.len())
            .map(|link| Port::new(topology, link))
            .collect();
        Self {
            classes: Vec::new(),
            stages: Vec::new(),
            briefs: Vec::new(),
            order: (0..ports.len()).collect(),
            acyclic: true,
            ports,
            known: HashMap::new(),
            pairs: HashMap::new(),
            free_classes: Vec::new(),
            free_stages: Vec::new(),
        }
    }

    /// The network has more links, after the others.
    pub(crate) fn grow(&mut self, topology: &Topology) {
        for link in self.ports.len()..topology.links.len() {
            self.ports.push(Port::new(topology, link));
            self.order.push(link);
        }
    }

    /// Adds flows; the class of each.
    pub(crate) fn add_all(&mut self, flows: &[Flow]) -> Vec<ClassId> {
        let mut touched = Vec::new();
        let mut new_pair = false;
        let classes: Vec<ClassId> = flows
            .iter()
            .map(|flow| {
                let class = match self.known.get(&Likeness::of(flow)) {
                    Some(class) => *class,
                    None => {
                        let class = self.new_class(flow);
                        new_pair |= self.enter_pairs(class);
                        touched.push(class);
                        class
                    }
                };
                self.classes[class].count += 1;
                class
            })
            .collect();
        // One by one into place, or all at once: whichever is less work.
        match touched.as_slice() {
            [class] => self.insert_sorted(*class),
            classes => self.insert_many(classes),
        }
        for class in &touched {
            self.set_delays(*class);
        }
        let stages = touched
            .iter()
            .flat_map(|class| &self.classes[*class].stages);
        for port in self.ports_of(stages) {
            self.set_blocking(port);
        }
        self.briefs.resize(self.stages.len(), Brief::default());
        for class in &classes {
            self.set_briefs(*class);
        }
        if new_pair {
            self.set_order();
        }
        classes
    }

    fn set_briefs(&mut self, class: ClassId) {
        for index in 0..self.classes[class].stages.len() {
            self.set_brief(self.classes[class].stages[index]);
        }
    }

    fn set_brief(&mut self, id: StageId) {
        let stage = &self.stages[id];
        let class = &self.classes[stage.class];
        let work = stage.message().saturating_mul(class.count);
        let load = (u128::from(work) << 48).div_ceil(u128::from(class.period));
        self.briefs[id] = Brief {
            priority: stage.priority,
            period: class.period,
            work,
            load: u64::try_from(load).unwrap_or(u64::MAX).min(FULL_BRIEF),
            earliest: stage.earliest,
            delay_max: stage.delay_max,
            port: u32::try_from(stage.port).unwrap_or(NONE),
            child: match stage.children.as_slice() {
                [] => NONE,
                [child] => u32::try_from(*child).unwrap_or(MANY),
                _ => MANY,
            },
        };
    }

    /// Takes flows of these classes out again.
    pub(crate) fn remove_all<'a>(&mut self, flows: impl IntoIterator<Item = (ClassId, &'a Flow)>) {
        let mut gone = Vec::new();
        for (class, flow) in flows {
            self.classes[class].count -= 1;
            if self.classes[class].count > 0 {
                self.set_briefs(class);
                continue;
            }
            self.known.remove(&Likeness::of(flow));
            gone.append(&mut self.classes[class].stages);
            self.classes[class].leaves.clear();
            self.free_classes.push(class);
        }
        gone.sort_unstable();
        let ports = self.ports_of(&gone);
        for port in &ports {
            let stages = &mut self.ports[*port].stages;
            stages.retain(|stage| gone.binary_search(stage).is_err());
        }
        let mut lost_pair = false;
        for id in &gone {
            let Some((pair, replicated)) = self.pair(*id) else {
                continue;
            };
            let Some(entry) = self.pairs.get_mut(&pair) else {
                continue;
            };
            entry.stages -= 1;
            entry.replicated -= usize::from(replicated);
            let (last, faster) = (entry.stages == 0, replicated && entry.replicated == 0);
            if last {
                self.pairs.remove(&pair);
                lost_pair = true;
            } else if faster {
                self.set_pair_delays(pair);
            }
        }
        for port in ports {
            self.set_blocking(port);
        }
        self.free_stages.extend(gone);
        if lost_pair && !self.acyclic {
            self.set_order();
        }
    }

    /// The stages from the publisher to this one.
    pub(crate) fn path(&self, stage: StageId) -> Vec<StageId> {
        let mut path: Vec<_> =
            std::iter::successors(Some(stage), |stage| self.stages[*stage].parent).collect();
        path.reverse();
        path
    }

    /// The stages of a port that a frame of this priority has to share it
    /// with: those that are not less urgent, or all where priorities do not
    /// count.
    pub(crate) fn level(&self, port: PortId, priority: u64) -> &[StageId] {
        let port = &self.ports[port];
        &port.stages[..self.level_size(port, priority)]
    }

    /// The priorities below this one that what shares a port of this path has,
    /// from above, as far as they may say less: where less blocks above them,
    /// or what has them goes on from or to a port without priorities, where it
    /// counts anyhow. Otherwise a lower floor only has more streams.
    pub(crate) fn floors(&self, path: &[StageId], priority: u64) -> Vec<u64> {
        let ports = path.iter().map(|stage| self.stages[*stage].port);
        let mut floors = Vec::new();
        for port in ports.clone() {
            let mut stages = self.ports[port].stages.as_slice();
            let mut above = priority;
            loop {
                let urgent = |id: &StageId| self.priority(*id) >= above;
                stages = &stages[stages.partition_point(urgent)..];
                let Some(next) = stages.first() else { break };
                above = self.priority(*next);
                floors.push(above);
            }
        }
        floors.sort_unstable_by(|a, b| b.cmp(a));
        floors.dedup();
        let blocking =
            |floor| -> u64 { ports.clone().map(|port| self.blocking(port, floor)).sum() };
        let mut above = (priority, blocking(priority));
        floors.retain(|floor| {
            let this = (*floor, blocking(*floor));
            let last = std::mem::replace(&mut above, this);
            this.1 < last.1 || self.goes_on_unranked(path, *floor..last.0)
        });
        floors
    }

    /// Whether something of these priorities goes from a port of the path to the
    /// next, and one of the two has no priorities.
    fn goes_on_unranked(&self, path: &[StageId], priorities: Range<u64>) -> bool {
        path.windows(2).any(|step| {
            let [from, to] = [step[0], step[1]].map(|stage| self.stages[stage].port);
            let port = &self.ports[to];
            let ranked = self.ports[from].has_priorities() && port.has_priorities();
            let rank = |than: u64| {
                let urgent = |id: &StageId| self.priority(*id) >= than;
                port.stages.partition_point(urgent)
            };
            let comes = |id: &StageId| {
                let parent = self.stages[*id].parent;
                parent.is_some_and(|parent| self.stages[parent].port == from)
            };
            !ranked
                && port.stages[rank(priorities.end)..rank(priorities.start)]
                    .iter()
                    .any(comes)
        })
    }

    /// Longest time that a frame of lower priority, or an undeclared one,
    /// holds the port when a frame of this priority comes and none that is as
    /// urgent is there.
    pub(crate) fn blocking(&self, port: PortId, priority: u64) -> u64 {
        let port = &self.ports[port];
        port.blocking[self.level_size(port, priority)]
    }

    /// Longest time that any frame holds the port.
    pub(crate) fn longest(&self, port: PortId) -> u64 {
        let port = &self.ports[port];
        port.best_effort.max(port.lower[0])
    }

    /// A stage of lower priority with the longest frame.
    pub(crate) fn longest_lower(&self, port: PortId, priority: u64) -> Option<StageId> {
        let port = &self.ports[port];
        let lower = port.stages[self.level_size(port, priority)..]
            .iter()
            .copied();
        lower.max_by_key(|stage| self.stages[*stage].cost)
    }

    /// The priority of a stage.
    pub(crate) fn priority(&self, stage: StageId) -> u64 {
        self.stages[stage].priority
    }

    fn level_size(&self, port: &Port, priority: u64) -> usize {
        if !port.has_priorities() {
            return port.stages.len();
        }
        port.stages
            .partition_point(|stage| self.priority(*stage) >= priority)
    }

    fn new_class(&mut self, flow: &Flow) -> ClassId {
        let id = self.free_classes.pop().unwrap_or_else(|| {
            self.classes.push(Class::free());
            self.classes.len() - 1
        });
        let mut stages: Vec<StageId> = Vec::with_capacity(flow.hops.len());
        for hop in &flow.hops {
            let parent = hop.parent.map(|parent| stages[parent]);
            let stage = Stage {
                class: id,
                port: hop.link,
                priority: flow.priority_at(hop),
                parent,
                children: Vec::new(),
                cost: hop.cost,
                frames: hop.frames,
                share: load(hop.cost.saturating_mul(hop.frames), flow.period),
                delay_min: 0,
                delay_max: 0,
                earliest: 0,
                replicated: hop.replicated,
            };
            let index = match self.free_stages.pop() {
                Some(index) => {
                    self.stages[index] = stage;
                    index
                }
                None => {
                    self.stages.push(stage);
                    self.stages.len() - 1
                }
            };
            if let Some(parent) = parent {
                self.stages[parent].children.push(index);
            }
            stages.push(index);
        }
        self.classes[id] = Class {
            priority: flow.priority,
            period: flow.period,
            jitter: flow.jitter,
            deadline: flow.deadline,
            frames: flow.frames,
            count: 0,
            leaves: flow.leaves.iter().map(|leaf| stages[*leaf]).collect(),
            stages,
        };
        self.known.insert(Likeness::of(flow), id);
        id
    }

    /// The path by which a stage's frames come, and whether they are replicas.
    fn pair(&self, stage: StageId) -> Option<((PortId, PortId), bool)> {
        let stage = &self.stages[stage];
        let parent = stage.parent?;
        Some(((self.stages[parent].port, stage.port), stage.replicated))
    }

    /// Counts a new class on its paths. True if one is new.
    fn enter_pairs(&mut self, class: ClassId) -> bool {
        let mut new = false;
        for index in 0..self.classes[class].stages.len() {
            let id = self.classes[class].stages[index];
            let Some((pair, replicated)) = self.pair(id) else {
                continue;
            };
            let entry = self.pairs.entry(pair).or_default();
            entry.stages += 1;
            entry.replicated += usize::from(replicated);
            new |= entry.stages == 1;
            if replicated && entry.replicated == 1 && entry.stages > 1 {
                self.set_pair_delays(pair);
            }
        }
        new
    }

    /// Switching delays and earliest arrivals of a class.
    fn set_delays(&mut self, class: ClassId) {
        for index in 0..self.classes[class].stages.len() {
            let id = self.classes[class].stages[index];
            self.set_delay(id);
        }
    }

    fn set_pair_delays(&mut self, pair: (PortId, PortId)) {
        let comes = |id: &StageId| self.pair(*id).is_some_and(|(other, _)| other == pair);
        let stages = self.ports[pair.1].stages.iter().copied();
        for id in stages.filter(comes).collect::<Vec<_>>() {
            self.set_delay(id);
            self.set_brief(id);
        }
    }

    /// Switching delays. Frames with the same path through a node keep their
    /// order, so a slow one (a replica) also holds the one behind it: by its
    /// own delay, less the time that the one behind takes to be received: none
    /// behind a port that serves messages whole. That one may take less than
    /// the stated cost, and works on a message when its last frame has come.
    fn set_delay(&mut self, id: StageId) {
        let Some((pair, replicated)) = self.pair(id) else {
            return;
        };
        let (from, to) = (&self.ports[pair.0], &self.ports[pair.1]);
        let delay = |replicated: bool| to.sd_max + if replicated { to.copy_max } else { 0 };
        let slowest = delay(
            self.pairs
                .get(&pair)
                .is_some_and(|pair| pair.replicated > 0),
        );
        let stage = &self.stages[id];
        let Some(parent) = stage.parent else { return };
        let before = &self.stages[parent];
        let delay_min = from.prop + to.sd_min;
        let least = if from.whole { 0 } else { before.cost };
        let held = slowest.saturating_sub(least);
        let delay_max = from.prop + delay(replicated).max(held);
        let frames = if to.whole { before.frames } else { 1 };
        let earliest = before
            .earliest
            .saturating_add(least.saturating_mul(frames))
            .saturating_add(delay_min);
        let stage = &mut self.stages[id];
        stage.delay_min = delay_min;
        stage.delay_max = delay_max;
        stage.earliest = earliest;
    }

    /// The place of a stage in its port.
    fn rank(&self, stage: StageId) -> impl Ord + use<> {
        let this = &self.stages[stage];
        (std::cmp::Reverse(this.priority), this.class, stage)
    }

    fn insert_sorted(&mut self, class: ClassId) {
        for index in 0..self.classes[class].stages.len() {
            let id = self.classes[class].stages[index];
            let port = self.stages[id].port;
            let rank = self.rank(id);
            let place = self.ports[port]
                .stages
                .partition_point(|stage| self.rank(*stage) < rank);
            self.ports[port].stages.insert(place, id);
        }
    }

    fn insert_many(&mut self, classes: &[ClassId]) {
        let mut touched = vec![false; self.ports.len()];
        for class in classes {
            for id in &self.classes[*class].stages {
                let port = self.stages[*id].port;
                self.ports[port].stages.push(*id);
                touched[port] = true;
            }
        }
        for (port, _) in touched
            .into_iter()
            .enumerate()
            .filter(|(_, touched)| *touched)
        {
            let mut stages = std::mem::take(&mut self.ports[port].stages);
            stages.sort_by_cached_key(|stage| self.rank(*stage));
            self.ports[port].stages = stages;
        }
    }

    /// The ports of stages.
    fn ports_of<'a>(&self, stages: impl IntoIterator<Item = &'a StageId>) -> Vec<PortId> {
        let stages = stages.into_iter();
        let mut ports: Vec<_> = stages.map(|id| self.stages[*id].port).collect();
        ports.sort_unstable();
        ports.dedup();
        ports
    }

    /// What may hold a port, after its stages or their delays have changed.
    fn set_blocking(&mut self, id: PortId) {
        let port = &self.ports[id];
        let mut lower = vec![0; port.stages.len() + 1];
        for (index, stage) in port.stages.iter().enumerate().rev() {
            lower[index] = lower[index + 1].max(self.stages[*stage].cost);
        }
        let spread = self.fed_by_one_link(port);
        let mut least = UNBOUNDED;
        let blocking = (0..=port.stages.len()).map(|size| {
            if let Some(parent) = size.checked_sub(1).and_then(|last| self.before(port, last)) {
                least = least.min(parent.cost);
            }
            let declared = match spread {
                Some(spread) if size > 0 => {
                    let ahead = lower[0].saturating_sub(least);
                    lower[size].min(
                        port.best_effort
                            .saturating_add(spread)
                            .saturating_add(ahead),
                    )
                }
                _ => lower[size],
            };
            declared.max(port.best_effort)
        });
        let blocking = blocking.collect();
        let port = &mut self.ports[id];
        (port.lower, port.blocking) = (lower, blocking);
    }

    /// The hop before the stage at that place of a port.
    fn before(&self, port: &Port, place: usize) -> Option<&Stage> {
        let stage = &self.stages[*port.stages.get(place)?];
        Some(&self.stages[stage.parent?])
    }

    /// If all frames of a port come over one link, none of them faster than the
    /// port sends it, and not as several copies: their greatest delay on the path
    /// less the least. Then hardly a queue builds at the port. `None` behind a link
    /// that serves messages whole: it may release all frames of a message at once.
    fn fed_by_one_link(&self, port: &Port) -> Option<u64> {
        let link = self.before(port, 0)?.port;
        if self.ports[link].whole {
            return None;
        }
        let (mut least, mut greatest) = (UNBOUNDED, 0);
        for (place, id) in port.stages.iter().enumerate() {
            let (stage, before) = (&self.stages[*id], self.before(port, place)?);
            let here = |child: &&StageId| self.stages[**child].port == stage.port;
            let copies = before.children.iter().filter(here).count();
            if before.port != link || before.cost < stage.cost || copies > 1 {
                return None;
            }
            least = least.min(stage.delay_min);
            greatest = greatest.max(stage.delay_max);
        }
        Some(greatest - least)
    }

    fn set_order(&mut self) {
        let pairs = self.pairs.keys().copied();
        (self.order, self.acyclic) = topological(self.ports.len(), pairs);
    }
}

impl Class {
    fn free() -> Self {
        Self {
            priority: 0,
            period: 1,
            jitter: 0,
            deadline: 0,
            frames: 1,
            count: 0,
            stages: Vec::new(),
            leaves: Vec::new(),
        }
    }
}

/// What makes flows alike.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Likeness {
    numbers: [u64; 5],
    hops: Vec<Hop>,
    leaves: Vec<usize>,
}

impl Likeness {
    fn of(flow: &Flow) -> Self {
        Self {
            numbers: [
                flow.priority,
                flow.period,
                flow.jitter,
                flow.deadline,
                flow.frames,
            ],
            hops: flow.hops.clone(),
            leaves: flow.leaves.clone(),
        }
    }
}
