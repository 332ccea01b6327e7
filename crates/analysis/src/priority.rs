//! Priorities for flows, such that every deadline is kept.
//!
//! Deadline monotonic is quick and usually right, but not optimal where frames
//! are not preempted (George, Rivierre & Spuri 1996). Audsley's assignment
//! needs a test that depends on *which* flows are above and below, not on their
//! order; across hops the jitter of others does depend on it. So the test takes
//! for every other flow the latest arrival that its deadline leaves, which is
//! true of all of them once all pass. What is returned was confirmed by
//! [`analyze`](crate::analyze). Proofs: `docs/analysis.md`.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::error::Error;
use std::fmt;
use std::time::Duration;

use punctual_model::format_duration;
use punctual_model::network::{Flow, Network};

use crate::bounds::Solution;
use crate::levels::Limits;
use crate::refusal::Overload;
use crate::segment::{Scratch, Segment};
use crate::system::{ClassId, System, UNBOUNDED};

/// Orders that [`Method::Repair`] analyses before it gives up.
const TRIALS: u32 = 512;

/// How priorities are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// The less time a deadline leaves beyond the least latency of the path,
    /// the more urgent.
    DeadlineMonotonic,
    /// Audsley's assignment with a test that knows no order. It finds
    /// priorities whenever there are some that pass this test, and uses the
    /// fewest levels; the test is stricter than the analysis.
    Optimal,
    /// Deadline monotonic, repaired from the least urgent up by the analysis
    /// itself, and if that fails [`Optimal`](Self::Optimal). A heuristic that
    /// accepts whatever the other two accept.
    Repair,
}

/// Why there are no priorities.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unassignable {
    /// No level was offered.
    NoLevels,
    /// A flow that keeps its priority is not below the number of levels.
    Fixed {
        /// Its name.
        flow: String,
        /// Its priority.
        priority: u64,
        /// The number of levels.
        levels: u64,
    },
    /// A flow could not even be in time alone.
    Hopeless {
        /// Its name.
        flow: String,
        /// Least time to its farthest destination, with its release jitter, ns.
        least: u64,
        /// Its deadline, ns.
        deadline: u64,
    },
    /// A link has no time left, whatever the priorities.
    Overload {
        /// The link.
        link: String,
        /// Its load in per cent, rounded up.
        percent: u64,
    },
    /// With every order that the method tries, some flow is late.
    Late {
        /// The flows for which nothing was found, in the order of the network.
        flows: Vec<String>,
    },
}

impl fmt::Display for Unassignable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = |nanos: &u64| format_duration(Duration::from_nanos(*nanos));
        match self {
            Self::NoLevels => f.write_str("levels: 0 is too few; the least is 1"),
            Self::Fixed {
                flow,
                priority,
                levels,
            } => write!(
                f,
                "flow {flow:?}: priority {priority} is to stay, but there are {levels} levels from 0; \
                 lower it or allow more"
            ),
            Self::Hopeless {
                flow,
                least,
                deadline,
            } => write!(
                f,
                "flow {flow:?} takes at least {} even alone; its deadline of {} must be longer",
                time(least),
                time(deadline)
            ),
            Self::Overload { link, percent } => write!(
                f,
                "link {link} loaded {percent} %: no priorities help; take flows away or let them take \
                 another path"
            ),
            Self::Late { flows } => write!(
                f,
                "no priorities were found for {}: they or others would be late; \
                 allow more levels or longer deadlines, or let flows take another path",
                flows.join(", ")
            ),
        }
    }
}

impl Error for Unassignable {}

/// Finds priorities from 0 to below `levels`, the higher the more urgent, for
/// the flows of a network, in its order. Flows that get the same one are first
/// come first served. Those whose index is in `fixed` keep theirs.
///
/// What is found was confirmed: with it [`analyze`](crate::analyze) gives
/// every flow a bound within its deadline.
///
/// # Errors
/// See [`Unassignable`].
pub fn assign(
    network: &Network,
    fixed: &BTreeSet<usize>,
    levels: usize,
    method: Method,
) -> Result<Vec<u64>, Unassignable> {
    let problem = Problem::new(network, fixed, levels)?;
    match method {
        Method::DeadlineMonotonic => problem.confirmed(problem.monotonic()),
        Method::Optimal => problem.confirmed(problem.optimal()?),
        Method::Repair => problem.repair().or_else(|late| {
            problem
                .optimal()
                .and_then(|found| problem.confirmed(found))
                .map_err(|_| late)
        }),
    }
}

