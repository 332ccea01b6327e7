//! A segment port by port: frames count as long as they go along.
//!
//! The bound of a segment takes all windows up to the start of the frame under
//! test at the last port. A flow that leaves before counts here only up to
//! where it leaves: the start there is bounded like that at the last port, by
//! what has come until then. So it is enough that each port has time left; in
//! one window it takes that all together have. The proof is in
//! `docs/analysis.md`.

use crate::arrivals::Group;
use crate::offsets::{ITERATIONS, RESOLUTION, busy_period};
use crate::segment::{FixedTerms, Key, Pool, Scratch, Segment, Separation, Worst};
use crate::system::FULL;

/// Intervals of offsets that are looked at between steps; a search that needs
/// more is given up.
const INTERVALS: u32 = 1 << 10;

/// The segment up to one of its ports.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stretch {
    fixed: FixedTerms,
    /// The longest window that counts there.
    length: u64,
    /// The window up to the start there, for the offset that was looked at last.
    pub(crate) window: u64,
}

impl Segment<'_> {
    /// As [`bound`](Self::bound), port by port: the lesser of what is found if
    /// the flow under test comes with others, and if it comes alone, and which
    /// it is. To be called with the groups of the segment in `scratch`.
    pub(crate) fn least_in_stages(
        &self,
        scratch: &mut Scratch,
        limit: u64,
    ) -> Option<(Worst, Separation)> {
        let mut least = None;
        let mut limit = limit;
        for apart in [Separation::Leaving, Separation::Own] {
            let worth = match apart {
                Separation::Own => scratch.same.own_is_line(),
                _ => self.from < self.to,
            };
            let found = worth
                .then(|| self.in_stages(scratch, limit, apart))
                .flatten();
            if let Some(worst) = found.filter(|worst| worst.response < limit) {
                limit = worst.response;
                least = Some((worst, apart));
            }
        }
        least
    }

    /// The bound port by port. `None` if there is none, if it is `limit` or more, or if
    /// all that comes goes along to the end and nothing is told apart.
    fn in_stages(&self, scratch: &mut Scratch, limit: u64, apart: Separation) -> Option<Worst> {
        let fixed = self.collect(scratch, apart)?;
        let all = scratch.same.keyed().chain(scratch.higher.keyed());
        let (mut leaves, mut present) = (apart == Separation::Own, fixed.constant);
        for (key, group) in all {
            leaves |= key.exit < self.to;
            present = present.saturating_add(group.present());
        }
        let cost = self.stage(self.to).cost;
        if !leaves || present.saturating_add(cost) >= limit {
            return None;
        }
        let mut course = self.course(scratch)?;
        let length = course.last().length;
        let mut candidates = std::mem::take(&mut scratch.candidates);
        candidates.clear();
        candidates.push(0);
        let mut grows = false;
        for (key, group) in scratch.same.keyed() {
            let end = length.min(course.at(key.exit).length.saturating_add(1));
            group.candidates(end, &mut candidates)?;
            grows |= group.is_line();
        }
        candidates.sort_unstable();
        candidates.dedup();
        let mut best = Worst::default();
        for (index, t) in candidates.iter().enumerate() {
            if fixed.least + length + cost <= best.response + t {
                break;
            }
            best.raise(course.start(*t, scratch)? + cost, *t);
            if best.response >= limit {
                break;
            }
            let last = candidates.get(index + 1).copied().unwrap_or(length) - 1;
            if grows && last > *t {
                course.between((*t + 1, last), cost, scratch, &mut best)?;
            }
        }
        scratch.candidates = candidates;
        Some(best)
    }

    /// The stretches for an offset, and where they begin.
    pub(crate) fn stretches(&self, scratch: &mut Scratch, offset: u64) -> Option<SegmentStretches> {
        let mut course = self.course(scratch)?;
        course.start(offset, scratch)?;
        Some(course)
    }

    /// How long windows may be at each port. The groups are prepared for that.
    fn course(&self, scratch: &mut Scratch) -> Option<SegmentStretches> {
        let mut stretches: Vec<Stretch> = Vec::with_capacity(self.to + 1 - self.from);
        for at in self.from..=self.to {
            let fixed = scratch.fixed[at - self.from];
            let mut constant = fixed.constant - fixed.least;
            let (mut share, mut along) = (0, Vec::new());
            for (key, group) in scratch.same.keyed().chain(scratch.higher.keyed()) {
                if key.position > at {
                    continue;
                }
                if key.exit < at {
                    let length = stretches[key.exit - self.from].length;
                    constant = constant.saturating_add(group.everything(length));
                } else {
                    share += group.load();
                    along.push(group);
                }
            }
            if share >= FULL {
                return None;
            }
            stretches.push(Stretch {
                fixed,
                length: busy_period(constant, &mut along)?,
                window: 0,
            });
        }
        // Windows do not become shorter from port to port.
        let mut least = u64::MAX;
        for stretch in stretches.iter_mut().rev() {
            least = least.min(stretch.length);
            stretch.length = least;
        }
        Some(SegmentStretches {
            from: self.from,
            stretches,
            left: ITERATIONS,
            intervals: INTERVALS,
        })
    }
}

