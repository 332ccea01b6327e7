//! How much work can come in a window of time.
//!
//! A [`Stream`] is what one class brings to a port: `work` at once, at most
//! every `period`, shifted by up to `jitter`. A [`Group`] takes streams
//! together that come over the same link into the same port: they bring no
//! more than the link can carry (*link shaping*), whatever their jitters would
//! allow. Both are limits for a closed window of length x >= 0.

use crate::system::{Load, Stage, StageId, load};

/// Steps of a group that are kept; a search that would need more is given up.
const MAX_STEPS: u64 = 1 << 18;

/// Work that comes at most every `period`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stream {
    /// Whose it is.
    pub(crate) stage: StageId,
    pub(crate) work: u64,
    /// What of it counts twice, once in any window.
    pub(crate) again: u64,
    pub(crate) period: u64,
    pub(crate) jitter: u64,
}

impl Stream {
    /// Releases that can arrive in a closed window of length `x`.
    fn arrivals(&self, x: u64) -> u64 {
        (x + self.jitter) / self.period + 1
    }

    pub(crate) fn work(&self, x: u64) -> u64 {
        let work = self.arrivals(x).saturating_mul(self.work);
        work.saturating_add(self.again)
    }
}

/// What the link on which a group comes lets through.
#[derive(Debug, Clone, Copy)]
struct Shaping {
    /// Greatest less least delay from the link to the queue.
    spread: u64,
    /// What of that counts for frames that are ahead of the one under test.
    ahead: u64,
    /// The kind with the greatest ratio of cost here to cost on the link.
    ratio: Kind,
    /// The greatest cost here.
    largest: u64,
    /// All frames have these costs, on the link and here: whole frames count.
    equal: bool,
    /// The frame under test comes with the group, as its last.
    own: Option<TestedFrame>,
}

/// Costs of a frame on the link on which it comes, and here: of all of its
/// copies, if a broker makes some.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Kind {
    before: u64,
    here: u64,
}

/// The frame under test, in a group.
#[derive(Debug, Clone, Copy)]
struct TestedFrame {
    kind: Kind,
    /// Copies of it come with it.
    siblings: bool,
}

impl Shaping {
    /// The link's limit for frames of these kinds: their costs on the link and
    /// here. `spread` is their greatest less their least delay; so much of it
    /// does not count for those ahead: `late`.
    fn new(kinds: &[Kind], spread: u64, late: u64) -> Option<Self> {
        let first = kinds.first()?;
        let steeper = |a: Kind, b: Kind| {
            let (a_first, b_first) = (
                u128::from(a.here) * u128::from(b.before),
                u128::from(b.here) * u128::from(a.before),
            );
            if a_first >= b_first { a } else { b }
        };
        Some(Self {
            spread,
            ahead: spread.saturating_sub(late),
            ratio: kinds.iter().copied().fold(*first, steeper),
            largest: kinds.iter().map(|kind| kind.here).max()?,
            equal: kinds.iter().all(|kind| kind == first),
            own: None,
        })
    }

    /// Work in a closed window of length `x`, without the frame under test.
    fn work(&self, x: u64) -> u64 {
        let window = x + self.ahead;
        match self.own {
            None => self.total(window),
            Some(own) if own.siblings => self.total(window).saturating_sub(own.kind.here),
            Some(own) if window < own.kind.before => 0,
            Some(_) if self.equal => (window / self.ratio.before).saturating_mul(self.largest),
            Some(own) => self
                .line(window - own.kind.before)
                .saturating_add(self.largest),
        }
    }

    /// Work in a closed window of length `x`, with the frame under test.
    fn all(&self, x: u64) -> u64 {
        self.total(x + self.spread)
    }

    fn total(&self, window: u64) -> u64 {
        if self.equal {
            (window / self.ratio.before + 1).saturating_mul(self.largest)
        } else {
            self.line(window).saturating_add(self.largest)
        }
    }

    fn line(&self, window: u64) -> u64 {
        let Kind { before, here } = self.ratio;
        let work = (u128::from(window) * u128::from(here)).div_ceil(u128::from(before));
        u64::try_from(work).unwrap_or(u64::MAX)
    }

    /// It grows between its steps: frames differ.
    fn is_line(&self) -> bool {
        !self.equal
    }

