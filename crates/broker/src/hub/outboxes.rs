//! Messages in transit to other shards.

use crate::base::connection::ConnId;
use crate::hub::api::{Remote, RemoteMessage};
use crate::hub::fence::Fences;
use crate::hub::outbox::Outbox;

/// The messages of a shard to the other shards.
#[derive(Debug)]
pub(crate) struct Outboxes {
    /// Outboxes by shard.
    pub(crate) list: Vec<Outbox>,
    pub(crate) fences: Fences,
    /// Whether an outbox may have urgent messages.
    pub(crate) posts_urgent: bool,
    /// Publishers that wait for congested receivers of other shards.
    pub(crate) remote_waiters: Vec<ConnId>,
}

impl Outboxes {
    /// The outboxes of the shard `own` of that many shards.
    pub(crate) fn new(own: u16, shards: u16) -> Self {
        Self {
            list: (0..shards).map(|_| Outbox::default()).collect(),
            fences: Fences::new(own, shards),
            posts_urgent: false,
            remote_waiters: Vec::new(),
        }
    }

    /// Whether the outbox to another shard is full.
    pub(crate) fn is_full(&self, shard: u16) -> bool {
        self.list[usize::from(shard)].is_full()
    }

    /// Requests a fence: it has passed when all messages that other shards sent before have been
    /// delivered. Returns its number.
    pub(crate) fn fence(&mut self, own: u16) -> u64 {
        self.fences.ask(own, &mut self.list)
    }

    /// Queues a message for another shard; false if its outbox is full now.
    pub(crate) fn post(&mut self, shard: u16, message: Remote) -> bool {
        let outbox = &mut self.list[usize::from(shard)];
        let message = RemoteMessage(message);
        outbox.bytes += message.size();
        match message.rank().class.is_urgent() {
            true => {
                outbox.urgent.push(message);
                self.posts_urgent = true;
            }
            false => outbox.messages.push(message),
        }
        !outbox.is_full()
    }
}
