//! The formulas of "End-to-End Response Time Analysis for RT-MQTT: Trajectory
//! Approach versus Holistic Approach", as printed; those of the paper on
//! MRT-MQTT, which builds on them, are [`mrt_holistic`] and [`mrt_trajectory`].
//!
//! **These are no bounds.** Real responses exceed them, the trajectory formulas
//! by far: they charge the switching delay where frames contend for the link
//! (WCRT.md section 1 lists the errors). They are here to reproduce the
//! papers' figures and to show where they are unsafe; nothing that admits a
//! flow may look at them.
//!
//! Where the text leaves something open the reading is the one that favours
//! the formula: jitter accumulates along the path, release jitter and
//! propagation are added to the result, and the unreadable reduction of the
//! blocking term in (7) is left out. The stop test of the holistic iteration
//! against the deadline is left out, too, so that there is a figure.

use punctual_model::network::{LinkIndex, Network};

use crate::frames::{FrameId, Frames};

mod mrt;

use mrt::Multicast;
pub use mrt::{mrt_holistic, mrt_trajectory};

/// Longest time that an iteration follows, ns.
const HORIZON: u64 = 1_000_000_000_000;
/// Steps of the iterations for one frame at a port, those of all its instances
/// together.
const STEPS: usize = 20_000;
/// Rounds over the whole network.
const ROUNDS: usize = 300;

/// Equations (2) to (4) and Algorithm 1, release jitter added: for each flow
/// and destination, ns; `None` where the iteration does not end.
pub fn holistic(network: &Network) -> Vec<Vec<Option<u64>>> {
    let frames = Frames::new(network);
    let response = responses(&frames, |port, _| port.response());
    per_path(&frames, |leaf| {
        frames.path(leaf).iter().try_fold(0_u64, |sum, id| {
            let frame = &frames.all[*id];
            let switching = frame.parent.map_or(0, |_| frame.own_delay);
            let prop = network.topology.links[frame.link].prop;
            sum.checked_add(response[*id]?)?
                .checked_add(switching)?
                .checked_add(prop)
        })
    })
}

/// The response of each frame at its port by a formula, with the jitter that
/// accumulates up to there.
fn responses(
    frames: &Frames<'_>,
    formula: impl Fn(&Port, FrameId) -> Option<u64>,
) -> Vec<Option<u64>> {
    let network = frames.network;
    let mut jitter: Vec<Option<u64>> = frames
        .all
        .iter()
        .map(|frame| Some(network.flows[frame.flow].jitter))
        .collect();
    let mut response: Vec<Option<u64>> = vec![Some(0); frames.all.len()];
    let (order, is_acyclic) = frames.order();
    let rounds = if is_acyclic { 1 } else { ROUNDS };
    for round in 0..rounds {
        let mut changed = Vec::new();
        for link in &order {
            for frame in &frames.on_link[*link] {
                // Values only grow: what had no end has none.
                let port = response[*frame].and_then(|_| Port::new(frames, &jitter, *frame));
                let new = port.and_then(|port| formula(&port, *frame));
                if std::mem::replace(&mut response[*frame], new) != new {
                    changed.push(*frame);
                }
                let spread = new.map(|new| new - frames.all[*frame].cost);
                for child in &frames.all[*frame].children {
                    let node = network.topology.links[frames.all[*child].link].from;
                    let switching =
                        frames.all[*child].own_delay - network.topology.nodes[node].sd_min;
                    jitter[*child] = jitter[*frame]
                        .and_then(|jitter| jitter.checked_add(spread?)?.checked_add(switching));
                }
            }
        }
        if changed.is_empty() {
            break;
        }
        if !is_acyclic && round + 1 == rounds {
            for frame in changed {
                response[frame] = None;
            }
        }
    }
    response
}

/// No less than anything if there is no sum: such a value is passed on to an
/// addition that fails, or is above the horizon.
fn sum(values: impl Iterator<Item = u64>) -> u64 {
    values.fold(0, u64::saturating_add)
}

/// A flow's result for each of its leaves, release jitter added.
fn per_path(frames: &Frames<'_>, total: impl Fn(FrameId) -> Option<u64>) -> Vec<Vec<Option<u64>>> {
    let flows = frames.network.flows.iter().zip(&frames.leaves);
    flows
        .map(|(flow, leaves)| {
            let leaves = leaves.iter();
            leaves
                .map(|leaf| total(*leaf)?.checked_add(flow.jitter))
                .collect()
        })
        .collect()
}

