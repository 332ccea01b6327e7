//! Giving back room: what is still needed of the oldest segment is written
//! again at the end of the log, and then that segment goes.
//!
//! It is done a little with each commit, in the same frame and with the same
//! sync, and in proportion to it, so that no commit waits for long. What is
//! moved comes before the operations of the commit, because it is as it was
//! before them.

use super::frame;
use super::segment::{self, Found, Next, START};
use super::{Log, Place};
use crate::{Medium, Op, StoreError};

/// Bytes read at once of a segment that is to be given back.
const LOAD: usize = 4 << 20;
/// Bytes of it that are looked at with a commit, at least, and for each byte of
/// the commit.
const LOOK: usize = 64 << 10;
const LOOK_PER_BYTE: usize = 3;
/// Bytes of it that are looked at when nothing else is to be done.
const LOOK_MUCH: usize = 1 << 20;

/// The oldest segment, while it is looked through.
#[derive(Debug)]
pub(super) struct Cleaning {
    bytes: Vec<u8>,
    loaded: usize,
    at: usize,
}

/// Where looking goes on once what was put into a frame is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Moved {
    /// Nothing is looked through.
    Nothing,
    /// At this byte.
    Until(usize),
    /// Nothing is needed of it any more.
    All,
}

impl<M: Medium> Log<M> {
    /// Whether so much is done with that room should be given back.
    fn is_cleaning_due(&self) -> bool {
        let slack = 2 * self.config.segment_bytes;
        self.used() > 2 * self.image.live_bytes() + slack
    }

    /// Puts some of what is still needed of the oldest segment into the frame
    /// of a commit.
    pub(super) fn put_moved(&mut self, commit: usize) -> Moved {
        if self.cleaning.is_none() && !self.is_cleaning_due() {
            return Moved::Nothing;
        }
        self.look(LOOK + LOOK_PER_BYTE * commit)
    }

    fn look(&mut self, bytes: usize) -> Moved {
        let Some(&oldest) = self.segments.front() else {
            return Moved::Nothing;
        };
        if self.segments.len() == 1 && self.open {
            return Moved::Nothing;
        }
        let end = oldest.end as usize;
        let cleaning = self.cleaning.get_or_insert_with(|| Cleaning {
            bytes: vec![0; end],
            loaded: 0,
            at: START,
        });
        if cleaning.loaded < end {
            let to = end.min(cleaning.loaded + LOAD);
            let part = &mut cleaning.bytes[cleaning.loaded..to];
            let from = cleaning.loaded as u64;
            if self.medium.read(oldest.header.segment, from, part).is_err() {
                return Moved::Nothing;
            }
            cleaning.loaded = to;
            if to < end {
                return Moved::Until(cleaning.at);
            }
        }
        let (mut at, until) = (cleaning.at, cleaning.at + bytes);
        let (image, frame) = (&self.image, &mut self.frame);
        let segment = oldest.header.segment;
        let mut found = |found: Found<'_>| {
            if let Found::Record { record, offset } = found
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
                Next::At(next) => at = next,
                Next::End(_) => {
                    frame.push(&Op::GivenBack { segment });
                    return Moved::All;
                }
            }
        }
        Moved::Until(at)
    }

    /// What was put into the frame up to its byte `end` is in `segment` now,
    /// whose byte `at` is the frame's first.
    pub(super) fn have_moved(&mut self, end: usize, moved: Moved, segment: u32, at: u64) {
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
            (Moved::Until(at), Some(cleaning)) => cleaning.at = at,
            (Moved::All, Some(_)) => {
                let oldest = self.segments.front().map(|it| it.header.segment);
                // One that cannot be removed is looked at again.
                if oldest.is_some_and(|oldest| self.remove(oldest)) {
                    self.segments.pop_front();
                }
                self.cleaning = None;
            }
            _ => {}
        }
    }

    /// Moves a part, with a commit of its own.
    fn move_some(&mut self) -> Result<Moved, StoreError> {
        self.make_place()?;
        self.begin_frame();
        let moved = self.look(LOOK_MUCH);
        let nothing = self.frame.count() == 1 && moved != Moved::All;
        if moved == Moved::Nothing || nothing {
            if let (Moved::Until(at), Some(cleaning)) = (moved, &mut self.cleaning) {
                cleaning.at = at;
            }
            return Ok(moved);
        }
        let end = self.frame.end();
        let (segment, at) = self.write_frame()?;
        self.have_moved(end, moved, segment, at);
        Ok(moved)
    }

    /// The disk is full: gives back one segment, if much of what is in use is
    /// done with. Whether it worked shows when room is asked for again.
    pub(super) fn reclaim(&mut self) {
        while self.used() > self.image.live_bytes() + self.config.segment_bytes {
            match self.move_some() {
                Ok(Moved::Until(_)) => {}
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
            if moved == Moved::Nothing && self.open && self.segments.len() == 1 {
                // It had to go on in that one.
                return Err(StoreError::Full {
                    what: "the disk",
                    needed: self.config.segment_bytes,
                });
            }
            let stays = self.segments.front().map(|it| it.header.segment) == Some(oldest);
            if moved == Moved::Nothing || moved == Moved::All && stays {
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
