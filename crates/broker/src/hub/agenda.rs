//! Work that is done in slices.

use crate::fanouts::FanOuts;
use crate::tasks::{Subject, Tasks};

/// Pending work of a shard, beside packets from connections.
#[derive(Debug, Default)]
pub(crate) struct Agenda {
    /// Work that continues with its next slice.
    pub(crate) tasks: Tasks,
    /// Whether a task is the next piece of work, even if timers are due.
    pub(crate) tasks_next: bool,
    /// The client and filter that the last slice of a task was for.
    pub(crate) worked_for: Subject,
    /// Messages in delivery to very many clients.
    pub(crate) fanouts: FanOuts,
    /// Units of work for offering messages to receivers, in all since the start.
    pub(crate) offered: u64,
    /// While a task assigns the rights of all sessions again: the slot of the next session.
    pub(crate) rights_from: Option<u32>,
    /// Whether a task is removing expired retained messages.
    pub(crate) expires: bool,
}
