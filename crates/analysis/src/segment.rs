//! The bound of one segment of a path, the heart of the analysis.
//!
//! A segment is a run of consecutive ports of a frame's path. Its bound G says
//! that the frame has left the last of them at most G after the latest instant
//! at which it can reach the queue of the first. One port gives the holistic
//! step, the whole path the trajectory bound; a frame of another flow that
//! goes along is paid once. The proof is in `docs/analysis.md`.

use crate::arrivals::{Group, Stream};
use crate::system::{Class, FULL, Load, PortId, Stage, StageId, System, UNBOUNDED};

/// Longest busy period that is searched, ns: a thousand seconds.
const HORIZON: u64 = 1_000_000_000_000;
/// Steps of all fixed points of a segment; a search that needs more is given
/// up.
const ITERATIONS: u32 = 1 << 22;
/// Intervals of offsets this short are not cut again: the bound may be too
/// large by so much, ns.
const RESOLUTION: u64 = 16;

/// A segment of a path under test.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Segment<'a> {
    pub(crate) system: &'a System,
    /// Latest arrival at the queue of each stage after the nominal release;
    /// [`UNBOUNDED`] if there is none.
    pub(crate) latest: &'a [u64],
    /// The stages from the publisher on.
    pub(crate) path: &'a [StageId],
    /// The first and the last port, as positions in the path.
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// Whether links shape what comes over them.
    pub(crate) shaped: bool,
}

/// Room for the groups of a segment, used again by the next.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    same: Pool,
    higher: Pool,
    candidates: Vec<u64>,
}

/// Groups, and by what they are told apart.
#[derive(Debug, Default)]
struct Pool {
    groups: Vec<Group>,
    keys: Vec<Key>,
}

/// A group comes at one position of the path over one link, or starts there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Key {
    position: usize,
    input: Option<PortId>,
}

impl Pool {
    fn clear(&mut self) {
        self.keys.clear();
    }

    fn groups(&mut self) -> &mut [Group] {
        &mut self.groups[..self.keys.len()]
    }

    /// The group of this key, a new one if there is none.
    fn group(&mut self, key: Key, advance: u64) -> &mut Group {
        // The one that was looked for last is the likeliest.
        let known = self.keys.iter().rposition(|known| *known == key);
        let index = known.unwrap_or_else(|| {
            if self.groups.len() == self.keys.len() {
                self.groups.push(Group::default());
            }
            self.groups[self.keys.len()].reset(advance);
            self.keys.push(key);
            self.keys.len() - 1
        });
        &mut self.groups[index]
    }
}

/// The parts of a segment's bound that are no function of the offset.
#[derive(Debug, Clone, Copy, Default)]
struct Fixed {
    /// Blocking, the frames that count at two ports, switching, and copies of
    /// the frame under test.
    constant: u64,
    /// Least time from the first queue to the last.
    least: u64,
}

/// The flow under test in the segment.
#[derive(Debug, Clone, Copy)]
struct Own {
    /// Cost of a frame: the longest of its ports, or with its copies.
    cost: u64,
    /// That part of it which is copies of the frame that go along.
    copies: u64,
}

