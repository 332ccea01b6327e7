//! What the bytes of a segment are, and what can be read of damaged ones.
//!
//! A segment begins with its header, twice, in sectors of their own; then frames
//! follow, and then zeros. A frame is one commit ([`super::frame`]). The first 40
//! bytes of a header are the same in every format, so that every version can say
//! what it cannot read:
//!
//! | bytes | |
//! |---|---|
//! | 0 to 7 | `pnctstor` |
//! | 8 to 11 | format |
//! | 12 to 15 | number of the segment |
//! | 16 to 23 | salt: a number drawn for it, which checksums depend on |
//! | 24 to 31 | where the segment before it ends |
//! | 32 to 35 | number of that |
//! | 36 to 39 | checksum of these |
//! | 40 to 43 | features without which it cannot be read |
//! | 44 to 47 | features that may be ignored; none yet |
//! | 48 to 55 | identity of the store |
//! | 56 to 63 | when the store was made, in nanoseconds since 1970 |
//! | 64 to 71 | bytes of the segment |
//! | 80 to 111 | the program that wrote it |
//! | 124 to 127 | checksum of all |
//!
//! Checksums of frames and records depend on the salt, so that no payload passes
//! for one.
//!
//! A header contains the end of the previous segment. Data beyond that end was never
//! confirmed; unreadable data before it is damaged.

use super::frame::{self, Frame, is_zero};
use crate::Wall;
use crate::op::{Record, Records};
use crate::store::Damage;

/// Version of this layout and of the operations in it.
pub(crate) const FORMAT: u32 = 1;

/// Features of a segment that this version can read; none yet.
const FEATURES: u32 = 0;

/// Bytes before the first frame.
pub(crate) const START: usize = 1024;

const MAGIC: [u8; 8] = *b"pnctstor";
const PROGRAM: &str = concat!("punctual ", env!("CARGO_PKG_VERSION"));
/// The second copy of the header.
const COPY: usize = 512;
/// What every format begins with.
const ENVELOPE: usize = 40;
const HEADER: usize = 128;

/// Identity of a store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Origin {
    pub(crate) identity: u64,
    pub(crate) created: Wall,
}

/// Header of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) segment: u32,
    pub(crate) salt: u64,
    /// The segment before it, and where that ends; zeros if there is none.
    pub(crate) previous: u32,
    pub(crate) previous_end: u64,
    pub(crate) origin: Origin,
    /// Bytes that it was made with; 0 if that is not known.
    pub(crate) size: u64,
}

/// What the first bytes of a segment are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Opening {
    /// A header.
    Header(Header),
    /// Nothing has been written.
    Unused,
    /// Possibly the remains of a header that was written or wiped incompletely: the rest
    /// is zero where the header is missing.
    Torn,
    /// Something else, or damaged.
    Unknown,
    /// A header of a later format version, and the program that wrote it.
    Newer(u32, Option<String>),
    /// A header with unknown features, and the program that wrote it.
    Features(u32, Option<String>),
}

impl Header {
    /// Of one without anything that can be read.
    pub(crate) fn nothing(segment: u32, size: u64) -> Self {
        Self {
            segment,
            salt: 0,
            previous: 0,
            previous_end: 0,
            origin: Origin::default(),
            size,
        }
    }