/// The stretches of a segment, one for each port.
#[derive(Debug)]
pub(crate) struct SegmentStretches {
    from: usize,
    stretches: Vec<Stretch>,
    /// Steps that may still be taken, and intervals looked at.
    left: u32,
    intervals: u32,
}

impl SegmentStretches {
    /// The stretch up to the port at a position.
    pub(crate) fn at(&self, position: usize) -> &Stretch {
        &self.stretches[position - self.from]
    }

    fn last(&self) -> &Stretch {
        &self.stretches[self.stretches.len() - 1]
    }

    /// What a group of those that may not overtake brings for an offset.
    pub(crate) fn offset(&self, key: &Key, offset: u64) -> u64 {
        offset.min(self.at(key.exit).length)
    }

    /// Latest start of transmission at the last port for an offset, from the
    /// beginning of the busy period at the first.
    fn start(&mut self, offset: u64, scratch: &mut Scratch) -> Option<u64> {
        let Scratch { same, higher, .. } = scratch;
        let mut start = 0;
        for index in 0..self.stretches.len() {
            let position = self.from + index;
            let Stretch { fixed, length, .. } = self.stretches[index];
            let mut base = fixed.constant;
            for (key, group) in same.keyed().filter(|(key, _)| key.position <= position) {
                base = base.saturating_add(group.work(self.offset(key, offset)));
            }
            for (key, group) in higher.keyed().filter(|(key, _)| key.exit < position) {
                base = base.saturating_add(group.work(self.at(key.exit).window));
            }
            start = base;
            loop {
                let window = start - fixed.least;
                if window >= length {
                    // It is never longer.
                    start = fixed.least + length;
                    break;
                }
                let next = along(higher, position)
                    .fold(base, |sum, group| sum.saturating_add(group.work(window)));
                if next <= start {
                    break;
                }
                self.left = self.left.checked_sub(1)?;
                start = next;
            }
            self.stretches[index].window = start - fixed.least;
        }
        Some(start)
    }

    /// The greatest response for offsets between which work grows without
    /// steps goes into `best`.
    ///
    /// Pieces in which nothing at any port steps or changes its rate are
    /// convex, and greatest at an end. They are found by halving; what is
    /// too short for that counts whole: too large by less than
    /// [`RESOLUTION`].
    fn between(
        &mut self,
        offsets: (u64, u64),
        cost: u64,
        scratch: &mut Scratch,
        best: &mut Worst,
    ) -> Option<()> {
        let mut open = vec![offsets];
        while let Some((first, last)) = open.pop() {
            self.intervals = self.intervals.checked_sub(1)?;
            let latest = self.start(last, scratch)? + cost;
            if latest <= best.response + first {
                continue;
            }
            if last - first <= RESOLUTION {
                best.raise(latest, first);
                continue;
            }
            let ends: Vec<u64> = self
                .stretches
                .iter()
                .map(|stretch| stretch.window)
                .collect();
            best.raise(self.start(first, scratch)? + cost, first);
            if self.is_one_piece((first, last), &ends, &mut scratch.higher) {
                best.raise(latest, last);
                continue;
            }
            let middle = first.midpoint(last);
            open.push((first + 1, middle));
            open.push((middle + 1, last));
        }
        Some(())
    }

    /// Whether no port's work steps or changes its rate between two offsets,
    /// the first of which was looked at last; `ends` are the windows of the
    /// other.
    fn is_one_piece(&self, offsets: (u64, u64), ends: &[u64], higher: &mut Pool) -> bool {
        let ports = self.stretches.iter().zip(ends).enumerate();
        ports.into_iter().all(|(index, (stretch, end))| {
            let Stretch { length, window, .. } = *stretch;
            let reaches = |first, last| first < length && length <= last;
            if reaches(window, *end) || reaches(offsets.0, offsets.1) {
                return false;
            }
            let mut slope = 0_u64;
            let straight = along(higher, self.from + index).all(|group| {
                slope = slope.saturating_add(group.slope(window));
                group.next_break(window) > *end
            });
            straight && slope < 1 << 32
        })
    }
}

/// The groups that go along at a position.
fn along(pool: &mut Pool, position: usize) -> impl Iterator<Item = &mut Group> {
    let here = move |key: &Key| key.position <= position && position <= key.exit;
    pool.keyed()
        .filter(move |(key, _)| here(key))
        .map(|(_, group)| group)
}
