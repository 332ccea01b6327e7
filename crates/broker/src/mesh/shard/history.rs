//! For how long it is remembered what a session has had that moved between brokers, see [`crate::mesh::moves`].

use crate::Nanos;
use crate::shard::Shard;

impl Shard {
    /// A session is looked at that remembers what it has had.
    pub(crate) fn expire_history(&mut self, id: u64, now: Nanos) {
        let expiry = self.hub.links.moves.expiries.get(&id);
        if let Some(expiry) = expiry.filter(|expiry| expiry.due <= now).cloned() {
            self.hub.forget_history(id, &expiry, now);
        }
    }
}