    /// Encodes both copies of the segment header, up to the first frame.
    pub(crate) fn encode(&self) -> [u8; START] {
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(&MAGIC);
        header[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        header[12..16].copy_from_slice(&self.segment.to_le_bytes());
        header[16..24].copy_from_slice(&self.salt.to_le_bytes());
        header[24..32].copy_from_slice(&self.previous_end.to_le_bytes());
        header[32..36].copy_from_slice(&self.previous.to_le_bytes());
        seal(&mut header[..ENVELOPE]);
        header[40..44].copy_from_slice(&FEATURES.to_le_bytes());
        header[48..56].copy_from_slice(&self.origin.identity.to_le_bytes());
        header[56..64].copy_from_slice(&self.origin.created.to_le_bytes());
        header[64..72].copy_from_slice(&self.size.to_le_bytes());
        let program = &PROGRAM.as_bytes()[..PROGRAM.len().min(32)];
        header[80..80 + program.len()].copy_from_slice(program);
        seal(&mut header);
        let mut out = [0; START];
        out[..HEADER].copy_from_slice(&header);
        out[COPY..COPY + HEADER].copy_from_slice(&header);
        out
    }

    /// Reads the first bytes of a segment.
    pub(crate) fn read(bytes: &[u8]) -> Opening {
        let mut copies = [0, COPY].into_iter();
        if let Some(opening) = copies.find_map(|at| Self::copy(bytes.get(at..)?)) {
            return opening;
        }
        let start = &bytes[..bytes.len().min(START)];
        let known = MAGIC.iter().copied().chain(FORMAT.to_le_bytes());
        let is_left_of_one = |copy: &[u8]| {
            let mut fields = copy.iter().zip(known.clone());
            fields.all(|(found, written)| *found == 0 || *found == written)
                && is_zero(&copy[copy.len().min(HEADER)..])
        };
        match start.chunks(COPY).all(is_left_of_one) {
            _ if is_zero(start) => Opening::Unused,
            true if start.len() == START => Opening::Torn,
            _ => Opening::Unknown,
        }
    }

    fn copy(bytes: &[u8]) -> Option<Opening> {
        let envelope = bytes.get(..ENVELOPE)?;
        if !envelope.starts_with(&MAGIC) || !is_sealed(envelope) {
            return None;
        }
        let format = u32_at(bytes, 8)?;
        let whole = bytes.get(..HEADER).filter(|it| is_sealed(it));
        let program = || {
            let name = whole?[80..112].split(|byte| *byte == 0).next()?;
            let name = std::str::from_utf8(name).ok()?;
            (!name.is_empty()).then(|| name.to_owned())
        };
        if format != FORMAT {
            return Some(Opening::Newer(format, program()));
        }
        let whole = whole?;
        let unknown = u32_at(whole, 40)? & !FEATURES;
        if unknown != 0 {
            return Some(Opening::Features(unknown, program()));
        }
        Some(Opening::Header(Self {
            segment: u32_at(bytes, 12)?,
            salt: u64_at(bytes, 16)?,
            previous: u32_at(bytes, 32)?,
            previous_end: u64_at(bytes, 24)?,
            origin: Origin {
                identity: u64_at(whole, 48)?,
                created: u64_at(whole, 56)?,
            },
            size: u64_at(whole, 64)?,
        }))
    }

    /// Copies of a header that have changed since they were written: at which byte,
    /// and how many. One that is missing, or lacks its checksum, may never have got
    /// to the disk.
    pub(crate) fn damaged_copies(bytes: &[u8]) -> impl Iterator<Item = (usize, usize)> {
        [0, COPY].into_iter().filter_map(move |at| {
            let copy = bytes.get(at..at + HEADER)?;
            let is_there = !is_zero(&copy[HEADER - 4..]);
            (is_there && Self::copy(copy).is_none()).then_some((at, HEADER))
        })
    }

    /// Of the header of a frame that is at byte `at`.
    pub(super) fn checksum(&self, at: u64, bytes: &[u8]) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&self.salt.to_le_bytes());
        hasher.update(&self.segment.to_le_bytes());
        hasher.update(&at.to_le_bytes());
        hasher.update(bytes);
        hasher.finalize()
    }

    /// What the checksums of records depend on.
    pub(super) fn record_salt(&self) -> u32 {
        (self.salt >> 32) as u32
    }

    /// Where the next frame begins, after the first of these bytes.
    fn next_frame(&self, bytes: &[u8], at: usize) -> Option<usize> {
        let mut places = (frame::ALIGN..bytes.len()).step_by(frame::ALIGN);
        places.find(|&next| frame::len(self, &bytes[next..], at + next).is_some())
    }
}

/// An item of a segment, in the order of reading.
pub(crate) enum SegmentItem<'a> {
    /// A commit begins, with this number if that can be read.
    Commit(Option<u64>),
    /// A record that is as it was written.
    Record {
        record: Record<'a>,
        /// At which byte it begins.
        offset: u64,
    },
    /// Bytes that cannot be read.
    Damage(Damage),
}

/// How reading a segment continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadStep {
    /// At this byte.
    At(usize),
    /// Nowhere: so many bytes follow of a commit that was never confirmed.
    End(u64),
}

