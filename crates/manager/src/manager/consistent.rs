//! What is looked up in a manager, compared with what it is made from.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Manager, plain};

impl Manager {
    /// Look-ups find what a walk over everything finds, and what is admitted is
    /// what is analysed.
    pub(crate) fn assert_consistent(&self) {
        let filters = self.clients.iter().flat_map(|(client, known)| {
            let filters = known.subscriptions.keys();
            filters.map(|filter| (client.clone(), filter.clone()))
        });
        let filters: Vec<(Arc<str>, Arc<str>)> = filters.collect();
        let mut received = BTreeMap::<_, BTreeSet<_>>::new();
        for (id, record) in &self.flows {
            let topic = &record.topic;
            let expected = filters.iter();
            let expected =
                expected.filter(|(_, f)| punctual_codec::topic::matches(plain(f), topic));
            let found = self.subscribers.of_topic(topic).into_iter();
            let found: BTreeSet<_> = found.collect();
            assert_eq!(found, expected.collect(), "{topic}");
            assert!(self.topics.of_filter(topic).contains(&id), "{id}");
            for receiver in record.receivers.iter().chain(&*record.local) {
                received
                    .entry(receiver.clone())
                    .or_default()
                    .insert(id.clone());
            }
            assert!(record.receivers.is_sorted() && record.local.is_sorted());
            let flows = &self.gate.network().flows;
            assert!(flows.contains(&record.admitted), "{id}");
        }
        assert_eq!(self.received, received);
        assert_eq!(self.topics.of_filter("#").len(), self.flows.len());
        let mut other = self.clone();
        other.dirty = true;
        assert_eq!(other.changed_state().unwrap(), self.state());
    }
}
