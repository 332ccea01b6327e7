//! Cleaning: live records of the oldest segment are rewritten at the end of the log, and
//! then that segment is removed.
//!
//! It is done in small steps with each commit, in the same frame and with the same sync,
//! in proportion to the size of the commit, so that no commit waits for long. Rewritten
//! records precede the operations of the commit, as they represent the state before them.

use super::frame;
use super::segment::{self, ReadStep, START, SegmentItem};
use super::{BALLAST, Log, Place, Reserve};
use crate::{Medium, Op, StoreError, op};

/// Bytes read at once of a segment that is to be given back.
const LOAD: usize = 4 << 20;
/// Bytes of it that are looked at with a commit, at least, and for each byte of
/// the commit.
const LOOK: usize = 64 << 10;
const LOOK_PER_BYTE: usize = 3;
/// Bytes of it that are looked at when nothing else is to be done.
const LOOK_MUCH: usize = 1 << 20;

/// The same on a full disk: what does not fit at the end of a segment is room lost.
const LOOK_SHORT: usize = 256 << 10;

/// The oldest segment, while it is looked through.
#[derive(Debug)]
pub(super) struct Cleaning {
    bytes: Vec<u8>,
    loaded: usize,
    at: usize,
    /// Whether there is space for its live records.
    fits: bool,
}

/// Moving everything once.
#[derive(Debug, Clone, Copy)]
pub(super) struct Round {
    /// The last segment when it began.
    until: u32,
    /// The room that there was.
    room: u64,
}

/// The state in which cleaning cannot free space.
#[derive(Debug, Clone, Copy)]
pub(super) struct CleaningLimit {
    /// Bytes that were kept.
    live: u64,
    /// The room that there was.
    room: u64,
}

/// Where cleaning continues once the records in the frame are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CleaningStep {
    /// Nothing is looked through.
    Nothing,
    /// At this byte.
    Until(usize),
    /// The segment has no live records any more.
    All,
}

impl<M: Medium> Log<M> {
    /// Whether so much is done with that room should be given back.
    fn is_cleaning_due(&self) -> bool {
        let slack = 2 * self.config.segment_bytes;
        self.used() > 2 * self.image.live_bytes() + slack
    }

    /// Puts some live records of the oldest segment into the frame of a commit.
    pub(super) fn put_moved(&mut self, commit: usize) -> CleaningStep {
        if self.cleaning.is_none() && !self.is_cleaning_due() {
            return CleaningStep::Nothing;
        }
        self.look(LOOK + LOOK_PER_BYTE * commit)
    }

