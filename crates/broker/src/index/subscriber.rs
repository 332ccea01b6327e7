//! One subscription of one session.

use std::sync::Arc;

use punctual_codec::packet::RetainHandling;
use punctual_codec::{QoS, SubscribeOptions};

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

/// How a neighbour's session gets what it gets: as it was published, and not what it
/// has sent itself.
pub(crate) const OPTIONS: SubscribeOptions = SubscribeOptions {
    qos: QoS::ExactlyOnce,
    no_local: true,
    retain_as_published: true,
    retain_handling: RetainHandling::DoNotSend,
};

/// A neighbour as a subscriber. What goes by the root comes back from there.
pub(crate) fn subscriber(session: &Arc<SessionHandle>, by_root: bool) -> Subscriber {
    Subscriber {
        session: session.clone(),
        options: SubscribeOptions {
            no_local: !by_root,
            ..OPTIONS
        },
        id: 0,
        demoted: false,
        numbered: true,
    }
}