struct Problem<'a> {
    network: &'a Network,
    fixed: &'a BTreeSet<usize>,
    levels: u64,
    /// For each flow, what its deadline leaves beyond the least latency.
    spare: Vec<u64>,
}

impl<'a> Problem<'a> {
    fn new(
        network: &'a Network,
        fixed: &'a BTreeSet<usize>,
        levels: usize,
    ) -> Result<Self, Unassignable> {
        if levels == 0 {
            return Err(Unassignable::NoLevels);
        }
        let levels = levels as u64;
        for flow in fixed.iter().filter_map(|index| network.flows.get(*index)) {
            if flow.priority >= levels {
                return Err(Unassignable::Fixed {
                    flow: flow.id.clone(),
                    priority: flow.priority,
                    levels,
                });
            }
        }
        let mut system = System::empty(&network.topology);
        let classes = system.add_all(&network.flows);
        let spare = network.flows.iter().zip(classes).map(|(flow, class)| {
            let least = latency(&system, class).saturating_add(flow.jitter);
            if least > flow.deadline {
                return Err(Unassignable::Hopeless {
                    flow: flow.id.clone(),
                    least,
                    deadline: flow.deadline,
                });
            }
            Ok(flow.deadline - (least - flow.jitter))
        });
        let spare = spare.collect::<Result<_, _>>()?;
        let mut ports = 0..system.ports.len();
        if let Some(overload) = ports.find_map(|port| Overload::of(&system, port, 0)) {
            let (link, percent) = overload.named(&network.topology);
            return Err(Unassignable::Overload { link, percent });
        }
        Ok(Self {
            network,
            fixed,
            levels,
            spare,
        })
    }

    /// The priorities, if no flow is late with them.
    fn confirmed(&self, priorities: Vec<u64>) -> Result<Vec<u64>, Unassignable> {
        let late = self.late(&priorities);
        if late.is_empty() {
            return Ok(priorities);
        }
        Err(self.unassignable(late))
    }

    fn unassignable(&self, flows: impl IntoIterator<Item = usize>) -> Unassignable {
        let mut flows: Vec<_> = flows.into_iter().collect();
        flows.sort_unstable();
        Unassignable::Late {
            flows: flows
                .into_iter()
                .map(|flow| self.network.flows[flow].id.clone())
                .collect(),
        }
    }

    /// The network with these priorities, and the class of each flow.
    fn system(&self, priorities: &[u64]) -> (System, Vec<ClassId>) {
        let flows: Vec<Flow> = self
            .network
            .flows
            .iter()
            .zip(priorities)
            .map(|(flow, priority)| Flow {
                priority: *priority,
                ..flow.clone()
            })
            .collect();
        let mut system = System::empty(&self.network.topology);
        let classes = system.add_all(&flows);
        (system, classes)
    }

    /// The flows that might be late with these priorities.
    fn late(&self, priorities: &[u64]) -> Vec<usize> {
        let (system, class_of) = self.system(priorities);
        let limits = Solution::new(&system).best;
        let in_time = |class: &ClassId| {
            let class = &system.classes[*class];
            class.leaves.iter().all(|leaf| {
                let prop = system.ports[system.stages[*leaf].port].prop;
                limits.end[*leaf].saturating_add(prop) <= class.deadline
            })
        };
        let flows = class_of.iter().enumerate();
        flows
            .filter(|(_, class)| !in_time(class))
            .map(|(flow, _)| flow)
            .collect()
    }

    /// Flows that may get another priority, the least urgent first.
    fn free(&self) -> Vec<usize> {
        let all = 0..self.network.flows.len();
        let mut free: Vec<_> = all.filter(|flow| !self.fixed.contains(flow)).collect();
        free.sort_by_key(|flow| (std::cmp::Reverse(self.spare[*flow]), *flow));
        free
    }

