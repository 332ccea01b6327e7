//! How a flow is identified: by its publisher and its topic.

use std::sync::Arc;

/// A flow: which, and whose.
#[derive(Debug, Clone)]
pub(crate) struct FlowName {
    pub(crate) id: Arc<str>,
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

/// A flow's name: its topic, `@`, its publisher. A client identifier's own `@`
/// is written `%40`, so that no two flows have one name.
pub(crate) fn flow_id(topic: &str, client: &str) -> Arc<str> {
    format!("{topic}@{}", client.replace('@', "%40")).into()
}
