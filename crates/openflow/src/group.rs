//! Groups: what many entries share, copies for many receivers, paths around dead ports.
//!
//! Source: OpenFlow 1.3.5, section 7.3.4.2.

use crate::action::Action;
use crate::wire::{Reader, Result, Wire, codes, layout, sized};
use crate::{DecodeError, GroupId, PortNo};

layout! {
    /// Adds, changes or deletes a group.
    pub struct GroupMod {
        /// What to do.
        pub command: GroupCommand,
        /// How buckets are chosen.
        pub kind: GroupType [1],
        /// Which group; [`GroupId::ALL`] only to delete.
        pub group: GroupId,
        /// What it does.
        pub buckets: Vec<Bucket>,
    }
}

impl GroupMod {
    /// Adds a group.
    pub fn add(kind: GroupType, group: GroupId, buckets: Vec<Bucket>) -> Self {
        Self {
            command: GroupCommand::Add,
            kind,
            group,
            buckets,
        }
    }

    /// Deletes a group, or all of them, and the entries that lead there.
    pub fn delete(group: GroupId) -> Self {
        Self {
            command: GroupCommand::Delete,
            kind: GroupType::All,
            group,
            buckets: Vec::new(),
        }
    }
}

codes! {
    /// What a group-mod does.
    pub enum GroupCommand: u16 else GroupCommand {
        /// Adds a group that is not there.
        Add = 0,
        /// Replaces type and buckets of one that is there.
        Modify = 1,
        /// Deletes.
        Delete = 2,
    }
}

codes! {
    /// How a group chooses buckets for a packet.
    pub enum GroupType: u8 else GroupType {
        /// All: each gets a copy.
        All = 0,
        /// One, by weight and the packet's headers.
        Select = 1,
        /// The only one there is.
        Indirect = 2,
        /// The first that is alive.
        FastFailover = 3,
    }
}

/// Actions of a group for one copy of a packet.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Bucket {
    /// Share of the packets; only in [`GroupType::Select`], 0 elsewhere.
    pub weight: u16,
    /// It is alive only while this port is up, or [`PortNo::ANY`].
    pub watch_port: PortNo,
    /// It is alive only while this group has a live bucket, or [`GroupId::ANY`].
    pub watch_group: GroupId,
    /// What happens to the copy.
    pub actions: Vec<Action>,
}

impl Bucket {
    /// For groups of type all and indirect.
    pub fn new(actions: Vec<Action>) -> Self {
        Self {
            weight: 0,
            watch_port: PortNo::ANY,
            watch_group: GroupId::ANY,
            actions,
        }
    }

    /// For fast failover: alive while `port` is up.
    pub fn watching(port: PortNo, actions: Vec<Action>) -> Self {
        Self {
            watch_port: port,
            ..Self::new(actions)
        }
    }

    /// For groups of type select.
    pub fn weighted(weight: u16, actions: Vec<Action>) -> Self {
        Self {
            weight,
            ..Self::new(actions)
        }
    }
}

impl Wire for Bucket {
    fn put(&self, out: &mut Vec<u8>) {
        sized(out, 0, |out| {
            0_u16.put(out);
            self.weight.put(out);
            self.watch_port.put(out);
            self.watch_group.put(out);
            0_u32.put(out);
            self.actions.put(out);
        });
    }

    fn get(from: &mut Reader<'_>) -> Result<Self> {
        let length: u16 = from.get()?;
        let body = usize::from(length)
            .checked_sub(2)
            .filter(|_| length.is_multiple_of(8))
            .ok_or(DecodeError::Length("bucket"))?;
        let mut body = from.part(body, "bucket")?;
        let (weight, watch_port, watch_group) = (body.get()?, body.get()?, body.get()?);
        body.skip(4)?;
        Ok(Self {
            weight,
            watch_port,
            watch_group,
            actions: body.get()?,
        })
    }
}
