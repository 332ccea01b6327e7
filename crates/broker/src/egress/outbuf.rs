//! Bytes that wait to be written to one connection.
//!
//! Small packets are copied into one growing buffer; large payloads are kept by reference and
//! spliced in at their place, so that a payload with many receivers is stored once. An empty buffer
//! owns no memory: it borrows from a pool of the shard while it has bytes to send.
//!
//! The bytes appended between two calls of [`OutBuf::tail`] are a whole number of packets, so a
//! buffer knows the end of the packet that is sent in part, and other bytes can be sent in between.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::Bytes;

/// Payloads of at least this many bytes are shared, smaller ones copied.
pub(crate) const SHARE_FROM: usize = 8 << 10;
/// The sent front of the buffer is cut off once it is this long.
const COMPACT_FROM: usize = 256 << 10;
/// Buffers above this capacity in bytes are not pooled: the bytes read at once from a client, with
/// those added to them, fit in less.
const POOLED_CAPACITY: usize = 1 << 20;
/// Lanes that are pooled.
const POOLED_LANES: usize = 1024;
/// Bytes that the pool of one shard may hold.
const POOL_BYTES: usize = 8 << 20;

/// Reusable buffers of one shard.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
    #[expect(clippy::vec_box, reason = "they go to connections as boxes")]
    pub(super) lanes: Vec<Box<super::Lanes>>,
}

impl Pool {
    #[inline]
    fn take(&mut self) -> Vec<u8> {
        match self.buffers.pop() {
            Some(buffer) => {
                self.bytes -= buffer.capacity();
                buffer
            }
            None => Vec::with_capacity(1024),
        }
    }

    #[inline]
    fn give(&mut self, mut buffer: Vec<u8>) {
        let capacity = buffer.capacity();
        if capacity <= POOLED_CAPACITY && self.bytes + capacity <= POOL_BYTES {
            buffer.clear();
            self.bytes += capacity;
            self.buffers.push(buffer);
        }
    }
}

impl Pool {
    /// Returns a connection's lanes for the next connection that needs some.
    pub(super) fn give_lanes(&mut self, lanes: Box<super::Lanes>) {
        if self.lanes.len() < POOLED_LANES && lanes.is_small() {
            self.lanes.push(lanes);
        }
    }
}

/// A payload inserted before the byte of the buffer with that offset.
#[derive(Debug)]
struct Splice {
    /// Offset in the buffer, including the bytes cut off its front.
    at: usize,
    data: Bytes,
}

/// The payloads spliced into a buffer. Boxed, so that a connection without
/// them is small.
#[derive(Debug, Default)]
struct Splices {
    list: VecDeque<Splice>,
    bytes: usize,
    /// Bytes cut off the front of the buffer since the first splice.
    cut: usize,
}

/// Outgoing bytes of one connection.
#[derive(Debug, Default)]
pub(crate) struct OutBuf {
    buffer: Vec<u8>,
    /// Bytes of `buffer` already written.
    sent: usize,
    /// Offset in `buffer`, not after `sent`, where a packet starts; no payload
    /// that starts later was spliced in and written.
    mark: u32,
    /// Offset where a later packet starts; becomes `mark` once it is written.
    next_mark: u32,
    splices: Option<Box<Splices>>,
}

/// A place between two waiting packets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    offset: usize,
    splice: usize,
}

/// Length of the packet that starts with `bytes`, which hold its fixed header.
#[inline]
fn packet_len(bytes: &[u8]) -> usize {
    let (mut len, mut at) = (0, 1);
    while let Some(byte) = bytes.get(at) {
        len |= usize::from(byte & 0x7F) << (7 * (at - 1));
        at += 1;
        if byte & 0x80 == 0 {
            break;
        }
    }
    at + len
}

