//! A store that appends: every commit is one write at the end of a log and one
//! sync.
//!
//! Obsolete records are not modified. Their space is freed by rewriting the live records
//! of the oldest segment at the end, together with commits, and removing that segment
//! (`clean.rs`). As segments are removed strictly in the order of their creation, a
//! record that undoes another one (a tombstone) is kept as long as that one. The live
//! state, without the contents of messages, is in memory as an [`Image`] that knows for
//! each item the segment that contains it.
//!
//! A batch that makes the store grow is refused unless one and a half segments stay free
//! after it: in the last segment, in reserve, and in a ballast (segment 0). A quarter of
//! a segment earlier the store reports that no more such batches should come: some
//! accepted ones are in flight then, and must not block batches that free space. Batches
//! that do not grow the store use this space, and obsolete segments are freed meanwhile,
//! so that there is always one to rewrite the next into. On a full disk a freed segment
//! becomes the ballast: it stays allocated to the log. The remains of a failed commit are
//! not overwritten while there is space elsewhere; otherwise they are wiped, so that the
//! log can continue.
//!
//! Invariant: a segment is read up to the end of the last commit that
//! succeeded; a commit is there as a whole or not at all.

mod clean;
mod frame;
mod open;
mod segment;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::{io, iter};

use self::clean::{Cleaning, CleaningLimit, CleaningStep, Round};
use self::frame::Draft;
use self::open::Window;
use self::segment::{FORMAT, Header, Origin, START};
use crate::image::Disposition;
use crate::numbers::mix;
use crate::op::{Record, Records};
use crate::store::Damage;
use crate::{Batch, CommitMark, Image, Medium, Op, Report, Store, StoreError, StoreStats, Wall};

/// How a log uses its medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogConfig {
    /// Bytes of a segment; one that has to hold a larger commit is larger.
    pub segment_bytes: u64,
    /// Bytes that may be kept before [`Store::full`] says so. On the disk they
    /// take up to twice that and five segments.
    pub max_bytes: u64,
    /// Bytes beyond that which are kept of what was on its way by then.
    pub overdraft: u64,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            segment_bytes: 32 << 20,
            max_bytes: 8 << 30,
            overdraft: 8 << 20,
        }
    }
}

/// What a log takes from the process that opens it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Start {
    /// Differs from one start to the next, and clients do not know it.
    pub seed: u64,
    /// The time.
    pub wall: Wall,
}

/// Where the record of a content is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    segment: u32,
    offset: u64,
    len: u32,
}

/// A segment with commits.
#[derive(Debug, Clone, Copy)]
struct Segment {
    header: Header,
    size: u64,
    /// After the last commit that succeeded.
    end: u64,
    rest: SegmentTail,
}

/// What is after the last commit of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SegmentTail {
    /// Zeros, or what is left of a commit that was never confirmed.
    Free,
    /// The same, but not even a header comes before it.
    Blank,
    /// Something else.
    Unknown,
}

impl Segment {
    fn without_commits(segment: u32, size: u64, rest: SegmentTail) -> Self {
        Self {
            header: Header::nothing(segment, size),
            size,
            end: START as u64,
            rest,
        }
    }
}

/// An empty segment.
#[derive(Debug, Clone, Copy)]
struct Reserve {
    segment: u32,
    size: u64,
    /// So many of its first bytes may be left of a commit that failed.
    used: u64,
}

/// The number of the ballast. What is in it counts for nothing.
const BALLAST: u32 = 0;

/// A store on a medium.
#[derive(Debug)]
pub struct Log<M> {
    medium: M,
    config: LogConfig,
    seed: u64,
    origin: Origin,
    /// Up to this one segments were given back.
    given_back: u32,
    image: Image<Place>,
    /// The oldest first.
    segments: VecDeque<Segment>,
    /// Whether the last of them is written to.
    open: bool,
    reserve: Option<Reserve>,
    /// Becomes the reserve when no segment can be made.
    ballast: Option<Reserve>,
    /// Whether as much is kept as may be.
    bounded: bool,
    /// Why less is left than should be for what needs room.
    short: Option<StoreError>,
    /// Since when everything is moved once on a full disk.
    round: Option<Round>,
    /// When it was last seen that moving anything gives back nothing.
    hopeless: Option<CleaningLimit>,
    /// The highest number of a segment that was ever used.
    last_segment: u32,
    sequence: u64,
    /// Whether the medium knows of a commit of the last segment.
    is_marked: bool,
    /// What was found to be gone.
    lost: Option<StoreError>,
    cleaning: Option<Cleaning>,
    report: Report,
    stats: StoreStats,
    frame: Draft,
}

