//! Messages on their way from the server: QoS 2 is delivered once.
//!
//! Session state: it outlives connections.

use std::collections::BTreeSet;

use punctual_codec::ReasonCode;

use crate::Error;

/// Identifiers of messages with QoS 2 that were received and not released.
#[derive(Debug, Default)]
pub(super) struct Inbound {
    unreleased: BTreeSet<u16>,
}

impl Inbound {
    /// A PUBLISH with QoS 2 has come: whether it is new [MQTT-4.3.3-10].
    ///
    /// # Errors
    /// 0x93 if the server sends more than `maximum` at a time.
    pub(super) fn receive(&mut self, id: u16, maximum: u16) -> Result<bool, Error> {
        if self.unreleased.contains(&id) {
            return Ok(false);
        }
        if self.unreleased.len() >= usize::from(maximum) {
            return Err(Error::protocol(
                ReasonCode::ReceiveMaximumExceeded,
                format!("more than {maximum} unacknowledged messages"),
            ));
        }
        self.unreleased.insert(id);
        Ok(true)
    }

    /// A PUBREL has come: whether its message was known.
    pub(super) fn release(&mut self, id: u16) -> bool {
        self.unreleased.remove(&id)
    }

    /// The session is gone.
    pub(super) fn clear(&mut self) {
        self.unreleased.clear();
    }
}
