//! Who is let in: the flows that are admitted, and their bounds.

use punctual_analysis::{Admission, Explanation, LinkLoad, Reason, Refusal, Remedy, link_loads};
use punctual_model::network::{Flow, Network};

use crate::map::Host;

/// Streams of other flows that one admission decision may examine, which takes some ten milliseconds. A
/// request that needs more is refused.
const EFFORT: u64 = 1 << 18;
/// The same for the bounds of the flow that was asked for.
const EFFORT_OF_BOUNDS: u64 = 1 << 15;
/// The same for an explanation, which nobody waits for: some tenths of a second.
const EFFORT_OF_EXPLANATION: u64 = 1 << 22;

/// Why flows are not let in, in plain words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refused(pub(crate) String);

/// The admitted flows.
#[derive(Debug, Clone)]
pub(crate) struct Gate {
    admission: Admission,
}

impl Gate {
    /// Begins with the flows of a network, which are there anyway.
    ///
    /// # Errors
    /// They do not keep their deadlines.
    pub(crate) fn new(mut network: Network) -> Result<Self, Refused> {
        let flows = std::mem::take(&mut network.flows);
        let mut admission = Admission::new(network);
        // The network's own flows are asked once, and with all patience.
        let mut gate = Self {
            admission: admission.clone(),
        };
        admission
            .add(flows.clone())
            .map_err(|refusal| gate.refused(&refusal, &[], &flows))?;
        admission.set_effort(EFFORT);
        gate.admission = admission;
        Ok(gate)
    }

    /// Takes flows out and lets others in if then everyone keeps its deadline;
    /// otherwise nothing changes.
    pub(crate) fn replace(&mut self, out: &[&str], new: Vec<Flow>) -> Result<(), Refused> {
        self.try_replace(out, new.clone())
            .map_err(|refusal| self.refused(&refusal, out, &new))
    }

    /// As [`replace`](Self::replace), without the words, which
    /// [`refused`](Self::refused) finds.
    pub(crate) fn try_replace(&mut self, out: &[&str], new: Vec<Flow>) -> Result<(), Refusal> {
        self.admission.replace(out, new)
    }

    /// The network has grown by a host.
    pub(crate) fn add_host(&mut self, host: &Host) {
        // The map has found nothing wrong with it.
        let node = std::slice::from_ref(&host.node);
        let _ = self.admission.extend(node, &host.links);
    }

    /// The network with the admitted flows.
    pub(crate) fn network(&self) -> &Network {
        self.admission.network()
    }

    /// Bounds of flows for each of their destinations, ns, with all that are
    /// admitted now. One is looked at more closely than many.
    pub(crate) fn bounds(&self, ids: &[&str]) -> Vec<Vec<u64>> {
        let effort = match ids.len() {
            0..=1 => EFFORT_OF_BOUNDS,
            _ => EFFORT,
        };
        self.admission.guarantees(ids, effort)
    }

    /// The largest bound of each of these flows over its destinations, ns, by
    /// what takes no more than a look: never less than [`bounds`](Self::bounds)
    /// says.
    pub(crate) fn quick_bounds(&self, ids: &[&str]) -> impl Iterator<Item = u64> {
        let bounds = self.admission.guarantees(ids, 0).into_iter();
        bounds.map(|each| each.into_iter().max().unwrap_or(0))
    }

    /// What bounds of a flow are made of, one for each destination; `None` if
    /// there is none of that name, or if that takes too long to say.
    pub(crate) fn explain(&self, id: &str) -> Option<Vec<Explanation>> {
        self.admission.explain(id, EFFORT_OF_EXPLANATION)
    }

    /// What would help a flow that is refused in the place of one of its name.
    pub(crate) fn remedies(&self, flow: &Flow) -> Vec<Remedy> {
        let mut admission = self.admission.clone();
        admission.remove(&flow.id);
        admission.remedies(flow)
    }

    /// A refusal in words, with the links as they would be loaded.
    pub(crate) fn refused(&self, refusal: &Refusal, out: &[&str], new: &[Flow]) -> Refused {
        let mut network = self.network().clone();
        network
            .flows
            .retain(|flow| !out.contains(&flow.id.as_str()));
        network.flows.extend_from_slice(new);
        let bound = match refusal.reason {
            Reason::Taken => return Refused(refusal.to_string()),
            Reason::Overload { .. } => None,
            Reason::Late { bound, .. } => bound,
        };
        let flow = network.flows.iter().find(|flow| flow.id == refusal.flow);
        Refused(match flow {
            Some(flow) => explain(&network, flow, bound, refusal.others),
            None => refusal.to_string(),
        })
    }
}

fn explain(network: &Network, flow: &Flow, bound: Option<u64>, others: u64) -> String {
    // To the microsecond, upwards: this is for people.
    let nanos = |nanos: u64| match nanos.div_ceil(1000) {
        micros if micros < 10_000 => format!("{micros} us"),
        micros => format!("{}.{:03} ms", micros / 1000, micros % 1000),
    };
    let Some(load) = busiest(network, flow) else {
        return format!("flow {} has no way", flow.id);
    };
    let link = &network.topology.links[load.link].id;
    let per_cent = load.whole_percent();
    let others = match others {
        0 => String::new(),
        1 => "; another flow would be late, too".into(),
        n => format!("; {n} other flows would be late, too"),
    };
    match bound {
        Some(bound) => format!(
            "flow {} could take {} with a deadline of {}, {} too long; \
             its busiest link {link} would be loaded {per_cent} %{others}",
            flow.id,
            nanos(bound),
            nanos(flow.deadline),
            nanos(bound - flow.deadline),
        ),
        None if load.share > LinkLoad::FULL => format!(
            "link {link} on the way of flow {} would be loaded {per_cent} %{others}",
            flow.id,
        ),
        None => format!(
            "flow {} has no bound; its busiest link {link} would be loaded {per_cent} %{others}",
            flow.id,
        ),
    }
}

/// The link of a flow's way with the highest load.
fn busiest(network: &Network, flow: &Flow) -> Option<LinkLoad> {
    let own = |load: &LinkLoad| flow.hops.iter().any(|hop| hop.link == load.link);
    let loads = link_loads(network).into_iter();
    loads.filter(own).max_by_key(|load| load.share)
}
