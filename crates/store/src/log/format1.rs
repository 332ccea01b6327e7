//! Frames of format 1, which are only read: a header of 24 bytes and records,
//! without gaps, and without a checksum of the records together.
//!
//! What is missing at the end of the last one cannot be told from what has
//! changed there: both count as never confirmed.

use super::frame::Frame;
use super::segment::{Header, u32_at, u64_at};
use crate::op::Records;

/// Bytes before the records.
pub(super) const HEADER: usize = 24;
pub(super) const MAGIC: [u8; 4] = [0xF5, b'p', b'c', 0x0A];

/// The frame whose first bytes these are.
pub(super) fn parse<'a>(header: &Header, bytes: &'a [u8]) -> Option<Frame<'a>> {
    let len = len(header, bytes)? - HEADER;
    let rest = &bytes[HEADER..];
    let records = &rest[..len.min(rest.len())];
    let mut each = Records::new(records);
    let intact = each.by_ref().take_while(|it| it.is_intact(0)).count();
    Some(Frame {
        sequence: u64_at(bytes, 4)?,
        header: HEADER,
        len: HEADER + len,
        records,
        is_intact: records.len() == len
            && intact == u32_at(bytes, 16)? as usize
            && each.rest().is_empty(),
    })
}

/// Bytes of the frame whose header these are the first of.
pub(super) fn len(header: &Header, bytes: &[u8]) -> Option<usize> {
    let fields = bytes.get(..HEADER)?.strip_prefix(&MAGIC);
    let checksum = header.checksum(None, &bytes[..HEADER - 4]);
    (fields.is_some() && u32_at(bytes, 20)? == checksum)
        .then_some(HEADER.checked_add(u32_at(bytes, 12)? as usize)?)
}