    /// The priorities as they are.
    fn current(&self) -> Vec<u64> {
        let flows = self.network.flows.iter();
        flows.map(|flow| flow.priority).collect()
    }

    fn monotonic(&self) -> Vec<u64> {
        let mut ranking = self.spare.clone();
        ranking.sort_unstable_by_key(|spare| std::cmp::Reverse(*spare));
        let mut distinct = ranking.clone();
        distinct.dedup();
        let level = |spare: u64| {
            let place = |list: &[u64]| list.partition_point(|other| *other > spare) as u64;
            if distinct.len() as u64 <= self.levels {
                return place(&distinct);
            }
            // Levels of about the same number of flows; the like stay together.
            place(&ranking) * self.levels / ranking.len() as u64
        };
        let mut priorities = self.current();
        for flow in self.free() {
            let spare = self.spare[flow];
            let (least, most) = self.between_fixed(spare);
            let level = level(spare);
            priorities[flow] = if least <= most {
                level.clamp(least, most)
            } else {
                level
            };
        }
        priorities
    }

    /// From the highest priority of a fixed flow that has no less to spare to
    /// the lowest of one that has no more.
    fn between_fixed(&self, spare: u64) -> (u64, u64) {
        let of = |keep: &dyn Fn(u64) -> bool| {
            let fixed = self.fixed.iter().copied();
            let fixed = fixed.filter(|flow| *flow < self.spare.len() && keep(self.spare[*flow]));
            fixed
                .map(|flow| self.network.flows[flow].priority)
                .collect::<Vec<_>>()
        };
        let less_urgent = of(&|other| other >= spare).into_iter().max();
        let more_urgent = of(&|other| other <= spare).into_iter().min();
        (
            less_urgent.unwrap_or(0),
            more_urgent.unwrap_or(self.levels - 1),
        )
    }

    /// From the lowest level up, each gets the largest set of flows that pass
    /// together with all others that are left above them. It is unique, for
    /// company on the same level never does more harm than above it.
    fn optimal(&self) -> Result<Vec<u64>, Unassignable> {
        let mut priorities = self.current();
        let mut left = self.free();
        for level in 0..self.levels {
            for flow in &left {
                priorities[*flow] = level;
            }
            loop {
                let late = self.fails(&priorities, level);
                if let Some(fixed) = late.iter().find(|flow| self.fixed.contains(flow)) {
                    return Err(self.unassignable([*fixed]));
                }
                if late.is_empty() {
                    break;
                }
                for flow in late {
                    // Above all levels until it has one.
                    priorities[flow] = self.levels;
                }
            }
            left.retain(|flow| priorities[*flow] == self.levels);
        }
        if left.is_empty() {
            return Ok(priorities);
        }
        Err(self.unassignable(left))
    }

    /// The flows of a level that do not pass the test that knows no order.
    fn fails(&self, priorities: &[u64], level: u64) -> Vec<usize> {
        let (system, class_of) = self.system(priorities);
        let test = OrderFree::new(&system);
        let mut scratch = Scratch::new(u64::MAX);
        let passes: Vec<bool> = (0..system.classes.len())
            .map(|class| {
                system.classes[class].priority != level || test.passes(class, &mut scratch)
            })
            .collect();
        let flows = class_of.into_iter().enumerate();
        flows
            .filter(|(_, class)| !passes[*class])
            .map(|(flow, _)| flow)
            .collect()
    }

    /// For each flow the first that differs from it in name, period and
    /// priority at most: where one of them is late at the end of an order,
    /// another is, too, but for rare cases.
    fn kinds(&self) -> Vec<usize> {
        let mut known = HashMap::new();
        let flows = self.network.flows.iter().enumerate();
        flows
            .map(|(index, flow)| {
                let kind = (
                    (flow.jitter, flow.deadline, flow.frames),
                    (&flow.hops, &flow.leaves),
                );
                *known.entry(kind).or_insert(index)
            })
            .collect()
    }

