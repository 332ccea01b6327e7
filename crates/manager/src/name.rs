//! How a flow is identified: by its publisher and its topic.

use std::sync::Arc;

/// The name of a flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FlowName {
    /// Its identifier, see [`flow_id`].
    pub(crate) id: Arc<str>,
    /// Client identifier of the publisher.
    pub(crate) client: Arc<str>,
    pub(crate) topic: Arc<str>,
}

impl FlowName {
    pub(crate) fn new(client: &Arc<str>, topic: &str) -> Self {
        Self {
            id: flow_id(topic, client),
            client: client.clone(),
            topic: topic.into(),
        }
    }
}

/// The identifier of a flow: its topic, `@`, its publisher. A client identifier's own `@`
/// is written `%40`, so that no two flows have the same.
pub(crate) fn flow_id(topic: &str, client: &str) -> Arc<str> {
    format!("{topic}@{}", client.replace('@', "%40")).into()
}