impl Segment<'_> {
    /// End of transmission at the last port, less the latest arrival at the
    /// first: at most so many nanoseconds. `None` if no bound is found.
    pub(crate) fn bound(&self, scratch: &mut Scratch) -> Option<u64> {
        let fixed = self.collect(scratch)?;
        let length = busy_period(&fixed, scratch)?;
        self.search(&fixed, length, scratch)
    }

    /// Latest end of transmission at the last port after the nominal release,
    /// [`UNBOUNDED`] if no limit is found.
    pub(crate) fn end(&self, scratch: &mut Scratch) -> u64 {
        let start = self.latest[self.path[self.from]];
        self.bound(scratch)
            .map_or(UNBOUNDED, |bound| start.saturating_add(bound))
    }

    /// Whether a segment may be so: a port without priorities stands alone.
    pub(crate) fn is_allowed(&self) -> bool {
        let fifo = |position: usize| self.system.ports[self.stage(position).port].fifo;
        self.from == self.to || !(self.from..=self.to).any(fifo)
    }

    fn stage(&self, position: usize) -> &Stage {
        &self.system.stages[self.path[position]]
    }

    fn class(&self) -> &Class {
        &self.system.classes[self.stage(self.from).class]
    }

    /// The stages of the port at a position that count for this frame.
    fn level(&self, position: usize) -> &[StageId] {
        self.system
            .level(self.stage(position).port, self.class().priority)
    }

    /// Gathers the streams that meet the frame, and the parts that are fixed.
    /// `None` if something has no limit, or the ports have no time left.
    fn collect(&self, scratch: &mut Scratch) -> Option<Fixed> {
        scratch.same.clear();
        scratch.higher.clear();
        let start = self.latest[self.path[self.from]];
        if start == UNBOUNDED {
            return None;
        }
        let own = self.own();
        let mut fixed = Fixed {
            constant: own.copies,
            least: 0,
        };
        for position in self.from..=self.to {
            if position > self.from {
                self.pass(position, &mut fixed);
            }
            let port = self.stage(position).port;
            fixed.constant += self.system.blocking(port, self.class().priority);
            let latest = self.latest[self.path[position]];
            if latest == UNBOUNDED {
                return None;
            }
            let advance = latest.saturating_sub(start).saturating_sub(fixed.least);
            self.enter(position, advance, own, scratch)?;
        }
        let mut total: Load = 0;
        for group in scratch
            .same
            .groups()
            .iter_mut()
            .chain(scratch.higher.groups())
        {
            group.finish();
            total += group.load();
        }
        (total < FULL).then_some(fixed)
    }

    fn own(&self) -> Own {
        let mut copies = 0;
        for position in self.from..self.to {
            let next = self.path[position + 1];
            let port = self.stage(position + 1).port;
            for child in &self.stage(position).children {
                if *child != next && self.system.stages[*child].port == port {
                    copies += self.run_cost(*child, position + 1);
                }
            }
        }
        Own {
            cost: self.run_cost(self.path[self.from], self.from),
            copies,
        }
    }

    /// The step from the port before a position to it: the frame that counts
    /// at both, and the switching between.
    fn pass(&self, position: usize, fixed: &mut Fixed) {
        let before = self.stage(position - 1).port;
        let (mut cost_max, mut cost_min) = (0, u64::MAX);
        let (mut delay_max, mut delay_min) = (0, u64::MAX);
        for stage in self.level(position) {
            let stage = &self.system.stages[*stage];
            let Some(parent) = stage.parent else { continue };
            let parent = &self.system.stages[parent];
            if parent.port != before {
                continue;
            }
            cost_max = cost_max.max(parent.cost);
            cost_min = cost_min.min(parent.cost);
            delay_max = delay_max.max(stage.delay_max);
            delay_min = delay_min.min(stage.delay_min);
        }
        fixed.constant += cost_max + delay_max;
        fixed.least += cost_min + delay_min;
    }

    /// The streams that enter the segment at a position.
    fn enter(&self, position: usize, advance: u64, own: Own, scratch: &mut Scratch) -> Option<()> {
        let system = self.system;
        let fifo = system.ports[self.stage(position).port].fifo;
        let along = (position > self.from).then(|| self.stage(position - 1).port);
        for id in self.level(position) {
            let stage = &system.stages[*id];
            let input = stage.parent.map(|parent| system.stages[parent].port);
            if along.is_some() && input == along {
                // It came along and is counted where it entered.
                continue;
            }
            let latest = self.latest[*id];
            if latest == UNBOUNDED {
                return None;
            }
            let class = &system.classes[stage.class];
            let higher = !fifo && class.priority > self.class().priority;
            let (pool, advance) = match higher {
                true => (&mut scratch.higher, 0),
                false => (&mut scratch.same, advance),
            };
            let input = input.filter(|_| self.shaped);
            let key = Key { position, input };
            let group = pool.group(key, advance);
            let under_test = *id == self.path[position];
            let cost = match under_test {
                true => own.cost,
                false => self.run_cost(*id, position),
            };
            let message = cost.checked_mul(class.frames)?;
            let stream = Stream {
                work: message,
                period: class.period,
                jitter: latest - stage.earliest,
            };
            let others = class.count - u64::from(under_test);
            if others > 0 {
                let work = message.checked_mul(others)?;
                group.add(Stream { work, ..stream });
            }
            let parent = stage.parent.filter(|_| self.shaped);
            if let Some(parent) = parent {
                group.add_kind(stage, parent, system.stages[parent].cost, cost);
            }
            if under_test {
                let over = parent.map(|parent| self.over(*id, parent));
                group.set_own(stream, cost, over);
            }
        }
        Some(())
    }

    /// Cost of the frame under test on the link over which it comes, and
    /// whether copies of it come with it to the same port.
    fn over(&self, id: StageId, parent: StageId) -> (u64, bool) {
        let stages = &self.system.stages;
        let copy = |child: &StageId| *child != id && stages[*child].port == stages[id].port;
        let parent = &stages[parent];
        (parent.cost, parent.children.iter().any(copy))
    }

    /// Cost of a frame of a class in the segment, from a position where it
    /// enters on: the longest of its ports, or, if a broker makes copies of
    /// it on the way, what these cost together.
    fn run_cost(&self, id: StageId, position: usize) -> u64 {
        let stage = &self.system.stages[id];
        if position == self.to {
            return stage.cost;
        }
        let next = self.stage(position + 1).port;
        let along = stage
            .children
            .iter()
            .filter(|child| self.system.stages[**child].port == next);
        let later: u64 = along.map(|child| self.run_cost(*child, position + 1)).sum();
        stage.cost.max(later)
    }
}

