//! Every behaviour of a tiny network on a grid.
//!
//! The first flow begins at a fixed time; the others begin at every point of a
//! grid around it, and one nanosecond before each point. Combined with that:
//! every order at equal instants, least and most delay at every hop, least and
//! most undeclared traffic on every link, and messages that are all on time,
//! all as late as they may be, or late first and then on time. What lies
//! between the points of the grid is left out, so that the result is a lower
//! limit of the worst case, though a close one.

use std::error::Error;
use std::fmt;
use std::ops::Range;

use punctual_model::network::Network;

use super::engine::{Engine, Nobody, Worst};
use super::layout::Layout;
use super::scenario::{Message, RepeatedChoice, Scenario};

/// The choices that an exhaustive search tries: a grid of points in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// Distance of two neighbouring points of the grid, ns; at least 1.
    pub step: u64,
    /// The greatest difference between the first release of a flow and that of the first flow, ns.
    pub span: u64,
    /// How many messages each flow releases.
    pub messages: u32,
    /// The greatest number of behaviours; if the grid has more, none is run.
    pub limit: u64,
}

/// The error of a grid that has more behaviours than [`Grid::limit`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooManyBehaviours {
    /// How many behaviours the grid has.
    pub behaviours: u64,
    /// The limit.
    pub limit: u64,
}

impl fmt::Display for TooManyBehaviours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "there are {} behaviours on the grid, more than {}; take a larger step, a shorter span or a smaller network",
            self.behaviours, self.limit
        )
    }
}

impl Error for TooManyBehaviours {}

/// The worst response times of the behaviours of a grid.
#[derive(Debug, Clone)]
pub struct ExhaustiveResult {
    /// By flow and path: the largest response time and a scenario that leads to it.
    pub worst: Vec<Vec<(Worst, Scenario)>>,
    /// How many behaviours were run.
    pub behaviours: u64,
}

impl ExhaustiveResult {
    /// Adds the result of behaviours with higher numbers.
    pub fn add(&mut self, later: Self) {
        self.behaviours += later.behaviours;
        let all = self.worst.iter_mut().flatten();
        for (known, (worst, scenario)) in all.zip(later.worst.into_iter().flatten()) {
            if worst.response > known.0.response {
                *known = (worst, scenario);
            }
        }
    }
}

/// Runs every behaviour on a grid.
///
/// # Errors
/// The grid has more behaviours than `grid.limit`, and none was run.
pub fn exhaust(network: &Network, grid: Grid) -> Result<ExhaustiveResult, TooManyBehaviours> {
    let all = Behaviours::new(network, grid)?;
    Ok(all.run(0..all.count()))
}

/// All behaviours of a grid, with numbers from 0 on, so that parts of them can be run on different
/// cores.
#[derive(Debug)]
pub struct Behaviours<'a> {
    network: &'a Network,
    layout: Layout,
    grid: Grid,
    axes: Vec<Axis>,
    count: u64,
}

impl<'a> Behaviours<'a> {
    /// Numbers the behaviours of a network on a grid.
    ///
    /// # Errors
    /// The grid has more behaviours than `grid.limit`.
    pub fn new(network: &'a Network, grid: Grid) -> Result<Self, TooManyBehaviours> {
        let layout = Layout::new(network);
        let axes = axes(&layout, grid);
        let count = axes
            .iter()
            .fold(1_u64, |all, axis| all.saturating_mul(axis.size(&layout)));
        if count > grid.limit {
            return Err(TooManyBehaviours {
                behaviours: count,
                limit: grid.limit,
            });
        }
        Ok(Self {
            network,
            layout,
            grid,
            axes,
            count,
        })
    }

    /// The number of behaviours.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Runs the behaviours with these numbers; numbers that do not exist are skipped.
    pub fn run(&self, numbers: Range<u64>) -> ExhaustiveResult {
        let layout = &self.layout;
        let end = numbers.end.min(self.count).max(numbers.start);
        let mut scenario = Scenario::silent(self.network);
        let mut worst: Vec<Vec<(Worst, Scenario)>> = layout
            .flows
            .iter()
            .map(|flow| vec![(Worst::default(), scenario.clone()); flow.leaves.len()])
            .collect();
        let mut engine = Engine::new(layout);
        let mut at = Vec::with_capacity(self.axes.len());
        let mut rest = numbers.start;
        for axis in &self.axes {
            let size = axis.size(layout);
            axis.set(rest % size, layout, self.grid, &mut scenario);
            at.push(rest % size);
            rest /= size;
        }
        for number in numbers.start..end {
            if number > numbers.start {
                self.next(&mut at, &mut scenario);
            }
            engine.run(&mut scenario.play(layout), &mut Nobody);
            for (flow, paths) in worst.iter_mut().enumerate() {
                for (path, (known, by)) in paths.iter_mut().enumerate() {
                    let seen = engine.worst(flow, path);
                    if seen.response > known.response {
                        *known = seen;
                        by.clone_from(&scenario);
                    }
                }
            }
        }
        ExhaustiveResult {
            worst,
            behaviours: end - numbers.start,
        }
    }

    /// Goes on to the next behaviour: the choices are counted up like the digits of a number.
    fn next(&self, at: &mut [u64], scenario: &mut Scenario) {
        for (axis, digit) in self.axes.iter().zip(at) {
            *digit += 1;
            let carry = *digit == axis.size(&self.layout);
            if carry {
                *digit = 0;
            }
            axis.set(*digit, &self.layout, self.grid, scenario);
            if !carry {
                return;
            }
        }
    }
}

