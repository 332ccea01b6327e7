//! Flow entries: changes to them, and what is said when they go.
//!
//! Source: OpenFlow 1.3.5, sections 7.3.4.1 and 7.4.2.

use punctual_model::Nanos;

use crate::action::{Action, Instruction};
use crate::matching::Match;
use crate::wire::{bits, codes, layout};
use crate::{BufferId, Cookie, GroupId, PortNo, TableId};

layout! {
    /// Adds, changes or deletes flow entries.
    pub struct FlowMod {
        /// Mark of the entry; in a modify or delete, what the mark of entries must be where the
        /// mask counts.
        pub cookie: Cookie,
        /// Which bits of the mark entries must have; 0 for all entries. Ignored by an add.
        pub cookie_mask: u64,
        /// Which table; [`TableId::ALL`] only to delete.
        pub table: TableId,
        /// What to do.
        pub command: FlowCommand,
        /// Seconds without a packet after which it goes; 0: never.
        pub idle_timeout: u16,
        /// Seconds after which it goes; 0: never.
        pub hard_timeout: u16,
        /// The highest that matches decides.
        pub priority: u16,
        /// A kept packet to send through the entry.
        pub buffer: BufferId,
        /// Delete only entries with an output there, or [`PortNo::ANY`].
        pub out_port: PortNo,
        /// Delete only entries that lead to this group, or [`GroupId::ANY`].
        pub out_group: GroupId,
        /// Options.
        pub flags: FlowFlags [2],
        /// Which packets.
        pub matching: Match,
        /// What happens to them.
        pub instructions: Vec<Instruction>,
    }
}

impl FlowMod {
    /// Adds an entry: no timeouts, no cookie, no flags.
    pub fn add(
        table: TableId,
        priority: u16,
        matching: Match,
        instructions: Vec<Instruction>,
    ) -> Self {
        Self {
            cookie: Cookie(0),
            cookie_mask: 0,
            table,
            command: FlowCommand::Add,
            idle_timeout: 0,
            hard_timeout: 0,
            priority,
            buffer: BufferId::NONE,
            out_port: PortNo::ANY,
            out_group: GroupId::ANY,
            flags: FlowFlags::empty(),
            matching,
            instructions,
        }
    }

    /// Deletes all entries of a table (or of [`TableId::ALL`]) that match no more than `matching`
    /// does.
    pub fn delete(table: TableId, matching: Match) -> Self {
        Self {
            command: FlowCommand::Delete,
            ..Self::add(table, 0, matching, Vec::new())
        }
    }

    /// Deletes the one entry with this priority and match.
    pub fn delete_strict(table: TableId, priority: u16, matching: Match) -> Self {
        Self {
            command: FlowCommand::DeleteStrict,
            ..Self::add(table, priority, matching, Vec::new())
        }
    }

    /// The same with a cookie.
    #[must_use]
    pub fn with_cookie(self, cookie: Cookie) -> Self {
        Self { cookie, ..self }
    }
}

codes! {
    /// What a flow-mod does.
    pub enum FlowCommand: u8 else FlowCommand {
        /// Adds an entry, in place of one with the same match and priority.
        Add = 0,
        /// Changes instructions of all entries inside the match.
        Modify = 1,
        /// Changes instructions of the entry with this match and priority.
        ModifyStrict = 2,
        /// Deletes all entries inside the match.
        Delete = 3,
        /// Deletes the entry with this match and priority.
        DeleteStrict = 4,
    }
}

bits! {
    /// Options of a flow entry.
    pub struct FlowFlags: u16 {
        /// Say when the entry goes.
        const SEND_FLOW_REMOVED = 1;
        /// Refuse if an entry of the same priority may match the same packet.
        const CHECK_OVERLAP = 1 << 1;
        /// Start its counters at 0 (modify).
        const RESET_COUNTS = 1 << 2;
        /// Do not count packets.
        const NO_PACKET_COUNTS = 1 << 3;
        /// Do not count bytes.
        const NO_BYTE_COUNTS = 1 << 4;
    }
}

layout! {
    /// A time that passed, as two numbers.
    #[derive(Copy, Hash, Default, PartialOrd, Ord)]
    pub struct Elapsed {
        /// Whole seconds.
        pub seconds: u32,
        /// Nanoseconds beyond them.
        pub nanos: u32,
    }
}

impl From<Nanos> for Elapsed {
    /// Saturates after 136 years.
    fn from(time: Nanos) -> Self {
        Self {
            seconds: u32::try_from(time.as_secs()).unwrap_or(u32::MAX),
            nanos: (time.0 % 1_000_000_000) as u32,
        }
    }
}

impl From<Elapsed> for Nanos {
    fn from(time: Elapsed) -> Self {
        Self::from_secs(time.seconds.into()) + Self(time.nanos.into())
    }
}

layout! {
    /// An entry is gone.
    pub struct FlowRemoved {
        /// Its mark.
        pub cookie: Cookie,
        /// Its priority.
        pub priority: u16,
        /// Why.
        pub reason: FlowRemovedReason,
        /// From which table.
        pub table: TableId,
        /// How long it was there.
        pub duration: Elapsed,
        /// Its idle timeout in seconds.
        pub idle_timeout: u16,
        /// Its hard timeout in seconds.
        pub hard_timeout: u16,
        /// Packets it matched.
        pub packets: u64,
        /// Their bytes.
        pub bytes: u64,
        /// Which packets it was for.
        pub matching: Match,
    }
}

codes! {
    /// Why an entry went.
    pub enum FlowRemovedReason: u8 else Reason {
        /// No packet for too long.
        IdleTimeout = 0,
        /// Its time was over.
        HardTimeout = 1,
        /// A controller deleted it.
        Delete = 2,
        /// Its group was deleted.
        GroupDelete = 3,
    }
}

/// Instructions of the simplest entry: these actions at once.
pub fn apply(actions: impl IntoIterator<Item = Action>) -> Vec<Instruction> {
    vec![Instruction::ApplyActions(actions.into_iter().collect())]
}