impl<M: Medium> Log<M> {
    /// Reads what is on the medium; changes nothing there.
    ///
    /// # Errors
    /// There is something else, something of a later version, or the medium
    /// cannot be read.
    pub fn open(mut medium: M, config: LogConfig, start: Start) -> Result<Self, StoreError> {
        let numbers = medium
            .list()
            .map_err(|error| StoreError::io("the store cannot be listed", &error))?;
        let mut log = Self {
            medium,
            config,
            seed: start.seed,
            origin: Origin {
                identity: mix(!start.seed),
                created: start.wall,
            },
            given_back: 0,
            image: Image::default(),
            segments: VecDeque::new(),
            open: false,
            reserve: None,
            ballast: None,
            bounded: false,
            short: None,
            round: None,
            hopeless: None,
            last_segment: numbers.last().copied().unwrap_or(0),
            sequence: 0,
            is_marked: false,
            lost: None,
            cleaning: None,
            report: Report::default(),
            stats: StoreStats::default(),
            frame: Draft::default(),
        };
        log.image.begin_reading();
        log.load(&numbers)?;
        log.image.end_reading();
        log.report.unfinished = log.image.drop_unfinished();
        log.report.count(&log.image);
        Ok(log)
    }

    /// What was found.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// The format of what is written.
    pub fn format(&self) -> u32 {
        FORMAT
    }

    /// A number that tells the store from others, unless nothing is written. It goes
    /// with a copy of the files.
    pub fn identity(&self) -> Option<u64> {
        Some(self.written_origin()?.identity)
    }

    /// When the store was made.
    pub fn created(&self) -> Option<Wall> {
        Some(self.written_origin()?.created)
    }

    fn written_origin(&self) -> Option<Origin> {
        let mut written = self.segments.iter().map(|it| it.header.origin);
        written.find(|it| *it != Origin::default())
    }

    /// What it is written to.
    pub fn medium(&self) -> &M {
        &self.medium
    }

    /// What it is written to, for whoever lets it fail.
    pub fn medium_mut(&mut self) -> &mut M {
        &mut self.medium
    }

    /// What it is written to, after use.
    pub fn into_medium(self) -> M {
        self.medium
    }

    fn damage(&mut self, segment: u32, offset: u64, len: u64, what: &str) {
        self.report.damage(Damage {
            segment,
            offset,
            len,
            what: what.into(),
        });
    }

    fn read(&mut self, segment: u32, offset: u64, bytes: &mut [u8]) -> Result<usize, StoreError> {
        self.medium
            .read(segment, offset, bytes)
            .map_err(|error| StoreError::io(unreadable(segment), &error))
    }

    /// Bytes of segments with commits.
    fn used(&self) -> u64 {
        self.segments.iter().map(|segment| segment.end).sum()
    }

