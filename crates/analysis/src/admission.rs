//! Admission: which flows are guaranteed their deadlines.
//!
//! A flow is admitted if with it every flow keeps its deadline to every
//! destination, by a safe bound. The bounds by levels answer first; flows that
//! do not pass them are looked at more closely: alone, then with all that
//! share a port with them, then the whole network as
//! [`analyze`](crate::analyze) does. Each step only accepts more, so the
//! answer is that of an analysis from scratch. What is refused leaves no
//! trace.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap, HashSet};

use punctual_model::network::{
    Flow, LinkEntry, LinkIndex, Network, NetworkError, NodeEntry, Topology,
};

use crate::PathBounds;
use crate::bounds::{Bounds, Solution, analyze, least_end, lower_end, path_bounds};
use crate::explain::{Explainer, Explanation};
use crate::levels::{Levels, Limits};
use crate::refusal::{Overload, Refusal};
use crate::segment::Scratch;
use crate::system::{Class, ClassId, PortId, StageId, System, UNBOUNDED};

/// Streams of other flows that a decision may look at before it gives up and
/// refuses, unless [`Admission::set_effort`] says otherwise: a few seconds.
pub const DEFAULT_EFFORT: u64 = 1 << 26;

/// How many times as much an analysis takes where routes make a cycle: about so
/// often it goes through the network.
const CYCLE: u64 = 8;

/// A network and the flows that are admitted to it.
#[derive(Debug, Clone)]
pub struct Admission {
    network: Network,
    system: System,
    levels: Levels,
    classes: HashMap<String, ClassId>,
    /// Share of each link that is taken, in millionths.
    loads: Vec<u64>,
    effort: u64,
}

impl Admission {
    /// Begins with the flows of a network as admitted, whether or not they
    /// keep their deadlines.
    pub fn new(network: Network) -> Self {
        let mut system = System::empty(&network.topology);
        let classes = system.add_all(&network.flows);
        let names = network.flows.iter().map(|flow| flow.id.clone());
        let mut loads = vec![0; network.topology.links.len()];
        for (link, share) in network.flows.iter().flat_map(shares) {
            loads[link] += share;
        }
        Self {
            classes: names.zip(classes).collect(),
            loads,
            levels: Levels::new(&system),
            system,
            network,
            effort: DEFAULT_EFFORT,
        }
    }

    /// Limits the work of a decision: about so many streams of other flows are
    /// looked at, some tens of nanoseconds each. What is not decided by then is
    /// refused, which is safe. The bounds by levels are not counted.
    pub fn set_effort(&mut self, streams: u64) {
        self.effort = streams;
    }

    /// Limits the work of a decision further.
    pub(crate) fn limit_effort(&mut self, streams: u64) {
        self.effort = self.effort.min(streams);
    }

    /// The network with the flows that are admitted, in the order in which
    /// they were.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Share of each link that the admitted flows take, in millionths; that of
    /// each flow is rounded down.
    pub fn loads(&self) -> &[u64] {
        &self.loads
    }

    /// Admits flows, all or none.
    ///
    /// # Errors
    /// A flow of the same name is admitted, or one of the flows, new or old,
    /// might miss its deadline; nothing has changed then.
    pub fn add(&mut self, flows: Vec<Flow>) -> Result<(), Refusal> {
        let mut names = BTreeSet::new();
        for flow in &flows {
            if self.classes.contains_key(&flow.id) || !names.insert(&flow.id) {
                return Err(Refusal::taken(flow));
            }
        }
        let classes = self.system.add_all(&flows);
        self.touch(&classes);
        let late = self.late(&classes);
        if late.is_empty() {
            self.keep(&flows, &classes);
            self.network.flows.extend(flows);
            return Ok(());
        }
        let refusal = self.refusal(&flows, &classes, &late);
        self.undo(&flows, &classes);
        Err(refusal)
    }

    /// Looks at the network with another flow: at its stages, and at the limits
    /// by levels. Nothing has changed then.
    pub(crate) fn try_with<T>(
        &mut self,
        flow: &Flow,
        look: impl FnOnce(&System, &[StageId], &Limits) -> T,
    ) -> T {
        let flows = std::slice::from_ref(flow);
        let classes = self.system.add_all(flows);
        self.touch(&classes);
        let stages: Vec<_> = self.stages_of(&classes).collect();
        let seen = look(&self.system, &stages, &self.levels.limits);
        self.undo(flows, &classes);
        seen
    }

