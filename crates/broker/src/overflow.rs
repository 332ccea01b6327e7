//! What becomes of a message whose receiver's queue is full.
//!
//! By default the receiver loses its oldest messages, which are counted, and nobody else notices:
//! neither the publisher nor other receivers. Where the policy is to refuse, the message is promised
//! room everywhere before anybody gets it ([`crate::room`]).
//!
//! Which policy counts for a message and a receiver: what is said of the session, else of the topic,
//! else of the listener by which the session's client came last, else for all. Queues of neighbour
//! brokers always refuse: behind them are many sessions, none of which is the slow one.
//!
//! Dropping costs O(1), O(log n) among urgent messages, and one message pushes out [`MOST_DROPPED`] at
//! most. In a session go first what is bulk, then what is normal, each the oldest first, then urgent
//! messages that are not more urgent than the new one: those whose deadline has passed, and then the
//! least urgent. What is in flight stays. What has QoS 0 pushes out nothing plain that is acknowledged,
//! and what must not be dropped because of its topic stays, too: the new message goes instead.
//!
//! Where all sessions together have too much, the session of the shard with the most bytes makes room.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use punctual_codec::QoS;

use crate::Nanos;
use crate::base::delivery::Load;
use crate::base::handle::SessionHandle;
use crate::base::queue_full::QueueFull;
use crate::config::Config;
use crate::egress::{Class, Rank};
use crate::hub::{Event, Hub, Output};
use crate::index::target::Target;
use crate::journal::Journal;
use crate::room::{Need, Shortage};
use crate::session::Session;

/// Messages that one message pushes out at most.
pub(crate) const MOST_DROPPED: usize = 256;
/// Sessions that are looked at for one with much in its queue.
const MOST_LOOKED_AT: u32 = 64;
/// Full queues are reported no more often.
const REPORT_INTERVAL: Nanos = Nanos::from_secs(10);

impl Config {
    /// Whether any publication may be refused because the queue of a client is full.
    #[inline]
    pub(crate) fn may_refuse(&self) -> bool {
        self.queue_full.refuses() || self.queue_policies.refuse()
    }

    /// What happens to a message for a receiver whose queue is full; `topic` is what is said of its
    /// topic.
    #[inline]
    pub(crate) fn queue_full_of(
        &self,
        handle: &SessionHandle,
        topic: Option<QueueFull>,
    ) -> QueueFull {
        if handle.link {
            return QueueFull::Refuse;
        }
        let said = handle.queue_full.load(Ordering::Relaxed);
        let session = QueueFull::of_bits(said >> 4);
        let listener = || QueueFull::of_bits(said);
        let first = session.or(topic).or_else(listener);
        first.unwrap_or(self.queue_full)
    }

    /// Notes what counts for a session whose client came by that listener.
    pub(crate) fn note_queue_full(&self, handle: &SessionHandle, listener: Option<u16>) {
        let said = self.queue_policies.of_session(&handle.client_id, listener);
        handle.queue_full.store(said, Ordering::Relaxed);
    }
}

/// How many messages a session has lost because its queue was full.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    count: Arc<AtomicU64>,
    /// Those of them that its client knows of.
    told: u64,
}

impl Losses {
    /// All, and those that its client does not know of.
    pub(crate) fn count(&self) -> [u64; 2] {
        let count = self.count.load(Ordering::Relaxed);
        [count, count - self.told]
    }

    /// Its client knows of so many.
    pub(crate) fn tell(&mut self, count: u64) {
        self.told = self.told.max(count);
    }
}

/// The session of a shard that had the most bytes in its queue when that was looked at, of those that
/// may be made to drop some.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Fullest {
    slot: u32,
    bytes: usize,
    /// Place of the session that is looked at next.
    next: u32,
}

impl Fullest {
    /// So many bytes wait in a session now.
    #[inline]
    pub(crate) fn see(&mut self, slot: u32, bytes: usize) {
        if bytes > self.bytes || slot == self.slot {
            (self.slot, self.bytes) = (slot, bytes);
        }
    }
}

impl Hub {
    /// A session ends, or leaves: neither its losses nor that its queue is full matters any more.
    pub(crate) fn forget_fullness(&self, session: &Session) {
        if session.is_full {
            self.directory.full_clients().remove(session.handle.number);
        }
        if let Some(losses) = &session.losses {
            let client_id = &session.handle.client_id;
            self.directory.forget_lossy(client_id, &losses.count);
        }
    }

    /// Whether a message is refused if a session has no room for it; `topic` is what is said of its
    /// topic.
    #[inline]
    pub(crate) fn refuses(&self, handle: &SessionHandle, topic: Option<QueueFull>) -> bool {
        (self.may_refuse || handle.link) && self.config.queue_full_of(handle, topic).refuses()
    }

    /// Drops what waits for a session until a message has room there. False if it has none even so.
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
                // All together have no more than before.
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

    /// Drops what is to go first of what waits for a session, before a message with that QoS and rank.
    /// Returns its size.
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
        self.offered += 1;
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

    /// Reports a full queue now and then.
    pub(crate) fn report_full(&mut self, handle: &SessionHandle, refused: bool, now: Nanos) {
        if now >= self.queue_full_reported {
            self.queue_full_reported = now + REPORT_INTERVAL;
            self.outputs.push(Output::Event(Event::QueueFull {
                client_id: Arc::clone(&handle.client_id),
                queued: handle.queued.load(Ordering::Relaxed) as usize,
                refused,
            }));
        }
    }

    /// The session that is to make room where all together have too much: that one, or one with more.
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

    /// How many bytes wait in a session, if it may be made to drop some for others.
    fn droppable(&self, session: &Session) -> Option<usize> {
        let policy = self.config.queue_full_of(&session.handle, None);
        (policy == QueueFull::DropOldest).then(|| session.queue.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Directory;
    use crate::base::queue_full::{QueuePolicies, SessionPolicy, TopicPolicy};

    #[test]
    fn the_policy_of_the_session_comes_first_then_topic_then_listener() {
        let directory = Directory::new(1);
        let config = Config {
            queue_policies: QueuePolicies {
                sessions: vec![
                    SessionPolicy {
                        client_id: "history".into(),
                        full: QueueFull::Refuse,
                    },
                    SessionPolicy {
                        client_id: "panel-*".into(),
                        full: QueueFull::DropNew,
                    },
                ],
                topics: vec![TopicPolicy {
                    filter: "order/#".into(),
                    full: QueueFull::Hold,
                }],
                listeners: vec![None, Some(QueueFull::Disconnect)],
            },
            ..Config::default()
        };
        assert!(config.may_refuse() && !Config::default().may_refuse());
        let full = |client: &str, listener, topic| {
            let handle = directory.handle(&Arc::from(client), 0, 0);
            config.note_queue_full(&handle, listener);
            config.queue_full_of(&handle, config.queue_policies.of_topic(topic))
        };
        assert_eq!(full("history", Some(1), "order/1"), QueueFull::Refuse);
        assert_eq!(full("panel-7", Some(1), "order/1"), QueueFull::DropNew);
        assert_eq!(full("panel", Some(1), "order/1"), QueueFull::Hold);
        assert_eq!(full("panel", Some(1), "log"), QueueFull::Disconnect);
        assert_eq!(full("panel", Some(0), "log"), QueueFull::DropOldest);
        assert_eq!(full("panel", None, "log"), QueueFull::DropOldest);
        // Behind a neighbour there are many sessions.
        assert_eq!(full("$mesh/panel", Some(1), "log"), QueueFull::Refuse);
    }
}
