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

use crate::Nanos;
use crate::base::handle::SessionHandle;
use crate::base::queue_full::QueueFull;
use crate::config::Config;

/// Messages that one message pushes out at most.
pub(crate) const MOST_DROPPED: usize = 256;
/// Sessions that are looked at for one with much in its queue.
pub(crate) const MOST_LOOKED_AT: u32 = 64;
/// Full queues are reported no more often.
pub(crate) const REPORT_INTERVAL: Nanos = Nanos::from_secs(10);

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
    pub(crate) count: Arc<AtomicU64>,
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
    pub(crate) slot: u32,
    pub(crate) bytes: usize,
    /// Place of the session that is looked at next.
    pub(crate) next: u32,
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
