//! Who may do what. The broker asks; a shell answers, typically from
//! mosquitto-format files.

use std::fmt::Debug;
use std::sync::Arc;

use crate::UrgencyRights;

/// The rights of one client.
pub trait Permissions: Debug + Send + Sync {
    /// Whether it may publish to the topic name.
    fn may_publish(&self, topic: &str) -> bool;
    /// Whether messages on the topic name may be delivered to it.
    fn may_receive(&self, topic: &str) -> bool;
    /// Whether it may subscribe to the filter (without share prefix) at all.
    fn may_subscribe(&self, filter: &str) -> bool;
    /// What it may state about the urgency of messages on the topic name.
    fn urgency(&self, _topic: &str) -> UrgencyRights {
        UrgencyRights::ALL
    }
}

/// Gives every client its rights.
pub trait AccessControl: Debug + Send + Sync {
    /// The rights of a client by user name and client identifier; `None` for
    /// all rights.
    fn permissions(&self, user: Option<&str>, client_id: &str) -> Option<Arc<dyn Permissions>>;
}