    /// Appends what has to be written of a group to the frame that is being
    /// made, and notes at which of its bytes each operation is.
    fn put_group(&mut self, group: &Batch, ops: &[Op<'_>], fates: &[Disposition]) -> Growth {
        let mut growth = Growth::default();
        for ((record, op), fate) in group.records().zip(ops).zip(fates) {
            growth.offsets.push(self.frame.end() as u64);
            if !fate.is_written() {
                continue;
            }
            growth.count(op, record.bytes.len());
            self.frame.put(record);
            if let (Op::Entry(entry), Disposition::WriteSent(early)) = (op, fate)
                && let Some(op) = early.op(entry)
            {
                self.frame.push(&op);
            }
        }
        growth
    }

    /// Whether a group may grow what is kept, and the disk what is used.
    fn admit(
        &mut self,
        added: u64,
        ops: &[Op<'_>],
        fates: &[Disposition],
    ) -> Result<(), StoreError> {
        let live = self.image.live_bytes();
        let most = self.config.max_bytes.saturating_add(self.config.overdraft);
        // What is written comes out of the room that has to be left.
        let has_room =
            self.short.is_none() || self.room() >= self.kept_free() + self.frame.end() as u64;
        if live + added <= most && has_room {
            return Ok(());
        }
        // What it gives back is looked for only when that decides.
        let written = ops.iter().zip(fates).filter(|(_, fate)| fate.is_written());
        let removed = written.map(|(op, _)| self.image.replaced_by(op)).sum();
        let more = added.saturating_sub(removed);
        if more > 0 && live + more > most {
            return Err(StoreError::Full {
                what: "the store",
                needed: live + more - most,
            });
        }
        match &self.short {
            Some(short) if more > 0 && !has_room => Err(short.clone()),
            _ => Ok(()),
        }
    }

    /// Room for what does not need any: what grows leaves it.
    fn kept_free(&self) -> u64 {
        self.config.segment_bytes + self.config.segment_bytes / 2
    }

    /// The same and room for what has been accepted when there is no more than that.
    fn enough(&self) -> u64 {
        self.kept_free() + self.config.segment_bytes / 4
    }

    /// Bytes that can be written without another segment.
    fn room(&self) -> u64 {
        let last = self.segments.back().filter(|_| self.open);
        let last = last.map_or(0, |it| it.size.saturating_sub(it.end));
        let others = [self.reserve, self.ballast].into_iter().flatten();
        last + others.map(|it| it.size).sum::<u64>()
    }

    /// Sees to it that enough is left for what needs room, and notes if it is not.
    fn provide(&mut self) {
        let enough = self.enough();
        let made = match self.make_reserve() {
            // A log begins with one segment and one in reserve.
            Ok(()) if self.room() < enough && !self.segments.is_empty() => self.make_ballast(),
            other => other,
        };
        self.short = made.err().filter(|_| self.room() < enough);
        if self.short.is_none() {
            (self.round, self.hopeless) = (None, None);
        }
    }

    /// Sees to it that there is a segment in reserve.
    fn make_reserve(&mut self) -> Result<(), StoreError> {
        if self.reserve.is_some() {
            return Ok(());
        }
        let (segment, size) = (
            self.last_segment.saturating_add(1),
            self.config.segment_bytes,
        );
        let size = match (self.create(segment, size), self.ballast) {
            (Ok(()), _) => size,
            (Err(StoreError::Full { .. }), Some(ballast)) => {
                // It may have what it had as a segment.
                self.wipe(BALLAST, 0, ballast.used)?;
                self.ballast = Some(Reserve { used: 0, ..ballast });
                let renamed = self.medium.rename(BALLAST, segment);
                renamed.map_err(|error| unwritable(segment, &error))?;
                self.ballast = None;
                self.last_segment = segment;
                ballast.size
            }
            (Err(error), _) => return Err(error),
        };
        self.reserve = Some(Reserve {
            segment,
            size,
            used: 0,
        });
        Ok(())
    }

    /// Sees to it that there is a ballast.
    fn make_ballast(&mut self) -> Result<(), StoreError> {
        if self.ballast.is_some() {
            return Ok(());
        }
        let size = self.config.segment_bytes;
        match self.medium.create(BALLAST, size) {
            Ok(()) => {
                self.ballast = Some(Reserve {
                    segment: BALLAST,
                    size,
                    used: 0,
                });
                Ok(())
            }
            Err(error) => {
                // One that nobody knows of is in the way.
                self.remove(BALLAST);
                Err(unmade(BALLAST, size, &error))
            }
        }
    }

    fn create(&mut self, segment: u32, size: u64) -> Result<(), StoreError> {
        match self.medium.create(segment, size) {
            Ok(()) => {
                self.last_segment = segment;
                Ok(())
            }
            Err(error) => Err(unmade(segment, size, &error)),
        }
    }

    /// Whether nothing was there.
    pub fn is_new(&self) -> bool {
        self.segments.is_empty() && self.reserve.is_none()
    }

    /// Notes that all commits are there, so that the next start knows of each that is lost
    /// until then.
    pub fn close(&mut self) {
        if self.sequence > 0 {
            self.set_mark();
        }
    }

    /// Notes beside the segments that a commit was confirmed. Where that is not possible
    /// only less is known of what is lost.
    fn set_mark(&mut self) {
        let marked = self.medium.set_mark(CommitMark {
            store: self.origin.identity,
            commit: self.sequence,
        });
        self.is_marked = marked.is_ok();
    }

    /// Sees whether what was written is still there.
    fn verify(&mut self) -> Result<(), StoreError> {
        let verified = self.medium.verify();
        self.lost = verified
            .err()
            .map(|error| StoreError::Lost(error.to_string()));
        self.lost.clone().map_or(Ok(()), Err)
    }

    /// Writes the frame that was made and makes it safe. Returns in which
    /// segment it is, and from which byte.
    fn write_frame(&mut self) -> Result<(u32, u64), StoreError> {
        let written = self.append_frame();
        match &written {
            Ok(_) if !self.is_marked => self.set_mark(),
            // That it was removed says more than that it cannot be written.
            Err(StoreError::Io { .. }) => self.verify()?,
            _ => {}
        }
        written
    }

    fn append_frame(&mut self) -> Result<(u32, u64), StoreError> {
        let len = self.frame.len();
        if len > u64::from(u32::MAX) {
            return Err(StoreError::Full {
                what: "a commit",
                needed: len,
            });
        }
        let sequence = self.sequence.wrapping_add(1);
        if let Some(head) = self.segments.back_mut()
            && self.open
            && head.end + len <= head.size
        {
            let (number, at) = (head.header.segment, head.end);
            let bytes = self.frame.seal(&head.header, sequence, at);
            let written = self.medium.write(number, at, bytes);
            if let Err(error) = written.and_then(|()| self.medium.sync(number)) {
                // What is there now is not known: the next one goes elsewhere.
                self.open = false;
                return Err(unwritable(number, &error));
            }
            head.end += len;
            self.sequence = sequence;
            return Ok((number, at));
        }
        let (number, size) = self.take_reserve(START as u64 + len)?;
        let previous = self.segments.back();
        let header = Header {
            salt: mix(self.seed ^ mix(u64::from(number))),
            previous: previous.map_or(0, |previous| previous.header.segment),
            previous_end: previous.map_or(0, |previous| previous.end),
            origin: self.origin,
            ..Header::nothing(number, size)
        };
        let mut bytes = header.encode().to_vec();
        bytes.extend_from_slice(self.frame.seal(&header, sequence, START as u64));
        if let Some(reserve) = &mut self.reserve {
            reserve.used = bytes.len() as u64;
        }
        let written = self.medium.write(number, 0, &bytes);
        // Without a commit it stays in reserve.
        written
            .and_then(|()| self.medium.sync(number))
            .map_err(|error| unwritable(number, &error))?;
        self.reserve = None;
        self.open = true;
        self.is_marked = false;
        self.segments.push_back(Segment {
            header,
            size,
            end: START as u64 + len,
            rest: SegmentTail::Free,
        });
        self.sequence = sequence;
        Ok((number, START as u64))
    }

    /// Ensures that there is a segment for the next frame. If the last segment is
    /// closed and the disk has no room for another one, its part behind the last
    /// commit is wiped and it is opened again.
    fn make_place(&mut self) -> Result<(), StoreError> {
        if self.open || self.reserve.is_some() {
            return Ok(());
        }
        match self.make_reserve() {
            Err(StoreError::Full { .. }) => self.reopen(),
            other => other,
        }
    }

    fn reopen(&mut self) -> Result<(), StoreError> {
        let Some(&last) = self.segments.back() else {
            return Ok(());
        };
        let Segment { size, end, .. } = last;
        let number = last.header.segment;
        match last.rest {
            SegmentTail::Free => {
                self.wipe(number, end, size)?;
                self.open = true;
                // What was looked through of it is not all of it any more.
                if self.segments.len() == 1 {
                    self.cleaning = None;
                }
            }
            SegmentTail::Blank if size >= self.config.segment_bytes => {
                self.wipe(number, 0, size)?;
                if self.segments.len() == 1 {
                    self.cleaning = None;
                }
                self.segments.pop_back();
                self.reserve = Some(Reserve {
                    segment: number,
                    size,
                    used: 0,
                });
            }
            _ => {}
        }
        Ok(())
    }

    /// Puts zeros where something may be left of a commit that failed, which could
    /// pass for a part of the next one.
    fn wipe(&mut self, segment: u32, from: u64, to: u64) -> Result<(), StoreError> {
        const PART: u64 = 1 << 20;
        let zeros = vec![0; to.saturating_sub(from).min(PART) as usize];
        let mut at = from;
        let mut wiped = Ok(());
        while at < to && wiped.is_ok() {
            let len = (to - at).min(PART);
            wiped = self.medium.write(segment, at, &zeros[..len as usize]);
            at += len;
        }
        wiped
            .and_then(|()| self.medium.sync(segment))
            .map_err(|error| unwritable(segment, &error))
    }

    /// Sees to it that there is an empty segment with that much room in reserve, and
    /// says which, and its size.
    fn take_reserve(&mut self, needed: u64) -> Result<(u32, u64), StoreError> {
        let size = self.config.segment_bytes.max(needed);
        match self.reserve {
            Some(reserve) if reserve.size >= size => {
                if reserve.used > 0 {
                    self.wipe(reserve.segment, 0, reserve.used)?;
                    self.reserve = Some(Reserve { used: 0, ..reserve });
                }
                Ok((reserve.segment, reserve.size))
            }
            smaller => {
                self.reserve = None;
                let number = self.last_segment.saturating_add(1);
                let created = self.create(number, size);
                if created.is_err() {
                    self.reserve = smaller;
                }
                created?;
                // Segments are used in the order of their numbers.
                self.reserve = Some(Reserve {
                    segment: number,
                    size,
                    used: 0,
                });
                if let Some(smaller) = smaller {
                    self.remove(smaller.segment);
                }
                Ok((number, size))
            }
        }
    }

    /// Removes a segment without commits that are needed. One that stays takes
    /// room, and nothing else.
    fn remove(&mut self, segment: u32) -> bool {
        self.medium.remove(segment).is_ok()
    }

    /// Begins a frame with what was used of the numbers: one record.
    fn begin_frame(&mut self) {
        self.frame.begin();
        self.frame.push(&Op::Highest(self.image.highest));
    }
}

impl<M: Medium> Store for Log<M> {
    fn commit(&mut self, group: &Batch) -> Result<(), StoreError> {
        if self.lost.is_some() {
            // What is written beside what is gone would pass for all of it.
            self.verify()?;
        }
        let ops: Vec<Op<'_>> = group.iter().collect();
        let fates = self.image.fates(&ops);
        let (mut segment, mut at, mut growth) = (0, 0, Growth::default());
        if fates.iter().any(Disposition::is_written) {
            self.make_place()?;
            self.provide();
            self.make_room(group.as_bytes().len() as u64);
            self.begin_frame();
            let mut moved = self.put_moved(group.as_bytes().len());
            let (mut start, mut before) = (self.frame.end(), self.frame.count());
            growth = self.put_group(group, &ops, &fates);
            let admitted = self.admit(growth.added, &ops, &fates);
            let is_admitted = admitted.is_ok();
            let mut written = admitted.and_then(|()| self.write_frame());
            let is_full = matches!(written, Err(StoreError::Full { .. }));
            if is_full && (!is_admitted || moved != CleaningStep::Nothing) {
                // There may be room once something is given back, or without what was to
                // be moved.
                if !is_admitted {
                    self.reclaim();
                    self.provide();
                    self.admit(growth.added, &ops, &fates)?;
                }
                moved = CleaningStep::Nothing;
                self.begin_frame();
                (start, before) = (self.frame.end(), self.frame.count());
                growth = self.put_group(group, &ops, &fates);
                written = self.write_frame();
            }
            (segment, at) = written?;
            self.have_moved(start, moved, segment, at);
            self.stats.written_bytes += (self.frame.end() - start) as u64;
            self.stats.written_operations += u64::from(self.frame.count() - before);
        }
        let offsets = growth.offsets.iter().copied().chain(iter::repeat(0));
        for (((record, op), fate), offset) in group.records().zip(&ops).zip(&fates).zip(offsets) {
            if *fate == Disposition::Skip {
                self.image.highest.see(op);
                continue;
            }
            let place = Place {
                segment,
                offset: at + offset,
                len: record.bytes.len() as u32,
            };
            self.image.apply_op(op, segment, |_, _| place);
        }
        self.image.settle();
        self.stats.commits += 1;
        self.stats.operations += group.len() as u64;
        Ok(())
    }

    fn recover(&mut self, tell: &mut dyn FnMut(Op<'_>)) -> Result<Report, StoreError> {
        self.image.pass_numbers(tell);
        let messages = self.image.messages.values();
        let mut places: Vec<Place> = messages.filter_map(|message| message.content).collect();
        places.sort_unstable();
        let mut window = Window::default();
        for place in places {
            let (segment, len) = (place.segment, place.len as usize);
            let bytes = window.get(&mut self.medium, segment, place.offset, len)?;
            match Records::new(bytes).next().map(Record::op) {
                Some(Ok(op)) => tell(op),
                _ => self.damage(
                    place.segment,
                    place.offset,
                    u64::from(place.len),
                    "it is not a message, or was one a moment ago",
                ),
            }
        }
        self.image.pass_rest(tell);
        Ok(self.report.clone())
    }

    fn stats(&self) -> StoreStats {
        let mut stats = self.stats;
        stats.count(&self.image);
        let sizes = self.segments.iter().map(|segment| segment.size);
        let others = [self.reserve, self.ballast].into_iter().flatten();
        stats.disk_bytes = sizes.sum::<u64>() + others.map(|it| it.size).sum::<u64>();
        stats
    }

    fn full(&mut self) -> Option<StoreError> {
        if let Err(lost) = self.verify() {
            return Some(lost);
        }
        if !self.segments.is_empty() {
            if self.short.is_some() {
                self.reclaim();
            }
            self.provide();
        }
        let (live, max) = (self.image.live_bytes(), self.config.max_bytes);
        // Not said and taken back with each message.
        let most = if self.bounded { max - max / 32 } else { max };
        self.bounded = live > most;
        if self.bounded {
            return Some(StoreError::Full {
                what: "the store",
                needed: live - most,
            });
        }
        self.short.clone()
    }

    fn compact(&mut self) -> Result<(), StoreError> {
        self.clean_all()?;
        self.close();
        Ok(())
    }
}

/// What a group adds to what is kept.
#[derive(Default)]
struct Growth {
    /// Where operations are in the frame.
    offsets: Vec<u64>,
    /// Bytes, roughly.
    added: u64,
}

impl Growth {
    fn count(&mut self, op: &Op<'_>, len: usize) {
        match op {
            Op::Message { .. }
            | Op::Entry(_)
            | Op::Session(_)
            | Op::Subscription(_)
            | Op::Will(_)
            | Op::Received { .. }
            | Op::Retain { .. }
            | Op::Flow { .. } => self.added += len as u64,
            _ => {}
        }
    }
}

fn unreadable(segment: u32) -> String {
    format!("segment {segment} cannot be read")
}

fn unmade(segment: u32, size: u64, error: &io::Error) -> StoreError {
    if is_full(error) {
        return StoreError::Full {
            what: "the disk",
            needed: size,
        };
    }
    StoreError::io(format!("segment {segment} cannot be made"), error)
}

fn unwritable(segment: u32, error: &io::Error) -> StoreError {
    if is_full(error) {
        return StoreError::Full {
            what: "the disk",
            needed: 0,
        };
    }
    StoreError::io(format!("segment {segment} cannot be written"), error)
}

fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}
