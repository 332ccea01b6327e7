//! Bounds for whole paths: port after port, and the best way to cut them.

use punctual_model::network::Network;

use crate::levels::Limits;
use crate::segment::{Scratch, Segment};
use crate::system::{PortId, StageId, System, UNBOUNDED};

/// Rounds of the fixed point on routes that make a cycle.
const ROUNDS: u32 = 300;
/// Passes that lower the values of a cycle further.
const PASSES: u32 = 4;

/// Bounds of a network's flows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bounds {
    /// For each flow, in the order of the network, each destination in the
    /// order of its paths.
    pub flows: Vec<Vec<PathBounds>>,
}

/// Safe bounds of the time from a message's nominal release to its last bit at
/// a destination, ns; `None` where none is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PathBounds {
    /// The tightest.
    pub best: Option<u64>,
    /// One port after the other (WCRT.md section 4): needs no order among
    /// frames of different flows.
    pub holistic: Option<u64>,
    /// The whole path at once (section 5).
    pub trajectory: Option<u64>,
}

/// Bounds for all flows of a network.
pub fn analyze(network: &Network) -> Bounds {
    let mut system = System::empty(&network.topology);
    let class_of = system.add_all(&network.flows);
    let solution = Solution::new(&system);
    let mut scratch = Scratch::new(u64::MAX);
    let classes: Vec<Vec<PathBounds>> = system
        .classes
        .iter()
        .map(|class| {
            let leaves = class.leaves.iter();
            leaves
                .map(|leaf| path_bounds(&system, &solution, *leaf, &mut scratch))
                .collect()
        })
        .collect();
    let flows = class_of.into_iter().map(|class| classes[class].clone());
    Bounds {
        flows: flows.collect(),
    }
}

/// Holistic bounds alone, as [`analyze`] gives them: for each flow and
/// destination, ns; `None` where there is none.
pub fn holistic(network: &Network) -> Vec<Vec<Option<u64>>> {
    let mut system = System::empty(&network.topology);
    let class_of = system.add_all(&network.flows);
    let limits = Holistic::limits(&system, false, &mut Scratch::new(u64::MAX));
    let bounds = |class: usize| {
        let leaves = system.classes[class].leaves.iter();
        let bounds = leaves.map(|leaf| at_destination(&system, *leaf, limits.end[*leaf]));
        bounds.collect()
    };
    class_of.into_iter().map(bounds).collect()
}

impl Limits {
    /// Sets the end of a stage's transmission, and with it the arrivals of
    /// those that come after it. True if anything changed.
    fn set_end(&mut self, system: &System, stage: StageId, end: u64) -> bool {
        let changed = std::mem::replace(&mut self.end[stage], end) != end;
        for child in &system.stages[stage].children {
            self.latest[*child] = end.saturating_add(system.stages[*child].delay_max);
        }
        changed
    }
}

/// What one port after the other gives.
struct Holistic<'a> {
    system: &'a System,
    shaped: bool,
    limits: Limits,
}

impl<'a> Holistic<'a> {
    fn limits(system: &'a System, shaped: bool, scratch: &mut Scratch) -> Limits {
        let mut holistic = Self {
            system,
            shaped,
            limits: Limits::least(system),
        };
        if system.acyclic {
            for port in &system.order {
                holistic.port(*port, scratch);
            }
        } else {
            holistic.iterate(scratch);
        }
        holistic.limits
    }

    /// On a cycle: from below until nothing changes. What still grows after
    /// the last round has no limit, and so has what depends on it.
    fn iterate(&mut self, scratch: &mut Scratch) {
        let mut round = 0;
        loop {
            let before = self.limits.end.clone();
            let mut changed = false;
            for port in 0..self.system.ports.len() {
                changed |= self.port(port, scratch);
            }
            if !changed {
                return;
            }
            round += 1;
            if round >= ROUNDS {
                for (stage, before) in before.into_iter().enumerate() {
                    if self.limits.end[stage] != before {
                        self.limits.set_end(self.system, stage, UNBOUNDED);
                    }
                }
            }
        }
    }

