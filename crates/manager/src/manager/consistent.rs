//! What a manager looks up, compared with what it is made from.

use std::collections::{BTreeMap, BTreeSet};

use super::Manager;

impl Manager {
    /// Panics unless look-ups find what a search of everything finds, and what is admitted is what is
    /// analysed.
    pub(crate) fn assert_consistent(&self) {
        self.registry.assert_consistent();
        let mut received = BTreeMap::<_, BTreeSet<_>>::new();
        for (id, record) in self.registry.flows() {
            for receiver in record.receivers.iter().chain(&*record.local) {
                let flows = received.entry(receiver.clone()).or_default();
                flows.insert(id.clone());
            }
            assert!(record.receivers.is_sorted() && record.local.is_sorted());
            let flows = &self.gate.network().flows;
            assert!(flows.contains(&record.admitted), "{id}");
        }
        assert_eq!(self.received, received);
        let mut other = self.clone();
        other.dirty = true;
        assert_eq!(other.changed_state().unwrap(), self.state());
    }
}
