//! Answers about flows, tables, ports, queues and the switch itself.

use crate::action::Instruction;
use crate::flow::{Elapsed, FlowFlags};
use crate::id::Text;
use crate::matching::Match;
use crate::wire::{Reader, Result, Wire, layout, sized};
use crate::{Cookie, DecodeError, GroupId, PortNo, QueueId, TableId};

layout! {
    /// Manufacturer of the switch.
    pub struct SwitchDesc {
        /// Manufacturer.
        pub manufacturer: Text<256>,
        /// Hardware.
        pub hardware: Text<256>,
        /// Software.
        pub software: Text<256>,
        /// Serial number.
        pub serial: Text<32>,
        /// For people.
        pub datapath: Text<256>,
    }
}

layout! {
    /// Which flow entries.
    pub struct FlowStatsRequest {
        /// In this table, or [`TableId::ALL`].
        pub table: TableId [3],
        /// With an output there, or [`PortNo::ANY`].
        pub out_port: PortNo,
        /// Leading to this group, or [`GroupId::ANY`].
        pub out_group: GroupId [4],
        /// With this mark, as far as the mask says.
        pub cookie: Cookie,
        /// Bits of the mark that count.
        pub cookie_mask: u64,
        /// Inside this match.
        pub matching: Match,
    }
}

impl FlowStatsRequest {
    /// All of them.
    pub fn all() -> Self {
        Self {
            table: TableId::ALL,
            out_port: PortNo::ANY,
            out_group: GroupId::ANY,
            cookie: Cookie(0),
            cookie_mask: 0,
            matching: Match::any(),
        }
    }
}

/// A flow entry and its counters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowStats {
    /// Its table.
    pub table: TableId,
    /// How long it is there.
    pub duration: Elapsed,
    /// Its priority.
    pub priority: u16,
    /// Its idle timeout in seconds.
    pub idle_timeout: u16,
    /// Its hard timeout in seconds.
    pub hard_timeout: u16,
    /// Its options.
    pub flags: FlowFlags,
    /// Its mark.
    pub cookie: Cookie,
    /// Packets it matched.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Which packets.
    pub matching: Match,
    /// What happens to them.
    pub instructions: Vec<Instruction>,
}

impl Wire for FlowStats {
    fn put(&self, out: &mut Vec<u8>) {
        sized(out, 0, |out| {
            0_u16.put(out);
            self.table.put(out);
            0_u8.put(out);
            self.duration.put(out);
            self.priority.put(out);
            self.idle_timeout.put(out);
            self.hard_timeout.put(out);
            self.flags.put(out);
            0_u32.put(out);
            self.cookie.put(out);
            self.packets.put(out);
            self.bytes.put(out);
            self.matching.put(out);
            self.instructions.put(out);
        });
    }

    fn get(from: &mut Reader<'_>) -> Result<Self> {
        let length: u16 = from.get()?;
        let body = usize::from(length)
            .checked_sub(2)
            .ok_or(DecodeError::Length("flow entry"))?;
        let mut from = from.part(body, "flow entry")?;
        let table = from.get()?;
        from.skip(1)?;
        let (duration, priority) = (from.get()?, from.get()?);
        let (idle_timeout, hard_timeout, flags) = (from.get()?, from.get()?, from.get()?);
        from.skip(4)?;
        Ok(Self {
            table,
            duration,
            priority,
            idle_timeout,
            hard_timeout,
            flags,
            cookie: from.get()?,
            packets: from.get()?,
            bytes: from.get()?,
            matching: from.get()?,
            instructions: from.get()?,
        })
    }
}

layout! {
    /// Sums over flow entries.
    #[derive(Copy)]
    pub struct AggregateStats {
        /// Packets they matched.
        pub packets: u64,
        /// Their bytes.
        pub bytes: u64,
        /// Number of entries.
        pub flows: u32 [4],
    }
}

layout! {
    /// A table and its counters.
    #[derive(Copy)]
    pub struct TableStats {
        /// Which.
        pub table: TableId [3],
        /// Entries in it.
        pub active: u32,
        /// Packets that came to it.
        pub lookups: u64,
        /// Packets for which there was an entry.
        pub matched: u64,
    }
}

layout! {
    /// Counters of a port; all ones where the switch does not count.
    #[derive(Copy)]
    pub struct PortStats {
        /// Which.
        pub port: PortNo [4],
        /// Packets received.
        pub rx_packets: u64,
        /// Packets sent.
        pub tx_packets: u64,
        /// Bytes received.
        pub rx_bytes: u64,
        /// Bytes sent.
        pub tx_bytes: u64,
        /// Received and dropped.
        pub rx_dropped: u64,
        /// Dropped instead of sent.
        pub tx_dropped: u64,
        /// Packets that were received with an error of any kind.
        pub rx_errors: u64,
        /// Errors in sending.
        pub tx_errors: u64,
        /// Misaligned frames.
        pub rx_frame_errors: u64,
        /// Overruns.
        pub rx_overruns: u64,
        /// Wrong checksums.
        pub rx_crc_errors: u64,
        /// Collisions.
        pub collisions: u64,
        /// How long the port is there.
        pub duration: Elapsed,
    }
}

layout! {
    /// Which queues.
    #[derive(Copy)]
    pub struct QueueStatsRequest {
        /// Of this port, or [`PortNo::ANY`].
        pub port: PortNo,
        /// This one, or [`QueueId::ALL`].
        pub queue: QueueId,
    }
}

layout! {
    /// Counters of a queue; all ones where the switch does not count.
    #[derive(Copy)]
    pub struct QueueStats {
        /// Its port.
        pub port: PortNo,
        /// Which.
        pub queue: QueueId,
        /// Bytes sent.
        pub tx_bytes: u64,
        /// Packets sent.
        pub tx_packets: u64,
        /// Packets dropped because it was full.
        pub tx_errors: u64,
        /// How long it is there.
        pub duration: Elapsed,
    }
}