/// A frame at a port, and the others that count: cost, period, jitter.
struct Port {
    blocking: u64,
    cost: u64,
    period: u64,
    jitter: u64,
    others: Vec<[u64; 3]>,
}

impl Port {
    /// `None` if another's jitter has no end.
    fn new(frames: &Frames<'_>, jitter: &[Option<u64>], id: FrameId) -> Option<Self> {
        let frame = &frames.all[id];
        let link = &frames.network.topology.links[frame.link];
        let flow = frames.flow(id);
        let mut port = Self {
            blocking: link.best_effort,
            cost: frames.work(id),
            period: flow.period,
            jitter: jitter[id]?,
            others: Vec::new(),
        };
        for other in frames.on_link[frame.link]
            .iter()
            .filter(|other| **other != id)
        {
            let of = frames.flow(*other);
            if link.fifo || link.edf || of.priority >= flow.priority {
                port.others
                    .push([frames.work(*other), of.period, jitter[*other]?]);
            } else {
                port.blocking = port.blocking.max(frames.all[*other].cost);
            }
        }
        Some(port)
    }

    /// (4). `None` if an iteration does not end, or there are too many.
    fn response(&self) -> Option<u64> {
        self.response_with(0, |[cost, ..]| *cost)
    }

    /// (15): all flows have the jitter of multicast, too, and in (14) C_i stands
    /// for C_j.
    fn multicast_response(&self, jitter: u64) -> Option<u64> {
        self.response_with(jitter, |_| self.cost)
    }

    /// (2) to (4) with more jitter, and the cost that each frame of another flow
    /// has in (3).
    fn response_with(&self, more: u64, charged: impl Fn(&[u64; 3]) -> u64) -> Option<u64> {
        let mut steps = STEPS;
        // (2): the own flow is missing.
        let ceil = |w: u64, other: &[u64; 3]| {
            let [cost, period, jitter] = other;
            let frames = w.checked_add(*jitter)?.checked_add(more)?.div_ceil(*period);
            frames.checked_mul(*cost)
        };
        let least = self.blocking.checked_add(self.cost)?;
        let busy = self.fixed_point(least, self.blocking, ceil, &mut steps)?;
        let busy = busy.checked_add(self.jitter)?.checked_add(more)?;
        let instances = busy.div_ceil(self.period).max(1);
        let floor = |v: u64, other: &[u64; 3]| {
            let [_, period, jitter] = other;
            let frames = v.checked_add(*jitter)?.checked_add(more)? / period;
            frames.checked_add(1)?.checked_mul(charged(other))
        };
        let mut greatest = 0;
        for q in 0..instances {
            // (3).
            let own = self.blocking.checked_add(q.checked_mul(self.cost)?)?;
            let start = self.fixed_point(own, own, floor, &mut steps)?;
            let end = start.checked_add(self.cost)?;
            greatest = greatest.max(end.saturating_sub(q.checked_mul(self.period)?));
        }
        Some(greatest)
    }

    /// Of the work of the others. Takes what it needs of the steps.
    fn fixed_point(
        &self,
        from: u64,
        constant: u64,
        work: impl Fn(u64, &[u64; 3]) -> Option<u64>,
        steps: &mut usize,
    ) -> Option<u64> {
        let mut value = from;
        loop {
            *steps = steps.checked_sub(1)?;
            let next = self
                .others
                .iter()
                .try_fold(constant, |sum, other| sum.checked_add(work(value, other)?))?;
            if next == value {
                return Some(value);
            }
            if next > HORIZON {
                return None;
            }
            value = next;
        }
    }
}

/// How (1+⌊x⌋)⁺ is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Floor {
    /// max(0; ⌊x⌋), as the text says: one frame of every flow is lost.
    AsPrinted,
    /// max(0; 1+⌊x⌋), as in the source of the formula.
    Repaired,
}

impl Floor {
    fn frames(self, time: i128, period: u64) -> u64 {
        let floor = time.div_euclid(period.into());
        let frames = match self {
            Self::AsPrinted => floor,
            Self::Repaired => floor + 1,
        };
        u64::try_from(frames.max(0)).unwrap_or(u64::MAX)
    }
}