    /// Goes through the places from the least urgent: if the flow there is late,
    /// the next more urgent flow that is not late takes the place, and those
    /// between move up. Of each level one of a kind is tried.
    fn repair(&self) -> Result<Vec<u64>, Unassignable> {
        let mut priorities = self.monotonic();
        let mut late = self.late(&priorities);
        let mut order = self.free();
        order.sort_by_key(|flow| priorities[*flow]);
        let places: Vec<u64> = order.iter().map(|flow| priorities[*flow]).collect();
        let kinds = self.kinds();
        let mut trials = TRIALS;
        for place in 0..order.len() {
            let settled = |order: &[usize], late: &[usize]| {
                !order[..=place].iter().any(|flow| late.contains(flow))
            };
            if settled(&order, &late) {
                continue;
            }
            let others = (place + 1..order.len()).filter(|other| places[*other] > places[place]);
            let mut found = false;
            let mut tried = HashSet::new();
            for other in others {
                if !tried.insert((places[other], kinds[order[other]])) {
                    continue;
                }
                let Some(left) = trials.checked_sub(1) else {
                    break;
                };
                trials = left;
                let mut trial = order.clone();
                trial[place..=other].rotate_right(1);
                let mut changed = priorities.clone();
                for (flow, priority) in trial.iter().zip(&places) {
                    changed[*flow] = *priority;
                }
                let missed = self.late(&changed);
                if settled(&trial, &missed) {
                    (order, priorities, late) = (trial, changed, missed);
                    found = true;
                    break;
                }
            }
            if !found {
                return Err(self.unassignable(late));
            }
        }
        if late.is_empty() {
            return Ok(priorities);
        }
        Err(self.unassignable(late))
    }
}

/// Least time from a release without jitter to the farthest destination.
fn latency(system: &System, class: ClassId) -> u64 {
    let leaves = system.classes[class].leaves.iter();
    let arrival = |leaf: &usize| {
        let stage = &system.stages[*leaf];
        stage.earliest + stage.cost + system.ports[stage.port].prop
    };
    leaves.map(arrival).max().unwrap_or(0)
}

/// A holistic test of one flow that depends on the sets of flows above, beside
/// and below it only.
struct OrderFree<'a> {
    system: &'a System,
    /// For each stage, the latest arrival at the queue after which the
    /// deadline cannot be kept to every destination any more; at the publisher
    /// the release jitter.
    limits: Limits,
}

impl<'a> OrderFree<'a> {
    fn new(system: &'a System) -> Self {
        let mut least = vec![0; system.stages.len()];
        let mut latest = vec![0; system.stages.len()];
        for class in system.classes.iter().filter(|class| class.count > 0) {
            for id in class.stages.iter().rev() {
                let stage = &system.stages[*id];
                let children = stage.children.iter();
                let after = children.map(|child| system.stages[*child].delay_min + least[*child]);
                let prop = system.ports[stage.port].prop;
                least[*id] = stage.cost + after.max().unwrap_or(prop);
                latest[*id] = match stage.parent {
                    Some(_) => class.deadline.saturating_sub(least[*id]),
                    None => class.jitter,
                };
            }
        }
        // Ends are not looked at.
        let end = vec![UNBOUNDED; latest.len()];
        Self {
            system,
            limits: Limits { latest, end },
        }
    }

    /// All flows of the class arrive everywhere within their limits, and at
    /// every destination within the deadline, as long as all others arrive
    /// within theirs.
    fn passes(&self, class: ClassId, scratch: &mut Scratch) -> bool {
        let class = &self.system.classes[class];
        let mut ends: Vec<(usize, u64)> = Vec::with_capacity(class.stages.len());
        for id in &class.stages {
            let stage = &self.system.stages[*id];
            let arrival = match stage.parent {
                None => class.jitter,
                Some(parent) => {
                    let end = ends.iter().rfind(|(known, _)| *known == parent);
                    end.map_or(u64::MAX, |(_, end)| end.saturating_add(stage.delay_max))
                }
            };
            if arrival > self.limits.latest[*id] {
                return false;
            }
            let port = Segment {
                system: self.system,
                limits: &self.limits,
                path: &[*id],
                from: 0,
                to: 0,
                shaped: false,
                floor: self.system.priority(*id),
            };
            let Some(bound) = port.bound(scratch) else {
                return false;
            };
            ends.push((*id, arrival.saturating_add(bound)));
        }
        class.leaves.iter().all(|leaf| {
            let prop = self.system.ports[self.system.stages[*leaf].port].prop;
            let end = ends.iter().find(|(known, _)| known == leaf);
            end.is_some_and(|(_, end)| end.saturating_add(prop) <= class.deadline)
        })
    }
}