    /// Takes out what was added last, and was not kept.
    fn undo(&mut self, flows: &[Flow], classes: &[ClassId]) {
        self.levels.undo();
        let added = classes.iter().copied().zip(flows);
        self.system.remove_all(added);
    }

    /// Counts flows as admitted.
    fn keep(&mut self, flows: &[Flow], classes: &[ClassId]) {
        let names = flows.iter().map(|flow| flow.id.clone());
        self.classes.extend(names.zip(classes.iter().copied()));
        for (link, share) in flows.iter().flat_map(shares) {
            self.loads[link] += share;
        }
    }

    /// Takes flows out and admits others in their place, all or nothing.
    /// Names of which there are no flows are left out.
    ///
    /// # Errors
    /// As for [`add`](Self::add); nothing has changed then.
    pub fn replace(&mut self, out: &[impl AsRef<str>], new: Vec<Flow>) -> Result<(), Refusal> {
        let taken = self.take(out);
        let added = self.add(new);
        if added.is_err() && !taken.is_empty() {
            let flows: Vec<Flow> = taken.iter().map(|(_, flow)| flow.clone()).collect();
            let classes = self.system.add_all(&flows);
            self.touch(&classes);
            self.keep(&flows, &classes);
            // In the order of their places, which are those in the whole list.
            for (place, flow) in taken {
                self.network.flows.insert(place, flow);
            }
        }
        added
    }

    /// Takes a flow out. False if there is none of that name.
    pub fn remove(&mut self, id: &str) -> bool {
        self.remove_all(&[id]) == 1
    }

    /// Takes flows out: how many there were of these names. Many at once are
    /// much less work than one after the other.
    pub fn remove_all(&mut self, ids: &[impl AsRef<str>]) -> usize {
        self.take(ids).len()
    }

    /// Takes flows out: where they were, in that order, and the flows.
    fn take(&mut self, ids: &[impl AsRef<str>]) -> Vec<(usize, Flow)> {
        let out: HashMap<&str, ClassId> = ids
            .iter()
            .filter_map(|id| Some((id.as_ref(), self.classes.remove(id.as_ref())?)))
            .collect();
        if out.is_empty() {
            return Vec::new();
        }
        let mut places = Vec::with_capacity(out.len());
        for (place, flow) in self.network.flows.iter().enumerate() {
            places.extend(out.get(flow.id.as_str()).map(|class| (place, *class)));
        }
        let stages: Vec<StageId> = self.stages_of(out.values()).collect();
        let flows = &self.network.flows;
        let gone = places.iter().map(|(place, class)| (*class, &flows[*place]));
        let was_acyclic = self.system.acyclic;
        self.system.remove_all(gone);
        let mut at = 0;
        let mut next = places.iter().map(|(place, _)| *place).peekable();
        let is_out = |_: &mut Flow| {
            let is_out = next.next_if_eq(&at).is_some();
            at += 1;
            is_out
        };
        let flows: Vec<Flow> = self.network.flows.extract_if(.., is_out).collect();
        for (link, share) in flows.iter().flat_map(shares) {
            self.loads[link] -= share;
        }
        if was_acyclic {
            self.levels.touch(&self.system, &stages);
            self.levels.settle(&self.system);
        } else {
            // On a cycle values do not become less by themselves.
            self.levels.reset(&self.system);
        }
        let places = places.into_iter().map(|(place, _)| place);
        places.zip(flows).collect()
    }

    /// The network has more nodes and links, at the ends of its lists; all
    /// others are as they were.
    pub fn grow(&mut self, topology: Topology) {
        self.network.topology = topology;
        self.grown();
    }

    /// Adds nodes and links to the network, which takes as long as there are
    /// new ones.
    ///
    /// # Errors
    /// The invalid entry. Entries before it have been added by then.
    pub fn extend(&mut self, nodes: &[NodeEntry], links: &[LinkEntry]) -> Result<(), NetworkError> {
        let extended = self.network.topology.extend(nodes, links);
        self.grown();
        extended
    }

    fn grown(&mut self) {
        self.system.grow(&self.network.topology);
        self.loads.resize(self.network.topology.links.len(), 0);
    }

