//! The quick holistic bound: one analysis for each port and priority, kept up
//! to date as flows come and go.
//!
//! All frames of a level share one bound of their time at the port: that of a
//! frame behind everything of its level, itself included. It is never below
//! the holistic bound of any of them, and costs one look at each stage of the
//! port where windows are so short that nothing comes twice. A change is
//! carried on from port to port in topological order, as far as values change;
//! where routes make a cycle, in rounds from below until nothing changes.
//!
//! Sources: WCRT.md sections 4 and 8.2.

use crate::arrivals::{EarlierFrames, Group, Stream};
use crate::offsets::{ITERATIONS, busy_period};
use crate::system::{FULL_BRIEF, MANY, NONE, PortId, StageId, System, UNBOUNDED};

/// Rounds on a cycle before what still grows has no limit.
const ROUNDS: u32 = 64;

/// Limits for each stage, from the nominal release.
#[derive(Debug, Clone, Default)]
pub(crate) struct Limits {
    /// Latest arrival at the queue.
    pub(crate) latest: Vec<u64>,
    /// Latest end of transmission.
    pub(crate) end: Vec<u64>,
}

impl Limits {
    /// The limits before anything is known but what each frame takes alone.
    pub(crate) fn least(system: &System) -> Self {
        let latest = system.stages.iter().map(|stage| {
            stage
                .earliest
                .saturating_add(system.classes[stage.class].jitter)
        });
        Self {
            latest: latest.collect(),
            end: vec![0; system.stages.len()],
        }
    }
}

/// The limits by levels.
#[derive(Debug, Clone, Default)]
pub(crate) struct Levels {
    pub(crate) limits: Limits,
    /// Ports whose inputs changed.
    dirty: Vec<bool>,
    /// What was there before the last change, to be put back.
    undo: Vec<(StageId, u64, u64)>,
    recording: bool,
    same: Group,
    higher: Group,
    candidates: Vec<u64>,
}

/// What the stages of a level bring to a port.
struct Level {
    /// Where they end in the port's order; they begin where the level before
    /// ends.
    end: usize,
    /// Work that can be there at once.
    first: u64,
    /// Least window in which more can come.
    next: u64,
    load: u64,
}

impl Levels {
    /// Limits for a whole system.
    pub(crate) fn new(system: &System) -> Self {
        let mut levels = Self::default();
        levels.reset(system);
        levels
    }

    /// Begins again from nothing.
    pub(crate) fn reset(&mut self, system: &System) {
        self.recording = false;
        self.undo.clear();
        self.limits = Limits::least(system);
        self.dirty = vec![true; system.ports.len()];
        self.settle(system);
    }

    /// Makes room for new stages.
    fn grow(&mut self, system: &System) {
        self.limits.latest.resize(system.stages.len(), 0);
        self.limits.end.resize(system.stages.len(), 0);
        self.dirty.resize(system.ports.len(), false);
    }

    /// A class has come or goes: these are its stages. What was changed since
    /// can be taken back with [`undo`](Self::undo), until the next change.
    pub(crate) fn touch(&mut self, system: &System, stages: &[StageId]) {
        self.grow(system);
        self.undo.clear();
        self.recording = true;
        for id in stages {
            let stage = &system.stages[*id];
            self.dirty[stage.port] = true;
            self.record(*id);
            // As if it had never been known.
            self.limits.end[*id] = 0;
            let jitter = system.classes[stage.class].jitter;
            self.limits.latest[*id] = stage.earliest.saturating_add(jitter);
        }
    }

    /// Puts back what was before [`touch`](Self::touch).
    pub(crate) fn undo(&mut self) {
        while let Some((stage, latest, end)) = self.undo.pop() {
            self.limits.latest[stage] = latest;
            self.limits.end[stage] = end;
        }
        self.dirty.fill(false);
    }

