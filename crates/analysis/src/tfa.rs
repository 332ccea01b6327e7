//! Network calculus as a cross-check: total flow analysis per class.
//!
//! Each flow is a token bucket at each port: a message at once, and its rate;
//! what comes over one link brings no more than the link carries. A class gets
//! what a strict, non-preemptive priority leaves of the port after the bursts
//! and rates of all higher classes; inside it frames are served as they come.
//! The delay at a port is the greatest horizontal distance between the two
//! curves (at a port that serves by deadline or equals in any order: its longest busy period); it adds
//! to the jitter at the next (WCRT.md 7.1; Le Boudec & Thiran,
//! *Network Calculus*; Mifdaoui & Leydier 2017, link shaping of TFA++).
//!
//! The bound is safe and mostly looser than the others. Every rounding is
//! upwards.

use punctual_model::network::{LinkIndex, Network};

use crate::frames::{FrameId, Frames};

/// A rate, in units of 2^-64 of a link.
type Rate = u128;
/// All of a link.
const FULL: Rate = 1 << 64;
/// Longest time that counts as a bound, ns: eleven days.
const LIMIT: u64 = 1 << 50;
/// Rounds of the fixed point on routes that make a cycle.
const ROUNDS: usize = 300;

/// Bounds by network calculus for each flow and destination, from the nominal
/// release to the last bit, ns; `None` where a port is overloaded or none was
/// found.
pub fn tfa(network: &Network) -> Vec<Vec<Option<u64>>> {
    let frames = Frames::new(network);
    let mut analysis = Tfa {
        latest: frames
            .all
            .iter()
            .map(|frame| frame.earliest.checked_add(network.flows[frame.flow].jitter))
            .collect(),
        end: vec![Some(0); frames.all.len()],
        frames,
    };
    analysis.solve();
    let at_destination = |leaf: &FrameId| {
        let prop = network.topology.links[analysis.frames.all[*leaf].link].prop;
        analysis.end[*leaf].map(|end| end + prop)
    };
    let leaves = analysis.frames.leaves.iter();
    leaves
        .map(|leaves| leaves.iter().map(at_destination).collect())
        .collect()
}

/// A flow or several as a token bucket: `burst` at once, then a rate.
#[derive(Debug, Clone, Copy, Default)]
struct Bucket {
    burst: u64,
    rate: Rate,
}

impl Bucket {
    fn add(&mut self, other: Self) {
        self.burst = self.burst.saturating_add(other.burst);
        self.rate = self.rate.saturating_add(other.rate);
    }

    fn work(&self, x: u64) -> u64 {
        self.burst.saturating_add(scaled(self.rate, x))
    }
}

/// `rate * x`, rounded up.
fn scaled(rate: Rate, x: u64) -> u64 {
    match rate.checked_mul(x.into()) {
        Some(product) => u64::try_from(product.div_ceil(FULL)).unwrap_or(u64::MAX),
        None => u64::MAX,
    }
}

/// When so much work is done beside what comes at a rate, rounded up.
fn served(work: u64, beside: Rate) -> Option<u64> {
    let left = FULL.checked_sub(beside).filter(|left| *left > 0)?;
    let end = (u128::from(work.min(LIMIT)) << 64).div_ceil(left);
    u64::try_from(end).ok().filter(|end| *end < LIMIT)
}

/// What comes over one link, or begins here.
#[derive(Debug, Clone, Default)]
struct Group {
    input: Option<LinkIndex>,
    bucket: Bucket,
    /// Frames on the link: cost there, cost here with all copies.
    kinds: Vec<(u64, u64)>,
    last_parent: Option<FrameId>,
    delay_min: u64,
    delay_max: u64,
}

/// What a link lets through: a frame, then its rate.
#[derive(Debug, Clone, Copy)]
struct Line {
    bucket: Bucket,
    /// The bucket counts from so much before the window.
    spread: u64,
}

impl Line {
    fn work(&self, x: u64) -> u64 {
        self.bucket.work(x.saturating_add(self.spread))
    }
}