    /// Bounds that may be guaranteed to admitted flows: for each of these names,
    /// and each destination, a bound of its response, ns; empty for an unknown
    /// name. About `effort` streams are examined in all, as for
    /// [`set_effort`](Self::set_effort). That decides the method: if they suffice
    /// for the network, the best bounds; if they suffice for the paths of these
    /// flows, segments there, and levels elsewhere; otherwise levels alone, which
    /// cost almost nothing. Each is a safe bound, and none is beyond the deadline
    /// of a flow that was admitted here.
    pub fn guarantees(&self, ids: &[impl AsRef<str>], effort: u64) -> Vec<Vec<u64>> {
        let class = |id: &str| Some(&self.system.classes[*self.classes.get(id)?]);
        let ids = ids.iter().map(AsRef::as_ref);
        let classes: Vec<Option<&Class>> = ids.map(class).collect();
        let own = || classes.iter().flatten().flat_map(|class| &class.leaves);
        let limits = if self.is_within(effort, self.all_leaves()) {
            Cow::Owned(Solution::new(&self.system).best)
        } else if self.is_within(effort, own()) {
            let mut limits = self.levels.limits.clone();
            let stages = own().flat_map(|leaf| self.system.path(*leaf)).collect();
            self.lower(&stages, &mut limits, &mut Scratch::new(effort));
            Cow::Owned(limits)
        } else {
            Cow::Borrowed(&self.levels.limits)
        };
        let guarantee = |class: &Class| {
            let leaf = |leaf: &StageId| {
                let prop = self.system.ports[self.system.stages[*leaf].port].prop;
                let end = limits.end[*leaf];
                end.saturating_add(prop).min(class.deadline)
            };
            class.leaves.iter().map(leaf).collect()
        };
        let guarantees = classes.into_iter();
        guarantees
            .map(|class| class.map_or_else(Vec::new, guarantee))
            .collect()
    }

    /// The bounds of an admitted flow, one for each destination; `None` if
    /// there is none of that name. They take an analysis of the whole network,
    /// whatever [`set_effort`](Self::set_effort) says;
    /// [`guarantees`](Self::guarantees) keeps to a limit.
    pub fn bounds(&self, id: &str) -> Option<Vec<PathBounds>> {
        let class = *self.classes.get(id)?;
        let solution = Solution::new(&self.system);
        let leaves = self.system.classes[class].leaves.iter();
        let mut scratch = Scratch::new(u64::MAX);
        let bounds = leaves.map(|leaf| path_bounds(&self.system, &solution, *leaf, &mut scratch));
        Some(bounds.collect())
    }

    /// The bounds of all admitted flows, in their order: as
    /// [`analyze`](crate::analyze) gives them if that looks at no more streams;
    /// otherwise by levels alone, which are bounds by holistic steps, and no
    /// trajectory bounds.
    pub fn all_bounds(&self, effort: u64) -> Bounds {
        if self.is_within(effort, self.all_leaves()) {
            return analyze(&self.network);
        }
        let flows = self.network.flows.iter();
        let leaves = flows.map(|flow| {
            let class = self.classes.get(&flow.id);
            class.map_or(&[][..], |class| &self.system.classes[*class].leaves)
        });
        let quick = |leaf: &StageId| {
            let prop = self.system.ports[self.system.stages[*leaf].port].prop;
            let end = self.levels.limits.end[*leaf];
            let bound = (end != UNBOUNDED).then(|| end.saturating_add(prop));
            PathBounds {
                best: bound,
                holistic: bound,
                trajectory: None,
            }
        };
        Bounds {
            flows: leaves
                .map(|leaves| leaves.iter().map(quick).collect())
                .collect(),
        }
    }

    /// What the best bounds of an admitted flow are made of, one for each
    /// destination; `None` if there is none of that name, or if an analysis of
    /// the whole network looks at more streams than that.
    pub fn explain(&self, id: &str, effort: u64) -> Option<Vec<Explanation>> {
        if !self.is_within(effort, self.all_leaves()) {
            return None;
        }
        let place = self.network.flows.iter().position(|flow| flow.id == id)?;
        let explainer = Explainer::new(&self.network);
        let paths = 0..self.network.flows[place].leaves.len();
        paths.map(|path| explainer.explain(place, path)).collect()
    }

