//! Settings of a broker in the mesh.

use punctual_model::Nanos;

use crate::id::BrokerId;
use crate::strategy::Strategy;
use crate::tree::TreeSettings;

/// Settings of a broker in the mesh.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Its name; unique in the mesh.
    pub id: BrokerId,
    /// Different after every start.
    pub instance: u64,
    /// Its capacity, see [`crate::Weights`].
    pub capacity: u64,
    /// How publications spread; the same in the whole mesh.
    pub strategy: Strategy,
    /// Times and tolerances of the tree.
    pub tree: TreeSettings,
    /// Added to the round-trip time of each link, for the broker at its end.
    pub hop: Nanos,
    /// How long all messages for a lost link are queued until its brokers are reached by another path.
    pub heal: Nanos,
    /// How long messages for persistent sessions are queued for brokers that are away; at least `heal`.
    pub keep: Nanos,
    /// How long a message may be in flight in the mesh: so long a lost link is still served after all
    /// brokers behind it are reached by other paths.
    pub linger: Nanos,
    /// Time for which changes of subscriptions are batched after the last update to neighbours.
    pub batch: Nanos,
    /// Bound on the filters in the table.
    pub max_filters: usize,
    /// How long a broker has to be lost before others publish the wills of its clients.
    pub will_wait: Nanos,
    /// Bound on the bytes of wills that are stored for other brokers.
    pub max_will_bytes: usize,
    /// How long a broker that starts waits to join its mesh before it accepts clients anyway; 0 for not
    /// at all.
    pub join_wait: Nanos,
    /// How long a look-up of a session at other brokers may take while its client waits for CONNACK.
    pub session_wait: Nanos,
}

impl Settings {
    /// Ordinary settings for a broker of that name and capacity.
    pub fn new(id: BrokerId, instance: u64, capacity: u64) -> Self {
        Self {
            id,
            instance,
            capacity,
            strategy: Strategy::default(),
            tree: TreeSettings::default(),
            hop: Nanos(100_000),
            heal: Nanos::from_secs(10),
            keep: Nanos::from_secs(86_400),
            linger: Nanos::from_secs(2),
            batch: Nanos::from_millis(10),
            max_filters: 1_000_000,
            will_wait: Nanos::from_secs(10),
            max_will_bytes: 64 << 20,
            join_wait: Nanos::from_secs(3),
            session_wait: Nanos::from_millis(500),
        }
    }
}