impl Group {
    /// `None` if the link brings no less than the flows.
    fn line(&self) -> Option<Line> {
        self.input?;
        let rate =
            |(before, here): &(u64, u64)| (Rate::from(*here) << 64).div_ceil((*before).into());
        let bucket = Bucket {
            burst: self.kinds.iter().map(|(_, here)| *here).max()?,
            rate: self.kinds.iter().map(rate).max()?,
        };
        (bucket.rate > self.bucket.rate).then_some(Line {
            bucket,
            spread: self.delay_max - self.delay_min,
        })
    }

    /// Work in a closed window of length `x`.
    fn work(&self, x: u64) -> u64 {
        let work = self.bucket.work(x);
        self.line().map_or(work, |line| work.min(line.work(x)))
    }

    /// Two instants between which the flows become less than the link.
    fn corner(&self) -> Option<(u64, u64)> {
        let line = self.line()?;
        let rise = line.bucket.rate - self.bucket.rate;
        let room = self.bucket.burst.checked_sub(line.work(0))?;
        let before = (u128::from(room) << 64) / rise;
        // The line was rounded up by less than 1.
        let after = ((u128::from(room) + 1) << 64).div_ceil(rise);
        let instant = |x: u128| u64::try_from(x).ok().filter(|x| *x < LIMIT);
        Some((instant(before)?, instant(after)?))
    }
}

/// The state of the analysis.
struct Tfa<'a> {
    frames: Frames<'a>,
    /// Latest arrival at the queue after the nominal release.
    latest: Vec<Option<u64>>,
    /// Latest end of transmission.
    end: Vec<Option<u64>>,
}

