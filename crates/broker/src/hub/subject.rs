//! The clients and filters that tasks work for.

use crate::hub::Hub;
use crate::tasks::{Subject, Task};

impl Hub {
    /// The client and filter that the next slice of a task is for.
    pub(crate) fn subject_of(&self, task: &Task) -> Subject {
        let session = |slot: u32| self.sessions.get(slot);
        let client = |slot: u32| Some(session(slot)?.handle.client_id.clone());
        match task {
            Task::Filters(request) => (client(request.session()), request.next_filter()),
            Task::Replay { slot, .. } => {
                let replay = session(*slot).and_then(|session| session.replays.first());
                (client(*slot), replay.map(|replay| replay.filter.clone()))
            }
            Task::Remains(remains) => (Some(remains.client_id()), None),
            Task::Tell { slot, .. } => (client(*slot), None),
            Task::Access
            | Task::Expire
            | Task::Alarms { .. }
            | Task::Sys
            | Task::Compact
            | Task::Discard(_)
            | Task::FanOut { .. } => (None, None),
        }
    }
}
