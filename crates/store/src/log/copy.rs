//! Carrying a log over to the present format: everything is written again in
//! segments of its own, and then those before them go.
//!
//! Invariant: until one segment says that the log begins with the copy, what was
//! there before is untouched and is the log; from then on the copy is. Which it
//! is after a crash decides [`Log::choose`].

use std::collections::VecDeque;
use std::io;

use super::open::Window;
use super::segment::{COPYING, FORMAT};
use super::{Log, Place, Reserve, Segment, unwritable};
use crate::op::{Record, Records};
use crate::{Batch, Image, Medium, Op, Store as _, StoreError, StoreStats};

/// Bytes of a commit of the copy, and how many there are to a segment at least.
const GROUP: u64 = 1 << 20;
const PARTS: u64 = 8;

impl<M: Medium> Log<M> {
    /// Writes a log of an earlier format in the present one; says whether it was
    /// one. It needs as much room again as is kept, until it is done, and comes
    /// before anything is committed.
    ///
    /// # Errors
    /// There is no room, or the medium fails. The log is as it was and can be
    /// used: what is written from now on has the present format, and the rest as
    /// its room is given back.
    pub fn migrate(&mut self) -> Result<bool, StoreError> {
        self.sweep();
        if self.format() == FORMAT {
            return Ok(false);
        }
        let old = Old {
            image: std::mem::take(&mut self.image),
            segments: std::mem::take(&mut self.segments),
            base: std::mem::replace(&mut self.base, self.last_segment.saturating_add(1)),
            open: std::mem::replace(&mut self.open, false),
            // It comes before the copy.
            reserve: self.reserve.take(),
            sequence: self.sequence,
            stats: self.stats,
        };
        self.features = COPYING;
        let copied = self.copy(&old);
        self.features = 0;
        self.open = false;
        let done = copied.and_then(|()| {
            self.begin_frame();
            self.write_frame()
        });
        self.stats = old.stats;
        let (left, reserve, result) = match done {
            Ok(_) => (old.segments, old.reserve, Ok(true)),
            Err(error) => {
                let copied = std::mem::replace(&mut self.segments, old.segments);
                let reserve = std::mem::replace(&mut self.reserve, old.reserve);
                self.doubtful = reserve.filter(|it| it.used > 0).map(|it| it.segment);
                self.image = old.image;
                self.base = old.base;
                self.open = old.open;
                self.sequence = old.sequence;
                (copied, reserve, Err(error))
            }
        };
        self.leftovers
            .extend(left.iter().map(|it| it.header.segment));
        self.leftovers.extend(reserve.map(|it| it.segment));
        self.sweep();
        result
    }

    /// Removes what may say that the log begins with a copy that was given up.
    /// Nothing may be written before, and nothing of the copy removed.
    pub(super) fn clear_doubt(&mut self) -> Result<(), StoreError> {
        if let Some(segment) = self.doubtful {
            let removed = self.medium.remove(segment);
            removed.map_err(|error| unwritable(segment, &error))?;
            self.leftovers.retain(|it| *it != segment);
            self.doubtful = None;
        }
        Ok(())
    }

    /// Removes the segments that do not count. Those that stay take room, and
    /// nothing else.
    pub(super) fn sweep(&mut self) {
        if self.clear_doubt().is_ok() {
            let Self {
                medium, leftovers, ..
            } = self;
            let before = leftovers.len();
            leftovers.retain(|segment| medium.remove(*segment).is_err());
            if before > 0 && leftovers.is_empty() {
                // Their numbers come again: one that is left out is one that is missing.
                let last = self.segments.back().map(|it| it.header.segment);
                let last = last.max(self.reserve.map(|it| it.segment));
                let before = self.base.saturating_sub(1);
                self.last_segment = last.unwrap_or(0).max(self.foreign).max(before);
            }
        }
    }

    /// Commits everything again.
    fn copy(&mut self, old: &Old) -> Result<(), StoreError> {
        let enough = GROUP.min(self.config.segment_bytes / PARTS) as usize;
        let (mut group, mut result) = (Batch::new(), Ok(()));
        let mut put = |log: &mut Self, op: Op<'_>| {
            group.push(&op);
            if group.as_bytes().len() >= enough {
                if result.is_ok() {
                    result = log.commit(&group);
                }
                group.clear();
            }
        };
        old.image.tell_numbers(&mut |op| put(self, op));
        old.image.tell_rest(&mut |op| put(self, op));
        // A content stays only with what refers to it, so contents come last.
        let messages = old.image.messages.values();
        let mut places: Vec<Place> = messages.filter_map(|it| it.content).collect();
        places.sort_unstable();
        let mut window = Window::default();
        for place in places {
            let (segment, len) = (place.segment, place.len as usize);
            let bytes = window.get(&mut self.medium, segment, place.offset, len)?;
            match Records::new(bytes).next().map(Record::op) {
                Some(Ok(op)) => put(self, op),
                _ => {
                    return Err(StoreError::Io {
                        what: format!("segment {} cannot be copied", place.segment),
                        kind: io::ErrorKind::InvalidData,
                        message: format!("what was at byte {} has changed", place.offset),
                    });
                }
            }
        }
        result?;
        self.commit(&group)
    }
}

/// What a log was before it was copied.
struct Old {
    image: Image<Place>,
    segments: VecDeque<Segment>,
    base: u32,
    open: bool,
    reserve: Option<Reserve>,
    sequence: u64,
    stats: StoreStats,
}
