//! Simulation of a network, and the search for its worst behaviours.

use punctual_model::network::MAX_TIME;
use punctual_sim::network::{Chances, Drawn, Effort, Engine, Layout, Nobody, Scenario, Worst};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::network::{Network, from_json, to_json, value_error};

/// What was seen of a flow at one of its destinations, as a dictionary.
#[derive(Debug, Clone, IntoPyObject)]
pub(crate) struct Observation {
    flow: String,
    path: usize,
    /// The largest response; None if no message came.
    response_ns: Option<u64>,
    /// Which message had it.
    message: u32,
    /// Messages that came, in all runs.
    messages: u64,
    /// The run that had it.
    seed: u64,
}

/// Runs random behaviours, one for each seed.
#[pyfunction]
pub(crate) fn simulate(
    py: Python<'_>,
    network: &Network,
    runs: u64,
    seed: u64,
    duration_ns: u64,
    gaps_percent: u64,
    extremes_percent: u64,
) -> PyResult<Vec<Observation>> {
    if duration_ns > MAX_TIME {
        let problem = format!("duration_ns {duration_ns} is above {MAX_TIME}; simulate less");
        return Err(PyValueError::new_err(problem));
    }
    for (name, percent) in [
        ("gaps_percent", gaps_percent),
        ("extremes_percent", extremes_percent),
    ] {
        if percent > 100 {
            let problem = format!("{name} {percent} is above 100");
            return Err(PyValueError::new_err(problem));
        }
    }
    let chances = Chances {
        duration: duration_ns,
        gaps: gaps_percent,
        extremes: extremes_percent,
    };
    let layout = py.detach(|| Layout::new(&network.checked));
    let mut engine = Engine::new(&layout);
    let mut seen = nothing(network);
    for run in 0..runs {
        let seed = seed.wrapping_add(run);
        py.detach(|| {
            engine.run(&mut Drawn::new(&layout, seed, chances), &mut Nobody);
            look(network, &engine, seed, &mut seen);
        });
        py.check_signals()?;
    }
    Ok(seen)
}

/// Runs a behaviour that is written down.
#[pyfunction]
pub(crate) fn replay(
    py: Python<'_>,
    network: &Network,
    scenario: &Bound<'_, PyAny>,
) -> PyResult<Vec<Observation>> {
    let text = to_json(scenario)?;
    let scenario: Scenario =
        serde_json::from_str(&text).map_err(|error| value_error(format!("scenario: {error}")))?;
    py.detach(|| {
        scenario.check(&network.checked)?;
        let layout = Layout::new(&network.checked);
        let mut engine = Engine::new(&layout);
        engine.run(&mut scenario.play(&layout), &mut Nobody);
        let mut seen = nothing(network);
        look(network, &engine, 0, &mut seen);
        Ok(seen)
    })
    .map_err(|error: punctual_sim::network::ScenarioError| value_error(error))
}

/// Looks for the largest response of a flow: what was seen, the scenario, and
/// how many were run.
#[pyfunction]
pub(crate) fn search<'py>(
    py: Python<'py>,
    network: &Network,
    flow: &str,
    path: usize,
    runs: u64,
    seed: u64,
    enough_ns: Option<u64>,
) -> PyResult<(Observation, Bound<'py, PyAny>, u64)> {
    let index = network.path(flow, path)?;
    let effort = Effort {
        runs,
        enough: enough_ns,
    };
    let found =
        py.detach(|| punctual_sim::network::search(&network.checked, index, path, seed, effort));
    let mut seen = Observation::new(flow, path, seed);
    seen.add(found.worst, seed);
    let scenario = serde_json::to_string(&found.scenario).map_err(value_error)?;
    Ok((seen, from_json(py, &scenario)?, found.runs))
}

impl Observation {
    fn new(flow: &str, path: usize, seed: u64) -> Self {
        Self {
            flow: flow.to_owned(),
            path,
            response_ns: None,
            message: 0,
            messages: 0,
            seed,
        }
    }

    fn add(&mut self, worst: Worst, seed: u64) {
        self.messages += worst.count;
        if worst.count > 0 && self.response_ns.is_none_or(|known| worst.response > known) {
            self.response_ns = Some(worst.response);
            self.message = worst.message;
            self.seed = seed;
        }
    }
}

/// Every flow and path, nothing seen.
fn nothing(network: &Network) -> Vec<Observation> {
    let flows = network.checked.flows.iter();
    flows
        .flat_map(|flow| (0..flow.leaves.len()).map(|path| Observation::new(&flow.id, path, 0)))
        .collect()
}

/// Adds what the last run showed.
fn look(network: &Network, engine: &Engine<'_>, seed: u64, seen: &mut [Observation]) {
    let flows = network.checked.flows.iter().enumerate();
    let paths = flows.flat_map(|(flow, row)| (0..row.leaves.len()).map(move |path| (flow, path)));
    for ((flow, path), seen) in paths.zip(seen) {
        seen.add(engine.worst(flow, path), seed);
    }
}
