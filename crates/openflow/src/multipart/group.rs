//! Answers about groups.

use crate::flow::Elapsed;
use crate::group::{Bucket, GroupType};
use crate::wire::{Reader, Result, Wire, bits, layout, sized};
use crate::{DecodeError, GroupId};

/// Counters of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupStats {
    /// Which.
    pub group: GroupId,
    /// Entries and groups that lead to it.
    pub references: u32,
    /// Packets that came to it.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How long it is there.
    pub duration: Elapsed,
    /// Counters of its buckets.
    pub buckets: Vec<BucketStats>,
}

layout! {
    /// Counters of a bucket.
    #[derive(Copy)]
    pub struct BucketStats {
        /// Packets it got.
        pub packets: u64,
        /// Their bytes.
        pub bytes: u64,
    }
}

impl Wire for GroupStats {
    fn put(&self, out: &mut Vec<u8>) {
        sized(out, 0, |out| {
            0_u32.put(out);
            self.group.put(out);
            self.references.put(out);
            0_u32.put(out);
            self.packets.put(out);
            self.bytes.put(out);
            self.duration.put(out);
            self.buckets.put(out);
        });
    }

    fn get(from: &mut Reader<'_>) -> Result<Self> {
        let mut from = sized_part(from, "group's counters")?;
        from.skip(2)?;
        let (group, references) = (from.get()?, from.get()?);
        from.skip(4)?;
        Ok(Self {
            group,
            references,
            packets: from.get()?,
            bytes: from.get()?,
            duration: from.get()?,
            buckets: from.get()?,
        })
    }
}

/// What a group does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupDesc {
    /// How buckets are chosen.
    pub kind: GroupType,
    /// Which group.
    pub group: GroupId,
    /// Its buckets.
    pub buckets: Vec<Bucket>,
}

impl Wire for GroupDesc {
    fn put(&self, out: &mut Vec<u8>) {
        sized(out, 0, |out| {
            0_u16.put(out);
            self.kind.put(out);
            0_u8.put(out);
            self.group.put(out);
            self.buckets.put(out);
        });
    }

    fn get(from: &mut Reader<'_>) -> Result<Self> {
        let mut from = sized_part(from, "group")?;
        let kind = from.get()?;
        from.skip(1)?;
        Ok(Self {
            kind,
            group: from.get()?,
            buckets: from.get()?,
        })
    }
}

layout! {
    /// What groups can do; lists are by [`GroupType`].
    #[derive(Copy)]
    pub struct GroupFeatures {
        /// Bit n: groups of type n are supported.
        pub types: u32,
        /// Options.
        pub capabilities: GroupCapabilities,
        /// Groups at most.
        pub max_groups: [u32; 4],
        /// Bit n: actions of type n are supported.
        pub actions: [u32; 4],
    }
}

bits! {
    /// Options of groups.
    pub struct GroupCapabilities: u32 {
        /// Weights of buckets.
        const SELECT_WEIGHT = 1;
        /// Liveness of buckets in select groups.
        const SELECT_LIVENESS = 1 << 1;
        /// Groups may lead to groups.
        const CHAINING = 1 << 2;
        /// And are checked for loops.
        const CHAINING_CHECKS = 1 << 3;
    }
}

/// A part that begins with its own length, which is taken.
pub(super) fn sized_part<'a>(from: &mut Reader<'a>, what: &'static str) -> Result<Reader<'a>> {
    let length: u16 = from.get()?;
    let body = usize::from(length)
        .checked_sub(2)
        .ok_or(DecodeError::Length(what))?;
    from.part(body, what)
}