impl OutBuf {
    /// Number of waiting bytes.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.buffer.len() - self.sent + self.splices.as_ref().map_or(0, |s| s.bytes)
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.buffer.len() == self.sent && self.splices.as_ref().is_none_or(|s| s.bytes == 0)
    }

    /// The buffer to append whole packets to.
    #[inline(always)]
    pub(crate) fn tail(&mut self, pool: &mut Pool) -> &mut Vec<u8> {
        if self.next_mark as usize <= self.sent {
            self.prepare(pool);
        }
        &mut self.buffer
    }

    /// Takes memory from the pool if there is none; otherwise advances the marks and compacts a
    /// long buffer.
    #[inline(never)]
    fn prepare(&mut self, pool: &mut Pool) {
        if self.buffer.capacity() == 0 {
            self.buffer = pool.take();
            return;
        }
        self.mark = self.mark.max(self.next_mark);
        // A buffer is bounded by a gigabyte, and by twice that including bytes already sent.
        self.next_mark = self.buffer.len() as u32;
        let mark = self.mark as usize;
        if mark >= COMPACT_FROM && mark * 2 >= self.buffer.len() {
            self.compact();
        }
    }

    /// Appends `data` without copying it.
    pub(crate) fn splice(&mut self, data: Bytes) {
        if !data.is_empty() {
            let splices = self.splices.get_or_insert_default();
            splices.bytes += data.len();
            splices.list.push_back(Splice {
                at: splices.cut + self.buffer.len(),
                data,
            });
        }
    }

    /// Cuts off the packets before the mark.
    fn compact(&mut self) {
        let mark = self.mark as usize;
        self.buffer.drain(..mark);
        if let Some(splices) = &mut self.splices {
            splices.cut += mark;
        }
        self.sent -= mark;
        self.next_mark -= self.mark;
        self.mark = 0;
    }

    /// Number of bytes still to be written of the packet that was written in part.
    pub(crate) fn cut(&mut self) -> usize {
        if self.is_empty() {
            return 0;
        }
        let next = self.splices.as_ref().and_then(|splices| {
            let splice = splices.list.front()?;
            Some((splice.at - splices.cut, splice.data.len()))
        });
        if let Some((at, len)) = next
            && at == self.sent
        {
            return len;
        }
        let mut mark = self.mark as usize;
        while mark < self.sent {
            let total = packet_len(&self.buffer[mark..]);
            let (here, spliced) = match next {
                Some((at, len)) if at < mark + total => (at - mark, len),
                _ => (total, 0),
            };
            if mark + here > self.sent {
                return mark + here - self.sent + spliced;
            }
            mark += here;
            self.mark = mark as u32;
            self.next_mark = self.next_mark.max(self.mark);
        }
        0
    }

    /// The place `skip` bytes ahead, where a packet starts: behind the packet that was written in
    /// part, or behind packets without spliced payloads.
    pub(crate) fn place(&self, skip: usize) -> Place {
        let mut place = Place {
            offset: self.sent,
            splice: 0,
        };
        let mut left = skip;
        if let Some(splices) = &self.splices {
            for splice in &splices.list {
                let before = splice.at - splices.cut - place.offset;
                if left < before + splice.data.len() {
                    break;
                }
                left -= before + splice.data.len();
                place.offset += before;
                place.splice += 1;
            }
        }
        place.offset += left;
        place
    }

    /// Length of the packet at `place`, which moves behind it; `None` at the
    /// end.
    #[inline]
    pub(crate) fn next_packet(&self, place: &mut Place) -> Option<usize> {
        let total = packet_len(self.buffer.get(place.offset..).filter(|b| !b.is_empty())?);
        let splice = self.splices.as_ref().and_then(|splices| {
            let splice = splices.list.get(place.splice)?;
            Some(splice.at - splices.cut)
        });
        match splice {
            Some(at) if at < place.offset + total => {
                place.offset = at;
                place.splice += 1;
            }
            _ => place.offset += total,
        }
        Some(total)
    }

    /// All waiting bytes, if they are contiguous.
    #[inline]
    pub(crate) fn in_a_row(&self) -> Option<&[u8]> {
        let spliced = self.splices.as_ref().is_some_and(|s| s.bytes > 0);
        (!spliced).then(|| &self.buffer[self.sent..])
    }

    /// The slices with the first `limit` bytes after the first `skip` waiting bytes, as many as
    /// `slices` holds; returns how many were filled in.
    pub(crate) fn slices<'a>(
        &'a self,
        skip: usize,
        limit: usize,
        slices: &mut [IoSlice<'a>],
    ) -> usize {
        let (mut filled, mut skip, mut left) = (0, skip, limit);
        let mut from = self.sent;
        let mut push = |data: &'a [u8]| {
            let start = skip.min(data.len());
            skip -= start;
            let data = &data[start..];
            let data = &data[..left.min(data.len())];
            if data.is_empty() {
                return left > 0;
            }
            match slices.get_mut(filled) {
                Some(slice) => {
                    *slice = IoSlice::new(data);
                    filled += 1;
                    left -= data.len();
                    true
                }
                None => false,
            }
        };
        if let Some(splices) = &self.splices {
            for splice in &splices.list {
                let at = splice.at - splices.cut;
                if !push(&self.buffer[from..at]) || !push(&splice.data) {
                    return filled;
                }
                from = at;
            }
        }
        push(&self.buffer[from..]);
        filled
    }

    /// Forgets all but the first `keep` bytes, which belong to one packet.
    pub(super) fn keep_front(&mut self, keep: usize, pool: &mut Pool) {
        if keep == 0 {
            return self.release(pool);
        }
        let mut end = self.sent + keep;
        if let Some(splices) = &mut self.splices {
            let first = splices.list.front();
            let mine = first.is_some_and(|splice| splice.at - splices.cut < end);
            splices.list.truncate(usize::from(mine));
            splices.bytes = 0;
            if let Some(splice) = splices.list.front() {
                splices.bytes = splice.data.len();
                end = splice.at - splices.cut;
            }
        }
        self.buffer.truncate(end);
        self.next_mark = self.next_mark.min(end as u32);
    }

    /// Notes that the first `n` bytes were written.
    pub(crate) fn advance(&mut self, mut n: usize, pool: &mut Pool) {
        if let Some(splices) = &mut self.splices {
            while let Some(splice) = splices.list.front_mut() {
                let before = splice.at - splices.cut - self.sent;
                if n < before {
                    break;
                }
                self.sent += before;
                n -= before;
                if n < splice.data.len() {
                    let _ = splice.data.split_to(n);
                    splices.bytes -= n;
                    return;
                }
                n -= splice.data.len();
                splices.bytes -= splice.data.len();
                splices.list.pop_front();
                // A payload ends its packet.
                self.mark = self.sent as u32;
                self.next_mark = self.next_mark.max(self.mark);
            }
        }
        self.sent = (self.sent + n).min(self.buffer.len());
        if self.is_empty() {
            self.release(pool);
        }
    }

    /// Drops all bytes and returns the memory to the pool.
    pub(crate) fn release(&mut self, pool: &mut Pool) {
        if self.buffer.capacity() > 0 {
            pool.give(std::mem::take(&mut self.buffer));
        }
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn content(out: &OutBuf) -> Vec<u8> {
        let mut slices = [IoSlice::new(&[]); 64];
        let filled = out.slices(0, usize::MAX, &mut slices);
        slices[..filled].iter().flat_map(|s| s.to_vec()).collect()
    }

    /// A packet with that many bytes of payload, the last `spliced` of them to
    /// be spliced in.
    fn packet(next: &mut u8, payload: usize, spliced: usize) -> (Vec<u8>, Vec<u8>) {
        let mut head = vec![0x30];
        punctual_codec::put_varint(&mut head, payload);
        let mut body: Vec<u8> = (0..payload)
            .map(|_| {
                *next = next.wrapping_add(1);
                *next
            })
            .collect();
        let tail = body.split_off(payload - spliced.min(payload));
        head.extend(body);
        (head, tail)
    }

    proptest! {
        /// Whatever is appended, spliced and taken, the bytes stay in order,
        /// and the ends of packets are known.
        #[test]
        fn is_a_fifo_of_packets(
            steps in proptest::collection::vec((0..4u8, 1..5000usize, 1..5000usize), 0..80),
            asks in any::<u64>(),
        ) {
            let mut pool = Pool::default();
            let mut out = OutBuf::default();
            let mut model: VecDeque<u8> = VecDeque::new();
            // Missing bytes of the packets that are not sent completely.
            let mut packets: VecDeque<usize> = VecDeque::new();
            let mut whole = true;
            let mut next = 0u8;
            for (at, (kind, n, m)) in steps.into_iter().enumerate() {
                match kind {
                    0 | 1 => {
                        let spliced = if kind == 1 { m } else { 0 };
                        let (head, tail) = packet(&mut next, n, spliced);
                        out.tail(&mut pool).extend_from_slice(&head);
                        model.extend(&head);
                        model.extend(&tail);
                        packets.push_back(head.len() + tail.len());
                        out.splice(tail.into());
                    }
                    _ => {
                        if kind == 3 && out.mark > 1000 {
                            out.compact();
                        }
                        let mut n = n.min(out.len());
                        out.advance(n, &mut pool);
                        model.drain(..n);
                        while let Some(first) = packets.front_mut() && n > 0 {
                            if n >= *first {
                                n -= *first;
                                whole = true;
                                packets.pop_front();
                            } else {
                                *first -= n;
                                whole = false;
                                n = 0;
                            }
                        }
                    }
                }
                prop_assert_eq!(out.len(), model.len());
                prop_assert_eq!(out.is_empty(), model.is_empty());
                let content = content(&out);
                prop_assert!(model.iter().take(content.len()).eq(content.iter()));
                prop_assert_eq!(content.is_empty(), model.is_empty());
                if asks >> (at % 64) & 1 == 0 {
                    continue;
                }
                let cut = if whole { 0 } else { packets.front().copied().unwrap_or(0) };
                prop_assert_eq!(out.cut(), cut);
                let mut place = out.place(cut);
                for len in packets.iter().skip(usize::from(!whole)) {
                    prop_assert_eq!(out.next_packet(&mut place), Some(*len));
                }
                prop_assert_eq!(out.next_packet(&mut place), None);
                let (skip, limit) = (model.len() / 3, model.len() / 2);
                let mut slices = [IoSlice::new(&[]); 64];
                let filled = out.slices(skip, limit, &mut slices);
                let part: Vec<u8> = slices[..filled].iter().flat_map(|s| s.to_vec()).collect();
                prop_assert!(model.iter().skip(skip).take(part.len()).eq(part.iter()));
                prop_assert!(part.len() == limit || filled == 64);
                if at % 5 == 0 && cut > 0 {
                    out.keep_front(cut, &mut pool);
                    model.truncate(cut);
                    packets.truncate(1);
                    prop_assert_eq!(out.len(), cut);
                }
            }
        }
    }
}
