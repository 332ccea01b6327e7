//! What the bytes of a segment are, and what can be read of damaged ones.
//!
//! A segment begins with its header, twice, in sectors of their own; then frames
//! follow without gaps, and then zeros. A frame is one commit: a header and
//! records. Checksums of headers depend on a number drawn for each segment, so
//! that a payload cannot pass for a frame.
//!
//! A header says where the segment before it ends. What is found there beyond
//! that end was never confirmed; what cannot be read before it is damaged.

use crate::Op;
use crate::op::{Record, Records};
use crate::store::Damage;

/// Version of this layout and of the operations in it. A segment is read as the
/// version says with which it was written; new ones have this version, so
/// giving back room carries a store from one version to the next.
pub(crate) const FORMAT: u32 = 1;

/// Bytes before the first frame.
pub(crate) const START: usize = 1024;
/// Bytes before the records of a frame.
pub(crate) const FRAME_HEADER: usize = 24;

const MAGIC: [u8; 8] = *b"pnctstor";
const FRAME_MAGIC: [u8; 4] = [0xF5, b'p', b'c', 0x0A];
/// The second copy of the header.
const COPY: usize = 512;
const HEADER: usize = 40;

/// Header of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) segment: u32,
    pub(crate) salt: u64,
    /// The segment before it, and where that ends; zeros if there is none.
    pub(crate) previous: u32,
    pub(crate) previous_end: u64,
}

/// What the first bytes of a segment are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opening {
    /// A header.
    Header(Header),
    /// Nothing has been written.
    Unused,
    /// Something else, or damaged.
    Unknown,
    /// A header of a later version.
    Newer(u32),
}

impl Header {
    /// Both copies, up to the first frame.
    pub(crate) fn encode(&self) -> [u8; START] {
        let mut out = [0; START];
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(&MAGIC);
        header[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        header[12..16].copy_from_slice(&self.segment.to_le_bytes());
        header[16..24].copy_from_slice(&self.salt.to_le_bytes());
        header[24..32].copy_from_slice(&self.previous_end.to_le_bytes());
        header[32..36].copy_from_slice(&self.previous.to_le_bytes());
        let checksum = crc32fast::hash(&header[..HEADER - 4]);
        header[HEADER - 4..].copy_from_slice(&checksum.to_le_bytes());
        out[..HEADER].copy_from_slice(&header);
        out[COPY..COPY + HEADER].copy_from_slice(&header);
        out
    }

    /// Reads the first bytes of a segment.
    pub(crate) fn read(bytes: &[u8]) -> Opening {
        let copies = [0, COPY].map(|at| bytes.get(at..at + HEADER).and_then(Self::copy));
        if let Some(opening) = copies.into_iter().flatten().next() {
            return opening;
        }
        let start = &bytes[..bytes.len().min(START)];
        match start.iter().all(|byte| *byte == 0) {
            true => Opening::Unused,
            false => Opening::Unknown,
        }
    }

    fn copy(bytes: &[u8]) -> Option<Opening> {
        let checksum = u32_at(bytes, HEADER - 4)?;
        if !bytes.starts_with(&MAGIC) || crc32fast::hash(&bytes[..HEADER - 4]) != checksum {
            return None;
        }
        Some(match u32_at(bytes, 8)? {
            FORMAT => Opening::Header(Self {
                segment: u32_at(bytes, 12)?,
                salt: u64_at(bytes, 16)?,
                previous_end: u64_at(bytes, 24)?,
                previous: u32_at(bytes, 32)?,
            }),
            newer => Opening::Newer(newer),
        })
    }

    fn frame_checksum(&self, bytes: &[u8]) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&self.salt.to_le_bytes());
        hasher.update(&self.segment.to_le_bytes());
        hasher.update(bytes);
        hasher.finalize()
    }

    /// Fills in the header of a frame in front of its records.
    pub(crate) fn seal(&self, sequence: u64, frame: &mut [u8], records: u32) {
        let len = (frame.len() - FRAME_HEADER) as u32;
        frame[..4].copy_from_slice(&FRAME_MAGIC);
        frame[4..12].copy_from_slice(&sequence.to_le_bytes());
        frame[12..16].copy_from_slice(&len.to_le_bytes());
        frame[16..20].copy_from_slice(&records.to_le_bytes());
        let checksum = self.frame_checksum(&frame[..20]);
        frame[20..24].copy_from_slice(&checksum.to_le_bytes());
    }

    /// The frame that begins with these bytes, if one does; its records may be
    /// damaged or cut off.
    fn frame<'a>(&self, bytes: &'a [u8]) -> Option<Frame<'a>> {
        if !bytes.starts_with(&FRAME_MAGIC) {
            return None;
        }
        let header = bytes.get(..FRAME_HEADER)?;
        if self.frame_checksum(&header[..20]) != u32_at(header, 20)? {
            return None;
        }
        let rest = &bytes[FRAME_HEADER..];
        let len = u32_at(header, 12)? as usize;
        Some(Frame {
            sequence: u64_at(header, 4)?,
            count: u32_at(header, 16)?,
            whole: rest.len() >= len,
            records: &rest[..len.min(rest.len())],
        })
    }
}