    /// Brings the levels up to date after flows of these classes came.
    fn touch(&mut self, classes: &[ClassId]) {
        let stages: Vec<_> = self.stages_of(classes).collect();
        self.levels.touch(&self.system, &stages);
        self.levels.settle(&self.system);
    }

    fn stages_of<'a>(
        &self,
        classes: impl IntoIterator<Item = &'a ClassId>,
    ) -> impl Iterator<Item = StageId> {
        let classes = classes.into_iter();
        let classes = classes.map(|class| &self.system.classes[*class]);
        classes.flat_map(|class| class.stages.iter().copied())
    }

    /// The destinations that a message might reach too late, and their bounds
    /// by the last analysis that was made; those of these classes first.
    fn late(&self, first: &[ClassId]) -> Vec<LateDestination> {
        let mut late = self.any_late();
        late.sort_by_key(|late| (!self.is_hopeless(late), !first.contains(&late.class)));
        late
    }

    fn any_late(&self) -> Vec<LateDestination> {
        let all: Vec<ClassId> = (0..self.system.classes.len()).collect();
        let mut late = self.those_late(&self.levels.limits, &all);
        if late.is_empty() {
            return late;
        }
        if late.iter().any(|late| self.overload(late.leaf).is_some()) {
            late.retain(|late| self.overload(late.leaf).is_some());
            return late;
        }
        // A flow that is late without other traffic is late by every
        // analysis.
        let hopeless = late.iter().any(|late| self.is_hopeless(late));
        let whole = !hopeless && self.may_analyse_all();
        let mut scratch = Scratch::new(self.effort);
        let mut limits = self.levels.limits.clone();
        let reach = |late: &[LateDestination], neighbours: bool| match neighbours {
            true => self.with_neighbours(late),
            false => self.alone(late),
        };
        // All of it gives at least what the neighbours give.
        for neighbours in [Some(false), (!whole && !hopeless).then_some(true)]
            .into_iter()
            .flatten()
        {
            let stages = reach(&late, neighbours);
            self.lower(&stages, &mut limits, &mut scratch);
            let classes: Vec<_> = late.iter().map(|late| late.class).collect();
            late = self.those_late(&limits, &classes);
            if late.is_empty() {
                return late;
            }
        }
        if !whole {
            return late;
        }
        let solution = Solution::new(&self.system);
        self.those_late(&solution.best, &all)
    }

    /// Whether a decision may analyse the whole network.
    pub(crate) fn may_analyse_all(&self) -> bool {
        self.is_within(self.effort, self.all_leaves())
    }

    fn all_leaves(&self) -> impl Iterator<Item = &StageId> {
        let classes = self.system.classes.iter();
        classes.flat_map(|class| &class.leaves)
    }

    /// Whether the analysis of the paths to these leaves looks at no more than so
    /// many streams.
    fn is_within<'a>(&self, effort: u64, leaves: impl IntoIterator<Item = &'a StageId>) -> bool {
        let level = |stage: &StageId, floor: u64| {
            let port = self.system.stages[*stage].port;
            self.system.level(port, floor).len()
        };
        // A port is in a segment for each beginning before it and end after, once
        // for each floor.
        let leaf = |leaf: &StageId| {
            let path = self.system.path(*leaf);
            let own = self.system.priority(*leaf);
            let floors = self.system.floors(&path, own).into_iter().chain([own]);
            let segments = floors.flat_map(|floor| {
                let stages = (1..).zip(&path);
                stages.map(move |(at, stage)| (at, stage, floor))
            });
            let streams =
                segments.map(|(at, stage, floor)| at * (path.len() + 1 - at) * level(stage, floor));
            streams.sum::<usize>() as u64
        };
        let effort = match self.system.acyclic {
            true => effort,
            false => effort / CYCLE,
        };
        let mut leaves = leaves.into_iter();
        leaves
            .try_fold(effort, |left, next| left.checked_sub(leaf(next)))
            .is_some()
    }

    /// The destinations of these classes that are beyond their deadlines.
    fn those_late(&self, limits: &Limits, classes: &[ClassId]) -> Vec<LateDestination> {
        let mut late = Vec::new();
        for class in classes {
            let this = &self.system.classes[*class];
            for leaf in &this.leaves {
                let prop = self.system.ports[self.system.stages[*leaf].port].prop;
                let bound = limits.end[*leaf].saturating_add(prop);
                if this.count > 0 && bound > this.deadline {
                    late.push(LateDestination {
                        class: *class,
                        leaf: *leaf,
                        bound,
                    });
                }
            }
        }
        late
    }

    /// Whether a message that is released as late as it may be comes too late
    /// even if nothing is in its path.
    fn is_hopeless(&self, late: &LateDestination) -> bool {
        let class = &self.system.classes[late.class];
        let stage = &self.system.stages[late.leaf];
        let sent = stage.message();
        let times = [
            class.jitter,
            stage.earliest,
            sent,
            self.system.ports[stage.port].prop,
        ];
        times.into_iter().fold(0, u64::saturating_add) > class.deadline
    }

    /// The stages on the paths to late destinations.
    fn alone(&self, late: &[LateDestination]) -> BTreeSet<StageId> {
        let paths = late.iter().flat_map(|late| self.system.path(late.leaf));
        paths.collect()
    }

    /// Those, and what leads to the ports on these paths of all that is not
    /// less urgent.
    fn with_neighbours(&self, late: &[LateDestination]) -> BTreeSet<StageId> {
        let mut stages = BTreeSet::new();
        for late in late {
            for stage in self.system.path(late.leaf) {
                let port = self.system.stages[stage].port;
                let priority = self.system.priority(stage);
                for other in self.system.level(port, priority) {
                    stages.extend(self.system.path(*other));
                }
            }
        }
        stages
    }

    /// Lowers the limits of these stages by segments, each after those before
    /// it.
    fn lower(&self, stages: &BTreeSet<StageId>, limits: &mut Limits, scratch: &mut Scratch) {
        let ports = stages.iter().map(|stage| self.system.stages[*stage].port);
        let ports: HashSet<PortId> = ports.collect();
        for port in self
            .system
            .order
            .iter()
            .filter(|port| ports.contains(*port))
        {
            for stage in &self.system.ports[*port].stages {
                if stages.contains(stage) {
                    let end = least_end(&self.system, *stage, limits, scratch);
                    lower_end(&self.system, *stage, end, limits);
                }
            }
        }
    }

    /// The port on the path to a leaf whose level has no time left.
    fn overload(&self, leaf: StageId) -> Option<Overload> {
        let mut path = self.system.path(leaf).into_iter();
        path.find_map(|stage| {
            let port = self.system.stages[stage].port;
            Overload::of(&self.system, port, self.system.priority(stage))
        })
    }

    fn refusal(&self, flows: &[Flow], classes: &[ClassId], all: &[LateDestination]) -> Refusal {
        let Some(late) = all.first() else {
            return Refusal::default();
        };
        let others: BTreeSet<ClassId> = all.iter().map(|late| late.class).collect();
        let others = others.into_iter().filter(|class| *class != late.class);
        let others = others.map(|class| self.system.classes[class].count).sum();
        let new = classes.iter().position(|class| *class == late.class);
        let known = || {
            let name = self
                .classes
                .iter()
                .find(|(_, class)| **class == late.class)?;
            self.network.flows.iter().find(|flow| flow.id == *name.0)
        };
        let flow = new.map(|index| &flows[index]).or_else(known);
        let path = self.system.classes[late.class].leaves.iter();
        let topology = &self.network.topology;
        let hopeless = self.is_hopeless(late);
        let refusal = Refusal::late(
            flow,
            path.clone()
                .position(|leaf| *leaf == late.leaf)
                .unwrap_or(0),
            (late.bound != UNBOUNDED).then_some(late.bound),
            self.overload(late.leaf)
                .map(|overload| overload.named(topology)),
            new.is_some(),
            others,
        );
        Refusal {
            hopeless,
            ..refusal
        }
    }
}

/// What a flow takes of each of its links, in millionths; bounded, so that sums
/// are exact and can be taken back.
fn shares(flow: &Flow) -> impl Iterator<Item = (LinkIndex, u64)> + '_ {
    flow.hops.iter().map(|hop| {
        let work = u128::from(hop.cost) * u128::from(hop.frames) * 1_000_000;
        let share = work / u128::from(flow.period.max(1));
        (hop.link, u32::try_from(share).unwrap_or(u32::MAX).into())
    })
}

/// A destination that might be reached too late.
#[derive(Debug, Clone, Copy)]
struct LateDestination {
    class: ClassId,
    leaf: StageId,
    bound: u64,
}
