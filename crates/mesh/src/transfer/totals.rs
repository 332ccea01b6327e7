//! How much there is of what is bounded.

use std::collections::BTreeMap;

use super::custody::{Custody, InboundTransfer, OutboundTransfer, PendingConnect};
use super::identity::HomeId;

/// Sums over all clients but the one of which something happens.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Totals {
    pub(super) connects: usize,
    /// Those of them for which others do something.
    pub(super) active: usize,
    pub(super) transfers: usize,
    pub(super) records: usize,
    pub(super) bytes: usize,
    per_home: BTreeMap<HomeId, usize>,
}

impl Totals {
    /// Sessions that are copied to or from there.
    pub(super) fn with(&self, home: &HomeId) -> usize {
        self.per_home.get(home).copied().unwrap_or(0)
    }

    pub(super) fn add(&mut self, custody: &Custody) {
        self.count(custody, |n, by| n + by);
    }

    pub(super) fn remove(&mut self, custody: &Custody) {
        self.count(custody, |n, by| n.saturating_sub(by));
        self.per_home.retain(|_, n| *n > 0);
    }

    fn count(&mut self, custody: &Custody, change: impl Fn(usize, usize) -> usize) {
        let add = |n: &mut usize, by| *n = change(*n, by);
        let connect = custody.connect.as_ref();
        add(&mut self.connects, usize::from(connect.is_some()));
        let is_active = connect.is_some_and(PendingConnect::is_active);
        add(&mut self.active, usize::from(is_active));
        add(&mut self.records, usize::from(custody.stub.is_some()));
        for inbound in &custody.inbound {
            if inbound.is_prepared() {
                add(&mut self.records, 1);
                continue;
            }
            add(&mut self.transfers, 1);
            add(self.per_home.entry(inbound.from().clone()).or_default(), 1);
            if let InboundTransfer::Receiving { bytes, .. } = inbound {
                add(&mut self.bytes, *bytes);
            }
        }
        for outbound in &custody.outbound {
            match outbound {
                OutboundTransfer::Committed { .. } => add(&mut self.records, 1),
                OutboundTransfer::Frozen { to, .. } => {
                    add(&mut self.transfers, 1);
                    add(self.per_home.entry(to.clone()).or_default(), 1);
                }
            }
        }
    }
}