/// Reads the frame, or remains of a frame, at `at`. With `end` the bytes are known to be
/// exactly the confirmed ones. Otherwise a frame that was not fully written counts as
/// unconfirmed, and other unreadable data as damaged.
pub(crate) fn read(
    header: &Header,
    bytes: &[u8],
    at: usize,
    end: Option<u64>,
    found: &mut dyn FnMut(SegmentItem<'_>),
) -> ReadStep {
    let known = end.map(|end| (end as usize).min(bytes.len()));
    let rest = bytes[..known.unwrap_or(bytes.len())].get(at..);
    let rest = rest.unwrap_or_default();
    let frame = frame::parse(header, rest, at);
    if let Some(frame) = frame.filter(|frame| frame.is_intact) {
        found(SegmentItem::Commit(Some(frame.sequence)));
        let mut offset = (at + frame::HEADER) as u64;
        for record in Records::new(frame.records) {
            found(SegmentItem::Record { record, offset });
            offset += record.bytes.len() as u64;
        }
        return ReadStep::At(at + frame.len);
    }
    let written = written(rest);
    if written == 0 {
        if let Some(end) = end.filter(|end| *end > at as u64) {
            let len = end as usize - at;
            found(SegmentItem::damage(
                header,
                at,
                len,
                "nothing is there any more",
            ));
        }
        return ReadStep::End(0);
    }
    let next = header.next_frame(rest, at);
    if next.is_none() && known.is_none() && frame::is_torn(header, rest, at) {
        return ReadStep::End(written as u64);
    }
    let len = match (frame, next) {
        (Some(frame), _) => frame.len,
        (None, Some(next)) => next,
        (None, None) => written.next_multiple_of(frame::ALIGN),
    };
    let len = len.min(rest.len());
    found(SegmentItem::Commit(frame.map(|frame| frame.sequence)));
    salvage(header, at, &rest[..len], frame, found);
    ReadStep::At(at + len)
}

/// Reads the records of a damaged frame that are intact.
fn salvage(
    header: &Header,
    at: usize,
    bytes: &[u8],
    frame: Option<Frame<'_>>,
    found: &mut dyn FnMut(SegmentItem<'_>),
) {
    if frame.is_none() {
        let len = bytes.len().min(frame::HEADER);
        found(SegmentItem::damage(
            header,
            at,
            len,
            "no commit begins here",
        ));
    }
    let end = match frame {
        Some(frame) => (frame::HEADER + frame.records.len()).min(bytes.len()),
        None => bytes.len(),
    };
    let mut from = frame::HEADER;
    while from < end {
        let rest = &bytes[from..end];
        if frame.is_none() && frame::is_padding(rest) {
            return;
        }
        let error = match Records::new(rest).next() {
            Some(record) => match record.checked(header.record_salt()) {
                Ok(_) => {
                    let offset = (at + from) as u64;
                    found(SegmentItem::Record { record, offset });
                    from += record.bytes.len();
                    continue;
                }
                Err(error) => error.to_string(),
            },
            None => "no record begins here".into(),
        };
        let len = next_record(header, rest);
        found(SegmentItem::damage(header, at + from, len, error));
        from += len;
    }
    if let Some(frame) = frame.filter(|frame| frame.len > end)
        && !bytes.get(end..).is_some_and(frame::is_padding)
    {
        let what = "the end of the commit is not as it was written";
        found(SegmentItem::damage(header, at + end, frame.len - end, what));
    }
}

/// Where the next record that is intact begins after the first of these bytes,
/// which is not; all of them if there is none.
fn next_record(header: &Header, bytes: &[u8]) -> usize {
    let salt = header.record_salt();
    let is_record = |at: usize| {
        let record = Records::new(&bytes[at..]).next();
        // Most of what is none is not an operation either, which is seen sooner.
        record.is_some_and(|it| it.op().is_ok() && it.is_intact(salt))
    };
    let next = (1..bytes.len()).find(|next| is_record(*next));
    next.unwrap_or(bytes.len())
}

impl SegmentItem<'_> {
    fn damage(header: &Header, offset: usize, len: usize, what: impl ToString) -> Self {
        Self::Damage(Damage {
            segment: header.segment,
            offset: offset as u64,
            len: len as u64,
            what: what.to_string(),
        })
    }
}

/// Whether several commits seem to begin in a segment whose header cannot be read. Then
/// the first was confirmed, and the header was on the disk.
pub(super) fn has_commits(bytes: &[u8]) -> bool {
    let number = |at: usize| frame::claim(bytes.get(at..)?);
    let mut places = (START..bytes.len()).step_by(frame::ALIGN);
    places.any(|at| {
        number(at).is_some_and(|(sequence, len)| {
            let next = at.checked_add(len).and_then(number);
            next.is_some_and(|(next, _)| next == sequence.wrapping_add(1))
        })
    })
}

/// Up to where bytes are not all zero.
pub(super) fn written(bytes: &[u8]) -> usize {
    const BLOCK: usize = 4096;
    let mut blocks = bytes.chunks(BLOCK);
    let Some(last) = blocks.rposition(|block| !is_zero(block)) else {
        return 0;
    };
    let block = &bytes[last * BLOCK..bytes.len().min((last + 1) * BLOCK)];
    let within = block.iter().rposition(|byte| *byte != 0);
    last * BLOCK + within.map_or(0, |within| within + 1)
}

/// Writes the checksum of the preceding bytes into the last four bytes.
fn seal(bytes: &mut [u8]) {
    if let Some((fields, checksum)) = bytes.split_last_chunk_mut::<4>() {
        *checksum = crc32fast::hash(fields).to_le_bytes();
    }
}

fn is_sealed(bytes: &[u8]) -> bool {
    let parts = bytes.split_last_chunk::<4>();
    parts.is_some_and(|(fields, checksum)| crc32fast::hash(fields) == u32::from_le_bytes(*checksum))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}
