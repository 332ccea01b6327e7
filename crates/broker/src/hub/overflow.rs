//! Drops messages from full queues.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use punctual_codec::QoS;

use crate::Nanos;
use crate::base::delivery::Load;
use crate::base::handle::SessionHandle;
use crate::base::queue_full::QueueFull;
use crate::egress::{Class, Rank};
use crate::hub::{Event, Hub, Output};
use crate::index::target::Target;
use crate::journal::Journal;
use crate::overflow::{Losses, MOST_DROPPED, MOST_LOOKED_AT, REPORT_INTERVAL};
use crate::room::{Need, Shortage};
use crate::session::Session;

impl Hub {
    /// A session ends, or leaves this broker: removes it from the lists of full and lossy clients.
    pub(crate) fn forget_fullness(&self, session: &Session) {
        if session.is_full {
            self.directory.full_clients().remove(session.handle.number);
        }
        if let Some(losses) = &session.losses {
            let client_id = &session.handle.client_id;
            self.directory.forget_lossy(client_id, &losses.count);
        }
    }

    /// Whether a message is refused if a session has no room for it; `topic` is the policy of its
    /// topic, if there is one.
    #[inline]
    pub(crate) fn refuses(&self, handle: &SessionHandle, topic: Option<QueueFull>) -> bool {
        (self.may_refuse || handle.link) && self.config.queue_full_of(handle, topic).refuses()
    }

    /// Drops queued messages until a message has room in a session: those of the session, or of the
    /// session with the most bytes if all together exceed their bound. False if there is no room
    /// even then.
    #[cold]
    pub(crate) fn make_room(
        &mut self,
        target: &Target,
        (need, qos): (Need, QoS),
        rank: Rank,
        now: Nanos,
    ) -> bool {
        if !self.may_ever_fit(need) {
            return false;
        }
        let mut freed = 0;
        for _ in 0..MOST_DROPPED {
            let victim = match self.shortage(target, need) {
                None => return true,
                Some(Shortage::Session) => target.slot,
                // The total does not grow by this message.
                Some(Shortage::Total) if freed >= need.size => return true,
                Some(Shortage::Total) => self.fullest(target.slot),
            };
            let dropped = match self.drop_oldest(victim, (qos, rank), now) {
                None if victim != target.slot => self.drop_oldest(target.slot, (qos, rank), now),
                dropped => dropped,
            };
            let Some(bytes) = dropped else {
                return false;
            };
            freed += bytes;
        }
        self.shortage(target, need).is_none()
    }

    /// Drops the queued message of a session that is the first to be dropped for a message with
    /// that QoS and rank. Returns its size in bytes.
    fn drop_oldest(&mut self, slot: u32, (qos, rank): (QoS, Rank), now: Nanos) -> Option<usize> {
        let config = &self.config;
        let session = self.sessions.get_mut(slot)?;
        let handle = session.handle.clone();
        let has_rules = !config.queue_policies.topics.is_empty();
        let may_go = |topic: &str| {
            let said = config.queue_policies.of_topic(topic);
            !has_rules || !config.queue_full_of(&handle, said).refuses()
        };
        let oldest = session.queue.give_up((qos, rank), now, has_rules, may_go)?;
        session.share_queue_len();
        Journal::done(&mut self.journal, session, oldest.entry);
        self.work.offered += 1;
        let load = Load::of(&oldest.message);
        self.forget_queued(&load);
        self.note_dropped(slot, oldest.message.stamp.class(), now);
        Some(load.bytes)
    }

    /// Counts a message that a session loses because its queue is full.
    #[cold]
    pub(crate) fn note_dropped(&mut self, slot: u32, class: Class, now: Nanos) {
        self.stats.not_queued(class);
        let Some(session) = self.sessions.get_mut(slot) else {
            return;
        };
        let handle = session.handle.clone();
        let losses = session.losses.get_or_insert_with(|| {
            let losses = Box::<Losses>::default();
            if !handle.link {
                let directory = &self.directory;
                directory.note_lossy(&handle.client_id, &losses.count);
            }
            losses
        });
        losses.count.fetch_add(1, Ordering::Relaxed);
        self.report_full(&handle, false, now);
    }

    /// Reports a full queue, at most once in [`REPORT_INTERVAL`].
    pub(crate) fn report_full(&mut self, handle: &SessionHandle, refused: bool, now: Nanos) {
        if now >= self.queue_full_reported {
            self.queue_full_reported = now + REPORT_INTERVAL;
            self.outlets.outputs.push(Output::Event(Event::QueueFull {
                client_id: Arc::clone(&handle.client_id),
                queued: handle.queued.load(Ordering::Relaxed) as usize,
                refused,
            }));
        }
    }

    /// The session that has to make room when all sessions together exceed their bound: `own`, or
    /// one with more queued bytes.
    fn fullest(&mut self, own: u32) -> u32 {
        let bytes = |hub: &Self, slot| hub.sessions.get(slot).and_then(|it| hub.droppable(it));
        let least = bytes(self, own).unwrap_or(0);
        let is_true = |hub: &Self| bytes(hub, hub.fullest.slot).is_some_and(|it| it > least);
        if !is_true(self) {
            self.fullest.bytes = 0;
            let places = self.sessions.places();
            for _ in 0..MOST_LOOKED_AT.min(places) {
                let at = self.fullest.next % places.max(1);
                self.fullest.next = at + 1;
                if let Some(found) = bytes(self, at) {
                    self.fullest.see(at, found);
                }
            }
        }
        match is_true(self) {
            true => self.fullest.slot,
            false => own,
        }
    }

    /// Queued bytes of a session, if its policy allows dropping them for other sessions; `None`
    /// otherwise.
    fn droppable(&self, session: &Session) -> Option<usize> {
        let policy = self.config.queue_full_of(&session.handle, None);
        (policy == QueueFull::DropOldest).then(|| session.queue.bytes())
    }
}
