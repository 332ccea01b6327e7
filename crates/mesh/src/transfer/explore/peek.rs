//! What the explorer looks up in a machine.

use std::collections::BTreeSet;

use super::super::custody::{Custody, InboundTransfer, OutboundTransfer, PendingConnect};
use super::super::{Freeze, HomeId, Stamp, Stub, TransferId, Transfers};

impl Transfers {
    fn custody(&self, client: &str) -> Option<&Custody> {
        self.clients.get(client)
    }

    /// Whether a client with this stamp waits for CONNACK.
    pub(super) fn waits(&self, client: &str, at: &Stamp) -> bool {
        let connect = self.custody(client).and_then(|it| it.connect.as_ref());
        connect.is_some_and(|connect| connect.at() == at)
    }

    /// From whom the session comes that it waits for.
    pub(super) fn waits_for_transfer(&self, client: &str, at: &Stamp) -> Option<HomeId> {
        let custody = self.custody(client)?;
        let is_it = matches!(&custody.connect, Some(PendingConnect::Transferring { at: it, .. }) if it == at);
        let inbound = custody.inbound.iter().filter(|it| it.at() == at);
        let mut inbound = inbound.map(InboundTransfer::from).cloned();
        inbound.next().filter(|_| is_it)
    }

    pub(super) fn frozen_for(&self, client: &str, freeze: Freeze) -> Option<(TransferId, HomeId)> {
        let outbound = self.custody(client)?.outbound.iter();
        outbound
            .filter_map(|it| match it {
                OutboundTransfer::Frozen { id, to, .. } if id.freeze == freeze => {
                    Some((id.clone(), to.clone()))
                }
                _ => None,
            })
            .next()
    }

    pub(super) fn outbound(&self, client: &str) -> &[OutboundTransfer] {
        self.custody(client).map_or(&[], |it| &it.outbound)
    }

    pub(super) fn unanswered_claims(&self, client: &str) -> BTreeSet<HomeId> {
        let custody = self.custody(client);
        custody.map_or_else(BTreeSet::new, |it| it.unanswered(&self.shared.peers))
    }

    pub(super) fn awaits(&self, home: &HomeId) -> bool {
        self.shared.peers.awaits(home)
    }

    /// The stub for which a fence is asked.
    pub(super) fn fence_of(&self, client: &str) -> Option<&Stub> {
        let custody = self.custody(client)?;
        let stub = custody.stub.as_ref()?;
        (custody.fence.as_ref() == Some(&stub.target_epoch)).then_some(stub)
    }

    /// The next freeze has the number of the first.
    pub(super) fn forget_freezes(&mut self) {
        self.shared.freezes = 0;
    }
}
