//! Work that is done in slices.

use crate::fanouts::FanOuts;
use crate::tasks::{Subject, Tasks};

/// What a shard has to do, beside what its connections send.
#[derive(Debug, Default)]
pub(crate) struct Agenda {
    /// Work that continues with its next slice.
    pub(crate) tasks: Tasks,
    /// The next piece of work is a task, even if timers are due.
    pub(crate) tasks_next: bool,
    /// Whom the last slice of a task was for.
    pub(crate) worked_for: Subject,
    /// Messages on their way to very many clients.
    pub(crate) fanouts: FanOuts,
    /// Units of work of offering messages to receivers, ever.
    pub(crate) offered: u64,
    /// While sessions are given their rights anew: the slot of the next one.
    pub(crate) rights_from: Option<u32>,
    /// A task removes retained messages that have expired.
    pub(crate) expires: bool,
}
