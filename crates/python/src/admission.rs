//! Admission, kept from one decision to the next.

use std::sync::{Mutex, MutexGuard, PoisonError};

use punctual_analysis::{Reason, Refusal};
use punctual_model::network::{Document, FlowEntry, NetworkError};
use pyo3::prelude::*;

use crate::analysis::{Row, flow_rows};
use crate::explain::RemedyRow;
use crate::network::{Network, flow_entry, value_error};

/// Decides which flows are guaranteed their deadlines.
#[pyclass(frozen, module = "punctual._native")]
#[derive(Debug)]
pub(crate) struct Admission(Mutex<State>);

#[derive(Debug)]
struct State {
    admission: punctual_analysis::Admission,
    /// The network and its flows as they were written, in the order in which
    /// the admission has them.
    document: Document,
}

/// Why flows are not admitted, as a dictionary.
#[derive(Debug, IntoPyObject)]
pub(crate) struct RefusalReason {
    message: String,
    kind: &'static str,
    flow: String,
    new: bool,
    others: u64,
    path: Option<usize>,
    bound_ns: Option<u64>,
    deadline_ns: Option<u64>,
    link: Option<String>,
    load_percent: Option<u64>,
}

#[pymethods]
impl Admission {
    #[new]
    fn new(py: Python<'_>, network: &Network, effort: Option<u64>) -> Self {
        py.detach(|| {
            let mut admission = punctual_analysis::Admission::new(network.checked.clone());
            if let Some(effort) = effort {
                admission.set_effort(effort);
            }
            Self(Mutex::new(State {
                admission,
                document: network.document.clone(),
            }))
        })
    }

    /// Admits flows, all or none, and keeps them if `keep`. None if they are
    /// admitted, or why they are not.
    fn decide(
        &self,
        py: Python<'_>,
        flows: Vec<Bound<'_, PyAny>>,
        keep: bool,
    ) -> PyResult<Option<RefusalReason>> {
        let entries: Vec<_> = flows.iter().map(flow_entry).collect::<PyResult<_>>()?;
        py.detach(|| self.state().decide(entries, keep))
            .map_err(value_error)
    }

    /// What would help a flow that is refused.
    fn remedies(&self, py: Python<'_>, flow: &Bound<'_, PyAny>) -> PyResult<Vec<RemedyRow>> {
        let entry = flow_entry(flow)?;
        py.detach(|| {
            let state = self.state();
            let flow = state.admission.network().topology.flow(&entry)?;
            let remedies = state.admission.remedies(&flow).into_iter();
            Ok(remedies.map(RemedyRow::from).collect())
        })
        .map_err(|error: NetworkError| value_error(error))
    }

    /// Takes a flow out. False if there is none of that name.
    fn remove(&self, py: Python<'_>, id: &str) -> bool {
        py.detach(|| {
            let mut state = self.state();
            state.document.flows.retain(|flow| flow.id != id);
            state.admission.remove(id)
        })
    }

    /// The bounds of an admitted flow, one for each path; None if there is no
    /// flow of that name.
    fn bounds(&self, py: Python<'_>, id: &str) -> Option<Vec<Row>> {
        py.detach(|| {
            let state = self.state();
            let bounds = state.admission.bounds(id)?;
            let network = state.admission.network();
            let flow = network.flows.iter().find(|flow| flow.id == id)?;
            Some(flow_rows(network, flow, &bounds))
        })
    }

    /// The network with the flows that are admitted now.
    fn network(&self, py: Python<'_>) -> Network {
        py.detach(|| {
            let state = self.state();
            Network {
                document: state.document.clone(),
                checked: state.admission.network().clone(),
            }
        })
    }

    /// Names of the flows that are admitted, in the order in which they were.
    fn flow_ids(&self, py: Python<'_>) -> Vec<String> {
        py.detach(|| {
            let state = self.state();
            let flows = state.document.flows.iter();
            flows.map(|flow| flow.id.clone()).collect()
        })
    }
}

impl Admission {
    /// Taken without the interpreter's lock only, so that nobody who has the
    /// one waits for the other.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn decide(
        &mut self,
        entries: Vec<FlowEntry>,
        keep: bool,
    ) -> Result<Option<RefusalReason>, NetworkError> {
        let topology = &self.admission.network().topology;
        let flows = entries.iter().map(|entry| topology.flow(entry));
        let flows = flows.collect::<Result<Vec<_>, _>>()?;
        if let Err(refusal) = self.admission.add(flows) {
            return Ok(Some(refusal.into()));
        }
        if keep {
            self.document.flows.extend(entries);
        } else {
            for entry in &entries {
                self.admission.remove(&entry.id);
            }
        }
        Ok(None)
    }
}

impl From<Refusal> for RefusalReason {
    fn from(refusal: Refusal) -> Self {
        let message = refusal.to_string();
        let taken = Self {
            message,
            kind: "taken",
            flow: refusal.flow,
            new: refusal.new,
            others: refusal.others,
            path: None,
            bound_ns: None,
            deadline_ns: None,
            link: None,
            load_percent: None,
        };
        match refusal.reason {
            Reason::Taken => taken,
            Reason::Overload { link, percent } => Self {
                kind: "overload",
                link: Some(link),
                load_percent: Some(percent),
                ..taken
            },
            Reason::Late {
                path,
                bound,
                deadline,
            } => Self {
                kind: "late",
                path: Some(path),
                bound_ns: bound,
                deadline_ns: Some(deadline),
                ..taken
            },
        }
    }
}
