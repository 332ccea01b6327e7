//! Policies for queues that are full; [`crate::overflow`] applies them.

use punctual_codec::topic;

/// Policy for a full queue of QoS 1 and 2 messages. Under each, an acknowledged message is
/// delivered unless its session ends or its client loses the right to it, or it expires, or is
/// counted as dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum QueueFull {
    /// The oldest waiting message is dropped and counted. Publishers and other receivers do not
    /// notice.
    #[default]
    DropOldest,
    /// The new message is not queued for that receiver, and is counted.
    DropNew,
    /// The publication is refused, for all its receivers: 0x97 in MQTT 5; before MQTT 5 the
    /// publisher's connection is closed, the only refusal 3.1.1 knows [MQTT-3.3.5-2 of 3.1.1].
    /// Nothing acknowledged is dropped.
    Refuse,
    /// As long as the receiver is connected, its publishers are not read while its queue is half
    /// full, for at most [`Config::max_publisher_hold`](crate::Config::max_publisher_hold).
    /// Otherwise as [`Self::Refuse`].
    Hold,
    /// The session that does not keep up is ended.
    Disconnect,
}

impl QueueFull {
    /// Whether publications are refused for lack of capacity.
    pub const fn refuses(self) -> bool {
        matches!(self, Self::Refuse | Self::Hold)
    }

    const ALL: [Self; 5] = [
        Self::DropOldest,
        Self::DropNew,
        Self::Refuse,
        Self::Hold,
        Self::Disconnect,
    ];

    /// Four bits that encode a policy or none.
    fn bits(policy: Option<Self>) -> u8 {
        policy.map_or(0, |policy| policy as u8 + 1)
    }

    pub(crate) fn of_bits(bits: u8) -> Option<Self> {
        Self::ALL
            .get(usize::from(bits & 15).checked_sub(1)?)
            .copied()
    }
}

/// Policy for messages on the topics that match a filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicPolicy {
    /// Topic filter.
    pub filter: String,
    /// The policy for these messages.
    pub full: QueueFull,
}

/// Policy for the queues of some sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionPolicy {
    /// A client identifier; with `*` at its end, all identifiers that begin with it.
    pub client_id: String,
    /// The policy for messages to these sessions.
    pub full: QueueFull,
}

impl SessionPolicy {
    fn is_of(&self, client_id: &str) -> bool {
        match self.client_id.strip_suffix('*') {
            Some(start) => client_id.starts_with(start),
            None => self.client_id == client_id,
        }
    }
}

/// Exceptions from [`Config::queue_full`](crate::Config::queue_full). Of each list the first
/// matching entry applies.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct QueuePolicies {
    /// By session, effective when its client connects.
    pub sessions: Vec<SessionPolicy>,
    /// By topic.
    pub topics: Vec<TopicPolicy>,
    /// By the number of the listener of the client's last connection since the start.
    pub listeners: Vec<Option<QueueFull>>,
}

impl QueuePolicies {
    /// The policy of a topic.
    pub(crate) fn of_topic(&self, name: &str) -> Option<QueueFull> {
        let mut topics = self.topics.iter();
        topics
            .find(|it| topic::matches(&it.filter, name))
            .map(|it| it.full)
    }

    /// The policies of a session and of its listener, as its handle stores them.
    pub(crate) fn of_session(&self, client_id: &str, listener: Option<u16>) -> u8 {
        let mut sessions = self.sessions.iter();
        let own = sessions.find(|it| it.is_of(client_id)).map(|it| it.full);
        let listener = listener.and_then(|at| *self.listeners.get(usize::from(at))?);
        QueueFull::bits(own) << 4 | QueueFull::bits(listener)
    }

    pub(crate) fn refuse(&self) -> bool {
        let sessions = self.sessions.iter().map(|it| it.full);
        let topics = self.topics.iter().map(|it| it.full);
        let listeners = self.listeners.iter().copied().flatten();
        let mut all = sessions.chain(topics).chain(listeners);
        all.any(QueueFull::refuses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bits_of_each_policy_are_its_own() {
        for policy in QueueFull::ALL {
            assert_eq!(
                QueueFull::of_bits(QueueFull::bits(Some(policy))),
                Some(policy)
            );
        }
        assert_eq!(QueueFull::of_bits(QueueFull::bits(None)), None);
    }
}
