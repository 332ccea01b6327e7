//! One subscription of one session.

use std::sync::Arc;

use punctual_codec::SubscribeOptions;

use crate::base::handle::SessionHandle;

/// One subscription of one session.
#[derive(Debug, Clone)]
pub(crate) struct Subscriber {
    pub(crate) session: Arc<SessionHandle>,
    pub(crate) options: SubscribeOptions,
    /// Subscription identifier; 0 for none.
    pub(crate) id: u32,
    /// Messages of admitted flows go to it with the plain ones.
    pub(crate) demoted: bool,
    /// What it is sent is numbered.
    pub(crate) numbered: bool,
}