    /// The ends at a port. True if one changed.
    fn port(&mut self, port: PortId, scratch: &mut Scratch) -> bool {
        let mut changed = false;
        for stage in &self.system.ports[port].stages {
            let segment = Segment {
                system: self.system,
                limits: &self.limits,
                path: &[*stage],
                from: 0,
                to: 0,
                shaped: self.shaped,
                floor: self.system.priority(*stage),
            };
            let end = match self.limits.end[*stage] {
                UNBOUNDED => UNBOUNDED,
                _ => segment.end(scratch),
            };
            changed |= self.limits.set_end(self.system, *stage, end);
        }
        changed
    }
}

/// The limits by each method.
pub(crate) struct Solution {
    pub(crate) holistic: Limits,
    pub(crate) best: Limits,
}

impl Solution {
    pub(crate) fn new(system: &System) -> Self {
        let mut scratch = Scratch::new(u64::MAX);
        let plain = Holistic::limits(system, false, &mut scratch);
        // In topological order segments of one port give all that shaping
        // does; on a cycle they begin from there.
        let mut best = plain.clone();
        if !system.acyclic {
            let shaped = Holistic::limits(system, true, &mut scratch);
            let least = |of: &mut Vec<u64>, other: Vec<u64>| {
                of.iter_mut()
                    .zip(other)
                    .for_each(|(of, other)| *of = other.min(*of));
            };
            least(&mut best.end, shaped.end);
            least(&mut best.latest, shaped.latest);
        }
        let passes = if system.acyclic { 1 } else { PASSES };
        for _ in 0..passes {
            let mut lowered = false;
            for port in &system.order {
                lowered |= lower(system, *port, &mut best, &mut scratch);
            }
            if !lowered {
                break;
            }
        }
        Self {
            holistic: plain,
            best,
        }
    }
}

/// The bounds of a flow to one destination.
pub(crate) fn path_bounds(
    system: &System,
    solution: &Solution,
    leaf: StageId,
    scratch: &mut Scratch,
) -> PathBounds {
    let path = system.path(leaf);
    let whole = Segment {
        system,
        limits: &solution.best,
        path: &path,
        from: 0,
        to: path.len() - 1,
        shaped: true,
        floor: system.priority(leaf),
    };
    PathBounds {
        best: at_destination(system, leaf, solution.best.end[leaf]),
        holistic: at_destination(system, leaf, solution.holistic.end[leaf]),
        trajectory: at_destination(system, leaf, whole.end(scratch)),
    }
}

/// When the last bit is at the destination, if its transmission ends then.
fn at_destination(system: &System, leaf: StageId, end: u64) -> Option<u64> {
    let prop = system.ports[system.stages[leaf].port].prop;
    (end != UNBOUNDED).then(|| end + prop)
}

/// Lowers the ends at a port by every segment that ends there, all from the
/// same limits. True if one was lowered.
fn lower(system: &System, port: PortId, limits: &mut Limits, scratch: &mut Scratch) -> bool {
    let stages = &system.ports[port].stages;
    let ends: Vec<u64> = stages
        .iter()
        .map(|stage| least_end(system, *stage, limits, scratch))
        .collect();
    let mut lowered = false;
    for (stage, end) in stages.iter().zip(ends) {
        lowered |= lower_end(system, *stage, end, limits);
    }
    lowered
}

/// The least latest end of a stage's transmission, by every segment that ends
/// there.
pub(crate) fn least_end(
    system: &System,
    stage: StageId,
    limits: &Limits,
    scratch: &mut Scratch,
) -> u64 {
    let path = system.path(stage);
    let to = path.len() - 1;
    let segments = (0..=to).rev().map(|from| Segment {
        system,
        limits,
        path: &path,
        from,
        to,
        shaped: true,
        floor: system.priority(stage),
    });
    segments.fold(limits.end[stage], |end, segment| {
        segment.least_end(scratch, end)
    })
}

/// Lowers the end of a stage's transmission, and with it the arrivals after
/// it. True if it was more before.
pub(crate) fn lower_end(system: &System, stage: StageId, end: u64, limits: &mut Limits) -> bool {
    if end >= limits.end[stage] {
        return false;
    }
    limits.end[stage] = end;
    for child in &system.stages[stage].children {
        let latest = end.saturating_add(system.stages[*child].delay_max);
        // Another method may have said less.
        limits.latest[*child] = limits.latest[*child].min(latest);
    }
    true
}
