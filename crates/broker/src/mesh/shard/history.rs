//! Expiry of the delivery histories of sessions that moved between brokers, see
//! [`crate::mesh::moves`].

use crate::Nanos;
use crate::shard::Shard;

impl Shard {
    /// Checks whether the delivery history of a session has expired.
    pub(crate) fn expire_history(&mut self, id: u64, now: Nanos) {
        let expiry = self.hub.links.moves.expiries.get(&id);
        if let Some(expiry) = expiry.filter(|expiry| expiry.due <= now).cloned() {
            self.hub.forget_history(id, &expiry, now);
        }
    }
}
