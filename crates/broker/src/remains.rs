//! What is left of a session that has ended.

use std::sync::Arc;

use hashbrown::hash_map::IntoIter;

use crate::admission::Flow;
use crate::base::handle::SessionHandle;
use crate::session::{Queue, Session, Subscription, Window};

/// What is left of a session that has ended. No message is for it any more, and its client may have
/// another session already.
#[derive(Debug)]
pub(crate) struct Remains {
    pub(crate) handle: Arc<SessionHandle>,
    pub(crate) subscriptions: Vec<Subscription>,
    pub(crate) flows: IntoIter<Box<str>, Flow>,
    pub(crate) window: Window,
    pub(crate) queue: Queue,
}

impl Remains {
    /// Of all that a session has had.
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

    /// Whose session it was.
    pub(crate) fn client_id(&self) -> Arc<str> {
        self.handle.client_id.clone()
    }
}
