//! The remains of a session that has ended.

use std::sync::Arc;

use hashbrown::hash_map::IntoIter;

use crate::admission::Flow;
use crate::base::handle::SessionHandle;
use crate::session::{Queue, Session, Subscription, Window};

/// The remains of a session that has ended. It receives no message any more, and its client may
/// have another session already.
#[derive(Debug)]
pub(crate) struct Remains {
    pub(crate) handle: Arc<SessionHandle>,
    pub(crate) subscriptions: Vec<Subscription>,
    pub(crate) flows: IntoIter<Box<str>, Flow>,
    pub(crate) window: Window,
    pub(crate) queue: Queue,
}

impl Remains {
    /// The remains of a session, from all its parts.
    pub(super) fn of(session: Session) -> Self {
        let flows = session.flows.map(|flows| *flows);
        Self {
            handle: session.handle,
            subscriptions: session.subscriptions.into_iter().collect(),
            flows: flows.unwrap_or_default().into_iter(),
            window: session.window,
            queue: session.queue,
        }
    }

    /// The client identifier of the session.
    pub(crate) fn client_id(&self) -> Arc<str> {
        self.handle.client_id.clone()
    }
}
