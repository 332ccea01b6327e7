//! One receiver of the messages of a topic.

use std::sync::Arc;

use punctual_codec::QoS;

use crate::base::handle::SessionHandle;
use crate::index::subscriber::Subscriber;

/// One receiver of a message.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) session: Arc<SessionHandle>,
    pub(crate) slot: u32,
    pub(crate) qos: QoS,
    pub(crate) no_local: bool,
    pub(crate) retain_as_published: bool,
    /// Whether messages of admitted flows are sent to it as plain ones.
    pub(crate) demoted: bool,
    /// Whether messages to it are numbered.
    pub(crate) numbered: bool,
    /// The sign of the shared subscription of which it is a member; 0 for none.
    pub(crate) share: u32,
    pub(crate) subscription_ids: Option<Arc<[u32]>>,
}

impl Target {
    pub(crate) fn new(subscriber: &Subscriber) -> Self {
        Self {
            session: subscriber.session.clone(),
            slot: subscriber.session.slot,
            qos: subscriber.options.qos,
            no_local: subscriber.options.no_local,
            retain_as_published: subscriber.options.retain_as_published,
            demoted: subscriber.demoted,
            numbered: subscriber.numbered,
            share: 0,
            subscription_ids: (subscriber.id != 0).then(|| Arc::from([subscriber.id])),
        }
    }

    pub(crate) fn key(&self) -> (u16, u64) {
        (self.session.shard, self.session.number)
    }

    #[inline]
    pub(crate) fn ids(&self) -> &[u32] {
        self.subscription_ids.as_ref().map_or(&[], |ids| ids)
    }

    /// Merges `other` into this target if it is a subscription of the same session. Returns whether
    /// it is.
    pub(crate) fn merge(&mut self, other: &Self) -> bool {
        if !Arc::ptr_eq(&self.session, &other.session) {
            return false;
        }
        self.qos = self.qos.max(other.qos);
        self.no_local &= other.no_local;
        self.retain_as_published |= other.retain_as_published;
        self.demoted &= other.demoted;
        self.numbered |= other.numbered;
        if let Some(ids) = &other.subscription_ids {
            self.subscription_ids = Some(self.ids().iter().chain(ids.iter()).copied().collect());
        }
        true
    }
}