    /// Least window above `x` at which one more frame comes, if frames are
    /// equal; or at which it no longer is less than `sum`.
    fn next_break(&self, x: u64, sum: u64) -> u64 {
        if self.equal {
            let frames = (x + self.ahead) / self.ratio.before + 1;
            return frames.saturating_mul(self.ratio.before) - self.ahead;
        }
        let start = match self.own {
            Some(own) if !own.siblings && x + self.ahead < own.kind.before => {
                return own.kind.before - self.ahead;
            }
            Some(own) if !own.siblings => own.kind.before,
            _ => 0,
        };
        let fixed = match self.own {
            Some(own) if own.siblings => self.largest.saturating_sub(own.kind.here),
            _ => self.largest,
        };
        // Least window whose line is the rest.
        let rest = u128::from(sum.saturating_sub(fixed).saturating_sub(1));
        let Kind { before, here } = self.ratio;
        let line = rest * u128::from(before) / u128::from(here) + 1;
        let window = u64::try_from(line)
            .unwrap_or(u64::MAX)
            .saturating_add(start);
        window.saturating_sub(self.ahead).max(x + 1)
    }
}

/// Streams that come over the same link into the same port of a segment, or
/// begin there.
#[derive(Debug, Clone, Default)]
pub(crate) struct Group {
    /// How much earlier than the frame under test its streams may come, and so
    /// what is added to the window.
    advance: u64,
    /// How much shorter the window is, because it comes over the same link as
    /// the frame under test and ahead of it.
    ahead: EarlierFrames,
    streams: Vec<Stream>,
    kinds: Vec<Kind>,
    /// Of the frame on the link that was added last: its copies are one kind.
    last_parent: Option<StageId>,
    delay_min: u64,
    delay_max: u64,
    shaping: Option<Shaping>,
    own: Option<OwnFlow>,
    /// Windows at which work is added, and the work from there on.
    steps: Vec<(u64, u64)>,
    at: usize,
}

/// Frames that come over the same link as the frame under test and ahead of it
/// have left the link before it, so windows are shorter; not where this is zero.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct EarlierFrames {
    /// Greatest delay of the frame from the link to the queue, less the least.
    pub(crate) late: u64,
    /// Its time on the link; none if copies of it come with it.
    pub(crate) behind: u64,
}

/// Work of the flow under test other than its frame.
#[derive(Debug, Clone, Copy)]
struct OwnFlow {
    stage: StageId,
    period: u64,
    jitter: u64,
    /// Of a message.
    work: u64,
    /// Of the message under test, without its last frame.
    rest: u64,
    /// The frame, where it comes over a link, and whether copies of it come
    /// with it.
    frame: Option<TestedFrame>,
}

impl Group {
    /// An empty one, in the room of an old one.
    pub(crate) fn reset(&mut self, advance: u64, ahead: EarlierFrames) {
        self.advance = advance;
        self.ahead = ahead;
        self.streams.clear();
        self.kinds.clear();
        self.last_parent = None;
        self.delay_min = u64::MAX;
        self.delay_max = 0;
        self.shaping = None;
        self.own = None;
    }

    /// Adds a stream.
    pub(crate) fn add(&mut self, stream: Stream) {
        self.streams.push(stream);
    }

    /// Frames of this stage, which cost `here` in the segment, come over the
    /// group's link.
    pub(crate) fn add_kind(&mut self, stage: &Stage, parent: StageId, before: u64, here: u64) {
        self.delay_min = self.delay_min.min(stage.delay_min);
        self.delay_max = self.delay_max.max(stage.delay_max);
        match self.kinds.last_mut() {
            Some(kind) if self.last_parent == Some(parent) => kind.here += here,
            _ => self.kinds.push(Kind { before, here }),
        }
        self.last_parent = Some(parent);
    }

    /// The flow under test, which enters the segment with this group: its
    /// messages, and the work of the frame and of the rest of its message.
    /// `over` says that it comes over a link, with its cost there and whether
    /// copies of the frame come with it.
    pub(crate) fn set_own(
        &mut self,
        stream: Stream,
        (frame, rest): (u64, u64),
        over: Option<(u64, bool)>,
    ) {
        self.own = Some(OwnFlow {
            stage: stream.stage,
            period: stream.period,
            jitter: stream.jitter,
            work: stream.work,
            rest,
            frame: over.map(|(before, siblings)| TestedFrame {
                kind: Kind {
                    before,
                    here: frame,
                },
                siblings,
            }),
        });
    }