/// One of the choices that differ between the behaviours of a grid.
#[derive(Debug, Clone, Copy)]
enum Axis {
    /// When a flow begins and how late its messages are; the second value is the number of points.
    Begin(usize, u64),
    /// The delay at the node before a hop.
    Delay(usize),
    /// The residual of undeclared frames at a link.
    Residual(usize),
    /// The ranks of the flows.
    Order,
}

fn axes(layout: &Layout, grid: Grid) -> Vec<Axis> {
    let mut axes = Vec::new();
    let points = 2 * (2 * (grid.span / grid.step.max(1)) + 1);
    for (flow, _) in layout.flows.iter().enumerate() {
        axes.push(Axis::Begin(flow, if flow == 0 { 1 } else { points }));
    }
    for (number, hop) in layout.hops.iter().enumerate() {
        if hop.delay.0 != hop.delay.1 {
            axes.push(Axis::Delay(number));
        }
    }
    for (number, link) in layout.links.iter().enumerate() {
        let used = layout.hops.iter().any(|hop| hop.link as usize == number);
        if link.best_effort > 1 && used {
            axes.push(Axis::Residual(number));
        }
    }
    if layout.flows.len() > 1 {
        axes.push(Axis::Order);
    }
    axes
}

impl Axis {
    fn size(self, layout: &Layout) -> u64 {
        match self {
            Self::Begin(flow, points) => {
                points.saturating_mul(if layout.flows[flow].jitter > 0 { 3 } else { 1 })
            }
            Self::Delay(_) | Self::Residual(_) => 2,
            Self::Order => (1..=layout.flows.len() as u64)
                .try_fold(1_u64, u64::checked_mul)
                .unwrap_or(u64::MAX),
        }
    }

    fn set(self, index: u64, layout: &Layout, grid: Grid, scenario: &mut Scenario) {
        match self {
            Self::Begin(flow, points) => {
                let row = &layout.flows[flow];
                let (point, lateness) = (index % points, index / points);
                // Before the first flow, and early enough for the jitter.
                let jitter = layout.flows.iter().map(|flow| flow.jitter).max();
                let origin = grid.span + jitter.unwrap_or(0) + 1;
                let begin = match points {
                    1 => origin,
                    _ => {
                        let steps = grid.span / grid.step;
                        origin - steps * grid.step + point / 2 * grid.step - point % 2
                    }
                };
                // A late message is queued at the point.
                let late = |k: u64| match lateness {
                    0 => 0,
                    1 => row.jitter,
                    _ if k == 0 => row.jitter,
                    _ => 0,
                };
                let nominal = begin - late(0);
                scenario.flows[flow].messages = (0..u64::from(grid.messages))
                    .map(|k| Message {
                        nominal_ns: nominal + k * row.period,
                        late_ns: late(k),
                    })
                    .collect();
            }
            Self::Delay(hop) => {
                let row = &layout.hops[hop];
                let first = layout.flows[row.flow as usize].first_hop as usize;
                let value = if index == 0 { row.delay.1 } else { row.delay.0 };
                scenario.flows[row.flow as usize].delays[hop - first] =
                    RepeatedChoice::always(value);
            }
            Self::Residual(link) => {
                let most = layout.links[link].best_effort - 1;
                scenario.links[link].residual =
                    RepeatedChoice::always(if index == 0 { most } else { 0 });
            }
            Self::Order => {
                // The permutation of that number.
                let mut left: Vec<usize> = (0..layout.flows.len()).collect();
                let mut index = index;
                let mut rank = 0;
                while !left.is_empty() {
                    let flow = left.remove((index % left.len() as u64) as usize);
                    index /= left.len() as u64 + 1;
                    scenario.flows[flow].rank = rank;
                    rank += 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::families::tiny;

    #[test]
    fn all_orders_are_tried() {
        let network = Network::new(&tiny::three_flows()).unwrap();
        let layout = Layout::new(&network);
        let mut scenario = Scenario::silent(&network);
        let grid = Grid {
            step: 1,
            span: 0,
            messages: 1,
            limit: 1,
        };
        let mut seen = std::collections::HashSet::new();
        for index in 0..Axis::Order.size(&layout) {
            Axis::Order.set(index, &layout, grid, &mut scenario);
            seen.insert(scenario.flows.iter().map(|f| f.rank).collect::<Vec<_>>());
        }
        assert_eq!(seen.len(), 6);
        let all = Behaviours::new(&network, Grid { limit: 24, ..grid }).unwrap();
        assert_eq!(all.count(), 24);
        let error = exhaust(&network, grid).unwrap_err();
        assert_eq!(error.behaviours, 2 * 2 * 6);
        assert!(error.to_string().contains("larger step"));
    }

    #[test]
    fn parts_are_the_whole() {
        let network = Network::new(&tiny::joining()).unwrap();
        let grid = Grid {
            step: 50_000,
            span: 200_000,
            messages: 1,
            limit: 100_000,
        };
        let all = Behaviours::new(&network, grid).unwrap();
        let whole = all.run(0..u64::MAX);
        assert_eq!(whole.behaviours, all.count());
        let mut parts = all.run(0..0);
        for start in (0..all.count()).step_by(7) {
            parts.add(all.run(start..start + 7));
        }
        assert_eq!(parts.behaviours, whole.behaviours);
        assert_eq!(parts.worst, whole.worst);
    }
}
