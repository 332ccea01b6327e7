//! A commit as bytes of a segment.
//!
//! A frame begins at a multiple of 32 bytes: a header of 32, the records, zeros,
//! and a mark as the last four bytes before the next multiple of 32. A header is
//! so within one sector of the disk, which is written as a whole or not at all:
//!
//! | bytes | |
//! |---|---|
//! | 0 to 3 | `F5 70 66 0A` |
//! | 4 to 11 | number of the commit |
//! | 12 to 15 | bytes of the records |
//! | 16 to 19 | number of records |
//! | 20 to 23 | how many of its whole sectors have only zeros |
//! | 24 to 27 | checksum of all after the header |
//! | 28 to 31 | checksum of the header, the segment, its salt, and the position |
//!
//! Invariant: a frame that was cut off, or of which sectors were never written to the
//! disk, lacks its mark or has more all-zero sectors than its header says, because an
//! unwritten part of a segment contains only zeros. So data that changed later is
//! distinguished from data that was never written.

use super::segment::{Header, u32_at};
use crate::Op;
use crate::op::{self, Record, Records};

/// Bytes before the records.
pub(super) const HEADER: usize = 32;
/// What the bytes of a frame are a multiple of.
pub(super) const ALIGN: usize = 32;

const MAGIC: [u8; 4] = [0xF5, b'p', b'f', 0x0A];
const MARK: [u8; 4] = [0xE5, b'e', b'n', b'd'];
/// Bytes that a disk writes at once, at least.
const SECTOR: usize = 512;

/// The commit that is being made.
#[derive(Debug, Default)]
pub(super) struct Draft {
    bytes: Vec<u8>,
    count: u32,
}

impl Draft {
    /// Begins another.
    pub(super) fn begin(&mut self) {
        self.bytes.clear();
        self.bytes.resize(HEADER, 0);
        self.count = 0;
    }

    /// At which of its bytes the next record begins.
    pub(super) fn end(&self) -> usize {
        self.bytes.len()
    }

    /// Number of records.
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Appends a record.
    pub(super) fn put(&mut self, record: Record<'_>) {
        self.bytes.extend_from_slice(record.bytes);
        self.count += 1;
    }

    /// Appends an operation.
    pub(super) fn push(&mut self, op: &Op<'_>) {
        self.count += u32::from(op::put_record(&mut self.bytes, op));
    }

    /// The records up to one of its bytes.
    pub(super) fn records(&self, end: usize) -> Records<'_> {
        Records::new(&self.bytes[HEADER..end])
    }

    /// Bytes that it will have.
    pub(super) fn len(&self) -> u64 {
        (self.bytes.len() + MARK.len()).next_multiple_of(ALIGN) as u64
    }

    /// Completes the frame for its position; no record can be added after that.
    pub(super) fn seal(&mut self, header: &Header, sequence: u64, at: u64) -> &[u8] {
        let (records, end) = (self.bytes.len(), self.len() as usize);
        op::seal_records(&mut self.bytes[HEADER..], header.record_salt());
        self.bytes.resize(end - MARK.len(), 0);
        self.bytes.extend_from_slice(&MARK);
        let checksum = crc32fast::hash(&self.bytes[HEADER..]);
        self.bytes[..4].copy_from_slice(&MAGIC);
        self.bytes[4..12].copy_from_slice(&sequence.to_le_bytes());
        self.bytes[12..16].copy_from_slice(&((records - HEADER) as u32).to_le_bytes());
        self.bytes[16..20].copy_from_slice(&self.count.to_le_bytes());
        let empty = empty_sectors(&self.bytes, at);
        self.bytes[20..24].copy_from_slice(&empty.to_le_bytes());
        self.bytes[24..28].copy_from_slice(&checksum.to_le_bytes());
        let checksum = header.checksum(at, &self.bytes[..HEADER - 4]);
        self.bytes[28..HEADER].copy_from_slice(&checksum.to_le_bytes());
        &self.bytes
    }
}

