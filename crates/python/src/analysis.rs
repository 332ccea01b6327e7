//! Bounds of a network.

use punctual_analysis::printed::{self, Floor};
use punctual_analysis::{Bounds, PathBounds};
use punctual_model::network as model;
use pyo3::prelude::*;

use crate::network::Network;

/// A flow to one of its destinations, as a dictionary with the names of the
/// contract for machines.
#[derive(Debug, IntoPyObject)]
pub(crate) struct Row {
    flow: String,
    path: usize,
    /// Links from the publisher to the destination.
    links: Vec<String>,
    prio: u64,
    period_ns: u64,
    jitter_ns: u64,
    deadline_ns: u64,
    wcrt_ns: Option<u64>,
    ha_ns: Option<u64>,
    ta_ns: Option<u64>,
}

/// What a method says of each flow and path, ns.
type BoundsByPath = Vec<Vec<Option<u64>>>;

/// One row for each flow and path, in their order.
#[pyfunction]
pub(crate) fn analyze(py: Python<'_>, network: &Network) -> Vec<Row> {
    py.detach(|| {
        let checked = &network.checked;
        rows(checked, &punctual_analysis::analyze(checked))
    })
}

/// Bounds by network calculus for each flow and path.
#[pyfunction]
pub(crate) fn tfa(py: Python<'_>, network: &Network) -> BoundsByPath {
    py.detach(|| punctual_analysis::tfa(&network.checked))
}

/// The holistic formula as printed, for each flow and path. No bound.
#[pyfunction]
pub(crate) fn printed_holistic(py: Python<'_>, network: &Network) -> BoundsByPath {
    py.detach(|| printed::holistic(&network.checked))
}

/// The trajectory formula as printed, for each flow and path. No bound.
#[pyfunction]
pub(crate) fn printed_trajectory(
    py: Python<'_>,
    network: &Network,
    repaired: bool,
) -> BoundsByPath {
    let floor = match repaired {
        true => Floor::Repaired,
        false => Floor::AsPrinted,
    };
    py.detach(|| printed::trajectory(&network.checked, floor))
}

pub(crate) fn rows(network: &model::Network, bounds: &Bounds) -> Vec<Row> {
    let flows = network.flows.iter().zip(&bounds.flows);
    flows
        .flat_map(|(flow, bounds)| flow_rows(network, flow, bounds))
        .collect()
}

pub(crate) fn flow_rows(
    network: &model::Network,
    flow: &model::Flow,
    bounds: &[PathBounds],
) -> Vec<Row> {
    let paths = flow.leaves.iter().zip(bounds).enumerate();
    paths
        .map(|(path, (leaf, bounds))| Row {
            flow: flow.id.clone(),
            path,
            links: links(network, flow, *leaf),
            prio: flow.priority,
            period_ns: flow.period,
            jitter_ns: flow.jitter,
            deadline_ns: flow.deadline,
            wcrt_ns: bounds.best,
            ha_ns: bounds.holistic,
            ta_ns: bounds.trajectory,
        })
        .collect()
}

fn links(network: &model::Network, flow: &model::Flow, leaf: model::HopIndex) -> Vec<String> {
    let hops = std::iter::successors(Some(leaf), |hop| flow.hops[*hop].parent);
    let mut links: Vec<_> = hops
        .map(|hop| network.topology.links[flow.hops[hop].link].id.clone())
        .collect();
    links.reverse();
    links
}