/// Equations (5) to (8) and Algorithm 2 at t = 0, release jitter added: for
/// each flow and destination, ns; `None` where the iteration does not end.
pub fn trajectory(network: &Network, floor: Floor) -> Vec<Vec<Option<u64>>> {
    trajectories(&Frames::new(network), floor, None)
}

/// By the formulas of either paper.
fn trajectories(
    frames: &Frames<'_>,
    floor: Floor,
    multicast: Option<&Multicast>,
) -> Vec<Vec<Option<u64>>> {
    let network = frames.network;
    let mut trajectory = Trajectory {
        smax: vec![Some(0); frames.all.len()],
        start: vec![Some(0); frames.all.len()],
        frames,
        floor,
        multicast,
    };
    trajectory.begin();
    for round in 0..ROUNDS {
        let changed = trajectory.round();
        if changed.is_empty() {
            break;
        }
        if round + 1 == ROUNDS {
            for frame in changed {
                trajectory.start[frame] = None;
            }
        }
    }
    per_path(frames, |leaf| {
        let path = frames.path(leaf);
        let links = path.iter().map(|frame| frames.all[*frame].link);
        let prop = sum(links.map(|link| network.topology.links[link].prop));
        let response = match path.len() {
            // There is no switch.
            1 => frames.work(leaf),
            _ => trajectory.start[leaf]?.checked_add(frames.all[leaf].own_delay)?,
        };
        response.checked_add(prop)
    })
}

/// A flow that shares a link with the one under test.
struct Interferer {
    flow: usize,
    /// The greatest delay of its switches between both.
    slowest: u64,
    /// Positions in the path of the first and the last link that it shares,
    /// and its frames there.
    first: (usize, FrameId),
    last: (usize, FrameId),
}

struct Trajectory<'a> {
    frames: &'a Frames<'a>,
    floor: Floor,
    /// In the second paper.
    multicast: Option<&'a Multicast>,
    /// Greatest time from the source switch to the frame's switch.
    smax: Vec<Option<u64>>,
    /// W at the frame's switch.
    start: Vec<Option<u64>>,
}

