//! A store that appends: every commit is one write at the end of a log and one
//! sync.
//!
//! What is done with is not touched: its room is given back by writing what is
//! still needed of the oldest segment again at the end, together with commits,
//! and removing that segment (`clean.rs`). As segments go strictly in the order
//! in which they came, whatever undoes something is kept as long as what it
//! undoes. What is kept, without the contents of messages, is in memory as an
//! [`Image`] that says for each thing in which segment it is.
//!
//! One segment is always in reserve: if no other can be had the disk is full,
//! what needs room is refused, and what gives it back still has some.
//!
//! Invariant: a segment is read up to the end of the last commit that
//! succeeded; a commit is there as a whole or not at all.

mod clean;
mod segment;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::{io, iter};

use self::clean::Cleaning;
use self::segment::{FRAME_HEADER, Found, Header, Next, Opening, START};
use crate::image::Fate;
use crate::numbers::mix;
use crate::op::RECORD_HEADER;
use crate::store::Damage;
use crate::{Batch, Image, Medium, Op, Report, Store, StoreError, StoreStats};

/// How a log uses its medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogConfig {
    /// Bytes of a segment; one that has to hold a larger commit is larger.
    pub segment_bytes: u64,
    /// Bytes that may be kept. On the disk they take up to twice that and four
    /// segments.
    pub max_bytes: u64,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            segment_bytes: 32 << 20,
            max_bytes: 8 << 30,
        }
    }
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
}

impl Segment {
    fn without_commits(segment: u32, size: u64) -> Self {
        let header = Header {
            segment,
            salt: 0,
            previous: 0,
            previous_end: 0,
        };
        Self {
            header,
            size,
            end: START as u64,
        }
    }
}

/// A store on a medium.
#[derive(Debug)]
pub struct Log<M> {
    medium: M,
    config: LogConfig,
    seed: u64,
    image: Image<Place>,
    /// The oldest first.
    segments: VecDeque<Segment>,
    /// Whether the last of them is written to.
    open: bool,
    /// An empty segment and its size.
    reserve: Option<(u32, u64)>,
    /// The highest number of a segment that was ever used.
    last_segment: u32,
    sequence: u64,
    cleaning: Option<Cleaning>,
    report: Report,
    stats: StoreStats,
    /// The records of the commit that is being made.
    frame: Vec<u8>,
}

