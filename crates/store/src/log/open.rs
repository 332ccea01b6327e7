//! Opening a log: selects its segments, and reads them.
//!
//! Invariant: the medium is not changed, and intact data is read once, in parts that are
//! small compared with the log.

use std::collections::BTreeMap;

use super::frame::{self, Frame, is_zero};
use super::segment::{self, FORMAT, Header, Opening, Origin, ReadStep, START, SegmentItem};
use super::{BALLAST, Log, Place, Reserve, Segment, SegmentTail, unreadable};
use crate::image::Image;
use crate::op::{Record, Records};
use crate::store::Damage;
use crate::{CommitMark, Medium, Op, Report, StoreError, Tail};

impl<M: Medium> Log<M> {
    /// Reads the segments with these numbers.
    pub(super) fn load(&mut self, numbers: &[u32]) -> Result<(), StoreError> {
        let mut openings = Vec::new();
        let numbers = self.take_ballast(numbers)?;
        for &segment in numbers {
            let mut start = [0; START];
            let len = self.read(segment, 0, &mut start)?;
            let opening = match Header::read(&start[..len]) {
                Opening::Header(header) if header.segment != segment => {
                    let what = format!(
                        "it is segment {} under another name, and is left alone",
                        header.segment
                    );
                    self.damage(segment, 0, 0, &what);
                    continue;
                }
                Opening::Newer(found, by) => {
                    let known = FORMAT;
                    return Err(StoreError::Newer { found, known, by });
                }
                Opening::Features(bits, by) => return Err(StoreError::Features { bits, by }),
                opening => opening,
            };
            openings.push((segment, opening));
        }
        let is_foreign = |(_, opening): &(u32, Opening)| *opening == Opening::Unknown;
        if openings.len() > 1 && openings.iter().all(is_foreign) {
            return Err(StoreError::Foreign(format!("segment {}", numbers[0])));
        }
        self.choose(&mut openings);
        let mut window = Window::default();
        for (at, (number, opening)) in openings.iter().enumerate() {
            let number = *number;
            let size = self.size(number)?;
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
                self.report.bytes += size;
                let end = self.replay(header, size, end, &mut window)?;
                self.segments.push_back(Segment {
                    header: *header,
                    size,
                    end,
                    rest: SegmentTail::Free,
                });
                continue;
            }
            let mut torn = 0;
            // A larger one takes the place of the one in reserve; others come only when
            // there is something in the one before.
            let next = openings
                .get(at + 1)
                .filter(|(_, it)| *it == Opening::Unused);
            let is_emptied = *opening == Opening::Unused
                && match next {
                    Some((next, _)) => self.size(*next)? == self.config.segment_bytes,
                    None => false,
                };
            let bytes = window.get(&mut self.medium, number, 0, size as usize)?;
            let written = segment::written(bytes) as u64;
            let has_commits = written > 0 && segment::has_commits(bytes);
            if *opening == Opening::Unused && is_last {
                torn = written;
                if torn == 0 && size >= self.config.segment_bytes {
                    let before = numbers.iter().rfind(|it| **it < number);
                    let first = before.map_or(1, |it| it + 1);
                    if first < number && size == self.config.segment_bytes {
                        let what = format!("segments {first} to {} are missing", number - 1);
                        self.damage(number, 0, 0, &what);
                    }
                    self.reserve = Some(Reserve {
                        segment: number,
                        size,
                        used: 0,
                    });
                    continue;
                }
            }
            // One that did not get its first commit has nothing to lose. It is not
            // written to again: what got there of that commit could pass for a
            // part of the next one.
            let had_commits = end.map_or(has_commits, |end| end > START as u64);
            let is_overwritten = *opening == Opening::Unknown;
            let is_damaged = (had_commits || is_overwritten) && is_skipped != Some(true);
            if is_damaged {
                let what = "neither copy of its header can be read, and so nothing that is in it";
                self.damage(number, 0, size, what);
            } else if is_emptied && written == 0 {
                let what = "nothing is in it, unless the power failed when it was made";
                self.damage(number, 0, size, what);
            } else if *opening == Opening::Torn {
                torn = START as u64;
            }
            if torn > 0 {
                self.leave_out(number, 0, torn, is_last);
            }
            self.open = false;
            let rest = match opening {
                Opening::Unused | Opening::Torn if !is_damaged => SegmentTail::Blank,
                _ => SegmentTail::Unknown,
            };
            self.segments
                .push_back(Segment::without_commits(number, size, rest));
        }
        self.look_for_the_first(&openings);
        self.compare_with_mark()
    }

    /// Compares the frames that were read with the mark beside the segments.
    fn compare_with_mark(&mut self) -> Result<(), StoreError> {
        let mark = self.medium.mark();
        let mark =
            mark.map_err(|error| StoreError::io("the store's lock cannot be read", &error))?;
        let Some(CommitMark { store, commit }) = mark else {
            return Ok(());
        };
        if self.report.commits == 0 {
            let damage = self.report.damages.first().cloned();
            return Err(StoreError::Emptied { commit, damage });
        }
        if store != self.origin.identity || commit <= self.sequence {
            return Ok(());
        }
        let tail = self.report.tail.take();
        let last = self.segments.back();
        let (segment, offset) = last.map_or((0, 0), |it| (it.header.segment, it.end));
        let what = format!(
            "commits after {} are missing; those up to {commit} were confirmed",
            self.sequence
        );
        self.damage(segment, offset, tail.map_or(0, |it| it.len), &what);
        Ok(())
    }

    /// The ballast is no part of the log; returns the other numbers.
    fn take_ballast<'a>(&mut self, numbers: &'a [u32]) -> Result<&'a [u32], StoreError> {
        let Some((&BALLAST, others)) = numbers.split_first() else {
            return Ok(numbers);
        };
        let size = self.size(BALLAST)?;
        // A smaller one is removed when another is made.
        if size >= self.config.segment_bytes {
            self.ballast = Some(Reserve {
                segment: BALLAST,
                size,
                used: size,
            });
        }
        if others.is_empty() {
            let what = "it is a reserve, and all other segments are missing";
            self.damage(BALLAST, 0, 0, what);
        }
        Ok(others)
    }

    /// Skips the remains of an incomplete commit, perhaps the last one.
    fn leave_out(&mut self, segment: u32, offset: u64, len: u64, is_last: bool) {
        self.report.torn += len;
        self.report.tail = is_last.then_some(Tail {
            segment,
            offset,
            len,
        });
    }

    fn size(&mut self, segment: u32) -> Result<u64, StoreError> {
        let size = self.medium.size(segment);
        size.map_err(|error| StoreError::io(unreadable(segment), &error))
    }

    /// Whether those that were before the first segment were given back.
    fn look_for_the_first(&mut self, openings: &[(u32, Opening)]) {
        let mut headers = openings.iter().filter_map(|(_, it)| match it {
            Opening::Header(header) => Some(header),
            _ => None,
        });
        let Some(first) = headers.next().copied() else {
            return;
        };
        let (previous, given_back) = (first.previous, self.given_back);
        let is_there = openings.iter().any(|(number, _)| *number == previous);
        if !is_there && previous > given_back {
            let what = format!("segments {} to {previous} are missing", given_back + 1);
            self.damage(previous, 0, 0, &what);
        }
    }

    /// Keeps the segments of this log, and drops those of another store.
    fn choose(&mut self, openings: &mut Vec<(u32, Opening)>) {
        fn header((_, opening): &(u32, Opening)) -> Option<&Header> {
            match opening {
                Opening::Header(header) => Some(header),
                _ => None,
            }
        }
        let mut counts = BTreeMap::<Origin, usize>::new();
        for origin in openings.iter().filter_map(|it| Some(header(it)?.origin)) {
            *counts.entry(origin).or_default() += 1;
        }
        if let Some((origin, _)) = counts.into_iter().max_by_key(|(_, count)| *count) {
            self.origin = origin;
        }
        let Self { origin, report, .. } = self;
        openings.retain(|it| {
            let other = header(it).map(|it| it.origin);
            let is_own = other.is_none_or(|other| other == *origin);
            if !is_own {
                report.damage(Damage {
                    segment: it.0,
                    offset: 0,
                    len: 0,
                    what: "it belongs to another store, and is left alone".into(),
                });
            }
            is_own
        });
    }

    /// Applies what a segment says; returns where it ends.
    fn replay(
        &mut self,
        header: &Header,
        size: u64,
        end: Option<u64>,
        window: &mut Window,
    ) -> Result<u64, StoreError> {
        let number = header.segment;
        let medium = &mut self.medium;
        let start = window.get(medium, number, 0, START)?;
        for (at, len) in Header::damaged_copies(start) {
            self.report.damage(Damage {
                segment: number,
                offset: at as u64,
                len: len as u64,
                what: "a copy of the header is damaged; the other one is used".into(),
            });
        }
        if end.is_none() && size < header.size {
            self.report.damage(Damage {
                segment: number,
                offset: size,
                len: header.size - size,
                what: "the file has lost its end".into(),
            });
        }
        let mut replay = Replay {
            number,
            is_first: self.report.commits == 0,
            image: &mut self.image,
            report: &mut self.report,
            sequence: &mut self.sequence,
            given_back: &mut self.given_back,
        };
        // Usually everything is as it was written.
        let (mut at, until) = (START, end.unwrap_or(size).min(size) as usize);
        loop {
            let head = window.get(
                medium,
                number,
                at as u64,
                until.saturating_sub(at).min(HEAD),
            )?;
            let Some(len) = frame::len(header, head, at).filter(|len| at + len <= until) else {
                break;
            };
            let bytes = window.get(medium, number, at as u64, len)?;
            let Some(frame) = frame::parse(header, bytes, at).filter(|frame| frame.is_intact)
            else {
                break;
            };
            replay.commit(&frame, at);
            at += len;
        }
        let mut rest = at;
        while rest < until {
            let part = (until - rest).min(PART);
            if !is_zero(window.get(medium, number, rest as u64, part)?) {
                break;
            }
            rest += part;
        }
        let mut torn = 0;
        if rest < until || end.is_some_and(|end| at as u64 != end) {
            // It is not, or not all that should be there is.
            let bytes = window.get(medium, number, 0, size as usize)?;
            torn = loop {
                let found = &mut |found: SegmentItem<'_>| replay.found(found);
                match segment::read(header, bytes, at, end, found) {
                    ReadStep::At(next) => at = next,
                    ReadStep::End(torn) => break torn,
                }
            };
        }
        replay.image.settle();
        if torn > 0 {
            self.leave_out(number, at as u64, torn, true);
        }
        // After a clean end the log continues in the last segment, as a full disk may
        // have no space for another.
        self.open = torn == 0;
        Ok(at as u64)
    }
}

