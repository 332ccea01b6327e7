//! When a frame may come: the search for the offset with the greatest response.
//!
//! A frame comes some time after the beginning of the busy period. Its response
//! is greatest at an offset at which the work before it steps, or, where frames
//! of several sizes come over one link, between two of them. How far offsets
//! matter, and that none is left out, is proved in `docs/analysis.md`.

use crate::arrivals::Group;
use crate::segment::{FixedTerms, Pool, Scratch, Segment, Worst};

/// Longest busy period that is searched, ns: a thousand seconds.
pub(crate) const HORIZON: u64 = 1_000_000_000_000;
/// Steps of all fixed points of a segment; a search that needs more is given
/// up.
pub(crate) const ITERATIONS: u32 = 1 << 20;
/// Intervals of offsets this short are not cut again: the bound may be too
/// large by so much, ns.
pub(crate) const RESOLUTION: u64 = 16;

/// The longest time for which a level can be busy: beyond it offsets repeat
/// smaller ones. `constant` is what is there besides the groups, which are
/// prepared for that long. `None` if it is too long.
pub(crate) fn busy_period(constant: u64, groups: &mut [&mut Group]) -> Option<u64> {
    let first = groups.iter().map(|group| group.first());
    let work = first.fold(constant, u64::saturating_add);
    let mut horizon = work.saturating_mul(2);
    let (mut length, mut left) = (0, ITERATIONS);
    loop {
        if length > HORIZON || work > HORIZON {
            return None;
        }
        for group in groups.iter_mut() {
            group.prepare(horizon)?;
        }
        while length <= horizon {
            left = left.checked_sub(1)?;
            let work = groups.iter_mut().fold(constant, |sum, group| {
                sum.saturating_add(group.everything(length))
            });
            if work <= length {
                return Some(length);
            }
            length = work;
        }
        horizon = length.saturating_mul(2);
    }
}

impl Segment<'_> {
    /// The greatest response over all offsets below `length`, or the first that
    /// is `limit` or more.
    pub(crate) fn search(
        &self,
        fixed: &FixedTerms,
        length: u64,
        scratch: &mut Scratch,
        limit: u64,
    ) -> Option<Worst> {
        let Scratch {
            same,
            higher,
            candidates,
            ..
        } = scratch;
        candidates.clear();
        candidates.push(0);
        for group in same.groups() {
            group.candidates(length, candidates)?;
        }
        candidates.sort_unstable();
        candidates.dedup();

        let cost = self.stage(self.to).cost;
        let lines = |pool: &mut Pool| pool.groups().iter().filter(|group| group.is_line()).count();
        let (grows, lines) = (lines(same), lines(same) + lines(higher));
        let mut level = Level {
            fixed: *fixed,
            length,
            same,
            higher,
            lines: lines as u64,
            left: ITERATIONS,
        };
        let mut best = Worst::default();
        let mut start = 0;
        for (index, t) in candidates.iter().enumerate() {
            // The start of the frame is at most `length` after that.
            if fixed.least + length + cost <= best.response + t {
                break;
            }
            start = level.start(*t, start)?;
            best.raise(start + cost, *t);
            if best.response >= limit {
                return Some(best);
            }
            let last = candidates.get(index + 1).copied().unwrap_or(length) - 1;
            if grows > 0 && last > *t {
                level.between(*t + 1, last, cost, start, &mut best)?;
            }
        }
        Some(best)
    }
}

/// The start of the frame under test as a function of the offset.
pub(crate) struct Level<'a> {
    pub(crate) fixed: FixedTerms,
    pub(crate) length: u64,
    pub(crate) same: &'a mut Pool,
    pub(crate) higher: &'a mut Pool,
    /// Groups whose work grows between steps.
    pub(crate) lines: u64,
    /// Steps that may still be taken.
    pub(crate) left: u32,
}

impl Level<'_> {
    /// Latest start of transmission at the last port for an offset, from the
    /// beginning of the busy period at the first; at least `from`, which must
    /// not be more than the answer.
    pub(crate) fn start(&mut self, offset: u64, from: u64) -> Option<u64> {
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
    /// which the level's own work grows without steps, goes into `best`.
    ///
    /// Work is whole and so at most what the lines say without rounding; the
    /// response by these is linear in pieces and greatest at an end of one,
    /// where the rounded one is no less. Pieces end where higher work jumps.
    fn between(
        &mut self,
        mut first: u64,
        last: u64,
        cost: u64,
        from: u64,
        best: &mut Worst,
    ) -> Option<()> {
        let latest = self.start(last, from)?;
        let mut start = from;
        loop {
            start = self.start(first, start)?;
            best.raise(start + cost, first);
            if latest + cost <= best.response + first {
                return Some(());
            }
            self.left = self.left.checked_sub(1)?;
            let window = start - self.fixed.least;
            let Some(roundings) = self.roundings(window) else {
                return self.halve(first, last, cost, start, best);
            };
            let higher = self.higher.groups().iter_mut();
            let jump = higher
                .map(|group| group.next_break(window))
                .min()
                .unwrap_or(u64::MAX);
            if latest - self.fixed.least < jump {
                best.raise(latest + cost + roundings, last);
                return Some(());
            }
            let end = self.last_before(jump, first, last);
            let at_end = self.start(end, start)?;
            best.raise(at_end + cost + roundings, end);
            if end >= last {
                return Some(());
            }
            (first, start) = (end + 1, at_end);
        }
    }

    /// How far roundings may lift a piece above the line between its ends;
    /// `None` if far.
    fn roundings(&mut self, window: u64) -> Option<u64> {
        let higher = self.higher.groups().iter_mut();
        let slope = higher
            .map(|group| group.slope(window))
            .fold(0, u64::saturating_add);
        // Each rounding comes back by what is higher in the time it takes.
        let rest = (1_u64 << 32).checked_sub(slope)?;
        let times = (1_u64 << 32).checked_div(rest)? + 1;
        (times <= RESOLUTION).then(|| self.lines * times)
    }

    /// The last offset from `first` to `last` for which the window of what is
    /// higher stays below `jump`; `first` if there is none.
    fn last_before(&mut self, jump: u64, mut first: u64, mut last: u64) -> u64 {
        let higher = self.higher.groups().iter_mut();
        let taken = higher
            .map(|group| group.work(jump - 1))
            .fold(self.fixed.constant, u64::saturating_add);
        let room = (jump - 1 + self.fixed.least).saturating_sub(taken);
        while first < last {
            let middle = first.midpoint(last) + 1;
            let same = self.same.groups().iter_mut();
            let work = same
                .map(|group| group.work(middle))
                .fold(0, u64::saturating_add);
            if work <= room {
                first = middle;
            } else {
                last = middle - 1;
            }
        }
        first
    }

    /// As [`between`](Self::between), by halves: too large by less than
    /// [`RESOLUTION`].
    fn halve(
        &mut self,
        first: u64,
        last: u64,
        cost: u64,
        from: u64,
        best: &mut Worst,
    ) -> Option<()> {
        let mut open = vec![(first, last)];
        while let Some((first, last)) = open.pop() {
            self.left = self.left.checked_sub(1)?;
            let latest = self.start(last, from)? + cost;
            if latest <= best.response + first {
                continue;
            }
            if last - first <= RESOLUTION {
                best.raise(latest, first);
                continue;
            }
            let middle = first.midpoint(last);
            open.push((first, middle));
            open.push((middle + 1, last));
        }
        Some(())
    }
}
