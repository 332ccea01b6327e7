//! For how long it is remembered what a session has had that moved between brokers, see [`crate::mesh::moves`].

use crate::Nanos;
use crate::shard::Shard;

impl Shard {
    /// A session is looked at that remembers what it has had.
    pub(crate) fn run_errand(&mut self, id: u64, now: Nanos) {
        let errand = self.hub.links.moves.errands.get(&id);
        if let Some(errand) = errand.filter(|errand| errand.due <= now).cloned() {
            self.hub.forget_had(id, &errand, now);
        }
    }
}
