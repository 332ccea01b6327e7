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
    /// Whether messages of admitted flows are sent to it as plain ones.
    pub(crate) demoted: bool,
    /// Whether messages to it are numbered.
    pub(crate) numbered: bool,
}

/// The options of a neighbour's session: it gets messages as they were published, and not those
/// that it has sent itself.
pub(crate) const OPTIONS: SubscribeOptions = SubscribeOptions {
    qos: QoS::ExactlyOnce,
    no_local: true,
    retain_as_published: true,
    retain_handling: RetainHandling::DoNotSend,
};

/// A neighbour as a subscriber. With `by_root`, a message that goes through the root of the mesh
/// comes back from there.
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
