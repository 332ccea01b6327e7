//! Durability of messages and sessions: the policy, and the failures of the store that break it.

use punctual_store::StoreError;

use crate::Nanos;

/// Durability of a message or a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Durability {
    /// It lives as long as the process.
    None,
    /// It is acknowledged when the group that it is committed with is on disk.
    #[default]
    Batched,
    /// The same, and no group waits for more to come.
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
    /// Where nothing else is said.
    pub default: Durability,
    /// Durability by listener number, for sessions that begin and messages that are published there;
    /// `None`: the default.
    pub listeners: Vec<Option<Durability>>,
    /// Of messages by topic, whatever the listener; the first that matches
    /// counts.
    pub rules: Vec<DurabilityRule>,
    /// Bytes of one shard that may wait for their commit before its publishers
    /// of such messages are held back; those of urgent ones from twice as much
    /// on. As this is also what an acknowledgement may find ahead of it, it
    /// should not be more than one group.
    pub max_uncommitted: usize,
    /// How long messages wait for the acknowledgements of all their receivers, at
    /// most, before they are handed over to be stored; with 0 they do not. They wait
    /// as long as receivers take lately, while nothing else asks for a commit.
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

/// What a rule says about the messages of a topic.
pub(crate) fn of_topic(rules: &[DurabilityRule], topic: &str) -> Option<Durability> {
    let mut rules = rules.iter();
    rules
        .find(|rule| punctual_codec::topic::matches(&rule.filter, topic))
        .map(|rule| rule.durability)
}

/// Why nothing can be made durable at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreTrouble {
    /// There is no space for more.
    Full,
    /// It cannot be written.
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
    /// For a reason string.
    pub(crate) fn why(self) -> &'static str {
        match self {
            Self::Full => "the store is full",
            Self::Failed => "the store cannot be written",
        }
    }
}
