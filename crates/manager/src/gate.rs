//! Who is let in: the flows that are admitted, and their bounds.

use std::collections::HashMap;

use punctual_analysis::analyze;
use punctual_model::network::{Flow, Network, Topology};

/// Why flows are not let in, in plain words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refused(pub(crate) String);

/// The admitted flows.
#[derive(Debug, Clone)]
pub(crate) struct Gate {
    network: Network,
    bounds: HashMap<String, Vec<u64>>,
}

impl Gate {
    /// Begins with the flows of a network, which are there anyway.
    ///
    /// # Errors
    /// They do not keep their deadlines.
    pub(crate) fn new(network: Network) -> Result<Self, Refused> {
        let bounds = judge(&network, &[])?;
        Ok(Self { network, bounds })
    }

    /// Takes flows out and lets others in if then everyone keeps its deadline;
    /// otherwise nothing changes.
    pub(crate) fn replace(&mut self, out: &[&str], new: Vec<Flow>) -> Result<(), Refused> {
        let names: Vec<String> = new.iter().map(|flow| flow.id.clone()).collect();
        let mut network = self.network.clone();
        network
            .flows
            .retain(|flow| !out.contains(&flow.id.as_str()));
        network.flows.extend(new);
        self.bounds = judge(&network, &names)?;
        self.network = network;
        Ok(())
    }

    /// The network has grown by nodes and links at the end of its lists.
    pub(crate) fn grow(&mut self, topology: Topology) {
        self.network.topology = topology;
    }

    /// The network with the admitted flows.
    pub(crate) fn network(&self) -> &Network {
        &self.network
    }

    /// Bounds of a flow for each of its destinations, ns.
    pub(crate) fn bounds(&self, id: &str) -> &[u64] {
        self.bounds.get(id).map_or(&[], Vec::as_slice)
    }
}

/// Bounds of all flows, if all are within their deadlines. `new` are those
/// that are talked about first where several are not.
fn judge(network: &Network, new: &[String]) -> Result<HashMap<String, Vec<u64>>, Refused> {
    let bounds = analyze(network);
    let mut of = HashMap::with_capacity(network.flows.len());
    let mut late: Vec<(&Flow, Option<u64>)> = Vec::new();
    for (flow, bounds) in network.flows.iter().zip(&bounds.flows) {
        let best: Option<Vec<u64>> = bounds.iter().map(|bounds| bounds.best).collect();
        match best {
            Some(best) => {
                let worst = best.iter().copied().max().unwrap_or(0);
                if worst > flow.deadline {
                    late.push((flow, Some(worst)));
                }
                of.insert(flow.id.clone(), best);
            }
            None => late.push((flow, None)),
        }
    }
    let Some((flow, bound)) = late
        .iter()
        .find(|(flow, _)| new.contains(&flow.id))
        .or_else(|| late.first())
    else {
        return Ok(of);
    };
    Err(Refused(explain(network, flow, *bound, late.len() - 1)))
}

fn explain(network: &Network, flow: &Flow, bound: Option<u64>, others: usize) -> String {
    // To the microsecond, upwards: this is for people.
    let nanos = |nanos: u64| match nanos.div_ceil(1000) {
        micros if micros < 10_000 => format!("{micros} us"),
        micros => format!("{}.{:03} ms", micros / 1000, micros % 1000),
    };
    let (link, load) = busiest(network, flow);
    let link = &network.topology.links[link].id;
    let per_cent = load.div_ceil(10_000);
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
        None if load > 1_000_000 => format!(
            "link {link} on the way of flow {} would be loaded {per_cent} %{others}",
            flow.id,
        ),
        None => format!(
            "flow {} has no bound; its busiest link {link} would be loaded {per_cent} %{others}",
            flow.id,
        ),
    }
}

/// The link of a flow's way with the highest load, and that in millionths.
fn busiest(network: &Network, flow: &Flow) -> (usize, u128) {
    let links = flow.hops.iter().map(|hop| hop.link);
    let load = |link: usize| -> u128 {
        let of = |flow: &Flow| -> u128 {
            let costs = flow.hops.iter().filter(|hop| hop.link == link);
            let busy: u128 = costs.map(|hop| u128::from(hop.cost)).sum();
            (busy * u128::from(flow.frames) * 1_000_000).div_ceil(u128::from(flow.period))
        };
        network.flows.iter().map(of).sum()
    };
    links
        .map(|link| (link, load(link)))
        .max_by_key(|(_, load)| *load)
        .unwrap_or((0, 0))
}
