//! Admission: which flows are promised their deadlines.

use punctual_model::network::{Flow, Network};

use crate::bounds::{Bounds, analyze};

/// A network and the flows that are admitted to it.
#[derive(Debug, Clone)]
pub struct Admission {
    network: Network,
}

impl Admission {
    /// Begins with the flows of a network as admitted.
    pub fn new(network: Network) -> Self {
        Self { network }
    }

    /// The network with the flows that are admitted.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Admits a flow if then every flow keeps its deadline, that one and all
    /// others. False, and nothing has changed, if not, or if its name is
    /// taken.
    pub fn add(&mut self, flow: Flow) -> bool {
        if self.network.flows.iter().any(|known| known.id == flow.id) {
            return false;
        }
        self.network.flows.push(flow);
        let accepted = self.keeps_deadlines(&analyze(&self.network));
        if !accepted {
            self.network.flows.pop();
        }
        accepted
    }

    /// Takes a flow out. False if there is none of that name.
    pub fn remove(&mut self, id: &str) -> bool {
        let before = self.network.flows.len();
        self.network.flows.retain(|flow| flow.id != id);
        self.network.flows.len() < before
    }

    fn keeps_deadlines(&self, bounds: &Bounds) -> bool {
        self.network
            .flows
            .iter()
            .zip(&bounds.flows)
            .all(|(flow, bounds)| {
                let kept = |bound: u64| bound <= flow.deadline;
                bounds.iter().all(|bounds| bounds.best.is_some_and(kept))
            })
    }
}