#[cfg(test)]
mod tests {
    use punctual_model::network::{Document, FlowEntry, LinkEntry, NodeEntry};
    use punctual_sim::network::{families, generate};

    use super::*;
    use crate::analyze;

    const NETWORKS: u64 = 300;
    const LEVELS: usize = 8;

    /// Flows on one link, as cost, period and deadline in milliseconds.
    fn link(flows: &[(u64, u64, u64)]) -> Network {
        let ms = |time: u64| time * 1_000_000;
        let node = |id: &str| NodeEntry {
            id: id.into(),
            ..NodeEntry::default()
        };
        let flow = |(index, (cost, period, deadline)): (usize, &(u64, u64, u64))| FlowEntry {
            id: format!("f{index}"),
            period_ns: ms(*period),
            deadline_ns: Some(ms(*deadline)),
            cost_ns: [("a>b".to_owned(), ms(*cost))].into(),
            paths: vec![vec!["a>b".into()]],
            ..FlowEntry::default()
        };
        let document = Document {
            nodes: vec![node("a"), node("b")],
            links: vec![LinkEntry {
                id: "a>b".into(),
                from: "a".into(),
                to: "b".into(),
                ..LinkEntry::default()
            }],
            flows: flows.iter().enumerate().map(flow).collect(),
        };
        Network::new(&document).unwrap()
    }

    fn none() -> BTreeSet<usize> {
        BTreeSet::new()
    }

    fn in_time(network: &Network, priorities: &[u64]) -> bool {
        let mut network = network.clone();
        for (flow, priority) in network.flows.iter_mut().zip(priorities) {
            flow.priority = *priority;
        }
        let bounds = analyze(&network);
        let mut flows = network.flows.iter().zip(&bounds.flows);
        flows.all(|(flow, bounds)| {
            let mut bounds = bounds.iter();
            bounds.all(|bounds| bounds.best.is_some_and(|bound| bound <= flow.deadline))
        })
    }

    /// Random networks with deadlines that are not hopeless.
    fn networks() -> impl Iterator<Item = Network> {
        (0..NETWORKS).map(|seed| {
            let mut document = generate::random(seed);
            for flow in &mut document.flows {
                let hops = flow.paths.iter().map(Vec::len).max().unwrap_or(1) as u64;
                flow.deadline_ns =
                    Some(flow.jitter_ns + flow.period_ns * (1 + seed % 3) * hops / 2);
            }
            Network::new(&document).unwrap()
        })
    }

    /// George, Rivierre & Spuri 1996: where frames are not preempted, the one
    /// with the longer deadline may have to go first even if no deadline is
    /// beyond its period. Here the second flow must be the lowest: below two
    /// others the third meets its frame of 3 ms after it has begun.
    #[test]
    fn monotonic_is_not_optimal() {
        let network = link(&[(1, 4, 4), (3, 5, 5), (1, 8, 8)]);
        let late = assign(&network, &none(), 3, Method::DeadlineMonotonic).unwrap_err();
        assert!(matches!(late, Unassignable::Late { .. }), "{late}");
        for method in [Method::Optimal, Method::Repair] {
            let found = assign(&network, &none(), 3, method).unwrap();
            assert!(in_time(&network, &found));
            assert!(found[1] < found[0], "{found:?}");
        }
    }

    /// What deadline monotonic order passes of the test without order, the
    /// optimal assignment passes, too: with as many levels, and with fewer if
    /// there is a path.
    #[test]
    fn optimal_for_its_test() {
        let (mut monotonic, mut optimal) = (0, 0);
        for network in networks() {
            let fixed = none();
            for levels in [1, 2, 4, 16] {
                let Ok(problem) = Problem::new(&network, &fixed, levels) else {
                    continue;
                };
                let order = problem.monotonic();
                let passes =
                    (0..levels as u64).all(|level| problem.fails(&order, level).is_empty());
                let found = problem.optimal();
                assert!(!passes || found.is_ok(), "{levels} levels: {order:?}");
                monotonic += u32::from(passes);
                if let Ok(found) = found {
                    optimal += 1;
                    let mut levels = 0..levels as u64;
                    assert!(levels.all(|level| problem.fails(&found, level).is_empty()));
                }
            }
        }
        assert!(monotonic > 100, "{monotonic}");
        assert!(optimal > monotonic, "{optimal} {monotonic}");
    }

