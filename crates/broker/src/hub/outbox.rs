//! Messages on their way to one other shard.

use crate::base::connection::ConnId;
use crate::hub::api::RemoteMessage;

/// Messages to one other shard before publishers are held back.
const OUTBOX: usize = 8192;

/// Bytes of them.
const OUTBOX_BYTES: usize = 1 << 20;

/// Messages on their way to one other shard.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    pub(crate) messages: Vec<RemoteMessage>,
    /// Those that are urgent, which are not to wait for the others.
    pub(crate) urgent: Vec<RemoteMessage>,
    /// Of both.
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
