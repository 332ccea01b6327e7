//! Durability of messages and sessions: the policy, and the failures of the store that break it.

use punctual_store::StoreError;

use crate::Nanos;

/// Durability of a message or a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Durability {
    /// The message or session lives as long as the process.
    None,
    /// The message is acknowledged when the group in which it is committed is on disk.
    #[default]
    Batched,
    /// As [`Self::Batched`], and no group waits for further operations.
    Sync,
}

/// Durability of the topics that match a filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DurabilityRule {
    /// Topic filter.
    pub filter: String,
    /// Durability of the messages on these topics.
    pub durability: Durability,
}

/// Durability of messages and sessions by topic and listener. Without a store nothing is durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DurabilityPolicy {
    /// The durability without a more specific rule.
    pub default: Durability,
    /// Durability by listener number, for sessions that begin and messages that are published
    /// there; `None`: the default.
    pub listeners: Vec<Option<Durability>>,
    /// Durability of messages by topic, whatever the listener; the first rule that matches applies.
    pub rules: Vec<DurabilityRule>,
    /// Bytes of one shard that may wait for their commit before the publishers of durable messages
    /// are paused; those of urgent ones are paused from twice as many bytes on. An acknowledgement
    /// may have to wait for as many bytes, so this should not exceed one group.
    pub max_uncommitted: usize,
    /// Maximum time for which messages wait for the acknowledgements of all their receivers before
    /// they are handed over to be stored; with 0 they do not wait. They wait as long as receivers
    /// have recently taken, while no other operation requires a commit.
    pub patience: Nanos,
}

impl Default for DurabilityPolicy {
    fn default() -> Self {
        Self {
            default: Durability::default(),
            listeners: Vec::new(),
            rules: Vec::new(),
            max_uncommitted: 1 << 20,
            patience: Nanos::from_millis(16),
        }
    }
}

impl DurabilityPolicy {
    /// Durability of the sessions and messages of that listener's clients.
    pub(crate) fn of_listener(&self, listener: u16) -> Durability {
        let own = self.listeners.get(usize::from(listener)).copied().flatten();
        own.unwrap_or(self.default)
    }
}

/// The durability that a rule gives to the messages of a topic.
pub(crate) fn of_topic(rules: &[DurabilityRule], topic: &str) -> Option<Durability> {
    let mut rules = rules.iter();
    rules
        .find(|rule| punctual_codec::topic::matches(&rule.filter, topic))
        .map(|rule| rule.durability)
}

/// The reason why the store cannot commit at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreTrouble {
    /// The store has no space left.
    Full,
    /// The store cannot be written.
    Failed,
}

impl From<&StoreError> for StoreTrouble {
    fn from(error: &StoreError) -> Self {
        match error {
            StoreError::Full { .. } => Self::Full,
            _ => Self::Failed,
        }
    }
}

impl StoreTrouble {
    /// The text for a reason string.
    pub(crate) fn why(self) -> &'static str {
        match self {
            Self::Full => "the store is full",
            Self::Failed => "the store cannot be written",
        }
    }
}
