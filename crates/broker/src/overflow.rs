//! Overflow: the handling of a message whose receiver's queue is full.
//!
//! By default the receiver loses its oldest messages, which are counted, and neither the publisher
//! nor other receivers notice. Where the policy is to refuse, capacity is reserved for the message
//! at all receivers before it is delivered to any ([`crate::room`]).
//!
//! The policy for a message and a receiver is that of the session, else of the topic, else of the
//! listener of the client's last connection, else the general one. Queues of neighbour brokers
//! always refuse: behind them are many sessions, none of which is the slow one.
//!
//! Dropping costs O(1), O(log n) among urgent messages, and one message replaces at most
//! [`MOST_DROPPED`] others. A session drops first bulk, then normal messages, each the oldest
//! first, then urgent messages that are not more urgent than the new one: those whose deadline has
//! passed, and then the least urgent. Messages in flight stay. A message with QoS 0 replaces no
//! plain message with QoS 1 or 2, and messages that must not be dropped because of their topic
//! stay, too: the new message is dropped instead.
//!
//! If all sessions together exceed their bound, the session of the shard with the most bytes drops
//! messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Nanos;
use crate::base::handle::SessionHandle;
use crate::base::queue_full::QueueFull;
use crate::config::Config;

/// Maximum number of messages that one message replaces.
pub(crate) const MOST_DROPPED: usize = 256;
/// Maximum number of sessions that are checked for one with many queued bytes.
pub(crate) const MOST_LOOKED_AT: u32 = 64;
/// Minimum time between two reports of full queues.
pub(crate) const REPORT_INTERVAL: Nanos = Nanos::from_secs(10);

impl Config {
    /// Whether any publication may be refused because the queue of a client is full.
    #[inline]
    pub(crate) fn may_refuse(&self) -> bool {
        self.queue_full.refuses() || self.queue_policies.refuse()
    }

    /// The policy for a message to a receiver whose queue is full; `topic` is the policy of its
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

    /// Stores the policies of a session whose client has connected at that listener.
    pub(crate) fn note_queue_full(&self, handle: &SessionHandle, listener: Option<u16>) {
        let said = self.queue_policies.of_session(&handle.client_id, listener);
        handle.queue_full.store(said, Ordering::Relaxed);
    }
}

/// The messages that a session has lost because its queue was full.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    pub(crate) count: Arc<AtomicU64>,
    /// Number of them that were reported to the client.
    told: u64,
}

impl Losses {
    /// Number of all lost messages, and of those that were not reported to the client.
    pub(crate) fn count(&self) -> [u64; 2] {
        let count = self.count.load(Ordering::Relaxed);
        [count, count - self.told]
    }

    /// Notes that `count` losses were reported to the client.
    pub(crate) fn tell(&mut self, count: u64) {
        self.told = self.told.max(count);
    }
}

/// The session of a shard with the most bytes in its queue when sessions were last checked, of
/// those that may be made to drop messages.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Fullest {
    pub(crate) slot: u32,
    pub(crate) bytes: usize,
    /// Place of the session that is checked next.
    pub(crate) next: u32,
}

impl Fullest {
    /// Notes that `bytes` wait in a session now.
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
