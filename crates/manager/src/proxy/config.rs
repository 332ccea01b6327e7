//! How a proxy treats requirements, and what it counts.

use std::sync::Arc;

use punctual_broker::{AccessControl, Nanos, Policing, UrgencyRule};
use punctual_model::Conditions;

/// How a proxy deals with requirements.
#[derive(Debug, Clone)]
pub struct Config {
    /// Requirements of topics whose publishers state none.
    pub rules: Vec<UrgencyRule>,
    /// Who may state what; `None` for everyone everything.
    pub access: Option<Arc<dyn AccessControl>>,
    /// Messages whose requirement is rejected are refused (0x97) instead of
    /// being carried as well as can be, unless their publisher's rights or
    /// listener say otherwise.
    pub refuse: bool,
    /// The same for each listener by its number, where it differs.
    pub refuse_at: Vec<Option<bool>>,
    /// What happens to messages that come faster or are larger than declared.
    /// [`Policing::Demote`] only counts them: a proxy has no lanes.
    pub policing: Policing,
    /// Flows of one connection, admitted or not.
    pub max_flows: usize,
    /// What bounds take for granted and the configuration does not guarantee: clients are notified of it
    /// with what is admitted.
    pub conditions: Conditions,
    /// How long an acknowledgement waits for a decision, at most.
    pub decision_timeout: Nanos,
    /// How long flows and subscriptions of a client that has gone are kept, at
    /// most, should its session last longer.
    pub max_session: Nanos,
    /// Sessions without a connection that are kept in mind.
    pub max_sessions: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            rules: Vec::new(),
            access: None,
            refuse: false,
            refuse_at: Vec::new(),
            policing: Policing::Demote,
            max_flows: 1000,
            conditions: Conditions::NONE,
            decision_timeout: Nanos::from_secs(1),
            max_session: Nanos::from_secs(24 * 3600),
            max_sessions: 100_000,
        }
    }
}

/// What a proxy has done since it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Connections.
    pub connections: u64,
    /// Those that did not carry MQTT as we know it, and passed unread.
    pub foreign: u64,
    /// PUBLISH packets of clients.
    pub publishes: u64,
    /// Acknowledgements that were to wait for a decision.
    pub held: u64,
    /// Requirements that could not be understood, or were not allowed.
    pub remarks: u64,
    /// Decisions that did not come in time.
    pub undecided: u64,
    /// Messages and subscriptions that were refused or dropped.
    pub refused: u64,
    /// Messages that were not as declared.
    pub violations: u64,
    /// Those that had to wait for it.
    pub shaped: u64,
}
