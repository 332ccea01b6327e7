//! Calls of a shard's transfer machine from its sessions.

use std::sync::Arc;

use punctual_mesh::transfer::{Event, HomeId, Mark, Sessions, Transfers};

use crate::Nanos;
use crate::hub::Hub;
use crate::mesh::custody::{Custody, Discarded, MAX_STORING, Snapshot, WAKE};
use crate::session::Window;
use crate::tasks::Task;
use crate::timers::Timer;

impl Hub {
    /// Another shard has answered a fence: arms the timer that performs the steps behind fences.
    pub(crate) fn wake_fenced(&mut self) {
        let custody = self.links.custody.as_ref();
        if custody.is_some_and(|it| !it.fenced.is_empty()) {
            self.wake_custody(Nanos(0));
        }
    }

    /// Whether the broker is in a mesh, so that sessions move. The first such call creates the
    /// transfer machine.
    pub(crate) fn has_custody(&mut self) -> bool {
        if self.links.custody.is_none()
            && let Some(federation) = self.directory.federation()
            && let Some(own) = HomeId::new(federation.name())
        {
            let shards = u64::from(self.directory.shards());
            // No two shards, nor two starts, freeze a session with the same number.
            let instance = federation.clock() * shards + u64::from(self.index);
            self.links.custody = Some(Box::new(Custody::new(
                own,
                instance,
                federation.transfer_times(),
                self.config.limits.max_queued_bytes,
            )));
        }
        self.links.custody.is_some()
    }

    /// Calls the machine, and queues its actions.
    pub(crate) fn with_machine<R>(
        &mut self,
        call: impl FnOnce(&mut Transfers, &dyn Sessions) -> R,
    ) -> Option<R> {
        let mut custody = self.links.custody.take()?;
        let result = call(&mut custody.machine, &Marks(self));
        custody.actions.extend(custody.machine.take_actions());
        self.links.custody = Some(custody);
        Some(result)
    }

    /// Queues an event for the machine.
    pub(crate) fn queue_custody_event(&mut self, client: &Arc<str>, event: Event, now: Nanos) {
        let Some(custody) = &mut self.links.custody else {
            return;
        };
        custody.events.push_back((client.clone(), event));
        self.wake_custody(now);
    }

    /// Arms the timer that handles queued events, unless they are being handled.
    pub(crate) fn wake_custody(&mut self, now: Nanos) {
        if let Some(custody) = &mut self.links.custody
            && !custody.is_busy
            && !std::mem::replace(&mut custody.is_armed, true)
        {
            self.timers.arm(now, Timer::Transfer { id: WAKE });
        }
    }

    /// Drops the messages of a snapshot.
    pub(crate) fn discard_snapshot(&mut self, snapshot: Snapshot) {
        self.forget_queued(&snapshot.load);
        self.discard(Discarded {
            sent: snapshot.sent,
            queue: snapshot.unsent,
            window: Window::default(),
        });
    }

    /// Frees messages in slices.
    pub(crate) fn discard(&mut self, messages: Discarded) {
        self.work.tasks.push(Task::Discard(Box::new(messages)));
    }

    /// A session ends. The machine is notified, unless it has ended the session itself.
    pub(crate) fn session_ends(&mut self, client: &Arc<str>, now: Nanos) {
        let Some(custody) = &mut self.links.custody else {
            return;
        };
        let frozen = custody.frozen.remove(client);
        let is_changing = custody.is_changing;
        if let Some(snapshot) = frozen.and_then(|it| it.snapshot) {
            self.discard_snapshot(snapshot);
        }
        if !is_changing {
            self.queue_custody_event(client, Event::Ended, now);
        }
    }

    /// A stub has queued a message, which is to be forwarded.
    pub(crate) fn stub_has_queued(&mut self, slot: u32, now: Nanos) {
        let journal = self.journal.as_mut();
        let ticket = journal.and_then(|it| {
            let ticket = it.settle();
            (!it.is_committed(ticket)).then_some(ticket)
        });
        let Some(custody) = &mut self.links.custody else {
            return;
        };
        custody.unsent.insert(slot);
        if let Some(ticket) = ticket {
            let storing = &mut custody.storing;
            let is_full = storing.len() >= MAX_STORING;
            match storing.back_mut() {
                Some(last) if last.0 == now => last.1 = ticket,
                // The messages of the last entry wait for the later commit, too.
                Some(last) if is_full => *last = (now, ticket),
                _ => storing.push_back((now, ticket)),
            }
        }
        self.wake_custody(now);
    }

    /// Notes that everything up to `ticket` is committed; whether stubs may have more to forward.
    pub(crate) fn note_stored(&mut self, ticket: u64) -> bool {
        let Some(custody) = &mut self.links.custody else {
            return false;
        };
        let before = custody.storing.len();
        while custody
            .storing
            .pop_front_if(|(_, it)| *it <= ticket)
            .is_some()
        {}
        custody.storing.len() < before && !custody.unsent.is_empty()
    }

    /// Whether messages that a stub queued at that time are committed.
    pub(crate) fn is_stored(&self, since: Nanos) -> bool {
        let storing = self
            .links
            .custody
            .as_ref()
            .and_then(|it| it.storing.front());
        storing.is_none_or(|(first, _)| since < *first)
    }

    /// Whether the client's session is frozen.
    pub(crate) fn is_frozen(&self, client: &Arc<str>) -> bool {
        let custody = self.links.custody.as_ref();
        custody.is_some_and(|it| it.frozen.contains_key(client))
    }

    /// Notifies the machine of its writes that are committed, and the federation of forwarded
    /// messages that are.
    pub(crate) fn custody_committed(&mut self, now: Nanos) {
        let journal = self.journal.as_ref();
        let is_committed = |ticket: u64| journal.is_none_or(|it| it.is_committed(ticket));
        let Some(custody) = &mut self.links.custody else {
            return;
        };
        let mut written = Vec::new();
        while let Some((_, client, number)) = custody
            .writes
            .pop_front_if(|(ticket, ..)| is_committed(*ticket))
        {
            written.push((client, number));
        }
        while let Some((_, number)) =
            (custody.forwarded).pop_front_if(|(ticket, _)| is_committed(*ticket))
        {
            if let Some(federation) = self.directory.federation() {
                federation.forwarded(number);
            }
        }
        for (client, number) in written {
            self.queue_custody_event(&client, Event::Written(number), now);
        }
    }
}

/// The sessions of a shard, as the machine sees them.
struct Marks<'a>(&'a Hub);

impl Sessions for Marks<'_> {
    fn mark(&self, client: &str) -> Option<Mark> {
        let slot = self.0.sessions.named(client)?;
        self.0.sessions.get(slot)?.mark().cloned()
    }
}