struct Frame<'a> {
    sequence: u64,
    count: u32,
    whole: bool,
    records: &'a [u8],
}

impl Frame<'_> {
    fn is_intact(&self) -> bool {
        let mut records = Records::new(self.records);
        let good = records.by_ref().take_while(|it| it.is_intact());
        self.whole && good.count() == self.count as usize && records.rest().is_empty()
    }
}

/// What is found in a segment, in its order.
pub(crate) enum Found<'a> {
    /// A commit begins.
    Commit(u64),
    /// The operation of a record that is as it was written.
    Record {
        op: Op<'a>,
        /// At which byte the record begins.
        offset: u64,
        /// Its bytes.
        len: u32,
    },
    /// Bytes that cannot be read.
    Damage(Damage),
}

impl<'a> Found<'a> {
    fn of(record: Record<'a>, op: Op<'a>, offset: usize) -> Self {
        Self::Record {
            op,
            offset: offset as u64,
            len: record.bytes.len() as u32,
        }
    }
}

/// Where reading a segment goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// At this byte.
    At(usize),
    /// Nowhere: so many bytes follow of a commit that was never confirmed.
    End(u64),
}

/// Reads what is at `at`: a frame, or what is left of one. `end` says that the
/// bytes are known to be all that was confirmed; otherwise what cannot be read
/// and has nothing after it that can be was never confirmed.
pub(crate) fn read(
    header: &Header,
    bytes: &[u8],
    at: usize,
    end: Option<u64>,
    found: &mut dyn FnMut(Found<'_>),
) -> Next {
    let known = end.map(|end| (end as usize).min(bytes.len()));
    let rest = bytes[..known.unwrap_or(bytes.len())].get(at..);
    let rest = rest.unwrap_or_default();
    let frame = header.frame(rest);
    if let Some(frame) = &frame
        && frame.is_intact()
    {
        found(Found::Commit(frame.sequence));
        let mut from = at + FRAME_HEADER;
        for record in Records::new(frame.records) {
            found(match record.op() {
                Ok(op) => Found::of(record, op, from),
                Err(error) => Found::Damage(Damage {
                    segment: header.segment,
                    offset: from as u64,
                    len: record.bytes.len() as u64,
                    what: error.to_string(),
                }),
            });
            from += record.bytes.len();
        }
        return Next::At(from);
    }
    let Some(written) = rest.iter().rposition(|byte| *byte != 0) else {
        if let Some(end) = end.filter(|end| *end > at as u64) {
            found(Found::Damage(Damage {
                segment: header.segment,
                offset: at as u64,
                len: end - at as u64,
                what: "nothing is there any more".into(),
            }));
        }
        return Next::End(0);
    };
    // Where reading can go on.
    let next = (1..rest.len()).find(|&next| header.frame(&rest[next..]).is_some());
    if next.is_none() && known.is_none() {
        return Next::End(written as u64 + 1);
    }
    let len = next.unwrap_or(rest.len());
    if let Some(frame) = &frame {
        found(Found::Commit(frame.sequence));
    }
    salvage(header.segment, at, &rest[..len], frame.is_some(), found);
    Next::At(at + len)
}

/// Reads the records of a damaged frame that are intact. They are never searched
/// for: a payload may look like one.
fn salvage(
    segment: u32,
    at: usize,
    bytes: &[u8],
    has_header: bool,
    found: &mut dyn FnMut(Found<'_>),
) {
    let mut damage = |offset: usize, len: usize, what: String| {
        found(Found::Damage(Damage {
            segment,
            offset: offset as u64,
            len: len as u64,
            what,
        }));
    };
    if !has_header {
        damage(
            at,
            bytes.len().min(FRAME_HEADER),
            "no commit begins here".into(),
        );
    }
    let mut from = at + FRAME_HEADER;
    let mut records = Records::new(bytes.get(FRAME_HEADER..).unwrap_or_default());
    let mut bad: Option<(usize, usize, String)> = None;
    let mut good = Vec::new();
    loop {
        let rest = records.rest().len();
        match records.next().map(|record| (record, record.checked())) {
            Some((record, Ok(op))) => {
                if let Some((offset, len, what)) = bad.take() {
                    damage(offset, len, what);
                }
                good.push(Found::of(record, op, from));
                from += record.bytes.len();
            }
            // Its length may be what is wrong: the next one will tell.
            Some((record, Err(error))) if bad.is_none() => {
                bad = Some((from, record.bytes.len(), error.to_string()));
                from += record.bytes.len();
            }
            None if bad.is_none() && rest == 0 => break,
            _ => {
                let (offset, what) = match bad {
                    Some((offset, _, what)) => (offset, what),
                    None => (from, "no record begins here".into()),
                };
                damage(offset, at + bytes.len() - offset, what);
                bad = None;
                break;
            }
        }
    }
    if let Some((offset, len, what)) = bad {
        damage(offset, len, what);
    }
    good.into_iter().for_each(found);
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}