/// Bytes that are read at once: small enough for a processor cache.
const PART: usize = 1 << 20;
/// Bytes of the header of a frame, at most.
const HEAD: usize = 32;

/// A part of a segment.
#[derive(Debug, Default)]
pub(super) struct Window {
    segment: u32,
    from: u64,
    /// Those that were read come first.
    bytes: Vec<u8>,
    len: usize,
}

impl Window {
    /// These bytes; fewer only at the end of the segment.
    pub(super) fn get<M: Medium>(
        &mut self,
        medium: &mut M,
        segment: u32,
        at: u64,
        len: usize,
    ) -> Result<&[u8], StoreError> {
        let is_near = self.segment == segment && at >= self.from;
        let skipped = if is_near { at - self.from } else { u64::MAX };
        let skipped = usize::try_from(skipped).map_or(self.len, |it| it.min(self.len));
        if self.segment != segment || at < self.from || skipped + len > self.len {
            // What is there of it already comes to the front.
            let kept = self.len - skipped;
            self.bytes.copy_within(skipped..self.len, 0);
            let room = len.max(PART);
            if self.bytes.len() < room {
                self.bytes.resize(room, 0);
            }
            (self.segment, self.from, self.len) = (segment, at, 0);
            let read = medium.read(segment, at + kept as u64, &mut self.bytes[kept..room]);
            let read = read.map_err(|error| StoreError::io(unreadable(segment), &error))?;
            self.len = kept + read;
            return Ok(&self.bytes[..len.min(self.len)]);
        }
        Ok(&self.bytes[skipped..skipped + len])
    }
}