    fn record(&mut self, stage: StageId) {
        if self.recording {
            let limits = &self.limits;
            self.undo
                .push((stage, limits.latest[stage], limits.end[stage]));
        }
    }

    /// Carries changes on until nothing changes. On a cycle values may only have
    /// grown since they were settled last: otherwise they have to be
    /// [`reset`](Self::reset).
    pub(crate) fn settle(&mut self, system: &System) {
        self.round(system);
        if system.acyclic {
            return;
        }
        for _ in 1..ROUNDS {
            if !self.round(system) {
                return;
            }
        }
        let growing = (0..self.dirty.len()).filter(|port| self.dirty[*port]);
        for port in growing.collect::<Vec<_>>() {
            for stage in &system.ports[port].stages {
                self.set(system, *stage, UNBOUNDED);
            }
        }
        // Every cycle that still grew now has a port without limits, and there they stay
        // unlimited. So the rounds end.
        while self.round(system) {}
    }

    /// Every port of which the input has changed. False if there was none.
    fn round(&mut self, system: &System) -> bool {
        let mut changed = false;
        for port in &system.order {
            if std::mem::take(&mut self.dirty[*port]) {
                self.port(system, *port);
                changed = true;
            }
        }
        changed
    }

    fn port(&mut self, system: &System, id: PortId) {
        let levels = self.gather(system, id);
        let port = &system.ports[id];
        let mut begin = 0;
        let mut above = Level {
            end: 0,
            first: 0,
            next: UNBOUNDED,
            load: 0,
        };
        for level in levels {
            let blocking = match port.edf {
                true => system.longest(id),
                false => system.blocking(id, system.briefs[port.stages[begin]].priority),
            };
            let first = blocking
                .saturating_add(above.first)
                .saturating_add(level.first);
            let next = above.next.min(level.next);
            let load = above.load.saturating_add(level.load);
            let bound = if load >= FULL_BRIEF {
                UNBOUNDED
            } else if first < next {
                // The busy period is over before anything comes twice.
                first
            } else if port.edf || port.unordered {
                // Whatever the order, it is over when nothing is left.
                self.busy_period(system, id, level.end, blocking)
                    .unwrap_or(UNBOUNDED)
            } else {
                let levels = (0..begin, begin..level.end);
                self.search(system, id, levels, blocking)
                    .unwrap_or(UNBOUNDED)
            };
            for index in begin..level.end {
                self.set(system, port.stages[index], bound);
            }
            begin = level.end;
            above = Level {
                end: begin,
                first: above.first.saturating_add(level.first),
                next,
                load,
            };
        }
    }

    /// The levels of a port, the most urgent first.
    fn gather(&self, system: &System, id: PortId) -> Vec<Level> {
        let port = &system.ports[id];
        let mut levels: Vec<Level> = Vec::new();
        let mut priority = None;
        for (index, stage) in port.stages.iter().enumerate() {
            let this = system.briefs[*stage].priority;
            if levels.is_empty() || (port.has_priorities() && priority != Some(this)) {
                levels.push(Level {
                    end: index,
                    first: 0,
                    next: UNBOUNDED,
                    load: 0,
                });
            }
            priority = Some(this);
            let Some(level) = levels.last_mut() else {
                continue;
            };
            level.end = index + 1;
            match self.stream(system, *stage) {
                Some(stream) => {
                    let (present, next) = if stream.jitter < stream.period {
                        (1, stream.period - stream.jitter)
                    } else {
                        let present = stream.jitter / stream.period + 1;
                        (present, present * stream.period - stream.jitter)
                    };
                    level.first = level
                        .first
                        .saturating_add(present.saturating_mul(stream.work));
                    level.next = level.next.min(next);
                    level.load = level.load.saturating_add(system.briefs[*stage].load);
                }
                // Unbounded arrivals take the whole port.
                None => level.load = FULL_BRIEF,
            }
        }
        levels
    }