    /// To be called when all is added.
    pub(crate) fn finish(&mut self) {
        let spread = self.delay_max.saturating_sub(self.delay_min);
        self.shaping = Shaping::new(&self.kinds, spread, self.ahead.late);
        if let Some(shaping) = &mut self.shaping {
            shaping.own = self.own.and_then(|own| own.frame);
        }
    }

    /// Work that is there before the frame under test if all that can comes
    /// with it: the least that [`work`](Self::work) says.
    pub(crate) fn present(&self) -> u64 {
        let window = self.others(self.advance);
        let streams = self.streams.iter();
        let sum = streams.fold(0_u64, |sum, stream| sum.saturating_add(stream.work(window)));
        let sum = sum.saturating_add(self.own.map_or(0, |own| own.rest));
        match &self.shaping {
            Some(shaping) => sum.min(shaping.work(self.advance)),
            None => sum,
        }
    }

    /// Share of the ports that it takes in the long run.
    pub(crate) fn load(&self) -> Load {
        let all = self.streams.iter().copied().chain(self.own_stream());
        all.map(|stream| load(stream.work, stream.period)).sum()
    }

    fn own_stream(&self) -> Option<Stream> {
        self.own.map(|own| Stream {
            stage: own.stage,
            work: own.work,
            // The segment counts it apart.
            again: 0,
            period: own.period,
            jitter: own.jitter,
        })
    }

    /// Work in a window of length `x` up to the horizon, the message under test
    /// with it: for the length of the busy period, where order is no matter.
    pub(crate) fn everything(&mut self, x: u64) -> u64 {
        let x = x + self.advance;
        let own = self.own_stream().map_or(0, |own| own.work(x));
        let sum = self.streams(x).saturating_add(own);
        match &self.shaping {
            Some(shaping) => sum.min(shaping.all(x)),
            None => sum,
        }
    }

    /// Work in a window of length 0 if streams come evenly and not in steps,
    /// which is more: what comes later is their share of the time.
    pub(crate) fn evenly(&self) -> u128 {
        let streams = self.streams.iter().map(|stream| {
            let window =
                u128::from(stream.period) + u128::from(stream.jitter) + u128::from(self.advance);
            let work = (u128::from(stream.work) * window).div_ceil(u128::from(stream.period));
            work + u128::from(stream.again)
        });
        let own = self.own.iter().map(|own| {
            let before = u128::from(own.work) * u128::from(self.advance);
            u128::from(own.rest) + before.div_ceil(u128::from(own.period))
        });
        streams.chain(own).fold(0, u128::saturating_add)
    }

    /// Work that can be there at once.
    pub(crate) fn first(&self) -> u64 {
        let all = self.streams.iter().copied().chain(self.own_stream());
        all.fold(0, |sum, stream| sum.saturating_add(stream.work(0)))
    }

    /// Prepares [`work`](Self::work) for windows up to `horizon`. `None` if
    /// that takes too many steps.
    pub(crate) fn prepare(&mut self, horizon: u64) -> Option<()> {
        let horizon = horizon.saturating_add(self.advance);
        let releases = |stream: &Stream| (horizon + stream.jitter) / stream.period;
        let count = self
            .streams
            .iter()
            .map(releases)
            .fold(0, u64::saturating_add);
        if count > MAX_STEPS {
            return None;
        }
        self.steps.clear();
        self.steps.push((0, 0));
        self.at = 0;
        let mut first = 0_u64;
        for stream in &self.streams {
            let present = stream.arrivals(0);
            first = first.saturating_add(stream.work(0));
            let mut window = present * stream.period - stream.jitter;
            while window <= horizon {
                self.steps.push((window, stream.work));
                window += stream.period;
            }
        }
        // Stable, because that finds what is in order already: each stream.
        self.steps.sort_by_key(|step| step.0);
        let mut sum = first;
        self.steps[0].1 = first;
        for step in &mut self.steps[1..] {
            sum = sum.saturating_add(step.1);
            step.1 = sum;
        }
        Some(())
    }

    /// Work of others before the frame under test, for an offset or window
    /// `x` up to the horizon.
    pub(crate) fn work(&mut self, x: u64) -> u64 {
        let x = x + self.advance;
        let sum = self.unshaped(x);
        match &self.shaping {
            Some(shaping) => sum.min(shaping.work(x)),
            None => sum,
        }
    }