impl Tfa<'_> {
    fn solve(&mut self) {
        let (order, is_acyclic) = self.frames.order();
        let rounds = if is_acyclic { 1 } else { ROUNDS };
        for round in 0..rounds {
            let mut changed = Vec::new();
            for link in &order {
                self.port(*link, &mut changed);
            }
            if changed.is_empty() {
                return;
            }
            if !is_acyclic && round + 1 == rounds {
                self.give_up(&changed);
            }
        }
    }

    /// What still grows has no bound, nor has what depends on it.
    fn give_up(&mut self, growing: &[FrameId]) {
        for frame in growing {
            self.set_end(*frame, None);
        }
        let (order, _) = self.frames.order();
        loop {
            let mut changed = Vec::new();
            for link in &order {
                self.port(*link, &mut changed);
            }
            if changed.is_empty() {
                return;
            }
        }
    }

    /// The ends at a port; adds the frames whose end has changed.
    fn port(&mut self, link: LinkIndex, changed: &mut Vec<FrameId>) {
        let on_link = self.frames.on_link[link].clone();
        let fifo = self.frames.network.topology.links[link].fifo;
        let priority = |frame: &FrameId| self.frames.all[*frame].priority;
        let edf = self.frames.network.topology.links[link].edf;
        let unordered = self.frames.network.topology.links[link].unordered;
        let classes: Vec<Vec<FrameId>> = match fifo || edf {
            true if on_link.is_empty() => Vec::new(),
            true => vec![on_link],
            false => on_link
                .chunk_by(|a, b| priority(a) == priority(b))
                .map(<[FrameId]>::to_vec)
                .collect(),
        };
        let mut higher = Some(Bucket::default());
        for (index, class) in classes.iter().enumerate() {
            let lower = classes[index + 1..].iter().flatten();
            let longest = lower.map(|frame| self.frames.all[*frame].cost).max();
            let best_effort = self.frames.network.topology.links[link].best_effort;
            let blocking = best_effort.max(longest.unwrap_or(0));
            let delay = higher.and_then(|higher| match edf || unordered {
                true => self.busy_period(class, higher, blocking),
                false => self.delay(class, higher, blocking),
            });
            for frame in class {
                if self.end[*frame].is_none() {
                    continue;
                }
                let end = match (self.latest[*frame], delay) {
                    (Some(latest), Some(delay)) => {
                        latest.checked_add(delay).filter(|end| *end < LIMIT)
                    }
                    _ => None,
                };
                if self.set_end(*frame, end) {
                    changed.push(*frame);
                }
            }
            for frame in class {
                higher = match (higher, self.bucket(*frame)) {
                    (Some(mut sum), Some(bucket)) => {
                        sum.add(bucket);
                        Some(sum)
                    }
                    _ => None,
                };
            }
        }
    }

    /// A message at once, as often as its jitter lets it, and its rate.
    fn bucket(&self, frame: FrameId) -> Option<Bucket> {
        let period = self.frames.flow(frame).period;
        let work = self.frames.work(frame);
        let jitter = self.latest[frame]? - self.frames.all[frame].earliest;
        let early = (u128::from(work) * u128::from(jitter)).div_ceil(period.into());
        Some(Bucket {
            burst: work.saturating_add(u64::try_from(early).unwrap_or(u64::MAX)),
            rate: (Rate::from(work) << 64).div_ceil(period.into()),
        })
    }

    /// The longest time for which the port is busy with a class and what is
    /// higher: in whatever order frames are served, none stays longer.
    fn busy_period(&self, class: &[FrameId], higher: Bucket, blocking: u64) -> Option<u64> {
        let mut all = higher;
        for frame in class {
            all.add(self.bucket(*frame)?);
        }
        served(blocking.saturating_add(all.burst), all.rate)
    }

    /// The longest time in the port of a frame of a class.
    fn delay(&self, class: &[FrameId], higher: Bucket, blocking: u64) -> Option<u64> {
        let groups = self.groups(class)?;
        let rates = groups.iter().map(|group| group.bucket.rate);
        let rate = rates.fold(0, Rate::saturating_add);
        if rate > FULL.checked_sub(higher.rate)? {
            return None;
        }
        let waiting = blocking.saturating_add(higher.burst);
        let served = |work: u64| served(waiting.saturating_add(work), higher.rate);
        // Between corners the distance of the curves is linear.
        let corners = groups.iter().filter_map(Group::corner);
        let mut longest = 0;
        for (before, after) in std::iter::once((0, 0)).chain(corners) {
            let work = |group: &Group| group.work(after);
            let work = groups.iter().map(work).fold(0, u64::saturating_add);
            longest = longest.max(served(work)?.saturating_sub(before));
        }
        Some(longest)
    }

    fn groups(&self, class: &[FrameId]) -> Option<Vec<Group>> {
        let mut groups: Vec<Group> = Vec::new();
        for id in class {
            let frame = &self.frames.all[*id];
            // From where messages are served whole all their frames may come at once.
            let links = &self.frames.network.topology.links;
            let one_by_one = |parent: &FrameId| !links[self.frames.all[*parent].link].whole;
            let parent = frame.parent.filter(one_by_one);
            let input = parent.map(|parent| self.frames.all[parent].link);
            let known = groups.iter().position(|group| group.input == input);
            let place = known.unwrap_or_else(|| {
                groups.push(Group {
                    input,
                    delay_min: u64::MAX,
                    ..Group::default()
                });
                groups.len() - 1
            });
            let group = &mut groups[place];
            group.bucket.add(self.bucket(*id)?);
            let Some(parent) = parent else { continue };
            group.delay_min = group.delay_min.min(frame.delay_min);
            group.delay_max = group.delay_max.max(frame.delay_max);
            match group.kinds.last_mut() {
                Some((_, here)) if group.last_parent == Some(parent) => {
                    *here = here.saturating_add(frame.cost);
                }
                _ => group.kinds.push((self.frames.all[parent].cost, frame.cost)),
            }
            group.last_parent = Some(parent);
        }
        Some(groups)
    }

    /// Sets a frame's end and the arrivals of those that come after it. True if
    /// it has changed.
    fn set_end(&mut self, frame: FrameId, end: Option<u64>) -> bool {
        let changed = std::mem::replace(&mut self.end[frame], end) != end;
        for child in self.frames.all[frame].children.clone() {
            let delay = self.frames.all[child].delay_max;
            self.latest[child] = end.map(|end| end + delay);
        }
        changed
    }
}
