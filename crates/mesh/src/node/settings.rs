//! How a broker of the mesh is set up.

use punctual_model::Nanos;

use crate::id::BrokerId;
use crate::strategy::Strategy;
use crate::tree::TreeSettings;

/// Settings of a broker in the mesh.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Its name.
    pub id: BrokerId,
    /// Different after every start.
    pub instance: u64,
    /// Its capacity, see [`crate::Weights`].
    pub capacity: u64,
    /// How it forwards.
    pub strategy: Strategy,
    /// Times and tolerances of the tree.
    pub tree: TreeSettings,
    /// Added to the round-trip time of each link, for the broker at its end.
    pub hop: Nanos,
    /// How long messages for a link that was lost wait for another way, whatever they are.
    pub heal: Nanos,
    /// How long those wait that persistent sessions await at brokers that are not back; as long as
    /// `heal` at least.
    pub keep: Nanos,
    /// How long messages may still come for a link that was lost once everybody behind
    /// it is back elsewhere: how long one may be under way in the mesh.
    pub linger: Nanos,
    /// Time in which changes of subscriptions gather after some were told.
    pub batch: Nanos,
    /// Filters in the table.
    pub max_filters: usize,
    /// How long a broker is lost before others publish the wills of its clients.
    pub will_wait: Nanos,
    /// Bytes of wills that are kept for other brokers.
    pub max_will_bytes: usize,
    /// How long a broker that starts waits until it has joined, before it does without; 0 for not at all.
    pub join_wait: Nanos,
    /// How long others are waited for that are asked for a session while its client waits.
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
