//! Messages in transit to one other shard.

use crate::base::connection::ConnId;
use crate::hub::api::RemoteMessage;

/// Number of messages to one other shard from which publishers are held back.
const OUTBOX: usize = 8192;

/// Number of their bytes from which publishers are held back.
const OUTBOX_BYTES: usize = 1 << 20;

/// Messages in transit to one other shard.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    pub(crate) messages: Vec<RemoteMessage>,
    /// Urgent messages, which do not wait for the others.
    pub(crate) urgent: Vec<RemoteMessage>,
    /// Bytes of all messages.
    pub(crate) bytes: usize,
    /// Publishers that wait until the messages are taken.
    pub(crate) waiters: Vec<ConnId>,
    /// Whether the last fence that this shard has asked for is among the messages.
    pub(crate) asks: bool,
}

impl Outbox {
    pub(crate) fn is_full(&self) -> bool {
        self.messages.len() + self.urgent.len() >= OUTBOX || self.bytes >= OUTBOX_BYTES
    }
}
