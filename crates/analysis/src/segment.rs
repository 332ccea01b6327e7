//! The bound of one segment of a path, the heart of the analysis.
//!
//! A segment is a run of consecutive ports of a frame's path. Its bound G says
//! that the frame has left the last of them at most G after the latest instant
//! at which it can reach the queue of the first. One port gives the holistic
//! step, the whole path the trajectory bound; a frame of another flow that
//! goes along is paid once. Where a port serves messages whole, frames of a
//! message that were counted before may count again with it. The proof is in
//! `docs/analysis.md`.

use std::cmp::Ordering;
use std::collections::HashMap;

use crate::arrivals::{EarlierFrames, Group, Stream};
use crate::edf;
use crate::levels::Limits;
use crate::offsets::{HORIZON, ITERATIONS, Level, busy_period};
use crate::system::{Class, FULL, Load, Port, PortId, Stage, StageId, System, UNBOUNDED, load};

/// A segment of a path under test.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Segment<'a> {
    pub(crate) system: &'a System,
    /// Latest arrival at the queue of each stage after the nominal release, and
    /// latest end of transmission; [`UNBOUNDED`] if there is none.
    pub(crate) limits: &'a Limits,
    /// The stages from the publisher on.
    pub(crate) path: &'a [StageId],
    /// The first and the last port, as positions in the path.
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// Whether links shape what comes over them.
    pub(crate) shaped: bool,
    /// The least priority that counts all along: that of the path, or a lower
    /// one. What is below it blocks at each port.
    pub(crate) floor: u64,
}

/// From a port to the next, for frames of at least this priority.
type StepKey = (PortId, PortId, u64);
/// The least and the greatest cost and delay of the frames that go a path.
type Step = ((u64, u64), (u64, u64));

/// Room for the groups of a segment, used again by the next, and what segments
/// of one system have in common: it serves one system, as long as that does not
/// change.
#[derive(Debug)]
pub(crate) struct Scratch {
    /// Streams that may still be looked at.
    pub(crate) effort: u64,
    steps: HashMap<StepKey, Option<Step>>,
    /// For the segment up to each of its ports.
    pub(crate) fixed: Vec<FixedTerms>,
    pub(crate) same: Pool,
    pub(crate) higher: Pool,
    pub(crate) candidates: Vec<u64>,
}

impl Scratch {
    pub(crate) fn new(effort: u64) -> Self {
        Self {
            effort,
            steps: HashMap::new(),
            fixed: Vec::new(),
            same: Pool::default(),
            higher: Pool::default(),
            candidates: Vec::new(),
        }
    }
}

/// Groups, and by what they are separated.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    groups: Vec<Group>,
    keys: Vec<Key>,
}

/// A group comes at one position of the path over one link, or starts there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) position: usize,
    input: Option<PortId>,
    /// The last position that it goes along to; in one stage that of the
    /// segment, whatever it is.
    pub(crate) exit: usize,
    /// It is the flow under test alone.
    own: bool,
}

/// How frames that come over one link are separated into groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Separation {
    /// Nothing.
    Nothing,
    /// What leaves at different ports.
    Leaving,
    /// That, and the flow under test from all others.
    Own,
}

impl Pool {
    fn clear(&mut self) {
        self.keys.clear();
    }

    pub(crate) fn groups(&mut self) -> &mut [Group] {
        &mut self.groups[..self.keys.len()]
    }

    /// Whether the flow under test comes with frames of other kinds, so that
    /// what the link brings is a line.
    pub(crate) fn own_is_line(&self) -> bool {
        let mut groups = self.groups[..self.keys.len()].iter();
        groups.any(|group| group.has_own() && group.is_line())
    }

    /// The groups and their keys.
    pub(crate) fn keyed(&mut self) -> impl Iterator<Item = (&Key, &mut Group)> {
        self.keys.iter().zip(&mut self.groups)
    }

    /// The group of this key, a new one if there is none.
    fn group(&mut self, key: Key, advance: u64, ahead: EarlierFrames) -> &mut Group {
        // The one that was looked for last is the likeliest.
        let known = self.keys.iter().rposition(|known| *known == key);
        let index = known.unwrap_or_else(|| {
            if self.groups.len() == self.keys.len() {
                self.groups.push(Group::default());
            }
            self.groups[self.keys.len()].reset(advance, ahead);
            self.keys.push(key);
            self.keys.len() - 1
        });
        &mut self.groups[index]
    }
}

