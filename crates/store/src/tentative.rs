//! Operations of which some turn out to be needless before they are handed over.
//!
//! Invariant: the resulting batch has the operations that were pushed and not withdrawn,
//! in their order.

use crate::op::{Batch, Op, RECORD_HEADER};

/// In a record that was withdrawn at the place of its checksum, where those that are
/// not written yet have zeros.
const WITHDRAWN: [u8; 4] = [0xFF; 4];

/// A batch that grows, of which operations can still be withdrawn.
#[derive(Debug, Default)]
pub struct TentativeBatch {
    /// All operations, withdrawn ones included.
    all: Batch,
    /// Operations that were withdrawn, and bytes of their records.
    withdrawn: usize,
    withdrawn_bytes: usize,
}

impl TentativeBatch {
    /// Appends an operation; says where it is, for [`Self::withdraw`]. `None` if it
    /// is left out, see [`Batch::push`].
    pub fn push(&mut self, op: &Op<'_>) -> Option<usize> {
        let (place, before) = (self.all.bytes.len(), self.all.len);
        self.all.push(op);
        (self.all.len > before).then_some(place)
    }

    /// Withdraws an operation; returns the bytes of its record, or 0 if there is none at
    /// that position.
    pub fn withdraw(&mut self, place: usize) -> usize {
        let record = self.all.bytes.get_mut(place..);
        let Some(header) = record.and_then(<[u8]>::first_chunk_mut::<RECORD_HEADER>) else {
            return 0;
        };
        let Some((len, mark)) = header.split_first_chunk_mut::<4>() else {
            return 0;
        };
        if *mark == WITHDRAWN {
            return 0;
        }
        mark.copy_from_slice(&WITHDRAWN);
        let bytes = RECORD_HEADER + u32::from_le_bytes(*len) as usize;
        self.withdrawn += 1;
        self.withdrawn_bytes += bytes;
        bytes
    }

    /// Where the next operation will be.
    pub fn end(&self) -> usize {
        self.all.bytes.len()
    }

    /// Bytes of the operations that were not withdrawn.
    pub fn bytes(&self) -> usize {
        self.all.bytes.len() - self.withdrawn_bytes
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.all.len == self.withdrawn
    }

    /// Forgets everything and keeps the memory.
    pub fn clear(&mut self) {
        self.all.clear();
        (self.withdrawn, self.withdrawn_bytes) = (0, 0);
    }

    /// Bytes of memory that it has.
    pub fn capacity(&self) -> usize {
        self.all.bytes.capacity()
    }

    /// The batch without withdrawn operations.
    pub fn into_batch(self) -> Batch {
        let Batch { mut bytes, len } = self.all;
        if self.withdrawn == 0 {
            return Batch { bytes, len };
        }
        // Records from `kept` on stay, and go where there is room.
        let (mut from, mut kept, mut to) = (0, 0, 0);
        while let Some([a, b, c, d, mark @ ..]) = header_at(&bytes, from) {
            let end = from + RECORD_HEADER + u32::from_le_bytes([a, b, c, d]) as usize;
            if mark == WITHDRAWN {
                bytes.copy_within(kept..from, to);
                to += from - kept;
                kept = end;
            }
            from = end;
        }
        bytes.copy_within(kept.., to);
        to += bytes.len() - kept;
        bytes.truncate(to);
        Batch {
            bytes,
            len: len - self.withdrawn,
        }
    }

    /// The batch without withdrawn operations. For each of `more`, `put` appends
    /// operations at its position ([`Self::end`]); positions rise.
    pub fn into_batch_with<T>(
        self,
        more: impl IntoIterator<Item = (usize, T)>,
        mut put: impl FnMut(&mut Batch, T),
    ) -> Batch {
        let (mut batch, mut from) = (Batch::new(), 0);
        for (place, it) in more {
            self.copy(&mut from, place, &mut batch);
            put(&mut batch, it);
        }
        self.copy(&mut from, self.end(), &mut batch);
        batch
    }

    /// Appends the operations between two positions that were not withdrawn.
    fn copy(&self, from: &mut usize, to: usize, batch: &mut Batch) {
        while *from < to
            && let Some([a, b, c, d, mark @ ..]) = header_at(&self.all.bytes, *from)
        {
            let end = *from + RECORD_HEADER + u32::from_le_bytes([a, b, c, d]) as usize;
            if mark != WITHDRAWN {
                batch.bytes.extend_from_slice(&self.all.bytes[*from..end]);
                batch.len += 1;
            }
            *from = end;
        }
    }
}

fn header_at(bytes: &[u8], place: usize) -> Option<[u8; RECORD_HEADER]> {
    bytes.get(place..)?.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::arbitrary;

    proptest! {
        #[test]
        fn what_is_withdrawn_was_never_there(
            ops in proptest::collection::vec((arbitrary::owned(), any::<bool>()), 0..20),
            others in proptest::collection::vec((0usize..20, arbitrary::owned()), 0..5),
        ) {
            let mut tentative = TentativeBatch::default();
            let places: Vec<usize> = ops
                .iter()
                .map(|(op, _)| tentative.push(&op.op()).expect("it is short"))
                .collect();
            let left: Batch = ops
                .iter()
                .filter(|(_, stays)| *stays)
                .map(|(op, _)| op.op())
                .collect();
            for (place, _) in places.iter().zip(&ops).filter(|(_, (_, stays))| !stays) {
                prop_assert!(tentative.withdraw(*place) > RECORD_HEADER);
                prop_assert_eq!(tentative.withdraw(*place), 0);
            }
            prop_assert_eq!(tentative.bytes(), left.as_bytes().len());
            prop_assert_eq!(tentative.is_empty(), left.is_empty());
            // With others between them.
            let mut others = others;
            others.sort_by_key(|(at, _)| *at);
            let (mut all, mut before) = (Batch::new(), others.iter().peekable());
            for (at, (op, stays)) in ops.iter().enumerate() {
                while let Some((_, other)) = before.next_if(|(before, _)| *before <= at) {
                    all.push(&other.op());
                }
                if *stays {
                    all.push(&op.op());
                }
            }
            before.for_each(|(_, other)| all.push(&other.op()));
            let end = tentative.end();
            let more = others
                .iter()
                .map(|(at, other)| (places.get(*at).copied().unwrap_or(end), other));
            let copy = TentativeBatch {
                all: tentative.all.clone(),
                ..TentativeBatch::default()
            };
            let with = copy.into_batch_with(more, |batch, other| batch.push(&other.op()));
            prop_assert_eq!(with, all);
            prop_assert_eq!(tentative.into_batch(), left);
        }
    }
}