/// A frame that is read. Its header is as it was written; the rest may be damaged
/// or missing.
#[derive(Debug, Clone, Copy)]
pub(super) struct Frame<'a> {
    pub(super) sequence: u64,
    /// Bytes up to the next frame.
    pub(super) len: usize,
    /// Those that are there of its records.
    pub(super) records: &'a [u8],
    /// Whether all is as it was written.
    pub(super) is_intact: bool,
}

/// The frame whose first bytes these are, at byte `at` of the segment.
pub(super) fn parse<'a>(header: &Header, bytes: &'a [u8], at: usize) -> Option<Frame<'a>> {
    let (records, len, sequence) = measure(header, bytes, at)?;
    let whole = bytes.get(..len);
    Some(Frame {
        sequence,
        len,
        records: &bytes[HEADER..bytes.len().min(HEADER + records)],
        is_intact: whole.is_some_and(|it| u32_at(it, 24) == Some(crc32fast::hash(&it[HEADER..]))),
    })
}

/// Bytes of the frame whose header these are the first of, at byte `at` of the
/// segment.
pub(super) fn len(header: &Header, bytes: &[u8], at: usize) -> Option<usize> {
    let (_, len, _) = measure(header, bytes, at)?;
    Some(len)
}

/// Number and length of the commit that seems to begin with these bytes, of a segment of
/// which nothing is known.
pub(super) fn claim(bytes: &[u8]) -> Option<(u64, usize)> {
    let head = bytes.first_chunk::<HEADER>()?;
    let records = u32_at(head, 12)? as usize;
    let sequence = u64::from_le_bytes(*head[4..].first_chunk()?);
    let len = (HEADER + records + MARK.len()).next_multiple_of(ALIGN);
    head.starts_with(&MAGIC).then_some((sequence, len))
}

/// Bytes of the records, and of all; number of the commit.
fn measure(header: &Header, bytes: &[u8], at: usize) -> Option<(usize, usize, u64)> {
    let head = bytes.first_chunk::<HEADER>()?;
    let is_header = head.starts_with(&MAGIC)
        && u32_at(head, 28)? == header.checksum(at as u64, &head[..HEADER - 4]);
    if !is_header {
        return None;
    }
    let records = u32_at(head, 12)? as usize;
    let len = (HEADER + records + MARK.len()).next_multiple_of(ALIGN);
    let sequence = u64::from_le_bytes(*head[4..].first_chunk()?);
    Some((records, len, sequence))
}

/// Whether the last bytes of a segment were never fully written, rather than changed
/// later.
pub(super) fn is_torn(header: &Header, bytes: &[u8], at: usize) -> bool {
    let head = &bytes[..bytes.len().min(HEADER)];
    match measure(header, bytes, at) {
        Some((_, len, _)) => bytes.get(..len).is_some_and(|frame| {
            let stated = u32_at(frame, 20).unwrap_or(0);
            frame.last() == Some(&0) || empty_sectors(frame, at as u64) > stated
        }),
        // No change of a few bits takes away the checksum, or all but that.
        None => {
            let (fields, checksum) = head.split_at(head.len().min(HEADER - 4));
            is_zero(fields) || is_zero(checksum)
        }
    }
}

/// Whether these bytes are the padding after the last record of a frame.
pub(super) fn is_padding(bytes: &[u8]) -> bool {
    let zeros = bytes.strip_suffix(&MARK);
    zeros.is_some_and(|zeros| zeros.len() < ALIGN && is_zero(zeros))
}

/// Of the sectors that are wholly in the frame.
fn empty_sectors(frame: &[u8], at: u64) -> u32 {
    let before = (at as usize).next_multiple_of(SECTOR) - at as usize;
    let sectors = frame.get(before..).unwrap_or_default().chunks_exact(SECTOR);
    sectors.filter(|sector| is_zero(sector)).count() as u32
}

pub(super) fn is_zero(bytes: &[u8]) -> bool {
    let (blocks, rest) = bytes.as_chunks::<64>();
    let is_zero = |bytes: &[u8]| bytes.iter().fold(0, |all, byte| all | byte) == 0;
    blocks.iter().all(|block| is_zero(block)) && is_zero(rest)
}
