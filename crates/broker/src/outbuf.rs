//! Bytes that wait to be written to one connection.
//!
//! Small packets are copied into one growing buffer; large payloads are kept
//! by reference and spliced in at their place, so that a payload with many
//! receivers is stored once. An empty buffer owns no memory: it borrows from a
//! pool of the shard while it has something to say.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::Bytes;

/// Payloads of at least this many bytes are shared, smaller ones copied.
pub(crate) const SHARE_FROM: usize = 8 << 10;
/// The sent front of the buffer is cut off once it is this long.
const COMPACT_FROM: usize = 256 << 10;
/// Buffers above this capacity are not pooled.
const POOLED_CAPACITY: usize = 512 << 10;
/// Bytes that the pool of one shard may hold.
const POOL_BYTES: usize = 8 << 20;

/// Reusable buffers of one shard.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
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

/// A payload inserted before the byte of the buffer with that offset.
#[derive(Debug)]
struct Splice {
    /// Offset in the buffer, with what was cut off its front.
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

/// The outgoing bytes of one connection.
#[derive(Debug, Default)]
pub(crate) struct OutBuf {
    buffer: Vec<u8>,
    /// Bytes of `buffer` already written.
    sent: usize,
    splices: Option<Box<Splices>>,
}

impl OutBuf {
    /// Bytes that wait.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.buffer.len() - self.sent + self.splices.as_ref().map_or(0, |s| s.bytes)
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.buffer.len() == self.sent && self.splices.as_ref().is_none_or(|s| s.bytes == 0)
    }

    /// The buffer to append whole packets to.
    #[inline]
    pub(crate) fn tail(&mut self, pool: &mut Pool) -> &mut Vec<u8> {
        if self.buffer.capacity() == 0 {
            self.buffer = pool.take();
        } else if self.sent >= COMPACT_FROM && self.sent * 2 >= self.buffer.len() {
            self.compact();
        }
        &mut self.buffer
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

    fn compact(&mut self) {
        self.buffer.drain(..self.sent);
        if let Some(splices) = &mut self.splices {
            splices.cut += self.sent;
        }
        self.sent = 0;
    }

    /// The first slices that wait, at most as many as `slices` holds; returns
    /// how many were filled in.
    pub(crate) fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut filled = 0;
        let mut from = self.sent;
        let mut push = |data: &'a [u8]| {
            if data.is_empty() {
                return true;
            }
            match slices.get_mut(filled) {
                Some(slice) => {
                    *slice = IoSlice::new(data);
                    filled += 1;
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
            }
        }
        self.sent = (self.sent + n).min(self.buffer.len());
        if self.is_empty() {
            self.release(pool);
        }
    }

    /// Drops everything and gives the memory back.
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
        let filled = out.slices(&mut slices);
        slices[..filled].iter().flat_map(|s| s.to_vec()).collect()
    }

    proptest! {
        /// Whatever is appended, spliced and taken, the bytes stay in order.
        #[test]
        fn is_a_fifo_of_bytes(
            steps in proptest::collection::vec((0..3u8, 1..5000usize), 0..60),
        ) {
            let mut pool = Pool::default();
            let mut out = OutBuf::default();
            let mut model: VecDeque<u8> = VecDeque::new();
            let mut next = 0u8;
            for (kind, n) in steps {
                let data: Vec<u8> = (0..n).map(|_| { next = next.wrapping_add(1); next }).collect();
                match kind {
                    0 => {
                        out.tail(&mut pool).extend_from_slice(&data);
                        model.extend(&data);
                    }
                    1 => {
                        out.splice(Bytes::copy_from_slice(&data));
                        model.extend(&data);
                    }
                    _ => {
                        if out.sent > 1000 {
                            out.compact();
                        }
                        let n = n.min(out.len());
                        out.advance(n, &mut pool);
                        model.drain(..n);
                    }
                }
                prop_assert_eq!(out.len(), model.len());
                prop_assert_eq!(out.is_empty(), model.is_empty());
                let content = content(&out);
                prop_assert!(model.iter().take(content.len()).eq(content.iter()));
                prop_assert_eq!(content.is_empty(), model.is_empty());
            }
        }
    }
}