    /// What a class brings; `None` if there is no limit to it.
    fn stream(&self, system: &System, id: StageId) -> Option<Stream> {
        let brief = &system.briefs[id];
        let latest = self.limits.latest[id];
        (latest != UNBOUNDED && brief.work != UNBOUNDED).then(|| Stream {
            stage: id,
            work: brief.work,
            again: 0,
            period: brief.period,
            jitter: latest.saturating_sub(brief.earliest),
        })
    }

    /// The greatest time that a frame of a level is at the port, after its
    /// latest arrival.
    fn search(
        &mut self,
        system: &System,
        id: PortId,
        (above, level): (std::ops::Range<usize>, std::ops::Range<usize>),
        blocking: u64,
    ) -> Option<u64> {
        let mut same = std::mem::take(&mut self.same);
        let mut higher = std::mem::take(&mut self.higher);
        let mut candidates = std::mem::take(&mut self.candidates);
        let stages = &system.ports[id].stages;
        same.reset(0, EarlierFrames::default());
        higher.reset(0, EarlierFrames::default());
        for index in level {
            same.add(self.stream(system, stages[index])?);
        }
        for index in above {
            higher.add(self.stream(system, stages[index])?);
        }
        let bound = search(&mut same, &mut higher, &mut candidates, blocking);
        self.same = same;
        self.higher = higher;
        self.candidates = candidates;
        bound
    }

    /// The longest time for which a port can be busy.
    fn busy_period(
        &mut self,
        system: &System,
        id: PortId,
        level: usize,
        blocking: u64,
    ) -> Option<u64> {
        self.same.reset(0, EarlierFrames::default());
        for stage in &system.ports[id].stages[..level] {
            let stream = self.stream(system, *stage)?;
            self.same.add(stream);
        }
        busy_period(blocking, &mut [&mut self.same])
    }

    /// Sets a stage's end, and what follows from it for those after it.
    fn set(&mut self, system: &System, id: StageId, bound: u64) {
        let stays = !system.acyclic && self.limits.end[id] == UNBOUNDED;
        let end = match (self.limits.latest[id], bound) {
            (UNBOUNDED, _) | (_, UNBOUNDED) => UNBOUNDED,
            _ if stays => UNBOUNDED,
            (latest, bound) => latest.saturating_add(bound),
        };
        if self.limits.end[id] != end {
            self.record(id);
            self.limits.end[id] = end;
        }
        match system.briefs[id].child {
            NONE => {}
            MANY => {
                for child in &system.stages[id].children {
                    self.set_latest(system, *child, end);
                }
            }
            child => self.set_latest(system, child as StageId, end),
        }
    }

    /// Sets a stage's latest arrival by the end of the one before.
    fn set_latest(&mut self, system: &System, id: StageId, end: u64) {
        let brief = &system.briefs[id];
        let latest = end.saturating_add(brief.delay_max);
        if self.limits.latest[id] != latest {
            self.record(id);
            self.limits.latest[id] = latest;
            self.dirty[brief.port as usize] = true;
        }
    }
}

/// The greatest of start - t over all offsets t, where the start counts all of
/// the level that comes up to t, the frame itself included.
fn search(
    same: &mut Group,
    higher: &mut Group,
    candidates: &mut Vec<u64>,
    blocking: u64,
) -> Option<u64> {
    let mut left = ITERATIONS;
    let length = busy_period(blocking, &mut [&mut *same, &mut *higher])?;
    candidates.clear();
    candidates.push(0);
    same.candidates(length, candidates)?;
    let (mut best, mut end) = (0, 0);
    for t in candidates.iter() {
        if length <= best + t {
            break;
        }
        let base = blocking.saturating_add(same.work(*t));
        end = end.max(base);
        loop {
            if end > length {
                return None;
            }
            let next = base.saturating_add(higher.work(end));
            if next <= end {
                break;
            }
            left = left.checked_sub(1)?;
            end = next;
        }
        best = best.max(end - t);
    }
    Some(best)
}