    fn look(&mut self, bytes: usize) -> CleaningStep {
        let Some(&oldest) = self.segments.front() else {
            return CleaningStep::Nothing;
        };
        if self.segments.len() == 1 && self.open {
            return CleaningStep::Nothing;
        }
        let end = oldest.end as usize;
        let cleaning = self.cleaning.get_or_insert_with(|| Cleaning {
            bytes: vec![0; end],
            loaded: 0,
            at: START,
            fits: false,
        });
        if cleaning.loaded < end {
            let to = end.min(cleaning.loaded + LOAD);
            let part = &mut cleaning.bytes[cleaning.loaded..to];
            let from = cleaning.loaded as u64;
            if self.medium.read(oldest.header.segment, from, part).is_err() {
                return CleaningStep::Nothing;
            }
            cleaning.loaded = to;
            if to < end {
                return CleaningStep::Until(cleaning.at);
            }
        }
        if self.short.is_some() && !cleaning.fits {
            cleaning.fits = true;
            // Space is also needed for commits meanwhile, and for frame headers.
            if self.needed() + self.config.segment_bytes / 8 > self.room() {
                // The room that there is is for what gives back more.
                self.cleaning = None;
                self.give_up();
                return CleaningStep::Nothing;
            }
        }
        let Some(cleaning) = &self.cleaning else {
            return CleaningStep::Nothing;
        };
        let (mut at, until) = (cleaning.at, cleaning.at + bytes);
        let (image, frame) = (&self.image, &mut self.frame);
        let segment = oldest.header.segment;
        let mut found = |found: SegmentItem<'_>| {
            if let SegmentItem::Record { record, offset } = found
                && let Ok(op) = record.op()
            {
                let place = Place {
                    segment,
                    offset,
                    len: record.bytes.len() as u32,
                };
                image.still(&op, segment, &place, &mut |op| frame.push(&op));
            }
        };
        while at < until {
            match segment::read(
                &oldest.header,
                &cleaning.bytes,
                at,
                Some(oldest.end),
                &mut found,
            ) {
                ReadStep::At(next) => at = next,
                ReadStep::End(_) => {
                    frame.push(&Op::GivenBack { segment });
                    return CleaningStep::All;
                }
            }
        }
        CleaningStep::Until(at)
    }

    /// Approximate number of bytes for rewriting the live records of the oldest segment.
    fn needed(&self) -> u64 {
        let (Some(oldest), Some(cleaning)) = (self.segments.front(), &self.cleaning) else {
            return 0;
        };
        let (mut needed, segment) = (0, oldest.header.segment);
        let mut bytes = Vec::new();
        let mut found = |found: SegmentItem<'_>| {
            if let SegmentItem::Record { record, offset } = found
                && let Ok(op) = record.op()
            {
                let len = record.bytes.len() as u32;
                let place = Place {
                    segment,
                    offset,
                    len,
                };
                self.image.still(&op, segment, &place, &mut |op| {
                    bytes.clear();
                    op::put_record(&mut bytes, &op);
                    needed += bytes.len() as u64;
                });
            }
        };
        let (mut at, end) = (cleaning.at, Some(oldest.end));
        while let ReadStep::At(next) =
            segment::read(&oldest.header, &cleaning.bytes, at, end, &mut found)
        {
            at = next;
        }
        needed
    }

    /// Whether something has to be moved on a full disk to have that much room, and
    /// moving may help.
    fn is_scarce(&mut self, wanted: u64) -> bool {
        let (room, segment) = (self.room(), self.config.segment_bytes);
        if self.short.is_none() || room >= wanted {
            return false;
        }
        self.turn_over();
        let (oldest, last) = (self.segments.front(), self.segments.back());
        let oldest = oldest.map_or(0, |it| it.header.segment);
        match self.round {
            Some(round) if oldest <= round.until => {}
            Some(round) if room < round.room + segment / 16 => self.give_up(),
            _ => {
                let until = last.map_or(0, |it| it.header.segment);
                self.round = Some(Round { until, room });
            }
        }
        let live = self.image.live_bytes();
        self.hopeless
            .is_none_or(|it| live + segment / 16 < it.live || room + segment / 16 < it.room)
    }

    /// If the log has one segment, which is mostly obsolete, continues in the reserve
    /// segment, which has space for the live records of the first.
    fn turn_over(&mut self) {
        let least = self.config.segment_bytes / 4;
        if self.segments.len() == 1
            && self.reserve.is_some()
            && self.used() > self.image.live_bytes() + least
        {
            self.open = false;
        }
    }

    /// Pauses cleaning until there are fewer live records, or more has been written.
    fn give_up(&mut self) {
        self.round = None;
        self.hopeless = Some(CleaningLimit {
            live: self.image.live_bytes(),
            room: self.room(),
        });
    }

    /// The disk is full: cleans before a commit of so many bytes, at a rate at which all
    /// obsolete space is freed before an eighth of a segment has been written.
    pub(super) fn make_room(&mut self, commit: u64) {
        let passes = 8 * (self.used() / self.config.segment_bytes.max(1) + 1);
        let mut left = (commit * passes).div_ceil(LOOK_SHORT as u64) + 1;
        // Not all that is left is for this: a segment has to have somewhere to go.
        let wanted = self.config.segment_bytes + self.config.segment_bytes / 4;
        while left > 0 && self.is_scarce(wanted) {
            match self.move_some() {
                Ok(CleaningStep::Until(_) | CleaningStep::All) => left -= 1,
                _ => break,
            }
            self.provide();
        }
    }

    /// The records in the frame up to its byte `end` were written to `segment`; the frame
    /// begins at byte `at` there.
    pub(super) fn have_moved(&mut self, end: usize, moved: CleaningStep, segment: u32, at: u64) {
        let mut offset = frame::HEADER as u64;
        for record in self.frame.records(end) {
            let len = record.bytes.len() as u32;
            if let Ok(op) = record.op() {
                let place = Place {
                    segment,
                    offset: at + offset,
                    len,
                };
                self.image.moved(&op, segment, place);
            }
            offset += u64::from(len);
        }
        self.stats.moved_bytes += offset - frame::HEADER as u64;
        match (moved, &mut self.cleaning) {
            (CleaningStep::Until(at), Some(cleaning)) => cleaning.at = at,
            (CleaningStep::All, Some(_)) => {
                let oldest = self.segments.front().map(|it| it.header.segment);
                // One that cannot be removed is looked at again.
                if oldest.is_some_and(|oldest| self.give_back(oldest)) {
                    self.segments.pop_front();
                }
                self.cleaning = None;
            }
            _ => {}
        }
    }

    /// On a full disk it is the ballast from now on: someone else could take its room.
    fn give_back(&mut self, segment: u32) -> bool {
        let size = self.segments.front().map_or(0, |it| it.size);
        if self.short.is_some() && self.ballast.is_some() {
            // It becomes the reserve if there is none; if there is, this one can go.
            let _ = self.make_reserve();
        }
        let is_wanted = self.short.is_some() && self.ballast.is_none();
        if is_wanted
            && size >= self.config.segment_bytes
            && self.medium.rename(segment, BALLAST).is_ok()
        {
            self.ballast = Some(Reserve {
                segment: BALLAST,
                size,
                used: size,
            });
            return true;
        }
        self.remove(segment)
    }

    /// Moves a part, with a commit of its own.
    fn move_some(&mut self) -> Result<CleaningStep, StoreError> {
        self.make_place()?;
        self.begin_frame();
        let much = match self.short {
            Some(_) => LOOK_SHORT,
            None => LOOK_MUCH,
        };
        let moved = self.look(much);
        let nothing = self.frame.count() == 1 && moved != CleaningStep::All;
        if moved == CleaningStep::Nothing || nothing {
            if let (CleaningStep::Until(at), Some(cleaning)) = (moved, &mut self.cleaning) {
                cleaning.at = at;
            }
            return Ok(moved);
        }
        let end = self.frame.end();
        let (segment, at) = self.write_frame()?;
        self.have_moved(end, moved, segment, at);
        Ok(moved)
    }

    /// The disk is full: frees one segment, if much of the used space is obsolete. The
    /// next allocation shows whether that helped.
    pub(super) fn reclaim(&mut self) {
        let (live, segment) = (self.image.live_bytes(), self.config.segment_bytes);
        let done_with = self.used().saturating_sub(live);
        // To move all that is kept has to be worth it.
        if done_with < (segment / 4).max(live / 32) {
            return;
        }
        while self.is_scarce(self.enough()) {
            match self.move_some() {
                Ok(CleaningStep::Until(_)) => {}
                _ => break,
            }
        }
    }

    /// Gives back all that can be.
    pub(super) fn clean_all(&mut self) -> Result<(), StoreError> {
        let Some(last) = self.segments.back().map(|it| it.header.segment) else {
            return Ok(());
        };
        self.open = false;
        while let Some(oldest) = self.segments.front().map(|it| it.header.segment)
            && oldest <= last
        {
            let moved = self.move_some()?;
            if moved == CleaningStep::Nothing && self.open && self.segments.len() == 1 {
                // The log had to continue in that segment.
                return Err(StoreError::Full {
                    what: "the disk",
                    needed: self.config.segment_bytes,
                });
            }
            let stays = self.segments.front().map(|it| it.header.segment) == Some(oldest);
            if moved == CleaningStep::Nothing || moved == CleaningStep::All && stays {
                return Err(StoreError::Io {
                    what: format!("segment {oldest} cannot be given back"),
                    kind: std::io::ErrorKind::Other,
                    message: "it cannot be read or removed; nothing of it is lost".into(),
                });
            }
        }
        Ok(())
    }
}