/// The longest time for which the frame's level can be busy along the segment,
/// beyond the least time through it: larger offsets repeat smaller ones.
fn busy_period(fixed: &Fixed, scratch: &mut Scratch) -> Option<u64> {
    let constant = fixed.constant - fixed.least;
    let mut length = 0;
    for _ in 0..ITERATIONS {
        let groups = scratch
            .same
            .groups()
            .iter()
            .chain(scratch.higher.groups().iter());
        let work = groups.fold(constant, |sum, group| {
            sum.saturating_add(group.everything(length))
        });
        if work <= length {
            return Some(length);
        }
        if work > HORIZON {
            return None;
        }
        length = work;
    }
    None
}

impl Segment<'_> {
    /// The greatest response over all offsets below `length`.
    fn search(&self, fixed: &Fixed, length: u64, scratch: &mut Scratch) -> Option<u64> {
        let Scratch {
            same,
            higher,
            candidates,
        } = scratch;
        candidates.clear();
        candidates.push(0);
        for group in higher.groups() {
            group.prepare(length)?;
        }
        for group in same.groups() {
            group.prepare(length)?;
            group.candidates(length, candidates)?;
        }
        candidates.sort_unstable();
        candidates.dedup();

        let cost = self.stage(self.to).cost;
        let grows = same.groups().iter().any(Group::is_line);
        let mut level = Level {
            fixed: *fixed,
            length,
            same,
            higher,
            left: ITERATIONS.into(),
        };
        let mut best = 0;
        let mut start = 0;
        for (index, t) in candidates.iter().enumerate() {
            // The start of the frame is at most `length` after that.
            if fixed.least + length + cost <= best + t {
                break;
            }
            start = level.start(*t, start)?;
            best = best.max((start + cost).saturating_sub(*t));
            let last = candidates.get(index + 1).copied().unwrap_or(length) - 1;
            if grows && last > *t {
                best = level.refine(*t + 1, last, cost, start, best)?;
            }
        }
        Some(best)
    }
}

/// The start of the frame under test as a function of the offset.
struct Level<'a> {
    fixed: Fixed,
    length: u64,
    same: &'a mut Pool,
    higher: &'a mut Pool,
    /// Steps that may still be taken.
    left: u64,
}

impl Level<'_> {
    /// Latest start of transmission at the last port for an offset, from the
    /// beginning of the busy period at the first; at least `from`, which must
    /// not be more than the answer.
    fn start(&mut self, offset: u64, from: u64) -> Option<u64> {
        let same = self.same.groups().iter_mut();
        let base = same.fold(self.fixed.constant, |sum, group| {
            sum.saturating_add(group.work(offset))
        });
        let mut start = base.max(from);
        loop {
            let window = start - self.fixed.least;
            if window > self.length {
                return None;
            }
            let higher = self.higher.groups().iter_mut();
            let next = higher.fold(base, |sum, group| sum.saturating_add(group.work(window)));
            if next <= start {
                return Some(start);
            }
            self.left = self.left.checked_sub(1)?;
            start = next;
        }
    }

    /// The greatest response for the offsets from `first` to `last`, between
    /// which work grows without steps, or `best` if that is more; too large by
    /// less than [`RESOLUTION`].
    fn refine(
        &mut self,
        first: u64,
        last: u64,
        cost: u64,
        from: u64,
        mut best: u64,
    ) -> Option<u64> {
        let mut open = vec![(first, last)];
        while let Some((first, last)) = open.pop() {
            self.left = self.left.checked_sub(1)?;
            let highest = (self.start(last, from)? + cost).saturating_sub(first);
            if highest <= best {
                continue;
            }
            if last - first <= RESOLUTION {
                best = highest;
                continue;
            }
            let middle = first.midpoint(last);
            open.push((first, middle));
            open.push((middle + 1, last));
        }
        Some(best)
    }
}
