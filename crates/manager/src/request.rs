//! What is asked: flows of publishers and filters of subscribers.

use std::sync::Arc;

use punctual_model::Requirements;

use crate::quota::Quota;

/// A publication that states requirements, or for which a rule does.
#[derive(Debug, Clone, Copy)]
pub struct Publication<'a> {
    /// Topic name.
    pub topic: &'a str,
    /// What is asked for; real-time.
    pub requirements: Requirements,
    /// Bytes of the payload.
    pub payload: u32,
    /// Bytes of the properties that are forwarded.
    pub properties: u32,
    /// What its user may have.
    pub quota: Quota,
}

/// A topic filter that a client subscribes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscription {
    /// With the share prefix, if any.
    pub filter: Arc<str>,
    /// The receiver's own requirements; only the deadline counts.
    pub requirements: Requirements,
}