impl<M: Medium> Log<M> {
    /// Reads what is on the medium; changes nothing there. `seed` must differ
    /// from one start to the next and not be known to clients.
    ///
    /// # Errors
    /// There is something else, something of a later version, or the medium
    /// cannot be read.
    pub fn open(mut medium: M, config: LogConfig, seed: u64) -> Result<Self, StoreError> {
        let numbers = medium
            .list()
            .map_err(|error| StoreError::io("the store cannot be listed", &error))?;
        let mut log = Self {
            medium,
            config,
            seed,
            image: Image::default(),
            segments: VecDeque::new(),
            open: false,
            reserve: None,
            last_segment: numbers.last().copied().unwrap_or(0),
            sequence: 0,
            cleaning: None,
            report: Report::default(),
            stats: StoreStats::default(),
            frame: Vec::new(),
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

    fn load(&mut self, numbers: &[u32]) -> Result<(), StoreError> {
        let mut openings = Vec::new();
        for &segment in numbers {
            let mut start = [0; START];
            let len = self.read(segment, 0, &mut start)?;
            let opening = match Header::read(&start[..len]) {
                Opening::Header(header) if header.segment != segment => Opening::Unknown,
                opening => opening,
            };
            if let Opening::Newer(found) = opening {
                let known = segment::FORMAT;
                return Err(StoreError::Newer { found, known });
            }
            openings.push((segment, opening));
        }
        let is_foreign = |(_, opening): &(u32, Opening)| *opening == Opening::Unknown;
        if !openings.is_empty() && openings.iter().all(is_foreign) && numbers.len() > 1 {
            return Err(StoreError::Foreign(format!("segment {}", numbers[0])));
        }
        let mut bytes = Vec::new();
        for (at, &(number, opening)) in openings.iter().enumerate() {
            let size = self
                .medium
                .size(number)
                .map_err(|error| StoreError::io(unreadable(number), &error))?;
            let is_last = at + 1 == openings.len();
            // What the next one that can be read says of it.
            let end = openings[at + 1..].iter().find_map(|(_, next)| match next {
                Opening::Header(next) if next.previous == number => Some(next.previous_end),
                _ => None,
            });
            // One whose first commit failed, and that could not be removed then.
            let is_skipped = openings[at + 1..].iter().find_map(|(_, next)| match next {
                Opening::Header(next) => Some(next.previous < number),
                _ => None,
            });
            if let Opening::Header(header) = opening
                && is_skipped != Some(true)
            {
                bytes.resize(size as usize, 0);
                self.read(number, 0, &mut bytes)?;
                self.report.bytes += size;
                let end = self.replay(&header, &bytes, end);
                self.segments.push_back(Segment { header, size, end });
                continue;
            }
            let mut torn = 0;
            if opening == Opening::Unused && is_last {
                bytes.resize(size as usize, 0);
                self.read(number, 0, &mut bytes)?;
                let written = bytes.iter().rposition(|byte| *byte != 0);
                torn = written.map_or(0, |written| written as u64 + 1);
                if torn == 0 && size >= self.config.segment_bytes {
                    self.reserve = Some((number, size));
                    continue;
                }
            }
            // One that did not get its first commit has nothing to lose. It is not
            // written to again: what got there of that commit could pass for a
            // part of the next one.
            if end.is_some_and(|end| end > START as u64) {
                self.damage(number, 0, size, "its header cannot be read");
            } else if opening == Opening::Unknown {
                torn = START as u64;
            }
            self.report.torn += torn;
            self.open = false;
            self.segments
                .push_back(Segment::without_commits(number, size));
        }
        Ok(())
    }

    /// Applies what a segment says; returns where it ends.
    fn replay(&mut self, header: &Header, bytes: &[u8], end: Option<u64>) -> u64 {
        let number = header.segment;
        let Self {
            image,
            report,
            sequence,
            open,
            ..
        } = self;
        let mut is_first = report.commits == 0;
        let mut found = |found: Found<'_>| match found {
            Found::Commit(commit) => {
                image.settle();
                if commit != sequence.wrapping_add(1) && !is_first {
                    report.damage(Damage {
                        segment: number,
                        offset: 0,
                        len: 0,
                        what: format!(
                            "commits after {} and before {commit} are missing",
                            *sequence
                        ),
                    });
                }
                is_first = false;
                *sequence = commit;
                report.commits += 1;
            }
            Found::Record { op, offset, len } => {
                let place = Place {
                    segment: number,
                    offset,
                    len,
                };
                image.apply_op(&op, number, |_, _| place);
            }
            Found::Damage(damage) => report.damage(damage),
        };
        let mut at = START;
        let torn = loop {
            match segment::read(header, bytes, at, end, &mut found) {
                Next::At(next) => at = next,
                Next::End(torn) => break torn,
            }
        };
        image.settle();
        report.torn += torn;
        // After a clean end the last segment goes on; a full disk may have no
        // room for another.
        *open = torn == 0;
        at as u64
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
    fn put_group(&mut self, group: &Batch, ops: &[Op<'_>], fates: &[Fate]) -> Growth {
        let mut growth = Growth::default();
        for ((record, op), fate) in group.records().zip(ops).zip(fates) {
            growth.offsets.push(self.frame.len() as u64);
            if !fate.is_written() {
                continue;
            }
            growth.records += 1;
            growth.count(op, record.bytes.len());
            record.write(&mut self.frame);
            if let (Op::Entry(entry), Fate::WriteSent(early)) = (op, fate)
                && let Some(op) = early.op(entry)
            {
                growth.records += 1;
                push_record(&mut self.frame, &op);
            }
        }
        growth
    }

    /// Whether a group may grow what is kept, and the disk what is used.
    fn admit(&mut self, added: u64, ops: &[Op<'_>], fates: &[Fate]) -> Result<(), StoreError> {
        let live = self.image.live_bytes();
        if live + added <= self.config.max_bytes && self.reserve.is_some() {
            return Ok(());
        }
        // What it gives back is looked for only when that decides.
        let written = ops.iter().zip(fates).filter(|(_, fate)| fate.is_written());
        let removed = written.map(|(op, _)| self.image.replaced_by(op)).sum();
        let more = added.saturating_sub(removed);
        if more > 0 && live + more > self.config.max_bytes {
            return Err(StoreError::Full {
                what: "the store",
                needed: live + more - self.config.max_bytes,
            });
        }
        match self.make_reserve() {
            Err(StoreError::Full { .. }) if more == 0 => Ok(()),
            other => other,
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
        self.create(segment, size)?;
        self.reserve = Some((segment, size));
        Ok(())
    }

    fn create(&mut self, segment: u32, size: u64) -> Result<(), StoreError> {
        match self.medium.create(segment, size) {
            Ok(()) => {
                self.last_segment = segment;
                Ok(())
            }
            Err(error) if is_full(&error) => Err(StoreError::Full {
                what: "the disk",
                needed: size,
            }),
            Err(error) => {
                let what = format!("segment {segment} cannot be made");
                Err(StoreError::io(what, &error))
            }
        }
    }

    /// Writes the frame that was made and makes it safe. Returns in which
    /// segment it is, and from which byte.
    fn write_frame(&mut self, records: u32) -> Result<(u32, u64), StoreError> {
        let len = self.frame.len() as u64;
        if len > u64::from(u32::MAX) {
            return Err(StoreError::Full {
                what: "a commit",
                needed: len,
            });
        }
        if let Some(head) = self.segments.back_mut()
            && self.open
            && head.end + len <= head.size
        {
            let (number, at) = (head.header.segment, head.end);
            head.header
                .seal(self.sequence.wrapping_add(1), &mut self.frame, records);
            let written = self.medium.write(number, at, &self.frame);
            if let Err(error) = written.and_then(|()| self.medium.sync(number)) {
                // What is there now is not known: the next one goes elsewhere.
                self.open = false;
                return Err(unwritable(number, &error));
            }
            head.end += len;
            self.sequence = self.sequence.wrapping_add(1);
            return Ok((number, at));
        }
        let size = self.config.segment_bytes.max(START as u64 + len);
        let (number, size) = match self.reserve {
            Some((number, reserved)) if reserved >= size => (number, reserved),
            smaller => {
                let number = self.last_segment.saturating_add(1);
                self.create(number, size)?;
                // Segments are used in the order of their numbers.
                self.reserve = Some((number, size));
                if let Some((smaller, _)) = smaller {
                    self.remove(smaller);
                }
                (number, size)
            }
        };
        let previous = self.segments.back();
        let header = Header {
            segment: number,
            salt: mix(self.seed ^ mix(u64::from(number))),
            previous: previous.map_or(0, |previous| previous.header.segment),
            previous_end: previous.map_or(0, |previous| previous.end),
        };
        header.seal(self.sequence.wrapping_add(1), &mut self.frame, records);
        let mut bytes = header.encode().to_vec();
        bytes.extend_from_slice(&self.frame);
        let written = self.medium.write(number, 0, &bytes);
        // Without a commit it stays in reserve.
        written
            .and_then(|()| self.medium.sync(number))
            .map_err(|error| unwritable(number, &error))?;
        self.reserve = None;
        self.open = true;
        self.segments.push_back(Segment {
            header,
            size,
            end: START as u64 + len,
        });
        self.sequence = self.sequence.wrapping_add(1);
        Ok((number, START as u64))
    }

    /// Removes a segment without commits that are needed. One that stays takes
    /// room, and nothing else.
    fn remove(&mut self, segment: u32) -> bool {
        self.medium.remove(segment).is_ok()
    }

    /// Begins a frame with what was used of the numbers; makes a record.
    fn begin_frame(&mut self) -> u32 {
        self.frame.clear();
        self.frame.resize(FRAME_HEADER, 0);
        push_record(&mut self.frame, &Op::Highest(self.image.highest));
        1
    }
}

impl<M: Medium> Store for Log<M> {
    fn commit(&mut self, group: &Batch) -> Result<(), StoreError> {
        let ops: Vec<Op<'_>> = group.iter().collect();
        let fates = self.image.fates(&ops);
        let (mut segment, mut at, mut growth) = (0, 0, Growth::default());
        if fates.iter().any(Fate::is_written) {
            let mut records = self.begin_frame();
            let moved = self.put_moved(group.as_bytes().len(), &mut records);
            let start = self.frame.len();
            growth = self.put_group(group, &ops, &fates);
            if let Err(full) = self.admit(growth.added, &ops, &fates) {
                self.reclaim();
                return Err(full);
            }
            (segment, at) = self.write_frame(records + growth.records)?;
            self.have_moved(start, moved, segment, at);
            self.stats.written_bytes += (self.frame.len() - start) as u64;
            self.stats.written_operations += u64::from(growth.records);
        }
        let offsets = growth.offsets.iter().copied().chain(iter::repeat(0));
        for (((record, op), fate), offset) in group.records().zip(&ops).zip(&fates).zip(offsets) {
            if *fate == Fate::Skip {
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
        self.image.tell_numbers(tell);
        let messages = self.image.messages.values();
        let mut places: Vec<Place> = messages.filter_map(|message| message.content).collect();
        places.sort_unstable();
        let (mut loaded, mut bytes) = (None, Vec::new());
        for place in places {
            if loaded != Some(place.segment) {
                let found = self.segments.iter();
                let mut found = found.filter(|it| it.header.segment == place.segment);
                bytes.resize(found.next().map_or(0, |it| it.end as usize), 0);
                self.read(place.segment, 0, &mut bytes)?;
                loaded = Some(place.segment);
            }
            let from = place.offset as usize + RECORD_HEADER;
            let body = bytes.get(from..place.offset as usize + place.len as usize);
            match body.map(Op::decode) {
                Some(Ok(op)) => tell(op),
                _ => self.damage(
                    place.segment,
                    place.offset,
                    u64::from(place.len),
                    "it was intact a moment ago",
                ),
            }
        }
        self.image.tell_rest(tell);
        Ok(self.report.clone())
    }

    fn stats(&self) -> StoreStats {
        let mut stats = self.stats;
        stats.count(&self.image);
        let sizes = self.segments.iter().map(|segment| segment.size);
        stats.disk_bytes = sizes.sum::<u64>() + self.reserve.map_or(0, |(_, size)| size);
        stats
    }

    fn compact(&mut self) -> Result<(), StoreError> {
        self.clean_all()
    }
}

/// What a group adds to what is kept.
#[derive(Default)]
struct Growth {
    /// Where operations are in the frame.
    offsets: Vec<u64>,
    /// Records to write.
    records: u32,
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

fn push_record(frame: &mut Vec<u8>, op: &Op<'_>) {
    let batch: Batch = iter::once(*op).collect();
    batch.records().for_each(|record| record.write(frame));
}

fn unreadable(segment: u32) -> String {
    format!("segment {segment} cannot be read")
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