impl Trajectory<'_> {
    /// Line 2 of the algorithm.
    fn begin(&mut self) {
        for id in 0..self.frames.all.len() {
            let Some(parent) = self.frames.all[id].parent else {
                continue;
            };
            let before = &self.frames.all[parent];
            if before.parent.is_some() {
                let step = before.own_delay.checked_add(self.frames.work(parent));
                let smax = self.smax[parent].zip(step);
                self.smax[id] = smax.and_then(|(smax, step)| smax.checked_add(step));
            }
        }
    }

    /// Computes each W once more. The frames whose W has changed.
    fn round(&mut self) -> Vec<FrameId> {
        let mut changed = Vec::new();
        for id in 0..self.frames.all.len() {
            if self.frames.all[id].parent.is_none() {
                continue;
            }
            // Values only grow: what had no end has none.
            let path = self.start[id].map(|_| self.frames.path(id));
            let start = path.and_then(|path| self.latest_start(&path));
            if std::mem::replace(&mut self.start[id], start) != start {
                changed.push(id);
            }
            let frame = &self.frames.all[id];
            let cost = self.frames.work(id);
            let after = |start: u64| start.checked_add(frame.own_delay)?.checked_add(cost);
            for child in &frame.children {
                self.smax[*child] = start.and_then(after);
            }
        }
        changed
    }

    /// (5) for the part of a path that ends with the last frame.
    fn latest_start(&self, path: &[FrameId]) -> Option<u64> {
        let last = *path.last()?;
        let priority = self.frames.flow(last).priority;
        let others = self.others(path);
        let delays = || path[1..].iter().map(|id| self.frames.all[*id].own_delay);
        let slowest = delays().max().unwrap_or(0);
        let switches = match self.multicast {
            Some(multicast) => self.lesser_delay(path, multicast),
            None => sum(delays()) - slowest,
        };
        let transmission = sum(path.iter().map(|id| self.frames.work(*id)));
        let mut constant = switches
            .checked_add(transmission)?
            .checked_add(self.blocking(path))?;
        for other in &others {
            if self.network_flow(other.flow).priority == priority {
                let smax = i128::from(self.smax[path[other.first.0]]?);
                let smin = i128::from(self.smin(other.first.1));
                let time = smax - smin + self.advance(path, other)?;
                constant = constant.checked_add(self.charge(&others, other, time)?)?;
            }
        }
        let mut value = 0_u64;
        for _ in 0..STEPS {
            let mut next = constant;
            for other in &others {
                if self.network_flow(other.flow).priority <= priority {
                    continue;
                }
                let own = match other.last.0 == path.len() - 1 {
                    true => value,
                    false => self.start[path[other.last.0]]?,
                };
                let time = i128::from(own) - i128::from(self.smin(other.last.1))
                    + self.advance(path, other)?;
                next = next.checked_add(self.charge(&others, other, time)?)?;
            }
            let next = next.saturating_sub(self.frames.all[last].own_delay);
            if next <= value {
                return Some(value);
            }
            if next > HORIZON {
                return None;
            }
            value = next;
        }
        None
    }

    fn network_flow(&self, flow: usize) -> &punctual_model::network::Flow {
        &self.frames.network.flows[flow]
    }

    /// The flows of the same or a higher priority that share a switch's output
    /// with the path.
    fn others(&self, path: &[FrameId]) -> Vec<Interferer> {
        let own = &self.frames.all[path[0]];
        let priority = self.network_flow(own.flow).priority;
        let mut others: Vec<Interferer> = Vec::new();
        for (position, id) in path.iter().enumerate().skip(1) {
            for other in &self.frames.on_link[self.frames.all[*id].link] {
                let flow = self.frames.all[*other].flow;
                if flow == own.flow || self.network_flow(flow).priority < priority {
                    continue;
                }
                let place = (position, *other);
                match others.iter_mut().find(|known| known.flow == flow) {
                    Some(known) => known.last = place,
                    None => others.push(Interferer {
                        flow,
                        slowest: 0,
                        first: place,
                        last: place,
                    }),
                }
            }
        }
        for other in &mut others {
            let shared = path[other.first.0..=other.last.0].iter();
            let delays = shared.map(|id| self.frames.all[*id].own_delay);
            other.slowest = delays.max().unwrap_or(0);
        }
        others
    }

    /// Least time from the source switch to the frame's switch.
    fn smin(&self, frame: FrameId) -> u64 {
        let first = self.frames.path(frame).get(1).copied().unwrap_or(frame);
        let earliest = |frame: FrameId| self.frames.all[frame].earliest;
        earliest(frame).saturating_sub(earliest(first))
    }

    /// A of (5), with M of (6).
    fn advance(&self, path: &[FrameId], other: &Interferer) -> Option<i128> {
        let smax = i128::from(self.smax[other.first.1]?);
        let topology = &self.frames.network.topology;
        let least = |id: &FrameId| {
            let node = topology.links[self.frames.all[*id].link].from;
            topology.nodes[node]
                .sd_min
                .saturating_add(self.frames.work(*id))
        };
        let m = sum(path[1..other.first.0].iter().map(least));
        let multicast = self
            .multicast
            .filter(|multicast| multicast.flows[other.flow]);
        let more = multicast.map_or(0, |multicast| multicast.jitter);
        let jitter = self.network_flow(other.flow).jitter.saturating_add(more);
        Some(smax - i128::from(m) + i128::from(jitter))
    }

    /// Frames of another flow, each with the switching delay of its slowest
    /// switch; in the second paper, of the slowest of all.
    fn charge(&self, others: &[Interferer], other: &Interferer, time: i128) -> Option<u64> {
        let slowest = match self.multicast {
            Some(_) => others.iter().map(|other| other.slowest).max()?,
            None => other.slowest,
        };
        let period = self.network_flow(other.flow).period;
        self.floor.frames(time, period).checked_mul(slowest)
    }

    /// (7) without its reduction: the greatest switching delay of a declared
    /// flow of lower priority at each switch. Best effort does not occur.
    fn blocking(&self, path: &[FrameId]) -> u64 {
        let priority = self.frames.flow(path[0]).priority;
        let at = |link: LinkIndex| {
            let lower = self.frames.on_link[link]
                .iter()
                .filter(|other| self.frames.flow(**other).priority < priority);
            let delay = lower.map(|other| self.frames.all[*other].own_delay).max();
            delay.unwrap_or(0).saturating_sub(1)
        };
        let links = path[1..].iter().map(|id| self.frames.all[*id].link);
        sum(links.map(at))
    }
}