    /// What the test without order accepts is in time by the analysis, which
    /// is the proof's conclusion and not only what was confirmed.
    #[test]
    fn passing_means_being_in_time() {
        let mut passing = 0;
        for network in networks() {
            let fixed = none();
            let Ok(problem) = Problem::new(&network, &fixed, LEVELS) else {
                continue;
            };
            // On a cycle the analysis may not find what the proof says.
            let (system, _) = problem.system(&problem.current());
            if let (Ok(found), true) = (problem.optimal(), system.acyclic) {
                assert!(in_time(&network, &found), "{found:?}");
                passing += 1;
            }
        }
        assert!(passing > 50, "{passing}");
    }

    #[test]
    fn repair_accepts_what_the_others_do() {
        let mut accepted = [0; 3];
        for network in networks() {
            let found = [Method::DeadlineMonotonic, Method::Optimal, Method::Repair]
                .map(|method| assign(&network, &none(), LEVELS, method));
            for found in found.iter().flatten() {
                assert!(in_time(&network, found));
                assert!(found.iter().all(|level| *level < LEVELS as u64));
            }
            assert!(found[2].is_ok() || (found[0].is_err() && found[1].is_err()));
            for (count, found) in accepted.iter_mut().zip(&found) {
                *count += u32::from(found.is_ok());
            }
        }
        let [monotonic, optimal, repaired] = accepted;
        assert!(optimal > 50 && repaired > monotonic, "{accepted:?}");
    }

    #[test]
    fn fixed_flows_keep_their_priorities() {
        let network = link(&[(1, 4, 4), (3, 5, 5), (1, 8, 8)]);
        let mut kept = network.clone();
        kept.flows[2].priority = 1;
        let fixed = BTreeSet::from([2]);
        let found = assign(&kept, &fixed, 3, Method::Optimal).unwrap();
        assert_eq!(found[2], 1);
        assert!(in_time(&kept, &found));
        // At the bottom it is late, whatever the others get.
        kept.flows[2].priority = 0;
        kept.flows[0].priority = 1;
        let fixed = BTreeSet::from([0, 2]);
        for method in [Method::DeadlineMonotonic, Method::Optimal, Method::Repair] {
            if let Ok(found) = assign(&kept, &fixed, 3, method) {
                assert_eq!((found[0], found[2]), (1, 0));
                assert!(in_time(&kept, &found));
            }
        }
        kept.flows[0].priority = 9;
        let error = assign(&kept, &fixed, 3, Method::Optimal).unwrap_err();
        assert!(
            matches!(error, Unassignable::Fixed { priority: 9, .. }),
            "{error}"
        );
    }

    #[test]
    fn hopeless_and_nothing() {
        let network = link(&[(3, 9, 2)]);
        let error = assign(&network, &none(), 8, Method::Repair).unwrap_err();
        assert_eq!(
            error.to_string(),
            "flow \"f0\" takes at least 3ms even alone; its deadline of 2ms must be longer"
        );
        let error = assign(&network, &none(), 0, Method::Repair).unwrap_err();
        assert_eq!(error, Unassignable::NoLevels);
        assert_eq!(
            assign(&link(&[]), &none(), 8, Method::Optimal),
            Ok(Vec::new())
        );
    }

    #[test]
    fn no_priorities_help_a_link_without_time() {
        let network = link(&[(3, 5, 50), (3, 6, 60)]);
        let error = assign(&network, &none(), 8, Method::Repair).unwrap_err();
        assert_eq!(
            error.to_string(),
            "link a>b loaded 110 %: no priorities help; take flows away or let them take another path"
        );
    }

    #[test]
    fn the_papers_network() {
        let network = Network::new(&families::fig2(families::Load::High)).unwrap();
        let found = assign(&network, &none(), 7, Method::DeadlineMonotonic).unwrap();
        assert!(in_time(&network, &found));
    }
}
