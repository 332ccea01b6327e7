//! Who decides: the manager of this process, or the controller of the network
//! through the requirements table.

use punctual_broker::AdmissionRequest;
use punctual_manager::{Change, Client, Envoy, FlowView, Manager};
use punctual_model::wire::Transport;

use super::Letter;

/// Whoever decides.
pub(super) enum Desk {
    /// Here, with the network that the configuration states.
    Own(Box<Manager>),
    /// The controller.
    Network(Box<Envoy>),
}

impl Desk {
    /// Takes a question; there may be an answer.
    pub(super) fn ask(
        &mut self,
        shard: u16,
        request: AdmissionRequest,
        transport: Transport,
        letters: &mut Vec<Letter>,
    ) {
        match self {
            Self::Own(manager) => {
                let reply = manager.answer(request, transport);
                letters.extend(reply.map(|reply| Letter { shard, reply }));
            }
            Self::Network(envoy) => envoy.answer(shard, request, transport),
        }
    }

    /// Answers that were not there at once.
    pub(super) fn late_letters(&mut self) -> Vec<Letter> {
        match self {
            Self::Own(_) => Vec::new(),
            Self::Network(envoy) => envoy
                .take_replies()
                .into_iter()
                .map(|(shard, reply)| Letter { shard, reply })
                .collect(),
        }
    }

    pub(super) fn take_changes(&mut self) -> Vec<Change> {
        match self {
            Self::Own(manager) => manager.take_changes(),
            Self::Network(envoy) => envoy.take_changes(),
        }
    }

    pub(super) fn unsubscribe(&mut self, client: &Client, filters: &[Box<str>]) {
        let (id, session) = (&client.id, client.session);
        match self {
            Self::Own(manager) => manager.unsubscribe(id, session, filters),
            Self::Network(envoy) => envoy.unsubscribe(id, session, filters),
        }
    }

    /// At most `most` admitted flows after the name `after`, by name.
    pub(super) fn views(&self, after: Option<&str>, most: usize) -> Vec<FlowView> {
        match self {
            Self::Own(manager) => manager.views(after, most),
            Self::Network(envoy) => envoy.views(after).take(most).collect(),
        }
    }

    pub(super) fn view(&self, id: &str) -> Option<FlowView> {
        match self {
            Self::Own(manager) => manager.view(id),
            Self::Network(envoy) => envoy.view(id),
        }
    }

    /// Flows that are admitted, that wait for room, and requests that were
    /// rejected so far.
    pub(super) fn numbers(&self) -> (u64, u64, u64) {
        match self {
            Self::Own(m) => (m.len() as u64, m.wishes() as u64, m.rejected()),
            Self::Network(m) => (m.len() as u64, m.wishes() as u64, m.rejected()),
        }
    }
}
