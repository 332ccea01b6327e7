//! What is known of a network after its analysis, one row per flow and path.

use punctual_analysis::{LinkLoad, analyze, link_loads};
use punctual_model::network::{Flow, HopIndex, Network};

use super::load;
use super::method::Method;
use super::observed::Observed;

/// An analysed network.
#[derive(Debug)]
pub(super) struct Study {
    /// The network.
    pub(super) network: Network,
    /// The methods that are shown, in this order.
    pub(super) methods: Vec<Method>,
    /// In the order of the flows and their paths.
    pub(super) rows: Vec<Row>,
    /// Of each link that carries flows.
    pub(super) loads: Vec<LinkLoad>,
    /// Whether observations were given.
    pub(super) observed: bool,
    /// What was chosen before, a line each.
    pub(super) planned: Vec<String>,
}

/// A flow to one destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    /// The flow's name.
    pub(super) flow: String,
    /// Index of the path.
    pub(super) path: usize,
    /// The nodes, such as `h1→s1→s7`.
    pub(super) route: String,
    /// The flow's priority.
    pub(super) priority: u64,
    /// The flow's period, ns.
    pub(super) period: u64,
    /// The flow's deadline, ns.
    pub(super) deadline: u64,
    /// What each shown method says, ns.
    pub(super) bounds: Vec<Option<u64>>,
    /// The bound on which the verdict rests, ns.
    pub(super) bound: Option<u64>,
    /// The largest response that was seen, ns.
    pub(super) observed: Option<u64>,
}

/// Whether a deadline is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The bound is at most the deadline.
    Kept,
    /// The bound is above the deadline.
    Late,
    /// There is no bound.
    Unbounded,
}

impl Verdict {
    /// In a word.
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Kept => "ok",
            Self::Late => "late",
            Self::Unbounded => "no bound",
        }
    }
}

impl Row {
    /// Whether the deadline is kept.
    pub(super) fn verdict(&self) -> Verdict {
        match self.bound {
            Some(bound) if bound <= self.deadline => Verdict::Kept,
            Some(_) => Verdict::Late,
            None => Verdict::Unbounded,
        }
    }

    /// What is left to the deadline, ns; negative if it is missed.
    pub(super) fn slack(&self) -> Option<i128> {
        let bound = self.bound?;
        Some(i128::from(self.deadline) - i128::from(bound))
    }

    /// A response above the bound was seen: the network is not what was
    /// declared, or the bound is wrong.
    pub(super) fn is_refuted(&self) -> bool {
        matches!((self.bound, self.observed), (Some(bound), Some(seen)) if seen > bound)
    }
}

impl Study {
    /// Analyses a network. The verdict rests on the tightest of the methods
    /// that is safe, or on [`Method::Best`] if none is.
    pub(super) fn new(network: Network, methods: &[Method], observed: Option<&Observed>) -> Self {
        let bounds = analyze(&network);
        let shown: Vec<_> = methods
            .iter()
            .map(|method| method.bounds(&network, &bounds))
            .collect();
        let rows = network.flows.iter().enumerate().flat_map(|(index, flow)| {
            let (shown, best) = (&shown, &bounds.flows[index]);
            let leaves = flow.leaves.iter().enumerate();
            let network = &network;
            leaves.map(move |(path, leaf)| {
                let bounds: Vec<_> = shown.iter().map(|flows| flows[index][path]).collect();
                let safe = methods
                    .iter()
                    .zip(&bounds)
                    .filter(|(method, _)| method.is_safe());
                let tightest = match methods.iter().any(|method| method.is_safe()) {
                    true => safe.filter_map(|(_, bound)| *bound).min(),
                    false => best[path].best,
                };
                Row {
                    flow: flow.id.clone(),
                    path,
                    route: route(network, flow, *leaf),
                    priority: flow.priority,
                    period: flow.period,
                    deadline: flow.deadline,
                    bound: tightest,
                    bounds,
                    observed: observed.and_then(|observed| observed.get(&flow.id, path)),
                }
            })
        });
        Self {
            rows: rows.collect(),
            loads: link_loads(&network),
            methods: methods.to_vec(),
            observed: observed.is_some(),
            planned: Vec::new(),
            network,
        }
    }

    /// Every deadline is kept.
    pub(super) fn is_schedulable(&self) -> bool {
        self.rows.iter().all(|row| row.verdict() == Verdict::Kept)
    }

    /// What a person should know beside the table, a line each: what was
    /// chosen, formulas that are no bounds, overloaded links, observations above a bound.
    pub(super) fn remarks(&self) -> Vec<String> {
        let unsafe_ones = self
            .methods
            .iter()
            .filter(|method| !method.is_safe())
            .map(|method| {
                format!(
                    "{} is no bound: real responses exceed it; the verdict does not rest on it",
                    method.title()
                )
            });
        let overloaded = self.loads.iter().filter_map(|load| {
            let link = &self.network.topology.links[load.link].id;
            let from = load.overloaded_from?;
            let load = load::text(load);
            Some(format!(
                "link {link} loaded {load}: no bound there at priority {from} and below"
            ))
        });
        let refuted = self.rows.iter().filter(|row| row.is_refuted()).map(|row| {
            format!(
                "{} path {}: more was observed than the bound allows; the network is not what the file declares",
                row.flow, row.path
            )
        });
        let planned = self.planned.iter().cloned();
        planned
            .chain(unsafe_ones)
            .chain(overloaded)
            .chain(refuted)
            .collect()
    }

    /// The answer in a line.
    pub(super) fn summary(&self) -> String {
        let count = |verdict| {
            let rows = self.rows.iter();
            rows.filter(|row| row.verdict() == verdict).count()
        };
        let flows = self.network.flows.len();
        let mut text = format!("{flows} flows to {} destinations: ", self.rows.len());
        text.push_str(&match (count(Verdict::Late), count(Verdict::Unbounded)) {
            (0, 0) => "every deadline is kept".into(),
            (late, 0) => format!("{late} may be late"),
            (0, none) => format!("{none} have no bound"),
            (late, none) => format!("{late} may be late, {none} have no bound"),
        });
        let fullest = self.loads.iter().max_by_key(|load| load.share);
        if let Some(load) = fullest {
            let link = &self.network.topology.links[load.link].id;
            text.push_str(&format!("; fullest link {link}, {}", load::text(load)));
        }
        text
    }
}

/// The nodes from the publisher to a destination.
pub(in crate::cli) fn route(network: &Network, flow: &Flow, leaf: HopIndex) -> String {
    let parent = |hop: &HopIndex| flow.hops[*hop].parent;
    let mut hops: Vec<_> = std::iter::successors(Some(leaf), parent).collect();
    hops.reverse();
    let topology = &network.topology;
    let node = |index: usize| topology.nodes[index].id.as_str();
    let links: Vec<_> = hops
        .iter()
        .map(|hop| &topology.links[flow.hops[*hop].link])
        .collect();
    let first = links.first().map(|link| node(link.from));
    let nodes: Vec<_> = first
        .into_iter()
        .chain(links.iter().map(|link| node(link.to)))
        .collect();
    nodes.join("→")
}