    /// Work of the streams, as the steps say.
    fn streams(&mut self, x: u64) -> u64 {
        // Mostly the next, otherwise anywhere.
        let is_here = |at: usize| {
            self.steps[at].0 <= x && self.steps.get(at + 1).is_none_or(|next| next.0 > x)
        };
        if !is_here(self.at) {
            let next = self.at + 1;
            self.at = match next < self.steps.len() && is_here(next) {
                true => next,
                false => self.steps.partition_point(|step| step.0 <= x) - 1,
            };
        }
        self.steps[self.at].1
    }

    /// The window of the streams in one of length `x`.
    fn others(&self, x: u64) -> u64 {
        x.saturating_sub(self.ahead.late + self.ahead.behind)
    }

    fn unshaped(&mut self, x: u64) -> u64 {
        let own = self.own.map_or(0, |own| {
            (x / own.period)
                .saturating_mul(own.work)
                .saturating_add(own.rest)
        });
        self.streams(self.others(x)).saturating_add(own)
    }

    /// What [`work`](Self::work) is made of: the stages and their work, the
    /// flow's own, and the whole, which may be less.
    pub(crate) fn parts(&mut self, x: u64) -> (Vec<(StageId, u64)>, u64, u64) {
        let window = x + self.advance;
        let (streams, others) = (self.streams.iter(), self.others(window));
        let parts = streams.map(|stream| (stream.stage, stream.work(others)));
        let own = self
            .own
            .map_or(0, |own| (window / own.period) * own.work + own.rest);
        (parts.collect(), own, self.work(x))
    }

    /// Least window above `x` at which its work may jump or begins to grow at
    /// another rate.
    pub(crate) fn next_break(&mut self, x: u64) -> u64 {
        let window = x + self.advance;
        let sum = self.unshaped(window);
        let step = self.next_step(window);
        let limit = match &self.shaping {
            Some(shaping) if shaping.work(window) < sum => shaping.next_break(window, sum),
            _ => u64::MAX,
        };
        step.min(limit).saturating_sub(self.advance)
    }

    /// Least window above this one, at which the streams were looked up last,
    /// with one more release.
    fn next_step(&self, window: u64) -> u64 {
        let later = self.ahead.late + self.ahead.behind;
        let step = self.steps.get(self.at + 1);
        let step = step.map_or(u64::MAX, |step| step.0.saturating_add(later));
        match self.own {
            Some(own) => step.min((window / own.period + 1) * own.period),
            None => step,
        }
    }

    /// Growth of its work per nanosecond at a window, in units of 2^-32,
    /// rounded up; 0 where it grows in steps.
    pub(crate) fn slope(&mut self, x: u64) -> u64 {
        let window = x + self.advance;
        let sum = self.unshaped(window);
        match &self.shaping {
            Some(shaping) if !shaping.equal && shaping.work(window) < sum => {
                let Kind { before, here } = shaping.ratio;
                let slope = (u128::from(here) << 32).div_ceil(u128::from(before));
                u64::try_from(slope).unwrap_or(u64::MAX)
            }
            _ => 0,
        }
    }

    /// Offsets from 1 to below `end` at which its work may jump. `None` if they
    /// are too many.
    pub(crate) fn candidates(&mut self, end: u64, out: &mut Vec<u64>) -> Option<()> {
        let advance = self.advance;
        let later = self.ahead.late + self.ahead.behind;
        let offset = |window: u64| window.checked_sub(advance).filter(|t| *t > 0 && *t < end);
        let steps = self.steps.iter().map(|(window, _)| window + later);
        out.extend(steps.filter_map(offset));
        if let Some(own) = self.own {
            if end / own.period > MAX_STEPS {
                return None;
            }
            let releases = (1..).map(|k| own.period.saturating_mul(k));
            out.extend(releases.take_while(|t| *t < end));
        }
        let Some(shaping) = self.shaping else {
            return Some(());
        };
        // While the link brings less than the streams, its own steps count, or
        // the window at which it no longer does.
        let mut window = advance;
        while window < end + advance {
            if out.len() > MAX_STEPS as usize {
                return None;
            }
            let sum = self.unshaped(window);
            let limited = shaping.work(window) < sum;
            window = match limited {
                true => shaping.next_break(window, sum),
                false => self.next_step(window),
            };
            if limited {
                out.extend(offset(window));
            }
        }
        Some(())
    }

    /// The flow under test is in it.
    pub(crate) fn has_own(&self) -> bool {
        self.own.is_some()
    }

    /// Its work may grow between candidates.
    pub(crate) fn is_line(&self) -> bool {
        self.shaping.is_some_and(|shaping| shaping.is_line())
    }
}