/// The parts of a segment's bound that are no function of the offset.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FixedTerms {
    /// Blocking, the frames that count at two ports, switching, and copies of
    /// the frame under test.
    pub(crate) constant: u64,
    /// Least time from the first queue to the last.
    pub(crate) least: u64,
}

/// The flow under test in the segment.
#[derive(Debug, Clone, Copy)]
struct TestedFlow {
    /// Copies that go along: of the frame, or, where a port serves messages
    /// whole, of the message.
    copies: u64,
    /// Other frames of the message, if a port serves it whole.
    rest: u64,
    /// Whether one does.
    is_whole: bool,
}

/// The greatest response that was found, and where.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Worst {
    /// End of transmission at the last port, less the latest arrival at the
    /// first.
    pub(crate) response: u64,
    /// How long after the beginning of the busy period the frame may arrive.
    pub(crate) offset: u64,
}

/// A bound that was found.
struct SegmentBound {
    worst: Worst,
    fixed: FixedTerms,
    /// By looking at every offset.
    searched: bool,
}

impl Worst {
    pub(crate) fn raise(&mut self, end: u64, offset: u64) {
        let response = end.saturating_sub(offset);
        if response > self.response {
            *self = Self { response, offset };
        }
    }
}

impl Segment<'_> {
    /// End of transmission at the last port, less the latest arrival at the
    /// first: at most so many nanoseconds. `None` if no bound is found.
    pub(crate) fn bound(&self, scratch: &mut Scratch) -> Option<u64> {
        self.bound_below(scratch, u64::MAX)
    }

    /// As [`bound`](Self::bound), if that is less than `limit`.
    fn bound_below(&self, scratch: &mut Scratch, limit: u64) -> Option<u64> {
        let found = self.worst(scratch, limit).map(|found| found.worst.response);
        let due = self.by_deadline(scratch);
        let least = found.into_iter().chain(due).min();
        let limit = least.map_or(limit, |least| least.min(limit));
        let in_stages = self.least_in_stages(scratch, limit);
        let in_stages = in_stages.map(|(worst, _)| worst.response);
        least.into_iter().chain(in_stages).min()
    }

    /// The bound of a single port that serves by deadline, by what is due when.
    /// `None` if there is none, or the port is another.
    fn by_deadline(&self, scratch: &mut Scratch) -> Option<u64> {
        if self.from != self.to || !self.port(self.from).edf {
            return None;
        }
        let level = self.level(self.from).len() as u64;
        scratch.effort = scratch.effort.checked_sub(level)?;
        edf::bound(self.system, &self.limits.latest, self.path[self.from])
    }

    /// The lesser of this end and what [`end`](Self::end) says of any
    /// [floor](Self::floors).
    pub(crate) fn least_end(&self, scratch: &mut Scratch, end: u64) -> u64 {
        let end = self.end_or(scratch, end);
        let floors = self.floors().into_iter();
        floors.fold(end, |end, floor| {
            Self { floor, ..*self }.end_or(scratch, end)
        })
    }

    /// The [floors](System::floors) that this segment may have below its own
    /// priority.
    pub(crate) fn floors(&self) -> Vec<u64> {
        let path = &self.path[self.from..=self.to];
        self.system.floors(path, self.priority())
    }

    /// The lesser of this end and what [`end`](Self::end) says.
    fn end_or(&self, scratch: &mut Scratch, end: u64) -> u64 {
        let start = self.limits.latest[self.path[self.from]];
        let limit = end.saturating_sub(start);
        self.bound_below(scratch, limit)
            .map_or(end, |bound| end.min(start.saturating_add(bound)))
    }

    /// The bound, and what in it is no function of the offset. The groups stay
    /// in `scratch`. If the bound is `limit` or more: `None`, or anything that
    /// is `limit` or more.
    fn worst(&self, scratch: &mut Scratch, limit: u64) -> Option<SegmentBound> {
        let fixed = self.collect(scratch, Separation::Nothing)?;
        let groups = scratch.same.groups().iter();
        let groups = groups.chain(scratch.higher.groups().iter());
        let present = groups.fold(fixed.constant, |sum, group| {
            sum.saturating_add(group.present())
        });
        if present.saturating_add(self.stage(self.to).cost) >= limit {
            return None;
        }
        let constant = fixed.constant - fixed.least;
        let groups = scratch.same.groups().iter_mut();
        let mut groups: Vec<_> = groups.chain(scratch.higher.groups()).collect();
        let length = busy_period(constant, &mut groups);
        let searched = length.and_then(|length| self.search(&fixed, length, scratch, limit));
        let worst = match searched {
            Some(worst) => worst,
            None => self.in_the_long_run(&fixed, scratch)?,
        };
        Some(SegmentBound {
            worst,
            fixed,
            searched: searched.is_some(),
        })
    }

    /// A bound without a search: everything comes evenly, after what can be
    /// there at once. The response is then greatest for offset 0.
    fn in_the_long_run(&self, fixed: &FixedTerms, scratch: &mut Scratch) -> Option<Worst> {
        let (mut share, mut work) = (0, u128::from(fixed.constant - fixed.least));
        for group in scratch.same.groups() {
            work = work.checked_add(group.evenly())?;
        }
        for group in scratch.higher.groups() {
            work = work.checked_add(group.evenly())?;
            share += group.load();
        }
        let left = FULL.checked_sub(share).filter(|left| *left > 0)?;
        let window = u64::try_from(work).ok().map(|work| u128::from(work) << 64);
        let window = u64::try_from(window?.div_ceil(left)).ok()?;
        let end = window
            .checked_add(fixed.least)?
            .checked_add(self.stage(self.to).cost)?;
        Some(Worst {
            response: end,
            offset: 0,
        })
    }

    /// What the bound is made of; the sum of it is the bound. `None` if there
    /// is none.
    pub(crate) fn terms(&self, scratch: &mut Scratch) -> Option<Vec<Term>> {
        let cost = self.stage(self.to).cost;
        let found = self.worst(scratch, u64::MAX);
        let due = self.by_deadline(scratch);
        let whole = found.as_ref().map(|found| found.worst.response);
        let limit = whole.into_iter().chain(due).min().unwrap_or(u64::MAX);
        if let Some((worst, apart)) = self
            .least_in_stages(scratch, limit)
            .filter(|(worst, _)| worst.response < limit)
        {
            // Again, for its groups.
            self.collect(scratch, apart)?;
            let course = self.stretches(scratch, worst.offset)?;
            return Some(self.parts(scratch, worst, |higher, key| match higher {
                true => course.at(key.exit).window,
                false => course.offset(key, worst.offset),
            }));
        }
        let whole = match (due, &found) {
            (Some(due), Some(found)) if found.worst.response < due => None,
            (Some(due), _) => Some((What::Due, due)),
            (None, found) => {
                let found = found.as_ref().filter(|found| !found.searched);
                found.map(|found| (What::LongRun, found.worst.response))
            }
        };
        if let Some((what, bound)) = whole {
            let port = self.stage(self.to).port;
            let term = |what, nanos| Term { what, port, nanos };
            let rest = i64::try_from(bound.saturating_sub(cost)).ok()?;
            return Some(vec![
                term(what, rest),
                term(What::Transmission, i64::try_from(cost).ok()?),
            ]);
        }
        // Again, for its groups.
        let SegmentBound { worst, fixed, .. } = self.worst(scratch, u64::MAX)?;
        let mut level = Level {
            fixed,
            length: HORIZON,
            same: &mut scratch.same,
            higher: &mut scratch.higher,
            lines: 0,
            left: ITERATIONS,
        };
        let start = level.start(worst.offset, 0)?;
        Some(self.parts(scratch, worst, |higher, _| match higher {
            true => start - fixed.least,
            false => worst.offset,
        }))
    }

    /// What a bound is made of whose groups are in `scratch`. `window` says
    /// which window counts for a group: of those that may overtake, or of the
    /// others.
    fn parts(
        &self,
        scratch: &mut Scratch,
        worst: Worst,
        window: impl Fn(bool, &Key) -> u64,
    ) -> Vec<Term> {
        let own = self.own();
        let (mut terms, mut shaped) = (Vec::new(), Vec::new());
        let mut term = |what, position: usize, nanos: u64| {
            if nanos > 0 {
                let nanos = i64::try_from(nanos).unwrap_or(i64::MAX);
                terms.push(Term {
                    what,
                    port: self.stage(position).port,
                    nanos,
                });
            }
        };
        for position in self.from..=self.to {
            if position > self.from
                && let Some(step) = self.step(position, &mut scratch.steps)
            {
                let (carried, switching) = step.1;
                term(What::Carried, position - 1, carried);
                term(What::Switching, position, switching);
            }
            let port = self.stage(position).port;
            let blocking = self.system.blocking(port, self.floor);
            let lower = self.system.longest_lower(port, self.floor);
            let declared = lower.filter(|lower| {
                let best_effort = self.system.ports[port].best_effort;
                blocking > best_effort || self.system.stages[*lower].cost == blocking
            });
            let what = declared.map_or(What::BestEffort, What::Blocking);
            term(what, position, blocking);
        }
        term(What::Copies, self.to, own.copies);
        term(What::Own, self.from, own.rest);
        let Scratch { same, higher, .. } = scratch;
        for (higher, pool) in [(true, higher), (false, same)] {
            for (key, group) in pool.keyed() {
                let (parts, own, whole) = group.parts(window(higher, key));
                let mut sum = own;
                term(What::Own, key.position, own);
                for (stage, work) in parts {
                    sum += work;
                    let urgency = self.system.priority(stage).cmp(&self.priority());
                    let what = match (higher, urgency) {
                        (true, Ordering::Greater) => What::Higher(stage),
                        (false, Ordering::Equal) => What::Same(stage),
                        _ => What::Other(stage),
                    };
                    term(what, key.position, work);
                }
                if sum > whole {
                    let saved = i64::try_from(sum - whole).unwrap_or(i64::MAX);
                    let port = self.stage(key.position).port;
                    shaped.push(Term {
                        what: What::Shaping,
                        port,
                        nanos: -saved,
                    });
                }
            }
        }
        term(What::Transmission, self.to, self.stage(self.to).cost);
        let sum: i64 = terms.iter().chain(&shaped).map(|term| term.nanos).sum();
        let bound = i64::try_from(worst.response).unwrap_or(i64::MAX);
        terms.append(&mut shaped);
        if sum != bound {
            // The frame comes so much after the busy period begins.
            terms.push(Term {
                what: What::Offset,
                port: self.stage(self.from).port,
                nanos: bound - sum,
            });
        }
        terms
    }

    /// Latest end of transmission at the last port after the nominal release,
    /// [`UNBOUNDED`] if no limit is found.
    pub(crate) fn end(&self, scratch: &mut Scratch) -> u64 {
        let start = self.limits.latest[self.path[self.from]];
        self.bound(scratch)
            .map_or(UNBOUNDED, |bound| start.saturating_add(bound))
    }

    fn port(&self, position: usize) -> &Port {
        &self.system.ports[self.stage(position).port]
    }

    pub(crate) fn stage(&self, position: usize) -> &Stage {
        &self.system.stages[self.path[position]]
    }

    fn class(&self) -> &Class {
        &self.system.classes[self.stage(self.from).class]
    }

    /// The priority of the frame at the last port, and so at all of them.
    fn priority(&self) -> u64 {
        self.stage(self.to).priority
    }

    /// The stages of the port at a position that count for this frame.
    fn level(&self, position: usize) -> &[StageId] {
        self.system.level(self.stage(position).port, self.floor)
    }

    /// Gathers the streams that meet the frame, and the parts that are fixed.
    /// `None` if something has no limit, or the ports together have no time
    /// left; where what leaves is told apart it is no matter what all take
    /// together.
    pub(crate) fn collect(&self, scratch: &mut Scratch, apart: Separation) -> Option<FixedTerms> {
        scratch.same.clear();
        scratch.higher.clear();
        scratch.fixed.clear();
        let start = self.limits.latest[self.path[self.from]];
        if start == UNBOUNDED {
            return None;
        }
        let own = self.own();
        let constant = own.copies.saturating_add(own.rest);
        // Later sums add no more than the times of single frames to this constant.
        if constant > UNBOUNDED / 2 {
            return None;
        }
        let mut fixed = FixedTerms { constant, least: 0 };
        let mut total: Load = 0;
        for position in self.from..=self.to {
            if position > self.from {
                let (least, greatest) = self.step(position, &mut scratch.steps)?;
                fixed.constant += greatest.0 + greatest.1;
                fixed.least += least.0 + least.1;
            }
            let port = self.stage(position).port;
            fixed.constant += self.system.blocking(port, self.floor);
            let latest = self.limits.latest[self.path[position]];
            if latest == UNBOUNDED {
                return None;
            }
            let advance = latest.saturating_sub(start).saturating_sub(fixed.least);
            total += self.enter((position, apart), advance, own, scratch)?;
            scratch.fixed.push(fixed);
        }
        let groups = scratch.same.groups().iter_mut();
        for group in groups.chain(scratch.higher.groups()) {
            group.finish();
        }
        (apart != Separation::Nothing || total < FULL).then_some(fixed)
    }

    fn own(&self) -> TestedFlow {
        let whole = (self.from..=self.to).rfind(|position| self.port(*position).whole);
        let mut copies = 0_u64;
        for position in self.from..self.to {
            let next = self.path[position + 1];
            let port = self.stage(position + 1).port;
            for child in &self.stage(position).children {
                if *child != next && self.system.stages[*child].port == port {
                    let message = self.message_cost(*child, position + 1);
                    copies = copies.saturating_add(match whole {
                        Some(_) => message,
                        None => message / self.system.stages[*child].frames,
                    });
                }
            }
        }
        let rest = whole.map_or(0, |whole| {
            let behind = whole + 1..=self.to;
            let longest = behind.map(|position| self.stage(position).cost).max();
            let frames = self.class().frames - 1;
            let behind = frames.saturating_mul(longest.unwrap_or(0));
            behind.saturating_add(self.again(self.path[self.from], self.from, 0))
        });
        TestedFlow {
            copies,
            rest,
            is_whole: whole.is_some(),
        }
    }

    /// The step from the port before a position to it: the least and the
    /// greatest cost and delay of a frame that goes this way. The greatest
    /// counts at both ports. `None` if what counts there has another priority at
    /// the port before: a segment does not take such a step.
    fn step(&self, position: usize, known: &mut HashMap<StepKey, Option<Step>>) -> Option<Step> {
        let (before, port) = (self.stage(position - 1).port, self.stage(position).port);
        let priority = self.floor;
        // It may take less than the stated cost.
        let whole = self.system.ports[before].whole;
        let reckon = || {
            let (mut least, mut greatest) = ((u64::MAX, u64::MAX), (0, 0));
            let level = self.level(position).iter();
            for stage in level.filter(|id| self.system.priority(**id) >= priority) {
                let stage = &self.system.stages[*stage];
                let Some(parent) = stage.parent else { continue };
                let parent = &self.system.stages[parent];
                if parent.port == before {
                    if parent.priority != stage.priority {
                        return None;
                    }
                    let cost = if whole { 0 } else { parent.cost };
                    least = (cost.min(least.0), stage.delay_min.min(least.1));
                    greatest = (parent.cost.max(greatest.0), stage.delay_max.max(greatest.1));
                }
            }
            // The frame under test itself is less urgent at both.
            (greatest != (0, 0)).then_some((least, greatest))
        };
        *known.entry((before, port, priority)).or_insert_with(reckon)
    }

    /// The streams that enter the segment at a position: which share of its
    /// ports they take.
    fn enter(
        &self,
        (position, apart): (usize, Separation),
        advance: u64,
        own: TestedFlow,
        scratch: &mut Scratch,
    ) -> Option<Load> {
        let system = self.system;
        let along = (position > self.from).then(|| self.stage(position - 1).port);
        let level = self.level(position);
        scratch.effort = scratch.effort.checked_sub(level.len() as u64)?;
        let ahead = self.ahead(position);
        let mut share = 0;
        for id in level {
            let stage = &system.stages[*id];
            let input = stage.parent.map(|parent| system.stages[parent].port);
            let class = &system.classes[stage.class];
            // It counts at this port only, which has no priorities.
            let lower = stage.priority < self.floor;
            if along.is_some() && input == along && !lower {
                // It came along and is counted where it entered.
                continue;
            }
            let latest = self.limits.latest[*id];
            if latest == UNBOUNDED {
                return None;
            }
            let under_test = *id == self.path[position];
            let overtakes = self.overtakes(*id, position);
            let (message, again) = match lower {
                true => (stage.message(), 0),
                false => (
                    self.message_cost(*id, position),
                    self.again(*id, position, 0),
                ),
            };
            // Frames come one after the other, unless a port served the message
            // whole; what that port still makes of parts of messages is not
            // told by what the link lets through.
            let shapes = |input: &PortId| self.shaped && again == 0 && !system.ports[*input].whole;
            let input = input.filter(shapes);
            let exit = match (under_test, lower) {
                _ if apart == Separation::Nothing => self.to,
                (true, _) => self.to,
                (_, true) => position,
                _ => self.exit(*id, position),
            };
            let key = Key {
                position,
                input,
                exit,
                own: false,
            };
            if message == u64::MAX || again == u64::MAX {
                return None;
            }
            let cost = message.div_ceil(stage.frames);
            let stream = Stream {
                stage: *id,
                work: message,
                again,
                period: class.period,
                jitter: latest - stage.earliest,
            };
            share += match message == stage.message() {
                true => stage.share * Load::from(class.count),
                false => load(message, class.period) * Load::from(class.count),
            };
            let parent = stage.parent.filter(|_| input.is_some());
            let ahead = ahead.filter(|(link, _)| Some(*link) == input);
            let ahead = ahead.map_or(EarlierFrames::default(), |(_, ahead)| ahead);
            let others = class.count - u64::from(under_test);
            // Where its likes may overtake, a flow's own frames may not.
            for higher in [false, true] {
                let own_too = under_test && !higher;
                let flows = if higher == overtakes { others } else { 0 };
                let (pool, advance, ahead) = match higher {
                    true => (&mut scratch.higher, 0, EarlierFrames::default()),
                    false => (&mut scratch.same, advance, ahead),
                };
                let kind = parent.map(|parent| (parent, system.stages[parent].cost));
                let alone = own_too && apart == Separation::Own;
                if flows > 0 || own_too && !alone {
                    let group = pool.group(key, advance, ahead);
                    if flows > 0 {
                        group.add(Stream {
                            work: message.checked_mul(flows)?,
                            again: again.checked_mul(flows)?,
                            ..stream
                        });
                    }
                    if let Some((parent, before)) = kind {
                        group.add_kind(stage, parent, before, cost);
                    }
                }
                if own_too {
                    let group = pool.group(Key { own: alone, ..key }, advance, ahead);
                    if let Some((parent, before)) = kind.filter(|_| alone) {
                        group.add_kind(stage, parent, before, cost);
                    }
                    let over = parent.map(|parent| self.over(*id, parent));
                    let rest = if own.is_whole { 0 } else { message - cost };
                    group.set_own(stream, (cost, rest), over);
                }
            }
        }
        Some(share)
    }

    /// The link over which the frame under test comes to a position, and what is
    /// known of others that come ahead of it over that, if links shape.
    fn ahead(&self, position: usize) -> Option<(PortId, EarlierFrames)> {
        let (id, stage) = (self.path[position], self.stage(position));
        let parent = stage.parent.filter(|_| self.shaped)?;
        let (latest, end) = (self.limits.latest[id], self.limits.end[parent]);
        let delay = latest.saturating_sub(end).min(stage.delay_max);
        let (cost, siblings) = self.over(id, parent);
        let ahead = EarlierFrames {
            late: delay.saturating_sub(stage.delay_min),
            behind: if siblings { 0 } else { cost },
        };
        Some((self.system.stages[parent].port, ahead))
    }

    /// Cost of the frame under test on the link over which it comes, and
    /// whether copies of it come with it to the same port.
    fn over(&self, id: StageId, parent: StageId) -> (u64, bool) {
        let stages = &self.system.stages;
        let copy = |child: &StageId| *child != id && stages[*child].port == stages[id].port;
        let parent = &stages[parent];
        (parent.cost, parent.children.iter().any(copy))
    }

    /// The last position to which a frame that is at one goes along.
    fn exit(&self, id: StageId, position: usize) -> usize {
        if position == self.to {
            return position;
        }
        let along = self.along(id, position).into_iter().flatten();
        let exits = along.map(|child| self.exit(child, position + 1));
        exits.max().unwrap_or(position)
    }

    /// Whether a frame that enters at a position may go before the frame under
    /// test at a port where it goes along, although it came later. One that is
    /// less urgent counts at a port alone.
    fn overtakes(&self, id: StageId, position: usize) -> bool {
        let stage = &self.system.stages[id];
        let port = self.port(position);
        let here = if port.edf {
            self.system.classes[stage.class].deadline < self.class().deadline
        } else if port.fifo {
            false
        } else if port.unordered {
            stage.priority >= self.priority()
        } else {
            stage.priority > self.priority()
        };
        if here || stage.priority < self.floor {
            return here;
        }
        let mut along = self.along(id, position).into_iter().flatten();
        along.any(|child| self.overtakes(child, position + 1))
    }

    /// Cost of a message of a class in the segment, from a position where it
    /// enters on: the longest of its ports, or, if a broker makes copies of
    /// it on the path, what these cost together.
    fn message_cost(&self, id: StageId, position: usize) -> u64 {
        let along = self.along(id, position).into_iter().flatten();
        let later = along.map(|child| self.message_cost(child, position + 1));
        let later = later.fold(0, u64::saturating_add);
        self.system.stages[id].message().max(later)
    }

    /// Cost of the frames of a message that may count twice in the segment,
    /// from a position where it enters on: before a port that serves it whole,
    /// and again with the message there or behind. `longest` is that of a frame
    /// since the last such port.
    fn again(&self, id: StageId, position: usize, longest: u64) -> u64 {
        let stage = &self.system.stages[id];
        let frames = self.system.classes[stage.class].frames - 1;
        let (here, longest) = match self.port(position).whole {
            true => (frames.saturating_mul(longest), 0),
            false => (0, longest.max(stage.cost)),
        };
        let along = self.along(id, position).into_iter().flatten();
        let later = along.map(|child| self.again(child, position + 1, longest));
        later.fold(here, u64::saturating_add)
    }

    /// The frames at the next port of the segment that follow from one, but for those
    /// that are less urgent there than what counts: a broker may have lowered them.
    fn along(&self, id: StageId, position: usize) -> Option<impl Iterator<Item = StageId>> {
        let next = (position < self.to).then(|| self.stage(position + 1).port)?;
        let children = self.system.stages[id].children.iter().copied();
        Some(children.filter(move |child| {
            let child = &self.system.stages[*child];
            child.port == next && child.priority >= self.floor
        }))
    }
}

/// A part of a bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Term {
    pub(crate) what: What,
    /// Where.
    pub(crate) port: PortId,
    /// How much; less than nothing where it takes away.
    pub(crate) nanos: i64,
}

/// What a part of a bound is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// A frame of undeclared traffic.
    BestEffort,
    /// A frame of lower priority.
    Blocking(StageId),
    /// The frame that counts at this port and the next.
    Carried,
    /// From this port's node's reception to its queue.
    Switching,
    /// Copies of the frame for other destinations.
    Copies,
    /// What is more urgent.
    Higher(StageId),
    /// What is as urgent and came before.
    Same(StageId),
    /// What goes first although it is not more urgent, or no later for all its
    /// urgency: at a port without priorities.
    Other(StageId),
    /// All that comes, evenly.
    LongRun,
    /// All that goes first where service is by deadline.
    Due,
    /// The flow's own other frames.
    Own,
    /// The frame itself.
    Transmission,
    /// What a link cannot bring in that time.
    Shaping,
    /// Time that has passed when the frame comes.
    Offset,
}