/// What is made of the frames of a segment.
struct Replay<'a> {
    number: u32,
    is_first: bool,
    image: &'a mut Image<Place>,
    report: &'a mut Report,
    sequence: &'a mut u64,
    given_back: &'a mut u32,
}

impl Replay<'_> {
    /// One that is intact, at byte `at`.
    fn commit(&mut self, frame: &Frame<'_>, at: usize) {
        self.begin(Some(frame.sequence));
        let mut offset = (at + frame::HEADER) as u64;
        for record in Records::new(frame.records) {
            self.record(record, offset);
            offset += record.bytes.len() as u64;
        }
    }

    fn found(&mut self, found: SegmentItem<'_>) {
        match found {
            SegmentItem::Commit(commit) => self.begin(commit),
            SegmentItem::Record { record, offset } => self.record(record, offset),
            SegmentItem::Damage(damage) => self.report.damage(damage),
        }
    }

    fn begin(&mut self, commit: Option<u64>) {
        self.image.settle();
        let next = self.sequence.wrapping_add(1);
        let commit = commit.unwrap_or(next);
        if commit != next && !self.is_first {
            self.report.damage(Damage {
                segment: self.number,
                offset: 0,
                len: 0,
                what: format!(
                    "commits after {} and before {commit} are missing",
                    self.sequence
                ),
            });
        }
        self.is_first = false;
        *self.sequence = commit;
        self.report.commits += 1;
    }

    fn record(&mut self, record: Record<'_>, offset: u64) {
        let len = record.bytes.len() as u32;
        let place = Place {
            segment: self.number,
            offset,
            len,
        };
        // Contents are most of a log, and decoded when it is known which are needed.
        if let Some(message) = record.message() {
            self.image.put_content(message, len, place);
            return;
        }
        match record.op() {
            Ok(Op::GivenBack { segment }) => *self.given_back = segment.max(*self.given_back),
            Ok(op) => self.image.apply_op(&op, self.number, |_, _| place),
            Err(error) => self.report.damage(Damage {
                segment: self.number,
                offset,
                len: u64::from(len),
                what: error.to_string(),
            }),
        }
    }
}
